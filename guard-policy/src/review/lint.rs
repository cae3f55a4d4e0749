//! Rules that do not do what they seem to. None of this is a fault: the policy loads and means what it says.

use guard_common::{ActionClass, Effect};
use jiff::Timestamp;
use serde::Serialize;

use super::sample;
use crate::decide::{Context, decide};
use crate::decision::Status;
use crate::json::Position;
use crate::policy::{Autonomy, Level, Policy, Rule, Scope, Subject};
use crate::request::{Facet, Request};

/// What kind of oddity it is; stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A more specific allow decides before this denial is asked (`R-10`).
    ShadowedDenial,
    /// An equally specific, more severe rule always decides.
    DeadRule,
    /// The rule is gone already.
    Expired,
    /// The rule names a facet that acts of its class never say, so it always asks.
    SilentFacet,
    /// The rule allows a command and thereby changes nothing (`R-11`).
    IdleCommand,
    /// A managed rule allows; managed rules can only tighten (`C-102`).
    ManagedAllow,
    /// A command rule denies; it is a convenience, not a boundary (`C-072`).
    TextRule,
    /// The dial of a space turns questions into permissions (`C-118`).
    ActFreely,
    /// The rule names hosts by name; the kernel sees addresses only.
    HostName,
    /// A ceiling over a session about connections, which the kernel does not count.
    KernelCeiling,
}

/// One warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What kind of.
    pub kind: Kind,
    /// The rule, or the space.
    pub rule: String,
    /// Whether the rule stands in the managed file.
    pub managed: bool,
    /// Line in its file; 0 for what is no rule.
    pub line: u32,
    /// Column in its file; 0 for what is no rule.
    pub column: u32,
    /// What is odd and what to do.
    pub message: String,
}

/// Every warning about a policy, in the order of its rules.
#[must_use]
pub fn lint(policy: &Policy, now: Timestamp) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for (rules, managed) in [(policy.rules(), false), (policy.managed_rules(), true)] {
        for rule in rules {
            let Position { line, column } = rule.at;
            let mut warn = |kind, message: String| {
                let rule = rule.id.to_string();
                warnings.push(Warning { kind, rule, managed, line, column, message });
            };
            one(rule, rules, managed, now, &mut warn);
            if !managed && rule.effect == Effect::Deny && rule.level != Level::Advisory {
                for (by, example) in shadows(rule, rules, now) {
                    let message = format!(
                        "where `{by}` ({}) holds, it allows before this denial is asked; an example: {example}",
                        rules
                            .iter()
                            .find(|rule| rule.id == by)
                            .map_or_else(String::new, |rule| rule.scope.to_string()),
                    );
                    warn(Kind::ShadowedDenial, message);
                }
            }
        }
    }
    for (space, dial) in &policy.parts().autonomy {
        if *dial == Autonomy::ActFreely {
            let message = format!(
                "in space {space} nobody is asked: prompts are permissions there, and the rule that an unanswered question is a no protects actWithApproval only"
            );
            let (kind, rule) = (Kind::ActFreely, format!("autonomy:{space}"));
            warnings.push(Warning { kind, rule, managed: false, line: 0, column: 0, message });
        }
    }
    warnings
}

