//! Which program a command runs.
//!
//! When a command has started, its executable is known and what its caller calls it is not believed. Loaders,
//! interpreters and files with many programs in them are looked through, because the kernel sees no further exec
//! there; what starts another program (`env`, `sudo`, `xargs`) is not, because that one's exec is seen. A text has
//! no executable yet: the first word is the name, and wrappers are looked through.

use std::path::Path;

use super::Mark;
use super::tables::{self, INTERPRETERS, Interpreter, LOADERS, MULTICALL, SYSTEM_PLACES, named};
use super::words::Word;

/// How deep one program may run another in the same process; a longer chain is an unknown program.
const DEPTH: usize = 8;

/// A program, its arguments, and what is remarkable about it. A program without a name is an unknown one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) arguments: Vec<Word>,
    pub(super) marks: Vec<Mark>,
}

impl Program {
    /// The program of a process: `exe` is the file that the kernel runs, or the script that it was asked to run.
    pub(super) fn started(exe: &Path, argv: &[Word]) -> Self {
        let path = exe.to_string_lossy();
        let mut marks = Vec::new();
        let path = executable(&path, &mut marks);
        let mut program = found(&path, argv, marks, 0);
        let called = argv.first().and_then(Word::known).map(|first| base(first.trim_start_matches('-')));
        // A link to one of git's commands names the command; any other name is only what the caller wanted.
        let own = [unversioned(&program.name), unversioned(base(&path))];
        let through = [Mark::Interpreter, Mark::Multicall, Mark::Loader]
            .iter()
            .any(|mark| program.marks.contains(mark));
        if let Some(called) = called.map(unversioned)
            && !through
            && !own.contains(&called)
            && !(called.starts_with("git-") && program.name == "git")
            && !(interpreter(called).is_some() && interpreter(base(&path)).is_some())
            && well_known(called)
        {
            program.marks.push(Mark::CalledAsAnother);
        }
        program.settle()
    }

    /// The program that a command in a text names.
    pub(super) fn named(words: &[Word]) -> Self {
        match words.first() {
            Some(Word::Known(name)) => {
                let mut marks = Vec::new();
                let path = if name.contains('/') { executable(name, &mut marks) } else { name.clone() };
                found(&path, words, marks, 0).settle()
            }
            Some(Word::Unknown) => {
                Self { arguments: words.to_vec(), marks: vec![Mark::UnknownProgram], ..Self::default() }
            }
            None => Self::default(),
        }
    }

    fn settle(mut self) -> Self {
        if self.arguments.contains(&Word::Unknown) {
            self.marks.push(Mark::Incomplete);
        }
        self.marks.sort_unstable();
        self.marks.dedup();
        self
    }
}

/// The path of an executable, looked at through what only leads to it; empty where it names nothing.
fn executable(path: &str, marks: &mut Vec<Mark>) -> String {
    if path.starts_with("/memfd:") {
        marks.push(Mark::Memory);
        return String::new();
    }
    let path = path.strip_suffix(" (deleted)").map_or(path, |gone| {
        marks.push(Mark::Deleted);
        gone
    });
    let mut path = path.to_owned();
    loop {
        let segments: Vec<&str> = path.split('/').filter(|segment| !matches!(*segment, "" | ".")).collect();
        let rest = match segments.as_slice() {
            ["proc", _, "root", rest @ ..] | ["proc", _, "task", _, "root", rest @ ..]
                if path.starts_with('/') =>
            {
                rest
            }
            ["proc", _, "exe" | "fd" | "map_files" | "cwd", ..] | ["dev", "fd", ..]
                if path.starts_with('/') =>
            {
                marks.push(Mark::Unnamed);
                return String::new();
            }
            [] => {
                marks.push(Mark::Unnamed);
                return String::new();
            }
            _ => return path,
        };
        path = format!("/{}", rest.join("/"));
    }
}

