//! What a command has from its caller besides rights: umask, limits, priority, ignored signals. guardd's own must not show through.

use std::io;

/// The limits of `getrlimit(2)`, in the order of their numbers.
const LIMITS: u32 = 16;

/// How a caller's processes begin.
#[derive(Debug)]
pub(super) struct Manner {
    umask: libc::mode_t,
    limits: Vec<(u32, libc::rlimit)>,
    nice: libc::c_int,
    /// Bit n-1 for signal n.
    ignored: u64,
}

impl Manner {
    /// Reads it from the caller, which waits for its command meanwhile. A caller that has gone gets the usual.
    pub(super) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let id = libc::pid_t::try_from(pid).unwrap_or(0);
        let limits =
            (0..LIMITS).filter_map(|resource| Some((resource, limit_of(id, resource).ok()?))).collect();
        Self {
            umask: field("Umask:")
                .and_then(|mask| libc::mode_t::from_str_radix(mask, 8).ok())
                .unwrap_or(0o022),
            ignored: field("SigIgn:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0),
            limits,
            // SAFETY: no memory is involved. -1 is a priority as well as an error; both are harmless here.
            nice: unsafe { libc::getpriority(libc::PRIO_PROCESS, pid) },
        }
    }

    /// Takes it on, in the process that becomes the command.
    pub(super) fn take_on(&self) {
        // SAFETY: no memory is involved.
        unsafe { libc::umask(self.umask) };
        for (resource, wanted) in &self.limits {
            self::limit(*resource, *wanted);
        }
        // SAFETY: no memory is involved. Raising the priority needs a privilege that an agent has not.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.nice) };
        for signal in 1..=64 {
            // guardctl itself ignores SIGPIPE, as every Rust program does.
            let ignores =
                self.ignored & 1 << (signal - 1) != 0 && signal != libc::SIGPIPE && signal != libc::SIGCHLD;
            // SAFETY: no handler of ours is involved.
            unsafe { libc::signal(signal, if ignores { libc::SIG_IGN } else { libc::SIG_DFL }) };
        }
    }
}

fn limit_of(pid: libc::pid_t, resource: u32) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through the call.
    let result = unsafe { libc::prlimit(pid, resource, std::ptr::null(), &raw mut limit) };
    if result == 0 { Ok(limit) } else { Err(io::Error::last_os_error()) }
}

/// The caller's limit, as far as this process may have it.
fn limit(resource: u32, wanted: libc::rlimit) {
    let hard = limit_of(0, resource).map_or(wanted.rlim_max, |own| own.rlim_max.min(wanted.rlim_max));
    let limit = libc::rlimit { rlim_cur: wanted.rlim_cur.min(hard), rlim_max: hard };
    // SAFETY: `limit` lives through the call.
    unsafe { libc::setrlimit(resource, &raw const limit) };
}
