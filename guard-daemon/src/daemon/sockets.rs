//! The sockets of a run directory. guardd binds them all and hands three listeners to guard-core, so they
//! outlive a core that dies: callers wait instead of being refused.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
};

use crate::{accounts::group_id, settings::Settings};

/// Why the sockets cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("error[directory]: cannot prepare {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("error[insecure_directory]: {} {why}; give it to root and take write permission from others", path.display())]
    Insecure { path: PathBuf, why: String },
    #[error("error[socket]: cannot bind {}: {source}", path.display())]
    Bind { path: PathBuf, source: io::Error },
    #[error("error[already_running]: another guardd serves {}; stop it or choose another --run-dir", path.display())]
    Busy { path: PathBuf },
}

/// The listeners, and the lock that says who owns the run directory.
pub struct Sockets {
    /// For guard-core, by name: `guard`, `agent`, `core`.
    pub core: [(&'static str, UnixListener); 3],
    /// Where launch tickets come in; SOCK_SEQPACKET.
    pub launch: OwnedFd,
    _lock: fs::File,
    /// What is weaker than the packaged set-up.
    pub warnings: Vec<String>,
}

/// Makes the three directories (state and audit belong to the core) and binds all sockets.
///
/// # Errors
/// [`SocketError`]; nothing that another guardd serves is touched.
pub fn bind(settings: &Settings, core_uid: u32, core_gid: u32) -> Result<Sockets, SocketError> {
    directory(&settings.run_dir, 0o755, None)?;
    let lock = lock(&settings.run_dir)?;
    directory(&settings.state_dir, 0o700, Some((core_uid, core_gid)))?;
    directory(&settings.audit_dir, 0o750, Some((core_uid, core_gid)))?;
    let mut warnings = Vec::new();
    let people = group_id("guard");
    if people.is_none() {
        warnings.push(
            "group `guard` is missing: only root can use the sockets; run `groupadd --system guard`"
                .to_owned(),
        );
    }
    let listener = |path: PathBuf, mode: u32, group: Option<u32>| {
        let bind = |source| SocketError::Bind { path: path.clone(), source };
        remove_stale(&path).map_err(bind)?;
        let listener = UnixListener::bind(&path).map_err(bind)?;
        own(&path, mode, group).map_err(bind)?;
        Ok(listener)
    };
    let people_mode = if people.is_some() { 0o660 } else { 0o600 };
    Ok(Sockets {
        core: [
            ("guard", listener(settings.guard_socket(), people_mode, people)?),
            ("agent", listener(settings.agent_socket(), 0o666, None)?),
            ("core", listener(settings.core_socket(), 0o600, None)?),
        ],
        launch: launch(&settings.launch_socket(), people_mode, people)?,
        _lock: lock,
        warnings,
    })
}

fn directory(path: &Path, mode: u32, owner: Option<(u32, u32)>) -> Result<(), SocketError> {
    let failed = |source| SocketError::Directory { path: path.to_owned(), source };
    let made = match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path).map_err(failed)?;
            true
        }
        Err(error) => return Err(failed(error)),
    };
    if made {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    let metadata = fs::metadata(path).map_err(failed)?;
    let me = rustix::process::geteuid().as_raw();
    let allowed = [0, me, owner.map_or(me, |(uid, _)| uid)];
    if !allowed.contains(&metadata.uid()) {
        let why = format!("belongs to uid {}", metadata.uid());
        return Err(SocketError::Insecure { path: path.to_owned(), why });
    }
    if metadata.mode() & 0o022 != 0 {
        let why = format!("can be written by others (mode {:04o})", metadata.mode() & 0o7777);
        return Err(SocketError::Insecure { path: path.to_owned(), why });
    }
    if let Some((uid, gid)) = owner
        && (metadata.uid(), metadata.gid()) != (uid, gid)
    {
        hand_over(path, uid, gid).map_err(failed)?;
    }
    Ok(())
}

/// Gives a directory and the files in it to the core; its uid may differ from that of the last run.
fn hand_over(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            chown(entry.path(), Some(uid), Some(gid))?;
        }
    }
    chown(path, Some(uid), Some(gid))
}

/// One guardd a run directory: the lock goes with the process, so a stale one cannot be left behind.
fn lock(run_dir: &Path) -> Result<fs::File, SocketError> {
    let path = run_dir.join("guardd.lock");
    let open = |source| SocketError::Directory { path: path.clone(), source };
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(open)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(SocketError::Busy { path: run_dir.to_owned() }),
        Err(fs::TryLockError::Error(source)) => Err(SocketError::Directory { path, source }),
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn own(path: &Path, mode: u32, group: Option<u32>) -> io::Result<()> {
    if group.is_some() {
        chown(path, None, group)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn launch(path: &Path, mode: u32, group: Option<u32>) -> Result<OwnedFd, SocketError> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    let failed = |source: io::Error| SocketError::Bind { path: path.to_owned(), source };
    remove_stale(path).map_err(failed)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(error.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
    own(path, mode, group).map_err(failed)?;
    rustix::net::listen(&socket, 128).map_err(|error| failed(error.into()))?;
    Ok(socket)
}
