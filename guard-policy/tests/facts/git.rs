//! Pushes to a repository on this machine: what they change there, and what their words say that they change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use guard_common::ActionClass::{GitCommit, GitPush};
use guard_policy::facts;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::{clean, run};

/// A bare repository and a clone of it that is ahead of it on every branch.
struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { directory: tempfile::tempdir().expect("a directory") };
        bench.done(bench.path(), &["init", "-q", "--bare", "-b", "main", "template/bare.git"]);
        bench.done(bench.path(), &["init", "-q", "-b", "main", "template/w"]);
        // Whoever may push may delete here, the current branch too.
        bench.done(
            &bench.path().join("template/bare.git"),
            &["config", "receive.denyDeleteCurrent", "ignore"],
        );
        let w = bench.path().join("template/w");
        for setting in [["user.name", "a"], ["user.email", "a@example.org"], ["gc.auto", "0"]] {
            bench.done(&w, &["config", setting[0], setting[1]]);
        }
        bench.done(&w, &["remote", "add", "origin", "../bare.git"]);
        bench.done(&w, &["commit", "-q", "--allow-empty", "-m", "first"]);
        for branch in ["feature/x", "feature/y", "safe", "release/1"] {
            bench.done(&w, &["branch", branch]);
        }
        bench.done(&w, &["push", "-q", "-u", "origin", "--all"]);
        // One that is only at the other end, and one that is only here.
        bench.done(&w, &["push", "-q", "origin", "HEAD:refs/heads/gone"]);
        bench.done(&w, &["branch", "fresh"]);
        for branch in ["feature/x", "feature/y", "safe", "release/1", "fresh", "main"] {
            bench.done(&w, &["checkout", "-q", branch]);
            bench.done(&w, &["commit", "-q", "--allow-empty", "-m", branch]);
        }
        bench.done(&w, &["tag", "v1"]);
        bench.done(&w, &["tag", "-a", "v2", "-m", "v2"]);
        bench
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn done(&self, directory: &Path, arguments: &[&str]) {
        let output = run(clean("git", directory).args(arguments));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// What a command changes at the other end, done in a copy on this branch; and whether it succeeded.
    fn changes(&self, branch: &str, settings: &[[&str; 2]], arguments: &[&str]) -> (BTreeSet<String>, bool) {
        let copy = tempfile::tempdir_in(self.path()).expect("a directory");
        for part in ["bare.git", "w"] {
            run(clean("cp", self.path())
                .arg("-a")
                .arg(self.path().join("template").join(part))
                .arg(copy.path()));
        }
        let w = copy.path().join("w");
        self.done(&w, &["checkout", "-q", branch]);
        for [name, value] in settings {
            self.done(&w, &["config", "--add", name, value]);
        }
        let before = refs(&copy.path().join("bare.git"));
        let output = run(clean("git", &w).args(arguments));
        let after = refs(&copy.path().join("bare.git"));
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name)).cloned();
        (changed.collect(), output.status.success())
    }
}

fn refs(repository: &Path) -> BTreeMap<String, String> {
    let output = run(clean("git", repository).args(["for-each-ref", "--format=%(refname) %(objectname)"]));
    let text = String::from_utf8(output.stdout).expect("names");
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, id)| (name.to_owned(), id.to_owned()))
        .collect()
}

/// What the words say: whether it is a push, and the full names of the refs, if they are known.
fn said(arguments: &[&str]) -> (bool, Option<BTreeSet<String>>) {
    let argv: Vec<String> =
        std::iter::once("git").chain(arguments.iter().copied()).map(str::to_owned).collect();
    let action = facts::exec("/usr/bin/git".as_ref(), &argv, false).action;
    let refs = action.refs.map(|refs| refs.iter().map(|one| one.full().to_owned()).collect());
    (action.classes.contains(&GitPush), refs)
}

