//! The commands of a script.
//!
//! Every simple command is found, wherever it stands: in lists, pipelines, loops, functions, substitutions. Which of
//! them really run is not asked; what may run counts.

use super::word::Token;
use super::{MAX_COMMANDS, MAX_DEPTH, Place, ShellError};
use crate::facts::Word;

/// One command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Simple {
    /// The variables that it sets for itself.
    pub(super) assigned: Vec<String>,
    /// Its name and arguments.
    pub(super) words: Vec<Word>,
    /// Files that it writes and reads by redirection.
    pub(super) writes: Vec<Word>,
    pub(super) reads: Vec<Word>,
}

/// What ended a list of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Text,
    Paren,
    Brace,
    Branch,
    Esac,
}

/// What a list of commands is inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Text,
    Paren,
    /// A `${ …; }`.
    Brace,
    Case,
}

/// A script that is being read.
pub(super) struct Script<'a> {
    pub(super) letters: Vec<char>,
    pub(super) at: usize,
    /// Inside of `[[ ]]`, where some letters mean something else.
    pub(super) tests: bool,
    depth: usize,
    /// Here-documents that begin after this line: their end, whether tabs before it count not, whether they expand.
    pending: Vec<(String, bool, bool)>,
    found: &'a mut Vec<Simple>,
}

/// Words of the grammar after which a command comes.
const BEFORE_COMMANDS: [&str; 12] =
    ["if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!"];

pub(super) fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n')
}

/// Finds the commands of a text.
pub(super) fn read(text: &str, depth: usize, found: &mut Vec<Simple>) -> Result<(), ShellError> {
    if depth > MAX_DEPTH {
        return Err(ShellError::TooDeep { limit: MAX_DEPTH });
    }
    let letters: Vec<char> = text.chars().collect();
    if let Some(at) = letters.iter().position(|letter| *letter == '\0') {
        return Err(ShellError::Unreadable { place: Place::Nul, column: at + 1 });
    }
    let mut script = Script { letters, at: 0, tests: false, depth, pending: Vec::new(), found };
    script.list(Inside::Text).map(drop)
}

