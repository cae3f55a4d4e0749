//! One word of the shell: quotes taken away, expansions left open.

use super::script::{Script, is_blank};
use super::{Place, ShellError};
use crate::facts::Word;

/// A word as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Token {
    /// Its text, without what is not known.
    pub(super) text: String,
    /// Whether the shell passes exactly this text.
    pub(super) known: bool,
    /// Whether any of it was quoted; then it is no word of the grammar.
    pub(super) quoted: bool,
    /// How much of the text comes before the first quote and the first expansion.
    pub(super) bare: usize,
    /// Whether it stands for a pipe to a command, which is no file.
    pub(super) pipe: bool,
}

impl Token {
    pub(super) fn word(&self) -> Word {
        if self.known { Word::Known(self.text.clone()) } else { Word::Unknown }
    }

    /// Whether it is this word of the grammar.
    pub(super) fn is(&self, word: &str) -> bool {
        self.known && !self.quoted && self.text == word
    }

    /// The variable that it assigns to, if it stands before a command.
    pub(super) fn assigns(&self) -> Option<&str> {
        let bare = &self.text[..self.bare];
        let (name, _) = bare.split_once('=')?;
        let name = name.strip_suffix('+').unwrap_or(name);
        let name = name.split_once('[').map_or(name, |(name, _)| name);
        let mut letters = name.chars();
        let first = letters.next()?;
        let is_name = (first.is_ascii_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        is_name.then_some(name)
    }
}

/// What is being read of a word.
#[derive(Default)]
struct Draft {
    text: String,
    unknown: bool,
    quoted: bool,
    bare: Option<usize>,
    /// Open braces outside of quotes, and whether one of them is a list.
    braces: usize,
    list: bool,
    /// A `[` outside of quotes.
    bracket: bool,
    began: bool,
    pipe: bool,
}

impl Draft {
    fn quote(&mut self) {
        self.bare.get_or_insert(self.text.len());
        self.quoted = true;
        self.began = true;
    }

    fn open(&mut self) {
        self.bare.get_or_insert(self.text.len());
        self.unknown = true;
        self.began = true;
    }
}

impl Script<'_> {
    /// Reads one word; nothing where none begins.
    pub(super) fn word(&mut self) -> Result<Option<Token>, ShellError> {
        let mut draft = Draft::default();
        while let Some(letter) = self.peek() {
            match letter {
                '\\' => {
                    self.at += 1;
                    match self.next() {
                        Some('\n') => continue,
                        Some(escaped) => {
                            draft.quote();
                            draft.text.push(escaped);
                        }
                        None => draft.text.push('\\'),
                    }
                    draft.began = true;
                }
                '\'' => {
                    let start = self.at;
                    self.at += 1;
                    draft.quote();
                    loop {
                        match self.next() {
                            Some('\'') => break,
                            Some(inside) => draft.text.push(inside),
                            None => return Err(self.open_at(Place::Quote, start)),
                        }
                    }
                }
                '"' => self.double_quoted(&mut draft)?,
                '$' => self.dollar(&mut draft, false)?,
                '`' => {
                    draft.open();
                    self.backquoted()?;
                }
                '<' | '>' if self.peek_at(1) == Some('(') && !self.tests => {
                    self.at += 2;
                    draft.pipe = !draft.began;
                    draft.open();
                    self.commands_until_paren()?;
                }
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                _ => {
                    self.at += 1;
                    match letter {
                        // A pattern becomes the files that it fits: any number of words.
                        '*' | '?' if !self.tests => draft.open(),
                        '[' => draft.bracket = true,
                        ']' => draft.unknown |= draft.bracket && !self.tests,
                        '{' => draft.braces += 1,
                        ',' if draft.braces > 0 => draft.list = true,
                        '.' if draft.braces > 0 && self.peek() == Some('.') => draft.list = true,
                        '}' if draft.braces > 0 => {
                            draft.braces -= 1;
                            draft.unknown |= draft.list;
                        }
                        _ => {}
                    }
                    draft.text.push(letter);
                    draft.began = true;
                }
            }
        }
        if !draft.began {
            return Ok(None);
        }
        let bare = draft.bare.unwrap_or(draft.text.len());
        let pipe = draft.pipe && draft.text.is_empty();
        Ok(Some(Token { bare, known: !draft.unknown, quoted: draft.quoted, pipe, text: draft.text }))
    }

    fn double_quoted(&mut self, draft: &mut Draft) -> Result<(), ShellError> {
        let start = self.at;
        self.at += 1;
        draft.quote();
        loop {
            match self.peek() {
                None => return Err(self.open_at(Place::Quote, start)),
                Some('"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some('\\') => {
                    self.at += 1;
                    match self.next() {
                        Some('\n') => {}
                        Some(escaped @ ('$' | '`' | '"' | '\\')) => draft.text.push(escaped),
                        Some(other) => draft.text.extend(['\\', other]),
                        None => return Err(self.open_at(Place::Quote, start)),
                    }
                }
                Some('$') => self.dollar(draft, true)?,
                Some('`') => {
                    draft.open();
                    self.backquoted()?;
                }
                Some(inside) => {
                    self.at += 1;
                    draft.text.push(inside);
                }
            }
        }
    }

