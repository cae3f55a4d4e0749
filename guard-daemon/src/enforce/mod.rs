//! The kernel side: BPF programs on the guard root, the rules they judge by, and what they report.
//!
//! [`Enforcement::start`] loads, attaches and pins, takes over what an earlier process left, and tries out what
//! this host really refuses. From then on everything below the guard root is governed: without rules only
//! loopback passes. Dropping an [`Enforcement`] leaves the programs where they are; [`release`] takes them away.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use guard_daemon::enforce::{Enforcement, Options};
//!
//! let mut enforcement = Enforcement::start(&Options::new("/run/guard"))?;
//! let observations = enforcement.take_events();
//! let agent = enforcement.root().child("agent-1")?;
//! enforcement.add_agent("agent-1", &agent, &[])?;
//! enforcement.bring_into_force(&Default::default())?;
//! # Ok(())
//! # }
//! ```

mod bpf;
mod btf;
mod canary;
pub mod cgroup;
mod events;
mod hash;
mod probe;
mod processes;
pub mod record;
mod table;
mod translate;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use guard_common::event::Hook;
use guard_proto::v1::{NetworkRule, Observation, Snapshot};
use tokio::sync::mpsc;

pub use bpf::{LoadError, object, release};
pub use btf::{BtfError, KernelTypes};
pub use cgroup::{Cgroup, CgroupError, CgroupId, Hierarchy};
pub use events::{Totals, TotalsByKind};
pub use probe::{Coverage, MechanismResult, NOT_SEEN, RangeResult, RefusedType, SelfTest, Strength};
pub use table::{TableError, builtin_rules};

/// Where the BPF file system usually is.
pub const BPFFS: &str = "/sys/fs/bpf";

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's run directory; pins are found again by it.
    pub run_dir: PathBuf,
    /// Where the BPF file system is, or is mounted if it is not.
    pub bpffs: PathBuf,
    /// The guard root; by default `guard` below the cgroup2 mount.
    pub root: Option<PathBuf>,
    /// Hooks to attach; tests leave some out to prove the others.
    pub hooks: Vec<Hook>,
    /// Size of each ring, a power of two and a multiple of the page size; by default 4 MiB and 1 MiB.
    pub ring_bytes: Option<u32>,
    /// Whether to try out what is refused.
    pub self_test: bool,
}

impl Options {
    /// Everything on, in the usual places.
    #[must_use]
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self {
            run_dir: run_dir.into(),
            bpffs: BPFFS.into(),
            root: None,
            hooks: Hook::ALL.to_vec(),
            ring_bytes: None,
            self_test: true,
        }
    }
}

/// An agent that an earlier process left running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedAgent {
    /// Its id, which is the name of its group.
    pub id: String,
    /// Its group.
    pub cgroup: CgroupId,
    /// Whether its network is cut.
    pub net_cut: bool,
}

/// The kernel side, running.
pub struct Enforcement {
    root: Cgroup,
    hierarchy: Hierarchy,
    table: table::Table,
    reader: events::Reader,
    names: Arc<RwLock<table::Names>>,
    processes: Arc<processes::Processes>,
    observations: Option<mpsc::Receiver<Vec<Observation>>>,
    coverage: Coverage,
    adopted: Vec<AdoptedAgent>,
}

impl Enforcement {
    /// Loads, attaches, pins, adopts and tests.
    ///
    /// # Errors
    /// If the kernel side cannot be had; [`LoadError::code`] is what `guardd` prints. What an earlier process had
    /// attached stays attached.
    pub fn start(options: &Options) -> Result<Self, LoadError> {
        let hierarchy = Hierarchy::find()?;
        let root = options.root.clone().unwrap_or_else(|| hierarchy.mount().join("guard"));
        // Nothing is made elsewhere, and the whole host is never governed.
        if hierarchy.level(&root)? == 0 {
            return Err(CgroupError::Outside { path: root, mount: hierarchy.mount().to_path_buf() }.into());
        }
        let root = Cgroup::create(&root)?;
        let plan = bpf::Plan {
            run_dir: &options.run_dir,
            bpffs: &options.bpffs,
            hooks: &options.hooks,
            ring_bytes: options.ring_bytes,
        };
        let mut loaded = bpf::load(&plan, &hierarchy, &root)?;
        let mut table = table::Table::open(&mut loaded.bpf)?;
        let mut adopted = Vec::new();
        let mut notes = loaded.notes;
        if loaded.adopted {
            let agents = table.adopt_agents(&root).map_err(|error| LoadError::Adopt(Box::new(error)))?;
            for (id, cgroup) in agents {
                let net_cut = table.is_cut(&id);
                adopted.push(AdoptedAgent { id, cgroup, net_cut });
            }
        }
        let (to_canary, canary) = std::sync::mpsc::channel();
        let (names, processes) = (table.names(), Arc::default());
        let (reader, receiver) =
            events::Reader::start(&mut loaded.bpf, Arc::clone(&names), Arc::clone(&processes), to_canary)?;
        let mut coverage = Coverage::default();
        if options.self_test {
            match self_test(&mut table, &root, &options.hooks, &canary) {
                Ok(found) => coverage = found,
                Err(why) => notes.push(format!("self-test not run: {why}")),
            }
            coverage.refused = probe::refused_types(&loaded.types);
        }
        coverage.notes.append(&mut notes);
        let observations = Some(receiver);
        Ok(Self { root, hierarchy, table, reader, names, processes, observations, coverage, adopted })
    }

