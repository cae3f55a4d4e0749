//! The record of a real run, and what `guardctl audit` makes of one that somebody has touched.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use guard_tests::{
    host::{Host, output},
    skip_host,
};
use rustix::process::Signal;
use serde_json::Value;

/// guard has run an agent and has ended; what is left is its record.
fn record_of_a_run() -> Result<(Host, PathBuf)> {
    let mut host = Host::start()?;
    let script = "for n in 1 2 3 4 5 6 7 8; do /bin/true $n; done; echo x > $PWD/../outside/x";
    output(&mut host.run(&["--agent", "audited"], &["/bin/sh", "-c", script]))?;
    host.wait_for_record(|record| record["detail"]["event"] == "agent ended")?;
    host.stop_daemon(Signal::TERM)?;
    let segments = guard_daemon::audit::segments(&host.path("audit"))?;
    assert_eq!(segments.len(), 1, "{segments:?}");
    let segment = segments.into_iter().next().context("a segment")?;
    Ok((host, segment))
}

fn verify(directory: &Path) -> Result<(Option<i32>, Value)> {
    let mut command = Command::new(guard_tests::programs().join("guardctl"));
    let done = output(command.args(["--json", "audit", "verify"]).arg(directory))?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let said = serde_json::from_str(said.trim())
        .with_context(|| format!("{said}{}", String::from_utf8_lossy(&done.stderr)))?;
    Ok((done.status.code(), said))
}

/// A flipped byte is found wherever it is, with the number of the record that has it. M-050
#[test]
fn one_flipped_byte_is_found_with_its_record() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, segment) = record_of_a_run()?;
    let directory = host.path("audit");
    let (status, said) = verify(&directory)?;
    assert_eq!((status, &said["ok"]), (Some(0), &Value::Bool(true)), "the control: {said}");
    let good = fs::read(&segment)?;
    let lines = good.iter().filter(|byte| **byte == b'\n').count();
    assert!(lines > 10, "{lines} records are too few to say anything");
    // Every 41st byte meets keys, values, hashes and quotes of nearly every record.
    for at in (0..good.len()).step_by(41) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&segment, &bad)?;
        let (status, said) = verify(&directory)?;
        let line = good[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        assert_eq!(status, Some(1), "byte {at}: {said}");
        assert_eq!(said["ok"], false, "byte {at}: {said}");
        assert_eq!(said["first_bad"]["line"], line, "byte {at}: {said}");
        assert!(said["first_bad"]["file"].as_str().is_some_and(|file| file.contains("audit-")), "{said}");
    }
    Ok(())
}

/// A record that is taken out, put twice, or cut off is found too.
#[test]
fn missing_repeated_and_cut_records_are_found() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, segment) = record_of_a_run()?;
    let directory = host.path("audit");
    let good = fs::read_to_string(&segment)?;
    let lines: Vec<&str> = good.lines().collect();
    let without: Vec<&str> = [&lines[..4], &lines[5..]].concat();
    let twice: Vec<&str> = [&lines[..5], &lines[4..]].concat();
    let swapped: Vec<&str> = [&lines[..4], &[lines[5], lines[4]], &lines[6..]].concat();
    let mut headless = lines.clone();
    headless.remove(0);
    for (what, bad) in [("without", without), ("twice", twice), ("swapped", swapped), ("headless", headless)]
    {
        fs::write(&segment, bad.join("\n") + "\n")?;
        let (status, said) = verify(&directory)?;
        assert_eq!(status, Some(1), "{what}: {said}");
    }
    fs::write(&segment, &good[..good.len() - 30])?;
    let (status, said) = verify(&directory)?;
    assert_eq!((status, &said["first_bad"]["line"]), (Some(1), &Value::from(lines.len())), "cut: {said}");
    Ok(())
}

/// Each record stands for something that happened: who, what, decided how, with which effect. M-050, R-71
#[test]
fn records_say_who_did_what_and_what_came_of_it() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, _) = record_of_a_run()?;
    let records = host.records()?;
    for number in 1..=8 {
        let command = format!("/bin/true {number}");
        let of_this = |record: &&Value| record["request"]["action"]["commands"][0] == command;
        let record = records.iter().find(of_this).with_context(|| format!("no record of {command}"))?;
        assert_eq!(record["kind"], "decision");
        assert_eq!(record["principal"]["agent"], "audited");
        assert_eq!(record["request"]["action"]["classes"][0], "processSpawn");
        assert_eq!(record["effect"], "done");
        for key in ["ts", "prev", "hash", "decision", "mechanism", "strength", "pid", "exe", "cgroup"] {
            assert!(!record[key].is_null(), "{key} is missing: {record}");
        }
    }
    let numbers: Vec<u64> = records.iter().filter_map(|record| record["seq"].as_u64()).collect();
    let wanted: Vec<u64> = (numbers[0]..).take(numbers.len()).collect();
    assert_eq!(numbers, wanted, "numbers follow each other");
    let fenced = records.iter().find(|record| record["effect"] == "fenced").context("the write outside")?;
    assert_eq!(fenced["request"]["action"]["classes"][0], "fileWriteOutsideWorktree", "{fenced}");
    Ok(())
}
