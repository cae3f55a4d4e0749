//! What a git command does, and which refs at which host it touches (`R-25`).
//!
//! An alias of the configuration is no secret for long: git starts itself again with what the alias means, and that
//! exec is judged by its own words. So is what a `!` alias starts. Settings in the command itself (`-c`) are read
//! here, because they can turn a push into another one.

mod push;
mod url;

pub(super) use url::host as host_of_url;

use guard_common::ActionClass::{self, PrCreate, PrPublish, WorkspaceMutation};

use super::words::{Word, known};
use super::{Mark, tables};
use crate::value::{Host, Ref};

/// Options of `git` itself that take the next word.
const VALUES: [&str; 7] =
    ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--attr-source"];

/// Settings that cannot change where a push goes and what it pushes.
const HARMLESS: &[&str] = &[
    "user.",
    "author.",
    "committer.",
    "color.",
    "advice.",
    "http.",
    "credential.",
    "gpg.",
    "ssh.",
    "diff.",
    "log.",
    "pager.",
    "i18n.",
    "format.",
    "commit.",
    "safe.",
    "protocol.",
    "pack.",
    "core.pager",
    "core.quotepath",
    "core.autocrlf",
    "core.editor",
    "core.compression",
    "core.fsmonitor",
    "core.hookspath",
    "init.",
    "tag.gpgsign",
];

/// Settings whose value is a program: setting, reason. One that ends in `*` is the start of a name, one that starts
/// with it the end.
pub(super) const RUNS: &[(&str, &str)] = &[
    ("alias.*", "with `!` a command of the shell"),
    ("core.pager", "shows output"),
    ("pager.*", "shows one command's output"),
    ("core.editor", "edits messages"),
    ("sequence.editor", "edits the list of a rebase"),
    ("core.sshcommand", "connects to a remote"),
    ("core.gitproxy", "connects to a remote"),
    ("core.askpass", "asks for a password"),
    ("core.fsmonitor", "tells what changed, at every status"),
    ("core.hookspath", "a directory of programs for every event"),
    ("core.alternaterefscommand", "lists refs of another repository"),
    ("diff.external", "shows differences"),
    ("*.textconv", "turns files into text"),
    ("diff.*", "a driver's command shows differences"),
    ("*.clean", "filters files on the way in"),
    ("*.smudge", "filters files on the way out"),
    ("*.process", "filters files"),
    ("*.driver", "merges files"),
    ("difftool.*", "shows differences"),
    ("mergetool.*", "merges files"),
    ("credential.*", "helpers are told passwords"),
    ("gpg.*", "signs and verifies"),
    ("*.uploadpack", "serves the other end"),
    ("*.receivepack", "serves the other end"),
    ("remote.*", "its vcs or its url may name a helper"),
    ("uploadpack.packobjectshook", "serves the other end"),
    ("sendemail.*", "sends mail by a program"),
    ("web.browser", "opens pages"),
    ("browser.*", "opens pages"),
    ("man.*", "opens manuals"),
    ("instaweb.*", "serves pages"),
    ("init.templatedir", "hooks of new repositories"),
    ("include.*", "reads settings from a file"),
    ("includeif.*", "reads settings from a file"),
    ("protocol.*", "may permit helpers that run commands"),
];

/// What a command line of git says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Git {
    /// The verb and what follows it, aliases of the command itself expanded.
    pub(super) arguments: Vec<Word>,
    /// Classes beyond those of the table.
    pub(super) classes: Vec<ActionClass>,
    /// `None` where only the repository knows, or where no refs are touched.
    pub(super) refs: Option<Vec<Ref>>,
    /// `None` where the remote is a name, which the repository resolves.
    pub(super) hosts: Option<Vec<Host>>,
    pub(super) marks: Vec<Mark>,
}

/// Whether git has a command of this name that matters here.
pub(super) fn is_verb(name: &str) -> bool {
    let said = [Word::Known(name.to_owned())];
    tables::verbs_of("git").any(|verb| verb.split(' ').next() == said[0].known())
}

/// Reads the arguments after `git`.
pub(super) fn read(arguments: &[Word]) -> Git {
    let mut git = Git::default();
    let mut settings = Vec::new();
    let mut at = 0;
    while let Some(option) = arguments.get(at).and_then(Word::option) {
        let value = arguments.get(at + 1);
        if option == "-c" {
            settings.push(value.and_then(Word::known).unwrap_or_default());
        } else if let Some(attached) = option.strip_prefix("-c").filter(|_| !option.starts_with("--")) {
            settings.push(attached);
        } else if option == "--config-env" || option.starts_with("--config-env=") {
            // The value stands in the environment; what it sets may be anything.
            settings.push("");
        }
        // What is not known may be more words than the option takes, so it stays.
        let takes_value = VALUES.contains(&option) && value != Some(&Word::Unknown);
        at += if takes_value { 2 } else { 1 };
    }
    if settings.iter().any(|setting| runs(setting)) {
        git.marks.push(Mark::Configured);
    }
    let harmless = |setting: &&str| {
        let setting = setting.to_ascii_lowercase();
        HARMLESS.iter().any(|start| setting.starts_with(start))
    };
    let redirected = !settings.iter().all(harmless);
    git.arguments = arguments.get(at..).unwrap_or_default().to_vec();
    if let Some(verb) = git.arguments.first().and_then(Word::known)
        && let Some(meaning) = settings.iter().find_map(|setting| alias(setting, verb))
    {
        git.marks.push(Mark::Configured);
        // The shell of a `!` alias starts what it starts; the meaning of another one is split as git splits it.
        git.arguments = match meaning {
            "" => vec![Word::Unknown],
            command if command.starts_with('!') => vec![Word::Unknown],
            words => [known(words.split_whitespace()), git.arguments[1..].to_vec()].concat(),
        };
    }
    git.acts();
    if redirected {
        git.refs = None;
        git.hosts = None;
    }
    git
}

