//! The thread that empties the rings.
//!
//! Denials first. Each record becomes an [`Observation`]; each second the kernel's counters are compared with
//! what arrived, and what is missing becomes a `Loss`. When nobody takes the observations the thread waits, the
//! rings fill, the programs go on and the counters know how much was lost.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::maps::{PerCpuArray, RingBuf};
use aya::{Ebpf, Pod};
use guard_common::address::classify;
use guard_common::event::{Counters, Header, Kind};
use guard_common::network::Verdict;
use guard_proto::v1::{self, Observation, observation::Act};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

use super::bpf::{Data, LoadError, take_map};
use super::record::{Event, Judged, RefusedSocket, Started, decode};
use super::table::Names;

/// Observations in one batch.
const BATCH: usize = 256;
/// Batches that wait for a taker.
const BATCHES: usize = 64;
/// How often the counters are looked at.
const RECONCILE: Duration = Duration::from_secs(1);
/// Processes of which the executable is remembered.
const REMEMBERED: usize = 65_536;

#[derive(Clone, Copy)]
#[repr(transparent)]
struct CounterBytes(Counters);
// SAFETY: three words of 64 bits; any bit pattern is a value.
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
}

/// The thread, and what it shares.
pub(crate) struct Reader {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    totals: Arc<Mutex<Totals>>,
}

