//! Does what is denied, where nobody can be reached.
//!
//! A child process in a network namespace of its own, in which every address is local (a `local` route for all
//! addresses on `lo`), performs a list of acts and tells how each ended (`R-77`). Between clone and exit the child
//! makes system calls only: it is the copy of one thread of a process with several.

use std::io::{self, Read as _};
use std::mem;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use guard_common::address::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};

use super::cgroup::Cgroup;

/// Which socket call carries the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`, mapped addresses included.
    V6,
}

/// One act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A TCP connection to a listener that is really there.
    TcpConnect(Family, Address),
    /// `connect` of a datagram socket; sends nothing.
    UdpConnect(Family, Address),
    /// `sendto` with `MSG_MORE`: judged by `sendmsg`, held back before it becomes a packet.
    UdpCorked(Family, Address),
    /// An echo request on a ping socket, which only the packet hook sees, and its answer. For IPv6 the kernel
    /// does not tell the sender that a packet was dropped, so the missing answer does.
    Ping(Family, Address),
    /// Making a raw socket.
    RawSocket,
}

/// How an act ended: 0, or an errno, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Outcome {
    pub(crate) errno: i32,
    pub(crate) micros: u32,
}

/// The constant in `libc` is too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// Port of the listener; a high one takes no capability.
const PORT: u16 = 20_080;
/// How long an answer may take, milliseconds.
const ANSWER_MS: i32 = 250;
/// How long all acts may take.
const LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// Performs the acts in a child, in `cgroup` or in this process's own.
///
/// # Errors
/// If the child cannot be made or its network not be set up; then nothing is known about the acts.
pub(crate) fn perform(cgroup: Option<&Cgroup>, acts: &[Act]) -> io::Result<Vec<Outcome>> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut outcomes = vec![Outcome::default(); acts.len()];
    // SAFETY: the child below makes system calls on memory that exists already, and leaves by _exit.
    let Some(pid) = (unsafe { clone(cgroup) })? else {
        let result = child(acts, &mut outcomes);
        let stage = Outcome { errno: result.err().unwrap_or(0), micros: 0 };
        write_outcomes(&write, std::slice::from_ref(&stage));
        write_outcomes(&write, &outcomes);
        // SAFETY: ends the child at once, without running what its parent registered for its own end.
        unsafe { libc::_exit(0) };
    };
    drop(write);
    let bytes = collect(read, pid, mem::size_of::<Outcome>() * (acts.len() + 1));
    let _ = waitpid(Some(pid), WaitOptions::empty());
    let all: Vec<Outcome> = bytes?.chunks_exact(mem::size_of::<Outcome>()).map(outcome).collect();
    match all.split_first() {
        Some((stage, _)) if stage.errno != 0 => Err(io::Error::from_raw_os_error(stage.errno)),
        Some((_, outcomes)) if outcomes.len() == acts.len() => Ok(outcomes.to_vec()),
        _ => Err(io::Error::other("the canary ended early")),
    }
}

/// A process in `cgroup` that starts another, which becomes `/bin/true`.
///
/// # Errors
/// If one of them cannot be made, or `/bin/true` does not run.
pub(crate) fn start_true(cgroup: &Cgroup) -> io::Result<()> {
    // Where one binary is many commands its name has to be the command's; a mark follows that `true` ignores.
    let path = c"/bin/true".as_ptr();
    let argv = [c"true".as_ptr(), c"guard-canary".as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null()];
    // SAFETY: both children make system calls on memory that exists already, and leave by execve or _exit.
    let Some(pid) = (unsafe { clone(Some(cgroup)) })? else {
        // SAFETY: as above; the pointers are to strings and arrays that end with null. Not fork(3): it takes locks of libc's
        // that another thread of the process this one was copied from may have held, and nobody here would let them go.
        unsafe {
            let mut status = 127 << 8;
            match clone(None) {
                Ok(None) => {
                    libc::execve(path, argv.as_ptr(), environment.as_ptr());
                    libc::_exit(127);
                }
                Ok(Some(grandchild)) => {
                    libc::waitpid(grandchild.as_raw_pid(), &raw mut status, 0);
                }
                Err(_) => {}
            }
            libc::_exit(libc::WEXITSTATUS(status));
        }
    };
    let child = pidfd_open(pid, PidfdFlags::empty())?;
    if poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&LIMIT))? == 0 {
        pidfd_send_signal(&child, Signal::KILL)?;
        let _ = waitpid(Some(pid), WaitOptions::empty());
        return Err(io::ErrorKind::TimedOut.into());
    }
    match waitpid(Some(pid), WaitOptions::empty())? {
        Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
        other => Err(io::Error::other(format!("/bin/true ended with {other:?}"))),
    }
}

