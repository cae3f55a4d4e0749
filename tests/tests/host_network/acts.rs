//! What the attacker does, one act a word. Each prints `errno=N` when it knows how it ended, 0 for success.

use std::io::{self, Read as _};
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

/// Attempts in one `flood`.
pub(crate) const FLOOD: u64 = 20_000;

/// Performs `NAME ADDRESS`.
pub(crate) fn perform(act: &str) {
    if let Some(places) = act.strip_prefix("hold ") {
        return super::lifecycle::hold(places);
    }
    if act == "start-as-nobody" {
        return super::lifecycle::start_as_nobody();
    }
    let (name, address) = act.split_once(' ').unwrap_or((act, "0.0.0.0:0"));
    let to: SocketAddr = address.parse().expect("an address");
    let result = match name {
        "tcp" => tcp(to, 0),
        "mptcp" => tcp(to, 262),
        "fastopen" => fast_open(to),
        "udp-sendto" => socket(to, libc::SOCK_DGRAM, 0).and_then(|socket| echo(&socket, Some(to), 0)),
        "udp-connected" => socket(to, libc::SOCK_DGRAM, 0)
            .and_then(|socket| connect(&socket, to).and_then(|()| echo(&socket, None, 0))),
        // Only the call that carries the address is judged: nothing is sent.
        "udp-corked" => {
            socket(to, libc::SOCK_DGRAM, 0).and_then(|socket| send(&socket, Some(to), b"x", libc::MSG_MORE))
        }
        "ping" => ping(to),
        "raw" => raw(to),
        "raw-socket" => socket(to, libc::SOCK_RAW, libc::IPPROTO_ICMP).map(|_| ()),
        "source-route" => source_route(to),
        "tcp-later" => later(to, libc::SOCK_STREAM),
        "udp-later" => later(to, libc::SOCK_DGRAM),
        "hammer" => hammer(to),
        "flood" => flood(to),
        "talk" => talk(to, libc::SHUT_RD, 0),
        "talk-half-closed" => talk(to, libc::SHUT_WR, 0),
        "talk-reset" => talk(to, libc::SHUT_RD, 1),
        "datagrams" => datagrams(to),
        "listen" => listen(to),
        "storm" => storm(),
        other => panic!("no act {other}"),
    };
    println!("errno={}", result.err().and_then(|error| error.raw_os_error()).unwrap_or(0));
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn socket(to: SocketAddr, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let limit = libc::timeval { tv_sec: 1, tv_usec: 0 };
    // SAFETY: the option's value lives through the call; the descriptor is new and has no other owner.
    unsafe {
        let fd = check(libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol))?;
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let length = mem::size_of_val(&limit) as u32;
            check(libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const limit).cast(), length))?;
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The address as the kernel takes it, and its length.
fn raw_address(to: SocketAddr) -> (libc::sockaddr_in6, u32) {
    // SAFETY: plain data; `sockaddr_in` is smaller than `sockaddr_in6`.
    unsafe {
        let mut long: libc::sockaddr_in6 = mem::zeroed();
        match to {
            SocketAddr::V6(to) => {
                long.sin6_family = libc::AF_INET6 as u16;
                long.sin6_port = to.port().to_be();
                long.sin6_addr.s6_addr = to.ip().octets();
                (long, mem::size_of::<libc::sockaddr_in6>() as u32)
            }
            SocketAddr::V4(to) => {
                let mut short: libc::sockaddr_in = mem::zeroed();
                short.sin_family = libc::AF_INET as u16;
                short.sin_port = to.port().to_be();
                short.sin_addr.s_addr = u32::from_ne_bytes(to.ip().octets());
                (&raw mut long).cast::<libc::sockaddr_in>().write(short);
                (long, mem::size_of::<libc::sockaddr_in>() as u32)
            }
        }
    }
}

fn connect(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    let (address, length) = raw_address(to);
    // SAFETY: the address lives through the call.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) }).map(|_| ())
}

fn send(socket: &OwnedFd, to: Option<SocketAddr>, bytes: &[u8], flags: i32) -> io::Result<()> {
    let address = to.map(raw_address);
    let (pointer, length) = address
        .as_ref()
        .map_or((std::ptr::null(), 0), |(address, length)| ((&raw const *address).cast(), *length));
    // SAFETY: bytes and address live through the call.
    let sent = unsafe {
        libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags, pointer, length)
    };
    check(sent as i32).map(|_| ())
}

fn receive(socket: &OwnedFd) -> io::Result<usize> {
    let mut buffer = [0_u8; 256];
    // SAFETY: the buffer lives through the call.
    let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    check(got as i32).map(|count| count as usize)
}

/// Sends and waits for the answer.
fn echo(socket: &OwnedFd, to: Option<SocketAddr>, flags: i32) -> io::Result<()> {
    send(socket, to, b"attack", flags)?;
    receive(socket).map(|_| ())
}

fn tcp(to: SocketAddr, protocol: i32) -> io::Result<()> {
    let socket = socket(to, libc::SOCK_STREAM, protocol)?;
    connect(&socket, to)?;
    echo(&socket, None, 0)
}

fn fast_open(to: SocketAddr) -> io::Result<()> {
    let socket = socket(to, libc::SOCK_STREAM, 0)?;
    echo(&socket, Some(to), libc::MSG_FASTOPEN)
}

