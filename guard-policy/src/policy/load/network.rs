//! Reading the network part of both files.

use crate::fault::FaultCode;
use crate::json::{Node, Value};
use crate::policy::{Hole, NetworkPolicy};
use crate::read::{Keys, Reader};
use crate::request::parse;
use crate::value::Network;

pub(crate) const POLICY: Keys =
    Keys { what: "network", known: &["deny", "allow", "resolvers"], unsupported: &[], aliases: &[] };

pub(crate) const MANAGED: Keys = Keys {
    what: "network of a managed policy",
    known: &["deny", "allow_holes"],
    unsupported: &[],
    aliases: &[],
};

pub(crate) const HOLE: Keys =
    Keys { what: "a hole", known: &["cidr", "ports", "proto"], unsupported: &[], aliases: &[] };

/// Reads the part of the policy file.
pub(super) fn policy(reader: &mut Reader<'_>, node: &Node, network: &mut NetworkPolicy) {
    let Some(object) = reader.object(node, &POLICY) else { return };
    if let Some(node) = object.get("deny") {
        network.denied = ranges(reader, node);
    }
    if let Some(node) = object.get("allow") {
        let items = reader.list(node).unwrap_or_default();
        network.holes = items.iter().filter_map(|item| hole(reader, item)).collect();
        port_rules(reader, node, &network.holes);
    }
    if let Some(node) = object.get("resolvers") {
        let words = [("allow", true), ("deny", false)];
        network.resolvers = reader.word(node, "value of `resolvers`", &words).unwrap_or(true);
    }
}

/// Reads the part of the managed file.
pub(super) fn managed(reader: &mut Reader<'_>, node: &Node, network: &mut NetworkPolicy) {
    let Some(object) = reader.object(node, &MANAGED) else { return };
    if let Some(node) = object.get("deny") {
        network.managed_denied = ranges(reader, node);
    }
    if let Some(node) = object.get("allow_holes") {
        network.allow_holes = reader.truth(node).unwrap_or(true);
    }
}

fn ranges(reader: &mut Reader<'_>, node: &Node) -> Vec<Network> {
    reader.parsed_list(node, FaultCode::InvalidHost, network).unwrap_or_default()
}

fn network(written: &str) -> Result<Network, &'static str> {
    Network::parse(written).map_err(|_| "not an address or a CIDR whose host bits are zero")
}

fn hole(reader: &mut Reader<'_>, node: &Node) -> Option<Hole> {
    if matches!(node.value, Value::String(_)) {
        let network = reader.parsed(node, FaultCode::InvalidHost, network)?;
        return Some(Hole { network, ports: Vec::new(), transport: None });
    }
    let object = reader.object(node, &HOLE)?;
    let Some(cidr) = object.get("cidr") else {
        reader.fault(FaultCode::WrongType, node.at, "a hole needs a `cidr`");
        return None;
    };
    let network = reader.parsed(cidr, FaultCode::InvalidHost, network);
    let mut ports = Vec::new();
    if let Some(node) = object.get("ports") {
        let items = reader.list(node)?;
        if items.is_empty() {
            reader.fault(FaultCode::OutOfRange, node.at, "`ports` names no port; leave it out for all");
        }
        for item in items {
            let port = reader.number(item, u64::from(u16::MAX)).and_then(|port| u16::try_from(port).ok());
            ports.extend(port);
        }
        ports.sort_unstable();
        ports.dedup();
    }
    let transport = match object.get("proto") {
        Some(node) => Some(parse::transport(reader, node)?),
        None => None,
    };
    Some(Hole { network: network?, ports, transport })
}

/// The kernel keeps a bounded list of ports for an address; more would open less than the file says.
fn port_rules(reader: &mut Reader<'_>, node: &Node, holes: &[Hole]) {
    for place in holes {
        let covering = holes.iter().filter(|hole| hole.network.covers(&place.network) && !hole.is_whole());
        let rules: usize = covering.map(|hole| hole.ports.len().max(1)).sum();
        if rules > NetworkPolicy::MAX_PORT_RULES {
            let most = NetworkPolicy::MAX_PORT_RULES;
            let message = format!("{} has {rules} ports in its holes, more than {most}", place.network);
            return reader.fault(FaultCode::OutOfRange, node.at, message);
        }
    }
}
