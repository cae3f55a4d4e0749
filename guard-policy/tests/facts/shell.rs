//! Scripts that bash runs: whatever it starts has been read out of the text before.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use guard_policy::facts::{Word, shell};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::{clean, run};

/// Programs that write down how they were started.
const PROGRAMS: [&str; 5] = ["p", "q", "r", "rm", "git"];

/// A directory in which only these programs are found.
struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let bin = directory.path().join("bin");
        std::fs::create_dir(&bin).expect("a directory");
        for program in PROGRAMS {
            let path = bin.join(program);
            let script = "#!/bin/sh\nprintf '%s\\0' \"$#\" \"${0##*/}\" \"$@\" >> \"$LOG\"\n";
            std::fs::write(&path, script).expect("a program");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it can run");
        }
        Self { directory }
    }

    /// Whether bash takes this for a script.
    fn takes(&self, text: &str) -> bool {
        run(clean("/bin/bash", self.directory.path()).args(["-n", "-c", text])).status.success()
    }

    /// What bash starts of these programs when it runs this, each with its arguments.
    fn started(&self, text: &str) -> Vec<Vec<String>> {
        let place = tempfile::tempdir_in(self.directory.path()).expect("a directory");
        let log = place.path().join("log");
        let work = place.path().join("work");
        std::fs::create_dir(&work).expect("a directory");
        std::fs::write(work.join("file"), "").expect("a file");
        let mut command = clean("/bin/bash", &work);
        command.env("PATH", self.directory.path().join("bin")).env("LOG", &log);
        // The home of a `~` is not known to a reader, which leaves it as it is written.
        command.env("HOME", "~");
        run(command.arg("-c").arg(format!("{text}\nwait")));
        read_log(&log)
    }
}

fn read_log(log: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut words = text.split_terminator('\0').map(str::to_owned);
    let mut started = Vec::new();
    while let Some(count) = words.next() {
        let count: usize = count.parse().expect("a number of arguments");
        started.push(words.by_ref().take(count + 1).collect());
    }
    started
}

/// Whether these words may become this command.
fn may_become(words: &[Word], command: &[String]) -> bool {
    match words.split_first() {
        None => command.is_empty(),
        Some((Word::Known(text), rest)) => command.first() == Some(text) && may_become(rest, &command[1..]),
        Some((Word::Unknown, rest)) => (0..=command.len()).any(|taken| may_become(rest, &command[taken..])),
    }
}

fn compare(bench: &Bench, text: &str) -> Result<usize, String> {
    let read = shell::commands(text).map_err(|error| format!("{text:?}: {error}"))?;
    let started = bench.started(text);
    for command in &started {
        if !read.iter().any(|words| may_become(words, command)) {
            return Err(format!("{text:?}: bash started {command:?}, read were {read:?}"));
        }
    }
    Ok(started.len())
}

