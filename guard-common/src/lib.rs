//! What guard's kernel programs and its user space both read.
//!
//! Four things live here, and nothing that allocates, does I/O or can panic:
//!
//! - [`action`]: the thirteen action classes that every act is sorted into;
//! - [`address`]: the classes of network addresses and the forms in which one address hides another;
//! - [`network`]: the address table of the kernel and [`network::decide`], the one function that judges an
//!   address, compiled into the BPF programs and run by user space and tests alike;
//! - [`event`]: the bytes that the kernel programs put into the ring buffers, and their counters.
//!
//! ```
//! use guard_common::address::{classify, v4, AddressClass};
//!
//! assert_eq!(classify(&v4([169, 254, 169, 254])), AddressClass::Metadata);
//! ```
#![cfg_attr(not(test), no_std)]

pub mod action;
pub mod address;
pub mod event;
pub mod network;

pub use action::{ActionClass, Effect};
pub use address::{AddressClass, BUILTIN_RANGES, classify, unfold};
