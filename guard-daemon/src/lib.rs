//! The daemons of guard: guardd (privileged), guard-core (unprivileged), guard-shim (one an agent), guardctl (people).

pub mod accounts;
pub mod audit;
pub mod cli;
pub mod core;
pub mod coverage;
pub mod daemon;
pub mod enforce;
pub mod launch;
pub mod log;
pub mod sandbox;
pub mod settings;
pub mod shim;
