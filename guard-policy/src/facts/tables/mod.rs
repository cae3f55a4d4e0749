//! The tables: which program, told what, does an act of which class, and why.
//!
//! A row is one line. It carries its reason, a command that it is about and one that looks like it and is not; a
//! test runs both, and `docs/classes.md` is written from the rows. The columns: class, programs (`*` at the end
//! stands for the rest of a name), verbs (see [`say`](super::words::say); none: whatever it is told), reason, a
//! command that is one, a command that is none (none: every use of the program is one).

mod enclosures;
mod forges;
mod git;
mod identity;
mod packages;
mod secrets;
mod text;
mod workspaces;

use guard_common::ActionClass;

pub(super) use identity::{
    INTERPRETERS, Interpreter, LOADERS, MULTICALL, SYSTEM_PLACES, WRAPPERS, Wrapper, options,
};

use super::words::{Word, say};

/// One line of a table.
pub(super) struct Row {
    pub(super) class: ActionClass,
    pub(super) programs: &'static str,
    pub(super) verbs: &'static str,
    pub(super) reason: &'static str,
    pub(super) yes: &'static str,
    pub(super) no: &'static str,
}

const fn row(
    class: ActionClass,
    programs: &'static str,
    verbs: &'static str,
    reason: &'static str,
    yes: &'static str,
    no: &'static str,
) -> Row {
    Row { class, programs, verbs, reason, yes, no }
}

impl Row {
    fn names(&self, program: &str) -> bool {
        self.programs.split(' ').any(|known| named(known, program))
    }

    fn covers(&self, program: &str, arguments: &[Word]) -> bool {
        self.names(program) && say(arguments, self.verbs, options(program))
    }
}

/// Whether a name of a table, or the start of one that ends in `*`, is this program.
pub(super) fn named(known: &str, program: &str) -> bool {
    known.strip_suffix('*').map_or(known == program, |start| program.starts_with(start))
}

/// A table with what its rows are about.
pub(super) struct Table {
    pub(super) title: &'static str,
    /// Whether the rows hold for texts only: the kernel reports the object itself.
    pub(super) text_only: bool,
    pub(super) rows: &'static [Row],
}

/// Every table of programs.
pub(super) const TABLES: &[Table] = &[
    Table { title: "git", text_only: false, rows: git::ROWS },
    Table { title: "Forges and trackers", text_only: false, rows: forges::ROWS },
    Table { title: "Package managers", text_only: false, rows: packages::ROWS },
    Table { title: "Engines, machines and service managers", text_only: false, rows: enclosures::ROWS },
    Table { title: "Commands that show secrets", text_only: false, rows: secrets::ROWS },
    Table { title: "Workspaces", text_only: false, rows: workspaces::ROWS },
    Table { title: "Texts only", text_only: true, rows: text::ROWS },
];

/// The classes of what a program is told.
pub(super) fn classes<'a>(
    program: &'a str,
    arguments: &'a [Word],
    text: bool,
) -> impl Iterator<Item = ActionClass> + 'a {
    let tables = TABLES.iter().filter(move |table| text || !table.text_only);
    tables.flat_map(|table| table.rows).filter(|row| row.covers(program, arguments)).map(|row| row.class)
}

/// The wrapper that a program is, told this.
pub(super) fn wrapper(program: &str, arguments: &[Word]) -> Option<&'static Wrapper> {
    let names = |wrapper: &&Wrapper| wrapper.names.split(' ').any(|name| name == program);
    WRAPPERS.iter().filter(names).find(|wrapper| say(arguments, wrapper.verb, options(program)))
}

/// Whether any row knows a program of this name.
pub(super) fn is_known(program: &str) -> bool {
    let tables = TABLES.iter().filter(|table| !table.text_only);
    tables.flat_map(|table| table.rows).any(|row| row.names(program))
}

/// Every verb that a row has for this program.
pub(super) fn verbs_of(program: &'static str) -> impl Iterator<Item = &'static str> {
    let rows = TABLES.iter().flat_map(|table| table.rows).filter(move |row| row.names(program));
    rows.flat_map(|row| row.verbs.split(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{self, shell};

    fn classes_of(command: &str, table: &Table) -> Vec<ActionClass> {
        if table.text_only {
            return shell::read(command).expect(command).action.classes;
        }
        let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let exe = format!("/usr/bin/{}", argv[0]);
        facts::exec(exe.as_ref(), &argv, false).action.classes
    }

    /// `C-012`, `C-013`, `C-014`, `C-015`, `C-016`, `C-018`, `C-020`, `C-021`, `C-023`, `C-024`: every row says why, and does what its own examples say.
    #[test]
    fn every_row_holds_for_its_own_examples() {
        for table in TABLES {
            for row in table.rows {
                let name = row.yes;
                assert!(row.reason.len() > 3 && !row.reason.ends_with('.'), "{name}");
                assert!(classes_of(row.yes, table).contains(&row.class), "{} is {:?}", row.yes, row.class);
                let program = row.yes.split(' ').next().expect("a program");
                assert!(row.names(program), "{name}: the example is about another program");
                let arguments = super::super::words::known(row.yes.split(' ').skip(1));
                assert!(table.title == "git" || table.text_only || row.covers(program, &arguments), "{name}");
                if row.no.is_empty() {
                    assert!(row.verbs.is_empty(), "{name}: a row about verbs has a counter-example");
                } else {
                    assert!(!classes_of(row.no, table).contains(&row.class), "{} is {:?}", row.no, row.class);
                }
            }
        }
    }

    /// A name is about one thing: a table has no row twice.
    #[test]
    fn no_row_is_there_twice() {
        for table in TABLES {
            let mut seen = std::collections::BTreeSet::new();
            for row in table.rows {
                for program in row.programs.split(' ') {
                    for verb in row.verbs.split(", ") {
                        assert!(
                            seen.insert((row.class as u8, program, verb)),
                            "{}: {program} {verb} is there twice",
                            table.title
                        );
                    }
                }
            }
        }
    }
}
