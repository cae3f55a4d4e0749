//! Typed reading of a JSON tree: what is not understood is reported, never skipped (`R-60`).
//!
//! A [`Reader`] collects every fault of one input, so that an operator sees all of them at once.

use jiff::Timestamp;

use crate::fault::{Fault, FaultCode, nearest};
use crate::json::{At, Member, Node, Position, Ruler, Value};

/// Reads one input and collects its faults.
pub(crate) struct Reader<'a> {
    file: Option<&'a str>,
    input: &'a [u8],
    ruler: Ruler,
    faults: Vec<Fault>,
}

/// The keys that an object can have.
pub(crate) struct Keys {
    /// What the object is, for messages.
    pub(crate) what: &'static str,
    /// Keys that are read.
    pub(crate) known: &'static [&'static str],
    /// Keys that are documented and that nothing judges yet. They are refused: an operator must not believe
    /// that something holds which nothing looks at.
    pub(crate) unsupported: &'static [&'static str],
    /// Second spellings (`R-06`).
    pub(crate) aliases: &'static [(&'static str, &'static str)],
}

/// An object whose keys are all known.
pub(crate) struct Object<'n> {
    members: Vec<(&'static str, &'n Node<'n>)>,
}

impl<'n> Object<'n> {
    pub(crate) fn get(&self, key: &str) -> Option<&'n Node<'n>> {
        self.members.iter().find(|(known, _)| *known == key).map(|(_, node)| *node)
    }
}

impl<'a> Reader<'a> {
    /// `input` is where the nodes come from.
    pub(crate) fn new(file: Option<&'a str>, input: &'a [u8]) -> Self {
        Self { file, input, ruler: Ruler::default(), faults: Vec::new() }
    }

    /// Line and column of a place.
    pub(crate) fn position(&mut self, at: At) -> Position {
        self.ruler.position(at, self.input)
    }

    pub(crate) fn into_faults(self) -> Vec<Fault> {
        self.faults
    }

    pub(crate) fn fault(&mut self, code: FaultCode, at: At, message: impl Into<String>) {
        self.fault_near(code, at, message, None);
    }

    pub(crate) fn fault_near(
        &mut self,
        code: FaultCode,
        at: At,
        message: impl Into<String>,
        nearest: Option<String>,
    ) {
        let (file, message) = (self.file.map(str::to_owned), message.into());
        let Position { line, column } = self.position(at);
        self.faults.push(Fault { code, file, line, column, message, nearest });
    }

    fn wrong_type(&mut self, node: &Node, wanted: &str) {
        let message = format!("expected {wanted}, found {}", node.value.kind());
        self.fault(FaultCode::WrongType, node.at, message);
    }

    /// An object with known keys.
    pub(crate) fn object<'n>(&mut self, node: &'n Node<'n>, keys: &Keys) -> Option<Object<'n>> {
        let members = self.map(node)?;
        let mut object = Object { members: Vec::new() };
        for member in members {
            let alias = keys.aliases.iter().find(|(alias, _)| *alias == &*member.key);
            let name = alias.map_or(&*member.key, |(_, name)| name);
            if let Some(known) = keys.known.iter().find(|known| **known == name) {
                if object.get(known).is_some() {
                    let message = format!("`{}` says `{known}` a second time", member.key);
                    self.fault(FaultCode::DuplicateKey, member.at, message);
                } else {
                    object.members.push((known, &member.node));
                }
            } else if keys.unsupported.contains(&name) {
                let message = format!("`{name}` in {} is not supported yet", keys.what);
                self.fault(FaultCode::UnknownKey, member.at, message);
            } else {
                let near = nearest(name, keys.known.iter().chain(keys.unsupported).copied());
                let message = format!("unknown key `{}` in {}", member.key, keys.what);
                self.fault_near(FaultCode::UnknownKey, member.at, message, near);
            }
        }
        Some(object)
    }

    /// An object with any keys.
    pub(crate) fn map<'n>(&mut self, node: &'n Node<'n>) -> Option<&'n [Member<'n>]> {
        match &node.value {
            Value::Object(members) => Some(members),
            _ => {
                self.wrong_type(node, "an object");
                None
            }
        }
    }

    pub(crate) fn list<'n>(&mut self, node: &'n Node<'n>) -> Option<&'n [Node<'n>]> {
        match &node.value {
            Value::Array(items) => Some(items),
            _ => {
                self.wrong_type(node, "a list");
                None
            }
        }
    }

    pub(crate) fn string<'n>(&mut self, node: &'n Node<'n>) -> Option<&'n str> {
        match &node.value {
            Value::String(string) => Some(string),
            _ => {
                self.wrong_type(node, "a string");
                None
            }
        }
    }

    pub(crate) fn truth(&mut self, node: &Node) -> Option<bool> {
        match node.value {
            Value::Bool(truth) => Some(truth),
            _ => {
                self.wrong_type(node, "`true` or `false`");
                None
            }
        }
    }

    /// A whole number from 0 to `max`.
    pub(crate) fn number(&mut self, node: &Node, max: u64) -> Option<u64> {
        let Value::Number(written) = &node.value else {
            self.wrong_type(node, "a whole number");
            return None;
        };
        let whole = written.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
        match written.parse::<u64>() {
            Ok(number) if number <= max => Some(number),
            _ if whole => {
                self.fault(FaultCode::OutOfRange, node.at, format!("{written} is not between 0 and {max}"));
                None
            }
            _ => {
                self.fault(FaultCode::WrongType, node.at, format!("{written} is not a whole number"));
                None
            }
        }
    }

    pub(crate) fn timestamp(&mut self, node: &Node) -> Option<Timestamp> {
        let written = self.string(node)?;
        match written.parse() {
            Ok(timestamp) => Some(timestamp),
            Err(_) => {
                let message = format!("{written:?} is not a time like 2026-11-30T12:00:00Z");
                self.fault(FaultCode::OutOfRange, node.at, message);
                None
            }
        }
    }

    /// One of a closed set of words.
    pub(crate) fn word<T: Copy>(&mut self, node: &Node, what: &str, words: &[(&str, T)]) -> Option<T> {
        let written = self.string(node)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == written) {
            return Some(*value);
        }
        let all = words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let near = nearest(written, words.iter().map(|(word, _)| *word));
        self.fault_near(
            FaultCode::OutOfRange,
            node.at,
            format!("{written:?} is no {what}; known: {all}"),
            near,
        );
        None
    }

    /// Something that is written as a string and has a grammar of its own.
    pub(crate) fn parsed<T, E: std::fmt::Display>(
        &mut self,
        node: &Node,
        code: FaultCode,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let written = self.string(node)?;
        match parse(written) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fault(code, node.at, format!("{written:?}: {error}"));
                None
            }
        }
    }

    /// A list of such strings; what is wrong in it is left out and reported.
    pub(crate) fn parsed_list<T, E: std::fmt::Display>(
        &mut self,
        node: &Node,
        code: FaultCode,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<Vec<T>> {
        let items = self.list(node)?;
        Some(items.iter().filter_map(|item| self.parsed(item, code, &parse)).collect())
    }
}
