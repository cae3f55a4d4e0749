//! The servers of the small internet, run inside its network namespace by `guard_tests::world`.
//!
//! Port 80: HTTP, answers by the address that was called. Port 7: TCP and UDP echo. Prints `ready` once all listen.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use guard_tests::world::{ADDRESSES, ECHO, HTTP, World};

fn main() -> anyhow::Result<()> {
    // For this namespace only: everybody may ping, and servers take data in the SYN.
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647")?;
    std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3")?;
    let web = TcpListener::bind((Ipv6Addr::UNSPECIFIED, HTTP))?;
    let echo = TcpListener::bind((Ipv6Addr::UNSPECIFIED, ECHO))?;
    // One socket an address: an answer must come from the address that was asked.
    for (address, _) in ADDRESSES {
        let socket = UdpSocket::bind((address, ECHO))?;
        thread::spawn(move || echo_datagrams(&socket));
    }
    thread::spawn(move || {
        for stream in echo.incoming().flatten() {
            thread::spawn(move || echo_stream(stream));
        }
    });
    println!("ready");
    for stream in web.incoming().flatten() {
        thread::spawn(move || answer(&stream));
    }
    Ok(())
}

/// Callers may leave at any time; that is theirs to do.
fn answer(mut stream: &TcpStream) -> Option<()> {
    let called = stream.local_addr().ok()?;
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request).ok()?;
    let mut line = String::new();
    while reader.read_line(&mut line).ok()? > 2 {
        line.clear();
    }
    let body = body(called);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()
}

fn body(called: SocketAddr) -> String {
    match World::role(called.ip()) {
        "metadata" => {
            r#"{"AccessKeyId":"AKIAFAKEFAKEFAKEFAKE","SecretAccessKey":"not-a-secret","Token":"none"}"#
                .to_owned()
        }
        role => format!("this is a {role} server\n"),
    }
}

fn echo_stream(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn echo_datagrams(socket: &UdpSocket) {
    let mut buffer = [0; 1024];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        // Whoever asked may be gone.
        let _ = socket.send_to(&buffer[..count], from);
    }
}
