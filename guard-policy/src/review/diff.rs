//! What changes from one policy to the next (`R-67`), shown by requests that get another answer.
//!
//! The requests are made from the words of both policies: each value that a rule names, one that none names, and
//! silence, for each pair of scopes. They are examples and no proof; what they miss is a combination of three
//! scopes, or a pattern that overlaps another in a value that neither writes down.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::sample;
use crate::decide::{Context, decide};
use crate::decision::Outcome;
use crate::policy::Policy;
use crate::request::Request;

/// In which direction an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Allowed now, and was not before.
    NewlyAllowed,
    /// Milder, and not allowed.
    Milder,
    /// More severe.
    Stricter,
}

/// One change, with one request that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Which way it goes.
    pub direction: Direction,
    /// The class of the example, or the command.
    pub about: String,
    /// Answer and rule before.
    pub before: (Outcome, String),
    /// Answer and rule after.
    pub after: (Outcome, String),
    /// One request whose answer changes so.
    pub example: Request,
}

/// Compares two policies at a moment. Each pair of rules is told once, what loosens first.
#[must_use]
pub fn compare(before: &Policy, after: &Policy, now: Timestamp) -> Vec<Change> {
    let mut changes: BTreeMap<(Direction, String, String, String), Change> = BTreeMap::new();
    let context = Context::new(now, true);
    for example in sample::requests(&[before, after]) {
        let (old, new) = (decide(before, &example, &context), decide(after, &example, &context));
        let direction = match (old.outcome, new.outcome) {
            (old, new) if old == new => continue,
            (old, Outcome::Allow) if old != Outcome::Allow => Direction::NewlyAllowed,
            (old, new) if new < old => Direction::Milder,
            _ => Direction::Stricter,
        };
        let class = example.action.classes.first().map(|class| class.as_str().to_owned());
        let command = example.action.commands.iter().flatten().next().cloned();
        let about = class.or(command).unwrap_or_default();
        let (was, is) = (old.rule.to_string(), new.rule.to_string());
        let key = (direction, about.clone(), was.clone(), is.clone());
        changes.entry(key).or_insert_with(|| Change {
            direction,
            about,
            before: (old.outcome, was),
            after: (new.outcome, is),
            example,
        });
    }
    changes.into_values().collect()
}

impl Change {
    /// The change in one sentence, without its example.
    #[must_use]
    pub fn sentence(&self) -> String {
        let word = match self.direction {
            Direction::NewlyAllowed => "newly allowed",
            Direction::Milder => "milder",
            Direction::Stricter => "stricter",
        };
        format!(
            "{word}: {}: {} by {} becomes {} by {}",
            self.about, self.before.0, self.before.1, self.after.0, self.after.1
        )
    }
}
