//! Levels, overrides, ceilings and delegation, each with the smallest policy that shows it.

use guard_policy::decision::Code;
use guard_policy::request::{Line, Receipt};
use guard_policy::{Context, Decision, Policy, Sessions};

use crate::{load, load_both, now};

fn ask(sessions: &mut Sessions, policy: &Policy, request: &str) -> Decision {
    match Line::parse(request.as_bytes()).unwrap_or_else(|fault| panic!("{fault:?}\n{request}")) {
        Line::Request(request) => sessions.decide(policy, &request, &Context::new(now(), true)),
        Line::Receipt(receipt) => panic!("{receipt:?}"),
    }
}

fn settle(sessions: &mut Sessions, receipt: &str) -> bool {
    let Ok(Line::Receipt(receipt)) = Line::parse(receipt.as_bytes()) else { panic!("{receipt}") };
    sessions.settle(&receipt)
}

fn told(decision: &Decision) -> (&'static str, &str) {
    (decision.outcome.as_str(), decision.rule.as_str())
}

const SOFT: &str = r#"{"id": "soft", "class": "gitPush", "effect": "deny", "level": "soft"}"#;
const FIRM: &str = r#"{"id": "firm", "class": "fileDelete", "effect": "deny"}"#;
const WHY: &str = r#""override": {"by": "alice", "justification": "the release waits"}"#;

