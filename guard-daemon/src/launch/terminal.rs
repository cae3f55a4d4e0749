//! Terminals: what the caller's looks like, making the agent's alike, and raw mode that is always undone.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
};

use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

use super::wire::TerminalState;

/// How this terminal looks now. `cooked` when it will not be put into raw mode.
///
/// # Errors
/// It is no terminal.
pub fn state_of(terminal: impl AsFd, cooked: bool) -> io::Result<TerminalState> {
    let size = tcgetwinsize(&terminal)?;
    let settings = raw_settings(&terminal)?;
    // SAFETY: `termios` is plain integers without padding on Linux; its bytes are initialised by the kernel.
    let settings =
        unsafe { std::slice::from_raw_parts((&raw const settings).cast::<u8>(), size_of::<libc::termios>()) };
    Ok(TerminalState {
        rows: size.ws_row.into(),
        columns: size.ws_col.into(),
        settings: settings.to_vec(),
        cooked,
    })
}

/// Makes a fresh terminal look like the caller's.
///
/// # Errors
/// The terminal refuses the settings.
pub fn imitate(terminal: &OwnedFd, state: &TerminalState) -> io::Result<()> {
    let size = |value: u32| u16::try_from(value).unwrap_or(0);
    tcsetwinsize(
        terminal,
        Winsize { ws_row: size(state.rows), ws_col: size(state.columns), ws_xpixel: 0, ws_ypixel: 0 },
    )?;
    let mut settings = raw_settings(terminal)?;
    if state.settings.len() == size_of::<libc::termios>() {
        // SAFETY: every bit pattern is a `termios`, and the length was just checked.
        settings = unsafe { state.settings.as_ptr().cast::<libc::termios>().read_unaligned() };
    }
    if state.cooked {
        settings.c_oflag &= !libc::OPOST;
    }
    // SAFETY: the descriptor is open and `settings` lives through the call.
    if unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSANOW, &raw const settings) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives `to` the size of `from`; the kernel tells the programs on it.
///
/// # Errors
/// One of the two is no terminal any more.
pub fn copy_size(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    Ok(tcsetwinsize(to, tcgetwinsize(from)?)?)
}

fn raw_settings(terminal: impl AsFd) -> io::Result<libc::termios> {
    let mut settings = MaybeUninit::uninit();
    // SAFETY: the descriptor is open; the kernel fills the whole structure when it succeeds.
    unsafe {
        if libc::tcgetattr(terminal.as_fd().as_raw_fd(), settings.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(settings.assume_init())
    }
}

/// Raw mode of standard input; dropping it brings back what was before, also while panicking.
#[derive(Debug)]
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Enters raw mode, unless the terminal belongs to another job now.
    ///
    /// # Errors
    /// Standard input is no terminal.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if rustix::termios::tcgetpgrp(&stdin)? != rustix::process::getpgrp() {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing better can be done if the terminal has gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
