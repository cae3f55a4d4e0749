//! `run`: starts a command as a governed agent and ends as it does.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use guard_proto::v1::{self, agents_client::AgentsClient};
use rustix::fs::{Mode, OFlags};

use super::{CliError, connection::talk};
use crate::launch::{Descriptors, client};

/// Start a command as a governed agent.
#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// Name of the agent [default: name of the command]
    #[arg(long)]
    agent: Option<String>,
    /// Workspace that the agent works in
    #[arg(long, default_value = "")]
    workspace: String,
    /// Space within the workspace
    #[arg(long, default_value = "")]
    space: String,
    /// Mode preset of the policy
    #[arg(long, default_value = "")]
    mode: String,
    /// Directory that the agent may change [default: the current directory]
    #[arg(long, value_name = "DIR")]
    worktree: Option<PathBuf>,
    /// Preset of paths and variables that a tool needs; may be repeated
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
    /// Further path that may be changed; may be repeated
    #[arg(long, value_name = "PATH")]
    rw: Vec<PathBuf>,
    /// Path that stays visible and unchangeable although a default hides it; may be repeated
    #[arg(long, value_name = "PATH")]
    ro: Vec<PathBuf>,
    /// Path that is not there for the agent; may be repeated
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// Variable to let through although it looks like a secret or a way in; may be repeated
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
    /// Run as root (without capabilities); weaker
    #[arg(long)]
    as_root: bool,
    /// Let setuid programs work; weaker
    #[arg(long)]
    allow_setuid: bool,
    /// Start even where a layer is missing on this host, and say which
    #[arg(long)]
    degraded: bool,
    /// Do not trap calls that change files: the fence alone decides, and refused tries are not recorded
    #[arg(long)]
    no_trap: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Prepares the launch with guard-core, redeems the ticket with guardd, and relays until the command has ended.
    pub(super) fn run(self, socket: &Path) -> Result<ExitCode, CliError> {
        let directory = std::env::current_dir().map_err(|error| {
            CliError::refused("invalid_directory", format!("the current directory: {error}"))
        })?;
        let worktree = self.worktree.clone().unwrap_or_else(|| directory.clone());
        let (worktree, worktree_fd) = open_worktree(&worktree)?;
        let directory_fd = open_directory(&directory).map_err(|error| {
            CliError::refused("invalid_directory", format!("{}: {error}", directory.display()))
        })?;
        let network = rustix::fs::open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| CliError::refused("launch", format!("the network namespace: {error}")))?;
        let stdio = [
            duplicate(io::stdin().as_fd())?,
            duplicate(io::stdout().as_fd())?,
            duplicate(io::stderr().as_fd())?,
        ];
        let terminals = stdio.each_ref().map(|descriptor| descriptor.is_terminal());
        let request = self.request(&worktree, &directory, terminals)?;
        let prepared = talk(socket, |channel| async move {
            Ok(AgentsClient::new(channel).prepare(request).await?.into_inner())
        })?;
        for warning in &prepared.warnings {
            eprintln!("guardctl: {warning}");
        }
        let launch_socket = socket.with_file_name("launch.sock");
        let descriptors = Descriptors { stdio, worktree: worktree_fd, directory: directory_fd, network };
        client::run(&launch_socket, &prepared.ticket, descriptors, terminals).map_err(|error| CliError {
            code: error.code().to_owned(),
            message: error.to_string(),
            exit: error.exit(),
        })
    }

    fn request(
        &self,
        worktree: &Path,
        directory: &Path,
        terminals: [bool; 3],
    ) -> Result<v1::PrepareRequest, CliError> {
        let paths = |paths: &[PathBuf]| {
            paths.iter().map(|path| absolute(path, directory)).collect::<Result<Vec<_>, _>>()
        };
        let name = Path::new(&self.command[0]).file_name().unwrap_or(&self.command[0]);
        let agent = self.agent.clone().unwrap_or_else(|| name.to_string_lossy().into_owned());
        Ok(v1::PrepareRequest {
            principal: Some(v1::Principal {
                agent,
                session: String::new(),
                workspace: self.workspace.clone(),
                space: self.space.clone(),
                mode: self.mode.clone(),
            }),
            argv: self.command.iter().map(|argument| argument.as_bytes().to_vec()).collect(),
            environment: std::env::vars_os()
                .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
                .collect(),
            keep_environment: self.env.clone(),
            worktree: worktree.as_os_str().as_bytes().to_vec(),
            directory: directory.as_os_str().as_bytes().to_vec(),
            profiles: self.profile.clone(),
            read_write: paths(&self.rw)?,
            read_only: paths(&self.ro)?,
            hide: paths(&self.hide)?,
            as_root: self.as_root,
            allow_setuid: self.allow_setuid,
            degraded: self.degraded,
            terminals: terminals.to_vec(),
            no_trap: self.no_trap,
        })
    }
}

fn absolute(path: &Path, directory: &Path) -> Result<Vec<u8>, CliError> {
    let joined = directory.join(path);
    let whole = std::path::absolute(&joined)
        .map_err(|error| CliError::refused("invalid_path", format!("{}: {error}", path.display())))?;
    Ok(whole.into_os_string().into_vec())
}

/// The worktree as the kernel names it, and a descriptor that proves that the caller can reach it.
fn open_worktree(path: &Path) -> Result<(PathBuf, OwnedFd), CliError> {
    use std::os::unix::fs::MetadataExt;

    let invalid = |why: String| CliError::refused("invalid_worktree", format!("{}: {why}", path.display()));
    let whole = path
        .canonicalize()
        .map_err(|error| invalid(format!("{error}; name an existing directory with --worktree")))?;
    let descriptor = open_directory(&whole).map_err(|error| invalid(error.to_string()))?;
    let owner = std::fs::metadata(&whole).map_err(|error| invalid(error.to_string()))?.uid();
    let me = rustix::process::geteuid().as_raw();
    if me != 0 && owner != me {
        return Err(invalid(format!(
            "it belongs to uid {owner}, not to you (uid {me}); choose a directory of your own"
        )));
    }
    if whole == Path::new("/") {
        return Err(invalid("the whole file system cannot be a worktree".to_owned()));
    }
    Ok((whole, descriptor))
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A copy of a standard descriptor; one that is closed becomes /dev/null, as a shell would have it.
fn duplicate(descriptor: std::os::fd::BorrowedFd<'_>) -> Result<OwnedFd, CliError> {
    rustix::io::fcntl_dupfd_cloexec(descriptor, 3)
        .or_else(|_| rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))
        .map_err(|error| CliError::refused("launch", format!("a standard descriptor: {error}")))
}
