//! Loading the policy and the managed file. Everything that is wrong is reported at once, with its place; what
//! is documented and judged by no gate yet is refused, so that nobody relies on it.

pub(crate) mod network;
pub(crate) mod rule;

use std::collections::BTreeMap;

use super::{Autonomy, Limits, NetworkPolicy, Parts, Policy, Rule, Scope};
use crate::fault::{Fault, FaultCode};
use crate::json::{self, Node};
use crate::read::{Keys, Object, Reader};

/// Most bytes of an operator's file.
pub const MAX_FILE_BYTES: usize = 16 << 20;

pub(crate) const POLICY: Keys = Keys {
    what: "a policy",
    known: &["version", "rules", "modes", "autonomy", "delegation", "network", "limits", "require_mandate"],
    unsupported: &["resources", "checks"],
    aliases: &[],
};

pub(crate) const MANAGED: Keys = Keys {
    what: "a managed policy",
    known: &["version", "rules", "delegation", "network", "limits", "require_mandate"],
    unsupported: &["checks"],
    aliases: &[],
};

const STORED: Keys =
    Keys { what: "the store", known: &["rules", "autonomy"], unsupported: &[], aliases: &[] };

pub(crate) const MODE: Keys =
    Keys { what: "a mode", known: &["rules", "deny_commands"], unsupported: &[], aliases: &[] };

pub(crate) const DELEGATION: Keys =
    Keys { what: "delegation", known: &["max_depth"], unsupported: &[], aliases: &[] };

pub(crate) const LIMITS: Keys = Keys {
    what: "limits",
    known: &["paths", "refs", "hosts", "commands", "string"],
    unsupported: &["segments", "statements"],
    aliases: &[],
};

impl Policy {
    /// Loads the policy and the managed file, each with the name that faults give it.
    ///
    /// # Errors
    /// Every fault of both files; then nothing is loaded.
    pub fn load(policy: Option<(&str, &[u8])>, managed: Option<(&str, &[u8])>) -> Result<Self, Vec<Fault>> {
        Self::load_stored(policy, managed, None)
    }

    /// The same with what is kept beside the policy file: rules and the dial, in the same form. Names are unique over
    /// both; a stored value of the dial is the later word.
    ///
    /// # Errors
    /// Every fault of all of them; then nothing is loaded.
    pub fn load_stored(
        policy: Option<(&str, &[u8])>,
        managed: Option<(&str, &[u8])>,
        stored: Option<(&str, &[u8])>,
    ) -> Result<Self, Vec<Fault>> {
        let mut parts = Parts::default();
        let mut faults = Vec::new();
        let mut ids = rule::Ids::default();
        if let Some((file, input)) = policy {
            read(file, input, &mut faults, |reader, node| policy_file(reader, node, &mut ids, &mut parts));
        }
        if let Some((file, input)) = stored {
            read(file, input, &mut faults, |reader, node| stored_part(reader, node, &mut ids, &mut parts));
        }
        if let Some((file, input)) = managed {
            read(file, input, &mut faults, |reader, node| managed_file(reader, node, &mut parts));
        }
        if faults.is_empty() { Ok(parts.into()) } else { Err(faults) }
    }
}

