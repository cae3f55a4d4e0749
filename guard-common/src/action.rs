//! The closed set of action classes (`C-010` … `C-024`).
//!
//! The order of the variants is the order of the taxonomy; everything that lists classes lists them in it.

use core::fmt;
use core::str::FromStr;

/// What a rule, or the default of a class, says about an act (`C-030`).
///
/// Ordered from the least to the most restrictive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Effect {
    /// The act goes on.
    Allow,
    /// A person is asked first.
    Prompt,
    /// The act is refused.
    Deny,
}

impl Effect {
    /// The word for this effect in rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Prompt => "prompt",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an act does to the world; the taxonomy is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "camelCase"))]
pub enum ActionClass {
    /// `C-012`: deleting a file.
    FileDelete,
    /// `C-013`: pushing to a git remote.
    GitPush,
    /// `C-014`: creating a pull request.
    PrCreate,
    /// `C-015`: publishing a review, merging a pull request.
    PrPublish,
    /// `C-016`: writing to an external ticket vendor.
    VendorSyncWrite,
    /// `C-017`: writing a file outside the isolated worktree.
    FileWriteOutsideWorktree,
    /// `C-018`: creating a git commit.
    GitCommit,
    /// `C-019`: network egress.
    NetworkEgress,
    /// `C-020`: reading a secret or credential.
    SecretAccess,
    /// `C-021`: installing a package.
    PackageInstall,
    /// `C-022`: starting a process.
    ProcessSpawn,
    /// `C-023`: changing the structure of a workspace.
    WorkspaceMutation,
    /// `C-024`: driving an isolated environment.
    EnclosureControl,
}

impl ActionClass {
    /// Every class, in the order of the taxonomy.
    pub const ALL: [Self; 13] = [
        Self::FileDelete,
        Self::GitPush,
        Self::PrCreate,
        Self::PrPublish,
        Self::VendorSyncWrite,
        Self::FileWriteOutsideWorktree,
        Self::GitCommit,
        Self::NetworkEgress,
        Self::SecretAccess,
        Self::PackageInstall,
        Self::ProcessSpawn,
        Self::WorkspaceMutation,
        Self::EnclosureControl,
    ];

    /// The name in rules, requests and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FileDelete => "fileDelete",
            Self::GitPush => "gitPush",
            Self::PrCreate => "prCreate",
            Self::PrPublish => "prPublish",
            Self::VendorSyncWrite => "vendorSyncWrite",
            Self::FileWriteOutsideWorktree => "fileWriteOutsideWorktree",
            Self::GitCommit => "gitCommit",
            Self::NetworkEgress => "networkEgress",
            Self::SecretAccess => "secretAccess",
            Self::PackageInstall => "packageInstall",
            Self::ProcessSpawn => "processSpawn",
            Self::WorkspaceMutation => "workspaceMutation",
            Self::EnclosureControl => "enclosureControl",
        }
    }

    /// What holds while no rule speaks (`C-011`): the first five ask, the other eight allow.
    #[must_use]
    pub const fn default_effect(self) -> Effect {
        match self {
            Self::FileDelete | Self::GitPush | Self::PrCreate | Self::PrPublish | Self::VendorSyncWrite => {
                Effect::Prompt
            }
            Self::FileWriteOutsideWorktree
            | Self::GitCommit
            | Self::NetworkEgress
            | Self::SecretAccess
            | Self::PackageInstall
            | Self::ProcessSpawn
            | Self::WorkspaceMutation
            | Self::EnclosureControl => Effect::Allow,
        }
    }
}

impl fmt::Display for ActionClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is none of the thirteen classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownClass;

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not one of the 13 action classes")
    }
}

impl core::error::Error for UnknownClass {}

impl FromStr for ActionClass {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        Self::ALL.into_iter().find(|class| class.as_str() == name).ok_or(UnknownClass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `C-010`, `C-011`: thirteen classes, five ask, eight allow, in the order of the taxonomy.
    #[test]
    fn thirteen_classes_of_which_five_ask_first() {
        let asking =
            ActionClass::ALL.iter().take_while(|class| class.default_effect() == Effect::Prompt).count();
        let allowing =
            ActionClass::ALL.iter().filter(|class| class.default_effect() == Effect::Allow).count();
        assert_eq!((ActionClass::ALL.len(), asking, allowing), (13, 5, 8));
        assert!(ActionClass::ALL.is_sorted());
    }

    #[test]
    fn names_are_read_back_and_nothing_else_is() {
        for class in ActionClass::ALL {
            assert_eq!(class.as_str().parse(), Ok(class));
        }
        for wrong in ["", "filedelete", "FileDelete", "fileDelete ", "file_delete"] {
            assert_eq!(wrong.parse::<ActionClass>(), Err(UnknownClass), "{wrong:?}");
        }
    }
}