impl Reader {
    /// Starts the thread on the rings of a loaded object.
    ///
    /// Events of the self-test's canary go to `canary` and nowhere else.
    pub(crate) fn start(
        bpf: &mut Ebpf,
        names: Arc<RwLock<Names>>,
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
            translator: Translator::new(names, canary),
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
    pub(crate) fn totals(&self) -> Totals {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner)
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
    totals: Arc<Mutex<Totals>>,
}

#[derive(Default)]
struct Line {
    last: u64,
    reported: u64,
    missing: Option<(u64, u64)>,
}

impl Ledger {
    /// What an earlier process lost, it reported or took with it; counting starts from here.
    fn new(counters: PerCpuArray<Data, CounterBytes>) -> Self {
        let mut ledger = Self { counters, lines: HashMap::new(), totals: Arc::default() };
        for (cpu, kind, now) in ledger.read() {
            let line = Line { last: 0, reported: now.ring_full, missing: None };
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
        let sum = all.iter().fold(Totals::default(), |sum, (_, _, line)| Totals {
            seen: sum.seen + line.seen,
            submitted: sum.submitted + line.submitted,
            lost: sum.lost + line.ring_full,
        });
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner) = sum;
        for (cpu, kind, now) in all {
            let line = self.lines.entry((cpu, kind as u32)).or_default();
            let lost = now.ring_full.saturating_sub(line.reported);
            if lost > 0 {
                line.reported = now.ring_full;
                let (first, last) = line.missing.take().unwrap_or((line.last + 1, now.seen));
                losses.push(loss(kind.loss_class(), lost, first, last));
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

/// Two clocks at one moment.
#[derive(Clone, Copy, Default)]
struct Clock {
    unix_ns: u64,
    boot_ns: u64,
}

impl Clock {
    fn now() -> Self {
        let nanoseconds = |clock| {
            let now = clock_gettime(clock);
            now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
        };
        Self { unix_ns: nanoseconds(ClockId::Realtime), boot_ns: nanoseconds(ClockId::Boottime) }
    }

    fn unix(&self, boot_ns: u64) -> u64 {
        self.unix_ns.saturating_sub(self.boot_ns.saturating_sub(boot_ns))
    }
}

/// What is remembered of a process, for events that carry only its number.
#[derive(Clone, Default)]
struct Process {
    exe: Vec<u8>,
    parent: u32,
}

/// Makes observations of events.
struct Translator {
    names: Arc<RwLock<Names>>,
    processes: HashMap<u32, Process>,
    clock: Clock,
    canary: std::sync::mpsc::Sender<Event>,
}

impl Translator {
    fn new(names: Arc<RwLock<Names>>, canary: std::sync::mpsc::Sender<Event>) -> Self {
        Self { names, processes: HashMap::new(), clock: Clock::now(), canary }
    }

    fn translate(&mut self, event: Event) -> Option<Observation> {
        if self.is_canary(event.header()) {
            // After the self-test nobody listens any more.
            let _ = self.canary.send(event);
            return None;
        }
        match event {
            Event::Fork(header) => {
                // Threads share the process's line.
                if header.pid == header.tid && self.processes.len() < REMEMBERED {
                    let exe = self.processes.get(&header.parent).map_or_else(Vec::new, |p| p.exe.clone());
                    self.processes.insert(header.pid, Process { exe, parent: header.parent });
                }
                None
            }
            Event::Exec(started) => Some(self.exec(*started)),
            Event::Exit(header, status) => {
                let mut observation = self.common(&header, "done", "tp_btf/sched_process_exit", "observed");
                self.processes.remove(&header.pid);
                observation.act = Some(Act::Exit(v1::Exit { status }));
                Some(observation)
            }
            Event::Connect(judged) => Some(self.connect(&judged)),
            Event::Socket(refused) => Some(self.socket(&refused)),
        }
    }

    /// The self-test's own acts are its business.
    fn is_canary(&self, header: &Header) -> bool {
        self.names.read().unwrap_or_else(PoisonError::into_inner).agent(header.agent) == super::probe::CANARY
    }

    fn common(&mut self, header: &Header, effect: &str, mechanism: &str, strength: &str) -> Observation {
        let process = if header.pid == 0 { Process::default() } else { self.process(header.pid) };
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        Observation {
            time_ns: self.clock.unix(header.boot_ns),
            agent_id: names.agent(header.agent).to_owned(),
            pid: header.pid,
            parent_pid: if header.parent == 0 { process.parent } else { header.parent },
            exe: process.exe,
            cgroup: header.cgroup,
            effect: effect.into(),
            mechanism: mechanism.into(),
            strength: strength.into(),
            ..Observation::default()
        }
    }

    /// What is remembered, or what `/proc` says of a process that was there before this thread, or whose start
    /// still waits in the other ring.
    fn process(&mut self, pid: u32) -> Process {
        if let Some(process) = self.processes.get(&pid) {
            return process.clone();
        }
        let process =
            Process { exe: link(pid, "exe").unwrap_or_default(), parent: parent(pid).unwrap_or_default() };
        if !process.exe.is_empty() && self.processes.len() < REMEMBERED {
            self.processes.insert(pid, process.clone());
        }
        process
    }

    fn exec(&mut self, started: Started) -> Observation {
        let pid = started.header.pid;
        // The kernel gives the name as the caller wrote it; /proc gives the whole path if it still is that file.
        let same = fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|now| now.ino() == started.inode);
        let exe = link(pid, "exe").filter(|_| same).unwrap_or(started.path);
        if self.processes.len() < REMEMBERED || self.processes.contains_key(&pid) {
            self.processes.insert(pid, Process { exe, parent: started.header.parent });
        }
        let mut observation = self.common(&started.header, "done", "tp_btf/sched_process_exec", "observed");
        observation.act = Some(Act::Exec(v1::Exec {
            argv: started.argv,
            truncated: started.truncated,
            directory: link(pid, "cwd").unwrap_or_default(),
            inode: started.inode,
            device: device(started.device),
        }));
        observation
    }

    fn connect(&mut self, judged: &Judged) -> Observation {
        // what should have been asked and could not be held is done and observed, not denied.
        let (effect, strength) = match judged.verdict {
            Verdict::Allow => ("done", "enforced"),
            Verdict::Ask => ("done", "observed"),
            Verdict::Deny => ("refused", "enforced"),
        };
        let mut observation = self.common(&judged.header, effect, judged.hook.mechanism(), strength);
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let address = judged.address.octets();
        observation.act = Some(Act::Connect(v1::Connect {
            address: address.to_vec(),
            port: judged.port.into(),
            protocol: judged.protocol.into(),
            range: classify(&address).as_str().into(),
            rule: names.rule(judged.generation, judged.rule).into(),
            verdict: u32::from(judged.verdict as u8),
        }));
        observation
    }

    fn socket(&mut self, refused: &RefusedSocket) -> Observation {
        let mut observation = self.common(&refused.header, "refused", refused.hook.mechanism(), "enforced");
        observation.act = Some(Act::Socket(v1::Socket {
            family: refused.family,
            kind: refused.kind,
            protocol: refused.protocol,
        }));
        observation
    }
}

fn link(pid: u32, name: &str) -> Option<Vec<u8>> {
    fs::read_link(format!("/proc/{pid}/{name}")).ok().map(|path| path.into_os_string().into_vec())
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// From the kernel's form of a device number to the one of `stat(2)`.
fn device(kernel: u32) -> u64 {
    libc::makedev(kernel >> 20, kernel & 0xf_ffff)
}
