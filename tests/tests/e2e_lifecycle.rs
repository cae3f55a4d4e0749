//! Agents from start to end on the whole path: guardctl, guard-core, guardd, guard-shim.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use guard_tests::{
    host::{Host, output},
    skip_host,
    world::World,
};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// A governed shell that answers one line for each line that it gets.
struct Shell {
    process: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn start(host: &Host, world: &World) -> Result<Self> {
        let guardctl = world.command(guard_tests::programs().join("guardctl"));
        let mut process = host
            .run_in(guardctl, &["--agent", "shell"], &["/bin/sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(process.stdout.take().context("no stdout")?);
        let mut shell = Self { process, answers };
        assert_eq!(shell.ask("echo here")?, "here");
        Ok(shell)
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        let stdin = self.process.stdin.as_mut().context("no stdin")?;
        writeln!(stdin, "{line}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }

    /// Whether the agent can fetch from this address.
    fn reaches(&mut self, address: &str) -> Result<bool> {
        let line = format!("curl -s -m 2 -o /dev/null http://{address}/ && echo yes || echo no");
        Ok(self.ask(&line)? == "yes")
    }

    fn leave(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        self.process.wait()?;
        Ok(())
    }
}

fn agents(host: &Host) -> Result<Vec<Value>> {
    let listed = output(&mut host.guardctl(&["--json", "ps"]))?;
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    Ok(String::from_utf8(listed.stdout)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !holds()? {
        assert!(Instant::now() < deadline, "not within five seconds: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// An agent is listed while it runs, and nothing of it is left when it has ended.
#[test]
fn an_agent_comes_and_goes_without_a_trace() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let shell = Shell::start(&host, &world)?;
    let listed = agents(&host)?;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["owner_uid"], 0, "root launched it");
    assert_eq!(listed[0]["uid"], guard_tests::host::UID, "it runs as the owner of its worktree");
    assert_eq!(listed[0]["principal"]["agent"], "shell");
    let id = listed[0]["agent_id"].as_str().context("an id")?.to_owned();
    assert!(host.cgroup()?.join(&id).exists());
    shell.leave()?;
    assert!(!host.cgroup()?.join(&id).exists(), "its cgroup is still there");
    assert!(!host.path("run/agents").join(&id).exists(), "its state is still there");
    host.wait_for_record(|record| record["detail"]["event"] == "agent ended")?;
    eventually("the list is empty", || Ok(agents(&host)?.is_empty()))
}

/// The command's own exit status comes back, from 0 to a signal.
#[test]
fn exit_statuses_are_the_commands_own() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    for (command, code, signal) in
        [("true", Some(0), None), ("exit 3", Some(3), None), ("kill -TERM $$", None, Some(15))]
    {
        let ended = output(&mut host.run(&[], &["/bin/sh", "-c", command]))?;
        let got = (ended.status.code(), ended.status.signal());
        assert_eq!(got, (code, signal), "{command}: {}", String::from_utf8_lossy(&ended.stderr));
    }
    for (program, expected) in [("no-such-command-here", 127), ("/etc/passwd", 126)] {
        let ended = output(&mut host.run(&[], &[program]))?;
        assert_eq!(ended.status.code(), Some(expected), "{program}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains(program), "{said}");
    }
    Ok(())
}

/// A frozen agent does nothing until it is thawed; a killed one is gone; one that is cut off reaches loopback only.
#[test]
fn freeze_thaw_cut_and_kill_do_what_they_say() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let mut shell = Shell::start(&host, &world)?;
    let act = |what: &str| -> Result<()> {
        let done = output(&mut host.guardctl(&[what, "shell"]))?;
        assert!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    };
    act("freeze")?;
    assert_eq!(agents(&host)?[0]["state"], "frozen");
    writeln!(shell.process.stdin.as_mut().context("stdin")?, "echo one; touch ticked")?;
    std::thread::sleep(Duration::from_millis(300));
    assert!(!host.worktree().join("ticked").exists(), "a frozen agent acted");
    act("thaw")?;
    let mut line = String::new();
    shell.answers.read_line(&mut line)?;
    assert_eq!(line.trim(), "one");

    assert!(shell.reaches("203.0.113.10")?, "the control: it reaches a public address before");
    act("net-cut")?;
    assert!(!shell.reaches("203.0.113.10")?, "it still reaches a public address");
    assert_eq!(agents(&host)?[0]["net_cut"], true);

    act("kill")?;
    let status = shell.process.wait()?;
    assert!(!status.success(), "{status}");
    eventually("the list is empty", || Ok(agents(&host)?.is_empty()))
}

/// A name that no agent has is an error, and nobody is touched.
#[test]
fn a_stranger_cannot_be_killed() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let done = output(&mut host.guardctl(&["kill", "nobody"]))?;
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).contains("error[no_such_agent]"));
    Ok(())
}

/// The death of guardd frees nobody, and a new guardd takes its agents back.
#[test]
fn a_killed_guardd_keeps_blocking_and_its_successor_adopts() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (mut host, world) = (Host::start()?, World::start()?);
    let mut shell = Shell::start(&host, &world)?;
    assert!(!shell.reaches("169.254.169.254")?);
    host.stop_daemon(Signal::KILL)?;
    assert!(!shell.reaches("169.254.169.254")?, "the metadata service is open once guardd is gone");
    assert!(shell.reaches("203.0.113.10")?, "public addresses are closed once guardd is gone");
    host.start_daemon()?;
    assert!(!shell.reaches("10.1.2.3")?);
    let listed = agents(&host)?;
    assert_eq!(listed.len(), 1, "{listed:?}");
    // The shim's reports reach the new daemon.
    shell.ask(&format!("touch {}/x 2>/dev/null; echo done", host.path("outside").display()))?;
    host.wait_for_record(|record| {
        record["effect"] == "fenced"
            && record["detail"]["path"].as_str().is_some_and(|path| path.ends_with("/outside/x"))
    })?;
    shell.leave()?;
    eventually("the list is empty", || Ok(agents(&host)?.is_empty()))
}

/// A killed guard-core is started again; meanwhile the kernel goes on, and what was seen is recorded afterwards.
#[test]
fn a_killed_core_comes_back_and_nothing_seen_is_lost() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let mut shell = Shell::start(&host, &world)?;
    let core = core_of(host.daemon_pid())?;
    rustix::process::kill_process(core, Signal::KILL)?;
    assert!(!shell.reaches("169.254.169.254")?);
    host.wait_for_record(|record| {
        record["request"]["action"]["hosts"][0] == "169.254.169.254" && record["effect"] == "refused"
    })?;
    eventually("guardctl is answered again", || Ok(output(&mut host.guardctl(&["ps"]))?.status.success()))?;
    assert_eq!(agents(&host)?.len(), 1);
    shell.leave()?;
    let verified = output(host.guardctl(&["audit", "verify"]).arg(host.path("audit")))?;
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    Ok(())
}

/// An agent whose shim is killed is ended: nothing runs on without its keeper.
#[test]
fn a_killed_shim_ends_its_agent() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, world) = (Host::start()?, World::start()?);
    let mut shell = Shell::start(&host, &world)?;
    let shims = children(host.daemon_pid(), "guard-shim")?;
    assert_eq!(shims.len(), 1, "{shims:?}");
    rustix::process::kill_process(shims[0], Signal::KILL)?;
    let status = shell.process.wait()?;
    assert!(!status.success());
    eventually("the list is empty", || Ok(agents(&host)?.is_empty()))?;
    assert!(std::fs::read_dir(host.cgroup()?)?.flatten().all(|entry| !entry.path().is_dir()));
    Ok(())
}

fn core_of(daemon: u32) -> Result<Pid> {
    children(daemon, "guard-core")?.into_iter().next().context("guardd has no guard-core")
}

fn children(parent: u32, name: &str) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|text| text.parse::<i32>().ok()) else {
            continue;
        };
        // A process may end while we look.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, tail)) = stat.rsplit_once(')') else { continue };
        let ppid = tail.split_whitespace().nth(1).and_then(|text| text.parse::<u32>().ok());
        if ppid == Some(parent) && head.contains(&name[..name.len().min(15)]) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}
