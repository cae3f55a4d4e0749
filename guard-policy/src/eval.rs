//! Batches: one request a line in, one decision a line out.
//!
//! The same lines give the same decisions here, over gRPC and in a probe: all of them end in [`Sessions`].

use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;

use crate::decide::Context;
use crate::fault::{Fault, FaultCode};
use crate::policy::Policy;
use crate::request::{Line, MAX_REQUEST_BYTES, Request};
use crate::session::Sessions;

/// Judges lines one after another and keeps what sessions use.
#[derive(Debug)]
pub struct Evaluator {
    policy: Policy,
    sessions: Sessions,
    resolvers: Vec<IpAddr>,
    line: u64,
    faulty: bool,
}

/// What stands in the place of a decision when the line has a fault.
#[derive(Serialize)]
struct Faulty<'a> {
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    error: Described<'a>,
}

#[derive(Serialize)]
struct Described<'a> {
    code: &'static str,
    message: &'a str,
    column: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<&'a str>,
}

/// What a receipt is answered with.
#[derive(Serialize)]
struct Settled<'a> {
    id: &'a str,
    settled: bool,
}

impl Evaluator {
    /// An evaluator under this policy, before the first line.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, sessions: Sessions::default(), resolvers: Vec::new(), line: 0, faulty: false }
    }

    /// The host's resolvers, whose port 53 is open.
    #[must_use]
    pub fn with_resolvers(mut self, resolvers: Vec<IpAddr>) -> Self {
        self.resolvers = resolvers;
        self
    }

    /// Whether a line had a fault.
    #[must_use]
    pub const fn faulty(&self) -> bool {
        self.faulty
    }

    /// Reads a line without its end; `None` for a blank one. Reading needs no state, so that it can be done ahead.
    #[must_use]
    pub fn read(line: &[u8]) -> Option<Result<Line, (Fault, Option<String>)>> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        (!line.iter().all(u8::is_ascii_whitespace)).then(|| Line::parse(line))
    }

    /// Judges one line, in the order of the lines, and appends the answer and a line feed to `out`.
    pub fn answer(
        &mut self,
        read: Option<Result<Line, (Fault, Option<String>)>>,
        now: impl Fn() -> Timestamp,
        out: &mut Vec<u8>,
    ) {
        self.line += 1;
        match read {
            None => return,
            Some(Err((fault, id))) => {
                self.faulty = true;
                let error = Described {
                    code: fault.code.as_str(),
                    message: &fault.message,
                    column: fault.column,
                    nearest: fault.nearest.as_deref(),
                };
                write(out, &Faulty { line: self.line, id: id.as_deref(), error });
            }
            Some(Ok(Line::Receipt(receipt))) => {
                let settled = self.sessions.settle(&receipt);
                write(out, &Settled { id: &receipt.receipt, settled });
            }
            Some(Ok(Line::Request(request))) => {
                let decision = self.decide(&request, now);
                write(out, &decision);
            }
        }
        out.push(b'\n');
    }

    /// Counts a line that somebody else answers.
    pub const fn skip(&mut self) {
        self.line += 1;
    }

    fn decide(&mut self, request: &Request, now: impl Fn() -> Timestamp) -> crate::Decision {
        let context = Context::new(request.now.unwrap_or_else(now), request.approver);
        let context =
            if self.resolvers.is_empty() { context } else { context.with_resolvers(self.resolvers.clone()) };
        self.sessions.decide(&self.policy, request, &context)
    }

    /// The fault of a line that is longer than what is read; its bytes need not be kept.
    #[must_use]
    pub fn too_large() -> (Fault, Option<String>) {
        let message = format!("a line has at most {MAX_REQUEST_BYTES} bytes");
        let fault =
            Fault { code: FaultCode::TooLarge, file: None, line: 1, column: 1, message, nearest: None };
        (fault, None)
    }
}

/// Decisions hold nothing that JSON could not say.
fn write(out: &mut Vec<u8>, value: &impl Serialize) {
    let before = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(before);
        out.extend_from_slice(
            br#"{"error":{"code":"engine_error","message":"the answer could not be written"}}"#,
        );
    }
}
