//! The one strict reader of JSON (`R-60`).
//!
//! It keeps where each value stands, so that a fault names line and column. A duplicate key (after unescaping),
//! a number without a finite value, invalid UTF-8, a byte-order mark, too deep a nest and too large an input are
//! faults; nothing is repaired and nothing is skipped.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::fault::{Fault, FaultCode};

/// Deepest nest of arrays and objects that is read.
pub const MAX_DEPTH: usize = 64;
/// Members up to which an object is searched for a key that stands twice.
const SMALL: usize = 16;

/// Where a value starts; both from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// Where a value starts in its input, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(usize);

impl At {
    /// Line and column; counted only when somebody has to be told.
    #[must_use]
    pub fn position(self, input: &[u8]) -> Position {
        Ruler::default().position(self, input)
    }
}

/// Counts lines and columns; places that come in the order of the text cost one pass through it, however long its
/// lines are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ruler {
    offset: usize,
    lines: usize,
    characters: usize,
}

impl Ruler {
    pub(crate) fn position(&mut self, at: At, input: &[u8]) -> Position {
        let end = at.0.min(input.len());
        if end < self.offset {
            *self = Self::default();
        }
        for byte in &input[self.offset..end] {
            if *byte == b'\n' {
                self.lines += 1;
                self.characters = 0;
            } else {
                // The later bytes of a character start none.
                self.characters += usize::from(*byte & 0xc0 != 0x80);
            }
        }
        self.offset = end;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1);
        Position { line: number(self.lines), column: number(self.characters) }
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node<'a> {
    /// Where it starts.
    pub at: At,
    /// What it is.
    pub value: Value<'a>,
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number with a finite value, as written.
    Number(&'a str),
    /// A string, unescaped.
    String(Cow<'a, str>),
    /// An array.
    Array(Vec<Node<'a>>),
    /// An object, keys in the order of the input.
    Object(Vec<Member<'a>>),
}

/// One member of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Member<'a> {
    /// Where the key starts.
    pub at: At,
    /// The key, unescaped.
    pub key: Cow<'a, str>,
    /// Its value.
    pub node: Node<'a>,
}

impl<'a> Node<'a> {
    /// The member of an object with this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        match &self.value {
            Value::Object(members) => {
                members.iter().find(|member| member.key == key).map(|member| &member.node)
            }
            _ => None,
        }
    }
}

impl Value<'_> {
    /// What this is, for messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Reads one JSON value and nothing after it.
///
/// # Errors
/// The first fault, with its place.
pub fn parse<'a>(input: &'a [u8], file: Option<&str>, max_bytes: usize) -> Result<Node<'a>, Fault> {
    let wrong = |at: usize, message: String, code| {
        let Position { line, column } = At(at).position(input);
        Fault { code, file: file.map(str::to_owned), line, column, message, nearest: None }
    };
    if input.len() > max_bytes {
        let message = format!("{} bytes are more than the {max_bytes} that are read", input.len());
        return Err(wrong(0, message, FaultCode::TooLarge));
    }
    let text = std::str::from_utf8(input)
        .map_err(|error| wrong(error.valid_up_to(), "invalid UTF-8".to_owned(), FaultCode::MalformedJson))?;
    let mut parser = Parser { text, offset: 0, depth: 0 };
    let read = parser.document();
    read.map_err(|Stop { code, at, message }| wrong(at, message, code))
}

/// Why reading ended, and where.
struct Stop {
    code: FaultCode,
    at: usize,
    message: String,
}

