//! The mount namespace of one agent: everything read-only, the worktree writable, what it must not see covered.
//!
//! A view is made in three steps, in three states of the process:
//! 1. [`Trees::open`], still in the host's namespace: the trees that come back over covers are cloned *by descriptor*, each opened
//!    with the caller's rights, so that no path is believed later and nobody borrows root's eyes.
//! 2. [`Plan::new`], pure: which path is covered by what, shallow before deep; the deeper line wins.
//! 3. [`build`], in the agent's own mount and PID namespace, as root.
//!
//! Mounts are covered and never taken apart: without `umount` and without a descriptor from before, nothing leads below a cover.

mod hidden;
mod mounts;
mod plan;

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStringExt as _, fs::symlink},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    mount::MountPropagationFlags,
};

pub use hidden::{Hidden, hidden_of, is_place_of_secrets};
pub use plan::{Cover, Plan, Step, Wish};

use self::mounts::Stock;
use super::identity::{Identity, with_file_rights};

/// Where an agent finds guard.
pub const AGENT_SOCKET: &str = "/run/guard/agent.sock";

/// Where every agent has devices of its own; until they are made, the place serves to park what covers are copied from.
const DEVICES: &str = "/dev";

/// Why the view does not stand.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    #[error("{step} {}: {source}", path.display())]
    Path { step: &'static str, path: PathBuf, source: io::Error },
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
    #[error("{} lies below {}, which is hidden; drop one of the two", path.display(), hidden.display())]
    Hidden { path: PathBuf, hidden: PathBuf },
    #[error("the whole file system cannot be opened; name what the agent needs")]
    Root,
}

impl ViewError {
    pub(super) fn path(step: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.to_owned();
        move |source| Self::Path { step, path, source: source.into() }
    }
}

/// A part of the host's tree that is in the view again.
#[derive(Debug)]
pub struct Tree {
    /// Where it lies, symlinks resolved.
    pub path: PathBuf,
    pub writable: bool,
    mount: OwnedFd,
}

/// Everything that was cloned before the namespace changed.
#[derive(Debug, Default)]
pub struct Trees {
    trees: Vec<Tree>,
}

impl Trees {
    /// Adds a tree by an `O_PATH` descriptor. `at` puts it elsewhere than it lies on the host. Returns where it lies.
    ///
    /// # Errors
    /// The descriptor belongs to another mount namespace, or to the root directory.
    pub fn add(
        &mut self,
        descriptor: BorrowedFd<'_>,
        at: Option<&Path>,
        writable: bool,
    ) -> Result<PathBuf, ViewError> {
        let lies = path_of(descriptor)?;
        if lies == Path::new("/") {
            return Err(ViewError::Root);
        }
        let path = at.map_or_else(|| lies.clone(), Path::to_owned);
        let mount = mounts::clone_tree(descriptor)
            .map_err(ViewError::path("cloning the mounts of (is it in another mount namespace?)", &lies))?;
        self.trees.retain(|tree| tree.path != path);
        self.trees.push(Tree { path, writable, mount });
        Ok(lies)
    }

    /// Adds a tree by path, opened with the rights of `identity`; a path that does not exist is skipped.
    ///
    /// # Errors
    /// It cannot be opened with these rights.
    pub fn open(
        &mut self,
        path: &Path,
        identity: &Identity,
        at: Option<&Path>,
        writable: bool,
    ) -> Result<Option<PathBuf>, ViewError> {
        let opened = with_file_rights(identity, || {
            rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        })
        .map_err(|source| ViewError::Step { step: "taking the caller's file rights", source })?;
        match opened {
            Ok(descriptor) => self.add(descriptor.as_fd(), at, writable).map(Some),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
            Err(error) => Err(ViewError::path("opening", path)(error)),
        }
    }

    /// Paths that will be writable, besides the private directories.
    #[must_use]
    pub fn writable(&self) -> Vec<PathBuf> {
        self.trees.iter().filter(|tree| tree.writable).map(|tree| tree.path.clone()).collect()
    }

    fn wishes(&self) -> Vec<Wish> {
        self.trees
            .iter()
            .map(|tree| Wish { path: tree.path.clone(), directory: is_directory(&tree.mount) })
            .collect()
    }

    fn tree(&self, path: &Path) -> Option<&Tree> {
        self.trees.iter().find(|tree| tree.path == path)
    }
}

/// Plans the view for these trees.
///
/// # Errors
/// [`ViewError::Hidden`]
pub fn plan(trees: &Trees, hidden: &Hidden, worktree: &Path) -> Result<Plan, ViewError> {
    Plan::new(&trees.wishes(), hidden, worktree)
}

