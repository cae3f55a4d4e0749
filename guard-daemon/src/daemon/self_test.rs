//! Measures what this host does and puts it into one page: the kernel side's canaries, and one for each layer of a launch.

use guard_common::action::ActionClass;

use crate::{
    coverage::{
        BpfCoverage, ClassCoverage, Coverage, LayerCoverage, RangeCoverage, Refused, SelfTest, Strength,
    },
    enforce::{self, Cgroup, Enforcement},
};

/// What a class gets on a host where everything works, and through what.
const CLASSES: [(ActionClass, Strength, &str); 13] = [
    (ActionClass::FileDelete, Strength::Held, "seccomp listener; outside refused by the view"),
    (ActionClass::GitPush, Strength::Observed, "exec events"),
    (ActionClass::PrCreate, Strength::Observed, "exec events"),
    (ActionClass::PrPublish, Strength::Observed, "exec events"),
    (ActionClass::VendorSyncWrite, Strength::Observed, "exec events, no own requests"),
    (ActionClass::FileWriteOutsideWorktree, Strength::Enforced, "mount view, Landlock"),
    (ActionClass::GitCommit, Strength::Observed, "exec events"),
    (ActionClass::NetworkEgress, Strength::Enforced, "cgroup programs, by address"),
    (ActionClass::SecretAccess, Strength::Observed, "fanotify marks; known places are hidden"),
    (ActionClass::PackageInstall, Strength::Observed, "exec events"),
    (ActionClass::ProcessSpawn, Strength::Observed, "exec events"),
    (ActionClass::WorkspaceMutation, Strength::Observed, "exec events"),
    (ActionClass::EnclosureControl, Strength::Observed, "exec events, hidden sockets"),
];

/// Runs everything that was not run yet and puts the page together.
pub fn measure(
    enforcement: Option<&Enforcement>,
    root: &Cgroup,
    layers: Vec<LayerCoverage>,
    watchers: [&LayerCoverage; 2],
) -> Coverage {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut coverage = Coverage {
        kernel,
        cgroup2: root.path().display().to_string(),
        landlock_abi: crate::sandbox::landlock::abi(),
        bpf: BpfCoverage { object: object_state(enforcement), refused: Vec::new() },
        classes: Vec::new(),
        network: Vec::new(),
        layers,
        holes: holes(),
        adapters: guard_policy::adapter::ADAPTERS.iter().map(|row| serde_json::json!(row)).collect(),
        cures: Vec::new(),
        notes: Vec::new(),
    };
    if let Some(enforcement) = enforcement {
        add_kernel_side(&mut coverage, enforcement.coverage());
    } else {
        coverage.network.push(RangeCoverage {
            range: "everything".to_owned(),
            strength: Strength::NotCovered,
            self_test: None,
        });
        coverage
            .cures
            .push("build with BPF programs (cargo xtask build) and start guardd as root".to_owned());
    }
    let processes = enforcement.map(|enforcement| enforcement.coverage().processes.as_slice());
    add_classes(&mut coverage, processes.unwrap_or_default(), watchers);
    coverage
}

fn object_state(enforcement: Option<&Enforcement>) -> String {
    match (enforce::object(), enforcement) {
        (None, _) => "built without BPF programs",
        (Some(_), None) => "built in, not loaded",
        (Some(_), Some(_)) => "loaded",
    }
    .to_owned()
}

