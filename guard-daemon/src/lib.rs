//! The daemons of guard.

pub mod enforce;
