//! From a place in a process to the object in the agent's view. The mount of the object decides, never the text of the path.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd as _, OwnedFd, RawFd},
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::MetadataExt as _,
        },
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags},
    io::Errno,
};

use super::{
    call::{Object, Place},
    thing::Thing,
};
use crate::sandbox::view::path_of;

/// `PATH_MAX`
const PATH_LIMIT: usize = 4096;

/// The view of one agent. All of its processes have this one root: none of them may change it.
#[derive(Debug)]
pub(in crate::shim) struct View {
    root: OwnedFd,
    /// The agent's mount namespace. Without it the mounts go with the agent, and paths then lead to what they covered.
    _mounts: Option<OwnedFd>,
    /// Devices of the file systems that only the agent has, and of those that hold no files.
    private: Vec<u64>,
}

/// What a call would change.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Absolute in the view, links resolved as far as the path exists.
    pub(super) path: PathBuf,
    /// Nothing of this name was there.
    pub(super) fresh: bool,
    /// The mount view refuses the change.
    pub(super) fenced: bool,
    /// It lies in the agent's private temp, or is no file of a disk at all.
    pub(super) private: bool,
    /// What is there now.
    pub(super) thing: Option<Thing>,
}

/// Where an agent finds file systems of its own, or such as hold no files.
const PRIVATE: [&str; 6] = ["/tmp", "/var/tmp", "/dev/shm", "/dev", "/dev/pts", "/proc"];

impl View {
    pub(in crate::shim) fn new(root: OwnedFd, mounts: Option<OwnedFd>) -> Self {
        let mut view = Self { root, _mounts: mounts, private: Vec::new() };
        view.private = PRIVATE
            .iter()
            .filter_map(|path| {
                let device = Thing::of(&view.open(Path::new(path), true).ok()?, OsStr::new("")).ok()?;
                // Without a view of its own the agent has the host's.
                let hosts = std::fs::metadata(path).ok().map(|metadata| metadata.dev());
                (Some(device.identity.device) != hosts).then_some(device.identity.device)
            })
            .collect();
        view
    }

    /// The root directory.
    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Whether a socket of this name is in the view; what covers a hidden one is none.
    pub(super) fn has_socket(&self, path: &Path) -> bool {
        let found = self.open(path, true).and_then(rustix::fs::fstat);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Socket)
    }

    /// Finds what a call of task `task` is about; `None` when it changes nothing that a mount could protect, or when it
    /// cannot be told: the fence decides all the same.
    pub(super) fn find(&self, task: u32, place: Place, object: Object) -> Option<Found> {
        match place {
            Place::Descriptor(number) => self.found(&open_of(task, number).ok()?, false),
            Place::Path { directory, address } => {
                let path = whole(task, directory, &read_path(task, address)?)?;
                match object {
                    Object::Parent => self.entry(&path, false),
                    Object::Target { follow } => self.target(&path, follow),
                    Object::Opened { flags } => self.opened(&path, flags),
                }
            }
        }
    }

    fn opened(&self, path: &Path, flags: libc::c_int) -> Option<Found> {
        if flags & libc::O_PATH != 0 {
            return None;
        }
        let follow = flags & libc::O_NOFOLLOW == 0 && flags & libc::O_EXCL == 0;
        match self.open(path, follow) {
            // It was to be new.
            Ok(_) if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => None,
            Ok(target) => {
                let kind = FileType::from_raw_mode(rustix::fs::fstat(&target).ok()?.st_mode);
                let unnamed = flags & libc::O_TMPFILE == libc::O_TMPFILE;
                let changes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0;
                // Devices, pipes and sockets take writes whatever their mount says; directories cannot be written.
                let file = kind == FileType::RegularFile || unnamed && kind == FileType::Directory;
                (changes && file).then(|| self.found(&target, unnamed)).flatten()
            }
            Err(Errno::NOENT) if flags & libc::O_CREAT != 0 => self.entry(path, true),
            Err(_) => None,
        }
    }

    fn target(&self, path: &Path, follow: bool) -> Option<Found> {
        self.found(&self.open(path, follow).ok()?, false)
    }

    fn found(&self, target: &OwnedFd, fresh: bool) -> Option<Found> {
        let thing = Thing::of(target, OsStr::new("")).ok()?;
        Some(Found {
            path: path_of(target.as_fd()).ok()?,
            fresh,
            fenced: is_read_only(target)?,
            private: self.is_private(thing.identity.device),
            thing: Some(thing),
        })
    }

    fn is_private(&self, device: u64) -> bool {
        self.private.contains(&device)
    }

    /// A name in its directory, whether it is there or not.
    fn entry(&self, path: &Path, fresh: bool) -> Option<Found> {
        let parent = self.open(path.parent()?, true).ok()?;
        let name = path.file_name()?;
        let thing = Thing::of(&parent, name).ok();
        let device = match thing {
            Some(thing) => thing.identity.device,
            None => Thing::of(&parent, OsStr::new("")).ok()?.identity.device,
        };
        Some(Found {
            path: path_of(parent.as_fd()).ok()?.join(name),
            fresh,
            fenced: is_read_only(&parent)?,
            private: self.is_private(device),
            thing,
        })
    }

    pub(super) fn open(&self, path: &Path, follow: bool) -> rustix::io::Result<OwnedFd> {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        if !follow {
            flags |= OFlags::NOFOLLOW;
        }
        loop {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
                // Something was renamed meanwhile.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
    }
}

