//! Attacks on the fence, one sub-command an act. Each says what came of it, and a test judges.
//!
//! Output is one line: `worked DETAIL` (exit 0) or `refused ERRNO DETAIL` (exit 10). Anything that is neither, for
//! example a missing file in the set-up, goes to stderr with exit 20, so that a broken test never looks like a
//! strong fence. `worked` is only said after the effect was seen: bytes came back, the file is different, the
//! process is elsewhere. Run without guard every act that the machine can do at all must say `worked`; that is the
//! positive control of each test.
//!
//! | group | acts | seen to have worked by |
//! | --- | --- | --- |
//! | [`net`] | `tcp udp-sendto udp-connected raw-hdrincl icmp fastopen mptcp mapped nat64 io-uring-connect af-packet vsock flood` | an echo of a random token; for `vsock` a bound socket |
//! | [`leave`] | `cgroup-procs-write clone3-into-cgroup setns unshare-user unshare-net mount remount-rw` | `/proc/self/cgroup`, the name of the namespace, `statfs` |
//! | [`file`] | `create write truncate rename rename-over link link-in symlink chmod chown utimes xattr unlink mkdir mknod tmpfile-linkat via-proc-root via-symlink openat2 open-by-handle` | looking at the object afterwards |
//! | [`daemon`] | `kill ptrace vm-read pidfd-getfd bpf-map-update remove-pins` | the call's result, and the pins that are left |
//! | [`socket`] | `unix-connect abstract tiocsti tioclinux` | a connection; the pushed byte was read back |
//! | [`kernel`] | `bpf perf-event-open keyctl userfaultfd init-module io-uring-setup` | a descriptor or a key |
//!
//! Adding an act: a variant here, a function in its group, the test that names it.

mod daemon;
mod file;
mod kernel;
mod leave;
mod net;
mod outcome;
mod packet;
mod socket;
mod uring;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use clap::Parser;
use outcome::Act;

/// Tries one thing that an agent must not do.
#[derive(Parser)]
#[command(name = "attacks")]
enum Attack {
    /// TCP connect
    Tcp(Target),
    /// A datagram from an unconnected socket
    UdpSendto(Target),
    /// A datagram from a connected socket
    UdpConnected(Target),
    /// A UDP packet with an IP header of our own making (needs CAP_NET_RAW)
    RawHdrincl(Target),
    /// A ping, from a ping socket or a raw one
    Icmp { address: IpAddr },
    /// Data in the SYN, without connect(2)
    Fastopen(Target),
    /// Multipath TCP
    Mptcp(Target),
    /// The IPv4 address in its IPv4-mapped form
    Mapped(Target4),
    /// The IPv4 address behind NAT64's well-known prefix
    Nat64(Target4),
    /// TCP connect by io_uring, without the system call
    IoUringConnect(Target),
    /// A UDP packet from a packet socket on `lo` (needs CAP_NET_RAW)
    AfPacket { address: Ipv4Addr },
    /// A socket of the family that reaches the hypervisor; nothing is sent
    Vsock,
    /// Connects as fast as it can; says how many came through
    Flood {
        #[command(flatten)]
        target: Target,
        count: u32,
    },

    /// Writes itself into another group's cgroup.procs
    CgroupProcsWrite { group: PathBuf },
    /// Starts a child in another group
    Clone3IntoCgroup { group: PathBuf },
    /// Enters a namespace of another process
    Setns { pid: u32, kind: String },
    /// A user namespace of its own
    UnshareUser,
    /// A network namespace of its own
    UnshareNet,
    /// Mounts a tmpfs
    Mount { path: PathBuf },
    /// Makes a read-only mount writable
    RemountRw { path: PathBuf },

    /// Makes a file
    Create { path: PathBuf },
    /// Appends to a file
    Write { path: PathBuf },
    /// Truncates a file by its path
    Truncate { path: PathBuf },
    /// Renames a file within its directory
    Rename { path: PathBuf },
    /// Replaces a file by one of ours
    RenameOver { path: PathBuf },
    /// Makes a second name in the same directory
    Link { path: PathBuf },
    /// Makes a second name here, and writes through it
    LinkIn { path: PathBuf },
    /// Makes a symbolic link at the path
    Symlink { path: PathBuf },
    /// Changes the mode
    Chmod { path: PathBuf },
    /// Sets owner and group to what they are
    Chown { path: PathBuf },
    /// Sets the times
    Utimes { path: PathBuf },
    /// Sets an extended attribute
    Xattr { path: PathBuf },
    /// Removes a file
    Unlink { path: PathBuf },
    /// Makes a directory
    Mkdir { path: PathBuf },
    /// Makes a named pipe
    Mknod { path: PathBuf },
    /// Makes a file without a name and then gives it one
    TmpfileLinkat { path: PathBuf },
    /// Appends through /proc/self/root
    ViaProcRoot { path: PathBuf },
    /// Appends through a symbolic link made here
    ViaSymlink { path: PathBuf },
    /// Appends through openat2
    Openat2 { path: PathBuf },
    /// Appends through a file handle (needs CAP_DAC_READ_SEARCH)
    OpenByHandle { path: PathBuf },

