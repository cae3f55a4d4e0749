//! Paths of acts, and patterns over them (`C-051`, `R-23`, `R-63`).

use super::glob::Glob;
use super::negation;

/// A path of an act: relative to the worktree when it is inside, absolute otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActPath {
    raw: String,
    clean: String,
}

/// A path that names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// The empty string.
    #[error("a path is not empty")]
    Empty,
    /// NUL ends a path for the kernel.
    #[error("a path holds no NUL")]
    Nul,
    /// More `..` than segments before them.
    #[error("`..` leads above the root")]
    AboveRoot,
}

impl ActPath {
    /// Reads a path and cleans it lexically.
    ///
    /// # Errors
    /// When it is empty, holds NUL or leads above the root of the file system or of the worktree.
    pub fn parse(raw: &str) -> Result<Self, InvalidPath> {
        if raw.is_empty() {
            return Err(InvalidPath::Empty);
        }
        if raw.contains('\0') {
            return Err(InvalidPath::Nul);
        }
        let mut segments = Vec::new();
        for segment in raw.split('/') {
            match segment {
                "" | "." => {}
                ".." => drop(segments.pop().ok_or(InvalidPath::AboveRoot)?),
                _ => segments.push(segment),
            }
        }
        let root = if raw.starts_with('/') { "/" } else { "" };
        Ok(Self { clean: format!("{root}{}", segments.join("/")), raw: raw.to_owned() })
    }

    /// As it was written.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// Cleaned; the worktree itself is the empty string.
    #[must_use]
    pub fn clean(&self) -> &str {
        &self.clean
    }
}

/// A pattern over paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    written: String,
    negative: bool,
    glob: Glob,
}

impl PathPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// Says what has no meaning in it.
    pub fn parse(written: &str) -> Result<Self, &'static str> {
        let (negative, pattern) = negation(written);
        Ok(Self { written: written.to_owned(), negative, glob: Glob::parse(pattern)? })
    }

    /// As written.
    #[must_use]
    pub fn written(&self) -> &str {
        &self.written
    }

    /// Whether it starts with `!`.
    #[must_use]
    pub const fn negative(&self) -> bool {
        self.negative
    }

    /// The whole segments that everything it covers starts with; none when there are none.
    pub(crate) fn anchor(&self) -> Option<String> {
        self.glob.anchor()
    }

    /// Whether it covers this spelling of a path, its `!` aside.
    #[must_use]
    pub fn covers(&self, path: &str) -> bool {
        let (_, pattern) = negation(&self.written);
        // A relative pattern speaks about the worktree, an absolute one about the rest; `**` about both.
        let same_side = path.starts_with('/') == pattern.starts_with('/') || pattern.starts_with("**");
        same_side && self.glob.matches(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `R-63`
    #[test]
    fn paths_are_cleaned_lexically() {
        for (raw, clean) in [
            ("src/a.rs", "src/a.rs"),
            ("./src//a.rs", "src/a.rs"),
            ("src/../a", "a"),
            ("/etc/../a", "/a"),
            (".", ""),
            ("/", "/"),
            ("a/", "a"),
        ] {
            assert_eq!(ActPath::parse(raw).expect(raw).clean(), clean);
        }
        for (raw, error) in [
            ("", InvalidPath::Empty),
            ("a\0", InvalidPath::Nul),
            ("..", InvalidPath::AboveRoot),
            ("a/../../b", InvalidPath::AboveRoot),
            ("/..", InvalidPath::AboveRoot),
        ] {
            assert_eq!(ActPath::parse(raw), Err(error), "{raw:?}");
        }
    }

    /// `R-23`: outside the worktree only `/…` and `**…` can match.
    #[test]
    fn relative_patterns_stay_in_the_worktree() {
        for (pattern, path, covers) in [
            ("**", "/etc/passwd", true),
            ("**/passwd", "/etc/passwd", true),
            ("*/**", "/etc/passwd", false),
            ("etc/**", "/etc/passwd", false),
            ("/etc/**", "etc/passwd", false),
            ("/**", "etc/passwd", false),
            ("!/etc/**", "/etc/passwd", true),
        ] {
            assert_eq!(PathPattern::parse(pattern).expect(pattern).covers(path), covers, "{pattern} {path}");
        }
    }
}
