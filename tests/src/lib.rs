//! End-to-end tests of guard.

pub mod fence;
