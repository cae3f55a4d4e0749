//! The engine's answer, as it is written out.

use std::collections::BTreeMap;

use guard_common::Effect;
use serde::Serialize;

use crate::request::Source;
pub use crate::text::Text;

/// What happens to the act (`R-03`). Ordered from the mildest to the most severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It goes on.
    Allow,
    /// It goes on without some of its payload.
    AllowWithRedaction,
    /// It waits for a person.
    DeferForApproval,
    /// It is refused.
    Deny,
}

impl Outcome {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::AllowWithRedaction => "allow_with_redaction",
            Self::DeferForApproval => "defer_for_approval",
            Self::Deny => "deny",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Effect> for Outcome {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Allow => Self::Allow,
            Effect::Prompt => Self::DeferForApproval,
            Effect::Deny => Self::Deny,
        }
    }
}

/// Why an act is refused or asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A rule says so.
    Rule,
    /// It would be asked, and nobody can answer (`R-04`).
    NoApprover,
    /// A rule needs to know what the request does not say (`R-14`).
    FacetUnknown,
    /// The autonomy dial of the space.
    Autonomy,
    /// A rule of the managed file.
    Managed,
    /// The command net of the mode.
    ModeNet,
    /// A refused range of addresses.
    Network,
    /// A guard of delegation (`C-120`).
    Delegation,
    /// The request is larger than what is judged (`R-61`).
    Limit,
    /// Something went wrong while deciding (`R-61`).
    EngineError,
}

/// A refusal, or one thing to ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The rule.
    pub rule: Text,
    /// What the rule is about.
    pub resource_class: &'static str,
    /// The sentence for people and agents.
    pub reason: String,
    /// The reason for programs.
    pub code: Code,
}

/// What became of a rule that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It decided.
    Decided,
    /// It only says what it would have done (`R-16`).
    Advisory,
    /// A more specific or more severe rule decided before it.
    Shadowed,
}

/// A rule that matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Matched {
    /// The rule.
    pub rule: Text,
    /// `space:…`, `agent:…`, `workspace:…`, `mode:…`, `everywhere`, `managed` or `builtin`.
    pub scope: Text,
    /// The class that it was asked about; absent for a command rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<&'static str>,
    /// What it says.
    #[serde(serialize_with = "effect_by_name")]
    pub effect: Effect,
    /// How firmly.
    pub level: &'static str,
    /// Its constraints as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Text>,
    /// Whether it only records.
    pub advisory: bool,
    /// What became of it.
    pub status: Status,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field as it is")]
fn effect_by_name<S: serde::Serializer>(effect: &Effect, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(effect.as_str())
}

/// The gates that a request passes, in this order (`R-01`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Ranges of addresses.
    Network,
    /// Mandates.
    Mandate,
    /// Tool checks.
    Tools,
    /// Action classes.
    Classes,
    /// Lanes and budgets.
    Sandbox,
    /// What was said.
    Said,
    /// What leaves.
    Egress,
}

impl Gate {
    /// Every gate in the order in which they run.
    pub const ALL: [Self; 7] =
        [Self::Network, Self::Mandate, Self::Tools, Self::Classes, Self::Sandbox, Self::Said, Self::Egress];
}

/// What one gate said; `pass` when it had nothing to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateVerdict {
    /// Nothing to read.
    Pass,
    /// An outcome.
    Said(Outcome),
}

impl Serialize for GateVerdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Pass => "pass",
            Self::Said(outcome) => outcome.as_str(),
        })
    }
}

/// One step of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The gate.
    pub gate: Gate,
    /// What it said.
    pub verdict: GateVerdict,
}

/// A soft denial that somebody lifted for this one request (`C-092`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overridden {
    /// The rules that were lifted.
    pub rules: Vec<Text>,
    /// Who lifted them.
    pub by: String,
    /// Why.
    pub justification: String,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The request's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What happens.
    pub outcome: Outcome,
    /// The rule that it comes from.
    pub rule: Text,
    /// Present exactly when the act is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Refusal>,
    /// Not empty exactly when the act waits for a person.
    pub asks: Vec<Refusal>,
    /// What is left, by resource class.
    pub budget: BTreeMap<String, BTreeMap<String, u64>>,
    /// Where the facets come from.
    pub sources: BTreeMap<&'static str, Source>,
    /// What a reader should notice.
    pub flags: Vec<Text>,
    /// Present exactly when an override lifted something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overridden: Option<Overridden>,
    /// The rules that matched.
    pub matched: Vec<Matched>,
    /// The gates that ran.
    pub trace: Vec<Step>,
}
