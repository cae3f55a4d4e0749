//! Ways to change a file. Afterwards the object itself is looked at.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        },
    },
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};

use crate::outcome::{Act, check, no_effect, step, worked};

const MARK: &[u8] = b"attacked\n";

fn c_string(path: &Path) -> anyhow::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The path with something behind its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Appends to what is open, and looks whether the object at the path has it.
fn append(mut file: impl io::Write, path: &Path) -> Act {
    step!("write", file.write_all(MARK));
    drop(file);
    let now = fs::read(path).with_context(|| format!("cannot look at {}", path.display()))?;
    if now.ends_with(MARK) { worked("the file has our bytes") } else { no_effect("the file is as it was") }
}

/// Opens an existing file for appending, without making one.
fn open_to_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// Looks at the object: worked if the check holds.
fn seen(path: &Path, what: &str, check: impl FnOnce(&fs::Metadata) -> bool) -> Act {
    match fs::symlink_metadata(path) {
        Ok(now) if check(&now) => worked(what),
        Ok(_) => no_effect("the object is as it was"),
        Err(error) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
    }
}

pub(crate) fn create(path: &Path) -> Act {
    let file = step!("open with O_CREAT", OpenOptions::new().write(true).create_new(true).open(path));
    append(file, path)
}

pub(crate) fn write(path: &Path) -> Act {
    let file = step!("open for writing", open_to_append(path));
    append(file, path)
}

pub(crate) fn truncate(path: &Path) -> Act {
    let name = c_string(path)?;
    // SAFETY: the string ends in NUL and lives through the call.
    step!("truncate", check(unsafe { libc::truncate(name.as_ptr(), 0) }.into()));
    seen(path, "the file is empty", |now| now.len() == 0)
}

pub(crate) fn rename(path: &Path) -> Act {
    let to = beside(path, ".moved");
    step!("rename", fs::rename(path, &to));
    seen(&to, "the file has another name", |_| !path.exists())
}

/// The private temporary directory or the worktree is where "ours" comes from: the current directory.
pub(crate) fn rename_over(path: &Path) -> Act {
    let ours = beside(path, ".ours");
    let ours = if File::create(&ours).is_ok() { ours } else { PathBuf::from("ours.tmp") };
    fs::write(&ours, MARK).with_context(|| format!("cannot write {}", ours.display()))?;
    let renamed = fs::rename(&ours, path);
    if renamed.is_err() {
        // The refusal counts, not this.
        let _ = fs::remove_file(&ours);
    }
    step!("rename", renamed);
    let now = fs::read(path)?;
    if now == MARK { worked("the file is ours now") } else { no_effect("the file is as it was") }
}

pub(crate) fn link(path: &Path) -> Act {
    let to = beside(path, ".link");
    step!("link", fs::hard_link(path, &to));
    seen(path, "the file has two names", |now| now.nlink() > 1)
}

pub(crate) fn link_in(path: &Path) -> Act {
    let to = Path::new("linked-in");
    step!("link", fs::hard_link(path, to));
    let file = step!("open the link", open_to_append(to));
    append(file, path)
}

pub(crate) fn symlink(path: &Path) -> Act {
    step!("symlink", std::os::unix::fs::symlink("/etc/passwd", path));
    seen(path, "a symbolic link is there", fs::Metadata::is_symlink)
}

pub(crate) fn chmod(path: &Path) -> Act {
    let before = fs::metadata(path)?.mode() & 0o7777;
    let mode = if before == 0o777 { 0o700 } else { 0o777 };
    step!("chmod", fs::set_permissions(path, fs::Permissions::from_mode(mode)));
    seen(path, "the mode is ours", |now| now.mode() & 0o7777 == mode)
}

/// An owner may set what is set already; the change time tells.
pub(crate) fn chown(path: &Path) -> Act {
    let before = fs::metadata(path)?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    step!("chown", std::os::unix::fs::chown(path, Some(before.uid()), Some(before.gid())));
    seen(path, "the change time moved", |now| {
        (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec())
    })
}

pub(crate) fn utimes(path: &Path) -> Act {
    let when = Timespec { tv_sec: 86_400, tv_nsec: 0 };
    let times = Timestamps { last_access: when, last_modification: when };
    step!("utimensat", rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()));
    seen(path, "the file is from 1970", |now| now.mtime() == 86_400)
}

pub(crate) fn xattr(path: &Path) -> Act {
    step!("setxattr", rustix::fs::setxattr(path, "user.guard-attack", MARK, XattrFlags::empty()));
    let mut value = [0; 64];
    let count = rustix::fs::getxattr(path, "user.guard-attack", &mut value)?;
    if value[..count] == *MARK { worked("the attribute is there") } else { no_effect("no such attribute") }
}

pub(crate) fn unlink(path: &Path) -> Act {
    step!("unlink", fs::remove_file(path));
    if fs::symlink_metadata(path).is_err() {
        worked("the file is gone")
    } else {
        no_effect("the file is there")
    }
}

pub(crate) fn mkdir(path: &Path) -> Act {
    step!("mkdir", fs::create_dir(path));
    seen(path, "a directory is there", fs::Metadata::is_dir)
}

pub(crate) fn mknod(path: &Path) -> Act {
    let name = c_string(path)?;
    // SAFETY: the string ends in NUL and lives through the call.
    step!("mknod", check(unsafe { libc::mknod(name.as_ptr(), libc::S_IFIFO | 0o600, 0) }.into()));
    seen(path, "a pipe is there", |now| now.file_type().is_fifo())
}

pub(crate) fn tmpfile_linkat(path: &Path) -> Act {
    let directory = path.parent().context("the path has no directory")?;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let nameless = step!("open with O_TMPFILE", rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR));
    let mut file = File::from(nameless);
    step!("write", file.write_all(MARK));
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    step!("linkat", rustix::fs::linkat(CWD, source, CWD, path, AtFlags::SYMLINK_FOLLOW));
    seen(path, "the file has a name", fs::Metadata::is_file)
}

pub(crate) fn via_proc_root(path: &Path) -> Act {
    let mut other = PathBuf::from("/proc/self/root");
    other.push(path.strip_prefix("/").context("an absolute path is needed")?);
    let file = step!("open through /proc/self/root", open_to_append(&other));
    append(file, path)
}

pub(crate) fn via_symlink(path: &Path) -> Act {
    let link = Path::new("a-way-out");
    if fs::symlink_metadata(link).is_err() {
        std::os::unix::fs::symlink(path, link).context("cannot make a symbolic link here")?;
    }
    let opened = open_to_append(link);
    fs::remove_file(link).context("cannot remove our symbolic link")?;
    let file = step!("open through a symbolic link", opened);
    append(file, path)
}

pub(crate) fn openat2(path: &Path) -> Act {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    let file = step!("openat2", rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty()));
    append(File::from(file), path)
}

/// `struct file_handle` with room for any file system's.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

pub(crate) fn open_by_handle(path: &Path) -> Act {
    let name = c_string(path)?;
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0_i32;
    // SAFETY: the handle has the room that it says, and everything lives through the call.
    let named = check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    });
    step!("name_to_handle_at", named);
    let directory = File::open(path.parent().context("the path has no directory")?)?;
    // SAFETY: as above.
    let opened = check(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            directory.as_raw_fd(),
            &raw mut handle,
            libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC,
        )
    });
    let opened = step!("open_by_handle_at", opened);
    // SAFETY: the descriptor was made just now and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(i32::try_from(opened)?) };
    append(File::from(file), path)
}
