//! The gates: each judges what it can read of a request and can only tighten (`R-02`).

pub(crate) mod classes;
pub(crate) mod network;

use guard_common::ActionClass;

use crate::decision::{Matched, Outcome, Refusal};

/// What a gate found.
#[derive(Debug, Default)]
pub(crate) struct Finding {
    /// `None`: nothing to read.
    pub(crate) outcome: Option<Outcome>,
    /// The first refusal.
    pub(crate) denied: Option<Refusal>,
    /// Everything to ask.
    pub(crate) asks: Vec<Refusal>,
    /// The rules that matched.
    pub(crate) matched: Vec<Matched>,
    /// The rule that allowed the first class.
    pub(crate) allowed: Option<(ActionClass, String)>,
}
