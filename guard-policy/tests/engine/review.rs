//! What people read about a policy, against what the engine does.

use std::collections::BTreeSet;

use guard_policy::review::{diff, lint, matrix, sentence};
use guard_policy::{Outcome, Policy, Principal, templates};
use proptest::prelude::*;

use crate::strategy::{policy, request};
use crate::{judge, load, load_both, now};

fn kinds(policy: &Policy) -> Vec<(lint::Kind, String)> {
    lint::lint(policy, now()).into_iter().map(|warning| (warning.kind, warning.rule)).collect()
}

/// `R-10`, `C-072`, `C-102`, `C-118`: what lint warns of, each with the smallest policy that has it, and a policy
/// that looks alike and is fine.
#[test]
fn lint_warns_of_rules_that_do_not_do_what_they_seem_to() {
    use lint::Kind::{
        ActFreely, DeadRule, Expired, HostName, IdleCommand, KernelCeiling, ManagedAllow, ShadowedDenial,
        SilentFacet, TextRule,
    };
    let deny = r#"{"id": "d", "class": "gitPush", "effect": "deny", "constraints": {"refs": ["main"]}}"#;
    let table: [(&str, &[(lint::Kind, &str)]); 15] = [
        (
            r#"{"id": "a", "class": "networkEgress", "effect": "allow", "constraints": {"max_count": 9}}"#,
            &[(KernelCeiling, "a")],
        ),
        (
            r#"{"id": "a", "scope": "space:x", "class": "gitPush", "effect": "allow"}"#,
            &[(ShadowedDenial, "d")],
        ),
        (
            r#"{"id": "a", "scope": "agent:x", "class": "gitPush", "effect": "allow", "constraints": {"refs": ["**"]}}"#,
            &[(ShadowedDenial, "d")],
        ),
        (
            r#"{"id": "a", "scope": "space:x", "class": "gitPush", "effect": "allow", "constraints": {"refs": ["feature/**"]}}"#,
            &[],
        ),
        (r#"{"id": "a", "class": "gitPush", "effect": "allow"}"#, &[]),
        (
            r#"{"id": "a", "scope": "space:x", "class": "gitPush", "effect": "allow", "level": "advisory"}"#,
            &[],
        ),
        (r#"{"id": "a", "scope": "space:x", "class": "gitCommit", "effect": "allow"}"#, &[]),
        (
            r#"{"id": "a", "class": "gitPush", "effect": "prompt", "constraints": {"refs": ["main"]}}"#,
            &[(DeadRule, "a")],
        ),
        (
            r#"{"id": "a", "class": "gitPush", "effect": "prompt", "expires_at": "2020-01-01T00:00:00Z"}"#,
            &[(Expired, "a")],
        ),
        (
            r#"{"id": "a", "class": "fileDelete", "effect": "deny", "constraints": {"refs": ["main"]}}"#,
            &[(SilentFacet, "a")],
        ),
        (r#"{"id": "a", "command_prefix": "ls", "effect": "allow"}"#, &[(IdleCommand, "a")]),
        (
            r#"{"id": "a", "command_prefix": "git push origin", "effect": "allow"}, {"id": "b", "command_prefix": "git push", "effect": "prompt"}"#,
            &[(TextRule, "b")],
        ),
        (r#"{"id": "a", "command_prefix": "npm publish", "effect": "deny"}"#, &[(TextRule, "a")]),
        (
            r#"{"id": "a", "class": "networkEgress", "effect": "deny", "constraints": {"hosts": ["example.org"]}}"#,
            &[(HostName, "a")],
        ),
        (
            r#"{"id": "a", "class": "networkEgress", "effect": "deny", "constraints": {"hosts": ["**", "!203.0.113.0/24"]}}"#,
            &[],
        ),
    ];
    for (rule, wanted) in table {
        let policy = load(&format!("{{\"rules\": [\n{deny},\n{rule}]}}"));
        let wanted: Vec<_> = wanted.iter().map(|(kind, rule)| (*kind, (*rule).to_owned())).collect();
        assert_eq!(kinds(&policy), wanted, "{rule}");
        for warning in lint::lint(&policy, now()) {
            assert_eq!(
                (warning.line, warning.column),
                (if warning.rule == "d" { 2 } else { 3 }, warning.column)
            );
        }
    }
    let free = load(r#"{"autonomy": {"x": "actFreely", "y": "actWithApproval"}}"#);
    assert_eq!(kinds(&free), [(ActFreely, "autonomy:x".to_owned())]);
    let managed = load_both("{}", r#"{"rules": [{"id": "m", "class": "gitPush", "effect": "allow"}]}"#);
    assert_eq!(kinds(&managed), [(ManagedAllow, "m".to_owned())]);
}

/// The shipped templates load, have no warning, keep their examples, and do what their line says.
#[test]
fn templates_do_what_they_say() {
    let outcome = |name: &str, action: &str| {
        let template = templates::ALL.iter().find(|template| template.name == name).expect(name);
        judge(&load(template.text), &format!(r#"{{"action": {action}}}"#), true).outcome.as_str()
    };
    for template in templates::ALL {
        assert_eq!(kinds(&load(template.text)), [], "{}", template.name);
        assert!(sentence::policy(&load(template.text)).len() > 4);
    }
    let push = |reference: &str| format!(r#"{{"classes": ["gitPush"], "refs": ["{reference}"]}}"#);
    let table = [
        ("review-only", r#"{"classes": ["gitCommit"]}"#.to_owned(), "deny"),
        ("review-only", push("feature/x"), "deny"),
        ("review-only", "{}".to_owned(), "allow"),
        ("cautious", push("main"), "deny"),
        ("cautious", push("feature/x"), "defer_for_approval"),
        ("cautious", r#"{"classes": ["networkEgress"]}"#.to_owned(), "defer_for_approval"),
        ("balanced", push("feature/x"), "allow"),
        ("balanced", push("main"), "deny"),
        ("balanced", push("other"), "defer_for_approval"),
        ("balanced", r#"{"classes": ["gitPush"]}"#.to_owned(), "defer_for_approval"),
        ("balanced", r#"{"classes": ["fileDelete"], "paths": ["target/x"]}"#.to_owned(), "allow"),
        ("balanced", r#"{"classes": ["fileDelete"], "paths": ["src/x"], "count": 201}"#.to_owned(), "deny"),
        ("autonomous", push("other"), "allow"),
        ("autonomous", push("main"), "defer_for_approval"),
        ("autonomous", r#"{"classes": ["fileDelete"], "count": 500}"#.to_owned(), "allow"),
        ("autonomous", r#"{"classes": ["fileDelete"], "count": 501}"#.to_owned(), "defer_for_approval"),
    ];
    for (name, action, wanted) in table {
        assert_eq!(outcome(name, &action), wanted, "{name}: {action}");
    }
    for class in guard_policy::Action::of(guard_policy::classes()).classes {
        let asked = outcome("ci", &format!(r#"{{"classes": ["{class}"]}}"#));
        assert_ne!(asked, "defer_for_approval", "{class}: nobody answers in a pipeline");
    }
}

/// `R-67`: what becomes newly allowed, each with a request that really is.
#[test]
fn diff_shows_what_becomes_newly_allowed() {
    let before = load(r#"{"rules": [{"id": "d", "class": "gitPush", "effect": "deny"}]}"#);
    let after = load(
        r#"{"rules": [{"id": "d", "class": "gitPush", "effect": "deny"},
            {"id": "f", "class": "gitPush", "effect": "allow", "constraints": {"refs": ["feature/**"]}},
            {"id": "x", "class": "gitCommit", "effect": "deny", "scope": "agent:a"}]}"#,
    );
    let changes = diff::compare(&before, &after, now());
    let told: BTreeSet<String> = changes.iter().map(diff::Change::sentence).collect();
    assert!(told.contains("newly allowed: gitPush: deny by d becomes allow by f"), "{told:?}");
    assert!(told.contains("stricter: gitCommit: allow by builtin:gitCommit becomes deny by x"), "{told:?}");
    assert!(
        told.contains("milder: gitPush: deny by d becomes defer_for_approval by f"),
        "silence asks: {told:?}"
    );
    assert_eq!(diff::compare(&after, &after, now()), []);
}

proptest! {
    /// `C-056`: rules that differ in anything but their names read differently.
    #[test]
    fn different_rules_read_differently(one in policy(), other in policy()) {
        let mut seen: Vec<(String, String)> = Vec::new();
        for rule in one.rules.iter().chain(&other.rules) {
            let mut plain = rule.json();
            plain["id"] = "r".into();
            if plain["constraints"].as_object().is_some_and(|limits| !limits.contains_key("max_count") && !limits.contains_key("max_cents")) {
                plain["constraints"].as_object_mut().expect("an object").remove("per");
            }
            let loaded = load(&format!(r#"{{"rules": [{plain}]}}"#));
            seen.push((plain.to_string(), sentence::rule(&loaded.rules()[0])));
        }
        for (rule, text) in &seen {
            for (other, other_text) in &seen {
                prop_assert_eq!(rule == other, text == other_text, "{}\n{}", rule, other);
            }
        }
    }

    /// `C-058`: the matrix is complete, and what it says decides is what decides about an act that says nothing that
    /// a constraint names.
    #[test]
    fn the_matrix_is_what_the_engine_does(policy in policy(), request in request()) {
        let loaded = policy.load();
        let principal: Principal =
            guard_policy::Request::parse(request.json().as_bytes()).expect("valid").principal;
        let matrix = matrix::of(&loaded, &principal, now());
        prop_assert!(matrix.is_complete(), "{:#?}", matrix);
        for class in guard_policy::classes() {
            let ask = guard_policy::Request::new(principal.clone(), guard_policy::Action::of([class]));
            let decision = guard_policy::decide(&loaded, &ask, &guard_policy::Context::new(now(), true));
            let row = matrix.otherwise(class).expect("complete");
            let outcome = match row.effect {
                "allow" => Outcome::Allow,
                "prompt" => Outcome::DeferForApproval,
                _ => Outcome::Deny,
            };
            let constrained = matrix.rows.iter().any(|row| row.about == class.as_str() && row.turn == matrix::Turn::IfItFits);
            if !constrained && matrix.managed.is_empty() && matrix.autonomy == "actWithApproval" {
                prop_assert_eq!(decision.outcome, outcome, "{:#?}", decision);
                prop_assert_eq!(decision.rule.as_str(), row.rule.as_str());
            }
        }
    }
}

proptest! {
    // Each case decides some thousand requests.
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Every change that is told is one: its example has these answers under these policies.
    #[test]
    fn differences_are_real(before in policy(), after in policy()) {
        let (before, after) = (before.load(), after.load());
        for change in diff::compare(&before, &after, now()) {
            let asked = serde_json::to_string(&change.example).expect("JSON");
            prop_assert_eq!(judge(&before, &asked, true).outcome, change.before.0);
            prop_assert_eq!(judge(&after, &asked, true).outcome, change.after.0);
        }
    }
}
