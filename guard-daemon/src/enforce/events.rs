//! The thread that empties the rings.
//!
//! Denials first. Each record becomes an [`Observation`]; each second the kernel's counters are compared with
//! what arrived, and what is missing becomes a `Loss`. When nobody takes the observations the thread waits, the
//! rings fill, the programs go on and the counters know how much was lost.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::maps::{PerCpuArray, RingBuf};
use aya::{Ebpf, Pod};
use guard_common::event::{Counters, Header, Kind};
use guard_proto::v1::{self, Observation, observation::Act};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::mpsc;

use super::bpf::{Data, LoadError, take_map};
use super::hash::Hasher;
use super::processes::Processes;
use super::record::{Event, decode};
use super::table::Names;
use super::translate::{Clock, Translator};

/// Observations in one batch.
const BATCH: usize = 256;
/// Batches that wait for a taker.
const BATCHES: usize = 64;
/// How often the counters are looked at.
const RECONCILE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct CounterBytes(Counters);
// SAFETY: five words of 64 bits; any bit pattern is a value.
unsafe impl Pod for CounterBytes {}

/// What became of the kernel's records, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records that the programs wanted to write.
    pub seen: u64,
    /// Records that they wrote.
    pub submitted: u64,
    /// Records for which there was no room.
    pub lost: u64,
    /// Records that were cut.
    pub oversized: u64,
    /// Things that could not be kept in mind, so that no record of them came.
    pub map_full: u64,
    /// Records that this process read.
    pub read: u64,
}

/// The same for each kind of record.
pub type TotalsByKind = HashMap<Kind, Totals>;

/// The thread, and what it shares.
pub(crate) struct Reader {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    totals: Arc<Mutex<TotalsByKind>>,
}

impl Reader {
    /// Starts the thread on the rings of a loaded object.
    ///
    /// Events of the self-test's canary go to `canary` and nowhere else.
    pub(crate) fn start(
        bpf: &mut Ebpf,
        names: Arc<RwLock<Names>>,
        processes: Arc<Processes>,
        canary: std::sync::mpsc::Sender<Event>,
    ) -> Result<(Self, mpsc::Receiver<Vec<Observation>>), LoadError> {
        let denials = RingBuf::try_from(take_map(bpf, "DENIALS")?).map_err(|_| LoadError::Part("DENIALS"))?;
        let events = RingBuf::try_from(take_map(bpf, "EVENTS")?).map_err(|_| LoadError::Part("EVENTS"))?;
        let counters =
            PerCpuArray::try_from(take_map(bpf, "COUNTERS")?).map_err(|_| LoadError::Part("COUNTERS"))?;
        let system = |error: rustix::io::Errno| LoadError::Thread { error: error.into() };
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(system)?);
        let (sender, receiver) = mpsc::channel(BATCHES);
        let ledger = Ledger::new(counters);
        let totals = Arc::clone(&ledger.totals);
        let mut pump = Pump {
            rings: [denials, events],
            ledger,
            processes: Arc::clone(&processes),
            translator: Translator::new(names, processes, canary, Hasher::start(sender.clone())?),
            sender,
            batch: Vec::new(),
        };
        let until = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("guard-events".into())
            .spawn(move || pump.run(until.as_fd()))
            .map_err(|error| LoadError::Thread { error })?;
        Ok((Self { stop, thread: Some(thread), totals }, receiver))
    }

    /// What the counters said at the last comparison, at most a second ago.
    pub(crate) fn totals(&self) -> TotalsByKind {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Nobody takes observations any more.
struct Closed;

struct Pump {
    /// Denials first.
    rings: [RingBuf<Data>; 2],
    ledger: Ledger,
    translator: Translator,
    processes: Arc<Processes>,
    sender: mpsc::Sender<Vec<Observation>>,
    batch: Vec<Observation>,
}

impl Pump {
    fn run(&mut self, stop: BorrowedFd<'_>) {
        let mut next = Instant::now() + RECONCILE;
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            match self.wait(stop, wait) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for the kernel's records");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            if self.drain(stop).is_err() {
                return;
            }
            if Instant::now() >= next {
                next = Instant::now() + RECONCILE;
                self.batch.extend(self.ledger.reconcile());
                self.processes.tidy();
            }
            if self.flush(stop).is_err() {
                return;
            }
        }
    }

    /// Waits for a record; says whether the thread is to stop.
    fn wait(&self, stop: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
        let [denials, events] = &self.rings;
        let mut watched = [
            PollFd::new(&stop, PollFlags::IN),
            PollFd::new(denials, PollFlags::IN),
            PollFd::new(events, PollFlags::IN),
        ];
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut watched, Some(&limit)) {
            Ok(_) => Ok(!watched[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes all there is; after each record of the second ring the first is looked at again.
    fn drain(&mut self, stop: BorrowedFd<'_>) -> Result<(), Closed> {
        self.translator.clock = Clock::now();
        loop {
            let [denials, events] = &mut self.rings;
            let Some(item) = denials.next().or_else(|| events.next()) else { return Ok(()) };
            match decode(&item) {
                Ok(event) => {
                    drop(item);
                    self.ledger.arrived(event.header());
                    self.batch.extend(self.translator.translate(event));
                }
                Err(error) => {
                    drop(item);
                    tracing::error!(%error, "the kernel wrote a record that cannot be read");
                    self.batch.push(loss("denial", 1, 0, 0));
                }
            }
            if self.batch.len() >= BATCH {
                self.flush(stop)?;
            }
        }
    }

    /// Hands the batch over, waiting for room, but not beyond the end of this thread.
    fn flush(&mut self, stop: BorrowedFd<'_>) -> Result<(), Closed> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        loop {
            match self.sender.try_send(batch) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(Closed),
                Err(mpsc::error::TrySendError::Full(back)) => batch = back,
            }
            let limit = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            let stopped = poll(&mut [PollFd::new(&stop, PollFlags::IN)], Some(&limit));
            if stopped.is_ok_and(|ready| ready > 0) {
                return Err(Closed);
            }
        }
    }
}

