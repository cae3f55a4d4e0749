//! The agent's first process: builds the fence around itself, starts the command, reaps, and ends with it.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags},
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair},
    process::{WaitId, WaitIdOptions},
    pty::OpenptFlags,
};

use super::{
    Layer, ShimError,
    caller::Manner,
    listener::thing::coarse_now,
    reads::{self, Watched},
    setup::{Prepared, path_from, writable_files},
};
use crate::{
    launch::{
        terminal,
        wire::{self, Exited, Failed, FromInit, InitEvent, Ready, Started, ToCommand},
    },
    sandbox::{landlock, privilege, seccomp, view},
};

/// An agent whose fence stands, as the shim holds it.
pub(super) struct Agent {
    /// Connection to the init.
    pub(super) init: OwnedFd,
    pub(super) process: OwnedFd,
    pub(super) pid: u32,
    pub(super) started: Started,
    pub(super) listener: Option<OwnedFd>,
    pub(super) terminal: Option<OwnedFd>,
    /// Marks on secrets, and where they are.
    pub(super) reads: Option<OwnedFd>,
    pub(super) watched: Watched,
    /// Keeps the agent's mounts together when it has ended: its last acts are still being looked at then.
    pub(super) mounts: Option<OwnedFd>,
    /// Root directory of the agent's view.
    pub(super) root: OwnedFd,
    pub(super) worktree: std::path::PathBuf,
    pub(super) identity: crate::sandbox::identity::Identity,
    /// When the session began: before its first process, by the file systems' clock.
    pub(super) since: u64,
}

/// What the kernel is asked for with the agent's first process.
const NAMESPACES: libc::c_int = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;

/// libc's constant is too narrow for this bit.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Starts the init and waits until its fence stands.
pub(super) fn start(prepared: Prepared<'_>) -> Result<Agent, ShimError> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| ShimError::Step { step: "making a socket pair", source: error.into() })?;
    rustix::thread::move_into_link_name_space(
        prepared.handed.descriptors.network.as_fd(),
        Some(rustix::thread::LinkNameSpaceType::Network),
    )
    .map_err(|error| ShimError::Step {
        step: "entering the caller's network namespace",
        source: error.into(),
    })?;
    let since = coarse_now();
    let Some((pid, process)) = clone_init(prepared.handed.cgroup.as_fd())
        .map_err(ShimError::step("making the agent's first process"))?
    else {
        drop(ours);
        init(prepared, theirs)
    };
    drop(theirs);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    // An init that has ended already says why below.
    let mounts = rustix::fs::open(format!("/proc/{pid}/ns/mnt"), flags, Mode::empty()).ok();
    let packet =
        wire::receive::<FromInit>(&ours).map_err(ShimError::step("hearing the agent's first process"))?;
    let ended = || io::Error::other("it ended before its fence stood");
    let packet = packet
        .ok_or_else(|| ShimError::Step { step: "hearing the agent's first process", source: ended() })?;
    match packet.message.event {
        Some(InitEvent::Ready(ready)) => {
            let mut descriptors = packet.descriptors.into_iter();
            let mut next = |wanted: bool| if wanted { descriptors.next() } else { None };
            let root = next(true).ok_or_else(|| ShimError::Step {
                step: "hearing the agent's first process",
                source: io::Error::from(io::ErrorKind::InvalidData),
            })?;
            Ok(Agent {
                root,
                mounts,
                init: ours,
                process,
                pid,
                listener: next(ready.listener),
                terminal: next(ready.terminal),
                reads: next(ready.reads),
                watched: watched_of(&prepared),
                started: ready.started.unwrap_or_default(),
                worktree: prepared.worktree,
                identity: prepared.identity,
                since,
            })
        }
        Some(InitEvent::Failed(Failed { code, message })) => {
            // It ends by itself; the cgroup must be empty before the caller hears of it.
            let _ = rustix::process::waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED);
            let layer =
                [Layer::View, Layer::Landlock, Layer::Seccomp].into_iter().find(|layer| layer.name() == code);
            Err(match layer {
                Some(layer) => ShimError::NotEnforced { layer, why: message },
                None => ShimError::Reported(code, message),
            })
        }
        _ => Err(ShimError::Step { step: "hearing the agent's first process", source: ended() }),
    }
}

