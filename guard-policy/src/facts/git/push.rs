//! The words of a push: which refs they name, as git itself reads them.
//!
//! Only what the words alone decide is told. A refspec that is missing, `:`, has a `*`, or is `HEAD` or `@`, an
//! option that pushes more than is named, and every option that is not known here leave it to the repository.

use super::super::words::Word;
use crate::value::Ref;

/// What an option of a push does to the refs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing.
    Plain,
    /// Nothing, and it takes the next word unless `=` gives it one.
    Value,
    /// Nothing, and only `=` gives it a value.
    OwnValue,
    /// More is pushed than is named.
    More,
    /// The remote is its value.
    Remote,
    /// A text for the other end.
    Told,
}

/// Option, letter, effect. `--no-` before one undoes it and pushes nothing more.
const OPTIONS: &[(&str, &str, Effect)] = &[
    ("verbose", "v", Effect::Plain),
    ("quiet", "q", Effect::Plain),
    ("repo", "", Effect::Remote),
    ("all", "", Effect::More),
    ("branches", "", Effect::More),
    ("mirror", "", Effect::More),
    ("delete", "d", Effect::Plain),
    ("tags", "", Effect::More),
    ("dry-run", "n", Effect::Plain),
    ("porcelain", "", Effect::Plain),
    ("force", "f", Effect::Plain),
    ("force-with-lease", "", Effect::OwnValue),
    ("force-if-includes", "", Effect::Plain),
    ("recurse-submodules", "", Effect::More),
    ("thin", "", Effect::Plain),
    ("receive-pack", "", Effect::Value),
    ("exec", "", Effect::Value),
    ("set-upstream", "u", Effect::Plain),
    ("progress", "", Effect::Plain),
    ("prune", "", Effect::More),
    ("verify", "", Effect::Plain),
    ("follow-tags", "", Effect::More),
    ("signed", "", Effect::OwnValue),
    ("atomic", "", Effect::Plain),
    ("push-option", "o", Effect::Told),
    ("ipv4", "4", Effect::Plain),
    ("ipv6", "6", Effect::Plain),
    ("stateless-rpc", "", Effect::Plain),
];

/// A push as its words have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Push {
    /// The remote: a name or an address.
    pub(super) remote: Option<String>,
    /// The refs at the other end, if the words name all of them.
    pub(super) refs: Option<Vec<Ref>>,
    /// What the other end is told.
    told: Vec<String>,
    /// A review is submitted by its ref's own options.
    pub(super) submits: bool,
}

impl Push {
    pub(super) fn says_option(&self, start: &str) -> bool {
        self.told.iter().any(|told| told.starts_with(start))
    }
}

/// Reads the words after `push`.
pub(super) fn read(arguments: &[Word]) -> Push {
    let mut push = Push::default();
    let mut operands = Vec::new();
    let mut all_named = true;
    let mut options = true;
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let Some(text) = word.known() else {
            // It may be an option as well as a refspec.
            all_named = false;
            continue;
        };
        if !options || word.option().is_none() {
            operands.push(text);
            continue;
        }
        if text == "--" {
            options = false;
            continue;
        }
        for (effect, value) in effects(text) {
            let mut value = || value.or_else(|| rest.next().and_then(Word::known)).map(str::to_owned);
            match effect {
                Some(Effect::Plain | Effect::OwnValue) => {}
                Some(Effect::Value) => drop(value()),
                Some(Effect::Remote) => push.remote = value(),
                Some(Effect::Told) => push.told.extend(value()),
                Some(Effect::More) | None => all_named = false,
            }
        }
    }
    if let Some((remote, refspecs)) = operands.split_first() {
        push.remote = Some((*remote).to_owned());
        push.submits = refspecs.iter().any(|refspec| refspec.contains("%submit"));
        let refs = destinations(refspecs);
        push.refs = refs.filter(|refs| all_named && !refs.is_empty());
    }
    push
}

/// What each option in a word does, with the value that the word itself has; no effect for one that is not known.
fn effects(word: &str) -> Vec<(Option<Effect>, Option<&str>)> {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let (name, negated) = name.strip_prefix("no-").map_or((name, false), |name| (name, true));
        let exact = OPTIONS.iter().find(|(known, ..)| *known == name);
        let mut short = OPTIONS.iter().filter(|(known, ..)| known.starts_with(name));
        // Git takes an option that is cut short, if it means one only.
        let found = exact.or_else(|| short.next().filter(|_| short.next().is_none()));
        let effect = found.map(|(.., effect)| if negated { Effect::Plain } else { *effect });
        return vec![(effect, value)];
    }
    let mut effects = Vec::new();
    for (at, letter) in word.char_indices().skip(1) {
        let found = OPTIONS.iter().find(|(_, known, _)| known.chars().eq([letter]));
        let effect = found.map(|(.., effect)| *effect);
        let attached = &word[at + letter.len_utf8()..];
        if effect == Some(Effect::Told) {
            effects.push((effect, Some(attached).filter(|attached| !attached.is_empty())));
            break;
        }
        effects.push((effect, None));
    }
    effects
}

fn destinations(refspecs: &[&str]) -> Option<Vec<Ref>> {
    let mut refs = Vec::new();
    let mut rest = refspecs.iter();
    while let Some(refspec) = rest.next() {
        if *refspec == "tag" {
            refs.push(Ref::parse(&format!("refs/tags/{}", rest.next()?)).ok()?);
        } else {
            refs.push(destination(refspec)?);
        }
    }
    Some(refs)
}

fn destination(refspec: &str) -> Option<Ref> {
    let refspec = refspec.strip_prefix('+').unwrap_or(refspec);
    let destination = refspec.rsplit_once(':').map_or(refspec, |(_, destination)| destination);
    // What stands behind `%` is for the other end (`refs/for/main%submit`).
    let destination = match destination.split_once('%') {
        Some((name, _)) if name.starts_with("refs/for/") => name,
        _ => destination,
    };
    // These names are looked up in the repository; a branch may be called so, too.
    let looked_up = |prefix| destination.starts_with(prefix);
    if matches!(destination, "HEAD" | "@") || looked_up("tags/") || looked_up("remotes/") {
        return None;
    }
    Ref::parse(destination).ok()
}
