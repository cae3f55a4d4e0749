//! `eval`: requests from stdin, decisions to stdout, offline under files or over gRPC under the daemon's policy.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use guard_policy::{
    Fault, Policy,
    eval::Evaluator,
    request::{Line, MAX_REQUEST_BYTES},
};
use guard_proto::v1::{self, policy_client::PolicyClient};

use super::{CliError, connection::talk};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 18;
/// Batches of lines that are read ahead.
const BATCHES: usize = 4;

#[derive(Debug, clap::Args)]
pub(super) struct Eval {
    #[command(flatten)]
    files: Files,
}

/// The operator's files that an offline command reads.
#[derive(Debug, clap::Args)]
pub(super) struct Files {
    /// Policy file; without one only the built-in defaults hold
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Managed policy file
    #[arg(long, value_name = "FILE")]
    pub managed: Option<PathBuf>,
}

impl Files {
    pub(super) fn is_empty(&self) -> bool {
        self.policy.is_none() && self.managed.is_none()
    }

    /// Reads them; every fault is its own line on stderr.
    pub(super) fn load(&self) -> Result<Policy, CliError> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(contents).transpose();
        let (policy, managed) = (read(&self.policy)?, read(&self.managed)?);
        fn part(part: &Option<(String, Vec<u8>)>) -> Option<(&str, &[u8])> {
            part.as_ref().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        }
        Policy::load(part(&policy), part(&managed)).map_err(|faults| {
            let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
            CliError::faults(lines.join("\n"))
        })
    }
}

/// A file with the name that faults give it.
pub(super) fn contents(path: &Path) -> Result<(String, Vec<u8>), CliError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok((path.display().to_string(), bytes)),
        Err(error) => {
            Err(CliError::refused("file_unreadable", format!("cannot read {}: {error}", path.display())))
        }
    }
}

impl Eval {
    pub(super) fn run(self, named: Option<&Path>) -> Result<ExitCode, CliError> {
        let stdin = io::stdin();
        let stdout = io::stdout().lock();
        match named {
            Some(_) if !self.files.is_empty() => Err(CliError::usage(
                "--socket asks the daemon, which has its own policy; leave out either it or the files",
            )),
            Some(socket) => remote(socket, stdin, stdout),
            None => local(Evaluator::new(self.files.load()?), stdin, stdout),
        }
    }
}

/// What lines come in and what answers go out.
struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// The line that is being read is too long already; what is left of it is dropped.
    overlong: bool,
    end: bool,
}

/// One line of the input.
enum Piece<'a> {
    Line(&'a [u8]),
    TooLong,
}

impl<R: Read> Lines<R> {
    fn new(input: R) -> Self {
        Self { input, buffer: Vec::with_capacity(2 * CHUNK), overlong: false, end: false }
    }

    /// Waits for input and gives every line that is complete now; `false` at the end.
    fn next(&mut self, mut take: impl FnMut(Piece<'_>)) -> io::Result<bool> {
        let before = self.buffer.len();
        self.buffer.resize(before + CHUNK, 0);
        let read = loop {
            match self.input.read(&mut self.buffer[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.buffer.truncate(before + read);
        self.end = read == 0;
        let mut start = 0;
        let mut search = before;
        while let Some(at) = memchr::memchr(b'\n', &self.buffer[search..]) {
            let line = &self.buffer[start..search + at];
            if std::mem::take(&mut self.overlong) || line.len() > MAX_REQUEST_BYTES + 1 {
                take(Piece::TooLong);
            } else {
                take(Piece::Line(line));
            }
            start = search + at + 1;
            search = start;
        }
        self.buffer.drain(..start);
        if self.buffer.len() > MAX_REQUEST_BYTES + 1 {
            self.overlong = true;
            self.buffer.clear();
        }
        if self.end && (self.overlong || !self.buffer.is_empty()) {
            take(if self.overlong { Piece::TooLong } else { Piece::Line(&self.buffer) });
        }
        Ok(!self.end)
    }
}

fn broken(error: &io::Error) -> CliError {
    CliError::refused("input_unreadable", format!("cannot read the requests: {error}"))
}

/// Writes what is ready; a reader that went away ends us quietly.
fn flush(output: &mut impl Write, answers: &mut Vec<u8>) {
    if output.write_all(answers).and_then(|()| output.flush()).is_err() {
        std::process::exit(0);
    }
    answers.clear();
}

/// What was read of a line; none for a blank one.
type Parsed = Option<Result<Line, (Fault, Option<String>)>>;

/// One thread reads lines, which needs no state; this one judges them in their order.
fn local(
    mut evaluator: Evaluator,
    input: impl Read + Send,
    mut output: impl Write,
) -> Result<ExitCode, CliError> {
    let (batches, receiver) = std::sync::mpsc::sync_channel::<Vec<Parsed>>(BATCHES);
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut lines = Lines::new(input);
            loop {
                let mut batch = Vec::new();
                let more = lines.next(|piece| {
                    batch.push(match piece {
                        Piece::Line(line) => Evaluator::read(line),
                        Piece::TooLong => Some(Err(Evaluator::too_large())),
                    });
                });
                // The other end is there until this one is gone.
                let gone = batches.send(batch).is_err();
                if gone || !more? {
                    return Ok(());
                }
            }
        });
        let mut answers = Vec::with_capacity(CHUNK);
        for batch in receiver {
            for read in batch {
                evaluator.answer(read, jiff::Timestamp::now, &mut answers);
                if answers.len() >= CHUNK {
                    flush(&mut output, &mut answers);
                }
            }
            flush(&mut output, &mut answers);
        }
        reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader failed")))
    });
    read.map_err(|error: io::Error| broken(&error))?;
    Ok(ExitCode::from(u8::from(evaluator.faulty())))
}

/// The same over gRPC. A line with a fault is answered here, by the same reader that the daemon has.
fn remote(socket: &Path, input: impl Read, mut output: impl Write) -> Result<ExitCode, CliError> {
    talk(socket, |channel| async move {
        let mut client =
            PolicyClient::new(channel).max_encoding_message_size(4 << 20).max_decoding_message_size(64 << 20);
        let mut lines = Lines::new(input);
        // Counts lines and tells faults; what is no fault never reaches its engine.
        let mut reader = Evaluator::new(Policy::builtin());
        let mut answers = Vec::new();
        loop {
            let mut pieces = Vec::new();
            let more = lines.next(|piece| {
                pieces.push(match piece {
                    Piece::Line(line) => Some(line.to_vec()),
                    Piece::TooLong => None,
                });
            });
            for piece in pieces {
                let Some(line) = piece else {
                    reader.answer(Some(Err(Evaluator::too_large())), jiff::Timestamp::now, &mut answers);
                    continue;
                };
                match Evaluator::read(&line) {
                    Some(Ok(_)) => {
                        reader.skip();
                        let request = line.strip_suffix(b"\r").unwrap_or(&line).to_vec();
                        let request = v1::DecideRequest { request, probe: false };
                        let response = client.decide(request).await?.into_inner();
                        answers.extend_from_slice(&response.decision);
                        answers.push(b'\n');
                    }
                    other => reader.answer(other, jiff::Timestamp::now, &mut answers),
                }
            }
            flush(&mut output, &mut answers);
            if !more.map_err(|error| broken(&error))? {
                break;
            }
        }
        Ok(ExitCode::from(u8::from(reader.faulty())))
    })
}
