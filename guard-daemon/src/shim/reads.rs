//! Which secrets an agent opens: fanotify marks where secrets lie, and nowhere else.
//!
//! - Covers over hidden secrets are mounts of the agent's own: their marks see nobody else. Opening a cover is a try at what lies
//!   below it; the cover is empty.
//! - Secrets in the worktree and in what the launch opened are marked one by one when the agent starts. Their marks see every
//!   process, so those of others are dropped by cgroup.
//!
//! Nothing waits for these events. [`mark`] runs in the agent's first process, before the fence and before the command;
//! [`Reads`] reads in the shim.

use std::{
    collections::VecDeque,
    ffi::{CString, OsString},
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use guard_policy::{
    facts::Secrets,
    value::{ActPath, PathPattern},
};
use guard_proto::v1::{FileRead, Observation, observation::Act};
use rustix::event::{PollFd, PollFlags, poll};

use super::report::{Reports, now};
use crate::sandbox::view::{Cover, Plan, is_place_of_secrets};

/// Entries that are looked at for secrets, those of the worktree first, each tree from its top; what lies beyond is not.
const LOOKED_AT: usize = 4_000;
/// Directories that hold other people's work by the thousand.
const PASSED_BY: [&str; 5] = [".git", "node_modules", "target", ".venv", "vendor"];

/// Where a view has secrets to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watched {
    /// Covers over secrets: what is opened is empty.
    hidden: Vec<PathBuf>,
    /// Trees that the launch opened, the worktree first.
    trees: Vec<PathBuf>,
}

/// What there is to watch in a view; `named` are the places that an operator hides.
pub(super) fn watched(plan: &Plan, named: &[PathBuf], worktree: &Path) -> Watched {
    let mut watched = Watched { hidden: Vec::new(), trees: vec![worktree.to_owned()] };
    for step in plan.steps() {
        match step.cover {
            Cover::Nothing { .. } | Cover::NoFile
                if is_place_of_secrets(&step.path) || named.contains(&step.path) =>
            {
                watched.hidden.push(step.path.clone());
            }
            Cover::Tree if step.path != worktree => watched.trees.push(step.path.clone()),
            _ => {}
        }
    }
    watched
}

/// Sets the marks, as root and in the agent's view.
pub(super) fn mark(watched: &Watched, secrets: &Secrets) -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    let open = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE).cast_unsigned();
    // SAFETY: takes plain numbers.
    let group = unsafe { libc::fanotify_init(flags, open) };
    if group < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made it.
    let group = unsafe { OwnedFd::from_raw_fd(group) };
    for path in &watched.hidden {
        add(&group, libc::FAN_MARK_MOUNT, libc::FAN_OPEN | libc::FAN_ONDIR, path)?;
    }
    let mut left = LOOKED_AT;
    for path in watched.trees.iter().flat_map(|tree| secrets_below(tree, secrets, &mut left)) {
        // It may be gone by now.
        let _ = add(&group, libc::FAN_MARK_DONT_FOLLOW, libc::FAN_OPEN, &path);
    }
    Ok(group)
}

fn add(group: &OwnedFd, kind: libc::c_uint, events: u64, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let flags = libc::FAN_MARK_ADD | kind;
    // SAFETY: the path lives through the call.
    let done =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, events, libc::AT_FDCWD, path.as_ptr()) };
    // What a launch hides need not be there in a view that covers its parent.
    match done {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::NotFound => Ok(()),
            error => Err(error),
        },
    }
}

/// The secrets of one launch: the built-in ones and those that its operator named.
pub(super) fn secrets_of(patterns: &[String]) -> Secrets {
    // guard-core has read them before.
    Secrets::with(patterns.iter().filter_map(|pattern| PathPattern::parse(pattern).ok()).collect())
}

/// Files of a tree whose names say that they hold secrets, level by level.
fn secrets_below(tree: &Path, secrets: &Secrets, left: &mut usize) -> Vec<PathBuf> {
    // Patterns may be relative to the tree.
    let is_secret = |path: &Path| {
        [Some(path), path.strip_prefix(tree).ok()]
            .into_iter()
            .flatten()
            .any(|path| ActPath::parse(&path.to_string_lossy()).is_ok_and(|path| secrets.hold(&path)))
    };
    if !tree.is_dir() {
        return if is_secret(tree) { vec![tree.to_owned()] } else { Vec::new() };
    }
    let mut found = Vec::new();
    let mut directories = VecDeque::from([tree.to_owned()]);
    while let Some(directory) = directories.pop_front() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            if *left == 0 {
                return found;
            }
            *left -= 1;
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() {
                if !PASSED_BY.iter().any(|passed| entry.file_name() == *passed) {
                    directories.push_back(path);
                }
            } else if kind.is_file() && is_secret(&path) {
                found.push(path);
            }
        }
    }
    found
}

/// Reads the events of one agent.
pub(super) struct Reads {
    thread: Option<JoinHandle<()>>,
}

impl Reads {
    /// Reads on a thread until the agent's first process has ended.
    pub(super) fn start(reader: Reader, process: &OwnedFd) -> io::Result<Self> {
        let process = process.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("reads".to_owned())
            .stack_size(128 << 10)
            .spawn(move || reader.run(&process))?;
        Ok(Self { thread: Some(thread) })
    }

