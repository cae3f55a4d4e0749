//! What an operator writes, in force in the kernel.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use guard_tests::{
    attack::{Attacks, Results, Said},
    host::Host,
    skip_host,
    world::{ECHO, HTTP, World},
};
use rustix::{mount::MountPropagationFlags, thread::UnshareFlags};

fn guardctl(world: &World) -> Command {
    world.command(guard_tests::programs().join("guardctl"))
}

/// Tries each line as this agent and compares with what is expected of it: `worked`, or the name of an error.
fn expect(host: &Host, world: &World, agent: &str, table: &[(&str, &str)]) -> Result<()> {
    let attacks = Attacks::new(host)?;
    let wanted: Vec<String> = table.iter().map(|(attack, _)| (*attack).to_owned()).collect();
    let results: Results = attacks.governed(host, guardctl(world), &["--agent", agent], &wanted)?;
    for (attack, expected) in table {
        let said = &results[*attack];
        let fits = match said {
            Said::Worked(_) => *expected == "worked",
            Said::Refused(why) => why.starts_with(expected),
        };
        assert!(fits, "{agent}: {attack}: expected {expected}, got {said:?}");
    }
    Ok(())
}

/// A hole is as wide as it says: this address, this port, this protocol. R-72
#[test]
fn a_hole_opens_no_more_than_it_names() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let world = World::start()?;
    let policy = format!(
        r#"{{"version": 1, "network": {{"deny": ["203.0.113.53/32"],
            "allow": [{{"cidr": "10.1.2.3/32", "ports": [{ECHO}], "proto": "tcp"}}, "192.168.7.7/32"]}}}}"#
    );
    let host = Host::with_policy(&policy)?;
    expect(
        &host,
        &world,
        "a",
        &[
            (&format!("tcp 10.1.2.3 {ECHO}"), "worked"),
            (&format!("mapped 10.1.2.3 {ECHO}"), "worked"),
            (&format!("udp-sendto 10.1.2.3 {ECHO}"), "EPERM"),
            (&format!("tcp 10.1.2.3 {HTTP}"), "EPERM"),
            (&format!("tcp 192.168.7.7 {ECHO}"), "worked"),
            (&format!("udp-sendto 192.168.7.7 {ECHO}"), "worked"),
            (&format!("tcp 203.0.113.53 {ECHO}"), "EPERM"),
            (&format!("tcp 203.0.113.10 {ECHO}"), "worked"),
            (&format!("tcp 169.254.169.254 {ECHO}"), "EPERM"),
        ],
    )
}

/// The managed file forbids holes, and the policy below cannot make any. C-100, C-102
#[test]
fn a_managed_file_closes_holes() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let world = World::start()?;
    let mut host = Host::new()?;
    let managed = host.path("managed.json");
    fs::write(&managed, r#"{"version": 1, "network": {"allow_holes": false}}"#)?;
    let policy = host.path("policy.json");
    fs::write(&policy, r#"{"version": 1, "network": {"allow": ["192.168.7.7/32"]}}"#)?;
    for (option, path) in [("--managed", &managed), ("--policy", &policy)] {
        host.option(option).option(&path.display().to_string());
    }
    host.start_daemon()?;
    expect(&host, &world, "a", &[(&format!("tcp 192.168.7.7 {ECHO}"), "EPERM")])
}

/// A rule about one agent's hosts is enforced for it and for nobody else. C-031, C-053
#[test]
fn a_rule_for_one_agent_binds_that_agent() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let world = World::start()?;
    let host = Host::with_policy(
        r#"{"version": 1, "rules": [{"id": "no-web", "scope": "agent:research", "class": "networkEgress",
            "effect": "deny", "constraints": {"hosts": ["203.0.113.10"]}, "reason": "not for research"}]}"#,
    )?;
    let tcp = format!("tcp 203.0.113.10 {ECHO}");
    let other = format!("tcp 203.0.113.53 {ECHO}");
    expect(&host, &world, "research", &[(&tcp, "EPERM"), (&other, "worked")])?;
    expect(&host, &world, "build", &[(&tcp, "worked"), (&other, "worked")])?;
    let record = host.wait_for_record(|record| record["decision"]["rule"] == "no-web")?;
    assert_eq!(record["decision"]["outcome"], "deny", "{record}");
    assert_eq!(record["effect"], "refused", "{record}");
    assert_eq!(record["principal"]["agent"], "research", "{record}");
    Ok(())
}

/// A reload reaches agents that run already. R-20
#[test]
fn a_reload_reaches_a_running_agent() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let world = World::start()?;
    let host = Host::with_policy(r#"{"version": 1}"#)?;
    let attacks = Attacks::new(&host)?;
    let script = format!(
        "try() {{ {program} tcp 203.0.113.10 {ECHO}; }}; try; touch tried; \
         while [ ! -e go ]; do sleep 0.05; done; try",
        program = attacks.program().display()
    );
    let agent = host
        .run_in(guardctl(&world), &[], &["/bin/sh", "-c", &script])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    wait_for(&host.worktree().join("tried"))?;
    let closed = r#"{"version": 1, "network": {"deny": ["203.0.113.0/24"]}}"#;
    // In place of the old one at once, as an editor does it.
    fs::write(host.path("policy.new"), closed)?;
    fs::rename(host.path("policy.new"), host.path("policy.json"))?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(host.daemon_pid())?).context("a pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::HUP)?;
    host.wait_for_record(|record| {
        record["detail"]["event"] == "in force" && record["detail"]["generation"] == 2
    })?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::write(host.worktree().join("go"), "")?;
    let said = String::from_utf8(agent.wait_with_output()?.stdout)?;
    let lines: Vec<&str> = said.lines().map(|line| line.split(' ').next().unwrap_or("")).collect();
    assert_eq!(lines, ["worked", "refused"], "{said}");
    Ok(())
}

fn wait_for(path: &Path) -> Result<()> {
    for _ in 0..500 {
        if path.exists() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    anyhow::bail!("{} did not appear", path.display())
}

/// A resolver on a private address is open at port 53 and nowhere else, and the operator may close that. R-72
#[test]
fn resolvers_are_open_at_port_53_only() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::new()?;
    let resolvers = host.path("resolv.conf");
    fs::write(&resolvers, "nameserver 10.1.2.3\n")?;
    // SAFETY: this thread gets mounts of its own; what it starts inherits them, the rest of the process keeps the old ones.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::mount_bind(&resolvers, "/etc/resolv.conf")?;
    let world = World::start()?;
    host.start_daemon()?;
    // Nobody listens at port 53 here: that the network says so means that guard let it pass.
    expect(
        &host,
        &world,
        "a",
        &[
            ("tcp 10.1.2.3 53", "ECONNREFUSED"),
            ("udp-connected 10.1.2.3 53", "ECONNREFUSED"),
            (&format!("tcp 10.1.2.3 {ECHO}"), "EPERM"),
            ("tcp 192.168.7.7 53", "EPERM"),
        ],
    )?;
    drop(host);

    let mut host = Host::new()?;
    let policy = host.path("policy.json");
    fs::write(&policy, r#"{"version": 1, "network": {"resolvers": "deny"}}"#)?;
    host.option("--policy").option(&policy.display().to_string());
    host.start_daemon()?;
    expect(&host, &world, "a", &[("tcp 10.1.2.3 53", "EPERM")])
}
