//! From events of the kernel to observations: names for numbers, and what `/proc` adds.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, PoisonError, RwLock};

use guard_common::address::classify;
use guard_common::event::Header;
use guard_common::network::{Verdict, protocol};
use guard_proto::v1::{self, Observation, observation::Act};
use rustix::time::{ClockId, clock_gettime};

use super::hash::Hasher;
use super::processes::{Process, Processes};
use super::record::{Carried, Ended, Event, Judged, RefusedSocket, Started};
use super::table::Names;

/// Two clocks at one moment.
#[derive(Clone, Copy, Default)]
pub(super) struct Clock {
    pub(super) unix_ns: u64,
    boot_ns: u64,
}

impl Clock {
    pub(super) fn now() -> Self {
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

/// Makes observations of events.
pub(super) struct Translator {
    names: Arc<RwLock<Names>>,
    processes: Arc<Processes>,
    pub(super) clock: Clock,
    canary: std::sync::mpsc::Sender<Event>,
    hasher: Hasher,
}

impl Translator {
    pub(super) fn new(
        names: Arc<RwLock<Names>>,
        processes: Arc<Processes>,
        canary: std::sync::mpsc::Sender<Event>,
        hasher: Hasher,
    ) -> Self {
        Self { names, processes, clock: Clock::now(), canary, hasher }
    }

    pub(super) fn translate(&mut self, event: Event) -> Option<Observation> {
        if self.is_canary(event.header()) {
            // After the self-test nobody listens any more.
            let _ = self.canary.send(event);
            return None;
        }
        match event {
            Event::Fork(header) => {
                // Threads share the process's line.
                if header.pid == header.tid {
                    let exe = self.processes.get(header.parent).map_or_else(Vec::new, |parent| parent.exe);
                    self.processes.insert(header.pid, Process::of(exe, &header));
                }
                None
            }
            Event::Exec(started) => Some(self.exec(*started)),
            Event::Exit(ended) => {
                let header = &ended.header;
                let mut observation = self.common(header, "done", "tp_btf/sched_process_exit", "observed");
                self.processes.ended(header.pid);
                let Ended { status, duration_ns, .. } = ended;
                observation.act = Some(Act::Exit(v1::Exit { status, duration_ns }));
                Some(observation)
            }
            Event::Connect(judged) => Some(self.connect(&judged)),
            Event::Socket(refused) => Some(self.socket(&refused)),
            Event::Listen(carried) => Some(self.listen(&carried)),
            Event::Flow(carried) => Some(self.flow(&carried)),
        }
    }

    /// The self-test's own acts are its business.
    fn is_canary(&self, header: &Header) -> bool {
        self.names.read().unwrap_or_else(PoisonError::into_inner).agent(header.agent) == super::probe::CANARY
    }

    fn common(&mut self, header: &Header, effect: &str, mechanism: &str, strength: &str) -> Observation {
        let process = if header.pid == 0 { Process::default() } else { self.process(header) };
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
    fn process(&mut self, header: &Header) -> Process {
        let pid = header.pid;
        if let Some(process) = self.processes.get(pid) {
            return process;
        }
        let exe = link(pid, "exe").unwrap_or_default();
        let parent = if header.parent == 0 { parent(pid).unwrap_or_default() } else { header.parent };
        let process = Process::of(exe, &Header { parent, ..*header });
        if !process.exe.is_empty() {
            self.processes.insert(pid, process.clone());
        }
        process
    }

    fn exec(&mut self, started: Started) -> Observation {
        let pid = started.header.pid;
        // The kernel gives the name as the caller wrote it; /proc gives the whole path if it still is that file.
        let file = fs::File::open(format!("/proc/{pid}/exe")).ok();
        let now = file.as_ref().and_then(|file| file.metadata().ok());
        let now = now.filter(|now| now.ino() == started.inode);
        let exe = link(pid, "exe").filter(|_| now.is_some());
        // The name that was given is the script's; of its interpreter the last name is what is left.
        let given = if started.script { &started.name } else { &started.path };
        let exe = exe.unwrap_or_else(|| given.clone());
        let sha256 = file
            .zip(now)
            .and_then(|(file, now)| self.hasher.known_or_begin(file, &now, started.header.cgroup));
        self.processes.insert(pid, Process::of(exe, &started.header));
        let mut observation = self.common(&started.header, "done", "tp_btf/sched_process_exec", "observed");
        observation.act = Some(Act::Exec(v1::Exec {
            argv: started.argv,
            truncated: started.truncated,
            directory: link(pid, "cwd").unwrap_or_default(),
            inode: started.inode,
            device: device(started.device),
            script: if started.script { started.path } else { Vec::new() },
            nameless: started.links == 0,
            name: started.name,
            sha256: sha256.map_or_else(Vec::new, |sum| sum.to_vec()),
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

    fn listen(&mut self, carried: &Carried) -> Observation {
        let mechanism = if carried.protocol == protocol::TCP { "sock_ops" } else { "cgroup/post_bind" };
        let mut observation = self.common(&carried.header, "done", mechanism, "observed");
        observation.act = Some(Act::Listen(v1::Listen {
            address: carried.address.octets().to_vec(),
            port: carried.port.into(),
            protocol: carried.protocol.into(),
        }));
        observation
    }

    fn flow(&mut self, carried: &Carried) -> Observation {
        let mechanism = if carried.protocol == protocol::TCP { "sock_ops" } else { "cgroup/sock_release" };
        let mut observation = self.common(&carried.header, "done", mechanism, "observed");
        let address = carried.address.octets();
        observation.act = Some(Act::Flow(v1::Flow {
            address: address.to_vec(),
            port: carried.port.into(),
            protocol: carried.protocol.into(),
            range: classify(&address).as_str().into(),
            sent: carried.sent,
            received: carried.received,
            duration_ns: carried.duration_ns,
            ends: carried.ends,
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
