//! One session as a story: what ran, what it did step by step, what was stopped, what would have needed a yes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::record::{Record, Who};

/// One agent of the session, from its start to its end.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    pub agent_id: String,
    pub command: String,
    pub worktree: String,
    pub uid: u64,
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<jiff::Timestamp>,
    /// Wait status as wait(2) gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u64>,
}

/// Acts of one kind that followed each other.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub at: jiff::Timestamp,
    pub agent_id: String,
    pub pid: u32,
    pub classes: Vec<String>,
    pub outcome: String,
    pub effect: String,
    pub mechanism: String,
    pub rule: String,
    /// Why it was denied or would have asked; empty if it was simply allowed.
    pub reason: String,
    /// What somebody said who was asked, and who; empty if nobody was.
    pub answer: String,
    /// The first of them.
    pub act: String,
    /// How many.
    pub count: u64,
    /// Numbers of the first and the last record.
    pub records: [u64; 2],
}

/// A session.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Story {
    pub session: String,
    pub principal: Who,
    pub runs: Vec<Run>,
    /// Acts by class and by what came of them, for example `networkEgress` → `refused` → 3.
    pub classes: BTreeMap<String, BTreeMap<String, u64>>,
    pub acts: u64,
    pub stopped: u64,
    /// Acts that policy wanted a person's yes for and that nothing could hold.
    pub unasked: u64,
    /// Events that full buffers dropped while it ran, whoever they were of.
    pub lost: u64,
    pub steps: Vec<Step>,
}

impl Story {
    /// Adds the next record of the session.
    pub fn add(&mut self, record: &Record) {
        if !record.principal.session.is_empty() {
            self.session.clone_from(&record.principal.session);
        }
        if record.principal != Who::default() {
            self.principal.clone_from(&record.principal);
        }
        match record.kind.as_str() {
            "daemon" => self.lifecycle(record),
            "loss" => self.lost += record.acts(),
            "decision" => self.act(record),
            // Approvals, overrides and the rest are steps of their own.
            _ => self.step(record),
        }
    }

    /// Whether any record was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.steps.is_empty()
    }

    fn lifecycle(&mut self, record: &Record) {
        let text =
            |key: &str| record.detail.get(key).and_then(|value| value.as_str()).unwrap_or("").to_owned();
        let number = |key: &str| record.detail.get(key).and_then(serde_json::Value::as_u64);
        match record.event() {
            "agent started" => self.runs.push(Run {
                agent_id: record.agent_id.clone(),
                command: text("command"),
                worktree: text("worktree"),
                uid: number("uid").unwrap_or(0),
                pid: record.pid,
                started: Some(record.ts),
                ..Run::default()
            }),
            "agent ended" => {
                let run = self.runs.iter_mut().rev().find(|run| run.agent_id == record.agent_id);
                if let Some(run) = run {
                    run.ended = Some(record.ts);
                    run.status = number("status");
                }
            }
            // How a start went on; the start is the step.
            "process ended" | "executable" => {}
            _ => self.step(record),
        }
    }

    fn act(&mut self, record: &Record) {
        let acts = record.acts();
        self.acts += acts;
        let stopped = matches!(record.effect.as_str(), "refused" | "fenced" | "killed");
        self.stopped += if stopped { acts } else { 0 };
        if record.is_unasked() {
            self.unasked += acts;
        }
        let none = ["none".to_owned()];
        let classes = &record.request.action.classes;
        for class in if classes.is_empty() { &none[..] } else { classes } {
            *self.classes.entry(class.clone()).or_default().entry(record.effect.clone()).or_default() += acts;
        }
        self.step(record);
    }

    fn step(&mut self, record: &Record) {
        let decision = &record.decision;
        let why = decision.denied.iter().chain(&decision.asks).map(|reason| reason.reason.as_str());
        let step = Step {
            at: record.ts,
            agent_id: record.agent_id.clone(),
            pid: record.pid,
            classes: record.request.action.classes.clone(),
            outcome: decision.outcome.clone(),
            effect: record.effect.clone(),
            mechanism: record.mechanism.clone(),
            rule: decision.rule.clone(),
            reason: why.collect::<Vec<_>>().join("; "),
            answer: record.answer(),
            act: record.act(),
            count: record.acts(),
            records: [record.seq, record.seq],
        };
        match self.steps.last_mut() {
            Some(last) if alike(last, &step) => {
                last.count += step.count;
                last.records[1] = record.seq;
            }
            _ => self.steps.push(step),
        }
    }
}

