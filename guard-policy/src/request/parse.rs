//! Reading a request from JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use guard_common::ActionClass;

use super::{
    Action, Delegate, Facet, Line, MAX_REQUEST_BYTES, Override, Principal, Receipt, Request, Source, Sources,
    Transport,
};
use crate::fault::{Fault, FaultCode, nearest};
use crate::json::{self, Node, Value};
use crate::policy::Autonomy;
use crate::read::{Keys, Reader};
use crate::value::{ActPath, Host, Ref};

pub(crate) const REQUEST: Keys = Keys {
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
        "amounts",
        "delegate",
        "override",
    ],
    unsupported: &["tool", "statements", "payload"],
    aliases: &[],
};

pub(crate) const PRINCIPAL: Keys = Keys {
    what: "a principal",
    known: &["agent", "session", "workspace", "space", "mode"],
    unsupported: &[],
    aliases: &[],
};

pub(crate) const ACTION: Keys = Keys {
    what: "an action",
    known: &["classes", "paths", "refs", "hosts", "commands", "port", "proto", "count", "cents"],
    unsupported: &[],
    aliases: &[],
};

pub(crate) const DELEGATE: Keys = Keys {
    what: "a delegation",
    known: &["to", "chain", "autonomy", "budget"],
    unsupported: &[],
    aliases: &[],
};

pub(crate) const OVERRIDE: Keys =
    Keys { what: "an override", known: &["by", "justification"], unsupported: &[], aliases: &[] };

pub(crate) const RECEIPT: Keys = Keys {
    what: "a receipt",
    known: &["receipt", "session", "ran", "answer", "results"],
    unsupported: &[],
    aliases: &[],
};

/// What a budget counts (`R-40`).
const UNITS: [&str; 5] = ["requests", "documents", "bytes", "rate_per_min", "max_concurrent"];

/// What one request takes from a budget.
pub(crate) const AMOUNTS: Keys =
    Keys { what: "amounts", known: &["documents", "bytes"], unsupported: &[], aliases: &[] };

const SOURCES: [(&str, Source); 3] =
    [("kernel", Source::Kernel), ("parsed", Source::Parsed), ("reported", Source::Reported)];

pub(crate) const SOURCE_KEYS: Keys =
    Keys { what: "sources", known: &["paths", "refs", "hosts", "commands"], unsupported: &[], aliases: &[] };

/// Amounts above this are no amounts of anything; sums over a session stay far from overflow.
const MAX_AMOUNT: u64 = 1 << 53;

impl Request {
    /// Reads one request as it stands; [`Line::parse`] adds what follows from its commands.
    ///
    /// # Errors
    /// The first fault in the order of the text.
    pub fn parse(input: &[u8]) -> Result<Self, Fault> {
        let node = json::parse(input, None, MAX_REQUEST_BYTES)?;
        read(input, &node, request)
    }

    /// Reads a request that is part of a larger input, as it was recorded.
    pub(crate) fn recorded(input: &[u8], node: &Node) -> Result<Self, Fault> {
        read(input, node, request)
    }
}

impl Line {
    /// Reads a request with what follows from its commands, or the receipt of an earlier one.
    ///
    /// # Errors
    /// The first fault in the order of the text, and the name of the request if it can be read.
    pub fn parse(input: &[u8]) -> Result<Self, (Fault, Option<String>)> {
        let node = json::parse(input, None, MAX_REQUEST_BYTES).map_err(|fault| (fault, None))?;
        let named = |key: &str| match node.get(key).map(|node| &node.value) {
            Some(Value::String(name)) => Some(name.to_string()),
            _ => None,
        };
        if node.get("receipt").is_some() {
            return read(input, &node, receipt).map(Self::Receipt).map_err(|fault| (fault, named("receipt")));
        }
        let mut request = read(input, &node, request).map_err(|fault| (fault, named("id")))?;
        request.derive();
        Ok(Self::Request(Box::new(request)))
    }
}

fn read<T>(input: &[u8], node: &Node, typed: impl FnOnce(&mut Reader<'_>, &Node) -> T) -> Result<T, Fault> {
    let mut reader = Reader::new(None, input);
    let value = typed(&mut reader, node);
    let first = reader.into_faults().into_iter().min_by_key(|fault| (fault.line, fault.column));
    first.map_or(Ok(value), Err)
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
    if let Some(amounts) = object.get("amounts").and_then(|node| reader.object(node, &AMOUNTS)) {
        for unit in AMOUNTS.known {
            let amount = amounts.get(unit).and_then(|node| reader.number(node, MAX_AMOUNT));
            request.amounts.extend(amount.map(|amount| ((*unit).to_owned(), amount)));
        }
    }
    request.delegate = object.get("delegate").and_then(|node| delegate(reader, node));
    request.overridden = object.get("override").and_then(|node| overridden(reader, node));
    request
}

fn delegate(reader: &mut Reader<'_>, node: &Node) -> Option<Delegate> {
    let object = reader.object(node, &DELEGATE)?;
    let Some(to) = object.get("to") else {
        reader.fault(FaultCode::WrongType, node.at, "a delegation needs `to`");
        return None;
    };
    let mut delegate = Delegate { to: agent(reader, to)?, ..Delegate::default() };
    if let Some(items) = object.get("chain").and_then(|node| reader.list(node)) {
        delegate.chain = items.iter().filter_map(|item| agent(reader, item)).collect();
    }
    let words = Autonomy::ALL.map(|value| (value.as_str(), value));
    delegate.autonomy =
        object.get("autonomy").and_then(|node| reader.word(node, "value of the autonomy dial", &words));
    for class in object.get("budget").and_then(|node| reader.map(node)).unwrap_or_default() {
        let units = delegate.budget.entry(class.key.to_string()).or_default();
        for unit in reader.map(&class.node).unwrap_or_default() {
            if !UNITS.contains(&&*unit.key) {
                let near = nearest(&unit.key, UNITS);
                let message = format!("a budget does not count `{}`", unit.key);
                reader.fault_near(FaultCode::UnknownKey, unit.at, message, near);
            } else if let Some(amount) = reader.number(&unit.node, MAX_AMOUNT) {
                units.insert(unit.key.to_string(), amount);
            }
        }
    }
    Some(delegate)
}

fn agent(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    let written = reader.string(node)?;
    if matches!(written, "" | "agent:") {
        reader.fault(FaultCode::OutOfRange, node.at, "an agent has a name");
        return None;
    }
    Some(written.to_owned())
}

fn overridden(reader: &mut Reader<'_>, node: &Node) -> Option<Override> {
    let object = reader.object(node, &OVERRIDE)?;
    let mut part = |key| object.get(key).and_then(|node| reader.string(node).map(str::to_owned));
    Some(Override { by: part("by"), justification: part("justification") })
}

fn receipt(reader: &mut Reader<'_>, node: &Node) -> Receipt {
    let Some(object) = reader.object(node, &RECEIPT) else { return Receipt::default() };
    let mut text = |key| object.get(key).and_then(|node| reader.string(node).map(str::to_owned));
    let (receipt, session) = (text("receipt").unwrap_or_default(), text("session"));
    let ran = object.get("ran").and_then(|node| reader.truth(node));
    let answer =
        object.get("answer").and_then(|node| reader.word(node, "answer", &[("yes", true), ("no", false)]));
    if let Some(node) = object.get("results") {
        reader.map(node);
    }
    Receipt { receipt, session, ran, answer }
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
            resolved.insert(member.key.to_string(), addresses);
        }
    }
    resolved
}
