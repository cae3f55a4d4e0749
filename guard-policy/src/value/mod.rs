//! The values of the facets of an act, canonical by construction, and the patterns of rules over them.
//!
//! Each value keeps how it was written beside its canonical form: a rule that permits looks at the canonical
//! form, a rule that restricts at both (`R-62`).

mod glob;
mod host;
mod path;
mod reference;

pub use host::{Host, HostPattern, InvalidHost, Network};
pub(crate) use host::{HostKey, Target, bytes, display};
pub use path::{ActPath, InvalidPath, PathPattern};
pub use reference::{InvalidRef, Ref, RefPattern};

macro_rules! serialize_as_written {
    ($($value:ty),*) => {$(
        impl serde::Serialize for $value {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.raw())
            }
        }
    )*};
}

serialize_as_written!(ActPath, Ref, Host);

/// What the patterns of every facet have in common.
pub(crate) trait Pattern {
    /// As written.
    fn written(&self) -> &str;
    /// Whether it starts with `!`.
    fn negative(&self) -> bool;
}

macro_rules! patterns {
    ($($pattern:ty),*) => {$(
        impl Pattern for $pattern {
            fn written(&self) -> &str {
                self.written()
            }

            fn negative(&self) -> bool {
                self.negative()
            }
        }
    )*};
}

patterns!(PathPattern, RefPattern, HostPattern);

/// Splits the leading `!` from a pattern.
fn negation(written: &str) -> (bool, &str) {
    written.strip_prefix('!').map_or((false, written), |rest| (true, rest))
}

/// Whether `command` is `prefix` or goes on after it with white space (`C-070`).
///
/// The command is compared as it is written; no shell is understood here (`C-071`).
#[must_use]
pub fn command_has_prefix(command: &str, prefix: &str) -> bool {
    command.strip_prefix(prefix).is_some_and(|rest| {
        rest.is_empty() || rest.starts_with(|character: char| character.is_ascii_whitespace())
    })
}

#[cfg(test)]
mod tests {
    use super::command_has_prefix;

    /// `C-070`, `C-071`
    #[test]
    fn command_prefixes_end_at_a_word() {
        for command in ["git push", "git push origin main", "git push\t-f"] {
            assert!(command_has_prefix(command, "git push"), "{command:?}");
        }
        for command in ["git pushx", "git  push", "cd sub && git push", "GIT_DIR=x git push", "git", ""] {
            assert!(!command_has_prefix(command, "git push"), "{command:?}");
        }
    }
}
