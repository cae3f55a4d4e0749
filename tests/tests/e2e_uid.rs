//! guardd under a uid of its own, with ambient capabilities and nothing else of root's.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::chown,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use guard_tests::{
    host::{Host, UID, output},
    skip_host,
};

/// The uid that guardd gets.
const DAEMON: u32 = 52_777;
/// What its unit would list in AmbientCapabilities=.
const CAPABILITIES: &str = "-all,+bpf,+perfmon,+net_admin,+net_raw,+sys_admin,+setuid,+setgid,+setpcap,+kill,+chown,+fowner,\
                            +dac_override,+sys_chroot,+sys_ptrace,+mknod";

/// Everything is enforced, agents have no capability of guardd's, and neither has guard-core.
#[test]
fn a_daemon_with_ambient_capabilities_enforces_everything() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::new()?;
    chown(host.base.path(), Some(DAEMON), Some(DAEMON))?;
    let plain = host.daemon_command();
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={DAEMON}"))
        .arg(format!("--regid={DAEMON}"))
        .arg("--clear-groups")
        .arg(format!("--inh-caps={CAPABILITIES}"))
        .arg(format!("--ambient-caps={CAPABILITIES}"))
        .arg(plain.get_program())
        .args(plain.get_args());
    let log = fs::File::create(host.path("guardd.log"))?;
    let mut daemon = command.stdout(Stdio::piped()).stderr(log).spawn()?;
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().context("no output")?).read_line(&mut line)?;
    assert!(line.trim().ends_with("strength=enforced"), "{line:?} {}", host.log());

    let status = "grep -E '^(Uid|CapEff|CapPrm|CapAmb)' /proc/self/status; echo x > made && cat made";
    let ran = output(&mut host.run(&[], &["/bin/sh", "-c", status]))?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(said.starts_with(&format!("Uid:\t{UID}\t")), "{said} {}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(said.matches("0000000000000000").count(), 3, "{said}");
    assert!(said.trim().ends_with('x'), "{said}");

    let core = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok())
        .find(|text| text.contains("guard-core") && text.contains(&format!("PPid:\t{}\n", daemon.id())))
        .context("guardd has no guard-core")?;
    for line in
        core.lines().filter(|line| ["CapEff", "CapPrm", "CapAmb"].iter().any(|name| line.starts_with(name)))
    {
        assert!(line.ends_with("0000000000000000"), "guard-core has {line}");
    }

    let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.id())?).context("a pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    daemon.wait()?;
    Ok(())
}
