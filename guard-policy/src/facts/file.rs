//! What happens to files (`C-012`, `C-017`, `R-70`).

use std::path::Path;

use guard_common::ActionClass::{FileDelete, FileWriteOutsideWorktree};

use super::Facts;
use crate::request::Action;
use crate::value::ActPath;

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileOperation {
    /// It is removed.
    Remove,
    /// Another file is renamed onto it.
    Replace,
    /// It is truncated by its path.
    Truncate,
    /// It moves to another place; what lay there before is another act.
    Move(Place),
    /// Its content, its name or its attributes change in another way.
    Change,
}

/// Where a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the worktree of the agent; its path is relative to it.
    Worktree,
    /// In the agent's private temp.
    PrivateTemp,
    /// Elsewhere; its path is absolute.
    Outside,
}

/// Whether a file is the agent's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Age {
    /// It was there before the session; on an overlay, its origin is below.
    Before,
    /// The session made it.
    Own,
    /// Nobody knows; it counts as one that was there.
    Unknown,
}

/// Whether this takes something away that was there before the session (`R-70`).
///
/// The rows of the whole table, of which the last that fits counts:
///
/// | what | where | whose | deletion |
/// | --- | --- | --- | --- |
/// | anything | anywhere | anybody's | no |
/// | remove, replace, truncate | worktree, outside | there before, unknown | yes |
/// | move into the private temp | worktree, outside | there before, unknown | yes: it can be removed there unseen |
/// | anything | private temp | anybody's | no |
#[must_use]
pub fn takes_away(operation: FileOperation, place: Place, age: Age) -> bool {
    let gone = match operation {
        FileOperation::Remove | FileOperation::Replace | FileOperation::Truncate => true,
        FileOperation::Move(to) => to == Place::PrivateTemp,
        FileOperation::Change => false,
    };
    gone && place != Place::PrivateTemp && age != Age::Own
}

/// A file that changes.
///
/// Builds and clones remove and replace their own files all the time and must not ask.
#[must_use]
pub fn file_change(operation: FileOperation, path: &Path, place: Place, age: Age) -> Facts {
    let mut action = Action::default();
    if place == Place::Outside || operation == FileOperation::Move(Place::Outside) {
        action.add_classes([FileWriteOutsideWorktree]);
    }
    if takes_away(operation, place, age) {
        action.add_classes([FileDelete]);
    }
    // A path that cannot be read stays unknown, so a rule about paths asks.
    action.paths = ActPath::parse(&path.to_string_lossy()).ok().map(|path| vec![path]);
    Facts { action, ..Facts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `C-012`, `C-017`, `R-70`: the whole table, compared with the sentence of the requirement word by word.
    #[test]
    fn deleting_is_about_files_that_were_there() {
        use FileOperation::{Change, Move, Remove, Replace, Truncate};
        use Place::{Outside, PrivateTemp, Worktree};
        let mut deletions = Vec::new();
        for operation in [Remove, Replace, Truncate, Move(Worktree), Move(PrivateTemp), Move(Outside), Change]
        {
            for place in [Worktree, PrivateTemp, Outside] {
                for age in [Age::Before, Age::Own, Age::Unknown] {
                    let facts = file_change(operation, "a/b".as_ref(), place, age);
                    let deletes = facts.action.classes.contains(&FileDelete);
                    assert_eq!(deletes, takes_away(operation, place, age));
                    assert_eq!(
                        facts.action.classes.contains(&FileWriteOutsideWorktree),
                        place == Outside || operation == Move(Outside),
                        "{operation:?} {place:?}"
                    );
                    assert!(facts.action.classes.len() <= 2 && facts.action.paths.is_some());
                    if deletes {
                        deletions.push((operation, place, age));
                    }
                }
            }
        }
        let mut wanted = Vec::new();
        for operation in [Remove, Replace, Truncate, Move(PrivateTemp)] {
            for place in [Worktree, Outside] {
                wanted.extend([(operation, place, Age::Before), (operation, place, Age::Unknown)]);
            }
        }
        assert_eq!(deletions, wanted);
    }

    #[test]
    fn a_path_that_cannot_be_read_is_silence() {
        let facts = file_change(FileOperation::Change, "".as_ref(), Place::Worktree, Age::Own);
        assert_eq!(facts.action.paths, None);
    }
}
