//! Every way to an address, from inside an agent and with guard off.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use guard_tests::{
    attack::{Attacks, Results, as_user, that_were_refused, that_worked},
    host::Host,
    skip_host,
    world::{ECHO, World},
};

/// Addresses that no agent may reach.
const CLOSED: [&str; 6] =
    ["169.254.169.254", "169.254.170.2", "10.1.2.3", "192.168.7.7", "100.64.1.1", "fd00:ec2::254"];

/// Ways that need no privilege.
fn ways_of_users(address: &str) -> Vec<String> {
    let mut ways: Vec<String> =
        ["tcp", "udp-sendto", "udp-connected", "fastopen", "mptcp", "io-uring-connect"]
            .iter()
            .map(|way| format!("{way} {address} {ECHO}"))
            .collect();
    ways.push(format!("icmp {address}"));
    if !address.contains(':') {
        ways.push(format!("mapped {address} {ECHO}"));
    }
    if ["169.254.169.254", "10.1.2.3", "203.0.113.10"].contains(&address) {
        ways.push(format!("nat64 {address} {ECHO}"));
    }
    ways
}

/// Ways that need CAP_NET_RAW.
fn ways_of_root(address: &str) -> Vec<String> {
    let mut ways = vec![format!("raw-hdrincl {address} {ECHO}")];
    if !address.contains(':') {
        ways.push(format!("af-packet {address}"));
    }
    ways
}

fn all_closed(ways: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    CLOSED.iter().flat_map(|address| ways(address)).collect()
}

fn guardctl(world: &World) -> Command {
    world.command(guard_tests::programs().join("guardctl"))
}

fn all_work(what: &str, results: &Results) {
    assert!(that_were_refused(results).is_empty(), "{what}: {:#?}", that_were_refused(results));
}

fn none_works(what: &str, results: &Results) {
    assert!(that_worked(results).is_empty(), "{what}: these got through: {:#?}", that_worked(results));
}

/// Closed addresses cannot be reached by any way, as an ordinary user and as root; without guard every way works. R-72
#[test]
fn no_way_leads_to_a_closed_address() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let attacks = Attacks::new(&host)?;
    let users = all_closed(ways_of_users);
    let everything: Vec<String> = users.iter().cloned().chain(all_closed(ways_of_root)).collect();

    all_work("the control as a user", &attacks.by(as_user(world.command("setpriv")), &users)?);
    all_work("the control as root", &attacks.by(world.command("setpriv"), &everything)?);

    none_works("a user's agent", &attacks.governed(&host, guardctl(&world), &[], &everything)?);
    none_works("root's agent", &attacks.governed(&host, guardctl(&world), &["--as-root"], &everything)?);
    Ok(())
}

/// What is open stays open, by every way that an agent has.
#[test]
fn public_and_own_addresses_stay_open() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let attacks = Attacks::new(&host)?;
    let mut ways = Vec::new();
    for address in ["203.0.113.10", "2001:db8::10", "127.0.0.1", "::1"] {
        ways.push(format!("tcp {address} {ECHO}"));
    }
    for address in ["203.0.113.10", "2001:db8::10"] {
        ways.extend(["udp-sendto", "udp-connected"].map(|way| format!("{way} {address} {ECHO}")));
    }
    ways.extend([format!("mapped 203.0.113.10 {ECHO}"), format!("nat64 203.0.113.10 {ECHO}")]);
    all_work("an agent", &attacks.governed(&host, guardctl(&world), &[], &ways)?);
    Ok(())
}

/// The cgroup programs by themselves: root with every capability, no filter and no view, in a group below guard's,
/// and in a child and a grandchild of that group. No cgroup program sees a packet socket, so the filter is what
/// keeps agents from having one; that it goes through here proves that nothing else is at work.
#[test]
fn the_cgroup_programs_alone_close_every_way() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let attacks = Attacks::new(&host)?;
    let raw = |address: &str| vec![format!("raw-hdrincl {address} {ECHO}")];
    let everything: Vec<String> = all_closed(ways_of_users).into_iter().chain(all_closed(raw)).collect();
    let mut group = host.cgroup()?.join("plain");
    for level in ["plain", "child", "grandchild"] {
        if level != "plain" {
            group.push(level);
        }
        fs::create_dir(&group)?;
        none_works(level, &attacks.by(inside(&world, &group), &everything)?);
        let unseen = ["af-packet 169.254.169.254".to_owned()];
        all_work("packet sockets, which the filter closes", &attacks.by(inside(&world, &group), &unseen)?);
    }
    Ok(())
}