/// Makes the view in the calling process, which is root and the first process of fresh mount and PID namespaces.
///
/// # Errors
/// [`ViewError`]; the namespace is half made then and must not be used.
pub fn build(plan: &Plan, trees: Trees, allow_setuid: bool) -> Result<(), ViewError> {
    let root = Path::new("/");
    rustix::mount::mount_change(root, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(ViewError::path("making mounts private:", root))?;
    let mut limits = mounts::NODEV | mounts::RDONLY;
    if !allow_setuid {
        limits |= mounts::NOSUID;
    }
    mounts::set_recursively(root, limits).map_err(ViewError::path("making mounts read-only:", root))?;

    let old_mask = rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let stock = Stock::park(Path::new(DEVICES)).map_err(step("making an empty file system"))?;
    let mut finish = Vec::new();
    for Step { path, cover } in plan.steps() {
        let failed = |error| ViewError::path("covering", path)(error);
        match cover {
            // A small system has no /var/tmp; nothing is made for the agent that the host has not.
            Cover::Private | Cover::Nothing { .. } if !path.is_dir() => {}
            Cover::Nothing { holds_others: false } => stock.cover(path, true).map_err(failed)?,
            Cover::NoFile => stock.cover(path, false).map_err(failed)?,
            Cover::Nothing { holds_others: true } => {
                let fresh = mounts::tmpfs("mode=0755").map_err(failed)?;
                mounts::attach(&fresh, path).map_err(failed)?;
                finish.push(path.clone());
            }
            Cover::Private => {
                let fresh = mounts::tmpfs("mode=1777").map_err(failed)?;
                mounts::attach(&fresh, path).map_err(failed)?;
            }
            Cover::Devices => {
                devices(path)?;
                finish.push(path.clone());
            }
            Cover::Processes => processes(path, &stock)?,
            Cover::Tree => {
                let tree = trees.tree(path).ok_or_else(|| failed(rustix::io::Errno::NOENT))?;
                attach_tree(tree, allow_setuid)?;
            }
        }
    }
    // Only now: what lies deeper needed its mount point made.
    for path in finish {
        mounts::set(&path, mounts::RDONLY).map_err(ViewError::path("making read-only", &path))?;
    }
    rustix::process::umask(old_mask);
    Ok(())
}

fn attach_tree(tree: &Tree, allow_setuid: bool) -> Result<(), ViewError> {
    let mut limits = 0;
    if !mounts::is_device(tree.mount.as_fd()).map_err(ViewError::path("looking at", &tree.path))? {
        limits |= mounts::NODEV;
    }
    if !allow_setuid {
        limits |= mounts::NOSUID;
    }
    if !tree.writable {
        limits |= mounts::RDONLY;
    }
    mounts::set_tree(&tree.mount, limits).map_err(ViewError::path("limiting", &tree.path))?;
    mounts::make_point(&tree.path, is_directory(&tree.mount)).map_err(|source| ViewError::Path {
        step: "making the mount point",
        path: tree.path.clone(),
        source,
    })?;
    mounts::attach_exactly(&tree.mount, &tree.path).map_err(ViewError::path("attaching", &tree.path))
}

/// Nodes that programs cannot live without, and a pseudo-terminal file system of the agent's own.
fn devices(path: &Path) -> Result<(), ViewError> {
    const NODES: &[(&str, u32, u32)] =
        &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
    const LINKS: &[(&str, &str)] = &[
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    let fresh = mounts::device_tmpfs().map_err(ViewError::path("covering", path))?;
    mounts::attach(&fresh, path).map_err(ViewError::path("covering", path))?;
    for (name, major, minor) in NODES {
        let node = path.join(name);
        mounts::make_device(&node, *major, *minor).map_err(ViewError::path("making", &node))?;
    }
    for (name, target) in LINKS {
        let link = path.join(name);
        symlink(target, &link).map_err(|source| ViewError::Path { step: "making", path: link, source })?;
    }
    for (name, mount) in [
        ("pts", mounts::terminals as fn() -> rustix::io::Result<OwnedFd>),
        ("shm", || mounts::tmpfs("mode=1777")),
    ] {
        let point = path.join(name);
        std::fs::create_dir(&point).map_err(|source| ViewError::Path {
            step: "making",
            path: point.clone(),
            source,
        })?;
        let mount = mount().map_err(ViewError::path("mounting", &point))?;
        mounts::attach(&mount, &point).map_err(ViewError::path("mounting", &point))?;
    }
    Ok(())
}

/// The agent's own processes; what of `/proc` belongs to the whole host is read-only or not there.
fn processes(path: &Path, stock: &Stock) -> Result<(), ViewError> {
    const READ_ONLY: &[&str] = &["sys", "sysrq-trigger", "irq", "bus", "fs"];
    const NOT_THERE: &[&str] = &[
        "kcore",
        "keys",
        "key-users",
        "timer_list",
        "sched_debug",
        "kmsg",
        "kallsyms",
        "kpagecount",
        "kpageflags",
    ];
    let fresh = mounts::processes().map_err(ViewError::path("covering", path))?;
    mounts::attach(&fresh, path).map_err(ViewError::path("covering", path))?;
    for name in READ_ONLY {
        let part = path.join(name);
        match mounts::clone_path(&part) {
            Ok(copy) => {
                mounts::set_tree(&copy, mounts::RDONLY | mounts::NOSUID | mounts::NODEV)
                    .map_err(ViewError::path("limiting", &part))?;
                mounts::attach(&copy, &part).map_err(ViewError::path("limiting", &part))?;
            }
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(ViewError::path("limiting", &part)(error)),
        }
    }
    for part in NOT_THERE.iter().map(|name| path.join(name)).filter(|part| part.exists()) {
        stock.cover(&part, false).map_err(ViewError::path("covering", &part))?;
    }
    Ok(())
}

/// What an open descriptor is called now.
///
/// # Errors
/// `/proc` is not there.
pub fn path_of(descriptor: BorrowedFd<'_>) -> Result<PathBuf, ViewError> {
    use std::os::fd::AsRawFd as _;

    let link = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let target = rustix::fs::readlink(&link, Vec::new()).map_err(ViewError::path("reading", &link))?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
}

fn is_directory(descriptor: &OwnedFd) -> bool {
    rustix::fs::fstat(descriptor).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
}

fn step(step: &'static str) -> impl FnOnce(rustix::io::Errno) -> ViewError {
    move |source| ViewError::Step { step, source: source.into() }
}
