//! From what the listener saw to what guardd is told, on a thread that no agent waits for.
//!
//! A note waits a moment, then its check tells whether the call did what it was to do; what failed is not told. Losses of
//! files that are older than the session, and what was refused, are told one by one. Ordinary changes come by the thousand: of
//! the same change of the same file within a second the first is told and then the number of the rest, and beyond so many
//! different ones a line a directory.

use std::{
    collections::{HashMap, VecDeque},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use guard_proto::v1::{Observation, observation::Act};

use super::{object::View, thing::Check};
use crate::shim::report::Reports;

/// Notes that may wait; what comes beyond is counted and told as lost.
const WAITING: usize = 16_384;
/// When a check is made, counted from the call; a call that has not come about by the last has failed.
const TRIES: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(100), Duration::from_millis(1000)];
/// How long the note of an agent's last call may take to come.
const LAST_NOTE: Duration = Duration::from_millis(200);
/// Ordinary changes that are alike are told together in this time.
const WINDOW: Duration = Duration::from_secs(1);
/// Different ordinary changes that are told by name in one window.
const NAMED: usize = 100;
/// Different directories that are told by name in one window; what is elsewhere is told as done in the worktree.
const DIRECTORIES: usize = 100;

/// One thing that an agent was about to do.
pub(super) struct Note {
    pub(super) observation: Observation,
    pub(super) check: Check,
    /// By the file systems' clock: the call did nothing before.
    pub(super) moment: u64,
}

