//! Ordinary people launch agents, see their own, and stop only their own.
//!
//! Each test has a mount namespace of its own where /etc/group has the groups `guard` and `guard-admin`; this machine's users stay as they are.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use guard_tests::{
    host::{Host, UID, output},
    skip_host,
};
use rustix::{mount::MountPropagationFlags, thread::UnshareFlags};

const GUARD: u32 = 52_900;
const ADMIN: u32 = 52_901;
/// Another member of group `guard`.
const OTHER: u32 = 52_012;

fn host_with_groups() -> Result<Host> {
    let mut host = Host::new()?;
    let groups = host.path("group");
    let text = fs::read_to_string("/etc/group")?;
    let kept: String =
        text.lines().filter(|line| !line.starts_with("guard")).map(|line| format!("{line}\n")).collect();
    fs::write(&groups, format!("{kept}guard:x:{GUARD}:\nguard-admin:x:{ADMIN}:\n"))?;
    // SAFETY: this thread gets mounts of its own; what it starts inherits them, the rest of the process keeps the old ones.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    rustix::mount::mount_bind(&groups, "/etc/group")?;
    host.start_daemon()?;
    Ok(host)
}

/// Makes a command run as this user, in these groups and no others.
fn as_user(mut command: Command, uid: u32, groups: &'static [u32]) -> Command {
    // SAFETY: plain system calls with a slice that lives for ever.
    unsafe {
        command.pre_exec(move || {
            let ids = |result: libc::c_int| {
                if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            };
            ids(libc::setgroups(groups.len(), groups.as_ptr()))?;
            ids(libc::setresgid(uid, uid, uid))?;
            ids(libc::setresuid(uid, uid, uid))
        });
    }
    command
}

fn said(output: &std::process::Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// An agent of `uid` that waits on its standard input.
fn start(host: &Host, uid: u32, groups: &'static [u32], worktree: &str) -> Result<Child> {
    let mut command = host.guardctl(&["run", "--agent", "waiter", "--worktree"]);
    command.arg(host.path(worktree)).args(["--", "/bin/sh", "-c", "echo here; read line"]);
    let mut child = as_user(command, uid, groups).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("stdout")?).read_line(&mut line)?;
    assert_eq!(line.trim(), "here");
    Ok(child)
}

/// members of group `guard` launch agents, with their own identity; others may not even connect.
#[test]
fn members_launch_agents_and_others_may_not() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = host_with_groups()?;
    let worktree = host.worktree();
    let command = || {
        let mut command = host.guardctl(&["run", "--worktree"]);
        command.arg(&worktree).args(["--", "/bin/sh", "-c", "id -u; id -G; echo x > made; cat made"]);
        command
    };
    let member = output(&mut as_user(command(), UID, &[GUARD]))?;
    assert!(member.status.success(), "{}", said(&member));
    let lines: Vec<String> = String::from_utf8(member.stdout)?.lines().map(str::to_owned).collect();
    assert_eq!(lines[0], UID.to_string());
    assert_eq!(lines[1], format!("{UID} {GUARD}"), "the agent has the groups of its caller");
    assert_eq!(lines[2], "x");

    let stranger = output(&mut as_user(command(), UID, &[]))?;
    assert_eq!(stranger.status.code(), Some(4), "{}", said(&stranger));
    assert!(said(&stranger).contains("error[not_permitted]"), "{}", said(&stranger));
    Ok(())
}

/// A worktree must belong to its user, and be there; both are said before anything starts.
#[test]
fn a_worktree_of_somebody_else_is_refused() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = host_with_groups()?;
    for (worktree, uid) in [("no-such-directory", UID), ("worktree", OTHER)] {
        let mut command = host.guardctl(&["run", "--worktree"]);
        command.arg(host.path(worktree)).args(["--", "/bin/true"]);
        let refused = output(&mut as_user(command, uid, &[GUARD]))?;
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
        assert!(said(&refused).contains("error[invalid_worktree]"), "{}", said(&refused));
    }
    assert!(host.records()?.iter().all(|record| record["detail"]["event"] != "agent started"));
    Ok(())
}

/// people see and stop their own agents; somebody else's takes the role `operate`.
#[test]
fn people_stop_only_their_own_agents() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = host_with_groups()?;
    let mut agent = start(&host, UID, &[GUARD], "worktree")?;
    let listed = |uid, groups| -> Result<String> {
        let listed = output(&mut as_user(host.guardctl(&["--json", "ps"]), uid, groups))?;
        assert!(listed.status.success(), "{}", said(&listed));
        Ok(String::from_utf8(listed.stdout)?)
    };
    // guard-core hears of it a moment after the command runs.
    host.wait_for_record(|record| record["detail"]["event"] == "agent started")?;
    assert!(listed(UID, &[GUARD])?.contains("waiter"));
    assert_eq!(listed(OTHER, &[GUARD])?, "", "another user sees an agent that is not theirs");
    assert!(listed(OTHER, &[GUARD, ADMIN])?.contains("waiter"), "an operator sees all");

    let refused = output(&mut as_user(host.guardctl(&["kill", "waiter"]), OTHER, &[GUARD]))?;
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(agent.try_wait()?.is_none(), "it was killed all the same");
    let reload = output(&mut as_user(host.guardctl(&["reload"]), UID, &[GUARD]))?;
    assert_eq!(reload.status.code(), Some(4), "{}", said(&reload));

    let killed = output(&mut as_user(host.guardctl(&["kill", "waiter"]), OTHER, &[GUARD, ADMIN]))?;
    assert!(killed.status.success(), "{}", said(&killed));
    assert!(!agent.wait()?.success());

    let mut own = start(&host, UID, &[GUARD], "worktree")?;
    let freed = output(&mut as_user(host.guardctl(&["freeze", "waiter"]), UID, &[GUARD]))?;
    assert!(freed.status.success(), "{}", said(&freed));
    let thawed = output(&mut as_user(host.guardctl(&["thaw", "waiter"]), UID, &[GUARD]))?;
    assert!(thawed.status.success(), "{}", said(&thawed));
    writeln!(own.stdin.take().context("stdin")?, "done")?;
    assert!(own.wait()?.success());
    Ok(())
}

/// from inside there is only agent.sock, and on it only what an agent may do.
#[test]
fn an_agent_has_no_say_over_guard() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = host_with_groups()?;
    // guardctl itself is no secret: what counts is that nothing answers it.
    let tool = host.worktree().join("guardctl");
    fs::copy(guard_tests::programs().join("guardctl"), &tool)?;
    let script = format!(
        "ls /run/guard; ls {run}/*.sock; for socket in {socket} /run/guard/agent.sock; do \
         ./guardctl --socket $socket ps; ./guardctl --socket $socket kill --all; ./guardctl --socket $socket reload; done",
        run = host.path("run").display(),
        socket = host.socket().display()
    );
    let mut command = host.guardctl(&["run", "--worktree"]);
    command.arg(host.worktree()).args(["--", "/bin/sh", "-c", &script]);
    let ended = output(&mut as_user(command, UID, &[GUARD]))?;
    let out = String::from_utf8_lossy(&ended.stdout).into_owned();
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(out.trim(), "agent.sock", "{err}");
    assert_eq!(err.matches("error[daemon_unreachable]").count(), 3, "guard.sock is there: {err}");
    assert_eq!(err.matches("error[").count(), 6, "agent.sock took a command: {err}");
    Ok(())
}
