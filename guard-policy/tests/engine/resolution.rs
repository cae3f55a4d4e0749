//! The rules of resolution one by one, each with the smallest policy that shows it.

use guard_policy::decision::{Code, Decision, Status};

use crate::{judge, load, load_both};

/// A policy of these rules, each `scope | class or $ command | effect | constraints | more`.
fn rules(lines: &[(&str, &str, &str, &str, &str)]) -> String {
    let rules = lines.iter().enumerate().map(|(index, (scope, subject, effect, constraints, more))| {
        let scope = if scope.is_empty() { String::new() } else { format!(r#""scope": "{scope}", "#) };
        let subject = match subject.strip_prefix("$ ") {
            Some(command) => format!(r#""command_prefix": "{command}""#),
            None => format!(r#""class": "{subject}""#),
        };
        let constraints =
            if constraints.is_empty() { String::new() } else { format!(r#", "constraints": {constraints}"#) };
        format!(r#"{{"id": "r{index}", {scope}{subject}, "effect": "{effect}"{constraints}{more}}}"#)
    });
    format!(r#"{{"rules": [{}]}}"#, rules.collect::<Vec<_>>().join(", "))
}

fn told(decision: &Decision) -> (&'static str, String) {
    (decision.outcome.as_str(), decision.rule.to_string())
}

const EVERYBODY: &str = r#"{"space": "alpha", "agent": "a", "workspace": "acme", "mode": "review"}"#;

/// Checks rows of (rules, action, outcome, rule), asked by a principal that has every scope.
type Line = (&'static str, &'static str, &'static str, &'static str, &'static str);
type Row = (&'static [Line], &'static str, &'static str, &'static str);

fn check(table: &[Row]) {
    for (lines, action, outcome, rule) in table {
        let request = format!(r#"{{"principal": {EVERYBODY}, "action": {action}}}"#);
        let decision = judge(&load(&rules(lines)), &request, true);
        assert_eq!(told(&decision), (*outcome, (*rule).to_owned()), "{lines:?}\n{action}\n{decision:#?}");
    }
}

/// `C-011` … `C-024`: the defaults, each by its name.
#[test]
fn defaults_hold_while_no_rule_speaks() {
    let table = [
        ("fileDelete", "defer_for_approval"),
        ("gitPush", "defer_for_approval"),
        ("prCreate", "defer_for_approval"),
        ("prPublish", "defer_for_approval"),
        ("vendorSyncWrite", "defer_for_approval"),
        ("fileWriteOutsideWorktree", "allow"),
        ("gitCommit", "allow"),
        ("networkEgress", "allow"),
        ("secretAccess", "allow"),
        ("packageInstall", "allow"),
        ("processSpawn", "allow"),
        ("workspaceMutation", "allow"),
        ("enclosureControl", "allow"),
    ];
    for (class, outcome) in table {
        let request = format!(r#"{{"action": {{"classes": ["{class}"]}}}}"#);
        let decision = judge(&guard_policy::Policy::builtin(), &request, true);
        assert_eq!(told(&decision), (outcome, format!("builtin:{class}")));
    }
    let reads = judge(&guard_policy::Policy::builtin(), "{}", false);
    assert_eq!(told(&reads), ("allow", "default".into()), "C-027: always allow reads");
}

/// `C-031`, `C-032`, `R-10`: the most specific scope that speaks decides, mild or severe.
#[test]
fn the_most_specific_scope_decides() {
    check(&[
        (
            &[("space:alpha", "gitPush", "allow", "", ""), ("agent:a", "gitPush", "deny", "", "")],
            r#"{"classes": ["gitPush"]}"#,
            "allow",
            "r0",
        ),
        (
            &[("agent:a", "gitPush", "allow", "", ""), ("workspace:acme", "gitPush", "deny", "", "")],
            r#"{"classes": ["gitPush"]}"#,
            "allow",
            "r0",
        ),
        (
            &[("workspace:acme", "gitPush", "deny", "", ""), ("mode:review", "gitPush", "allow", "", "")],
            r#"{"classes": ["gitPush"]}"#,
            "deny",
            "r0",
        ),
        (
            &[("mode:review", "gitPush", "allow", "", ""), ("", "gitPush", "deny", "", "")],
            r#"{"classes": ["gitPush"]}"#,
            "allow",
            "r0",
        ),
        (&[("", "gitPush", "deny", "", "")], r#"{"classes": ["gitPush"]}"#, "deny", "r0"),
        (
            &[("space:beta", "gitPush", "deny", "", ""), ("agent:b", "gitPush", "deny", "", "")],
            r#"{"classes": ["gitPush"]}"#,
            "defer_for_approval",
            "builtin:gitPush",
        ),
        // A rule that does not apply leaves the question to the next scope.
        (
            &[
                ("space:alpha", "gitPush", "allow", r#"{"refs": ["feature/**"]}"#, ""),
                ("agent:a", "gitPush", "deny", "", ""),
            ],
            r#"{"classes": ["gitPush"], "refs": ["main"]}"#,
            "deny",
            "r1",
        ),
    ]);
}

/// `C-033`, `C-035`, `C-059`, `R-12`: in one scope constraints count first, then restriction.
#[test]
fn inside_a_scope_constraints_then_restriction() {
    check(&[
        (
            &[("", "gitPush", "allow", "", ""), ("", "gitPush", "deny", r#"{"refs": ["main"]}"#, "")],
            r#"{"classes": ["gitPush"], "refs": ["main"]}"#,
            "deny",
            "r1",
        ),
        (
            &[("", "gitPush", "allow", "", ""), ("", "gitPush", "deny", r#"{"refs": ["main"]}"#, "")],
            r#"{"classes": ["gitPush"], "refs": ["x"]}"#,
            "allow",
            "r0",
        ),
        (
            &[("", "gitPush", "deny", "", ""), ("", "gitPush", "allow", r#"{"refs": ["feature/**"]}"#, "")],
            r#"{"classes": ["gitPush"], "refs": ["feature/x"]}"#,
            "allow",
            "r1",
        ),
        (
            &[("", "gitPush", "allow", "", ""), ("", "gitPush", "prompt", "", "")],
            r#"{"classes": ["gitPush"]}"#,
            "defer_for_approval",
            "r1",
        ),
        (
            &[("", "gitPush", "prompt", "", ""), ("", "gitPush", "deny", "", "")],
            r#"{"classes": ["gitPush"]}"#,
            "deny",
            "r1",
        ),
    ]);
}

/// `C-060`, `C-061`: any value touches a restriction; all values lie inside a permission.
#[test]
fn touching_and_lying_inside() {
    const DENY: &[Line] = &[
        ("", "gitPush", "deny", r#"{"refs": ["main", "release/**"]}"#, ""),
        ("", "gitPush", "allow", "", ""),
    ];
    const ALLOW: &[Line] = &[("", "gitPush", "allow", r#"{"refs": ["**", "!main"]}"#, "")];
    const BOTH: &[Line] =
        &[("", "networkEgress", "deny", r#"{"hosts": ["*.internal"], "paths": ["**/.env"]}"#, "")];
    check(&[
        (DENY, r#"{"classes": ["gitPush"], "refs": ["x", "main"]}"#, "deny", "r0"),
        (DENY, r#"{"classes": ["gitPush"], "refs": ["x", "refs/heads/release/1"]}"#, "deny", "r0"),
        (DENY, r#"{"classes": ["gitPush"], "refs": ["x"]}"#, "allow", "r1"),
        (DENY, r#"{"classes": ["gitPush"], "refs": []}"#, "allow", "r1"),
        (ALLOW, r#"{"classes": ["gitPush"], "refs": ["x", "y/z"]}"#, "allow", "r0"),
        (
            ALLOW,
            r#"{"classes": ["gitPush"], "refs": ["x", "main"]}"#,
            "defer_for_approval",
            "builtin:gitPush",
        ),
        (
            ALLOW,
            r#"{"classes": ["gitPush"], "refs": ["heads/main"]}"#,
            "defer_for_approval",
            "builtin:gitPush",
        ),
        // `R-13`: each named facet has to be touched.
        (
            BOTH,
            r#"{"classes": ["networkEgress"], "hosts": ["db.internal"], "paths": ["a/.env"]}"#,
            "deny",
            "r0",
        ),
        (
            BOTH,
            r#"{"classes": ["networkEgress"], "hosts": ["db.internal"], "paths": ["a"]}"#,
            "allow",
            "builtin:networkEgress",
        ),
        (
            BOTH,
            r#"{"classes": ["networkEgress"], "hosts": ["example.org"]}"#,
            "allow",
            "builtin:networkEgress",
        ),
        (BOTH, r#"{"classes": ["networkEgress"], "hosts": ["db.internal"]}"#, "defer_for_approval", "r0"),
    ]);
}

/// `C-062`, `C-063`, `R-14`: silence is neither a match nor a miss.
#[test]
fn silence_is_asked_about() {
    for effect in ["allow", "deny"] {
        let policy = load(&rules(&[("", "gitCommit", effect, r#"{"refs": ["main"]}"#, "")]));
        let request = r#"{"action": {"classes": ["gitCommit"]}}"#;
        let asked = judge(&policy, request, true);
        assert_eq!(told(&asked), ("defer_for_approval", "r0".into()));
        assert_eq!(asked.asks[0].code, Code::FacetUnknown);
        assert!(asked.asks[0].reason.contains("facet_unknown: refs"), "{}", asked.asks[0].reason);
        let alone = judge(&policy, request, false);
        assert_eq!(told(&alone), ("deny", "r0".into()));
        assert_eq!(alone.denied.expect("a refusal").code, Code::NoApprover);
    }
}

/// `C-034`, `C-070`, `C-074`, `R-11`: commands are resolved on their own, longest prefix first, and tighten only.
#[test]
fn commands_by_their_longest_prefix() {
    const PUSH: &[Line] = &[("", "$ git", "deny", "", ""), ("", "$ git push", "allow", "", "")];
    check(&[
        (PUSH, r#"{"commands": ["git push origin"]}"#, "allow", "default"),
        (PUSH, r#"{"commands": ["git pushx"]}"#, "deny", "r0"),
        (PUSH, r#"{"commands": ["gitx"]}"#, "allow", "default"),
        (
            PUSH,
            r#"{"commands": ["git push origin"], "classes": ["gitPush"]}"#,
            "defer_for_approval",
            "builtin:gitPush",
        ),
        (PUSH, r#"{"commands": ["git push", "git log"]}"#, "deny", "r0"),
        (
            &[("space:alpha", "$ git", "allow", "", ""), ("", "$ git push", "deny", "", "")],
            r#"{"commands": ["git push"]}"#,
            "allow",
            "default",
        ),
    ]);
}

/// `C-038`, `C-039`: several classes are asked in one confirmation, in the order of the taxonomy.
#[test]
fn one_confirmation_lists_every_question() {
    let policy = load_both(
        &rules(&[("", "processSpawn", "prompt", "", ""), ("", "$ git", "prompt", "", "")]),
        r#"{"rules": [{"id": "m", "class": "fileDelete", "effect": "prompt"}]}"#,
    );
    let request = r#"{"action": {"classes": ["processSpawn", "gitPush", "fileDelete"], "commands": ["git x", "git y"]}}"#;
    let decision = judge(&policy, request, true);
    let asks: Vec<_> = decision.asks.iter().map(|ask| (ask.rule.as_str(), ask.resource_class)).collect();
    let wanted = [
        ("builtin:fileDelete", "fileDelete"),
        ("m", "fileDelete"),
        ("builtin:gitPush", "gitPush"),
        ("r0", "processSpawn"),
        ("r1", "command"),
    ];
    assert_eq!(asks, wanted);
    assert_eq!(decision.rule, "builtin:fileDelete");
}

/// `C-091`, `R-16`: the record says what an advisory rule would have done.
#[test]
fn advisory_rules_are_recorded() {
    let policy = load(&rules(&[
        ("space:alpha", "gitCommit", "deny", "", r#", "level": "advisory""#),
        ("agent:a", "gitCommit", "allow", "", ""),
        ("", "gitCommit", "deny", "", ""),
    ]));
    let request = format!(r#"{{"principal": {EVERYBODY}, "action": {{"classes": ["gitCommit"]}}}}"#);
    let decision = judge(&policy, &request, true);
    assert_eq!(told(&decision), ("allow", "r1".into()));
    let status: Vec<_> =
        decision.matched.iter().map(|found| (found.rule.as_str(), found.advisory, found.status)).collect();
    let wanted =
        [("r0", true, Status::Advisory), ("r1", false, Status::Decided), ("r2", false, Status::Shadowed)];
    assert_eq!(status, wanted, "R-10: a deny that is shadowed is shown");
}

/// `C-100` … `C-102`, `R-20`: the managed file tightens and nothing else.
#[test]
fn the_managed_file_tightens() {
    let policy = rules(&[("space:alpha", "gitPush", "allow", "", ""), ("", "gitCommit", "deny", "", "")]);
    let managed = r#"{"rules": [
        {"id": "m-push", "class": "gitPush", "effect": "deny", "level": "soft", "constraints": {"refs": ["main"]}},
        {"id": "m-commit", "class": "gitCommit", "effect": "allow"}]}"#;
    let policy = load_both(&policy, managed);
    let ask =
        |action: &str| judge(&policy, &format!(r#"{{"principal": {EVERYBODY}, "action": {action}}}"#), true);
    let denied = ask(r#"{"classes": ["gitPush"], "refs": ["main"]}"#);
    assert_eq!(told(&denied), ("deny", "m-push".into()));
    assert_eq!(denied.denied.expect("a refusal").code, Code::Managed);
    assert_eq!(denied.matched.last().expect("a rule").scope, "managed");
    assert_eq!(told(&ask(r#"{"classes": ["gitPush"], "refs": ["x"]}"#)), ("allow", "r0".into()));
    assert_eq!(told(&ask(r#"{"classes": ["gitCommit"]}"#)), ("deny", "r1".into()));
}

/// `C-110`, `C-114`, `C-115`, `C-116`, `C-117`, `R-18`, `R-19`: what the dial changes, and what survives it.
#[test]
fn the_dial_of_a_space() {
    let dial = |value: &str, lines: &[Line], action: &str| {
        let policy = rules(lines).replacen('{', &format!(r#"{{"autonomy": {{"alpha": "{value}"}}, "#), 1);
        let managed = r#"{"rules": [{"id": "m", "class": "prPublish", "effect": "prompt"}]}"#;
        let request = format!(r#"{{"principal": {EVERYBODY}, "action": {action}}}"#);
        judge(&load_both(&policy, managed), &request, true)
    };
    let freely = |lines: &[Line], action: &str| told(&dial("actFreely", lines, action));
    let soft = r#", "level": "soft""#;
    assert_eq!(freely(&[], r#"{"classes": ["gitPush"]}"#), ("allow", "autonomy:actFreely".into()));
    assert_eq!(
        freely(&[("", "gitPush", "deny", "", soft)], r#"{"classes": ["gitPush"]}"#),
        ("deny", "r0".into())
    );
    assert_eq!(freely(&[], r#"{"classes": ["prPublish"]}"#), ("defer_for_approval", "m".into()));
    let unknown: &[Line] = &[("", "gitPush", "deny", r#"{"refs": ["main"]}"#, "")];
    assert_eq!(freely(unknown, r#"{"classes": ["gitPush"]}"#), ("defer_for_approval", "r0".into()));
    let tied: &[Line] = &[
        ("", "gitPush", "prompt", r#"{"refs": ["main"]}"#, ""),
        ("", "gitPush", "deny", r#"{"refs": ["main"], "hosts": ["*.internal"]}"#, ""),
    ];
    let action = r#"{"classes": ["gitPush"], "refs": ["main"]}"#;
    assert_eq!(
        freely(tied, action),
        ("defer_for_approval", "r1".into()),
        "a doubtful deny beside a question"
    );

    let proposing =
        dial("proposeOnly", &[("", "gitCommit", "allow", "", "")], r#"{"classes": ["gitCommit"]}"#);
    assert_eq!(told(&proposing), ("deny", "autonomy:proposeOnly".into()));
    assert_eq!(proposing.denied.expect("a refusal").code, Code::Autonomy);
    assert_eq!(told(&dial("proposeOnly", &[], "{}")).0, "allow", "reads are no acts");
    assert_eq!(
        told(&dial("actWithApproval", &[], r#"{"classes": ["gitPush"]}"#)),
        ("defer_for_approval", "builtin:gitPush".into())
    );
}

/// `C-074`: the command net of a mode is final, whatever rules and dial say.
#[test]
fn the_net_of_a_mode_is_final() {
    let policy = load(
        r#"{"autonomy": {"alpha": "actFreely"}, "modes": {"review": {"deny_commands": ["git push"]}},
            "rules": [{"id": "yes", "scope": "space:alpha", "command_prefix": "git push", "effect": "allow"}]}"#,
    );
    let ask = |mode: &str, command: &str| {
        let principal = format!(r#"{{"space": "alpha", "mode": "{mode}"}}"#);
        judge(
            &policy,
            &format!(r#"{{"principal": {principal}, "action": {{"commands": ["{command}"]}}}}"#),
            true,
        )
    };
    let denied = ask("review", "git push x");
    assert_eq!(told(&denied), ("deny", "net:review".into()));
    let denied = denied.denied.expect("a refusal");
    assert_eq!((denied.code, denied.resource_class), (Code::ModeNet, "command"));
    assert_eq!(told(&ask("build", "git push x")).0, "allow");
    assert_eq!(told(&ask("review", "git  push x")).0, "allow", "C-071: a literal net");
}

/// `C-057`: a refusal names the constraint that matched, as it is written.
#[test]
fn refusals_name_their_constraint() {
    let constraints = r#"{"max_count": 5, "per": "action", "hosts": ["**"], "refs": ["**", "!x"], "paths": ["src/**"], "commands": ["git"]}"#;
    let policy = load(&rules(&[(
        "workspace:acme",
        "gitPush",
        "deny",
        constraints,
        r#", "reason": "protected branch""#,
    )]));
    let action = r#"{"classes": ["gitPush"], "paths": ["src/a"], "refs": ["main"], "hosts": ["h"], "commands": ["git x"], "count": 9}"#;
    let decision = judge(&policy, &format!(r#"{{"principal": {EVERYBODY}, "action": {action}}}"#), true);
    let written = "paths: src/**; refs: **, !x; hosts: **; commands: git; max_count: 5";
    assert_eq!(decision.matched[0].constraint.as_deref(), Some(written));
    let reason = decision.denied.expect("a refusal").reason;
    assert!(
        reason.contains(written) && reason.contains("protected branch") && reason.contains("workspace:acme")
    );
}

/// An expired rule is gone at the moment of its expiry, and the policy knows when to be compiled again.
#[test]
fn rules_expire() {
    let rule = |at: &str| rules(&[("", "gitPush", "allow", "", &format!(r#", "expires_at": "{at}""#))]);
    let outcome = |at: &str| judge(&load(&rule(at)), r#"{"action": {"classes": ["gitPush"]}}"#, true).rule;
    assert_eq!(outcome("2026-11-30T12:00:00Z"), "builtin:gitPush");
    assert_eq!(outcome("2026-11-30T14:00:00.5+02:00"), "r0");
    let policy = load(&rule("2026-11-30T12:00:01Z"));
    assert_eq!(
        policy.next_expiry(crate::now()).map(|at| at.to_string()).as_deref(),
        Some("2026-11-30T12:00:01Z")
    );
}

/// `R-64`: what an adapter only reports, and could not have stopped, permits nothing.
#[test]
fn reported_facets_permit_nothing_where_nothing_is_intercepted() {
    let policy = load(&rules(&[("", "gitPush", "allow", r#"{"refs": ["feature/**"]}"#, "")]));
    let ask = |source: &str, adapter: &str| {
        let adapter = if adapter.is_empty() { String::new() } else { format!(r#", "adapter": "{adapter}""#) };
        let request = format!(
            r#"{{"action": {{"classes": ["gitPush"], "refs": ["feature/x"]}}, "sources": {{"refs": "{source}"}}{adapter}}}"#
        );
        judge(&policy, &request, true).outcome.as_str()
    };
    assert_eq!(ask("reported", "claude-code"), "defer_for_approval");
    assert_eq!(ask("reported", "no-such-adapter"), "defer_for_approval");
    assert_eq!(ask("parsed", "claude-code"), "allow");
    assert_eq!(ask("kernel", ""), "allow");
}

/// `C-111`, `C-113`: the dial has three spellings and no other, and none of them is what `actWithApproval` is.
#[test]
fn no_dial_is_the_middle_one() {
    let file = |value: &str| format!(r#"{{"autonomy": {{"alpha": "{value}"}}}}"#);
    for value in ["propose-only", "act-with-approval", "act-freely", "ActFreely", ""] {
        assert!(guard_policy::Policy::load(Some(("p", file(value).as_bytes())), None).is_err(), "{value}");
    }
    let (middle, unset) = (load(&file("actWithApproval")), load("{}"));
    for class in guard_common::ActionClass::ALL {
        let request =
            format!(r#"{{"principal": {EVERYBODY}, "action": {{"classes": ["{}"]}}}}"#, class.as_str());
        for approver in [true, false] {
            assert_eq!(
                told(&judge(&middle, &request, approver)),
                told(&judge(&unset, &request, approver)),
                "{request}"
            );
        }
    }
}

/// `C-005`, `C-027`, `C-054`: both forms of rules live in one file, and thirteen classes suffice to say what people say: never push without
/// asking, never delete outside a worktree, always allow reads.
#[test]
fn what_people_say_can_be_said() {
    let lines: &[Line] = &[
        ("", "gitPush", "prompt", "", ""),
        ("", "fileDelete", "deny", r#"{"paths": ["/**"]}"#, ""),
        ("", "fileDelete", "allow", r#"{"paths": ["**", "!/**"]}"#, ""),
        ("", "$ make deploy", "deny", "", ""),
        ("", "processSpawn", "deny", r#"{"commands": ["curl"]}"#, ""),
    ];
    check(&[
        (lines, r#"{"classes": ["gitPush"], "refs": ["x"]}"#, "defer_for_approval", "r0"),
        (lines, r#"{"classes": ["fileDelete"], "paths": ["/etc/passwd"]}"#, "deny", "r1"),
        (lines, r#"{"classes": ["fileDelete"], "paths": ["src/a"]}"#, "allow", "r2"),
        (lines, r#"{"paths": ["/etc/passwd"]}"#, "allow", "default"),
        (lines, r#"{"commands": ["make deploy now"]}"#, "deny", "r3"),
        (lines, r#"{"commands": ["make deployed"]}"#, "allow", "default"),
        (lines, r#"{"classes": ["processSpawn"], "commands": ["curl x"]}"#, "deny", "r4"),
        (
            lines,
            r#"{"classes": ["processSpawn"], "commands": ["curlew x"]}"#,
            "allow",
            "builtin:processSpawn",
        ),
    ]);
}

/// `C-040`: no answer is latched: the same act is judged anew each time, by the policy as it is then.
#[test]
fn every_call_is_judged_anew() {
    let request = match guard_policy::request::Line::parse(br#"{"action": {"classes": ["gitPush"]}}"#) {
        Ok(guard_policy::request::Line::Request(request)) => request,
        _ => panic!("a request"),
    };
    let mut sessions = guard_policy::Sessions::default();
    let context = guard_policy::Context::new(crate::now(), true);
    let mut ask = |effect: &str| {
        let policy = load(&rules(&[("", "gitPush", effect, "", "")]));
        sessions.decide(&policy, &request, &context).outcome.as_str()
    };
    let told: Vec<_> = ["allow", "prompt", "deny", "prompt", "prompt", "allow"].map(&mut ask).into();
    let (wait, yes) = ("defer_for_approval", "allow");
    assert_eq!(told, [yes, wait, "deny", wait, wait, yes]);
}

/// `C-073`: what a tool declares by its class is a boundary that no wording of a command gets past.
#[test]
fn a_class_is_a_boundary_and_a_command_rule_none() {
    let lines: &[Line] = &[
        ("", "gitPush", "deny", "", ""),
        ("", "$ git push", "allow", "", ""),
        ("", "$ sh", "allow", "", ""),
    ];
    check(&[
        (lines, r#"{"classes": ["gitPush"], "commands": ["git push"]}"#, "deny", "r0"),
        (lines, r#"{"classes": ["gitPush"], "commands": ["git  push"]}"#, "deny", "r0"),
        (lines, r#"{"classes": ["gitPush"], "commands": ["sh -c 'git push'"]}"#, "deny", "r0"),
        (lines, r#"{"classes": ["gitPush"]}"#, "deny", "r0"),
    ]);
}
