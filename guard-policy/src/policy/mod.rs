//! What an operator decided: rules, modes, the autonomy dial and the network, from the policy and the managed file.

mod constraint;
mod index;
pub(crate) mod load;
mod network;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use guard_common::{ActionClass, Effect};
use jiff::Timestamp;

use crate::json::Position;
use crate::request::{Action, Principal, Request};
use crate::session::Used;
use crate::text::Text;
use crate::value::command_has_prefix;

pub use constraint::Constraints;
pub(crate) use constraint::{Fit, View};
pub(crate) use index::Index;
pub use load::MAX_FILE_BYTES;
pub use network::{Hole, NetworkPolicy};

/// A policy in force; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Policy(Arc<Compiled>);

/// What was read, and what finds it.
#[derive(Debug, Default)]
struct Compiled {
    parts: Parts,
    index: Index,
    managed_index: Index,
}

/// What a policy consists of.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Rules of the policy file, those of modes included.
    pub(crate) rules: Vec<Rule>,
    /// Rules of the managed file (`C-101`).
    pub(crate) managed: Vec<Rule>,
    /// Command prefixes that a mode refuses whatever the rules say (`C-074`).
    pub(crate) nets: BTreeMap<String, Vec<String>>,
    /// The dial of each space (`C-110`).
    pub(crate) autonomy: BTreeMap<String, Autonomy>,
    /// Ranges and holes.
    pub(crate) network: NetworkPolicy,
    /// Sizes above which a request is refused.
    pub(crate) limits: Limits,
    /// Deepest delegation, if a file says one (`C-121`).
    pub(crate) max_depth: Option<u64>,
}

/// Sizes above which a request is refused (`R-61`); files can lower them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Paths of one act.
    pub paths: u64,
    /// Refs of one act.
    pub refs: u64,
    /// Hosts of one act.
    pub hosts: u64,
    /// Commands of one act.
    pub commands: u64,
    /// Bytes of one string.
    pub string: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { paths: 10_000, refs: 1_000, hosts: 1_000, commands: 64, string: 64 << 10 }
    }
}

/// Deepest delegation while no file says one; the root agent has depth 0 (`R-22`).
pub const DEFAULT_DEPTH: u64 = 3;

impl Policy {
    /// Only what holds while no file says anything.
    #[must_use]
    pub fn builtin() -> Self {
        Self::default()
    }

    /// A policy of these rules and nothing else.
    pub(crate) fn of_rules(rules: Vec<Rule>) -> Self {
        Parts { rules, ..Parts::default() }.into()
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.0.parts
    }

    pub(crate) fn index(&self) -> &Index {
        &self.0.index
    }

    pub(crate) fn managed_index(&self) -> &Index {
        &self.0.managed_index
    }

    /// Sizes above which a request is refused.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.parts.limits
    }

    /// Deepest delegation.
    #[must_use]
    pub fn delegation_depth(&self) -> u64 {
        self.0.parts.max_depth.unwrap_or(DEFAULT_DEPTH)
    }

    /// The rules of the policy file and of its modes.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.0.parts.rules
    }

    /// The rules of the managed file.
    #[must_use]
    pub fn managed_rules(&self) -> &[Rule] {
        &self.0.parts.managed
    }

    /// Ranges and holes.
    #[must_use]
    pub fn network(&self) -> &NetworkPolicy {
        &self.0.parts.network
    }

    /// The dial of a space; what is not set behaves as `actWithApproval` (`C-113`).
    #[must_use]
    pub fn autonomy(&self, principal: &Principal) -> Autonomy {
        let space = principal.space.as_ref().and_then(|space| self.0.parts.autonomy.get(space));
        space.copied().unwrap_or_default()
    }

    /// The next moment after `now` at which a rule is gone; what was compiled before has to be compiled again then.
    #[must_use]
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let rules = self.rules().iter().chain(self.managed_rules());
        rules.filter_map(|rule| rule.expires_at).filter(|expiry| *expiry > now).min()
    }
}

impl From<Parts> for Policy {
    fn from(parts: Parts) -> Self {
        let (index, managed_index) = (Index::new(&parts.rules), Index::new(&parts.managed));
        Self(Arc::new(Compiled { parts, index, managed_index }))
    }
}

/// One rule (`C-030`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, unique in its file.
    pub id: Text,
    /// Where it holds.
    pub scope: Scope,
    /// What it is about.
    pub subject: Subject,
    /// What it says.
    pub effect: Effect,
    /// How firmly.
    pub level: Level,
    /// What it is limited to.
    pub constraints: Constraints,
    /// When it is gone.
    pub expires_at: Option<Timestamp>,
    /// The operator's reason.
    pub reason: Option<String>,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Where it stands in its file.
    pub(crate) at: Position,
    /// The scope and the constraints as decisions tell them.
    pub(crate) place: Text,
    pub(crate) constraint: Option<Text>,
}

