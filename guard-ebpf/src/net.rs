//! Addresses, packets and sockets.
//!
//! `connect` and `sendmsg` judge the kernel's own copy of the address. Egress sees what these cannot: raw and
//! ping sockets, connected datagrams, connections older than a rule. A packet whose end is not its destination
//! address (IPv4 options, an IPv6 routing header) may only go to loopback.

use aya_ebpf::helpers::generated::{bpf_get_socket_cookie, bpf_skb_load_bytes};
use aya_ebpf::macros::{cgroup_skb, cgroup_sock, cgroup_sock_addr};
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::programs::{SkBuffContext, SockAddrContext, SockContext};
use guard_common::address::{Address, only_loopback, v4};
use guard_common::event::{Connect, Hook, Kind, Socket};
use guard_common::network::{
    Decision, Endpoint, NetKey, NetRule, RULE_SOURCE_ROUTE, RULE_UNREADABLE, Table, Verdict, decide, protocol,
};

use crate::emit;
use crate::flow;
use crate::maps::{CONFIG, DENIALS, EVENTS, NETWORK};
use crate::scope::Actor;

const ALLOW: i32 = 1;
const DENY: i32 = 0;

pub(crate) const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_UNIX: u32 = 1;
const SOCK_RAW: u32 = 3;
const SOCK_PACKET: u32 = 10;

struct KernelTable;

impl Table for KernelTable {
    #[inline(always)]
    fn longest(&self, key: &NetKey) -> Option<&NetRule> {
        NETWORK.get(Key::new(NetKey::BITS, *key))
    }
}

#[inline(always)]
fn generation() -> u32 {
    CONFIG.get(0).map_or(0, |config| config.generation)
}

#[cgroup_sock_addr(connect4)]
pub(crate) fn guard_connect4(ctx: SockAddrContext) -> i32 {
    judge_call(&ctx, Hook::Connect4)
}

#[cgroup_sock_addr(connect6)]
pub(crate) fn guard_connect6(ctx: SockAddrContext) -> i32 {
    judge_call(&ctx, Hook::Connect6)
}

#[cgroup_sock_addr(sendmsg4)]
pub(crate) fn guard_sendmsg4(ctx: SockAddrContext) -> i32 {
    judge_call(&ctx, Hook::Sendmsg4)
}

#[cgroup_sock_addr(sendmsg6)]
pub(crate) fn guard_sendmsg6(ctx: SockAddrContext) -> i32 {
    judge_call(&ctx, Hook::Sendmsg6)
}

#[inline(always)]
fn judge_call(ctx: &SockAddrContext, hook: Hook) -> i32 {
    // SAFETY: the kernel hands the program a valid context; each field is read by a load of its own width.
    let (address, port, number) = unsafe {
        let call = ctx.sock_addr;
        let address = match hook {
            Hook::Connect4 | Hook::Sendmsg4 => v4((*call).user_ip4.to_ne_bytes()),
            _ => six((*call).user_ip6[0], (*call).user_ip6[1], (*call).user_ip6[2], (*call).user_ip6[3]),
        };
        (address, u16::from_be((*call).user_port as u16), (*call).protocol)
    };
    let number = if number == protocol::MPTCP { protocol::TCP } else { number as u8 };
    let endpoint = Endpoint { port: Some(port), protocol: number };
    let actor = Actor::current();
    let generation = generation();
    let decision = decide(&KernelTable, generation, actor.agent, &address, endpoint);
    let answer = report(&actor, hook, generation, &address, endpoint, decision);
    if answer == ALLOW {
        // SAFETY: the call is the program's own context.
        let cookie = unsafe { bpf_get_socket_cookie(ctx.sock_addr.cast()) };
        flow::named(cookie, &actor, &address, endpoint);
    }
    answer
}