    /// Waits until what there is has been told; the agent has ended.
    pub(super) fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) struct Reader {
    pub(super) group: OwnedFd,
    pub(super) watched: Watched,
    pub(super) worktree: PathBuf,
    /// The cgroup that all processes of the agent are below.
    pub(super) cgroup: Option<String>,
    pub(super) reports: Arc<Reports>,
}

impl Reader {
    fn run(&self, process: &OwnedFd) {
        loop {
            let mut ready = [PollFd::new(&self.group, PollFlags::IN), PollFd::new(process, PollFlags::IN)];
            if poll(&mut ready, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
                return;
            }
            let over = !ready[1].revents().is_empty();
            self.drain();
            if over {
                return;
            }
        }
    }

    fn drain(&self) {
        const HEAD: usize = size_of::<libc::fanotify_event_metadata>();
        let mut buffer = [0_u8; 4096];
        while let Ok(read @ 1..) = rustix::io::read(&self.group, &mut buffer) {
            let mut rest = &buffer[..read];
            while rest.len() >= HEAD {
                // SAFETY: as many bytes are there, and any of them make a value; the buffer may lie anywhere.
                let event: libc::fanotify_event_metadata =
                    unsafe { std::ptr::read_unaligned(rest.as_ptr().cast()) };
                self.tell(&event);
                let length = (event.event_len as usize).clamp(HEAD, rest.len());
                rest = &rest[length..];
            }
        }
    }

    fn tell(&self, event: &libc::fanotify_event_metadata) {
        if event.mask & libc::FAN_Q_OVERFLOW != 0 {
            // Nobody knows how many; one at least.
            return self.reports.lose(1);
        }
        if event.fd < 0 {
            return;
        }
        // SAFETY: the kernel opened it for this reader.
        let file = unsafe { OwnedFd::from_raw_fd(event.fd) };
        let Ok(path) = crate::sandbox::view::path_of(std::os::fd::AsFd::as_fd(&file)) else { return };
        let pid = event.pid.unsigned_abs();
        if !self.is_the_agents(pid) {
            return;
        }
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let exe = exe.into_os_string().into_vec();
        let hidden = self.watched.hidden.iter().any(|hidden| path.starts_with(hidden));
        let inside_worktree = path.starts_with(&self.worktree);
        let path = OsString::from(path).into_vec();
        // Those that are gone may be anybody's: none of them speaks for another.
        let who = if exe.is_empty() { pid.to_ne_bytes().to_vec() } else { exe.clone() };
        let key = [b"read".as_slice(), &path, b"\0", &who].concat();
        let (effect, mechanism, strength) =
            if hidden { ("fenced", "mount view", "enforced") } else { ("done", "fanotify", "observed") };
        let observation = Observation {
            time_ns: now(),
            pid,
            exe,
            effect: effect.to_owned(),
            mechanism: mechanism.to_owned(),
            strength: strength.to_owned(),
            act: Some(Act::Read(FileRead { path, inside_worktree, hidden })),
            ..Observation::default()
        };
        self.reports.observe(key, observation);
    }

    /// Whether a process is one of the agent's. One that is gone by now may be: guardd knows, from the kernel's own reports.
    fn is_the_agents(&self, pid: u32) -> bool {
        match (cgroup_of(pid), &self.cgroup) {
            (Some(cgroup), Some(own)) => {
                cgroup.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            _ => true,
        }
    }
}

/// The path of a process's group in the unified hierarchy.
pub(super) fn cgroup_of(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::view::{Wish, hidden_of};

    #[test]
    fn secrets_of_a_tree_are_found_by_their_names() {
        let place = tempfile::tempdir().expect("a directory");
        for directory in ["a/.ssh", "node_modules/x", ".git"] {
            std::fs::create_dir_all(place.path().join(directory)).expect("a directory");
        }
        for file in [".env", "a/.ssh/id_rsa", "a/README", "node_modules/x/.env", ".git/.env", ".env.example"]
        {
            std::fs::write(place.path().join(file), "x").expect("a file");
        }
        let below = |tree: &Path, mut left: usize| {
            let mut found = secrets_below(tree, &secrets_of(&["a/READ*".to_owned()]), &mut left);
            found.sort();
            found
        };
        assert_eq!(
            below(place.path(), 100),
            [".env", "a/.ssh/id_rsa", "a/README"].map(|file| place.path().join(file))
        );
        assert_eq!(below(&place.path().join(".env"), 100), [place.path().join(".env")]);
        assert_eq!(below(place.path(), 0), Vec::<PathBuf>::new());
    }

    #[test]
    fn covers_over_secrets_are_watched_and_others_are_not() {
        let wish = |path: &str| Wish { path: path.into(), directory: true };
        let wishes = ["/home/u", "/home/u/.aws/sso", "/w"].map(wish);
        let place = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(place.path().join(".kube")).expect("a directory");
        let hidden = hidden_of(place.path(), &[], &[place.path().join(".kube/../.kube"), "/etc".into()]);
        let plan = Plan::new(&wishes, &hidden, Path::new("/w")).expect("a plan");
        let found = watched(&plan, &["/etc".into()], Path::new("/w"));
        let trees = ["/w", "/home/u", "/home/u/.aws/sso"].map(PathBuf::from);
        assert_eq!(found.trees, trees);
        assert!(
            found.hidden.contains(&"/etc".into()) && !found.hidden.contains(&"/root".into()),
            "{found:?}"
        );
    }
}