impl Git {
    fn acts(&mut self) {
        let Some((verb, rest)) = self.arguments.split_first() else { return };
        match verb.known() {
            Some("push") => self.pushes(push::read(rest)),
            Some("send-pack" | "http-push") => {
                self.marks.push(Mark::Helper);
                let push = push::read(rest);
                // Over a stream it is told what to push by its parent.
                let told = rest.iter().any(|word| word.is("--stdin") || word.is("--helper-status"));
                if !told {
                    self.pushes(push);
                }
            }
            Some("receive-pack") => self.marks.push(Mark::Helper),
            Some("config") => self.configures(),
            Some("clone" | "fetch" | "pull" | "ls-remote") => {
                let operand = rest.iter().find(|word| word.option().is_none()).and_then(Word::known);
                self.hosts = operand.and_then(url::host).map(|host| vec![host]);
            }
            Some("remote") => {
                let mut operands = rest.iter().filter(|word| word.option().is_none());
                self.hosts =
                    operands.next_back().and_then(Word::known).and_then(url::host).map(|host| vec![host]);
            }
            _ => {}
        }
    }

    fn pushes(&mut self, push: push::Push) {
        let review = push.refs.iter().flatten().any(|one| {
            ["refs/for/", "refs/drafts/", "refs/publish/"].iter().any(|space| one.full().starts_with(space))
        });
        if review || push.says_option("merge_request.create") || push.says_option("topic=") {
            self.classes.push(PrCreate);
        }
        if push.says_option("merge_request.merge_when_pipeline_succeeds")
            || push.says_option("merge_request.auto_merge")
            || push.submits
        {
            self.classes.push(PrPublish);
        }
        self.hosts = push.remote.as_deref().and_then(url::host).map(|host| vec![host]);
        self.refs = push.refs;
    }

    /// `git config`: what is written, and whether it starts programs later (`C-023`).
    fn configures(&mut self) {
        const READS: [&str; 12] = [
            "--get",
            "--get-all",
            "--get-regexp",
            "--get-urlmatch",
            "--get-color",
            "--get-colorbool",
            "-l",
            "--list",
            "list",
            "get",
            "--show-origin",
            "--show-scope",
        ];
        const WRITES: [&str; 15] = [
            "--add",
            "--replace-all",
            "--unset",
            "--unset-all",
            "--rename-section",
            "--remove-section",
            "-e",
            "--edit",
            "set",
            "unset",
            "edit",
            "rename-section",
            "remove-section",
            "--append",
            "--comment",
        ];
        const VALUED: [&str; 8] =
            ["-f", "--file", "--blob", "--type", "--default", "--comment", "--value", "--url"];
        let mut operands = Vec::new();
        let mut options = Vec::new();
        let mut rest = self.arguments[1..].iter();
        while let Some(word) = rest.next() {
            match word.option() {
                Some(option) => {
                    options.push(option);
                    if VALUED.contains(&option) {
                        rest.next();
                    }
                }
                None => operands.push(word.known().unwrap_or_default()),
            }
        }
        let first = operands.first().copied().unwrap_or_default();
        let said =
            |list: &[&str]| list.contains(&first) || options.iter().any(|option| list.contains(option));
        if (said(&READS) && !said(&WRITES)) || (!said(&WRITES) && operands.len() < 2) {
            return;
        }
        self.classes.push(WorkspaceMutation);
        if operands.iter().any(|operand| operand.is_empty() || runs(operand))
            || said(&["-e", "--edit", "edit"])
        {
            self.marks.push(Mark::Plants);
        }
    }
}

/// Whether this setting, with or without its value, starts a program.
fn runs(setting: &str) -> bool {
    let name = setting.split_once('=').map_or(setting, |(name, _)| name).to_ascii_lowercase();
    RUNS.iter().any(|(known, _)| match (known.strip_suffix('*'), known.strip_prefix('*')) {
        (Some(start), _) => name.starts_with(start),
        (_, Some(end)) => name.ends_with(end),
        _ => name == *known,
    })
}

/// What a setting of the command makes of `verb`, if it is an alias of that name.
fn alias<'a>(setting: &'a str, verb: &str) -> Option<&'a str> {
    let (name, meaning) = setting.split_once('=')?;
    let alias = name.get(..6).filter(|head| head.eq_ignore_ascii_case("alias.")).map(|_| &name[6..])?;
    // `alias.x.command` is the newer spelling.
    let alias = alias.strip_suffix(".command").unwrap_or(alias);
    alias.eq_ignore_ascii_case(verb).then_some(meaning)
}