#[inline(always)]
pub(crate) fn six(a: u32, b: u32, c: u32, d: u32) -> Address {
    let (a, b, c, d) = (a.to_ne_bytes(), b.to_ne_bytes(), c.to_ne_bytes(), d.to_ne_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
}

/// Reports and turns the decision into the program's answer. Packets that go on are not reported: the call that
/// opened their way was.
#[inline(always)]
fn report(
    actor: &Actor,
    hook: Hook,
    generation: u32,
    address: &Address,
    endpoint: Endpoint,
    decision: Decision,
) -> i32 {
    let denied = matches!(decision.verdict, Verdict::Deny);
    let packet = matches!(hook, Hook::Egress);
    if packet && !denied {
        return ALLOW;
    }
    let kind = match (denied, packet) {
        (false, _) => Kind::Connect,
        (true, false) => Kind::Denied,
        (true, true) => Kind::Dropped,
    };
    let header = if packet { emit::header_without_task(kind, actor) } else { emit::header(kind, actor) };
    let record = Connect {
        header,
        address: *address,
        port: endpoint.port.unwrap_or(0),
        protocol: endpoint.protocol,
        verdict: decision.verdict as u8,
        hook: hook as u32,
        rule: decision.rule,
        generation,
    };
    emit::submit(if denied { &DENIALS } else { &EVENTS }, kind, record);
    if denied { DENY } else { ALLOW }
}

#[cgroup_skb(egress)]
pub(crate) fn guard_egress(ctx: SkBuffContext) -> i32 {
    let actor = Actor::of_packet(ctx.skb.skb);
    let generation = generation();
    let packet = read_packet(&ctx);
    let decision = if packet.fault == 0 {
        decide(&KernelTable, generation, actor.agent, &packet.address, packet.endpoint)
    } else if packet.fault == RULE_SOURCE_ROUTE && only_loopback(&packet.address) {
        Decision { verdict: Verdict::Allow, rule: 0 }
    } else {
        Decision { verdict: Verdict::Deny, rule: packet.fault }
    };
    let answer = report(&actor, Hook::Egress, generation, &packet.address, packet.endpoint, decision);
    if answer == ALLOW {
        flow::sent(&ctx);
    }
    answer
}

struct Packet {
    address: Address,
    endpoint: Endpoint,
    /// 0, or the reserved rule number that says what is wrong with the headers.
    fault: u32,
}

impl Packet {
    #[inline(always)]
    fn unreadable() -> Self {
        Self { address: [0; 16], endpoint: Endpoint { port: None, protocol: 0 }, fault: RULE_UNREADABLE }
    }
}

/// Reads bytes of the packet into memory that has a value already: what is left undefined where reading fails is
/// what the verifier refuses.
#[inline(always)]
fn read<const N: usize>(ctx: &SkBuffContext, offset: u32, to: &mut [u8; N]) -> bool {
    // SAFETY: the buffer is as long as the helper is told.
    unsafe { bpf_skb_load_bytes(ctx.skb.skb.cast(), offset, to.as_mut_ptr().cast(), N as u32) == 0 }
}

#[inline(always)]
fn read_packet(ctx: &SkBuffContext) -> Packet {
    let mut first = [0_u8; 1];
    if !read(ctx, 0, &mut first) {
        return Packet::unreadable();
    }
    match first[0] >> 4 {
        4 => read_v4(ctx),
        6 => read_v6(ctx),
        _ => Packet::unreadable(),
    }
}

#[inline(always)]
fn read_v4(ctx: &SkBuffContext) -> Packet {
    let mut head = [0_u8; 20];
    if !read(ctx, 0, &mut head) {
        return Packet::unreadable();
    }
    let address = v4([head[16], head[17], head[18], head[19]]);
    let number = head[9];
    if head[0] & 0x0f != 5 {
        let endpoint = Endpoint { port: None, protocol: number };
        return Packet { address, endpoint, fault: RULE_SOURCE_ROUTE };
    }
    let later_fragment = (head[6] & 0x1f) | head[7] != 0;
    let port = if later_fragment { None } else { read_port(ctx, number, 20) };
    Packet { address, endpoint: Endpoint { port, protocol: number }, fault: 0 }
}

/// Extension headers that are walked before the rest counts as a protocol without ports.
const MAX_EXTENSIONS: usize = 6;

#[inline(always)]
fn read_v6(ctx: &SkBuffContext) -> Packet {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;

    let mut address: Address = [0; 16];
    let mut number = [0_u8; 1];
    if !read(ctx, 24, &mut address) || !read(ctx, 6, &mut number) {
        return Packet::unreadable();
    }
    let mut number = number[0];
    let mut offset = 40_u32;
    let mut port = None;
    let mut fault = 0;
    let mut index = 0;
    while index < MAX_EXTENSIONS {
        index += 1;
        if number == ROUTING {
            fault = RULE_SOURCE_ROUTE;
            break;
        }
        if !matches!(number, HOP_BY_HOP | FRAGMENT | AUTHENTICATION | DESTINATION) {
            port = read_port(ctx, number, offset);
            break;
        }
        let mut head = [0_u8; 4];
        if !read(ctx, offset, &mut head) {
            return Packet::unreadable();
        }
        let extension = number;
        number = head[0];
        match extension {
            FRAGMENT if head[2] | (head[3] & 0xf8) != 0 => break,
            FRAGMENT => offset += 8,
            AUTHENTICATION => offset += (u32::from(head[1]) + 2) * 4,
            _ => offset += (u32::from(head[1]) + 1) * 8,
        }
    }
    Packet { address, endpoint: Endpoint { port, protocol: number }, fault }
}

#[inline(always)]
fn read_port(ctx: &SkBuffContext, number: u8, offset: u32) -> Option<u16> {
    if number != protocol::TCP && number != protocol::UDP {
        return None;
    }
    let mut port = [0_u8; 2];
    if read(ctx, offset + 2, &mut port) { Some(u16::from_be_bytes(port)) } else { None }
}

/// Raw and packet sockets are refused, whatever capabilities the agent has: they write their own headers.
#[cgroup_sock(sock_create)]
pub(crate) fn guard_sock_create(ctx: SockContext) -> i32 {
    // SAFETY: the kernel hands the program a valid context.
    let (family, kind, number) = unsafe { ((*ctx.sock).family, (*ctx.sock).type_, (*ctx.sock).protocol) };
    let family_fits = family == AF_INET || family == AF_INET6 || family == AF_UNIX;
    let actor = Actor::current();
    if family_fits && kind != SOCK_RAW && kind != SOCK_PACKET {
        if family != AF_UNIX {
            flow::made(ctx.sock, &actor, number);
        }
        return ALLOW;
    }
    let header = emit::header(Kind::Socket, &actor);
    let record = Socket { header, family, kind, protocol: number, hook: Hook::SockCreate as u32 };
    emit::submit(&DENIALS, Kind::Socket, record);
    DENY
}
