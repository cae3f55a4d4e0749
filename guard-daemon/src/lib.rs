//! The daemons of guard.

pub mod enforce;
pub mod launch;
pub mod sandbox;
pub mod shim;
