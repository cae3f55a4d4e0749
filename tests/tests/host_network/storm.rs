//! A storm against small rings: an independent count, the kernel's own and what arrived must agree to the last one.

use std::process::Command;
use std::time::{Duration, Instant};

use guard_common::event::Kind;
use guard_proto::v1::Observation;
use guard_proto::v1::observation::Act;

use super::acts::STORM;
use super::fixture::{Fixture, Network, host_tier};

/// Runs the storm on rings of this size; returns what arrived and what was said to be lost, of programs started.
fn storm(ring_bytes: Option<u32>, taken: bool) -> (u64, u64) {
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut options = fixture.options();
    options.ring_bytes = ring_bytes;
    let mut enforcement = fixture.start(&options);
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    let mut child = network.child(Some(agent.path()), "storm");
    let (mut started, mut ended, mut lost) = (0, 0, 0);
    let mut count = |batch: Vec<Observation>| {
        for one in batch {
            match one.act {
                Some(Act::Exec(_)) => started += 1,
                Some(Act::Exit(_)) => ended += 1,
                Some(Act::Loss(loss)) if loss.class == "exec" => lost += loss.count,
                _ => {}
            }
        }
    };
    while child.try_wait().expect("a child").is_none() {
        match taken.then(|| events.try_recv()) {
            Some(Ok(batch)) => count(batch),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let output = child.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&output.stdout);
    let own: u64 =
        text.lines().find_map(|line| line.split_once("started=")?.1.parse().ok()).expect("a count");
    assert_eq!(own, STORM, "the storm's own count");
    // Until the counters have been compared and everything was taken.
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        match events.try_recv() {
            Ok(batch) => count(batch),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let totals = enforcement.totals_by_kind();
    let execs = totals[&Kind::Exec];
    // The storm itself was started here too.
    assert_eq!(execs.seen, STORM + 1, "{execs:?}");
    assert_eq!(totals[&Kind::Exit].seen, STORM + 1, "{totals:?}");
    assert_eq!(execs.seen, execs.submitted + execs.lost, "{execs:?}");
    assert_eq!(execs.submitted, execs.read, "{execs:?}");
    assert_eq!(execs.read, started, "each that was read was told");
    assert_eq!(lost, execs.seen - execs.read, "each that was not is in a report of loss");
    assert!(ended <= STORM + 1);
    (started, lost)
}

/// With rings of the usual size and somebody who takes what comes, nothing is lost.
#[test]
fn a_storm_is_told_to_the_last_program() {
    if !host_tier() {
        return;
    }
    assert_eq!(storm(None, true), (STORM + 1, 0));
}

/// With rings of one page and nobody who takes anything, what is said to be lost is what was lost.
#[test]
fn a_storm_on_small_rings_loses_what_it_says() {
    if !host_tier() {
        return;
    }
    let (started, lost) = storm(Some(4096), false);
    assert!(lost > 0, "the ring was to overflow");
    assert_eq!(started + lost, STORM + 1);
}

/// Arguments that do not fit are counted as cut.
#[test]
fn cut_records_are_counted() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let enforcement = fixture.start(&fixture.options());
    let agent = fixture.agent("agent");
    let script = format!(
        "echo $$ > {}/cgroup.procs; /bin/true {long}; /bin/true short; exec /bin/true {long}",
        agent.path().display(),
        long = "x".repeat(10_000)
    );
    Command::new("/bin/sh").args(["-c", &script]).status().expect("a shell");
    let until = Instant::now() + Duration::from_secs(5);
    while enforcement.totals().oversized < 2 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(enforcement.totals().oversized, 2);
}
