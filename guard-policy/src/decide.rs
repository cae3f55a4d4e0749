//! The one function that decides (`C-002`, `R-01`).

use std::net::IpAddr;

use jiff::Timestamp;

use crate::decision::{Code, Decision, Gate, GateVerdict, Matched, Outcome, Overridden, Refusal, Step, Text};
use crate::delegation::{self, Envelopes};
use crate::facts::shell::ShellError;
use crate::gate::{Finding, classes, network};
use crate::policy::{Limits, Policy};
use crate::request::{Facet, Override, Request};
use crate::session::{Charge, Usage};

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

/// A decision, and what it counts towards when the act is let through.
pub(crate) struct Judged {
    pub(crate) decision: Decision,
    pub(crate) charges: Vec<Charge>,
}

/// Judges one request, as the first of its session.
///
/// The gates run in their order; each can only tighten, and the first refusal ends the run (`R-02`). A question
/// that nobody could answer is a refusal (`R-04`). Where acts follow each other,
/// [`Sessions`](crate::session::Sessions) keeps what they use.
#[must_use]
pub fn decide(policy: &Policy, request: &Request, context: &Context) -> Decision {
    judge(policy, request, context, &Usage::default(), &Envelopes::default()).decision
}

pub(crate) fn judge(
    policy: &Policy,
    request: &Request,
    context: &Context,
    usage: &Usage,
    envelopes: &Envelopes,
) -> Judged {
    let mut run = Run { decision: empty(request), allowed: None, charges: Vec::new() };
    if let Some(denied) = over_limit(policy.limits(), request).or_else(|| unread(request)) {
        return run.deny(denied);
    }
    for gate in Gate::ALL {
        let finding = match gate {
            Gate::Network => network::judge(policy.network(), request, context),
            Gate::Classes => match delegation::judge(policy, request, envelopes) {
                Some(refusal) => Finding::refused(refusal),
                None => {
                    let dial = envelopes.autonomy(policy, &request.principal);
                    classes::judge(policy, request, context, usage, dial)
                }
            },
            // These judge parts that no request can carry yet.
            Gate::Mandate | Gate::Tools | Gate::Sandbox | Gate::Said | Gate::Egress => Finding::default(),
        };
        if let Some(denied) = run.take(gate, finding, request) {
            return run.deny(denied);
        }
    }
    run.finish(context.approver)
}

/// The refusal of what could not be judged (`R-61`).
pub(crate) fn engine_error(request: &Request, code: &str, reason: &str) -> Decision {
    let run = Run { decision: empty(request), allowed: None, charges: Vec::new() };
    run.deny(Refusal {
        rule: format!("engine:{code}").into(),
        resource_class: "request",
        reason: reason.to_owned(),
        code: Code::EngineError,
    })
    .decision
}

struct Run {
    decision: Decision,
    allowed: Option<Text>,
    charges: Vec<Charge>,
}

impl Run {
    /// Adds what a gate found; gives back its refusal.
    fn take(&mut self, gate: Gate, finding: Finding, request: &Request) -> Option<Refusal> {
        let verdict = finding.outcome.map_or(GateVerdict::Pass, GateVerdict::Said);
        let decision = &mut self.decision;
        decision.trace.push(Step { gate, verdict });
        if decision.matched.is_empty() {
            decision.matched = finding.matched;
        } else {
            decision.matched.extend(finding.matched);
        }
        for ask in finding.asks {
            if !decision.asks.iter().any(|known| known.rule == ask.rule) {
                decision.asks.push(ask);
            }
        }
        decision.outcome = decision.outcome.max(finding.outcome.unwrap_or(Outcome::Allow));
        if let (false, Some(Override { by: Some(by), justification: Some(justification) })) =
            (finding.overridden.is_empty(), &request.overridden)
        {
            let (by, justification) = (by.clone(), justification.clone());
            decision.overridden = Some(Overridden { rules: finding.overridden, by, justification });
        }
        self.allowed = self.allowed.take().or(finding.allowed);
        self.charges.extend(finding.charges);
        finding.denied
    }

