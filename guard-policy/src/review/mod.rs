//! A policy as people read it before it is in force (`C-058`, `R-67`): every rule as a sentence, what is odd about it,
//! the matrix of an agent, and what changes from one policy to the next.
//!
//! - [`sentence`]: each rule in English;
//! - [`lint`]: rules that do not do what they seem to;
//! - [`matrix`]: class by class, which rule decides for an agent;
//! - [`diff`]: what another policy would newly allow, each with an example.

pub mod diff;
pub mod lint;
pub mod matrix;
mod sample;
pub mod sentence;
