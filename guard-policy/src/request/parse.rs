//! Reading a request from JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use guard_common::ActionClass;

use super::{Action, Facet, MAX_REQUEST_BYTES, Principal, Request, Source, Sources, Transport};
use crate::fault::{Fault, FaultCode, nearest};
use crate::json::{self, Node};
use crate::read::{Keys, Reader};
use crate::value::{ActPath, Host, Ref};

const REQUEST: Keys = Keys {
    what: "a request",
    known: &[
        "id",
        "now",
        "principal",
        "action",
        "sources",
        "adapter",
        "resolved",
        "approver",
        "purpose",
        "resource",
    ],
    unsupported: &["tool", "statements", "payload", "amounts", "delegate", "override", "receipt"],
    aliases: &[],
};

const PRINCIPAL: Keys = Keys {
    what: "a principal",
    known: &["agent", "session", "workspace", "space", "mode"],
    unsupported: &[],
    aliases: &[],
};

const ACTION: Keys = Keys {
    what: "an action",
    known: &["classes", "paths", "refs", "hosts", "commands", "port", "proto", "count", "cents"],
    unsupported: &[],
    aliases: &[],
};

const SOURCES: [(&str, Source); 3] =
    [("kernel", Source::Kernel), ("parsed", Source::Parsed), ("reported", Source::Reported)];

const SOURCE_KEYS: Keys =
    Keys { what: "sources", known: &["paths", "refs", "hosts", "commands"], unsupported: &[], aliases: &[] };

/// Amounts above this are no amounts of anything; sums over a session stay far from overflow.
const MAX_AMOUNT: u64 = 1 << 53;

impl Request {
    /// Reads one request.
    ///
    /// # Errors
    /// The first fault in the order of the text.
    pub fn parse(input: &[u8]) -> Result<Self, Fault> {
        let node = json::parse(input, None, MAX_REQUEST_BYTES)?;
        let mut reader = Reader::new(None);
        let request = request(&mut reader, &node);
        let first = reader.into_faults().into_iter().min_by_key(|fault| (fault.line, fault.column));
        first.map_or(Ok(request), Err)
    }
}

fn request(reader: &mut Reader<'_>, node: &Node) -> Request {
    let mut request = Request::default();
    let Some(object) = reader.object(node, &REQUEST) else { return request };
    let text = |reader: &mut Reader<'_>, key| {
        object.get(key).and_then(|node| reader.string(node).map(str::to_owned))
    };
    request.id = text(reader, "id");
    request.adapter = text(reader, "adapter");
    request.purpose = text(reader, "purpose");
    request.resource = text(reader, "resource");
    request.now = object.get("now").and_then(|node| reader.timestamp(node));
    request.approver = object.get("approver").and_then(|node| reader.truth(node)).unwrap_or(false);
    if let Some(node) = object.get("principal") {
        request.principal = principal(reader, node);
    }
    if let Some(node) = object.get("action") {
        request.action = action(reader, node);
    }
    if let Some(node) = object.get("sources") {
        request.sources = sources(reader, node);
    }
    if let Some(node) = object.get("resolved") {
        request.resolved = resolved(reader, node);
    }
    request
}

fn principal(reader: &mut Reader<'_>, node: &Node) -> Principal {
    let Some(object) = reader.object(node, &PRINCIPAL) else { return Principal::default() };
    let mut part = |key| object.get(key).and_then(|node| reader.string(node).map(str::to_owned));
    Principal {
        agent: part("agent"),
        session: part("session"),
        workspace: part("workspace"),
        space: part("space"),
        mode: part("mode"),
    }
}

/// Reads an action; the examples of rules are actions too.
pub(crate) fn action(reader: &mut Reader<'_>, node: &Node) -> Action {
    let Some(object) = reader.object(node, &ACTION) else { return Action::default() };
    let mut action = Action::default();
    if let Some(items) = object.get("classes").and_then(|node| reader.list(node)) {
        action.add_classes(items.iter().filter_map(|item| class(reader, item)).collect::<Vec<_>>());
    }
    action.paths =
        object.get("paths").and_then(|node| reader.parsed_list(node, FaultCode::InvalidPath, ActPath::parse));
    action.refs =
        object.get("refs").and_then(|node| reader.parsed_list(node, FaultCode::InvalidRef, Ref::parse));
    action.hosts =
        object.get("hosts").and_then(|node| reader.parsed_list(node, FaultCode::InvalidHost, Host::parse));
    action.commands = object
        .get("commands")
        .and_then(|node| reader.list(node))
        .map(|items| items.iter().filter_map(|item| reader.string(item).map(str::to_owned)).collect());
    action.port = object
        .get("port")
        .and_then(|node| reader.number(node, u64::from(u16::MAX)))
        .and_then(|port| u16::try_from(port).ok());
    action.transport = object.get("proto").and_then(|node| transport(reader, node));
    action.count = object.get("count").and_then(|node| reader.number(node, MAX_AMOUNT));
    action.cents = object.get("cents").and_then(|node| reader.number(node, MAX_AMOUNT));
    action
}

/// Reads the name of a class.
pub(crate) fn class(reader: &mut Reader<'_>, node: &Node) -> Option<ActionClass> {
    let written = reader.string(node)?;
    if let Ok(class) = written.parse() {
        return Some(class);
    }
    let near = nearest(written, ActionClass::ALL.iter().map(|class| class.as_str()));
    let message = format!("{written:?} is none of the 13 action classes");
    reader.fault_near(FaultCode::UnknownClass, node.at, message, near);
    None
}

/// Reads the name of a transport protocol.
pub(crate) fn transport(reader: &mut Reader<'_>, node: &Node) -> Option<Transport> {
    reader.word(node, "protocol", &[("tcp", Transport::Tcp), ("udp", Transport::Udp)])
}

fn sources(reader: &mut Reader<'_>, node: &Node) -> Sources {
    let mut sources = Sources::default();
    let Some(object) = reader.object(node, &SOURCE_KEYS) else { return sources };
    for facet in Facet::LISTS {
        let node = object.get(facet.as_str());
        if let Some(source) = node.and_then(|node| reader.word(node, "source", &SOURCES)) {
            sources = sources.with(facet, source);
        }
    }
    sources
}

fn resolved(reader: &mut Reader<'_>, node: &Node) -> BTreeMap<String, Vec<IpAddr>> {
    let mut resolved = BTreeMap::new();
    for member in reader.map(node).unwrap_or_default() {
        if let Err(error) = Host::parse(&member.key) {
            reader.fault(FaultCode::InvalidHost, member.at, format!("{:?}: {error}", member.key));
        }
        let parse = |text: &str| text.parse::<IpAddr>();
        if let Some(addresses) = reader.parsed_list(&member.node, FaultCode::InvalidHost, parse) {
            resolved.insert(member.key.clone(), addresses);
        }
    }
    resolved
}