/// `C-013`, `R-25`: what git changes is what the words name, form by form; where they do not name it, they are silent.
#[test]
fn words_name_what_git_changes() {
    let bench = Bench::new();
    let main: &[&str] = &["refs/heads/main"];
    // Branch, command, what changes at the other end, whether the words say so.
    let table: &[(&str, &str, &[&str], bool)] = &[
        ("main", "push origin main", main, true),
        ("main", "push origin HEAD:main", main, true),
        ("main", "push origin HEAD:refs/heads/main", main, true),
        ("main", "push origin HEAD:heads/main", main, true),
        ("main", "push origin +HEAD:main", main, true),
        ("main", "push origin HEAD^0:refs/heads/main", main, true),
        ("main", "push origin refs/heads/main", main, true),
        ("main", "push origin heads/main", main, true),
        ("main", "push origin feature/x:main", main, true),
        ("feature/x", "push origin feature/x:heads/main", main, true),
        ("main", "push -f origin main", main, true),
        ("main", "push -uf origin main", main, true),
        ("main", "push --force-with-lease origin main", main, true),
        ("main", "push --force-with-lease=main origin main", main, true),
        ("main", "push --atomic --no-verify -v origin main", main, true),
        ("main", "push --no-tags --no-mirror origin main", main, true),
        ("main", "push --ato origin main", main, true),
        ("main", "push origin main --force", main, true),
        ("main", "push origin -- main", main, true),
        ("main", "push ../bare.git HEAD:main", main, true),
        ("main", "push --repo=nowhere origin main", main, true),
        ("main", "push --receive-pack git-receive-pack origin main", main, true),
        ("main", "push --exec=git-receive-pack origin main", main, true),
        ("main", "-C . push origin main", main, true),
        ("main", "--git-dir=.git --work-tree=. push origin main", main, true),
        ("main", "--git-dir .git push origin main", main, true),
        ("main", "-c user.name=b push origin main", main, true),
        ("main", "-p push origin main", main, true),
        ("main", "--no-pager push origin main", main, true),
        ("main", "send-pack ../bare.git HEAD:refs/heads/main", main, true),
        ("main", "send-pack --force ../bare.git main", main, true),
        ("main", "push origin :main", main, true),
        ("main", "push origin :refs/heads/main", main, true),
        ("main", "push origin --delete main", main, true),
        ("main", "push -d origin main", main, true),
        ("main", "push --del origin main", main, true),
        ("main", "push origin main feature/x", &["refs/heads/feature/x", "refs/heads/main"], true),
        ("main", "push origin :gone main", &["refs/heads/gone", "refs/heads/main"], true),
        ("main", "push origin tag v1", &["refs/tags/v1"], true),
        ("main", "push origin refs/tags/v1", &["refs/tags/v1"], true),
        ("main", "push origin v1:refs/tags/v1", &["refs/tags/v1"], true),
        ("main", "push origin HEAD:refs/for/main", &["refs/for/main"], true),
        ("main", "push origin HEAD:refs/notes/x", &["refs/notes/x"], true),
        ("main", "push origin fresh", &["refs/heads/fresh"], true),
        ("main", "push -n origin main", &[], true),
        ("main", "push --dry origin main", &[], true),
        ("main", "push", main, false),
        ("main", "push origin", main, false),
        ("main", "push origin HEAD", main, false),
        ("main", "push origin @", main, false),
        ("main", "push origin tags/v1", &["refs/tags/v1"], false),
        ("feature/x", "push origin :", &["*"], false),
        ("feature/x", "push origin +:", &["*"], false),
        ("feature/x", "push origin refs/heads/*:refs/heads/*", &["*"], false),
        ("feature/x", "push --all origin", &["*"], false),
        ("feature/x", "push --branches origin", &["*"], false),
        ("feature/x", "push --mirror origin", &["*"], false),
        ("feature/x", "push --mi origin", &["*"], false),
        ("feature/x", "push --tags origin safe", &["refs/heads/safe", "refs/tags/v1", "refs/tags/v2"], false),
        ("main", "push --follow-tags origin main", &["refs/heads/main", "refs/tags/v2"], false),
        ("feature/x", "push --prune origin refs/heads/feature/*:refs/heads/*", &["*"], false),
        ("main", "-c push.default=current push", main, false),
        ("main", "-c push.followTags=true push origin main", &["refs/heads/main", "refs/tags/v2"], false),
        ("feature/x", "-c remote.origin.push=HEAD:refs/heads/main push origin", main, false),
        ("main", "-c alias.st=push st origin HEAD:main", main, false),
        ("main", "-c alias.st=!git\\ push st origin HEAD:main", &[], false),
    ];
    for (branch, command, wanted, known) in table {
        let arguments: Vec<&str> = command.split(' ').collect();
        let (changed, done) = bench.changes(branch, &[], &arguments);
        // git before 2.46 knows one of these options not.
        if command.contains("--branches") && !done {
            assert_eq!(said(&arguments), (true, None), "{command}");
            continue;
        }
        if *wanted == ["*"] {
            assert!(changed.len() > 1 && done, "{command} changes many: {changed:?}");
        } else {
            assert!(changed.iter().eq(wanted.iter()), "git {command} changed {changed:?}");
        }
        let (is_push, named) = said(&arguments);
        assert!(is_push, "{command} is a push");
        assert_eq!(named.is_some(), *known, "{command}: {named:?}");
        if let Some(named) = named
            && !changed.is_empty()
        {
            assert_eq!(named, changed, "{command}");
        }
    }
}

