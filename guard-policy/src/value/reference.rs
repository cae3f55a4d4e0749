//! Git refs of acts, and patterns over them (`C-052`, `R-25`).

use super::glob::Glob;
use super::negation;

/// A ref that an act touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ref {
    raw: String,
    full: String,
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
        Ok(Self { raw: raw.to_owned(), full: full(raw) })
    }

    /// As it was written.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// The whole name, `refs/heads/…` for a branch.
    #[must_use]
    pub fn full(&self) -> &str {
        &self.full
    }

    /// The branch's short name, or the whole name of what is no branch.
    #[must_use]
    pub fn clean(&self) -> &str {
        self.full.strip_prefix("refs/heads/").unwrap_or(&self.full)
    }
}

/// The whole name of a ref; what is not said to be anything else is a branch.
fn full(written: &str) -> String {
    if written.starts_with("refs/") {
        return written.to_owned();
    }
    format!("refs/heads/{}", written.strip_prefix("heads/").unwrap_or(written))
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
        // `**` and what starts with it is about refs of every kind, tags too; the rest is about branches unless
        // it says `refs/` itself, so that `refs/heads/**` and `feature/**` never reach a tag.
        let whole = if pattern.starts_with("**") { pattern.to_owned() } else { full(pattern) };
        Glob::parse(pattern)?;
        Ok(Self { written: written.to_owned(), negative, glob: Glob::parse(&whole)? })
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

    /// Whether it covers this ref, its `!` aside.
    #[must_use]
    pub fn covers(&self, reference: &Ref) -> bool {
        self.glob.matches(&reference.full)
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
            assert!(RefPattern::parse(raw).expect(raw).covers(&Ref::parse("main").expect("a branch")));
        }
        assert_eq!(Ref::parse("refs/tags/main").expect("a tag").clean(), "refs/tags/main");
        for raw in ["", "a b", "a..b", "a:b", "+a:b", "a/", "a//b", ".a", "a.lock", "a\0"] {
            assert_eq!(Ref::parse(raw), Err(InvalidRef), "{raw:?}");
        }
    }
    /// `C-052`, `R-25`: a pattern about branches is not about tags.
    #[test]
    fn patterns_know_the_kinds_of_refs() {
        let table = [
            ("**", "main", true),
            ("**", "refs/tags/v1", true),
            ("**/main", "refs/tags/main", true),
            ("refs/heads/**", "feature/x", true),
            ("refs/heads/**", "refs/tags/v1", false),
            ("heads/*", "main", true),
            ("heads/**", "refs/tags/v1", false),
            ("feature/**", "refs/heads/feature/x/y", true),
            ("feature/**", "feature", true),
            ("*", "main", true),
            ("*", "feature/x", false),
            ("main", "refs/tags/main", false),
            ("refs/**", "main", true),
            ("refs/tags/*", "refs/tags/v1", true),
            ("refs/for/main", "refs/for/main", true),
            ("Main", "main", false),
        ];
        for (pattern, name, covers) in table {
            let reference = Ref::parse(name).expect(name);
            assert_eq!(
                RefPattern::parse(pattern).expect(pattern).covers(&reference),
                covers,
                "{pattern} {name}"
            );
        }
        for pattern in ["/main", "", "!", "a//b", "[a]", "a/../b", "a\\b"] {
            assert!(RefPattern::parse(pattern).is_err(), "{pattern:?}");
        }
    }
}
