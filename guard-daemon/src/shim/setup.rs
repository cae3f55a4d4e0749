//! What guardd handed over, checked, and what the view needs, opened: still in the host's namespaces and as root.

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, Read as _, Seek as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use guard_proto::v1::Sandbox;
use prost::Message as _;
use rustix::{
    fs::{FileType, OFlags},
    net::AddressFamily,
};

use super::{Layer, ShimError, caller::Manner, claims};
use crate::{
    accounts::user_with,
    launch::{
        Descriptors,
        wire::{self, Setup, TerminalState},
    },
    sandbox::{
        identity::{self, Identity, with_file_rights},
        view::{self, AGENT_SOCKET, Plan, Trees, hidden_of},
    },
};

/// Everything from guardd.
pub(super) struct Handed {
    pub(super) setup: Setup,
    pub(super) sandbox: Sandbox,
    pub(super) client: OwnedFd,
    pub(super) reconnect: OwnedFd,
    pub(super) cgroup: OwnedFd,
    pub(super) descriptors: Descriptors,
}

/// Everything that the agent's init needs.
pub(super) struct Prepared<'a> {
    pub(super) handed: &'a Handed,
    pub(super) identity: Identity,
    pub(super) view: Option<(Plan, Trees)>,
    pub(super) landlock: bool,
    pub(super) seccomp: bool,
    /// Writable places, as the agent sees them.
    pub(super) writable: Vec<PathBuf>,
    pub(super) worktree: PathBuf,
    pub(super) directory: PathBuf,
    pub(super) argv: Vec<CString>,
    pub(super) environment: Vec<CString>,
    /// Which standard descriptors become the agent's own terminal.
    pub(super) terminals: [bool; 3],
    pub(super) terminal: TerminalState,
    pub(super) manner: Manner,
    /// What this launch goes without.
    pub(super) warnings: Vec<String>,
}

/// Reads the one message of guardd.
pub(super) fn receive(control: &OwnedFd) -> Result<Handed, ShimError> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "descriptors are missing");
    let packet = wire::receive::<Setup>(control)
        .and_then(|packet| packet.ok_or_else(malformed))
        .map_err(ShimError::step("receiving the launch"))?;
    let [sandbox, client, reconnect, cgroup, stdin, stdout, stderr, worktree, directory, network] =
        <[OwnedFd; 10]>::try_from(packet.descriptors)
            .map_err(|_| ShimError::Step { step: "receiving the launch", source: malformed() })?;
    let mut bytes = Vec::new();
    let mut file = File::from(sandbox);
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(ShimError::step("reading the sandbox"))?;
    let sandbox = Sandbox::decode(bytes.as_slice())
        .map_err(|error| ShimError::Step { step: "reading the sandbox", source: io::Error::other(error) })?;
    Ok(Handed {
        setup: packet.message,
        sandbox,
        client,
        reconnect,
        cgroup,
        descriptors: Descriptors { stdio: [stdin, stdout, stderr], worktree, directory, network },
    })
}