/// `R-65`: spellings by which other readers were misled. Each starts something, so none is compared with nothing.
#[test]
fn what_bash_starts_was_read() {
    let bench = Bench::new();
    for text in [
        "p a b",
        "p  a\t'b c' \"d e\" f\\ g",
        "\\rm x",
        "r''m x",
        "r\"\"m x",
        "$'\\x72m' x",
        "$'\\162\\155' x",
        "r\\\nm x",
        "p $'a\\tb\\'c' $\"d\"",
        "p a#b #c\nq",
        "p a;q b&r c|rm d",
        "p && q || r",
        "{ rm x; }",
        "(rm x)",
        "((1)) && p",
        "( (rm x) )",
        "((rm x) )",
        "echo $((rm x); (q))",
        "echo $((1+1)) $(p) `q` \"$(r)\" \"`rm x`\"",
        "p \"$(q \"$(r 'a b')\")\"",
        "p `echo \\`q\\``",
        "p \"${x:-$(q)}\" ${x:-`r`} ${x:-'}'} \"${x:-'$(rm x)'}\"",
        "p ${x#'}'} q; rm x",
        "p \"${x:-\"}\"}\" ; rm x",
        "x=$(p) q",
        "x=(a $(p) 'b') ; x[0]=$(q) ; x+=(r) ; rm x",
        "if p; then q; elif r; then :; else rm x; fi",
        "for i in a $(p); do q $i; done",
        "for ((i=0;i<2;i++)); do p; done",
        "for i\ndo p; done; q",
        "while ! p; do q; done; until p; do q; done",
        "case a in a|b) p;; esac; case $(q) in (x) ;; *) r;& y) rm x;; esac",
        "case a in a) p; esac",
        "case a in a) case b in b) p;; esac;; esac; q",
        "f() { p; }; f; function g { q; }; g; function h() ( r ); h",
        "p <<E\n$(q) `r` \"x\" $x\nE\nrm x",
        "p <<'E'\n$(q)\nE\nrm x",
        "p <<\\E\n$(q)\nE\nrm x",
        "p <<-E\n\t\ta\n\tE\nrm x",
        "p <<E1 <<E2; q\na\nE1\nb $(r)\nE2\nrm x",
        "p <<E\n$(echo \")\" ; rm x)\nE",
        "p <<< $(q) <<< 'r'; rm x",
        "p <(q) >(r)",
        "p 2>&1 >file 2>file >&2 <file &>file >|file <>file; q",
        "2>file p; {fd}>file q; >file r",
        "p 2 >file",
        "[[ a == a && $(p) != b ]] && q",
        "[[ a =~ ^(a|b)$ ]] && p",
        "[ a = a ] && p",
        "! p; time q; time -p r",
        "coproc p; wait; coproc X { q; }",
        "eval : ; p &\nq",
        "declare -a y=(a b); local z=1; p",
        "p {a,b} {1..3} ~ * ? [f]ile {} a{b HEAD@{1}",
        "p \"a\\\"b\\$c\\\\d\\e\"",
        "p 'a\\'b",
        "p -- -x --y=z=w",
        "p \"\" ''",
        "x=1; p $x \"$x\" \"$@\" $# $?",
        "p é \"日本\" $'\\u00e9'",
        "if (p) then (q) fi",
        "select i in a; do p; break; done <<< 1",
        "p a=b c[1]=d",
        "a=b c=d p",
        "p;;q\n:;p",
        "true &>/dev/null && p",
        "p |& q",
        "p\\\n a",
        "{ p; } 2>&1 | { q; }",
        "p $[1+1] $((1<<2)) $(( (1+2)*3 ))",
        "p $(case a in a) q;; esac)",
        "p $(# comment )\nq)",
        "p $(cat <<E\n)\nE\n) ; q",
        "p \\;q",
        "p >file;q",
        "exec 3>&1; p >&3",
    ] {
        match compare(&bench, text) {
            // bash itself takes none of these.
            Err(_) if ["p;;q\n:;p", "p 'a\\'b"].contains(&text) => {
                assert_eq!(bench.started(text), Vec::<Vec<String>>::new())
            }
            Err(error) => panic!("{error}"),
            Ok(started) => assert!(started > 0, "{text:?} starts nothing"),
        }
    }
}

fn word() -> impl Strategy<Value = String> {
    let plain = prop::sample::select(
        &[
            "a",
            "'b c'",
            "\"d e\"",
            "f\\ g",
            "$'h\\x41'",
            "$x",
            "\"$x\"",
            "${x:-y}",
            "{a,b}",
            "*",
            "'$(rm x)'",
            "\"\\$(q)\"",
            "a\"b\"c",
            "-x",
            "--",
            "''",
            "#",
            "a#b",
            "x=y",
            "\\;",
            "';'",
            "\"|\"",
            "$((1+2))",
            "~",
            "é",
            "if",
            "done",
            "}",
            "{",
            "esac",
            "in",
            "`q z`",
            "\"${x:-`r`}\"",
            "2",
            "!",
            "[",
            "]]",
            "time",
        ][..],
    );
    plain.prop_map(str::to_owned)
}

fn simple() -> impl Strategy<Value = String> {
    let program =
        prop::sample::select(&["p", "q", "r", "\\rm", "g'i't", "\"p\"", "x=1 p", ": ", "2>file q"][..]);
    let rest = prop::sample::select(&["", "", " >file", " 2>&1", " <file", " <<< a", " &>file"][..]);
    (program, prop::collection::vec(word(), 0..4), rest)
        .prop_map(|(program, words, rest)| format!("{program} {}{rest}", words.join(" ")))
}

