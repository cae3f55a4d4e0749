//! A terminal with somebody who types on it: what a user sees and does, for tests.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pty::OpenptFlags,
    termios::{Winsize, tcsetwinsize},
};

/// How long a program may take to show something.
const PATIENCE: Duration = Duration::from_secs(20);

/// A terminal and the program that has it as its own.
pub struct Terminal {
    master: OwnedFd,
    child: Child,
    shown: String,
}

impl Terminal {
    /// Starts a program as the leader of a session on a new terminal of 33 rows and 77 columns.
    ///
    /// # Panics
    /// When the host gives no terminal.
    #[must_use]
    pub fn run(command: &mut Command) -> Self {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        rustix::pty::unlockpt(&master).expect("unlocked");
        let slave = rustix::pty::ioctl_tiocgptpeer(
            &master,
            OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
        )
        .expect("its other side");
        let size = Winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("a size");
        let stdio = || Stdio::from(slave.try_clone().expect("a copy"));
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        crate::usual_signals(command);
        // SAFETY: two system calls, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(io::stdin().as_fd())?;
                Ok(())
            });
        }
        let child = command.spawn().expect("the program");
        // The command keeps what it was given, and so would keep the terminal open.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { master, child, shown: String::new() }
    }

    /// Types.
    ///
    /// # Panics
    /// When the terminal has gone.
    pub fn keys(&self, keys: &str) {
        assert_eq!(rustix::io::write(&self.master, keys.as_bytes()), Ok(keys.len()));
    }

    /// Changes the size, as a window manager does.
    ///
    /// # Panics
    /// When the terminal has gone.
    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .expect("resized");
    }

    /// Waits until this text is shown; what came before it is forgotten. Returns the text up to its end.
    ///
    /// # Panics
    /// With all that was shown, when it does not come.
    pub fn wait_for(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(position) = self.shown.find(text) {
                let rest = self.shown.split_off(position + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            assert!(self.read(until), "`{text}` was not shown; this was:\n{}", self.shown);
        }
    }

    /// Reads to the end and reaps.
    ///
    /// # Panics
    /// When the program does not end.
    pub fn end(mut self) -> (String, ExitStatus) {
        let until = Instant::now() + PATIENCE;
        while self.read(until) {}
        loop {
            if let Some(status) = self.child.try_wait().expect("waited") {
                return (std::mem::take(&mut self.shown), status);
            }
            assert!(Instant::now() < until, "the program does not end; it showed:\n{}", self.shown);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Closes the window.
    ///
    /// # Panics
    /// When there is no `/dev/null`.
    pub fn hang_up(mut self) {
        self.master = std::fs::File::open("/dev/null").expect("/dev/null").into();
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("waited").is_none() {
            assert!(Instant::now() < until, "the program does not hear the hangup");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// False at the end, or when time is up.
    fn read(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut ready = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut ready, Some(&timeout)).is_ok_and(|count| count == 0) {
            return false;
        }
        let mut buffer = [0; 4096];
        match rustix::io::read(&self.master, &mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
                true
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
