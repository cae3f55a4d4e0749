//! The record on the whole path: written by running daemons, read back and verified without them.

use std::fs;

use anyhow::{Context as _, Result};
use guard_tests::{
    host::{Host, output},
    skip_host,
};
use rustix::process::Signal;
use serde_json::Value;

/// A stopped guard that has recorded an agent's work, and its only segment.
fn recorded() -> Result<(Host, std::path::PathBuf)> {
    let mut host = Host::start()?;
    let ran = output(&mut host.run(&["--agent", "worker"], &["/bin/sh", "-c", "/bin/true; /bin/true"]))?;
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    host.wait_for_record(|record| record["detail"]["event"] == "agent ended")?;
    host.stop_daemon(Signal::TERM)?;
    let segment = guard_daemon::audit::segments(&host.path("audit"))?.pop().context("a segment")?;
    Ok((host, segment))
}

fn verify(host: &Host) -> Result<(bool, Value)> {
    let mut command = host.guardctl(&["--json", "audit", "verify"]);
    let output = output(command.arg(host.path("audit")))?;
    let said = String::from_utf8(output.stdout)?;
    Ok((output.status.success(), serde_json::from_str(&said).with_context(|| said.clone())?))
}

/// M-050: one flipped byte, in whichever record it is, is found with that record's number; no daemon is needed.
#[test]
fn one_flipped_byte_is_found_with_the_number_of_its_record() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, segment) = recorded()?;
    let (good, report) = verify(&host)?;
    assert!(good && report["ok"] == true, "the record as it was written: {report}");
    let written = fs::read(&segment)?;
    let lines: Vec<&[u8]> = written.split_inclusive(|byte| *byte == b'\n').collect();
    assert!(lines.len() >= 5, "there is something to flip in: {}", String::from_utf8_lossy(&written));
    let mut start = 0;
    for line in &lines {
        let record: Value = serde_json::from_slice(line)?;
        // In the middle and near the end, where the hash stands.
        for at in [start + line.len() / 2, start + line.len() - 10] {
            let mut altered = written.clone();
            altered[at] ^= 1;
            fs::write(&segment, altered)?;
            let (good, report) = verify(&host)?;
            assert!(!good && report["ok"] == false, "byte {at} of {record}");
            assert_eq!(report["first_bad"]["seq"], record["seq"], "byte {at}: {report}");
        }
        start += line.len();
    }
    fs::write(&segment, &written)?;
    assert!(verify(&host)?.0, "the bytes as they were are good again");
    Ok(())
}

/// A record that is taken out or put in another place is found too.
#[test]
fn a_missing_or_moved_record_is_found() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let (host, segment) = recorded()?;
    let written = fs::read(&segment)?;
    let lines: Vec<&[u8]> = written.split_inclusive(|byte| *byte == b'\n').collect();
    let mut missing = lines.clone();
    missing.remove(2);
    let mut moved = lines.clone();
    moved.swap(2, 3);
    for altered in [missing, moved] {
        fs::write(&segment, altered.concat())?;
        let (good, report) = verify(&host)?;
        assert!(!good, "{report}");
        let expected: Value = serde_json::from_slice(lines[2])?;
        assert_eq!(report["first_bad"]["seq"], expected["seq"], "{report}");
    }
    Ok(())
}