    fn deny(self, denied: Refusal) -> Judged {
        let mut decision = self.decision;
        decision.outcome = Outcome::Deny;
        decision.rule.clone_from(&denied.rule);
        decision.asks.clear();
        // Nothing went through, so nothing was lifted.
        decision.overridden = None;
        decision.denied = Some(denied);
        Judged { decision, charges: Vec::new() }
    }

    fn finish(mut self, approver: bool) -> Judged {
        if let Some(first) = self.decision.asks.first() {
            if !approver {
                let reason = format!("{}; nobody is there who could approve it", first.reason);
                let denied = Refusal { reason, code: Code::NoApprover, ..first.clone() };
                return self.deny(denied);
            }
            self.decision.rule = first.rule.clone();
        } else if let Some(rule) = self.allowed {
            self.decision.rule = rule;
        }
        Judged { decision: self.decision, charges: self.charges }
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
        rule: Text::Static("default"),
        denied: None,
        asks: Vec::new(),
        budget: std::collections::BTreeMap::new(),
        sources: sources.map(|(facet, _)| (facet.as_str(), request.sources.get(facet))).collect(),
        flags: flags(request),
        overridden: None,
        matched: Vec::<Matched>::new(),
        trace: Vec::with_capacity(Gate::ALL.len()),
    }
}

/// `R-62`: letters outside ASCII in what is compared can look like others.
fn flags(request: &Request) -> Vec<Text> {
    let action = &request.action;
    let program =
        |command: &String| command.split_ascii_whitespace().next().is_some_and(|word| !word.is_ascii());
    let odd = [
        ("non_ascii:refs", action.refs.iter().flatten().any(|reference| !reference.raw().is_ascii())),
        ("non_ascii:hosts", action.hosts.iter().flatten().any(|host| !host.raw().is_ascii())),
        ("non_ascii:commands", action.commands.iter().flatten().any(program)),
    ];
    odd.into_iter().filter(|(_, odd)| *odd).map(|(flag, _)| Text::Static(flag)).collect()
}

/// `R-61`: a command that could not be read is refused.
fn unread(request: &Request) -> Option<Refusal> {
    let error = request.unread.as_ref()?;
    let (rule, code) = match error {
        ShellError::Unreadable { .. } => ("engine:command", Code::EngineError),
        ShellError::TooMany { .. } => ("limit:segments", Code::Limit),
        ShellError::TooDeep { .. } => ("limit:depth", Code::Limit),
        ShellError::TooLong { .. } => ("limit:string", Code::Limit),
    };
    let reason = format!("a command cannot be read: {error}");
    Some(Refusal { rule: Text::Static(rule), resource_class: "request", reason, code })
}

/// `R-61`: what is too large to be judged well is refused, never judged less.
fn over_limit(limits: &Limits, request: &Request) -> Option<Refusal> {
    let action = &request.action;
    let length = |count: Option<usize>| count.unwrap_or(0) as u64;
    let longest = action.paths.iter().flatten().map(|path| path.raw().len());
    let longest = longest.chain(action.refs.iter().flatten().map(|reference| reference.raw().len()));
    let longest = longest.chain(action.hosts.iter().flatten().map(|host| host.raw().len()));
    let longest = longest.chain(action.commands.iter().flatten().map(String::len)).max();
    let found = [
        ("limit:paths", length(action.paths.as_ref().map(Vec::len)), limits.paths),
        ("limit:refs", length(action.refs.as_ref().map(Vec::len)), limits.refs),
        ("limit:hosts", length(action.hosts.as_ref().map(Vec::len)), limits.hosts),
        ("limit:commands", length(action.commands.as_ref().map(Vec::len)), limits.commands),
        ("limit:string", length(longest), limits.string),
    ];
    let (rule, found, most) = found.into_iter().find(|(_, found, most)| found > most)?;
    let name = &rule["limit:".len()..];
    Some(Refusal {
        rule: Text::Static(rule),
        resource_class: "request",
        reason: format!("{found} is more than the {most} that the limit `{name}` allows"),
        code: Code::Limit,
    })
}
