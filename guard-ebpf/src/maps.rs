//! What the programs share with user space.

use aya_ebpf::Global;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf};
use guard_common::event::{Counters, Exec, Flow, Kind};
use guard_common::network::{AgentEntry, Config, NetKey, NetRule};

/// The address table of every generation; see `guard_common::network`.
#[map]
pub(crate) static NETWORK: LpmTrie<NetKey, NetRule> = LpmTrie::with_max_entries(65_536, 0);

/// What is in force.
#[map]
pub(crate) static CONFIG: Array<Config> = Array::with_max_entries(1, 0);

/// Cgroup id of an agent, directly below the guard root, to the agent.
#[map]
pub(crate) static AGENTS: HashMap<u64, AgentEntry> = HashMap::with_max_entries(4_096, 0);

/// What went on.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// What was refused; apart, so that a flood of the other cannot push it out.
#[map]
pub(crate) static DENIALS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// By `Kind`.
#[map]
pub(crate) static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(Kind::ALL.len() as u32, 0);

/// Where an `Exec` is put together; too large for the stack.
#[map]
pub(crate) static SCRATCH: PerCpuArray<Exec> = PerCpuArray::with_max_entries(1, 0);

/// Internet sockets that were made below the guard root, by their cookie.
#[map]
pub(crate) static SOCKETS: HashMap<u64, Flow> = HashMap::with_max_entries(16_384, 0);

/// Cgroup id of the guard root.
#[unsafe(no_mangle)]
pub(crate) static ROOT_ID: Global<u64> = Global::new(0);

/// Depth of the guard root below the root of the hierarchy.
#[unsafe(no_mangle)]
pub(crate) static ROOT_LEVEL: Global<u32> = Global::new(0);

macro_rules! offsets {
    ($($name:ident: $what:literal),+ $(,)?) => {
        $(
            #[doc = concat!("Byte offset of `", $what, "` in the running kernel.")]
            #[unsafe(no_mangle)]
            pub(crate) static $name: Global<u32> = Global::new(0);
        )+
    };
}

offsets! {
    TASK_TGID: "task_struct.tgid",
    TASK_PID: "task_struct.pid",
    TASK_REAL_PARENT: "task_struct.real_parent",
    TASK_GROUP_LEADER: "task_struct.group_leader",
    TASK_EXIT_CODE: "task_struct.exit_code",
    TASK_SIGNAL: "task_struct.signal",
    TASK_MM: "task_struct.mm",
    TASK_START: "task_struct.start_boottime",
    SIGNAL_LIVE: "signal_struct.live",
    SIGNAL_GROUP_EXIT_CODE: "signal_struct.group_exit_code",
    MM_ARG_START: "mm_struct.arg_start",
    MM_ARG_END: "mm_struct.arg_end",
    BPRM_FILE: "linux_binprm.file",
    BPRM_FILENAME: "linux_binprm.filename",
    BPRM_INTERP: "linux_binprm.interp",
    FILE_INODE: "file.f_inode",
    FILE_DENTRY: "file.f_path.dentry",
    DENTRY_NAME: "dentry.d_name.name",
    INODE_NUMBER: "inode.i_ino",
    INODE_LINKS: "inode.i_nlink",
    INODE_SUPER: "inode.i_sb",
    SUPER_DEVICE: "super_block.s_dev",
    TCP_SENT: "tcp_sock.bytes_sent",
    TCP_SENT_AGAIN: "tcp_sock.bytes_retrans",
    TCP_RECEIVED: "tcp_sock.bytes_received",
    SOCK_FLAGS: "sock_common.skc_flags",
}
