//! Brings network rules into force.
//!
//! A snapshot becomes a new generation beside the one in force and takes over by one write to `CONFIG`. A table
//! always covers everything: the built-in ranges and `::/0` are put in first, and the snapshot's rules replace
//! those of the same range. Of two rules for the same range and agent the later one counts.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap as KernelHash, MapError};
use aya::{Ebpf, Pod};
use guard_common::address::{AddressClass, BUILTIN_RANGES};
use guard_common::network::{
    AgentEntry, Config, EVERYONE, MAX_PORT_RULES, NetKey, NetRule, PortRule, RULE_FIRST_RESERVED,
    RULE_NET_CUT, RULE_NO_TABLE, RULE_NONE, RULE_SOURCE_ROUTE, RULE_UNREADABLE, Verdict,
};
use guard_proto::v1::{NetworkRule, Snapshot};

use super::bpf::{Data, LoadError, take_map};
use super::cgroup::{Cgroup, CgroupError, CgroupId};

/// What can go wrong while rules are brought into force. What was in force before still is.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A rule is not well formed.
    #[error("network rule {index} ({rule}): {what}")]
    Rule {
        /// Position in the list, from 0.
        index: usize,
        /// Its name.
        rule: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The kernel refused a change.
    #[error("cannot {what} the kernel's table: {error}")]
    Map {
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        error: MapError,
    },
    /// No such agent.
    #[error("no agent {0} is known to the kernel")]
    UnknownAgent(String),
    /// The agent is there already.
    #[error("agent {0} is known to the kernel already")]
    KnownAgent(String),
    /// The groups below the guard root cannot be listed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

type Result<T> = std::result::Result<T, TableError>;

fn map_error(what: &'static str) -> impl Fn(MapError) -> TableError {
    move |error| TableError::Map { what, error }
}

macro_rules! plain_bytes {
    ($($wrapper:ident($inner:ty)),+ $(,)?) => {
        $(
            #[derive(Clone, Copy)]
            #[repr(transparent)]
            struct $wrapper($inner);
            // SAFETY: `repr(C)` without padding bytes; any bit pattern is a value.
            unsafe impl Pod for $wrapper {}
        )+
    };
}

plain_bytes!(KeyBytes(NetKey), RuleBytes(NetRule), AgentBytes(AgentEntry), ConfigBytes(Config));

/// Names for the numbers that the kernel reports.
#[derive(Debug, Default)]
pub(crate) struct Names {
    rules: HashMap<u32, Vec<String>>,
    agents: HashMap<u32, String>,
}

impl Names {
    /// The name of a rule in the numbering of a generation; empty if no rule spoke or it is not known.
    pub(crate) fn rule(&self, generation: u32, number: u32) -> &str {
        match number {
            RULE_NONE => "",
            RULE_NO_TABLE => "no_table",
            RULE_NET_CUT => "net_cut",
            RULE_SOURCE_ROUTE => "source_route",
            RULE_UNREADABLE => "unreadable",
            _ => {
                let rules = self.rules.get(&generation);
                rules.and_then(|rules| rules.get(number as usize - 1)).map_or("", String::as_str)
            }
        }
    }

    /// The id of an agent; empty if it is not known.
    pub(crate) fn agent(&self, number: u32) -> &str {
        self.agents.get(&number).map_or("", String::as_str)
    }
}

/// One agent as the kernel knows it.
#[derive(Clone, Copy, Debug)]
struct Live {
    cgroup: CgroupId,
    entry: AgentEntry,
}

/// The maps that decide, and what is in them.
pub(crate) struct Table {
    network: LpmTrie<Data, KeyBytes, RuleBytes>,
    config: Array<Data, ConfigBytes>,
    agents: KernelHash<Data, u64, AgentBytes>,
    live: HashMap<String, Live>,
    generation: u32,
    keys: HashMap<u32, Vec<(u32, NetKey)>>,
    next_agent: u32,
    names: Arc<RwLock<Names>>,
}

/// One line that goes into the trie.
type Line = ((u32, NetKey), NetRule);

impl Table {
    /// Takes the maps over, with what an earlier process left in them.
    pub(crate) fn open(bpf: &mut Ebpf) -> std::result::Result<Self, LoadError> {
        let part = |name| move |_: MapError| LoadError::Part(name);
        let network = LpmTrie::try_from(take_map(bpf, "NETWORK")?).map_err(part("NETWORK"))?;
        let config: Array<_, ConfigBytes> =
            Array::try_from(take_map(bpf, "CONFIG")?).map_err(part("CONFIG"))?;
        let agents = KernelHash::try_from(take_map(bpf, "AGENTS")?).map_err(part("AGENTS"))?;
        let generation = config.get(&0, 0).map_err(part("CONFIG"))?.0.generation;
        let mut table = Self {
            network,
            config,
            agents,
            live: HashMap::new(),
            generation,
            keys: HashMap::new(),
            next_agent: 1,
            names: Arc::default(),
        };
        let keys: Vec<Key<KeyBytes>> = table.network.keys().flatten().collect();
        for key in keys {
            let (bits, data) = (key.prefix_len(), key.data().0);
            table.keys.entry(data.generation).or_default().push((bits, data));
        }
        Ok(table)
    }

    /// Finds the agents of an earlier process below the guard root and forgets those that are gone.
    pub(crate) fn adopt_agents(&mut self, root: &Cgroup) -> Result<Vec<(String, CgroupId)>> {
        let mut known: HashMap<u64, AgentEntry> =
            self.agents.iter().flatten().map(|(cgroup, entry)| (cgroup, entry.0)).collect();
        let mut adopted = Vec::new();
        for path in root.children()? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            // The canary of a self-test that was cut short is nobody's agent.
            if name == super::probe::CANARY {
                continue;
            }
            let Ok(cgroup) = Cgroup::open(&path) else { continue };
            if let Some(entry) = known.remove(&cgroup.id().0) {
                self.remember(name, Live { cgroup: cgroup.id(), entry });
                adopted.push((name.to_owned(), cgroup.id()));
            }
        }
        for (cgroup, entry) in known {
            self.agents.remove(&cgroup).map_err(map_error("remove an ended agent from"))?;
            self.drop_keys(|key| key.scope == entry.number)?;
        }
        Ok(adopted)
    }

    /// What the numbers mean; shared with the thread that reads events.
    pub(crate) fn names(&self) -> Arc<RwLock<Names>> {
        Arc::clone(&self.names)
    }

    /// The kernel's generation; 0 while no table is in force.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Loads a snapshot beside what is in force, then switches.
    pub(crate) fn bring_into_force(&mut self, snapshot: &Snapshot) -> Result<()> {
        let generation = self.generation.checked_add(1).unwrap_or(1);
        // What is neither in force nor was until now, and what a failed attempt left.
        let current = self.generation;
        self.drop_keys(|key| key.generation != current)?;

        let mut rules = Vec::new();
        let mut lines = BTreeMap::new();
        let rest = NetworkRule {
            address: vec![0; 16],
            verdict: u32::from(Verdict::Allow as u8),
            rule: AddressClass::Public.as_str().into(),
            ..NetworkRule::default()
        };
        for rule in std::iter::once(&rest).chain(&builtin_rules()).chain(&snapshot.network) {
            let Some(scope) = self.scope(&rule.agent_id) else { continue };
            let index = rules.len();
            let ((bits, key), value) = line(index, rule, generation, scope)?;
            rules.push(rule.rule.clone());
            lines.insert((bits, key.scope, key.address), ((bits, key), value));
        }
        self.insert(lines.into_values())?;
        self.with_names(|names| {
            names.rules.retain(|known, _| *known == current);
            names.rules.insert(generation, rules);
        });
        self.switch(generation)
    }

    /// Goes back to having no table in force.
    pub(crate) fn withdraw(&mut self) -> Result<()> {
        self.switch(0)
    }

    fn switch(&mut self, generation: u32) -> Result<()> {
        let config = ConfigBytes(Config { generation, padding: 0 });
        self.config.set(0, config, 0).map_err(map_error("switch"))?;
        self.generation = generation;
        Ok(())
    }

    /// Makes an agent known: its own rules first, then the agent.
    pub(crate) fn add_agent(&mut self, id: &str, cgroup: CgroupId, rules: &[NetworkRule]) -> Result<()> {
        if self.live.contains_key(id) {
            return Err(TableError::KnownAgent(id.to_owned()));
        }
        let entry = AgentEntry { number: self.free_number(), flags: 0 };
        let generation = self.generation;
        if generation != 0 {
            let first = self.read_names(|names| names.rules.get(&generation).map_or(0, Vec::len));
            let lines = rules
                .iter()
                .enumerate()
                .map(|(index, rule)| line(first + index, rule, generation, entry.number))
                .collect::<Result<Vec<_>>>()?;
            self.insert(lines)?;
            let texts = rules.iter().map(|rule| rule.rule.clone());
            self.with_names(|names| names.rules.entry(generation).or_default().extend(texts));
        }
        self.agents.insert(cgroup.0, AgentBytes(entry), 0).map_err(map_error("add an agent to"))?;
        self.remember(id, Live { cgroup, entry });
        Ok(())
    }

    /// Forgets an agent and its rules.
    pub(crate) fn remove_agent(&mut self, id: &str) -> Result<()> {
        let live = self.live.remove(id).ok_or_else(|| TableError::UnknownAgent(id.to_owned()))?;
        self.agents.remove(&live.cgroup.0).map_err(map_error("remove an agent from"))?;
        // The name stays for events that are still on their way; numbers are not used twice.
        self.drop_keys(|key| key.scope == live.entry.number)
    }

    /// Leaves an agent loopback alone.
    pub(crate) fn net_cut(&mut self, id: &str) -> Result<()> {
        let live = self.live.get_mut(id).ok_or_else(|| TableError::UnknownAgent(id.to_owned()))?;
        live.entry.flags |= AgentEntry::NET_CUT;
        let value = AgentBytes(live.entry);
        self.agents.insert(live.cgroup.0, value, 0).map_err(map_error("cut an agent off in"))
    }

    /// Whether an agent's network was cut.
    pub(crate) fn is_cut(&self, id: &str) -> bool {
        self.live.get(id).is_some_and(|live| live.entry.flags & AgentEntry::NET_CUT != 0)
    }

    fn scope(&self, agent_id: &str) -> Option<u32> {
        // A rule for an agent that has ended meanwhile has nobody to hold for.
        if agent_id.is_empty() {
            Some(EVERYONE)
        } else {
            self.live.get(agent_id).map(|live| live.entry.number)
        }
    }

    fn free_number(&mut self) -> u32 {
        let number = self.next_agent;
        self.next_agent = self.next_agent.checked_add(1).unwrap_or(1);
        number
    }

    fn remember(&mut self, id: &str, live: Live) {
        self.next_agent = self.next_agent.max(live.entry.number.saturating_add(1));
        self.with_names(|names| names.agents.insert(live.entry.number, id.to_owned()));
        self.live.insert(id.to_owned(), live);
    }

    fn insert(&mut self, lines: impl IntoIterator<Item = Line>) -> Result<()> {
        for ((bits, key), value) in lines {
            let trie_key = Key::new(bits, KeyBytes(key));
            self.network.insert(&trie_key, RuleBytes(value), 0).map_err(map_error("add a rule to"))?;
            self.keys.entry(key.generation).or_default().push((bits, key));
        }
        Ok(())
    }

    fn drop_keys(&mut self, gone: impl Fn(&NetKey) -> bool) -> Result<()> {
        for keys in self.keys.values_mut() {
            for (bits, key) in keys.extract_if(.., |(_, key)| gone(key)) {
                match self.network.remove(&Key::new(bits, KeyBytes(key))) {
                    Err(MapError::SyscallError(error))
                        if error.io_error.kind() == io::ErrorKind::NotFound => {}
                    other => other.map_err(map_error("remove a rule from"))?,
                }
            }
        }
        self.keys.retain(|_, keys| !keys.is_empty());
        Ok(())
    }

    fn with_names<T>(&self, change: impl FnOnce(&mut Names) -> T) -> T {
        change(&mut self.names.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_names<T>(&self, read: impl FnOnce(&Names) -> T) -> T {
        read(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The built-in ranges as rules, with their default verdicts.
#[must_use]
pub fn builtin_rules() -> Vec<NetworkRule> {
    let rule = |range: &guard_common::address::Range| NetworkRule {
        address: range.address.to_vec(),
        prefix: u32::from(range.prefix),
        verdict: u32::from(range.default_verdict() as u8),
        rule: range.class.as_str().to_owned(),
        ..NetworkRule::default()
    };
    BUILTIN_RANGES.iter().map(rule).collect()
}

/// Checks one rule and puts it into the kernel's form. Its number is one more than its index.
fn line(index: usize, rule: &NetworkRule, generation: u32, scope: u32) -> Result<Line> {
    let bad = |what| TableError::Rule { index, rule: rule.rule.clone(), what };
    let address = rule.address.as_slice().try_into().map_err(|_| bad("the address has not 16 bytes"))?;
    if rule.prefix > 128 {
        return Err(bad("the prefix is longer than 128"));
    }
    let number = u32::try_from(index + 1).ok().filter(|number| *number < RULE_FIRST_RESERVED);
    let mut value =
        NetRule::new(verdict(rule.verdict).ok_or_else(|| bad("the verdict is not 1, 2 or 3"))?, 0);
    value.rule = number.ok_or_else(|| bad("there are too many rules"))?;
    if rule.ports.len() > MAX_PORT_RULES {
        return Err(bad("there are more than 16 exceptions by port"));
    }
    for (slot, port) in value.ports.iter_mut().zip(&rule.ports) {
        let number = |value: u32| u16::try_from(value).map_err(|_| bad("a port is larger than 65535"));
        *slot = PortRule {
            low: number(port.low)?,
            high: number(port.high)?,
            protocol: u8::try_from(port.protocol).map_err(|_| bad("a protocol is larger than 255"))?,
            verdict: verdict(port.verdict).ok_or_else(|| bad("a port's verdict is not 1, 2 or 3"))? as u8,
            padding: 0,
        };
        if slot.low > slot.high {
            return Err(bad("a range of ports ends before it starts"));
        }
        value.port_count += 1;
    }
    let mask = u128::MAX.checked_shl(128 - rule.prefix).unwrap_or(0);
    let address = (u128::from_be_bytes(address) & mask).to_be_bytes();
    Ok(((NetKey::HEAD_BITS + rule.prefix, NetKey { generation, scope, address }), value))
}

fn verdict(number: u32) -> Option<Verdict> {
    matches!(number, 1..=3).then(|| Verdict::from_u8(u8::try_from(number).unwrap_or(u8::MAX)))
}

#[cfg(test)]
mod tests {
    use guard_proto::v1;

    use super::*;

    fn rule(address: &[u8], prefix: u32, verdict: u32) -> NetworkRule {
        NetworkRule { address: address.to_vec(), prefix, verdict, rule: "r".into(), ..NetworkRule::default() }
    }

    #[test]
    fn a_rule_is_checked_before_anything_is_changed() {
        let port = |low, high, protocol, verdict| v1::PortRule { low, high, protocol, verdict };
        let with = |ports: Vec<v1::PortRule>| NetworkRule { ports, ..rule(&[0; 16], 0, 1) };
        for (bad, why) in [
            (rule(&[0; 4], 0, 1), "16 bytes"),
            (rule(&[0; 16], 129, 1), "longer than 128"),
            (rule(&[0; 16], 0, 0), "not 1, 2 or 3"),
            (rule(&[0; 16], 0, 259), "not 1, 2 or 3"),
            (with(vec![port(2, 1, 0, 1)]), "ends before"),
            (with(vec![port(1, 65_536, 0, 1)]), "65535"),
            (with(vec![port(1, 2, 256, 1)]), "255"),
            (with(vec![port(1, 2, 6, 4)]), "port's verdict"),
            (with(vec![port(1, 2, 6, 1); 17]), "more than 16"),
        ] {
            let error = line(0, &bad, 1, 0).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_rule_keeps_its_range_and_loses_bits_behind_the_prefix() {
        let ((bits, key), value) = line(4, &rule(&[0xff; 16], 12, 3), 7, 9).expect("well formed");
        assert_eq!((bits, key.generation, key.scope), (76, 7, 9));
        assert_eq!(&key.address[..3], &[0xff, 0xf0, 0]);
        assert_eq!((value.rule, value.verdict, value.port_count), (5, 3, 0));
        let ((bits, key), _) = line(0, &rule(&[0xff; 16], 0, 1), 1, 0).expect("well formed");
        assert_eq!((bits, key.address), (64, [0; 16]));
    }

    #[test]
    fn reserved_numbers_and_unknown_ones_have_names_too() {
        let mut names = Names::default();
        names.rules.insert(3, vec!["metadata".into()]);
        assert_eq!((names.rule(3, 1), names.rule(3, 2), names.rule(4, 1)), ("metadata", "", ""));
        assert_eq!((names.rule(3, 0), names.rule(0, RULE_NO_TABLE)), ("", "no_table"));
    }
}
