//! Ways to change what lies outside the worktree, to leave, to reach the daemon and into the kernel.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use guard_tests::{
    attack::{Attacks, Results, Said, as_user, read, that_were_refused, that_worked},
    host::{Host, UID},
    skip_host,
};
use serde_json::Value;

/// Acts on a file that is there, and acts that make one.
const ON_A_FILE: [&str; 15] = [
    "write",
    "truncate",
    "rename",
    "rename-over",
    "link",
    "link-in",
    "chmod",
    "chown",
    "utimes",
    "xattr",
    "unlink",
    "via-proc-root",
    "via-symlink",
    "openat2",
    "open-by-handle",
];
const NEW: [&str; 5] = ["create", "symlink", "mkdir", "mknod", "tmpfile-linkat"];

/// What the filter refuses before anybody could name a file.
const WITHOUT_A_RECORD: [&str; 3] = ["openat2", "open-by-handle", "link-in"];

fn guardctl() -> Command {
    Command::new(guard_tests::programs().join("guardctl"))
}

/// A victim a way, each with the agent's uid as its owner, so that nothing but the fence says no.
fn furnish(directory: &Path, owner: u32) -> Result<Vec<String>> {
    let mut attacks = Vec::new();
    for way in ON_A_FILE {
        let victim = directory.join(way);
        fs::write(&victim, "as it was\n")?;
        chown(&victim, Some(owner), Some(owner))?;
        attacks.push(format!("{way} {}", victim.display()));
    }
    attacks.extend(NEW.iter().map(|way| format!("{way} {}", directory.join(format!("new-{way}")).display())));
    Ok(attacks)
}

/// Everything about a tree that an attack could change.
fn picture(directory: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let about = fs::symlink_metadata(entry.path())?;
        let content = if about.is_file() { fs::read_to_string(entry.path())? } else { String::new() };
        lines.push(format!(
            "{:?} {:o} {}:{} {} {}.{} {}.{} {content:?}",
            entry.file_name(),
            about.mode(),
            about.uid(),
            about.gid(),
            about.nlink(),
            about.mtime(),
            about.mtime_nsec(),
            about.ctime(),
            about.ctime_nsec(),
        ));
    }
    lines.sort();
    Ok(lines)
}

/// Outside the worktree nothing changes, by no call, as an ordinary user and as root; each try that names a file is
/// recorded with its effect. Without guard every one of these acts works. R-71
#[test]
fn outside_the_worktree_nothing_changes() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let attacks = Attacks::new(&host)?;

    let control = host.path("control");
    fs::create_dir(&control)?;
    chown(&control, Some(UID), Some(UID))?;
    let mut unprivileged = furnish(&control, UID)?;
    unprivileged.retain(|attack| !attack.starts_with("open-by-handle"));
    let mut command = as_user(Command::new("setpriv"));
    command.current_dir(host.worktree());
    let results = attacks.by(command, &unprivileged)?;
    assert!(that_were_refused(&results).is_empty(), "the control: {:#?}", that_were_refused(&results));
    let by_root = [format!("open-by-handle {}", control.join("open-by-handle").display())];
    let results = attacks.by(Command::new("setpriv"), &by_root)?;
    assert!(that_were_refused(&results).is_empty(), "the control: {:#?}", that_were_refused(&results));

    let roots = host.path("of-root");
    for path in [roots.clone(), roots.join("worktree"), roots.join("outside")] {
        fs::create_dir(&path)?;
    }
    for (options, owner, worktree, outside) in [
        (&[][..], UID, host.worktree(), host.path("outside")),
        (&["--as-root"], 0, roots.join("worktree"), roots.join("outside")),
    ] {
        let wanted = furnish(&outside, owner)?;
        let before = picture(&outside)?;
        let seen = host.records()?.len();
        let mut command = host.run(options, &["/bin/sh", "-c", &attacks.script(&wanted)]);
        let results = read(command.current_dir(worktree), &wanted)?;
        assert!(that_worked(&results).is_empty(), "{options:?}: {:#?}", that_worked(&results));
        assert_eq!(picture(&outside)?, before, "{options:?}");
        for attack in &wanted {
            recorded(&host, seen, attack).with_context(|| format!("{options:?}"))?;
        }
    }
    Ok(())
}

