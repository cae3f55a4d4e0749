//! The Landlock fence: reading everywhere in the view, writing where the view lets it. It repeats the mount view in a place that
//! no mount can undo, and adds what mounts cannot say: signals, abstract sockets, device ioctls.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, Scope,
};

/// The newest ABI that this code knows.
const NEWEST: ABI = ABI::V10;

/// Why the fence does not stand.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    #[error("this kernel has no Landlock, or it was not switched on at boot (lsm=landlock,…)")]
    Unsupported,
    #[error("{}: {source}", path.display())]
    Path { path: PathBuf, source: landlock::PathFdError },
    #[error("Landlock: {0}")]
    Ruleset(#[from] landlock::RulesetError),
}

/// What may be written, as the agent sees it.
#[derive(Clone, Debug, Default)]
pub struct Fence<'a> {
    /// Files and directories with everything below them.
    pub read_write: Vec<PathBuf>,
    /// Standard descriptors that are files: their owner passed them to be written.
    pub files: Vec<BorrowedFd<'a>>,
}

/// Puts the calling thread and all that it starts behind the fence; returns the Landlock ABI that holds it.
///
/// # Errors
/// [`LandlockError`]
pub fn apply(fence: &Fence<'_>) -> Result<u32, LandlockError> {
    let all = AccessFs::from_all(NEWEST);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        // The init sets this bit itself, unless setuid programs are to work.
        .no_new_privs(false);
    ruleset = allow(ruleset, Path::new("/"), AccessFs::from_read(NEWEST))?;
    // Device nodes of the private /dev; making anything there is left to the view, which is read-only.
    let devices = AccessFs::WriteFile | AccessFs::Truncate;
    ruleset = allow(ruleset, Path::new("/dev"), devices)?;
    ruleset = allow(ruleset, Path::new("/proc"), devices)?;
    for terminal in ["/dev/pts", "/dev/tty"] {
        ruleset = allow(ruleset, Path::new(terminal), AccessFs::IoctlDev.into())?;
    }
    for path in ["/tmp", "/var/tmp", "/dev/shm"].iter().map(Path::new) {
        ruleset = allow(ruleset, path, all & !AccessFs::IoctlDev)?;
    }
    ruleset = allow(ruleset, Path::new("/run/guard"), AccessFs::ResolveUnix.into())?;
    for path in &fence.read_write {
        ruleset = allow(ruleset, path, all)?;
    }
    for file in &fence.files {
        let access = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::ReadFile;
        ruleset = ruleset.add_rule(PathBeneath::new(file.as_fd(), access))?;
    }
    let status = ruleset.restrict_self()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Ok(effective_abi as u32),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => Err(LandlockError::Unsupported),
    }
}

/// One rule; a path that is not there has nothing to allow.
fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, LandlockError> {
    let Ok(metadata) = path.metadata() else { return Ok(ruleset) };
    let access = if metadata.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    let descriptor =
        PathFd::new(path).map_err(|source| LandlockError::Path { path: path.to_owned(), source })?;
    Ok(ruleset.add_rule(PathBeneath::new(descriptor, access))?)
}

/// The newest ABI that this kernel has; 0 without Landlock.
#[must_use]
pub fn abi() -> u32 {
    const VERSION: libc::c_ulong = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call reads no memory and answers a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, VERSION) };
    u32::try_from(abi).unwrap_or(0)
}
