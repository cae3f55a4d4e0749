//! A command line before it runs.
//!
//! A text is only a promise: what it starts is judged again when it starts, by its executable (`R-65`). What can be
//! read out of it is read with the same tables, every command in it counts, and what only the shell will know is
//! marked and counts as the worst where it decides. A text that cannot be read is an error, never a milder answer
//! (`R-61`).
//!
//! ```
//! use guard_common::ActionClass::{FileDelete, GitPush};
//! use guard_policy::facts::shell;
//!
//! let facts = shell::read("cd sub && X=1 git  push origin HEAD:main; echo $(\\rm -fr x)")?;
//! assert!(facts.action.classes.contains(&GitPush) && facts.action.classes.contains(&FileDelete));
//! assert_eq!(facts.action.refs.unwrap()[0].clean(), "main");
//! assert!(shell::read("echo 'open").is_err());
//! # Ok::<(), shell::ShellError>(())
//! ```

pub(super) mod files;
pub(super) mod http;
mod script;
mod sense;
mod word;

use std::path::PathBuf;

use super::{Facts, Secrets, Word};

/// Most bytes of one text.
pub const MAX_BYTES: usize = 64 << 10;
/// Most commands in one text.
pub const MAX_COMMANDS: usize = 64;
/// How deep texts, substitutions and brackets may stand in each other.
pub const MAX_DEPTH: usize = 32;

/// Where a text stops being a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Place {
    /// A quote.
    #[error("a quote is not closed")]
    Quote,
    /// A command substitution.
    #[error("a substitution is not closed")]
    Substitution,
    /// A bracket or a block.
    #[error("a bracket is not closed")]
    Bracket,
    /// An operator.
    #[error("an operator stands where none can")]
    Operator,
    /// A `case`.
    #[error("a case has no pattern or no end")]
    Case,
    /// A NUL.
    #[error("a NUL ends what the shell would see")]
    Nul,
}

/// A text that is not judged by less than all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShellError {
    /// It is no script.
    #[error("column {column}: {place}; write the command so that a shell takes it")]
    Unreadable {
        /// What is wrong.
        place: Place,
        /// Where, counted in characters from 1.
        column: usize,
    },
    /// There are too many commands in it.
    #[error("more than {limit} commands in one text; split it")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// It is too deep.
    #[error("more than {limit} texts or brackets in each other; write it flatter")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// It is too long.
    #[error("more than {limit} bytes in one text; put it into a file")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
}

/// Where a text would run.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The worktree; without it every absolute path counts as outside.
    pub worktree: Option<PathBuf>,
    /// The agent's private temp.
    pub private_temp: Option<PathBuf>,
    /// The directory that it starts in, relative to the worktree; empty for the worktree itself.
    pub directory: PathBuf,
    /// The files that hold secrets.
    pub secrets: Secrets,
}

/// Reads a text that would run in the worktree.
///
/// # Errors
/// When it is no script, or too much of one.
pub fn read(text: &str) -> Result<Facts, ShellError> {
    read_in(text, &Surroundings::default())
}

/// Reads a text that would run in these surroundings.
///
/// # Errors
/// When it is no script, or too much of one.
pub fn read_in(text: &str, surroundings: &Surroundings) -> Result<Facts, ShellError> {
    if text.len() > MAX_BYTES {
        return Err(ShellError::TooLong { limit: MAX_BYTES });
    }
    sense::read(text, surroundings)
}

/// The simple commands of a text, wherever in it they stand; which of them run is not asked.
///
/// # Errors
/// When it is no script, or too much of one.
pub fn commands(text: &str) -> Result<Vec<Vec<Word>>, ShellError> {
    if text.len() > MAX_BYTES {
        return Err(ShellError::TooLong { limit: MAX_BYTES });
    }
    let mut found = Vec::new();
    script::read(text, 0, &mut found)?;
    Ok(found.into_iter().map(|simple| simple.words).collect())
}

#[cfg(test)]
mod tests;
