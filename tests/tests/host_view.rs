//! What an agent sees of the host, and what a caller can claim for it. Each attack succeeds where the fence is not.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        net::{UnixListener, UnixStream},
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::Path,
    process::Command,
};

use guard_daemon::sandbox::seccomp::DENIED;
use guard_tests::fence::{AGENT, House, host_tier, program};

fn own(path: &Path) {
    chown(path, Some(AGENT), Some(AGENT)).expect("an owner");
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

/// What a script prints for the agent's uid without a fence.
fn free(script: &str) -> String {
    let output = Command::new("bash").args(["-c", script]).uid(AGENT).gid(AGENT).output().expect("bash");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// secrets in the agent's own home, which its uid could read, by name.
#[test]
fn secrets_of_the_own_home_are_not_there() {
    const SECRETS: &[&str] = &[
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".azure/tokens",
        ".config/gcloud/token",
        ".kube/config",
        ".gnupg/key",
        ".netrc",
        ".docker/config.json",
        ".git-credentials",
        ".pypirc",
        ".npmrc",
        ".cargo/credentials.toml",
        ".config/gh/hosts.yml",
        ".mozilla/cookies",
        ".config/google-chrome/cookies",
        ".local/share/keyrings/keys",
    ];

    if !host_tier() {
        return;
    }
    let house = House::new();
    let home = house.path().join("home");
    for secret in SECRETS {
        let path = home.join(secret);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(&path, "a secret;").expect("written");
        own(&path);
    }
    fs::write(home.join("notes"), "no secret").expect("written");
    let script = format!(
        "cd {}; for each in {}; do cat $each 2>/dev/null; done; cat notes",
        home.display(),
        SECRETS.join(" ")
    );
    let launch = || house.script(&script).with(|sandbox| sandbox.home = bytes(&home));
    assert_eq!(launch().run().stdout(), "no secret");
    assert_eq!(free(&script), "a secret;".repeat(SECRETS.len()) + "no secret");
    // A launch that needs one opens it by name.
    let opened = launch().with(|sandbox| sandbox.read_only.push(bytes(&home.join(".netrc")))).run();
    assert_eq!(opened.stdout(), "a secret;no secret");
}

/// A worktree in a hidden place is there, and its neighbours are not.
#[test]
fn a_worktree_below_a_hidden_directory_shows_itself_only() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let hidden = house.path().join("hidden");
    let project = hidden.join("project");
    fs::create_dir_all(&project).expect("made");
    own(&project);
    fs::write(hidden.join("neighbour"), "x").expect("written");
    let done = house
        .script("echo x > made; ls -A . ..")
        .worktree(&project)
        .with(|sandbox| sandbox.hide.push(bytes(&hidden)))
        .run();
    assert_eq!(done.succeeded(), ".:\nmade\n\n..:\nproject\n");
    assert!(project.join("made").exists());
}

/// Sockets of the host lie in `/run`, in a temp or a hidden place; the agent finds only guard's.
#[test]
fn sockets_of_the_host_are_not_there() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let name = format!("guard-test-{}", std::process::id());
    for path in [Path::new("/run").join(&name), Path::new("/tmp").join(&name), house.outside().join("socket")]
    {
        let listener = UnixListener::bind(&path).expect("a socket");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("open to all");
        let script = format!("test -S {} && echo there", path.display());
        let done = house.script(&script).with(|sandbox| sandbox.hide.push(bytes(&house.outside()))).run();
        let control = free(&script);
        UnixStream::connect(&path).expect("it answers");
        fs::remove_file(&path).expect("removed");
        drop(listener);
        assert_eq!((done.stdout().as_str(), control.as_str()), ("", "there\n"), "{}", path.display());
    }
    let socket = house.path().join("agent.sock");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let done = house
        .script("find /run ! -type d; test -S /run/guard/agent.sock && echo socket")
        .with(|sandbox| sandbox.agent_socket = bytes(&socket))
        .run();
    assert_eq!(done.succeeded(), "/run/guard/agent.sock\nsocket\n");
}

#[test]
fn devices_are_few_and_those_of_a_worktree_do_not_work() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let all = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(house.script("echo $(ls -A /dev)").run().succeeded(), format!("{all}\n"));
    let node = house.worktree().join("node");
    let everyone = rustix::fs::Mode::from_raw_mode(0o666);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &node, kind, everyone, rustix::fs::makedev(1, 5)).expect("a node");
    own(&node);
    let script = format!("head -c 1 {} | wc -c", node.display());
    let done = house.script(&script).run();
    assert_eq!(done.stdout(), "0\n");
    assert!(done.stderr().contains("Permission denied"), "{}", done.stderr());
    assert_eq!(free(&script), "1\n");
}

/// no program gives an agent another uid.
#[test]
fn setuid_programs_give_nothing() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let id = house.path().join("id");
    fs::copy("/usr/bin/id", &id).expect("a copy");
    fs::set_permissions(&id, fs::Permissions::from_mode(0o6755)).expect("the setuid bit");
    let script = format!("echo $({0} -u) $({0} -g) $(id -G)", id.display());
    assert_eq!(house.script(&script).run().succeeded(), format!("{AGENT} {AGENT} {AGENT}\n"));
    assert!(free(&script).starts_with("0 0 "), "{}", free(&script));
}

