//! What agents do to files, seen from the kernel's side: what is lost, what is merely written, and what is neither.

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail};
use guard_tests::{
    approver::Approver,
    host::{Host, UID, own_file},
    skip_host,
};
use serde_json::Value;

/// Where Debian's programs are; a python that only root can read is none for an agent.
const PATH: &str = "/usr/bin:/bin";

/// Runs a script as an agent and waits until everything that it did is on file.
fn told(host: &Host, script: &str) -> Result<Vec<Value>> {
    let before = host.records()?.len();
    let mut command = host.run(&["--agent", "files"], &["/bin/sh", "-c", script]);
    let output = guard_tests::host::output(command.env("PATH", PATH))?;
    if !output.status.success() {
        bail!("{script}: {}", String::from_utf8_lossy(&output.stderr));
    }
    host.wait_for_record(|record| {
        record["detail"]["event"] == "agent ended"
            && record["seq"].as_u64().is_some_and(|seq| seq as usize >= before)
    })?;
    Ok(host.records()?.split_off(before))
}

fn has_class(record: &Value, class: &str) -> bool {
    record["request"]["action"]["classes"].as_array().is_some_and(|all| all.iter().any(|one| one == class))
}

/// Operation and name of each deletion.
fn deletions(records: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().rsplit('/').next().unwrap_or("").to_owned();
    records
        .iter()
        .filter(|record| has_class(record, "fileDelete"))
        .map(|record| {
            let detail = &record["detail"];
            let key = if detail["act"] == "rename" { "other" } else { "path" };
            (text(&detail["act"]), text(&detail[key]))
        })
        .collect()
}

fn losses(records: &[Value]) -> Vec<&Value> {
    records.iter().filter(|record| record["kind"] == "loss").collect()
}

/// Every way in which a file that was there can be lost, by programs that people use; and the same done to files of the
/// session's own, which is nothing but work. C-012 R-70 R-71
#[test]
fn a_file_that_was_there_is_missed() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let ways: [(&str, &str, &str); 12] = [
        ("rm", "unlink", "rm $1"),
        ("mv", "rename", "echo new >$1.x && mv -f $1.x $1"),
        ("shell", "truncate", ": >$1"),
        ("cp", "truncate", "echo new >$1.x && cp $1.x $1"),
        ("sed", "rename", "sed -i s/a/b/ $1"),
        ("ed", "truncate", "printf '%s\\n' 'a' 'line' '.' 'w' 'q' | ed -s $1"),
        ("vim", "unlink", "vim -u NONE -es -c 'set backupcopy=no writebackup' -c '%s/a/b/' -c wq $1"),
        ("busybox", "unlink", "busybox rm $1"),
        ("python", "unlink", "python3 -c 'import os,sys; os.unlink(sys.argv[1])' $1"),
        (
            "python-replace",
            "rename",
            "python3 -c 'import os,sys; open(\"p\",\"w\").write(\"x\"); os.replace(\"p\",sys.argv[1])' $1",
        ),
        ("node", "unlink", "node -e 'fs.unlinkSync(process.argv[1])' $1"),
        ("truncate", "truncate", "python3 -c 'import os,sys; os.truncate(sys.argv[1], 0)' $1"),
    ];
    let host = Host::start()?;
    let _approver = Approver::start(&host, |_| Some(vec!["yes"]))?;
    let mut expected = Vec::new();
    let mut script = String::from("set -e\n");
    for (name, operation, command) in ways {
        own_file(&host.worktree().join(name), "a file\n")?;
        // It puts the old file aside under another name, which it removes once the new one is written.
        let lost = if name == "vim" { "vim~" } else { name };
        expected.push((operation.to_owned(), lost.to_owned()));
        script.push_str(&format!("set -- {name}\n{command}\n"));
        // The control: what the session made itself it may do away with.
        script.push_str(&format!("set -- own-{name}\necho a file >$1\n{command}\n"));
    }
    let records = told(&host, &script)?;
    let mut found = deletions(&records);
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(losses(&records), Vec::<&Value>::new());
    let removed = records
        .iter()
        .find(|record| record["detail"]["path"].as_str().is_some_and(|path| path.ends_with("/rm")));
    let removed = removed.context("the record of rm")?;
    assert_eq!(removed["request"]["action"]["paths"], serde_json::json!(["rm"]), "relative to the worktree");
    assert_eq!((&removed["effect"], &removed["strength"]), (&"done".into(), &"held".into()), "R-71");
    assert_eq!(removed["decision"]["outcome"], "defer_for_approval", "C-012: asks first");
    assert!(removed["exe"].as_str().is_some_and(|exe| exe.ends_with("/rm")), "{removed}");
    assert_ne!(removed["detail"]["inode"], 0);
    Ok(())
}

