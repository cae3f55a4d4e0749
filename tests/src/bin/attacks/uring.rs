//! io_uring: system calls that no filter sees.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::fd::AsRawFd as _,
};

use io_uring::{IoUring, opcode, types};
use rustix::net::{AddressFamily, SocketType, addr::SocketAddrArg as _};

use crate::{
    net::{PATIENCE, token},
    outcome::{Act, no_effect, refused, step, worked},
};

pub(crate) fn setup() -> Act {
    let ring = step!("io_uring_setup", IoUring::new(2));
    worked(format!("a ring of {} entries", ring.params().sq_entries()))
}

pub(crate) fn connect(target: SocketAddr) -> Act {
    let mut ring = step!("io_uring_setup", IoUring::new(2));
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = step!("socket", rustix::net::socket(family, SocketType::STREAM, None));
    let address = target.as_any();
    // SAFETY: the address outlives the wait below, and the entry names its true length.
    let done = unsafe {
        let entry =
            opcode::Connect::new(types::Fd(socket.as_raw_fd()), address.as_ptr().cast(), address.addr_len());
        ring.submission().push(&entry.build())?;
        ring.submit_and_wait(1)
    };
    step!("submit", done);
    let Some(result) = ring.completion().next().map(|entry| entry.result()) else {
        return no_effect("the ring gave no result");
    };
    if result < 0 {
        return refused("connect", &std::io::Error::from_raw_os_error(-result));
    }
    let mut stream = TcpStream::from(socket);
    let token = token();
    step!("set a timeout", stream.set_read_timeout(Some(PATIENCE)));
    step!("send", stream.write_all(&token));
    let mut back = [0; 16];
    step!("receive", stream.read_exact(&mut back));
    if back == token { worked("io_uring: the server sent it back") } else { no_effect("a wrong answer") }
}