/// The host's processes are not in `/proc`, and what of it belongs to the whole host cannot be written, also not by uid 0.
#[test]
fn proc_and_sys_are_the_agents_or_read_only() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let text = house.script("echo /proc/[0-9]* | wc -w; cat /proc/1/comm").run().succeeded();
    let (count, comm) = text.split_once('\n').expect("two lines");
    assert!(count.parse::<u32>().expect("a number") <= 4, "{text}");
    assert_eq!(comm, "guard-shim\n");
    let peeks = house.script("exec 2>&1; cat /proc/1/environ; ls /proc/1/fd; cat /proc/1/maps").run();
    assert_eq!(peeks.stdout().matches("Permission denied").count(), 3, "{}", peeks.stdout());
    let writes = "for each in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_seqnum /sys/power/state; do
        test -e $each && (: >> $each) 2>/dev/null && echo $each; done; true";
    let lists = "ls -A /sys/fs/cgroup /sys/fs/bpf /sys/kernel/debug /sys/kernel/security 2>/dev/null | grep -v :$ | grep .; true";
    let done =
        house.script(&format!("{writes}; {lists}")).uid(0).with(|sandbox| sandbox.as_root = true).run();
    assert_eq!(done.succeeded(), "");
    for script in [writes, lists] {
        let control = Command::new("bash").args(["-c", script]).output().expect("bash");
        assert!(!control.stdout.is_empty(), "root of the host can: {script}");
    }
}

/// The client of guard checks the same, but an attacker has a client of its own.
#[test]
fn a_worktree_of_somebody_else_is_refused() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    chown(house.outside(), Some(AGENT + 1), None).expect("another owner");
    let run = |uid| house.script("id -u").worktree(&house.outside()).uid(uid).run();
    let refused = run(AGENT);
    assert_eq!((refused.status(), refused.stdout().as_str()), (1, ""));
    assert!(refused.stderr().starts_with("error[invalid_worktree]"), "{}", refused.stderr());
    assert_eq!(run(AGENT + 1).succeeded(), format!("{}\n", AGENT + 1));
}

/// Everybody can open a named network namespace; only root can enter it, and the shim is root when it does.
#[test]
fn a_network_namespace_of_somebody_else_is_refused() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let name = house.path().join("namespace");
    fs::write(&name, "").expect("a mount point");
    let made = Command::new("unshare").arg(format!("--net={}", name.display())).arg("true").status();
    assert!(made.expect("unshare").success(), "a named network namespace");
    let run = |uid: u32, inside: bool| {
        let mut launch = house.script("readlink /proc/self/ns/net").uid(uid);
        let mut command = launch.command();
        let program = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        if inside {
            command = Command::new("nsenter");
            command.arg(format!("--net={}", name.display())).args(["setpriv", "--clear-groups"]);
            command.args([format!("--reuid={uid}"), format!("--regid={uid}")]).arg(program).args(arguments);
            command.current_dir(house.worktree());
        }
        command.env("PLAY_NETWORK", &name);
        let output = command.output().expect("play-launch");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (stranger, inside, root) = (run(AGENT, false), run(AGENT, true), run(0, false));
    rustix::mount::unmount(&name, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    assert_eq!(stranger.0, Some(1), "{}", stranger.1);
    assert!(stranger.1.starts_with("error[invalid_network]"), "{}", stranger.1);
    // The same namespace for somebody who lives in it, and for root.
    assert_eq!((inside.0, root.0), (Some(0), Some(0)), "{} {}", inside.1, root.1);
    assert!(inside.1.starts_with("net:[") && inside.1 == root.1, "{} {}", inside.1, root.1);
}

/// K: each refused call is one that a full root gets through to the kernel, so the filter is what refuses it.
#[test]
fn each_refused_call_has_a_control() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let call = |layers: &str, number: libc::c_long| {
        let output = Command::new(program("fence-attack"))
            .args([layers, "0"])
            .arg(house.worktree())
            .args(["call", &number.to_string(), "-1", "-1", "-1", "-1", "-1", "-1"])
            .output()
            .expect("fence-attack");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let refused = libc::EPERM.to_string();
    // vhangup has no argument that makes it fail before it acts.
    for (number, name) in DENIED.iter().filter(|(_, name)| *name != "vhangup") {
        assert_eq!(call("seccomp", *number), refused, "{name}");
        assert_ne!(call("none", *number), refused, "{name} fails alike without a filter: it proves nothing");
    }
}

/// The gate of 32-bit programs has numbers of its own; whoever uses it is ended.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_old_gate_is_shut() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let run = |layers: &str| {
        let mut command = Command::new(program("fence-attack"));
        command.args([layers, "0"]).arg(house.worktree()).arg("old-gate");
        command.output().expect("fence-attack")
    };
    assert_eq!(run("seccomp").status.signal(), Some(libc::SIGSYS));
    if String::from_utf8_lossy(&run("none").stdout) != "done\n" {
        eprintln!("this kernel has no 32-bit gate: the filter was not needed here");
    }
}
