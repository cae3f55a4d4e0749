//! Network destinations of acts, and patterns over them (`C-053`, `R-24`).

use std::net::IpAddr;

use guard_common::address::{Address, v4};

use super::negation;

/// Where an act goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    raw: String,
    target: Target,
}

/// What a host text means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A DNS name: lower case ASCII without a final dot.
    Name(String),
    /// An address, IPv4 as `::ffff:a.b.c.d`.
    Address(Address),
    /// A local socket: a path, or `@name` in the abstract name space (`R-69`).
    Socket,
}

/// A text that names no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a host name, an address or the path of a socket; ports, brackets and URLs have no place here")]
pub struct InvalidHost;

impl Host {
    /// Reads a host: a name, an address, or the path of a local socket.
    ///
    /// Numbers that resolvers take for IPv4 addresses (`127.1`, `0x7f000001`) are read as these addresses.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(raw: &str) -> Result<Self, InvalidHost> {
        let target = if raw.starts_with(['/', '@']) {
            if raw.len() == 1 || raw.chars().any(char::is_control) {
                return Err(InvalidHost);
            }
            Target::Socket
        } else if let Ok(address) = raw.parse::<IpAddr>() {
            Target::Address(bytes(address))
        } else {
            let name = name(raw)?;
            match numeric(&name) {
                Some(parsed) => Target::Address(v4(parsed.ok_or(InvalidHost)?.to_be_bytes())),
                None => Target::Name(name),
            }
        };
        Ok(Self { raw: raw.to_owned(), target })
    }

    /// The host that is this address; IPv4 as `::ffff:a.b.c.d`.
    #[must_use]
    pub fn address(address: Address) -> Self {
        Self { raw: display(&address).to_string(), target: Target::Address(address) }
    }

    /// As it was written.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.raw
    }

    pub(crate) const fn target(&self) -> &Target {
        &self.target
    }
}

/// The 16 bytes of an address.
pub(crate) fn bytes(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => v4(address.octets()),
        IpAddr::V6(address) => address.octets(),
    }
}

/// An address as people write it.
pub(crate) fn display(address: &Address) -> IpAddr {
    IpAddr::from(*address).to_canonical()
}

fn name(raw: &str) -> Result<String, InvalidHost> {
    let dotless = raw.strip_suffix('.').unwrap_or(raw);
    let ascii = idna::domain_to_ascii(dotless).map_err(|_| InvalidHost)?;
    let good = |label: &str| {
        let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        !label.is_empty() && label.len() <= 63 && label.bytes().all(valid)
    };
    if ascii.len() <= 253 && ascii.split('.').all(good) { Ok(ascii) } else { Err(InvalidHost) }
}

/// The address that `inet_aton` makes of a name whose last label is a number; `Some(None)` if it makes none.
fn numeric(name: &str) -> Option<Option<u32>> {
    let labels: Vec<&str> = name.split('.').collect();
    let last = labels.last()?;
    if !last.bytes().all(|byte| byte.is_ascii_digit()) && number(last).is_none() {
        return None;
    }
    let numbers: Option<Vec<u64>> = labels.iter().map(|label| number(label)).collect();
    Some(numbers.and_then(|numbers| {
        let (last, first) = numbers.split_last()?;
        if first.len() > 3 || first.iter().any(|part| *part > 255) || *last >= 1 << (8 * (4 - first.len())) {
            return None;
        }
        let high = first.iter().enumerate().fold(0, |sum, (index, part)| sum | part << (24 - 8 * index));
        u32::try_from(high | last).ok()
    }))
}

fn number(label: &str) -> Option<u64> {
    if let Some(hexadecimal) = label.strip_prefix("0x") {
        return if hexadecimal.is_empty() { Some(0) } else { u64::from_str_radix(hexadecimal, 16).ok() };
    }
    match label.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => label.parse().ok(),
    }
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    /// First address; IPv4 as `::ffff:a.b.c.d`.
    pub address: Address,
    /// Of 128 bits.
    pub prefix: u8,
}

impl Network {
    /// Every address.
    pub const ALL: Self = Self { address: [0; 16], prefix: 0 };
    /// Every IPv4 address.
    pub const IPV4: Self = Self { address: v4([0; 4]), prefix: 96 };