fn script() -> impl Strategy<Value = String> {
    // A comment ends at the end of its line, so every command is given one of its own.
    let line = simple().prop_map(|text| format!("{text}\n"));
    line.prop_recursive(4, 24, 3, |inner| {
        let pair = (inner.clone(), inner.clone());
        prop_oneof![
            pair.clone().prop_map(|(a, b)| format!("{a}{b}")),
            pair.clone().prop_map(|(a, b)| format!("{{\n{a}}} && {{\n{b}}}\n")),
            pair.clone().prop_map(|(a, b)| format!("(\n{a}) | {{ {b}}} &\n")),
            pair.clone().prop_map(|(a, b)| format!("if {a}then {b}else\n{a}fi\n")),
            pair.clone().prop_map(|(a, b)| format!("while false; do {a}done; until :; do\n{b}done; {b}")),
            (word(), inner.clone()).prop_map(|(w, a)| format!("for i in 1 {w}\ndo {a}done\n")),
            (word(), inner.clone()).prop_map(
                |(w, a)| format!("case x{w} in a|b) {a};; (*)\n{a}esac\n").replace("\n;;", "\n\n;;")
            ),
            inner.clone().prop_map(|a| format!("f() {{\n{a}}}; f\n")),
            inner.clone().prop_map(|a| format!("p $({a}) \"x $({a})\"\n")),
            inner.clone().prop_map(|a| format!("p <({a})\n")),
            inner.clone().prop_map(|a| format!("x=$({a}) q ${{x:-$({a})}}\n")),
            (inner.clone(), word())
                .prop_map(|(a, w)| format!("p <<E{0} {w}\nb $({a}) ' \"\nE{0}\nq\n", a.len())),
            (inner.clone(), word())
                .prop_map(|(a, w)| format!("p <<'Q{0}' {w}\nb $(rm {a}\nQ{0}\nq\n", a.len())),
            inner.clone().prop_map(|a| format!("[[ a == $({a}) || -n x ]] && {a}")),
            inner.prop_map(|a| format!("(( $({a}) + 1 )); ! {a}")),
        ]
    })
}

/// Random scripts: bash starts nothing that was not read, and what bash takes can be read.
#[test]
fn nothing_starts_that_was_not_read() {
    let bench = Bench::new();
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 250, failure_persistence: None, ..Config::default() },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let started = std::cell::Cell::new(0);
    let result = runner.run(&script(), |text| {
        match compare(&bench, &text) {
            Ok(count) => started.set(started.get() + count),
            // Past a limit the answer is no, and so it is where bash gives none.
            Err(error) if error.contains("more than") || !bench.takes(&text) => {}
            Err(error) => return Err(TestCaseError::fail(error)),
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(started.get() > 500, "only {} commands were started", started.get());
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(4000) })]

    /// `R-61`: any text at all is read or refused, and hides nothing of what stands before it.
    #[test]
    fn any_text_is_read_or_refused(
        parts in prop::collection::vec(
            prop::sample::select(&[
                "$(", "((", "${", "`", "'", "\"", "(", ")", "))", "}", "{ ", ";", ";;", "&", "|", "<", ">", "<<E", "\nE\n", "<(",
                "$'", "\\", "\n", " ", "#", "case ", " in ", "esac", "if ", "for ", "do ", "done", "[[ ", " ]]", "=", "x=(", "rm", "a",
                "*", "[", "]", ",", "..", "~", "$", "$x", "!", "é", "function f", "coproc ", "time ", "eval ", "sh -c ", "env ", "\0",
            ][..]),
            0..40,
        ),
    ) {
        let text = parts.concat();
        let (facts, commands) = (shell::read(&text), shell::commands(&text));
        prop_assert!(commands.is_ok() || facts.is_err());
        if let Ok(facts) = facts
            && let Ok(longer) = shell::read(&format!("rm x\n{text}"))
        {
            prop_assert!(facts.action.classes.iter().all(|class| longer.action.classes.contains(class)));
            prop_assert!(longer.action.classes.contains(&guard_common::ActionClass::FileDelete));
        }
    }
}