fn ping(to: SocketAddr) -> io::Result<()> {
    let (protocol, kind) = if to.is_ipv4() { (libc::IPPROTO_ICMP, 8) } else { (libc::IPPROTO_ICMPV6, 128) };
    let socket = socket(to, libc::SOCK_DGRAM, protocol)?;
    send(&socket, Some(to), &[kind, 0, 0, 0, 0, 1, 0, 1], 0)?;
    receive(&socket).map(|_| ())
}

/// A whole IPv4 packet, header written by hand.
fn raw(to: SocketAddr) -> io::Result<()> {
    let socket = socket(to, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    send(&socket, Some(to), &packet(to, &[]), 0)
}

/// The same with a loose source route in its options: its end is not its destination.
fn source_route(to: SocketAddr) -> io::Result<()> {
    let socket = socket(to, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
    send(&socket, Some(to), &packet(to, &[131, 7, 4, 169, 254, 169, 254, 0]), 0)
}

fn packet(to: SocketAddr, options: &[u8]) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!("an IPv4 packet needs an IPv4 address") };
    let words = 5 + options.len() / 4;
    let mut packet = vec![0x40 | words as u8, 0, 0, 0, 0, 0, 0, 0, 64, libc::IPPROTO_UDP as u8, 0, 0];
    packet.extend([127, 0, 0, 1]);
    packet.extend(to.ip().octets());
    packet.extend(options);
    packet.extend([0, 9, (to.port() >> 8) as u8, to.port() as u8, 0, 8, 0, 0]);
    packet
}

/// Connects, says so, waits for a line and only then sends.
fn later(to: SocketAddr, kind: i32) -> io::Result<()> {
    let socket = socket(to, kind, 0)?;
    connect(&socket, to)?;
    println!("connected");
    let _ = io::stdin().read(&mut [0; 1]);
    echo(&socket, None, 0)
}

/// Connects for ever, as fast as it can; prints each success.
fn hammer(to: SocketAddr) -> io::Result<()> {
    println!("hammering");
    let mut tried = 0_u64;
    loop {
        let socket = socket(to, libc::SOCK_STREAM, 0)?;
        if connect(&socket, to).is_ok() {
            println!("got through after {tried}");
            std::thread::sleep(Duration::from_millis(1));
        }
        tried += 1;
    }
}

/// Connects [`FLOOD`] times; the error if each ended with the same.
fn flood(to: SocketAddr) -> io::Result<()> {
    let mut last = None;
    for _ in 0..FLOOD {
        let socket = socket(to, libc::SOCK_STREAM, 0)?;
        let Err(error) = connect(&socket, to) else { panic!("got through") };
        let errno = error.raw_os_error();
        assert!(last.is_none_or(|last| last == errno), "{error}");
        last = Some(errno);
    }
    Err(io::Error::from_raw_os_error(last.flatten().unwrap_or(0)))
}

/// What `talk` sends, and gets back.
pub(crate) const TALK: u64 = 30_000;

/// Sends [`TALK`] bytes, reads them again and closes in one of the ways in which connections end.
fn talk(to: SocketAddr, first: i32, reset: i32) -> io::Result<()> {
    let socket = socket(to, libc::SOCK_STREAM, 0)?;
    connect(&socket, to)?;
    let bytes = [7_u8; TALK as usize];
    let mut sent = 0;
    let mut got = 0;
    while got < bytes.len() {
        let chunk = (bytes.len() - sent).min(1000);
        if chunk > 0 {
            send(&socket, None, &bytes[..chunk], 0)?;
            sent += chunk;
        }
        got += receive(&socket)?;
    }
    if first == libc::SHUT_WR {
        // SAFETY: no memory is involved.
        check(unsafe { libc::shutdown(socket.as_raw_fd(), first) })?;
        assert_eq!(receive(&socket)?, 0, "the other end has closed too");
    }
    let linger = libc::linger { l_onoff: reset, l_linger: 0 };
    let length = mem::size_of_val(&linger) as u32;
    let option = (&raw const linger).cast();
    // SAFETY: the option's value lives through the call.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, length)
    })?;
    Ok(())
}

/// Three datagrams of 100 bytes and their echoes, over one socket.
fn datagrams(to: SocketAddr) -> io::Result<()> {
    let socket = socket(to, libc::SOCK_DGRAM, 0)?;
    for _ in 0..3 {
        send(&socket, Some(to), &[7; 100], 0)?;
        receive(&socket)?;
    }
    Ok(())
}

/// A stream that listens and a datagram socket that is bound, both on this address, for a moment.
fn listen(at: SocketAddr) -> io::Result<()> {
    let stream = std::net::TcpListener::bind(at)?;
    let datagrams = std::net::UdpSocket::bind(at)?;
    drop((stream, datagrams));
    Ok(())
}

/// Programs that one `storm` starts.
pub(crate) const STORM: u64 = 1_000;

/// Starts [`STORM`] programs, as many at once as there are processors, and counts for itself.
fn storm() -> io::Result<()> {
    let each = STORM / 2;
    let threads = [0, 1].map(|_| {
        std::thread::spawn(move || {
            (0..each)
                .filter(|_| std::process::Command::new("/bin/true").status().is_ok_and(|end| end.success()))
                .count()
        })
    });
    let started: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    println!("started={started}");
    Ok(())
}
