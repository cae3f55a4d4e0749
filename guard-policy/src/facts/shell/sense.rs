//! What the commands of a text do.

use std::path::Path;

use guard_common::ActionClass::{
    self, FileDelete, FileWriteOutsideWorktree, GitPush, NetworkEgress, ProcessSpawn, SecretAccess,
};

use super::script::{self, Simple};
use super::{MAX_COMMANDS, MAX_DEPTH, ShellError, Surroundings, files, http};
use crate::facts::program::{Program, interpreter};
use crate::facts::words::Word;
use crate::facts::{Facts, Mark, of_program, tables};
use crate::request::{Action, Facet, Source, Sources};
use crate::value::{ActPath, Host, Ref};

/// What the commands say about one facet.
struct Values<T> {
    known: Vec<T>,
    named: bool,
    unknown: bool,
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self { known: Vec::new(), named: false, unknown: false }
    }
}

impl<T> Values<T> {
    fn add(&mut self, values: Option<Vec<T>>) {
        self.named = true;
        match values {
            Some(values) => self.known.extend(values),
            None => self.unknown = true,
        }
    }

    /// All of them, if all are known and any command has some.
    fn all(self) -> Option<Vec<T>> {
        (self.named && !self.unknown).then_some(self.known)
    }
}

/// The sum of the commands so far.
struct Sense<'a> {
    surroundings: &'a Surroundings,
    classes: Vec<ActionClass>,
    marks: Vec<Mark>,
    paths: Values<ActPath>,
    refs: Values<Ref>,
    hosts: Values<Host>,
    /// A command before changed the directory, so a relative path is not known any more.
    moved: bool,
    commands: usize,
}

pub(super) fn read(text: &str, surroundings: &Surroundings) -> Result<Facts, ShellError> {
    let mut sense = Sense {
        surroundings,
        classes: Vec::new(),
        marks: Vec::new(),
        paths: Values::default(),
        refs: Values::default(),
        hosts: Values::default(),
        moved: false,
        commands: 0,
    };
    sense.text(text, 0)?;
    let mut action = Action::of(sense.classes);
    action.commands = Some(vec![text.to_owned()]);
    action.paths = sense.paths.all();
    action.refs = sense.refs.all();
    action.hosts = sense.hosts.all();
    let mut sources = Sources::default().with(Facet::Commands, Source::Parsed);
    for (facet, is_there) in [
        (Facet::Paths, action.paths.is_some()),
        (Facet::Refs, action.refs.is_some()),
        (Facet::Hosts, action.hosts.is_some()),
    ] {
        if is_there {
            sources = sources.with(facet, Source::Parsed);
        }
    }
    sense.marks.sort_unstable();
    sense.marks.dedup();
    Ok(Facts { action, sources, marks: sense.marks })
}