impl Script<'_> {
    pub(super) fn peek(&self) -> Option<char> {
        self.peek_at(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<char> {
        self.letters.get(self.at + ahead).copied()
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let letter = self.peek();
        self.at += usize::from(letter.is_some());
        letter
    }

    pub(super) fn open_at(&self, place: Place, at: usize) -> ShellError {
        ShellError::Unreadable { place, column: at + 1 }
    }

    fn starts(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(ahead, letter)| self.peek_at(ahead) == Some(letter))
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, ShellError>) -> Result<T, ShellError> {
        if self.depth >= MAX_DEPTH {
            return Err(ShellError::TooDeep { limit: MAX_DEPTH });
        }
        self.depth += 1;
        let tests = std::mem::take(&mut self.tests);
        // Here-documents of an inner script end inside of it.
        let pending = std::mem::take(&mut self.pending);
        let result = read(self);
        self.pending = pending;
        self.tests = tests;
        self.depth -= 1;
        result
    }

    /// The commands up to the `)` that closes what is open.
    pub(super) fn commands_until_paren(&mut self) -> Result<(), ShellError> {
        self.deeper(|script| script.list(Inside::Paren).map(drop))
    }

    /// The commands up to the `}` that closes what is open.
    pub(super) fn commands_until_brace(&mut self) -> Result<(), ShellError> {
        self.deeper(|script| script.list(Inside::Brace).map(drop))
    }

    /// A script inside of this one, as a text of its own.
    pub(super) fn nested(&mut self, text: &str) -> Result<(), ShellError> {
        read(text, self.depth + 1, self.found)
    }

    /// Whether what begins here, after `((`, ends in `))`; otherwise it is a subshell in another bracket.
    pub(super) fn is_arithmetic(&self, at: usize) -> bool {
        let mut open = 1_usize;
        let mut quote = None;
        let mut rest = self.letters.iter().enumerate().skip(at);
        while let Some((index, letter)) = rest.next() {
            match (quote, letter) {
                (Some(end), letter) if end == *letter => quote = None,
                (_, '\\') => drop(rest.next()),
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(*letter),
                (None, '(') => open += 1,
                (None, ')') => {
                    open -= 1;
                    if open == 0 {
                        return self.letters.get(index + 1) == Some(&')');
                    }
                }
                _ => {}
            }
        }
        false
    }

    /// Skips to the bracket that closes what is open; commands that are substituted there are found.
    pub(super) fn skip_balanced(
        &mut self,
        open: char,
        close: char,
        in_quotes: bool,
        start: usize,
    ) -> Result<(), ShellError> {
        self.deeper(|script| {
            let mut depth = 1_usize;
            while let Some(letter) = script.peek() {
                if letter == close {
                    script.at += 1;
                    depth -= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                } else if letter == open && open != '{' {
                    script.at += 1;
                    depth += 1;
                } else if matches!(letter, '<' | '>') && close == '}' && script.peek_at(1) == Some('(') {
                    script.at += 2;
                    script.commands_until_paren()?;
                } else {
                    script.piece(in_quotes && letter != '"')?;
                }
            }
            Err(script.open_at(Place::Bracket, start))
        })
    }

    /// A list of commands.
    fn list(&mut self, inside: Inside) -> Result<End, ShellError> {
        let start = self.at;
        loop {
            self.skip_blanks();
            let Some(letter) = self.peek() else {
                return match inside {
                    Inside::Text => Ok(End::Text),
                    _ => Err(self.open_at(Place::Bracket, start)),
                };
            };
            match letter {
                '\n' => {
                    self.at += 1;
                    self.here_documents()?;
                }
                ';' if self.peek_at(1) == Some(';') || self.peek_at(1) == Some('&') => {
                    self.at += 2 + usize::from(self.starts(";;&"));
                    if inside != Inside::Case {
                        return Err(self.open_at(Place::Operator, self.at));
                    }
                    return Ok(End::Branch);
                }
                '&' if self.peek_at(1) == Some('>') => self.command(inside)?,
                ';' | '&' | '|' => self.at += 1,
                ')' => {
                    self.at += 1;
                    return match inside {
                        Inside::Paren => Ok(End::Paren),
                        _ => Err(self.open_at(Place::Operator, self.at - 1)),
                    };
                }
                '(' if self.peek_at(1) == Some('(') && self.is_arithmetic(self.at + 2) => {
                    let start = self.at;
                    self.at += 2;
                    self.skip_balanced('(', ')', false, start)?;
                    self.at += 1;
                }
                '(' => {
                    self.at += 1;
                    self.commands_until_paren()?;
                }
                _ => {
                    if let Some(end) = self.ending(inside)? {
                        return Ok(end);
                    }
                    self.command(inside)?;
                }
            }
        }
    }

    /// The word that ends this list, if it stands here.
    fn ending(&mut self, inside: Inside) -> Result<Option<End>, ShellError> {
        let before = self.at;
        let (word, end) = match inside {
            Inside::Case => ("esac", End::Esac),
            Inside::Brace => ("}", End::Brace),
            _ => return Ok(None),
        };
        if self.starts(word) && self.word()?.is_some_and(|token| token.is(word)) {
            return Ok(Some(end));
        }
        self.at = before;
        Ok(None)
    }

    fn skip_blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\\') if self.peek_at(1) == Some('\n') => self.at += 2,
                Some('#') => {
                    while self.peek().is_some_and(|letter| letter != '\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    /// One simple command, or what the grammar has in its place.
    fn command(&mut self, inside: Inside) -> Result<(), ShellError> {
        let mut simple = Simple::default();
        let mut coprocess = false;
        loop {
            self.skip_blanks();
            if self.redirection(&mut simple)? {
                continue;
            }
            let start = self.at;
            let Some(token) = self.word()? else {
                // `name ()` defines a function; its body is read as what it is, commands.
                let defines =
                    self.peek() == Some('(') && simple.words.len() == 1 && simple.assigned.is_empty();
                if defines && self.closes_at_once() {
                    simple.words.clear();
                    continue;
                }
                if self.peek() == Some('(') && !(simple.words.is_empty() && simple.assigned.is_empty()) {
                    return Err(self.open_at(Place::Operator, self.at));
                }
                break;
            };
            if self.at_redirection() && token.is_descriptor() {
                self.redirection(&mut simple)?;
                continue;
            }
            let first = simple.words.is_empty() && simple.assigned.is_empty();
            if coprocess && simple.words.len() == 1 && BEFORE_COMMANDS.iter().any(|word| token.is(word)) {
                // The word before was the name of the coprocess.
                simple.words.clear();
                break;
            }
            if first && BEFORE_COMMANDS.iter().any(|word| token.is(word)) {
                if (inside == Inside::Brace && token.is("}")) || (inside == Inside::Case && token.is("esac"))
                {
                    self.at = start;
                    break;
                }
                continue;
            }
            if first && token.is("time") {
                continue;
            }
            if first && token.is("-p") {
                continue;
            }
            if first && token.is("coproc") {
                coprocess = true;
                continue;
            }
            if first && token.is("function") {
                self.skip_blanks();
                self.word()?;
                self.skip_blanks();
                self.closes_at_once();
                continue;
            }
            if first && (token.is("for") || token.is("select")) {
                self.loop_head()?;
                break;
            }
            if first && token.is("case") {
                self.case()?;
                continue;
            }
            if first && token.is("[[") {
                self.test(start)?;
                continue;
            }
            if let Some(name) = token.assigns() {
                if self.peek() == Some('(') && token.text.ends_with('=') {
                    self.array()?;
                }
                if simple.words.is_empty() {
                    simple.assigned.push(name.to_owned());
                    continue;
                }
            }
            simple.words.push(token.word());
        }
        if simple != Simple::default() {
            if self.found.len() == MAX_COMMANDS {
                return Err(ShellError::TooMany { limit: MAX_COMMANDS });
            }
            self.found.push(simple);
        }
        Ok(())
    }

    /// `()`, with blanks between.
    fn closes_at_once(&mut self) -> bool {
        let before = self.at;
        if self.peek() == Some('(') {
            self.at += 1;
            self.skip_blanks();
            if self.peek() == Some(')') {
                self.at += 1;
                return true;
            }
        }
        self.at = before;
        false
    }

    /// The elements of an array.
    fn array(&mut self) -> Result<(), ShellError> {
        let start = self.at;
        self.at += 1;
        loop {
            self.skip_blanks();
            match self.peek() {
                Some(')') => {
                    self.at += 1;
                    return Ok(());
                }
                Some('\n') => self.at += 1,
                None => return Err(self.open_at(Place::Bracket, start)),
                _ if self.word()?.is_none() => return Err(self.open_at(Place::Operator, self.at)),
                _ => {}
            }
        }
    }

    /// `for x in words;`, `for ((…))`: nothing of it is a command, but what is substituted is.
    fn loop_head(&mut self) -> Result<(), ShellError> {
        loop {
            self.skip_blanks();
            match self.peek() {
                Some('(') if self.peek_at(1) == Some('(') => {
                    let start = self.at;
                    self.at += 2;
                    self.skip_balanced('(', ')', false, start)?;
                    self.at += usize::from(self.peek() == Some(')'));
                }
                None | Some('\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>') => return Ok(()),
                _ => {
                    let before = self.at;
                    if self.word()?.is_some_and(|token| token.is("do") || token.is("{")) {
                        self.at = before;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// `case word in pattern) commands;; … esac`
    fn case(&mut self) -> Result<(), ShellError> {
        let start = self.at;
        self.skip_blanks();
        self.word()?;
        self.skip_lines()?;
        if !self.word()?.is_some_and(|token| token.is("in")) {
            return Err(self.open_at(Place::Case, start));
        }
        loop {
            self.skip_lines()?;
            if self.ending(Inside::Case)?.is_some() {
                return Ok(());
            }
            if self.peek() == Some('(') {
                self.at += 1;
            }
            loop {
                self.skip_blanks();
                match self.peek() {
                    Some(')') => break,
                    Some('|') => self.at += 1,
                    _ if self.word()?.is_none() => return Err(self.open_at(Place::Case, start)),
                    _ => {}
                }
            }
            self.at += 1;
            if self.deeper(|script| script.list(Inside::Case))? == End::Esac {
                return Ok(());
            }
        }
    }

    fn skip_lines(&mut self) -> Result<(), ShellError> {
        loop {
            self.skip_blanks();
            if self.peek() != Some('\n') {
                return Ok(());
            }
            self.at += 1;
            self.here_documents()?;
        }
    }

    /// `[[ … ]]`
    fn test(&mut self, start: usize) -> Result<(), ShellError> {
        self.tests = true;
        loop {
            self.skip_blanks();
            match self.peek() {
                None => return Err(self.open_at(Place::Bracket, start)),
                Some('\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>') => self.at += 1,
                Some(_) => {
                    if self.word()?.is_some_and(|token| token.is("]]")) {
                        self.tests = false;
                        return Ok(());
                    }
                }
            }
        }
    }
}

impl Token {
    /// A number or `{name}` that a redirection has before it.
    fn is_descriptor(&self) -> bool {
        let named = self.text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let is_number = !self.text.is_empty() && self.text.chars().all(|letter| letter.is_ascii_digit());
        self.known && !self.quoted && (is_number || named.is_some())
    }
}

impl Script<'_> {
    fn at_redirection(&self) -> bool {
        matches!(self.peek(), Some('<' | '>')) && self.peek_at(1) != Some('(')
    }

    /// One redirection, if one stands here.
    fn redirection(&mut self, simple: &mut Simple) -> Result<bool, ShellError> {
        const OPERATORS: [&str; 12] =
            ["<<<", "<<-", "&>>", "<<", "<&", "<>", ">>", ">&", ">|", "&>", "<", ">"];
        if !self.at_redirection() && !self.starts("&>") {
            return Ok(false);
        }
        let Some(operator) = OPERATORS.iter().find(|operator| self.starts(operator)) else {
            return Ok(false);
        };
        self.at += operator.len();
        self.skip_blanks();
        let place = self.at;
        let Some(target) = self.word()? else { return Err(self.open_at(Place::Operator, place)) };
        match *operator {
            "<<" | "<<-" => self.pending.push((target.text.clone(), *operator == "<<-", !target.quoted)),
            "<<<" => {}
            _ if target.pipe => {}
            "<" => simple.reads.push(target.word()),
            "<&" | ">&"
                if target.known
                    && target.text.trim_end_matches('-').chars().all(|letter| letter.is_ascii_digit()) => {}
            "<>" => {
                simple.reads.push(target.word());
                simple.writes.push(target.word());
            }
            _ => simple.writes.push(target.word()),
        }
        Ok(true)
    }

    /// The here-documents of the line that ended here.
    fn here_documents(&mut self) -> Result<(), ShellError> {
        for (end, tabs, expands) in std::mem::take(&mut self.pending) {
            let mut body = String::new();
            loop {
                if self.peek().is_none() {
                    break;
                }
                let rest = &self.letters[self.at..];
                let line: String = rest.iter().take_while(|letter| **letter != '\n').collect();
                self.at = (self.at + line.chars().count() + 1).min(self.letters.len());
                if (if tabs { line.trim_start_matches('\t') } else { &line }) == end {
                    break;
                }
                body.push_str(&line);
                body.push('\n');
            }
            if expands {
                self.substitutions(&body)?;
            }
        }
        Ok(())
    }

    /// The commands that are substituted in a text that is no script.
    fn substitutions(&mut self, body: &str) -> Result<(), ShellError> {
        let depth = self.depth + 1;
        let letters = body.chars().collect();
        let mut text = Script { letters, at: 0, tests: false, depth, pending: Vec::new(), found: self.found };
        while let Some(letter) = text.peek() {
            // Quotes mean themselves there.
            if letter == '"' { text.at += 1 } else { text.piece(true)? }
        }
        Ok(())
    }
}
