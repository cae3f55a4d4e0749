//! guardctl's side of a launch: redeems the ticket, relays the terminal, passes signals on, and ends as the command ended.

use std::{
    io::{self, Write as _},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::ExitCode,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType},
};

use super::{
    Descriptors,
    terminal::{self, Raw},
    wire::{self, ClientEvent, Failed, Started, Ticket, ToClient, ToCommand},
};

/// Why a command was not run, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("guardd cannot be reached at {}: {source}; is it running?", path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    #[error("{}", .0.message)]
    Refused(Failed),
    #[error("the connection to the agent broke before it ended; guardd ends such an agent")]
    Lost,
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
}

impl ClientError {
    /// The stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Unreachable { .. } => "daemon_unreachable",
            Self::Refused(failed) => &failed.code,
            Self::Lost => "agent_lost",
            Self::Step { .. } => "launch",
        }
    }

    /// Exit status of guardctl.
    #[must_use]
    pub fn exit(&self) -> u8 {
        match self {
            Self::Unreachable { .. } | Self::Lost => 3,
            Self::Refused(failed) if failed.code == "not_permitted" => 4,
            Self::Refused(_) | Self::Step { .. } => 1,
        }
    }

    fn step(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Step { step, source }
    }
}

/// Signals that go on to the command, as far as they reach guardctl. In raw mode keys do not: they reach the agent's own terminal.
const FORWARDED: &[libc::c_int] = &[
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTSTP,
];