fn found(path: &str, argv: &[Word], mut marks: Vec<Mark>, depth: usize) -> Program {
    let name = base(path).to_owned();
    let own = argv.get(1..).unwrap_or_default();
    if depth == DEPTH {
        marks.push(Mark::Unnamed);
        return Program { name: String::new(), arguments: own.to_vec(), marks };
    }
    if LOADERS.iter().any(|loader| named(loader, &name)) {
        marks.push(Mark::Loader);
        return loaded(own, marks, depth);
    }
    if let Some((_, option)) = MULTICALL.iter().find(|(multicall, _)| *multicall == name) {
        marks.push(Mark::Multicall);
        let called = argv.first().and_then(Word::known).map(base).unwrap_or_default();
        let applet = own
            .first()
            .and_then(Word::known)
            .and_then(|word| if option.is_empty() { Some(word) } else { word.strip_prefix(option) });
        return match (called == name, applet) {
            (false, _) if !called.is_empty() => found(called, argv, marks, depth + 1),
            (_, Some(applet)) => found(applet, own, marks, depth + 1),
            _ => Program { name, arguments: own.to_vec(), marks },
        };
    }
    // A script that is named itself: the kernel puts its interpreter, that one's option, and it before its
    // arguments.
    if let Some(at) = own.iter().take(2).position(|word| word.is(path)) {
        marks.push(Mark::Interpreter);
        place(path, &name, &mut marks);
        return Program { name: script_name(&name).to_owned(), arguments: own[at + 1..].to_vec(), marks };
    }
    if let Some(interpreter) = interpreter(&name) {
        marks.push(Mark::Interpreter);
        return interpreted(interpreter, &name, own, marks);
    }
    // `corepack yarn add x` is yarn in the same process.
    if name == "corepack"
        && let Some(Word::Known(manager)) = own.first()
        && let manager = manager.split('@').next().unwrap_or_default()
        && ["npm", "npx", "pnpm", "pnpx", "yarn", "yarnpkg"].contains(&manager)
    {
        return found(manager, own, marks, depth + 1);
    }
    // Git's own commands are links to one file; the name that they were called by is their verb.
    let called = argv.first().and_then(Word::known).map(base).unwrap_or_default();
    let verb = if name == "git" { called } else { &name };
    if let Some(verb) = verb.strip_prefix("git-").filter(|verb| super::git::is_verb(verb)) {
        let arguments = std::iter::once(Word::Known(verb.to_owned())).chain(own.iter().cloned()).collect();
        place(path, &name, &mut marks);
        return Program { name: "git".to_owned(), arguments, marks };
    }
    place(path, &name, &mut marks);
    Program { name, arguments: own.to_vec(), marks }
}

/// Marks a well-known name that lies where the system keeps no programs. A bare name is looked up by the system.
fn place(path: &str, name: &str, marks: &mut Vec<Mark>) {
    let at_home = !path.contains('/')
        || SYSTEM_PLACES.iter().any(|place| path.starts_with(place)) && !path.contains("/../");
    if !at_home && well_known(name) {
        marks.push(Mark::UnusualPlace);
    }
}

fn well_known(name: &str) -> bool {
    tables::is_known(script_name(name)) || interpreter(name).is_some() || name.starts_with("git-")
}

/// What a dynamic loader runs.
fn loaded(arguments: &[Word], mut marks: Vec<Mark>, depth: usize) -> Program {
    const VALUES: [&str; 8] = [
        "--library-path",
        "--preload",
        "--audit",
        "--argv0",
        "--inhibit-rpath",
        "--glibc-hwcaps-prepend",
        "--glibc-hwcaps-mask",
        "--glibc-hwcaps-directory",
    ];
    let mut at = 0;
    while let Some(option) = arguments.get(at).and_then(Word::option) {
        at += if VALUES.contains(&option) { 2 } else { 1 };
    }
    match arguments.get(at) {
        Some(Word::Known(path)) => {
            let path = executable(path, &mut marks);
            found(&path, &arguments[at..], marks, depth + 1)
        }
        _ => Program {
            arguments: arguments.get(at..).unwrap_or_default().to_vec(),
            marks,
            ..Program::default()
        },
    }
}

pub(super) fn interpreter(name: &str) -> Option<&'static Interpreter> {
    let name = unversioned(name);
    INTERPRETERS.iter().find(|interpreter| interpreter.names.split(' ').any(|known| known == name))
}

