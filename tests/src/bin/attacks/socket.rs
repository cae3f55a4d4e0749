//! Unix sockets, and the terminal.

use std::{
    fs::{File, OpenOptions},
    io::Read as _,
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixStream},
    },
    path::Path,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::outcome::{Act, check, no_effect, step, worked};

pub(crate) fn unix_connect(path: &Path) -> Act {
    match UnixStream::connect(path) {
        // A socket that keeps messages apart.
        Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => {
            let kind = SocketType::SEQPACKET;
            let socket = step!("socket", rustix::net::socket(AddressFamily::UNIX, kind, None));
            step!("connect", rustix::net::connect(&socket, &SocketAddrUnix::new(path)?));
        }
        other => drop(step!("connect", other)),
    }
    worked("connected")
}

pub(crate) fn abstract_connect(name: &str) -> Act {
    let address = SocketAddr::from_abstract_name(name)?;
    let stream = step!("connect", UnixStream::connect_addr(&address));
    drop(stream);
    worked("connected")
}

/// The terminal of this process; it needs one.
fn terminal() -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/tty")
}

pub(crate) fn tiocsti() -> Act {
    let mut tty = terminal()?;
    for byte in b"z\n" {
        // SAFETY: the argument is one byte that lives through the call.
        let result = unsafe { libc::ioctl(tty.as_raw_fd(), libc::TIOCSTI, std::ptr::from_ref(byte)) };
        step!("TIOCSTI", check(result.into()));
    }
    let mut line = [0; 8];
    let count = tty.read(&mut line)?;
    if line[..count].starts_with(b"z") { worked("we typed") } else { no_effect("nothing was typed") }
}

/// TIOCL_GETSHIFTSTATE: what the filter must refuse before the driver can say that this is no console.
const GET_SHIFT_STATE: u8 = 6;

pub(crate) fn tioclinux() -> Act {
    let tty = terminal()?;
    let mut code = GET_SHIFT_STATE;
    // SAFETY: the argument is one byte that lives through the call.
    let result = unsafe { libc::ioctl(tty.as_raw_fd(), libc::TIOCLINUX, &raw mut code) };
    step!("TIOCLINUX", check(result.into()));
    worked(format!("the console answered {code}"))
}
