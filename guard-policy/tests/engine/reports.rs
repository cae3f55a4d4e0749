//! What went wrong in other permission engines, tried on this one. Each test names its kind of report.

use guard_policy::decision::Code;
use guard_policy::{FaultCode, Policy, Request, facts};

use crate::{judge, load};

fn outcome(policy: &str, action: &str) -> (&'static str, String) {
    let decision = judge(&load(policy), &format!(r#"{{"action": {action}}}"#), true);
    (decision.outcome.as_str(), decision.rule.to_string())
}

/// A text rule missed equal forms of a command: ours is literal and says so (`C-071`, `C-072`), and the class,
/// which the program that starts really has, still asks.
#[test]
fn other_spellings_of_a_push_still_ask() {
    let policy = r#"{"rules": [{"id": "no", "command_prefix": "git push", "effect": "deny"}]}"#;
    for command in ["git -C /r push", "cd s && git push", "X=1 git push", "git  push"] {
        let action = format!(r#"{{"classes": ["gitPush"], "commands": ["{command}"]}}"#);
        assert_eq!(outcome(policy, &action), ("defer_for_approval", "builtin:gitPush".into()), "{command}");
    }
    assert_eq!(outcome(policy, r#"{"commands": ["git push"]}"#), ("deny", "no".into()));
}

/// A broad permission beat a question in the same scope.
#[test]
fn a_broad_permission_does_not_beat_a_question() {
    let policy = r#"{"rules": [
        {"id": "all", "class": "processSpawn", "effect": "allow", "constraints": {"commands": ["git"]}},
        {"id": "ask", "class": "processSpawn", "effect": "prompt", "constraints": {"commands": ["git push"]}}]}"#;
    let action = r#"{"classes": ["processSpawn"], "commands": ["git push origin"]}"#;
    assert_eq!(outcome(policy, action), ("defer_for_approval", "ask".into()));
}

/// A harmless text in another field satisfied a pattern over the whole request.
#[test]
fn only_the_named_facet_counts() {
    let policy = r#"{"rules": [
        {"id": "status", "class": "gitPush", "effect": "allow", "constraints": {"commands": ["git status"]}}]}"#;
    let action = r#"{"classes": ["gitPush"], "commands": ["git push"], "refs": ["git-status"], "paths": ["git status"]}"#;
    assert_eq!(outcome(policy, action).0, "defer_for_approval");
}

/// Spellings of one path slipped past a denial: every one of them touches it (`R-62`, `R-63`).
#[test]
fn every_spelling_of_a_path_touches_a_denial() {
    let policy = r#"{"rules": [{"id": "no", "class": "fileDelete", "effect": "deny", "constraints": {"paths": ["**/.env", "/etc/**"]}}]}"#;
    for path in
        [".env", "./.env", "a/../.env", "a//.env", "/srv/./a/.env", "//etc/passwd", "/usr/../etc/x", "/etc"]
    {
        let action = format!(r#"{{"classes": ["fileDelete"], "paths": ["{path}"]}}"#);
        assert_eq!(outcome(policy, &action), ("deny", "no".into()), "{path}");
    }
    for path in [".environment", "etc/passwd", "/etcetera"] {
        let action = format!(r#"{{"classes": ["fileDelete"], "paths": ["{path}"]}}"#);
        assert_eq!(outcome(policy, &action).0, "defer_for_approval", "{path}");
    }
}

/// A directory was compared as the start of a text.
#[test]
fn a_directory_is_no_prefix_of_a_text() {
    let policy = r#"{"rules": [{"id": "in", "class": "fileDelete", "effect": "allow", "constraints": {"paths": ["/allowed/**"]}}]}"#;
    let try_path =
        |path: &str| outcome(policy, &format!(r#"{{"classes": ["fileDelete"], "paths": ["{path}"]}}"#)).0;
    assert_eq!(try_path("/allowed/x"), "allow");
    for path in ["/allowed-evil/x", "/allowed/../x", "/allowed/../allowed-evil", "allowed/x"] {
        assert_eq!(try_path(path), "defer_for_approval", "{path}");
    }
}

/// Other ways to write an address went past a filter: whatever a resolver would take for it is refused (`R-24`).
#[test]
fn every_spelling_of_an_address_is_that_address() {
    for host in [
        "169.254.169.254",
        "169.254.169.254.",
        "2852039166",
        "0xa9fea9fe",
        "0xA9.0xFE.0xA9.0xFE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "169.16689662",
        "１６９.254.169.254",
        "169。254。169。254",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "::169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::",
        "2001::5601:5601",
        "fd00:ec2::254",
        "FD00:0EC2:0:0::0254",
    ] {
        let decision = judge(
            &Policy::builtin(),
            &format!(r#"{{"action": {{"classes": ["networkEgress"], "hosts": ["{host}"]}}}}"#),
            true,
        );
        assert_eq!(decision.rule, "network:metadata", "{host}: {decision:#?}");
        assert_eq!(decision.denied.expect("a refusal").code, Code::Network);
        assert_eq!(decision.trace.len(), 1, "R-02: the refusal ends the run");
    }
}

/// The ranges by their names, with the addresses at their edges.
#[test]
fn built_in_ranges_end_where_they_end() {
    let table = [
        ("10.0.0.0", "network:private"),
        ("10.255.255.255", "network:private"),
        ("9.255.255.255", "default"),
        ("11.0.0.0", "default"),
        ("172.15.255.255", "default"),
        ("172.16.0.0", "network:private"),
        ("172.31.255.255", "network:private"),
        ("172.32.0.0", "default"),
        ("192.168.0.1", "network:private"),
        ("198.18.0.0", "network:private"),
        ("198.19.255.255", "network:private"),
        ("198.20.0.0", "default"),
        ("100.64.0.0", "network:cgnat"),
        ("100.100.100.200", "network:metadata"),
        ("100.128.0.0", "default"),
        ("169.254.1.1", "network:link_local"),
        ("168.63.129.16", "network:metadata"),
        ("192.0.0.192", "network:metadata"),
        ("224.0.0.1", "network:multicast"),
        ("239.255.255.255", "network:multicast"),
        ("240.0.0.1", "default"),
        ("255.255.255.255", "network:multicast"),
        ("127.0.0.1", "default"),
        ("0.0.0.0", "default"),
        ("::1", "default"),
        ("::", "default"),
        ("fc00::1", "network:unique_local"),
        ("fdff::1", "network:unique_local"),
        ("fe00::1", "default"),
        ("fe80::1", "network:link_local"),
        ("febf::1", "network:link_local"),
        ("fec0::1", "network:private"),
        ("ff02::1", "network:multicast"),
        ("2001:db8::1", "default"),
    ];
    for (host, rule) in table {
        assert_eq!(outcome("{}", &format!(r#"{{"hosts": ["{host}"]}}"#)).1, rule, "{host}");
    }
}

/// Parsers disagreed about what separates host, port and user: none of it is a host.
#[test]
fn what_is_no_host_is_not_guessed_at() {
    for host in [
        r"127.0.0.1:6666\\@1.1.1.1",
        r"ex\tample.org",
        r"example.org\r",
        r"example.org\nX",
        "127.0.0.%31",
        "user@example.org",
        "example.org/x",
        "http://example.org",
        "[::1]",
        "::1%lo",
        "example.org:80",
        "1.2.3.4.5",
        "256.0.0.1",
        "",
    ] {
        let request = format!(r#"{{"action": {{"hosts": ["{host}"]}}}}"#);
        let fault = Request::parse(request.as_bytes()).expect_err(host);
        assert_eq!((fault.code, fault.column), (FaultCode::InvalidHost, 23), "{host}");
    }
}

/// A name that resolves to a refused address is refused, hidden forms included.
#[test]
fn a_name_is_judged_by_what_it_resolves_to() {
    for (address, rule) in [
        ("10.0.0.5", "network:private"),
        ("::ffff:10.0.0.5", "network:private"),
        ("64:ff9b::a9fe:a9fe", "network:metadata"),
        ("203.0.113.5", "no"),
        ("2002:cb00:7105::", "no"),
        ("198.51.100.1", "builtin:networkEgress"),
    ] {
        let policy = r#"{"rules": [{"id": "no", "class": "networkEgress", "effect": "deny", "constraints": {"hosts": ["203.0.113.0/24"]}}]}"#;
        let request = format!(
            r#"{{"action": {{"classes": ["networkEgress"], "hosts": ["example.org"]}}, "resolved": {{"example.org": ["{address}"]}}}}"#
        );
        assert_eq!(judge(&load(policy), &request, true).rule, rule, "{address}");
    }
}

/// Look-alike letters passed for others: they are flagged (`R-62`), and never equal.
#[test]
fn letters_beyond_ascii_are_flagged() {
    let request = r#"{"action": {"classes": ["gitPush"], "refs": ["mаin"], "hosts": ["bücher.example"], "commands": ["gіt push"]}}"#;
    let decision = judge(&Policy::builtin(), request, true);
    assert_eq!(decision.flags, ["non_ascii:refs", "non_ascii:hosts", "non_ascii:commands"]);
    let policy = r#"{"rules": [{"id": "main", "class": "gitPush", "effect": "allow", "constraints": {"refs": ["main"]}}]}"#;
    assert_eq!(outcome(policy, r#"{"classes": ["gitPush"], "refs": ["mаin"]}"#).0, "defer_for_approval");
}

/// A key that stands twice turned a denial into a permission; however it is written, it does not load.
#[test]
fn keys_that_stand_twice_do_not_load() {
    for policy in [
        r#"{"rules": [{"id": "a", "class": "gitPush", "effect": "deny", "effect": "allow"}]}"#,
        r#"{"rules": [{"id": "a", "class": "gitPush", "effect": "deny", "\u0065ffect": "allow"}]}"#,
        r#"{"rules": [], "rules": []}"#,
        r#"{"rules": [{"id": "a", "command_prefix": "ls", "commandPrefix": "rm", "effect": "allow"}]}"#,
        r#"{"rules": [{"id": "a", "class": "gitPush", "effect": "allow"}, {"id": "a", "class": "gitPush", "effect": "deny"}]}"#,
        r#"{"autonomy": {"alpha": "proposeOnly", "alpha": "actFreely"}}"#,
    ] {
        let faults = Policy::load(Some(("p", policy.as_bytes())), None).expect_err(policy);
        assert_eq!(faults[0].code, FaultCode::DuplicateKey, "{policy}");
    }
}

/// A rule that could not be evaluated was skipped: here a wrong type is found when the file is loaded (`R-61`).
#[test]
fn rules_of_a_wrong_type_do_not_load() {
    for rule in [
        r#"{"id": "a", "class": "gitPush", "effect": "deny", "constraints": {"refs": "main"}}"#,
        r#"{"id": "a", "class": "gitPush", "effect": "deny", "constraints": {"refs": [1]}}"#,
        r#"{"id": "a", "class": "gitPush", "effect": "deny", "constraints": ["refs"]}"#,
        r#"{"id": "a", "class": "gitPush", "effect": true}"#,
        r#"{"id": 1, "class": "gitPush", "effect": "deny"}"#,
        r#"{"id": "a", "class": ["gitPush"], "effect": "deny"}"#,
        r#"{"id": "a", "class": "gitPush"}"#,
        r#"{"id": "a", "effect": "deny"}"#,
        r#"{"id": "a", "class": "gitPush", "command_prefix": "git", "effect": "deny"}"#,
        r#"{"id": "a", "class": "gitPush", "effect": "deny", "level": null}"#,
        r#"{"id": "a", "class": "gitPush", "effect": "deny", "expires_at": 1764504000}"#,
        r#"{"id": "a", "class": "gitPush", "effect": "deny", "constraints": {"max_count": "9", "per": "action"}}"#,
        "[]",
        "null",
    ] {
        let policy = format!(r#"{{"rules": [{rule}]}}"#);
        let faults = Policy::load(Some(("p", policy.as_bytes())), None).expect_err(rule);
        assert!(faults.iter().any(|fault| fault.code == FaultCode::WrongType), "{rule}: {faults:?}");
    }
}

/// Numbers that are none passed a limit.
#[test]
fn amounts_are_whole_and_in_range() {
    use FaultCode::{MalformedJson, OutOfRange, WrongType};
    for (amount, code) in [
        ("NaN", MalformedJson),
        ("Infinity", MalformedJson),
        ("1e400", OutOfRange),
        ("-5", OutOfRange),
        ("-0", OutOfRange),
        ("9007199254740993", OutOfRange),
        ("99999999999999999999999", OutOfRange),
        ("900.0", WrongType),
        ("9e2", WrongType),
        (r#""900""#, WrongType),
        ("true", WrongType),
        ("null", WrongType),
        ("+5", MalformedJson),
        ("05", MalformedJson),
        ("0x5", MalformedJson),
    ] {
        let request = format!(r#"{{"action": {{"count": {amount}}}}}"#);
        assert_eq!(Request::parse(request.as_bytes()).expect_err(amount).code, code, "{amount}");
    }
}

/// More than can be judged well was judged less well: past a limit the answer is no, with the limit's name.
#[test]
fn too_much_is_refused() {
    let many = |name: &str, count: usize| {
        let values: Vec<String> = (0..count).map(|index| format!(r#""v{index}""#)).collect();
        format!(r#"{{"action": {{"classes": ["processSpawn"], "{name}": [{}]}}}}"#, values.join(","))
    };
    let free = load(
        r#"{"autonomy": {"alpha": "actFreely"}, "rules": [{"id": "yes", "class": "processSpawn", "effect": "allow"}]}"#,
    );
    for (name, most) in [("paths", 10_000), ("refs", 1_000), ("hosts", 1_000), ("commands", 64)] {
        assert_eq!(judge(&free, &many(name, most), true).outcome.as_str(), "allow", "{name}");
        let decision = judge(&free, &many(name, most + 1), true);
        assert_eq!(decision.rule, format!("limit:{name}"));
        let denied = decision.denied.expect("a refusal");
        assert_eq!((denied.code, denied.resource_class), (Code::Limit, "request"));
    }
    let long = format!(r#"{{"action": {{"commands": ["{}"]}}}}"#, "x".repeat((64 << 10) + 1));
    assert_eq!(judge(&free, &long, true).rule, "limit:string");
}

/// The ways to push to `main`: each is a push, and its refs are `main` or not known, never something milder.
#[test]
fn every_push_to_main_is_seen_or_asked_about() {
    let policy = load(
        r#"{"rules": [
            {"id": "not-main", "class": "gitPush", "effect": "allow", "constraints": {"refs": ["**", "!main", "!refs/tags/**"]}},
            {"id": "no-main", "class": "gitPush", "effect": "deny", "constraints": {"refs": ["main"]}}]}"#,
    );
    let judged = |words: &str| {
        let argv: Vec<String> = std::iter::once("git").chain(words.split(' ')).map(str::to_owned).collect();
        let action = facts::exec("/usr/bin/git".as_ref(), &argv, false).action;
        let request = Request::new(guard_policy::Principal::default(), action);
        guard_policy::decide(&policy, &request, &guard_policy::Context::new(crate::now(), true))
    };
    for words in [
        "push origin HEAD:main",
        "push origin HEAD:refs/heads/main",
        "push origin HEAD:heads/main",
        "push origin +HEAD:main",
        "push origin HEAD^0:refs/heads/main",
        "push origin feature/x:main",
        "push origin feature/x:heads/main",
        "push origin :main",
        "push origin :refs/heads/main",
        "push origin --delete main",
        "push -d origin main",
        "push ../bare HEAD:main",
        "push -f origin main",
        "push origin x main",
        "push --force-with-lease origin main",
        "-C . push origin main",
        "--git-dir=.git --work-tree=. push origin main",
        "send-pack ../bare HEAD:refs/heads/main",
        "push -uf origin main",
    ] {
        let decision = judged(words);
        assert_eq!(decision.rule, "no-main", "{words}: {decision:#?}");
    }
    for words in [
        "push",
        "push origin",
        "push origin HEAD",
        "push origin @",
        "push origin :",
        "push origin +:",
        "push origin refs/heads/*:refs/heads/*",
        "push --all origin",
        "push --mirror origin",
        "push --mi origin",
        "push --mirr origin feature/x",
        "push --prune origin refs/heads/feature/*:refs/heads/*",
        "push --follow-tags origin x",
        "push --tags origin x",
        "-c push.default=upstream push",
        "-c remote.origin.mirror=true push origin x",
        "-c alias.st=push st origin HEAD:main",
        "-c alias.st=push st origin x",
        "send-pack --stateless-rpc --helper-status ../bare --stdin",
        "push origin tags/v1",
    ] {
        let decision = judged(words);
        assert_eq!(decision.outcome.as_str(), "defer_for_approval", "{words}: {decision:#?}");
        assert!(decision.asks.iter().any(|ask| ask.resource_class == "gitPush"), "{words}");
    }
    for words in ["push origin feature/x", "push origin HEAD:feature/x", "push origin main:safe"] {
        assert_eq!(judged(words).outcome.as_str(), "allow", "{words}");
    }
    for words in ["push origin refs/tags/v1", "push origin tag v1"] {
        assert_eq!(judged(words).outcome.as_str(), "defer_for_approval", "a tag is no branch: {words}");
    }
}

/// A decision without a reason: each names a rule, the default by its own name.
#[test]
fn every_decision_names_what_decided() {
    for (action, rule) in [
        ("{}", "default"),
        (r#"{"commands": ["ls"]}"#, "default"),
        (r#"{"paths": []}"#, "default"),
        (r#"{"classes": ["gitCommit"]}"#, "builtin:gitCommit"),
    ] {
        assert_eq!(outcome("{}", action), ("allow", rule.into()));
    }
}
