//! What the shim tells guardd. It never makes an agent wait: what guardd does not take is counted and told later.

use std::{
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use guard_proto::v1::{Loss, Observation, observation::Act};
use rustix::net::SendFlags;

use crate::launch::wire::{self, DaemonEvent, ToDaemon};

/// The line to guardd, whichever guardd that is.
pub(super) struct Reports {
    line: Mutex<Line>,
}

struct Line {
    control: OwnedFd,
    /// Reports that found no room, and the numbers of the first and the last.
    lost: Option<(u64, u64, u64)>,
    next: u64,
}

impl Reports {
    pub(super) fn new(control: OwnedFd) -> Self {
        Self { line: Mutex::new(Line { control, lost: None, next: 0 }) }
    }

    /// Another guardd takes over.
    pub(super) fn replace(&self, control: OwnedFd) {
        self.lock().control = control;
    }

    /// Sends without waiting; what finds no room is counted.
    pub(super) fn send(&self, event: DaemonEvent) {
        let mut line = self.lock();
        let number = line.next;
        line.next += 1;
        line.tell_loss();
        let counts = matches!(event, DaemonEvent::Observed(_));
        if line.send(event, SendFlags::DONTWAIT).is_err() && counts {
            let (count, first) = line.lost.map_or((0, number), |(count, first, _)| (count, first));
            line.lost = Some((count + 1, first, number));
        }
    }

    /// Sends the last report, and waits for room.
    pub(super) fn finish(&self, event: DaemonEvent) {
        let mut line = self.lock();
        line.tell_loss();
        // Without a guardd there is nobody to tell; the next one finds the cgroup empty.
        let _ = line.send(event, SendFlags::empty());
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
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
