//! The daemons of guard.