impl Rule {
    /// Whether the rule speaks about an act, wherever it happens; an act may leave the class out.
    pub(crate) fn speaks_about(&self, action: &Action) -> bool {
        let about = match &self.subject {
            Subject::Class(class) => action.classes.is_empty() || action.classes.contains(class),
            Subject::Command(prefix) => {
                action.commands.iter().flatten().any(|command| command_has_prefix(command, prefix))
            }
        };
        let request = Request { action: action.clone(), ..Request::default() };
        let fit = self.constraints.fit(self.effect, &View::plain(&request), Used::default());
        about && matches!(fit, Fit::Applies | Fit::Unknown(_))
    }

    /// Whether the rule is still there at `now`.
    #[must_use]
    pub fn in_force(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|expiry| now < expiry)
    }
}

/// Where a rule holds, from the most to the least specific (`C-031`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// In one space.
    Space(String),
    /// For one agent.
    Agent(String),
    /// In one workspace.
    Workspace(String),
    /// In one mode.
    Mode(String),
    /// Everywhere.
    Everywhere,
}

impl Scope {
    /// Whether `principal` acts in this scope.
    #[must_use]
    pub fn holds_for(&self, principal: &Principal) -> bool {
        let (wanted, actual) = match self {
            Self::Space(id) => (id, &principal.space),
            Self::Agent(id) => (id, &principal.agent),
            Self::Workspace(id) => (id, &principal.workspace),
            Self::Mode(id) => (id, &principal.mode),
            Self::Everywhere => return true,
        };
        actual.as_ref() == Some(wanted)
    }

    /// 0 for the most specific kind of scope.
    pub(crate) const fn rank(&self) -> u8 {
        match self {
            Self::Space(_) => 0,
            Self::Agent(_) => 1,
            Self::Workspace(_) => 2,
            Self::Mode(_) => 3,
            Self::Everywhere => 4,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Space(id) => write!(f, "space:{id}"),
            Self::Agent(id) => write!(f, "agent:{id}"),
            Self::Workspace(id) => write!(f, "workspace:{id}"),
            Self::Mode(id) => write!(f, "mode:{id}"),
            Self::Everywhere => f.write_str("everywhere"),
        }
    }
}

/// What a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Acts of one class.
    Class(ActionClass),
    /// Commands that start like this (`C-005`).
    Command(String),
}

/// How firmly a rule holds (`C-090`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// Records only (`C-091`).
    Advisory,
    /// Refuses, and can be overridden (`C-092`).
    Soft,
    /// Refuses (`C-094`).
    #[default]
    Strict,
}

impl Level {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Advisory => "advisory",
            Self::Soft => "soft",
            Self::Strict => "strict",
        }
    }
}

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Provenance {
    /// An operator wrote it.
    #[default]
    Authored,
    /// An answer was remembered (`C-084`).
    Remembered,
    /// A template brought it.
    Template,
}

/// The autonomy dial (`C-111`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Autonomy {
    /// Every act is refused (`C-114`).
    ProposeOnly,
    /// Rules and defaults hold as they are (`C-115`).
    #[default]
    ActWithApproval,
    /// What would be asked is allowed (`C-116`).
    ActFreely,
}

impl Autonomy {
    /// The value as it is stored and sent.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProposeOnly => "proposeOnly",
            Self::ActWithApproval => "actWithApproval",
            Self::ActFreely => "actFreely",
        }
    }

    /// Every value, the least free first.
    pub const ALL: [Self; 3] = [Self::ProposeOnly, Self::ActWithApproval, Self::ActFreely];

    /// The name under which the dial decides.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        match self {
            Self::ProposeOnly => "autonomy:proposeOnly",
            Self::ActWithApproval => "autonomy:actWithApproval",
            Self::ActFreely => "autonomy:actFreely",
        }
    }
}

impl std::str::FromStr for Autonomy {
    type Err = UnknownAutonomy;

    fn from_str(written: &str) -> Result<Self, UnknownAutonomy> {
        Self::ALL.into_iter().find(|value| value.as_str() == written).ok_or(UnknownAutonomy)
    }
}

/// A value that the autonomy dial does not have (`C-112`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the autonomy dial has `proposeOnly`, `actWithApproval` and `actFreely`, in this spelling")]
pub struct UnknownAutonomy;

impl Limits {
    /// Each limit by its name, and what it is while no file lowers it.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64, u64); 5] {
        let usual = Self::default();
        [
            ("paths", self.paths, usual.paths),
            ("refs", self.refs, usual.refs),
            ("hosts", self.hosts, usual.hosts),
            ("commands", self.commands, usual.commands),
            ("string", self.string, usual.string),
        ]
    }
}
