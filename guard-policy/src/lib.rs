//! The policy engine of guard.
//!
//! One pure function answers every question: [`decide`] takes a [`Policy`], a [`Request`] and a [`Context`] and
//! returns a [`Decision`] (`C-002`, `R-01`). Nothing here does I/O, reads a clock or keeps state between calls;
//! the same arguments give the same answer in the daemon, in a probe and in a replay (`C-143`).
//!
//! - [`json`] and [`Fault`]: the one strict reader, and what can be wrong with an input;
//! - [`request`], [`decision`]: what goes in and what comes out;
//! - [`value`]: paths, refs and hosts in canonical form, and the patterns over them;
//! - [`facts`]: what the kernel saw, sorted into action classes;
//! - [`policy`]: rules as operators write them;
//! - [`session`]: what a session has used, for ceilings and receipts;
//! - [`eval`]: batches of requests, one a line;
//! - [`approval`]: what a remembered answer becomes;
//! - [`history`]: a record judged again, and a policy made from one;
//! - [`review`]: a policy as people read it;
//! - [`schema`]: the formats as JSON Schema;
//! - [`templates`]: policies to start from;
//! - [`delegation`]: who may hand a task to whom;
//! - [`network`]: the same policy as an address table for the kernel;
//! - `gate`: what judges a request, one module a gate.
//!
//! ```
//! use guard_policy::{Context, Policy, Request, decide, decision::Outcome};
//!
//! let request = Request::parse(br#"{"action": {"classes": ["gitPush"], "refs": ["main"]}}"#)?;
//! let now = "2026-11-30T12:00:00Z".parse()?;
//! let decision = decide(&Policy::builtin(), &request, &Context::new(now, true));
//! assert_eq!(decision.outcome, Outcome::DeferForApproval);
//! assert_eq!(decision.rule, "builtin:gitPush");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod adapter;
pub mod approval;
mod decide;
pub mod decision;
pub mod delegation;
pub mod eval;
pub mod facts;
mod fault;
mod gate;
pub mod history;
pub mod json;
pub mod network;
pub mod policy;
mod read;
pub mod request;
pub mod review;
pub mod schema;
pub mod session;
pub mod templates;
mod text;
pub mod value;

pub use decide::{Context, decide};
pub use decision::{Decision, Outcome};
pub use fault::{Fault, FaultCode};
pub use policy::Policy;
pub use request::{Action, Principal, Request};
pub use session::Sessions;
pub use text::Text;

/// The thirteen classes, in the order of the taxonomy.
#[must_use]
pub const fn classes() -> [guard_common::ActionClass; 13] {
    guard_common::ActionClass::ALL
}
