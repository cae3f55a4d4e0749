//! Rings, sequence numbers and counters.
//!
//! A report that finds no room is counted and given up; nothing waits and nothing is decided here.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_boot_ns};
use aya_ebpf::maps::RingBuf;
use guard_common::event::{Counters, Header, Kind};

use crate::maps::COUNTERS;
use crate::scope::Actor;

/// The start of a record by the task that runs now.
#[inline(always)]
pub(crate) fn header(kind: Kind, actor: &Actor) -> Header {
    let ids = bpf_get_current_pid_tgid();
    Header { pid: (ids >> 32) as u32, tid: ids as u32, ..header_without_task(kind, actor) }
}

/// The start of a record about a packet. It may be sent by a timer or on behalf of somebody else, so the task that
/// runs is no witness, and kernels such as 6.1 do not let a packet program ask for it.
#[inline(always)]
pub(crate) fn header_without_task(kind: Kind, actor: &Actor) -> Header {
    let maker = Header { cgroup: actor.cgroup, agent: actor.agent.number, ..Header::default() };
    header_of(kind, &maker)
}

/// The start of a record about something that has been known since it was made.
#[inline(always)]
pub(crate) fn header_of(kind: Kind, maker: &Header) -> Header {
    // SAFETY: this helper takes no pointers.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    Header {
        kind: kind as u32,
        cpu,
        sequence: count(kind, |counters| &raw mut counters.seen) + 1,
        boot_ns: now(),
        cgroup: maker.cgroup,
        agent: maker.agent,
        pid: maker.pid,
        tid: maker.tid,
        parent: 0,
    }
}

/// Nanoseconds since boot.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: this helper takes no pointers.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Hands one record of fixed size over.
#[inline(always)]
pub(crate) fn submit<T: 'static>(ring: &RingBuf, kind: Kind, record: T) {
    let room = ring.reserve::<T>(0);
    let done = room.is_some();
    if let Some(mut room) = room {
        room.write(record);
        room.submit(0);
    }
    settle(kind, done);
}

/// Hands over a record whose length is only known here.
#[inline(always)]
pub(crate) fn output(ring: &RingBuf, kind: Kind, bytes: &[u8]) {
    settle(kind, ring.output::<[u8]>(bytes, 0).is_ok());
}

/// A record that had to be cut.
#[inline(always)]
pub(crate) fn oversized(kind: Kind) {
    count(kind, |counters| &raw mut counters.oversized);
}

/// Something of which no record will come, for want of room to keep it in mind.
#[inline(always)]
pub(crate) fn map_full(kind: Kind) {
    count(kind, |counters| &raw mut counters.map_full);
}

#[inline(always)]
fn settle(kind: Kind, done: bool) {
    if done {
        count(kind, |counters| &raw mut counters.submitted);
    } else {
        count(kind, |counters| &raw mut counters.ring_full);
    }
}

/// Adds one and returns the value before. Atomic although per CPU: a softirq or another task may come between.
/// The intrinsic stands here because `core` offers no read-modify-write on targets without compare-and-swap.
#[inline(always)]
fn count(kind: Kind, field: impl Fn(&mut Counters) -> *mut u64) -> u64 {
    let Some(counters) = COUNTERS.get_ptr_mut(kind as u32) else { return 0 };
    // SAFETY: the map's value outlives the program; the field is only ever used atomically here.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(field(&mut *counters), 1) }
}