/// `None` in the new process. Born in the agent's cgroup: there is no moment at which it is elsewhere.
fn clone_init(cgroup: BorrowedFd<'_>) -> io::Result<Option<(u32, OwnedFd)>> {
    let mut pidfd: libc::c_int = -1;
    let flags = u64::from((NAMESPACES | libc::CLONE_PIDFD).cast_unsigned()) | CLONE_INTO_CGROUP;
    // SAFETY: all-zero means: no thread id, stack, or storage of its own.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags;
    arguments.pidfd = &raw mut pidfd as u64;
    arguments.exit_signal = libc::SIGCHLD.unsigned_abs().into();
    arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: like fork: the memory is copied, and this process has one thread, so no lock is held in the copy.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    match pid {
        0 => Ok(None),
        1.. => {
            // SAFETY: the kernel just put a descriptor of ours there.
            let process = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Some((u32::try_from(pid).map_err(io::Error::other)?, process)))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// The life of the init. Never returns into the shim's code.
fn init(prepared: Prepared<'_>, control: OwnedFd) -> ! {
    let failed = match fence_and_run(prepared, &control) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let (code, message) = match failed {
        ShimError::NotEnforced { layer, why } => (layer.name().to_owned(), why),
        other => (other.code().to_owned(), other.to_string()),
    };
    let event = InitEvent::Failed(Failed { code, message });
    let told = wire::send(&control, &FromInit { event: Some(event) }, &[], SendFlags::empty());
    exit(i32::from(told.is_err()) + 1)
}

/// Where the view has secrets to watch.
fn watched_of(prepared: &Prepared<'_>) -> Watched {
    let named: Vec<_> = prepared.handed.sandbox.hide.iter().map(|path| path_from(path)).collect();
    prepared
        .view
        .as_ref()
        .map(|(plan, _)| reads::watched(plan, &named, &prepared.worktree))
        .unwrap_or_default()
}

enum Never {}

fn fence_and_run(mut prepared: Prepared<'_>, control: &OwnedFd) -> Result<Never, ShimError> {
    let sandbox = &prepared.handed.sandbox;
    let stdio = &prepared.handed.descriptors.stdio;
    let watched = watched_of(&prepared);
    if let Some((plan, trees)) = prepared.view.take() {
        view::build(&plan, trees, sandbox.allow_setuid)
            .map_err(|error| ShimError::from((Layer::View, &error as &dyn std::error::Error)))?;
    }
    // Before the filter, which has no agent make such marks.
    let reads = reads::mark(&watched, &reads::secrets_of(&sandbox.secrets));
    rustix::process::setsid().map_err(|error| step("making a session", error))?;
    let terminal = if prepared.terminals.contains(&true) { Some(own_terminal(&prepared)?) } else { None };

    let streams = [0, 1, 2].map(|position| match &terminal {
        Some((_, slave)) if prepared.terminals[position] => slave.as_fd(),
        _ => stdio[position].as_fd(),
    });
    let mut started = Started { warnings: std::mem::take(&mut prepared.warnings), landlock_abi: 0 };
    let reads = reads
        .map_err(|error| started.warnings.push(format!("which secrets are opened is not seen: {error}")))
        .ok();
    if !sandbox.allow_setuid {
        privilege::limit_capabilities()?;
        privilege::no_new_privileges()?;
    }
    if prepared.landlock {
        let fence = landlock::Fence {
            read_write: std::mem::take(&mut prepared.writable),
            files: writable_files(stdio),
        };
        started.landlock_abi = landlock::apply(&fence)?;
    }
    // Before the ids change: without no_new_privs loading a filter is a privilege.
    let listener = if prepared.seccomp { seccomp::load(&seccomp::compile(!sandbox.no_trap)?)? } else { None };
    privilege::become_identity(&prepared.identity)?;
    privilege::hide_memory()?;
    privilege::die_with_parent()?;
    if enter(&prepared.directory).is_err() {
        enter(&prepared.worktree).map_err(|error| step("entering the worktree", error))?;
    }

    let ready = Ready {
        started: Some(started),
        listener: listener.is_some(),
        terminal: terminal.is_some(),
        reads: reads.is_some(),
    };
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| step("opening the view", error))?;
    let descriptors: Vec<BorrowedFd<'_>> = [root.as_fd()]
        .into_iter()
        .chain(listener.iter().map(AsFd::as_fd))
        .chain(terminal.iter().map(|(master, _)| master.as_fd()))
        .chain(reads.iter().map(AsFd::as_fd))
        .collect();
    wire::send(control, &FromInit { event: Some(InitEvent::Ready(ready)) }, &descriptors, SendFlags::empty())
        .map_err(ShimError::step("reporting to the shim"))?;

    for (stream, number) in streams.into_iter().zip(0..) {
        // SAFETY: dup2 onto a standard descriptor; nothing here owns those.
        if unsafe { libc::dup2(stream.as_raw_fd(), number) } < 0 {
            return Err(step(
                "placing the standard descriptors",
                rustix::io::Errno::from_io_error(&io::Error::last_os_error())
                    .unwrap_or(rustix::io::Errno::IO),
            ));
        }
    }
    // Everything else is closed, above all what led to the host: 3 is the control connection from here on.
    // SAFETY: nothing that owned these descriptors is used after this: `run` takes plain data.
    let control = unsafe {
        if libc::dup3(control.as_raw_fd(), 3, libc::O_CLOEXEC) < 0 && control.as_raw_fd() != 3 {
            return Err(ShimError::Step {
                step: "placing the connection",
                source: io::Error::last_os_error(),
            });
        }
        libc::close_range(4, libc::c_uint::MAX, 0);
        BorrowedFd::borrow_raw(3)
    };
    let foreground = terminal.is_some();
    // Their descriptors are closed already.
    std::mem::forget((root, terminal, listener, reads));
    let command = Command {
        argv: &prepared.argv,
        environment: &prepared.environment,
        manner: &prepared.manner,
        foreground,
    };
    run(&command, control)
}

/// The agent's own terminal: it looks like the caller's, and leads to nobody else's session.
fn own_terminal(prepared: &Prepared<'_>) -> Result<(OwnedFd, OwnedFd), ShimError> {
    let failed = |error| step("making the agent's terminal", error);
    let master =
        rustix::fs::open("/dev/ptmx", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
    rustix::pty::unlockpt(&master).map_err(failed)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )
    .map_err(failed)?;
    terminal::imitate(&slave, &prepared.terminal)
        .map_err(ShimError::step("setting up the agent's terminal"))?;
    rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(prepared.identity.uid)), None)
        .map_err(failed)?;
    rustix::process::ioctl_tiocsctty(&slave).map_err(failed)?;
    Ok((master, slave))
}

