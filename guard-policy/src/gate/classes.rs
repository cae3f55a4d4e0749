//! The gate of the action classes: rules by class and by command, the autonomy dial, the managed file and the
//! command net of the mode, in this order.

use std::cmp::Reverse;

use guard_common::{ActionClass, Effect};

use super::Finding;
use crate::decide::Context;
use crate::decision::{Code, Matched, Outcome, Refusal, Status};
use crate::policy::{Autonomy, Fit, Level, Policy, Rule, Subject, View};
use crate::request::{Facet, Request};
use crate::value::command_has_prefix;

/// Which chain of rules is resolved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tier {
    Policy,
    Managed,
}

/// What is looked up in a chain.
#[derive(Clone, Copy)]
enum Question<'r> {
    Class(ActionClass),
    Command(&'r str),
}

/// The answer of one chain to one question.
struct Answer {
    effect: Effect,
    rule: String,
    /// What to tell when the effect is no allowance.
    refusal: Refusal,
    /// A deny rule that could not be ruled out: its prompt survives the dial (`R-19`).
    from_deny: bool,
    matched: Vec<Matched>,
}

pub(crate) fn judge(policy: &Policy, request: &Request, context: &Context) -> Finding {
    let readings: Vec<View<'_>> =
        (0..View::readings(request)).map(|index| View::reading(request, index)).collect();
    judge_readings(policy, request, context, &readings)
}

/// Judges a request whose hosts are taken as they are, without the addresses hidden in them: the kernel unfolds
/// an address itself and looks up each.
pub(crate) fn judge_as_is(policy: &Policy, request: &Request, context: &Context) -> Finding {
    judge_readings(policy, request, context, &[View::plain(request)])
}

