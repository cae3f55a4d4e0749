//! What went through a socket, and which sockets listen.
//!
//! A socket is entered in a table when it is made, with who made it, since nothing else tells that later: a connection ends in a
//! timer as often as in a system call. TCP counts its own content, so its bytes are read once, at the end; those of datagrams are
//! added up packet by packet. Nothing is refused here.

use core::intrinsics::{AtomicOrdering, atomic_xadd};
use core::ptr::read_volatile;

use aya_ebpf::bindings::{
    BPF_ANY, BPF_NOEXIST, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_TCP_LISTEN_CB,
    bpf_sock, bpf_sock_ops,
};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_socket_cookie, bpf_skb_load_bytes, bpf_skc_to_tcp_sock};
use aya_ebpf::macros::{cgroup_skb, cgroup_sock, sock_ops};
use aya_ebpf::programs::{SkBuffContext, SockContext, SockOpsContext};
use guard_common::address::{Address, v4};
use guard_common::event::{Flow, Header, Kind};
use guard_common::network::{Endpoint, protocol};

use crate::emit;
use crate::exec::{Object, field};
use crate::maps::{EVENTS, SOCK_FLAGS, SOCKETS, TCP_RECEIVED, TCP_SENT, TCP_SENT_AGAIN};
use crate::net::{AF_INET, six};
use crate::scope::Actor;

/// `BPF_SOCK_OPS_STATE_CB_FLAG`: tell of changes of state.
const TELL_STATES: u32 = 1 << 2;
/// `TCP_CLOSE`
const CLOSE: u32 = 7;
/// `SOCK_DONE`: the other end has said that nothing more comes, which TCP counts as a byte.
const DONE: u64 = 1 << 1;
/// Bytes of a UDP header.
const UDP_HEADER: u64 = 8;

/// A socket of the task that runs now, before anything went through it.
#[inline(always)]
fn fresh(actor: &Actor, number: u8) -> Flow {
    let ids = bpf_get_current_pid_tgid();
    let header = Header {
        cgroup: actor.cgroup,
        agent: actor.agent.number,
        pid: (ids >> 32) as u32,
        tid: ids as u32,
        ..Header::default()
    };
    Flow { header, protocol: number, ..Flow::default() }
}

/// Remembers a socket that was just made.
#[inline(always)]
pub(crate) fn made(socket: *mut bpf_sock, actor: &Actor, number: u32) {
    // SAFETY: the socket is the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(socket.cast()) };
    // While a new guardd takes over, the programs of both see it made; one entry is enough.
    if SOCKETS.insert(cookie, fresh(actor, transport(number)), BPF_NOEXIST.into()).is_err()
        && SOCKETS.get_ptr_mut(cookie).is_none()
    {
        emit::map_full(Kind::Flow);
    }
}

#[inline(always)]
fn transport(number: u32) -> u8 {
    if number == protocol::MPTCP { protocol::TCP } else { number as u8 }
}

/// A socket names another end, by `connect` or with a datagram.
#[inline(always)]
pub(crate) fn named(cookie: u64, actor: &Actor, address: &Address, endpoint: Endpoint) {
    let port = endpoint.port.unwrap_or(0);
    let Some(flow) = SOCKETS.get_ptr_mut(cookie) else {
        // Made before the programs were there, or it has ended once and is used again.
        let mut flow = fresh(actor, endpoint.protocol);
        begin(&mut flow, address, port);
        if SOCKETS.insert(cookie, flow, BPF_ANY.into()).is_err() {
            emit::map_full(Kind::Flow);
        }
        return;
    };
    // SAFETY: the map's value outlives the program; a socket that two threads use at once may keep either address.
    let flow = unsafe { &mut *flow };
    if flow.state == Flow::IDLE || flow.state == Flow::NAMED {
        begin(flow, address, port);
    } else if flow.port != port || flow.address != *address {
        flow.ends += 1;
    }
}

#[inline(always)]
fn begin(flow: &mut Flow, address: &Address, port: u16) {
    // TCP says itself when it begins to reach the other end.
    flow.state = if flow.protocol == protocol::TCP { Flow::NAMED } else { Flow::OPEN };
    flow.address = *address;
    flow.port = port;
    flow.began_ns = emit::now();
    flow.ends = 1;
}

