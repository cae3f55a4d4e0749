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
}

/// A try that was told lately.
struct Alike {
    told: Instant,
    /// The last of those like it that were not told yet, with their number.
    held: Option<Observation>,
}

impl Reports {
    pub(super) fn new(control: OwnedFd) -> Self {
        Self { line: Mutex::new(Line { control, lost: None, next: 0, alike: HashMap::new() }) }
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
        let number = self.next;
        self.next += 1;
        self.tell_loss();
        let counts = matches!(event, DaemonEvent::Observed(_));
        if self.send(event, SendFlags::DONTWAIT).is_err() && counts {
            let (count, first) = self.lost.map_or((0, number), |(count, first, _)| (count, first));
            self.lost = Some((count + 1, first, number));
        }
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