/// Opens and plans everything for one try; `without` names layers that this host refused before.
pub(super) fn prepare<'a>(
    handed: &'a Handed,
    without: &[(Layer, String)],
) -> Result<Prepared<'a>, ShimError> {
    let Handed { setup, sandbox, descriptors, .. } = handed;
    let terminals = streams(&descriptors.stdio)?;
    let caller = Identity { uid: setup.uid, gid: setup.gid, groups: setup.groups.clone() };
    let owner = rustix::fs::fstat(&descriptors.worktree)
        .map_err(|error| ShimError::Step { step: "looking at the worktree", source: error.into() })?;
    claims::worktree(caller.uid, owner.st_uid)?;
    claims::network(&handed.client, caller.uid, setup.pid, descriptors.network.as_fd())?;
    let agent = identity::choose(
        caller.clone(),
        sandbox.as_root,
        (owner.st_uid, owner.st_gid),
        variable(&sandbox.environment, "SUDO_UID").and_then(|uid| uid.to_str()?.parse().ok()),
        identity::identity_of,
    )?;
    let home = home_of(&agent, &caller, sandbox);
    let stands = |layer| without.iter().all(|(missing, _)| *missing != layer);

    let mut trees = Trees::default();
    let worktree;
    let view = if stands(Layer::View) {
        worktree = open_trees(&mut trees, handed, &caller, &agent, home.as_deref())?;
        let forced: Vec<PathBuf> = sandbox.hide.iter().map(|path| path_from(path)).collect();
        let hidden =
            hidden_of(home.as_deref().unwrap_or(Path::new("/nonexistent")), &identity::homes(), &forced);
        let plan = view::plan(&trees, &hidden, &worktree).map_err(ShimError::View)?;
        Some((plan, ()))
    } else {
        worktree = view::path_of(descriptors.worktree.as_fd()).map_err(ShimError::View)?;
        None
    };
    let writable = if view.is_some() {
        trees.writable()
    } else {
        sandbox.read_write.iter().map(|path| path_from(path)).chain([worktree.clone()]).collect()
    };
    let directory = view::path_of(descriptors.directory.as_fd()).map_err(ShimError::View)?;
    Ok(Prepared {
        handed,
        environment: environment(sandbox, &agent, &caller, home.as_deref())?,
        argv: strings(&sandbox.argv)?,
        identity: agent,
        view: view.map(|(plan, ())| (plan, trees)),
        landlock: stands(Layer::Landlock),
        seccomp: stands(Layer::Seccomp),
        writable,
        worktree,
        directory,
        terminals,
        terminal: setup.terminal.clone().unwrap_or_default(),
        manner: Manner::of(setup.pid),
        warnings: without
            .iter()
            .map(|(layer, why)| {
                format!("degraded: the {} layer does not stand on this host: {why}", layer.name())
            })
            .collect(),
    })
}

/// Clones the trees that the agent gets back; returns where the worktree lies.
fn open_trees(
    trees: &mut Trees,
    handed: &Handed,
    caller: &Identity,
    agent: &Identity,
    home: Option<&Path>,
) -> Result<PathBuf, ShimError> {
    let Handed { sandbox, descriptors, .. } = handed;
    if let Some(home) = home.filter(|home| *home != Path::new("/")) {
        trees.open(home, agent, None, false).map_err(ShimError::View)?;
    }
    for (paths, writable) in [(&sandbox.read_only, false), (&sandbox.read_write, true)] {
        for path in paths {
            trees.open(&path_from(path), caller, None, writable).map_err(ShimError::View)?;
        }
    }
    let root = Identity { uid: 0, gid: 0, groups: Vec::new() };
    if !sandbox.agent_socket.is_empty() {
        trees
            .open(&path_from(&sandbox.agent_socket), &root, Some(Path::new(AGENT_SOCKET)), false)
            .map_err(ShimError::View)?;
    }
    // Name resolution must go on where resolv.conf is a link into /run.
    if let Ok(resolver) = std::fs::canonicalize("/etc/resolv.conf")
        && resolver.starts_with("/run")
    {
        trees.open(&resolver, &root, None, false).map_err(ShimError::View)?;
    }
    trees.add(descriptors.worktree.as_fd(), None, true).map_err(ShimError::View)
}

