//! What guard's kernel programs and its user space both read.
#![cfg_attr(not(test), no_std)]
