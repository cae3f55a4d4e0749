//! Launching: what a user of `guardctl run` sees of a command is what the command does itself.

use std::os::unix::process::ExitStatusExt as _;

use guard_tests::fence::{House, host_tier};

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