/// Copies this thread into a new process in `cgroup`; the child gets `None`.
///
/// # Safety
/// Like fork(2) in a process with several threads: the child may only make system calls.
unsafe fn clone(cgroup: Option<&Cgroup>) -> io::Result<Option<Pid>> {
    // SAFETY: `clone_args` is plain data.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_fd().as_raw_fd() as u64;
    }
    // SAFETY: the arguments live through the call; the child has this thread's memory and stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, mem::size_of_val(&args)) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(pid).ok().and_then(Pid::from_raw))
}

fn outcome(bytes: &[u8]) -> Outcome {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).unwrap_or([0; 4]);
    Outcome { errno: i32::from_ne_bytes(word(0)), micros: u32::from_ne_bytes(word(4)) }
}

fn write_outcomes(to: &OwnedFd, outcomes: &[Outcome]) {
    // SAFETY: `Outcome` is two words without padding.
    let bytes = unsafe { std::slice::from_raw_parts(outcomes.as_ptr().cast(), mem::size_of_val(outcomes)) };
    let mut rest: &[u8] = bytes;
    while let Ok(count @ 1..) = rustix::io::write(to, rest) {
        rest = &rest[count..];
    }
}

/// Reads what the child says; a child that hangs is ended.
fn collect(from: OwnedFd, pid: Pid, expected: usize) -> io::Result<Vec<u8>> {
    let child = pidfd_open(pid, PidfdFlags::empty())?;
    let ready = poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&LIMIT))?;
    if ready == 0 {
        pidfd_send_signal(&child, Signal::KILL)?;
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = Vec::with_capacity(expected);
    std::fs::File::from(from).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// In the child: system calls only.
fn child(acts: &[Act], outcomes: &mut [Outcome]) -> Result<(), i32> {
    // SAFETY: no memory is involved; the child has one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    set_up_network()?;
    let _listener = listen()?;
    for (act, outcome) in acts.iter().zip(outcomes) {
        let start = now();
        outcome.errno = act_once(act).err().unwrap_or(0);
        outcome.micros = u32::try_from(now().saturating_sub(start) / 1000).unwrap_or(u32::MAX);
    }
    Ok(())
}

fn errno() -> i32 {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}

fn check(result: i32) -> Result<i32, i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd, i32> {
    // SAFETY: no memory is involved; the descriptor is new and owned by nobody else.
    unsafe {
        let fd = check(libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Brings `lo` up and makes every address local.
fn set_up_network() -> Result<(), i32> {
    const RTM_NEWLINK: u16 = 16;
    const RTM_NEWROUTE: u16 = 24;
    const REQUEST_ACK: u16 = 1 | 4;
    const CREATE: u16 = 0x400;
    const LO: u32 = 1;

    let netlink = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    // struct ifinfomsg: family, padding, type, index, flags, change.
    let mut up = Message::<32>::new(RTM_NEWLINK, REQUEST_ACK);
    up.put(16 + 4, &LO.to_ne_bytes());
    up.put(16 + 8, &(libc::IFF_UP as u32).to_ne_bytes());
    up.put(16 + 12, &(libc::IFF_UP as u32).to_ne_bytes());
    up.send(&netlink)?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        // struct rtmsg: family, two prefix lengths, tos, table, protocol, scope, type, flags; then RTA_OIF.
        let mut route = Message::<36>::new(RTM_NEWROUTE, REQUEST_ACK | CREATE);
        let scope = if family == libc::AF_INET { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
        route.put(
            16,
            &[family as u8, 0, 0, 0, libc::RT_TABLE_LOCAL, libc::RTPROT_BOOT, scope, libc::RTN_LOCAL],
        );
        route.put(28, &8_u16.to_ne_bytes());
        route.put(30, &libc::RTA_OIF.to_ne_bytes());
        route.put(32, &LO.to_ne_bytes());
        route.send(&netlink)?;
    }
    // Ping sockets are closed to everyone in a new namespace.
    let file = rustix::fs::open(
        c"/proc/sys/net/ipv4/ping_group_range",
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let written = file.and_then(|file| rustix::io::write(&file, b"0 2147483647\n"));
    written.map(|_| ()).map_err(rustix::io::Errno::raw_os_error)
}

/// A netlink message of a fixed size, zero where nothing was put.
struct Message<const N: usize>([u8; N]);

impl<const N: usize> Message<N> {
    fn new(kind: u16, flags: u16) -> Self {
        let mut message = Self([0; N]);
        message.put(0, &(N as u32).to_ne_bytes());
        message.put(4, &kind.to_ne_bytes());
        message.put(6, &flags.to_ne_bytes());
        message
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        for (slot, byte) in self.0.iter_mut().skip(at).zip(bytes) {
            *slot = *byte;
        }
    }

    /// Sends and takes the answer, which is there when the call returns.
    fn send(&self, netlink: &OwnedFd) -> Result<(), i32> {
        let fd = netlink.as_raw_fd();
        let mut answer = [0_u8; 256];
        // SAFETY: both buffers live through the calls and have the lengths that are given.
        unsafe {
            check(libc::send(fd, self.0.as_ptr().cast(), N, 0) as i32)?;
            check(libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) as i32)?;
        }
        // struct nlmsgerr after the header starts with a negative errno, 0 for done.
        match -i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
            0 => Ok(()),
            error => Err(error),
        }
    }
}

/// A listener for both families.
fn listen() -> Result<OwnedFd, i32> {
    let listener = socket(libc::AF_INET6, libc::SOCK_STREAM, 0)?;
    let off = 0_i32;
    // SAFETY: the option's value lives through the call.
    check(unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_IPV6,
            libc::IPV6_V6ONLY,
            (&raw const off).cast(),
            mem::size_of_val(&off) as u32,
        )
    })?;
    let any = Destination::new(Family::V6, &[0; 16]);
    // SAFETY: the address lives through the call.
    check(unsafe { libc::bind(listener.as_raw_fd(), any.pointer(), any.length) })?;
    // SAFETY: no memory is involved.
    check(unsafe { libc::listen(listener.as_raw_fd(), 128) })?;
    Ok(listener)
}

/// A socket address of either family.
struct Destination {
    storage: libc::sockaddr_in6,
    length: u32,
}

impl Destination {
    fn new(family: Family, address: &Address) -> Self {
        // SAFETY: plain data.
        let mut storage: libc::sockaddr_in6 = unsafe { mem::zeroed() };
        if family == Family::V6 {
            storage.sin6_family = libc::AF_INET6 as u16;
            storage.sin6_port = PORT.to_be();
            storage.sin6_addr.s6_addr = *address;
            // Link-local addresses need an interface; `lo` is the first.
            let link_local = address[0] == 0xfe && address[1] & 0xc0 == 0x80 || address[0] == 0xff;
            storage.sin6_scope_id = u32::from(link_local);
            return Self { storage, length: mem::size_of::<libc::sockaddr_in6>() as u32 };
        }
        // SAFETY: plain data.
        let mut short: libc::sockaddr_in = unsafe { mem::zeroed() };
        short.sin_family = libc::AF_INET as u16;
        short.sin_port = PORT.to_be();
        short.sin_addr.s_addr = u32::from_ne_bytes([address[12], address[13], address[14], address[15]]);
        // SAFETY: sockaddr_in is smaller and needs no stricter alignment.
        unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(short) };
        Self { storage, length: mem::size_of::<libc::sockaddr_in>() as u32 }
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }
}

