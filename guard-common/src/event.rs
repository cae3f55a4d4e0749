//! What the kernel programs report, byte by byte, and how they count it.
//!
//! Two ring buffers: `DENIALS` carries what was refused, `EVENTS` everything else. Each record starts with a
//! [`Header`]. A record that found no room is gone but counted: [`Counters`] per CPU and class say how many were
//! seen, handed over and lost, and the sequence number in the header counts per CPU and class too, so a gap
//! names exactly which ones are missing.

use crate::address::Address;

/// Bytes of a file name that an [`Exec`] carries.
pub const PATH_BYTES: usize = 512;
/// Bytes of a program's own name that an [`Exec`] carries.
pub const NAME_BYTES: usize = 64;
/// Bytes of arguments that an [`Exec`] carries.
pub const ARGV_BYTES: usize = 2048;

/// What a record is, and the index of its [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Kind {
    /// A [`Header`] alone; `tid` is the child's.
    Fork = 0,
    /// An [`Exec`].
    Exec = 1,
    /// An [`Exit`].
    Exit = 2,
    /// A [`Connect`] that went on.
    Connect = 3,
    /// A [`Connect`] that a hook on the calling task refused.
    Denied = 4,
    /// A [`Connect`] for a packet that was dropped on its way out.
    Dropped = 5,
    /// A [`Socket`] that was refused.
    Socket = 6,
    /// A [`Flow`]: a socket that others can reach now.
    Listen = 7,
    /// A [`Flow`] that has ended.
    Flow = 8,
}

impl Kind {
    /// Every kind, by number.
    pub const ALL: [Self; 9] = [
        Self::Fork,
        Self::Exec,
        Self::Exit,
        Self::Connect,
        Self::Denied,
        Self::Dropped,
        Self::Socket,
        Self::Listen,
        Self::Flow,
    ];

    /// Reads a kind from a record.
    #[must_use]
    pub fn from_u32(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == value)
    }

    /// The class under which a loss of this kind is reported.
    #[must_use]
    pub const fn loss_class(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Exec => "exec",
            Self::Exit => "exit",
            Self::Connect => "connect",
            Self::Denied | Self::Dropped | Self::Socket => "denial",
            Self::Listen => "listen",
            Self::Flow => "flow",
        }
    }
}

/// Which hook reports a [`Connect`] or a [`Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Hook {
    /// `cgroup/connect4`
    Connect4 = 0,
    /// `cgroup/connect6`
    Connect6 = 1,
    /// `cgroup/sendmsg4`
    Sendmsg4 = 2,
    /// `cgroup/sendmsg6`
    Sendmsg6 = 3,
    /// `cgroup_skb/egress`
    Egress = 4,
    /// `cgroup/sock_create`
    SockCreate = 5,
}

impl Hook {
    /// Every hook, by number.
    pub const ALL: [Self; 6] =
        [Self::Connect4, Self::Connect6, Self::Sendmsg4, Self::Sendmsg6, Self::Egress, Self::SockCreate];

    /// Reads a hook from a record.
    #[must_use]
    pub fn from_u32(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| *hook as u32 == value)
    }

    /// The mechanism that records and coverage name.
    #[must_use]
    pub const fn mechanism(self) -> &'static str {
        match self {
            Self::Connect4 => "cgroup/connect4",
            Self::Connect6 => "cgroup/connect6",
            Self::Sendmsg4 => "cgroup/sendmsg4",
            Self::Sendmsg6 => "cgroup/sendmsg6",
            Self::Egress => "cgroup_skb/egress",
            Self::SockCreate => "cgroup/sock_create",
        }
    }
}

/// The start of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Header {
    /// A [`Kind`] as a number.
    pub kind: u32,
    /// CPU that wrote the record.
    pub cpu: u32,
    /// Counts from 1 per CPU and kind, lost records included.
    pub sequence: u64,
    /// Nanoseconds since boot, suspended time included.
    pub boot_ns: u64,
    /// The acting task's cgroup, or the socket's for a dropped packet.
    pub cgroup: u64,
    /// Number of the agent; 0 if it is in none.
    pub agent: u32,
    /// Process (thread group) in the initial namespace; 0 for a dropped packet, which may have no task.
    pub pid: u32,
    /// Thread in the initial namespace.
    pub tid: u32,
    /// Process that started this one; 0 where the hook cannot see it.
    pub parent: u32,
}

