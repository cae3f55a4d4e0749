//! What the record says of secrets, programs and connections, with the daemons as processes and real programs as agents.

use std::fs;

use anyhow::{Context as _, Result, bail};
use guard_tests::{
    host::{Host, own_file},
    skip_host,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Runs a script as an agent and waits for its end in the record.
fn told(host: &Host, options: &[&str], script: &str) -> Result<Vec<Value>> {
    let before = host.records()?.len();
    let mut command = host.run(options, &["/bin/sh", "-c", script]);
    let output = guard_tests::host::output(command.env("PATH", "/usr/bin:/bin"))?;
    if !output.status.success() {
        bail!("{script}: {}", String::from_utf8_lossy(&output.stderr));
    }
    host.wait_for_record(|record| {
        record["detail"]["event"] == "agent ended"
            && record["seq"].as_u64().is_some_and(|seq| seq as usize >= before)
    })?;
    Ok(host.records()?.split_off(before))
}

/// Effect, last name and program of each secret that was opened.
fn secrets(records: &[Value]) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().rsplit('/').next().unwrap_or("").to_owned();
    let mut all: Vec<_> = records
        .iter()
        .filter(|record| record["request"]["action"].to_string().contains("secretAccess"))
        .map(|record| (text(&record["effect"]), text(&record["detail"]["path"]), text(&record["exe"])))
        .collect();
    all.sort();
    all
}

/// A secret in the worktree, one in a tree that the launch opened, one that it hides: each open is told, with the program that did
/// it; what others do to the same files is not, nor are files that are none. C-020
#[test]
fn opened_secrets_are_told() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::new()?;
    // Those that the operator named are secrets as well.
    let config = host.path("guard.toml");
    fs::write(&config, "secrets = [\"deep/plans/**\", \"!deep/plans/public*\"]\n")?;
    host.option("--config").option(&config.display().to_string());
    host.start_daemon()?;
    fs::create_dir_all(host.worktree().join("deep/.ssh"))?;
    fs::create_dir_all(host.worktree().join("deep/plans"))?;
    fs::create_dir(host.path("outside/.aws"))?;
    for file in [
        "worktree/.env",
        "worktree/deep/.ssh/id_rsa",
        "worktree/README",
        "outside/.aws/credentials",
        "worktree/deep/plans/next",
        "worktree/deep/plans/public",
    ] {
        own_file(&host.path(file), "x\n")?;
    }
    own_file(&host.path("outside/hidden"), "secret\n")?;
    let (tree, hidden) = (host.path("outside/.aws"), host.path("outside/hidden"));
    let options = ["--ro", &tree.display().to_string(), "--hide", &hidden.display().to_string()];
    let script = format!(
        "cat README .env deep/plans/next deep/plans/public; python3 -c \"open('deep/.ssh/id_rsa').read()\"; cat {}/credentials; cat {}; ls >/dev/null; sleep 0.5",
        tree.display(),
        hidden.display()
    );
    let reader = {
        // Somebody else, at the same time.
        let path = host.path("worktree/.env");
        std::thread::spawn(move || {
            for _ in 0..20 {
                let _ = std::process::Command::new("/usr/bin/head").arg(&path).output();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        })
    };
    let records = told(&host, &options, &script)?;
    reader.join().map_err(|_| anyhow::anyhow!("the reader"))?;
    let python = fs::canonicalize("/usr/bin/python3")?;
    let python = python.file_name().context("a name")?.to_string_lossy().into_owned();
    let found = secrets(&records);
    let expected = [
        ("done", ".env", "cat"),
        ("done", "credentials", "cat"),
        ("done", "id_rsa", python.as_str()),
        ("done", "next", "cat"),
        ("fenced", "hidden", "cat"),
    ];
    let expected: Vec<_> =
        expected.map(|(effect, name, exe)| (effect.to_owned(), name.to_owned(), exe.to_owned())).to_vec();
    assert_eq!(found, expected);
    let of_env = records
        .iter()
        .find(|record| record["detail"]["path"].as_str().is_some_and(|path| path.ends_with("/.env")))
        .context("the record of .env")?;
    assert_eq!(of_env["request"]["action"]["paths"], serde_json::json!([".env"]), "relative to the worktree");
    assert_eq!((&of_env["mechanism"], &of_env["strength"]), (&"fanotify".into(), &"observed".into()));
    Ok(())
}

/// A program's file with its hash, its end with status and duration, a server and a connection with their ends.
#[test]
fn programs_and_connections_are_told_to_their_end() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    own_file(
        &host.worktree().join("talk.py"),
        "import socket, threading
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
def serve():
    c, _ = s.accept()
    while c.recv(100): pass
    c.sendall(b'y' * 7)
    c.close()
t = threading.Thread(target=serve); t.start()
c = socket.create_connection(s.getsockname())
c.sendall(b'x' * 12345); c.shutdown(socket.SHUT_WR)
while c.recv(100): pass
c.close(); t.join()
",
    )?;
    fs::copy("/bin/sleep", host.worktree().join("mine"))?;
    let records = told(&host, &[], "python3 talk.py; ./mine 0.2; (exit 4); sleep 0.3")?;
    let find = |fits: &dyn Fn(&Value) -> bool| records.iter().find(|record| fits(record));

    let flow =
        find(&|record| record["detail"]["event"] == "connection ended").context("the connection's end")?;
    let part = |name: &str| flow["detail"][name].clone();
    assert_eq!((part("sent"), part("received")), (12345.into(), 7.into()), "{flow}");
    assert_eq!((part("address"), part("protocol")), ("127.0.0.1".into(), 6.into()));
    let listen = find(&|record| record["detail"]["act"] == "listen").context("the server")?;
    assert_eq!(listen["detail"]["port"], part("port"), "the connection went to it");
    assert!(listen["exe"].as_str().is_some_and(|exe| exe.contains("python")), "{listen}");

    let mine = find(&|record| record["detail"]["argv"] == serde_json::json!(["./mine", "0.2"]))
        .context("its start")?;
    let executable = find(&|record| {
        record["detail"]["event"] == "executable" && record["detail"]["inode"] == mine["detail"]["inode"]
    });
    let sum: String =
        Sha256::digest(fs::read("/bin/sleep")?).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(executable.context("its hash")?["detail"]["sha256"], sum.as_str());
    assert!(mine["exe"].as_str().is_some_and(|exe| exe.ends_with("/worktree/mine")), "{mine}");
    let end = find(&|record| record["detail"]["event"] == "process ended" && record["pid"] == mine["pid"]);
    let end = &end.context("its end")?["detail"];
    assert_eq!((&end["status"], &end["parent"]), (&0.into(), &mine["detail"]["parent"]), "{end}");
    assert!(end["duration_ms"].as_f64().is_some_and(|ms| (200.0..2000.0).contains(&ms)), "{end}");
    let failed =
        find(&|record| record["detail"]["status"] == 4 << 8).context("a fork that runs nothing new")?;
    assert_eq!(failed["detail"]["event"], "process ended");
    Ok(())
}
