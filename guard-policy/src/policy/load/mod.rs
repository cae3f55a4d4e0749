//! Loading the policy and the managed file. Everything that is wrong is reported at once, with its place; what
//! is documented and judged by no gate yet is refused, so that nobody relies on it.

mod network;
mod rule;

use std::collections::BTreeMap;

use super::{Autonomy, NetworkPolicy, Parts, Policy, Rule, Scope};
use crate::fault::{Fault, FaultCode};
use crate::json::{self, Node};
use crate::read::{Keys, Object, Reader};

/// Most bytes of an operator's file.
pub const MAX_FILE_BYTES: usize = 16 << 20;

const POLICY: Keys = Keys {
    what: "a policy",
    known: &["version", "rules", "modes", "autonomy", "network", "require_mandate"],
    unsupported: &["delegation", "resources", "checks", "limits"],
    aliases: &[],
};

const MANAGED: Keys = Keys {
    what: "a managed policy",
    known: &["version", "rules", "network", "require_mandate"],
    unsupported: &["delegation", "checks", "limits"],
    aliases: &[],
};

const MODE: Keys =
    Keys { what: "a mode", known: &["rules", "deny_commands"], unsupported: &[], aliases: &[] };

impl Policy {
    /// Loads the policy and the managed file, each with the name that faults give it.
    ///
    /// # Errors
    /// Every fault of both files; then nothing is loaded.
    pub fn load(policy: Option<(&str, &[u8])>, managed: Option<(&str, &[u8])>) -> Result<Self, Vec<Fault>> {
        let mut parts = Parts::default();
        let mut faults = Vec::new();
        if let Some((file, input)) = policy {
            read(file, input, &mut faults, |reader, node| policy_file(reader, node, &mut parts));
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
    let mut reader = Reader::new(Some(file));
    load(&mut reader, &node);
    let mut found = reader.into_faults();
    found.sort_by_key(|fault| (fault.line, fault.column));
    faults.append(&mut found);
}

fn policy_file(reader: &mut Reader<'_>, node: &Node, parts: &mut Parts) {
    let Some(object) = reader.object(node, &POLICY) else { return };
    head(reader, &object);
    let mut ids = rule::Ids::default();
    if let Some(node) = object.get("rules") {
        parts.rules = rules(reader, node, &mut ids, None);
    }
    if let Some(node) = object.get("modes") {
        modes(reader, node, &mut ids, parts);
    }
    if let Some(node) = object.get("autonomy") {
        parts.autonomy = autonomy(reader, node);
    }
    if let Some(node) = object.get("network") {
        network::policy(reader, node, &mut parts.network);
    }
}

fn managed_file(reader: &mut Reader<'_>, node: &Node, parts: &mut Parts) {
    let Some(object) = reader.object(node, &MANAGED) else { return };
    head(reader, &object);
    if let Some(node) = object.get("rules") {
        parts.managed = rules(reader, node, &mut rule::Ids::default(), None);
    }
    if let Some(node) = object.get("network") {
        network::managed(reader, node, &mut parts.network);
    }
}

/// What both files have: the version, and keys whose only supported value is the default.
fn head(reader: &mut Reader<'_>, object: &Object<'_>) {
    if let Some(node) = object.get("version")
        && let Some(version) = reader.number(node, u64::MAX)
        && version != 1
    {
        reader.fault(FaultCode::OutOfRange, node.at, format!("version {version} is not known; write 1"));
    }
    if let Some(node) = object.get("require_mandate")
        && reader.truth(node) == Some(true)
    {
        let message = "`require_mandate` is not supported yet: there are no mandates to require";
        reader.fault(FaultCode::OutOfRange, node.at, message);
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
            let scope = Scope::Mode(member.key.clone());
            parts.rules.extend(rules(reader, node, ids, Some(&scope)));
        }
        if let Some(node) = object.get("deny_commands") {
            let prefixes = rule::prefixes(reader, node);
            parts.nets.insert(member.key.clone(), prefixes);
        }
    }
}

fn autonomy(reader: &mut Reader<'_>, node: &Node) -> BTreeMap<String, Autonomy> {
    let words = [Autonomy::ProposeOnly, Autonomy::ActWithApproval, Autonomy::ActFreely]
        .map(|value| (value.as_str(), value));
    let members = reader.map(node).unwrap_or_default();
    let value = |reader: &mut Reader<'_>, node| reader.word(node, "value of the autonomy dial", &words);
    members.iter().filter_map(|member| Some((member.key.clone(), value(reader, &member.node)?))).collect()
}

impl NetworkPolicy {
    /// Port rules that the kernel keeps for one address; two of them stay free for the resolvers.
    pub(crate) const MAX_PORT_RULES: usize = guard_common::network::MAX_PORT_RULES - 2;
}
