//! Whole lines as they come in from outside: commands bring their classes and facets, and what misled other engines
//! is tried on this one.

use guard_policy::request::Line;
use guard_policy::{Context, Decision, FaultCode, Policy, Sessions};
use serde_json::json;

use crate::{load, now};

fn answer(policy: &Policy, action: &serde_json::Value) -> Decision {
    let line = json!({"principal": {"mode": "review"}, "action": action}).to_string();
    let Ok(Line::Request(request)) = Line::parse(line.as_bytes()) else { panic!("{line}") };
    Sessions::default().decide(policy, &request, &Context::new(now(), true))
}

fn told(policy: &Policy, action: &serde_json::Value) -> (&'static str, String) {
    let decision = answer(policy, action);
    (decision.outcome.as_str(), decision.rule.to_string())
}

/// An allowing rule for one command let the whole chain through; here every command in a text counts.
#[test]
fn an_allowed_command_opens_nothing_behind_it() {
    let policy = load(
        r#"{"rules": [{"id": "log", "command_prefix": "git log", "effect": "allow"}, {"id": "del", "class": "fileDelete", "effect": "deny"}]}"#,
    );
    for text in [
        "git log && rm x",
        "git log; rm x",
        "git log || rm x",
        "git log | xargs rm x",
        "git log & rm x",
        "git log\nrm x",
        "git log $(rm x)",
        "git log `rm x`",
        "git log <(rm x)",
        "{ git log; rm x; }",
        "(git log; rm x)",
        "git log; rm -fr /",
        "git log; rm --recursive --force /",
        "git log; rm -rfv /",
        "bash -c 'git log; rm x'",
        "sh -lc 'rm x'",
        "/bin/zsh -lc 'rm -rf x'",
    ] {
        assert_eq!(told(&policy, &json!({"commands": [text]})), ("deny", "del".to_owned()), "{text}");
    }
    assert_eq!(told(&policy, &json!({"commands": ["git log"]})).0, "allow");
}

/// `C-071`, `C-074`: a text rule misses other spellings and the class still asks; the net of a mode is final.
#[test]
fn the_class_asks_where_the_text_misses() {
    let policy = load(
        r#"{"rules": [{"id": "push", "command_prefix": "git push", "effect": "deny"}, {"id": "p", "command_prefix": "git push origin safe", "effect": "allow"}],
            "modes": {"review": {"deny_commands": ["npm publish"]}}}"#,
    );
    for text in ["git -C /r push", "cd s && git push", "X=1 git push", "git  push", "command git push"] {
        assert_eq!(
            told(&policy, &json!({"commands": [text]})),
            ("defer_for_approval", "builtin:gitPush".into()),
            "{text}"
        );
    }
    assert_eq!(told(&policy, &json!({"commands": ["git push origin main"]})), ("deny", "push".into()));
    assert_eq!(
        told(&policy, &json!({"commands": ["git push origin safe"]})).1,
        "builtin:gitPush",
        "it weakens no class"
    );
    assert_eq!(told(&policy, &json!({"commands": ["npm publish"]})), ("deny", "net:review".into()));
}

/// `R-25`, `R-14`: refspecs touch their destination; a push that only the repository could explain is asked about.
#[test]
fn pushes_are_judged_by_their_destination() {
    let policy = load(
        r#"{"rules": [{"id": "main", "class": "gitPush", "effect": "deny", "constraints": {"refs": ["main"]}},
            {"id": "rest", "class": "gitPush", "effect": "allow", "constraints": {"refs": ["**", "!main"]}}]}"#,
    );
    for text in [
        "git push origin HEAD:main",
        "git push origin HEAD:refs/heads/main",
        "git push origin HEAD:heads/main",
        "git push origin +HEAD:main",
        "git push origin HEAD^0:refs/heads/main",
        "git push origin feature/x:main",
        "git push origin :main",
        "git push origin --delete main",
        "git push -d origin main",
        "git push -f origin main",
        "git push ../bare HEAD:main",
        "git send-pack ../bare HEAD:refs/heads/main",
    ] {
        let (outcome, rule) = told(&policy, &json!({"commands": [text]}));
        assert!(
            outcome == "deny" && rule == "main" || outcome == "defer_for_approval",
            "{text}: {outcome} by {rule}"
        );
        assert_ne!(outcome, "allow", "{text}");
    }
    for text in [
        "git push",
        "git push origin",
        "git push origin HEAD",
        "git push origin @",
        "git push origin :",
        "git push --all",
        "git push --mirror origin",
        "git push --mi origin",
        "git push origin 'refs/heads/*:refs/heads/*'",
        "git -c alias.st=push st origin HEAD:main",
        "git -c push.default=upstream push",
        "git push --prune origin x",
    ] {
        assert_ne!(told(&policy, &json!({"commands": [text]})).0, "allow", "{text}");
    }
    assert_eq!(
        told(&policy, &json!({"commands": ["git push origin HEAD:feature/x"]})),
        ("allow", "rest".into())
    );
}

