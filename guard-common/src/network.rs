//! The address table of the kernel, and how it judges.
//!
//! The table is one longest-prefix trie. Its key starts with the generation and the scope, so that a new policy
//! is loaded beside the one in force and takes over by one write of the generation, and so that rules for one
//! agent lie beside those for everyone. [`decide`] is the whole decision; the BPF programs and user space call
//! the same code with their own way of looking up a key.

use crate::address::{Address, only_loopback, unfold};

/// What happens to a packet or a connection. Ordered from best to worst; the worst of several counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// Goes on.
    Allow = 1,
    /// Policy wants a person asked; the kernel cannot wait, so it goes on and is reported (`R-71`).
    Ask = 2,
    /// Refused with EPERM.
    Deny = 3,
}

impl Verdict {
    /// Reads a verdict from a map or a message; what is not known is a denial (`R-61`). Kernel code.
    #[inline(always)]
    #[must_use]
    pub const fn from_u8(value: u8) -> Self {
        match value {
            1 => Self::Allow,
            2 => Self::Ask,
            _ => Self::Deny,
        }
    }

    /// The worse of two. Kernel code.
    #[inline(always)]
    #[must_use]
    pub const fn worst(self, other: Self) -> Self {
        if other as u8 > self as u8 { other } else { self }
    }
}

/// Scope number of rules that hold for every agent.
pub const EVERYONE: u32 = 0;

/// Rule number of an answer that no rule gave.
pub const RULE_NONE: u32 = 0;
/// Rule number of a denial because no table is in force.
pub const RULE_NO_TABLE: u32 = u32::MAX;
/// Rule number of a denial because the agent's network was cut.
pub const RULE_NET_CUT: u32 = u32::MAX - 1;
/// Rule number of a denial because the packet names its own route, so its end is not its destination address.
pub const RULE_SOURCE_ROUTE: u32 = u32::MAX - 2;
/// Rule number of a denial because the headers could not be read.
pub const RULE_UNREADABLE: u32 = u32::MAX - 3;
/// The lowest rule number with a meaning of its own; user space numbers its rules below.
pub const RULE_FIRST_RESERVED: u32 = u32::MAX - 15;

/// IP protocol numbers that a decision needs to know.
pub mod protocol {
    /// Any protocol, in a [`PortRule`](super::PortRule).
    pub const ANY: u8 = 0;
    /// TCP, and MPTCP, which is TCP on the wire.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// MPTCP as `socket(2)` numbers it.
    pub const MPTCP: u32 = 262;
}

/// Key of the table, as the kernel's longest-prefix trie wants it after the prefix length.
///
/// Generation and scope are always matched in full: a prefix of `n` address bits is `64 + n` here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct NetKey {
    /// Generation of the policy; 0 is never in force.
    pub generation: u32,
    /// [`EVERYONE`], or an agent's number.
    pub scope: u32,
    /// The address, IPv4 as `::ffff:a.b.c.d`.
    pub address: Address,
}

impl NetKey {
    /// Bits before the address.
    pub const HEAD_BITS: u32 = 64;
    /// Bits of a whole key.
    pub const BITS: u32 = Self::HEAD_BITS + 128;
}

/// A verdict for some ports of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PortRule {
    /// First port.
    pub low: u16,
    /// Last port.
    pub high: u16,
    /// IP protocol, [`protocol::ANY`] for all.
    pub protocol: u8,
    /// A [`Verdict`] as a number.
    pub verdict: u8,
    /// Zero.
    pub padding: u16,
}

/// How many exceptions by port one rule can have.
pub const MAX_PORT_RULES: usize = 16;

/// Value of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct NetRule {
    /// A [`Verdict`] as a number, for what no port rule matches.
    pub verdict: u8,
    /// How many of `ports` are valid.
    pub port_count: u8,
    /// Zero.
    pub padding: u16,
    /// Number by which user space knows the rule's name.
    pub rule: u32,
    /// First match wins.
    pub ports: [PortRule; MAX_PORT_RULES],
}

impl NetRule {
    /// A rule without exceptions.
    #[must_use]
    pub const fn new(verdict: Verdict, rule: u32) -> Self {
        let none = PortRule { low: 0, high: 0, protocol: 0, verdict: 0, padding: 0 };
        Self { verdict: verdict as u8, port_count: 0, padding: 0, rule, ports: [none; MAX_PORT_RULES] }
    }