/// A command that begins in this group, with everything that root has.
fn inside(world: &World, group: &Path) -> Command {
    let procs = group.join("cgroup.procs");
    let mut command = world.command("setpriv");
    // SAFETY: only system calls between fork and exec; the path was built before.
    unsafe {
        command.pre_exec(move || fs::write(&procs, "0"));
    }
    command
}

/// An agent that has been moved into a child of its group is as closed as before.
#[test]
fn a_child_group_of_an_agent_is_closed_too() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let attacks = Attacks::new(&host)?;
    let ways: Vec<String> = all_closed(|address| vec![format!("tcp {address} {ECHO}")])
        .into_iter()
        .chain([format!("udp-sendto 169.254.169.254 {ECHO}")])
        .collect();
    let script = format!("while [ ! -e go ]; do sleep 0.05; done; {}", attacks.script(&ways));
    let mut agent = host
        .run_in(guardctl(&world), &[], &["/bin/sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let group = main_group(&host)?;
    let child = group.join("child");
    fs::create_dir(&child)?;
    for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
        fs::write(child.join("cgroup.procs"), pid)?;
    }
    let moved = fs::read_to_string(child.join("cgroup.procs"))?;
    assert!(moved.lines().count() >= 1, "nobody was moved");
    fs::write(host.worktree().join("go"), "")?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut agent.stdout.take().context("no output")?, &mut text)?;
    agent.wait()?;
    let refused = text.lines().filter(|line| line.starts_with("refused EPERM")).count();
    assert_eq!(refused, ways.len(), "{text}");
    assert!(!text.contains("worked"), "{text}");
    Ok(())
}

/// The group of the only agent, once it is there.
fn main_group(host: &Host) -> Result<std::path::PathBuf> {
    for _ in 0..250 {
        for entry in fs::read_dir(host.cgroup()?)?.flatten() {
            let main = entry.path().join("main");
            // The shell itself and its `sleep`.
            if fs::read_to_string(main.join("cgroup.procs")).is_ok_and(|pids| pids.lines().count() >= 2) {
                return Ok(main);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("no agent came up within five seconds")
}

/// A refused connect stands in the record with decision, effect, mechanism and strength. R-71
#[test]
fn refused_connects_are_recorded_as_what_they_are() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let attacks = Attacks::new(&host)?;
    let ways = [
        format!("tcp 10.1.2.3 {ECHO}"),
        format!("udp-sendto 192.168.7.7 {ECHO}"),
        format!("mapped 169.254.169.254 {ECHO}"),
    ];
    none_works("an agent", &attacks.governed(&host, guardctl(&world), &["--agent", "a"], &ways)?);
    for (address, rule) in [
        ("10.1.2.3", "network:private"),
        ("192.168.7.7", "network:private"),
        ("169.254.169.254", "network:metadata"),
    ] {
        let record = host.wait_for_record(|record| record["request"]["action"]["hosts"][0] == address)?;
        assert_eq!(record["decision"]["outcome"], "deny", "{record}");
        assert_eq!(record["decision"]["rule"], rule, "{record}");
        assert_eq!(record["effect"], "refused", "{record}");
        assert_eq!(record["strength"], "enforced", "{record}");
        assert_eq!(record["principal"]["agent"], "a", "{record}");
        assert!(record["mechanism"].as_str().is_some_and(|name| name.contains("cgroup")), "{record}");
    }
    Ok(())
}

/// Ten thousand connects as fast as they go: each is denied, and reports that found no room are counted.
#[test]
fn a_flood_loses_no_verdict_and_counts_what_it_loses() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let attacks = Attacks::new(&host)?;
    let count = 10_000_u64;
    let flood = [format!("flood 10.1.2.3 {ECHO} {count}")];
    let results = attacks.governed(&host, guardctl(&world), &[], &flood)?;
    none_works("an agent", &results);
    assert_eq!(that_were_refused(&results), [format!("{}: EPERM {count} of {count} connects", flood[0])]);
    host.wait_for_record(|record| record["detail"]["event"] == "agent ended")?;
    let mut told = 0;
    for _ in 0..600 {
        let records = host.records()?;
        let denied =
            records.iter().filter(|record| record["request"]["action"]["hosts"][0] == "10.1.2.3").count()
                as u64;
        let lost: u64 = records
            .iter()
            .filter(|record| record["kind"] == "loss")
            .filter_map(|record| record["detail"]["count"].as_u64())
            .sum();
        told = denied + lost;
        if told >= count {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(told, count, "records and counted losses do not add up");
    Ok(())
}
