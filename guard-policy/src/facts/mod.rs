//! Sorting what happens into action classes.
//!
//! The object decides, not the text: an executable is known by its file, a file by where it lies and whether it
//! was there before, a socket by its path. `rm` is no deletion here, the unlink that it does is (`R-70`). Where
//! there is nothing but a text yet, [`shell`] reads it with the same tables and says what it cannot know.
//!
//! Everything here is a table and a few pure functions. What a facet rests on stands beside it (`R-64`): the
//! kernel saw it, or this project read it out of words.
//!
//! - [`exec`], [`connect`], [`unix_connect`], [`file_change`], [`file_read`]: what the kernel tells;
//! - [`shell`]: a command line before it runs;
//! - [`Mark`]: what is remarkable about a name;
//! - [`markdown`]: the tables as a page.

mod file;
mod git;
mod mark;
mod page;
mod program;
mod secret;
pub mod shell;
mod socket;
mod tables;
mod words;

use std::path::Path;

use guard_common::ActionClass;
use guard_common::address::{Address, only_loopback};

pub use file::{Age, FileOperation, Place, file_change, takes_away};
pub use mark::Mark;
pub use page::markdown;
pub use secret::{Secrets, file_read};
pub use socket::unix_connect;
pub use words::Word;

use crate::request::{Action, Facet, Source, Sources, Transport};
use crate::value::Host;

/// What is known about an act.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its classes and facets.
    pub action: Action,
    /// What each facet rests on.
    pub sources: Sources,
    /// What is remarkable about it, each once, in order.
    pub marks: Vec<Mark>,
}

/// An executable that starts; `exe` is the file that the kernel runs, or the script that it was asked to run.
///
/// `truncated` says that `argv` is not all there is. What then is not known counts as the worst that the program
/// could have been told: a long harmless argument must not hide a push behind it.
///
/// ```
/// use guard_common::ActionClass::{GitPush, ProcessSpawn};
/// use guard_policy::facts;
///
/// let argv = ["git", "push", "origin", "HEAD:main"].map(String::from);
/// let action = facts::exec("/usr/bin/git".as_ref(), &argv, false).action;
/// assert_eq!(action.classes, [GitPush, ProcessSpawn]);
/// assert_eq!(action.refs.unwrap()[0].clean(), "main");
/// ```
#[must_use]
pub fn exec(exe: &Path, argv: &[String], truncated: bool) -> Facts {
    // The last word that is there may be half a word.
    let whole = if truncated { &argv[..argv.len().saturating_sub(1)] } else { argv };
    let mut words = words::known(whole.iter().map(String::as_str));
    if truncated {
        words.push(Word::Unknown);
    }
    let mut program = program::Program::started(exe, &words);
    if truncated && argv.len() < 2 {
        // Not even the name is whole; the arguments may be any.
        program.arguments.push(Word::Unknown);
    }
    let mut facts = of_program(program, false);
    facts.action.commands = Some(vec![argv.join(" ")]);
    facts
}

/// What a program is told to do.
fn of_program(program: program::Program, text: bool) -> Facts {
    let program::Program { name, arguments, mut marks } = program;
    let mut action = Action::of([ActionClass::ProcessSpawn]);
    let mut sources = Sources::default();
    if name == "git" {
        let git = git::read(&arguments);
        action.add_classes(tables::classes(&name, &git.arguments, text));
        action.add_classes(git.classes);
        action.refs = git.refs;
        action.hosts = git.hosts;
        marks.extend(git.marks);
    } else if !name.is_empty() {
        action.add_classes(tables::classes(&name, &arguments, text));
    }
    if tables::wrapper(&name, &arguments).is_some() {
        marks.push(Mark::Wrapper);
    }
    for (facet, is_there) in [(Facet::Refs, action.refs.is_some()), (Facet::Hosts, action.hosts.is_some())] {
        if is_there {
            sources = sources.with(facet, Source::Parsed);
        }
    }
    marks.sort_unstable();
    marks.dedup();
    Facts { action, sources, marks }
}

/// A connection or a datagram to an address; what stays on this host is no egress (`R-72`).
#[must_use]
pub fn connect(address: Address, port: Option<u16>, protocol: u8) -> Facts {
    let class = (!only_loopback(&address)).then_some(ActionClass::NetworkEgress);
    let action = Action {
        hosts: Some(vec![Host::address(address)]),
        port,
        transport: Transport::from_number(protocol),
        ..Action::of(class)
    };
    Facts { action, ..Facts::default() }
}

#[cfg(test)]
mod tests;