fn act_once(act: &Act) -> Result<(), i32> {
    let domain = |family| if family == Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
    match *act {
        Act::TcpConnect(family, address) => {
            let socket = socket(domain(family), libc::SOCK_STREAM, 0)?;
            match connect(&socket, &Destination::new(family, &address)) {
                Err(libc::EINPROGRESS) => finish_connect(&socket),
                other => other,
            }
        }
        Act::UdpConnect(family, address) => {
            let socket = socket(domain(family), libc::SOCK_DGRAM, 0)?;
            any_destination(&socket)?;
            connect(&socket, &Destination::new(family, &address))
        }
        Act::UdpCorked(family, address) => {
            let socket = socket(domain(family), libc::SOCK_DGRAM, 0)?;
            send(&socket, b"canary", libc::MSG_MORE, &Destination::new(family, &address))
        }
        Act::Ping(family, address) => {
            let (protocol, kind) =
                if family == Family::V4 { (libc::IPPROTO_ICMP, 8) } else { (libc::IPPROTO_ICMPV6, 128) };
            let socket = socket(domain(family), libc::SOCK_DGRAM, protocol)?;
            send(&socket, &[kind, 0, 0, 0, 0, 1, 0, 1], 0, &Destination::new(family, &address))?;
            wait_for(&socket, libc::POLLIN)
        }
        Act::RawSocket => socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW).map(|_| ()),
    }
}