/// Read-only by its mount; `None` when it cannot be asked.
fn is_read_only(descriptor: &OwnedFd) -> Option<bool> {
    Some(rustix::fs::fstatvfs(descriptor).ok()?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// A descriptor of another process, opened again without touching it.
fn open_of(task: u32, number: RawFd) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(
        CWD,
        format!("/proc/{task}/fd/{number}"),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// The absolute path that a task means, with the magic links of `/proc` and `/dev` replaced by what they mean for *it*.
fn whole(task: u32, directory: RawFd, path: &Path) -> Option<PathBuf> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let path = if path.is_absolute() {
        path.to_owned()
    } else {
        let base = match directory {
            libc::AT_FDCWD => link_of(task, "cwd")?,
            number => link_of(task, &format!("fd/{number}"))?,
        };
        base.join(path)
    };
    Some(own_links(task, path))
}

/// `/proc/self/root/etc/passwd` is `/etc/passwd`. Other processes of the agent have the same root and are named by numbers that
/// mean nothing outside, so every number is read as this task: right for `root`, good enough for a record for the rest.
fn own_links(task: u32, path: PathBuf) -> PathBuf {
    let mut parts = path.components().filter(|part| *part != Component::CurDir);
    let mut next = || parts.next().map(Component::as_os_str).map(OsStr::to_owned);
    let (_, first, second) = (next(), next(), next());
    let is = |part: &Option<OsString>, name: &str| part.as_deref() == Some(OsStr::new(name));
    let link = if is(&first, "proc") && second.is_some() {
        let what = next();
        if is(&what, "root") {
            Some("root".to_owned())
        } else if is(&what, "cwd") {
            Some("cwd".to_owned())
        } else if is(&what, "fd") {
            next().map(|number| format!("fd/{}", number.display()))
        } else {
            None
        }
    } else if is(&first, "dev") {
        if is(&second, "fd") {
            next().map(|number| format!("fd/{}", number.display()))
        } else {
            ["stdin", "stdout", "stderr"]
                .iter()
                .position(|name| is(&second, name))
                .map(|number| format!("fd/{number}"))
        }
    } else {
        None
    };
    let Some(link) = link else { return path };
    let meant = if link == "root" { Some(PathBuf::from("/")) } else { link_of(task, &link) };
    meant.map_or_else(|| path.clone(), |meant| parts.fold(meant, |whole, part| whole.join(part)))
}

fn link_of(task: u32, name: &str) -> Option<PathBuf> {
    let target = rustix::fs::readlinkat(CWD, format!("/proc/{task}/{name}"), Vec::new()).ok()?;
    Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

fn read_path(task: u32, address: u64) -> Option<PathBuf> {
    let bytes = read_memory(task, address, PATH_LIMIT).ok()?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
}

/// Reads up to `length` bytes of another process; fewer where its memory ends.
pub(super) fn read_memory(task: u32, address: u64, length: usize) -> io::Result<Vec<u8>> {
    const PAGE: usize = 4096;

    let mut buffer = vec![0; length];
    let address = usize::try_from(address).map_err(io::Error::other)?;
    // A call may name memory that ends after the text; each page comes or does not come as a whole.
    let first = (PAGE - address % PAGE).min(length);
    let task = libc::pid_t::try_from(task).map_err(io::Error::other)?;
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: length };
    let remote = [
        libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: first },
        libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address.wrapping_add(first)),
            iov_len: length - first,
        },
    ];
    // SAFETY: `local` is our live buffer; the remote addresses are checked by the kernel.
    let read = unsafe { libc::process_vm_readv(task, &raw const local, 1, remote.as_ptr(), 2, 0) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    buffer.truncate(read);
    Ok(buffer)
}

/// Whether the host has something of this name, for the agent's uid. Not its view: what the view hides.
pub(super) fn host_has(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> (View, u32) {
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("/");
        (View::new(root, None), std::process::id())
    }

    #[test]
    fn paths_are_read_from_memory_up_to_its_last_page() {
        let (_, task) = here();
        let text = c"/some/path";
        let path = read_path(task, text.as_ptr() as u64).expect("readable");
        assert_eq!(path, Path::new("/some/path"));
        assert_eq!(read_path(task, 8), None);
    }

    #[test]
    fn magic_links_mean_the_tasks_own() {
        let (_, task) = here();
        let cwd = std::env::current_dir().expect("a directory");
        for (path, meant) in [
            ("/proc/self/root/etc/passwd", PathBuf::from("/etc/passwd")),
            ("/proc/1/root/etc", PathBuf::from("/etc")),
            ("/proc/self/cwd/x/y", cwd.join("x/y")),
            ("/proc/./self/cwd", cwd),
            ("/proc/self/status", PathBuf::from("/proc/self/status")),
            ("/etc/proc/self/root", PathBuf::from("/etc/proc/self/root")),
        ] {
            assert_eq!(own_links(task, path.into()), meant, "{path}");
        }
    }

    #[test]
    fn opens_that_change_nothing_are_not_found() {
        let (view, _) = here();
        assert_eq!(view.opened(Path::new("/dev/null"), libc::O_WRONLY), None);
        assert_eq!(view.opened(Path::new("/etc/passwd"), libc::O_CREAT), None);
        assert_eq!(view.opened(Path::new("/etc/passwd"), libc::O_PATH | libc::O_WRONLY), None);
        let found =
            view.opened(Path::new("/etc/../etc/no-such"), libc::O_CREAT | libc::O_WRONLY).expect("found");
        assert_eq!((found.path.as_path(), found.fresh), (Path::new("/etc/no-such"), true));
    }
}
