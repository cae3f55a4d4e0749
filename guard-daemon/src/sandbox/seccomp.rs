//! The system call filter: what no agent needs is refused, what hides its arguments is absent, what changes files is trapped.
//!
//! Tables say what; seccompiler turns them into BPF. It knows neither the notify action nor the listener flag, so the trap
//! table is compiled with an action that is not used otherwise, rewritten, and the whole is loaded by our own call.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// Why the filter could not be made or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("compiling the filter: {0}")]
    Compile(#[from] seccompiler::BackendError),
    #[error("seccomp filters for the architecture `{}` are not known here", std::env::consts::ARCH)]
    Architecture,
    #[error("loading the filter: {0}")]
    Load(io::Error),
}

/// Refused with EPERM whatever the arguments.
pub const DENIED: &[(libc::c_long, &str)] = &[
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_init_module, "init_module"),
    (libc::SYS_finit_module, "finit_module"),
    (libc::SYS_delete_module, "delete_module"),
    (libc::SYS_kexec_load, "kexec_load"),
    (libc::SYS_kexec_file_load, "kexec_file_load"),
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_chroot, "chroot"),
    (libc::SYS_open_tree, "open_tree"),
    (SYS_OPEN_TREE_ATTR, "open_tree_attr"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_fsconfig, "fsconfig"),
    (libc::SYS_fsmount, "fsmount"),
    (libc::SYS_fspick, "fspick"),
    (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_keyctl, "keyctl"),
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"),
    (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_process_vm_writev, "process_vm_writev"),
    (libc::SYS_process_madvise, "process_madvise"),
    (libc::SYS_pidfd_getfd, "pidfd_getfd"),
    (libc::SYS_kcmp, "kcmp"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_reboot, "reboot"),
    (libc::SYS_swapon, "swapon"),
    (libc::SYS_swapoff, "swapoff"),
    (libc::SYS_syslog, "syslog"),
    (libc::SYS_quotactl, "quotactl"),
    (libc::SYS_quotactl_fd, "quotactl_fd"),
    (libc::SYS_acct, "acct"),
    (libc::SYS_settimeofday, "settimeofday"),
    (libc::SYS_clock_settime, "clock_settime"),
    (libc::SYS_adjtimex, "adjtimex"),
    (libc::SYS_clock_adjtime, "clock_adjtime"),
    (libc::SYS_vhangup, "vhangup"),
    (libc::SYS_fanotify_init, "fanotify_init"),
    (libc::SYS_lookup_dcookie, "lookup_dcookie"),
    (libc::SYS_nfsservctl, "nfsservctl"),
    (libc::SYS_sethostname, "sethostname"),
    (libc::SYS_setdomainname, "setdomainname"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_iopl, "iopl"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_ioperm, "ioperm"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_modify_ldt, "modify_ldt"),
];

/// Not there (ENOSYS), so that libraries take their older way, whose arguments a filter can see.
pub const ABSENT: &[(libc::c_long, &str)] = &[
    (libc::SYS_clone3, "clone3"),
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_io_uring_setup, "io_uring_setup"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_io_uring_register, "io_uring_register"),
    (SYS_FILE_SETATTR, "file_setattr"),
];

/// Trapped whatever the arguments.
const TRAPPED: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_renameat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_truncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_SETXATTRAT,
    SYS_REMOVEXATTRAT,
    // The family is in memory, so inet connects stop here too.
    libc::SYS_connect,
];

// Numbers that libc does not have yet; the same on every architecture.
/// `fchmodat2(2)`, Linux 6.6.
pub const SYS_FCHMODAT2: libc::c_long = 452;
/// `setxattrat(2)`, Linux 6.13.
pub const SYS_SETXATTRAT: libc::c_long = 463;
/// `removexattrat(2)`, Linux 6.13.
pub const SYS_REMOVEXATTRAT: libc::c_long = 466;
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;
const SYS_FILE_SETATTR: libc::c_long = 469;