    /// Reads an address or a CIDR whose host bits are zero.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(written: &str) -> Result<Self, InvalidHost> {
        if let Ok(address) = written.parse::<IpAddr>() {
            return Ok(Self { address: bytes(address), prefix: 128 });
        }
        let network = written.parse::<ipnet::IpNet>().map_err(|_| InvalidHost)?;
        if network.trunc() != network {
            return Err(InvalidHost);
        }
        let before = if network.addr().is_ipv4() { 96 } else { 0 };
        Ok(Self { address: bytes(network.addr()), prefix: before + network.prefix_len() })
    }

    /// Whether `address`, taken as it is, lies inside. A range of IPv6 holds no IPv4 address: `::/0` is what
    /// people call IPv6, not everything.
    #[must_use]
    pub fn contains(&self, address: &Address) -> bool {
        let ipv4 = Self::IPV4.spans(address);
        ipv4 == (self.prefix >= Self::IPV4.prefix && Self::IPV4.spans(&self.address)) && self.spans(address)
    }

    /// Whether all of `other` lies inside.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.encloses(other) && self.contains(&other.address)
    }

    /// Whether `address` starts with these bits, whatever family that makes it; so looks the kernel's table.
    #[must_use]
    pub(crate) fn spans(&self, address: &Address) -> bool {
        let difference = u128::from_be_bytes(self.address) ^ u128::from_be_bytes(*address);
        self.prefix == 0 || difference >> (128 - u32::from(self.prefix)) == 0
    }

    /// Whether every address of `other` starts with these bits.
    #[must_use]
    pub(crate) fn encloses(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.spans(&other.address)
    }

    /// The same range, written with its first address.
    #[must_use]
    pub(crate) fn trunc(self) -> Self {
        let mask = if self.prefix == 0 { 0 } else { u128::MAX << (128 - u32::from(self.prefix)) };
        Self { address: (u128::from_be_bytes(self.address) & mask).to_be_bytes(), ..self }
    }

    /// The last address.
    #[must_use]
    pub fn last(&self) -> Address {
        let low = if self.prefix == 0 { u128::MAX } else { (1 << (128 - u32::from(self.prefix))) - 1 };
        (u128::from_be_bytes(self.address) | low).to_be_bytes()
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match display(&self.address) {
            IpAddr::V4(address) if self.prefix >= 96 => write!(f, "{address}/{}", self.prefix - 96),
            _ => write!(f, "{}/{}", std::net::Ipv6Addr::from(self.address), self.prefix),
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self { address: bytes(address), prefix: 128 }
    }
}

/// What a pattern over hosts is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HostKey {
    /// A name, or what a name ends in, with its leading dot.
    Name(String),
    /// A range.
    Range(Network),
}

/// A pattern over hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    written: String,
    negative: bool,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Everything,
    Name(String),
    /// Any depth below this name, not the name itself; with its leading dot.
    Below(String),
    Network(Network),
}

impl HostPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is no name, `*.name`, `**`, address or CIDR.
    pub fn parse(written: &str) -> Result<Self, InvalidHost> {
        let (negative, pattern) = negation(written);
        let plain = |text: &str| match Host::parse(text)?.target {
            Target::Name(name) => Ok(name),
            _ => Err(InvalidHost),
        };
        let kind = if pattern == "**" {
            Kind::Everything
        } else if let Ok(network) = Network::parse(pattern) {
            Kind::Network(network)
        } else if let Some(name) = pattern.strip_prefix("*.") {
            Kind::Below(format!(".{}", plain(name)?))
        } else {
            Kind::Name(plain(pattern)?)
        };
        Ok(Self { written: written.to_owned(), negative, kind })
    }

    /// As written.
    #[must_use]
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Whether it starts with `!`.
    #[must_use]
    pub const fn negative(&self) -> bool {
        self.negative
    }

    /// The range of addresses that it names, if it does.
    #[must_use]
    pub const fn network(&self) -> Option<Network> {
        match self.kind {
            Kind::Network(network) => Some(network),
            _ => None,
        }
    }

    /// What it is found by; `**` by nothing.
    pub(crate) fn key(&self) -> Option<HostKey> {
        match &self.kind {
            Kind::Everything => None,
            Kind::Name(name) | Kind::Below(name) => Some(HostKey::Name(name.clone())),
            Kind::Network(network) => Some(HostKey::Range(network.trunc())),
        }
    }

    /// Whether it covers this target, its `!` aside.
    pub(crate) fn covers(&self, target: &Target) -> bool {
        match (&self.kind, target) {
            (Kind::Everything, _) => true,
            (Kind::Name(pattern), Target::Name(name)) => pattern == name,
            (Kind::Below(suffix), Target::Name(name)) => name.ends_with(suffix.as_str()),
            (Kind::Network(network), Target::Address(address)) => network.contains(address),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `C-053`, `R-24`
    #[test]
    fn hosts_are_canonical_before_they_are_compared() {
        let table = [
            ("*.internal", "db.internal", true),
            ("*.internal", "a.b.INTERNAL.", true),
            ("*.internal", "internal", false),
            ("*.internal", "xinternal", false),
            ("bücher.example", "xn--bcher-kva.example", true),
            ("GitHub.com", "github.com.", true),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "0xa010203", true),
            ("127.0.0.1", "127.1", true),
            ("127.0.0.1", "2130706433", true),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("fe80::/10", "fe80::1", true),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
            ("::/64", "::ffff:10.0.0.1", false),
            ("0.0.0.0/0", "10.0.0.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("**", "/run/docker.sock", true),
            ("**", "example.org", true),
            ("example.org", "10.0.0.1", false),
        ];
        for (pattern, host, covers) in table {
            let pattern = HostPattern::parse(pattern).expect(pattern);
            let host = Host::parse(host).expect(host);
            assert_eq!(pattern.covers(host.target()), covers, "{pattern:?} {host:?}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for host in [
            "",
            ".",
            "a..b",
            "example.org:443",
            "[::1]",
            "http://a",
            "a b",
            "1.2.3.4.5",
            "256.1",
            "fe80::1%lo",
            "a/b",
            "/",
        ] {
            assert_eq!(Host::parse(host), Err(InvalidHost), "{host:?}");
        }
        for pattern in ["*", "a.*", "*.*.a", "10.0.0.1/8", "example.org:443", "!", "2130706433", "/run/x"] {
            assert_eq!(HostPattern::parse(pattern), Err(InvalidHost), "{pattern:?}");
        }
    }
}
