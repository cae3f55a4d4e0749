//! Reads the kernel programs' records: bytes in, typed events out, nothing else.

use std::net::Ipv6Addr;

use guard_common::event::{
    ARGV_BYTES, Connect, Exec, Exit, Flow, Header, Hook, Kind, NAME_BYTES, PATH_BYTES, Socket,
};
use guard_common::network::Verdict;

/// Why some bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer or more bytes than the kind of record has.
    #[error("a record of {got} bytes where {expected} belong")]
    Length {
        /// How many there should be.
        expected: usize,
        /// How many there are.
        got: usize,
    },
    /// A number that means nothing.
    #[error("{field} is {value}, which means nothing")]
    Value {
        /// Which field.
        field: &'static str,
        /// The number.
        value: u32,
    },
}

/// One thing that the kernel programs saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new task.
    Fork(Header),
    /// A program was started.
    Exec(Box<Started>),
    /// A process ended.
    Exit(Ended),
    /// An address was judged.
    Connect(Judged),
    /// A socket was refused.
    Socket(RefusedSocket),
    /// A socket can be reached now.
    Listen(Carried),
    /// What went through a socket, at its end.
    Flow(Carried),
}

impl Event {
    /// The common part.
    #[must_use]
    pub fn header(&self) -> &Header {
        match self {
            Self::Fork(header) => header,
            Self::Exit(ended) => &ended.header,
            Self::Exec(started) => &started.header,
            Self::Connect(judged) => &judged.header,
            Self::Socket(refused) => &refused.header,
            Self::Listen(carried) | Self::Flow(carried) => &carried.header,
        }
    }
}

/// See [`Exec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Common part.
    pub header: Header,
    /// Inode of the program.
    pub inode: u64,
    /// Device as the kernel encodes it.
    pub device: u32,
    /// The file name that was given to the system call.
    pub path: Vec<u8>,
    /// The arguments, as many as were read.
    pub argv: Vec<Vec<u8>>,
    /// There are more arguments, or they could not be read.
    pub truncated: bool,
    /// `path` is a script, the program its interpreter.
    pub script: bool,
    /// The program's own last name.
    pub name: Vec<u8>,
    /// Names that the program's file has.
    pub links: u32,
}

/// See [`Exit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Common part.
    pub header: Header,
    /// Wait status.
    pub status: u32,
    /// How long the process was there, nanoseconds.
    pub duration_ns: u64,
}

/// See [`Flow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Common part.
    pub header: Header,
    /// The other end, or what the socket is bound to; IPv4 mapped.
    pub address: Ipv6Addr,
    /// Port.
    pub port: u16,
    /// IP protocol.
    pub protocol: u8,
    /// Bytes of content.
    pub sent: u64,
    /// Bytes of content.
    pub received: u64,
    /// From its beginning to its end, nanoseconds.
    pub duration_ns: u64,
    /// How often another end was named.
    pub ends: u32,
}

/// See [`Connect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Common part.
    pub header: Header,
    /// Where to, IPv4 mapped.
    pub address: Ipv6Addr,
    /// Port; 0 if not known.
    pub port: u16,
    /// IP protocol.
    pub protocol: u8,
    /// The answer.
    pub verdict: Verdict,
    /// Who answered.
    pub hook: Hook,
    /// Number of the rule.
    pub rule: u32,
    /// Generation whose numbering that is.
    pub generation: u32,
}

/// See [`Socket`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSocket {
    /// Common part.
    pub header: Header,
    /// `AF_…`
    pub family: u32,
    /// `SOCK_…`
    pub kind: u32,
    /// Protocol number.
    pub protocol: u32,
    /// Who refused.
    pub hook: Hook,
}

/// Takes values off the front, in this machine's byte order as the programs wrote them.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        // The length was checked against the kind of record before; a short rest reads as zero.
        let mut out = [0; N];
        let (now, rest) = self.0.split_at(N.min(self.0.len()));
        out[..now.len()].copy_from_slice(now);
        self.0 = rest;
        out
    }

    fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn header(&mut self) -> Header {
        Header {
            kind: self.u32(),
            cpu: self.u32(),
            sequence: self.u64(),
            boot_ns: self.u64(),
            cgroup: self.u64(),
            agent: self.u32(),
            pid: self.u32(),
            tid: self.u32(),
            parent: self.u32(),
        }
    }

    fn hook(&mut self) -> Result<Hook, DecodeError> {
        let value = self.u32();
        Hook::from_u32(value).ok_or(DecodeError::Value { field: "hook", value })
    }
}

fn length(bytes: &[u8], expected: usize) -> Result<(), DecodeError> {
    if bytes.len() == expected { Ok(()) } else { Err(DecodeError::Length { expected, got: bytes.len() }) }
}

