//! What is reported, and what is said when a report is lost.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guard_proto::v1::Observation;
use guard_proto::v1::observation::Act;

use super::fixture::{Fixture, Network, host_tier};
use super::{rule, snapshot};

pub(crate) type Receiver = tokio::sync::mpsc::Receiver<Vec<Observation>>;

/// Collects until `enough`, or fails after half a minute.
pub(crate) fn collect(events: &mut Receiver, enough: impl Fn(&[Observation]) -> bool) -> Vec<Observation> {
    let start = Instant::now();
    let mut all = Vec::new();
    while !enough(&all) {
        assert!(start.elapsed() < Duration::from_secs(30), "not reported: {all:#?}");
        match events.try_recv() {
            Ok(batch) => all.extend(batch),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    all
}

#[test]
fn connections_are_reported_with_agent_rule_and_range() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    assert!(enforcement.take_events().is_none());
    let agent = fixture.agent("agent-7");
    enforcement.add_agent("agent-7", &agent, &[]).expect("a new agent");
    // an ask that cannot be held goes on, and the record says so.
    let ask = rule("", "203.0.113.10", 128, 2);
    enforcement.bring_into_force(&snapshot(vec![ask])).expect("well-formed rules");
    assert_eq!(network.act(Some(agent.path()), "tcp 169.254.169.254:80"), libc::EPERM);
    assert_eq!(network.act(Some(agent.path()), "tcp 203.0.113.10:80"), 0);
    assert_eq!(network.act(Some(agent.path()), "tcp [2001:db8::10]:80"), 0);
    assert_eq!(network.act(Some(agent.path()), "raw-socket 127.0.0.1:0"), libc::EPERM);

    let is_connect = |one: &&Observation| matches!(one.act, Some(Act::Connect(_)));
    let is_socket = |one: &&Observation| matches!(one.act, Some(Act::Socket(_)));
    let all = collect(&mut events, |all| {
        all.iter().filter(is_connect).count() == 3 && all.iter().any(|one| is_socket(&one))
    });
    let row = |one: &Observation| {
        let Some(Act::Connect(connect)) = &one.act else { return None };
        Some((
            one.effect.clone(),
            one.strength.clone(),
            one.mechanism.clone(),
            connect.range.clone(),
            connect.rule.clone(),
            connect.port,
            connect.verdict,
        ))
    };
    let row_of = |text: [&str; 5], port, verdict| {
        let [effect, strength, mechanism, range, rule] = text.map(str::to_owned);
        (effect, strength, mechanism, range, rule, port, verdict)
    };
    let mut rows: Vec<_> = all.iter().filter_map(row).collect();
    rows.sort();
    let mut expected = vec![
        row_of(["done", "enforced", "cgroup/connect6", "public", "public"], 80, 1),
        row_of(["done", "observed", "cgroup/connect4", "public", "test-rule"], 80, 2),
        row_of(["refused", "enforced", "cgroup/connect4", "metadata", "metadata"], 80, 3),
    ];
    expected.sort();
    assert_eq!(rows, expected);
    for one in all.iter().filter(is_connect).chain(all.iter().filter(is_socket)) {
        assert_eq!((one.agent_id.as_str(), one.cgroup), ("agent-7", agent.id().0), "{one:?}");
        assert!(one.pid > 0 && !one.exe.is_empty(), "{one:?}");
        assert_eq!(one.parent_pid, std::process::id(), "{one:?}");
    }
}

#[test]
fn processes_are_reported_with_arguments_parent_and_status() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    let script = format!(
        "echo $$ > {}/cgroup.procs; /bin/sh -c 'exec sleep 0.2' & wait; /bin/sh -c 'kill -9 $$'; exit 7",
        agent.path().join("main").display()
    );
    fixture.agent("agent/main");
    let mut child = Command::new("/bin/sh").args(["-c", &script]).spawn().expect("a shell");
    let pid = child.id();
    child.wait().expect("it ends");
    let all = collect(&mut events, |all| {
        all.iter().filter(|one| matches!(one.act, Some(Act::Exit(_)))).count() == 3
    });
    let status = |wanted: u32| {
        all.iter().find(|one| matches!(&one.act, Some(Act::Exit(exit)) if exit.status == wanted))
    };
    assert_eq!(status(7 << 8).expect("the script exits with 7").pid, pid);
    assert_eq!(status(9).expect("one shell kills itself").parent_pid, pid);
    let exec = |name: &[u8]| {
        all.iter().find_map(|one| match &one.act {
            Some(Act::Exec(exec)) if exec.argv.first().is_some_and(|first| first == name) => {
                Some((one, exec))
            }
            _ => None,
        })
    };
    let (sleep, exec) = exec(b"sleep").expect("sleep was started");
    assert_eq!(exec.argv, [b"sleep".to_vec(), b"0.2".to_vec()]);
    assert!(!exec.truncated);
    assert_eq!((sleep.parent_pid, sleep.agent_id.as_str()), (pid, "agent"));
    assert!(sleep.exe.ends_with(b"sleep"), "{sleep:?}");
    assert_eq!(
        exec.directory,
        std::env::current_dir().expect("there is one").into_os_string().into_encoded_bytes()
    );
}