struct Parser<'a> {
    text: &'a str,
    offset: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// The next byte; every byte with a meaning in JSON is a character of its own.
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.offset).copied()
    }

    fn stop(&self, code: FaultCode, at: usize, message: impl Into<String>) -> Stop {
        Stop { code, at, message: message.into() }
    }

    fn malformed(&self, message: impl Into<String>) -> Stop {
        self.stop(FaultCode::MalformedJson, self.offset, message)
    }

    /// What stands here, for messages.
    fn found(&self) -> String {
        match self.text.get(self.offset..).and_then(|rest| rest.chars().next()) {
            Some(character) => format!("found {character:?}"),
            None => "the input ends".to_owned(),
        }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.offset += 1;
        }
    }

    fn expect(&mut self, wanted: u8, place: &str) -> Result<(), Stop> {
        if self.peek() == Some(wanted) {
            self.offset += 1;
            return Ok(());
        }
        Err(self.malformed(format!("expected `{}` {place}, {}", char::from(wanted), self.found())))
    }

    fn document(&mut self) -> Result<Node<'a>, Stop> {
        self.space();
        let node = self.value()?;
        self.space();
        match self.peek() {
            None => Ok(node),
            Some(_) => Err(self.malformed("something stands after the end of the value")),
        }
    }

    fn value(&mut self) -> Result<Node<'a>, Stop> {
        let at = At(self.offset);
        let value = match self.peek() {
            Some(b'{') => self.nested(Self::object)?,
            Some(b'[') => self.nested(Self::array)?,
            Some(b'"') => Value::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b'a'..=b'z') => self.word()?,
            _ => return Err(self.malformed(format!("expected a value, {}", self.found()))),
        };
        Ok(Node { at, value })
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value<'a>, Stop>) -> Result<Value<'a>, Stop> {
        if self.depth == MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(self.stop(FaultCode::TooDeep, self.offset, message));
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self) -> Result<Value<'a>, Stop> {
        self.offset += 1;
        let mut members: Vec<Member<'a>> = Vec::new();
        // Small objects are searched; a large one must not cost the square of its size.
        let mut seen: HashSet<Cow<'a, str>> = HashSet::new();
        self.space();
        if self.peek() == Some(b'}') {
            self.offset += 1;
            return Ok(Value::Object(members));
        }
        loop {
            self.space();
            let at = self.offset;
            if self.peek() != Some(b'"') {
                return Err(self.malformed("expected a key in double quotes"));
            }
            let key = self.string()?;
            let twice = if members.len() < SMALL {
                members.iter().any(|member| member.key == key)
            } else {
                if members.len() == SMALL {
                    seen.extend(members.iter().map(|member| member.key.clone()));
                }
                !seen.insert(key.clone())
            };
            if twice {
                let message = format!("`{key}` stands twice in one object");
                return Err(self.stop(FaultCode::DuplicateKey, at, message));
            }
            self.space();
            self.expect(b':', "after a key")?;
            self.space();
            members.push(Member { at: At(at), key, node: self.value()? });
            self.space();
            if self.peek() == Some(b',') {
                self.offset += 1;
            } else {
                self.expect(b'}', "or `,` after a member")?;
                return Ok(Value::Object(members));
            }
        }
    }

    fn array(&mut self) -> Result<Value<'a>, Stop> {
        self.offset += 1;
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.offset += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.space();
            items.push(self.value()?);
            self.space();
            if self.peek() == Some(b',') {
                self.offset += 1;
            } else {
                self.expect(b']', "or `,` after an item")?;
                return Ok(Value::Array(items));
            }
        }
    }

    fn word(&mut self) -> Result<Value<'a>, Stop> {
        for (word, value) in
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)]
        {
            if self.text[self.offset..].starts_with(word) {
                self.offset += word.len();
                return Ok(value);
            }
        }
        Err(self.malformed("expected a value; strings stand in double quotes"))
    }

    fn digits(&mut self) -> Result<(), Stop> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.malformed("expected a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.offset += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value<'a>, Stop> {
        let start = self.offset;
        let mut whole = true;
        if self.peek() == Some(b'-') {
            self.offset += 1;
        }
        if self.peek() == Some(b'0') {
            self.offset += 1;
            if matches!(self.peek(), Some(b'0'..=b'9')) {
                return Err(self.malformed("a number does not start with a zero"));
            }
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            whole = false;
            self.offset += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            whole = false;
            self.offset += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.offset += 1;
            }
            self.digits()?;
        }
        let written = &self.text[start..self.offset];
        // Twenty digits are finite without a look.
        let finite = || written.parse::<f64>().is_ok_and(f64::is_finite);
        if (whole && written.len() <= 20) || finite() {
            return Ok(Value::Number(written));
        }
        Err(self.stop(FaultCode::OutOfRange, start, format!("{written} is too large")))
    }

    /// Reads a string; one without escapes stays where it is.
    fn string(&mut self) -> Result<Cow<'a, str>, Stop> {
        self.offset += 1;
        let start = self.offset;
        self.plain();
        if self.peek() == Some(b'"') {
            let string = &self.text[start..self.offset];
            self.offset += 1;
            return Ok(Cow::Borrowed(string));
        }
        let mut string = self.text[start..self.offset].to_owned();
        loop {
            match self.peek() {
                None => return Err(self.malformed("the input ends inside a string")),
                Some(b'"') => {
                    self.offset += 1;
                    return Ok(Cow::Owned(string));
                }
                Some(b'\\') => string.push(self.escape()?),
                Some(control @ 0..=0x1f) => {
                    let control = char::from(control);
                    return Err(self.malformed(format!("{control:?} has to be escaped in a string")));
                }
                Some(_) => {
                    let from = self.offset;
                    self.plain();
                    string.push_str(&self.text[from..self.offset]);
                }
            }
        }
    }

    /// Goes on to the next byte that has a meaning inside a string.
    fn plain(&mut self) {
        let rest = &self.text.as_bytes()[self.offset..];
        let special = |byte: &u8| matches!(*byte, b'"' | b'\\' | 0..=0x1f);
        self.offset += rest.iter().position(special).unwrap_or(rest.len());
    }

    fn escape(&mut self) -> Result<char, Stop> {
        let at = self.offset;
        self.offset += 1;
        let plain = match self.peek() {
            Some(same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'b') => '\x08',
            Some(b'f') => '\x0c',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.offset += 1;
                return self.unicode(at);
            }
            _ => return Err(self.stop(FaultCode::MalformedJson, at, "no such escape in JSON")),
        };
        self.offset += 1;
        Ok(plain)
    }

    fn unicode(&mut self, at: usize) -> Result<char, Stop> {
        let lone =
            || Stop { code: FaultCode::MalformedJson, at, message: "half of a surrogate pair".to_owned() };
        let first = self.four_digits()?;
        if !(0xd800..0xe000).contains(&first) {
            return char::from_u32(first).ok_or_else(lone);
        }
        if first >= 0xdc00 || !self.text[self.offset..].starts_with("\\u") {
            return Err(lone());
        }
        self.offset += 2;
        let second = self.four_digits()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(lone());
        }
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or_else(lone)
    }

    fn four_digits(&mut self) -> Result<u32, Stop> {
        let mut number = 0;
        for _ in 0..4 {
            match self.peek().and_then(|digit| char::from(digit).to_digit(16)) {
                Some(digit) => number = number * 16 + digit,
                None => return Err(self.malformed("`\\u` needs four hexadecimal digits")),
            }
            self.offset += 1;
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_fault(input: &str) -> (FaultCode, u32, u32) {
        let fault = parse(input.as_bytes(), None, 1 << 20).expect_err(input);
        (fault.code, fault.line, fault.column)
    }

    /// `R-60`: what is not strict JSON is a fault at the place where it is.
    #[test]
    fn faults_carry_their_place() {
        use FaultCode::{DuplicateKey, MalformedJson, OutOfRange};
        let table = [
            ("", MalformedJson, 1, 1),
            ("{\"a\": 1,\n \"b\": 2, \"\\u0061\": 3}", DuplicateKey, 2, 10),
            ("{\"a\": 1e999}", OutOfRange, 1, 7),
            ("[1,]", MalformedJson, 1, 4),
            ("[01]", MalformedJson, 1, 3),
            ("[1.]", MalformedJson, 1, 4),
            ("[NaN]", MalformedJson, 1, 2),
            ("\"\\ud800\"", MalformedJson, 1, 2),
            ("\"\\ud800\\u0041\"", MalformedJson, 1, 2),
            ("\"a\nb\"", MalformedJson, 1, 3),
            ("\"\\x\"", MalformedJson, 1, 2),
            ("{} {}", MalformedJson, 1, 4),
            ("\u{feff}{}", MalformedJson, 1, 1),
            ("{'a': 1}", MalformedJson, 1, 2),
            ("tru", MalformedJson, 1, 1),
            ("{\"ä\": x}", MalformedJson, 1, 7),
        ];
        for (input, code, line, column) in table {
            assert_eq!(first_fault(input), (code, line, column), "{input:?}");
        }
        let bad_bytes = parse(b"{\"a\":\n \"\xff\"}", None, 100).expect_err("invalid UTF-8");
        assert_eq!((bad_bytes.code, bad_bytes.line, bad_bytes.column), (MalformedJson, 2, 3));
    }

    /// `R-60`: depth and size have limits, and the limit itself is still read.
    #[test]
    fn depth_and_size_are_limited() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(nested(MAX_DEPTH).as_bytes(), None, 1 << 20).is_ok());
        assert_eq!(first_fault(&nested(MAX_DEPTH + 1)).0, FaultCode::TooDeep);
        assert_eq!(first_fault(&"[".repeat(500_000)).0, FaultCode::TooDeep);
        assert!(parse(b"  {}", None, 4).is_ok());
        assert_eq!(parse(b"   {}", None, 4).expect_err("too large").code, FaultCode::TooLarge);
    }

    #[test]
    fn values_are_read_as_written() {
        let input = br#"{"a": [null, -1.5e3, "\ud83d\ude00\n"], "b": {}}"#;
        let node = parse(input, None, 100).expect("valid");
        let Value::Object(members) = node.value else { panic!("an object") };
        let Value::Array(items) = &members[0].node.value else { panic!("a list") };
        assert_eq!(items[1].value, Value::Number("-1.5e3"));
        assert_eq!(items[2].value, Value::String("😀\n".into()));
        assert_eq!(members[1].at.position(input), Position { line: 1, column: 41 });
    }
}
