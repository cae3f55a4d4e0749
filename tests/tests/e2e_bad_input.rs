//! What the daemons and `guardctl run` say when something is wrong, and that nothing has started then.
//!
//! Each fault has its control: the same daemon with the fault taken out gets ready.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Command, Output},
};

use anyhow::{Context as _, Result};
use guard_tests::{
    host::{Host, UID, output},
    skip_host,
};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// guardd must end by itself with status 1, print nothing on stdout, and say `expected`.
fn refuses_to_start(command: &mut Command, expected: &str) -> Result<String> {
    let output = output(command)?;
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "expected {expected}: {said}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(said.contains(expected), "expected {expected}: {said}");
    Ok(said)
}

/// A fault, what to write, its place, and the words that help to mend it.
const FAULTS: [(&str, &str, &str, &str); 6] = [
    ("a typo in a key", "{\"version\": 1,\n \"ruels\": []}", ":2:2: ", "rules"),
    (
        "a typo in a rule",
        "{\"version\": 1, \"rules\": [\n  {\"id\": \"a\", \"clas\": \"gitPush\", \"effect\": \"deny\"}]}",
        ":2:15: ",
        "class",
    ),
    (
        "a class that is none",
        "{\"version\": 1, \"rules\": [\n  {\"id\": \"a\", \"class\": \"gitPusch\", \"effect\": \"deny\"}]}",
        ":2:24: ",
        "gitPush",
    ),
    ("a duplicate key", "{\"version\": 1,\n \"rules\": [],\n \"rules\": []}", ":3:2: ", "rules"),
    ("a wrong type", "{\"version\": 1,\n \"rules\": {}}", ":2:11: ", "list"),
    ("no JSON", "{\"version\": 1,\n \"rules\": [}", ":2:12: ", ""),
];

/// each fault of an operator's file is said with file, line, column and what was probably meant.
#[test]
fn a_faulty_policy_or_managed_file_keeps_the_daemon_from_starting() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    for option in ["--policy", "--managed"] {
        let mut host = Host::new()?;
        let file = host.path("operator.json");
        host.option(option).option(&file.display().to_string());
        for (what, text, place, hint) in FAULTS {
            fs::write(&file, text)?;
            let expected = format!("error[policy_invalid]: {}{place}", file.display());
            let said = refuses_to_start(&mut host.daemon_command(), &expected).context(what)?;
            let line = said.lines().find(|line| line.contains(&expected)).unwrap_or_default();
            assert!(line.contains(hint), "{what} should mention {hint}: {line}");
        }
        fs::write(&file, "{\"version\": 1, \"rules\": []}")?;
        host.start_daemon().context("the same daemon with a file without faults")?;
    }
    Ok(())
}

/// who can write the file can decide, so a file that others can write is no policy.
#[test]
fn a_policy_that_others_can_write_keeps_the_daemon_from_starting() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    for option in ["--policy", "--managed"] {
        let mut host = Host::new()?;
        let file = host.path("operator.json");
        host.option(option).option(&file.display().to_string());
        fs::write(&file, "{\"version\": 1}")?;
        for mode in [0o666, 0o664] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
            let said = refuses_to_start(&mut host.daemon_command(), "error[policy_insecure]")?;
            assert!(said.contains(&format!("chmod go-w {}", file.display())), "{said}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        chown(&file, Some(UID), None)?;
        let said = refuses_to_start(&mut host.daemon_command(), "error[policy_insecure]")?;
        assert!(said.contains(&format!("uid {UID}")), "{said}");
        chown(&file, Some(0), None)?;
        host.start_daemon().context("the same daemon with a file of root's")?;
    }
    Ok(())
}

#[test]
fn a_policy_that_was_named_must_be_there() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::new()?;
    let file = host.path("nowhere.json").display().to_string();
    host.option("--policy").option(&file);
    refuses_to_start(&mut host.daemon_command(), &format!("error[policy_unreadable]: cannot read {file}"))?;
    Ok(())
}

#[test]
fn a_fault_in_the_configuration_names_its_place() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::new()?;
    let file = host.path("guard.toml");
    host.option("--config").option(&file.display().to_string());
    fs::write(&file, "[permissions]\nrunn = [\"@staff\"]\n")?;
    let expected = format!("error[config_invalid]: {}:2:1: ", file.display());
    let said = refuses_to_start(&mut host.daemon_command(), &expected)?;
    assert!(said.contains("`run`"), "the known keys are named: {said}");
    fs::write(&file, "[permissions]\nrun = [\"@staff\"]\n")?;
    host.start_daemon().context("the same daemon without the typo")?;
    Ok(())
}

/// guardd in a mount namespace of its own, after `change` there.
fn with_mounts(host: &Host, change: &str) -> Command {
    let daemon = host.daemon_command();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    command.arg(format!("{change}\nexec \"$@\"")).arg("sh").arg(daemon.get_program()).args(daemon.get_args());
    command
}

/// Each thing that the kernel side rests on, taken away: its own message, and nothing runs.
#[test]
fn each_missing_foundation_has_its_own_message() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let no_cgroup2 = "grep ' - cgroup2 ' /proc/self/mountinfo | cut -d' ' -f5 | while read place; do \
                      umount -l \"$place\"; done";
    let no_btf = "mount -t tmpfs none /sys/kernel/btf";
    for (change, code) in [(no_cgroup2, "error[no_cgroup2]"), (no_btf, "error[no_btf]")] {
        let host = Host::new()?;
        refuses_to_start(&mut with_mounts(&host, change), code).context(change)?;
    }
    Ok(())
}

