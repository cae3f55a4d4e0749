//! The JSON of a decision, to the letter: other programs read it.

use serde_json::{Value, json};

use crate::{judge, load};

const POLICY: &str = r#"{"version": 1, "rules": [
    {"id": "no-push-main", "scope": "workspace:acme", "class": "gitPush", "effect": "deny",
     "constraints": {"refs": ["main"]}, "reason": "protected branch"},
    {"id": "try-egress", "scope": "agent:research", "class": "networkEgress", "effect": "deny", "level": "advisory",
     "constraints": {"hosts": ["**", "!*.internal"]}}]}"#;

const PRINCIPAL: &str =
    r#"{"agent": "research", "session": "s", "workspace": "acme", "space": "alpha", "mode": "build"}"#;

fn decision(action: &str, more: &str, approver: bool) -> Value {
    let request = format!(r#"{{"id": "r1", "principal": {PRINCIPAL}, "action": {action}{more}}}"#);
    serde_json::to_value(judge(&load(POLICY), &request, approver)).expect("JSON")
}

fn trace(verdicts: &[(&str, &str)]) -> Value {
    verdicts.iter().map(|(gate, verdict)| json!({"gate": gate, "verdict": verdict})).collect()
}

/// A refusal ends the run at its gate (`R-02`), names its rule, and asks nothing.
#[test]
fn a_refusal() {
    let action = r#"{"classes": ["gitPush"], "refs": ["main"], "hosts": ["github.com"]}"#;
    let found = decision(action, r#", "sources": {"refs": "parsed", "hosts": "reported"}"#, true);
    let reason = "workspace:acme: gitPush is denied (refs: main): protected branch";
    let wanted = json!({
        "id": "r1",
        "outcome": "deny",
        "rule": "no-push-main",
        "denied": {"rule": "no-push-main", "resource_class": "gitPush", "reason": reason, "code": "rule"},
        "asks": [],
        "budget": {},
        "sources": {"refs": "parsed", "hosts": "reported"},
        "flags": [],
        "matched": [{"rule": "no-push-main", "scope": "workspace:acme", "class": "gitPush", "effect": "deny",
            "level": "strict", "constraint": "refs: main", "advisory": false, "status": "decided"}],
        "trace": trace(&[("network", "pass"), ("mandate", "pass"), ("tools", "pass"), ("classes", "deny")]),
    });
    assert_eq!(found, wanted);
}

/// A question: no `denied`, and every gate has run.
#[test]
fn a_question() {
    let found =
        decision(r#"{"classes": ["fileDelete", "networkEgress"], "hosts": ["203.0.113.5"]}"#, "", true);
    let ask = &found["asks"][0];
    assert_eq!(found["outcome"], "defer_for_approval");
    assert_eq!(
        (&ask["rule"], &ask["resource_class"], &ask["code"]),
        (&json!("builtin:fileDelete"), &json!("fileDelete"), &json!("rule"))
    );
    assert_eq!(found["rule"], "builtin:fileDelete");
    assert!(found.get("denied").is_none(), "{found}");
    let matched: Vec<_> = found["matched"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| [&one["rule"], &one["scope"], &one["status"]])
        .collect();
    assert_eq!(
        matched,
        [
            ["builtin:fileDelete", "builtin", "decided"],
            ["try-egress", "agent:research", "advisory"],
            ["builtin:networkEgress", "builtin", "decided"],
        ]
    );
    let wanted = [
        ("network", "allow"),
        ("mandate", "pass"),
        ("tools", "pass"),
        ("classes", "defer_for_approval"),
        ("sandbox", "pass"),
        ("said", "pass"),
        ("egress", "pass"),
    ];
    assert_eq!(found["trace"], trace(&wanted));
}

/// `R-04`: the same with nobody to ask.
#[test]
fn a_question_to_nobody() {
    let found = decision(r#"{"classes": ["fileDelete", "gitPush"]}"#, "", false);
    assert_eq!(found["outcome"], "deny");
    assert_eq!(found["denied"]["code"], "no_approver");
    assert_eq!(found["denied"]["rule"], found["rule"]);
    assert_eq!(found["asks"], json!([]));
}

/// A refused range: the first gate ends the run, and the class is that of connections.
#[test]
fn a_refused_range() {
    let found = decision(r#"{"hosts": ["169.254.169.254"]}"#, "", true);
    assert_eq!(found["rule"], "network:metadata");
    assert_eq!(
        (&found["denied"]["resource_class"], &found["denied"]["code"]),
        (&json!("networkEgress"), &json!("network"))
    );
    assert_eq!(found["trace"], trace(&[("network", "deny")]));
}

/// Without an id there is none; without classes the rule is `default`.
#[test]
fn nothing_to_judge() {
    let found = serde_json::to_value(judge(&load(POLICY), "{}", false)).expect("JSON");
    assert!(found.get("id").is_none());
    assert_eq!((&found["outcome"], &found["rule"]), (&json!("allow"), &json!("default")));
    let passes =
        ["network", "mandate", "tools", "classes", "sandbox", "said", "egress"].map(|gate| (gate, "pass"));
    assert_eq!(found["trace"], trace(&passes));
}
