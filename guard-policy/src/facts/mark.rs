//! What is worth knowing about how a program was named, whatever its classes are.

use serde::Serialize;

/// Something about a command that a reader of the record should see.
///
/// A mark decides nothing: it says where a name is weaker than it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// A dynamic loader was told to run the program.
    Loader,
    /// The program is one of many in one file, chosen by a name that its caller gave.
    Multicall,
    /// An interpreter runs it.
    Interpreter,
    /// The interpreter got a program as text; only what that starts shows what it does.
    CommandText,
    /// It starts another program, which is judged when it starts.
    Wrapper,
    /// The executable is a file in memory, so it has no name.
    Memory,
    /// The executable's file is gone.
    Deleted,
    /// The executable was named through a descriptor or `/proc`, which says nothing about what it is.
    Unnamed,
    /// A program of a well-known name that does not lie where the system keeps programs.
    UnusualPlace,
    /// The name that it was called by is another well-known program's.
    CalledAsAnother,
    /// It works underneath another command, which was judged by its own words.
    Helper,
    /// A setting makes the program start another one.
    Configured,
    /// A setting that is written makes a later command start another one.
    Plants,
    /// Not all of its arguments are known.
    Incomplete,
    /// The program itself is not known before the shell runs.
    UnknownProgram,
    /// A file of commands is read, which this text does not show.
    Sourced,
    /// It runs on another machine.
    Remote,
}

impl Mark {
    /// Every mark.
    pub const ALL: [Self; 17] = [
        Self::Loader,
        Self::Multicall,
        Self::Interpreter,
        Self::CommandText,
        Self::Wrapper,
        Self::Memory,
        Self::Deleted,
        Self::Unnamed,
        Self::UnusualPlace,
        Self::CalledAsAnother,
        Self::Helper,
        Self::Configured,
        Self::Plants,
        Self::Incomplete,
        Self::UnknownProgram,
        Self::Sourced,
        Self::Remote,
    ];

    /// Name in records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// What it tells.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        self.row().1
    }

    const fn row(self) -> (&'static str, &'static str) {
        match self {
            Self::Loader => {
                ("loader", "the dynamic loader was told to run it; the kernel names only the loader")
            }
            Self::Multicall => {
                ("multicall", "one file holds many programs; the caller's word chose this one")
            }
            Self::Interpreter => ("interpreter", "a script; the kernel's executable is its interpreter"),
            Self::CommandText => {
                ("command_text", "an interpreter got its program as text, which is not read at exec")
            }
            Self::Wrapper => ("wrapper", "starts another program, which has an exec of its own"),
            Self::Memory => {
                ("memory", "an executable in memory has no name and counts as an unknown program")
            }
            Self::Deleted => ("deleted", "the executable's file was removed after it started"),
            Self::Unnamed => ("unnamed", "named through a descriptor or /proc; counts as an unknown program"),
            Self::UnusualPlace => ("unusual_place", "bears a known name outside of the system's directories"),
            Self::CalledAsAnother => {
                ("called_as_another", "argv[0] is another known program's name; it grants nothing")
            }
            Self::Helper => ("helper", "works underneath a command that was judged by its own words"),
            Self::Configured => ("configured", "a setting in the command starts another program"),
            Self::Plants => ("plants", "writes a setting that starts a program later"),
            Self::Incomplete => {
                ("incomplete", "not all arguments are known; the worst that they could say counts")
            }
            Self::UnknownProgram => {
                ("unknown_program", "the shell decides only when it runs what this starts")
            }
            Self::Sourced => ("sourced", "reads commands from a file"),
            Self::Remote => ("remote", "its command runs on another machine"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_have_one_name() {
        for mark in Mark::ALL {
            assert_eq!(serde_json::to_value(mark).expect("a name"), mark.as_str());
        }
    }
}
