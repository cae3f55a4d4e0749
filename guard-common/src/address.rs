//! Classes of network addresses, and the addresses that hide inside others.
//!
//! Every address here is 16 bytes in network order; IPv4 is written `::ffff:a.b.c.d`. [`BUILTIN_RANGES`] is the
//! only list of ranges: the kernel's table is compiled from it and [`classify`] reads it, so the two cannot
//! drift apart.
//!
//! Functions marked as kernel code index with constants only, do not loop over data and cannot panic, because
//! the BPF verifier has to follow them.

use core::fmt;
use core::str::FromStr;

use crate::network::Verdict;

/// 16 bytes in network order; IPv4 as `::ffff:a.b.c.d`.
pub type Address = [u8; 16];

/// What an address is for. The order is the one in which the worst of several is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum AddressClass {
    /// Reaches this host itself: 127/8, `::1`, and the unspecified addresses, which Linux connects to loopback.
    Loopback,
    /// None of the others; policy decides.
    Public,
    /// One to many.
    Multicast,
    /// `fc00::/7`.
    UniqueLocal,
    /// Carrier-grade NAT, 100.64/10.
    Cgnat,
    /// Private networks of RFC 1918, benchmarking networks and the deprecated site-local ones.
    Private,
    /// Reachable on the link only.
    LinkLocal,
    /// A cloud's instance metadata or credential service.
    Metadata,
}

impl AddressClass {
    /// Every class, most dangerous first.
    pub const ALL: [Self; 8] = [
        Self::Metadata,
        Self::LinkLocal,
        Self::Private,
        Self::Cgnat,
        Self::UniqueLocal,
        Self::Multicast,
        Self::Loopback,
        Self::Public,
    ];

    /// The name of the range in policies, records and coverage.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::LinkLocal => "link_local",
            Self::Private => "private",
            Self::Cgnat => "cgnat",
            Self::UniqueLocal => "unique_local",
            Self::Multicast => "multicast",
            Self::Loopback => "loopback",
            Self::Public => "public",
        }
    }

    /// What holds while policy says nothing about the range.
    #[must_use]
    pub const fn default_verdict(self) -> Verdict {
        match self {
            Self::Loopback | Self::Public => Verdict::Allow,
            _ => Verdict::Deny,
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is none of the address classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownAddressClass;

impl fmt::Display for UnknownAddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the name of a built-in address range")
    }
}

impl core::error::Error for UnknownAddressClass {}

impl FromStr for AddressClass {
    type Err = UnknownAddressClass;

    fn from_str(name: &str) -> Result<Self, UnknownAddressClass> {
        Self::ALL.into_iter().find(|class| class.as_str() == name).ok_or(UnknownAddressClass)
    }
}

/// One line of the built-in table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The range that this line belongs to; its name is what records say.
    pub class: AddressClass,
    /// First address.
    pub address: Address,
    /// Counted over all 128 bits: an IPv4 /8 is 104 here.
    pub prefix: u8,
}

impl Range {
    const fn v4(class: AddressClass, octets: [u8; 4], prefix: u8) -> Self {
        Self { class, address: v4(octets), prefix: 96 + prefix }
    }

    const fn v6(class: AddressClass, groups: [u16; 8], prefix: u8) -> Self {
        Self { class, address: v6(groups), prefix }
    }

    /// Whether `address`, taken as it is, lies in this range.
    #[must_use]
    pub const fn contains(&self, address: &Address) -> bool {
        let shift = 128 - self.prefix as u32;
        let difference = u128::from_be_bytes(self.address) ^ u128::from_be_bytes(*address);
        shift >= 128 || difference >> shift == 0
    }

    /// What holds for this range while policy says nothing.
    #[must_use]
    pub const fn default_verdict(&self) -> Verdict {
        self.class.default_verdict()
    }
}

