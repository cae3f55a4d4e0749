//! One request: the decision about it is well formed, and what is written out is read back as the same.

#![no_main]

use guard_policy::{Context, Outcome, Policy, Request, decide};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(request) = Request::parse(data) else { return };
    let written = serde_json::to_vec(&request).expect("a request is JSON");
    assert_eq!(Request::parse(&written).as_ref(), Ok(&request));
    for approver in [false, true] {
        let context = Context::new(jiff::Timestamp::UNIX_EPOCH, approver);
        let decision = decide(&Policy::builtin(), &request, &context);
        assert!(!decision.rule.is_empty());
        assert_eq!(decision.denied.is_some(), decision.outcome == Outcome::Deny);
        assert_eq!(decision.asks.is_empty(), decision.outcome != Outcome::DeferForApproval);
        assert!(approver || decision.outcome != Outcome::DeferForApproval);
    }
});
