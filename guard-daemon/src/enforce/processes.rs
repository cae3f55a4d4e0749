//! What is remembered of the agents' processes, for whatever knows only a number: its program, its parent, whose it is. An end is
//! remembered for a while, since what a short process did is often looked at when it is gone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guard_common::event::Header;

/// Processes that are remembered.
const REMEMBERED: usize = 65_536;
/// How long an ended one is.
const AFTER_ITS_END: Duration = Duration::from_secs(5);

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) exe: Vec<u8>,
    pub(crate) parent: u32,
    /// Number of its agent, 0 if that is not known.
    pub(crate) agent: u32,
    ended: Option<Instant>,
}

impl Process {
    /// A process below the guard root that was just seen.
    pub(crate) fn of(exe: Vec<u8>, header: &Header) -> Self {
        Self { exe, parent: header.parent, agent: header.agent, ended: None }
    }
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<HashMap<u32, Process>>);

impl Processes {
    pub(crate) fn get(&self, pid: u32) -> Option<Process> {
        self.lock().get(&pid).cloned()
    }

    /// Remembers one, if there is room; a number that is used again means the new process.
    pub(crate) fn insert(&self, pid: u32, process: Process) {
        let mut all = self.lock();
        if all.len() >= REMEMBERED {
            forget(&mut all);
        }
        if all.len() < REMEMBERED || all.contains_key(&pid) {
            all.insert(pid, process);
        }
    }

    pub(crate) fn ended(&self, pid: u32) {
        if let Some(process) = self.lock().get_mut(&pid) {
            process.ended = Some(Instant::now());
        }
    }

    /// Forgets those that have ended long ago.
    pub(crate) fn tidy(&self) {
        forget(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Process>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget(all: &mut HashMap<u32, Process>) {
    all.retain(|_, process| process.ended.is_none_or(|ended| ended.elapsed() < AFTER_ITS_END));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_remembered_and_a_number_used_again_is_another_process() {
        let processes = Processes::default();
        let of = |exe: &[u8], agent| Process::of(exe.to_vec(), &Header { agent, ..Header::default() });
        processes.insert(7, of(b"/bin/cat", 3));
        processes.ended(7);
        processes.tidy();
        assert_eq!(
            processes.get(7).map(|process| (process.exe, process.agent)),
            Some((b"/bin/cat".to_vec(), 3))
        );
        processes.insert(7, of(b"/bin/ls", 4));
        assert_eq!(processes.get(7), Some(of(b"/bin/ls", 4)));
        assert_eq!(processes.get(8), None);
    }
}