fn read(file: &str, input: &[u8], faults: &mut Vec<Fault>, load: impl FnOnce(&mut Reader<'_>, &Node)) {
    let node = match json::parse(input, Some(file), MAX_FILE_BYTES) {
        Ok(node) => node,
        Err(fault) => return faults.push(fault),
    };
    let mut reader = Reader::new(Some(file), input);
    load(&mut reader, &node);
    let mut found = reader.into_faults();
    found.sort_by_key(|fault| (fault.line, fault.column));
    faults.append(&mut found);
}

fn policy_file(reader: &mut Reader<'_>, node: &Node, ids: &mut rule::Ids, parts: &mut Parts) {
    let Some(object) = reader.object(node, &POLICY) else { return };
    head(reader, &object, parts);
    if let Some(node) = object.get("rules") {
        parts.rules = rules(reader, node, ids, None);
    }
    if let Some(node) = object.get("modes") {
        modes(reader, node, ids, parts);
    }
    if let Some(node) = object.get("autonomy") {
        parts.autonomy = autonomy(reader, node);
    }
    if let Some(node) = object.get("network") {
        network::policy(reader, node, &mut parts.network);
    }
}

fn stored_part(reader: &mut Reader<'_>, node: &Node, ids: &mut rule::Ids, parts: &mut Parts) {
    let Some(object) = reader.object(node, &STORED) else { return };
    if let Some(node) = object.get("rules") {
        parts.rules.extend(rules(reader, node, ids, None));
    }
    if let Some(node) = object.get("autonomy") {
        parts.autonomy.extend(autonomy(reader, node));
    }
}

fn managed_file(reader: &mut Reader<'_>, node: &Node, parts: &mut Parts) {
    let Some(object) = reader.object(node, &MANAGED) else { return };
    head(reader, &object, parts);
    if let Some(node) = object.get("rules") {
        parts.managed = rules(reader, node, &mut rule::Ids::default(), None);
    }
    if let Some(node) = object.get("network") {
        network::managed(reader, node, &mut parts.network);
    }
}

/// What both files have: the version, limits, of which the lower holds, and a key whose only supported value is the
/// default.
fn head(reader: &mut Reader<'_>, object: &Object<'_>, parts: &mut Parts) {
    if let Some(node) = object.get("version")
        && let Some(version) = reader.number(node, u64::MAX)
        && version != 1
    {
        reader.fault(FaultCode::OutOfRange, node.at, format!("version {version} is not known; write 1"));
    }
    if let Some(node) = object.get("limits") {
        limits(reader, node, &mut parts.limits);
    }
    if let Some(node) = object.get("delegation") {
        delegation(reader, node, &mut parts.max_depth);
    }
    if let Some(node) = object.get("require_mandate")
        && reader.truth(node) == Some(true)
    {
        let message = "`require_mandate` is not supported yet: there are no mandates to require";
        reader.fault(FaultCode::OutOfRange, node.at, message);
    }
}

fn limits(reader: &mut Reader<'_>, node: &Node, limits: &mut Limits) {
    let Some(object) = reader.object(node, &LIMITS) else { return };
    let built_in = Limits::default();
    let keys = [
        ("paths", &mut limits.paths, built_in.paths),
        ("refs", &mut limits.refs, built_in.refs),
        ("hosts", &mut limits.hosts, built_in.hosts),
        ("commands", &mut limits.commands, built_in.commands),
        ("string", &mut limits.string, built_in.string),
    ];
    for (key, limit, most) in keys {
        let Some(node) = object.get(key) else { continue };
        // A limit is lowered, never raised.
        if let Some(written) = reader.number(node, most) {
            *limit = written.min(*limit);
        }
    }
}

fn delegation(reader: &mut Reader<'_>, node: &Node, max_depth: &mut Option<u64>) {
    let Some(object) = reader.object(node, &DELEGATION) else { return };
    if let Some(depth) = object.get("max_depth").and_then(|node| reader.number(node, 64)) {
        *max_depth = Some(max_depth.map_or(depth, |known| known.min(depth)));
    }
}

fn rules(reader: &mut Reader<'_>, node: &Node, ids: &mut rule::Ids, mode: Option<&Scope>) -> Vec<Rule> {
    let items = reader.list(node).unwrap_or_default();
    items.iter().filter_map(|item| rule::read(reader, item, ids, mode)).collect()
}

fn modes(reader: &mut Reader<'_>, node: &Node, ids: &mut rule::Ids, parts: &mut Parts) {
    for member in reader.map(node).unwrap_or_default() {
        let Some(object) = reader.object(&member.node, &MODE) else { continue };
        if let Some(node) = object.get("rules") {
            let scope = Scope::Mode(member.key.to_string());
            parts.rules.extend(rules(reader, node, ids, Some(&scope)));
        }
        if let Some(node) = object.get("deny_commands") {
            let prefixes = rule::prefixes(reader, node);
            parts.nets.insert(member.key.to_string(), prefixes);
        }
    }
}

fn autonomy(reader: &mut Reader<'_>, node: &Node) -> BTreeMap<String, Autonomy> {
    let words = Autonomy::ALL.map(|value| (value.as_str(), value));
    let members = reader.map(node).unwrap_or_default();
    let value = |reader: &mut Reader<'_>, node| reader.word(node, "value of the autonomy dial", &words);
    members.iter().filter_map(|member| Some((member.key.to_string(), value(reader, &member.node)?))).collect()
}

impl NetworkPolicy {
    /// Port rules that the kernel keeps for one address; two of them stay free for the resolvers.
    pub(crate) const MAX_PORT_RULES: usize = guard_common::network::MAX_PORT_RULES - 2;
}
