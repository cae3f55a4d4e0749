//! Files that git writes over as it works, and that nobody has lost when it does: `git status` alone replaces an index that
//! is older than the session.

use std::path::Path;

/// Files directly in a git directory that git removes and truncates in the course of its work, by the end of their names.
const STATE: &[&str] =
    &["_HEAD", "_MSG", "_EDITMSG", "_MODE", "_RR", "_AUTOSTASH", "AUTO_MERGE", "gc.pid", "gc.log", ".lock"];

/// Whether a change does to a file of a git directory what git's own protocol does: a name is replaced by its own lock file, or
/// a passing note is taken away or begun anew. Objects, configuration, hooks and branches are no such notes.
pub fn is_gits_own(operation: &str, path: &Path, other: &Path) -> bool {
    let directory = match operation {
        "rename" => return is_lock_of(path, other) && other.components().any(is_git_directory),
        "unlink" | "truncate" => path.parent(),
        _ => None,
    };
    let Some(last) = directory.and_then(|directory| directory.components().next_back()) else { return false };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_git_directory(last) && STATE.iter().any(|end| name.ends_with(end))
}

fn is_git_directory(part: std::path::Component<'_>) -> bool {
    part.as_os_str().as_encoded_bytes().ends_with(b".git")
}

fn is_lock_of(lock: &Path, path: &Path) -> bool {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    lock.as_os_str() == name
}

#[cfg(test)]
mod tests {
    use super::*;

    ///
    #[test]
    fn only_what_git_does_to_its_own_notes_is_no_loss() {
        let table = [
            ("rename", "/w/.git/index.lock", "/w/.git/index", true),
            ("rename", "/w/.git/refs/heads/main.lock", "/w/.git/refs/heads/main", true),
            ("rename", "/w/bare.git/packed-refs.lock", "/w/bare.git/packed-refs", true),
            ("rename", "/w/.git/x", "/w/.git/index", false),
            ("rename", "/w/Cargo.lock", "/w/Cargo", false),
            ("truncate", "/w/.git/FETCH_HEAD", "", true),
            ("truncate", "/w/.git/COMMIT_EDITMSG", "", true),
            ("unlink", "/w/.git/MERGE_HEAD", "", true),
            ("unlink", "/w/.git/HEAD", "", false),
            ("truncate", "/w/.git/config", "", false),
            ("unlink", "/w/.git/objects/ab/cdef", "", false),
            ("unlink", "/w/.git/hooks/pre-commit", "", false),
            ("unlink", "/w/.git/refs/heads/x_HEAD", "", false),
            ("unlink", "/w/FETCH_HEAD", "", false),
            ("rmdir", "/w/.git/a_HEAD", "", false),
        ];
        for (operation, path, other, own) in table {
            assert_eq!(
                is_gits_own(operation, path.as_ref(), other.as_ref()),
                own,
                "{operation} {path} {other}"
            );
        }
    }
}
