//! Doors into the kernel that no agent needs.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
};

use crate::outcome::{Act, check, refused, step, worked};

/// bpf(2) with any of its attributes.
pub(crate) fn bpf_call<T>(command: libc::c_long, attribute: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the attribute lives through the call and its length is told; the kernel writes no more than that.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attribute), size_of::<T>()) })
}

/// The first fields of the union `bpf_attr` for BPF_MAP_CREATE.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
}

fn close(raw: libc::c_long) -> anyhow::Result<()> {
    // SAFETY: the descriptor was made just now and nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(i32::try_from(raw)?) });
    Ok(())
}

pub(crate) fn bpf() -> Act {
    const MAP_CREATE: libc::c_long = 0;
    const ARRAY: u32 = 2;
    let mut attribute = MapCreate { kind: ARRAY, key_size: 4, value_size: 8, entries: 1 };
    let raw = step!("bpf", bpf_call(MAP_CREATE, &mut attribute));
    close(raw)?;
    worked("a map was made")
}

/// `struct perf_event_attr`, its first version.
#[repr(C)]
#[derive(Default)]
struct PerfEvent {
    kind: u32,
    size: u32,
    config: u64,
    rest: [u64; 6],
}

pub(crate) fn perf_event_open() -> Act {
    const SOFTWARE: u32 = 1;
    let event =
        PerfEvent { kind: SOFTWARE, size: u32::try_from(size_of::<PerfEvent>())?, ..PerfEvent::default() };
    // SAFETY: the event lives through the call and states its own size.
    let raw = step!(
        "perf_event_open",
        check(unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const event, 0, -1, -1, 0) })
    );
    close(raw)?;
    worked("a counter of our own was opened")
}

pub(crate) fn keyctl() -> Act {
    const PROCESS_KEYRING: i32 = -2;
    // SAFETY: the strings end in NUL, the payload's length is told, and all live through the call.
    let key = step!(
        "add_key",
        check(unsafe {
            libc::syscall(
                libc::SYS_add_key,
                c"user".as_ptr(),
                c"guard-attack".as_ptr(),
                b"x".as_ptr(),
                1,
                PROCESS_KEYRING,
            )
        })
    );
    worked(format!("key {key}"))
}

pub(crate) fn userfaultfd() -> Act {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: a plain call without pointers.
    let result = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    close(step!("userfaultfd", check(result)))?;
    worked("a descriptor")
}

/// The image is no module. That the kernel says so means that it looked: a real one would have been loaded.
pub(crate) fn init_module() -> Act {
    let image = [0_u8; 64];
    // SAFETY: the image and the string live through the call, and the image's length is told.
    let result =
        check(unsafe { libc::syscall(libc::SYS_init_module, image.as_ptr(), image.len(), c"".as_ptr()) });
    match result {
        Ok(_) => worked("a module was loaded"),
        Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => worked("the kernel read the image"),
        Err(error) => refused("init_module", &error),
    }
}
