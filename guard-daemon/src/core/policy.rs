//! The policy in force: reads the two files, checks who may write them, brings a new generation into force whole or not at all.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use guard_policy::Policy;

use super::database::{Database, DatabaseError};
use jiff::Timestamp;

/// A policy with the number under which it decides.
pub struct Generation {
    pub number: u64,
    pub policy: Policy,
    /// When a rule of it expires next.
    expires: Option<Timestamp>,
}

impl Generation {
    fn new(number: u64, policy: Policy) -> Self {
        let expires = policy.next_expiry(Timestamp::now());
        Self { number, policy, expires }
    }
}

/// The files, what they looked like when read, and the generation made of them.
pub struct Store {
    policy: Option<PathBuf>,
    managed: Option<PathBuf>,
    database: std::sync::Mutex<Database>,
    current: ArcSwap<Generation>,
    stamps: std::sync::Mutex<[Option<Stamp>; 2]>,
    /// Why the files on disk are not what is in force; empty when they are.
    faults: ArcSwap<Vec<String>>,
}

/// Enough of a file's metadata to see that it changed or was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    mode: u32,
    owner: u32,
}

/// Why a policy cannot come into force.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("error[policy_unreadable]: cannot read {}: {source}; guard-core runs as uid {uid} and must be able to", path.display())]
    Read { path: PathBuf, source: io::Error, uid: u32 },
    #[error("error[policy_insecure]: {} {why}; run `{cure}`", path.display())]
    Insecure { path: PathBuf, why: String, cure: String },
    #[error("{}", faults.join("\n"))]
    Invalid { faults: Vec<String> },
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl PolicyError {
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Invalid { faults } => faults.clone(),
            other => vec![other.to_string()],
        }
    }
}

impl Store {
    /// Reads both files and what is kept beside them, and brings generation 1 into force.
    ///
    /// # Errors
    /// [`PolicyError`]: the daemon must not start then.
    pub fn open(
        policy: Option<PathBuf>,
        managed: Option<PathBuf>,
        database: Database,
    ) -> Result<Self, PolicyError> {
        let stamps = [policy.as_deref().and_then(stamp), managed.as_deref().and_then(stamp)];
        let loaded = load(policy.as_deref(), managed.as_deref(), &database)?;
        Ok(Self {
            policy,
            managed,
            database: std::sync::Mutex::new(database),
            current: ArcSwap::from_pointee(Generation::new(1, loaded)),
            stamps: std::sync::Mutex::new(stamps),
            faults: ArcSwap::from_pointee(Vec::new()),
        })
    }

    /// The generation in force.
    pub fn current(&self) -> Arc<Generation> {
        self.current.load_full()
    }

    /// Why the service is degraded on account of its files; empty when it is not.
    pub fn faults(&self) -> Arc<Vec<String>> {
        self.faults.load_full()
    }

    /// Whether a file looks different from when it was last read.
    pub fn changed(&self) -> bool {
        *self.lock() != self.stamps_now()
    }

    /// Makes a new generation of the same policy when a rule of it has expired, so that the kernel's table is made anew.
    pub fn expire(&self, now: Timestamp) -> bool {
        let _stamps = self.lock();
        let current = self.current.load();
        if current.expires.is_none_or(|at| now < at) {
            return false;
        }
        self.current.store(Arc::new(Generation::new(current.number + 1, current.policy.clone())));
        true
    }

    /// Reads the files again. A fault leaves the last good generation in force and is kept as the reason for being degraded.
    ///
    /// # Errors
    /// [`PolicyError`] with the faults.
    pub fn reload(&self) -> Result<Arc<Generation>, PolicyError> {
        let mut stamps = self.lock();
        *stamps = self.stamps_now();
        match load(self.policy.as_deref(), self.managed.as_deref(), &self.database()) {
            Ok(policy) => {
                let number = self.current.load().number + 1;
                self.current.store(Arc::new(Generation::new(number, policy)));
                self.faults.store(Arc::new(Vec::new()));
                Ok(self.current.load_full())
            }
            Err(error) => {
                self.faults.store(Arc::new(error.lines()));
                Err(error)
            }
        }
    }

    /// What is kept beside the files.
    pub fn database(&self) -> std::sync::MutexGuard<'_, Database> {
        self.database.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Changes what is kept beside the files: the change and the policy that it makes come into force as one new
    /// generation, or neither does.
    ///
    /// # Errors
    /// [`PolicyError`]; then everything is as it was.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&Database) -> Result<T, PolicyError>,
    ) -> Result<(T, Arc<Generation>), PolicyError> {
        let _stamps = self.lock();
        let (value, policy) = self.database().attempt(|database| {
            let value = change(database)?;
            let policy = load(self.policy.as_deref(), self.managed.as_deref(), database)?;
            Ok::<_, PolicyError>((value, policy))
        })?;
        let number = self.current.load().number + 1;
        self.current.store(Arc::new(Generation::new(number, policy)));
        Ok((value, self.current.load_full()))
    }

    fn stamps_now(&self) -> [Option<Stamp>; 2] {
        [self.policy.as_deref().and_then(stamp), self.managed.as_deref().and_then(stamp)]
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, [Option<Stamp>; 2]> {
        self.stamps.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    std::fs::metadata(path).ok().map(|metadata| Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        mode: metadata.mode(),
        owner: metadata.uid(),
    })
}

fn load(policy: Option<&Path>, managed: Option<&Path>, database: &Database) -> Result<Policy, PolicyError> {
    let stored = database.document()?.to_string();
    let policy =
        policy.map(|path| read(path).map(|bytes| (path.display().to_string(), bytes))).transpose()?;
    let managed =
        managed.map(|path| read(path).map(|bytes| (path.display().to_string(), bytes))).transpose()?;
    fn part(part: &Option<(String, Vec<u8>)>) -> Option<(&str, &[u8])> {
        part.as_ref().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }
    Policy::load_stored(part(&policy), part(&managed), Some(("store", stored.as_bytes())))
        .map_err(|faults| PolicyError::Invalid { faults: faults.iter().map(ToString::to_string).collect() })
}

/// Reads a file whose owner is root or this process, and that nobody else can write, nor replace through its directory.
fn read(path: &Path) -> Result<Vec<u8>, PolicyError> {
    let uid = rustix::process::geteuid().as_raw();
    let failed = |source| PolicyError::Read { path: path.to_owned(), source, uid };
    let mut file = File::open(path).map_err(failed)?;
    secure(path, &file.metadata().map_err(failed)?, uid, false)?;
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        secure(directory, &std::fs::metadata(directory).map_err(failed)?, uid, true)?;
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn secure(path: &Path, metadata: &std::fs::Metadata, uid: u32, directory: bool) -> Result<(), PolicyError> {
    let insecure =
        |why: String, cure: String| Err(PolicyError::Insecure { path: path.to_owned(), why, cure });
    let owner = metadata.uid();
    if owner != 0 && owner != uid {
        return insecure(
            format!("belongs to uid {owner}, who could change it"),
            format!("chown root {}", path.display()),
        );
    }
    // A sticky directory (such as /tmp) lets nobody replace another's file.
    let writable = metadata.mode() & 0o022 != 0 && !(directory && metadata.mode() & 0o1000 != 0);
    if writable {
        return insecure(
            format!("can be written by others (mode {:04o})", metadata.mode() & 0o7777),
            format!("chmod go-w {}", path.display()),
        );
    }
    Ok(())
}
