//! Texts and what they do.

use guard_common::ActionClass;
use guard_common::ActionClass::{
    FileDelete, FileWriteOutsideWorktree, GitCommit, GitPush, NetworkEgress, PackageInstall, PrCreate,
    ProcessSpawn, SecretAccess, VendorSyncWrite, WorkspaceMutation,
};

use super::*;
use crate::facts::Mark;

fn facts(text: &str) -> Facts {
    read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The classes beside those that say that something runs.
fn classes(text: &str) -> Vec<ActionClass> {
    let mut classes = facts(text).action.classes;
    classes.retain(|class| *class != ProcessSpawn);
    classes
}

/// `C-012` … `C-023`: the same act in many spellings has the same class.
#[test]
fn spellings_do_not_change_what_is_done() {
    let table: &[(&[ActionClass], &[&str])] = &[
        (
            &[FileDelete],
            &[
                "rm -rf d",
                "rm -fr d",
                "rm -rfv d",
                "rm --recursive --force d",
                "rm   -rf\td",
                "\\rm d",
                "r''m d",
                "\"rm\" d",
                "$'rm' d",
                "$'\\x72m' d",
                "ls & rm -rf d",
                "(rm -rf d)",
                "{ rm -rf d; }",
                "if rm d; then :; fi",
                "for x in a b; do rm d; done",
                "while true; do rm d; done",
                "case a in a) rm d;; esac",
                "case a in (b) ls;; (a) rm d; esac",
                "f() { rm d; }; f",
                "function f { rm d; }",
                "! rm d",
                "time rm d",
                "time -p rm d",
                "coproc rm d",
                "coproc X { rm d; }",
                "echo $(rm d)",
                "echo `rm d`",
                "echo \"$(rm d)\"",
                "echo \"`rm d`\"",
                "echo ${x:-$(rm d)}",
                "echo \"${x:-$(rm d)}\"",
                "echo $((1 + $(rm d)))",
                "((x = $(rm d)))",
                "[[ $(rm d) == x ]]",
                "x=$(rm d)",
                "x=(a $(rm d))",
                "declare -a x=(a $(rm d))",
                "cat <(rm d)",
                "ls > >(rm d)",
                "cat <<E\n$(rm d)\nE",
                "cat <<'E'\n$(ls)\nE\nrm d",
                "cat <<-E\n\tx\n\tE\nrm d",
                "cat <<E; rm d\nx\nE",
                "true && rm d",
                "true || rm d",
                "true | rm d",
                "true |& rm d",
                "ls\nrm d",
                "r\\\nm d",
                "rm d # gone",
                "ls # x\nrm d",
                "A=b rm d",
                "bash -c 'rm d'",
                "sh -c \"sh -c 'rm d'\"",
                "bash -lc 'rm d'",
                "bash -o pipefail -c 'rm d'",
                "eval rm d",
                "eval 'rm d'",
                "exec rm d",
                "exec -a python3 rm d",
                "command rm d",
                "env rm d",
                "env -u X A=b rm d",
                "env -S 'rm d'",
                "sudo rm d",
                "sudo -u root A=b rm d",
                "sudo --unheard-of rm d",
                "sudo --unheard-of value rm d",
                "sudo --unheard-of value -n rm d",
                "timeout --unheard-of 5 rm d",
                "nice -n 5 rm d",
                "timeout -k 1 5 rm d",
                "nohup setsid rm d",
                "flock x rm d",
                "flock x -c 'rm d'",
                "find . -delete",
                "busybox rm d",
                "coreutils --coreutils-prog=rm d",
                "su root -c 'rm d'",
                "/bin/rm d",
                "/proc/self/root/bin/rm d",
                "/lib64/ld-linux-x86-64.so.2 /bin/rm d",
                "2>/dev/null rm d",
                "{fd}</dev/null rm d",
                "rm d 2>&1 >&2",
                "truncate -s 0 d",
            ],
        ),
        (
            &[GitPush, NetworkEgress],
            &[
                "git push origin x",
                "git -C /r push origin x",
                "cd s && git push origin x",
                "X=1 git push origin x",
                "git  push origin x",
                "git log && git push origin x",
                "sudo git push origin x",
            ],
        ),
        (
            &[GitCommit],
            &["git commit -m x", "git add . && git commit -m 'a; rm b'", "git commit -m \"$(date)\""],
        ),
        (&[PackageInstall], &["npm ci", "npx cowsay", "python3 -m pip install x", "python3 -mpip install x"]),
        (&[NetworkEgress], &["curl https://example.org", "ssh host ls", "dig x"]),
        (&[PrCreate, NetworkEgress], &["gh pr create", "gh api repos/a/b/pulls -f title=x"]),
        (
            &[VendorSyncWrite, NetworkEgress],
            &[
                "gh issue create",
                "curl -d x https://api.linear.app/graphql",
                "curl -XPOST https://a.atlassian.net/rest/api/3/issue",
            ],
        ),
        (
            &[FileDelete, FileWriteOutsideWorktree],
            &["xargs rm", "find . -exec rm {} +", "rm \"$x\"", "rm /x", "rm *.o"],
        ),
        (
            &[FileWriteOutsideWorktree],
            &[
                "echo x > /tmp/o",
                "tee /o",
                "dd of=/o",
                "cp a /o",
                "echo x >> ../o",
                "echo x &> /o",
                "echo >| /o",
                "sed -i s/a/b/ /etc/x",
                "echo x > ~/o",
                "echo > \"$f\"",
            ],
        ),
        (
            &[SecretAccess],
            &[
                "cat .env",
                "{ cat .env; }",
                "cat <(ls) .env",
                "cat < ~/.ssh/id_rsa",
                "cat ../.env",
                "base64 --input=/home/u/.netrc",
                "gh auth token | cat",
                "cat /proc/1/environ",
            ],
        ),
        (&[WorkspaceMutation], &["git checkout x", "git config alias.x '!id'"]),
        (
            &[],
            &[
                "ls",
                "cat a",
                "echo rm d",
                "echo 'rm d'",
                "echo \"rm d\"",
                "echo rm > /dev/null",
                "git status",
                "cat <<'E'\n$(rm d)\nE",
                "# rm d",
                "",
                "echo a#b",
                "x='rm d'",
                "case rm in rm) ls;; esac",
                "for rm in a; do ls; done",
                "[[ rm == d ]]",
                "echo $((rm))",
                "cargo test 2>&1 | tail -5",
                "[ -f x ] && ls",
                "a[1]=x",
                "bash script.sh",
            ],
        ),
    ];
    for (wanted, texts) in table {
        for text in *texts {
            let mut found = classes(text);
            if text.starts_with("gh auth") {
                found.retain(|class| *class != NetworkEgress);
            }
            assert_eq!(&found, wanted, "{text}");
        }
    }
}

/// What only the shell will know is marked, and counts as the worst where it decides.
#[test]
fn what_is_not_known_is_marked() {
    for (text, mark) in [
        ("$x -rf d", Mark::UnknownProgram),
        ("$(echo rm) d", Mark::UnknownProgram),
        ("{rm,d}", Mark::UnknownProgram),
        ("eval $x", Mark::UnknownProgram),
        ("bash -c \"$x\"", Mark::UnknownProgram),
        ("sudo $x", Mark::UnknownProgram),
        ("git push $x", Mark::Incomplete),
        (". ./x", Mark::Sourced),
        ("python3 -c x", Mark::CommandText),
        ("ssh host rm d", Mark::Remote),
        ("LD_PRELOAD=x ls", Mark::Configured),
        ("git -c core.pager='sh -c id' log", Mark::Configured),
        ("git config alias.x '!id'", Mark::Plants),
        ("/tmp/git push", Mark::UnusualPlace),
        ("busybox ls", Mark::Multicall),
        ("/proc/self/exe x", Mark::Unnamed),
    ] {
        assert!(facts(text).marks.contains(&mark), "{text}: {:?}", facts(text).marks);
    }
    let worst = classes("git $x");
    assert!([GitPush, GitCommit, FileDelete].iter().all(|class| worst.contains(class)), "{worst:?}");
}

/// `R-14`, `R-64`: facets are told only where every command that has some tells all of its own.
#[test]
fn facets_are_whole_or_absent() {
    let refs = |text: &str| {
        facts(text).action.refs.map(|refs| refs.iter().map(|one| one.clean().to_owned()).collect::<Vec<_>>())
    };
    for (text, wanted) in [
        ("git push origin a && git push origin b", Some(vec!["a", "b"])),
        ("git push origin a && git push", None),
        ("git push origin $x", None),
        ("git push origin *", None),
        ("GIT_CONFIG_COUNT=1 git push origin a", None),
        ("env GIT_DIR=x git push origin a", None),
        ("ls", None),
    ] {
        assert_eq!(refs(text), wanted.map(|refs| refs.into_iter().map(str::to_owned).collect()), "{text}");
    }
    let paths = |text: &str| {
        facts(text)
            .action
            .paths
            .map(|paths| paths.iter().map(|one| one.clean().to_owned()).collect::<Vec<_>>())
    };
    for (text, wanted) in [
        ("rm a b", Some(vec!["a", "b"])),
        ("rm ./a/../b", Some(vec!["b"])),
        ("rm *.o", None),
        ("cd x; rm a", None),
        ("cd x; rm /a", Some(vec!["/a"])),
        ("echo > a; rm \"$x\"", None),
        ("ls a", None),
    ] {
        assert_eq!(paths(text), wanted.map(|paths| paths.into_iter().map(str::to_owned).collect()), "{text}");
    }
    let sources = facts("rm a").sources;
    assert_eq!(sources.get(crate::request::Facet::Paths), crate::request::Source::Parsed);
}

/// `R-23`: with the worktree known, its own files are inside however they are named.
#[test]
fn places_are_told_from_the_worktree() {
    let surroundings = Surroundings {
        worktree: Some("/work/tree".into()),
        private_temp: Some("/tmp/agent".into()),
        directory: "sub".into(),
        ..Surroundings::default()
    };
    for (text, outside, path) in [
        ("echo > a", false, "sub/a"),
        ("echo > ../a", false, "a"),
        ("echo > ../../a", true, "/work/a"),
        ("echo > /work/tree/a", false, "a"),
        ("echo > /work/tree-evil/a", true, "/work/tree-evil/a"),
        ("echo > /work/tree/../a", true, "/work/a"),
        ("echo > /tmp/agent/a", false, "/tmp/agent/a"),
        ("echo > /tmp/a", true, "/tmp/a"),
    ] {
        let facts = read_in(text, &surroundings).expect(text);
        assert_eq!(facts.action.classes.contains(&FileWriteOutsideWorktree), outside, "{text}");
        let paths = facts.action.paths.expect(text);
        assert_eq!(paths[0].clean(), path, "{text}");
    }
}

/// `R-61`: what is no script, or too much of one, is an error that says so.
#[test]
fn what_cannot_be_read_is_refused() {
    for text in [
        "echo 'x",
        "echo \"x",
        "echo $(x",
        "echo `x",
        "(ls",
        "ls)",
        "echo ${x",
        "case x in",
        "[[ x",
        "ls ;; ls",
        "echo >",
        "a\0b",
        "echo (x)",
    ] {
        assert!(matches!(read(text), Err(ShellError::Unreadable { .. })), "{text:?}: {:?}", read(text));
    }
    assert_eq!(read(&"true;".repeat(65)), Err(ShellError::TooMany { limit: 64 }));
    assert!(read(&"true;".repeat(64)).is_ok());
    assert_eq!(read(&"x".repeat(MAX_BYTES + 1)), Err(ShellError::TooLong { limit: MAX_BYTES }));
    for (open, close) in
        [("( ", ")"), ("$(", ")"), ("\"$(", ")\""), ("${x:-", "}"), ("<(", ")"), ("env ", "")]
    {
        let deep = |times: usize| format!("{}ls{}", open.repeat(times), close.repeat(times));
        let error = read(&deep(2000)).expect_err(open);
        assert!(
            matches!(error, ShellError::TooDeep { .. } | ShellError::TooMany { .. }),
            "{open}: {error:?}"
        );
        assert!(read(&deep(10)).is_ok(), "{open}");
    }
}
