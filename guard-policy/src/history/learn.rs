//! A policy from what a session did (least first): what was done is allowed, exactly; the rest is asked about.

use std::collections::{BTreeMap, BTreeSet};

use guard_common::{ActionClass, Effect};
use serde_json::{Value, json};

use super::Recorded;
use crate::value::{HostPattern, PathPattern, RefPattern};

/// Values of one directory above which the directory stands for them.
const DIRECTORY: usize = 3;
/// Programs that one rule names.
const PROGRAMS: usize = 40;

/// Collects what a session did.
#[derive(Debug, Default)]
pub struct Learner {
    agent: Option<String>,
    classes: BTreeMap<ActionClass, Seen>,
    acts: u64,
}

#[derive(Debug, Default)]
struct Seen {
    acts: u64,
    silent: BTreeSet<&'static str>,
    paths: BTreeSet<String>,
    refs: BTreeSet<String>,
    hosts: BTreeSet<String>,
    programs: BTreeSet<String>,
}

/// A proposed policy.
#[derive(Clone, Debug)]
pub struct Learned {
    /// The policy file.
    pub policy: Value,
    /// Acts that it rests on.
    pub acts: u64,
    /// What no pattern can say exactly and therefore stays asked about.
    pub left_out: Vec<String>,
}

impl Learner {
    /// Takes in one decision of the session. What was refused, or stopped on its way, teaches nothing.
    pub fn observe(&mut self, recorded: &Recorded) {
        if recorded.outcome == "deny" || matches!(recorded.effect.as_str(), "refused" | "fenced" | "killed") {
            return;
        }
        self.acts += 1;
        let request = &recorded.request;
        if self.agent.is_none() {
            self.agent.clone_from(&request.principal.agent);
        }
        let action = &request.action;
        for class in &action.classes {
            let seen = self.classes.entry(*class).or_default();
            seen.acts += 1;
            let mut take = |facet, values: Option<Vec<String>>, known: &mut BTreeSet<String>| match values {
                Some(values) => known.extend(values),
                None => {
                    seen.silent.insert(facet);
                }
            };
            let (mut paths, mut refs, mut hosts) = Default::default();
            take(
                "paths",
                action.paths.as_ref().map(|all| all.iter().map(|one| one.clean().to_owned()).collect()),
                &mut paths,
            );
            take(
                "refs",
                action.refs.as_ref().map(|all| all.iter().map(|one| one.clean().to_owned()).collect()),
                &mut refs,
            );
            take(
                "hosts",
                action.hosts.as_ref().map(|all| all.iter().map(|one| one.raw().to_owned()).collect()),
                &mut hosts,
            );
            seen.paths.append(&mut paths);
            seen.refs.append(&mut refs);
            seen.hosts.append(&mut hosts);
            let words =
                action.commands.iter().flatten().filter_map(|command| command.split_whitespace().next());
            seen.programs.extend(words.map(str::to_owned));
        }
    }

    /// The policy: the rules that allow least come first, those that ask about the rest last.
    #[must_use]
    pub fn propose(&self) -> Learned {
        let mut allows: Vec<(u64, Value)> = Vec::new();
        let mut asks = Vec::new();
        let mut left_out = Vec::new();
        for class in ActionClass::ALL {
            let name = class.as_str().to_lowercase();
            if let Some(seen) = self.classes.get(&class) {
                let constraints = seen.constraints(class, &mut left_out);
                if let Some(constraints) = constraints {
                    let mut rule = self.rule(&format!("{name}-seen"), class, Effect::Allow);
                    rule["reason"] = format!("seen {} times", seen.acts).into();
                    if constraints.as_object().is_some_and(|limits| !limits.is_empty()) {
                        rule["constraints"] = constraints;
                        asks.push(self.rule(&format!("{name}-rest"), class, Effect::Prompt));
                    }
                    allows.push((seen.acts, rule));
                    continue;
                }
            }
            if class.default_effect() == Effect::Allow {
                asks.push(self.rule(&format!("{name}-unseen"), class, Effect::Prompt));
            }
        }
        // A rule with constraints allows less than one without; among equals the one that was used least comes first.
        allows.sort_by_key(|(acts, rule)| (rule.get("constraints").is_none(), *acts));
        let rules: Vec<Value> = allows.into_iter().map(|(_, rule)| rule).chain(asks).collect();
        Learned { policy: json!({"version": 1, "rules": rules}), acts: self.acts, left_out }
    }

    fn rule(&self, id: &str, class: ActionClass, effect: Effect) -> Value {
        let mut rule = json!({"id": id, "class": class.as_str(), "effect": effect.as_str()});
        if let Some(agent) = &self.agent {
            rule["scope"] = format!("agent:{agent}").into();
        }
        rule
    }
}

impl Seen {
    /// The narrowest constraints that hold for everything that was seen; `None` when no pattern says it.
    fn constraints(&self, class: ActionClass, left_out: &mut Vec<String>) -> Option<Value> {
        use ActionClass::{
            FileDelete, FileWriteOutsideWorktree, GitPush, NetworkEgress, ProcessSpawn, SecretAccess,
        };
        let facet = match class {
            GitPush => ("refs", &self.refs),
            NetworkEgress => ("hosts", &self.hosts),
            FileDelete | FileWriteOutsideWorktree | SecretAccess => ("paths", &self.paths),
            ProcessSpawn if self.programs.len() <= PROGRAMS && !self.programs.is_empty() => {
                ("commands", &self.programs)
            }
            _ => return Some(json!({})),
        };
        let (name, values) = facet;
        // Where some acts were silent, a rule about the facet would not have let them through.
        if self.silent.contains(name) && name != "commands" {
            left_out.push(format!("{class}: some acts did not say their {name}"));
        }
        let values = if name == "paths" { directories(values) } else { values.clone() };
        let (good, bad): (Vec<String>, Vec<String>) =
            values.into_iter().partition(|value| exact(name, value));
        left_out.extend(
            bad.into_iter().map(|value| format!("{class}: `{value}` cannot be written as a pattern")),
        );
        (!good.is_empty()).then(|| json!({ name: good }))
    }
}

/// Whether a value, written as a pattern, names itself and what is below a directory, and nothing else.
fn exact(facet: &str, value: &str) -> bool {
    let plain = value.strip_suffix("/**").unwrap_or(value);
    if plain.starts_with('!') || plain.contains(['*', '?']) {
        return false;
    }
    match facet {
        "paths" => PathPattern::parse(value).is_ok(),
        "refs" => RefPattern::parse(value).is_ok(),
        "hosts" => HostPattern::parse(value).is_ok(),
        _ => true,
    }
}

/// Several files of one directory are that directory (`R-21`).
fn directories(paths: &BTreeSet<String>) -> BTreeSet<String> {
    let mut by: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for path in paths {
        by.entry(path.rsplit_once('/').map_or("", |(directory, _)| directory)).or_default().push(path);
    }
    let mut found = BTreeSet::new();
    for (directory, files) in by {
        if files.len() > DIRECTORY && !directory.is_empty() {
            found.insert(format!("{directory}/**"));
        } else {
            found.extend(files.into_iter().cloned());
        }
    }
    found
}
