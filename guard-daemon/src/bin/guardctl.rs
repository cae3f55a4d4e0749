//! guardctl: what people type. See [`guard_daemon::cli`].

fn main() -> std::process::ExitCode {
    guard_daemon::cli::main()
}
