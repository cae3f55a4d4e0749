//! Ways out: of the cgroup, of the namespaces, of the read-only view.

use std::{
    ffi::CString,
    fs,
    io::{Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    },
    path::Path,
};

use anyhow::Context as _;

use crate::outcome::{Act, check, no_effect, step, worked};

fn own_group() -> anyhow::Result<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
    // The line of cgroup2; there may be others of the first version.
    groups
        .lines()
        .find(|line| line.starts_with("0::"))
        .map(str::to_owned)
        .context("this process has no cgroup2")
}

pub(crate) fn cgroup_procs_write(group: &Path) -> Act {
    let before = own_group()?;
    let mut procs =
        step!("open cgroup.procs", fs::OpenOptions::new().write(true).open(group.join("cgroup.procs")));
    step!("write cgroup.procs", procs.write_all(b"0"));
    let after = own_group()?;
    if before == after { no_effect("the group is the same as before") } else { worked(after) }
}

/// Of <linux/sched.h>; it does not fit into the type that libc's constant has.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// `struct clone_args` of <linux/sched.h>, as far as its second version.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

pub(crate) fn clone3_into_cgroup(group: &Path) -> Act {
    let before = own_group()?;
    // Reading is enough for whom the kernel lets move; that is the trap.
    let directory = step!(
        "open the group",
        fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(group)
    );
    let (mut reader, writer) = std::io::pipe()?;
    let arguments = CloneArguments {
        flags: CLONE_INTO_CGROUP,
        exit_signal: u64::try_from(libc::SIGCHLD)?,
        cgroup: u64::try_from(directory.as_raw_fd())?,
        ..CloneArguments::default()
    };
    // SAFETY: without CLONE_VM this is a fork; the program has one thread, so the child may go on as it is.
    let child = step!(
        "clone3",
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) })
    );
    if child == 0 {
        let mut writer = writer;
        let said = own_group().is_ok_and(|group| writer.write_all(group.as_bytes()).is_ok());
        std::process::exit(i32::from(!said));
    }
    drop(writer);
    let mut after = String::new();
    reader.read_to_string(&mut after)?;
    // SAFETY: waits for the child made above; no status is asked for.
    step!("wait", check(unsafe { libc::waitpid(i32::try_from(child)?, std::ptr::null_mut(), 0) }.into()));
    if after.is_empty() || before == after {
        no_effect("the child is where its parent is")
    } else {
        worked(after)
    }
}

fn namespace(kind: &str) -> anyhow::Result<String> {
    let link = fs::read_link(format!("/proc/self/ns/{kind}"))
        .with_context(|| format!("{kind} is no namespace, or /proc is not mounted"))?;
    Ok(link.display().to_string())
}

pub(crate) fn setns(pid: u32, kind: &str) -> Act {
    let before = namespace(kind)?;
    let other = step!("open the namespace", fs::File::open(format!("/proc/{pid}/ns/{kind}")));
    // SAFETY: a plain call; this program has one thread.
    step!("setns", check(unsafe { libc::setns(other.as_raw_fd(), 0) }.into()));
    let after = namespace(kind)?;
    if before == after { no_effect("it is the namespace that it was") } else { worked(after) }
}

pub(crate) fn unshare(kind: &str, flag: i32) -> Act {
    let before = namespace(kind)?;
    // SAFETY: a plain call; this program has one thread.
    step!("unshare", check(unsafe { libc::unshare(flag) }.into()));
    let after = namespace(kind)?;
    if before == after { no_effect("it is the namespace that it was") } else { worked(after) }
}

const TMPFS_MAGIC: i64 = 0x0102_1994;

pub(crate) fn mount(path: &Path) -> Act {
    let target = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: every string ends in NUL and lives through the call.
    let mounted =
        unsafe { libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) };
    step!("mount", check(mounted.into()));
    let found = rustix::fs::statfs(path)?.f_type;
    // SAFETY: as above. What the attack mounted goes again.
    step!("umount", check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }.into()));
    if found == TMPFS_MAGIC { worked("a tmpfs was there") } else { no_effect("no tmpfs there") }
}

pub(crate) fn remount_rw(path: &Path) -> Act {
    let target = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the string ends in NUL and lives through the call.
    let mounted = unsafe {
        libc::mount(
            std::ptr::null(),
            target.as_ptr(),
            std::ptr::null(),
            libc::MS_REMOUNT | libc::MS_BIND,
            std::ptr::null(),
        )
    };
    step!("remount", check(mounted.into()));
    let flags = rustix::fs::statvfs(path)?.f_flag;
    if flags.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        no_effect("the mount is still read-only")
    } else {
        worked("the mount is writable")
    }
}
