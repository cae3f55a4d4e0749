//! End-to-end tests of guard.