/// Runs a prepared command; `terminals` says which of the standard descriptors are terminals.
///
/// A command that was ended by a signal ends this process by the same signal, so that a shell sees what it would have seen.
///
/// # Errors
/// [`ClientError`]
pub fn run(
    socket: &Path,
    ticket: &[u8],
    descriptors: Descriptors,
    terminals: [bool; 3],
) -> Result<ExitCode, ClientError> {
    let signals = Signals::take().map_err(ClientError::step("taking signals"))?;
    let connection =
        connect(socket).map_err(|source| ClientError::Unreachable { path: socket.to_owned(), source })?;
    let shown = [1, 2, 0].into_iter().find(|position| terminals[*position]);
    let terminal = match shown {
        Some(position) => terminal::state_of(&descriptors.stdio[position], !terminals[0]).map(Some),
        None => Ok(None),
    }
    .map_err(ClientError::step("looking at the terminal"))?;
    let message = Ticket { ticket: ticket.to_vec(), terminal };
    let Descriptors { stdio, worktree, directory, network } = &descriptors;
    let handed = [&stdio[0], &stdio[1], &stdio[2], worktree, directory, network].map(AsFd::as_fd);
    wire::send(&connection, &message, &handed, SendFlags::empty())
        .map_err(|source| ClientError::Unreachable { path: socket.to_owned(), source })?;
    drop(descriptors);
    let mut relay = Relay {
        connection,
        signals,
        reads: terminals[0],
        shown: shown.and_then(|position| i32::try_from(position).ok()),
        raw: None,
        master: None,
        pending: Vec::new(),
    };
    let status = relay.until_the_end()?;
    // Also where this process ends itself below.
    relay.raw = None;
    Ok(end_like(status))
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Everything between the caller's terminal and the agent's.
struct Relay {
    connection: OwnedFd,
    signals: Signals,
    /// Standard input is a terminal whose keys belong to the agent.
    reads: bool,
    /// Standard descriptor on which the agent's terminal is shown.
    shown: Option<i32>,
    raw: Option<Raw>,
    master: Option<OwnedFd>,
    /// Keys that the agent's terminal did not take yet.
    pending: Vec<u8>,
}

impl Relay {
    /// Relays until guardd has cleaned up behind the command; returns the wait status.
    fn until_the_end(&mut self) -> Result<i32, ClientError> {
        let mut status = None;
        let mut connected = true;
        while connected || self.master.is_some() {
            let stdin = io::stdin();
            let mut ready = vec![PollFd::new(&self.signals.descriptor, PollFlags::IN)];
            let mut add = |descriptor, flags| {
                ready.push(PollFd::from_borrowed_fd(descriptor, flags));
                ready.len() - 1
            };
            let connection = connected.then(|| add(self.connection.as_fd(), PollFlags::IN));
            let master = self.master.as_ref().map(|master| {
                let flags =
                    if self.pending.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
                add(master.as_fd(), flags)
            });
            let keys = (self.raw.is_some() && self.pending.is_empty() && self.master.is_some())
                .then(|| add(stdin.as_fd(), PollFlags::IN));
            // Asked for nothing, poll still says when a terminal has gone.
            let terminal = self
                .shown
                .filter(|_| self.master.is_some())
                .map(|shown| add(standard(shown), PollFlags::empty()));
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(ClientError::Step { step: "waiting", source: error.into() }),
            }
            let events: Vec<PollFlags> = ready.iter().map(PollFd::revents).collect();
            let came =
                |position: Option<usize>| position.map_or(PollFlags::empty(), |position| events[position]);
            if !events[0].is_empty() {
                self.signals()?;
            }
            if came(master).contains(PollFlags::OUT) {
                self.type_pending();
            }
            if !came(keys).is_empty() {
                self.keys();
            }
            if came(master).intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.show()?;
            }
            if came(terminal).contains(PollFlags::HUP) {
                // A shell that ends with its terminal may do so before it passes the hangup on. The agent's terminal
                // goes where this one went.
                self.raw = None;
                self.master = None;
                self.signal(libc::SIGHUP);
                self.signal(libc::SIGCONT);
            }
            if !came(connection).is_empty() {
                connected = self.hear(&mut status)?;
            }
        }
        status.ok_or(ClientError::Lost)
    }

    /// One message of the shim or guardd; false at the end.
    fn hear(&mut self, status: &mut Option<i32>) -> Result<bool, ClientError> {
        let packet =
            wire::receive::<ToClient>(&self.connection).map_err(ClientError::step("hearing the agent"))?;
        let Some(packet) = packet else { return Ok(false) };
        match packet.message.event {
            Some(ClientEvent::Started(started)) => self.started(&started, packet.descriptors)?,
            Some(ClientEvent::Stopped(signal)) => {
                self.stopped(i32::try_from(signal).unwrap_or(libc::SIGSTOP))?
            }
            Some(ClientEvent::Exited(ended)) => *status = Some(ended.cast_signed()),
            Some(ClientEvent::Failed(failed)) => return Err(ClientError::Refused(failed)),
            None => {}
        }
        Ok(true)
    }

    fn started(&mut self, started: &Started, descriptors: Vec<OwnedFd>) -> Result<(), ClientError> {
        for warning in &started.warnings {
            eprintln!("guardctl: {warning}");
        }
        self.master = descriptors.into_iter().next();
        if let Some(master) = &self.master {
            rustix::io::ioctl_fionbio(master, true).map_err(|error| ClientError::Step {
                step: "preparing the terminal",
                source: error.into(),
            })?;
        } else {
            // A pipe must end for its other side when the command closes it, not when guardctl ends.
            let null = std::fs::File::options().read(true).write(true).open("/dev/null");
            if let Ok(null) = null {
                let moved = rustix::stdio::dup2_stdin(&null).and_then(|()| rustix::stdio::dup2_stdout(&null));
                moved.map_err(|error| ClientError::Step {
                    step: "letting go of the pipes",
                    source: error.into(),
                })?;
            }
        }
        self.take_terminal()
    }

    /// Raw mode and the size, when the terminal is ours.
    fn take_terminal(&mut self) -> Result<(), ClientError> {
        if self.reads && self.raw.is_none() {
            self.raw = Raw::enter().map_err(ClientError::step("taking the terminal"))?;
        }
        self.resize();
        Ok(())
    }

    fn resize(&self) {
        if let (Some(master), Some(shown)) = (&self.master, self.shown) {
            // A terminal that has gone has no size to pass on.
            let _ = terminal::copy_size(standard(shown), master);
        }
    }

    /// The command was stopped: this process stops alike, and the command goes on when it does.
    fn stopped(&mut self, signal: libc::c_int) -> Result<(), ClientError> {
        self.raw = None;
        let stop = if matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
            signal
        } else {
            libc::SIGSTOP
        };
        die_or_stop_by(stop);
        self.signals.again().map_err(ClientError::step("taking signals"))?;
        self.take_terminal()?;
        self.signal(libc::SIGCONT);
        Ok(())
    }

    fn signals(&mut self) -> Result<(), ClientError> {
        for signal in self.signals.come() {
            match signal {
                libc::SIGWINCH => self.resize(),
                libc::SIGCONT => self.take_terminal()?,
                other => self.signal(other),
            }
        }
        Ok(())
    }

    fn signal(&self, signal: libc::c_int) {
        let message = ToCommand { signal: signal.unsigned_abs() };
        // A command that has ended needs no signal.
        let _ = wire::send(&self.connection, &message, &[], SendFlags::empty());
    }

    fn keys(&mut self) {
        let mut buffer = [0; 4096];
        match rustix::io::read(io::stdin(), &mut buffer) {
            Ok(0) | Err(Errno::IO) => self.reads = false,
            Ok(count) => {
                self.pending.extend_from_slice(&buffer[..count]);
                self.type_pending();
            }
            Err(_) => {}
        }
    }

    fn type_pending(&mut self) {
        let Some(master) = &self.master else { return self.pending.clear() };
        match rustix::io::write(master, &self.pending) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.pending.clear(),
        }
    }

    fn show(&mut self) -> Result<(), ClientError> {
        let Some(master) = &self.master else { return Ok(()) };
        let mut buffer = [0; 16 << 10];
        let count = match rustix::io::read(master, &mut buffer) {
            Ok(0) | Err(Errno::IO) => {
                self.master = None;
                return Ok(());
            }
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => {
                return Err(ClientError::Step { step: "reading the agent's terminal", source: error.into() });
            }
        };
        let text = &buffer[..count];
        let shown = match self.shown {
            Some(2) => io::stderr().write_all(text),
            Some(0) => write_stdin(text),
            _ => io::stdout().write_all(text).and_then(|()| io::stdout().flush()),
        };
        shown.map_err(ClientError::step("writing to the terminal"))
    }
}

