//! Control groups: where the hierarchy is, and what is done to one group.
//!
//! Only version 2 counts; on a hybrid host it is mounted somewhere below `/sys/fs/cgroup` without controllers,
//! which is enough for membership, `cgroup.kill`, `cgroup.freeze` and attached programs.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What can go wrong with a control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Nothing of type `cgroup2` is mounted.
    #[error(
        "no cgroup2 file system is mounted: mount one, for example `mount -t cgroup2 none /sys/fs/cgroup`"
    )]
    NotMounted,
    /// This process is in a cgroup namespace of its own, so depths in the hierarchy cannot be known.
    #[error("this process is in a cgroup namespace of its own: start it in the host's")]
    Namespace,
    /// A file system call failed.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The path is not below the mount.
    #[error("{path} is not below the cgroup2 mount {mount}")]
    Outside {
        /// The path.
        path: PathBuf,
        /// The mount.
        mount: PathBuf,
    },
    /// The group did not reach the state in time.
    #[error("{path} did not become {state} within {waited_ms} ms")]
    Timeout {
        /// The group.
        path: PathBuf,
        /// "empty" or "frozen".
        state: &'static str,
        /// How long it was waited for.
        waited_ms: u128,
    },
}

type Result<T> = std::result::Result<T, CgroupError>;

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> CgroupError + 'a {
    move |error| CgroupError::Io { what, path: path.to_path_buf(), error }
}

/// Identity of a control group, as the kernel's programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupId(pub u64);

/// Where the hierarchy of version 2 is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    mount: PathBuf,
}

impl Hierarchy {
    /// Looks into this process's mounts.
    ///
    /// # Errors
    /// If none is mounted, or this process is in a cgroup namespace.
    pub fn find() -> Result<Self> {
        /// Inode of the first cgroup namespace (`PROC_CGROUP_INIT_INO`).
        const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFB;
        let namespace = Path::new("/proc/self/ns/cgroup");
        let inode = fs::metadata(namespace).map_err(io_error("look at", namespace))?.ino();
        if inode != INITIAL_NAMESPACE {
            return Err(CgroupError::Namespace);
        }
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read(path).map_err(io_error("read", path))?;
        Self::parse(&text).ok_or(CgroupError::NotMounted)
    }

    /// Finds the first mount of the whole hierarchy in the text of a `mountinfo`.
    #[must_use]
    pub fn parse(mountinfo: &[u8]) -> Option<Self> {
        mounts_of_type(mountinfo, b"cgroup2")
            .find(|mount| mount.root == Path::new("/"))
            .map(|mount| Self { mount: mount.point })
    }

    /// The mount point.
    #[must_use]
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Depth of a group below the root of the hierarchy, which has depth 0.
    ///
    /// # Errors
    /// If the path is not below the mount.
    pub fn level(&self, path: &Path) -> Result<u32> {
        let outside = || CgroupError::Outside { path: path.to_path_buf(), mount: self.mount.clone() };
        let relative = path.strip_prefix(&self.mount).map_err(|_| outside())?;
        u32::try_from(relative.components().count()).map_err(|_| outside())
    }
}

/// One line of `mountinfo`.
pub(crate) struct Mount {
    /// Which directory of the file system is mounted.
    pub(crate) root: PathBuf,
    /// Where.
    pub(crate) point: PathBuf,
}

/// The mounts of one file system type, in mount order.
pub(crate) fn mounts_of_type<'a>(mountinfo: &'a [u8], kind: &'a [u8]) -> impl Iterator<Item = Mount> + 'a {
    mountinfo.split(|byte| *byte == b'\n').filter_map(move |line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        if *fields.get(separator + 1)? != kind {
            return None;
        }
        Some(Mount { root: unescape(fields.get(3)?), point: unescape(fields.get(4)?) })
    })
}

/// Undoes the kernel's `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(digits) = octal {
            out.push(
                digits.iter().fold(0_u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
            );
            rest = &after[3..];
        } else {
            out.push(byte);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// One control group, held open.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    id: CgroupId,
    directory: OwnedFd,
}

impl Cgroup {
    /// Opens a group that exists.
    ///
    /// # Errors
    /// If it does not.
    pub fn open(path: &Path) -> Result<Self> {
        let file = fs::File::open(path).map_err(io_error("open", path))?;
        let id = file.metadata().map_err(io_error("look at", path))?.ino();
        Ok(Self { path: path.to_path_buf(), id: CgroupId(id), directory: file.into() })
    }