/// Name spaces that `clone` may not make.
const CLONE_NAMESPACES: &[libc::c_int] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// `CLONE_NEWTIME`, for `unshare` only: in `clone` this bit belongs to the exit signal.
const CLONE_NEWTIME: u64 = 0x80;
/// Personalities that change nothing about safety: Linux, Linux without address randomisation (debuggers), and the question.
const PERSONALITIES: [u64; 3] = [0, 0x0004_0000, 0xffff_ffff];
const SOCKET_TYPE_MASK: u64 = 0xf;
const NETLINK_ROUTE: u64 = 0;
/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`
const NEW_LISTENER: u64 = 1 << 3;
/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`
const SPEC_ALLOW: u64 = 1 << 2;
/// Whether a trapped call can wait for a person: where signals make one call come twice, an act could be done twice.
#[must_use]
pub fn holds() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(|text| text.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 19),
        _ => false,
    }
}

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`, Linux 5.19.
const WAIT_KILLABLE_RECV: u64 = 1 << 5;
const RET_USER_NOTIFICATION: u32 = 0x7fc0_0000;
const X32_BIT: u32 = 0x4000_0000;
/// `BPF_RET | BPF_K`
const RETURN: u16 = 0x06;

/// `BPF_JMP | BPF_JA`
const JUMP: u16 = 0x05;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A compiled filter.
#[derive(Clone, Debug)]
pub struct Filter {
    program: BpfProgram,
    trapping: bool,
}

/// Compiles the filter; `trapping` adds the calls that change files, which need a listener to go on.
///
/// # Errors
/// [`SeccompError`]
pub fn compile(trapping: bool) -> Result<Filter, SeccompError> {
    let mut parts = Vec::new();
    if trapping {
        // First: writing opens are the hottest of all calls that the kernel cannot answer from its cache.
        let mut trap = one(trapped()?, SeccompAction::Trace(0))?;
        let trace: u32 = SeccompAction::Trace(0).into();
        for instruction in &mut trap {
            if instruction.code == RETURN && instruction.k == trace {
                instruction.k = RET_USER_NOTIFICATION;
            }
        }
        parts.push(trap);
    }
    parts.push(one(denied()?, SeccompAction::Errno(libc::EPERM.unsigned_abs()))?);
    parts.push(one(absent(), SeccompAction::Errno(libc::ENOSYS.unsigned_abs()))?);
    parts.push(one(unknown_protocols()?, SeccompAction::Errno(libc::EPROTONOSUPPORT.unsigned_abs()))?);
    Ok(Filter { program: join(parts), trapping })
}

/// Loads the filter for the calling thread and all that it starts. The listener comes back when the filter traps.
///
/// # Errors
/// [`SeccompError::Load`]; `EBUSY` means that a filter with a listener is there already.
pub fn load(filter: &Filter) -> Result<Option<OwnedFd>, SeccompError> {
    let mut instructions: Vec<libc::sock_filter> = filter
        .program
        .iter()
        .map(|from| libc::sock_filter { code: from.code, jt: from.jt, jf: from.jf, k: from.k })
        .collect();
    let program = libc::sock_fprog {
        len: u16::try_from(instructions.len())
            .map_err(|error| SeccompError::Load(io::Error::other(error)))?,
        filter: instructions.as_mut_ptr(),
    };
    let set = |flags: u64| {
        // SAFETY: `program` describes the live vector `instructions`.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    // A filter without SPEC_ALLOW slowed everything down before 5.16 by switching speculation off.
    if !filter.trapping {
        return match set(SPEC_ALLOW) {
            0 => Ok(None),
            _ => Err(SeccompError::Load(io::Error::last_os_error())),
        };
    }
    // Without WAIT_KILLABLE_RECV (before 5.19) a signal can make one call come twice; it changes nothing there since every call goes on.
    let mut listener = set(SPEC_ALLOW | NEW_LISTENER | WAIT_KILLABLE_RECV);
    if listener < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        listener = set(SPEC_ALLOW | NEW_LISTENER);
    }
    if listener < 0 {
        return Err(SeccompError::Load(io::Error::last_os_error()));
    }
    let listener = i32::try_from(listener).map_err(|error| SeccompError::Load(io::Error::other(error)))?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(listener) }))
}

/// One table as a program: `action` where a line matches, otherwise allow.
fn one(rules: Rules, action: SeccompAction) -> Result<BpfProgram, SeccompError> {
    let architecture =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|_| SeccompError::Architecture)?;
    Ok(BpfProgram::try_from(SeccompFilter::new(rules, SeccompAction::Allow, action, architecture)?)?)
}

/// Puts programs one behind the other. Each ends with the return for a call that it does not know: without it, control falls into
/// the next program. A call that it knows and lets go on is settled only by the trap table, whose calls stand nowhere else;
/// `socket` stands in two of the others.
fn join(parts: Vec<BpfProgram>) -> BpfProgram {
    let mut whole = Vec::new();
    if cfg!(target_arch = "x86_64") {
        // x32 numbers reach the same kernel functions past every line of the tables.
        whole.extend([
            sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
            sock_filter { code: 0x35, jt: 0, jf: 1, k: X32_BIT },
            sock_filter {
                code: RETURN,
                jt: 0,
                jf: 0,
                k: SeccompAction::Errno(libc::ENOSYS.unsigned_abs()).into(),
            },
        ]);
    }
    let last = parts.len().saturating_sub(1);
    for (position, mut part) in parts.into_iter().enumerate() {
        if position != last {
            part.pop();
            let end = part.len();
            let traps = part.iter().any(|instruction| instruction.k == RET_USER_NOTIFICATION);
            for (at, instruction) in part.iter_mut().enumerate().filter(|_| !traps) {
                if instruction.code == RETURN && instruction.k == libc::SECCOMP_RET_ALLOW {
                    *instruction = sock_filter { code: JUMP, jt: 0, jf: 0, k: (end - at - 1) as u32 };
                }
            }
        }
        whole.append(&mut part);
    }
    whole
}

fn absent() -> Rules {
    ABSENT.iter().map(|(number, _)| (*number, Vec::new())).collect()
}

fn denied() -> Result<Rules, SeccompError> {
    let mut rules: Rules = DENIED.iter().map(|(number, _)| (*number, Vec::new())).collect();
    let namespaces = |more: &[u64]| -> Result<Vec<SeccompRule>, SeccompError> {
        CLONE_NAMESPACES
            .iter()
            .map(|flag| u64::from(flag.unsigned_abs()))
            .chain(more.iter().copied())
            .map(|flag| rule(&[has(0, flag)]))
            .collect()
    };
    rules.insert(libc::SYS_clone, namespaces(&[])?);
    rules.insert(libc::SYS_unshare, namespaces(&[CLONE_NEWTIME])?);
    rules.insert(
        libc::SYS_personality,
        vec![rule(&PERSONALITIES.map(|allowed| (0, SeccompCmpOp::Ne, allowed)))?],
    );
    // The kernel looks at 32 bits of the request, so a comparison of 64 would be passed by setting a high one.
    rules.insert(libc::SYS_ioctl, vec![rule(&[is(1, libc::TIOCSTI)])?, rule(&[is(1, libc::TIOCLINUX)])?]);
    rules.insert(
        libc::SYS_seccomp,
        vec![rule(&[is(0, u64::from(libc::SECCOMP_SET_MODE_FILTER)), has(1, NEW_LISTENER)])?],
    );
    rules.insert(libc::SYS_socket, denied_sockets()?);
    Ok(rules)
}

/// Families other than unix, inet, inet6 and route netlink; raw, packet and datagram-congestion types of the inet families.
fn denied_sockets() -> Result<Vec<SeccompRule>, SeccompError> {
    let family = |family: libc::c_int| u64::from(family.unsigned_abs());
    let allowed = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let mut rules = vec![
        rule(&allowed.map(|known| (0, SeccompCmpOp::Ne, family(known))))?,
        rule(&[is(0, family(libc::AF_NETLINK)), (2, SeccompCmpOp::Ne, NETLINK_ROUTE)])?,
    ];
    for inet in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_DCCP, SOCK_PACKET] {
            rules.push(rule(&[
                is(0, family(inet)),
                (1, SeccompCmpOp::MaskedEq(SOCKET_TYPE_MASK), family(kind)),
            ])?);
        }
    }
    Ok(rules)
}

/// `SOCK_PACKET`, the obsolete way to raw frames.
const SOCK_PACKET: libc::c_int = 10;

/// Transports that reach addresses past the connect hooks (SCTP by a socket option, MPTCP by its subflows) are not there;
/// their users fall back to TCP. `socket` has its own table already, so these lines stand in a program of their own.
fn unknown_protocols() -> Result<Rules, SeccompError> {
    let protocol = |number: libc::c_int| u64::from(number.unsigned_abs());
    let mut rules = Vec::new();
    for inet in [libc::AF_INET, libc::AF_INET6] {
        for number in [libc::IPPROTO_SCTP, libc::IPPROTO_DCCP, libc::IPPROTO_UDPLITE, libc::IPPROTO_MPTCP] {
            rules.push(rule(&[is(0, protocol(inet)), is(2, protocol(number))])?);
        }
    }
    Ok(BTreeMap::from([(libc::SYS_socket, rules)]))
}

/// Opens that can change something: any access but reading, or the flags that create or truncate.
fn writing_open(flags: u8) -> Result<Vec<SeccompRule>, SeccompError> {
    let access = u64::from(libc::O_ACCMODE.unsigned_abs());
    [
        (flags, SeccompCmpOp::MaskedEq(access), 1),
        (flags, SeccompCmpOp::MaskedEq(access), 2),
        (flags, SeccompCmpOp::MaskedEq(access), 3),
        has(flags, u64::from(libc::O_CREAT.unsigned_abs())),
        has(flags, u64::from(libc::O_TRUNC.unsigned_abs())),
    ]
    .into_iter()
    .map(|condition| rule(&[condition]))
    .collect()
}

/// The numbers of all calls that the filter may trap.
///
/// # Errors
/// [`SeccompError::Compile`]
pub fn trapped_calls() -> Result<Vec<libc::c_long>, SeccompError> {
    Ok(trapped()?.into_keys().collect())
}

fn trapped() -> Result<Rules, SeccompError> {
    let mut rules: Rules = TRAPPED.iter().map(|number| (*number, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, writing_open(1)?);
    rules.insert(libc::SYS_openat, writing_open(2)?);
    Ok(rules)
}

type Condition = (u8, SeccompCmpOp, u64);

fn is(argument: u8, value: u64) -> Condition {
    (argument, SeccompCmpOp::Eq, value)
}

fn has(argument: u8, bit: u64) -> Condition {
    (argument, SeccompCmpOp::MaskedEq(bit), bit)
}

/// All conditions of one rule must hold.
fn rule(conditions: &[Condition]) -> Result<SeccompRule, SeccompError> {
    let conditions = conditions
        .iter()
        .map(|(argument, operation, value)| {
            SeccompCondition::new(*argument, Dword, operation.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(SeccompRule::new(conditions)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_do_not_overlap() {
        let (trapped, denied, absent) = (trapped().expect("trap"), denied().expect("deny"), absent());
        for number in denied.keys() {
            assert!(!trapped.contains_key(number) && !absent.contains_key(number), "{number}");
        }
        assert!(absent.keys().all(|number| !trapped.contains_key(number)));
    }

    #[test]
    fn only_a_trapping_filter_notifies() {
        let notifies =
            |filter: &Filter| filter.program.iter().any(|i| i.code == RETURN && i.k == RET_USER_NOTIFICATION);
        assert!(notifies(&compile(true).expect("compiled")));
        assert!(!notifies(&compile(false).expect("compiled")));
    }
}
