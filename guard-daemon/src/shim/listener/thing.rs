//! The thing behind a name: which one it is, whether it is older than the session, and whether an act has reached it.

use std::{
    ffi::OsStr,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, CWD, FileType, StatxFlags, StatxTimestamp},
    io::Errno,
};

use super::object::View;

/// Something that has a name, as it is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thing {
    pub(super) identity: Identity,
    /// Last change of the inode, nanoseconds since the Unix epoch.
    changed: u64,
    /// Last change of the content; of a directory: of its entries.
    modified: u64,
    pub(super) size: u64,
    pub(super) kind: FileType,
}

/// Which thing it is; numbers of inodes are used again, birth times are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
    born: Option<u64>,
}

impl Thing {
    /// Whether it is older than this moment. Where the file system keeps no birth times, the last change of the inode
    /// stands in: what was changed since is taken for the session's own.
    pub(super) fn existed_before(&self, moment: u64) -> bool {
        self.identity.born.unwrap_or(self.changed) < moment
    }

    pub(super) fn of(descriptor: &OwnedFd, name: &OsStr) -> rustix::io::Result<Self> {
        let flags = if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(descriptor, name, flags, wanted)?;
        let time = |time: StatxTimestamp| {
            time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.into())
        };
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            identity: Identity {
                device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
                born: has_birth.then(|| time(found.stx_btime)),
            },
            changed: time(found.stx_ctime),
            modified: time(found.stx_mtime),
            size: found.stx_size,
            kind: FileType::from_raw_mode(found.stx_mode.into()),
        })
    }
}

/// The file systems' clock, which steps a little behind the exact one: nothing that happens after this call has an earlier time.
pub(in crate::shim) fn coarse_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// How to find out afterwards whether a call did what it was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Nothing to find out.
    Known,
    /// The name leads to something else now, or nowhere.
    Gone { path: PathBuf, was: Identity },
    /// What is there has changed, or is new.
    Changed { path: PathBuf },
    /// It could be opened.
    Writable { path: PathBuf },
}

impl View {
    /// What a path leads to, its last link not followed.
    pub(super) fn thing(&self, path: &Path) -> rustix::io::Result<Thing> {
        Thing::of(&self.open(path, false)?, OsStr::new(""))
    }

    /// Whether the shim, which has the agent's identity, may write to it.
    fn writable(&self, path: &Path) -> rustix::io::Result<()> {
        let target = self.open(path, true)?;
        let link = format!("/proc/self/fd/{}", target.as_raw_fd());
        rustix::fs::accessat(CWD, link, Access::WRITE_OK, AtFlags::EACCESS)
    }

    /// Whether an act on a path has come about since `moment`.
    pub(super) fn came_about(&self, check: &Check, moment: u64) -> bool {
        match check {
            Check::Known => true,
            Check::Gone { path, was } => match self.thing(path) {
                Ok(now) => now.identity != *was,
                Err(error) => matches!(error, Errno::NOENT | Errno::NOTDIR),
            },
            Check::Changed { path } => match self.thing(path) {
                Ok(now) => now.changed >= moment,
                // Made and gone again: its directory tells.
                Err(_) => self.entries_changed(path, moment),
            },
            // What is gone already was opened before.
            Check::Writable { path } => matches!(self.writable(path), Ok(()) | Err(Errno::NOENT)),
        }
    }

    fn entries_changed(&self, path: &Path, moment: u64) -> bool {
        path.parent().is_some_and(|parent| match self.thing(parent) {
            Ok(now) => now.modified >= moment,
            Err(_) => self.entries_changed(parent, moment),
        })
    }
}