/// The way to the thread.
pub(in crate::shim) struct Notes {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Calls in hand, of which a note may come.
    busy: AtomicUsize,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    came: Condvar,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Note>,
    asleep: bool,
    stop: bool,
    lost: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes {
    pub(in crate::shim) fn start(
        view: Arc<View>,
        reports: Arc<Reports>,
        worktree: &Path,
    ) -> std::io::Result<Self> {
        let worktree = worktree.as_os_str().as_bytes().to_vec();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("notes".to_owned())
            .stack_size(128 << 10)
            .spawn(move || Teller::new(own, view, reports, worktree).run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), busy: AtomicUsize::new(0) })
    }

    /// Never waits, but for the other end to take its hand off the queue.
    pub(super) fn add(&self, note: Note) {
        let mut inner = self.shared.lock();
        if inner.queue.len() >= WAITING {
            inner.lost += 1;
            return;
        }
        inner.queue.push_back(note);
        if std::mem::take(&mut inner.asleep) {
            self.shared.came.notify_one();
        }
    }

    /// A call is taken in hand.
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Ordering::AcqRel);
    }

    /// A call is dealt with, and its note, if there is one, added.
    pub(super) fn end(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// Tells what there is and ends; the agent has ended.
    pub(in crate::shim) fn finish(&self) {
        let since = Instant::now();
        while self.busy.load(Ordering::Acquire) > 0 && since.elapsed() < LAST_NOTE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.lock().stop = true;
        self.shared.came.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// A note whose check has not said yes yet.
struct Pending {
    note: Note,
    came: Instant,
    tries: usize,
}

struct Teller {
    shared: Arc<Shared>,
    view: Arc<View>,
    reports: Arc<Reports>,
    pending: VecDeque<Pending>,
    window: Window,
}

impl Teller {
    fn new(shared: Arc<Shared>, view: Arc<View>, reports: Arc<Reports>, rest: Vec<u8>) -> Self {
        Self { shared, view, reports, pending: VecDeque::new(), window: Window::new(rest) }
    }

    fn run(&mut self) {
        while self.round() {}
    }

    /// Waits for something to do and does it; `false` at the end.
    fn round(&mut self) -> bool {
        let (taken, lost, stop) = self.take();
        if lost > 0 {
            self.reports.lose(lost);
        }
        let now = Instant::now();
        self.pending.extend(taken.into_iter().map(|note| Pending { note, came: now, tries: 0 }));
        for _ in 0..self.pending.len() {
            let Some(mut pending) = self.pending.pop_front() else { break };
            if !stop && pending.came.elapsed() < TRIES[pending.tries] {
                self.pending.push_back(pending);
                continue;
            }
            if self.view.came_about(&pending.note.check, pending.note.moment) {
                self.tell(pending.note);
                continue;
            }
            pending.tries += 1;
            if pending.tries < TRIES.len() && !stop {
                self.pending.push_back(pending);
            }
        }
        if stop || self.window.is_over() {
            for observation in self.window.close() {
                self.reports.tell(observation);
            }
        }
        !stop
    }

    /// Sleeps while there is nothing to do; takes what has come a moment after it came, so that a busy agent wakes this
    /// thread rarely.
    fn take(&self) -> (VecDeque<Note>, u64, bool) {
        let mut inner = self.shared.lock();
        while inner.queue.is_empty() && !inner.stop && self.pending.is_empty() && self.window.is_empty() {
            inner.asleep = true;
            inner = self.shared.came.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        if !inner.stop {
            let wait = if inner.queue.is_empty() { 5 * TRIES[0] } else { TRIES[0] };
            inner = self.shared.came.wait_timeout(inner, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        (std::mem::take(&mut inner.queue), std::mem::take(&mut inner.lost), inner.stop)
    }

    fn tell(&mut self, note: Note) {
        let Note { observation, check, .. } = note;
        match &observation.act {
            Some(Act::File(change)) if check != Check::Known && !change.existed_before => {
                if let Some(first) = self.window.add(observation) {
                    self.reports.tell(first);
                }
            }
            _ if check == Check::Known => self.reports.observe(key_of(&observation), observation),
            _ => self.reports.tell(observation),
        }
    }
}

/// What makes two acts alike.
fn key_of(observation: &Observation) -> Vec<u8> {
    match &observation.act {
        Some(Act::File(change)) => [change.operation.as_bytes(), &change.path, b"\0", &change.other].concat(),
        Some(Act::Unix(connect)) => [b"connect", connect.path.as_slice()].concat(),
        _ => Vec::new(),
    }
}

/// The ordinary changes of about a second.
struct Window {
    since: Instant,
    /// Told already, with the last of those after the first and their number.
    named: HashMap<Vec<u8>, Option<Observation>>,
    /// By operation and directory: the last, and how many there were.
    directories: HashMap<Vec<u8>, (Observation, u64)>,
    /// The directory that stands for those that are not told.
    rest: Vec<u8>,
}

impl Window {
    fn new(rest: Vec<u8>) -> Self {
        Self { since: Instant::now(), named: HashMap::new(), directories: HashMap::new(), rest }
    }

    fn is_empty(&self) -> bool {
        self.named.is_empty() && self.directories.is_empty()
    }

    fn is_over(&self) -> bool {
        !self.is_empty() && self.since.elapsed() >= WINDOW
    }

    /// Gives back what is to be told at once.
    fn add(&mut self, mut observation: Observation) -> Option<Observation> {
        if self.is_empty() {
            self.since = Instant::now();
        }
        let key = key_of(&observation);
        if let Some(held) = self.named.get_mut(&key) {
            observation.count = held.as_ref().map_or(0, |held| held.count) + 1;
            *held = Some(observation);
            return None;
        }
        if self.named.len() < NAMED {
            self.named.insert(key, None);
            return Some(observation);
        }
        let directory = if self.directories.len() < DIRECTORIES {
            directory_of(&observation)?
        } else {
            self.rest.clone()
        };
        let operation = operation_of(&observation);
        let key = [operation.as_bytes(), b"\0", &directory].concat();
        let number = self.directories.get(&key).map_or(0, |(_, number)| *number) + 1;
        if let Some(Act::File(change)) = &mut observation.act {
            change.path = directory;
            change.other = Vec::new();
            (change.inode, change.device) = (0, 0);
            change.objects = number;
        }
        self.directories.insert(key, (observation, number));
        None
    }

    /// Everything that was held back.
    fn close(&mut self) -> Vec<Observation> {
        let named = std::mem::take(&mut self.named).into_values().flatten();
        // The last of them is told too, so those before it are one less.
        let named = named.map(|held| Observation { count: held.count - 1, ..held });
        let directories = std::mem::take(&mut self.directories).into_values().map(|(last, _)| last);
        named.chain(directories).collect()
    }
}

fn operation_of(observation: &Observation) -> String {
    match &observation.act {
        Some(Act::File(change)) => change.operation.clone(),
        _ => String::new(),
    }
}

/// The directory that a change is in.
fn directory_of(observation: &Observation) -> Option<Vec<u8>> {
    let Some(Act::File(change)) = &observation.act else { return None };
    let path = Path::new(OsStr::from_bytes(&change.path));
    Some(path.parent()?.as_os_str().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use guard_proto::v1::FileChange;

    use super::*;

    fn write(path: &str) -> Observation {
        let change = FileChange {
            operation: "write".to_owned(),
            path: path.as_bytes().to_vec(),
            inode: 7,
            ..FileChange::default()
        };
        Observation { act: Some(Act::File(change)), ..Observation::default() }
    }

    fn lines(window: &mut Window) -> Vec<(String, u64, u64)> {
        let mut lines: Vec<_> = window
            .close()
            .into_iter()
            .map(|observation| {
                let Some(Act::File(change)) = observation.act else { panic!("a change") };
                (String::from_utf8(change.path).expect("text"), observation.count, change.objects)
            })
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn the_same_change_again_is_told_once_more_with_its_number() {
        let mut window = Window::new(b"/w".to_vec());
        assert!(window.add(write("/w/a")).is_some());
        for _ in 0..3 {
            assert!(window.add(write("/w/a")).is_none());
        }
        assert!(window.add(write("/w/b")).is_some());
        assert_eq!(lines(&mut window), [("/w/a".to_owned(), 2, 0)], "one, two before this one, and this one");
        assert!(window.is_empty());
    }

    /// A build floods nobody, and every file of it is counted.
    #[test]
    fn many_changes_become_a_line_a_directory() {
        let mut window = Window::new(b"/w".to_vec());
        let told = (0..100_000)
            .filter(|number| window.add(write(&format!("/w/{}/{number}", number % 7))).is_some())
            .count();
        assert_eq!(told, NAMED);
        let lines = lines(&mut window);
        assert_eq!(lines.len(), 7);
        assert_eq!(lines.iter().map(|(_, _, objects)| objects).sum::<u64>(), 100_000 - NAMED as u64);
        let told =
            (0..10_000).filter(|number| window.add(write(&format!("/w/x/{number}/f"))).is_some()).count();
        let lines = self::lines(&mut window);
        assert!(lines.len() <= DIRECTORIES + 1, "{}", lines.len());
        assert_eq!(lines.iter().map(|(_, _, objects)| objects).sum::<u64>(), 10_000 - told as u64);
        assert!(lines.iter().any(|(path, ..)| path == "/w"), "{lines:?}");
    }
}
