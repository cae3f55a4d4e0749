//! The tables as a page of the documentation (`docs/classes.md`).

use std::fmt::Write as _;

use guard_common::ActionClass;

use super::shell::{files, http};
use super::socket::Socket;
use super::tables::{self, LOADERS, MULTICALL, SYSTEM_PLACES, TABLES, WRAPPERS};
use super::{Mark, secret, socket};

const HEAD: &str = "\
# Classes

Written from the tables in `guard-policy/src/facts`; a test fails where the two differ, and writes the page anew with
`GUARD_WRITE_PAGES=1 cargo test -p guard-policy page`.

## What can be missing first
- A program is known by its file's name. A copy under another name is an unknown program: `processSpawn` and nothing else, until what it
  does meets a file, a socket or an address.
- A branch that a push names may be a tag of that name in the repository, and a branch there may be a symbolic ref to another one. The words do
  not say so.
- Settings of a repository can send a named remote elsewhere, so a remote's name is no host; only an address in the command is.
- Aliases and functions of a shell, and what a sourced file defines, are not known to a text; the exec that follows is.
- A file that was on the list of secrets and lies under another name is not recognised.

## How a row is read
An executable is judged by every row that knows its name and verb; an act has all the classes of these rows, and `processSpawn` for the process
itself. Verbs are alternatives. In a verb `-x` is an option anywhere after it, `!-x` one that must not be there, `^S` a cluster of letters that starts so
(without the letters after a `!`), `?` an operand, `.` a call without operands. Options that a program takes before its verb are skipped; where it is not known
whether one takes a value, both readings count. An argument that is not known may be anything.
The table \"texts only\" is not asked when a program starts: there the kernel reports the file, the socket and the process themselves.
";

/// The whole page.
#[must_use]
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    classes(&mut page);
    sockets(&mut page);
    secrets(&mut page);
    writes(&mut page);
    settings(&mut page);
    identity(&mut page);
    page
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", cell(text)) }
}

fn line(page: &mut String, cells: &[String]) {
    let _ = writeln!(page, "| {} |", cells.join(" | "));
}

fn head(page: &mut String, title: &str, columns: &[&str]) {
    let _ = writeln!(page, "\n## {title}");
    line(page, &columns.iter().map(|column| (*column).to_owned()).collect::<Vec<_>>());
    line(page, &vec!["---".to_owned(); columns.len()]);
}

fn classes(page: &mut String) {
    for class in ActionClass::ALL {
        let rows = TABLES
            .iter()
            .flat_map(|table| table.rows.iter().map(move |row| (table, row)))
            .filter(|(_, row)| row.class == class);
        let mut rows = rows.peekable();
        if rows.peek().is_none() {
            continue;
        }
        head(page, class.as_str(), &["programs", "told", "why", "one", "none", "table"]);
        for (table, row) in rows {
            let told = if row.verbs.is_empty() { "anything".to_owned() } else { code(row.verbs) };
            line(
                page,
                &[
                    code(row.programs),
                    told,
                    cell(row.reason),
                    code(row.yes),
                    code(row.no),
                    table.title.to_owned(),
                ],
            );
        }
    }
}

fn sockets(page: &mut String) {
    head(page, "Local sockets", &["class", "path", "why", "one"]);
    for row in socket::ROWS {
        let class = row.class.map_or("none", |class| class.as_str());
        let path = match row.socket {
            Socket::Named(name) => format!("last segment `{}`", cell(name)),
            Socket::Within(parts) => format!("`…/{}`", cell(parts)),
        };
        line(page, &[class.to_owned(), path, cell(row.reason), code(row.example)]);
    }
}

fn secrets(page: &mut String) {
    head(page, "Files that hold secrets", &["path ends in", "why", "one", "none"]);
    for row in secret::ROWS {
        line(page, &[code(row.path), cell(row.reason), code(row.yes), code(row.no)]);
    }
}

fn writes(page: &mut String) {
    head(page, "Writes over HTTP, in texts", &["class", "host", "path", "why", "one"]);
    for row in http::ROWS {
        let class = row.class.as_str().to_owned();
        line(page, &[class, code(row.host), code(row.path), cell(row.reason), code(row.example)]);
    }
    head(page, "Files that a command changes, in texts", &["programs", "why"]);
    for row in files::ROWS {
        line(page, &[code(row.programs), cell(row.reason)]);
    }
}

fn settings(page: &mut String) {
    head(page, "Settings of git that start a program", &["setting", "why"]);
    for (setting, reason) in super::git::RUNS {
        line(page, &[code(setting), cell(reason)]);
    }
}

fn identity(page: &mut String) {
    head(page, "Interpreters", &["names", "takes", "text"]);
    for row in tables::INTERPRETERS {
        line(page, &[code(row.names), cell(row.reason), code(row.text)]);
    }
    head(page, "Programs that start another one", &["names", "told", "why", "example"]);
    for row in WRAPPERS {
        line(page, &[code(row.names), code(row.verb), cell(row.reason), code(row.example)]);
    }
    let _ = writeln!(page, "\n## Looked through at exec");
    let _ = writeln!(page, "- dynamic loaders: {}", code(&LOADERS.join(" ")));
    let multicall: Vec<&str> = MULTICALL.iter().map(|(name, _)| *name).collect();
    let _ = writeln!(page, "- one file with many programs: {}", code(&multicall.join(" ")));
    let _ = writeln!(page, "- the system's places: {}", code(&SYSTEM_PLACES.join(" ")));
    head(page, "Marks", &["mark", "what it tells"]);
    for mark in Mark::ALL {
        line(page, &[code(mark.as_str()), cell(mark.meaning())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page is what the tables say, and nothing else.
    #[test]
    fn the_page_is_written_from_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/classes.md");
        let page = markdown();
        if std::env::var_os("GUARD_WRITE_PAGES").is_some() {
            std::fs::write(path, &page).expect("the page is written");
        }
        let written = std::fs::read_to_string(path).expect("the page is there");
        assert!(written == page, "docs/classes.md differs from the tables; see its first lines");
    }
}
