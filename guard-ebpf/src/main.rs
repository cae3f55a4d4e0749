//! The BPF programs of guard.
//!
//! Every hook does three things: find out whose act it is ([`scope`]), decide, and report ([`emit`]). What is
//! decided comes from [`guard_common::network`], which user space runs too.
//!
//! - `net`: `cgroup/connect4`, `connect6`, `sendmsg4`, `sendmsg6`, `cgroup_skb/egress`, `cgroup/sock_create`;
//! - `flow`: what sockets carried and which listen: `sock_create`, `post_bind4`, `post_bind6`, `sock_release`,
//!   `sock_ops`, `cgroup_skb/ingress`;
//! - `exec`: the scheduler's tracepoints for fork, exec and exit;
//! - `scope`: which agent a task, a socket or a packet belongs to;
//! - `maps`: everything that user space fills or reads;
//! - `emit`: rings and counters; no decision depends on room in a ring.
//!
//! The cgroup programs are attached to the guard root and govern whatever is below it. The tracepoints see every
//! task and ask for its ancestor. Offsets of kernel fields are read from the running kernel's BTF by the loader.
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(core_intrinsics))]
#![cfg_attr(target_arch = "bpf", expect(internal_features, reason = "atomic addition, see emit"))]

#[cfg(target_arch = "bpf")]
mod emit;
#[cfg(target_arch = "bpf")]
mod exec;
#[cfg(target_arch = "bpf")]
mod flow;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod net;
#[cfg(target_arch = "bpf")]
mod scope;

#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
