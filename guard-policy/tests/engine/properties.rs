//! What holds for every policy and every request.

use std::collections::BTreeSet;

use guard_policy::decision::{Matched, Status};
use guard_policy::{Context, Decision, Outcome, decide};
use proptest::prelude::*;

use crate::model::{Policy, Request};
use crate::strategy::{policy, request, session};
use crate::{judge, naive, now};

fn decision(policy: &Policy, request: &Request) -> Decision {
    judge(&policy.load(), &request.json(), request.approver)
}

/// Rules of the operator among those that matched.
fn written(matched: &[Matched]) -> BTreeSet<(String, bool)> {
    let own = |matched: &&Matched| !matched.rule.contains(':');
    matched.iter().filter(own).map(|matched| (matched.rule.to_string(), matched.advisory)).collect()
}

fn agree(decision: &Decision, expected: &naive::Expected) -> Result<(), TestCaseError> {
    prop_assert_eq!(decision.outcome.as_str(), expected.outcome, "{:#?}", decision);
    if let Some(denied) = &decision.denied {
        prop_assert!(expected.denied.contains(denied.rule.as_str()), "{:?} {:?}", denied, expected);
    }
    prop_assert_eq!(written(&decision.matched), expected.matched.clone(), "{:#?}", decision);
    for ask in &decision.asks {
        prop_assert!(expected.asks.iter().any(|rules| rules.contains(ask.rule.as_str())), "{:?}", ask);
    }
    for rules in &expected.asks {
        prop_assert!(decision.asks.iter().any(|ask| rules.contains(ask.rule.as_str())), "{:?}", rules);
    }
    Ok(())
}

