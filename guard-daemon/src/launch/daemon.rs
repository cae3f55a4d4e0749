//! guardd's side of a launch: takes the ticket, starts the shim, hears its reports.

use std::{
    io::{self, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use guard_proto::v1::{Ask, Observation, Sandbox, Verdict};
use prost::Message as _;
use rustix::{
    fs::{MemfdFlags, Mode, OFlags},
    net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType},
};

use super::{
    Descriptors,
    wire::{self, ClientEvent, DaemonEvent, Failed, Setup, TerminalState, Ticket, ToClient, ToDaemon},
};
use crate::accounts::peer_groups;

/// Why an agent was not launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("a ticket needs 16 bytes and six descriptors; {bytes} bytes and {descriptors} descriptors came")]
    Ticket { bytes: usize, descriptors: usize },
    #[error("the caller left before it sent its ticket")]
    Gone,
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
    #[error("{step} {}: {source}", path.display())]
    Path { step: &'static str, path: PathBuf, source: io::Error },
}

impl LaunchError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Ticket { .. } | Self::Gone => "invalid_ticket",
            Self::Step { .. } | Self::Path { .. } => "launch",
        }
    }

    fn step(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Step { step, source }
    }
}

/// Who asks for a launch, as the kernel says.
#[derive(Clone, Debug)]
pub struct Caller {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Set when one of the standard descriptors is a terminal.
    pub terminal: Option<TerminalState>,
}

/// Everything that a shim needs.
#[derive(Debug)]
pub struct Launch {
    pub sandbox: Sandbox,
    pub caller: Caller,
    pub descriptors: Descriptors,
    /// The connection on which the ticket came.
    pub client: OwnedFd,
    /// Listening socket of [`listen`], for a guardd that comes back.
    pub reconnect: OwnedFd,
    /// Directory of the cgroup that the agent's processes are born in.
    pub cgroup: PathBuf,
}

/// One report of a shim.
#[derive(Debug)]
pub enum Report {
    /// The command runs; the host pid of the agent's first process.
    Started {
        pid: u32,
    },
    Observed(Observation),
    /// An act waits.
    Asked(Ask),
    /// The command ended with this wait status; so many processes were ended with it.
    Ended {
        status: u32,
        left: u32,
    },
}

/// A running shim, as guardd holds it.
#[derive(Debug)]
pub struct Shim {
    control: OwnedFd,
    /// Known only to the guardd that started it.
    process: Option<Child>,
}

impl Shim {
    /// Waits for the next report; `None` when the shim has gone.
    ///
    /// # Errors
    /// The connection failed, or carried what is no report.
    pub fn next_report(&mut self) -> Result<Option<Report>, LaunchError> {
        loop {
            let packet =
                wire::receive::<ToDaemon>(&self.control).map_err(LaunchError::step("hearing the shim"))?;
            let Some(packet) = packet else {
                self.reap();
                return Ok(None);
            };
            match packet.message.event {
                Some(DaemonEvent::Started(pid)) => return Ok(Some(Report::Started { pid })),
                Some(DaemonEvent::Observed(observation)) => {
                    return Ok(Some(Report::Observed(observation)));
                }
                Some(DaemonEvent::Asked(ask)) => return Ok(Some(Report::Asked(ask))),
                Some(DaemonEvent::Ended(ended)) => {
                    return Ok(Some(Report::Ended { status: ended.status, left: ended.left }));
                }
                // A newer shim's message that this guardd does not know.
                None => {}
            }
        }
    }

    /// The way back to the shim.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn answers(&self) -> Result<Answers, LaunchError> {
        Ok(Answers(self.control.try_clone().map_err(LaunchError::step("keeping the line to the shim"))?))
    }

    fn reap(&mut self) {
        if let Some(mut process) = self.process.take()
            && let Err(error) = process.wait()
        {
            tracing::warn!(%error, "a shim cannot be waited for");
        }
    }
}

/// Tells a shim what becomes of the acts that wait.
#[derive(Debug)]
pub struct Answers(OwnedFd);

impl Answers {
    /// Never waits: the shim asks again when it hears nothing.
    ///
    /// # Errors
    /// The shim has gone, or has not taken what was told before.
    pub fn send(&self, verdict: &Verdict) -> io::Result<()> {
        wire::send(&self.0, verdict, &[], SendFlags::DONTWAIT)
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // The shim ends by itself right after its last report; a zombie must not stay.
        self.reap();
    }
}