/// Multicast and broadcast addresses need an interface and a permission.
fn any_destination(socket: &OwnedFd) -> Result<(), i32> {
    let on = 1_i32.to_ne_bytes();
    for (option, value) in [(libc::SO_BROADCAST, &on[..]), (libc::SO_BINDTODEVICE, b"lo\0")] {
        let (pointer, length) = (value.as_ptr().cast(), value.len() as u32);
        // SAFETY: the option's value lives through the call.
        check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, pointer, length) })?;
    }
    Ok(())
}

fn connect(socket: &OwnedFd, to: &Destination) -> Result<(), i32> {
    // SAFETY: the address lives through the call and has the length that is given.
    check(unsafe { libc::connect(socket.as_raw_fd(), to.pointer(), to.length) }).map(|_| ())
}

fn finish_connect(socket: &OwnedFd) -> Result<(), i32> {
    wait_for(socket, libc::POLLOUT)?;
    let mut error = 0_i32;
    let mut length = mem::size_of_val(&error) as u32;
    // SAFETY: value and length live through the call.
    check(unsafe {
        let value = (&raw mut error).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, value, &raw mut length)
    })?;
    if error == 0 { Ok(()) } else { Err(error) }
}

fn wait_for(socket: &OwnedFd, events: i16) -> Result<(), i32> {
    let mut watched = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one descriptor, which lives through the call.
    if check(unsafe { libc::poll(&raw mut watched, 1, ANSWER_MS) })? == 0 {
        return Err(libc::ETIMEDOUT);
    }
    Ok(())
}

fn send(socket: &OwnedFd, bytes: &[u8], flags: i32, to: &Destination) -> Result<(), i32> {
    // SAFETY: bytes and address live through the call and have the lengths that are given.
    let sent = unsafe {
        libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags, to.pointer(), to.length)
    };
    check(sent as i32).map(|_| ())
}
