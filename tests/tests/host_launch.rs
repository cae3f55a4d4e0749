//! Launching: what a user of `guardctl run` sees of a command is what the command does itself.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    process::{Command, Stdio},
};

use guard_daemon::launch::{self, Report};
use guard_tests::fence::{AGENT, House, host_tier};
use rustix::process::{Pid, Signal};

#[test]
fn exit_status_is_the_commands_own() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    for status in [0, 1, 7, 126, 127, 255] {
        assert_eq!(house.script(&format!("exit {status}")).run().status(), status);
    }
}

#[test]
fn a_command_that_a_signal_ended_ends_its_caller_alike() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGPIPE] {
        let done = house.script(&format!("kill -{signal} $$")).run();
        assert_eq!(done.output.status.signal(), Some(signal), "{done:#?}");
    }
}

#[test]
fn what_cannot_be_executed_is_named() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let done = house.launch(&["no-such-command-here"]).run();
    assert_eq!(done.status(), 127);
    assert!(done.stderr().contains("no-such-command-here: command not found"), "{}", done.stderr());
    let plain = house.worktree().join("plain");
    std::fs::write(&plain, "not a program").expect("a file");
    let done = house.launch(&[&plain]).run();
    assert_eq!(done.status(), 126);
    assert!(done.stderr().contains("plain"), "{}", done.stderr());
}

#[test]
fn pipes_carry_everything_both_ways() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let text = "x".repeat(1 << 20);
    let done = house.launch(&["cat"]).input(text.as_bytes()).run();
    assert_eq!(done.succeeded(), text);
}

/// descriptors 0–2 and no other; a file that is standard output can be opened again through /dev/stdout.
#[test]
fn nothing_but_the_standard_descriptors_comes_in() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let done = house.script("ls /proc/self/fd; ls -l /proc/1/fd 2>&1 | head -2").run();
    let shown = done.stdout();
    assert!(shown.starts_with("0\n1\n2\n3\n"), "the third is ls's own: {shown}");
    assert!(
        shown.contains("Permission denied") || shown.contains("cannot"),
        "the init can be looked into: {shown}"
    );
    let path = house.outside().join("log");
    let file = std::fs::File::create(&path).expect("a file");
    std::os::unix::fs::chown(&path, Some(AGENT), None).expect("chown");
    let mut launch = house.script("echo one; echo two >> /dev/stdout; echo three > /proc/self/fd/1");
    let status = launch.command().stdout(file).status().expect("run");
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "three\n");
}

/// an internet socket may be connected to where the agent may not go; nothing starts with one. Unix sockets are fine.
#[test]
fn inherited_sockets_and_directories_are_refused() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let socket =
        std::net::TcpStream::connect(listener.local_addr().expect("its address")).expect("connected");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let directory = std::fs::File::open(house.outside()).expect("a directory");
    let file = house.worktree().join("ran");
    for (descriptor, word) in [
        (OwnedFd::from(socket), "socket of family 2"),
        (OwnedFd::from(udp), "socket of family 2"),
        (OwnedFd::from(directory), "a directory"),
    ] {
        let mut launch = house.launch(&["touch", "ran"]);
        let output = launch.command().stdin(descriptor).output().expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("error[inherited_socket]: standard input is") && said.contains(word), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
    assert!(!file.exists());
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut launch = house.launch(&["cat"]);
    let mut child =
        launch.command().stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).spawn().expect("run");
    (&ours).write_all(b"through a socket").expect("written");
    ours.shutdown(std::net::Shutdown::Write).expect("shut");
    let mut text = String::new();
    child.stdout.take().expect("its output").read_to_string(&mut text).expect("read");
    assert!(child.wait().expect("ended").success());
    assert_eq!(text, "through a socket");
}

