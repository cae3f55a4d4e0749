//! What can be wrong with a request or an operator's file, with the place where it is.

use std::fmt;

/// Stable code of a fault; part of the output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultCode {
    /// Not JSON.
    MalformedJson,
    /// One object has the same key twice, after unescaping.
    DuplicateKey,
    /// A key that means nothing here, or nothing yet.
    UnknownKey,
    /// A value of another JSON type than the one that belongs here.
    WrongType,
    /// A value of the right type that is not one of those allowed.
    OutOfRange,
    /// A name that is none of the thirteen classes.
    UnknownClass,
    /// A path or a pattern of paths that has no meaning.
    InvalidPath,
    /// A ref or a pattern of refs that has no meaning.
    InvalidRef,
    /// A host or a pattern of hosts that has no meaning.
    InvalidHost,
    /// More bytes than are read.
    TooLarge,
    /// More nesting than is read.
    TooDeep,
}

impl FaultCode {
    /// The code as it is written out.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MalformedJson => "malformed_json",
            Self::DuplicateKey => "duplicate_key",
            Self::UnknownKey => "unknown_key",
            Self::WrongType => "wrong_type",
            Self::OutOfRange => "out_of_range",
            Self::UnknownClass => "unknown_class",
            Self::InvalidPath => "invalid_path",
            Self::InvalidRef => "invalid_ref",
            Self::InvalidHost => "invalid_host",
            Self::TooLarge => "too_large",
            Self::TooDeep => "too_deep",
        }
    }
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One fault of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind of fault.
    pub code: FaultCode,
    /// Name of the operator's file; requests have none.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What is wrong and what to do, lower case, with the value that was wrong.
    pub message: String,
    /// The known name that is most like the one that was written.
    pub nearest: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "error[policy_invalid]: {file}:")?,
            None => write!(f, "error[{}]: ", self.code)?,
        }
        write!(f, "{}:{}: {}", self.line, self.column, self.message)?;
        match &self.nearest {
            Some(nearest) => write!(f, "; did you mean `{nearest}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}

/// The name among `known` that is most like `written`, if any is like it at all.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let close = |name: &&str| strsim::jaro_winkler(&written.to_lowercase(), &name.to_lowercase());
    let best = known.into_iter().max_by(|a, b| close(a).total_cmp(&close(b)))?;
    (close(&best) > 0.75).then(|| best.to_owned())
}
