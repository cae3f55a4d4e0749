//! What people read of a run: filters on the record, a session's story, what agents do right now.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use guard_tests::{
    host::{Host, output},
    skip_host,
};
use serde_json::Value;

/// guard with an agent that has ended: three plain programs, a write that the fence stopped, one with an escape
/// sequence in its name.
fn told() -> Result<(Host, String)> {
    let host = Host::start()?;
    let script = "/bin/true 1; /bin/true 2; /bin/false; echo x > $PWD/../outside/x; /bin/true \"$(printf 'a\\033[2Jb')\"; exit 3";
    let options = ["--agent", "teller", "--workspace", "acme"];
    let done = output(&mut host.run(&options, &["/bin/sh", "-c", script]))?;
    ensure!(done.status.code() == Some(3), "{done:?}");
    let ended = host.wait_for_record(|record| record["detail"]["event"] == "agent ended")?;
    let session = ended["principal"]["session"].as_str().context("a session")?.to_owned();
    Ok((host, session))
}

fn said(command: &mut Command) -> Result<(Option<i32>, String, String)> {
    let done = output(command)?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok((done.status.code(), text(&done.stdout), text(&done.stderr)))
}

/// The same story comes from the daemon and from the files, by session and by agent; numbers fit the record.
#[test]
fn a_session_is_told_as_a_story() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, session) = told()?;
    let audit = host.path("audit").display().to_string();
    let (status, story, error) = said(&mut host.guardctl(&["session", "show", &session]))?;
    ensure!(status == Some(0), "{error}");
    for part in [
        &format!("session {session}, agent teller, workspace acme"),
        "/bin/true 1 (and 1 more like it)",
        "tried to write outside",
        "fenced by mount view",
        "ended with status 3",
        r"a\u{1b}[2Jb",
    ] {
        assert!(story.contains(part), "no {part:?} in\n{story}");
    }
    assert!(!story.contains('\u{1b}'), "{story}");
    let (status, from_files, error) =
        said(&mut host.guardctl(&["session", "show", &session, "--from", &audit]))?;
    ensure!(status == Some(0), "{error}");
    assert_eq!(story, from_files);
    let (_, json, _) = said(&mut host.guardctl(&["--json", "session", "show", &session]))?;
    let json: Value = serde_json::from_str(&json).with_context(|| json.clone())?;
    let of_session =
        |record: &&Value| record["principal"]["session"] == session.as_str() && record["kind"] == "decision";
    let records = host.records()?;
    let decisions: Vec<&Value> = records.iter().filter(of_session).collect();
    let acts: u64 = decisions.iter().map(|record| record["detail"]["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(json["acts"], acts);
    assert_eq!(json["runs"][0]["status"], 3 << 8);
    let agent_id = json["runs"][0]["agent_id"].as_str().context("an agent id")?.to_owned();
    let (_, by_agent, _) = said(&mut host.guardctl(&["session", "show", &agent_id]))?;
    assert_eq!(story, by_agent);
    let (_, list, _) = said(&mut host.guardctl(&["session", "list"]))?;
    assert!(list.contains(&session) && list.contains("teller"), "{list}");
    let (status, _, error) = said(&mut host.guardctl(&["session", "show", "s-nobody"]))?;
    assert_eq!(status, Some(1));
    assert!(error.contains("error[no_such_session]") && error.contains("s-nobody"), "{error}");
    Ok(())
}

/// A filter shows exactly the records that fit, from the daemon and from files alike; a slip in it is an error.
#[test]
fn filters_show_what_fits_and_nothing_else() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, session) = told()?;
    let audit = host.path("audit").display().to_string();
    let records = host.records()?;
    let has = |record: &Value, class: &str| {
        record["request"]["action"]["classes"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one == class))
    };
    type Fits<'a> = Box<dyn Fn(&Value) -> bool + 'a>;
    let cases: [(&[&str], Fits<'_>); 5] = [
        (&["--effect", "fenced"], Box::new(|record| record["effect"] == "fenced")),
        (
            &["--class", "processSpawn", "--effect", "done"],
            Box::new(|record| has(record, "processSpawn") && record["effect"] == "done"),
        ),
        (
            &["--kind", "daemon", "--kind", "policy"],
            Box::new(|record| record["kind"] == "daemon" || record["kind"] == "policy"),
        ),
        (&["--session", &session], Box::new(|record| record["principal"]["session"] == session.as_str())),
        (&["--grep", "/bin/true 2"], Box::new(|record| record.to_string().contains("/bin/true 2"))),
    ];
    for (filter, fits) in &cases {
        let wanted: Vec<u64> = records
            .iter()
            .filter(|record| fits(record))
            .filter_map(|record| record["seq"].as_u64())
            .collect();
        ensure!(!wanted.is_empty() && wanted.len() < records.len(), "{filter:?} tells nothing apart");
        for from in [&[][..], &["--from", &audit][..]] {
            let words =
                [&["--json", "audit", "tail", "--no-follow", "-n", "100000"][..], filter, from].concat();
            let (status, lines, error) = said(&mut host.guardctl(&words))?;
            ensure!(status == Some(0), "{words:?}: {error}");
            let shown: Vec<u64> = lines
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["seq"].as_u64())
                // Closing or opening a conversation may add records of its own.
                .filter(|seq| records.iter().any(|record| record["seq"] == *seq))
                .collect();
            assert_eq!(shown, wanted, "{words:?}");
        }
    }
    for words in [["--class", "gitpush"], ["--outcome", "denied"], ["--since", "yesterday"]] {
        let (status, lines, error) =
            said(&mut host.guardctl(&[&["audit", "tail", "--no-follow"][..], &words].concat()))?;
        assert!(matches!(status, Some(1 | 2)) && lines.is_empty(), "{words:?}: {lines}");
        assert!(error.contains(words[1]), "{words:?}: {error}");
    }
    Ok(())
}

/// `top` counts what happens while it looks.
#[test]
fn top_shows_who_acts_now() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let script = "while :; do /bin/true busy; sleep 0.05; done";
    let mut agent = host.run(&["--agent", "busy"], &["/bin/sh", "-c", script]).spawn()?;
    host.wait_for_record(|record| record["detail"]["event"] == "agent started")?;
    let (status, looks, error) = said(&mut host.guardctl(&["--json", "top", "-n", "2", "-i", "1"]))?;
    let (_, table, _) = said(&mut host.guardctl(&["top", "-n", "1", "-i", "1"]))?;
    said(&mut host.guardctl(&["kill", "--all"]))?;
    agent.wait()?;
    ensure!(status == Some(0), "{error}");
    let last = looks.lines().last().context("a look")?;
    let last: Value = serde_json::from_str(last).with_context(|| looks.clone())?;
    assert!(last["acts"].as_u64().is_some_and(|acts| acts >= 4), "{looks}");
    assert!(last["acts_per_second"].as_f64().is_some_and(|rate| rate > 1.0), "{looks}");
    assert!(table.contains("busy") || table.contains("/bin/true"), "{table}");
    Ok(())
}
