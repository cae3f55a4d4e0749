//! The one strict reader of JSON (`R-60`).
//!
//! It keeps where each value stands, so that a fault names line and column. A duplicate key (after unescaping),
//! a number without a finite value, invalid UTF-8, a byte-order mark, too deep a nest and too large an input are
//! faults; nothing is repaired and nothing is skipped.

use std::collections::HashSet;

use crate::fault::{Fault, FaultCode};

/// Deepest nest of arrays and objects that is read.
pub const MAX_DEPTH: usize = 64;

/// Where a value starts; both from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it starts.
    pub at: Position,
    /// What it is.
    pub value: Value,
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number with a finite value, as written.
    Number(String),
    /// A string, unescaped.
    String(String),
    /// An array.
    Array(Vec<Node>),
    /// An object, keys in the order of the input.
    Object(Vec<Member>),
}

/// One member of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Where the key starts.
    pub at: Position,
    /// The key, unescaped.
    pub key: String,
    /// Its value.
    pub node: Node,
}

impl Value {
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
pub fn parse(input: &[u8], file: Option<&str>, max_bytes: usize) -> Result<Node, Fault> {
    let start = Position { line: 1, column: 1 };
    if input.len() > max_bytes {
        let message = format!("{} bytes are more than the {max_bytes} that are read", input.len());
        return Err(fault(FaultCode::TooLarge, file, start, message));
    }
    let text = match std::str::from_utf8(input) {
        Ok(text) => text,
        Err(error) => {
            let before = String::from_utf8_lossy(&input[..error.valid_up_to()]);
            let mut parser = Parser { text: &before, offset: 0, at: start, depth: 0, file };
            while parser.next().is_some() {}
            return Err(parser.malformed("invalid UTF-8"));
        }
    };
    let mut parser = Parser { text, offset: 0, at: start, depth: 0, file };
    parser.space();
    let node = parser.value()?;
    parser.space();
    match parser.peek() {
        None => Ok(node),
        Some(_) => Err(parser.malformed("something stands after the end of the value")),
    }
}

fn fault(code: FaultCode, file: Option<&str>, at: Position, message: impl Into<String>) -> Fault {
    let (line, column) = (at.line, at.column);
    Fault { code, file: file.map(str::to_owned), line, column, message: message.into(), nearest: None }
}

struct Parser<'a> {
    text: &'a str,
    offset: usize,
    at: Position,
    depth: usize,
    file: Option<&'a str>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.offset..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.offset += next.len_utf8();
        if next == '\n' {
            self.at = Position { line: self.at.line + 1, column: 1 };
        } else {
            self.at.column += 1;
        }
        Some(next)
    }

    fn malformed(&self, message: impl Into<String>) -> Fault {
        fault(FaultCode::MalformedJson, self.file, self.at, message)
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.next();
        }
    }

    fn expect(&mut self, wanted: char, place: &str) -> Result<(), Fault> {
        match self.peek() {
            Some(found) if found == wanted => {
                self.next();
                Ok(())
            }
            Some(found) => Err(self.malformed(format!("expected `{wanted}` {place}, found {found:?}"))),
            None => Err(self.malformed(format!("expected `{wanted}` {place}, the input ends"))),
        }
    }

    fn value(&mut self) -> Result<Node, Fault> {
        let at = self.at;
        let value = match self.peek() {
            Some('{') => self.nested(Self::object)?,
            Some('[') => self.nested(Self::array)?,
            Some('"') => Value::String(self.string()?),
            Some('-' | '0'..='9') => self.number()?,
            Some('a'..='z') => self.word()?,
            Some(found) => return Err(self.malformed(format!("expected a value, found {found:?}"))),
            None => return Err(self.malformed("expected a value, the input ends")),
        };
        Ok(Node { at, value })
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, Fault>) -> Result<Value, Fault> {
        if self.depth == MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(fault(FaultCode::TooDeep, self.file, self.at, message));
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self) -> Result<Value, Fault> {
        self.next();
        let mut members = Vec::new();
        let mut seen = HashSet::new();
        self.space();
        if self.peek() == Some('}') {
            self.next();
            return Ok(Value::Object(members));
        }
        loop {
            self.space();
            let at = self.at;
            if self.peek() != Some('"') {
                return Err(self.malformed("expected a key in double quotes"));
            }
            let key = self.string()?;
            if !seen.insert(key.clone()) {
                let message = format!("`{key}` stands twice in one object");
                return Err(fault(FaultCode::DuplicateKey, self.file, at, message));
            }
            self.space();
            self.expect(':', "after a key")?;
            self.space();
            members.push(Member { at, key, node: self.value()? });
            self.space();
            if self.peek() == Some(',') {
                self.next();
            } else {
                self.expect('}', "or `,` after a member")?;
                return Ok(Value::Object(members));
            }
        }
    }

    fn array(&mut self) -> Result<Value, Fault> {
        self.next();
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(']') {
            self.next();
            return Ok(Value::Array(items));
        }
        loop {
            self.space();
            items.push(self.value()?);
            self.space();
            if self.peek() == Some(',') {
                self.next();
            } else {
                self.expect(']', "or `,` after an item")?;
                return Ok(Value::Array(items));
            }
        }
    }

    fn word(&mut self) -> Result<Value, Fault> {
        for (word, value) in
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)]
        {
            if self.text[self.offset..].starts_with(word) {
                for _ in word.chars() {
                    self.next();
                }
                return Ok(value);
            }
        }
        Err(self.malformed("expected a value; strings stand in double quotes"))
    }

    fn digits(&mut self) -> Result<(), Fault> {
        if !matches!(self.peek(), Some('0'..='9')) {
            return Err(self.malformed("expected a digit"));
        }
        while matches!(self.peek(), Some('0'..='9')) {
            self.next();
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value, Fault> {
        let (start, at) = (self.offset, self.at);
        if self.peek() == Some('-') {
            self.next();
        }
        if self.peek() == Some('0') {
            self.next();
            if matches!(self.peek(), Some('0'..='9')) {
                return Err(self.malformed("a number does not start with a zero"));
            }
        } else {
            self.digits()?;
        }
        if self.peek() == Some('.') {
            self.next();
            self.digits()?;
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            self.next();
            if matches!(self.peek(), Some('+' | '-')) {
                self.next();
            }
            self.digits()?;
        }
        let written = &self.text[start..self.offset];
        match written.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Number(written.to_owned())),
            _ => Err(fault(FaultCode::OutOfRange, self.file, at, format!("{written} is too large"))),
        }
    }

    fn string(&mut self) -> Result<String, Fault> {
        self.next();
        let mut string = String::new();
        loop {
            match self.peek() {
                None => return Err(self.malformed("the input ends inside a string")),
                Some('"') => {
                    self.next();
                    return Ok(string);
                }
                Some('\\') => string.push(self.escape()?),
                Some(control @ '\0'..='\x1f') => {
                    return Err(self.malformed(format!("{control:?} has to be escaped in a string")));
                }
                Some(character) => {
                    self.next();
                    string.push(character);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let at = self.at;
        self.next();
        let wrong = |message: &str| fault(FaultCode::MalformedJson, self.file, at, message);
        let plain = match self.peek() {
            Some(same @ ('"' | '\\' | '/')) => same,
            Some('b') => '\x08',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                self.next();
                return self.unicode(at);
            }
            _ => return Err(wrong("no such escape in JSON")),
        };
        self.next();
        Ok(plain)
    }

    fn unicode(&mut self, at: Position) -> Result<char, Fault> {
        let file = self.file;
        let lone = || fault(FaultCode::MalformedJson, file, at, "half of a surrogate pair");
        let first = self.four_digits()?;
        if !(0xd800..0xe000).contains(&first) {
            return char::from_u32(first).ok_or_else(lone);
        }
        if first >= 0xdc00 || !self.text[self.offset..].starts_with("\\u") {
            return Err(lone());
        }
        self.next();
        self.next();
        let second = self.four_digits()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(lone());
        }
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or_else(lone)
    }

    fn four_digits(&mut self) -> Result<u32, Fault> {
        let mut number = 0;
        for _ in 0..4 {
            match self.peek().and_then(|digit| digit.to_digit(16)) {
                Some(digit) => number = number * 16 + digit,
                None => return Err(self.malformed("`\\u` needs four hexadecimal digits")),
            }
            self.next();
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
        let node = parse(br#"{"a": [null, -1.5e3, "\ud83d\ude00\n"], "b": {}}"#, None, 100).expect("valid");
        let Value::Object(members) = node.value else { panic!("an object") };
        let Value::Array(items) = &members[0].node.value else { panic!("a list") };
        assert_eq!(items[1].value, Value::Number("-1.5e3".into()));
        assert_eq!(items[2].value, Value::String("😀\n".into()));
        assert_eq!(members[1].at, Position { line: 1, column: 41 });
    }
}