impl Sense<'_> {
    fn text(&mut self, text: &str, depth: usize) -> Result<(), ShellError> {
        let mut commands = Vec::new();
        script::read(text, depth, &mut commands)?;
        for simple in &commands {
            self.simple(simple, depth)?;
        }
        Ok(())
    }

    fn simple(&mut self, simple: &Simple, depth: usize) -> Result<(), ShellError> {
        for word in &simple.writes {
            self.writes(word, false);
        }
        for word in &simple.reads {
            self.reads(word);
        }
        // A variable of git's own may send a push elsewhere.
        let redirected = simple.assigned.iter().any(|name| name.starts_with("GIT_") || name == "HOME");
        if simple.assigned.iter().any(|name| loads_code(name)) {
            self.marks.push(Mark::Configured);
        }
        if simple.words.is_empty() {
            return Ok(());
        }
        for word in &simple.words {
            self.reads(word);
        }
        self.words(&simple.words, redirected, depth)
    }

    fn words(&mut self, words: &[Word], redirected: bool, depth: usize) -> Result<(), ShellError> {
        if depth > MAX_DEPTH {
            return Err(ShellError::TooDeep { limit: MAX_DEPTH });
        }
        self.commands += 1;
        if self.commands > MAX_COMMANDS {
            return Err(ShellError::TooMany { limit: MAX_COMMANDS });
        }
        let program = Program::named(words);
        let Program { name, arguments, .. } = program.clone();
        let facts = of_program(program, true);
        self.marks.extend(&facts.marks);
        self.classes.extend(&facts.action.classes);
        if facts.action.classes.contains(&GitPush) {
            self.refs.add(facts.action.refs.clone().filter(|_| !redirected));
        }
        self.network(&name, &arguments, facts.action.hosts.filter(|_| !redirected), &facts.action.classes);
        self.files(&name, &arguments);
        self.inner(&name, &arguments, redirected, depth)
    }

    /// What else the command runs.
    fn inner(
        &mut self,
        name: &str,
        arguments: &[Word],
        redirected: bool,
        depth: usize,
    ) -> Result<(), ShellError> {
        match name {
            "cd" | "pushd" | "popd" => self.moved = true,
            "source" | "." => self.marks.push(Mark::Sourced),
            "eval" => {
                let words: Option<Vec<&str>> = arguments.iter().map(Word::known).collect();
                match words {
                    Some(words) => self.text(&words.join(" "), depth + 1)?,
                    None => self.marks.push(Mark::UnknownProgram),
                }
            }
            "find" | "fd" | "fdfind" => {
                for (at, word) in arguments.iter().enumerate() {
                    if word.known().is_some_and(|text| FOUND.contains(&text)) {
                        let rest = &arguments[at + 1..];
                        let end =
                            rest.iter().position(|word| word.is(";") || word.is("+")).unwrap_or(rest.len());
                        // What it finds stands for `{}`, or comes after it.
                        let found = rest[..end].iter().filter(|word| !word.is("{}")).cloned();
                        let words: Vec<Word> = found.chain([Word::Unknown]).collect();
                        self.words(&words, redirected, depth + 1)?;
                    }
                }
            }
            "ssh" if arguments.iter().filter(|word| word.option().is_none()).count() > 1 => {
                self.marks.push(Mark::Remote);
                let pushes =
                    |text: &str| text.contains("git-receive-pack") || text.contains("git receive-pack");
                if arguments.iter().filter_map(Word::known).any(pushes) {
                    self.classes.push(GitPush);
                    self.refs.add(None);
                }
            }
            "gh" | "glab" if arguments.first().is_some_and(|word| word.is("api")) => {
                self.classes.extend(http::forge(name, &arguments[1..]));
            }
            _ => {}
        }
        if interpreter(name).is_some_and(|interpreter| interpreter.names.contains("bash")) {
            return self.shell(arguments, depth);
        }
        if let Some(wrapper) = tables::wrapper(name, arguments) {
            for reading in inside(wrapper, name, arguments) {
                self.wrapped(reading, name, redirected, depth)?;
            }
        }
        Ok(())
    }

    /// What a wrapper of this name starts.
    fn wrapped(
        &mut self,
        reading: Inside,
        name: &str,
        redirected: bool,
        depth: usize,
    ) -> Result<(), ShellError> {
        match reading {
            Inside::Words(mut words) => {
                if name == "xargs" || name == "parallel" {
                    words.push(Word::Unknown);
                }
                let assigned = words.iter().take_while(|word| is_assignment(word)).count();
                let sets_git = words[..assigned]
                    .iter()
                    .filter_map(Word::known)
                    .any(|text| text.starts_with("GIT_") || text.starts_with("HOME="));
                if assigned < words.len() {
                    self.words(&words[assigned..], redirected || sets_git, depth + 1)?;
                }
            }
            Inside::Text(text) => self.text(&text, depth + 1)?,
            Inside::Unknown => self.marks.push(Mark::UnknownProgram),
        }
        Ok(())
    }

    /// A shell that gets a text.
    fn shell(&mut self, arguments: &[Word], depth: usize) -> Result<(), ShellError> {
        let mut takes_text = false;
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            match word {
                Word::Unknown => {
                    self.marks.push(Mark::UnknownProgram);
                    return Ok(());
                }
                Word::Known(text) if text.starts_with(['-', '+']) && text.len() > 1 => {
                    let letters = if text.starts_with("--") { "" } else { &text[1..] };
                    takes_text |= text.starts_with('-') && letters.contains('c');
                    if letters.contains(['o', 'O']) || ["--rcfile", "--init-file"].contains(&text.as_str()) {
                        rest.next();
                    }
                }
                Word::Known(text) if takes_text => return self.text(text, depth + 1),
                Word::Known(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn network(&mut self, name: &str, arguments: &[Word], hosts: Option<Vec<Host>>, classes: &[ActionClass]) {
        match name {
            "curl" | "wget" | "wget2" => {
                let call = http::client(name, arguments);
                self.classes.extend(call.classes);
                self.hosts.add(call.hosts);
                for word in &call.writes {
                    if !word.is("-") {
                        self.writes(word, false);
                    }
                }
                for word in &call.reads {
                    self.reads(word);
                }
            }
            _ if classes.iter().any(|class| [NetworkEgress, GitPush].contains(class)) => {
                self.hosts.add(hosts)
            }
            _ => {}
        }
    }

    fn files(&mut self, name: &str, arguments: &[Word]) {
        let Some(changed) = files::changed(name, arguments) else { return };
        let deletes = self.classes.contains(&FileDelete);
        if changed.is_empty() && deletes {
            self.paths.add(None);
        }
        for word in &changed {
            self.writes(word, true);
        }
    }

    /// A file that is written or removed.
    fn writes(&mut self, word: &Word, _removed: bool) {
        let Some(text) = word.known() else {
            // It may be anywhere.
            self.classes.push(FileWriteOutsideWorktree);
            self.paths.add(None);
            return;
        };
        if harmless(text) {
            return;
        }
        match self.path(text) {
            Some((path, outside)) => {
                if outside {
                    self.classes.push(FileWriteOutsideWorktree);
                }
                self.paths.add(Some(vec![path]));
            }
            None => {
                self.classes.push(FileWriteOutsideWorktree);
                self.paths.add(None);
            }
        }
        self.classes.push(ProcessSpawn);
    }

    /// A word that may be a file that holds a secret.
    fn reads(&mut self, word: &Word) {
        let Some(text) = word.known() else { return };
        let after = |mark: char| text.split_once(mark).map(|(_, file)| file);
        for file in [Some(text), after('='), after('@')].into_iter().flatten() {
            // Home is somewhere; what matters is what comes after it.
            let file = file.strip_prefix("~/").map_or_else(|| file.to_owned(), |rest| format!("/~/{rest}"));
            let Ok(path) = ActPath::parse(file.trim_start_matches("../")) else { continue };
            if self.surroundings.secrets.hold(&path) {
                self.classes.push(SecretAccess);
                let found = self.path(&file).map(|(path, _)| vec![path]);
                self.paths.add(found);
            }
        }
    }

    /// The path that a word names, and whether it lies outside; nothing where that is not known.
    fn path(&self, text: &str) -> Option<(ActPath, bool)> {
        if text.starts_with('~') {
            return ActPath::parse(text).ok().map(|path| (path, true));
        }
        let absolute = Path::new(text).is_absolute();
        if !absolute && self.moved {
            return None;
        }
        let started = self.surroundings.directory.join(text);
        let from = if absolute { Path::new(text) } else { &started };
        let Ok(path) = ActPath::parse(&from.to_string_lossy()) else {
            // Above the worktree: it is outside, and only the worktree's own path says where.
            let worktree = self.surroundings.worktree.as_ref()?;
            let path = ActPath::parse(&worktree.join(from).to_string_lossy()).ok()?;
            return Some((path, true));
        };
        let clean = Path::new(path.clean());
        let below = |root: &Option<std::path::PathBuf>| {
            root.as_ref().and_then(|root| clean.strip_prefix(root).ok().map(Path::to_owned))
        };
        if !absolute || below(&self.surroundings.private_temp).is_some() {
            return Some((path, false));
        }
        match below(&self.surroundings.worktree) {
            Some(relative) => ActPath::parse(&relative.to_string_lossy()).ok().map(|path| (path, false)),
            None => Some((path, true)),
        }
    }
}

/// Options of `find` and `fd` that run what follows.
const FOUND: [&str; 8] = ["-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"];

/// Files that nothing is kept in.
fn harmless(path: &str) -> bool {
    ["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero", "/dev/full", "-", "&1", "&2"]
        .contains(&path)
        || path.starts_with("/dev/fd/")
}

/// Whether a variable makes programs run code that it names.
fn loads_code(name: &str) -> bool {
    const NAMES: [&str; 16] = [
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "BASH_ENV",
        "ENV",
        "PROMPT_COMMAND",
        "PATH",
        "NODE_OPTIONS",
        "BUN_OPTIONS",
        "PYTHONSTARTUP",
        "PYTHONPATH",
        "PERL5OPT",
        "RUBYOPT",
        "RUSTC_WRAPPER",
        "PAGER",
        "EDITOR",
    ];
    NAMES.contains(&name) || name.starts_with("GIT_")
}

fn is_assignment(word: &Word) -> bool {
    word.known().is_some_and(|text| {
        text.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        })
    })
}

