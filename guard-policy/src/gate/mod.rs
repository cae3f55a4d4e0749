//! The gates: each judges what it can read of a request and can only tighten (`R-02`).

mod chain;
pub(crate) mod classes;
pub(crate) mod network;

use crate::decision::{Matched, Outcome, Refusal, Text};
use crate::session::Charge;

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
    pub(crate) allowed: Option<Text>,
    /// Soft denials that the request's override lifts.
    pub(crate) overridden: Vec<Text>,
    /// Ceilings that the act counts towards when it is let through.
    pub(crate) charges: Vec<Charge>,
}

impl Finding {
    /// A refusal and nothing else.
    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self { outcome: Some(Outcome::Deny), denied: Some(refusal), ..Self::default() }
    }
}
