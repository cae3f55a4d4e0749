//! What a record of decisions says about a policy: what it would have decided ([`Replay`]), and which one would fit
//! what a session did ([`Learner`]).

mod learn;
mod replay;

pub use learn::{Learned, Learner};
pub use replay::{Advice, Difference, Replay, Summary};

use jiff::Timestamp;

use crate::fault::Fault;
use crate::json::{self, Node, Value};
use crate::request::Request;

/// Most bytes of one line of a record.
const MAX_LINE: usize = 16 << 20;

/// A decision as it stands in a record.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Number of the line.
    pub seq: u64,
    /// When it was decided.
    pub at: Timestamp,
    /// What was asked.
    pub request: Request,
    /// What was answered, and by which rule.
    pub outcome: String,
    /// The rule.
    pub rule: String,
    /// What really happened.
    pub effect: String,
    /// The governed agent, if it was one.
    pub agent_id: String,
}

impl Recorded {
    /// Reads a line of a record; `None` for what is no decision.
    ///
    /// # Errors
    /// When the line is no JSON, or its request none that this version reads.
    pub fn parse(line: &[u8]) -> Result<Option<Self>, Fault> {
        let node = json::parse(line, None, MAX_LINE)?;
        let word = |node: Option<&Node>| match node.map(|node| &node.value) {
            Some(Value::String(text)) => text.to_string(),
            _ => String::new(),
        };
        let decision = node.get("decision");
        let (Some(request), Some(decision), "decision") =
            (node.get("request"), decision, word(node.get("kind")).as_str())
        else {
            return Ok(None);
        };
        let mut request = Request::recorded(line, request)?;
        let outcome = word(decision.get("outcome"));
        // Who was asked could answer, whatever the request said of it.
        request.approver |= outcome == "defer_for_approval";
        let seq = match node.get("seq").map(|node| &node.value) {
            Some(Value::Number(number)) => number.parse().unwrap_or(0),
            _ => 0,
        };
        Ok(Some(Self {
            seq,
            at: word(node.get("ts")).parse().unwrap_or(Timestamp::UNIX_EPOCH),
            request,
            outcome,
            rule: word(decision.get("rule")),
            effect: word(node.get("effect")),
            agent_id: word(node.get("agent_id")),
        }))
    }
}
