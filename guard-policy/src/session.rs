//! What a session has used so far.
//!
//! The engine itself is pure; whoever asks it for one act after another keeps a [`Sessions`] beside it. Ceilings
//! count what was let through (`R-15`): an act that waits for a person counts from the moment of the yes, and one
//! that did not run gives its units back.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::decide::{Context, Judged, judge};
use crate::decision::{Decision, Outcome, Text};
use crate::delegation::Envelopes;
use crate::policy::Policy;
use crate::request::{Receipt, Request};

/// Decisions of one session that can still be settled; older ones are forgotten and stay counted as they are.
const REMEMBERED: usize = 100_000;

/// How much of a rule's ceilings is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Things.
    pub count: u64,
    /// Hundredths.
    pub cents: u64,
}

/// One rule whose ceilings a request counts towards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) rule: UsageKey,
    pub(crate) amount: Used,
}

/// A rule by name, and whether it is one of the managed file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsageKey {
    /// Whether the rule is one of the managed file.
    pub managed: bool,
    /// The rule.
    pub rule: Text,
}

/// What one session has used.
#[derive(Clone, Debug, Default)]
pub struct Usage(HashMap<UsageKey, Used>);

impl Usage {
    /// How much of a rule is used.
    #[must_use]
    pub fn of(&self, managed: bool, rule: &Text) -> Used {
        if self.0.is_empty() {
            return Used::default();
        }
        self.0.get(&UsageKey { managed, rule: rule.clone() }).copied().unwrap_or_default()
    }

    /// What each rule has used.
    pub fn iter(&self) -> impl Iterator<Item = (&UsageKey, Used)> {
        self.0.iter().map(|(key, used)| (key, *used))
    }

    /// Sets what a rule has used, as it was kept elsewhere.
    pub fn set(&mut self, key: UsageKey, used: Used) {
        self.0.insert(key, used);
    }

    fn add(&mut self, charges: &[Charge]) {
        for charge in charges {
            let used = self.0.entry(charge.rule.clone()).or_default();
            used.count = used.count.saturating_add(charge.amount.count);
            used.cents = used.cents.saturating_add(charge.amount.cents);
        }
    }

    fn give_back(&mut self, charges: &[Charge]) {
        for charge in charges {
            let used = self.0.entry(charge.rule.clone()).or_default();
            used.count = used.count.saturating_sub(charge.amount.count);
            used.cents = used.cents.saturating_sub(charge.amount.cents);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Let through, and counted.
    Counted,
    /// Waits for a person; counts nothing.
    Waiting,
}

#[derive(Debug)]
struct Open {
    state: State,
    charges: Vec<Charge>,
}

/// What one session did.
#[derive(Debug, Default)]
pub struct Session {
    usage: Usage,
    open: HashMap<Arc<str>, Open>,
    order: VecDeque<Arc<str>>,
    envelopes: Envelopes,
}

/// Every session that was seen.
#[derive(Debug, Default)]
pub struct Sessions(HashMap<String, Session>);

impl Sessions {
    /// Judges a request in its session and counts it there.
    #[must_use]
    pub fn decide(&mut self, policy: &Policy, request: &Request, context: &Context) -> Decision {
        let name = request.principal.session.as_deref().unwrap_or_default();
        if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), Session::default());
        }
        match self.0.get_mut(name) {
            Some(session) => session.decide(policy, request, context),
            None => crate::decide::engine_error(request, "session", "the session could not be opened"),
        }
    }

    /// What the request would be answered now; nothing is counted.
    #[must_use]
    pub fn peek(&self, policy: &Policy, request: &Request, context: &Context) -> Decision {
        let none = Session::default();
        let name = request.principal.session.as_deref().unwrap_or_default();
        self.0.get(name).unwrap_or(&none).judge(policy, request, context).decision
    }

    /// Settles an earlier decision; `false` when there is none by this name, or when it is settled already.
    pub fn settle(&mut self, receipt: &Receipt) -> bool {
        let session = receipt.session.as_deref().unwrap_or_default();
        self.0.get_mut(session).is_some_and(|session| session.settle(receipt))
    }

    /// What a session has used.
    #[must_use]
    pub fn usage(&self, session: &str) -> Option<&Usage> {
        self.0.get(session).map(|session| &session.usage)
    }

    /// The sessions and what they have used.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Usage)> {
        self.0.iter().map(|(name, session)| (name.as_str(), &session.usage))
    }

    /// Puts back what a session had used, as it was kept elsewhere.
    pub fn restore(&mut self, session: &str, key: UsageKey, used: Used) {
        self.0.entry(session.to_owned()).or_default().usage.set(key, used);
    }

    /// Forgets a session that is over.
    pub fn end(&mut self, session: &str) {
        self.0.remove(session);
    }
}

impl Session {
    /// A panic inside the engine is a refusal, not the end of the process (`R-61`).
    fn judge(&self, policy: &Policy, request: &Request, context: &Context) -> Judged {
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            judge(policy, request, context, &self.usage, &self.envelopes)
        }));
        judged.unwrap_or_else(|_| {
            let reason = "the engine failed while it judged this";
            Judged { decision: crate::decide::engine_error(request, "panic", reason), charges: Vec::new() }
        })
    }

    fn decide(&mut self, policy: &Policy, request: &Request, context: &Context) -> Decision {
        let Judged { decision, charges } = self.judge(policy, request, context);
        let state = match decision.outcome {
            Outcome::Allow | Outcome::AllowWithRedaction => State::Counted,
            Outcome::DeferForApproval => State::Waiting,
            Outcome::Deny => return decision,
        };
        if state == State::Counted {
            self.usage.add(&charges);
            self.envelopes.grant(policy, request);
        }
        if let Some(id) = &request.id {
            let id: Arc<str> = id.as_str().into();
            if self.open.insert(Arc::clone(&id), Open { state, charges }).is_none() {
                self.order.push_back(id);
            }
            while self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.open.remove(&oldest);
            }
        }
        decision
    }

    /// An answer alone leaves the decision open: whether the act ran is still to be told.
    fn settle(&mut self, receipt: &Receipt) -> bool {
        let Some(open) = self.open.get_mut(receipt.receipt.as_str()) else { return false };
        let yes = match receipt.answer {
            Some(yes) => yes,
            // What ran without a recorded answer ran all the same.
            None => receipt.ran == Some(true),
        };
        match (open.state, receipt.ran) {
            (State::Waiting, None | Some(true)) if yes => {
                self.usage.add(&open.charges);
                open.state = State::Counted;
            }
            (State::Counted, Some(false)) => self.usage.give_back(&open.charges),
            _ => {}
        }
        if receipt.ran.is_some() || !yes {
            self.open.remove(receipt.receipt.as_str());
        }
        true
    }
}
