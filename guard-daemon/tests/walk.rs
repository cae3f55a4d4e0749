//! docs/policy.md, run as it stands: its files are written, its commands run, and what they print is compared.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A fenced block: the words after its fence, and its lines.
struct Block<'a> {
    kind: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(kind), None) => open = Some(Block { kind, lines: Vec::new() }),
            (None, Some(block)) => block.lines.push(line),
            (None, None) => {}
        }
    }
    blocks
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// Runs one line of a console block where the page's files are.
fn run(directory: &Path, line: &str) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_guardctl")).parent().expect("a directory");
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let output = Command::new("sh")
        .args(["-c", line])
        .current_dir(directory)
        .env_clear()
        .env("PATH", path)
        .output()
        .expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// `C-058`, `C-091`, `C-142`: an operator writes a rule, sees it as a sentence, probes it, tries it as advisory on
/// the record, and promotes it, all with the commands of the page.
#[test]
fn the_page_about_policies_is_true() {
    let directory = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(root().join("examples/record"), directory.path().join("record"))
        .expect("a link");
    let page = fs::read_to_string(root().join("docs/policy.md")).expect("the page");
    let (mut files, mut commands) = (0, 0);
    for block in blocks(&page) {
        if let Some(name) = block.kind.strip_prefix("json ") {
            fs::write(directory.path().join(name), block.lines.join("\n")).expect("a file");
            files += 1;
        } else if block.kind == "console" {
            for part in block.lines.join("\n").split("$ guardctl ").skip(1) {
                let (line, wanted) = part.split_once('\n').unwrap_or((part, ""));
                let found = run(directory.path(), &format!("guardctl {line}"));
                assert_eq!(found.trim_end(), wanted.trim_end(), "guardctl {line}");
                commands += 1;
            }
        }
    }
    assert_eq!((files, commands), (2, 7), "the page has lost something");
}

/// The record that the page uses is one.
#[test]
fn the_record_of_the_examples_is_whole() {
    let found = run(&root(), "guardctl audit verify examples/record");
    assert!(found.contains("all good"), "{found}");
}
