//! The fence around one agent, a file for each layer. Every layer is a function that works alone, so that a test can show what
//! it holds with the others off.
//!
//! - [`identity`]: whose rights the agent has; [`privilege`]: giving up all others.
//! - [`environment`], [`profiles`]: what a launch lets in, decided by pure functions that guard-core calls.
//! - [`view`]: the mount namespace; [`landlock`] repeats it where mounts cannot be undone; [`seccomp`] refuses calls that no
//!   agent needs and traps those that change files.

pub mod environment;
pub mod identity;
pub mod landlock;
pub mod privilege;
pub mod profiles;
pub mod seccomp;
pub mod view;
