//! What the end-to-end tests and the demonstration share: a [`world`] to reach for, a [`host`] with guard running on it.
//!
//! Nothing leaves the machine: every address that an agent tries exists only in a network namespace that [`world::World`] makes.

pub mod approver;
pub mod attack;
pub mod desk;
pub mod fence;
pub mod host;
mod programs;
pub mod terminal;
pub mod world;

use std::{
    os::unix::process::CommandExt as _,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

pub use programs::programs;

/// A name that no other test on this machine has now.
#[must_use]
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Has a command begin with no signal ignored, however these tests were started: a shell's background job ignores some, and a
/// governed command has that from its caller.
pub fn usual_signals(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec system calls alone are made, and no handler is involved.
    unsafe {
        command.pre_exec(|| {
            for signal in 1..=libc::SIGSYS {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    }
}

/// Whether host tests are to be skipped on this machine; says so loudly. Without root and without leave to skip, the test fails.
///
/// # Panics
/// If this is not root and nobody allowed to skip.
#[must_use]
pub fn skip_host() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    assert!(
        std::env::var_os("GUARD_SKIP_HOST").is_some(),
        "this test needs root; set GUARD_SKIP_HOST=1 to skip the host tier"
    );
    eprintln!("SKIPPED: this test needs root, and GUARD_SKIP_HOST is set");
    true
}
