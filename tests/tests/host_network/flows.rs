//! What went through connections, and which sockets can be reached.

use std::time::Duration;

use guard_proto::v1::observation::Act;
use guard_proto::v1::{Flow, Listen, Observation};

use super::acts::TALK;
use super::fixture::{Fixture, Network, host_tier};
use super::reports::collect;
use super::snapshot;

const PUBLIC: &str = "203.0.113.10:80";
const PUBLIC_6: &str = "[2001:db8::10]:80";

fn flow(one: &Observation) -> Option<&Flow> {
    match &one.act {
        Some(Act::Flow(flow)) => Some(flow),
        _ => None,
    }
}

/// Each act with what it sends and gets: whoever closes first and however it does, content is counted and nothing else.
#[test]
fn connections_end_with_their_bytes_and_their_duration() {
    if !host_tier() {
        return;
    }
    let table = [
        ("talk", PUBLIC, 6, TALK, TALK),
        ("talk", PUBLIC_6, 6, TALK, TALK),
        ("talk-half-closed", PUBLIC, 6, TALK, TALK),
        ("talk-reset", PUBLIC, 6, TALK, TALK),
        ("datagrams", "203.0.113.10:53", 17, 300, 300),
        ("datagrams", "[2001:db8::10]:53", 17, 300, 300),
        // Nobody listens there, and nothing is said.
        ("tcp", "203.0.113.10:81", 6, 0, 0),
    ];
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    for (act, to, protocol, sent, received) in table {
        let refused = to.ends_with(":81");
        let errno = network.act(Some(agent.path()), &format!("{act} {to}"));
        assert_eq!(errno, if refused { libc::ECONNREFUSED } else { 0 }, "{act} {to}");
        let all = collect(&mut events, |all| all.iter().any(|one| flow(one).is_some()));
        let (one, ended) = all.iter().find_map(|one| Some((one, flow(one)?))).expect("it is there");
        let found = (ended.protocol, ended.sent, ended.received);
        assert_eq!(found, (protocol, sent, received), "{act} {to}");
        let port = to.rsplit(':').next().and_then(|port| port.parse().ok());
        assert_eq!(Some(ended.port), port, "{act} {to}");
        assert_eq!((ended.range.as_str(), ended.address.len()), ("public", 16), "{act} {to}");
        let duration = Duration::from_nanos(ended.duration_ns);
        assert!(Duration::ZERO < duration && duration < Duration::from_secs(5), "{act} {to}: {duration:?}");
        assert_eq!((one.agent_id.as_str(), one.cgroup), ("agent", agent.id().0), "{act} {to}");
        assert!(one.pid > 0, "{one:?}");
    }
    // Refused by the fence: there is no connection that could end.
    assert_eq!(network.act(Some(agent.path()), "tcp 10.1.2.3:80"), libc::EPERM);
    std::thread::sleep(Duration::from_millis(1200));
    let mut rest = Vec::new();
    while let Ok(batch) = events.try_recv() {
        rest.extend(batch);
    }
    assert_eq!(rest.iter().find_map(flow), None);
    let totals = enforcement.totals();
    assert_eq!((totals.lost, totals.map_full, totals.read), (0, 0, totals.seen), "{totals:?}");
}

/// Streams that listen and datagram sockets that are bound, on both families, with the port that the kernel chose.
#[test]
fn sockets_that_can_be_reached_are_reported() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    for (at, port) in [("127.0.0.1:8080", Some(8080)), ("[::]:8081", Some(8081)), ("0.0.0.0:0", None)] {
        assert_eq!(network.act(Some(agent.path()), &format!("listen {at}")), 0);
        let listens = |one: &Observation| -> Option<Listen> {
            match &one.act {
                Some(Act::Listen(listen)) => Some(listen.clone()),
                _ => None,
            }
        };
        let all = collect(&mut events, |all| all.iter().filter_map(listens).count() == 2);
        let mut protocols = Vec::new();
        for one in all.iter().filter(|one| listens(one).is_some()) {
            let listen = listens(one).expect("it is one");
            protocols.push(listen.protocol);
            assert!(port.map_or(listen.port > 0, |port| listen.port == port), "{at}: {listen:?}");
            let address =
                std::net::Ipv6Addr::from(<[u8; 16]>::try_from(&listen.address[..]).expect("16 bytes"));
            let wanted: std::net::SocketAddr = at.parse().expect("an address");
            assert_eq!(address.to_canonical(), wanted.ip(), "{at}");
            assert_eq!((one.agent_id.as_str(), one.pid > 0), ("agent", true), "{one:?}");
        }
        protocols.sort_unstable();
        assert_eq!(protocols, [6, 17], "{at}");
    }
}
