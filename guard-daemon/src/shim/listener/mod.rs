//! Answers trapped calls, on the thread that receives them.
//!
//! Every call goes on: the mount view and Landlock refuse what is to be refused, on the kernel's own copy of the arguments.
//! What this thread reads from an agent's memory can change behind its back, so it is good for the record and never for a verdict.

mod call;
mod object;

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use guard_proto::v1::{FileChange, Observation, UnixConnect, observation::Act};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::{
    call::{Call, Object, Place, decode},
    object::{View, host_has, read_memory},
};
use super::report::{Reports, now};

const MECHANISM: &str = "mount view";

/// The seccomp listener of one agent.
pub(super) struct Listener {
    descriptor: OwnedFd,
    view: View,
    worktree: PathBuf,
    reports: Arc<Reports>,
}

impl Listener {
    /// `root` is the root directory of the agent's view.
    pub(super) fn new(descriptor: OwnedFd, root: OwnedFd, worktree: PathBuf, reports: Arc<Reports>) -> Self {
        Self { descriptor, view: View::new(root), worktree, reports }
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
            let seen = self.look(&call);
            let answer = libc::seccomp_notif_resp {
                id: call.id,
                val: 0,
                error: 0,
                flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            };
            // Gone callers need no answer.
            // SAFETY: as above.
            unsafe { libc::ioctl(self.descriptor.as_raw_fd(), SEND, &raw const answer) };
            if let Some(mut observation) = seen {
                observation.latency_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.reports.observe(key_of(&observation), observation);
            }
        }
    }

    /// Whether the last process under the filter has ended.
    fn is_over(&self) -> bool {
        let mut ready = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ready, Some(&now)).is_ok() && ready[0].revents().contains(PollFlags::HUP)
    }

    /// What there is to say about a call. Everything that needs the caller's state is asked before it goes on.
    fn look(&self, call: &libc::seccomp_notif) -> Option<Observation> {
        let act = match decode(call.data.nr.into(), &call.data.args)? {
            Call::Change { operation, place, object, other } => {
                self.change(call.pid, operation, place, object, other)?
            }
            Call::Connect { address, length } => self.connect(call.pid, address, length)?,
        };
        let (effect, strength) = match &act {
            Act::Unix(connect) if connect.path.starts_with(b"@") => ("none", "observed"),
            Act::Unix(connect) if self.view.has_socket(Path::new(OsStr::from_bytes(&connect.path))) => {
                ("done", "observed")
            }
            _ => ("fenced", "enforced"),
        };
        let process = Process::of(call.pid);
        // The task may have died, and its number be another's by now.
        let id = call.id;
        // SAFETY: the kernel reads one number.
        if unsafe { libc::ioctl(self.descriptor.as_raw_fd(), ID_VALID, &raw const id) } != 0 {
            return None;
        }
        Some(Observation {
            time_ns: now(),
            pid: process.pid,
            parent_pid: process.parent,
            exe: process.exe,
            effect: effect.to_owned(),
            mechanism: if effect == "fenced" { MECHANISM } else { "seccomp" }.to_owned(),
            strength: strength.to_owned(),
            act: Some(act),
            ..Observation::default()
        })
    }

    /// A change that the view refuses; others are not told here.
    fn change(
        &self,
        task: u32,
        operation: &'static str,
        place: Place,
        object: Object,
        other: Option<Place>,
    ) -> Option<Act> {
        let first = self.view.find(task, place, object)?;
        let second = other.and_then(|place| self.view.find(task, place, Object::Parent));
        // A link changes only where the new name is; a rename changes both directories.
        let fenced =
            first.fenced || operation == "rename" && second.as_ref().is_some_and(|found| found.fenced);
        fenced.then(|| {
            Act::File(FileChange {
                operation: if first.fresh { "create" } else { operation }.to_owned(),
                inside_worktree: first.path.starts_with(&self.worktree),
                path: first.path.into_os_string().into_vec(),
                other: second.map(|found| found.path.into_os_string().into_vec()).unwrap_or_default(),
            })
        })
    }

    /// A connect to a Unix socket that exists, here or only outside of the view.
    fn connect(&self, task: u32, address: u64, length: u64) -> Option<Act> {
        let length = usize::try_from(length).ok()?.min(size_of::<libc::sockaddr_un>());
        let bytes = read_memory(task, address, length).ok()?;
        let (family, path) = bytes.split_first_chunk::<2>()?;
        if i32::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX || path.is_empty() {
            return None;
        }
        let path = if path[0] == 0 {
            [b"@", &path[1..]].concat()
        } else {
            let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
            let path = Path::new(OsStr::from_bytes(&path[..end]));
            // Many programs ask for sockets that no host of today has; that is no try at anything.
            if !self.view.has_socket(path) && !host_has(path) {
                return None;
            }
            path.as_os_str().as_bytes().to_vec()
        };
        Some(Act::Unix(UnixConnect { path }))
    }
}

/// What makes two tries alike.
fn key_of(observation: &Observation) -> Vec<u8> {
    match &observation.act {
        Some(Act::File(change)) => [change.operation.as_bytes(), &change.path, b"\0", &change.other].concat(),
        Some(Act::Unix(connect)) => [b"connect", connect.path.as_slice()].concat(),
        _ => Vec::new(),
    }
}

/// Who made a call.
struct Process {
    pid: u32,
    parent: u32,
    exe: Vec<u8>,
}

impl Process {
    fn of(task: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        let exe = std::fs::read_link(format!("/proc/{task}/exe")).unwrap_or_default();
        Self {
            pid: field("Tgid:").unwrap_or(task),
            parent: field("PPid:").unwrap_or(0),
            exe: exe.into_os_string().into_vec(),
        }
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