/// A program was started. The record ends after the bytes of `argv` that are valid.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Exec {
    /// Common part.
    pub header: Header,
    /// Inode of the program (of the interpreter, for a script).
    pub inode: u64,
    /// Device of that inode as the kernel encodes it: major << 20 | minor.
    pub device: u32,
    /// Valid bytes of `path`.
    pub path_length: u32,
    /// Valid bytes of `argv`.
    pub argv_length: u32,
    /// [`Exec::ARGV_TRUNCATED`] and the others.
    pub flags: u32,
    /// Names that the inode has; 0 for a file that was removed, or never had one.
    pub links: u32,
    /// Zero.
    pub padding: u32,
    /// The program's own last name in its directory, ended by a zero byte; `memfd:NAME` for one that lies in memory.
    pub name: [u8; NAME_BYTES],
    /// The file name as it was given to the system call, resolved by nobody.
    pub path: [u8; PATH_BYTES],
    /// The arguments, each ended by a zero byte.
    pub argv: [u8; ARGV_BYTES],
}

impl Exec {
    /// There are more arguments than `argv` holds.
    pub const ARGV_TRUNCATED: u32 = 1;
    /// The file name is longer than `path`.
    pub const PATH_TRUNCATED: u32 = 2;
    /// The arguments could not be read.
    pub const ARGV_UNREADABLE: u32 = 4;
    /// `path` is a script, the program its interpreter.
    pub const SCRIPT: u32 = 8;
    /// Bytes of a record without arguments.
    pub const FIXED_BYTES: usize = core::mem::offset_of!(Exec, argv);
}

/// A process has ended, with all of its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Exit {
    /// Common part.
    pub header: Header,
    /// Wait status.
    pub status: u32,
    /// Zero.
    pub padding: u32,
    /// When it began, on the clock of [`Header::boot_ns`].
    pub started_ns: u64,
}

/// A connection or a packet was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Connect {
    /// Common part.
    pub header: Header,
    /// Where to, IPv4 as `::ffff:a.b.c.d`.
    pub address: Address,
    /// Port; 0 if it is not known.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// A [`Verdict`](crate::network::Verdict) as a number.
    pub verdict: u8,
    /// A [`Hook`] as a number.
    pub hook: u32,
    /// Rule that spoke, in the numbering of `generation`.
    pub rule: u32,
    /// Policy generation that judged.
    pub generation: u32,
}

/// A socket was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Socket {
    /// Common part.
    pub header: Header,
    /// `AF_…`
    pub family: u32,
    /// `SOCK_…`
    pub kind: u32,
    /// Protocol number.
    pub protocol: u32,
    /// A [`Hook`] as a number.
    pub hook: u32,
}

/// Whose a socket is, and what went through it. Also the value of the table of sockets, where the header has no meaning but for
/// who made the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Flow {
    /// Common part.
    pub header: Header,
    /// The other end, or what a listening socket is bound to; IPv4 as `::ffff:a.b.c.d`.
    pub address: Address,
    /// Bytes of content that were sent; what was sent again counts once.
    pub sent: u64,
    /// Bytes of content that came.
    pub received: u64,
    /// When it began, on the clock of [`Header::boot_ns`].
    pub began_ns: u64,
    /// Port of `address`.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// [`Flow::IDLE`] and the others.
    pub state: u8,
    /// How many addresses were named, for a datagram socket.
    pub ends: u32,
}

impl Flow {
    /// Nothing went through it yet.
    pub const IDLE: u8 = 0;
    /// It names another end, and the kernel has not begun to reach it.
    pub const NAMED: u8 = 1;
    /// It is connecting or connected.
    pub const OPEN: u8 = 2;
    /// It listens.
    pub const LISTENS: u8 = 3;
}

/// One line of the per-CPU counters, by [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Counters {
    /// Records that were to be written; also the last sequence number given.
    pub seen: u64,
    /// Records that were written.
    pub submitted: u64,
    /// Records for which the ring had no room.
    pub ring_full: u64,
    /// Records that were cut, because the thing is larger than a record.
    pub oversized: u64,
    /// Things that could not be kept in mind, so that no record of them will come.
    pub map_full: u64,
}

const _: () = {
    assert!(size_of::<Header>() == 48);
    assert!(size_of::<Exec>() == 48 + 32 + NAME_BYTES + PATH_BYTES + ARGV_BYTES);
    assert!(Exec::FIXED_BYTES == 48 + 32 + NAME_BYTES + PATH_BYTES);
    assert!(size_of::<Exit>() == 64);
    assert!(size_of::<Connect>() == 80);
    assert!(size_of::<Socket>() == 64);
    assert!(size_of::<Flow>() == 96);
    assert!(size_of::<Counters>() == 40);
};