/// What has arrived, against what the kernel counted.
struct Ledger {
    counters: PerCpuArray<Data, CounterBytes>,
    /// By CPU and kind: last sequence number, losses already reported, first and last missing number since.
    lines: HashMap<(u32, u32), Line>,
    totals: Arc<Mutex<TotalsByKind>>,
}

#[derive(Default)]
struct Line {
    last: u64,
    reported: u64,
    /// What could not be kept in mind, as reported already.
    forgotten: u64,
    read: u64,
    missing: Option<(u64, u64)>,
}

impl Ledger {
    /// What an earlier process lost, it reported or took with it; counting starts from here.
    fn new(counters: PerCpuArray<Data, CounterBytes>) -> Self {
        let mut ledger = Self { counters, lines: HashMap::new(), totals: Arc::default() };
        for (cpu, kind, now) in ledger.read() {
            let line = Line { reported: now.ring_full, forgotten: now.map_full, ..Line::default() };
            ledger.lines.insert((cpu, kind as u32), line);
        }
        ledger
    }

    fn arrived(&mut self, header: &Header) {
        let line = self.lines.entry((header.cpu, header.kind)).or_default();
        if line.last != 0 && header.sequence > line.last + 1 {
            let (first, last) = (line.last + 1, header.sequence - 1);
            line.missing = Some(line.missing.map_or((first, last), |(earlier, _)| (earlier, last)));
        }
        line.last = line.last.max(header.sequence);
        line.read += 1;
    }

    fn read(&self) -> Vec<(u32, Kind, Counters)> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            let Ok(values) = self.counters.get(&(kind as u32), 0) else { continue };
            all.extend((0..).zip(values.iter()).map(|(cpu, value)| (cpu, kind, value.0)));
        }
        all
    }

    fn reconcile(&mut self) -> Vec<Observation> {
        let mut losses = Vec::new();
        let all = self.read();
        let mut totals = TotalsByKind::new();
        for (cpu, kind, now) in &all {
            let sum = totals.entry(*kind).or_default();
            sum.seen += now.seen;
            sum.submitted += now.submitted;
            sum.lost += now.ring_full;
            sum.oversized += now.oversized;
            sum.map_full += now.map_full;
            sum.read += self.lines.get(&(*cpu, *kind as u32)).map_or(0, |line| line.read);
        }
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
        for (cpu, kind, now) in all {
            let line = self.lines.entry((cpu, kind as u32)).or_default();
            let lost = now.ring_full.saturating_sub(line.reported);
            if lost > 0 {
                line.reported = now.ring_full;
                let (first, last) = line.missing.take().unwrap_or((line.last + 1, now.seen));
                losses.push(loss(kind.loss_class(), lost, first, last));
            }
            // These never had a number.
            let forgotten = now.map_full.saturating_sub(line.forgotten);
            if forgotten > 0 {
                line.forgotten = now.map_full;
                losses.push(loss(kind.loss_class(), forgotten, 0, 0));
            }
        }
        losses
    }
}

fn loss(class: &str, count: u64, first_seq: u64, last_seq: u64) -> Observation {
    Observation {
        time_ns: Clock::now().unix_ns,
        effect: "none".into(),
        mechanism: "ring buffer".into(),
        strength: "observed".into(),
        act: Some(Act::Loss(v1::Loss { class: class.into(), count, first_seq, last_seq })),
        ..Observation::default()
    }
}