/// What fails is not told, and what is written is.
#[test]
fn what_failed_is_not_told() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let approver = Approver::start(&host, |_| Some(vec!["yes"]))?;
    for name in ["kept", "full/kept", "locked/kept", "written", "mode", "linked"] {
        let path = host.worktree().join(name);
        let directory = path.parent().context("a directory")?;
        fs::create_dir_all(directory)?;
        std::os::unix::fs::chown(directory, Some(UID), Some(UID))?;
        own_file(&path, "x")?;
    }
    let script = "chmod 555 locked
        rm -f locked/kept; rmdir full; rm missing; mv missing kept; mkdir full; ln kept written; (: >full)
        python3 -c 'import os; os.open(\"kept\", os.O_CREAT | os.O_EXCL | os.O_WRONLY)'
        echo more >>written; chmod 600 mode; ln linked link; mkdir made; echo x >fresh; mv fresh moved; ln -s a soft
        chmod 755 locked; true";
    let records = told(&host, script)?;
    assert_eq!(deletions(&records), []);
    assert!(approver.seen().iter().all(|event| event["event"] != "asked"), "{:?}", approver.seen());
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in records.iter().filter(|record| record["request"]["action"]["paths"].is_array()) {
        assert_eq!(record["effect"], "done", "{record}");
        let name = |key: &str| {
            record["detail"][key].as_str().and_then(|path| path.rsplit('/').next().map(str::to_owned))
        };
        seen.entry(record["detail"]["act"].as_str().unwrap_or_default().to_owned())
            .or_default()
            .push(name("path").unwrap_or_default());
    }
    let expected = [
        ("chmod", vec!["locked", "locked", "mode"]),
        ("create", vec!["fresh"]),
        ("link", vec!["link"]),
        ("mkdir", vec!["made"]),
        ("rename", vec!["fresh"]),
        ("symlink", vec!["soft"]),
        ("write", vec!["written"]),
    ];
    for all in seen.values_mut() {
        all.sort();
    }
    let expected: BTreeMap<String, Vec<String>> = expected
        .into_iter()
        .map(|(act, names)| (act.to_owned(), names.into_iter().map(str::to_owned).collect()))
        .collect();
    assert_eq!(seen, expected);
    Ok(())
}

fn git(directory: &Path, arguments: &[&str]) -> Result<()> {
    let status = Command::new("/usr/bin/git")
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*"])
        .args(arguments)
        .current_dir(directory)
        .status()?;
    if !status.success() {
        bail!("git {arguments:?}");
    }
    Ok(())
}

fn give_to_agent(directory: &Path) -> Result<()> {
    let status = Command::new("chown").args(["-R", &format!("{UID}:{UID}")]).arg(directory).status()?;
    if !status.success() {
        bail!("chown {}", directory.display());
    }
    Ok(())
}

/// `git status` on a tree that is older than the session, a commit, a clone of 20,000 files and a build: all of them unlink and
/// rename by the thousand, and nothing of it is a deletion; nor does it flood the record, and every file of it is counted. R-70
#[test]
fn work_is_no_deletion() -> Result<()> {
    const FILES: usize = 20_000;
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let origin = host.worktree().join("origin");
    fs::create_dir(&origin)?;
    git(&origin, &["init", "-q"])?;
    let mut stream = String::from("commit refs/heads/master\ncommitter a <a@b> 0 +0000\ndata 1\nx\n");
    for number in 0..FILES {
        stream.push_str(&format!("M 100644 inline d{}/{number}\ndata 2\nx\n", number % 200));
    }
    let list = host.path("stream");
    fs::write(&list, stream)?;
    let import = Command::new("/usr/bin/git")
        .args(["fast-import", "--quiet"])
        .current_dir(&origin)
        .stdin(fs::File::open(&list)?)
        .status()?;
    assert!(import.success(), "fast-import");
    git(&origin, &["checkout", "-q", "master"])?;
    // Old enough that git believes in the times it has seen, new enough that it must look again.
    std::thread::sleep(Duration::from_millis(1100));
    fs::write(origin.join("d0/0"), "y\n")?;
    give_to_agent(&host.worktree())?;

    let script = "set -e
        export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b HOME=/tmp
        cd origin && git status --short >/dev/null && git add d0/0 && git commit -qm y && git status --short && cd ..
        git clone -q origin clone 2>/dev/null && cd clone && git status --short && git commit -q --allow-empty -m z
        git checkout -q -b side && git checkout -q master && git branch -q -D side";
    let records = told(&host, script)?;
    assert_eq!(deletions(&records), []);
    assert_eq!(losses(&records), Vec::<&Value>::new());
    let files: Vec<&Value> =
        records.iter().filter(|record| record["request"]["action"]["paths"].is_array()).collect();
    assert!(files.len() < 4_000, "{} lines for {FILES} files", files.len());
    let made: u64 = files
        .iter()
        .filter(|record| {
            record["detail"]["act"] == "create"
                && record["detail"]["path"].as_str().is_some_and(|path| path.contains("/clone/d"))
        })
        .map(|record| record["detail"]["count"].as_u64().unwrap_or(0).max(1))
        .sum();
    assert_eq!(made, FILES as u64, "every file of the clone is counted");
    Ok(())
}
