//! Appends to the record, on a thread of its own.
//!
//! Each batch that waits is written with one `write`; `fdatasync` follows at most [`SYNC_WITHIN`] later, at once for
//! records that change what is allowed (policy, approval, override, daemon), at rotation and at close. A crash of
//! the host can thus lose at most one second of decisions; a crash of guard-core loses none that it acknowledged.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use ed25519_dalek::{Signer, SigningKey};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;

use super::{AuditError, CHECKPOINT_EVERY, Entry, GENESIS, Kind, segments, split_hash};

/// The longest time between writing a record and `fdatasync`.
pub const SYNC_WITHIN: Duration = Duration::from_secs(1);
/// Records that may wait for the writer before callers wait in turn.
const QUEUE: usize = 8192;
/// Lines that a slow follower may lag behind before it is told that it missed some.
const FOLLOW: usize = 4096;

/// How long an earlier writer of the same directory may take to end.
const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// Where and how the record is kept.
#[derive(Clone, Debug)]
pub struct Settings {
    pub directory: PathBuf,
    /// File with the 32-byte Ed25519 seed; made with mode 0600 when it is not there.
    pub key: PathBuf,
    /// A new segment begins when the current one has reached this size.
    pub segment_bytes: u64,
}

/// The writer's front: cheap to clone, safe from any thread.
#[derive(Clone)]
pub struct Audit {
    queue: mpsc::SyncSender<Message>,
    lines: broadcast::Sender<Arc<str>>,
    seq: Arc<AtomicU64>,
}

enum Message {
    Record(Box<Entry>),
    /// Called once everything before it is in the file.
    Written(Box<dyn FnOnce() + Send>),
    Close,
}

impl Audit {
    /// Opens the record, continues its chain, and starts the writer.
    ///
    /// A last line that a crash cut short is removed, and a `daemon` record says how many bytes it had.
    ///
    /// # Errors
    /// Any [`AuditError`]; nothing is written then.
    pub fn open(settings: Settings) -> Result<(Self, Writer), AuditError> {
        let (lines, _) = broadcast::channel(FOLLOW);
        let mut chain = Chain::open(settings, lines.clone())?;
        let seq = Arc::new(AtomicU64::new(chain.next_seq.saturating_sub(1)));
        let (queue, messages) = mpsc::sync_channel(QUEUE);
        let counter = Arc::clone(&seq);
        let thread = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || chain.run(&messages, &counter))
            .map_err(|source| AuditError::Open { path: PathBuf::from("audit thread"), source })?;
        Ok((Self { queue: queue.clone(), lines, seq }, Writer { queue, thread: Some(thread) }))
    }

    /// Queues a record; waits when the writer is behind, so that none is dropped.
    ///
    /// # Errors
    /// [`AuditError::Ended`] if the writer has stopped (a full disk, for example).
    pub fn write(&self, entry: Entry) -> Result<(), AuditError> {
        self.queue.send(Message::Record(Box::new(entry))).map_err(|_| AuditError::Ended)
    }

    /// Calls back once every record queued so far is in the file.
    ///
    /// # Errors
    /// [`AuditError::Ended`]
    pub fn when_written(&self, call: impl FnOnce() + Send + 'static) -> Result<(), AuditError> {
        self.queue.send(Message::Written(Box::new(call))).map_err(|_| AuditError::Ended)
    }

    /// Lines as they are written from now on.
    pub fn follow(&self) -> broadcast::Receiver<Arc<str>> {
        self.lines.subscribe()
    }

    /// Number of the last record written; 0 before the first.
    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }
}

/// Owns the writer's thread; closing it writes a last checkpoint and syncs.
pub struct Writer {
    queue: mpsc::SyncSender<Message>,
    thread: Option<JoinHandle<Result<(), AuditError>>>,
}

impl Writer {
    /// Writes what waits, a signed checkpoint, and syncs.
    ///
    /// # Errors
    /// What the writer met last.
    pub fn close(mut self) -> Result<(), AuditError> {
        // A writer that has already ended cannot take the message; its result says why.
        let _ = self.queue.send(Message::Close);
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Err(AuditError::Ended)))
    }
}

/// A record in its place in the chain, without its hash.
#[derive(Serialize)]
struct Line<'a, T> {
    seq: u64,
    ts: String,
    prev: &'a str,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct Checkpoint {
    kind: &'static str,
    checkpoint: Signed,
}

