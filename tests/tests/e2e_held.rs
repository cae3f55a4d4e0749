//! Acts that need a yes wait for it: real programs, a person with `guardctl`, and what then happens to the file.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use guard_tests::{
    approver::Approver,
    host::{Host, output, own_file},
    skip_host,
    terminal::Terminal,
};
use serde_json::{Value, json};

/// Where Debian's programs are; a python that only root can read is none for an agent.
const PATH: &str = "/usr/bin:/bin";

/// Runs a line of shell as an agent.
fn run(host: &Host, script: &str) -> Result<std::process::Output> {
    let mut command = host.run(&["--agent", "held"], &["/bin/sh", "-c", script]);
    output(command.env("PATH", PATH))
}

fn name_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default()
}

/// The record of what became of a file.
fn record_of(host: &Host, name: &str) -> Result<Value> {
    host.wait_for_record(|record| {
        let detail = &record["detail"];
        record["kind"] == "decision"
            && record["request"]["action"]["classes"] == json!(["fileDelete"])
            && [&detail["path"], &detail["other"]].iter().any(|path| name_of(path) == name)
    })
}

/// Ways to do away with a file that was there: by programs that people use, from a grandchild, a static binary, the dynamic
/// loader, an interpreter; `$1` is the file.
const WAYS: [(&str, &str); 12] = [
    ("rm", "rm -f $1"),
    ("grandchild", "sh -c \"sh -c 'rm -f $1'\""),
    ("loader", "/lib64/ld-linux-x86-64.so.2 /bin/rm -f $1"),
    ("busybox", "busybox rm -f $1"),
    ("copy", "cp /bin/rm ./tool-$1 && ./tool-$1 -f $1"),
    ("mv", "echo new >$1.x && mv -f $1.x $1"),
    ("shell", ": >$1"),
    ("cp", "echo new >$1.x && cp $1.x $1"),
    ("sed", "sed -i s/old/new/ $1"),
    ("python", "python3 -c 'import os,sys; os.unlink(sys.argv[1])' $1"),
    ("python-open", "python3 -c 'import sys; open(sys.argv[1],\"w\").write(\"new\")' $1"),
    ("truncate", "python3 -c 'import os,sys; os.truncate(sys.argv[1], 1)' $1"),
];

/// With a yes each of them does its work, with a no none does, and the record says both. C-012 C-036 R-71
#[test]
fn a_yes_lets_an_act_happen_and_a_no_does_not() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let approver = Approver::start(&host, |waiting| {
        let act = &waiting["act"];
        let name = if act["act"] == "rename" { name_of(&act["other"]) } else { name_of(&act["path"]) };
        Some(vec![if name.starts_with("yes-") { "yes" } else { "no" }])
    })?;
    for (name, line) in WAYS {
        for answer in ["yes", "no"] {
            let file = format!("{answer}-{name}");
            let path = host.worktree().join(&file);
            own_file(&path, "old\n")?;
            let ran = run(&host, &format!("set -- {file}\n{line}"))?;
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            let left = fs::read_to_string(&path).ok();
            if answer == "yes" {
                ensure!(ran.status.success() && left.as_deref() != Some("old\n"), "{file}: {said}");
            } else {
                ensure!(left.as_deref() == Some("old\n"), "{file} is {left:?}: {said}");
                ensure!(
                    said.contains("ermission denied") || said.contains("not permitted"),
                    "{file}: {said}"
                );
            }
            let record = record_of(&host, &file)?;
            assert_eq!(record["strength"], "held", "{file}");
            assert_eq!(record["effect"], if answer == "yes" { "done" } else { "refused" }, "{file}");
            assert_eq!(record["detail"]["approval"]["answer"], answer, "{file}");
            assert_eq!(record["detail"]["approval"]["by"]["uid"], 0, "{file}");
            assert_eq!(record["decision"]["outcome"], "defer_for_approval", "{file}");
        }
    }
    let asked = approver.seen().into_iter().filter(|event| event["event"] == "asked").count();
    assert_eq!(asked, 2 * WAYS.len(), "each was asked once");
    Ok(())
}

