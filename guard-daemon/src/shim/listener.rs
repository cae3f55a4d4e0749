//! Answers trapped calls, on the thread that receives them.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

/// The seccomp listener of one agent.
pub(super) struct Listener {
    descriptor: OwnedFd,
}

impl Listener {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Serves until the agent has ended.
    pub(super) fn serve_on_a_thread(self) -> io::Result<()> {
        std::thread::Builder::new()
            .name("listener".to_owned())
            .stack_size(128 << 10)
            .spawn(move || self.serve())?;
        Ok(())
    }

    fn serve(&self) {
        loop {
            // SAFETY: all-zero is what the kernel asks for.
            let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the structure is as large as the request says.
            if unsafe { libc::ioctl(self.descriptor.as_raw_fd(), RECEIVE, &raw mut call) } != 0 {
                match io::Error::last_os_error().raw_os_error() {
                    // The caller died or was interrupted between its call and us.
                    Some(libc::ENOENT | libc::EINTR) => continue,
                    _ => return,
                }
            }
            let answer = libc::seccomp_notif_resp {
                id: call.id,
                val: 0,
                error: 0,
                flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            };
            // SAFETY: as above.
            unsafe { libc::ioctl(self.descriptor.as_raw_fd(), SEND, &raw const answer) };
        }
    }
}

/// `SECCOMP_IOCTL_NOTIF_RECV`
const RECEIVE: libc::Ioctl = 0xc050_2100;
/// `SECCOMP_IOCTL_NOTIF_SEND`
const SEND: libc::Ioctl = 0xc018_2101;
