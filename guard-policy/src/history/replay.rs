//! What a policy would have decided.

use std::collections::BTreeMap;

use guard_common::Effect;
use serde::Serialize;

use super::Recorded;
use crate::decide::Context;
use crate::decision::{Outcome, Text};
use crate::fault::Fault;
use crate::policy::Policy;
use crate::request::Request;
use crate::session::Sessions;

/// Judges a record again, one line after another, in sessions of its own.
#[derive(Debug)]
pub struct Replay {
    policy: Policy,
    sessions: Sessions,
    summary: Summary,
}

/// A decision that would have been another.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Line of the record.
    pub seq: u64,
    /// When it happened.
    pub at: jiff::Timestamp,
    /// Answer and rule then.
    pub before: (String, String),
    /// Answer and rule under this policy.
    pub after: (Outcome, Text),
    /// Why, where it is a refusal or a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The act.
    pub request: Request,
}

/// What an advisory rule would have done, by rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// How many acts it would have refused.
    pub denied: u64,
    /// How many it would have asked about.
    pub asked: u64,
    /// How many it would have let through.
    pub allowed: u64,
    /// Lines of the record, at most ten.
    pub examples: Vec<u64>,
}

/// What a whole record comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Decisions that were judged again.
    pub decisions: u64,
    /// Those with another answer.
    pub changed: u64,
    /// Refused now and not then.
    pub newly_denied: u64,
    /// Asked about now and not then.
    pub newly_asked: u64,
    /// Allowed now and not then.
    pub newly_allowed: u64,
    /// Lines that could not be read; they are not judged.
    pub unreadable: u64,
    /// What advisory rules would have done.
    pub advisory: BTreeMap<String, Advice>,
}

impl Replay {
    /// A replay under this policy, before the first line.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, sessions: Sessions::default(), summary: Summary::default() }
    }

    /// Judges one line again; a difference if the answer is another, or its rule.
    ///
    /// # Errors
    /// When the line cannot be read; it counts as unreadable.
    pub fn line(&mut self, line: &[u8]) -> Result<Option<Difference>, Fault> {
        let recorded = match Recorded::parse(line) {
            Ok(Some(recorded)) => recorded,
            Ok(None) => return Ok(None),
            Err(fault) => {
                self.summary.unreadable += 1;
                return Err(fault);
            }
        };
        let context = Context::new(recorded.at, recorded.request.approver);
        let decision = self.sessions.decide(&self.policy, &recorded.request, &context);
        self.summary.decisions += 1;
        for matched in decision.matched.iter().filter(|matched| matched.advisory) {
            let advice = self.summary.advisory.entry(matched.rule.to_string()).or_default();
            match matched.effect {
                Effect::Deny => advice.denied += 1,
                Effect::Prompt => advice.asked += 1,
                Effect::Allow => advice.allowed += 1,
            }
            if advice.examples.len() < 10 {
                advice.examples.push(recorded.seq);
            }
        }
        if decision.outcome.as_str() == recorded.outcome && decision.rule == recorded.rule {
            return Ok(None);
        }
        if decision.outcome.as_str() != recorded.outcome {
            self.summary.changed += 1;
            match decision.outcome {
                Outcome::Deny => self.summary.newly_denied += 1,
                Outcome::DeferForApproval => self.summary.newly_asked += 1,
                Outcome::Allow | Outcome::AllowWithRedaction => self.summary.newly_allowed += 1,
            }
        }
        let reason =
            decision.denied.iter().chain(&decision.asks).next().map(|refusal| refusal.reason.clone());
        Ok(Some(Difference {
            seq: recorded.seq,
            at: recorded.at,
            before: (recorded.outcome, recorded.rule),
            after: (decision.outcome, decision.rule),
            reason,
            request: recorded.request,
        }))
    }

    /// What it comes to so far.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl Difference {
    /// Whether the answer is another, and not only the rule that gives it.
    #[must_use]
    pub fn is_another_answer(&self) -> bool {
        self.before.0 != self.after.0.as_str()
    }
}