/// What a checkpoint signs: everything up to and including record `seq`, whose hash is `hash`.
#[derive(Serialize)]
struct Signed {
    seq: u64,
    hash: String,
    key: String,
    sig: String,
}

/// The bytes that a checkpoint's signature covers (RFC 8785 form: keys sorted, no blanks).
pub(crate) fn checkpoint_message(seq: u64, hash: &str) -> String {
    format!(r#"{{"hash":"{hash}","kind":"checkpoint","seq":{seq},"v":1}}"#)
}

struct Chain {
    settings: Settings,
    key: SigningKey,
    file: File,
    path: PathBuf,
    size: u64,
    next_seq: u64,
    prev: String,
    since_checkpoint: u64,
    lines: broadcast::Sender<Arc<str>>,
    cut: u64,
    /// Held as long as this process writes here.
    _lock: File,
}

impl Chain {
    fn open(settings: Settings, lines: broadcast::Sender<Arc<str>>) -> Result<Self, AuditError> {
        let lock = lock(&settings.directory)?;
        let key = load_key(&settings.key)?;
        let last = segments(&settings.directory)?.pop();
        let (path, next_seq, prev, cut) = match last {
            Some(path) => {
                let tail = read_tail(&path)?;
                (path, tail.seq + 1, tail.hash, tail.cut)
            }
            None => (segment_path(&settings.directory, 1), 1, GENESIS.to_owned(), 0),
        };
        let (file, size) = open_segment(&path)?;
        let mut chain = Self {
            settings,
            key,
            file,
            path,
            size,
            next_seq,
            prev,
            since_checkpoint: 0,
            lines,
            cut,
            _lock: lock,
        };
        if chain.size >= chain.settings.segment_bytes {
            chain.rotate()?;
        }
        Ok(chain)
    }

    fn run(&mut self, messages: &mpsc::Receiver<Message>, counter: &AtomicU64) -> Result<(), AuditError> {
        let result = self.serve(messages, counter);
        if let Err(error) = &result {
            tracing::error!(%error, "the audit record cannot be kept");
        }
        result
    }

    fn serve(&mut self, messages: &mpsc::Receiver<Message>, counter: &AtomicU64) -> Result<(), AuditError> {
        let mut buffer = String::new();
        let mut unsynced: Option<Instant> = None;
        if self.cut > 0 {
            let note = serde_json::json!({"event": "unfinished record removed", "bytes": self.cut});
            self.append(&mut buffer, Entry::new(Kind::Daemon, super::Effect::None).with_detail(&note));
        }
        loop {
            let wait = unsynced
                .map_or(Duration::from_secs(3600), |since| SYNC_WITHIN.saturating_sub(since.elapsed()));
            let first = match messages.recv_timeout(wait) {
                Ok(message) => Some(message),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => Some(Message::Close),
            };
            let mut sync = first.is_none();
            let mut close = false;
            let mut taken = first;
            let mut count = 0;
            let mut calls = Vec::new();
            while let Some(message) = taken {
                match message {
                    Message::Record(entry) => {
                        sync |= !matches!(entry.kind, Kind::Decision | Kind::Loss);
                        self.append(&mut buffer, *entry);
                        count += 1;
                    }
                    Message::Written(call) => calls.push(call),
                    Message::Close => {
                        close = true;
                        break;
                    }
                }
                taken = if count < QUEUE { messages.try_recv().ok() } else { None };
            }
            if close && self.next_seq > 1 {
                self.checkpoint(&mut buffer);
            }
            if !buffer.is_empty() {
                self.flush(&mut buffer)?;
                counter.store(self.next_seq - 1, Ordering::Relaxed);
                unsynced.get_or_insert_with(Instant::now);
            }
            for call in calls {
                call();
            }
            if sync || close || unsynced.is_some_and(|since| since.elapsed() >= SYNC_WITHIN) {
                self.sync()?;
                unsynced = None;
            }
            if close {
                return Ok(());
            }
            if self.size >= self.settings.segment_bytes {
                self.rotate()?;
                unsynced = None;
            }
        }
    }

    fn append(&mut self, buffer: &mut String, entry: Entry) {
        let ts = format!("{:.6}", entry.at);
        self.push(buffer, ts, entry);
        if self.since_checkpoint >= CHECKPOINT_EVERY {
            self.checkpoint(buffer);
        }
    }

    fn checkpoint(&mut self, buffer: &mut String) {
        let seq = self.next_seq - 1;
        let sig = self.key.sign(checkpoint_message(seq, &self.prev).as_bytes());
        let checkpoint = Signed {
            seq,
            hash: self.prev.clone(),
            key: BASE64_STANDARD.encode(self.key.verifying_key().as_bytes()),
            sig: BASE64_STANDARD.encode(sig.to_bytes()),
        };
        let ts = format!("{:.6}", jiff::Timestamp::now());
        self.push(buffer, ts, Checkpoint { kind: "checkpoint", checkpoint });
        self.since_checkpoint = 0;
    }

    fn push(&mut self, buffer: &mut String, ts: String, body: impl Serialize) {
        let line = Line { seq: self.next_seq, ts, prev: &self.prev, body };
        // All parts are plain data or JSON that was rendered before: rendering cannot fail.
        let mut text = serde_json::to_string(&line).unwrap_or_else(|error| {
            format!(
                r#"{{"seq":{},"ts":"{}","prev":"{}","kind":"daemon","effect":"none","detail":{{"unrenderable":{:?}}}}}"#,
                line.seq, line.ts, line.prev, error.to_string()
            )
        });
        text.pop();
        let hash = hex::encode(Sha256::digest(text.as_bytes()));
        text.push_str(r#","hash":""#);
        text.push_str(&hash);
        text.push_str(r#""}"#);
        buffer.push_str(&text);
        buffer.push('\n');
        // Nobody may be following.
        let _ = self.lines.send(Arc::from(text));
        self.prev = hash;
        self.next_seq += 1;
        self.since_checkpoint += 1;
    }

    fn flush(&mut self, buffer: &mut String) -> Result<(), AuditError> {
        self.file
            .write_all(buffer.as_bytes())
            .map_err(|source| AuditError::Write { path: self.path.clone(), source })?;
        self.size += buffer.len() as u64;
        buffer.clear();
        Ok(())
    }

    fn sync(&self) -> Result<(), AuditError> {
        self.file.sync_data().map_err(|source| AuditError::Write { path: self.path.clone(), source })
    }

    fn rotate(&mut self) -> Result<(), AuditError> {
        self.sync()?;
        self.path = segment_path(&self.settings.directory, self.next_seq);
        (self.file, self.size) = open_segment(&self.path)?;
        Ok(())
    }
}

/// One writer a directory; a writer that is about to end is waited for.
fn lock(directory: &Path) -> Result<File, AuditError> {
    let path = directory.join("lock");
    let open = |source| AuditError::Open { path: path.clone(), source };
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(open)?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::Error(source)) => return Err(open(source)),
            Err(std::fs::TryLockError::WouldBlock) if since.elapsed() >= LOCK_WITHIN => {
                return Err(AuditError::Locked { path: directory.to_owned() });
            }
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn segment_path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("audit-{first:012}.jsonl"))
}

fn open_segment(path: &Path) -> Result<(File, u64), AuditError> {
    let open = |source| AuditError::Open { path: path.to_owned(), source };
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path).map_err(open)?;
    let size = file.metadata().map_err(open)?.len();
    Ok((file, size))
}

