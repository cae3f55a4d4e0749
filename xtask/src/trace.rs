//! Holds the docs to the tests: each requirement in `docs/requirements.md` is named by a test, and each that a test names stands there.
//!
//! A test names a requirement in the comment right above it (`/// C-032: …`) or, for a table, in the comment above the function.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::bpf::Paths;

/// Compares both sides and names every difference.
pub(crate) fn run() -> Result<()> {
    let root = Paths::find()?.root;
    let listed = listed(&root.join("docs/requirements.md"))?;
    let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut functions = BTreeSet::new();
    for file in sources(&root)? {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let place = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        functions.extend(functions_in(&text));
        for (id, line) in named_by_tests(&text) {
            named.entry(id).or_default().push(format!("{place}:{line}"));
        }
    }
    let without: Vec<_> = listed.iter().filter(|id| !named.contains_key(*id)).collect();
    let unlisted: Vec<_> = named.iter().filter(|(id, _)| !listed.contains(*id)).collect();
    for id in &without {
        eprintln!("docs/requirements.md lists {id}, but no test names it");
    }
    for (id, places) in &unlisted {
        eprintln!("{} names {id}, but docs/requirements.md does not list it", places.join(", "));
    }
    let promised = promised(&root.join("docs/promises.md"))?;
    let broken: Vec<_> = promised.iter().filter(|test| !functions.contains(*test)).collect();
    for test in &broken {
        eprintln!("docs/promises.md rests on {test}, but there is no such test");
    }
    if !without.is_empty() || !unlisted.is_empty() || !broken.is_empty() {
        bail!(
            "{} listed without a test, {} named and not listed, {} promises without their test",
            without.len(),
            unlisted.len(),
            broken.len()
        );
    }
    println!("{} requirements, each named by a test; {} tests hold promises", listed.len(), promised.len());
    Ok(())
}

fn listed(file: &Path) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text
        .lines()
        .filter_map(|line| line.strip_prefix("- "))
        .filter_map(|line| ids(line).into_iter().next())
        .collect())
}

/// The tests in the last column of the tables of promises.
fn promised(file: &Path) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let rows = text.lines().filter_map(|line| line.strip_suffix('|')?.rsplit('|').next());
    // Between back quotes: every second piece.
    Ok(rows.flat_map(|column| column.split('`').skip(1).step_by(2)).map(str::to_owned).collect())
}

/// Names of the functions of a file that are tests, or stand in a `proptest!` block as one.
fn functions_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if !line.starts_with("//") {
            let name =
                line.trim_start_matches("async ").strip_prefix("fn ").and_then(|rest| rest.split('(').next());
            found.extend(name.filter(|_| is_test).map(str::to_owned));
            is_test = false;
        }
    }
    found
}

fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = ["guard-common", "guard-policy", "guard-daemon", "proto", "tests", "xtask"]
        .map(|name| root.join(name))
        .to_vec();
    while let Some(directory) = open.pop() {
        for entry in
            fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Requirements that tests of this file name, with the line of the test.
fn named_by_tests(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut pending: Vec<String> = Vec::new();
    let mut is_test = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("//") {
            pending.extend(ids(line));
        } else if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else {
            if is_test {
                found.extend(pending.iter().map(|id| (id.clone(), number + 1)));
            }
            pending.clear();
            is_test = false;
        }
    }
    found
}

/// Every `C-032`, `R-71` and so on in a text.
fn ids(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    for (at, pair) in bytes.windows(2).enumerate() {
        let starts = at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
        if !starts || pair[1] != b'-' || !matches!(pair[0], b'C' | b'G' | b'K' | b'M' | b'R') {
            continue;
        }
        let digits = bytes[at + 2..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits >= 2 {
            found.push(text[at..at + 2 + digits].to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_comments_above_tests_only() {
        let text = "/// C-032 and R-71.\n#[test]\nfn one() {}\n\n/// K-101\nfn not_a_test() {}\n// M-050\n#[tokio::test]\nasync fn two() {}\n";
        let found: Vec<_> = named_by_tests(text).into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, ["C-032", "R-71", "M-050"]);
        assert_eq!(functions_in(text), ["one", "two"]);
        assert_eq!(ids("UTC-12 XC-032 C-1 G-1401,"), ["G-1401"]);
    }
}
