//! guardd: the privileged half. See [`guard_daemon::daemon`].

fn main() -> std::process::ExitCode {
    guard_daemon::daemon::main()
}
