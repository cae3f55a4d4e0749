//! `cargo xtask demo`: an agent does what a careless or tricked agent does, and each act is shown with what really came of it.
//!
//! The agent is one shell under guard that gets its acts one at a time. Verdict, strength and mechanism are read from the audit record;
//! what the act did is read from the agent's answer and looked up outside of it. An act that guard refuses without a record of it
//! (the seccomp filter answers in the kernel and tells nobody) is shown with a dash.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use guard_tests::{
    approver::Approver,
    host::{Host, own_file},
    world::World,
};
use serde_json::Value;

/// What should come of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Works,
    Refused,
}

/// One thing that the agent does.
struct Act {
    title: &'static str,
    /// Shell command; its exit status says whether it worked. `$O` is a directory outside, `$W` the worktree.
    command: &'static str,
    expected: Expected,
    /// The class to show, when the act starts several processes; or the act itself, for one without a class.
    class: &'static str,
}

const fn works(title: &'static str, class: &'static str, command: &'static str) -> Act {
    Act { title, command, expected: Expected::Works, class }
}

const fn refused(title: &'static str, class: &'static str, command: &'static str) -> Act {
    Act { title, command, expected: Expected::Refused, class }
}

const ACTS: &[Act] = &[
    works("edit a file in the worktree", "", "echo 'fn main() {}' > $W/main.rs"),
    works("git commit", "gitCommit", "git add -A && git commit -qm work"),
    works("git push to the team's remote", "gitPush", "git push -q $R HEAD:refs/heads/feature/demo"),
    works("run a python script", "processSpawn", "python3 -c 'print(6 * 7)'"),
    works(
        "pip install a local package",
        "packageInstall",
        "python3 -m pip install -q --no-index --no-build-isolation --disable-pip-version-check --no-deps --target $W/site $W/wheel/demo_pkg-1.0-py3-none-any.whl",
    ),
    works(
        "npm install a local package",
        "packageInstall",
        "cd $W/app && npm install --offline --no-audit --no-fund --silent ../pkg",
    ),
    works("fetch a public page", "networkEgress", "curl -sf -m 3 http://203.0.113.10/"),
    works("fetch a public page over IPv6", "networkEgress", "curl -sf -m 3 'http://[2001:db8::10]/'"),
    refused(
        "read cloud credentials",
        "networkEgress",
        "curl -sf -m 3 http://169.254.169.254/latest/meta-data/",
    ),
    refused("the same, spelled as IPv6", "networkEgress", "curl -sf -m 3 'http://[::ffff:169.254.169.254]/'"),
    refused("the same, over IPv6", "networkEgress", "curl -sf -m 3 'http://[fd00:ec2::254]/'"),
    refused("scan the private network", "networkEgress", "curl -sf -m 3 http://10.1.2.3/"),
    refused(
        "send data there as a datagram",
        "networkEgress",
        "python3 -c \"import socket; socket.socket(2, 2).sendto(b'x', ('192.168.7.7', 7))\"",
    ),
    refused("delete a draft; a person says no", "fileDelete", "rm -f $W/draft.txt"),
    refused("append to a file outside", "fileWriteOutsideWorktree", "echo evil >> $O/notes.txt"),
    refused("delete it", "fileWriteOutsideWorktree", "rm -f $O/notes.txt"),
    refused("make it executable", "fileWriteOutsideWorktree", "chmod 777 $O/notes.txt"),
    refused("leave a login script at home", "fileWriteOutsideWorktree", "echo evil >> $O/.bashrc"),
    refused(
        "reach out through a symlink",
        "fileWriteOutsideWorktree",
        "ln -sf $O/plan.txt $W/link && echo evil >> $W/link",
    ),
    refused("read an ssh key", "", "cat /root/.ssh/* /home/*/.ssh/*"),
    refused("talk to the daemon", "unix connect", "curl -sf --unix-socket $G/guard.sock http://d/"),
    refused("kill the daemon", "", "kill -9 $D"),
    refused(
        "leave the cgroup",
        "",
        "echo $$ > /sys/fs/cgroup/cgroup.procs || echo $$ > /sys/fs/cgroup/unified/cgroup.procs",
    ),
    refused("become root of a new namespace", "processSpawn", "unshare -Ur true"),
    refused("mount something", "processSpawn", "mount -t tmpfs none $W"),
];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    stop_on_interrupt();
    eprintln!("starting a small internet and guardd …");
    let world = World::start()?;
    let host = Host::start()?;
    furnish(&host)?;
    // Somebody who is asked before old files go: yes to what work needs, no to the draft.
    let _person = Approver::start(&host, |waiting| {
        let draft = waiting["act"]["path"].as_str().is_some_and(|path| path.ends_with("draft.txt"));
        Some(vec![if draft { "no" } else { "yes" }])
    })?;
    let mut agent = Agent::start(&world, &host)?;
    println!(
        "{:<33} {:<8} {:<35} {:<19} {:<10} {:<25} {:>7}",
        "ACT", "RESULT", "CLASS", "VERDICT", "STRENGTH", "MECHANISM", "MS"
    );
    let mut unexpected = 0;
    for act in ACTS {
        let since = Instant::now();
        let before = host.records()?.len();
        let worked = agent.does(act.command)?;
        let ms = since.elapsed().as_secs_f64() * 1e3;
        let record = record_of(&host, before, act)?;
        let result = if worked { "worked" } else { "refused" };
        let as_expected = worked == (act.expected == Expected::Works);
        unexpected += u32::from(!as_expected);
        let text =
            |path: &str| record.as_ref().and_then(|record| record.pointer(path)).and_then(Value::as_str);
        println!(
            "{:<33} {result:<8} {:<35} {:<19} {:<10} {:<25} {ms:>7.1}{}",
            act.title,
            record.as_ref().map_or("-".to_owned(), classes),
            text("/decision/outcome").unwrap_or("-"),
            text("/strength").unwrap_or("-"),
            text("/mechanism").unwrap_or("-"),
            if as_expected { "" } else { "   <- UNEXPECTED" },
        );
        if !as_expected {
            println!("    it said: {}", agent.said()?);
        }
    }
    agent.leave()?;
    unexpected += changed_outside(&host)?;
    let verified = host.guardctl(&["audit", "verify"]).arg(host.path("audit")).output()?;
    println!("\naudit: {}", String::from_utf8_lossy(&verified.stdout).trim());
    let records = host.records()?.len();
    println!("{} acts, {unexpected} unexpected, {records} records; everything is removed again", ACTS.len());
    Ok(unexpected == 0 && verified.status.success())
}

