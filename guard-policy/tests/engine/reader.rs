//! What is wrong with an operator's file is told with its place; nothing that is wrong loads.

use guard_policy::{Fault, FaultCode, Policy, Request};

fn faults(policy: &str) -> Vec<Fault> {
    Policy::load(Some(("p.json", policy.as_bytes())), None).expect_err(policy)
}

/// `R-60`: line, column, what is wrong, and the known name that is meant.
#[test]
fn faults_name_place_and_nearest_name() {
    use FaultCode::{
        InvalidHost, InvalidPath, InvalidRef, MalformedJson, OutOfRange, UnknownClass, UnknownKey, WrongType,
    };
    let table = [
        ("{\n  \"rulez\": []\n}", UnknownKey, 2, 3, Some("rules")),
        (
            "{\"rules\": [\n {\"id\": \"a\", \"clas\": \"gitPush\", \"class\": \"gitPush\", \"effect\": \"deny\"}]}",
            UnknownKey,
            2,
            14,
            Some("class"),
        ),
        (
            "{\"rules\": [{\"id\": \"a\", \"class\": \"gitpush\", \"effect\": \"deny\"}]}",
            UnknownClass,
            1,
            33,
            Some("gitPush"),
        ),
        (
            "{\"rules\": [{\"id\": \"a\", \"class\": \"gitPush\", \"effect\": \"denny\"}]}",
            OutOfRange,
            1,
            54,
            Some("deny"),
        ),
        ("{\"autonomy\": {\"alpha\": \"act-freely\"}}", OutOfRange, 1, 24, Some("actFreely")),
        ("{\"modes\": {\"m\": {\"deny_comands\": []}}}", UnknownKey, 1, 18, Some("deny_commands")),
        ("{\"network\": {\"denny\": []}}", UnknownKey, 1, 14, Some("deny")),
        ("{\"network\": {\"deny\": [\"10.0.0.1/8\"]}}", InvalidHost, 1, 23, None),
        (
            "{\"network\": {\"allow\": [{\"cidr\": \"10.0.0.0/8\", \"ports\": [70000]}]}}",
            OutOfRange,
            1,
            57,
            None,
        ),
        ("{\"network\": {\"allow\": [{\"ports\": [1]}]}}", WrongType, 1, 24, None),
        ("{\"network\": {\"allow\": [{\"cidr\": \"10.0.0.0/8\", \"ports\": []}]}}", OutOfRange, 1, 56, None),
        ("{\"network\": {\"allow_holes\": true}}", UnknownKey, 1, 14, Some("allow")),
        (
            "{\"rules\": [{\"id\": \"a\", \"class\": \"gitPush\", \"effect\": \"deny\", \"constraints\": {\"refs\": [\"[ab]\"]}}]}",
            InvalidRef,
            1,
            87,
            None,
        ),
        (
            "{\"rules\": [{\"id\": \"a\", \"class\": \"gitPush\", \"effect\": \"deny\", \"constraints\": {\"paths\": [\"a/../b\"]}}]}",
            InvalidPath,
            1,
            88,
            None,
        ),
        (
            "{\"rules\": [{\"id\": \"a\", \"class\": \"gitPush\", \"effect\": \"deny\", \"constraints\": {\"hosts\": [\"a:443\"]}}]}",
            InvalidHost,
            1,
            88,
            None,
        ),
        (
            "{\"rules\": [{\"id\": \"A b\", \"class\": \"gitPush\", \"effect\": \"deny\"}]}",
            OutOfRange,
            1,
            19,
            None,
        ),
        (
            "{\"rules\": [{\"id\": \"a\", \"scope\": \"team:x\", \"class\": \"gitPush\", \"effect\": \"deny\"}]}",
            OutOfRange,
            1,
            33,
            None,
        ),
        ("{\"version\": 2}", OutOfRange, 1, 13, None),
        ("{\"version\": 1,}", MalformedJson, 1, 15, None),
        ("[]", WrongType, 1, 1, None),
        ("", MalformedJson, 1, 1, None),
    ];
    for (policy, code, line, column, nearest) in table {
        let found = faults(policy);
        assert_eq!(found.len(), 1, "{policy}: {found:#?}");
        let fault = &found[0];
        assert_eq!((fault.code, fault.line, fault.column), (code, line, column), "{policy}: {fault}");
        assert_eq!(fault.nearest.as_deref(), nearest, "{policy}: {fault}");
        let shown = fault.to_string();
        assert!(shown.starts_with(&format!("error[policy_invalid]: p.json:{line}:{column}: ")), "{shown}");
    }
}

/// Everything that is wrong is told at once, in the order of the file, for both files.
#[test]
fn all_faults_are_told() {
    let policy =
        "{\"rules\": [{\"id\": \"a\", \"class\": \"x\", \"effect\": \"y\"}],\n \"autonomy\": 1, \"zz\": 0}";
    let managed = r#"{"rules": [], "modes": {}}"#;
    let found =
        Policy::load(Some(("p", policy.as_bytes())), Some(("m", managed.as_bytes()))).expect_err("faults");
    let places: Vec<_> =
        found.iter().map(|fault| (fault.file.as_deref(), fault.line, fault.column)).collect();
    assert_eq!(
        places,
        [(Some("p"), 1, 33), (Some("p"), 1, 48), (Some("p"), 2, 14), (Some("p"), 2, 17), (Some("m"), 1, 15),]
    );
}