fn enter(directory: &Path) -> rustix::io::Result<()> {
    rustix::process::chdir(directory)
}

/// What the init starts.
struct Command<'a> {
    argv: &'a [CString],
    environment: &'a [CString],
    manner: &'a Manner,
    /// The standard descriptors lead to the agent's terminal, and the command gets it first.
    foreground: bool,
}

/// Starts the command and stays until it has ended. The descriptors are 0–2 and `control`.
fn run(what: &Command<'_>, control: BorrowedFd<'_>) -> Result<Never, ShimError> {
    let all = signals(libc::SIG_BLOCK)?;
    // SAFETY: `all` is an initialised set.
    let children = unsafe { libc::signalfd(-1, &raw const all, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if children < 0 {
        return Err(ShimError::Step { step: "watching for children", source: io::Error::last_os_error() });
    }
    // SAFETY: the kernel just made it.
    let children = unsafe { OwnedFd::from_raw_fd(children) };
    // SAFETY: this process has one thread.
    let command = unsafe { libc::fork() };
    match command {
        -1 => {
            return Err(ShimError::Step { step: "starting the command", source: io::Error::last_os_error() });
        }
        0 => become_command(what),
        _ => {}
    }
    // In both processes, so that neither can be too late; the child may have executed already.
    // SAFETY: no memory is involved.
    unsafe { libc::setpgid(command, command) };
    // The init must not keep a pipe open that the command has closed.
    if !what.foreground
        && let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    {
        for number in 0..3 {
            // SAFETY: as above.
            unsafe { libc::dup2(null.as_raw_fd(), number) };
        }
    }
    loop {
        let mut ready =
            [PollFd::new(&children, PollFlags::IN), PollFd::from_borrowed_fd(control, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(step("waiting", error)),
        }
        if !ready[1].revents().is_empty() {
            match wire::receive::<ToCommand>(control) {
                Ok(Some(packet)) => {
                    let signal = i32::try_from(packet.message.signal).unwrap_or(0);
                    // SAFETY: no memory is involved; the group may be gone, which is no fault.
                    unsafe { libc::kill(-command, signal) };
                }
                // Without its shim nobody answers trapped calls: the agent ends.
                Ok(None) | Err(_) => exit(1),
            }
        }
        drain(&children);
        reap(command, control);
    }
}

/// Reaps everything that has ended; ends itself, and with it all the rest, when that was the command.
fn reap(command: libc::pid_t, control: BorrowedFd<'_>) {
    loop {
        let mut status = 0;
        // SAFETY: `status` lives through the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        if pid <= 0 {
            return;
        }
        if pid != command {
            continue;
        }
        let event = if libc::WIFSTOPPED(status) {
            InitEvent::Stopped(libc::WSTOPSIG(status).unsigned_abs())
        } else {
            InitEvent::Exited(Exited { status: status.cast_unsigned(), left: others() })
        };
        let ended = matches!(event, InitEvent::Exited(_));
        let told = wire::send(control, &FromInit { event: Some(event) }, &[], SendFlags::empty());
        if ended || told.is_err() {
            exit(0);
        }
    }
}

/// Processes of the agent besides this one.
fn others() -> u32 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let processes = entries
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .count();
    u32::try_from(processes.saturating_sub(1)).unwrap_or(u32::MAX)
}

fn become_command(what: &Command<'_>) -> ! {
    let Command { argv, environment, manner, foreground } = *what;
    // SAFETY: this process has one thread and is about to execute; every call takes plain numbers.
    unsafe {
        libc::setpgid(0, 0);
        if foreground {
            // From the background this would stop the process, but the signals are blocked still.
            (0..3).any(|stream| libc::tcsetpgrp(stream, libc::getpgrp()) == 0);
        }
    }
    manner.take_on();
    if signals(libc::SIG_UNBLOCK).is_err() {
        exit(126);
    }
    let error = execute(argv, environment);
    let name = argv.first().map_or_else(|| "".into(), |name| name.to_string_lossy());
    let (text, status) = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => ("command not found".to_owned(), 127),
        _ => (error.to_string(), 126),
    };
    eprintln!("guard: {name}: {text}");
    exit(status)
}

