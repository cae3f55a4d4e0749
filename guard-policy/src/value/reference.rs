//! Git refs of acts, and patterns over them (`C-052`, `R-25`).

use super::glob::Glob;
use super::negation;

/// A ref that an act touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ref {
    raw: String,
    clean: String,
}

/// A text that cannot be a ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a git ref: no spaces, control characters, `..`, `@{{`, `~^:?*[\\`, empty segments, segments that start with `.` or end in `.lock`"
)]
pub struct InvalidRef;

impl Ref {
    /// Reads a ref; a branch is the same with and without `refs/heads/` or `heads/`.
    ///
    /// # Errors
    /// When git would not take it as a name.
    pub fn parse(raw: &str) -> Result<Self, InvalidRef> {
        let forbidden = |character: char| character.is_control() || " ~^:?*[\\".contains(character);
        let bad_segment =
            |segment: &str| segment.is_empty() || segment.starts_with('.') || segment.ends_with(".lock");
        if raw.contains(forbidden)
            || raw.contains("..")
            || raw.contains("@{")
            || raw.ends_with('.')
            || raw.split('/').any(bad_segment)
        {
            return Err(InvalidRef);
        }
        Ok(Self { raw: raw.to_owned(), clean: branch(raw).to_owned() })
    }

    /// As it was written.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// The branch's short name, or the full name of what is no branch.
    #[must_use]
    pub fn clean(&self) -> &str {
        &self.clean
    }
}

fn branch(written: &str) -> &str {
    let short = written.strip_prefix("refs/heads/").or_else(|| written.strip_prefix("heads/"));
    short.filter(|name| !name.is_empty()).unwrap_or(written)
}

/// A pattern over refs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefPattern {
    written: String,
    negative: bool,
    glob: Glob,
}

impl RefPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// Says what has no meaning in it.
    pub fn parse(written: &str) -> Result<Self, &'static str> {
        let (negative, pattern) = negation(written);
        if pattern.starts_with('/') {
            return Err("a ref does not start with `/`");
        }
        Ok(Self { written: written.to_owned(), negative, glob: Glob::parse(branch(pattern))? })
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

    /// Whether it covers this spelling of a ref, its `!` aside.
    #[must_use]
    pub fn covers(&self, reference: &str) -> bool {
        self.glob.matches(reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `R-25`
    #[test]
    fn one_branch_has_three_spellings() {
        for raw in ["main", "heads/main", "refs/heads/main"] {
            assert_eq!(Ref::parse(raw).expect(raw).clean(), "main");
            assert!(RefPattern::parse(raw).expect(raw).covers("main"));
        }
        assert_eq!(Ref::parse("refs/tags/main").expect("a tag").clean(), "refs/tags/main");
        for raw in ["", "a b", "a..b", "a:b", "+a:b", "a/", "a//b", ".a", "a.lock", "a\0"] {
            assert_eq!(Ref::parse(raw), Err(InvalidRef), "{raw:?}");
        }
    }
}