/// Steps that read as one: the same classes and fate, and the same program or the same object.
fn alike(one: &Step, other: &Step) -> bool {
    let first = |act: &str| act.split_whitespace().next().unwrap_or("").to_owned();
    one.agent_id == other.agent_id
        && one.classes == other.classes
        && (&one.outcome, &one.effect, &one.rule) == (&other.outcome, &other.effect, &other.rule)
        && one.answer == other.answer
        && first(&one.act) == first(&other.act)
        // Every push, install or merge is told; plain starts and changes of one program are folded.
        && (one.act == other.act || one.classes.iter().all(|class| class == "processSpawn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64, rest: &str) -> Record {
        let line = format!(
            r#"{{"seq":{seq},"ts":"2026-11-30T12:00:0{}Z","agent_id":"a-1","principal":{{"session":"s-1"}},{rest}}}"#,
            seq % 10
        );
        Record::read(&line).expect(&line)
    }

    fn spawn(seq: u64, command: &str, effect: &str) -> Record {
        record(
            seq,
            &format!(
                r#""kind":"decision","request":{{"action":{{"classes":["processSpawn"],"commands":["{command}"]}}}},"decision":{{"outcome":"allow","rule":"builtin:processSpawn"}},"effect":"{effect}""#
            ),
        )
    }

    #[test]
    fn a_session_is_told_in_order_and_counted() {
        let mut story = Story::default();
        for record in [
            record(
                1,
                r#""kind":"daemon","pid":9,"effect":"none","detail":{"event":"agent started","command":"sh","worktree":"/w","uid":7}"#,
            ),
            spawn(2, "/bin/true 1", "done"),
            spawn(3, "/bin/true 2", "done"),
            spawn(4, "/bin/false", "done"),
            record(
                5,
                r#""kind":"decision","request":{"action":{"classes":["networkEgress"],"hosts":["10.0.0.1"]}},"decision":{"outcome":"deny","rule":"network:private","denied":{"reason":"no"}},"effect":"refused","detail":{"count":3}"#,
            ),
            record(
                6,
                r#""kind":"decision","request":{"action":{"classes":["gitPush"],"commands":["git push"]}},"decision":{"outcome":"defer_for_approval","rule":"builtin:gitPush","asks":[{"reason":"push"}]},"effect":"done""#,
            ),
            record(6, r#""kind":"daemon","effect":"done","detail":{"event":"process ended","status":0}"#),
            record(
                6,
                r#""kind":"daemon","effect":"done","detail":{"event":"connection ended","address":"10.0.0.1","port":80,"sent":5,"received":7}"#,
            ),
            record(7, r#""kind":"loss","effect":"none","detail":{"class":"exec","count":4}"#),
            record(
                8,
                r#""kind":"daemon","effect":"none","detail":{"event":"agent ended","status":256,"left":0}"#,
            ),
        ] {
            story.add(&record);
        }
        let steps: Vec<(&str, u64)> =
            story.steps.iter().map(|step| (step.act.as_str(), step.count)).collect();
        assert_eq!(
            steps,
            [
                ("/bin/true 1", 2),
                ("/bin/false", 1),
                ("10.0.0.1", 3),
                ("git push", 1),
                ("connection ended 10.0.0.1 port 80, 5 bytes sent, 7 received", 1)
            ]
        );
        assert_eq!((story.acts, story.stopped, story.unasked, story.lost), (7, 3, 1, 4));
        assert_eq!(story.classes["networkEgress"]["refused"], 3);
        assert_eq!((story.runs[0].status, story.runs[0].uid, story.session.as_str()), (Some(256), 7, "s-1"));
        assert!(story.runs[0].started < story.runs[0].ended);
    }
}
