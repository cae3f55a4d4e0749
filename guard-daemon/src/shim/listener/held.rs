//! Calls that wait for a yes, each on a thread of its own, and what is then done in their stead.
//!
//! A call that was judged does not go on: its arguments lie in the agent's memory. The shim, which has the agent's identity and
//! looks from the agent's root, does what was shown, to the thing that was shown, or says no.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use guard_proto::v1::Observation;
use rustix::{
    fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::{
    ID_VALID, SEND,
    notes::{Note, Notes},
    object::View,
    thing::{Check, Identity, Thing},
};
use crate::shim::asks::{Answer, Asks};

/// Calls of one agent that may wait at once; what comes beyond is refused.
const WAITING: usize = 512;
/// `ERESTARTSYS`: a handler runs, and the call fails with EINTR or is made again, as the handler was set up.
const RESTART: i32 = 512;

/// What of an open's flags is left to do once the file is there and empty. Bits that mean nothing are nothing to open(2), and an error
/// to openat2(2).
const KEPT_FLAGS: libc::c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_NOCTTY;

/// What a call does to the thing that it takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Remove { path: PathBuf, flags: AtFlags },
    Rename { from: PathBuf, moved: Option<Identity>, onto: PathBuf },
    Truncate { path: PathBuf, length: u64 },
    Open { path: PathBuf, flags: libc::c_int },
}

/// A deed, and the thing that it was judged for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) deed: Deed,
    pub(super) was: Identity,
}

/// What is done instead of a call gives its result, or a descriptor for the caller.
enum Done {
    Nothing,
    Opened(OwnedFd, bool),
}

/// Whom the threads ask and tell.
pub(super) struct Holder {
    pub(super) descriptor: Arc<OwnedFd>,
    pub(super) view: Arc<View>,
    pub(super) asks: Arc<Asks>,
    pub(super) notes: Arc<Notes>,
    pub(super) waiting: AtomicUsize,
}

impl Holder {
    /// Takes a call over that is in hand; it is answered from now on whatever happens.
    pub(super) fn take(self: &Arc<Self>, call: libc::seccomp_notif, mut note: Note, held: Held) {
        note.observation.ask = self.asks.number();
        "held".clone_into(&mut note.observation.strength);
        let refused = Note {
            observation: Observation { ask: 0, effect: "refused".to_owned(), ..note.observation.clone() },
            check: Check::Known,
            moment: note.moment,
        };
        let holder = Arc::clone(self);
        let full = self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING;
        let started = !full
            && std::thread::Builder::new()
                .name("held".to_owned())
                .stack_size(128 << 10)
                .spawn(move || {
                    holder.wait(&call, note, &held);
                    holder.notes.end();
                    holder.waiting.fetch_sub(1, Ordering::AcqRel);
                })
                .is_ok();
        if !started {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.answer(call.id, Err(Errno::PERM));
            self.notes.add(refused);
            self.notes.end();
        }
    }

    fn wait(&self, call: &libc::seccomp_notif, mut note: Note, held: &Held) {
        // Nobody is asked about what cannot be done. It does not go on either: it could be done by then.
        if let Err(error) = self.could(held) {
            return self.answer(call.id, Err(error));
        }
        let answer = self.asks.ask(&note.observation, || self.is_there(call.id) && !is_interrupted(call.pid));
        note.check = Check::Known;
        let effect = match answer {
            Answer::Left => {
                self.answer_raw(call.id, -RESTART);
                "none"
            }
            Answer::No => {
                self.answer(call.id, Err(Errno::PERM));
                "refused"
            }
            // Whoever waited may have been killed while the answer was on its way: then nothing is done.
            Answer::Yes if !self.is_there(call.id) => "none",
            Answer::Yes => {
                let done = self.perform(held);
                let effect = if done.is_ok() { "done" } else { "none" };
                self.answer(call.id, done);
                effect
            }
        };
        effect.clone_into(&mut note.observation.effect);
        self.notes.add(note);
    }

    /// The task still waits in this very call.
    fn is_there(&self, id: u64) -> bool {
        // SAFETY: the kernel reads one number.
        unsafe { libc::ioctl(self.descriptor.as_raw_fd(), ID_VALID, &raw const id) == 0 }
    }

    fn answer(&self, id: u64, done: Result<Done, Errno>) {
        match done {
            Ok(Done::Nothing) => self.answer_raw(id, 0),
            Ok(Done::Opened(file, close_on_exec)) => {
                if let Err(error) = self.inject(id, &file, close_on_exec) {
                    self.answer_raw(id, -error);
                }
            }
            Err(error) => self.answer_raw(id, -error.raw_os_error()),
        }
    }

    fn answer_raw(&self, id: u64, error: i32) {
        let answer = libc::seccomp_notif_resp { id, val: 0, error, flags: 0 };
        // Gone callers need no answer.
        // SAFETY: the structure is as large as the request says.
        unsafe { libc::ioctl(self.descriptor.as_raw_fd(), SEND, &raw const answer) };
    }