/// Reads one record.
///
/// # Errors
/// If the bytes are no record.
pub fn decode(bytes: &[u8]) -> Result<Event, DecodeError> {
    if bytes.len() < size_of::<Header>() {
        return Err(DecodeError::Length { expected: size_of::<Header>(), got: bytes.len() });
    }
    let mut cursor = Cursor(bytes);
    let header = cursor.header();
    let kind = Kind::from_u32(header.kind).ok_or(DecodeError::Value { field: "kind", value: header.kind })?;
    match kind {
        Kind::Fork => {
            length(bytes, size_of::<Header>())?;
            Ok(Event::Fork(header))
        }
        Kind::Exec => exec(bytes, cursor, header),
        Kind::Exit => {
            length(bytes, size_of::<Exit>())?;
            let (status, _padding) = (cursor.u32(), cursor.u32());
            let duration_ns = header.boot_ns.saturating_sub(cursor.u64());
            Ok(Event::Exit(Ended { header, status, duration_ns }))
        }
        Kind::Connect | Kind::Denied | Kind::Dropped => {
            length(bytes, size_of::<Connect>())?;
            let address = Ipv6Addr::from(cursor.take::<16>());
            let (port, protocol, verdict) = (cursor.u16(), cursor.u8(), cursor.u8());
            if !(1..=3).contains(&verdict) {
                return Err(DecodeError::Value { field: "verdict", value: verdict.into() });
            }
            let (hook, rule, generation) = (cursor.hook()?, cursor.u32(), cursor.u32());
            let verdict = Verdict::from_u8(verdict);
            Ok(Event::Connect(Judged { header, address, port, protocol, verdict, hook, rule, generation }))
        }
        Kind::Socket => {
            length(bytes, size_of::<Socket>())?;
            let (family, kind, protocol) = (cursor.u32(), cursor.u32(), cursor.u32());
            Ok(Event::Socket(RefusedSocket { header, family, kind, protocol, hook: cursor.hook()? }))
        }
        Kind::Listen | Kind::Flow => {
            length(bytes, size_of::<Flow>())?;
            let address = Ipv6Addr::from(cursor.take::<16>());
            let (sent, received, began_ns) = (cursor.u64(), cursor.u64(), cursor.u64());
            let (port, protocol, _state, ends) = (cursor.u16(), cursor.u8(), cursor.u8(), cursor.u32());
            let duration_ns = header.boot_ns.saturating_sub(began_ns);
            let carried = Carried { header, address, port, protocol, sent, received, duration_ns, ends };
            Ok(if kind == Kind::Flow { Event::Flow(carried) } else { Event::Listen(carried) })
        }
    }
}

fn exec(bytes: &[u8], mut cursor: Cursor<'_>, header: Header) -> Result<Event, DecodeError> {
    if bytes.len() < Exec::FIXED_BYTES {
        return Err(DecodeError::Length { expected: Exec::FIXED_BYTES, got: bytes.len() });
    }
    let (inode, device) = (cursor.u64(), cursor.u32());
    let (path_length, argv_length, flags) = (cursor.u32(), cursor.u32(), cursor.u32());
    let (links, _padding) = (cursor.u32(), cursor.u32());
    let mut name = cursor.take::<NAME_BYTES>().to_vec();
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES));
    let value = |field, value| DecodeError::Value { field, value };
    let path = cursor.0.get(..PATH_BYTES).and_then(|all| all.get(..path_length as usize));
    let path = path.ok_or(value("path_length", path_length))?.to_vec();
    if argv_length as usize > ARGV_BYTES {
        return Err(value("argv_length", argv_length));
    }
    length(bytes, Exec::FIXED_BYTES + argv_length as usize)?;
    let text = &bytes[Exec::FIXED_BYTES..];
    let argv = if text.is_empty() {
        Vec::new()
    } else {
        text.strip_suffix(b"\0").unwrap_or(text).split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
    };
    let truncated = flags & (Exec::ARGV_TRUNCATED | Exec::ARGV_UNREADABLE) != 0;
    let script = flags & Exec::SCRIPT != 0;
    let started = Started { header, inode, device, path, argv, truncated, script, name, links };
    Ok(Event::Exec(Box::new(started)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(kind: Kind) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [kind as u32, 3] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [11_u64, 22, 33] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [4_u32, 5, 6, 7] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes
    }

    fn exec_record(path: &[u8], argv: &[u8]) -> Vec<u8> {
        let mut bytes = header(Kind::Exec);
        bytes.extend(99_u64.to_ne_bytes());
        for word in [8 << 20 | 1, path.len() as u32, argv.len() as u32, Exec::SCRIPT, 1, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        let mut name = b"dash".to_vec();
        name.resize(NAME_BYTES, 0);
        bytes.extend(name);
        let mut field = path.to_vec();
        field.resize(PATH_BYTES, 0);
        bytes.extend(field);
        bytes.extend(argv);
        bytes
    }

    #[test]
    fn an_exec_is_read_with_its_arguments() {
        let event = decode(&exec_record(b"/bin/sh", b"sh\0-c\0\0")).expect("well formed");
        let Event::Exec(started) = event else { panic!("{event:?}") };
        assert_eq!((started.inode, started.header.pid, started.header.sequence), (99, 5, 11));
        assert_eq!((started.path.as_slice(), started.name.as_slice()), (&b"/bin/sh"[..], &b"dash"[..]));
        assert!(started.script && started.links == 1);
        assert_eq!(started.argv, [b"sh".to_vec(), b"-c".to_vec(), b"".to_vec()]);
        let Ok(Event::Exec(none)) = decode(&exec_record(b"x", b"")) else { panic!("no arguments") };
        assert!(none.argv.is_empty());
    }

    #[test]
    fn a_record_of_a_wrong_length_or_kind_is_refused() {
        for kind in Kind::ALL {
            let short = header(kind);
            assert_eq!(decode(&short).is_ok(), kind == Kind::Fork, "{kind:?}");
        }
        assert!(decode(&[]).is_err());
        let mut unknown = header(Kind::Fork);
        unknown[..4].copy_from_slice(&77_u32.to_ne_bytes());
        assert_eq!(decode(&unknown), Err(DecodeError::Value { field: "kind", value: 77 }));
        let mut long = exec_record(b"x", b"a\0");
        long.push(0);
        assert!(matches!(decode(&long), Err(DecodeError::Length { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(kind in 0..11_u32, bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let mut bytes = bytes;
            if let Some(first) = bytes.get_mut(..4) {
                first.copy_from_slice(&kind.to_ne_bytes());
            }
            let _ = decode(&bytes);
        }
    }
}
