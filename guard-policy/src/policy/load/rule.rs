//! Reading one rule.

use std::collections::BTreeSet;

use guard_common::Effect;

use crate::fault::FaultCode;
use crate::json::{At, Node};
use crate::policy::{Constraints, Level, Provenance, Rule, Scope, Subject};
use crate::read::{Keys, Object, Reader};
use crate::request::parse;
use crate::value::{HostPattern, PathPattern, RefPattern};

pub(crate) const RULE: Keys = Keys {
    what: "a rule",
    known: &[
        "id",
        "scope",
        "class",
        "command_prefix",
        "effect",
        "level",
        "constraints",
        "reason",
        "expires_at",
        "provenance",
        "match",
        "not_match",
    ],
    unsupported: &[],
    aliases: &[("commandPrefix", "command_prefix")],
};

pub(crate) const CONSTRAINTS: Keys = Keys {
    what: "constraints",
    known: &["paths", "refs", "hosts", "commands", "max_count", "max_cents", "per"],
    unsupported: &[],
    aliases: &[("maxCount", "max_count"), ("maxCents", "max_cents")],
};

/// The names that the rules of one file have.
#[derive(Default)]
pub(super) struct Ids(BTreeSet<String>);

/// Reads a rule; `mode` is the scope that its place in the file gives it.
pub(super) fn read(
    reader: &mut Reader<'_>,
    node: &Node,
    ids: &mut Ids,
    mode: Option<&Scope>,
) -> Option<Rule> {
    let object = reader.object(node, &RULE)?;
    let id = identity(reader, node.at, &object, ids);
    let scope = scope(reader, &object, mode);
    let subject = subject(reader, node.at, &object);
    let effects = [Effect::Allow, Effect::Prompt, Effect::Deny].map(|effect| (effect.as_str(), effect));
    let effect = match object.get("effect") {
        Some(node) => reader.word(node, "effect", &effects),
        None => missing(reader, node.at, "a rule needs an `effect`: `allow`, `prompt` or `deny`"),
    };
    let levels = [Level::Advisory, Level::Soft, Level::Strict].map(|level| (level.as_str(), level));
    let level = object.get("level").and_then(|node| reader.word(node, "level", &levels));
    let provenances = [
        ("authored", Provenance::Authored),
        ("remembered", Provenance::Remembered),
        ("template", Provenance::Template),
    ];
    let provenance = object.get("provenance").and_then(|node| reader.word(node, "provenance", &provenances));
    let constraints = object.get("constraints").map(|node| constraints(reader, node)).unwrap_or_default();
    let reason = object.get("reason").and_then(|node| reader.string(node)).map(str::to_owned);
    let expires_at = object.get("expires_at").and_then(|node| reader.timestamp(node));
    let scope = scope?;
    let rule = Rule {
        id: id?.into(),
        at: reader.position(node.at),
        place: scope.to_string().into(),
        constraint: (!constraints.is_empty()).then(|| constraints.to_string().into()),
        scope,
        subject: subject?,
        effect: effect?,
        level: level.unwrap_or_default(),
        constraints,
        expires_at,
        reason,
        provenance: provenance.unwrap_or_default(),
    };
    examples(reader, &object, &rule);
    Some(rule)
}

fn missing<T>(reader: &mut Reader<'_>, at: At, message: &str) -> Option<T> {
    reader.fault(FaultCode::WrongType, at, message);
    None
}

fn identity(reader: &mut Reader<'_>, at: At, object: &Object<'_>, ids: &mut Ids) -> Option<String> {
    let Some(node) = object.get("id") else { return missing(reader, at, "a rule needs an `id`") };
    let id = reader.string(node)?;
    let start = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let valid = id.bytes().next().is_some_and(start)
        && id.len() <= 64
        && id.bytes().all(|byte| start(byte) || b"._-".contains(&byte));
    if !valid {
        let message = format!("{id:?} is no name for a rule; write [a-z0-9][a-z0-9._-]{{0,63}}");
        reader.fault(FaultCode::OutOfRange, node.at, message);
        return None;
    }
    if !ids.0.insert(id.to_owned()) {
        reader.fault(FaultCode::DuplicateKey, node.at, format!("another rule of this file is `{id}` too"));
        return None;
    }
    Some(id.to_owned())
}