/// Which of the standard descriptors are terminals; what else may come in is a closed list.
fn streams(stdio: &[OwnedFd; 3]) -> Result<[bool; 3], ShimError> {
    let mut terminals = [false; 3];
    for (position, (stream, name)) in stdio.iter().zip(["input", "output", "error"]).enumerate() {
        let failed = |error: rustix::io::Errno| ShimError::Step {
            step: "looking at the standard descriptors",
            source: error.into(),
        };
        let refuse = |what: &str| Err(ShimError::Stream { name, what: what.to_owned() });
        if rustix::fs::fcntl_getfl(stream).map_err(failed)?.contains(OFlags::PATH) {
            return refuse("a mere path");
        }
        match FileType::from_raw_mode(rustix::fs::fstat(stream).map_err(failed)?.st_mode) {
            FileType::RegularFile | FileType::Fifo => {}
            FileType::CharacterDevice => terminals[position] = rustix::termios::isatty(stream),
            FileType::Socket => match rustix::net::sockopt::socket_domain(stream).map_err(failed)? {
                AddressFamily::UNIX => {}
                family => return refuse(&format!("a socket of family {}", family.as_raw())),
            },
            FileType::Directory => return refuse("a directory"),
            FileType::BlockDevice => return refuse("a block device"),
            _ => return refuse("of a kind that could reach out of the fence"),
        }
    }
    Ok(terminals)
}

fn home_of(agent: &Identity, caller: &Identity, sandbox: &Sandbox) -> Option<PathBuf> {
    let home = if agent.uid == caller.uid {
        (!sandbox.home.is_empty()).then(|| path_from(&sandbox.home))
    } else {
        user_with(agent.uid).map(|user| user.home)
    };
    let home = home?;
    // Through links, with the agent's own eyes.
    with_file_rights(agent, || std::fs::canonicalize(&home)).ok()?.ok()
}

/// The scrubbed environment, with what follows from the agent's identity and view.
fn environment(
    sandbox: &Sandbox,
    agent: &Identity,
    caller: &Identity,
    home: Option<&Path>,
) -> Result<Vec<CString>, ShimError> {
    let mut entries: Vec<Vec<u8>> = sandbox
        .environment
        .iter()
        // The agent has a temp of its own, at the usual place.
        .filter(|entry| !["TMPDIR", "TMP", "TEMP"].iter().any(|name| is_variable(entry, name)))
        .cloned()
        .collect();
    if agent.uid != caller.uid {
        entries.retain(|entry| {
            !["HOME", "USER", "LOGNAME", "MAIL"].iter().any(|name| is_variable(entry, name))
                && !entry.starts_with(b"SUDO_")
                && !entry.starts_with(b"XDG_")
        });
        let home = home.unwrap_or(Path::new("/tmp")).as_os_str().as_bytes();
        entries.push([b"HOME=", home].concat());
        if let Some(user) = user_with(agent.uid) {
            entries.push([b"USER=", user.name.as_bytes()].concat());
            entries.push([b"LOGNAME=", user.name.as_bytes()].concat());
        }
    }
    strings(&entries)
}

fn variable<'a>(environment: &'a [Vec<u8>], name: &str) -> Option<&'a OsStr> {
    let entry = environment.iter().find(|entry| is_variable(entry, name))?;
    Some(OsStr::from_bytes(&entry[name.len() + 1..]))
}

fn is_variable(entry: &[u8], name: &str) -> bool {
    entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

fn strings(all: &[Vec<u8>]) -> Result<Vec<CString>, ShimError> {
    all.iter()
        .map(|bytes| CString::new(bytes.as_slice()))
        .collect::<Result<_, _>>()
        .map_err(|error| ShimError::Step { step: "reading arguments and environment", source: error.into() })
}

pub(super) fn path_from(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()))
}

/// Standard descriptors that are writable files: Landlock must let them be opened again through `/dev/stdout`.
pub(super) fn writable_files(stdio: &[OwnedFd; 3]) -> Vec<BorrowedFd<'_>> {
    stdio
        .iter()
        .map(AsFd::as_fd)
        .filter(|stream| {
            let file = rustix::fs::fstat(stream)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
            let access = rustix::fs::fcntl_getfl(stream).map(|flags| flags & OFlags::RWMODE);
            file && access.is_ok_and(|access| access != OFlags::RDONLY)
        })
        .collect()
}
