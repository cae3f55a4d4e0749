//! The network fence against real sockets, on this host's kernel.
//!
//! Each test makes a guard root and a network namespace of its own. Whatever an attack needs answers there: a
//! metadata address, private and public ones, over TCP and UDP. Every attack is done once without guard and must
//! succeed, or its refusal would prove nothing. A test that names a hook attaches that hook alone.

#[path = "host_network/acts.rs"]
mod acts;
#[path = "host_network/fixture.rs"]
mod fixture;
#[path = "host_network/flows.rs"]
mod flows;
#[path = "host_network/lifecycle.rs"]
mod lifecycle;
#[path = "host_network/programs.rs"]
mod programs;
#[path = "host_network/reports.rs"]
mod reports;
#[path = "host_network/storm.rs"]
mod storm;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Child;
use std::time::Duration;

use fixture::{Fixture, Network, host_tier};
use guard_common::address::BUILTIN_RANGES;
use guard_common::event::Hook;
use guard_daemon::enforce::Strength;
use guard_proto::v1::{NetworkRule, PortRule, Snapshot};

const ALLOW: u32 = 1;
const DENY: u32 = 3;

/// Not a test by itself: the other tests run this program again with an act in the environment.
#[test]
fn act_in_child() {
    if let Ok(act) = std::env::var(fixture::ACT) {
        acts::perform(&act);
    }
}

fn rule(agent: &str, address: &str, prefix: u32, verdict: u32) -> NetworkRule {
    let address = match address.parse().expect("an address") {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    };
    NetworkRule {
        agent_id: agent.into(),
        address: address.to_vec(),
        prefix,
        verdict,
        rule: "test-rule".into(),
        ports: Vec::new(),
    }
}

fn snapshot(network: Vec<NetworkRule>) -> Snapshot {
    Snapshot { generation: 1, network }
}

/// `R-77`: the daemon's own self-test finds every hook and every range enforced here.
#[test]
fn the_self_test_finds_everything_enforced() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let enforcement = fixture.start(&fixture::options_with_self_test(&fixture));
    let coverage = enforcement.coverage();
    assert_eq!(coverage.network_strength(), Strength::Enforced, "{coverage:#?}");
    assert_eq!(coverage.mechanisms.len(), Hook::ALL.len());
    assert_eq!(coverage.ranges.len(), BUILTIN_RANGES.len());
    assert_eq!(coverage.processes.len(), 4);
    for one in &coverage.processes {
        assert_eq!(one.strength, Strength::Observed, "{one:?}");
    }
    assert!(!enforcement.in_force(), "the self-test leaves no rules behind");
}

/// A self-test of a hook that is not attached says so, whatever the other hooks refuse.
#[test]
fn the_self_test_does_not_claim_a_hook_that_is_off() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let mut options = fixture::options_with_self_test(&fixture);
    options.hooks.retain(|hook| *hook != Hook::Egress);
    let enforcement = fixture.start(&options);
    for one in &enforcement.coverage().mechanisms {
        let expected =
            if one.mechanism == "cgroup_skb/egress" { Strength::NotCovered } else { Strength::Enforced };
        assert_eq!(one.strength, expected, "{one:?}");
    }
    assert_eq!(enforcement.coverage().network_strength(), Strength::NotCovered);
}

/// Attaches `hooks` alone, and shows that each act works outside the guard root and fails as told inside.
fn refused_by(hooks: &[Hook], acts: &[(&str, i32)]) {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let network = Network::new();
    let mut options = fixture.options();
    options.hooks = hooks.to_vec();
    let mut enforcement = fixture.start(&options);
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    let nested = fixture.agent("agent/main/deeper");
    for (act, expected) in acts {
        assert_eq!(network.act(None, act), 0, "{act} must work without guard");
        assert_eq!(network.act(Some(agent.path()), act), *expected, "{act} by {hooks:?}");
        assert_eq!(network.act(Some(nested.path()), act), *expected, "{act} by {hooks:?}, nested group");
    }
}

#[test]
fn connect4_refuses_tcp_udp_fast_open_and_mptcp() {
    refused_by(
        &[Hook::Connect4],
        &[
            ("tcp 169.254.169.254:80", libc::EPERM),
            ("tcp 10.1.2.3:80", libc::EPERM),
            ("mptcp 10.1.2.3:80", libc::EPERM),
            ("fastopen 10.1.2.3:80", libc::EPERM),
            ("udp-connected 10.1.2.3:53", libc::EPERM),
        ],
    );
}