    /// Gives the caller a descriptor and its number as the result, in one step.
    fn inject(&self, id: u64, file: &OwnedFd, close_on_exec: bool) -> Result<(), i32> {
        let request = libc::seccomp_notif_addfd {
            id,
            flags: ADDFD_SEND,
            srcfd: file.as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC.cast_unsigned() } else { 0 },
        };
        // SAFETY: the structure is as large as the request says.
        if unsafe { libc::ioctl(self.descriptor.as_raw_fd(), ADDFD, &raw const request) } >= 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM))
    }

    /// Does what was judged, if what was judged is still there.
    fn perform(&self, held: &Held) -> Result<Done, Errno> {
        match &held.deed {
            Deed::Remove { path, flags } => {
                let (directory, name) = self.entry(path)?;
                same(&directory, name, held.was)?;
                rustix::fs::unlinkat(&directory, name, *flags)?;
            }
            Deed::Rename { from, moved, onto } => {
                let (old, old_name) = self.entry(from)?;
                let (new, new_name) = self.entry(onto)?;
                if let Some(moved) = moved {
                    same(&old, old_name, *moved)?;
                }
                same(&new, new_name, held.was)?;
                rustix::fs::renameat(&old, old_name, &new, new_name)?;
            }
            Deed::Truncate { path, length } => {
                let file = self.writable(path, held.was)?;
                rustix::fs::ftruncate(&file, *length)?;
            }
            Deed::Open { path, flags } => {
                let file = self.writable(path, held.was)?;
                let kept = flags & KEPT_FLAGS;
                let wanted = OFlags::from_bits_retain(kept.cast_unsigned()) | OFlags::CLOEXEC;
                let opened = self.open(path, wanted)?;
                same(&opened, OsStr::new(""), held.was)?;
                rustix::fs::ftruncate(&file, 0)?;
                return Ok(Done::Opened(opened, flags & libc::O_CLOEXEC != 0));
            }
        }
        Ok(Done::Nothing)
    }

    /// Why the kernel would say no to the agent, as far as that can be told without trying.
    fn could(&self, held: &Held) -> Result<(), Errno> {
        match &held.deed {
            Deed::Remove { path, flags } => {
                let (directory, name) = self.entry(path)?;
                may_write(&directory, Access::WRITE_OK | Access::EXEC_OK)?;
                if flags.contains(AtFlags::REMOVEDIR) {
                    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    // One that cannot be read may be empty.
                    if let Ok(found) = rustix::fs::openat(&directory, name, flags, Mode::empty()) {
                        is_empty(&found)?;
                    }
                }
                Ok(())
            }
            Deed::Rename { from, onto, .. } => [from, onto]
                .into_iter()
                .try_for_each(|path| may_write(&self.entry(path)?.0, Access::WRITE_OK | Access::EXEC_OK)),
            Deed::Truncate { path, .. } | Deed::Open { path, .. } => {
                may_write(&self.open(path, OFlags::PATH | OFlags::CLOEXEC)?, Access::WRITE_OK)
            }
        }
    }

    fn entry<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::BUSY) };
        Ok((self.open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?, name))
    }

    fn writable(&self, path: &Path, was: Identity) -> Result<OwnedFd, Errno> {
        let file = self.open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?;
        same(&file, OsStr::new(""), was)?;
        Ok(file)
    }

    /// The path was resolved when it was judged: a link in it now is another path.
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        loop {
            match rustix::fs::openat2(self.view.root(), path, flags, Mode::empty(), resolve) {
                // Something was renamed meanwhile.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
    }
}

/// Asks the kernel, with the agent's identity and through the agent's mount.
fn may_write(object: &OwnedFd, access: Access) -> Result<(), Errno> {
    let link = format!("/proc/self/fd/{}", object.as_raw_fd());
    rustix::fs::accessat(CWD, link, access, AtFlags::EACCESS)
}

fn is_empty(directory: &OwnedFd) -> Result<(), Errno> {
    for entry in rustix::fs::Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Err(Errno::NOTEMPTY);
        }
    }
    Ok(())
}

/// What was judged has been exchanged for something else: that was not allowed.
fn same(directory: &OwnedFd, name: &OsStr, was: Identity) -> Result<(), Errno> {
    if Thing::of(directory, name)?.identity == was { Ok(()) } else { Err(Errno::PERM) }
}

/// A signal waits that has a handler, or that stops the task. What kills it ends the call by itself.
///
/// [`RESTART`] is for the kernel's eyes: it may be given only to the task that will handle the signal. One that is for the whole process
/// goes to its first thread where that takes it; for the others it may be somebody else's, and then the call waits on.
fn is_interrupted(task: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{task}/status")) else { return false };
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
    };
    let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let stops = stops.iter().fold(0, |set, signal| set | 1_u64 << (signal - 1));
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")).map(str::trim);
    let shared = if leader == Some(task.to_string().as_str()) { mask("ShdPnd:") } else { 0 };
    let pending = mask("SigPnd:") | shared;
    pending & !mask("SigBlk:") & !mask("SigIgn:") & (mask("SigCgt:") | stops) != 0
}

/// `SECCOMP_IOCTL_NOTIF_ADDFD`
const ADDFD: libc::Ioctl = 0x4018_2103;
/// `SECCOMP_ADDFD_FLAG_SEND`, Linux 5.14.
const ADDFD_SEND: u32 = 2;
