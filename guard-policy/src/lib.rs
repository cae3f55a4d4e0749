//! The policy engine of guard.