    /// Makes a group, with those above it, or opens it if it is there.
    ///
    /// # Errors
    /// If it can be neither made nor opened.
    pub fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(io_error("make", path))?;
        Self::open(path)
    }

    /// Makes or opens a group directly below this one.
    ///
    /// # Errors
    /// If it can be neither made nor opened.
    pub fn child(&self, name: &str) -> Result<Self> {
        Self::create(&self.path.join(name))
    }

    /// Absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> CgroupId {
        self.id
    }

    /// The groups directly below.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn children(&self) -> Result<Vec<PathBuf>> {
        children(&self.path)
    }

    /// The processes in this group and all below.
    ///
    /// # Errors
    /// If a group cannot be read; one that vanishes meanwhile counts as empty.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        let mut todo = vec![self.path.clone()];
        while let Some(path) = todo.pop() {
            let file = path.join("cgroup.procs");
            match fs::read_to_string(&file) {
                Ok(text) => found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("read", &file)(error)),
            }
            todo.extend(children(&path)?);
        }
        Ok(found)
    }

    /// Kills every process in this group and all below.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&self) -> Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Stops every process in this group and all below, and waits until they stand.
    ///
    /// # Errors
    /// If the kernel refuses or a process does not stop within two seconds.
    pub fn freeze(&self) -> Result<()> {
        self.write("cgroup.freeze", "1")?;
        self.wait_for("frozen 1", "frozen", Duration::from_secs(2))
    }

    /// Lets the processes go on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn thaw(&self) -> Result<()> {
        self.write("cgroup.freeze", "0")
    }

    /// Whether a process is in this group or below.
    ///
    /// # Errors
    /// If `cgroup.events` cannot be read.
    pub fn populated(&self) -> Result<bool> {
        Ok(self.events()?.lines().any(|line| line == "populated 1"))
    }

    /// Waits until no process is left.
    ///
    /// # Errors
    /// If one still is after `limit`.
    pub fn wait_empty(&self, limit: Duration) -> Result<()> {
        self.wait_for("populated 0", "empty", limit)
    }

    /// Removes this group and all below; they must be empty.
    ///
    /// # Errors
    /// If one is not.
    pub fn remove(&self) -> Result<()> {
        remove_tree(&self.path)
    }

    fn events(&self) -> Result<String> {
        let file = self.path.join("cgroup.events");
        fs::read_to_string(&file).map_err(io_error("read", &file))
    }

    fn wait_for(&self, line: &str, state: &'static str, limit: Duration) -> Result<()> {
        let start = Instant::now();
        while !self.events()?.lines().any(|found| found == line) {
            if start.elapsed() > limit {
                let waited_ms = start.elapsed().as_millis();
                return Err(CgroupError::Timeout { path: self.path.clone(), state, waited_ms });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, text).map_err(io_error("write", &path))
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

fn children(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("list", path)(error)),
    };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(directories.map(|entry| entry.path()).collect())
}

fn remove_tree(path: &Path) -> Result<()> {
    for child in children(path)? {
        remove_tree(&child)?;
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount_of(text: &str) -> Option<PathBuf> {
        Hierarchy::parse(text.as_bytes()).map(|hierarchy| hierarchy.mount)
    }

    #[test]
    fn the_hierarchy_is_found_on_unified_and_hybrid_hosts() {
        let unified = "24 1 0:22 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
            30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "10 31 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            11 32 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            20 41 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let legacy = "11 32 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";
        assert_eq!(mount_of(unified).as_deref(), Some(Path::new("/sys/fs/cgroup")));
        assert_eq!(mount_of(hybrid).as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(mount_of(legacy), None);
        assert_eq!(mount_of(""), None);
    }

    #[test]
    fn a_bind_mount_of_a_part_is_passed_over_and_escapes_are_undone() {
        let text = "40 1 0:38 /user.slice /mnt/part rw - cgroup2 cgroup2 rw\n\
            41 1 0:38 / /mnt/with\\040space rw master:1 propagate_from:2 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_of(text).as_deref(), Some(Path::new("/mnt/with space")));
    }

    #[test]
    fn lines_that_are_cut_short_are_no_mounts() {
        for text in ["-", "1 2 3 -", "1 2 0:1 / -", "- cgroup2", "1 2 0:1 / /x rw -", "\n\n - cgroup2 \n"] {
            assert_eq!(mount_of(text), None, "{text:?}");
        }
    }

    #[test]
    fn depth_counts_from_the_mount() {
        let hierarchy = Hierarchy { mount: PathBuf::from("/sys/fs/cgroup/unified") };
        assert_eq!(hierarchy.level(Path::new("/sys/fs/cgroup/unified")).ok(), Some(0));
        assert_eq!(hierarchy.level(Path::new("/sys/fs/cgroup/unified/a/b")).ok(), Some(2));
        assert!(hierarchy.level(Path::new("/sys/fs/cgroup")).is_err());
    }
}