/// Signals for guardctl are signals for the command.
#[test]
fn signals_go_on_to_the_command() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::HUP, "HUP"), (Signal::INT, "INT")]
    {
        let mut launch =
            house.script(&format!("trap 'echo {name}; exit 5' {name}; echo ready; sleep 60 & wait"));
        let mut child = launch.command().stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("run");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        rustix::process::kill_process(Pid::from_child(&child), signal).expect("sent");
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("read");
        assert_eq!(
            (rest.as_str(), child.wait().expect("ended").code()),
            (format!("{name}\n").as_str(), Some(5))
        );
    }
}

/// A pipe ends when the command closes it, although guardctl goes on.
#[test]
fn pipes_end_when_the_command_closes_them() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut launch = house.script("echo last; exec >&-; sleep 60");
    let mut child = launch.command().stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("run");
    let mut text = String::new();
    child.stdout.take().expect("its output").read_to_string(&mut text).expect("read");
    assert_eq!(text, "last\n");
    assert!(child.try_wait().expect("asked").is_none(), "the command goes on");
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).expect("sent");
    assert_eq!(child.wait().expect("ended").signal(), Some(libc::SIGTERM));
}

/// A caller that is killed takes its command along, also one that ignores hangups.
#[test]
fn a_command_without_caller_is_ended() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut launch = house.script("trap '' HUP TERM; echo ready; while :; do sleep 1; done");
    let mut child = launch.command().stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("run");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    child.kill().expect("killed");
    child.wait().expect("reaped");
    wait_until("the agent is gone", || house.agents().is_empty());
}

/// The shim's death ends its agent; the caller hears that it was lost.
#[test]
fn a_dead_shim_ends_its_agent() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut launch = house.script("echo ready; sleep 60; echo survived");
    let mut child = launch
        .command()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .expect("run");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let processes = std::fs::read_to_string(house.agents()[0].join("main/cgroup.procs")).expect("processes");
    let init = processes.lines().next().expect("the init");
    let status = std::fs::read_to_string(format!("/proc/{init}/status")).expect("its status");
    let shim = status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))
        .expect("its parent")
        .trim()
        .parse()
        .expect("a pid");
    rustix::process::kill_process(Pid::from_raw(shim).expect("a pid"), Signal::KILL).expect("killed");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("read");
    let output = child.wait_with_output().expect("ended");
    assert_eq!((rest.as_str(), output.status.code()), ("", Some(3)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error[agent_lost]"));
}

/// An agent outlives guardd; the next guardd takes it back and hears its end.
#[test]
fn an_agent_outlives_guardd() {
    if !host_tier() {
        return;
    }
    let mut house = House::new();
    let (command, ticket) = {
        let mut launch = house.script("echo ready; read -r word; echo got $word; touch /opt/outside; exit 9");
        (launch.command(), launch.ticket.clone().expect("a ticket"))
    };
    let mut command = command;
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::piped()).spawn().expect("run");
    let mut output = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    house.kill_guardd();
    let mut shim = launch::reconnect(&house.shim_socket(&ticket)).expect("the shim is there");
    assert!(matches!(shim.next_report(), Ok(Some(Report::Started { .. }))));
    child.stdin.take().expect("its input").write_all(b"word\n").expect("written");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("read");
    assert_eq!((rest.as_str(), child.wait().expect("ended").code()), ("got word\n", Some(9)));
    assert!(matches!(shim.next_report(), Ok(Some(Report::Observed(_)))));
    assert!(matches!(shim.next_report(), Ok(Some(Report::Ended { status: 0x900, .. }))));
    assert!(matches!(shim.next_report(), Ok(None)));
}