fn judge_readings(policy: &Policy, request: &Request, context: &Context, views: &[View<'_>]) -> Finding {
    let classes = request.action.classes.iter().map(|class| Question::Class(*class));
    let commands = request.action.commands.iter().flatten().map(|command| Question::Command(command));
    let questions: Vec<Question<'_>> = classes.chain(commands).collect();
    let mut finding = Finding::default();
    if questions.is_empty() {
        return finding;
    }
    finding.outcome = Some(Outcome::Allow);
    let ask = |tier, question: &Question<'_>| resolve(policy, tier, *question, request, context, views);
    let dial = policy.autonomy(&request.principal);
    if dial == Autonomy::ProposeOnly
        && let Some(class) = request.action.classes.first()
    {
        add(&mut finding, Question::Class(*class), propose_only(request, *class));
    }
    for question in &questions {
        if let Some(mut answer) = ask(Tier::Policy, question) {
            if dial == Autonomy::ActFreely && answer.effect == Effect::Prompt && !answer.from_deny {
                answer.effect = Effect::Allow;
                answer.rule = format!("autonomy:{}", dial.as_str());
                answer.matched.push(dial_matched(request, dial, *question, Effect::Allow));
            }
            add(&mut finding, *question, answer);
        }
        if let Some(answer) = ask(Tier::Managed, question) {
            add(&mut finding, *question, answer);
        }
    }
    for command in request.action.commands.iter().flatten() {
        if let Some(denied) = mode_net(policy, request, command) {
            finding.outcome = Some(Outcome::Deny);
            finding.denied = finding.denied.or(Some(denied));
        }
    }
    finding
}

fn add(finding: &mut Finding, question: Question<'_>, answer: Answer) {
    finding.outcome = finding.outcome.max(Some(answer.effect.into()));
    for matched in answer.matched {
        let same = |known: &Matched| known.rule == matched.rule && known.class == matched.class;
        match finding.matched.iter_mut().find(|known| same(known)) {
            Some(known) if matched.status == Status::Decided => known.status = Status::Decided,
            Some(_) => {}
            None => finding.matched.push(matched),
        }
    }
    match (answer.effect, question) {
        (Effect::Allow, Question::Class(class)) => {
            finding.allowed = finding.allowed.take().or(Some((class, answer.rule)));
        }
        (Effect::Allow, Question::Command(_)) => {}
        (Effect::Prompt, _) => {
            if !finding.asks.iter().any(|known| known.rule == answer.rule) {
                finding.asks.push(answer.refusal);
            }
        }
        (Effect::Deny, _) => finding.denied = finding.denied.take().or(Some(answer.refusal)),
    }
}

/// Resolves one question in one chain; of several readings the most restrictive answer counts.
fn resolve(
    policy: &Policy,
    tier: Tier,
    question: Question<'_>,
    request: &Request,
    context: &Context,
    views: &[View<'_>],
) -> Option<Answer> {
    let rules = match tier {
        Tier::Policy => policy.rules(),
        Tier::Managed => policy.managed_rules(),
    };
    let mut answers = views.iter().filter_map(|view| {
        let mut candidates: Vec<Candidate<'_>> = rules
            .iter()
            .filter(|rule| rule.in_force(context.now()) && rule.scope.holds_for(&request.principal))
            .filter_map(|rule| Candidate::of(rule, question, view))
            .collect();
        candidates.sort_by(|a, b| a.order().cmp(&b.order()));
        answer(tier, question, &candidates)
    });
    let first = answers.next()?;
    Some(answers.fold(first, |mut worst, mut other| {
        if (other.effect, other.from_deny) > (worst.effect, worst.from_deny) {
            std::mem::swap(&mut worst, &mut other);
        }
        worst.matched.append(&mut other.matched);
        worst
    }))
}

/// A rule that is about the question and that its constraints do not rule out.
struct Candidate<'p> {
    rule: &'p Rule,
    unknown: Option<Facet>,
}

impl<'p> Candidate<'p> {
    fn of(rule: &'p Rule, question: Question<'_>, view: &View<'_>) -> Option<Self> {
        let about = match (&rule.subject, question) {
            (Subject::Class(class), Question::Class(asked)) => *class == asked,
            (Subject::Command(prefix), Question::Command(command)) => command_has_prefix(command, prefix),
            _ => false,
        };
        if !about {
            return None;
        }
        match rule.constraints.fit(rule.effect, view) {
            Fit::Applies => Some(Self { rule, unknown: None }),
            Fit::Unknown(facet) => Some(Self { rule, unknown: Some(facet) }),
            Fit::No => None,
        }
    }

    /// `C-062`: what cannot be known is asked.
    fn effect(&self) -> Effect {
        if self.unknown.is_some() { Effect::Prompt } else { self.rule.effect }
    }

    /// Least first decides: the most specific scope (`C-032`), the longest command prefix (`C-034`), constraints
    /// before none (`C-059`), the most restrictive (`C-033`); the name makes the order total.
    fn order(&self) -> impl Ord + use<'_, 'p> {
        let prefix = match &self.rule.subject {
            Subject::Command(prefix) => prefix.len(),
            Subject::Class(_) => 0,
        };
        (
            self.rule.scope.rank(),
            Reverse(prefix),
            self.rule.constraints.is_empty(),
            Reverse(self.effect()),
            // Of two questions the one that a deny rule made is the firmer: it survives the dial (`R-19`).
            Reverse(self.rule.effect == Effect::Deny),
            self.unknown.is_some(),
            &self.rule.id,
        )
    }
}

fn answer(tier: Tier, question: Question<'_>, candidates: &[Candidate<'_>]) -> Option<Answer> {
    let decides = candidates.iter().position(|candidate| candidate.rule.level != Level::Advisory);
    let mut matched: Vec<Matched> = candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let status = match candidate.rule.level {
                Level::Advisory => Status::Advisory,
                _ if Some(index) == decides => Status::Decided,
                _ => Status::Shadowed,
            };
            matched(tier, question, candidate.rule, status)
        })
        .collect();
    match (decides, question) {
        (Some(index), _) => Some(decided(tier, question, &candidates[index], matched)),
        (None, Question::Class(class)) if tier == Tier::Policy => {
            matched.push(built_in_matched(class));
            Some(built_in(class, matched))
        }
        (None, _) if matched.is_empty() => None,
        (None, _) => Some(Answer {
            effect: Effect::Allow,
            rule: "default".to_owned(),
            refusal: refusal(String::new(), question, String::new(), Code::Rule),
            from_deny: false,
            matched,
        }),
    }
}