/// Waits for the record of one act.
fn recorded(host: &Host, seen: usize, attack: &str) -> Result<()> {
    let (way, path) = attack.split_once(' ').context("an act and its path")?;
    if WITHOUT_A_RECORD.contains(&way) {
        return Ok(());
    }
    let of_this = |record: &Value| {
        let named = |key: &str| record["detail"][key].as_str().is_some_and(|name| name.starts_with(path));
        record["seq"].as_u64().is_some_and(|seq| seq as usize >= seen) && (named("path") || named("other"))
    };
    let record = if way == "tmpfile-linkat" {
        // The file has no name yet when it is refused.
        host.wait_for_record(|record| {
            record["effect"] == "fenced"
                && record["detail"]["path"].as_str().is_some_and(|at| path.starts_with(at))
        })
    } else {
        host.wait_for_record(of_this)
    };
    let record = record.with_context(|| format!("no record of `{attack}`"))?;
    assert_eq!(record["effect"], "fenced", "{attack}: {record}");
    assert!(record["mechanism"].as_str().is_some_and(|name| !name.is_empty()), "{attack}: {record}");
    Ok(())
}

/// Inside the worktree the same acts work: the fence is no wall.
#[test]
fn inside_the_worktree_everything_works() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    // What is older than the session would wait for somebody.
    let host = Host::with_policy(r#"{"rules": [{"id": "free", "class": "fileDelete", "effect": "allow"}]}"#)?;
    let attacks = Attacks::new(&host)?;
    let mut wanted = furnish(&host.worktree(), UID)?;
    // Calls that no agent has, wherever it points them.
    wanted.retain(|attack| !attack.starts_with("open"));
    let results = attacks.governed(&host, guardctl(), &[], &wanted)?;
    assert!(that_were_refused(&results).is_empty(), "{:#?}", that_were_refused(&results));
    Ok(())
}

fn refused_by_all(host: &Host, attacks: &Attacks, wanted: &[String]) -> Result<Vec<Results>> {
    let mut all = Vec::new();
    for options in [&[][..], &["--as-root"]] {
        let results = attacks.governed(host, guardctl(), options, wanted)?;
        assert!(that_worked(&results).is_empty(), "{options:?}: {:#?}", that_worked(&results));
        all.push(results);
    }
    Ok(all)
}

/// No way out of the cgroup, the namespaces and the view. Root without guard has each of them.
#[test]
fn nobody_leaves() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let attacks = Attacks::new(&host)?;
    let top = host.cgroup()?.parent().context("the cgroup2 mount")?.to_owned();
    // The control moves between groups of its own.
    let (home, away) = (top.join(guard_tests::unique("guard-c")), top.join(guard_tests::unique("guard-c")));
    fs::create_dir(&home)?;
    fs::create_dir(&away)?;
    let _gone = Groups([home, away.clone()]);
    let mountable = host.path("home").display().to_string();
    let common = |group: &Path| {
        vec![
            format!("clone3-into-cgroup {}", group.display()),
            format!("cgroup-procs-write {}", group.display()),
            "unshare-user".to_owned(),
            "unshare-net".to_owned(),
            format!("mount {mountable}"),
        ]
    };
    let results = attacks.by(Command::new("setpriv"), &common(&away))?;
    assert!(that_were_refused(&results).is_empty(), "the control: {:#?}", that_were_refused(&results));

    let mut wanted = common(&top);
    wanted.extend(common(&away).into_iter().take(2));
    wanted.extend(["mnt", "net", "pid", "user", "cgroup"].map(|kind| format!("setns 1 {kind}")));
    wanted.extend(["/", "/usr", "/etc"].map(|path| format!("remount-rw {path}")));
    refused_by_all(&host, &attacks, &wanted)?;
    Ok(())
}