/// Every built-in range. What is in none of them is [`AddressClass::Public`].
pub const BUILTIN_RANGES: &[Range] = {
    use AddressClass::{Cgnat, LinkLocal, Loopback, Metadata, Multicast, Private, UniqueLocal};
    &[
        Range::v4(Metadata, [169, 254, 169, 254], 32),
        Range::v4(Metadata, [169, 254, 169, 253], 32),
        Range::v4(Metadata, [169, 254, 170, 2], 32),
        Range::v4(Metadata, [169, 254, 170, 23], 32),
        Range::v4(Metadata, [100, 100, 100, 200], 32),
        Range::v4(Metadata, [168, 63, 129, 16], 32),
        Range::v4(Metadata, [192, 0, 0, 192], 32),
        Range::v6(Metadata, [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128),
        Range::v6(Metadata, [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128),
        Range::v6(Metadata, [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128),
        Range::v4(LinkLocal, [169, 254, 0, 0], 16),
        Range::v6(LinkLocal, [0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
        Range::v4(Private, [10, 0, 0, 0], 8),
        Range::v4(Private, [172, 16, 0, 0], 12),
        Range::v4(Private, [192, 168, 0, 0], 16),
        Range::v4(Private, [198, 18, 0, 0], 15),
        Range::v6(Private, [0xfec0, 0, 0, 0, 0, 0, 0, 0], 10),
        Range::v4(Cgnat, [100, 64, 0, 0], 10),
        Range::v6(UniqueLocal, [0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
        Range::v4(Multicast, [224, 0, 0, 0], 4),
        Range::v6(Multicast, [0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
        Range::v4(Multicast, [255, 255, 255, 255], 32),
        Range::v4(Loopback, [127, 0, 0, 0], 8),
        Range::v6(Loopback, [0, 0, 0, 0, 0, 0, 0, 1], 128),
        Range::v4(Loopback, [0, 0, 0, 0], 8),
        Range::v6(Loopback, [0, 0, 0, 0, 0, 0, 0, 0], 128),
    ]
};

/// An IPv4 address in the form used here. Kernel code.
#[inline(always)]
#[must_use]
pub const fn v4(octets: [u8; 4]) -> Address {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, octets[0], octets[1], octets[2], octets[3]]
}

/// An IPv6 address from its eight groups.
#[must_use]
pub const fn v6(groups: [u16; 8]) -> Address {
    let mut address = [0; 16];
    let mut index = 0;
    while index < 8 {
        let [high, low] = groups[index].to_be_bytes();
        address[2 * index] = high;
        address[2 * index + 1] = low;
        index += 1;
    }
    address
}

/// Every address that one written address can reach: itself, and the IPv4 addresses embedded in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The first `len` are valid.
    pub addresses: [Address; 3],
    /// 1 to 3.
    pub len: usize,
}

impl Candidates {
    /// The valid addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter().take(self.len)
    }
}

/// Finds what `address` can reach. Kernel code.
///
/// - `::ffff:a.b.c.d` is IPv4 on the wire and nothing else;
/// - `::a.b.c.d` (compatible), `64:ff9b::a.b.c.d` (NAT64) and `2002:ab:cd::` (6to4) add one IPv4 address;
/// - `64:ff9b:1::/48` (local-use NAT64) may carry it in the /48 or the /96 position of RFC 6052, so both count;
/// - Teredo `2001::/32` adds its server and its client, whose bits are inverted.
#[inline(always)]
#[must_use]
pub const fn unfold(address: &Address) -> Candidates {
    let a = address;
    let word0 = u32::from_be_bytes([a[0], a[1], a[2], a[3]]);
    let word1 = u32::from_be_bytes([a[4], a[5], a[6], a[7]]);
    let word2 = u32::from_be_bytes([a[8], a[9], a[10], a[11]]);
    let last = v4([a[12], a[13], a[14], a[15]]);
    let mut second = last;
    let mut third = last;
    let mut len = 1;
    if (word0 | word1 | word2) == 0 || (word0 == 0x0064_ff9b && (word1 | word2) == 0) {
        len = 2;
    } else if word0 == 0x0064_ff9b && word1 >> 16 == 1 {
        third = v4([a[6], a[7], a[9], a[10]]);
        len = 3;
    } else if word0 >> 16 == 0x2002 {
        second = v4([a[2], a[3], a[4], a[5]]);
        len = 2;
    } else if word0 == 0x2001_0000 {
        second = v4([!a[12], !a[13], !a[14], !a[15]]);
        third = v4([a[4], a[5], a[6], a[7]]);
        len = 3;
    }
    Candidates { addresses: [*address, second, third], len }
}

/// Whether every address that `address` can reach is this host itself. Kernel code.
///
/// This is what still passes while no table is in force and after the network of an agent was cut.
#[inline(always)]
#[must_use]
pub const fn only_loopback(address: &Address) -> bool {
    let a = address;
    let word0 = u32::from_be_bytes([a[0], a[1], a[2], a[3]]);
    let word1 = u32::from_be_bytes([a[4], a[5], a[6], a[7]]);
    let word2 = u32::from_be_bytes([a[8], a[9], a[10], a[11]]);
    let word3 = u32::from_be_bytes([a[12], a[13], a[14], a[15]]);
    if (word0 | word1) != 0 {
        return false;
    }
    (word2 == 0x0000_ffff && (a[12] == 127 || a[12] == 0)) || (word2 == 0 && word3 <= 1)
}

/// The class of one address taken as it is, without what hides in it: the longest matching built-in range.
#[must_use]
pub fn class_of(address: &Address) -> AddressClass {
    let matching = BUILTIN_RANGES.iter().filter(|range| range.contains(address));
    matching.max_by_key(|range| range.prefix).map_or(AddressClass::Public, |range| range.class)
}

/// The worst class among everything that `address` can reach.
#[must_use]
pub fn classify(address: &Address) -> AddressClass {
    unfold(address).iter().map(class_of).max().unwrap_or(AddressClass::Public)
}
