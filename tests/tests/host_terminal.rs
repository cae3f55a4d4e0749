//! Terminal, job control and signals of a governed command are as without guard.

use std::{os::unix::process::CommandExt as _, process::Command};

use guard_tests::{
    fence::{AGENT, House, host_tier},
    terminal::Terminal,
};

/// The shell line that runs a command of this launch.
fn line(command: &Command) -> String {
    let mut words = vec![command.get_program()];
    words.extend(command.get_args());
    words.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// An interactive shell of the agent's user, outside of the fence, as a user has it.
fn shell(house: &House) -> Terminal {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"])
        .env_clear()
        .env("PS1", "user> ")
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/nonexistent");
    let mut terminal = Terminal::run(bash.uid(AGENT).gid(AGENT).current_dir(house.worktree()));
    terminal.wait_for("user> ");
    terminal
}

#[test]
fn the_command_has_a_terminal_like_the_callers() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo all three; stty size; tty; stty -a | grep -o '[-]*echo '; ls -1 /dev/pts";
    let (shown, status) = Terminal::run(&mut house.script(script).command()).end();
    assert!(status.success(), "{shown}");
    assert_eq!(shown, "all three\r\n33 77\r\n/dev/pts/0\r\necho \r\n0\r\nptmx\r\n");
}

#[test]
fn keys_resizing_and_interrupts_reach_the_command() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let script = "
import os, signal, time
def interrupted(*_):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.write(1, b'interrupted\\n')
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'size %d %d\\n' % tuple(os.get_terminal_size())))
signal.signal(signal.SIGINT, interrupted)
print('ready', flush=True)
print('got', input(), flush=True)
while True:
    time.sleep(1)
";
    let mut terminal = Terminal::run(&mut house.launch(&["python3", "-c", script]).command());
    terminal.wait_for("ready");
    terminal.keys("hello\r");
    terminal.wait_for("got hello");
    terminal.resize(44, 111);
    terminal.wait_for("size 111 44");
    terminal.keys("\x03");
    terminal.wait_for("interrupted");
    terminal.keys("\x03");
    let (_, status) = terminal.end();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGINT));
}

/// Ctrl-Z stops the job, the shell has its terminal back in order, `fg` goes on, and the status is the command's.
#[test]
fn a_job_stops_and_goes_on() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut launch = house.launch(&[
        "python3",
        "-c",
        "import time\nprint('running', flush=True)\nx = input()\nprint('read', x)\nraise SystemExit(7)",
    ]);
    let mut terminal = shell(&house);
    terminal.keys(&format!("{}\r", line(&launch.command())));
    terminal.wait_for("running\r\n");
    terminal.keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for("user> ");
    // Typed text is shown by the shell's own terminal: raw mode is over.
    terminal.keys("stty -a | grep -o -w -- '-*icanon\\|-*isig'; jobs\r");
    let shown = terminal.wait_for("user> ");
    assert!(shown.contains("isig") && !shown.contains("-isig\r"), "{shown}");
    assert!(shown.contains("Stopped"), "{shown}");
    terminal.keys("fg\r");
    terminal.wait_for("play-launch");
    terminal.keys("text\r");
    terminal.wait_for("read text");
    terminal.wait_for("user> ");
    terminal.keys("echo status $?\r");
    terminal.wait_for("status 7");
    terminal.keys("exit\r");
    let _ = terminal.end();
}

/// After any end, also one by a signal, the terminal is as it was.
#[test]
fn the_terminal_is_put_back() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut terminal = shell(&house);
    for script in ["stty raw -echo; exit 3", "stty raw; kill -9 $$"] {
        terminal.keys("stty -g\r");
        terminal.wait_for("stty -g\r\n");
        let before = terminal.wait_for("user> ");
        terminal.keys(&format!("{}\r", line(&house.script(script).command())));
        terminal.wait_for("user> ");
        terminal.keys("stty -g\r");
        terminal.wait_for("stty -g\r\n");
        assert_eq!(terminal.wait_for("user> "), before, "after {script}");
        terminal.keys("stty -a | grep -o -w -- '-*echo'\r");
        terminal.wait_for("'\r\necho");
        terminal.wait_for("user> ");
    }
}

/// Only the terminals among the three are replaced; what is piped stays a pipe.
#[test]
fn a_pipe_beside_the_terminal_stays_a_pipe() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut terminal = shell(&house);
    let script = "test -t 0 || echo piped in; cat; test -t 1 && echo terminal out";
    terminal.keys(&format!("echo through | {}\r", line(&house.script(script).command())));
    let shown = terminal.wait_for("terminal out");
    assert!(shown.contains("piped in") && shown.contains("\nthrough"), "{shown}");
    terminal.wait_for("user> ");
    terminal.keys(&format!("{} | cat\r", line(&house.script("test -t 1 || echo piped out").command())));
    terminal.wait_for("\r\npiped out");
}

/// A command in the background does not touch the terminal, and a caller whose terminal goes takes its command along,
/// also where the shell does not tell it.
#[test]
fn a_background_job_leaves_the_terminal_alone_and_a_hangup_ends_it() {
    if !host_tier() {
        return;
    }
    for shell_says in ["true", "disown -h"] {
        let house = House::new();
        let mut terminal = shell(&house);
        let file = house.worktree().join("ended");
        let script =
            format!("trap 'echo hup > {}; exit' HUP; echo in background; sleep 100 & wait", file.display());
        terminal.keys(&format!("{} &\r", line(&house.script(&script).command())));
        terminal.wait_for("in background");
        terminal.keys(&format!("{shell_says}; echo still $((40 + 2))\r"));
        terminal.wait_for("still 42");
        terminal.hang_up();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !file.exists() {
            assert!(
                std::time::Instant::now() < until,
                "the command did not hear the hangup after `{shell_says}`"
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
