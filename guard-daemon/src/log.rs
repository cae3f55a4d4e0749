//! Diagnostics of the daemons: to stderr, which systemd keeps in the journal. `RUST_LOG` selects; the default is `info`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging; a second call does nothing.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // A subscriber that is already there stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .try_init();
}
