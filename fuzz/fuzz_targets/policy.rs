//! Policy and managed file: whatever loads can be compiled and asked, and the managed file only tightens.

#![no_main]

use guard_common::ActionClass;
use guard_policy::{Action, Context, Policy, Principal, Request, decide, network};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let split = data.iter().position(|byte| *byte == 0);
    let (policy, managed) = match split {
        Some(at) => (&data[..at], Some(&data[at + 1..])),
        None => (data, None),
    };
    let Ok(alone) = Policy::load(Some(("policy", policy)), None) else { return };
    let Ok(both) = Policy::load(Some(("policy", policy)), managed.map(|managed| ("managed", managed))) else {
        return;
    };
    let now = jiff::Timestamp::UNIX_EPOCH;
    let resolvers = [[10, 0, 0, 53].into()];
    let principal = Principal { space: Some("alpha".to_owned()), ..Principal::default() };
    assert!(!network::compile(&both, None, &resolvers, now).is_empty());
    let _ = network::compile(&both, Some(&principal), &resolvers, now);
    let context = Context::new(now, true);
    for class in ActionClass::ALL {
        let request = Request::new(principal.clone(), Action::of([class]));
        assert!(decide(&both, &request, &context).outcome >= decide(&alone, &request, &context).outcome);
    }
});
