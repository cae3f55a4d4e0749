//! guard-shim: stands between one agent and the rest. It makes the fence as root, then keeps the agent's rights only.
//!
//! - [`setup`] reads what guardd handed over and opens what the view needs, in the host's namespaces.
//! - [`claims`] holds what a caller handed over against what it is.
//! - [`init`] is the agent's first process: it builds the fence around itself, starts the command, reaps, ends.
//! - [`serve`] is the shim's life afterwards: messages between guardctl, guardd and the init.
//! - [`caller`] is what else a command has from who called it.
//! - [`reads`] tells which secrets are opened.
//! - [`listener`] answers trapped calls on a thread of its own; [`report`] carries what it saw to guardd.
//! - [`asks`] asks guardd about the calls that wait for a yes.
//!
//! Plain threads and few of them: every agent pays for this process.

mod asks;
mod caller;
mod claims;
mod init;
mod listener;
mod reads;
mod report;
mod serve;
mod setup;

use std::{os::fd::OwnedFd, process::ExitCode};

use rustix::{
    fs::{Mode, OFlags},
    net::SendFlags,
};

use crate::{
    launch::wire::{self, ClientEvent, Failed, ToClient},
    sandbox::{
        identity::IdentityError, landlock::LandlockError, privilege::PrivilegeError, seccomp::SeccompError,
        view::ViewError,
    },
};

/// A layer of the fence that a host may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    View,
    Landlock,
    Seccomp,
}

impl Layer {
    fn name(self) -> &'static str {
        match self {
            Self::View => "mount view",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
        }
    }
}

/// Why there is no agent.
#[derive(Debug, thiserror::Error)]
enum ShimError {
    #[error("{step}: {source}")]
    Step { step: &'static str, source: std::io::Error },
    #[error("{0}")]
    Identity(#[from] IdentityError),
    #[error("{0}")]
    Claim(#[from] claims::ClaimError),
    #[error("{0}")]
    View(ViewError),
    #[error("standard {name} is {what}; an agent takes files, pipes, terminals and Unix sockets")]
    Stream { name: &'static str, what: String },
    #[error("the {} layer does not stand on this host: {why}; accept a weaker launch with --degraded", layer.name())]
    NotEnforced { layer: Layer, why: String },
    #[error("giving up privilege: {0}")]
    Privilege(#[from] PrivilegeError),
    /// The init's own error: its code and its text.
    #[error("{1}")]
    Reported(String, String),
}

impl ShimError {
    fn code(&self) -> &str {
        match self {
            Self::Step { .. } => "launch",
            Self::Identity(IdentityError::Root) => "root_worktree",
            Self::Identity(IdentityError::NotRoot(_)) => "not_permitted",
            Self::Claim(error) => error.code(),
            Self::View(ViewError::Hidden { .. } | ViewError::Root | ViewError::Path { .. }) => "invalid_path",
            Self::View(ViewError::Step { .. }) => "launch",
            Self::Stream { .. } => "inherited_socket",
            Self::NotEnforced { .. } | Self::Privilege(_) => "not_enforced",
            Self::Reported(code, _) => code,
        }
    }

    fn step(step: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Step { step, source }
    }
}

impl From<(Layer, &dyn std::error::Error)> for ShimError {
    fn from((layer, why): (Layer, &dyn std::error::Error)) -> Self {
        Self::NotEnforced { layer, why: why.to_string() }
    }
}

impl From<LandlockError> for ShimError {
    fn from(error: LandlockError) -> Self {
        Self::from((Layer::Landlock, &error as &dyn std::error::Error))
    }
}

impl From<SeccompError> for ShimError {
    fn from(error: SeccompError) -> Self {
        Self::from((Layer::Seccomp, &error as &dyn std::error::Error))
    }
}

/// Runs the shim; its standard input is the connection to guardd.
pub fn main() -> ExitCode {
    let control = match control() {
        Ok(control) => control,
        Err(error) => {
            eprintln!("guard-shim: not started by guardd: {error}");
            return ExitCode::from(2);
        }
    };
    let handed = match setup::receive(&control) {
        Ok(handed) => handed,
        Err(error) => {
            eprintln!("guard-shim: {error}");
            return ExitCode::FAILURE;
        }
    };
    let client = match handed.client.try_clone() {
        Ok(client) => client,
        Err(error) => {
            eprintln!("guard-shim: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(control, handed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let failed = Failed { code: error.code().to_owned(), message: error.to_string() };
            let message = ToClient { event: Some(ClientEvent::Failed(failed)) };
            if wire::send(&client, &message, &[], SendFlags::DONTWAIT).is_err() {
                eprintln!("guard-shim: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(control: OwnedFd, handed: setup::Handed) -> Result<(), ShimError> {
    let mut without = Vec::new();
    loop {
        let launch = setup::prepare(&handed, &without)?;
        match init::start(launch) {
            Ok(agent) => return serve::serve(control, handed, agent),
            Err(ShimError::NotEnforced { layer, why })
                if handed.sandbox.degraded && !without.iter().any(|(known, _)| *known == layer) =>
            {
                // A layer that failed half-way may have left half of itself: the next try starts from nothing.
                without.push((layer, why));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Takes the connection off descriptor 0, so that nothing else is ever read from it by accident.
fn control() -> std::io::Result<OwnedFd> {
    let stdin = std::io::stdin();
    rustix::net::sockopt::socket_type(&stdin)?;
    let control = rustix::io::fcntl_dupfd_cloexec(&stdin, 3)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(control)
}