fn scope(reader: &mut Reader<'_>, object: &Object<'_>, mode: Option<&Scope>) -> Option<Scope> {
    let Some(node) = object.get("scope") else {
        return Some(mode.cloned().unwrap_or(Scope::Everywhere));
    };
    let written = reader.string(node)?;
    let scope = match written.split_once(':') {
        Some((_, "")) | None => None,
        Some(("space", id)) => Some(Scope::Space(id.to_owned())),
        Some(("agent", id)) => Some(Scope::Agent(id.to_owned())),
        Some(("workspace", id)) => Some(Scope::Workspace(id.to_owned())),
        Some(("mode", id)) => Some(Scope::Mode(id.to_owned())),
        Some(_) => None,
    };
    match (scope, mode) {
        (None, _) => {
            let message =
                format!("{written:?} is no scope; write space:ID, agent:ID, workspace:ID or mode:ID");
            reader.fault(FaultCode::OutOfRange, node.at, message);
            None
        }
        (Some(scope), Some(mode)) if scope != *mode => {
            reader.fault(FaultCode::OutOfRange, node.at, format!("a rule of a mode has the scope {mode}"));
            None
        }
        (scope, _) => scope,
    }
}

fn subject(reader: &mut Reader<'_>, at: At, object: &Object<'_>) -> Option<Subject> {
    match (object.get("class"), object.get("command_prefix")) {
        (Some(node), None) => parse::class(reader, node).map(Subject::Class),
        (None, Some(node)) => prefix(reader, node).map(Subject::Command),
        _ => missing(reader, at, "a rule is about either a `class` or a `command_prefix`"),
    }
}

fn prefix(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    let written = reader.string(node)?;
    if written.trim() != written || written.is_empty() || written.starts_with('!') {
        let message = format!("{written:?} starts no command: no blanks around it, no `!`");
        reader.fault(FaultCode::OutOfRange, node.at, message);
        return None;
    }
    Some(written.to_owned())
}

/// Reads a list of command prefixes.
pub(super) fn prefixes(reader: &mut Reader<'_>, node: &Node) -> Vec<String> {
    let items = reader.list(node).unwrap_or_default();
    items.iter().filter_map(|item| prefix(reader, item)).collect()
}

fn constraints(reader: &mut Reader<'_>, node: &Node) -> Constraints {
    let mut constraints = Constraints::default();
    let Some(object) = reader.object(node, &CONSTRAINTS) else { return constraints };
    let named = |reader: &mut Reader<'_>, key| {
        let node = object.get(key)?;
        if reader.list(node)?.is_empty() {
            let message = format!("`{key}` names nothing; leave it out or list what it is about");
            reader.fault(FaultCode::OutOfRange, node.at, message);
        }
        Some(node)
    };
    if let Some(node) = named(reader, "paths") {
        let read = reader.parsed_list(node, FaultCode::InvalidPath, PathPattern::parse);
        constraints.paths = read.unwrap_or_default();
    }
    if let Some(node) = named(reader, "refs") {
        let read = reader.parsed_list(node, FaultCode::InvalidRef, RefPattern::parse);
        constraints.refs = read.unwrap_or_default();
    }
    if let Some(node) = named(reader, "hosts") {
        let read = reader.parsed_list(node, FaultCode::InvalidHost, HostPattern::parse);
        constraints.hosts = read.unwrap_or_default();
    }
    if let Some(node) = named(reader, "commands") {
        constraints.commands = prefixes(reader, node);
    }
    ceilings(reader, &object, &mut constraints);
    constraints
}

/// `R-15`: ceilings are about a session unless they say that they are about one act.
fn ceilings(reader: &mut Reader<'_>, object: &Object<'_>, constraints: &mut Constraints) {
    if let Some(node) = object.get("per") {
        let words = [("action", true), ("session", false)];
        constraints.per_action = reader.word(node, "span of a ceiling", &words).unwrap_or(false);
    }
    let mut ceiling = |key| object.get(key).and_then(|node| reader.number(node, 1 << 53));
    constraints.max_count = ceiling("max_count");
    constraints.max_cents = ceiling("max_cents");
}

/// `R-68`: a rule that disagrees with its own examples does not load.
fn examples(reader: &mut Reader<'_>, object: &Object<'_>, rule: &Rule) {
    for (key, wanted) in [("match", true), ("not_match", false)] {
        let Some(node) = object.get(key) else { continue };
        for item in reader.list(node).unwrap_or_default() {
            let action = parse::action(reader, item);
            if rule.speaks_about(&action) != wanted {
                let verb = if wanted { "does not match" } else { "matches" };
                reader.fault(
                    FaultCode::OutOfRange,
                    item.at,
                    format!("rule `{}` {verb} this example", rule.id),
                );
            }
        }
    }
}