/// `R-61`: past the limit of parts the answer is a denial, not a milder look.
#[test]
fn many_commands_are_refused_and_not_skipped() {
    let text = format!("{}curl http://a", "true; ".repeat(64));
    assert_eq!(told(&Policy::builtin(), &json!({"commands": [text]})), ("deny", "limit:segments".into()));
}

/// `R-24`: an address is judged as what it reaches, however it is spelled; what is no host at all is a fault.
#[test]
fn addresses_are_judged_by_what_they_reach() {
    let refused = [
        "169.254.169.254",
        "169.254.169.254.",
        "::ffff:169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "0251.0376.0251.0376",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "10.0.0.1",
        "fd00:ec2::254",
        "255.255.255.255",
    ];
    for host in refused {
        let decision = answer(&Policy::builtin(), &json!({"hosts": [host]}));
        assert!(decision.rule.starts_with("network:"), "{host}: {}", decision.rule);
    }
    for host in ["http://127.0.0.1:6666\\@1.1.1.1", "ex\tample.org", "[::1]", "a b", "example.org:80", ""] {
        let line = json!({"action": {"hosts": [host]}}).to_string();
        let (fault, _) = Line::parse(line.as_bytes()).expect_err(host);
        assert_eq!(fault.code, FaultCode::InvalidHost, "{host:?}");
    }
}

/// `R-63`: every spelling of a path is the path; a neighbour with the same start is another.
#[test]
fn paths_are_judged_by_where_they_lead() {
    let policy = load(
        r#"{"rules": [{"id": "env", "class": "secretAccess", "effect": "deny", "constraints": {"paths": ["**/.env", "/allowed/**"]}}]}"#,
    );
    for path in [
        ".env",
        "./.env",
        "a//.env",
        "a/../.env",
        "a/b/.env",
        "/srv/.env",
        "/allowed",
        "/allowed/x",
        "/x/../allowed/y",
    ] {
        assert_eq!(told(&policy, &json!({"classes": ["secretAccess"], "paths": [path]})).1, "env", "{path}");
    }
    for path in ["/allowed-evil/x", ".envx", "x.env"] {
        assert_eq!(
            told(&policy, &json!({"classes": ["secretAccess"], "paths": [path]})).0,
            "allow",
            "{path}"
        );
    }
}

/// `R-62`: a denial looks at the path as it is written too, an allowance only at where it leads.
#[test]
fn what_restricts_looks_at_both_spellings() {
    let rule = |effect: &str| {
        load(&format!(
            r#"{{"rules": [{{"id": "r", "class": "fileDelete", "effect": "{effect}", "constraints": {{"paths": ["/allowed/**"]}}}}]}}"#
        ))
    };
    let act = json!({"classes": ["fileDelete"], "paths": ["/allowed/../x"]});
    assert_eq!(told(&rule("deny"), &act).0, "deny");
    assert_eq!(told(&rule("allow"), &act).1, "builtin:fileDelete");
}

/// `R-60`: a key that stands twice, in whatever spelling, and a number that is none, end the reading.
#[test]
fn lines_are_read_strictly() {
    let table = [
        (r#"{"action": {"classes": []}, "\u0061ction": {}}"#, FaultCode::DuplicateKey),
        (r#"{"action": {"cents": 1e400}}"#, FaultCode::OutOfRange),
        (r#"{"action": {"cents": NaN}}"#, FaultCode::MalformedJson),
        (r#"{"action": {"cents": -5}}"#, FaultCode::OutOfRange),
        (r#"{"action": {"cents": "900"}}"#, FaultCode::WrongType),
        (r#"{"action": {"cents": 900.0}}"#, FaultCode::WrongType),
        (r#"{"amounts": {"requests": 1}}"#, FaultCode::UnknownKey),
        (r#"{"delegate": {}}"#, FaultCode::WrongType),
        (r#"{"delegate": {"to": "b", "autonomy": "act-freely"}}"#, FaultCode::OutOfRange),
        (r#"{"receipt": "a", "answer": "maybe"}"#, FaultCode::OutOfRange),
        (r#"{"receipt": "a", "ran": 1}"#, FaultCode::WrongType),
        (r#"{"receipt": "a", "action": {}}"#, FaultCode::UnknownKey),
        (r#"{"approved": true}"#, FaultCode::UnknownKey),
    ];
    for (line, code) in table {
        let (fault, _) = Line::parse(line.as_bytes()).expect_err(line);
        assert_eq!(fault.code, code, "{line}: {fault}");
    }
}
