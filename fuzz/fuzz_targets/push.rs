//! The arguments of a git command: a push is seen as one, and the refs that it names are names.

#![no_main]

use guard_common::ActionClass;
use guard_policy::{facts, value::Ref};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let argv: Vec<String> = std::iter::once("git").chain(text.split('\n')).map(str::to_owned).collect();
    let action = facts::exec("/usr/bin/git".as_ref(), &argv, false).action;
    assert!(action.classes.contains(&ActionClass::ProcessSpawn));
    if argv[1] == "push" {
        assert!(action.classes.contains(&ActionClass::GitPush));
    }
    for reference in action.refs.iter().flatten() {
        assert!(Ref::parse(reference.full()).is_ok_and(|whole| whole.full() == reference.full()));
        assert!(!reference.full().contains('*'));
    }
});
