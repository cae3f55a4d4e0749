//! Resolving one question in one chain of rules: the policy's, which ends in the built-in defaults, or the managed
//! file's, which ends in silence.

use std::cmp::Reverse;

use guard_common::{ActionClass, Effect};
use jiff::Timestamp;

use crate::decision::{Code, Matched, Refusal, Status, Text};
use crate::policy::{Fit, Level, Policy, Rule, Subject, View};
use crate::request::{Facet, Request};
use crate::session::{Charge, Usage, UsageKey, Used};

/// Which chain of rules is resolved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    Policy,
    Managed,
}

/// What is looked up in a chain.
#[derive(Clone, Copy)]
pub(super) enum Question<'r> {
    Class(ActionClass),
    Command(&'r str),
}

impl Question<'_> {
    /// The class for records; none for a command.
    pub(super) fn class(self) -> Option<&'static str> {
        match self {
            Self::Class(class) => Some(class.as_str()),
            Self::Command(_) => None,
        }
    }

    pub(super) fn refusal(self, rule: Text, reason: String, code: Code) -> Refusal {
        Refusal { rule, resource_class: self.class().unwrap_or("command"), reason, code }
    }
}

/// What a question is asked of.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) policy: &'a Policy,
    pub(super) request: &'a Request,
    pub(super) now: Timestamp,
    pub(super) usage: &'a Usage,
    pub(super) views: &'a [View<'a>],
}

/// The answer of one chain to one question.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) effect: Option<Effect>,
    pub(super) rule: Text,
    /// What to tell; there unless the effect is an allowance.
    pub(super) refusal: Option<Refusal>,
    /// A deny rule that could not be ruled out: its prompt survives the dial (`R-19`).
    pub(super) from_deny: bool,
    /// Whether an override can lift it (`C-092`).
    pub(super) soft: bool,
}

impl Answer {
    /// How severe it is; of two readings of a request the more severe counts.
    fn severity(&self) -> impl Ord + use<> {
        (self.effect, !self.soft, self.from_deny)
    }
}

/// What resolution leaves behind beside its answers.
#[derive(Default)]
pub(super) struct Trail {
    pub(super) matched: Vec<Matched>,
    pub(super) charges: Vec<Charge>,
    /// A ceiling whose sum cannot be told (`R-61`).
    pub(super) overflow: Option<Text>,
    found: Vec<u32>,
}

/// Resolves one question in one chain; of several readings the most restrictive answer counts.
pub(super) fn resolve(
    asked: &Asked<'_>,
    tier: Tier,
    question: Question<'_>,
    trail: &mut Trail,
) -> Option<Answer> {
    let (rules, index) = match tier {
        Tier::Policy => (asked.policy.rules(), asked.policy.index()),
        Tier::Managed => (asked.policy.managed_rules(), asked.policy.managed_index()),
    };
    match question {
        Question::Class(class) => index.about_class(class, asked.request, &mut trail.found),
        Question::Command(command) => {
            index.about_command(command, &asked.request.principal, &mut trail.found);
        }
    }
    let mut worst: Option<Answer> = None;
    for view in asked.views {
        let mut candidates: Vec<Candidate<'_>> = Vec::new();
        for number in &trail.found {
            let rule = &rules[*number as usize];
            if rule.in_force(asked.now) {
                candidates.extend(Candidate::of(
                    rule,
                    tier,
                    asked,
                    view,
                    &mut trail.charges,
                    &mut trail.overflow,
                ));
            }
        }
        candidates.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        let Some(answer) = answer(tier, question, &candidates, &mut trail.matched) else { continue };
        if worst.as_ref().is_none_or(|worst| answer.severity() > worst.severity()) {
            worst = Some(answer);
        }
    }
    worst
}

/// A rule that is about the question and that its constraints do not rule out.
struct Candidate<'p> {
    rule: &'p Rule,
    unknown: Option<Facet>,
}

impl<'p> Candidate<'p> {
    fn of(
        rule: &'p Rule,
        tier: Tier,
        asked: &Asked<'_>,
        view: &View<'_>,
        charges: &mut Vec<Charge>,
        overflow: &mut Option<Text>,
    ) -> Option<Self> {
        let managed = tier == Tier::Managed;
        let accumulates = rule.constraints.accumulates();
        let used = if accumulates { asked.usage.of(managed, &rule.id) } else { Used::default() };
        let fit = rule.constraints.fit(rule.effect, view, used);
        if accumulates && matches!(fit, Fit::Applies | Fit::Unknown(_) | Fit::Ceiling) {
            let key = UsageKey { managed, rule: rule.id.clone() };
            if !charges.iter().any(|charge| charge.rule == key) {
                let action = &asked.request.action;
                let amount = Used { count: action.effective_count(), cents: action.cents.unwrap_or(0) };
                charges.push(Charge { rule: key, amount });
            }
        }
        match fit {
            Fit::Applies => Some(Self { rule, unknown: None }),
            Fit::Unknown(facet) => Some(Self { rule, unknown: Some(facet) }),
            Fit::Ceiling | Fit::No => None,
            Fit::Overflow => {
                *overflow = Some(rule.id.clone());
                None
            }
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
            // Of two denials the one that nobody can lift counts (`C-094`).
            Reverse(self.rule.level == Level::Strict),
            self.unknown.is_some(),
            &self.rule.id,
        )
    }
}

