//! What guardd may do: checks that it can do its work, and gives up the rest.

use caps::{CapSet, Capability, CapsHashSet};

/// The capabilities that guardd's work takes, each with what for. Nothing else stays.
const NEEDED: [(Capability, &str); 14] = [
    (Capability::CAP_BPF, "load programs, change maps"),
    (Capability::CAP_PERFMON, "BTF tracepoints"),
    (Capability::CAP_NET_ADMIN, "attach cgroup network programs"),
    (Capability::CAP_SYS_ADMIN, "mount namespaces of agents, bpffs"),
    (Capability::CAP_SETUID, "give agents their uid"),
    (Capability::CAP_SETGID, "give agents their groups"),
    (Capability::CAP_SETPCAP, "empty the bounding set of agents"),
    (Capability::CAP_KILL, "end agents of any uid"),
    (Capability::CAP_CHOWN, "hand directories to guard-core"),
    (Capability::CAP_FOWNER, "set modes of sockets"),
    (Capability::CAP_DAC_OVERRIDE, "cgroups and mount points of any owner"),
    (Capability::CAP_SYS_CHROOT, "enter the root of an agent's view"),
    (Capability::CAP_SYS_PTRACE, "look at agents' processes through /proc"),
    (Capability::CAP_MKNOD, "device nodes of an agent's /dev"),
];

/// Needed while guardd starts, and given up after it.
const STARTING: [(Capability, &str); 1] = [(Capability::CAP_NET_RAW, "the self-test of raw packets")];

/// A capability that is not there.
#[derive(Debug, thiserror::Error)]
#[error(
    "error[no_privilege]: guardd lacks {missing}; run it as root, or give its user these as ambient capabilities (AmbientCapabilities= in its unit)"
)]
pub struct NoPrivilege {
    missing: String,
}

/// Checks that everything needed is there.
///
/// # Errors
/// [`NoPrivilege`] with each missing capability and what it is for.
pub fn check() -> Result<(), NoPrivilege> {
    let held = caps::read(None, CapSet::Effective).unwrap_or_default();
    let missing: Vec<String> = NEEDED
        .iter()
        .chain(&STARTING)
        .filter(|(capability, _)| !held.contains(capability))
        .map(|(capability, purpose)| format!("{capability} ({purpose})"))
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(NoPrivilege { missing: missing.join(", ") }) }
}

/// Gives up every capability that is not needed, for this thread and those it starts, and for good.
///
/// # Errors
/// The kernel's refusal, with the capability.
pub fn drop_rest() -> Result<(), caps::errors::CapsError> {
    let keep: CapsHashSet = NEEDED.iter().map(|(capability, _)| *capability).collect();
    for capability in caps::read(None, CapSet::Bounding)?.difference(&keep) {
        caps::drop(None, CapSet::Bounding, *capability)?;
    }
    let held = caps::read(None, CapSet::Permitted)?;
    let left: CapsHashSet = held.intersection(&keep).copied().collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)?;
    if !rustix::process::geteuid().is_root() {
        // Without uid 0 a program that we start, a shim, has only what is ambient.
        caps::set(None, CapSet::Inheritable, &left)?;
        caps::set(None, CapSet::Ambient, &left)?;
    }
    Ok(())
}
