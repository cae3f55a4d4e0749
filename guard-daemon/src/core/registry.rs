//! The agents that guard-core knows: launches that wait for their ticket, and agents that run.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use guard_proto::v1;

/// How long a prepared launch waits for its ticket.
pub const TICKET_LIFE: Duration = Duration::from_secs(10);

/// Who an agent is and when its session began; kept from preparation to the record of its end.
#[derive(Clone, Debug)]
pub struct Subject {
    pub principal: v1::Principal,
    pub worktree: Vec<u8>,
    pub started_ms: u64,
}

#[derive(Default)]
struct Inner {
    prepared: HashMap<String, (Subject, Instant)>,
    running: HashMap<String, v1::Agent>,
    /// Ended agents, so that reports that arrive late still find their principal.
    ended: Vec<(String, Subject)>,
}

/// All of them, behind one lock; every call is short.
#[derive(Default)]
pub struct Registry(Mutex<Inner>);

/// Ended agents that are remembered for late reports.
const ENDED_KEPT: usize = 256;

impl Registry {
    /// Remembers a launch until its ticket is used or has expired.
    pub fn prepare(&self, agent_id: &str, subject: Subject) {
        let mut inner = self.lock();
        inner.prepared.retain(|_, (_, since)| since.elapsed() < TICKET_LIFE);
        inner.prepared.insert(agent_id.to_owned(), (subject, Instant::now()));
    }

    /// An agent has started (or was adopted by a new guardd).
    pub fn started(&self, agent: v1::Agent) {
        let mut inner = self.lock();
        inner.prepared.remove(&agent.agent_id);
        inner.running.insert(agent.agent_id.clone(), agent);
    }

    /// An agent has ended.
    pub fn ended(&self, agent_id: &str) {
        let mut inner = self.lock();
        if let Some(agent) = inner.running.remove(agent_id) {
            let subject = subject_of(&agent);
            inner.ended.push((agent_id.to_owned(), subject));
            if inner.ended.len() > ENDED_KEPT {
                inner.ended.remove(0);
            }
        }
    }

    /// Exactly these run: what a guardd that has just attached says.
    pub fn replace(&self, agents: Vec<v1::Agent>) {
        let mut inner = self.lock();
        let gone: Vec<String> = inner
            .running
            .keys()
            .filter(|id| !agents.iter().any(|agent| &agent.agent_id == *id))
            .cloned()
            .collect();
        for id in gone {
            if let Some(agent) = inner.running.remove(&id) {
                let subject = subject_of(&agent);
                inner.ended.push((id, subject));
            }
        }
        for agent in agents {
            inner.running.insert(agent.agent_id.clone(), agent);
        }
    }

    /// Who an agent is, running, prepared or just ended.
    pub fn subject(&self, agent_id: &str) -> Option<Subject> {
        let inner = self.lock();
        inner
            .running
            .get(agent_id)
            .map(subject_of)
            .or_else(|| inner.prepared.get(agent_id).map(|(subject, _)| subject.clone()))
            .or_else(|| {
                inner.ended.iter().rev().find(|(id, _)| id == agent_id).map(|(_, subject)| subject.clone())
            })
    }

    /// The running agents, oldest first.
    pub fn list(&self) -> Vec<v1::Agent> {
        let mut agents: Vec<_> = self.lock().running.values().cloned().collect();
        agents
            .sort_by(|one, other| (one.started_ms, &one.agent_id).cmp(&(other.started_ms, &other.agent_id)));
        agents
    }

    /// Changes what is known of a running agent.
    pub fn update(&self, agent_id: &str, change: impl FnOnce(&mut v1::Agent)) {
        if let Some(agent) = self.lock().running.get_mut(agent_id) {
            change(agent);
        }
    }

    /// The running agents that a selection names, by id or by principal name; a name that fits none is an error.
    ///
    /// # Errors
    /// The first name that no running agent has.
    pub fn select(&self, selection: &v1::Selection) -> Result<Vec<v1::Agent>, String> {
        let agents = self.list();
        if selection.all {
            return Ok(agents);
        }
        let mut chosen: Vec<v1::Agent> = Vec::new();
        for name in &selection.agents {
            let before = chosen.len();
            for agent in &agents {
                let named = agent.agent_id == *name
                    || agent.principal.as_ref().is_some_and(|principal| principal.agent == *name);
                if named && !chosen.iter().any(|other| other.agent_id == agent.agent_id) {
                    chosen.push(agent.clone());
                }
            }
            if chosen.len() == before && !chosen.iter().any(|agent| agent.agent_id == *name) {
                return Err(name.clone());
            }
        }
        Ok(chosen)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn subject_of(agent: &v1::Agent) -> Subject {
    Subject {
        principal: agent.principal.clone().unwrap_or_default(),
        worktree: agent.worktree.clone(),
        started_ms: agent.started_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(id: &str, name: &str) -> v1::Agent {
        v1::Agent {
            agent_id: id.to_owned(),
            principal: Some(v1::Principal { agent: name.to_owned(), ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn a_selection_takes_ids_and_names_and_refuses_strangers() {
        let registry = Registry::default();
        registry.started(agent("a-1", "coder"));
        registry.started(agent("a-2", "coder"));
        registry.started(agent("b-1", "tester"));
        let select = |names: &[&str]| {
            registry
                .select(&v1::Selection { all: false, agents: names.iter().map(|&n| n.to_owned()).collect() })
                .map(|agents| agents.iter().map(|agent| agent.agent_id.clone()).collect::<Vec<_>>())
        };
        assert_eq!(select(&["a-2"]), Ok(vec!["a-2".to_owned()]));
        assert_eq!(select(&["coder"]), Ok(vec!["a-1".to_owned(), "a-2".to_owned()]));
        assert_eq!(select(&["coder", "a-1"]), Ok(vec!["a-1".to_owned(), "a-2".to_owned()]));
        assert_eq!(select(&["nobody"]), Err("nobody".to_owned()));
    }

    #[test]
    fn late_reports_still_find_who_it_was() {
        let registry = Registry::default();
        registry.started(agent("a-1", "coder"));
        registry.ended("a-1");
        assert!(registry.list().is_empty());
        assert_eq!(registry.subject("a-1").map(|subject| subject.principal.agent), Some("coder".to_owned()));
    }
}
