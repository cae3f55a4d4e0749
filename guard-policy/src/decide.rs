//! The one function that decides (`C-002`, `R-01`).

use std::net::IpAddr;

use jiff::Timestamp;

use crate::decision::{Code, Decision, Gate, GateVerdict, Outcome, Refusal, Step};
use crate::gate::{Finding, classes, network};
use crate::policy::Policy;
use crate::request::{Facet, Request};

/// What the engine has to know beside the request, since it has no clock and asks nobody.
#[derive(Clone, Debug)]
pub struct Context {
    now: Timestamp,
    approver: bool,
    resolvers: Vec<IpAddr>,
}

impl Context {
    /// The time, and whether somebody could answer a question.
    #[must_use]
    pub const fn new(now: Timestamp, approver: bool) -> Self {
        Self { now, approver, resolvers: Vec::new() }
    }

    /// The host's resolvers, whose port 53 is open (`R-72`).
    #[must_use]
    pub fn with_resolvers(mut self, resolvers: impl Into<Vec<IpAddr>>) -> Self {
        self.resolvers = resolvers.into();
        self
    }

    /// The time of the decision.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether somebody could answer a question.
    #[must_use]
    pub const fn approver(&self) -> bool {
        self.approver
    }

    /// The host's resolvers.
    #[must_use]
    pub fn resolvers(&self) -> &[IpAddr] {
        &self.resolvers
    }
}

/// Judges one request.
///
/// The gates run in their order; each can only tighten, and the first refusal ends the run (`R-02`). A question
/// that nobody could answer is a refusal (`R-04`).
#[must_use]
pub fn decide(policy: &Policy, request: &Request, context: &Context) -> Decision {
    let mut run = Run { decision: empty(request), allowed: None };
    if let Some(denied) = over_limit(request) {
        return run.deny(denied);
    }
    for gate in Gate::ALL {
        let finding = match gate {
            Gate::Network => network::judge(policy.network(), request, context),
            Gate::Classes => classes::judge(policy, request, context),
            // These judge parts that no request can carry yet.
            Gate::Mandate | Gate::Tools | Gate::Sandbox | Gate::Said | Gate::Egress => Finding::default(),
        };
        if let Some(denied) = run.take(gate, finding) {
            return run.deny(denied);
        }
    }
    run.finish(context.approver)
}

struct Run {
    decision: Decision,
    allowed: Option<String>,
}

impl Run {
    /// Adds what a gate found; gives back its refusal.
    fn take(&mut self, gate: Gate, finding: Finding) -> Option<Refusal> {
        let verdict = finding.outcome.map_or(GateVerdict::Pass, GateVerdict::Said);
        self.decision.trace.push(Step { gate, verdict });
        self.decision.matched.extend(finding.matched);
        for ask in finding.asks {
            if !self.decision.asks.iter().any(|known| known.rule == ask.rule) {
                self.decision.asks.push(ask);
            }
        }
        self.decision.outcome = self.decision.outcome.max(finding.outcome.unwrap_or(Outcome::Allow));
        self.allowed = self.allowed.take().or(finding.allowed.map(|(_, rule)| rule));
        finding.denied
    }

    fn deny(mut self, denied: Refusal) -> Decision {
        self.decision.outcome = Outcome::Deny;
        self.decision.rule.clone_from(&denied.rule);
        self.decision.asks.clear();
        self.decision.denied = Some(denied);
        self.decision
    }

    fn finish(mut self, approver: bool) -> Decision {
        if let Some(first) = self.decision.asks.first() {
            if !approver {
                let reason = format!("{}; nobody is there who could approve it", first.reason);
                return Run { decision: self.decision.clone(), allowed: None }.deny(Refusal {
                    reason,
                    code: Code::NoApprover,
                    ..first.clone()
                });
            }
            self.decision.rule.clone_from(&first.rule);
        } else if let Some(rule) = self.allowed {
            self.decision.rule = rule;
        }
        self.decision
    }
}

fn empty(request: &Request) -> Decision {
    let action = &request.action;
    let present = [
        (Facet::Paths, action.paths.is_some()),
        (Facet::Refs, action.refs.is_some()),
        (Facet::Hosts, action.hosts.is_some()),
        (Facet::Commands, action.commands.is_some()),
    ];
    let sources = present.into_iter().filter(|(_, present)| *present);
    Decision {
        id: request.id.clone(),
        outcome: Outcome::Allow,
        rule: "default".to_owned(),
        denied: None,
        asks: Vec::new(),
        budget: std::collections::BTreeMap::new(),
        sources: sources.map(|(facet, _)| (facet.as_str(), request.sources.get(facet))).collect(),
        flags: flags(request),
        matched: Vec::new(),
        trace: Vec::new(),
    }
}

/// `R-62`: letters outside ASCII in what is compared can look like others.
fn flags(request: &Request) -> Vec<String> {
    let action = &request.action;
    let program =
        |command: &String| command.split_ascii_whitespace().next().is_some_and(|word| !word.is_ascii());
    let odd = [
        ("refs", action.refs.iter().flatten().any(|reference| !reference.raw().is_ascii())),
        ("hosts", action.hosts.iter().flatten().any(|host| !host.raw().is_ascii())),
        ("commands", action.commands.iter().flatten().any(program)),
    ];
    odd.into_iter().filter(|(_, odd)| *odd).map(|(facet, _)| format!("non_ascii:{facet}")).collect()
}

/// `R-61`: what is too large to be judged well is refused, never judged less.
fn over_limit(request: &Request) -> Option<Refusal> {
    const STRING: usize = 64 << 10;
    let action = &request.action;
    let length = |count: Option<usize>| count.unwrap_or(0);
    let longest = action.paths.iter().flatten().map(|path| path.raw().len());
    let longest = longest.chain(action.refs.iter().flatten().map(|reference| reference.raw().len()));
    let longest = longest.chain(action.hosts.iter().flatten().map(|host| host.raw().len()));
    let longest = longest.chain(action.commands.iter().flatten().map(String::len)).max();
    let limits = [
        ("paths", length(action.paths.as_ref().map(Vec::len)), 10_000),
        ("refs", length(action.refs.as_ref().map(Vec::len)), 1_000),
        ("hosts", length(action.hosts.as_ref().map(Vec::len)), 1_000),
        ("commands", length(action.commands.as_ref().map(Vec::len)), 64),
        ("string", length(longest), STRING),
    ];
    let (name, found, most) = limits.into_iter().find(|(_, found, most)| found > most)?;
    Some(Refusal {
        rule: format!("limit:{name}"),
        resource_class: "request".to_owned(),
        reason: format!("{found} is more than the {most} that the limit `{name}` allows"),
        code: Code::Limit,
    })
}
