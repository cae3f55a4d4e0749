//! The effective matrix of an agent (`C-058`): for each class every rule that can decide, in the order in which they
//! are asked, and the ones that cannot because another comes first.

use std::cmp::Reverse;

use guard_common::{ActionClass, Effect};
use jiff::Timestamp;
use serde::Serialize;

use crate::policy::{Autonomy, Level, Policy, Rule, Subject};
use crate::request::Principal;

/// What a rule's turn comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// It decides where its constraints fit; otherwise the next is asked.
    IfItFits,
    /// It decides.
    Decides,
    /// It is never asked: one above it always decides.
    Shadowed,
    /// It only records.
    Advisory,
}

/// One rule in the order of its class or command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The class, or the command prefix in backquotes.
    pub about: String,
    /// The rule.
    pub rule: String,
    /// Where it holds.
    pub scope: String,
    /// What it says.
    pub effect: &'static str,
    /// How firmly.
    pub level: &'static str,
    /// Its constraints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// What its turn comes to.
    pub turn: Turn,
}

/// The matrix of one principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// The dial of its space.
    pub autonomy: &'static str,
    /// The policy's rules, class after class, then commands.
    pub rows: Vec<Row>,
    /// What the managed file adds; the more severe of both counts.
    pub managed: Vec<Row>,
    /// Command prefixes that the mode refuses.
    pub net: Vec<String>,
    /// What the dial makes of it.
    pub dial: &'static str,
}

/// The matrix of a principal at a moment.
#[must_use]
pub fn of(policy: &Policy, principal: &Principal, now: Timestamp) -> Matrix {
    let autonomy = policy.autonomy(principal);
    let net = principal.mode.as_ref().and_then(|mode| policy.parts().nets.get(mode));
    Matrix {
        autonomy: autonomy.as_str(),
        rows: rows(policy.rules(), principal, now, false),
        managed: rows(policy.managed_rules(), principal, now, true),
        net: net.cloned().unwrap_or_default(),
        dial: match autonomy {
            Autonomy::ProposeOnly => "every act is denied",
            Autonomy::ActWithApproval => "rules and defaults hold as they are",
            Autonomy::ActFreely => {
                "what would be asked is allowed, but for the managed file and unclear denials"
            }
        },
    }
}

fn rows(rules: &[Rule], principal: &Principal, now: Timestamp, managed: bool) -> Vec<Row> {
    let here: Vec<&Rule> =
        rules.iter().filter(|rule| rule.in_force(now) && rule.scope.holds_for(principal)).collect();
    let mut rows = Vec::new();
    for class in ActionClass::ALL {
        let mut about: Vec<&Rule> =
            here.iter().copied().filter(|rule| rule.subject == Subject::Class(class)).collect();
        about.sort_by_key(|rule| order(rule));
        let decided = turns(&about, class.as_str(), managed, &mut rows);
        if !managed {
            rows.push(Row {
                about: class.as_str().to_owned(),
                rule: format!("builtin:{class}"),
                scope: "builtin".to_owned(),
                effect: class.default_effect().as_str(),
                level: Level::Strict.as_str(),
                constraint: None,
                turn: if decided { Turn::Shadowed } else { Turn::Decides },
            });
        }
    }
    let mut prefixes: Vec<&str> = here
        .iter()
        .filter_map(|rule| match &rule.subject {
            Subject::Command(prefix) => Some(prefix.as_str()),
            Subject::Class(_) => None,
        })
        .collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    for prefix in prefixes {
        let same = |rule: &&Rule| matches!(&rule.subject, Subject::Command(other) if other == prefix);
        let mut about: Vec<&Rule> = here.iter().copied().filter(same).collect();
        about.sort_by_key(|rule| order(rule));
        turns(&about, &format!("`{prefix}`"), managed, &mut rows);
    }
    rows
}

/// The order in which resolution asks.
fn order(rule: &Rule) -> impl Ord + use<> {
    (
        rule.scope.rank(),
        rule.constraints.is_empty(),
        Reverse(rule.effect),
        Reverse(rule.level == Level::Strict),
        rule.id.to_string(),
    )
}

/// Adds the rows of one subject; gives back whether one of them always decides.
fn turns(rules: &[&Rule], about: &str, managed: bool, rows: &mut Vec<Row>) -> bool {
    let mut decided = false;
    for rule in rules {
        let turn = match rule.level {
            Level::Advisory => Turn::Advisory,
            _ if decided => Turn::Shadowed,
            _ if rule.constraints.is_empty() => Turn::Decides,
            _ => Turn::IfItFits,
        };
        decided |= turn == Turn::Decides;
        rows.push(Row {
            about: about.to_owned(),
            rule: rule.id.to_string(),
            scope: if managed { "managed".to_owned() } else { rule.scope.to_string() },
            effect: rule.effect.as_str(),
            level: rule.level.as_str(),
            constraint: rule.constraint.as_ref().map(ToString::to_string),
            turn,
        });
    }
    decided
}

impl Matrix {
    /// The rule that answers for a class when the act says nothing that a constraint names, before dial and managed
    /// file.
    #[must_use]
    pub fn otherwise(&self, class: ActionClass) -> Option<&Row> {
        self.rows.iter().find(|row| row.about == class.as_str() && row.turn == Turn::Decides)
    }

    /// Whether every class has exactly one rule that decides when no constraint fits.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        ActionClass::ALL.iter().all(|class| {
            let decides = |row: &&Row| row.about == class.as_str() && row.turn == Turn::Decides;
            self.rows.iter().filter(decides).count() == 1
        })
    }
}

impl Row {
    /// Whether it is a denial that a more specific rule keeps from being asked (`R-10`).
    #[must_use]
    pub fn is_shadowed_denial(&self) -> bool {
        self.turn == Turn::Shadowed && self.effect == Effect::Deny.as_str()
    }
}