struct Tail {
    seq: u64,
    hash: String,
    /// Bytes of an unfinished last line that were removed.
    cut: u64,
}

/// Finds where the chain of a segment ends; cuts off a last line without a line feed.
fn read_tail(path: &Path) -> Result<Tail, AuditError> {
    let read = |source| AuditError::Read { path: path.to_owned(), source };
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(read)?;
    let size = file.metadata().map_err(read)?.len();
    let mut reader = BufReader::new(&file);
    let (mut line, mut last, mut number, mut end) = (Vec::new(), Vec::new(), 0, 0);
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line).map_err(read)?;
        if count == 0 || line.last() != Some(&b'\n') {
            break;
        }
        end += count as u64;
        number += 1;
        std::mem::swap(&mut line, &mut last);
    }
    drop(reader);
    let cut = size - end;
    if cut > 0 {
        file.set_len(end).map_err(read)?;
    }
    if last.is_empty() {
        return empty_tail(path, cut);
    }
    last.pop();
    let tail = || AuditError::Tail { path: path.to_owned(), line: number };
    let (body, hash) = split_hash(&last).ok_or_else(tail)?;
    if hex::encode(Sha256::digest(body)) != hash {
        return Err(tail());
    }
    #[derive(serde::Deserialize)]
    struct Seq {
        seq: u64,
    }
    let seq: Seq = serde_json::from_slice(&last).map_err(|_| tail())?;
    file.seek(SeekFrom::End(0)).map_err(read)?;
    Ok(Tail { seq: seq.seq, hash: hash.to_owned(), cut })
}