#[test]
fn connect6_refuses_every_form_that_hides_an_address() {
    refused_by(
        &[Hook::Connect6],
        &[
            ("tcp [fd00:ec2::254]:80", libc::EPERM),
            ("tcp [fc00::7]:80", libc::EPERM),
            ("tcp [::ffff:169.254.169.254]:80", libc::EPERM),
            ("tcp [64:ff9b::a9fe:a9fe]:80", libc::EPERM),
            ("tcp [2002:a01:203::1]:80", libc::EPERM),
            ("mptcp [fd00:ec2::254]:80", libc::EPERM),
            ("fastopen [fd00:ec2::254]:80", libc::EPERM),
            ("udp-connected [::ffff:10.1.2.3]:53", libc::EPERM),
        ],
    );
}

/// A datagram socket of either family that sends to IPv4 ends in this hook.
#[test]
fn sendmsg4_refuses_datagrams() {
    refused_by(
        &[Hook::Sendmsg4],
        &[
            ("udp-sendto 169.254.169.254:53", libc::EPERM),
            ("udp-sendto 10.1.2.3:53", libc::EPERM),
            ("udp-corked 10.1.2.3:53", libc::EPERM),
            ("udp-sendto [::ffff:10.1.2.3]:53", libc::EPERM),
        ],
    );
}

#[test]
fn sendmsg6_refuses_datagrams() {
    refused_by(
        &[Hook::Sendmsg6],
        &[
            ("udp-sendto [fd00:ec2::254]:53", libc::EPERM),
            ("udp-sendto [64:ff9b::a9fe:a9fe]:53", libc::EPERM),
        ],
    );
}

/// What only packets show. TCP and ICMPv6 do not tell the sender: a connection goes nowhere, an answer is missing.
#[test]
fn egress_drops_raw_ping_connected_and_source_routed_packets() {
    refused_by(
        &[Hook::Egress],
        &[
            ("raw 10.1.2.3:9", libc::EPERM),
            ("raw 169.254.169.254:9", libc::EPERM),
            ("ping 169.254.169.254:0", libc::EPERM),
            ("ping [fd00:ec2::254]:0", libc::EAGAIN),
            ("udp-connected 10.1.2.3:53", libc::EPERM),
            ("udp-connected [::ffff:10.1.2.3]:53", libc::EPERM),
            ("udp-sendto 10.1.2.3:53", libc::EPERM),
            ("tcp 10.1.2.3:80", libc::EINPROGRESS),
            ("fastopen 10.1.2.3:80", libc::EINPROGRESS),
            ("source-route 203.0.113.10:9", libc::EPERM),
        ],
    );
}

#[test]
fn sock_create_refuses_raw_sockets() {
    refused_by(
        &[Hook::SockCreate],
        &[("raw-socket 127.0.0.1:0", libc::EPERM), ("raw-socket [::1]:0", libc::EPERM)],
    );
}

/// What is not denied still works, with every hook on.
#[test]
fn loopback_and_public_addresses_pass() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    for act in [
        "tcp 127.0.0.1:80",
        "tcp [::1]:80",
        "tcp 0.0.0.0:80",
        "tcp [::]:80",
        "tcp [::ffff:127.0.0.1]:80",
        "tcp 203.0.113.10:80",
        "tcp [2001:db8::10]:80",
        "fastopen 203.0.113.10:80",
        "mptcp 203.0.113.10:80",
        "udp-sendto 203.0.113.10:53",
        "udp-connected [2001:db8::10]:53",
        "ping 203.0.113.10:0",
        "ping [2001:db8::10]:0",
    ] {
        assert_eq!(network.act(Some(agent.path()), act), 0, "{act}");
    }
}

/// An unspecified address reaches loopback, so what denies loopback denies it.
#[test]
fn the_unspecified_address_counts_as_loopback() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    let rules = vec![
        rule("", "127.0.0.0", 104, DENY),
        rule("", "0.0.0.0", 104, DENY),
        rule("", "::", 128, DENY),
        rule("", "::1", 128, DENY),
    ];
    enforcement.bring_into_force(&snapshot(rules)).expect("well-formed rules");
    for act in ["tcp 127.0.0.2:80", "tcp 0.0.0.0:80", "tcp [::]:80", "tcp [::ffff:0.0.0.0]:80"] {
        assert_eq!(network.act(None, act), 0, "{act} must work without guard");
        assert_eq!(network.act(Some(agent.path()), act), libc::EPERM, "{act}");
    }
}

/// While no rules are in force only loopback passes.
#[test]
fn without_rules_only_loopback_passes() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let _enforcement = fixture.start(&fixture.options());
    let agent = fixture.agent("agent");
    assert_eq!(network.act(Some(agent.path()), "tcp 127.0.0.1:80"), 0);
    assert_eq!(network.act(Some(agent.path()), "tcp [::1]:80"), 0);
    for act in ["tcp 203.0.113.10:80", "tcp [2001:db8::10]:80", "udp-sendto 203.0.113.10:53"] {
        assert_eq!(network.act(None, act), 0, "{act} must work without guard");
        assert_eq!(network.act(Some(agent.path()), act), libc::EPERM, "{act}");
    }
}

