//! Answers trapped calls, on the thread that receives them.
//!
//! Nearly every call goes on: the mount view and Landlock refuse what is to be refused, on the kernel's own copy of the arguments.
//! What this thread reads from an agent's memory can change behind its back, so it is good for the record and never for the
//! verdict on a call that goes on. One that does away with what is older than the session does not: [`held`] asks, and does what
//! was asked for in its stead. Nor does this thread know how a call ends: a [`Note`] says how to find out, and [`notes`] does, on a thread that no agent waits for.

mod call;
mod held;
pub(super) mod notes;
pub(super) mod object;
pub(super) mod thing;

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::OsStr,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use guard_proto::v1::{FileChange, Observation, UnixConnect, observation::Act};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, FileType},
};

use self::{
    call::{Call, Object, Place, RENAME_NEW, decode},
    held::{Deed, Held, Holder},
    notes::{Note, Notes},
    object::{Found, View, host_has, read_memory},
    thing::{Check, coarse_now},
};
use super::{asks::Asks, report::now};
use crate::sandbox::seccomp;

/// How long a process is known by its number alone.
const KNOWN_FOR: Duration = Duration::from_secs(1);
/// Processes that are known at once.
const KNOWN: usize = 1024;

/// The seccomp listener of one agent.
pub(super) struct Listener {
    descriptor: Arc<OwnedFd>,
    view: Arc<View>,
    worktree: PathBuf,
    /// When the session began, by the file systems' clock.
    since: u64,
    notes: Arc<Notes>,
    holder: Option<Arc<Holder>>,
    processes: RefCell<HashMap<u32, (Instant, u32, u32)>>,
}

/// What a call is, and how to find out whether it was done.
struct Seen {
    act: Act,
    effect: &'static str,
    check: Check,
    held: Option<Held>,
}

impl Listener {
    /// `since` is when the session began.
    pub(super) fn new(
        descriptor: OwnedFd,
        view: Arc<View>,
        worktree: PathBuf,
        since: u64,
        notes: Arc<Notes>,
        asks: Arc<Asks>,
    ) -> Self {
        let descriptor = Arc::new(descriptor);
        let holder = seccomp::holds().then(|| {
            Arc::new(Holder {
                descriptor: Arc::clone(&descriptor),
                view: Arc::clone(&view),
                asks,
                notes: Arc::clone(&notes),
                waiting: AtomicUsize::new(0),
            })
        });
        Self { descriptor, view, worktree, since, notes, holder, processes: RefCell::default() }
    }

    /// Serves until the agent has ended.
    pub(super) fn serve_on_a_thread(self) -> io::Result<()> {
        // Where the kernel has it (6.6), caller and listener change places on one CPU.
        let flags: u64 = 1;
        // SAFETY: the kernel takes the flags by value.
        unsafe { libc::ioctl(self.descriptor.as_raw_fd(), SET_FLAGS, flags) };
        std::thread::Builder::new()
            .name("listener".to_owned())
            .stack_size(128 << 10)
            .spawn(move || self.serve())?;
        Ok(())
    }

    fn serve(&self) {
        loop {
            // SAFETY: all-zero is what the kernel asks for.
            let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            // SAFETY: the structure is as large as the request says.
            if unsafe { libc::ioctl(self.descriptor.as_raw_fd(), RECEIVE, &raw mut call) } != 0 {
                match io::Error::last_os_error().raw_os_error() {
                    // The caller died or was interrupted between its call and us; or nobody is left who could call,
                    // which newer kernels tell by the same error, at once and for ever.
                    Some(libc::ENOENT | libc::EINTR) if !self.is_over() => continue,
                    _ => return,
                }
            }
            let started = Instant::now();
            self.notes.begin();
            let seen = self.look(&call);
            let seen = match (seen, &self.holder) {
                (Some((note, Some(held))), Some(holder)) => {
                    holder.take(call, note, held);
                    continue;
                }
                (seen, _) => seen.map(|(note, _)| note),
            };
            let answer = libc::seccomp_notif_resp {
                id: call.id,
                val: 0,
                error: 0,
                flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            };
            // Gone callers need no answer.
            // SAFETY: as above.
            unsafe { libc::ioctl(self.descriptor.as_raw_fd(), SEND, &raw const answer) };
            if let Some(mut note) = seen {
                note.observation.latency_us =
                    u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.notes.add(note);
            }
            self.notes.end();
        }
    }