/// Groups that go when the test does.
struct Groups([PathBuf; 2]);

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            for _ in 0..100 {
                // Whoever was in it has ended, and leaves a moment later.
                if fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

/// The daemon, its core and the agent's shim cannot be signalled, traced or read; their sockets, pins and state are not
/// there. Root without guard can do all of it.
#[test]
fn the_daemon_is_out_of_reach() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let attacks = Attacks::new(&host)?;
    let pid = host.daemon_pid();
    let on_the_daemon = [
        format!("kill {pid}"),
        format!("ptrace {pid}"),
        format!("vm-read {pid}"),
        format!("pidfd-getfd {pid}"),
        "bpf-map-update".to_owned(),
        format!("unix-connect {}", host.socket().display()),
        format!("unix-connect {}", host.path("run/launch.sock").display()),
    ];
    let results = attacks.by(Command::new("setpriv"), &on_the_daemon)?;
    assert!(that_were_refused(&results).is_empty(), "the control: {:#?}", that_were_refused(&results));

    let mut wanted = on_the_daemon.to_vec();
    for directory in ["/sys/fs/bpf", "/sys/fs/bpf/guard"] {
        wanted.push(format!("remove-pins {directory}"));
    }
    let core = format!("unix-connect {}", host.path("run/core.sock").display());
    wanted.push(core);
    // Every process of the host, by number, is another one in here or none.
    wanted.extend((2..6).map(|far| format!("kill {} 9", pid + far)));
    refused_by_all(&host, &attacks, &wanted)?;
    assert!(host.guardctl(&["ps"]).output()?.status.success(), "the daemon does not answer any more");
    Ok(())
}

/// A socket that a launch hides cannot be connected to, and the try is recorded; one that it does not hide can. R-69
#[test]
fn hidden_sockets_are_not_there() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let attacks = Attacks::new(&host)?;
    let (open, hidden) = (host.path("outside/open.sock"), host.path("outside/engine.sock"));
    let _listeners = [UnixListener::bind(&open)?, UnixListener::bind(&hidden)?];
    for socket in [&open, &hidden] {
        chown(socket, Some(UID), Some(UID))?;
    }
    let wanted = [&open, &hidden].map(|socket| format!("unix-connect {}", socket.display()));
    let results = attacks.by(as_user(Command::new("setpriv")), &wanted)?;
    assert!(that_were_refused(&results).is_empty(), "the control: {:#?}", that_were_refused(&results));
    let hide = hidden.display().to_string();
    let results = attacks.governed(&host, guardctl(), &["--hide", &hide], &wanted)?;
    assert!(matches!(results[&wanted[0]], Said::Worked(_)), "{results:?}");
    assert!(matches!(results[&wanted[1]], Said::Refused(_)), "{results:?}");
    host.wait_for_record(|record| record.to_string().contains(&hide) && record["effect"] != "done")?;
    Ok(())
}

/// Doors into the kernel are closed by the filter: the error is the filter's, whoever asks.
#[test]
fn doors_into_the_kernel_are_closed() -> Result<()> {
    if skip_host() {
        return Ok(());
    }
    let host = Host::start()?;
    let attacks = Attacks::new(&host)?;
    let mut wanted: Vec<String> =
        ["bpf", "perf-event-open", "keyctl", "userfaultfd", "io-uring-setup", "vsock"]
            .map(str::to_owned)
            .to_vec();
    let results = attacks.by(Command::new("setpriv"), &wanted)?;
    assert!(that_were_refused(&results).is_empty(), "the control: {:#?}", that_were_refused(&results));
    // A kernel may be built without modules, so this one has no control.
    wanted.push("init-module".to_owned());
    for results in refused_by_all(&host, &attacks, &wanted)? {
        for why in that_were_refused(&results) {
            let by_the_filter =
                ["EPERM", "ENOSYS", "EACCES", "EAFNOSUPPORT"].iter().any(|name| why.contains(name));
            assert!(by_the_filter, "{why}");
        }
    }
    Ok(())
}
