//! What executables hold: SHA-256, once for each state of each inode, on a thread of its own.
//!
//! The file is the one that the process runs, opened while it runs. A hash that is not known yet when a program starts is told
//! afterwards, so that the record of the start waits for nothing.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use guard_proto::v1::{Executable, Observation, observation::Act};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::bpf::LoadError;

/// A larger file is named and not read, bytes.
const LARGEST: u64 = 1 << 30;
/// Executables that wait to be read; one that finds no room is tried again when it is started again.
const WAITING: usize = 64;
/// Executables whose hash is remembered.
const REMEMBERED: usize = 16_384;

/// One state of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    device: u64,
    inode: u64,
    changed: (i64, i64),
    size: u64,
}

impl Key {
    fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            changed: (file.ctime(), file.ctime_nsec()),
            size: file.len(),
        }
    }
}

/// `None` while it is read, and when it could not be.
type Known = Arc<Mutex<HashMap<Key, Option<[u8; 32]>>>>;

/// A file to read, and the cgroup of the process that runs it.
type Job = (Key, File, u64);

/// The way to the thread.
pub(crate) struct Hasher {
    known: Known,
    queue: SyncSender<Job>,
}

impl Hasher {
    /// Starts the thread; it ends when this is dropped, or nobody takes observations any more.
    pub(crate) fn start(sender: mpsc::Sender<Vec<Observation>>) -> Result<Self, LoadError> {
        let (queue, files) = sync_channel(WAITING);
        let known = Known::default();
        let found = Arc::clone(&known);
        std::thread::Builder::new()
            .name("guard-hash".into())
            .spawn(move || run(&files, &found, &sender))
            .map_err(|error| LoadError::Thread { error })?;
        Ok(Self { known, queue })
    }

    /// The hash of a file, or nothing yet: then it is being read, or will be told.
    pub(crate) fn known_or_begin(&self, file: File, metadata: &Metadata, cgroup: u64) -> Option<[u8; 32]> {
        let key = Key::of(metadata);
        let mut known = lock(&self.known);
        if let Some(sum) = known.get(&key) {
            return *sum;
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        if self.queue.try_send((key, file, cgroup)).is_ok() {
            known.insert(key, None);
        }
        None
    }
}

fn lock(known: &Known) -> MutexGuard<'_, HashMap<Key, Option<[u8; 32]>>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(files: &Receiver<Job>, known: &Known, sender: &mpsc::Sender<Vec<Observation>>) {
    while let Ok((key, mut file, cgroup)) = files.recv() {
        let (sum, note) = match hash(key, &mut file) {
            Ok(sum) => (Some(sum), String::new()),
            Err(why) => (None, why),
        };
        lock(known).insert(key, sum);
        if sender.blocking_send(vec![Observation { cgroup, ..told(key, sum, note) }]).is_err() {
            return;
        }
    }
}

fn told(key: Key, sum: Option<[u8; 32]>, note: String) -> Observation {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Observation {
        time_ns: u64::try_from(now).unwrap_or(u64::MAX),
        effect: "none".into(),
        mechanism: "/proc/PID/exe".into(),
        strength: "observed".into(),
        act: Some(Act::Executable(Executable {
            inode: key.inode,
            device: key.device,
            size: key.size,
            sha256: sum.map_or_else(Vec::new, |sum| sum.to_vec()),
            note,
        })),
        ..Observation::default()
    }
}

/// Reads a file to its end; the words of an error are for people.
fn hash(key: Key, file: &mut File) -> Result<[u8; 32], String> {
    if key.size > LARGEST {
        return Err(format!("larger than {LARGEST} bytes"));
    }
    let text = |error: io::Error| error.to_string();
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut left = key.size;
    loop {
        let count = file.read(&mut buffer).map_err(text)?;
        if count == 0 {
            break;
        }
        left = left.checked_sub(count as u64).ok_or("it grew while it was read")?;
        digest.update(&buffer[..count]);
    }
    // What was hashed is what the key names, or it is nothing.
    if Key::of(&file.metadata().map_err(text)?) != key {
        return Err("it changed while it was read".into());
    }
    Ok(digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn executable(observations: &[Observation]) -> &Executable {
        let [Observation { act: Some(Act::Executable(one)), .. }] = observations else {
            panic!("one executable: {observations:?}")
        };
        one
    }

    #[test]
    fn each_state_of_a_file_is_read_once() {
        let (sender, mut receiver) = mpsc::channel(8);
        let hasher = Hasher::start(sender).expect("a thread");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"abc").expect("written");
        let open = || File::open(file.path()).expect("it is there");
        let ask = |hasher: &Hasher| hasher.known_or_begin(open(), &open().metadata().expect("metadata"), 1);
        assert_eq!(ask(&hasher), None);
        let told = receiver.blocking_recv().expect("it is told");
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex::encode(&executable(&told).sha256), sum);
        assert_eq!(ask(&hasher).map(hex::encode).as_deref(), Some(sum));
        assert!(receiver.try_recv().is_err(), "once");
        file.as_file().write_all(b"d").expect("written");
        assert_eq!(ask(&hasher), None, "another state");
        let told = receiver.blocking_recv().expect("it is told");
        assert_eq!((executable(&told).size, executable(&told).note.as_str()), (4, ""));
    }

    #[test]
    fn what_changes_meanwhile_has_no_hash() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"abc").expect("written");
        let mut open = File::open(file.path()).expect("it is there");
        let key = Key::of(&open.metadata().expect("metadata"));
        file.as_file().write_all(b"def").expect("written");
        assert!(hash(key, &mut open).is_err());
        assert!(hash(Key { size: LARGEST + 1, ..key }, &mut open).is_err());
    }
}