/// C-036 C-037 R-04
#[test]
fn without_somebody_to_ask_the_answer_is_no_at_once() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    own_file(&host.worktree().join("old"), "old\n")?;
    let since = Instant::now();
    let ran = run(&host, "rm -f old")?;
    ensure!(!ran.status.success() && host.worktree().join("old").exists());
    ensure!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    let record = record_of(&host, "old")?;
    assert_eq!((&record["effect"], &record["strength"]), (&json!("refused"), &json!("held")));
    assert_eq!(record["decision"]["denied"]["code"], "no_approver");
    // The control: what policy allows needs nobody.
    let free = Host::with_policy(r#"{"rules": [{"id": "free", "class": "fileDelete", "effect": "allow"}]}"#)?;
    own_file(&free.worktree().join("old"), "old\n")?;
    let ran = run(&free, "rm -f old")?;
    ensure!(ran.status.success() && !free.worktree().join("old").exists());
    let record = record_of(&free, "old")?;
    assert_eq!((&record["effect"], &record["strength"]), (&json!("done"), &json!("held")));
    Ok(())
}

/// A kept yes is a rule with an end: the next act like it is not asked. C-080 C-081 C-083
#[test]
fn a_kept_yes_is_asked_once() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let approver =
        Approver::start(&host, |_| Some(vec!["yes", "--remember", "--ttl", "1h", "--scope", "agent:held"]))?;
    fs::create_dir(host.worktree().join("d"))?;
    std::os::unix::fs::chown(host.worktree().join("d"), Some(guard_tests::host::UID), None)?;
    for name in ["d/one", "d/two", "d/three"] {
        own_file(&host.worktree().join(name), "old\n")?;
    }
    let ran = run(&host, "rm -f d/one && rm -f d/two d/three")?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let asked = approver.seen().into_iter().filter(|event| event["event"] == "asked").count();
    assert_eq!(asked, 1);
    let listed = output(&mut host.guardctl(&["approvals", "list"]))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(listed.contains("remembered-"), "{listed}");
    Ok(())
}

/// An agent with a file that it wants to remove, waiting for a yes.
struct Waits {
    agent: std::process::Child,
    id: String,
}

impl Waits {
    fn start(host: &Host, approver: &Approver, script: &str, file: &Path) -> Result<Self> {
        own_file(file, "old\n")?;
        let mut command = host.run(&["--agent", "held"], &["/bin/sh", "-c", script]);
        let agent = command
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let name = file.file_name().context("a name")?.to_string_lossy().into_owned();
        let asked = approver.wait_for(|event| name_of(&event["waiting"]["act"]["path"]) == name)?;
        Ok(Self { agent, id: asked["waiting"]["id"].to_string() })
    }

    fn end(self) -> Result<(bool, String)> {
        let ended = self.agent.wait_with_output()?;
        let said = [ended.stdout, ended.stderr].concat();
        Ok((ended.status.success(), String::from_utf8_lossy(&said).into_owned()))
    }
}

fn answer(host: &Host, id: &str, word: &str) -> Result<std::process::Output> {
    output(&mut host.guardctl(&["approvals", "answer", id, word]))
}

/// What was shown is what happens: a file that took the place of the judged one stays, whatever the answer. R-71
#[test]
fn a_yes_is_for_the_thing_that_was_shown() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let approver = Approver::watch(&host)?;
    let file = host.worktree().join("shown");
    let waits = Waits::start(&host, &approver, "rm -f shown", &file)?;
    fs::rename(&file, host.worktree().join("aside"))?;
    own_file(&file, "another\n")?;
    ensure!(answer(&host, &waits.id, "yes")?.status.success());
    let (ok, said) = waits.end()?;
    ensure!(!ok, "{said}");
    assert_eq!(fs::read_to_string(&file)?, "another\n");
    assert_eq!(fs::read_to_string(host.worktree().join("aside"))?, "old\n");
    // The control: left alone, the same act gets its way.
    let file = host.worktree().join("left");
    let waits = Waits::start(&host, &approver, "rm -f left", &file)?;
    ensure!(answer(&host, &waits.id, "yes")?.status.success());
    let (ok, said) = waits.end()?;
    ensure!(ok && !file.exists(), "{said}");
    // Nothing is answered twice.
    let again = answer(&host, "999", "yes")?;
    ensure!(String::from_utf8_lossy(&again.stderr).contains("error[not_waiting]"));
    Ok(())
}

