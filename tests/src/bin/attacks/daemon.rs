//! Ways to reach guard itself: its processes, its maps, its pins.

use std::{
    fs, io,
    os::fd::{FromRawFd as _, OwnedFd},
    path::Path,
};

use anyhow::Context as _;

use crate::{
    kernel::bpf_call,
    outcome::{Act, check, no_effect, refused, step, worked},
};

pub(crate) fn kill(pid: i32, signal: i32) -> Act {
    // SAFETY: a plain call without pointers.
    step!("kill", check(unsafe { libc::kill(pid, signal) }.into()));
    worked(format!("signal {signal} may be sent"))
}

pub(crate) fn ptrace(pid: i32) -> Act {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: PTRACE_SEIZE reads no memory of ours.
    step!("ptrace", check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, none, none) }));
    worked("attached; the process goes on when this one ends")
}

/// The first bytes that another process has mapped.
pub(crate) fn vm_read(pid: i32) -> Act {
    let maps = step!("open its maps", fs::read_to_string(format!("/proc/{pid}/maps")));
    let start = maps.split('-').next().context("a process without maps")?;
    let start = usize::from_str_radix(start, 16)?;
    let mut bytes = [0_u8; 4];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let theirs = libc::iovec { iov_base: start as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the local vector names a buffer of ours with its length; the remote one is checked by the kernel.
    let count = step!(
        "process_vm_readv",
        check(
            unsafe { libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0) }.try_into()?
        )
    );
    if count == 4 { worked(format!("read {bytes:02x?}")) } else { no_effect("nothing was read") }
}

pub(crate) fn pidfd_getfd(pid: i32) -> Act {
    // SAFETY: a plain call without pointers.
    let pidfd = step!("pidfd_open", check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }));
    // SAFETY: as above.
    let taken = step!("pidfd_getfd", check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, 2, 0) }));
    worked(format!("its standard error is our descriptor {taken}"))
}

const BPF_MAP_GET_NEXT_ID: libc::c_long = 12;
const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;

/// The union `bpf_attr`, as the two commands see it.
#[repr(C)]
#[derive(Default)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

/// Whoever holds a map's descriptor can write it, so that is as far as this goes.
pub(crate) fn bpf_map_update() -> Act {
    let mut id = ById::default();
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    loop {
        match bpf_call(BPF_MAP_GET_NEXT_ID, &mut id) {
            Ok(_) => {}
            // No more of them.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return refused("ask for the next map", &error),
        }
        match bpf_call(BPF_MAP_GET_FD_BY_ID, &mut ById { id: id.next, next: 0, flags: 0 }) {
            Ok(raw) => {
                // SAFETY: the descriptor was made just now and nobody else has it.
                drop(unsafe { OwnedFd::from_raw_fd(i32::try_from(raw)?) });
                return worked(format!("map {} opened for writing", id.next));
            }
            Err(error) => last = error,
        }
        id.id = id.next;
    }
    refused("open any map", &last)
}

pub(crate) fn remove_pins(directory: &Path) -> Act {
    let entries = step!("list the pins", fs::read_dir(directory));
    let mut removed = 0;
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            step!("remove a pin", fs::remove_file(&path));
            removed += 1;
        }
    }
    if removed == 0 { no_effect("no pin is there") } else { worked(format!("{removed} pins are gone")) }
}