fn one(rule: &Rule, rules: &[Rule], managed: bool, now: Timestamp, warn: &mut impl FnMut(Kind, String)) {
    if !rule.in_force(now) {
        warn(Kind::Expired, "it has expired and decides nothing".to_owned());
        return;
    }
    if managed && rule.effect == Effect::Allow {
        let message =
            "a managed rule that allows loosens nothing; it only keeps other managed rules from being asked";
        warn(Kind::ManagedAllow, message.to_owned());
    }
    if let Subject::Class(class) = rule.subject {
        for facet in silent(class, rule) {
            let message = format!("acts of {class} do not say {}, so it asks each time", facet.as_str());
            warn(Kind::SilentFacet, message);
        }
    }
    if rule
        .constraints
        .hosts
        .iter()
        .any(|host| host.network().is_none() && host.written().trim_start_matches('!') != "**")
    {
        let message =
            "it names hosts by name; the kernel sees addresses, so there it is the addresses that decide";
        warn(Kind::HostName, message.to_owned());
    }
    if rule.subject == Subject::Class(ActionClass::NetworkEgress) && rule.constraints.accumulates() {
        let message =
            "connections are answered in the kernel, which does not add up a session; the record does";
        warn(Kind::KernelCeiling, message.to_owned());
    }
    if let Subject::Command(prefix) = &rule.subject {
        let shorter = |other: &Rule| match &other.subject {
            Subject::Command(other_prefix) => {
                other.effect != Effect::Allow && crate::value::command_has_prefix(prefix, other_prefix)
            }
            Subject::Class(_) => false,
        };
        match rule.effect {
            Effect::Allow if !rules.iter().any(shorter) => {
                let message = "an allowing command rule wins over a shorter prefix and weakens no class; there is no shorter prefix here";
                warn(Kind::IdleCommand, message.to_owned());
            }
            Effect::Allow => {}
            Effect::Prompt | Effect::Deny => {
                let message = "commands match as they are written, and the same command can be written otherwise; a class rule is the boundary";
                warn(Kind::TextRule, message.to_owned());
            }
        }
    }
    let same = |other: &&Rule| {
        other.id != rule.id
            && other.scope == rule.scope
            && other.subject == rule.subject
            && other.constraints == rule.constraints
            && other.level != Level::Advisory
            && other.in_force(now)
            && (other.effect, &other.id) > (rule.effect, &rule.id)
    };
    if rule.level != Level::Advisory
        && let Some(other) = rules.iter().find(same)
    {
        let message =
            format!("`{}` says the same or more about the same acts, so this one never decides", other.id);
        warn(Kind::DeadRule, message);
    }
}

/// Facets that a rule names and that acts of its class do not have.
fn silent(class: ActionClass, rule: &Rule) -> Vec<Facet> {
    use ActionClass::{
        EnclosureControl, FileDelete, FileWriteOutsideWorktree, GitPush, NetworkEgress, PackageInstall,
        ProcessSpawn, SecretAccess,
    };
    let constraints = &rule.constraints;
    let mut silent = Vec::new();
    if !constraints.refs.is_empty() && class != GitPush {
        silent.push(Facet::Refs);
    }
    let files = [FileDelete, FileWriteOutsideWorktree, SecretAccess];
    if !constraints.paths.is_empty() && !files.contains(&class) {
        silent.push(Facet::Paths);
    }
    let hosts = [GitPush, NetworkEgress, EnclosureControl, ProcessSpawn, SecretAccess, PackageInstall];
    if !constraints.hosts.is_empty() && (files[..2].contains(&class) || !hosts.contains(&class)) {
        silent.push(Facet::Hosts);
    }
    silent
}

/// The allows of more specific scopes that decide before a denial does, each with an act of both.
fn shadows(denial: &Rule, rules: &[Rule], now: Timestamp) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for allow in rules.iter().filter(|rule| sample::permits(rule) && rule.level != Level::Advisory) {
        let about = allow.subject == denial.subject && allow.scope.rank() < denial.scope.rank();
        if !about || !allow.in_force(now) {
            continue;
        }
        let pair = Policy::of_rules(vec![denial.clone(), allow.clone()]);
        let scopes: [&Scope; 2] = [&allow.scope, &denial.scope];
        let actions = [sample::applies(denial), sample::applies(allow)];
        for action in actions.into_iter().flatten() {
            let request = Request::new(sample::principal(scopes), action);
            let decision = decide(&pair, &request, &Context::new(now, true));
            let shadowed = decision.matched.iter().any(|matched| {
                matched.rule == denial.id && matched.status == Status::Shadowed && decision.rule != denial.id
            });
            if shadowed && decision.outcome == crate::Outcome::Allow {
                let example = serde_json::to_string(&request).unwrap_or_default();
                found.push((allow.id.to_string(), example));
                break;
            }
        }
    }
    found
}
