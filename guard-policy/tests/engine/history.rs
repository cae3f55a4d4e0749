//! Records judged again, and policies made from them.

use guard_policy::history::{Learner, Recorded, Replay};
use guard_policy::{Policy, Request};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::strategy::{policy, session};
use crate::{judge, load};

/// The line that a daemon would have written.
fn line(seq: usize, policy: &Policy, request: &str) -> Vec<u8> {
    let parsed = Request::parse(request.as_bytes()).expect("valid");
    let decision = judge(policy, request, parsed.approver);
    json!({"seq": seq, "ts": "2026-11-30T12:00:00Z", "kind": "decision", "request": parsed, "decision": decision, "effect": "none"})
        .to_string()
        .into_bytes()
}

const REQUESTS: [&str; 4] = [
    r#"{"principal": {"agent": "claude", "session": "s"}, "action": {"classes": ["gitPush"], "refs": ["feature/x"]}, "approver": true}"#,
    r#"{"principal": {"agent": "claude", "session": "s"}, "action": {"classes": ["gitPush"], "refs": ["main"]}, "approver": true}"#,
    r#"{"principal": {"agent": "claude", "session": "s"}, "action": {"classes": ["networkEgress"], "hosts": ["example.org"]}, "approver": true}"#,
    r#"{"principal": {"agent": "claude", "session": "s"}, "action": {"classes": ["processSpawn"], "commands": ["ls -l"]}, "approver": true}"#,
];

/// `C-091`: an advisory rule is tried on what happened, and the record says what it would have stopped.
#[test]
fn replay_tells_what_a_policy_would_have_decided() {
    let before = Policy::builtin();
    let advisory = load(
        r#"{"rules": [{"id": "no-main", "class": "gitPush", "effect": "deny", "level": "advisory", "constraints": {"refs": ["main"]}}]}"#,
    );
    let strict = load(
        r#"{"rules": [{"id": "no-main", "class": "gitPush", "effect": "deny", "constraints": {"refs": ["main"]}}]}"#,
    );
    let run = |policy: Policy| {
        let mut replay = Replay::new(policy);
        let differences: Vec<_> = REQUESTS
            .iter()
            .enumerate()
            .filter_map(|(seq, request)| replay.line(&line(seq, &before, request)).expect("readable"))
            .collect();
        (differences, replay.summary().clone())
    };
    let (differences, summary) = run(advisory);
    assert_eq!((differences.len(), summary.decisions, summary.changed), (0, 4, 0));
    let advice = &summary.advisory["no-main"];
    assert_eq!((advice.denied, advice.asked, advice.examples.as_slice()), (1, 0, &[1][..]));
    let (differences, summary) = run(strict);
    assert_eq!((differences.len(), summary.newly_denied), (1, 1));
    assert_eq!((differences[0].seq, differences[0].after.1.as_str()), (1, "no-main"));
    assert!(differences[0].is_another_answer());
    let mut replay = Replay::new(Policy::builtin());
    assert!(replay.line(b"{\"kind\": \"daemon\"}").expect("readable").is_none());
    assert!(
        replay.line(b"{\"kind\": \"decision\", \"decision\": {}, \"request\": {\"actoin\": 1}}").is_err()
    );
    assert!(replay.line(b"nonsense").is_err());
    assert_eq!(replay.summary().unreadable, 2);
}

/// What was done is allowed, exactly, and everything else is asked about.
#[test]
fn a_learned_policy_allows_what_was_seen_and_no_more() {
    let mut learner = Learner::default();
    for (seq, request) in REQUESTS.iter().enumerate() {
        let recorded = Recorded::parse(&line(seq, &Policy::builtin(), request)).expect("readable");
        learner.observe(&recorded.expect("a decision"));
    }
    let deleted = |path: String| {
        let request = json!({"principal": {"agent": "claude", "session": "s"},
            "action": {"classes": ["fileDelete"], "paths": [path]}, "approver": true});
        Recorded::parse(&line(9, &Policy::builtin(), &request.to_string()))
            .expect("readable")
            .expect("a decision")
    };
    for file in 0..5 {
        learner.observe(&deleted(format!("target/debug/{file}")));
    }
    learner.observe(&deleted("notes[1].txt".to_owned()));
    let mut refused = deleted("secret".to_owned());
    refused.outcome = "deny".to_owned();
    learner.observe(&refused);
    let learned = learner.propose();
    assert_eq!((learned.acts, learned.left_out.len()), (10, 1), "{:?}", learned.left_out);
    let policy = load(&learned.policy.to_string());
    let outcome = |agent: &str, action: Value| {
        let request = json!({"principal": {"agent": agent}, "action": action}).to_string();
        judge(&policy, &request, true).outcome.as_str()
    };
    let table = [
        (json!({"classes": ["gitPush"], "refs": ["main"]}), "allow"),
        (json!({"classes": ["gitPush"], "refs": ["feature/y"]}), "defer_for_approval"),
        (json!({"classes": ["networkEgress"], "hosts": ["example.org"]}), "allow"),
        (json!({"classes": ["networkEgress"], "hosts": ["a.example.org"]}), "defer_for_approval"),
        (json!({"classes": ["fileDelete"], "paths": ["target/debug/other"]}), "allow"),
        (json!({"classes": ["fileDelete"], "paths": ["target/x"]}), "defer_for_approval"),
        (json!({"classes": ["fileDelete"], "paths": ["secret"]}), "defer_for_approval"),
        (json!({"classes": ["processSpawn"], "commands": ["ls"]}), "allow"),
        (json!({"classes": ["processSpawn"], "commands": ["curl x"]}), "defer_for_approval"),
        (json!({"classes": ["packageInstall"]}), "defer_for_approval"),
    ];
    for (action, wanted) in table {
        assert_eq!(outcome("claude", action.clone()), wanted, "{action}");
    }
    let rules = learned.policy["rules"].as_array().expect("a list");
    let effects: Vec<&str> = rules.iter().filter_map(|rule| rule["effect"].as_str()).collect();
    assert!(effects.is_sorted(), "allows come first, questions last: {effects:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// `C-143`: the same policy says the same of a record as it said when the record was made.
    #[test]
    fn a_replay_under_the_same_policy_has_no_differences(policy in policy(), session in session()) {
        let policy = policy.load();
        let mut sessions = guard_policy::Sessions::default();
        let mut replay = Replay::new(policy.clone());
        for (seq, asked) in session.iter().enumerate() {
            let request = Request::parse(asked.json().as_bytes()).expect("valid");
            let decision = sessions.decide(&policy, &request, &guard_policy::Context::new(crate::now(), asked.approver));
            let line = json!({"seq": seq, "ts": crate::now().to_string(), "kind": "decision", "request": request, "decision": decision});
            let difference = replay.line(line.to_string().as_bytes()).expect("readable");
            prop_assert!(difference.is_none(), "{:?}", difference);
        }
    }
}