proptest! {
    /// `C-030` … `C-039`, `C-050` … `C-063`, `C-070`, `C-074`, `C-091`, `C-092`, `C-094`, `C-101`, `C-114` …
    /// `C-117`: the engine says what a resolver says that was written from the requirements alone.
    #[test]
    fn the_engine_agrees_with_a_naive_resolver(policy in policy(), request in request()) {
        let expected = naive::expected(&policy, &request, &naive::Ledger::new());
        agree(&decision(&policy, &request), &expected)?;
    }

    /// `C-055`, `R-15`: so it does over a whole session, in which ceilings fill up.
    #[test]
    fn sessions_agree_with_a_naive_resolver(policy in policy(), session in session()) {
        let (mut sessions, mut ledger) = (guard_policy::Sessions::default(), naive::Ledger::new());
        let loaded = policy.load();
        for asked in &session {
            let request = guard_policy::Request::parse(asked.json().as_bytes()).expect("valid");
            let decision = sessions.decide(&loaded, &request, &Context::new(now(), asked.approver));
            agree(&decision, &naive::expected(&policy, asked, &ledger))?;
            if decision.outcome == Outcome::Allow {
                naive::count(&policy, asked, &mut ledger);
            }
        }
    }

    /// The promises of the format: who decided is always named, and only one of `denied` and `asks` is there.
    #[test]
    fn every_decision_is_well_formed(policy in policy(), request in request()) {
        let decision = decision(&policy, &request);
        prop_assert!(!decision.rule.is_empty());
        prop_assert_eq!(decision.denied.is_some(), decision.outcome == Outcome::Deny);
        prop_assert_eq!(!decision.asks.is_empty(), decision.outcome == Outcome::DeferForApproval);
        for refusal in decision.denied.iter().chain(&decision.asks) {
            prop_assert!(!refusal.rule.is_empty() && !refusal.reason.is_empty());
            prop_assert!(!refusal.resource_class.is_empty());
        }
        if let Some(first) = decision.denied.iter().chain(&decision.asks).next() {
            prop_assert_eq!(&decision.rule, &first.rule);
        }
        let asked: BTreeSet<&str> = decision.asks.iter().map(|ask| ask.rule.as_str()).collect();
        prop_assert_eq!(asked.len(), decision.asks.len(), "one entry a rule");
        for matched in &decision.matched {
            prop_assert_eq!(matched.advisory, matched.status == Status::Advisory);
        }
    }

    /// `C-143`: rules have no order, and the same question has the same answer.
    #[test]
    fn the_order_of_rules_means_nothing(policy in policy(), request in request(), turn in 0_usize..6) {
        let before = decision(&policy, &request);
        let mut turned = policy.clone();
        turned.rules.reverse();
        let length = turned.rules.len().max(1);
        turned.rules.rotate_left(turn % length);
        turned.managed.reverse();
        prop_assert_eq!(decision(&turned, &request), before);
    }

    /// `R-13`: the order of patterns and of values means nothing either.
    #[test]
    fn the_order_inside_lists_means_nothing(policy in policy(), request in request()) {
        let before = decision(&policy, &request);
        let (mut turned, mut asked) = (policy, request);
        for rule in turned.rules.iter_mut().chain(&mut turned.managed) {
            rule.constraints.paths.reverse();
            rule.constraints.refs.reverse();
            rule.constraints.hosts.reverse();
            rule.constraints.commands.reverse();
        }
        for list in [&mut asked.paths, &mut asked.refs, &mut asked.hosts].into_iter().flatten() {
            list.reverse();
        }
        let after = decision(&turned, &asked);
        prop_assert_eq!((after.outcome, after.rule), (before.outcome, before.rule));
    }

    /// `C-101`, `C-102`, `R-20`: whatever the managed file says, nothing becomes milder.
    #[test]
    fn the_managed_file_never_loosens(policy in policy(), request in request()) {
        let alone = Policy { managed: Vec::new(), ..policy.clone() };
        prop_assert!(decision(&policy, &request).outcome >= decision(&alone, &request).outcome);
    }

    /// `C-074`: neither does the command net of a mode.
    #[test]
    fn the_net_of_a_mode_never_loosens(policy in policy(), request in request()) {
        let alone = Policy { net: Vec::new(), ..policy.clone() };
        prop_assert!(decision(&policy, &request).outcome >= decision(&alone, &request).outcome);
    }

    /// `C-091`, `R-16`: an advisory rule changes nothing but the record.
    #[test]
    fn advisory_rules_only_record(policy in policy(), request in request()) {
        let mut without = policy.clone();
        let firm = |rule: &crate::model::Rule| rule.level != crate::model::Level::Advisory;
        without.rules.retain(firm);
        without.managed.retain(firm);
        let (with, without) = (decision(&policy, &request), decision(&without, &request));
        prop_assert_eq!((with.outcome, with.rule, with.asks), (without.outcome, without.rule, without.asks));
    }

    /// `C-036`, `C-037`, `R-04`: without an approver every question is a refusal, and nothing else changes.
    #[test]
    fn nobody_to_ask_is_a_no(policy in policy(), request in request()) {
        let policy = policy.load();
        let asked = judge(&policy, &request.json(), true);
        let alone = judge(&policy, &request.json(), false);
        prop_assert_ne!(alone.outcome, Outcome::DeferForApproval);
        if asked.outcome == Outcome::DeferForApproval {
            let denied = alone.denied.expect("a refusal");
            prop_assert_eq!(&denied.rule, &asked.asks[0].rule);
            prop_assert_eq!(denied.code, guard_policy::decision::Code::NoApprover);
        } else {
            prop_assert_eq!(alone, asked);
        }
    }

    /// A request that is written out and read again is the same question.
    #[test]
    fn requests_survive_being_written(request in request()) {
        let read = guard_policy::Request::parse(request.json().as_bytes()).expect("valid");
        let written = serde_json::to_vec(&read).expect("JSON");
        prop_assert_eq!(guard_policy::Request::parse(&written).expect("valid"), read);
    }

    /// `R-60`, `R-61`: whatever the bytes are, reading ends with a value or a fault.
    #[test]
    fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}\",:0-9a-z\\\\ ]{0,80}") {
        let _ = guard_policy::Request::parse(&bytes);
        let _ = guard_policy::Request::parse(text.as_bytes());
        let _ = guard_policy::Policy::load(Some(("p", &bytes)), Some(("m", text.as_bytes())));
    }
}

/// The engine keeps nothing between calls.
#[test]
fn asking_changes_nothing() {
    let policy = crate::load(
        r#"{"rules": [{"id": "few", "class": "fileDelete", "effect": "allow", "constraints": {"max_count": 1, "per": "action"}}]}"#,
    );
    let request = guard_policy::Request::parse(br#"{"action": {"classes": ["fileDelete"], "paths": ["a"]}}"#);
    let request = request.expect("a request");
    let context = Context::new(now(), true);
    let first = decide(&policy, &request, &context);
    assert!((0..50).all(|_| decide(&policy, &request, &context) == first));
    assert_eq!(first.outcome, Outcome::Allow);
}