fn standard(descriptor: i32) -> BorrowedFd<'static> {
    // SAFETY: a standard descriptor, open as long as this process.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

/// Only standard input is a terminal: it is open for writing as well, as terminals are.
fn write_stdin(mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match rustix::io::write(io::stdin(), text) {
            Ok(count) => text = &text[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The signals of this process, as a descriptor.
struct Signals {
    descriptor: OwnedFd,
    set: libc::sigset_t,
}

impl Signals {
    fn take() -> io::Result<Self> {
        let set = set_of(FORWARDED.iter().copied().chain([libc::SIGWINCH, libc::SIGCONT]));
        // SAFETY: `set` is initialised and lives through the call.
        let descriptor =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made it.
        let signals = Self { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) }, set };
        signals.again()?;
        Ok(signals)
    }

    /// Blocks them, so that they come over the descriptor only.
    fn again(&self) -> io::Result<()> {
        mask(libc::SIG_BLOCK, &self.set)
    }

    fn come(&self) -> Vec<libc::c_int> {
        let mut signals = Vec::new();
        let mut information = [0; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.descriptor, &mut information)
            .is_ok_and(|count| count == information.len())
        {
            // The number is the first field.
            let number = u32::from_ne_bytes([information[0], information[1], information[2], information[3]]);
            signals.extend(i32::try_from(number));
        }
        signals
    }
}

fn set_of(signals: impl Iterator<Item = libc::c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

fn mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: `set` is initialised.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Lets a signal do to this process what it does by default.
fn die_or_stop_by(signal: libc::c_int) {
    let set = set_of([signal].into_iter());
    // SAFETY: no memory of ours is involved.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
    // It is delivered here; there is nothing to do if it cannot be.
    let _ = mask(libc::SIG_UNBLOCK, &set);
}

/// The exit status of a command, or its death.
fn end_like(status: libc::c_int) -> ExitCode {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `none` lives through the call.
        unsafe {
            // The command has left its core; one of guardctl helps nobody.
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        }
        die_or_stop_by(signal);
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(255));
    }
    ExitCode::from(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(255))
}
