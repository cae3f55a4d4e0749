//! What the shim tells guardd. It never makes an agent wait: what guardd does not take is counted and told later.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use guard_proto::v1::{Loss, Observation, observation::Act};
use rustix::net::SendFlags;

use crate::launch::wire::{self, DaemonEvent, ToDaemon};

/// Tries that are alike are told once in this time, with their number.
const ALIKE: Duration = Duration::from_secs(1);
/// Different tries that are remembered to find such as are alike.
const REMEMBERED: usize = 256;
/// How long guardd may keep a thread waiting that no agent waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The line to guardd, whichever guardd that is.
pub(super) struct Reports {
    line: Mutex<Line>,
}

struct Line {
    control: OwnedFd,
    /// Reports that found no room, and the numbers of the first and the last.
    lost: Option<(u64, u64, u64)>,
    next: u64,
    alike: HashMap<Vec<u8>, Alike>,
    /// guardd took nothing for as long as patience lasts: until it does again nobody waits for it.
    stuck: bool,
}

/// A try that was told lately.
struct Alike {
    told: Instant,
    /// The last of those like it that were not told yet, with their number.
    held: Option<Observation>,
}

impl Reports {
    pub(super) fn new(control: OwnedFd) -> Self {
        Self { line: Mutex::new(Line { control, lost: None, next: 0, alike: HashMap::new(), stuck: false }) }
    }

    /// Tells what was seen; of observations with one key only the first of each second, with the number of those before, so that
    /// an agent in a loop floods nobody.
    pub(super) fn observe(&self, key: Vec<u8>, mut observation: Observation) {
        let mut line = self.lock();
        if let Some(alike) = line.alike.get_mut(&key) {
            observation.count = alike.held.as_ref().map_or(1, |held| held.count + 1);
            if alike.told.elapsed() < ALIKE {
                alike.held = Some(observation);
                return;
            }
            *alike = Alike { told: Instant::now(), held: None };
        } else {
            if line.alike.len() >= REMEMBERED {
                line.tell_held();
            }
            line.alike.insert(key, Alike { told: Instant::now(), held: None });
        }
        line.count_and_send(DaemonEvent::Observed(observation));
    }

    /// Tells what was seen, waiting for room if there is none.
    pub(super) fn tell(&self, observation: Observation) {
        let since = Instant::now();
        let message = ToDaemon { event: Some(DaemonEvent::Observed(observation)) };
        loop {
            let mut line = self.lock();
            line.tell_loss();
            match wire::send(&line.control, &message, &[], SendFlags::DONTWAIT) {
                Ok(()) => {
                    line.next += 1;
                    line.stuck = false;
                    return;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !line.stuck => {
                    if since.elapsed() >= PATIENCE {
                        line.stuck = true;
                        return line.lose(1);
                    }
                }
                Err(_) => return line.lose(1),
            }
            drop(line);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// So many were given up before they came here.
    pub(super) fn lose(&self, count: u64) {
        self.lock().lose(count);
    }

    /// Another guardd takes over.
    pub(super) fn replace(&self, control: OwnedFd) {
        self.lock().control = control;
    }

    /// Sends without waiting; what finds no room is counted.
    pub(super) fn send(&self, event: DaemonEvent) {
        self.lock().count_and_send(event);
    }

    /// Sends the last report, and waits for room.
    pub(super) fn finish(&self, event: DaemonEvent) {
        let mut line = self.lock();
        line.tell_held();
        line.tell_loss();
        // Without a guardd there is nobody to tell; the next one finds the cgroup empty.
        let _ = line.send(event, SendFlags::empty());
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn count_and_send(&mut self, event: DaemonEvent) {
        self.tell_loss();
        let counts = matches!(event, DaemonEvent::Observed(_));
        if self.send(event, SendFlags::DONTWAIT).is_ok() {
            self.next += 1;
        } else if counts {
            self.lose(1);
        }
    }

    fn lose(&mut self, count: u64) {
        let first = self.next;
        self.next += count;
        let (before, first) = self.lost.map_or((0, first), |(before, first, _)| (before, first));
        self.lost = Some((before + count, first, self.next - 1));
    }

    /// Tells everything that was held back, and forgets what was told.
    fn tell_held(&mut self) {
        for (_, alike) in std::mem::take(&mut self.alike) {
            if let Some(held) = alike.held {
                self.count_and_send(DaemonEvent::Observed(held));
            }
        }
    }

    fn send(&self, event: DaemonEvent, flags: SendFlags) -> std::io::Result<()> {
        wire::send(&self.control, &ToDaemon { event: Some(event) }, &[], flags)
    }

    fn tell_loss(&mut self) {
        let Some((count, first_seq, last_seq)) = self.lost else { return };
        let loss = Loss { class: "file".to_owned(), count, first_seq, last_seq };
        let observation = Observation {
            time_ns: now(),
            effect: "none".to_owned(),
            mechanism: "shim".to_owned(),
            strength: "observed".to_owned(),
            act: Some(Act::Loss(loss)),
            ..Observation::default()
        };
        if self.send(DaemonEvent::Observed(observation), SendFlags::DONTWAIT).is_ok() {
            self.lost = None;
        }
    }
}

/// Nanoseconds since the Unix epoch.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
