//! The mount calls that a view is made of, each by descriptor where the kernel lets it.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    },
};

// `MOUNT_ATTR_*` of linux/mount.h.
pub(super) const RDONLY: u64 = 0x1;
pub(super) const NOSUID: u64 = 0x2;
pub(super) const NODEV: u64 = 0x4;

/// Clones a tree of mounts.
pub(super) fn clone_tree(descriptor: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    open_tree(
        descriptor,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE,
    )
}

/// Clones a tree of mounts by its path in this namespace.
pub(super) fn clone_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    let descriptor = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    clone_tree(descriptor.as_fd())
}

/// Puts a detached tree at a path that has no symlinks: its owner may be making some just now, to have it put elsewhere.
pub(super) fn attach_exactly(tree: &OwnedFd, path: &Path) -> rustix::io::Result<()> {
    let point = rustix::fs::openat2(
        CWD,
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    )?;
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", &point, "", whole)
}

/// Puts a detached tree at a path.
pub(super) fn attach(tree: &OwnedFd, path: &Path) -> rustix::io::Result<()> {
    move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// An empty file system in memory.
pub(super) fn tmpfs(options: &str) -> rustix::io::Result<OwnedFd> {
    file_system("tmpfs", options, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
}

/// One that may hold device nodes.
pub(super) fn device_tmpfs() -> rustix::io::Result<OwnedFd> {
    file_system("tmpfs", "mode=0755", MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC)
}

/// Pseudo-terminals that nobody else has.
pub(super) fn terminals() -> rustix::io::Result<OwnedFd> {
    file_system(
        "devpts",
        "newinstance,ptmxmode=0666,mode=0620",
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
}

/// The processes of the calling process's PID namespace.
pub(super) fn processes() -> rustix::io::Result<OwnedFd> {
    file_system(
        "proc",
        "",
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
}

fn file_system(name: &str, options: &str, limits: MountAttrFlags) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(context.as_fd(), key, value)?,
            None => fsconfig_set_flag(context.as_fd(), option)?,
        }
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, limits)
}

/// Nothing, to be put over things: one file system that holds an empty directory and an empty file.
pub(super) struct Stock {
    mount: OwnedFd,
}

impl Stock {
    /// Makes it and parks it at `place`, which must be covered again: before Linux 6.15 only an attached mount can be cloned.
    pub(super) fn park(place: &Path) -> rustix::io::Result<Self> {
        let mount = tmpfs("mode=0555")?;
        let everyone = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        rustix::fs::mkdirat(&mount, "directory", everyone | Mode::XUSR | Mode::XGRP | Mode::XOTH)?;
        rustix::fs::openat(&mount, "file", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, everyone)?;
        attach(&mount, place)?;
        Ok(Self { mount })
    }

    /// Puts an empty directory or file over a path, unwritable.
    pub(super) fn cover(&self, path: &Path, directory: bool) -> rustix::io::Result<()> {
        let name = if directory { "directory" } else { "file" };
        let copy =
            open_tree(&self.mount, name, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        set_tree(&copy, RDONLY | NOSUID | NODEV)?;
        attach(&copy, path)
    }
}

/// A device node.
pub(super) fn make_device(path: &Path, major: u32, minor: u32) -> rustix::io::Result<()> {
    let everyone = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, everyone, rustix::fs::makedev(major, minor))?;
    rustix::fs::chmod(path, everyone)
}

/// Makes what a tree is put over. Anything missing lies in a fresh file system of ours.
pub(super) fn make_point(path: &Path, directory: bool) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    if directory {
        return fs::create_dir_all(path);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::create_new(path).map(drop)
}

pub(super) fn is_device(descriptor: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(descriptor)?.st_mode);
    Ok(kind == FileType::CharacterDevice || kind == FileType::BlockDevice)
}

/// Sets limits on a whole detached tree and cuts its ties to the mounts that it was cloned from.
pub(super) fn set_tree(tree: &OwnedFd, limits: u64) -> rustix::io::Result<()> {
    set_at(tree.as_raw_fd(), c"", limits, true)
}

/// Sets limits on every mount at and below a path.
pub(super) fn set_recursively(path: &Path, limits: u64) -> rustix::io::Result<()> {
    let descriptor = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    set_at(descriptor.as_raw_fd(), c"", limits, true)
}

/// Sets limits on the mount at a path.
pub(super) fn set(path: &Path, limits: u64) -> rustix::io::Result<()> {
    let descriptor = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    set_at(descriptor.as_raw_fd(), c"", limits, false)
}

fn set_at(descriptor: RawFd, path: &std::ffi::CStr, limits: u64, recursive: bool) -> rustix::io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: limits, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the path is a C string and `attributes` has the size that is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            descriptor,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(rustix::io::Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(rustix::io::Errno::IO))
}