    /// What stands after a `$`.
    fn dollar(&mut self, draft: &mut Draft, in_quotes: bool) -> Result<(), ShellError> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some('(') if self.peek_at(1) == Some('(') && self.is_arithmetic(self.at + 2) => {
                draft.open();
                self.at += 2;
                self.skip_balanced('(', ')', in_quotes, start)?;
                self.at += 1;
            }
            Some('(') => {
                draft.open();
                self.at += 1;
                self.commands_until_paren()?;
            }
            Some('{') => {
                draft.open();
                self.at += 1;
                // `${ command; }` runs a command; what it is cannot be told from a name here, so both are read.
                if self.peek().is_some_and(|letter| is_blank(letter) || letter == '|') {
                    self.commands_until_brace()?;
                } else {
                    self.skip_balanced('{', '}', in_quotes, start)?;
                }
            }
            Some('[') => {
                draft.open();
                self.at += 1;
                self.skip_balanced('[', ']', in_quotes, start)?;
            }
            Some('\'') if !in_quotes => {
                self.at += 1;
                draft.quote();
                self.ansi_quoted(draft, start)?;
            }
            Some('"') if !in_quotes => {}
            Some(letter) if letter.is_ascii_alphanumeric() || letter == '_' => {
                draft.open();
                self.at += 1;
                if !letter.is_ascii_digit() {
                    while self.peek().is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_') {
                        self.at += 1;
                    }
                }
            }
            Some('?' | '$' | '!' | '#' | '@' | '*' | '-') => {
                draft.open();
                self.at += 1;
            }
            _ => {
                draft.text.push('$');
                draft.began = true;
            }
        }
        Ok(())
    }

    /// `$'…'`, whose escapes are those of C.
    fn ansi_quoted(&mut self, draft: &mut Draft, start: usize) -> Result<(), ShellError> {
        loop {
            let letter = match self.next() {
                None => return Err(self.open_at(Place::Quote, start)),
                Some('\'') => return Ok(()),
                Some('\\') => match self.next() {
                    None => return Err(self.open_at(Place::Quote, start)),
                    Some('a') => '\x07',
                    Some('b') => '\x08',
                    Some('e' | 'E') => '\x1b',
                    Some('f') => '\x0c',
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some('v') => '\x0b',
                    Some(quoted @ ('\\' | '\'' | '"' | '?')) => quoted,
                    Some('x') => self.number(16, 2, 0),
                    Some('u') => self.number(16, 4, 0),
                    Some('U') => self.number(16, 8, 0),
                    Some(digit @ '0'..='7') => self.number(8, 2, digit.to_digit(8).unwrap_or(0)),
                    Some(other) => {
                        // Control characters and what is no escape: rare enough to be left open.
                        draft.unknown = true;
                        other
                    }
                },
                Some(letter) => letter,
            };
            // A byte that is no character alone, or an end of the text, is left open.
            draft.unknown |= letter == '\0' || letter == char::REPLACEMENT_CHARACTER;
            draft.text.push(letter);
        }
    }

    fn number(&mut self, radix: u32, most: usize, start: u32) -> char {
        let mut value = start;
        for _ in 0..most {
            let Some(digit) = self.peek().and_then(|letter| letter.to_digit(radix)) else { break };
            value = value.saturating_mul(radix).saturating_add(digit);
            self.at += 1;
        }
        let ascii_only = radix == 8 || most == 2;
        char::from_u32(value).filter(|_| !ascii_only || value < 0x80).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    /// Skips one quoted or substituted piece; commands that are substituted in it are found.
    pub(super) fn piece(&mut self, in_quotes: bool) -> Result<(), ShellError> {
        let mut draft = Draft::default();
        match self.peek() {
            Some('\\') => self.at = (self.at + 2).min(self.letters.len()),
            Some('\'') if !in_quotes => {
                let start = self.at;
                self.at += 1;
                while self.next().ok_or_else(|| self.open_at(Place::Quote, start))? != '\'' {}
            }
            Some('"') => self.double_quoted(&mut draft)?,
            Some('$') => self.dollar(&mut draft, in_quotes)?,
            Some('`') => self.backquoted()?,
            _ => self.at += 1,
        }
        Ok(())
    }

    /// An old command substitution: what stands between the marks is a script of its own.
    fn backquoted(&mut self) -> Result<(), ShellError> {
        let start = self.at;
        self.at += 1;
        let mut inner = String::new();
        loop {
            match self.next() {
                None => return Err(self.open_at(Place::Substitution, start)),
                Some('`') => break,
                Some('\\') => match self.next() {
                    Some(escaped @ ('`' | '\\' | '$')) => inner.push(escaped),
                    Some(other) => inner.extend(['\\', other]),
                    None => return Err(self.open_at(Place::Substitution, start)),
                },
                Some(letter) => inner.push(letter),
            }
        }
        self.nested(&inner)
    }
}