fn decided(tier: Tier, question: Question<'_>, candidate: &Candidate<'_>, matched: Vec<Matched>) -> Answer {
    let rule = candidate.rule;
    let subject = match question {
        Question::Class(class) => class.as_str().to_owned(),
        Question::Command(_) => match &rule.subject {
            Subject::Command(prefix) => format!("`{prefix}`"),
            Subject::Class(class) => class.as_str().to_owned(),
        },
    };
    let verb = match candidate.effect() {
        Effect::Allow => "is allowed",
        Effect::Prompt => "is asked about",
        Effect::Deny => "is denied",
    };
    let place = match tier {
        Tier::Policy => rule.scope.to_string(),
        Tier::Managed => "managed".to_owned(),
    };
    let mut reason = format!("{place}: {subject} {verb}");
    if !rule.constraints.is_empty() {
        reason.push_str(&format!(" ({})", rule.constraints));
    }
    if let Some(written) = &rule.reason {
        reason.push_str(&format!(": {written}"));
    }
    let mut code = if tier == Tier::Managed { Code::Managed } else { Code::Rule };
    if let Some(facet) = candidate.unknown {
        code = Code::FacetUnknown;
        reason = format!("facet_unknown: {}; {reason}", facet.as_str());
    }
    Answer {
        effect: candidate.effect(),
        rule: rule.id.clone(),
        refusal: refusal(rule.id.clone(), question, reason, code),
        from_deny: rule.effect == Effect::Deny,
        matched,
    }
}

fn built_in(class: ActionClass, matched: Vec<Matched>) -> Answer {
    let rule = format!("builtin:{class}");
    let reason = format!("{class} is asked about while no rule speaks about it");
    Answer {
        effect: class.default_effect(),
        refusal: refusal(rule.clone(), Question::Class(class), reason, Code::Rule),
        rule,
        from_deny: false,
        matched,
    }
}

fn propose_only(request: &Request, class: ActionClass) -> Answer {
    let dial = Autonomy::ProposeOnly;
    let question = Question::Class(class);
    let rule = format!("autonomy:{}", dial.as_str());
    let space = request.principal.space.as_deref().unwrap_or_default();
    let reason = format!("space:{space}: agents only propose here; {class} is an act");
    Answer {
        effect: Effect::Deny,
        refusal: refusal(rule.clone(), question, reason, Code::Autonomy),
        rule,
        from_deny: true,
        matched: vec![dial_matched(request, dial, question, Effect::Deny)],
    }
}

fn mode_net(policy: &Policy, request: &Request, command: &str) -> Option<Refusal> {
    let mode = request.principal.mode.as_ref()?;
    let prefixes = policy.parts().nets.get(mode)?;
    let prefix = prefixes.iter().find(|prefix| command_has_prefix(command, prefix))?;
    let reason = format!("mode:{mode}: commands that start with `{prefix}` are refused");
    Some(refusal(format!("net:{mode}"), Question::Command(command), reason, Code::ModeNet))
}

fn refusal(rule: String, question: Question<'_>, reason: String, code: Code) -> Refusal {
    let resource_class = match question {
        Question::Class(class) => class.as_str(),
        Question::Command(_) => "command",
    };
    Refusal { rule, resource_class: resource_class.to_owned(), reason, code }
}

fn class_name(question: Question<'_>) -> Option<&'static str> {
    match question {
        Question::Class(class) => Some(class.as_str()),
        Question::Command(_) => None,
    }
}

fn matched(tier: Tier, question: Question<'_>, rule: &Rule, status: Status) -> Matched {
    let scope = match tier {
        Tier::Policy => rule.scope.to_string(),
        Tier::Managed => "managed".to_owned(),
    };
    Matched {
        rule: rule.id.clone(),
        scope,
        class: class_name(question),
        effect: rule.effect,
        level: rule.level.as_str(),
        constraint: (!rule.constraints.is_empty()).then(|| rule.constraints.to_string()),
        advisory: rule.level == Level::Advisory,
        status,
    }
}

fn built_in_matched(class: ActionClass) -> Matched {
    Matched {
        rule: format!("builtin:{class}"),
        scope: "builtin".to_owned(),
        class: Some(class.as_str()),
        effect: class.default_effect(),
        level: Level::Strict.as_str(),
        constraint: None,
        advisory: false,
        status: Status::Decided,
    }
}

fn dial_matched(request: &Request, dial: Autonomy, question: Question<'_>, effect: Effect) -> Matched {
    let space = request.principal.space.as_deref().unwrap_or_default();
    Matched {
        rule: format!("autonomy:{}", dial.as_str()),
        scope: format!("space:{space}"),
        class: class_name(question),
        effect,
        level: Level::Strict.as_str(),
        constraint: None,
        advisory: false,
        status: Status::Decided,
    }
}