#[test]
fn long_arguments_are_cut_and_marked() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    let long = "x".repeat(100_000);
    let script = format!("echo $$ > {}/cgroup.procs; exec /bin/true {long}", agent.path().display());
    Command::new("/bin/sh").args(["-c", &script]).status().expect("a shell");
    let all = collect(&mut events, |all| {
        all.iter().any(|one| matches!(&one.act, Some(Act::Exec(exec)) if exec.truncated))
    });
    let exec = all.iter().find_map(|one| match &one.act {
        Some(Act::Exec(exec)) if exec.truncated => Some(exec),
        _ => None,
    });
    let bytes: usize = exec.expect("it was there").argv.iter().map(|argument| argument.len() + 1).sum();
    assert!((2000..=2049).contains(&bytes), "{bytes}");
}

/// A full ring loses reports, counts each, and never a verdict.
#[test]
fn a_full_ring_loses_reports_and_no_verdict() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut options = fixture.options();
    options.ring_bytes = Some(4096);
    let mut enforcement = fixture.start(&options);
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    // Nobody takes the events meanwhile: batches, then the ring fill up.
    assert_eq!(network.act(Some(agent.path()), "flood 10.1.2.3:80"), libc::EPERM);

    let mut denied = 0;
    let mut lost = 0;
    let mut ranges = Vec::new();
    let start = Instant::now();
    while denied + lost < super::acts::FLOOD {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{denied} reported, {lost} lost of {}",
            super::acts::FLOOD
        );
        let Ok(batch) = events.try_recv() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        for one in batch {
            match one.act {
                Some(Act::Connect(connect)) if connect.verdict == 3 => denied += 1,
                Some(Act::Loss(loss)) if loss.class == "denial" => {
                    lost += loss.count;
                    ranges.push((loss.first_seq, loss.last_seq));
                }
                _ => {}
            }
        }
    }
    assert_eq!(denied + lost, super::acts::FLOOD, "each denial is reported or counted as lost, once");
    assert!(lost > 0, "the ring was to overflow");
    assert!(ranges.iter().all(|(first, last)| 0 < *first && first <= last), "{ranges:?}");
    let totals = enforcement.totals();
    assert_eq!(totals.seen, totals.submitted + totals.lost, "{totals:?}");
}

/// Who is not below the guard root is neither hindered nor reported.
#[test]
fn other_processes_are_left_alone() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    assert_eq!(network.act(None, "tcp 10.1.2.3:80"), 0);
    Command::new("/bin/true").stdin(Stdio::null()).status().expect("it runs");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(events.try_recv().is_err(), "nothing to report");
    assert_eq!(enforcement.totals().seen, 0);
}