/// What a wrapper starts.
enum Inside {
    Words(Vec<Word>),
    Text(String),
    Unknown,
}

/// Most ways in which one wrapper's words are read.
const MAX_READINGS: usize = 8;

/// What a wrapper may start. Where it is not known whether an option takes the next word, both readings count.
fn inside(wrapper: &tables::Wrapper, name: &str, arguments: &[Word]) -> Vec<Inside> {
    let mut at = 0;
    if !wrapper.verb.is_empty() {
        // The verb's last word; options may stand before it.
        let last = |verb: &str| verb.split(' ').next_back().map(str::to_owned).unwrap_or_default();
        let verbs: Vec<String> = wrapper.verb.split(", ").map(last).collect();
        match arguments.iter().position(|word| verbs.iter().any(|verb| word.is(verb))) {
            Some(verb) => at = verb + 1,
            None => return vec![Inside::Unknown],
        }
    }
    let mut readings = Vec::new();
    let mut starts = vec![at];
    while let Some(start) = starts.pop()
        && readings.len() < MAX_READINGS
    {
        readings.extend(reading(wrapper, name, arguments, start, &mut starts));
    }
    readings
}

/// What it starts, its own options read from `at` on; where another reading would go on is added to `others`.
fn reading(
    wrapper: &tables::Wrapper,
    name: &str,
    arguments: &[Word],
    mut at: usize,
    others: &mut Vec<usize>,
) -> Option<Inside> {
    let lists = |list: &str, option: &str| list.split(' ').any(|listed| listed == option);
    let mut operands = wrapper.operands;
    let mut may_take = false;
    while let Some(word) = arguments.get(at) {
        let Some(text) = word.known() else { return Some(Inside::Unknown) };
        if text == "--" {
            at += 1;
            may_take = false;
            if operands == 0 {
                break;
            }
            continue;
        }
        if word.option().is_some() {
            let (option, attached) =
                text.split_once('=').map_or((text, None), |(option, value)| (option, Some(value)));
            if lists(wrapper.text, option) {
                let given = attached
                    .map(|text| Word::Known(text.to_owned()))
                    .or_else(|| arguments.get(at + 1).cloned());
                return Some(match given {
                    Some(Word::Known(text)) => Inside::Text(text),
                    _ => Inside::Unknown,
                });
            }
            let takes = if attached.is_some() {
                0
            } else if lists(wrapper.values, &format!("{option}=2")) {
                2
            } else {
                usize::from(lists(wrapper.values, option))
            };
            may_take = takes == 0 && attached.is_none();
            at += 1 + takes;
            continue;
        }
        if may_take {
            others.push(at + 1);
            may_take = false;
        }
        // `su a -c text`: options may come after the operand.
        if operands > 0 && !is_assignment(word) {
            operands -= 1;
            at += 1;
            continue;
        }
        break;
    }
    let words = arguments.get(at..).unwrap_or_default().to_vec();
    // These give one word to a shell as a text.
    if ["watch", "parallel"].contains(&name) && words.len() == 1 {
        return words.first().and_then(Word::known).map(|text| Inside::Text(text.to_owned()));
    }
    (!words.is_empty()).then_some(Inside::Words(words))
}