/// A packet that goes out; those of datagrams are added up. It reads the packet for itself: what the judging of it has read
/// already is not defined on all of its ways, and the verifier does not let that pass.
#[inline(always)]
pub(crate) fn sent(ctx: &SkBuffContext) {
    if !is_datagram(ctx) {
        return;
    }
    let bytes = content(ctx);
    if let Some(flow) = of_packet(ctx) {
        // SAFETY: as in `add`.
        add(unsafe { &raw mut (*flow).sent }, bytes);
    }
}

#[cgroup_skb(ingress)]
pub(crate) fn guard_ingress(ctx: SkBuffContext) -> i32 {
    if is_datagram(&ctx) {
        let bytes = content(&ctx);
        if let Some(flow) = of_packet(&ctx) {
            // SAFETY: as in `add`.
            add(unsafe { &raw mut (*flow).received }, bytes);
        }
    }
    1
}

#[inline(always)]
fn of_packet(ctx: &SkBuffContext) -> Option<*mut Flow> {
    // SAFETY: the packet is the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.skb.skb.cast()) };
    SOCKETS.get_ptr_mut(cookie)
}

#[inline(always)]
fn byte(ctx: &SkBuffContext, offset: u32) -> u8 {
    let mut byte = [0_u8; 1];
    // SAFETY: the buffer is as long as the helper is told.
    unsafe { bpf_skb_load_bytes(ctx.skb.skb.cast(), offset, byte.as_mut_ptr().cast(), 1) };
    byte[0]
}

#[inline(always)]
fn is_datagram(ctx: &SkBuffContext) -> bool {
    let offset = if byte(ctx, 0) >> 4 == 4 { 9 } else { 6 };
    byte(ctx, offset) == protocol::UDP
}

/// Bytes behind the headers; extension headers of IPv6, which hardly exist, count as content.
#[inline(always)]
fn content(ctx: &SkBuffContext) -> u64 {
    let first = byte(ctx, 0);
    let header = if first >> 4 == 4 { u64::from(first & 0xf) * 4 } else { 40 };
    // SAFETY: the kernel hands the program a valid context.
    let length = u64::from(unsafe { (*ctx.skb.skb).len });
    length.saturating_sub(header + UDP_HEADER)
}

#[inline(always)]
fn add(to: *mut u64, bytes: u64) {
    // SAFETY: the map's value outlives the program, and its sums are only ever used atomically.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(to, bytes) };
}

#[cgroup_sock(post_bind4)]
pub(crate) fn guard_bound4(ctx: SockContext) -> i32 {
    // SAFETY: the kernel hands the program a valid context.
    bound(&ctx, v4(unsafe { (*ctx.sock).src_ip4 }.to_ne_bytes()))
}

#[cgroup_sock(post_bind6)]
pub(crate) fn guard_bound6(ctx: SockContext) -> i32 {
    // SAFETY: the kernel hands the program a valid context; each word is read by a load of its own.
    let address = unsafe {
        let socket = ctx.sock;
        six((*socket).src_ip6[0], (*socket).src_ip6[1], (*socket).src_ip6[2], (*socket).src_ip6[3])
    };
    bound(&ctx, address)
}

/// A datagram socket that is bound can be reached; a stream that is bound has yet to listen.
#[inline(always)]
fn bound(ctx: &SockContext, address: Address) -> i32 {
    // SAFETY: the kernel hands the program a valid context.
    let (port, number) = unsafe { ((*ctx.sock).src_port, (*ctx.sock).protocol) };
    if number == u32::from(protocol::UDP) {
        let header = emit::header(Kind::Listen, &Actor::current());
        listens(header, address, port as u16, protocol::UDP);
    }
    1
}

#[inline(always)]
fn listens(header: Header, address: Address, port: u16, protocol: u8) {
    let record = Flow {
        header,
        address,
        port,
        protocol,
        state: Flow::LISTENS,
        began_ns: header.boot_ns,
        ..Flow::default()
    };
    emit::submit(&EVENTS, Kind::Listen, record);
}