/// What the agent works with, and what it must not touch.
fn furnish(host: &Host) -> Result<()> {
    let worktree = host.worktree();
    own_file(&host.path("outside/notes.txt"), "mine\n")?;
    own_file(&host.path("outside/.bashrc"), "# mine\n")?;
    own_file(&host.path("outside/plan.txt"), "mine\n")?;
    own_file(&worktree.join("draft.txt"), "mine\n")?;
    let script = r#"
        set -e
        git init -q --bare "$2" && chmod -R a+rwX "$2"
        cd "$1"
        git init -q -b main
        git config -f .git/config user.name demo; git config -f .git/config user.email demo@example.org
        mkdir -p app pkg wheel
        echo '{"name":"app","version":"1.0.0"}' > app/package.json
        echo '{"name":"pkg","version":"1.0.0"}' > pkg/package.json
        python3 - <<'PY'
import zipfile
with zipfile.ZipFile("wheel/demo_pkg-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("demo_pkg.py", "answer = 42\n")
    info = "demo_pkg-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "demo_pkg.py,,\n")
PY
        chown -R "$3:$3" . "$2"
    "#;
    let uid = guard_tests::host::UID.to_string();
    // The team's remote lies in the worktree's surroundings that the agent may write.
    let output = Command::new("/bin/bash")
        .args(["-c", script, "bash"])
        .arg(&worktree)
        .arg(host.path("remote.git"))
        .arg(uid)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .output()?;
    if !output.status.success() {
        bail!("the worktree could not be furnished: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The governed shell.
struct Agent {
    process: Child,
    acts: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Agent {
    fn start(world: &World, host: &Host) -> Result<Self> {
        let remote = host.path("remote.git");
        let mut command = host.run_in(
            world.command(guard_tests::programs().join("guardctl")),
            &[
                "--agent",
                "demo",
                "--workspace",
                "acme",
                "--profile",
                "git",
                "--rw",
                &remote.display().to_string(),
            ],
            &["/bin/bash", "--norc"],
        );
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", host.path("home"))
            .env("W", host.worktree())
            .env("O", host.path("outside"))
            .env("R", &remote)
            .env("G", host.path("run"))
            .env("D", host.daemon_pid().to_string());
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let acts = process.stdin.take().context("no stdin")?;
        let answers = BufReader::new(process.stdout.take().context("no stdout")?);
        let mut agent = Self { process, acts, answers };
        if !agent.does("true")? {
            bail!("the agent's shell does not answer");
        }
        Ok(agent)
    }

    /// Has the agent do something, and tells whether it says that it worked.
    fn does(&mut self, command: &str) -> Result<bool> {
        // On one line whatever the command prints; the marker cannot come from it.
        writeln!(self.acts, "( {command} ) >/tmp/said 2>&1 </dev/null; echo guard-demo-status $?")?;
        let mut line = String::new();
        while self.answers.read_line(&mut line)? > 0 {
            if let Some(status) = line.trim().strip_prefix("guard-demo-status ") {
                return Ok(status == "0");
            }
            line.clear();
        }
        let mut said = String::new();
        if let Some(stderr) = self.process.stderr.take() {
            std::io::Read::read_to_string(&mut BufReader::new(stderr), &mut said)?;
        }
        bail!("the agent ended in the middle: {said}")
    }

    /// What the last act printed, on one line.
    fn said(&mut self) -> Result<String> {
        writeln!(self.acts, "tail -c 300 /tmp/said | tr '\\n' ' '; echo")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn leave(self) -> Result<()> {
        let Self { mut process, acts, .. } = self;
        drop(acts);
        process.wait()?;
        Ok(())
    }
}

/// The record that tells this act: of its class, the most severe, the last.
fn record_of(host: &Host, before: usize, act: &Act) -> Result<Option<Value>> {
    if act.class.is_empty() {
        return Ok(None);
    }
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let records = host.records()?;
        let fits = |record: &&Value| {
            record.get("decision").is_some()
                && (classes(record).contains(act.class) || record["detail"]["act"] == act.class)
        };
        let found = records.iter().skip(before).filter(fits).max_by_key(|record| severity(record));
        if found.is_some() || Instant::now() > deadline {
            return Ok(found.cloned());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn severity(record: &Value) -> u32 {
    let word = |path: &str| record.pointer(path).and_then(Value::as_str).unwrap_or("");
    let outcome = match word("/decision/outcome") {
        "deny" => 4,
        "defer_for_approval" => 2,
        _ => 0,
    };
    outcome + u32::from(word("/effect") != "done")
}

fn classes(record: &Value) -> String {
    let list = record.pointer("/request/action/classes").and_then(Value::as_array);
    let mut names: Vec<&str> = list.into_iter().flatten().filter_map(Value::as_str).collect();
    if names.len() > 1 {
        names.retain(|name| *name != "processSpawn");
    }
    names.join(" ")
}

/// Looks from outside at what must not have changed.
fn changed_outside(host: &Host) -> Result<u32> {
    let mut wrong = 0;
    let mut must_be = |path: &Path, content: &str| -> Result<()> {
        if fs::read_to_string(path)? != content {
            println!("CHANGED: {}", path.display());
            wrong += 1;
        }
        Ok(())
    };
    must_be(&host.path("outside/notes.txt"), "mine\n")?;
    must_be(&host.path("outside/.bashrc"), "# mine\n")?;
    must_be(&host.path("outside/plan.txt"), "mine\n")?;
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(host.path("outside/notes.txt"))?.permissions());
    if mode & 0o777 == 0o777 {
        println!("CHANGED: the mode of outside/notes.txt");
        wrong += 1;
    }
    Ok(wrong)
}

/// Ctrl-C ends the agent through the closed pipes; the ordinary way out then cleans up.
fn stop_on_interrupt() {
    // SAFETY: ignoring a signal touches no memory; children get the default back from exec by guardctl's own handlers.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
    }
}
