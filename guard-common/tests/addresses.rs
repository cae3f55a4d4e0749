//! The classifier against a table written by hand, and the kernel's decision against a naive one.

use std::net::IpAddr;

use guard_common::address::{
    Address, AddressClass, BUILTIN_RANGES, class_of, classify, only_loopback, unfold, v4,
};
use guard_common::network::{
    AgentEntry, Decision, EVERYONE, Endpoint, NetKey, NetRule, PortRule, RULE_NET_CUT, RULE_NO_TABLE, Table,
    Verdict, decide, protocol,
};
use proptest::prelude::*;

fn address(text: &str) -> Address {
    match text.parse::<IpAddr>().expect("the table holds addresses") {
        IpAddr::V4(address) => v4(address.octets()),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Address, class.
const TABLE: &[(&str, &str)] = &[
    // metadata and credential services
    ("169.254.169.254", "metadata"),
    ("169.254.169.253", "metadata"),
    ("169.254.170.2", "metadata"),
    ("169.254.170.23", "metadata"),
    ("100.100.100.200", "metadata"),
    ("168.63.129.16", "metadata"),
    ("192.0.0.192", "metadata"),
    ("fd00:ec2::254", "metadata"),
    ("fd00:ec2::23", "metadata"),
    ("fd20:ce::254", "metadata"),
    // their neighbours are not
    ("169.254.169.252", "link_local"),
    ("169.254.169.255", "link_local"),
    ("100.100.100.199", "cgnat"),
    ("168.63.129.17", "public"),
    ("192.0.0.191", "public"),
    ("fd00:ec2::253", "unique_local"),
    ("fd20:ce::255", "unique_local"),
    // edges of the ranges
    ("169.253.255.255", "public"),
    ("169.254.0.0", "link_local"),
    ("169.254.255.255", "link_local"),
    ("169.255.0.0", "public"),
    ("fe7f:ffff::1", "public"),
    ("fe80::1", "link_local"),
    ("febf:ffff::1", "link_local"),
    ("fec0::1", "private"),
    ("feff:ffff::1", "private"),
    ("9.255.255.255", "public"),
    ("10.0.0.0", "private"),
    ("10.255.255.255", "private"),
    ("11.0.0.0", "public"),
    ("172.15.255.255", "public"),
    ("172.16.0.0", "private"),
    ("172.31.255.255", "private"),
    ("172.32.0.0", "public"),
    ("192.167.255.255", "public"),
    ("192.168.0.1", "private"),
    ("192.169.0.0", "public"),
    ("198.17.255.255", "public"),
    ("198.18.0.0", "private"),
    ("198.19.255.255", "private"),
    ("198.20.0.0", "public"),
    ("100.63.255.255", "public"),
    ("100.64.0.0", "cgnat"),
    ("100.127.255.255", "cgnat"),
    ("100.128.0.0", "public"),
    ("fbff:ffff::1", "public"),
    ("fc00::1", "unique_local"),
    ("fdff:ffff::1", "unique_local"),
    ("223.255.255.255", "public"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("240.0.0.0", "public"),
    ("255.255.255.254", "public"),
    ("255.255.255.255", "multicast"),
    ("ff02::1", "multicast"),
    ("ffff:ffff::1", "multicast"),
    ("127.0.0.1", "loopback"),
    ("127.0.0.2", "loopback"),
    ("127.255.255.255", "loopback"),
    ("126.255.255.255", "public"),
    ("128.0.0.0", "public"),
    ("0.0.0.0", "loopback"),
    ("0.255.255.255", "loopback"),
    ("1.0.0.0", "public"),
    ("::", "loopback"),
    ("::1", "loopback"),
    ("203.0.113.10", "public"),
    ("2606:4700::1111", "public"),
    // IPv4-mapped
    ("::ffff:169.254.169.254", "metadata"),
    ("::ffff:10.1.2.3", "private"),
    ("::ffff:127.0.0.2", "loopback"),
    ("::ffff:0.0.0.0", "loopback"),
    ("::ffff:8.8.8.8", "public"),
    // IPv4-compatible
    ("::169.254.169.254", "metadata"),
    ("::10.1.2.3", "private"),
    ("::8.8.8.8", "public"),
    // NAT64, well-known prefix
    ("64:ff9b::a9fe:a9fe", "metadata"),
    ("64:ff9b::10.1.2.3", "private"),
    ("64:ff9b::100.64.0.1", "cgnat"),
    ("64:ff9b::8.8.8.8", "public"),
    ("64:ff9b:0:0:1::a9fe:a9fe", "public"),
    ("65:ff9b::a9fe:a9fe", "public"),
    // NAT64, local-use prefix: /96 position, then /48 position
    ("64:ff9b:1::a9fe:a9fe", "metadata"),
    ("64:ff9b:1::10.1.2.3", "private"),
    ("64:ff9b:1::8.8.8.8", "public"),
    ("64:ff9b:1:a9fe:a9:fe00::", "metadata"),
    ("64:ff9b:1:0a01:02:0300::", "private"),
    ("64:ff9b:1:808:8:800::", "public"),
    ("64:ff9b:2:a9fe:a9:fe00::", "public"),
    // 6to4
    ("2002:a9fe:a9fe::1", "metadata"),
    ("2002:0a01:0203::1", "private"),
    ("2002:808:808::1", "public"),
    ("2003:a9fe:a9fe::1", "public"),
    // Teredo: server, then inverted client
    ("2001:0:a9fe:a9fe::f7f7:f7f7", "metadata"),
    ("2001:0:808:808:0:1:5601:5601", "metadata"),
    ("2001:0:808:808:0:1:f5fe:fdfc", "private"),
    ("2001:0:808:808:0:1:a9fe:a9fe", "public"),
    ("2001:1:a9fe:a9fe::f7f7:f7f7", "public"),
];

#[test]
fn addresses_have_the_class_that_the_table_gives_them() {
    let wrong: Vec<String> = TABLE
        .iter()
        .map(|(text, expected)| (text, expected, classify(&address(text))))
        .filter(|(_, expected, got)| got.as_str() != **expected)
        .map(|(text, expected, got)| format!("{text}: expected {expected}, got {got}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn names_of_classes_are_read_back() {
    for class in AddressClass::ALL {
        assert_eq!(class.as_str().parse(), Ok(class));
    }
    assert!("Metadata".parse::<AddressClass>().is_err());
}

#[test]
fn a_range_that_is_listed_as_metadata_is_denied_by_default_and_loopback_is_not() {
    for range in BUILTIN_RANGES {
        let expected = if range.class == AddressClass::Loopback { Verdict::Allow } else { Verdict::Deny };
        assert_eq!(range.default_verdict(), expected, "{range:?}");
    }
}

/// A table as plain as can be: a list, searched for the longest prefix.
struct Naive(Vec<(u32, NetKey, NetRule)>);

impl Table for Naive {
    fn longest(&self, key: &NetKey) -> Option<&NetRule> {
        let matches = |prefix: u32, entry: &NetKey| {
            let difference = u128::from_be_bytes(entry.address) ^ u128::from_be_bytes(key.address);
            entry.generation == key.generation
                && entry.scope == key.scope
                && (prefix == 0 || difference >> (128 - prefix) == 0)
        };
        let found = self.0.iter().filter(|(prefix, entry, _)| matches(*prefix, entry));
        found.max_by_key(|(prefix, ..)| *prefix).map(|(.., rule)| rule)
    }
}

fn builtin(generation: u32) -> Naive {
    let line = |(index, range): (usize, &guard_common::address::Range)| {
        let key = NetKey { generation, scope: EVERYONE, address: range.address };
        (u32::from(range.prefix), key, NetRule::new(range.default_verdict(), index as u32 + 1))
    };
    let rest = NetKey { generation, scope: EVERYONE, address: [0; 16] };
    let rest = (0, rest, NetRule::new(Verdict::Allow, 1000));
    Naive(BUILTIN_RANGES.iter().enumerate().map(line).chain([rest]).collect())
}

const HTTP: Endpoint = Endpoint { port: Some(80), protocol: protocol::TCP };
const DNS: Endpoint = Endpoint { port: Some(53), protocol: protocol::UDP };
const AGENT: AgentEntry = AgentEntry { number: 7, flags: 0 };

fn judge(table: &Naive, agent: AgentEntry, text: &str, endpoint: Endpoint) -> Decision {
    decide(table, 3, agent, &address(text), endpoint)
}

#[test]
fn the_builtin_table_denies_every_form_that_reaches_a_denied_range() {
    let table = builtin(3);
    for (text, class) in TABLE {
        let allowed = matches!(*class, "public" | "loopback");
        let expected = if allowed { Verdict::Allow } else { Verdict::Deny };
        assert_eq!(judge(&table, AGENT, text, HTTP).verdict, expected, "{text} is {class}");
    }
}

#[test]
fn without_a_table_and_with_the_network_cut_only_loopback_passes() {
    let table = builtin(3);
    let cut = AgentEntry { number: 7, flags: AgentEntry::NET_CUT };
    for (text, class) in TABLE {
        let expected = if *class == "loopback" { Verdict::Allow } else { Verdict::Deny };
        let none = decide(&table, 0, AGENT, &address(text), HTTP);
        let after_cut = judge(&table, cut, text, HTTP);
        assert_eq!((none.verdict, after_cut.verdict), (expected, expected), "{text}");
        if expected == Verdict::Deny {
            assert_eq!((none.rule, after_cut.rule), (RULE_NO_TABLE, RULE_NET_CUT), "{text}");
        }
    }
}

#[test]
fn what_no_rule_of_the_generation_in_force_covers_is_denied() {
    let gone = Decision { verdict: Verdict::Deny, rule: RULE_NO_TABLE };
    assert_eq!(judge(&builtin(4), AGENT, "203.0.113.10", HTTP), gone);
    assert_eq!(judge(&builtin(4), AGENT, "127.0.0.1", HTTP), gone);
}

/// `R-72`: a resolver is open for port 53 and for nothing else.
#[test]
fn a_port_exception_opens_that_port_alone() {
    let mut table = builtin(3);
    let mut rule = NetRule::new(Verdict::Deny, 99);
    rule.port_count = 1;
    rule.ports[0] = PortRule { low: 53, high: 53, protocol: protocol::UDP, verdict: 1, padding: 0 };
    table.0.push((128, NetKey { generation: 3, scope: EVERYONE, address: address("169.254.169.253") }, rule));
    table.0.retain(|(_, key, rule)| key.address != address("169.254.169.253") || rule.rule == 99);
    assert_eq!(judge(&table, AGENT, "169.254.169.253", DNS), Decision { verdict: Verdict::Allow, rule: 99 });
    for other in [
        HTTP,
        Endpoint { port: Some(53), protocol: protocol::TCP },
        Endpoint { port: Some(52), ..DNS },
        Endpoint { port: Some(54), ..DNS },
        Endpoint { port: None, ..DNS },
    ] {
        assert_eq!(judge(&table, AGENT, "169.254.169.253", other).verdict, Verdict::Deny, "{other:?}");
    }
}

#[test]
fn a_rule_for_one_agent_tightens_and_does_not_loosen() {
    let mut table = builtin(3);
    let own = |text: &str| NetKey { generation: 3, scope: AGENT.number, address: address(text) };
    table.0.push((128, own("203.0.113.10"), NetRule::new(Verdict::Deny, 50)));
    table.0.push((128, own("203.0.113.11"), NetRule::new(Verdict::Ask, 51)));
    table.0.push((128, own("10.0.0.1"), NetRule::new(Verdict::Allow, 52)));
    let other = AgentEntry { number: 8, flags: 0 };
    assert_eq!(judge(&table, AGENT, "203.0.113.10", HTTP), Decision { verdict: Verdict::Deny, rule: 50 });
    assert_eq!(judge(&table, AGENT, "203.0.113.11", HTTP), Decision { verdict: Verdict::Ask, rule: 51 });
    assert_eq!(judge(&table, other, "203.0.113.10", HTTP).verdict, Verdict::Allow);
    assert_eq!(judge(&table, AGENT, "10.0.0.1", HTTP).verdict, Verdict::Deny);
}

#[test]
fn an_unknown_verdict_in_the_table_is_a_denial() {
    let mut rule = NetRule::new(Verdict::Allow, 1);
    rule.verdict = 77;
    let table = Naive(vec![(0, NetKey { generation: 3, scope: 0, address: [0; 16] }, rule)]);
    assert_eq!(judge(&table, AGENT, "203.0.113.10", HTTP).verdict, Verdict::Deny);
}

/// Wraps an IPv4 address in each form that carries one.
fn wrapped(octets: [u8; 4]) -> [(&'static str, Address); 8] {
    let [a, b, c, d] = octets;
    let (i, j, k, l) = (!a, !b, !c, !d);
    [
        ("mapped", v4(octets)),
        ("compatible", [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]),
        ("nat64", [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]),
        ("nat64 local /96", [0, 0x64, 0xff, 0x9b, 0, 1, 1, 2, 0, 3, 4, 5, a, b, c, d]),
        ("nat64 local /48", [0, 0x64, 0xff, 0x9b, 0, 1, a, b, 0, c, d, 0, 0, 0, 0, 0]),
        ("6to4", [0x20, 2, a, b, c, d, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]),
        ("teredo server", [0x20, 1, 0, 0, a, b, c, d, 0, 0, 1, 1, 0xf7, 0xf7, 0xf7, 0xf7]),
        ("teredo client", [0x20, 1, 0, 0, 8, 8, 8, 8, 0, 0, 1, 1, i, j, k, l]),
    ]
}

proptest! {
    #[test]
    fn every_embedded_form_is_at_least_as_bad_as_what_it_carries(octets: [u8; 4]) {
        let plain = classify(&v4(octets));
        for (form, address) in wrapped(octets) {
            prop_assert!(unfold(&address).iter().any(|candidate| *candidate == v4(octets)), "{form}");
            prop_assert!(classify(&address) >= plain, "{form}: {} < {plain}", classify(&address));
        }
    }

    #[test]
    fn an_address_is_always_among_its_own_candidates(bytes: [u8; 16]) {
        let candidates = unfold(&bytes);
        prop_assert!((1..=3).contains(&candidates.len));
        prop_assert_eq!(candidates.addresses[0], bytes);
    }

    /// The kernel's short test for loopback says what the built-in table says.
    #[test]
    fn only_loopback_agrees_with_the_table(bytes in loopback_like()) {
        let all = unfold(&bytes).iter().all(|candidate| class_of(candidate) == AddressClass::Loopback);
        prop_assert_eq!(only_loopback(&bytes), all);
    }

    /// The decision with the built-in table says what the classifier says, for any address.
    #[test]
    fn decision_and_classifier_agree(bytes in any_form()) {
        let got = decide(&builtin(3), 3, AGENT, &bytes, HTTP);
        prop_assert_eq!(got.verdict, classify(&bytes).default_verdict());
    }
}

fn any_form() -> impl Strategy<Value = Address> {
    prop_oneof![
        any::<Address>(),
        any::<[u8; 4]>().prop_map(v4),
        (any::<[u8; 4]>(), 0..8_usize).prop_map(|(octets, form)| wrapped(octets)[form].1),
    ]
}

fn loopback_like() -> impl Strategy<Value = Address> {
    prop_oneof![
        any_form(),
        Just([0; 16]),
        (0..4_u8).prop_map(|last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        any::<[u8; 3]>().prop_map(|[b, c, d]| v4([127, b, c, d])),
        any::<[u8; 3]>().prop_map(|[b, c, d]| v4([0, b, c, d])),
    ]
}
