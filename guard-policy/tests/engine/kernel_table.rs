//! The compiled address table against the engine: a lookup in it says what a decision about the same connection
//! says.

use std::collections::HashMap;
use std::net::IpAddr;

use guard_common::address::{Address, BUILTIN_RANGES, v4};
use guard_common::network::{
    AgentEntry, EVERYONE, Endpoint, MAX_PORT_RULES, NetKey, NetRule, PortRule, Table, Verdict, decide,
    protocol,
};
use guard_policy::network::{Rule, compile};
use proptest::prelude::*;
use proptest::sample::select;

use crate::model::{Effect, Policy, Request};
use crate::strategy::{PLACES, address_policy, principal};
use crate::{naive, now};

const AGENT: u32 = 7;
const RESOLVERS: [&str; 3] = ["10.9.8.7", "169.254.169.253", "198.51.100.7"];

/// A trie, slowly.
#[derive(Default)]
struct Trie(HashMap<(u32, Address, u8), NetRule>);

impl Trie {
    /// Filled as guardd fills the kernel's: the built-in ranges and everything first, then the compiled rules.
    fn of(everyone: &[Rule], own: &[Rule]) -> Self {
        let mut trie = Self::default();
        trie.0.insert((EVERYONE, [0; 16], 0), NetRule::new(Verdict::Allow, 1));
        for range in BUILTIN_RANGES {
            let rule = NetRule::new(range.default_verdict(), 1);
            trie.0.insert((EVERYONE, range.address, range.prefix), rule);
        }
        for (scope, rules) in [(EVERYONE, everyone), (AGENT, own)] {
            for rule in rules {
                trie.0.insert((scope, rule.address, rule.prefix), entry(rule));
            }
        }
        trie
    }
}

fn entry(rule: &Rule) -> NetRule {
    let mut entry = NetRule::new(rule.verdict, 2);
    assert!(rule.ports.len() <= MAX_PORT_RULES, "{rule:?}");
    for (slot, port) in entry.ports.iter_mut().zip(&rule.ports) {
        *slot = PortRule {
            low: port.low,
            high: port.high,
            protocol: port.protocol,
            verdict: port.verdict as u8,
            padding: 0,
        };
    }
    entry.port_count = u8::try_from(rule.ports.len()).expect("few");
    entry
}

impl Table for Trie {
    fn longest(&self, key: &NetKey) -> Option<&NetRule> {
        let bits = u128::from_be_bytes(key.address);
        (0..=128_u8).rev().find_map(|prefix| {
            let mask = if prefix == 0 { 0 } else { u128::MAX << (128 - prefix) };
            self.0.get(&(key.scope, (bits & mask).to_be_bytes(), prefix))
        })
    }
}