/// Whoever waits can be interrupted: handlers run, and the question goes away with the one who asked.
#[test]
fn signals_reach_what_waits() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let approver = Approver::watch(&host)?;
    let file = host.worktree().join("wanted");
    let python = "import os,signal,sys\n\
        def ring(*_): print('rang', flush=True); raise TimeoutError\n\
        signal.signal(signal.SIGALRM, ring); signal.alarm(1)\n\
        try: os.unlink('wanted')\n\
        except TimeoutError: print('timed out', flush=True)";
    let waits = Waits::start(&host, &approver, &format!("exec python3 -c \"{python}\""), &file)?;
    let id: u64 = waits.id.parse()?;
    let (ok, said) = waits.end()?;
    ensure!(ok && said.contains("rang\ntimed out"), "{said}");
    approver.wait_for(|event| event["answer"] == "cancelled" && event["id"] == id)?;
    ensure!(file.exists());
    // Killed, it is gone, and so is its question.
    let file = host.worktree().join("killed");
    let waits = Waits::start(&host, &approver, "timeout -s KILL 1 rm -f killed; echo over", &file)?;
    let id: u64 = waits.id.parse()?;
    let (_, said) = waits.end()?;
    ensure!(said.contains("over"), "{said}");
    approver.wait_for(|event| event["answer"] == "cancelled" && event["id"] == id)?;
    ensure!(!answer(&host, &id.to_string(), "yes")?.status.success() && file.exists());
    Ok(())
}

/// A guardd that is gone says no after two seconds; one that is back before goes on where the other was.
#[test]
fn what_waits_outlives_guardd_or_is_refused() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::start()?;
    let approver = Approver::watch(&host)?;
    let file = host.worktree().join("waits");
    let waits = Waits::start(&host, &approver, "rm -f waits", &file)?;
    host.stop_daemon(rustix::process::Signal::KILL)?;
    let since = Instant::now();
    let (ok, said) = waits.end()?;
    // guardctl itself may have lost its line; the file tells.
    ensure!(file.exists(), "{ok} {said}");
    ensure!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    drop(approver);
    host.start_daemon()?;
    let approver = Approver::watch(&host)?;
    let file = host.worktree().join("asked");
    let waits = Waits::start(&host, &approver, "rm -f asked", &file)?;
    ensure!(answer(&host, &waits.id, "yes")?.status.success());
    let (ok, said) = waits.end()?;
    ensure!(ok && !file.exists(), "{said}");
    Ok(())
}

/// R-73
#[test]
fn an_agent_never_answers() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let approver = Approver::watch(&host)?;
    let file = host.worktree().join("own");
    let guardctl = guard_tests::programs().join("guardctl");
    let (guardctl, agent_socket) = (guardctl.display(), "/run/guard/agent.sock");
    let script = format!(
        "rm -f own & sleep 2; for s in {agent_socket} {}; do {guardctl} --socket $s approvals answer 1 yes; done; wait %1",
        host.socket().display()
    );
    let waits = Waits::start(&host, &approver, &script, &file)?;
    std::thread::sleep(Duration::from_secs(4));
    ensure!(file.exists(), "the agent's own yes counted");
    ensure!(answer(&host, &waits.id, "no")?.status.success());
    let (_, said) = waits.end()?;
    ensure!(said.matches("error[").count() >= 2, "{said}");
    ensure!(file.exists(), "{said}");
    Ok(())
}

/// Denials are not shown, one act tried many times is one question, an agent has so many, and each ends by itself. R-66
#[test]
fn questions_are_few_and_end() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::new()?;
    let (config, policy) = (host.path("guard.toml"), host.path("policy.json"));
    fs::write(&config, "[approvals]\ntimeout_s = 4\n")?;
    fs::write(
        &policy,
        r#"{"rules": [{"id": "never", "class": "fileDelete", "effect": "deny", "constraints": {"paths": ["never*"]}}]}"#,
    )?;
    for option in ["--config", &config.display().to_string(), "--policy", &policy.display().to_string()] {
        host.option(option);
    }
    host.start_daemon()?;
    let approver = Approver::watch(&host)?;
    for file in ["never", "same"] {
        own_file(&host.worktree().join(file), "old\n")?;
    }
    let ran = run(&host, "rm -f never")?;
    ensure!(!ran.status.success() && host.worktree().join("never").exists());
    let since = Instant::now();
    let ran = run(&host, "for i in 1 2 3 4 5; do rm -f same & done; wait; test -e same")?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ensure!(since.elapsed() >= Duration::from_secs(4), "{:?}", since.elapsed());
    let asked = |name: &str| {
        let seen = approver.seen();
        seen.iter().filter(|event| name_of(&event["waiting"]["act"]["path"]).starts_with(name)).count()
    };
    assert_eq!((asked("never"), asked("same")), (0, 1));
    approver.wait_for(|event| event["answer"] == "timeout")?;
    let record = record_of(&host, "same")?;
    assert_eq!(
        (&record["effect"], &record["detail"]["approval"]["answer"]),
        (&json!("refused"), &json!("timeout"))
    );
    // Of forty at once, 32 are asked; all are refused, and nothing is lost.
    for i in 0..40 {
        own_file(&host.worktree().join(format!("many-{i}")), "old\n")?;
    }
    let ran = run(&host, "for i in $(seq 0 39); do rm -f many-$i & done; wait; ls | grep -c many-")?;
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "40");
    assert_eq!(asked("many-"), 32);
    Ok(())
}

