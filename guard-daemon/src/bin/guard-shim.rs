//! guard-shim: one for each agent. See [`guard_daemon::shim`].

fn main() -> std::process::ExitCode {
    guard_daemon::shim::main()
}