/// What an interpreter is told to run; itself if that is a text on its command line.
fn interpreted(interpreter: &Interpreter, name: &str, arguments: &[Word], mut marks: Vec<Mark>) -> Program {
    let lists = |list: &str, option: &str| list.split(' ').any(|listed| listed == option);
    let itself = |marks| Program { name: name.to_owned(), arguments: arguments.to_vec(), marks };
    let mut at = 0;
    while let Some(word) = arguments.get(at) {
        let Some(text) = word.known() else {
            // It may be any script; the name of one is not known.
            marks.push(Mark::UnknownProgram);
            return itself(marks);
        };
        let Some(option) = text.strip_prefix(['-', '+']).filter(|rest| !rest.is_empty()) else {
            if text == "-" {
                marks.push(Mark::CommandText);
                return itself(marks);
            }
            place(text, script_name(base(text)), &mut marks);
            let name = script_name(base(text)).to_owned();
            return Program { name, arguments: arguments[at + 1..].to_vec(), marks };
        };
        at += 1;
        if option.starts_with('-') || lists(interpreter.values, text) || lists(interpreter.text, text) {
            let long = text.split_once('=').map_or(text, |(option, _)| option);
            if lists(interpreter.text, long) {
                marks.push(Mark::CommandText);
                return itself(marks);
            }
            at += usize::from(lists(interpreter.values, text));
            continue;
        }
        // A cluster of letters, of which one may take what follows it.
        let letters: Vec<String> = option.chars().map(|letter| format!("-{letter}")).collect();
        let ends = letters.iter().enumerate().find(|(_, letter)| {
            lists(interpreter.text, letter)
                || letter == &interpreter.module
                || lists(interpreter.values, letter)
        });
        let Some((index, letter)) = ends else { continue };
        if lists(interpreter.text, letter) {
            marks.push(Mark::CommandText);
            return itself(marks);
        }
        let attached: String = option.chars().skip(index + 1).collect();
        if letter == interpreter.module {
            let (module, rest) = if attached.is_empty() {
                match arguments.get(at) {
                    Some(Word::Known(module)) => (module.clone(), at + 1),
                    _ => return itself(marks),
                }
            } else {
                (attached, at)
            };
            let name = module.trim_end_matches(".__main__").to_owned();
            return Program { name, arguments: arguments[rest..].to_vec(), marks };
        }
        at += usize::from(attached.is_empty());
    }
    itself(marks)
}

pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A script's name without what says how it is written.
fn script_name(file: &str) -> &str {
    let name = [".js", ".cjs", ".mjs", ".py", ".rb", ".sh", ".pl", ".php"]
        .iter()
        .find_map(|ending| file.strip_suffix(ending))
        .unwrap_or(file);
    name.strip_suffix("-cli").filter(|name| ["npm", "npx"].contains(name)).unwrap_or(name)
}

fn unversioned(name: &str) -> &str {
    name.trim_end_matches(|character: char| character.is_ascii_digit() || character == '.')
        .trim_end_matches('-')
}

#[cfg(test)]
mod tests {
    use guard_common::ActionClass::{self, EnclosureControl, GitPush, PackageInstall, ProcessSpawn};

    use super::*;
    use crate::facts::exec;

