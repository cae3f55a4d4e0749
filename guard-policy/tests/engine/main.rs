//! The engine seen from outside: it is held against a second, naive resolver, against properties that hold for
//! every policy, and against what went wrong in other engines.
//!
//! - `model`: policies and requests as plain data, written out as the JSON that the engine reads;
//! - `naive`: the answer worked out slowly from the requirements, sharing no code with the engine;
//! - `strategy`: small worlds in which rules meet requests often;
//! - the rest: tests.

mod format;
mod history;
mod kernel_table;
mod levels;
mod lines;
mod model;
mod naive;
mod properties;
mod reader;
mod reports;
mod resolution;
mod review;
mod strategy;

use guard_policy::{Context, Decision, Policy, Request, decide};

/// A moment at which the rules of `model` that expire "later" are there and those that expired "before" are not.
fn now() -> jiff::Timestamp {
    "2026-11-30T12:00:00Z".parse().expect("a time")
}

fn load(policy: &str) -> Policy {
    Policy::load(Some(("policy.json", policy.as_bytes())), None)
        .unwrap_or_else(|faults| panic!("{faults:#?}\n{policy}"))
}

fn load_both(policy: &str, managed: &str) -> Policy {
    Policy::load(Some(("policy.json", policy.as_bytes())), Some(("managed.json", managed.as_bytes())))
        .unwrap_or_else(|faults| panic!("{faults:#?}\n{policy}\n{managed}"))
}

fn judge(policy: &Policy, request: &str, approver: bool) -> Decision {
    let request = Request::parse(request.as_bytes()).unwrap_or_else(|fault| panic!("{fault}\n{request}"));
    decide(policy, &request, &Context::new(now(), approver))
}
