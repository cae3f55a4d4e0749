//! Finds out what this host really enforces: by loading, then by doing the denied thing once.
//!
//! Every self-test has two controls, or it proves nothing: the same act outside the guard root succeeds, and a
//! harmless act in the canary's cgroup succeeds.

use std::io;
use std::net::Ipv6Addr;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use guard_common::address::{Address, AddressClass, BUILTIN_RANGES, Range, v4};
use guard_common::event::Hook;
use guard_common::network::{Verdict, protocol};

use super::btf::KernelTypes;
use super::canary::{Act, Family, Outcome, perform, start_true};
use super::cgroup::Cgroup;
use super::record::Event;

/// Name of the canary's group and its id as an agent; no agent's id starts with a dot.
pub(crate) const CANARY: &str = ".canary";

/// What no cgroup program sees, on any kernel: other layers have to close these, and coverage has to name them.
pub const NOT_SEEN: [&str; 3] = [
    "frames sent on AF_PACKET sockets",
    "sockets made outside the guard root and handed in",
    "whatever a process does after it has left the guard root",
];

/// How well something holds on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// Nothing holds it.
    NotCovered,
    /// It is recorded and goes on.
    Observed,
    /// The kernel refuses it on the object.
    Enforced,
}

impl Strength {
    /// The word that coverage and records use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotCovered => "not covered",
            Self::Observed => "observed",
            Self::Enforced => "enforced",
        }
    }
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfTest {
    /// The act, in words.
    pub did: String,
    /// What should have come of it.
    pub expected: String,
    /// What came of it.
    pub got: String,
    /// How long it took, milliseconds.
    pub ms: f64,
}

/// A hook and what its self-test said.
#[derive(Clone, Debug)]
pub struct MechanismResult {
    /// For example `cgroup/connect4`.
    pub mechanism: &'static str,
    /// How well it holds.
    pub strength: Strength,
    /// The evidence, one for each form that was tried.
    pub self_tests: Vec<SelfTest>,
}

/// A built-in range and what its self-test said.
#[derive(Clone, Debug)]
pub struct RangeResult {
    /// The class that the range belongs to.
    pub class: AddressClass,
    /// The range in the usual notation.
    pub range: String,
    /// The hook that judged.
    pub mechanism: &'static str,
    /// How well it holds.
    pub strength: Strength,
    /// The evidence.
    pub self_test: SelfTest,
}

/// A kind of program that this host does not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedType {
    /// `lsm`, `fentry` or `tp_btf`.
    pub kind: &'static str,
    /// Why not.
    pub errno: i32,
}

/// What the kernel side found out about itself.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Kinds of programs that do not load here.
    pub refused: Vec<RefusedType>,
    /// By hook, network.
    pub mechanisms: Vec<MechanismResult>,
    /// By tracepoint; these observe and refuse nothing.
    pub processes: Vec<MechanismResult>,
    /// By built-in range.
    pub ranges: Vec<RangeResult>,
    /// Why something was not tested, or is weaker than it should be.
    pub notes: Vec<String>,
}

impl Coverage {
    /// The weakest of all network hooks and of all ranges that should be denied; `NotCovered` if nothing was tested.
    #[must_use]
    pub fn network_strength(&self) -> Strength {
        let ranges = self.ranges.iter().filter(|range| range.class != AddressClass::Loopback);
        let all = self.mechanisms.iter().map(|one| one.strength).chain(ranges.map(|one| one.strength));
        all.min().unwrap_or(Strength::NotCovered)
    }
}

/// One test before it is run.
struct Case {
    hook: Hook,
    range: Option<Range>,
    did: String,
    act: Act,
    /// How it should end in the canary: 0 or an errno.
    expected: i32,
}