#[test]
fn without_root_the_daemon_says_what_it_lacks() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::new()?;
    let said = refuses_to_start(host.daemon_command().uid(UID).gid(UID), "error[no_privilege]")?;
    assert!(said.contains("CAP_BPF") && said.contains("run it as root"), "{said}");
    // Root without the one capability is no better off.
    let daemon = host.daemon_command();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-bpf", "--inh-caps", "-bpf"]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    let said = refuses_to_start(&mut command, "error[no_privilege]")?;
    assert!(said.contains("CAP_BPF") && !said.contains("CAP_KILL"), "{said}");
    Ok(())
}

/// A reload that fails leaves the last good policy in force.
#[test]
fn a_faulty_reload_changes_nothing() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::new()?;
    let file = host.path("policy.json");
    fs::write(&file, "{\"version\": 1}")?;
    host.option("--policy").option(&file.display().to_string());
    host.start_daemon()?;
    fs::write(&file, "{\"version\": 1,\n \"ruels\": []}")?;
    let pid = i32::try_from(host.daemon_pid())?;
    let pid = rustix::process::Pid::from_raw(pid).context("guardd has a pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::HUP)?;
    let place = format!("{}:2:2: ", file.display());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !host.log().contains(&place) {
        assert!(std::time::Instant::now() < deadline, "the fault is not in the log: {}", host.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ran = output(&mut host.run(&[], &["/bin/true"]))?;
    assert!(ran.status.success(), "agents still start: {}", stderr(&ran));
    Ok(())
}

/// The status of `guardctl run` is the command's own, or says before anything started what is wrong.
#[test]
fn a_launch_that_cannot_be_says_so_first() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let plain = host.worktree().join("plain");
    fs::write(&plain, "no program")?;
    chown(&plain, Some(UID), Some(UID))?;
    let plain = plain.display().to_string();
    let nowhere = host.path("nowhere").display().to_string();
    let cases: [(&[&str], &[&str], i32, &str); 7] = [
        (&[], &["/bin/sh", "-c", "exit 37"], 37, ""),
        (&[], &["/nowhere/program"], 127, "/nowhere/program"),
        (&[], &["no-such-program-anywhere"], 127, "no-such-program-anywhere"),
        (&[], &[&plain], 126, "plain"),
        (&["--worktree", &nowhere], &["/bin/true"], 1, "error[invalid_worktree]"),
        (&["--worktree", "/"], &["/bin/true"], 1, "error[invalid_worktree]"),
        (&["--profile", "no-such-profile"], &["/bin/true"], 1, "error[unknown_profile]"),
    ];
    for (options, agent, status, words) in cases {
        let output = output(&mut host.run(options, agent))?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{options:?} {agent:?}: {said}");
        assert!(said.contains(words), "{options:?} {agent:?} should say {words}: {said}");
    }
    let killed = output(&mut host.run(&[], &["/bin/sh", "-c", "kill -KILL $$"]))?;
    assert_eq!(
        killed.status.signal(),
        Some(9),
        "a signal's end is the command's own too: {}",
        stderr(&killed)
    );
    let usage = output(&mut host.guardctl(&["run", "--no-such-option"]))?;
    assert_eq!(usage.status.code(), Some(2), "{}", stderr(&usage));
    Ok(())
}

#[test]
fn a_daemon_that_does_not_answer_is_status_3() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::new()?;
    for arguments in [&["ps"][..], &["coverage"], &["run", "--", "/bin/true"]] {
        let output = output(host.guardctl(arguments).current_dir(host.worktree()))?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {said}");
        assert!(said.contains("error[daemon_unreachable]"), "{arguments:?}: {said}");
    }
    Ok(())
}

/// Somebody else's directory is no worktree, and who is not in group guard launches nothing.
#[test]
fn others_launch_nothing_and_take_no_worktree_that_is_not_theirs() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let stranger = UID + 1;
    let as_stranger = |options: &[&str]| {
        let mut command = host.run(options, &["/bin/true"]);
        command.uid(stranger).gid(stranger).current_dir("/");
        output(&mut command)
    };
    let theirs = host.worktree().display().to_string();
    let refused = as_stranger(&["--worktree", &theirs])?;
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("error[invalid_worktree]"), "{}", stderr(&refused));
    let own = host.path("stranger");
    fs::create_dir(&own)?;
    chown(&own, Some(stranger), Some(stranger))?;
    let refused = as_stranger(&["--worktree", &own.display().to_string()])?;
    assert!(!refused.status.success(), "a stranger to group guard must not launch");
    Ok(())
}

/// The files below `examples/` are ones that the daemon takes.
#[test]
fn the_examples_are_without_faults() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let mut host = Host::new()?;
    for (option, name, content) in [
        ("--config", "guard.toml", include_str!("../../examples/guard.toml")),
        ("--policy", "policy.json", include_str!("../../examples/policy.json")),
        ("--managed", "managed-policy.json", include_str!("../../examples/managed-policy.json")),
    ] {
        let file = host.path(name);
        fs::write(&file, content)?;
        host.option(option).option(&file.display().to_string());
    }
    host.start_daemon()?;
    Ok(())
}