    /// What this rule says about a port. Kernel code.
    ///
    /// Without a port (a later fragment, a protocol without ports) only the address counts.
    #[inline(always)]
    #[must_use]
    pub fn verdict_for(&self, endpoint: Endpoint) -> Verdict {
        if let Some(port) = endpoint.port {
            let mut index = 0;
            while index < MAX_PORT_RULES {
                if index >= self.port_count as usize {
                    break;
                }
                let rule = &self.ports[index];
                let protocol_matches = rule.protocol == protocol::ANY || rule.protocol == endpoint.protocol;
                if protocol_matches && rule.low <= port && port <= rule.high {
                    return Verdict::from_u8(rule.verdict);
                }
                index += 1;
            }
        }
        Verdict::from_u8(self.verdict)
    }
}

/// Where in an address an act goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Not known for later fragments and for protocols without ports.
    pub port: Option<u16>,
    /// IP protocol number.
    pub protocol: u8,
}

/// Who acts, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct AgentEntry {
    /// The agent's number, which is its scope in the table; 0 is nobody.
    pub number: u32,
    /// [`AgentEntry::NET_CUT`] or 0.
    pub flags: u32,
}

impl AgentEntry {
    /// Only loopback passes.
    pub const NET_CUT: u32 = 1;
}

/// What is in force; the only entry of the map `CONFIG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Config {
    /// Generation that the programs look up; 0: no table is in force.
    pub generation: u32,
    /// Zero.
    pub padding: u32,
}

/// How a caller of [`decide`] looks into the table.
pub trait Table {
    /// The longest match for `key`.
    fn longest(&self, key: &NetKey) -> Option<&NetRule>;
}

/// What [`decide`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub verdict: Verdict,
    /// Number of the rule that gave it, or one of the reserved numbers.
    pub rule: u32,
}

/// Judges one address. Kernel code.
///
/// Everything that the address can reach is looked up for everyone and for the agent; the worst answer counts,
/// so a rule for one agent can tighten what holds for everyone and never loosen it. An address that no rule for
/// everyone covers is denied: a whole table has one for `::/0`, so a table that is half gone opens nothing.
#[inline(always)]
pub fn decide<T: Table>(
    table: &T,
    generation: u32,
    agent: AgentEntry,
    address: &Address,
    endpoint: Endpoint,
) -> Decision {
    if generation == 0 || agent.flags & AgentEntry::NET_CUT != 0 {
        if only_loopback(address) {
            return Decision { verdict: Verdict::Allow, rule: RULE_NONE };
        }
        let rule = if generation == 0 { RULE_NO_TABLE } else { RULE_NET_CUT };
        return Decision { verdict: Verdict::Deny, rule };
    }
    let candidates = unfold(address);
    let mut decision = Decision { verdict: Verdict::Allow, rule: RULE_NONE };
    let mut index = 0;
    while index < 3 {
        if index >= candidates.len {
            break;
        }
        let mut key = NetKey { generation, scope: EVERYONE, address: candidates.addresses[index] };
        let Some(everyone) = table.longest(&key) else {
            return Decision { verdict: Verdict::Deny, rule: RULE_NO_TABLE };
        };
        decision = tighten(decision, everyone, endpoint);
        if agent.number != EVERYONE {
            key.scope = agent.number;
            if let Some(own) = table.longest(&key) {
                decision = tighten(decision, own, endpoint);
            }
        }
        index += 1;
    }
    decision
}

#[inline(always)]
fn tighten(decision: Decision, rule: &NetRule, endpoint: Endpoint) -> Decision {
    let verdict = rule.verdict_for(endpoint);
    if decision.rule == RULE_NONE || verdict as u8 > decision.verdict as u8 {
        Decision { verdict: decision.verdict.worst(verdict), rule: rule.rule }
    } else {
        decision
    }
}

const _: () = {
    assert!(size_of::<NetKey>() == 24);
    assert!(size_of::<PortRule>() == 8);
    assert!(size_of::<NetRule>() == 8 + 8 * MAX_PORT_RULES);
    assert!(size_of::<AgentEntry>() == 8);
    assert!(size_of::<Config>() == 8);
};
