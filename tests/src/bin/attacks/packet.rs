//! Ways to an address that carry a packet of our own making.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    time::Instant,
};

use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, ipproto};

use crate::{
    net::{PATIENCE, datagram, datagram_socket, receive, token},
    outcome::{Act, check, no_effect, refused, step, worked},
};

const UDP: u8 = 17;
const ICMP_ECHO: u8 = 8;
const ICMP_ECHO_REPLY: u8 = 0;
const ICMP6_ECHO: u8 = 128;
const ICMP6_ECHO_REPLY: u8 = 129;

/// The Internet checksum (RFC 1071).
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

fn length(of: &[u8]) -> u16 {
    u16::try_from(of.len()).unwrap_or(u16::MAX)
}

/// A UDP header and its payload, without a checksum.
fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend((8 + length(payload)).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

fn ipv4(source: Ipv4Addr, target: Ipv4Addr, body: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + length(body)).to_be_bytes());
    header.extend([0, 1, 0, 0, 64, UDP, 0, 0]);
    header.extend(source.octets());
    header.extend(target.octets());
    let sum = checksum(&[&header]).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    header.extend(body);
    header
}

/// The target is on this machine, so a packet that claims to come from it is answered to it: to us.
fn ipv6(address: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let octets = address.octets();
    let sum = checksum(&[&octets, &octets, &[0, 0], &length(&body).to_be_bytes(), &[0, 0, 0, UDP], &body]);
    body[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length(&body).to_be_bytes());
    packet.extend([UDP, 64]);
    packet.extend(octets);
    packet.extend(octets);
    packet.extend(body);
    packet
}

/// A packet whose IP header is ours too, from a raw socket.
pub(crate) fn raw_header_included(target: SocketAddr) -> Act {
    let receiver = step!("a socket for the answer", datagram_socket(target));
    let port = receiver.local_addr()?.port();
    let token = token();
    let body = udp(port, target.port(), &token);
    let raw = std::num::NonZeroU32::new(libc::IPPROTO_RAW.unsigned_abs()).map(Protocol::from_raw);
    let sent = match target.ip() {
        IpAddr::V4(address) => {
            let socket = step!("raw socket", rustix::net::socket(AddressFamily::INET, SocketType::RAW, raw));
            let packet = ipv4(address, address, &body);
            rustix::net::sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV4::new(address, 0))
        }
        IpAddr::V6(address) => {
            let socket = step!("raw socket", rustix::net::socket(AddressFamily::INET6, SocketType::RAW, raw));
            let packet = ipv6(address, body);
            rustix::net::sendto(&socket, &packet, SendFlags::empty(), &SocketAddrV6::new(address, 0, 0, 0))
        }
    };
    step!("sendto", sent);
    datagram(&receiver, &token, "a packet with a header of ours")
}

/// A ping. Ping sockets may be off for this group; then a raw one is tried.
pub(crate) fn icmp(address: IpAddr) -> Act {
    let (family, protocol, kinds) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, (ICMP_ECHO, ICMP_ECHO_REPLY)),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, (ICMP6_ECHO, ICMP6_ECHO_REPLY)),
    };
    let ping = rustix::net::socket(family, SocketType::DGRAM, Some(protocol));
    let (socket, raw) = match ping {
        Ok(socket) => (socket, false),
        Err(_) => (step!("socket", rustix::net::socket(family, SocketType::RAW, Some(protocol))), true),
    };
    let token = token();
    let mut packet = vec![kinds.0, 0, 0, 0, 0x47, 0x44, 0, 1];
    packet.extend(token);
    if address.is_ipv4() {
        let sum = checksum(&[&packet]).to_be_bytes();
        packet[2..4].copy_from_slice(&sum);
    }
    let target = SocketAddr::new(address, 0);
    step!("sendto", rustix::net::sendto(&socket, &packet, SendFlags::empty(), &target));
    wait_for_reply(&socket, raw && address.is_ipv4(), kinds.1, &token)
}

/// A raw socket also sees its own request, since the target is this machine.
fn wait_for_reply(socket: &OwnedFd, with_header: bool, reply: u8, token: &[u8]) -> Act {
    let since = Instant::now();
    let mut buffer = [0; 256];
    while since.elapsed() < PATIENCE {
        let count = step!("wait for an answer", receive(socket, &mut buffer));
        let skip = if with_header { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
        let message = buffer.get(skip..count).unwrap_or(&[]);
        if message.first() == Some(&reply) && message.get(8..) == Some(token) {
            return worked("ping: an echo reply came");
        }
    }
    no_effect("no echo reply came")
}

/// A UDP packet put on `lo` below the IP layer, to a socket of our own at the target.
pub(crate) fn packet_socket(address: Ipv4Addr) -> Act {
    let receiver = step!("a socket at the target", UdpSocket::bind((address, 0)));
    step!("set a timeout", receiver.set_read_timeout(Some(PATIENCE)));
    let protocol = i32::from(u16::try_from(libc::ETH_P_IP)?.to_be());
    // SAFETY: a plain call without pointers.
    let result = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol) };
    let raw = step!("packet socket", check(result.into()));
    // SAFETY: the descriptor was made just now and nobody else has it.
    let socket: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(i32::try_from(raw)?) };
    let token = token();
    // A source that is nobody's, or the kernel takes it for a martian.
    let packet =
        ipv4(Ipv4Addr::new(198, 51, 100, 1), address, &udp(9, receiver.local_addr()?.port(), &token));
    // SAFETY: all bytes zero is a valid address of this family.
    let mut lo: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    lo.sll_family = u16::try_from(libc::AF_PACKET)?;
    lo.sll_protocol = u16::try_from(libc::ETH_P_IP)?.to_be();
    lo.sll_ifindex = 1;
    lo.sll_halen = 6;
    let size = u32::try_from(size_of_val(&lo))?;
    // SAFETY: both pointers and lengths are of values that live through the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const lo).cast(),
            size,
        )
    };
    if sent < 0 {
        return refused("sendto", &io::Error::last_os_error());
    }
    datagram(&receiver, &token, "a packet below the IP layer")
}
