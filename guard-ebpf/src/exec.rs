//! Processes: the scheduler's tracepoints. They see every task of the host and leave at once for those that are
//! not below the guard root.

use core::ptr;

use aya_ebpf::Global;
use aya_ebpf::helpers::generated::{bpf_probe_read_kernel_str, bpf_probe_read_user};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use guard_common::event::{ARGV_BYTES, Exec, Exit, Kind, NAME_BYTES, PATH_BYTES};

use crate::emit;
use crate::maps::{
    BPRM_FILE, BPRM_FILENAME, BPRM_INTERP, DENTRY_NAME, EVENTS, FILE_DENTRY, FILE_INODE, INODE_LINKS,
    INODE_NUMBER, INODE_SUPER, MM_ARG_END, MM_ARG_START, SCRATCH, SIGNAL_GROUP_EXIT_CODE, SIGNAL_LIVE,
    SUPER_DEVICE, TASK_EXIT_CODE, TASK_GROUP_LEADER, TASK_MM, TASK_PID, TASK_REAL_PARENT, TASK_SIGNAL,
    TASK_START, TASK_TGID,
};
use crate::scope::Actor;

/// An address of a kernel object whose type the verifier knows.
pub(crate) type Object = *const u8;

/// Reads a field of a kernel object.
///
/// # Safety
/// `object` must come from a tracepoint argument or another such read, `offset` name a field of type `T` in it.
#[inline(always)]
pub(crate) unsafe fn field<T: Copy>(object: Object, offset: &Global<u32>) -> T {
    // SAFETY: the verifier checks the object's type against the offset; a bad pointer reads as zero.
    unsafe { ptr::read_volatile(object.add(offset.load() as usize).cast()) }
}

#[inline(always)]
fn parent_of(task: Object) -> u32 {
    // SAFETY: `task` is a task; the loader found both fields.
    unsafe { field(field::<Object>(task, &TASK_REAL_PARENT), &TASK_TGID) }
}

#[btf_tracepoint(function = "sched_process_fork")]
pub(crate) fn guard_fork(ctx: BtfTracePointContext) -> i32 {
    let Some(actor) = Actor::current_below_root() else { return 0 };
    let child: Object = ctx.arg(1);
    let mut header = emit::header(Kind::Fork, &actor);
    header.parent = header.pid;
    // SAFETY: the second argument is the new task.
    (header.pid, header.tid) = unsafe { (field(child, &TASK_TGID), field(child, &TASK_PID)) };
    emit::submit(&EVENTS, Kind::Fork, header);
    0
}

#[btf_tracepoint(function = "sched_process_exec")]
pub(crate) fn guard_exec(ctx: BtfTracePointContext) -> i32 {
    let Some(actor) = Actor::current_below_root() else { return 0 };
    let task: Object = ctx.arg(0);
    let program: Object = ctx.arg(2);
    let mut header = emit::header(Kind::Exec, &actor);
    header.parent = parent_of(task);
    let Some(record) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the record is this CPU's own while the tracepoint runs; the arguments are a task and a
    // `linux_binprm`; lengths are bounded before they are used.
    unsafe {
        let file: Object = field(program, &BPRM_FILE);
        let inode: Object = field(file, &FILE_INODE);
        (*record).header = header;
        (*record).inode = field(inode, &INODE_NUMBER);
        (*record).device = field(field::<Object>(inode, &INODE_SUPER), &SUPER_DEVICE);
        (*record).links = field(inode, &INODE_LINKS);
        (*record).flags = 0;
        (*record).padding = 0;
        let own: Object = field(field::<Object>(file, &FILE_DENTRY), &DENTRY_NAME);
        let read = bpf_probe_read_kernel_str((&raw mut (*record).name).cast(), NAME_BYTES as u32, own.cast());
        if read < 0 {
            (*record).name[0] = 0;
        }

        let name: Object = field(program, &BPRM_FILENAME);
        let interpreter: Object = field(program, &BPRM_INTERP);
        if interpreter != name {
            (*record).flags |= Exec::SCRIPT;
        }
        let read =
            bpf_probe_read_kernel_str((&raw mut (*record).path).cast(), PATH_BYTES as u32, name.cast());
        (*record).path_length = if read > 0 { read as u32 - 1 } else { 0 };
        if read == PATH_BYTES as i64 {
            (*record).flags |= Exec::PATH_TRUNCATED;
        }

        let memory: Object = field(task, &TASK_MM);
        let start: u64 = field(memory, &MM_ARG_START);
        let end: u64 = field(memory, &MM_ARG_END);
        let mut length = end.wrapping_sub(start);
        if length > ARGV_BYTES as u64 {
            length = ARGV_BYTES as u64;
            (*record).flags |= Exec::ARGV_TRUNCATED;
            emit::oversized(Kind::Exec);
        }
        let read = bpf_probe_read_user(
            (&raw mut (*record).argv).cast(),
            length as u32,
            start as *const core::ffi::c_void,
        );
        if read < 0 {
            length = 0;
            (*record).flags |= Exec::ARGV_UNREADABLE;
        }
        (*record).argv_length = length as u32;
        let bytes = core::slice::from_raw_parts(record.cast::<u8>(), Exec::FIXED_BYTES + length as usize);
        emit::output(&EVENTS, Kind::Exec, bytes);
    }
    0
}

#[btf_tracepoint(function = "sched_process_exit")]
pub(crate) fn guard_exit(ctx: BtfTracePointContext) -> i32 {
    let Some(actor) = Actor::current_below_root() else { return 0 };
    let task: Object = ctx.arg(0);
    // SAFETY: the first argument is the task that ends; the loader found every field.
    let (status, started_ns) = unsafe {
        let signal: Object = field(task, &TASK_SIGNAL);
        if field::<u32>(signal, &SIGNAL_LIVE) != 0 {
            return 0;
        }
        let of_group: u32 = field(signal, &SIGNAL_GROUP_EXIT_CODE);
        let leader: Object = field(task, &TASK_GROUP_LEADER);
        let status = if of_group != 0 { of_group } else { field(leader, &TASK_EXIT_CODE) };
        (status, field(leader, &TASK_START))
    };
    let mut header = emit::header(Kind::Exit, &actor);
    header.parent = parent_of(task);
    emit::submit(&EVENTS, Kind::Exit, Exit { header, status, padding: 0, started_ns });
    0
}