fn bytes(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => v4(address.octets()),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Addresses at, in and beside everything that a policy draws a line at, some of them hidden in others.
fn addresses() -> impl Strategy<Value = IpAddr> {
    let near = (select(&PLACES[..]), any::<u32>(), -2_i64..3).prop_map(|(place, low, step)| {
        let (base, length) = place.split_once('/').unwrap_or((place, "128"));
        let length: u32 = length.parse().expect("a length");
        match base.parse().expect("an address") {
            IpAddr::V4(base) => {
                let host = low.checked_shr(length).unwrap_or(0);
                let bits = u32::from(base) | if length == 0 { low } else { host };
                IpAddr::V4(bits.wrapping_add_signed(i32::try_from(step).expect("small")).into())
            }
            IpAddr::V6(base) => {
                let host = u128::from(low).checked_shl(100).unwrap_or(0).checked_shr(length).unwrap_or(0);
                IpAddr::V6((u128::from(base) | host).wrapping_add_signed(i128::from(step)).into())
            }
        }
    });
    let hidden = (near.clone(), 0..3).prop_map(|(address, form)| {
        let IpAddr::V4(inner) = address else { return address };
        let bits = u128::from(u32::from(inner));
        IpAddr::V6(match form {
            0 => ((0x0064_ff9b_u128 << 96) | bits).into(),
            1 => ((0x2002_u128 << 112) | (bits << 80)).into(),
            _ => ((0xffff_u128 << 32) | bits).into(),
        })
    });
    prop_oneof![6 => near, 2 => hidden, 1 => any::<IpAddr>(), 1 => select(vec!["127.0.0.1", "::1", "::", "0.0.0.0"]).prop_map(|text| text.parse().expect("an address"))]
}

fn slow(policy: &Policy, who: &Request, address: IpAddr, port: Option<u16>, proto: &str) -> Verdict {
    let resolvers = RESOLVERS.map(|text| text.parse().expect("an address"));
    let mut worst = Verdict::Allow;
    for meaning in naive::meanings(address) {
        if naive::refused(policy, meaning, port, Some(proto), &resolvers).is_some() {
            return Verdict::Deny;
        }
        // What stays on this host is no egress.
        if !naive::is_loopback(meaning) {
            worst = worst.worst(match naive::egress(policy, who, meaning) {
                Effect::Allow => Verdict::Allow,
                Effect::Prompt => Verdict::Ask,
                Effect::Deny => Verdict::Deny,
            });
        }
    }
    worst
}

proptest! {
    /// `R-72`, `R-24`: the compiled table says what the requirements say, for every address and port.
    #[test]
    fn a_lookup_says_what_a_decision_says(
        policy in address_policy(),
        who in principal(),
        addresses in prop::collection::vec(addresses(), 12),
        port in prop::option::weighted(0.9, select(vec![53_u16, 80, 443, 22])),
        udp in any::<bool>(),
    ) {
        let loaded = policy.load();
        let resolvers = RESOLVERS.map(|text| text.parse().expect("an address"));
        let principal = guard_policy::Request::parse(who.json().as_bytes()).expect("valid").principal;
        let everyone = compile(&loaded, None, &resolvers, now());
        let own = compile(&loaded, Some(&principal), &resolvers, now());
        let trie = Trie::of(&everyone, &own);
        let (proto, number) = if udp { ("udp", protocol::UDP) } else { ("tcp", protocol::TCP) };
        let agent = AgentEntry { number: AGENT, flags: 0 };
        for address in addresses {
            let endpoint = Endpoint { port, protocol: number };
            let found = decide(&trie, 1, agent, &bytes(address), endpoint).verdict;
            prop_assert_eq!(
                found,
                slow(&policy, &who, address, port, proto),
                "{} {:?} {}\n{}\n{}", address, port, proto, policy.json(), policy.managed_json()
            );
        }
    }

    /// What the kernel refuses the engine refuses, and the other way round; so with asks. Loopback is no egress,
    /// so the kernel has no class for it.
    #[test]
    fn the_kernel_and_the_engine_do_not_disagree(
        policy in address_policy(),
        who in principal(),
        addresses in prop::collection::vec(addresses(), 12),
        port in select(vec![53_u16, 443]),
    ) {
        let loaded = policy.load();
        let resolvers = RESOLVERS.map(|text| text.parse().expect("an address"));
        let principal = guard_policy::Request::parse(who.json().as_bytes()).expect("valid").principal;
        let trie = Trie::of(
            &compile(&loaded, None, &resolvers, now()),
            &compile(&loaded, Some(&principal), &resolvers, now()),
        );
        let agent = AgentEntry { number: AGENT, flags: 0 };
        let context = guard_policy::Context::new(now(), true).with_resolvers(resolvers);
        for address in addresses {
            // What only hides loopback leaves this host, so it is egress to the engine; the kernel looks up each
            // address by itself and knows no classes for loopback. No such packet arrives anywhere.
            let mut meanings = naive::meanings(address).into_iter();
            let outer = meanings.next().expect("the address itself");
            if !naive::is_loopback(outer) && meanings.any(naive::is_loopback) {
                continue;
            }
            let address = bytes(address);
            let endpoint = Endpoint { port: Some(port), protocol: protocol::TCP };
            let kernel = decide(&trie, 1, agent, &address, endpoint).verdict;
            let action = guard_policy::facts::connect(address, Some(port), protocol::TCP).action;
            let request = guard_policy::Request::new(principal.clone(), action);
            let engine = match guard_policy::decide(&loaded, &request, &context).outcome {
                guard_policy::Outcome::Deny => Verdict::Deny,
                guard_policy::Outcome::DeferForApproval => Verdict::Ask,
                _ => Verdict::Allow,
            };
            prop_assert_eq!(kernel, engine, "{}\n{}\n{}", IpAddr::from(address), policy.json(), policy.managed_json());
        }
    }
}

/// The table for everyone is whole by itself: it answers for every address without what guardd puts in first.
#[test]
fn the_table_for_everyone_covers_everything() {
    let policies = [
        "{}",
        r#"{"network": {"deny": ["0.0.0.0/0"]}}"#,
        r#"{"network": {"deny": ["::/0"], "allow": ["10.0.0.0/8"]}}"#,
    ];
    for policy in policies {
        let rules = compile(&crate::load(policy), None, &[], now());
        let has = |address: Address, prefix: u8| {
            rules.iter().any(|rule| (rule.address, rule.prefix) == (address, prefix))
        };
        assert!(has([0; 16], 0), "{policy}: {rules:#?}");
        for range in BUILTIN_RANGES {
            assert!(has(range.address, range.prefix), "{policy}: {range:?}");
        }
    }
}