/// `C-090`, `C-092`, `C-093`, `C-094`, `R-17`: who lifts what, and what is said about it.
#[test]
fn an_override_lifts_soft_denials_of_one_request() {
    let policy = load(&format!(r#"{{"rules": [{SOFT}, {FIRM}]}}"#));
    let mut sessions = Sessions::default();
    let mut ask = |classes: &str, more: &str| {
        ask(&mut sessions, &policy, &format!(r#"{{"action": {{"classes": [{classes}]}}{more}}}"#))
    };
    let lifted = ask(r#""gitPush""#, &format!(", {WHY}"));
    assert_eq!(told(&lifted), ("allow", "soft"));
    let overridden = lifted.overridden.expect("an override");
    assert_eq!(overridden.rules, ["soft"]);
    assert_eq!((overridden.by.as_str(), overridden.justification.as_str()), ("alice", "the release waits"));
    // Good for one request: the next one is refused again.
    let next = ask(r#""gitPush""#, "");
    assert_eq!(told(&next), ("deny", "soft"));
    assert!(
        next.denied.expect("a refusal").reason.contains("override permission"),
        "it says what would help"
    );
    let firm = ask(r#""fileDelete""#, &format!(", {WHY}"));
    assert_eq!((told(&firm), firm.overridden.is_none()), (("deny", "firm"), true));
    let both = ask(r#""fileDelete", "gitPush""#, &format!(", {WHY}"));
    assert_eq!((told(&both), both.overridden.is_none()), (("deny", "firm"), true), "nothing went through");
    for incomplete in [
        r#"{"by": "alice"}"#,
        r#"{"justification": "x"}"#,
        r#"{"by": "alice", "justification": "  "}"#,
        r#"{"by": "", "justification": "x"}"#,
        "{}",
    ] {
        assert_eq!(told(&ask(r#""gitPush""#, &format!(r#", "override": {incomplete}"#))), ("deny", "soft"));
    }
}

/// `C-094`: where a soft and a strict denial are equally specific, the strict one decides, so nobody lifts it.
#[test]
fn a_strict_denial_beside_a_soft_one_stays() {
    let strict = r#"{"id": "a-strict", "class": "gitPush", "effect": "deny"}"#;
    for rules in [format!("{SOFT}, {strict}"), format!("{strict}, {SOFT}")] {
        let policy = load(&format!(r#"{{"rules": [{rules}]}}"#));
        let request = format!(r#"{{"action": {{"classes": ["gitPush"]}}, {WHY}}}"#);
        assert_eq!(told(&ask(&mut Sessions::default(), &policy, &request)), ("deny", "a-strict"));
    }
}

/// `R-19`: a question that a soft denial made is firmer than one that a strict allowance made; it survives the dial.
#[test]
fn an_unclear_soft_denial_survives_the_dial() {
    let deny = r#"{"id": "d", "class": "gitPush", "effect": "deny", "level": "soft", "constraints": {"hosts": ["example.org"]}}"#;
    let allow = r#"{"id": "a", "class": "gitPush", "effect": "allow", "constraints": {"max_cents": 5}}"#;
    let policy = load(&format!(r#"{{"rules": [{deny}, {allow}], "autonomy": {{"x": "actFreely"}}}}"#));
    let request = r#"{"principal": {"space": "x"}, "action": {"classes": ["gitPush"]}}"#;
    assert_eq!(told(&ask(&mut Sessions::default(), &policy, request)), ("defer_for_approval", "d"));
}

/// In the managed file `soft` counts as strict.
#[test]
fn nobody_lifts_what_the_managed_file_denies() {
    let policy = load_both("{}", &format!(r#"{{"rules": [{SOFT}]}}"#));
    let request = format!(r#"{{"action": {{"classes": ["gitPush"]}}, {WHY}}}"#);
    let decision = ask(&mut Sessions::default(), &policy, &request);
    assert_eq!(told(&decision), ("deny", "soft"));
    assert_eq!(decision.denied.expect("a refusal").code, Code::Managed);
}

/// `C-055`, `R-15`: "delete up to 50 files", for allowing and for denying rules, by count and by cost.
#[test]
fn ceilings_accumulate_over_a_session() {
    type Step = (&'static str, &'static str);
    let table: [(&str, &[Step]); 6] = [
        // A permissive rule holds while the sum stays within.
        (
            r#""effect": "allow", "constraints": {"max_count": 5}"#,
            &[(r#""count": 3"#, "allow"), (r#""count": 3"#, "ask"), (r#""count": 2"#, "allow"), ("", "ask")],
        ),
        // A restrictive one begins once the sum passes.
        (
            r#""effect": "deny", "constraints": {"max_count": 2}"#,
            &[("", "ask"), ("", "ask"), (r#""count": 3"#, "deny")],
        ),
        // For one act alone there is nothing to add.
        (
            r#""effect": "allow", "constraints": {"max_count": 2, "per": "action"}"#,
            &[(r#""count": 2"#, "allow"), (r#""count": 2"#, "allow"), (r#""count": 3"#, "ask")],
        ),
        // The count is never lower than the number of paths.
        (
            r#""effect": "allow", "constraints": {"max_count": 2}"#,
            &[
                (r#""paths": ["a", "b", "c"], "count": 1"#, "ask"),
                (r#""paths": ["a", "b"]"#, "allow"),
                ("", "ask"),
            ],
        ),
        (
            r#""effect": "allow", "constraints": {"max_cents": 100}"#,
            &[
                (r#""cents": 60"#, "allow"),
                (r#""cents": 60"#, "ask"),
                (r#""cents": 40"#, "allow"),
                ("", "silent"),
            ],
        ),
        (
            r#""effect": "allow", "constraints": {"paths": ["target/**"], "max_count": 1}"#,
            &[
                (r#""paths": ["src/a"]"#, "ask"),
                (r#""paths": ["target/a"]"#, "allow"),
                (r#""paths": ["target/b"]"#, "ask"),
            ],
        ),
    ];
    for (rule, steps) in table {
        let policy = load(&format!(r#"{{"rules": [{{"id": "r", "class": "fileDelete", {rule}}}]}}"#));
        let mut sessions = Sessions::default();
        for (step, (facets, wanted)) in steps.iter().enumerate() {
            let comma = if facets.is_empty() { "" } else { ", " };
            let request = format!(r#"{{"action": {{"classes": ["fileDelete"]{comma}{facets}}}}}"#);
            let decision = ask(&mut sessions, &policy, &request);
            let found = match (decision.outcome.as_str(), decision.asks.first().map(|ask| ask.code)) {
                ("defer_for_approval", Some(Code::FacetUnknown)) => "silent",
                ("defer_for_approval", _) => "ask",
                (outcome, _) => outcome,
            };
            assert_eq!(found, *wanted, "{rule}, step {step}: {decision:#?}");
        }
        assert_eq!(sessions.usage("other").map(|usage| usage.iter().count()), None, "sessions are apart");
    }
}

/// `R-15`: a question counts from the moment of the yes, and what did not run gives its units back.
#[test]
fn receipts_settle_what_counts() {
    let rule = r#"{"id": "few", "class": "fileDelete", "effect": "prompt", "constraints": {"max_count": 1}}"#;
    let allow = r#"{"id": "some", "class": "gitCommit", "effect": "deny", "constraints": {"max_count": 1}}"#;
    let policy = load(&format!(r#"{{"rules": [{rule}, {allow}]}}"#));
    let used = |sessions: &Sessions, rule: &str| {
        let usage = sessions.usage("s").expect("a session");
        usage.iter().find(|(key, _)| key.rule == rule).map_or(0, |(_, used)| used.count)
    };
    let request = |id: &str, class: &str| {
        format!(r#"{{"id": "{id}", "principal": {{"session": "s"}}, "action": {{"classes": ["{class}"]}}}}"#)
    };
    let receipt = |id: &str, more: &str| format!(r#"{{"receipt": "{id}", "session": "s"{more}}}"#);
    let table: [(&str, &str, &str, u64, bool); 8] = [
        // id, class, what the receipt says, counted after it, whether it still can be settled
        ("a", "gitCommit", r#", "ran": true"#, 1, false),
        ("b", "gitCommit", r#", "ran": false"#, 0, false),
        ("c", "fileDelete", r#", "ran": true, "answer": "yes""#, 1, false),
        ("d", "fileDelete", r#", "answer": "yes""#, 1, true),
        ("e", "fileDelete", r#", "answer": "no""#, 0, false),
        ("f", "fileDelete", r#", "ran": false, "answer": "yes""#, 0, false),
        ("g", "fileDelete", r#", "ran": true, "results": {"gone": 3}"#, 1, false),
        ("h", "fileDelete", r#", "ran": true, "answer": "no""#, 0, false),
    ];
    for (id, class, says, counted, open) in table {
        let mut sessions = Sessions::default();
        let before = ask(&mut sessions, &policy, &request(id, class));
        let rule = if class == "gitCommit" { "some" } else { "few" };
        let at_once = u64::from(before.outcome.as_str() == "allow");
        assert_eq!(used(&sessions, rule), at_once, "{id}: {before:#?}");
        assert!(settle(&mut sessions, &receipt(id, says)), "{id}");
        assert_eq!(used(&sessions, rule), counted, "{id} {says}");
        assert_eq!(settle(&mut sessions, &receipt(id, r#", "ran": true"#)), open, "{id}");
    }
    assert!(!Sessions::default().settle(&Receipt { receipt: "z".into(), ..Receipt::default() }));
}

/// `C-120`, `C-121`, `C-122`, `C-123`, `C-124`, `C-125`, `R-22`: four guards, each with its reason, in their order.
#[test]
fn delegation_has_four_guards() {
    let policy = load(r#"{"autonomy": {"calm": "actWithApproval", "shy": "proposeOnly"}}"#);
    let table = [
        (r#"{"agent": "root"}"#, r#"{"to": "a"}"#, "default", ""),
        (r#"{"agent": "c"}"#, r#"{"to": "d", "chain": ["root", "b", "c"]}"#, "default", ""),
        (
            r#"{"agent": "d"}"#,
            r#"{"to": "e", "chain": ["root", "b", "c", "d"]}"#,
            "delegation:depth",
            "depth 4",
        ),
        (
            r#"{"agent": "a"}"#,
            r#"{"to": "agent:root", "chain": ["agent:root", "agent:a"]}"#,
            "delegation:cycle",
            "root > a > root",
        ),
        (r#"{"agent": "a"}"#, r#"{"to": "a"}"#, "delegation:cycle", "a > a"),
        (r#"{"agent": "a"}"#, r#"{"to": "b", "chain": ["a", "x", "a"]}"#, "delegation:cycle", ""),
        (
            r#"{"agent": "a", "space": "calm"}"#,
            r#"{"to": "b", "autonomy": "actFreely"}"#,
            "delegation:autonomy",
            "actFreely",
        ),
        (
            r#"{"agent": "a"}"#,
            r#"{"to": "b", "autonomy": "actFreely"}"#,
            "delegation:autonomy",
            "actWithApproval",
        ),
        (
            r#"{"agent": "a", "space": "calm"}"#,
            r#"{"to": "b", "autonomy": "actWithApproval"}"#,
            "default",
            "",
        ),
        (
            r#"{"agent": "a", "space": "shy"}"#,
            r#"{"to": "b", "autonomy": "actWithApproval"}"#,
            "delegation:autonomy",
            "proposeOnly",
        ),
        (r#"{"agent": "a", "space": "shy"}"#, r#"{"to": "b"}"#, "default", ""),
    ];
    for (principal, delegate, rule, reason) in table {
        let request = format!(r#"{{"principal": {principal}, "delegate": {delegate}}}"#);
        let decision = ask(&mut Sessions::default(), &policy, &request);
        assert_eq!(decision.rule, rule, "{delegate}");
        if let Some(denied) = decision.denied {
            assert_eq!((denied.code, denied.resource_class), (Code::Delegation, "delegation"));
            assert!(denied.reason.contains(reason), "{}", denied.reason);
        }
    }
}

/// `C-121`: the lower of the two files' depths holds.
#[test]
fn the_depth_of_delegation_is_the_lower_one() {
    for (policy, managed, depth) in
        [("", "", 3), ("5", "", 5), ("5", "2", 2), ("1", "2", 1), ("", "2", 2), ("0", "", 0)]
    {
        let file = |depth: &str| match depth {
            "" => "{}".to_owned(),
            depth => format!(r#"{{"delegation": {{"max_depth": {depth}}}}}"#),
        };
        let policy = load_both(&file(policy), &file(managed));
        assert_eq!(policy.delegation_depth(), depth);
        let chain: Vec<String> = (0..=depth).map(|level| format!("\"a{level}\"")).collect();
        let deny = |chain: &[String]| {
            let request = format!(r#"{{"delegate": {{"to": "z", "chain": [{}]}}}}"#, chain.join(","));
            ask(&mut Sessions::default(), &policy, &request).rule.to_string()
        };
        assert_eq!(deny(&chain), "delegation:depth");
        if depth > 0 {
            assert_eq!(deny(&chain[1..]), "default");
        }
    }
}

/// `C-123`, `C-124`: what was handed over binds what is done and handed on with it.
#[test]
fn a_delegate_has_what_it_got_and_no_more() {
    let policy = load(r#"{"autonomy": {"free": "actFreely"}}"#);
    let mut sessions = Sessions::default();
    let mut ask = |request: &str| ask(&mut sessions, &policy, request).rule.to_string();
    let delegate = |from: &str, to: &str, more: &str| {
        format!(
            r#"{{"principal": {{"agent": "{from}", "space": "free"}}, "delegate": {{"to": "{to}"{more}}}}}"#
        )
    };
    let budget = |requests: u64| format!(r#", "budget": {{"public_web": {{"requests": {requests}}}}}"#);
    assert_eq!(
        ask(&delegate("root", "a", &format!(r#", "autonomy": "actWithApproval"{}"#, budget(10)))),
        "default"
    );
    let delete =
        r#"{"principal": {"agent": "AGENT", "space": "free"}, "action": {"classes": ["fileDelete"]}}"#;
    assert_eq!(ask(&delete.replace("AGENT", "root")), "autonomy:actFreely");
    assert_eq!(
        ask(&delete.replace("AGENT", "a")),
        "builtin:fileDelete",
        "its own autonomy is lower than the space's"
    );
    assert_eq!(ask(&delegate("a", "b", r#", "autonomy": "actFreely""#)), "delegation:autonomy");
    assert_eq!(ask(&delegate("a", "b", &budget(6))), "default");
    assert_eq!(ask(&delegate("a", "c", &budget(6))), "delegation:budget", "four are left");
    assert_eq!(ask(&delegate("a", "c", &budget(4))), "default");
    assert_eq!(ask(&delegate("b", "c", &budget(7))), "delegation:budget");
    assert_eq!(ask(&delegate("b", "d", r#", "budget": {"mail": {"requests": 1}}"#)), "delegation:budget");
    // A shorter chain than the one that was seen is not believed.
    assert_eq!(ask(&delegate("b", "root", r#", "chain": ["b"]"#)), "delegation:cycle");
}

/// `R-61`: limits are part of the policy, are only lowered, and end in a denial that names them.
#[test]
fn limits_are_lowered_by_either_file() {
    let policy =
        load_both(r#"{"limits": {"paths": 3, "commands": 2}}"#, r#"{"limits": {"paths": 2, "string": 5}}"#);
    let rule = |action: &str| {
        let decision = ask(&mut Sessions::default(), &policy, &format!(r#"{{"action": {action}}}"#));
        decision.rule.to_string()
    };
    assert_eq!(rule(r#"{"paths": ["a", "b", "c"]}"#), "limit:paths");
    assert_eq!(rule(r#"{"paths": ["a", "b"]}"#), "default");
    assert_eq!(rule(r#"{"commands": ["a", "b", "c"]}"#), "limit:commands");
    assert_eq!(rule(r#"{"commands": ["abcdef"]}"#), "limit:string");
    let raised =
        Policy::load(Some(("p", br#"{"limits": {"paths": 10001}}"#)), None).expect_err("only lowered");
    assert_eq!(raised[0].code, guard_policy::FaultCode::OutOfRange);
}

/// `R-61`: what cannot be added up is refused, not allowed.
#[test]
fn a_sum_that_overflows_is_a_refusal() {
    let rule = r#"{"id": "r", "class": "gitCommit", "effect": "deny", "constraints": {"max_count": 5}}"#;
    let policy = load(&format!(r#"{{"rules": [{rule}]}}"#));
    let mut sessions = Sessions::default();
    let key = guard_policy::session::UsageKey { managed: false, rule: "r".into() };
    sessions.restore("", key, guard_policy::session::Used { count: u64::MAX, cents: 0 });
    let decision = ask(&mut sessions, &policy, r#"{"action": {"classes": ["gitCommit"]}}"#);
    assert_eq!(told(&decision), ("deny", "engine:overflow"));
    assert_eq!(decision.denied.expect("a refusal").code, Code::EngineError);
}