/// `R-72`: a resolver in a denied range is open for its port, over UDP and TCP, and for nothing else.
#[test]
fn a_hole_by_port_is_no_wider_than_that_port() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    let mut resolver = rule("", "10.1.2.3", 128, DENY);
    resolver.ports =
        [6, 17].map(|protocol| PortRule { low: 53, high: 53, protocol, verdict: ALLOW }).to_vec();
    enforcement.bring_into_force(&snapshot(vec![resolver])).expect("well-formed rules");
    let inside = |act| network.act(Some(agent.path()), act);
    assert_eq!(inside("udp-sendto 10.1.2.3:53"), 0);
    assert_eq!(inside("udp-connected 10.1.2.3:53"), 0);
    assert_eq!(inside("tcp 10.1.2.3:80"), libc::EPERM);
    assert_eq!(inside("udp-sendto 10.1.2.3:54"), libc::EPERM);
    assert_eq!(inside("ping 10.1.2.3:0"), libc::EPERM);
    // Nobody listens there, but the fence lets the attempt through.
    assert_eq!(inside("tcp 10.1.2.3:53"), libc::ECONNREFUSED);
}

/// Rules of one agent hold for that agent; `net-cut` leaves it loopback alone.
#[test]
fn agents_have_rules_of_their_own_and_can_be_cut_off() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let (a, b) = (fixture.agent("a"), fixture.agent("b"));
    enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    let own = [rule("a", "203.0.113.10", 128, DENY)];
    enforcement.add_agent("a", &a, &own).expect("a new agent");
    enforcement.add_agent("b", &b, &[]).expect("a new agent");
    let public = "tcp 203.0.113.10:80";
    assert_eq!(network.act(Some(a.path()), public), libc::EPERM);
    assert_eq!(network.act(Some(b.path()), public), 0);

    // The next snapshot has the rules of all agents.
    enforcement.bring_into_force(&snapshot(vec![rule("b", "203.0.113.10", 128, DENY)])).expect("well formed");
    assert_eq!(network.act(Some(a.path()), public), 0);
    assert_eq!(network.act(Some(b.path()), public), libc::EPERM);

    enforcement.net_cut("a").expect("a is known");
    assert_eq!(network.act(Some(a.path()), public), libc::EPERM);
    assert_eq!(network.act(Some(a.path()), "tcp 127.0.0.1:80"), 0);
    enforcement.remove_agent("a").expect("a is known");
    assert_eq!(network.act(Some(a.path()), public), 0, "the rules for everyone hold for who is not known");
    assert!(enforcement.net_cut("a").is_err());
}

/// A connection that was open before the rule goes no further; only packets show it.
#[test]
fn egress_stops_connections_that_are_older_than_the_rule() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut options = fixture.options();
    options.hooks = vec![Hook::Egress];
    let mut enforcement = fixture.start(&options);
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    for (act, with_rule) in
        [("tcp-later 203.0.113.10:80", libc::EAGAIN), ("udp-later 203.0.113.10:53", libc::EPERM)]
    {
        for (rules, expected) in [(vec![], 0), (vec![rule("", "203.0.113.10", 128, DENY)], with_rule)] {
            enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
            let mut child = network.child(Some(agent.path()), act);
            let before = network.received().len();
            wait_for_line(&mut child, "connected");
            enforcement.bring_into_force(&snapshot(rules)).expect("well-formed rules");
            child.stdin.take().expect("piped").write_all(b"go\n").expect("the child reads");
            let mut text = String::new();
            child.stdout.take().expect("piped").read_to_string(&mut text).expect("the child writes");
            child.wait().expect("the child ends");
            assert!(text.contains(&format!("errno={expected}\n")), "{act}: expected {expected}: {text}");
            if expected == 0 {
                // So that it does not arrive in the next round.
                let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
                while network.received().len() == before {
                    assert!(std::time::Instant::now() < until, "{act}: what may pass arrives");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            } else {
                assert_eq!(network.received().len(), before, "{act}: nothing arrives");
            }
        }
    }
}

/// Reads the child's output, byte by byte so that nothing after the line is lost, until a line has `text`.
fn wait_for_line(child: &mut Child, text: &str) {
    let out = child.stdout.as_mut().expect("piped");
    let mut reader = BufReader::with_capacity(1, out);
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(
            reader.read_line(&mut line).expect("the child writes") > 0,
            "the child ended before {text:?}"
        );
    }
}

fn pause() {
    std::thread::sleep(Duration::from_millis(300));
}