const METADATA: Address = v4([169, 254, 169, 254]);
const METADATA_6: Address = [0xfd, 0, 0x0e, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x54];
const LOOPBACK: Address = v4([127, 0, 0, 1]);
const LOOPBACK_6: Address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn cases() -> Vec<Case> {
    use Family::{V4, V6};
    let denied = |hook, did: &str, act| {
        let expected = if matches!(act, Act::Ping(V6, _)) { libc::ETIMEDOUT } else { libc::EPERM };
        Case { hook, range: None, did: did.to_owned(), act, expected }
    };
    let mut cases = vec![
        denied(Hook::Connect4, "TCP connect to 169.254.169.254", Act::TcpConnect(V4, METADATA)),
        denied(Hook::Connect6, "TCP connect to fd00:ec2::254", Act::TcpConnect(V6, METADATA_6)),
        denied(Hook::Connect6, "TCP connect to ::ffff:169.254.169.254", Act::TcpConnect(V6, METADATA)),
        denied(Hook::Sendmsg4, "datagram to 169.254.169.254", Act::UdpCorked(V4, METADATA)),
        denied(Hook::Sendmsg6, "datagram to fd00:ec2::254", Act::UdpCorked(V6, METADATA_6)),
        denied(Hook::Egress, "echo request to 169.254.169.254", Act::Ping(V4, METADATA)),
        denied(Hook::Egress, "echo request to fd00:ec2::254", Act::Ping(V6, METADATA_6)),
        denied(Hook::SockCreate, "raw socket", Act::RawSocket),
    ];
    for range in BUILTIN_RANGES {
        let (family, hook) = if range.prefix > 96 && range.address[..12] == v4([0; 4])[..12] {
            (V4, Hook::Connect4)
        } else {
            (V6, Hook::Connect6)
        };
        // The first address of a network is not one that can be connected to everywhere; the next one is.
        let mut address = range.address;
        address[15] |= u8::from(range.prefix < 128);
        let did = format!("connect a datagram socket to {}", text(&address));
        let act = Act::UdpConnect(family, address);
        let expected = if range.default_verdict() == Verdict::Deny { libc::EPERM } else { 0 };
        cases.push(Case { hook, range: Some(*range), did, act, expected });
    }
    cases
}

/// An address as people write it.
pub(crate) fn text(address: &Address) -> String {
    let address = Ipv6Addr::from(*address);
    address.to_ipv4_mapped().map_or_else(|| address.to_string(), |v4| v4.to_string())
}

fn range_text(range: &Range) -> String {
    let is_v4 = range.prefix >= 96 && Ipv6Addr::from(range.address).to_ipv4_mapped().is_some();
    let prefix = if is_v4 { range.prefix - 96 } else { range.prefix };
    format!("{}/{prefix}", text(&range.address))
}

/// Runs the self-tests in a group below the guard root, where the built-in table is in force.
///
/// # Errors
/// If the canary cannot be made, so that nothing is known.
pub(crate) fn self_test(canary: &Cgroup, hooks: &[Hook]) -> io::Result<Coverage> {
    let cases = cases();
    let mut acts: Vec<Act> = cases.iter().map(|case| case.act).collect();
    let harmless = [
        Act::TcpConnect(Family::V4, LOOPBACK),
        Act::TcpConnect(Family::V6, LOOPBACK_6),
        Act::UdpCorked(Family::V4, LOOPBACK),
        Act::UdpCorked(Family::V6, LOOPBACK_6),
        Act::Ping(Family::V4, LOOPBACK),
        Act::Ping(Family::V6, LOOPBACK_6),
    ];
    acts.extend(harmless);
    let outside = perform(None, &acts)?;
    let inside = perform(Some(canary), &acts)?;
    let _ = canary.wait_empty(Duration::from_secs(1));

    let mut coverage = Coverage::default();
    for ((act, outside), inside) in harmless.iter().zip(&outside[cases.len()..]).zip(&inside[cases.len()..]) {
        if outside.errno != 0 || inside.errno != 0 {
            let (without, with) = (outcome_text(*outside), outcome_text(*inside));
            coverage.notes.push(format!("{act:?} should pass: {without} outside, {with} in the canary"));
        }
    }
    let control_failed = !coverage.notes.is_empty();
    for (case, (outside, inside)) in cases.iter().zip(outside.iter().zip(&inside)) {
        let (strength, test) = verdict(case, *outside, *inside, control_failed, hooks);
        if strength == Strength::NotCovered && case.expected != 0 {
            coverage.notes.push(format!("{}: expected {}, got {}", test.did, test.expected, test.got));
        }
        add(&mut coverage, case, strength, test);
    }
    Ok(coverage)
}

