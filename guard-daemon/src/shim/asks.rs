//! Acts that wait for a yes: asked of guardd, again every second until there is an answer, so that neither a restart on the
//! way nor a message that found no room loses one. Silence is a no.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use guard_proto::v1::{Ask, Observation, Verdict, verdict};

use super::report::Reports;
use crate::launch::wire::{self, DaemonEvent};

/// An act is asked for again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// An act of which nothing is heard for so long is refused.
const SILENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether the caller still waits.
const LOOK: Duration = Duration::from_millis(20);

/// What became of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Yes,
    No,
    /// The caller does not wait any more.
    Left,
}

/// The acts of one agent that wait.
pub(super) struct Asks {
    reports: Arc<Reports>,
    waiting: Mutex<HashMap<u64, Waiting>>,
    came: Condvar,
    next: AtomicU64,
    /// Until when nothing need be asked.
    free: Mutex<Option<Instant>>,
}

struct Waiting {
    heard: Instant,
    answer: Option<Answer>,
}

impl Asks {
    pub(super) fn new(reports: Arc<Reports>) -> Self {
        Self {
            reports,
            waiting: Mutex::default(),
            came: Condvar::new(),
            next: AtomicU64::new(1),
            free: Mutex::default(),
        }
    }

    /// Policy allows every act of this kind inside the worktree, as of a moment ago.
    pub(super) fn is_free(&self) -> bool {
        let free = *self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.is_some_and(|until| Instant::now() < until)
    }

    /// A number for an act, the next one.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks, and waits for the answer as long as somebody is asked and `waits` says that the caller still does.
    pub(super) fn ask(&self, observation: &Observation, waits: impl Fn() -> bool) -> Answer {
        let id = observation.ask;
        let say = |cancelled| {
            let ask = Ask { id, observation: Some(observation.clone()), cancelled };
            self.reports.send(DaemonEvent::Asked(ask));
        };
        self.lock().insert(id, Waiting { heard: Instant::now(), answer: None });
        say(false);
        let mut said = Instant::now();
        let mut waiting = self.lock();
        let answer = loop {
            let Some(state) = waiting.get(&id) else { break Answer::No };
            if let Some(answer) = state.answer {
                break answer;
            }
            if state.heard.elapsed() >= SILENCE {
                drop(waiting);
                say(true);
                waiting = self.lock();
                break Answer::No;
            }
            waiting = self.came.wait_timeout(waiting, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            if waiting.get(&id).is_some_and(|state| state.answer.is_some()) {
                continue;
            }
            drop(waiting);
            if !waits() {
                say(true);
                waiting = self.lock();
                break Answer::Left;
            }
            if said.elapsed() >= AGAIN {
                say(false);
                said = Instant::now();
            }
            waiting = self.lock();
        };
        waiting.remove(&id);
        answer
    }

    /// Hears answers on this line until it ends; a guardd that comes back has another.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn hear(self: &Arc<Self>, control: OwnedFd) -> std::io::Result<()> {
        let asks = Arc::clone(self);
        std::thread::Builder::new().name("answers".to_owned()).stack_size(192 << 10).spawn(move || {
            while let Ok(Some(packet)) = wire::receive::<Verdict>(&control) {
                asks.answer(&packet.message);
            }
        })?;
        Ok(())
    }

    fn answer(&self, verdict: &Verdict) {
        if verdict.free_ms > 0 {
            let until = Instant::now() + Duration::from_millis(verdict.free_ms.into());
            *self.free.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        }
        if let Some(waiting) = self.lock().get_mut(&verdict.id) {
            waiting.heard = Instant::now();
            waiting.answer = match verdict.answer() {
                verdict::Answer::Wait => return,
                verdict::Answer::Allow => Some(Answer::Yes),
                verdict::Answer::Refuse => Some(Answer::No),
            };
            self.came.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::launch::wire::ToDaemon;

    fn line() -> (Arc<Asks>, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a socket pair");
        let control = ours.try_clone().expect("a copy");
        let asks = Arc::new(Asks::new(Arc::new(Reports::new(ours))));
        asks.hear(control).expect("a thread");
        (asks, theirs)
    }

    fn asked(line: &OwnedFd) -> Ask {
        let packet = wire::receive::<ToDaemon>(line).expect("received").expect("a message");
        match packet.message.event {
            Some(DaemonEvent::Asked(ask)) => ask,
            other => panic!("{other:?}"),
        }
    }

    fn ask(asks: &Arc<Asks>) -> std::thread::JoinHandle<Answer> {
        let asks = Arc::clone(asks);
        let observation = Observation { ask: asks.number(), ..Observation::default() };
        std::thread::spawn(move || asks.ask(&observation, || true))
    }

    #[test]
    fn each_act_gets_its_own_answer() {
        let (asks, line) = line();
        let (first, second) = (ask(&asks), ask(&asks));
        let ids = [asked(&line).id, asked(&line).id];
        assert_eq!(ids.iter().sum::<u64>(), 3);
        for (id, answer) in [(2, verdict::Answer::Refuse), (1, verdict::Answer::Allow)] {
            let verdict = Verdict { id, answer: answer.into(), ..Verdict::default() };
            wire::send(&line, &verdict, &[], SendFlags::empty()).expect("sent");
        }
        let answers = [first.join().expect("an answer"), second.join().expect("an answer")];
        assert!(answers.contains(&Answer::Yes) && answers.contains(&Answer::No), "{answers:?}");
    }

    #[test]
    fn silence_is_a_no_and_waiting_is_not_silence() {
        let (asks, line) = line();
        let waiting = ask(&asks);
        let since = Instant::now();
        while since.elapsed() < SILENCE + AGAIN {
            let ask = asked(&line);
            assert!(!ask.cancelled, "somebody was asked");
            wire::send(&line, &Verdict { id: ask.id, ..Verdict::default() }, &[], SendFlags::empty())
                .expect("sent");
        }
        // From here on nobody says anything.
        while !asked(&line).cancelled {}
        assert_eq!(waiting.join().expect("an answer"), Answer::No);
    }

    #[test]
    fn a_caller_that_leaves_is_told_of() {
        let (asks, line) = line();
        let observation = Observation { ask: asks.number(), ..Observation::default() };
        assert_eq!(asks.ask(&observation, || false), Answer::Left);
        assert!(!asked(&line).cancelled);
        assert!(asked(&line).cancelled);
    }
}