fn answer(
    tier: Tier,
    question: Question<'_>,
    candidates: &[Candidate<'_>],
    matched: &mut Vec<Matched>,
) -> Option<Answer> {
    let decides = candidates.iter().position(|candidate| candidate.rule.level != Level::Advisory);
    for (index, candidate) in candidates.iter().enumerate() {
        let status = match candidate.rule.level {
            Level::Advisory => Status::Advisory,
            _ if Some(index) == decides => Status::Decided,
            _ => Status::Shadowed,
        };
        note(matched, told(tier, question, candidate.rule, status));
    }
    match (decides, question) {
        (Some(index), _) => Some(decided(tier, question, &candidates[index])),
        (None, Question::Class(class)) if tier == Tier::Policy => {
            note(matched, built_in_matched(class));
            Some(built_in(class))
        }
        (None, _) if candidates.is_empty() => None,
        (None, _) => {
            Some(Answer { effect: Some(Effect::Allow), rule: Text::Static("default"), ..Answer::default() })
        }
    }
}

/// Adds a rule that matched; one that is known already is told once, as having decided if it ever did.
pub(super) fn note(matched: &mut Vec<Matched>, entry: Matched) {
    let same = |known: &&mut Matched| {
        known.rule == entry.rule && known.class == entry.class && known.scope == entry.scope
    };
    match matched.iter_mut().find(same) {
        Some(known) if entry.status == Status::Decided => known.status = Status::Decided,
        Some(_) => {}
        None => matched.push(entry),
    }
}

fn decided(tier: Tier, question: Question<'_>, candidate: &Candidate<'_>) -> Answer {
    let rule = candidate.rule;
    let effect = candidate.effect();
    Answer {
        effect: Some(effect),
        rule: rule.id.clone(),
        refusal: (effect != Effect::Allow).then(|| refusal(tier, question, candidate)),
        from_deny: rule.effect == Effect::Deny,
        // Nobody overrides what the managed file says.
        soft: rule.level == Level::Soft && effect == Effect::Deny && tier == Tier::Policy,
    }
}

fn refusal(tier: Tier, question: Question<'_>, candidate: &Candidate<'_>) -> Refusal {
    let rule = candidate.rule;
    let subject = match (&rule.subject, question) {
        (Subject::Command(prefix), _) => format!("`{prefix}`"),
        (Subject::Class(class), _) => class.as_str().to_owned(),
    };
    let verb = match candidate.effect() {
        Effect::Allow => "is allowed",
        Effect::Prompt => "is asked about",
        Effect::Deny => "is denied",
    };
    let mut reason = format!("{}: {subject} {verb}", place(tier, rule));
    if let Some(constraint) = &rule.constraint {
        reason.push_str(&format!(" ({constraint})"));
    }
    if let Some(written) = &rule.reason {
        reason.push_str(&format!(": {written}"));
    }
    let mut code = if tier == Tier::Managed { Code::Managed } else { Code::Rule };
    if let Some(facet) = candidate.unknown {
        code = Code::FacetUnknown;
        reason = format!("facet_unknown: {}; {reason}", facet.as_str());
    }
    question.refusal(rule.id.clone(), reason, code)
}

fn place(tier: Tier, rule: &Rule) -> Text {
    match tier {
        Tier::Policy => rule.place.clone(),
        Tier::Managed => Text::Static("managed"),
    }
}

fn built_in(class: ActionClass) -> Answer {
    let effect = class.default_effect();
    let rule = Text::Static(built_in_rule(class));
    let refusal = (effect != Effect::Allow).then(|| {
        let reason = format!("{class} is asked about while no rule speaks about it");
        Question::Class(class).refusal(rule.clone(), reason, Code::Rule)
    });
    Answer { effect: Some(effect), rule, refusal, ..Answer::default() }
}

/// Name of the default of a class.
pub(crate) const fn built_in_rule(class: ActionClass) -> &'static str {
    const NAMES: [&str; 13] = [
        "builtin:fileDelete",
        "builtin:gitPush",
        "builtin:prCreate",
        "builtin:prPublish",
        "builtin:vendorSyncWrite",
        "builtin:fileWriteOutsideWorktree",
        "builtin:gitCommit",
        "builtin:networkEgress",
        "builtin:secretAccess",
        "builtin:packageInstall",
        "builtin:processSpawn",
        "builtin:workspaceMutation",
        "builtin:enclosureControl",
    ];
    NAMES[class as usize]
}

fn told(tier: Tier, question: Question<'_>, rule: &Rule, status: Status) -> Matched {
    Matched {
        rule: rule.id.clone(),
        scope: place(tier, rule),
        class: question.class(),
        effect: rule.effect,
        level: rule.level.as_str(),
        constraint: rule.constraint.clone(),
        advisory: rule.level == Level::Advisory,
        status,
    }
}

fn built_in_matched(class: ActionClass) -> Matched {
    Matched {
        rule: Text::Static(built_in_rule(class)),
        scope: Text::Static("builtin"),
        class: Some(class.as_str()),
        effect: class.default_effect(),
        level: Level::Strict.as_str(),
        constraint: None,
        advisory: false,
        status: Status::Decided,
    }
}