/// Looks the command up as a shell does, in the agent's own PATH, and executes it. Returns why it could not.
fn execute(argv: &[CString], environment: &[CString]) -> io::Error {
    let Some(name) = argv.first() else { return io::Error::from_raw_os_error(libc::ENOENT) };
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, variables) = (pointers(argv), pointers(environment));
    let attempt = |path: &CStr| {
        // SAFETY: all strings end in NUL, both arrays end in a null pointer, and everything lives through the call.
        unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), variables.as_ptr()) };
        io::Error::last_os_error()
    };
    if name.to_bytes().contains(&b'/') {
        return attempt(name);
    }
    let path = environment
        .iter()
        .find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/local/bin:/usr/bin:/bin");
    let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
    for directory in path.split(|byte| *byte == b':') {
        let directory: &[u8] = if directory.is_empty() { b"." } else { directory };
        let Ok(candidate) = CString::new([directory, b"/", name.to_bytes()].concat()) else { continue };
        let error = attempt(&candidate);
        if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) {
            worst = error;
            if worst.raw_os_error() != Some(libc::EACCES) {
                break;
            }
        }
    }
    worst
}

/// Blocks or unblocks every signal; returns the full set.
fn signals(how: libc::c_int) -> Result<libc::sigset_t, ShimError> {
    // SAFETY: sigfillset initialises the set that the other call reads.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        if libc::sigprocmask(how, &raw const all, std::ptr::null_mut()) != 0 {
            return Err(ShimError::Step { step: "blocking signals", source: io::Error::last_os_error() });
        }
        Ok(all)
    }
}

fn drain(descriptor: &OwnedFd) {
    let mut buffer = [0; size_of::<libc::signalfd_siginfo>() * 8];
    while rustix::io::read(descriptor, &mut buffer).is_ok_and(|read| read > 0) {}
}

/// Without Rust's or libc's exit handlers: this memory is a copy of the shim's.
fn exit(status: libc::c_int) -> ! {
    // SAFETY: ends this process.
    unsafe { libc::_exit(status) }
}

fn step(step: &'static str, error: rustix::io::Errno) -> ShimError {
    ShimError::Step { step, source: error.into() }
}
