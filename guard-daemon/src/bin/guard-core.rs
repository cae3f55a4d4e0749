//! guard-core: the unprivileged half. See [`guard_daemon::core`].

fn main() -> std::process::ExitCode {
    guard_daemon::core::main()
}
