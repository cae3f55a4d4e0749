//! The patterns of paths and refs: `*`, `**` and `?`, without loops or classes (`C-056`, `R-63`).

/// A pattern, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    shape: Shape,
    /// The whole segments that everything it covers starts with.
    anchor: String,
}

/// Patterns that are simple are matched without going through their tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    /// `**`
    Everything,
    /// No wildcard.
    Literal(String),
    /// `dir/**`: `dir` and everything below.
    Tree(String),
    /// Anything else.
    Tokens(Vec<Token>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// This character.
    Literal(char),
    /// `?`: one character of a segment.
    One,
    /// `*`: any characters of a segment.
    Star,
    /// `**`: any characters.
    Any,
    /// `**/` at the start of a segment: any whole segments, or none.
    Segments,
    /// `/**` at the end: nothing, or everything below.
    Below,
}

impl Glob {
    /// Reads a pattern.
    pub(super) fn parse(written: &str) -> Result<Self, &'static str> {
        if written.is_empty() {
            return Err("a pattern is not empty");
        }
        if written.contains(['[', ']', '{', '}', '\\']) {
            return Err(
                "`[ ] { } \\` have no meaning in a pattern; it knows `*`, `**`, `?` and a leading `!`",
            );
        }
        if written.chars().any(char::is_control) {
            return Err("control characters have no place in a pattern");
        }
        let inner = written.strip_prefix('/').unwrap_or(written);
        if inner.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err("empty segments, `.` and `..` have no place in a pattern");
        }
        let anchor = anchor(written).to_owned();
        let shape = match written.strip_suffix("/**") {
            _ if written == "**" => Shape::Everything,
            Some(directory) if !directory.is_empty() && directory == anchor => Shape::Tree(anchor.clone()),
            None if written == anchor => Shape::Literal(anchor.clone()),
            _ => Shape::Tokens(tokens(&written.chars().collect::<Vec<_>>())),
        };
        Ok(Self { shape, anchor })
    }

    /// The whole segments that everything it covers starts with; none when there are none.
    pub(super) fn anchor(&self) -> Option<String> {
        (!self.anchor.is_empty()).then(|| self.anchor.clone())
    }

    /// Whether the pattern covers the whole of `value`.
    pub(super) fn matches(&self, value: &str) -> bool {
        let tokens = match &self.shape {
            Shape::Everything => return true,
            Shape::Literal(literal) => return value == literal,
            Shape::Tree(directory) => {
                let below = value.strip_prefix(directory.as_str());
                return below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            }
            Shape::Tokens(tokens) => tokens,
        };
        // Whatever it covers starts like its first segments, so most values are ruled out here.
        if !value.starts_with(self.anchor.as_str()) {
            return false;
        }
        let text: Vec<char> = value.chars().collect();
        // `row[c]` says whether the tokens from here on match the text from `c` on.
        let mut row = vec![false; text.len() + 1];
        row[text.len()] = true;
        for token in tokens.iter().rev() {
            row = step(*token, &text, &row);
        }
        row[0]
    }
}

/// The segments before the first that has a wildcard.
fn anchor(written: &str) -> &str {
    match written.find(['*', '?']) {
        None => written,
        Some(wildcard) => written[..wildcard].rfind('/').map_or("", |slash| &written[..slash]),
    }
}

fn tokens(written: &[char]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut index = 0;
    while index < written.len() {
        let rest = &written[index..];
        let segment_start = index == 0 || written[index - 1] == '/';
        let (token, length) = match rest {
            ['/', '*', '*'] if index > 0 => (Token::Below, 3),
            ['*', '*', '/', ..] if segment_start => (Token::Segments, 3),
            ['*', '*', ..] => (Token::Any, 2),
            ['*', ..] => (Token::Star, 1),
            ['?', ..] => (Token::One, 1),
            _ => (Token::Literal(rest[0]), 1),
        };
        tokens.push(token);
        index += length;
    }
    tokens
}

fn step(token: Token, text: &[char], after: &[bool]) -> Vec<bool> {
    let end = text.len();
    let mut row = vec![false; end + 1];
    let mut slash_follows = false;
    for at in (0..=end).rev() {
        let character = text.get(at).copied();
        let next = at < end && after[at + 1];
        row[at] = match token {
            Token::Literal(wanted) => character == Some(wanted) && next,
            Token::One => character.is_some_and(|found| found != '/') && next,
            Token::Star => after[at] || (character.is_some_and(|found| found != '/') && row[at + 1]),
            Token::Any => after[at] || (at < end && row[at + 1]),
            Token::Segments => {
                slash_follows |= character == Some('/') && next;
                after[at] || slash_follows
            }
            Token::Below => at == end || character == Some('/'),
        };
    }
    row
}

#[cfg(test)]
mod tests {
    use super::Glob;

    /// `C-051`, `C-052`, `R-63`
    #[test]
    fn stars_know_segments() {
        let table = [
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("src/**", "src/a/b.rs", true),
            ("src/**", "src", true),
            ("src/**", "srcx", false),
            ("**/.env", ".env", true),
            ("**/.env", "a/b/.env", true),
            ("**/.env", "a/b.env", false),
            ("**/.env", "/etc/.env", true),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/xb", false),
            ("**", "", true),
            ("**", "/etc/passwd", true),
            ("/etc/**", "/etc/passwd", true),
            ("/etc/**", "/etc", true),
            ("/**", "/", true),
            ("/**", "/etc", true),
            ("?.rs", "a.rs", true),
            ("?.rs", "/.rs", false),
            ("release**", "release-1/x", true),
            ("*", "a", true),
            ("*", "a/b", false),
            ("A", "a", false),
        ];
        for (pattern, value, matches) in table {
            let glob = Glob::parse(pattern).expect(pattern);
            assert_eq!(glob.matches(value), matches, "{pattern} on {value}");
        }
    }

    /// `R-63`: what has no meaning does not load.
    #[test]
    fn senseless_patterns_do_not_load() {
        for pattern in
            ["", "a//b", "a/../b", "./a", "a/", "[ab]", "{a,b}", "a\\b", "a\0b", "//a", "/", "a/.", ".."]
        {
            assert!(Glob::parse(pattern).is_err(), "{pattern:?}");
        }
    }
}