fn add_kernel_side(coverage: &mut Coverage, found: &enforce::Coverage) {
    coverage.bpf.refused = found
        .refused
        .iter()
        .map(|refused| Refused { r#type: refused.kind.to_owned(), errno: errno_name(refused.errno) })
        .collect();
    for range in &found.ranges {
        coverage.network.push(RangeCoverage {
            range: format!("{} {}", range.class.as_str(), range.range),
            strength: strength(range.strength),
            self_test: Some(self_test(&range.self_test)),
        });
    }
    for mechanism in &found.mechanisms {
        coverage.layers.push(LayerCoverage {
            layer: mechanism.mechanism.to_owned(),
            strength: strength(mechanism.strength),
            self_test: shown(mechanism),
        });
    }
    // Programs that were not tried are programs of which nothing is known.
    if found.mechanisms.is_empty() {
        coverage.layers.push(LayerCoverage {
            layer: "cgroup programs".to_owned(),
            strength: Strength::NotCovered,
            self_test: None,
        });
        coverage
            .cures
            .push("the self-test of the network programs did not run; the notes say why".to_owned());
    }
    coverage.notes.extend(found.notes.iter().cloned());
}

/// Of several forms that were tried the one that failed is the one to show.
fn shown(mechanism: &enforce::MechanismResult) -> Option<SelfTest> {
    let failed = mechanism.self_tests.iter().find(|test| test.expected != test.got);
    failed.or_else(|| mechanism.self_tests.first()).map(self_test)
}

/// A class is as strong as the weakest of what carries it; what reports processes and files is no layer of a launch, so it
/// comes apart.
fn add_classes(
    coverage: &mut Coverage,
    processes: &[enforce::MechanismResult],
    watchers: [&LayerCoverage; 2],
) {
    let [files, secrets] = watchers;
    let exec = processes
        .iter()
        .find(|mechanism| mechanism.mechanism.ends_with("sched_process_exec"))
        .map(|mechanism| (strength(mechanism.strength), shown(mechanism)));
    let of = |names: &[&str]| {
        coverage
            .layers
            .iter()
            .filter(|layer| names.iter().any(|name| layer.layer.starts_with(name)))
            .map(|layer| (layer.strength, layer.self_test.clone()))
            .min_by_key(|(strength, _)| *strength)
    };
    let mut classes = Vec::new();
    for (class, best, mechanism) in CLASSES {
        let measured = match class {
            ActionClass::NetworkEgress => of(&["cgroup"]),
            ActionClass::FileDelete => Some((files.strength, files.self_test.clone())),
            ActionClass::SecretAccess => Some((secrets.strength, secrets.self_test.clone())),
            ActionClass::FileWriteOutsideWorktree => of(&["mount view", "Landlock"]),
            _ => exec.clone(),
        };
        let (found, test) = measured.unwrap_or((Strength::NotCovered, None));
        classes.push(ClassCoverage {
            class: class.as_str().to_owned(),
            strength: best.min(found),
            mechanism: mechanism.to_owned(),
            self_test: test,
        });
    }
    coverage.classes = classes;
}

/// What passes although one might think otherwise.
fn holes() -> Vec<String> {
    let mut holes: Vec<String> = crate::core::resolvers()
        .into_iter()
        .map(|address| {
            format!(
                "resolver {address}: port 53, UDP and TCP, unless the policy says \"resolvers\": \"deny\""
            )
        })
        .collect();
    holes.extend(
        [
            "deletions alone are held: another act whose decision is an ask is done and recorded as observed",
            "between the last look at a file and its removal another process of the agent may put another in its place",
            "rules that name hosts by name do not bind the kernel, which sees addresses",
            "a file that is emptied or written over through an open descriptor is recorded as opened for writing, not as deleted",
            "an agent that runs with --no-trap changes files unseen; Landlock and the view still refuse",
            "reads are recorded of secrets alone, by their known names; what must not be read is hidden",
            "a file in a hidden directory is not there: a try to open it leaves no record, a try to open the directory does",
        ]
        .map(str::to_owned),
    );
    holes.extend(enforce::NOT_SEEN.map(|what| {
        format!("the network programs do not see {what}; the other layers of a launch close that")
    }));
    let abi = crate::sandbox::landlock::abi();
    if abi < 6 {
        holes.push(format!(
            "abstract Unix sockets in the agent's network namespace can be reached: Landlock ABI {abi} has no scopes, ABI 6 (Linux 6.12) has"
        ));
    }
    holes
}

fn strength(found: enforce::Strength) -> Strength {
    match found {
        enforce::Strength::NotCovered => Strength::NotCovered,
        enforce::Strength::Observed => Strength::Observed,
        enforce::Strength::Enforced => Strength::Enforced,
    }
}

fn self_test(found: &enforce::SelfTest) -> SelfTest {
    SelfTest {
        did: found.did.clone(),
        expected: found.expected.clone(),
        got: found.got.clone(),
        ms: found.ms,
    }
}

fn errno_name(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage_of(found: &enforce::Coverage) -> Coverage {
        let mut coverage = Coverage {
            kernel: String::new(),
            cgroup2: String::new(),
            landlock_abi: 7,
            bpf: BpfCoverage { object: String::new(), refused: Vec::new() },
            classes: Vec::new(),
            network: Vec::new(),
            layers: vec![LayerCoverage {
                layer: "mount view".to_owned(),
                strength: Strength::Enforced,
                self_test: None,
            }],
            holes: Vec::new(),
            adapters: Vec::new(),
            cures: Vec::new(),
            notes: Vec::new(),
        };
        add_kernel_side(&mut coverage, found);
        let files = LayerCoverage { layer: String::new(), strength: Strength::NotCovered, self_test: None };
        add_classes(&mut coverage, &found.processes, [&files, &files]);
        coverage
    }

    /// C-007: programs whose self-test did not run count for nothing.
    #[test]
    fn what_was_not_tried_is_not_covered() {
        let coverage = coverage_of(&enforce::Coverage::default());
        assert_eq!(coverage.overall(), Strength::NotCovered);
        let egress = coverage.classes.iter().find(|class| class.class == "networkEgress");
        assert_eq!(egress.map(|class| class.strength), Some(Strength::NotCovered));
        let spawn = coverage.classes.iter().find(|class| class.class == "processSpawn");
        assert_eq!(spawn.map(|class| class.strength), Some(Strength::NotCovered), "no tracepoint was tried");
    }
}