#[cgroup_sock(sock_release)]
pub(crate) fn guard_released(ctx: SockContext) -> i32 {
    // SAFETY: the socket is the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.sock.cast()) };
    let Some(flow) = SOCKETS.get_ptr_mut(cookie) else { return 1 };
    // SAFETY: as in `named`.
    let flow = unsafe { *flow };
    // A connection ends when TCP says so, which may be later.
    let goes_on = flow.protocol == protocol::TCP && flow.state == Flow::OPEN;
    if !goes_on {
        let _ = SOCKETS.remove(cookie);
    }
    if flow.protocol == protocol::UDP && flow.state == Flow::OPEN {
        let header = emit::header_of(Kind::Flow, &flow.header);
        emit::submit(&EVENTS, Kind::Flow, Flow { header, ..flow });
    }
    1
}

#[sock_ops]
pub(crate) fn guard_sock_ops(ctx: SockOpsContext) -> u32 {
    let op = ctx.op();
    if op == BPF_SOCK_OPS_TCP_CONNECT_CB {
        if let Some(flow) = SOCKETS.get_ptr_mut(cookie_of(ctx.ops)) {
            // SAFETY: as in `named`.
            unsafe { (*flow).state = Flow::OPEN };
            let _ = ctx.set_cb_flags((ctx.cb_flags() | TELL_STATES) as i32);
        }
    } else if op == BPF_SOCK_OPS_TCP_LISTEN_CB {
        let maker = SOCKETS.get_ptr_mut(cookie_of(ctx.ops)).map(|flow| {
            // SAFETY: as in `named`.
            unsafe { (*flow).header }
        });
        let header = emit::header_of(Kind::Listen, &maker.unwrap_or_default());
        listens(header, local_address(ctx.ops), ctx.local_port() as u16, protocol::TCP);
    } else if op == BPF_SOCK_OPS_STATE_CB && ctx.arg(1) == CLOSE {
        ended(ctx.ops);
    }
    1
}

#[inline(always)]
fn cookie_of(ops: *mut bpf_sock_ops) -> u64 {
    // SAFETY: `ops` is the program's own context.
    unsafe { bpf_get_socket_cookie(ops.cast()) }
}

/// Every word is read whatever the family is: the compiler would otherwise make one load of a computed address of two, which
/// the verifier refuses.
#[inline(always)]
fn local_address(ops: *mut bpf_sock_ops) -> Address {
    // SAFETY: `ops` is the program's own context; each word is read by a load of its own.
    let (family, four, words) = unsafe {
        (
            read_volatile(&raw const (*ops).family),
            read_volatile(&raw const (*ops).local_ip4),
            [
                read_volatile(&raw const (*ops).local_ip6[0]),
                read_volatile(&raw const (*ops).local_ip6[1]),
                read_volatile(&raw const (*ops).local_ip6[2]),
                read_volatile(&raw const (*ops).local_ip6[3]),
            ],
        )
    };
    if family == AF_INET { v4(four.to_ne_bytes()) } else { six(words[0], words[1], words[2], words[3]) }
}

/// A connection is over, established or not.
#[inline(always)]
fn ended(ops: *mut bpf_sock_ops) {
    let cookie = cookie_of(ops);
    let Some(flow) = SOCKETS.get_ptr_mut(cookie) else { return };
    // SAFETY: as in `named`.
    let mut flow = unsafe { *flow };
    // SAFETY: the socket comes from the context and is checked; the loader found each field in the kernel's types.
    unsafe {
        let socket = (*ops).__bindgen_anon_2.sk;
        if !socket.is_null() {
            let tcp: Object = bpf_skc_to_tcp_sock(socket.cast()).cast();
            if !tcp.is_null() {
                let sent: u64 = field(tcp, &TCP_SENT);
                let again: u64 = field(tcp, &TCP_SENT_AGAIN);
                let received: u64 = field(tcp, &TCP_RECEIVED);
                let flags: u64 = field(tcp, &SOCK_FLAGS);
                flow.sent = sent.wrapping_sub(again);
                flow.received = if flags & DONE != 0 { received.saturating_sub(1) } else { received };
            }
        }
    }
    let _ = SOCKETS.remove(cookie);
    let header = emit::header_of(Kind::Flow, &flow.header);
    emit::submit(&EVENTS, Kind::Flow, Flow { header, ..flow });
}
