//! The record of what was decided and done: JSON lines in numbered segments, each line chained to the one before.
//!
//! `hash` is SHA-256 over the bytes of a line before `,"hash"`; `prev` is the `hash` of the line before, 64 zeros
//! for the first. A signed checkpoint is written every [`CHECKPOINT_EVERY`] records and at close, so that a tail
//! that was cut off and rewritten is noticed by whoever kept a checkpoint. [`writer`] appends, [`verify`] reads back.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::value::RawValue;

pub mod filter;
pub mod record;
pub mod story;
pub mod verify;
pub mod writer;

/// Records between two signed checkpoints.
pub const CHECKPOINT_EVERY: u64 = 10_000;
/// `prev` of the first record.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What kind of thing a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Decision,
    Approval,
    Override,
    Policy,
    Sandbox,
    Loss,
    Daemon,
}

/// What really happened to an act, whatever was decided (R-71).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Done,
    Refused,
    Fenced,
    Killed,
    None,
}

impl Effect {
    /// Reads the word that guardd and the shims send; `None` for any other word.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "done" => Self::Done,
            "refused" => Self::Refused,
            "fenced" => Self::Fenced,
            "killed" => Self::Killed,
            "none" => Self::None,
            _ => return None,
        })
    }
}

/// One record before it has its place in the chain.
///
/// `principal`, `request`, `decision` and `detail` are JSON that the caller rendered; absent parts are left out.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Box<RawValue>>,
    pub effect: Effect,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u64>,
    /// The policy generation that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// What the other fields have no place for: the act itself, a loss's numbers, a policy's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RawValue>>,
    /// When it happened; RFC 3339, UTC, microseconds.
    #[serde(skip)]
    pub at: jiff::Timestamp,
}

impl Entry {
    /// A record of the given kind and effect, now, with nothing else known.
    pub fn new(kind: Kind, effect: Effect) -> Self {
        Self {
            kind,
            agent_id: None,
            principal: None,
            request: None,
            decision: None,
            effect,
            mechanism: None,
            strength: None,
            pid: None,
            exe: None,
            cgroup: None,
            latency_us: None,
            generation: None,
            detail: None,
            at: jiff::Timestamp::now(),
        }
    }

    /// Adds free-form JSON to the record.
    #[must_use]
    pub fn with_detail(mut self, detail: &impl Serialize) -> Self {
        self.detail = serde_json::value::to_raw_value(detail).ok();
        self
    }
}

/// What can go wrong with the files of the record.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("cannot read the audit directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("cannot open the audit segment {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("cannot read the audit segment {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write the audit segment {}: {source}; free space on its file system", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error(
        "the newest audit segment {} does not end in a readable record (line {line}); move it away to start a new chain, or restore it", path.display()
    )]
    Tail { path: PathBuf, line: u64 },
    #[error("cannot use the audit key {}: {reason}", path.display())]
    Key { path: PathBuf, reason: String },
    #[error("another guard-core keeps the record in {}; two would break its chain", path.display())]
    Locked { path: PathBuf },
    #[error("the audit writer has ended; see the log for why")]
    Ended,
}

/// The segments of a directory (or the one file given), oldest first.
///
/// # Errors
/// [`AuditError::Directory`] if the directory cannot be listed.
pub fn segments(path: &Path) -> Result<Vec<PathBuf>, AuditError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let directory = |source| AuditError::Directory { path: path.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(directory)? {
        let entry = entry.map_err(directory)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if let Some(number) = name.strip_prefix("audit-").and_then(|rest| rest.strip_suffix(".jsonl"))
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The place where a line's hashed part ends, and the hash that the line claims.
pub(crate) fn split_hash(line: &[u8]) -> Option<(&[u8], &str)> {
    const TAIL: usize = r#","hash":""}"#.len() + 64;
    let at = line.len().checked_sub(TAIL)?;
    let (body, tail) = line.split_at(at);
    let hash = tail.strip_prefix(br#","hash":""#)?.strip_suffix(br#""}"#)?;
    let hash = std::str::from_utf8(hash).ok()?;
    hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some((body, hash))
}