/// A layer that the kernel refuses fails the launch by name, or is gone without, and said.
#[test]
fn a_missing_layer_is_never_silent() {
    if !host_tier() {
        return;
    }
    for (call, layer) in [
        (libc::SYS_landlock_create_ruleset, "landlock"),
        (libc::SYS_mount_setattr, "mount view"),
        (libc::SYS_seccomp, "seccomp"),
    ] {
        let house = House::without(Some(call));
        let done = house.script("echo ran").run();
        assert_eq!((done.status(), done.stdout()), (1, String::new()), "{layer}: {done:?}");
        let said = format!("error[not_enforced]: the {layer} layer does not stand");
        assert!(done.stderr().contains(&said), "{layer}: {}", done.stderr());
        let done = house
            .script("echo ran; touch ../outside/x && echo outside")
            .with(|sandbox| sandbox.degraded = true)
            .run();
        let said = format!("degraded: the {layer} layer does not stand");
        assert!(done.stderr().contains(&said), "{layer}: {}", done.stderr());
        // One of the two that fence files still stands.
        assert_eq!(done.stdout(), "ran\n", "{layer}: {done:?}");
    }
}

/// What a command has from its caller: directory, umask, limits, ignored signals, environment.
#[test]
fn a_command_begins_as_its_caller_is() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut launch = house
        .script("pwd; umask; ulimit -n; ulimit -c; kill -HUP $$; echo $MARK $TMPDIR; nice")
        .with(|sandbox| {
            sandbox.environment.extend([b"MARK=kept".to_vec(), b"TMPDIR=/elsewhere".to_vec()]);
        });
    let inner = launch.command();
    let words: Vec<_> = std::iter::once(inner.get_program()).chain(inner.get_args()).collect();
    let directory = house.worktree().join("deep/er");
    std::fs::create_dir_all(&directory).expect("a directory");
    let output = Command::new("bash")
        .args(["-c", "trap '' HUP; umask 037; ulimit -n 321 -c 0; exec nice -n 3 \"$@\"", "bash"])
        .args(words)
        .current_dir(&directory)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .expect("run");
    let shown = String::from_utf8_lossy(&output.stdout);
    let nice = rustix::process::nice(0).expect("own niceness") + 3;
    assert_eq!(shown, format!("{}\n0037\n321\n0\nkept\n{nice}\n", directory.display()), "{output:?}");
}

/// Programs that agents live on.
#[test]
fn real_programs_work() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    for (script, expected) in [
        (
            "git init -q r && cd r && echo x > f && git add f && git -c user.name=a -c user.email=a@b commit -qm one && git log --format=%s && git status -s",
            "one\n",
        ),
        (
            "git clone -q r s && cd s && git mv f g && git -c user.name=a -c user.email=a@b commit -qm two && git push -q origin HEAD:refs/heads/two && git -C ../r branch --list two",
            "  two\n",
        ),
        (
            "python3 -c 'import tempfile, subprocess, multiprocessing as m; print(subprocess.check_output([\"echo\", \"sub\"]).decode().strip(), m.Lock() is not None, tempfile.gettempdir())'",
            "sub True /tmp\n",
        ),
        (
            "node -e 'require(\"fs\").writeFileSync(\"n\", \"1\"); new (require(\"worker_threads\").Worker)(\"console.log(1)\", {eval: true})'",
            "1\n",
        ),
        (
            "seq 100000 | sort -rn | head -1; find / -xdev -maxdepth 1 -name etc; exec 3<>/dev/tcp/127.0.0.1/1 || echo refused",
            "100000\n/etc\nrefused\n",
        ),
        (
            "cat <(echo substituted) && tar c n 2>/dev/null | tar t && mkfifo p && (echo fifo > p & cat p)",
            "substituted\nn\nfifo\n",
        ),
    ] {
        let done = house
            .script(script)
            .with(|sandbox| {
                sandbox.environment.push(b"HOME=/tmp".to_vec());
                sandbox.environment.retain(|entry| entry != b"HOME=/nonexistent");
            })
            .run();
        assert_eq!(done.stdout(), expected, "{script}\n{}\n{}", done.stderr(), done.reports);
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !done() {
        assert!(std::time::Instant::now() < until, "{what}: not in time");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
