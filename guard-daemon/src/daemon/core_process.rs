//! Starts guard-core without privilege, hands it its listeners, and starts it again when it dies.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::{net::UnixListener, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command},
};

use crate::accounts::{user_named, user_with};

/// Who guard-core runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreIdentity {
    pub uid: u32,
    pub gid: u32,
}

/// The first uid of the range that systemd sets aside for dynamic users, and its size.
const DYNAMIC: (u32, u32) = (61_184, 4_336);

impl CoreIdentity {
    /// The system user `guard-core` where the package made one; otherwise a uid of systemd's dynamic range
    /// that no user has, chosen by the run directory, so that two installations do not share one.
    pub fn for_run_dir(run_dir: &Path) -> Self {
        use std::hash::{DefaultHasher, Hash, Hasher};

        if let Some(user) = user_named("guard-core") {
            return Self { uid: user.uid, gid: user.gid };
        }
        let mut hasher = DefaultHasher::new();
        run_dir.hash(&mut hasher);
        let start = u32::try_from(hasher.finish() % u64::from(DYNAMIC.1)).unwrap_or(0);
        let uid = (0..DYNAMIC.1)
            .map(|step| DYNAMIC.0 + (start + step) % DYNAMIC.1)
            .find(|&uid| user_with(uid).is_none())
            .unwrap_or(DYNAMIC.0);
        Self { uid, gid: uid }
    }
}

/// Why guard-core cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    #[error("error[core_missing]: cannot open guard-core at {}: {source}; it belongs beside guardd", path.display())]
    Missing { path: PathBuf, source: io::Error },
    #[error("error[core_start]: cannot start guard-core from {} as uid {uid}: {source}", path.display())]
    Start { path: PathBuf, uid: u32, source: io::Error },
}

/// The path of guard-core: beside the running guardd.
///
/// # Errors
/// The path of this program cannot be read.
pub fn beside(name: &str) -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(name))
}

/// Starts guard-core with its listeners as descriptors 3, 4, 5 (the protocol of sd_listen_fds(3), names included).
///
/// It is executed through a descriptor, so that a build below a directory that only root can enter works.
///
/// # Errors
/// [`CoreError`]
pub fn start(
    path: &Path,
    identity: CoreIdentity,
    arguments: &[OsString],
    listeners: &[(&'static str, UnixListener); 3],
) -> Result<Child, CoreError> {
    let missing = |source| CoreError::Missing { path: path.to_owned(), source };
    let program = File::open(path).map_err(missing)?;
    // Far above the listeners' places, which the child fills.
    let program = rustix::io::fcntl_dupfd_cloexec(program, 64).map_err(|error| missing(error.into()))?;
    let executable: RawFd = program.as_raw_fd();
    let descriptors: [RawFd; 3] = std::array::from_fn(|at| listeners[at].1.as_raw_fd());
    let names = listeners.each_ref().map(|(name, _)| *name).join(":");
    let mut command = Command::new(format!("/proc/self/fd/{executable}"));
    command
        .arg0("guard-core")
        .args(arguments)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name == "RUST_LOG" || name == "NO_COLOR"))
        .env("LISTEN_FDS", "3")
        .env("LISTEN_FDNAMES", names)
        .current_dir("/");
    // SAFETY: the closure makes only async-signal-safe system calls and touches no memory shared with the parent.
    unsafe {
        command.pre_exec(move || prepare(descriptors, executable, identity));
    }
    let child = command.spawn().map_err(|source| CoreError::Start {
        path: path.to_owned(),
        uid: identity.uid,
        source,
    })?;
    drop(program);
    Ok(child)
}

/// Runs in the child: puts the listeners at 3, 4, 5 and gives up every privilege.
fn prepare(descriptors: [RawFd; 3], executable: RawFd, identity: CoreIdentity) -> io::Result<()> {
    const FIRST: RawFd = 3;
    // Out of the way first: a listener may sit where another one goes.
    let moved = descriptors.map(|descriptor| {
        // SAFETY: plain system call on an open descriptor.
        unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 64) }
    });
    if moved.contains(&-1) {
        return Err(io::Error::last_os_error());
    }
    for (descriptor, at) in moved.into_iter().zip(FIRST..) {
        check(
            // SAFETY: plain system call; the target slots are ours to replace in this child.
            unsafe { libc::dup2(descriptor, at) },
        )?;
    }
    check(
        // SAFETY: plain system call on an open descriptor.
        unsafe { libc::fcntl(executable, libc::F_SETFD, 0) },
    )?;
    // SAFETY: plain system calls with constant arguments; the group list is empty.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(identity.gid, identity.gid, identity.gid))?;
        check(libc::setresuid(identity.uid, identity.uid, identity.uid))?;
        // From uid 0 the change of uid took every capability; from another uid the ambient ones would outlive the exec.
        check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        // A guardd that is killed takes its core along: the next one starts its own, and only one may write the record.
        // After the change of uid, which would clear it.
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0))?;
    }
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
