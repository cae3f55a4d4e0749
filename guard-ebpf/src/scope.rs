//! Whose act it is: membership by ancestry, never by equality with the task's own cgroup.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{
    bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id, bpf_skb_ancestor_cgroup_id,
    bpf_skb_cgroup_id,
};
use guard_common::network::AgentEntry;

use crate::maps::{AGENTS, ROOT_ID, ROOT_LEVEL};

/// The cgroup and the agent behind an act.
pub(crate) struct Actor {
    /// The cgroup itself.
    pub(crate) cgroup: u64,
    /// The agent; number 0 where the guard root knows none, so only the rules for everyone hold.
    pub(crate) agent: AgentEntry,
}

impl Actor {
    /// The task that runs now, in a program that is attached to the guard root.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        // SAFETY: these helpers take no pointers.
        let (cgroup, ancestor) = unsafe {
            let level = ROOT_LEVEL.load() as i32 + 1;
            (bpf_get_current_cgroup_id(), bpf_get_current_ancestor_cgroup_id(level))
        };
        Self { cgroup, agent: find(ancestor) }
    }

    /// The task that runs now, if it is below the guard root.
    #[inline(always)]
    pub(crate) fn current_below_root() -> Option<Self> {
        // SAFETY: the helper takes no pointer.
        let root = unsafe { bpf_get_current_ancestor_cgroup_id(ROOT_LEVEL.load() as i32) };
        if root == ROOT_ID.load() { Some(Self::current()) } else { None }
    }

    /// The socket that sends this packet.
    #[inline(always)]
    pub(crate) fn of_packet(packet: *mut __sk_buff) -> Self {
        // SAFETY: `packet` is the program's own context.
        let (cgroup, ancestor) = unsafe {
            let level = ROOT_LEVEL.load() as i32 + 1;
            (bpf_skb_cgroup_id(packet), bpf_skb_ancestor_cgroup_id(packet, level))
        };
        Self { cgroup, agent: find(ancestor) }
    }
}

#[inline(always)]
fn find(cgroup: u64) -> AgentEntry {
    // SAFETY: an entry may be replaced while it is read; both values of its two words are valid answers.
    unsafe { AGENTS.get(cgroup) }.copied().unwrap_or_default()
}
