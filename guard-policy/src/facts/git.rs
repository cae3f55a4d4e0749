//! What a git command does, and which refs a push touches (`R-25`).

use guard_common::ActionClass::{self, GitCommit, GitPush};

use crate::value::Ref;

/// Options of `git` itself that take the next word.
const VALUES: [&str; 7] =
    ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--attr-source"];

/// Class, verb, reason.
const VERBS: &[(ActionClass, &str, &str)] = &[
    (GitPush, "push", "publishes commits"),
    (GitPush, "send-pack", "what a push runs underneath, also when an alias hid it"),
    (GitPush, "http-push", "the same over WebDAV"),
    (GitCommit, "commit", "makes a commit"),
    (GitCommit, "commit-tree", "makes a commit from a tree"),
    (GitCommit, "merge", "makes a merge commit"),
    (GitCommit, "cherry-pick", "makes commits again"),
    (GitCommit, "revert", "makes commits that undo others"),
    (GitCommit, "rebase", "makes commits again"),
    (GitCommit, "am", "makes commits from mails"),
    (GitCommit, "fast-import", "makes commits from a stream"),
];

/// What a command line of git says.
#[derive(Default)]
pub(super) struct Git {
    pub(super) classes: Vec<ActionClass>,
    /// `None` where only the repository knows.
    pub(super) refs: Option<Vec<Ref>>,
}

/// Whether git has a command of this name that matters here.
pub(super) fn is_verb(name: &str) -> bool {
    VERBS.iter().any(|(_, verb, _)| *verb == name)
}

/// Reads the arguments after `git`; if they are cut off before the verb, it may be any.
pub(super) fn read(arguments: &[String], truncated: bool) -> Git {
    let mut aliases = Vec::new();
    let mut index = 0;
    let mut configured = false;
    while let Some(option) = arguments.get(index).filter(|argument| argument.starts_with('-')) {
        let takes_value = VALUES.contains(&option.as_str());
        configured |= option.starts_with("-c") || option.starts_with("--config-env");
        if option == "-c" {
            aliases.extend(arguments.get(index + 1).and_then(|setting| alias(setting)));
        }
        index += if takes_value { 2 } else { 1 };
    }
    let Some(verb) = arguments.get(index) else {
        return Git { classes: if truncated { vec![GitPush, GitCommit] } else { Vec::new() }, refs: None };
    };
    let rest = &arguments[index + 1..];
    // An alias that is given in the command itself is run by this very process; one with `!` starts another.
    if let Some((_, meaning)) = aliases.iter().find(|(name, _)| name == verb) {
        let expanded: Vec<String> =
            meaning.split_whitespace().map(str::to_owned).chain(rest.to_vec()).collect();
        return Git { refs: None, ..verb_of(&expanded) };
    }
    let git = verb_of(&arguments[index..]);
    // Settings in the command can make a push a mirror or send it by another refspec.
    if configured { Git { refs: None, ..git } } else { git }
}

fn alias(setting: &str) -> Option<(String, String)> {
    let (name, meaning) = setting.split_once('=')?;
    let name = name.get(..6).filter(|head| head.eq_ignore_ascii_case("alias.")).map(|_| &name[6..])?;
    Some((name.to_owned(), meaning.to_owned()))
}

fn verb_of(words: &[String]) -> Git {
    let Some((verb, rest)) = words.split_first() else { return Git::default() };
    let row = VERBS.iter().find(|(_, known, _)| known == verb);
    let refs = if verb == "push" { pushed(rest) } else { None };
    Git { classes: row.map(|(class, ..)| *class).into_iter().collect(), refs }
}

/// The refs at the other end that a push names, if it names all of them.
fn pushed(arguments: &[String]) -> Option<Vec<Ref>> {
    const PLAIN: [&str; 22] = [
        "-f",
        "--force",
        "-u",
        "--set-upstream",
        "-q",
        "--quiet",
        "-v",
        "--verbose",
        "-n",
        "--dry-run",
        "--porcelain",
        "--progress",
        "--no-progress",
        "--thin",
        "--no-thin",
        "--atomic",
        "--no-atomic",
        "--no-verify",
        "-d",
        "--delete",
        "-4",
        "-6",
    ];
    const WITH_VALUE: [&str; 4] = ["-o", "--push-option", "--receive-pack", "--exec"];
    const OWN_VALUE: [&str; 7] = [
        "--push-option=",
        "--receive-pack=",
        "--exec=",
        "--signed",
        "--force-with-lease",
        "--force-if-includes",
        "--repo=",
    ];
    let mut words = Vec::new();
    let mut index = 0;
    let mut options = true;
    while let Some(argument) = arguments.get(index) {
        index += 1;
        if !options || !argument.starts_with('-') {
            words.push(argument.as_str());
        } else if argument == "--" {
            options = false;
        } else if WITH_VALUE.contains(&argument.as_str()) {
            index += 1;
        } else if !PLAIN.contains(&argument.as_str())
            && !OWN_VALUE.iter().any(|option| argument.starts_with(option))
        {
            // `--all`, `--mirror`, `--tags` and what is not known here may push more than is named.
            return None;
        }
    }
    let refspecs = words.get(1..).filter(|refspecs| !refspecs.is_empty())?;
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
    let destination = refspec.split_once(':').map_or(refspec, |(_, destination)| destination);
    // These names are looked up in the repository; a branch may be called so, too.
    let looked_up = |prefix| destination.starts_with(prefix);
    if matches!(destination, "HEAD" | "@") || looked_up("tags/") || looked_up("remotes/") {
        return None;
    }
    Ref::parse(destination).ok()
}
