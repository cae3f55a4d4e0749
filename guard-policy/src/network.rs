//! Compiling a policy into the address table of the kernel.
//!
//! The kernel looks an address up twice, for everyone and for the agent, and takes the worse answer. So the
//! table for everyone holds the gate of ranges with its holes, and that of an agent what its class rules say:
//! the worse of the two is what the engine decides, since gates only tighten.
//!
//! A lookup finds one entry, the longest, so each entry carries what its covering ranges say. The ranges that
//! occur in a policy cut the addresses into places inside which nothing differs; one address stands for each.

use std::collections::BTreeSet;
use std::net::IpAddr;

use guard_common::address::{Address, AddressClass, class_of};
use guard_common::network::{Verdict, protocol};
use guard_common::{ActionClass, BUILTIN_RANGES};
use jiff::Timestamp;

use crate::decide::Context;
use crate::decision::Outcome;
use crate::gate::classes;
use crate::policy::{Hole, Policy, Subject};
use crate::request::{Action, Principal, Request};
use crate::value::{Host, Network};

/// One entry of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// First address; IPv4 as `::ffff:a.b.c.d`.
    pub address: Address,
    /// Of 128 bits.
    pub prefix: u8,
    /// For every port that `ports` does not name.
    pub verdict: Verdict,
    /// At most [`MAX_PORT_RULES`](guard_common::network::MAX_PORT_RULES).
    pub ports: Vec<PortRule>,
    /// Name of the rule for records.
    pub rule: String,
}

/// An exception for some ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRule {
    /// First port.
    pub low: u16,
    /// Last port.
    pub high: u16,
    /// Number of the protocol; 0 for all.
    pub protocol: u8,
    /// What holds there.
    pub verdict: Verdict,
}

/// Compiles the table for everyone (`None`) or for one agent, as it is at `now`.
///
/// Loopback has entries for everyone only: what stays on this host is no egress (`R-72`).
#[must_use]
pub fn compile(
    policy: &Policy,
    principal: Option<&Principal>,
    resolvers: &[IpAddr],
    now: Timestamp,
) -> Vec<Rule> {
    let holes = policy.network().open(resolvers);
    let places = places(policy, principal, &holes, now);
    let entry = |place: &Network| match principal {
        None => Some(for_everyone(policy, place, &holes)),
        Some(principal) => for_agent(policy, principal, &places, place, now),
    };
    let mut rules: Vec<Rule> = Vec::new();
    // Short prefixes first, so that the entry around a place is there before the place.
    let mut sorted: Vec<&Network> = places.iter().collect();
    sorted.sort_by_key(|place| place.prefix);
    for place in sorted {
        let Some(rule) = entry(place) else { continue };
        let around = rules.iter().rev().find(|known| range(known).encloses(place));
        let redundant = match around {
            // The table for everyone says something about every built-in range, also where nothing differs: it
            // is laid over one that is filled with these ranges.
            _ if principal.is_none() => false,
            Some(around) => same(around, &rule),
            None => rule.verdict == Verdict::Allow && rule.ports.is_empty() && rule.rule == "default",
        };
        if !redundant {
            rules.push(rule);
        }
    }
    rules
}

fn range(rule: &Rule) -> Network {
    Network { address: rule.address, prefix: rule.prefix }
}

fn same(a: &Rule, b: &Rule) -> bool {
    (a.verdict, &a.ports, &a.rule) == (b.verdict, &b.ports, &b.rule)
}

/// Every range that the policy tells apart.
fn places(
    policy: &Policy,
    principal: Option<&Principal>,
    holes: &[Hole],
    now: Timestamp,
) -> BTreeSet<Network> {
    let built_in =
        BUILTIN_RANGES.iter().map(|range| Network { address: range.address, prefix: range.prefix });
    let mut places: BTreeSet<Network> = built_in.chain([Network::ALL, Network::IPV4]).collect();
    match principal {
        None => {
            let network = policy.network();
            places.extend(network.denied.iter().chain(&network.managed_denied));
            places.extend(holes.iter().map(|hole| hole.network));
        }
        Some(principal) => {
            let rules = policy.rules().iter().chain(policy.managed_rules());
            let about = rules.filter(|rule| {
                rule.subject == Subject::Class(ActionClass::NetworkEgress)
                    && rule.scope.holds_for(principal)
                    && rule.in_force(now)
            });
            places.extend(about.flat_map(|rule| &rule.constraints.hosts).filter_map(|host| host.network()));
        }
    }
    places
}