/// A documented key that nothing judges yet is refused by name: nobody may believe that it holds.
#[test]
fn keys_without_effect_are_refused() {
    for policy in [r#"{"resources": []}"#, r#"{"checks": {}}"#, r#"{"require_mandate": true}"#] {
        let found = faults(policy);
        assert!(found.iter().all(|fault| fault.message.contains("not supported yet")), "{policy}: {found:?}");
    }
    for request in [r#"{"tool": {}}"#, r#"{"statements": []}"#, r#"{"payload": {}}"#] {
        let fault = Request::parse(request.as_bytes()).expect_err(request);
        assert!(fault.message.contains("not supported yet"), "{fault}");
    }
    assert!(Policy::load(Some(("p", br#"{"require_mandate": false, "version": 1}"#)), None).is_ok());
}

/// `C-100`: a managed file has its own, shorter list of keys.
#[test]
fn managed_files_hold_less() {
    for managed in [
        r#"{"modes": {}}"#,
        r#"{"autonomy": {}}"#,
        r#"{"network": {"allow": ["10.0.0.0/8"]}}"#,
        r#"{"network": {"resolvers": "deny"}}"#,
        r#"{"resources": []}"#,
    ] {
        let found = Policy::load(None, Some(("m", managed.as_bytes()))).expect_err(managed);
        assert_eq!(found[0].code, FaultCode::UnknownKey, "{managed}");
    }
}

/// `R-06`: the second spellings of three keys.
#[test]
fn aliases_mean_the_same() {
    let alias = r#"{"rules": [{"id": "a", "commandPrefix": "git", "effect": "deny", "constraints": {"maxCount": 1, "maxCents": 2, "per": "action"}}]}"#;
    let plain = r#"{"rules": [{"id": "a", "command_prefix": "git", "effect": "deny", "constraints": {"max_count": 1, "max_cents": 2, "per": "action"}}]}"#;
    assert_eq!(crate::load(alias).rules(), crate::load(plain).rules());
}

/// `R-68`: a rule that disagrees with its own examples does not load.
#[test]
fn examples_are_held_against_their_rule() {
    let rule = |examples: &str| {
        format!(
            r#"{{"rules": [{{"id": "a", "class": "gitPush", "effect": "deny", "constraints": {{"refs": ["main"]}}, {examples}}}]}}"#
        )
    };
    assert!(Policy::load(Some(("p", rule(r#""match": [{"refs": ["main", "x"]}], "not_match": [{"refs": ["x"]}, {"classes": ["gitCommit"], "refs": ["main"]}]"#).as_bytes())), None).is_ok());
    for examples in [r#""match": [{"refs": ["x"]}]"#, r#""not_match": [{"refs": ["x"]}, {"refs": ["main"]}]"#]
    {
        let found = faults(&rule(examples));
        assert!(found.len() == 1 && found[0].message.contains("`a`"), "{found:?}");
    }
    assert_eq!(faults(&rule(r#""match": [{"ref": ["main"]}]"#))[0].nearest.as_deref(), Some("refs"));
}

/// Faults of requests name the column, and the nearest key.
#[test]
fn requests_are_read_strictly() {
    use FaultCode::{DuplicateKey, InvalidPath, InvalidRef, UnknownClass, UnknownKey, WrongType};
    let table = [
        (r#"{"action": {"clases": []}}"#, UnknownKey, 13, Some("classes")),
        (r#"{"action": {"classes": ["gitpush"]}}"#, UnknownClass, 25, Some("gitPush")),
        (r#"{"action": {"paths": ["a/../../b"]}}"#, InvalidPath, 23, None),
        (r#"{"action": {"paths": ["a\u0000"]}}"#, InvalidPath, 23, None),
        (r#"{"action": {"refs": ["a..b"]}}"#, InvalidRef, 22, None),
        (r#"{"action": {"refs": null}}"#, WrongType, 21, None),
        (r#"{"action": {}, "\u0061ction": {}}"#, DuplicateKey, 16, None),
        (r#"{"principal": {"Agent": "a"}}"#, UnknownKey, 16, Some("agent")),
        (r#"{"id": 1}"#, WrongType, 8, None),
        (r#"{"approver": "yes"}"#, WrongType, 14, None),
        (r#"{"approved": true}"#, UnknownKey, 2, Some("approver")),
    ];
    for (request, code, column, nearest) in table {
        let fault = Request::parse(request.as_bytes()).expect_err(request);
        assert_eq!((fault.code, fault.line, fault.column), (code, 1, column), "{fault}");
        assert_eq!(fault.nearest.as_deref(), nearest, "{fault}");
    }
    let large = format!(r#"{{"id": "{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(Request::parse(large.as_bytes()).expect_err("too large").code, FaultCode::TooLarge);
}