    /// The ways in which a program was run under another name, each with what it is and what is marked: a name that
    /// its caller chose never makes it milder, and what cannot be known has no name at all.
    #[test]
    fn programs_are_known_by_their_file() {
        use Mark::{
            CalledAsAnother, CommandText, Deleted, Interpreter, Loader, Memory, Multicall, Unnamed,
            UnusualPlace, Wrapper,
        };
        let table: &[(&str, &str, &[ActionClass], &[Mark])] = &[
            ("/usr/bin/git", "git push", &[GitPush], &[]),
            ("/usr/bin/git", "python3 push", &[GitPush], &[CalledAsAnother]),
            ("/usr/bin/git", "-git push", &[GitPush], &[]),
            ("/tmp/git", "git push", &[GitPush], &[UnusualPlace]),
            ("/usr/../tmp/git", "git push", &[GitPush], &[UnusualPlace]),
            ("/home/u/bin/docker", "docker ps", &[EnclosureControl], &[UnusualPlace]),
            ("/tmp/x", "git push", &[], &[CalledAsAnother]),
            ("/tmp/x", "x push", &[], &[]),
            ("/usr/bin/git (deleted)", "git push", &[GitPush], &[Deleted]),
            ("/memfd:git (deleted)", "git push", &[], &[Memory, CalledAsAnother]),
            ("/proc/self/fd/3", "git push", &[], &[Unnamed, CalledAsAnother]),
            ("/dev/fd/3", "x", &[], &[Unnamed]),
            ("/proc/self/exe", "x", &[], &[Unnamed]),
            ("/proc/12/exe", "x", &[], &[Unnamed]),
            ("", "git push", &[], &[Unnamed, CalledAsAnother]),
            ("/proc/self/root/usr/bin/npx", "npx x", &[PackageInstall], &[]),
            ("/proc/12/root/proc/self/root/usr/bin/npx", "npx x", &[PackageInstall], &[]),
            ("/proc/self/task/9/root/usr/bin/npx", "npx x", &[PackageInstall], &[]),
            (
                "/usr/lib/ld-linux-x86-64.so.2",
                "/lib64/ld-linux-x86-64.so.2 /usr/bin/git push",
                &[GitPush],
                &[Loader],
            ),
            (
                "/usr/lib/ld-linux-x86-64.so.2",
                "ld.so --preload a.so --argv0 ls /usr/bin/git push",
                &[GitPush],
                &[Loader],
            ),
            (
                "/usr/lib/ld-linux-aarch64.so.1",
                "ld.so --library-path=x /tmp/git push",
                &[GitPush],
                &[Loader, UnusualPlace],
            ),
            (
                "/usr/lib/ld-musl-x86_64.so.1",
                "ld /usr/bin/node /usr/bin/npm ci",
                &[PackageInstall],
                &[Loader, Interpreter],
            ),
            ("/usr/lib/ld-linux-x86-64.so.2", "ld.so --list /usr/bin/git push", &[GitPush], &[Loader]),
            ("/usr/lib/ld-linux-x86-64.so.2", "ld.so", &[], &[Loader]),
            ("/usr/bin/busybox", "busybox chroot /x", &[EnclosureControl], &[Multicall, Wrapper]),
            ("/usr/bin/busybox", "/bin/chroot /x", &[EnclosureControl], &[Multicall, Wrapper]),
            ("/usr/bin/busybox", "busybox dpkg -i x", &[PackageInstall], &[Multicall]),
            ("/usr/bin/busybox", "busybox busybox unshare x", &[EnclosureControl], &[Multicall, Wrapper]),
            (
                "/usr/bin/coreutils",
                "coreutils --coreutils-prog=chroot /x",
                &[EnclosureControl],
                &[Multicall, Wrapper],
            ),
            ("/usr/bin/busybox", "busybox sh -c x", &[], &[Multicall, Interpreter, CommandText]),
            ("/usr/bin/dash", "sh -c x", &[], &[Interpreter, CommandText]),
            ("/usr/bin/bash", "bash -lc x", &[], &[Interpreter, CommandText]),
            (
                "/usr/bin/bash",
                "bash -eo pipefail ./npm install",
                &[PackageInstall],
                &[Interpreter, UnusualPlace],
            ),
            ("/usr/bin/bash", "bash /usr/bin/npm install", &[PackageInstall], &[Interpreter]),
            ("/usr/bin/python3.11", "python3 -Im pip install x", &[PackageInstall], &[Interpreter]),
            ("/usr/bin/python3.11", "python3 -mpip install x", &[PackageInstall], &[Interpreter]),
            (
                "/usr/bin/python3.11",
                "python3 -W ignore -X dev -m pip install x",
                &[PackageInstall],
                &[Interpreter],
            ),
            ("/usr/bin/python3.11", "python3 -Wignore -m pip install x", &[PackageInstall], &[Interpreter]),
            ("/usr/bin/python3.11", "python3 - pip install", &[], &[Interpreter, CommandText]),
            ("/usr/bin/node", "node --require=x /usr/bin/npm ci", &[PackageInstall], &[Interpreter]),
            ("/usr/bin/node", "node -e x", &[], &[Interpreter, CommandText]),
            ("/usr/bin/corepack", "corepack yarn@4 add x", &[PackageInstall], &[]),
            ("/usr/bin/bun", "bun add x", &[PackageInstall], &[]),
            // What starts another program is not looked through: that one's exec is judged.
            ("/usr/bin/env", "env A=b git push", &[], &[Wrapper]),
            ("/usr/bin/timeout", "timeout 5 git push", &[], &[Wrapper]),
            ("/usr/bin/nsenter", "nsenter -t 1 git push", &[EnclosureControl], &[Wrapper]),
        ];
        for (exe, command, classes, marks) in table {
            let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let mut facts = exec(exe.as_ref(), &argv, false);
            facts.action.classes.retain(|class| *class != ProcessSpawn);
            assert_eq!(&facts.action.classes, classes, "{exe}: {command}");
            let mut wanted = marks.to_vec();
            wanted.sort_unstable();
            assert_eq!(facts.marks, wanted, "{exe}: {command}");
        }
        let deep: Vec<String> =
            std::iter::repeat_n("busybox", 20).chain(["chroot"]).map(str::to_owned).collect();
        assert!(exec("/usr/bin/busybox".as_ref(), &deep, false).marks.contains(&Unnamed));
    }

    /// Every wrapper's own example starts the command that it names, options and all.
    #[test]
    fn wrappers_are_looked_through_in_texts() {
        for wrapper in tables::WRAPPERS {
            let facts = crate::facts::shell::read(wrapper.example).expect(wrapper.example);
            assert!(facts.action.classes.contains(&GitPush), "{}", wrapper.example);
            assert!(facts.marks.contains(&Mark::Wrapper), "{}", wrapper.example);
            let program = base(wrapper.example.split(' ').next().expect("a program"));
            assert!(wrapper.names.split(' ').any(|name| name == program), "{}", wrapper.example);
            assert!(wrapper.reason.len() > 3);
        }
    }
}