/// A segment that was opened and never written: the chain ends in the one before it.
fn empty_tail(path: &Path, cut: u64) -> Result<Tail, AuditError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let before = segments(directory)?.into_iter().rev().find(|other| other.as_path() < path);
    match before {
        Some(before) => Ok(Tail { cut, ..read_tail(&before)? }),
        None => Ok(Tail { seq: 0, hash: GENESIS.to_owned(), cut }),
    }
}

fn load_key(path: &Path) -> Result<SigningKey, AuditError> {
    let failed = |reason: String| AuditError::Key { path: path.to_owned(), reason };
    let mut seed = [0; 32];
    match File::open(path) {
        Ok(mut file) => {
            file.read_exact(&mut seed).map_err(|error| failed(format!("{error}; it must hold 32 bytes")))?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            getrandom::fill(&mut seed).map_err(|error| failed(error.to_string()))?;
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)
                .and_then(|mut file| file.write_all(&seed).and_then(|()| file.sync_all()))
                .map_err(|error| failed(error.to_string()))?;
        }
        Err(error) => return Err(failed(error.to_string())),
    }
    Ok(SigningKey::from_bytes(&seed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{Effect, verify::verify};

    fn settings(directory: &Path, segment_bytes: u64) -> Settings {
        Settings { directory: directory.to_owned(), key: directory.join("key"), segment_bytes }
    }

    fn write(directory: &Path, count: usize, segment_bytes: u64) {
        let (audit, writer) = Audit::open(settings(directory, segment_bytes)).expect("open");
        for number in 0..count {
            audit.write(Entry::new(Kind::Decision, Effect::Done).with_detail(&number)).expect("write");
        }
        writer.close().expect("close");
    }

    /// M-050: what was written is found whole, over restarts and rotations.
    #[test]
    fn a_chain_continues_over_restart_and_rotation() {
        let directory = tempfile::tempdir().expect("tempdir");
        for _ in 0..3 {
            write(directory.path(), 50, 2_000);
        }
        assert!(segments(directory.path()).expect("segments").len() > 1);
        let report = verify(directory.path(), None).expect("verify");
        assert!(report.ok, "{report:?}");
        assert_eq!(report.records, 3 * 51);
    }

    #[test]
    fn each_flipped_byte_is_found_with_its_record() {
        let directory = tempfile::tempdir().expect("tempdir");
        write(directory.path(), 5, u64::MAX);
        let path = segments(directory.path()).expect("segments").remove(0);
        let whole = std::fs::read(&path).expect("read");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x01;
            let expected = 1 + whole[..at].iter().filter(|&&byte| byte == b'\n').count() as u64;
            std::fs::write(&path, &bytes).expect("write");
            let report = verify(directory.path(), None).expect("verify");
            let bad = report.first_bad.unwrap_or_else(|| panic!("byte {at} flipped unnoticed"));
            assert_eq!(bad.line, expected, "byte {at} of line {expected}: {bad:?}");
        }
    }

    #[test]
    fn a_second_writer_is_refused() {
        let directory = tempfile::tempdir().expect("tempdir");
        let (_audit, writer) = Audit::open(settings(directory.path(), u64::MAX)).expect("open");
        let second = Audit::open(settings(directory.path(), u64::MAX)).map(drop);
        assert!(matches!(second, Err(AuditError::Locked { .. })), "{second:?}");
        writer.close().expect("close");
        Audit::open(settings(directory.path(), u64::MAX)).expect("the first has ended");
    }

    #[test]
    fn a_line_cut_by_a_crash_is_removed_and_said() {
        let directory = tempfile::tempdir().expect("tempdir");
        write(directory.path(), 5, u64::MAX);
        let path = segments(directory.path()).expect("segments").remove(0);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, &whole[..whole.len() - 30]).expect("write");
        write(directory.path(), 1, u64::MAX);
        let report = verify(directory.path(), None).expect("verify");
        assert!(report.ok, "{report:?}");
        let text = std::fs::read_to_string(&path).expect("read");
        assert!(text.contains("unfinished record removed"), "{text}");
    }
}
