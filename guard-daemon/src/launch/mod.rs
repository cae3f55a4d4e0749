//! Launching an agent: who says what to whom between `guardctl`, `guardd` and `guard-shim`.
//!
//! ```text
//! guardctl ──ticket, descriptors──▶ guardd ──setup, descriptors──▶ guard-shim ──clone──▶ the agent's init
//!     ▲                                ▲                               │ │
//!     │                                └───── started, observed, ended ┘ │
//!     └──────────── started (and the terminal), stopped, exited ─────────┘
//! ```
//!
//! [`client`] is the side of `guardctl`, [`daemon`] that of `guardd`; [`wire`] has the messages. The side of the shim is
//! [`crate::shim`]. Descriptors travel only here, over sockets that keep message boundaries.

pub mod client;
pub mod daemon;
pub mod terminal;
pub mod wire;

use std::os::fd::OwnedFd;

pub use daemon::{
    Answers, Caller, Launch, LaunchError, Report, Shim, listen, receive_ticket, reconnect, refuse, spawn_shim,
};

/// What a caller hands over for one launch, besides the ticket.
#[derive(Debug)]
pub struct Descriptors {
    /// Standard input, output and error of the command.
    pub stdio: [OwnedFd; 3],
    /// The worktree, opened with `O_PATH`: what the caller could name, not what a path means later.
    pub worktree: OwnedFd,
    /// The caller's current directory, opened with `O_PATH`.
    pub directory: OwnedFd,
    /// The caller's network namespace.
    pub network: OwnedFd,
}