    /// The guard root.
    #[must_use]
    pub fn root(&self) -> &Cgroup {
        &self.root
    }

    /// The hierarchy that the guard root is in.
    #[must_use]
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Agents that were there before this process.
    #[must_use]
    pub fn adopted(&self) -> &[AdoptedAgent] {
        &self.adopted
    }

    /// What this host enforces, as tried out at the start.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Whether rules are in force; while none are only loopback passes.
    #[must_use]
    pub fn in_force(&self) -> bool {
        self.table.generation() != 0
    }

    /// Replaces all rules at once. The snapshot has those of every agent that is running; of an agent that it
    /// does not name only the rules for everyone hold.
    ///
    /// # Errors
    /// If a rule is malformed or the kernel refuses; then what was in force still is.
    pub fn bring_into_force(&mut self, snapshot: &Snapshot) -> Result<(), TableError> {
        self.table.bring_into_force(snapshot)
    }

    /// Makes an agent known, with its rules under the rules in force, before its first process runs. `cgroup` is
    /// its group directly below the guard root.
    ///
    /// # Errors
    /// If the agent is known already, a rule is malformed or the kernel refuses.
    pub fn add_agent(&mut self, id: &str, cgroup: &Cgroup, rules: &[NetworkRule]) -> Result<(), TableError> {
        self.table.add_agent(id, cgroup.id(), rules)
    }

    /// Forgets an agent, after its last process has ended.
    ///
    /// # Errors
    /// If it is not known or the kernel refuses.
    pub fn remove_agent(&mut self, id: &str) -> Result<(), TableError> {
        self.table.remove_agent(id)
    }

    /// Leaves an agent loopback alone, for good; connections that are open stop too.
    ///
    /// # Errors
    /// If it is not known or the kernel refuses.
    pub fn net_cut(&mut self, id: &str) -> Result<(), TableError> {
        self.table.net_cut(id)
    }

    /// What happens from now on, in batches. The first call gets it, later ones nothing.
    pub fn take_events(&mut self) -> Option<mpsc::Receiver<Vec<Observation>>> {
        self.observations.take()
    }

    /// Who is behind the number of a process that may be gone.
    #[must_use]
    pub fn whose(&self) -> Whose {
        Whose { names: Arc::clone(&self.names), processes: Arc::clone(&self.processes) }
    }

    /// What the kernel's counters said within the last second, over all kinds of records.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals_by_kind().into_values().fold(Totals::default(), |sum, one| Totals {
            seen: sum.seen + one.seen,
            submitted: sum.submitted + one.submitted,
            lost: sum.lost + one.lost,
            oversized: sum.oversized + one.oversized,
            map_full: sum.map_full + one.map_full,
            read: sum.read + one.read,
        })
    }

    /// The same, kind by kind.
    #[must_use]
    pub fn totals_by_kind(&self) -> TotalsByKind {
        self.reader.totals()
    }
}

/// Knows the agents' processes by their numbers, for a while beyond their end.
#[derive(Clone)]
pub struct Whose {
    names: Arc<RwLock<table::Names>>,
    processes: Arc<processes::Processes>,
}

impl Whose {
    /// The agent, the program and the parent of a process; `None` if none of an agent's has this number.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<(String, Vec<u8>, u32)> {
        let process = self.processes.get(pid)?;
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        Some((names.agent(process.agent).to_owned(), process.exe, process.parent))
    }
}

/// Tries everything out under the built-in table.
fn self_test(
    table: &mut table::Table,
    root: &Cgroup,
    hooks: &[Hook],
    events: &std::sync::mpsc::Receiver<record::Event>,
) -> Result<Coverage, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let no_rules = table.generation() == 0;
    if no_rules && root.populated().map_err(|error| text(&error))? {
        return Err(
            "processes are below the guard root, and without rules only loopback passes for them".into()
        );
    }
    let canary = root.child(probe::CANARY).map_err(|error| text(&error))?;
    if no_rules {
        table.bring_into_force(&Snapshot::default()).map_err(|error| text(&error))?;
    }
    let added = table.add_agent(probe::CANARY, canary.id(), &[]).map_err(|error| text(&error));
    let found = added.and_then(|()| {
        let mut found = probe::self_test(&canary, hooks).map_err(|error| text(&error))?;
        found.processes = probe::process_test(&canary, events).map_err(|error| text(&error))?;
        Ok(found)
    });
    let forgotten = table.remove_agent(probe::CANARY).map_err(|error| text(&error));
    if no_rules {
        table.withdraw().map_err(|error| text(&error))?;
    }
    let removed = canary.remove().map_err(|error| text(&error));
    forgotten.and(removed)?;
    found
}