fn for_everyone(policy: &Policy, place: &Network, holes: &[Hole]) -> Rule {
    let rule = |verdict, ports, rule: String| Rule {
        address: place.address,
        prefix: place.prefix,
        verdict,
        ports,
        rule,
    };
    let Some(closed) = policy.network().closed(place) else {
        return rule(Verdict::Allow, Vec::new(), "default".to_owned());
    };
    let open: Vec<&Hole> =
        holes.iter().filter(|hole| hole.network.covers(place) && closed.opened_by(hole)).collect();
    if let Some(whole) = open.iter().find(|hole| hole.is_whole()) {
        return rule(Verdict::Allow, Vec::new(), format!("network:hole:{}", whole.network));
    }
    let mut ports: Vec<PortRule> = open.iter().flat_map(|hole| port_rules(hole)).collect();
    ports.sort_unstable();
    ports.dedup();
    rule(Verdict::Deny, ports, format!("network:{}", closed.name))
}

fn port_rules(hole: &Hole) -> Vec<PortRule> {
    let protocol = hole.transport.map_or(protocol::ANY, |transport| transport.number());
    let rule = |low, high| PortRule { low, high, protocol, verdict: Verdict::Allow };
    if hole.ports.is_empty() {
        return vec![rule(0, u16::MAX)];
    }
    hole.ports.iter().map(|port| rule(*port, *port)).collect()
}

fn for_agent(
    policy: &Policy,
    principal: &Principal,
    places: &BTreeSet<Network>,
    place: &Network,
    now: Timestamp,
) -> Option<Rule> {
    let address = representative(places, place)?;
    let rule = |verdict, rule| Rule {
        address: place.address,
        prefix: place.prefix,
        verdict,
        ports: Vec::new(),
        rule,
    };
    if class_of(&address) == AddressClass::Loopback {
        return Some(rule(Verdict::Allow, "default".to_owned()));
    }
    let action =
        Action { hosts: Some(vec![Host::address(address)]), ..Action::of([ActionClass::NetworkEgress]) };
    let request = Request::new(principal.clone(), action);
    let finding = classes::judge_as_is(policy, &request, &Context::new(now, true));
    let by = |refusal: Option<&crate::decision::Refusal>| {
        refusal.map(|refusal| String::from(refusal.rule.clone()))
    };
    let (verdict, name) = match finding.outcome {
        Some(Outcome::Deny) => (Verdict::Deny, by(finding.denied.as_ref())),
        Some(Outcome::DeferForApproval) => (Verdict::Ask, by(finding.asks.first())),
        _ => (Verdict::Allow, finding.allowed.map(String::from)),
    };
    let name = name.filter(|name| name != "builtin:networkEgress").unwrap_or_else(|| "default".to_owned());
    Some(rule(verdict, name))
}

/// An address of `place` that is in no smaller place; none if smaller places fill it.
fn representative(places: &BTreeSet<Network>, place: &Network) -> Option<Address> {
    let last = u128::from_be_bytes(place.last());
    let mut address = u128::from_be_bytes(place.address);
    loop {
        let inside =
            |smaller: &&Network| smaller.prefix > place.prefix && smaller.spans(&address.to_be_bytes());
        let Some(largest) = places.iter().filter(inside).min_by_key(|smaller| smaller.prefix) else {
            return Some(address.to_be_bytes());
        };
        let end = u128::from_be_bytes(largest.last());
        if end >= last {
            return None;
        }
        address = end + 1;
    }
}