    /// Whether the last process under the filter has ended.
    fn is_over(&self) -> bool {
        let mut ready = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ready, Some(&now)).is_ok() && ready[0].revents().contains(PollFlags::HUP)
    }

    /// What there is to say about a call. Everything that needs the caller's state is asked before it goes on.
    fn look(&self, call: &libc::seccomp_notif) -> Option<(Note, Option<Held>)> {
        let moment = coarse_now();
        let seen = match decode(call.data.nr.into(), &call.data.args)? {
            Call::Change { operation, place, object, other } => {
                self.change(call.pid, operation, place, object, other, call.data.args[1])?
            }
            Call::Connect { address, length } => self.connect(call.pid, address, length)?,
        };
        let exe = std::fs::read_link(format!("/proc/{}/exe", call.pid)).unwrap_or_default();
        let (pid, parent_pid) = self.process(call.pid);
        // The task may have died, and its number be another's by now.
        let id = call.id;
        // SAFETY: the kernel reads one number.
        if unsafe { libc::ioctl(self.descriptor.as_raw_fd(), ID_VALID, &raw const id) } != 0 {
            return None;
        }
        let fenced = seen.effect == "fenced";
        let note = Note {
            observation: Observation {
                time_ns: now(),
                pid,
                parent_pid,
                exe: exe.into_os_string().into_vec(),
                effect: seen.effect.to_owned(),
                mechanism: if fenced { "mount view" } else { "seccomp" }.to_owned(),
                strength: if fenced { "enforced" } else { "observed" }.to_owned(),
                act: Some(seen.act),
                ..Observation::default()
            },
            check: seen.check,
            moment,
        };
        Some((note, seen.held))
    }

    /// The process that a task belongs to, and its parent.
    fn process(&self, task: u32) -> (u32, u32) {
        let mut known = self.processes.borrow_mut();
        if let Some((since, pid, parent)) = known.get(&task)
            && since.elapsed() < KNOWN_FOR
        {
            return (*pid, *parent);
        }
        if known.len() >= KNOWN {
            known.clear();
        }
        let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        let (pid, parent) = (field("Tgid:").unwrap_or(task), field("PPid:").unwrap_or(0));
        known.insert(task, (Instant::now(), pid, parent));
        (pid, parent)
    }

    /// A change that the view refuses, or one of a file that does not belong to this agent alone.
    fn change(
        &self,
        task: u32,
        operation: &'static str,
        place: Place,
        object: Object,
        other: Option<Place>,
        length: u64,
    ) -> Option<Seen> {
        let first = self.view.find(task, place, object)?;
        let second = other.and_then(|place| self.view.find(task, place, Object::Parent));
        // A link changes only where the new name is; a rename changes both directories.
        let both = matches!(operation, "rename" | RENAME_NEW | "exchange");
        let fenced = first.fenced || both && second.as_ref().is_some_and(|found| found.fenced);
        if first.private && !fenced || cannot_be(operation, &first, second.as_ref()) {
            return None;
        }
        let operation = match operation {
            _ if first.fresh => "create",
            // There is nothing to lose in it.
            RENAME_NEW => "rename",
            "truncate" if first.thing.is_some_and(|thing| thing.size == 0) => "write",
            operation => operation,
        };
        let lost = match operation {
            "unlink" | "rmdir" | "truncate" => first.thing,
            // Two names of one thing: nothing happens.
            "rename" => second
                .as_ref()
                .and_then(|found| found.thing)
                .filter(|thing| first.thing.is_none_or(|moved| moved.identity != thing.identity)),
            _ => None,
        };
        let check = match (operation, lost, &second) {
            _ if fenced => Check::Known,
            ("unlink" | "rmdir", Some(thing), _) => {
                Check::Gone { path: first.path.clone(), was: thing.identity }
            }
            ("rename", Some(thing), Some(second)) => {
                Check::Gone { path: second.path.clone(), was: thing.identity }
            }
            ("rename" | "exchange", _, Some(second)) => Check::Changed { path: second.path.clone() },
            ("write", ..) => Check::Writable { path: first.path.clone() },
            _ => Check::Changed { path: first.path.clone() },
        };
        let identity = lost.or(first.thing).map(|thing| thing.identity);
        let inside = |path: &Path| path.starts_with(&self.worktree);
        let existed_before = lost.is_some_and(|thing| thing.existed_before(self.since));
        let inside_both = inside(&first.path) && second.as_ref().is_none_or(|found| inside(&found.path));
        let free = inside_both && self.holder.as_ref().is_some_and(|holder| holder.asks.is_free());
        let held = lost.filter(|_| existed_before && !fenced && !free).and_then(|thing| {
            let path = first.path.clone();
            let deed = match (operation, object, &second) {
                ("unlink", ..) => Deed::Remove { path, flags: AtFlags::empty() },
                ("rmdir", ..) => Deed::Remove { path, flags: AtFlags::REMOVEDIR },
                ("rename", _, Some(second)) => Deed::Rename {
                    from: path,
                    moved: first.thing.map(|thing| thing.identity),
                    onto: second.path.clone(),
                },
                ("truncate", Object::Opened { flags }, _) => Deed::Open { path, flags },
                ("truncate", ..) => Deed::Truncate { path, length },
                _ => return None,
            };
            Some(Held { deed, was: thing.identity })
        });
        let change = FileChange {
            operation: operation.to_owned(),
            inside_worktree: inside(&first.path),
            other_inside_worktree: second.as_ref().is_some_and(|found| inside(&found.path)),
            path: first.path.into_os_string().into_vec(),
            other: second.map(|found| found.path.into_os_string().into_vec()).unwrap_or_default(),
            inode: identity.map_or(0, |identity| identity.inode),
            device: identity.map_or(0, |identity| identity.device),
            existed_before,
            objects: 0,
        };
        Some(Seen { act: Act::File(change), effect: if fenced { "fenced" } else { "done" }, check, held })
    }

    /// A connect to a Unix socket that exists, here or only outside of the view.
    fn connect(&self, task: u32, address: u64, length: u64) -> Option<Seen> {
        let length = usize::try_from(length).ok()?.min(size_of::<libc::sockaddr_un>());
        let bytes = read_memory(task, address, length).ok()?;
        let (family, path) = bytes.split_first_chunk::<2>()?;
        if i32::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX || path.is_empty() {
            return None;
        }
        let (path, effect) = if path[0] == 0 {
            ([b"@", &path[1..]].concat(), "none")
        } else {
            let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
            let path = Path::new(OsStr::from_bytes(&path[..end]));
            // Many programs ask for sockets that no host of today has; that is no try at anything.
            let here = self.view.has_socket(path);
            if !here && !host_has(path) {
                return None;
            }
            (path.as_os_str().as_bytes().to_vec(), if here { "done" } else { "fenced" })
        };
        Some(Seen { act: Act::Unix(UnixConnect { path }), effect, check: Check::Known, held: None })
    }
}

/// Whether the kernel will say no for reasons that have nothing to do with guard.
fn cannot_be(operation: &str, found: &Found, other: Option<&Found>) -> bool {
    match (operation, found.thing) {
        (RENAME_NEW, Some(_)) => other.is_some_and(|other| other.thing.is_some()),
        ("mkdir" | "mknod" | "symlink" | "link", there) => there.is_some(),
        ("unlink" | "rmdir" | "rename" | RENAME_NEW | "exchange", None) => true,
        ("unlink", Some(thing)) => thing.kind == FileType::Directory,
        ("rmdir", Some(thing)) => thing.kind != FileType::Directory,
        _ => false,
    }
}

/// `SECCOMP_IOCTL_NOTIF_RECV`
const RECEIVE: libc::Ioctl = 0xc050_2100;
/// `SECCOMP_IOCTL_NOTIF_SEND`
const SEND: libc::Ioctl = 0xc018_2101;
/// `SECCOMP_IOCTL_NOTIF_ID_VALID`
const ID_VALID: libc::Ioctl = 0x4008_2102;
/// `SECCOMP_IOCTL_NOTIF_SET_FLAGS`
const SET_FLAGS: libc::Ioctl = 0x4008_2104;
