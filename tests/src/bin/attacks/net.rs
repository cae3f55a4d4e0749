//! Ways to an address that go through the socket layer.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    time::Duration,
};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketType};

use crate::outcome::{Act, check, no_effect, step, worked};

/// How long an answer may take; everything is on this machine.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1500);

/// MSG_FASTOPEN of <linux/socket.h>; rustix has no name for it.
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// IPPROTO_MPTCP of <linux/in.h>.
const MPTCP: u32 = 262;

/// Bytes that nobody else sends.
pub(crate) fn token() -> [u8; 16] {
    let mut bytes = [0; 16];
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
    bytes[4..].copy_from_slice(&nanos.to_le_bytes()[..12]);
    bytes
}

/// An IPv4 address as IPv6 sockets see it.
pub(crate) fn mapped(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::V6(SocketAddrV6::new(address.to_ipv6_mapped(), port, 0, 0))
}

/// An IPv4 address behind 64:ff9b::/96.
pub(crate) fn nat64(address: Ipv4Addr, port: u16) -> SocketAddr {
    let [a, b, c, d] = address.octets().map(u16::from);
    let address = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a << 8 | b, c << 8 | d);
    SocketAddr::new(IpAddr::V6(address), port)
}

/// A stream that the echo server must answer.
fn echo(mut stream: TcpStream, how: &str) -> Act {
    let token = token();
    step!("set a timeout", stream.set_read_timeout(Some(PATIENCE)));
    step!("send", stream.write_all(&token));
    answer(&mut stream, &token, how)
}

fn answer(stream: &mut TcpStream, token: &[u8], how: &str) -> Act {
    let mut back = vec![0; token.len()];
    match stream.read_exact(&mut back) {
        Ok(()) if back == token => worked(format!("{how}: the server sent it back")),
        Ok(()) => no_effect("the answer is somebody else's"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => no_effect("the server closed"),
        Err(error) => crate::outcome::refused("receive", &error),
    }
}

pub(crate) fn tcp(target: SocketAddr) -> Act {
    let stream = step!("connect", TcpStream::connect_timeout(&target, PATIENCE));
    echo(stream, "tcp")
}

/// A datagram socket for the target's family that waits a little for answers.
pub(crate) fn datagram_socket(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Waits for the token on a datagram socket.
pub(crate) fn datagram(socket: &UdpSocket, token: &[u8], how: &str) -> Act {
    let mut back = [0; 256];
    let count = step!("wait for an answer", socket.recv(&mut back));
    if back[..count] == *token {
        worked(format!("{how}: it came back"))
    } else {
        no_effect("the answer is somebody else's")
    }
}

pub(crate) fn udp_sendto(target: SocketAddr) -> Act {
    let socket = step!("socket", datagram_socket(target));
    let token = token();
    step!("sendto", socket.send_to(&token, target));
    datagram(&socket, &token, "udp, unconnected")
}

pub(crate) fn udp_connected(target: SocketAddr) -> Act {
    let socket = step!("socket", datagram_socket(target));
    step!("connect", socket.connect(target));
    let token = token();
    step!("send", socket.send(&token));
    datagram(&socket, &token, "udp, connected")
}

fn family(target: SocketAddr) -> AddressFamily {
    if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

pub(crate) fn fastopen(target: SocketAddr) -> Act {
    let socket = step!("socket", rustix::net::socket(family(target), SocketType::STREAM, None));
    let token = token();
    let flags = SendFlags::from_bits_retain(MSG_FASTOPEN);
    step!("sendto with MSG_FASTOPEN", rustix::net::sendto(&socket, &token, flags, &target));
    let mut stream = TcpStream::from(socket);
    step!("set a timeout", stream.set_read_timeout(Some(PATIENCE)));
    answer(&mut stream, &token, "fast open")
}

pub(crate) fn mptcp(target: SocketAddr) -> Act {
    let protocol = std::num::NonZeroU32::new(MPTCP).map(Protocol::from_raw);
    let socket = step!("socket", rustix::net::socket(family(target), SocketType::STREAM, protocol));
    step!("connect", rustix::net::connect(&socket, &target));
    echo(TcpStream::from(socket), "mptcp")
}

/// Only makes and binds one: the family has no way to say "this machine only" before 5.6, and nothing may leave.
pub(crate) fn vsock() -> Act {
    // SAFETY: a plain call without pointers.
    let result = unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    let raw = step!("socket", check(result.into()));
    // SAFETY: the descriptor was made just now and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(i32::try_from(raw)?) };
    // SAFETY: all bytes zero is a valid address of this family.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = u16::try_from(libc::AF_VSOCK)?;
    address.svm_cid = libc::VMADDR_CID_ANY;
    address.svm_port = libc::VMADDR_PORT_ANY;
    let length = u32::try_from(size_of_val(&address))?;
    // SAFETY: the pointer and the length are of one address that lives through the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    step!("bind", check(result.into()));
    worked("a bound socket")
}

/// Many connects without waiting; what was refused is told from what went through.
pub(crate) fn flood(target: SocketAddr, count: u32) -> Act {
    let mut through = 0_u32;
    let mut denied = 0_u32;
    for _ in 0..count {
        let socket = rustix::net::socket_with(
            family(target),
            SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        match rustix::net::connect(&socket, &target) {
            Err(rustix::io::Errno::PERM) => denied += 1,
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => through += 1,
            // Too many at once: it still was let through by whoever decides.
            Err(rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::AGAIN) => through += 1,
            Err(other) => return crate::outcome::refused("connect", &other.into()),
        }
    }
    if through == 0 {
        return crate::outcome::refused(
            &format!("{denied} of {count} connects"),
            &io::Error::from_raw_os_error(libc::EPERM),
        );
    }
    worked(format!("{through} of {count} connects went through, {denied} were denied"))
}

/// Reads what is there for at most [`PATIENCE`].
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    rustix::net::sockopt::set_socket_timeout(socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))?;
    let (count, _) = rustix::net::recv(socket, buffer, RecvFlags::empty())?;
    Ok(count)
}