    /// Signals a process
    Kill {
        pid: i32,
        #[arg(default_value_t = 0)]
        signal: i32,
    },
    /// Attaches to a process
    Ptrace { pid: i32 },
    /// Reads another process's memory
    VmRead { pid: i32 },
    /// Takes a descriptor of another process
    PidfdGetfd { pid: i32 },
    /// Opens any BPF map of the machine by its number
    BpfMapUpdate,
    /// Removes every file below a directory of bpffs
    RemovePins { directory: PathBuf },

    /// Connects to a socket in the file system
    UnixConnect { path: PathBuf },
    /// Connects to a socket in the abstract name space
    Abstract { name: String },
    /// Types into its own terminal
    Tiocsti,
    /// Asks the console for its state
    Tioclinux,

    /// Makes a BPF map
    Bpf,
    /// Opens a performance counter
    PerfEventOpen,
    /// Adds a key to a keyring
    Keyctl,
    /// Opens a userfaultfd
    Userfaultfd,
    /// Hands the kernel a module; it is none, so that nothing is loaded
    InitModule,
    /// Makes an io_uring
    IoUringSetup,
}

/// Where to.
#[derive(clap::Args, Clone, Copy)]
struct Target {
    address: IpAddr,
    port: u16,
}

/// Where to, as an IPv4 address that gets another form.
#[derive(clap::Args, Clone, Copy)]
struct Target4 {
    address: Ipv4Addr,
    port: u16,
}

impl Target {
    fn socket(self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

fn main() -> ExitCode {
    let act = perform(Attack::parse());
    outcome::report(act)
}

fn perform(attack: Attack) -> Act {
    match attack {
        Attack::Tcp(target) => net::tcp(target.socket()),
        Attack::UdpSendto(target) => net::udp_sendto(target.socket()),
        Attack::UdpConnected(target) => net::udp_connected(target.socket()),
        Attack::RawHdrincl(target) => packet::raw_header_included(target.socket()),
        Attack::Icmp { address } => packet::icmp(address),
        Attack::Fastopen(target) => net::fastopen(target.socket()),
        Attack::Mptcp(target) => net::mptcp(target.socket()),
        Attack::Mapped(target) => net::tcp(net::mapped(target.address, target.port)),
        Attack::Nat64(target) => net::tcp(net::nat64(target.address, target.port)),
        Attack::IoUringConnect(target) => uring::connect(target.socket()),
        Attack::AfPacket { address } => packet::packet_socket(address),
        Attack::Vsock => net::vsock(),
        Attack::Flood { target, count } => net::flood(target.socket(), count),

        Attack::CgroupProcsWrite { group } => leave::cgroup_procs_write(&group),
        Attack::Clone3IntoCgroup { group } => leave::clone3_into_cgroup(&group),
        Attack::Setns { pid, kind } => leave::setns(pid, &kind),
        Attack::UnshareUser => leave::unshare("user", libc::CLONE_NEWUSER),
        Attack::UnshareNet => leave::unshare("net", libc::CLONE_NEWNET),
        Attack::Mount { path } => leave::mount(&path),
        Attack::RemountRw { path } => leave::remount_rw(&path),

        Attack::Create { path } => file::create(&path),
        Attack::Write { path } => file::write(&path),
        Attack::Truncate { path } => file::truncate(&path),
        Attack::Rename { path } => file::rename(&path),
        Attack::RenameOver { path } => file::rename_over(&path),
        Attack::Link { path } => file::link(&path),
        Attack::LinkIn { path } => file::link_in(&path),
        Attack::Symlink { path } => file::symlink(&path),
        Attack::Chmod { path } => file::chmod(&path),
        Attack::Chown { path } => file::chown(&path),
        Attack::Utimes { path } => file::utimes(&path),
        Attack::Xattr { path } => file::xattr(&path),
        Attack::Unlink { path } => file::unlink(&path),
        Attack::Mkdir { path } => file::mkdir(&path),
        Attack::Mknod { path } => file::mknod(&path),
        Attack::TmpfileLinkat { path } => file::tmpfile_linkat(&path),
        Attack::ViaProcRoot { path } => file::via_proc_root(&path),
        Attack::ViaSymlink { path } => file::via_symlink(&path),
        Attack::Openat2 { path } => file::openat2(&path),
        Attack::OpenByHandle { path } => file::open_by_handle(&path),

        Attack::Kill { pid, signal } => daemon::kill(pid, signal),
        Attack::Ptrace { pid } => daemon::ptrace(pid),
        Attack::VmRead { pid } => daemon::vm_read(pid),
        Attack::PidfdGetfd { pid } => daemon::pidfd_getfd(pid),
        Attack::BpfMapUpdate => daemon::bpf_map_update(),
        Attack::RemovePins { directory } => daemon::remove_pins(&directory),

        Attack::UnixConnect { path } => socket::unix_connect(&path),
        Attack::Abstract { name } => socket::abstract_connect(&name),
        Attack::Tiocsti => socket::tiocsti(),
        Attack::Tioclinux => socket::tioclinux(),

        Attack::Bpf => kernel::bpf(),
        Attack::PerfEventOpen => kernel::perf_event_open(),
        Attack::Keyctl => kernel::keyctl(),
        Attack::Userfaultfd => kernel::userfaultfd(),
        Attack::InitModule => kernel::init_module(),
        Attack::IoUringSetup => uring::setup(),
    }
}