/// What policy allows whatever it touches costs no question each: thousands of old files go in a moment, each on file; what
/// policy does not allow everywhere is still looked at one by one. R-14
#[test]
fn what_is_allowed_everywhere_is_not_asked_about_each_time() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    for (rules, kept) in [
        (r#"{"id": "all", "class": "fileDelete", "effect": "allow"}"#, false),
        (
            r#"{"id": "all", "class": "fileDelete", "effect": "allow"},
               {"id": "never", "class": "fileDelete", "effect": "deny", "constraints": {"paths": ["d/f-77"]}}"#,
            true,
        ),
    ] {
        let host = Host::with_policy(&format!(r#"{{"rules": [{rules}]}}"#))?;
        let directory = host.worktree().join("d");
        fs::create_dir(&directory)?;
        std::os::unix::fs::chown(&directory, Some(guard_tests::host::UID), None)?;
        for i in 0..2000 {
            own_file(&directory.join(format!("f-{i}")), "")?;
        }
        let _ = run(&host, "rm -rf d")?;
        let left: Vec<_> =
            fs::read_dir(&directory).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, if kept { vec!["f-77"] } else { vec![] });
        host.wait_for_record(|record| record["detail"]["event"] == "agent ended")?;
        let records = host.records()?;
        let deletions: Vec<_> = records
            .iter()
            .filter(|record| record["request"]["action"]["classes"] == json!(["fileDelete"]))
            .collect();
        let done = deletions.iter().filter(|record| record["effect"] == "done").count();
        assert_eq!(done, if kept { 1999 } else { 2001 }, "each is on file");
        let held = deletions.iter().filter(|record| record["strength"] == "held").count();
        ensure!(if kept { held >= 2000 } else { held < 500 }, "{held} were held");
    }
    Ok(())
}

/// A person at a terminal sees who wants what and why, answers with one key, and has the terminal back as it was.
#[test]
fn a_person_answers_with_one_key() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let watch = host.guardctl(&["approvals", "watch"]);
    let words: Vec<_> = std::iter::once(watch.get_program()).chain(watch.get_args()).collect();
    let line: Vec<_> = words.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let script = format!("trap : INT; {}; echo ended $?; stty -a | grep -o -w -- '-*echo'", line.join(" "));
    let mut terminal = Terminal::run(std::process::Command::new("/bin/bash").args(["-c", &script]));
    terminal.wait_for("y yes, n no");
    // Somebody else who watches hears the same.
    let approver = Approver::watch(&host)?;
    for (file, key, left) in [("unwanted", "y", false), ("wanted", "n", true)] {
        let path = host.worktree().join(file);
        let waits = Waits::start(&host, &approver, &format!("rm -f {file}"), &path)?;
        let shown = terminal.wait_for("refused at");
        for part in ["held (", "wants to unlink", file, "by /usr/bin/rm", "fileDelete: "] {
            ensure!(shown.contains(part), "{part}: {shown}");
        }
        terminal.keys(key);
        terminal.wait_for(if left { "] no by root" } else { "] yes by root" });
        let (ok, said) = waits.end()?;
        ensure!(ok != left && path.exists() == left, "{file}: {said}");
    }
    // Kept, the next is not asked.
    let directory = host.worktree().join("d");
    fs::create_dir(&directory)?;
    std::os::unix::fs::chown(&directory, Some(guard_tests::host::UID), None)?;
    own_file(&directory.join("next"), "old\n")?;
    let path = directory.join("kept");
    let waits = Waits::start(&host, &approver, "rm -f d/kept && rm -f d/next", &path)?;
    let shown = terminal.wait_for("refused at");
    ensure!(shown.contains("r keeps: ") && shown.contains("held"), "{shown}");
    terminal.keys("r");
    let (ok, said) = waits.end()?;
    ensure!(ok && !path.exists() && !directory.join("next").exists(), "{said}");
    terminal.keys("\u{3}");
    let (shown, _) = terminal.end();
    ensure!(shown.contains("ended 130\r\necho"), "{shown}");
    Ok(())
}
