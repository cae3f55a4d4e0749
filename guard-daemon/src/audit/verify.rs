//! Reads the record back and names the first record that is not as it was written. Needs no daemon.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ed25519_dalek::{Signature, VerifyingKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{AuditError, GENESIS, segments, split_hash, writer::checkpoint_message};

/// What a verification found.
#[derive(Debug, Serialize)]
pub struct Report {
    pub ok: bool,
    /// Records read and found good.
    pub records: u64,
    /// Signed checkpoints among them.
    pub checkpoints: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_bad: Option<Bad>,
}

/// The first record that is wrong.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Bad {
    pub file: PathBuf,
    /// Line in the file, from 1.
    pub line: u64,
    /// The record's number: what it should be, whatever the line says.
    pub seq: u64,
    pub reason: Reason,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Hash,
    Prev,
    Seq,
    Form,
    Signature,
    Truncated,
}

#[derive(Deserialize)]
struct Read<'a> {
    seq: u64,
    prev: &'a str,
    #[serde(borrow)]
    checkpoint: Option<Checkpoint<'a>>,
}

#[derive(Deserialize)]
struct Checkpoint<'a> {
    seq: u64,
    hash: &'a str,
    key: &'a str,
    sig: &'a str,
}

/// Checks every record of a directory (or one segment). With `key` (base64 of the 32-byte public key) checkpoints by another key
/// are bad; without, each checkpoint must be signed by the key that it names.
///
/// A single segment, and a directory whose oldest segments were archived, are checked from their first record on.
///
/// # Errors
/// [`AuditError`] if the files cannot be read; a bad record is a result, not an error.
pub fn verify(path: &Path, key: Option<&str>) -> Result<Report, AuditError> {
    let mut walk =
        Walk { key, keys: HashMap::new(), next: None, prev: String::new(), records: 0, checkpoints: 0 };
    for segment in segments(path)? {
        if let Some(bad) = walk.segment(&segment)? {
            return Ok(Report {
                ok: false,
                records: walk.records,
                checkpoints: walk.checkpoints,
                first_bad: Some(bad),
            });
        }
    }
    Ok(Report { ok: true, records: walk.records, checkpoints: walk.checkpoints, first_bad: None })
}

struct Walk<'a> {
    key: Option<&'a str>,
    keys: HashMap<String, VerifyingKey>,
    /// Number that the next record must have; unknown before the first.
    next: Option<u64>,
    prev: String,
    records: u64,
    checkpoints: u64,
}

impl Walk<'_> {
    fn segment(&mut self, path: &Path) -> Result<Option<Bad>, AuditError> {
        let file = File::open(path).map_err(|source| AuditError::Open { path: path.to_owned(), source })?;
        let mut reader = BufReader::with_capacity(1 << 18, file);
        let mut line = Vec::new();
        let first = first_seq(path);
        for number in 1.. {
            line.clear();
            let count = reader
                .read_until(b'\n', &mut line)
                .map_err(|source| AuditError::Read { path: path.to_owned(), source })?;
            if count == 0 {
                break;
            }
            if let Err(reason) = self.line(&line, if number == 1 { first } else { None }) {
                let seq = self.next.or(first).unwrap_or(1);
                return Ok(Some(Bad { file: path.to_owned(), line: number, seq, reason }));
            }
        }
        Ok(None)
    }

    fn line(&mut self, line: &[u8], first: Option<u64>) -> Result<(), Reason> {
        let line = line.strip_suffix(b"\n").ok_or(Reason::Truncated)?;
        let (body, hash) = split_hash(line).ok_or(Reason::Form)?;
        if hex::encode(Sha256::digest(body)) != hash {
            return Err(Reason::Hash);
        }
        let record: Read<'_> = serde_json::from_slice(line).map_err(|_| Reason::Form)?;
        let expected = self.next.or(first).unwrap_or(record.seq);
        if record.seq != expected || first.is_some_and(|first| first != record.seq) {
            return Err(Reason::Seq);
        }
        let prev = match self.next {
            Some(_) => self.prev.as_str(),
            None if record.seq == 1 => GENESIS,
            None => record.prev,
        };
        if record.prev != prev {
            return Err(Reason::Prev);
        }
        if let Some(checkpoint) = record.checkpoint {
            self.checkpoint(&checkpoint, record.seq, record.prev)?;
        }
        self.next = Some(record.seq + 1);
        hash.clone_into(&mut self.prev);
        self.records += 1;
        Ok(())
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint<'_>, seq: u64, prev: &str) -> Result<(), Reason> {
        if checkpoint.seq + 1 != seq || checkpoint.hash != prev {
            return Err(Reason::Signature);
        }
        if self.key.is_some_and(|key| key != checkpoint.key) {
            return Err(Reason::Signature);
        }
        let key = match self.keys.get(checkpoint.key) {
            Some(key) => *key,
            None => {
                let key = read_key(checkpoint.key).ok_or(Reason::Signature)?;
                self.keys.insert(checkpoint.key.to_owned(), key);
                key
            }
        };
        let bytes = BASE64_STANDARD.decode(checkpoint.sig).map_err(|_| Reason::Signature)?;
        let signature = Signature::from_slice(&bytes).map_err(|_| Reason::Signature)?;
        key.verify_strict(checkpoint_message(checkpoint.seq, checkpoint.hash).as_bytes(), &signature)
            .map_err(|_| Reason::Signature)?;
        self.checkpoints += 1;
        Ok(())
    }
}

fn read_key(text: &str) -> Option<VerifyingKey> {
    let bytes: [u8; 32] = BASE64_STANDARD.decode(text).ok()?.try_into().ok()?;
    VerifyingKey::from_bytes(&bytes).ok()
}

/// The number that a segment's name promises for its first record.
fn first_seq(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("audit-")?.strip_suffix(".jsonl")?.parse().ok()
}