/// What the words of a push do not say, because the repository does: the known gaps, which this holds to be all of
/// this kind. A rule about refs is no boundary here; `docs/classes.md` says so.
#[test]
fn what_the_repository_decides_is_not_in_the_words() {
    let bench = Bench::new();
    // Settings of the repository, command, what changes; the words say `branch`.
    type Gap<'a> = (&'a [[&'a str; 2]], &'a str, &'a [&'a str], &'a str);
    let table: &[Gap] = &[
        (&[], "push origin v1", &["refs/tags/v1"], "refs/heads/v1"),
        (
            &[["push.followTags", "true"]],
            "push origin main",
            &["refs/heads/main", "refs/tags/v2"],
            "refs/heads/main",
        ),
    ];
    for (settings, command, wanted, named) in table {
        let arguments: Vec<&str> = command.split(' ').collect();
        let (changed, _) = bench.changes("main", settings, &arguments);
        assert!(changed.iter().eq(wanted.iter()), "git {command} changed {changed:?}");
        assert_eq!(said(&arguments).1, Some(BTreeSet::from([(*named).to_owned()])), "{command}");
    }
    // These are silent, as they should be.
    for (settings, command) in [
        (&[["push.default", "matching"]] as &[[&str; 2]], "push"),
        (&[["remote.origin.push", "HEAD:refs/heads/main"]], "push origin"),
        (&[["alias.up", "push origin HEAD:main"]], "up"),
    ] {
        let arguments: Vec<&str> = command.split(' ').collect();
        let (changed, done) = bench.changes("safe", settings, &arguments);
        assert!(done && !changed.is_empty(), "git {command} changed {changed:?}");
        assert_eq!(said(&arguments).1, None, "{command}");
    }
}

/// An alias of the configuration is not seen in the words, and need not be: git starts itself with what it means.
#[test]
fn an_alias_shows_itself_by_another_exec() {
    let bench = Bench::new();
    let w = bench.path().join("template/w");
    bench.done(&w, &["config", "alias.up", "push origin HEAD:main"]);
    bench.done(&w, &["config", "alias.sx", "!git push origin HEAD:main"]);
    bench.done(&w, &["config", "alias.ci", "commit --allow-empty -m x"]);
    for (alias, class, wanted) in
        [("up", GitPush, "push"), ("sx", GitPush, "push"), ("ci", GitCommit, "commit")]
    {
        assert!(!said(&[alias]).0, "the words say nothing");
        let output = run(clean("git", &w).arg(alias).env("GIT_TRACE", "1"));
        let trace = String::from_utf8_lossy(&output.stderr).into_owned();
        // The last command that git says it runs as its own, which a new process runs.
        let started =
            trace.lines().filter_map(|line| line.split_once("built-in: git ")).map(|(_, words)| words);
        let own =
            started.into_iter().find(|words| words.starts_with(wanted)).unwrap_or_else(|| panic!("{trace}"));
        assert!(trace.contains("run_command: ") || trace.contains("exec: "), "it is a process: {trace}");
        let argv: Vec<String> =
            format!("git {own}").split(' ').map(|word| word.trim_matches('\'').to_owned()).collect();
        let action = facts::exec("/usr/lib/git-core/git".as_ref(), &argv, false).action;
        assert!(action.classes.contains(&class), "{own}");
    }
}

/// Random pushes: whatever git changes is named, or the words are silent.
#[test]
fn nothing_changes_that_known_words_do_not_name() {
    const OPTIONS: &[&str] = &[
        "-f",
        "-n",
        "-u",
        "-q",
        "-fv",
        "-d",
        "--force",
        "--delete",
        "--all",
        "--tags",
        "--mirror",
        "--prune",
        "--follow-tags",
        "--atomic",
        "--no-verify",
        "--mir",
        "--de",
        "--al",
        "--thin",
        "--no-all",
        "-o",
        "--repo=origin",
        "--force-with-lease",
        "--porcelain",
        "--branches",
        "--recurse-submodules=no",
        "--",
        "--signed=no",
        "-4",
    ];
    const REFSPECS: &[&str] = &[
        "main",
        "HEAD",
        "@",
        "feature/x",
        "safe",
        ":gone",
        ":main",
        ":",
        "+main",
        "HEAD:main",
        "HEAD:new",
        "feature/x:refs/heads/a/b",
        "refs/heads/*:refs/heads/*",
        "refs/heads/feature/*:refs/heads/*",
        "tag",
        "v1",
        "v2:refs/tags/z",
        "refs/tags/v1",
        "heads/safe",
        "HEAD~0:release/1",
        "^refs/heads/main",
        "fresh",
        "main:",
        "HEAD:HEAD",
        "HEAD:refs/for/main",
        "nothing",
        "--mirror",
    ];
    let bench = Bench::new();
    let words = (
        subsequence(OPTIONS, 0..3).prop_shuffle(),
        select(&["origin", "origin", "../bare.git"][..]),
        subsequence(REFSPECS, 1..4).prop_shuffle(),
        any::<bool>(),
        select(&["main", "feature/x", "safe"][..]),
    );
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 150, failure_persistence: None, ..Config::default() },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let known = std::cell::Cell::new(0);
    let result = runner.run(&words, |(options, remote, refspecs, options_last, branch)| {
        let mut arguments = vec!["push"];
        if options_last {
            arguments.push(remote);
            arguments.extend(&refspecs);
            arguments.extend(&options);
        } else {
            arguments.extend(&options);
            arguments.push(remote);
            arguments.extend(&refspecs);
        }
        let (changed, _) = bench.changes(branch, &[], &arguments);
        let (is_push, named) = said(&arguments);
        prop_assert!(is_push, "{arguments:?}");
        if let Some(mut named) = named {
            known.set(known.get() + usize::from(!changed.is_empty()));
            // The one gap of this world: a name that is a tag here.
            let gap = arguments.contains(&"v1") && named.contains("refs/heads/v1");
            if gap {
                named.insert("refs/tags/v1".to_owned());
            }
            prop_assert!(changed.is_subset(&named), "{arguments:?} changed {changed:?}, named {named:?}");
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(known.get() > 10, "only {} pushes that changed anything had names", known.get());
}