/// Receives the ticket on a fresh connection of launch.sock.
///
/// # Errors
/// [`LaunchError::Ticket`] when it is malformed, [`LaunchError::Gone`] when the caller hung up.
pub fn receive_ticket(connection: impl AsFd) -> Result<(Vec<u8>, Descriptors, Caller), LaunchError> {
    let packet = wire::receive::<Ticket>(&connection)
        .map_err(LaunchError::step("receiving a ticket"))?
        .ok_or(LaunchError::Gone)?;
    let Ticket { ticket, terminal } = packet.message;
    let count = packet.descriptors.len();
    let malformed = LaunchError::Ticket { bytes: ticket.len(), descriptors: count };
    if ticket.len() != 16 {
        return Err(malformed);
    }
    let [stdin, stdout, stderr, worktree, directory, network] =
        <[OwnedFd; 6]>::try_from(packet.descriptors).map_err(|_| malformed)?;
    let credentials = rustix::net::sockopt::socket_peercred(&connection)
        .map_err(|error| LaunchError::Step { step: "asking who calls", source: error.into() })?;
    let caller = Caller {
        pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
        uid: credentials.uid.as_raw(),
        gid: credentials.gid.as_raw(),
        groups: peer_groups(connection.as_fd())
            .map_err(LaunchError::step("asking for the caller's groups"))?,
        terminal,
    };
    let descriptors = Descriptors { stdio: [stdin, stdout, stderr], worktree, directory, network };
    Ok((ticket, descriptors, caller))
}

/// Tells the caller why nothing starts. A caller that has gone does not hear it, and need not.
pub fn refuse(connection: impl AsFd, code: &str, message: &str) {
    let event = ClientEvent::Failed(Failed { code: code.to_owned(), message: message.to_owned() });
    if let Err(error) = wire::send(connection, &ToClient { event: Some(event) }, &[], SendFlags::DONTWAIT) {
        tracing::debug!(%error, "a refusal was not heard");
    }
}

/// Makes the socket on which a shim waits for a guardd that comes back.
///
/// # Errors
/// The path exists already or is too long.
pub fn listen(path: &Path) -> Result<OwnedFd, LaunchError> {
    let failed =
        |source: io::Error| LaunchError::Path { step: "making the socket", path: path.to_owned(), source };
    let socket = seqpacket().map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    rustix::net::listen(&socket, 1).map_err(|error| failed(error.into()))?;
    Ok(socket)
}

/// Takes back a shim that another guardd started.
///
/// # Errors
/// No shim listens there.
pub fn reconnect(path: &Path) -> Result<Shim, LaunchError> {
    let failed =
        |source: io::Error| LaunchError::Path { step: "reaching the shim at", path: path.to_owned(), source };
    let control = seqpacket().map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::connect(&control, &address).map_err(|error| failed(error.into()))?;
    Ok(Shim { control, process: None })
}

/// Starts the shim of one agent and hands it everything. What goes wrong from here on, the shim tells the caller.
///
/// # Errors
/// The shim could not be started.
pub fn spawn_shim(program: &Path, launch: Launch) -> Result<Shim, LaunchError> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| LaunchError::Step { step: "making a socket pair", source: error.into() })?;
    let cgroup =
        rustix::fs::open(&launch.cgroup, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| LaunchError::Path {
                step: "opening the cgroup",
                path: launch.cgroup.clone(),
                source: error.into(),
            })?;
    let sandbox = sandbox_memfd(&launch.sandbox).map_err(LaunchError::step("writing the sandbox"))?;
    let setup = Setup {
        uid: launch.caller.uid,
        gid: launch.caller.gid,
        groups: launch.caller.groups,
        terminal: launch.caller.terminal,
        pid: launch.caller.pid,
    };
    let Descriptors { stdio, worktree, directory, network } = &launch.descriptors;
    let descriptors: [BorrowedFd<'_>; 10] = [
        sandbox.as_fd(),
        launch.client.as_fd(),
        launch.reconnect.as_fd(),
        cgroup.as_fd(),
        stdio[0].as_fd(),
        stdio[1].as_fd(),
        stdio[2].as_fd(),
        worktree.as_fd(),
        directory.as_fd(),
        network.as_fd(),
    ];
    wire::send(&ours, &setup, &descriptors, SendFlags::empty())
        .map_err(LaunchError::step("handing the launch to the shim"))?;
    // The socket is the shim's standard input: nothing to parse on a command line that everybody can read.
    let process = Command::new(program)
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .map_err(|source| LaunchError::Path { step: "starting", path: program.to_owned(), source })?;
    Ok(Shim { control: ours, process: Some(process) })
}

fn sandbox_memfd(sandbox: &Sandbox) -> io::Result<OwnedFd> {
    let memfd = rustix::fs::memfd_create("guard-sandbox", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memfd);
    file.write_all(&sandbox.encode_to_vec())?;
    Ok(file.into())
}

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