/// Starts a process in the canary's group and looks whether the tracepoints report it.
///
/// # Errors
/// If the process cannot be started, so that nothing is known.
pub(crate) fn process_test(canary: &Cgroup, events: &Receiver<Event>) -> io::Result<Vec<MechanismResult>> {
    /// A report is there within microseconds; only a broken one takes longer.
    const PATIENCE: Duration = Duration::from_secs(2);
    let start = Instant::now();
    start_true(canary)?;
    let mut seen: [Option<Duration>; 4] = [None; 4];
    while seen.contains(&None) {
        let Ok(event) = events.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) else { break };
        let slot = match event {
            Event::Fork(_) => 0,
            Event::Exec(started) if started.argv == [&b"true"[..], b"guard-canary"] => 1,
            Event::Exit(ended) if ended.status == 0 => 2,
            // The connections to loopback that were made before.
            Event::Flow(carried) if carried.protocol == protocol::TCP => 3,
            _ => continue,
        };
        seen[slot].get_or_insert(start.elapsed());
    }
    let names = [
        ("tp_btf/sched_process_fork", "fork"),
        ("tp_btf/sched_process_exec", "execute /bin/true"),
        ("tp_btf/sched_process_exit", "exit with 0"),
        ("sock_ops", "end a TCP connection to loopback"),
    ];
    let result = |((mechanism, did), seen): ((&'static str, &str), Option<Duration>)| MechanismResult {
        mechanism,
        strength: if seen.is_some() { Strength::Observed } else { Strength::NotCovered },
        self_tests: vec![SelfTest {
            did: did.to_owned(),
            expected: "a report".into(),
            got: if seen.is_some() { "a report" } else { "nothing" }.into(),
            ms: seen.unwrap_or(PATIENCE).as_secs_f64() * 1000.0,
        }],
    };
    Ok(names.into_iter().zip(seen).map(result).collect())
}

fn verdict(
    case: &Case,
    outside: Outcome,
    inside: Outcome,
    control_failed: bool,
    hooks: &[Hook],
) -> (Strength, SelfTest) {
    let mut got = outcome_text(inside);
    if outside.errno != 0 {
        got = format!("{got}, but {} outside the guard root too", outcome_text(outside));
    }
    let proven = outside.errno == 0 && inside.errno == case.expected && !control_failed;
    // With a layer off, what still refuses is another one.
    let strength =
        if proven && hooks.contains(&case.hook) { Strength::Enforced } else { Strength::NotCovered };
    let expected = outcome_text(Outcome { errno: case.expected, micros: 0 });
    let test = SelfTest { did: case.did.clone(), expected, got, ms: f64::from(inside.micros) / 1000.0 };
    (strength, test)
}

fn add(coverage: &mut Coverage, case: &Case, strength: Strength, self_test: SelfTest) {
    let mechanism = case.hook.mechanism();
    if let Some(range) = &case.range {
        let (class, range) = (range.class, range_text(range));
        coverage.ranges.push(RangeResult { class, range, mechanism, strength, self_test });
        return;
    }
    match coverage.mechanisms.iter_mut().find(|one| one.mechanism == mechanism) {
        Some(known) => {
            known.strength = known.strength.min(strength);
            known.self_tests.push(self_test);
        }
        None => {
            coverage.mechanisms.push(MechanismResult { mechanism, strength, self_tests: vec![self_test] });
        }
    }
}

fn outcome_text(outcome: Outcome) -> String {
    match outcome.errno {
        0 => "success".into(),
        libc::EPERM => "EPERM".into(),
        libc::ETIMEDOUT => "no answer".into(),
        errno => io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// Loads one trivial program of each kind that other kernels have and this one may refuse.
pub(crate) fn refused_types(types: &KernelTypes) -> Vec<RefusedType> {
    const TRACING: u32 = 26;
    const LSM: u32 = 29;
    let kinds = [("lsm", LSM, 27, "bpf_lsm_file_open"), ("fentry", TRACING, 24, "vfs_open")];
    let refused = kinds.into_iter().filter_map(|(kind, program, attach, function)| {
        let errno = match types.function(function) {
            Some(id) => load_trivial(program, attach, id).err()?,
            None => libc::ENOENT,
        };
        Some(RefusedType { kind, errno })
    });
    refused.collect()
}

/// Loads `return 0`; the program is gone again when this returns.
fn load_trivial(program: u32, attach: u32, function: u32) -> Result<(), i32> {
    /// The part of `union bpf_attr` for `BPF_PROG_LOAD` up to `attach_prog_fd`.
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        instruction_count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
        btf_fd: u32,
        function_record: u32,
        functions: u64,
        function_count: u32,
        line_record: u32,
        lines: u64,
        line_count: u32,
        attach_btf_id: u32,
        attach_program: u32,
        padding: u32,
    }
    const BPF_PROG_LOAD: libc::c_long = 5;
    /// `r0 = 0; exit`
    static RETURN_ZERO: [u64; 2] = [0xb7, 0x95];
    let load = Load {
        kind: program,
        instruction_count: 2,
        instructions: RETURN_ZERO.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        attach_type: attach,
        attach_btf_id: function,
        ..Load::default()
    };
    // SAFETY: the structure is laid out as the kernel reads it and points to memory that lives through the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
    }
    // SAFETY: the descriptor is new and this is its only owner.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) });
    Ok(())
}
