//! What is judged: one act of one principal.
//!
//! A kernel event, a hook of an agent and a line of `eval` all become a [`Request`] (`R-01`). A facet that is
//! absent is silence, an empty one says that the act touches none (`R-14`).

mod derive;
pub(crate) mod parse;

use std::collections::BTreeMap;
use std::net::IpAddr;

use guard_common::ActionClass;
use jiff::Timestamp;
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::delegation::Budget;
use crate::facts::shell::ShellError;
use crate::policy::Autonomy;
use crate::value::{ActPath, Host, Ref};

/// Most bytes of one request.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// One question to the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Request {
    /// The caller's name for it, echoed in the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When the act happens, for callers that say it (offline use).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Timestamp>,
    /// Who acts.
    #[serde(skip_serializing_if = "Principal::is_nobody")]
    pub principal: Principal,
    /// What is done.
    pub action: Action,
    /// Where each facet comes from.
    #[serde(skip_serializing_if = "Sources::is_default")]
    pub sources: Sources,
    /// The adapter that reports the act, when one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Addresses of the names among the hosts, as the caller resolved them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resolved: BTreeMap<String, Vec<IpAddr>>,
    /// Whether the caller says that somebody could answer; [`Context`](crate::Context) decides.
    pub approver: bool,
    /// What the act is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// The resource that the purpose is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// How much of each unit the act takes from budgets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub amounts: BTreeMap<String, u64>,
    /// The task that is handed to another agent, if that is the act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delegate: Option<Delegate>,
    /// The override of a soft denial that comes with it.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    pub overridden: Option<Override>,
    /// Why its commands could not be read; then it is refused.
    #[serde(skip)]
    pub unread: Option<ShellError>,
}

/// Handing a task to another agent (`C-120`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Delegate {
    /// Who gets it.
    pub to: String,
    /// Who handed it on before, the root agent first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<String>,
    /// How freely the delegate is to act; as freely as the delegator where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "autonomy_by_name")]
    pub autonomy: Option<Autonomy>,
    /// What it may use, by resource class and unit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub budget: Budget,
}

/// Lifting a soft denial (`C-092`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Override {
    /// Who lifts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub justification: Option<String>,
}

impl Override {
    /// Whether it says who and why.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let said = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.trim().is_empty());
        said(&self.by) && said(&self.justification)
    }
}

/// What became of an act that was decided before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Name of the request.
    pub receipt: String,
    /// Its session.
    pub session: Option<String>,
    /// Whether the act ran; silence leaves that open.
    pub ran: Option<bool>,
    /// What a person answered.
    pub answer: Option<bool>,
}

/// One line of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A question.
    Request(Box<Request>),
    /// What became of an earlier one.
    Receipt(Receipt),
}

impl Request {
    /// A request about an act that the kernel saw.
    #[must_use]
    pub fn new(principal: Principal, action: Action) -> Self {
        Self { principal, action, ..Self::default() }
    }
}

/// Who acts, and where. A part that is absent matches no scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Principal {
    /// Name of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Session of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Workspace that it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Space that it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<String>,
    /// Mode that it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl Principal {
    fn is_nobody(&self) -> bool {
        *self == Self::default()
    }
}

/// Transport protocols that a hole can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Number of the protocol in an IP header.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => guard_common::network::protocol::TCP,
            Self::Udp => guard_common::network::protocol::UDP,
        }
    }

    /// The protocol with this number, if it is one of these.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            guard_common::network::protocol::TCP => Some(Self::Tcp),
            guard_common::network::protocol::UDP => Some(Self::Udp),
            _ => None,
        }
    }
}

/// What is done, and what it touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Action {
    /// The classes of the act, each once, in the order of the taxonomy.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "classes_by_name")]
    pub classes: Vec<ActionClass>,
    /// Files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<ActPath>>,
    /// Git refs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refs: Option<Vec<Ref>>,
    /// Network destinations and local sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<Host>>,
    /// Commands, as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Vec<String>>,
    /// Port at every host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Protocol at every host.
    #[serde(rename = "proto", skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// How many things are done; never taken lower than the number of paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// What it costs, in hundredths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cents: Option<u64>,
}

impl Action {
    /// An act of these classes that says nothing about its facets.
    #[must_use]
    pub fn of(classes: impl IntoIterator<Item = ActionClass>) -> Self {
        let mut action = Self::default();
        action.add_classes(classes);
        action
    }

    /// Adds classes; each is kept once, in the order of the taxonomy.
    pub fn add_classes(&mut self, classes: impl IntoIterator<Item = ActionClass>) {
        self.classes.extend(classes);
        self.classes.sort_unstable();
        self.classes.dedup();
    }

    /// How many things are done.
    #[must_use]
    pub fn effective_count(&self) -> u64 {
        let paths = self.paths.as_ref().map_or(0, Vec::len) as u64;
        self.count.unwrap_or(1).max(paths)
    }
}

#[expect(clippy::ptr_arg, reason = "serde passes the field as it is")]
fn classes_by_name<S: Serializer>(classes: &Vec<ActionClass>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(classes.iter().map(|class| class.as_str()))
}

#[expect(clippy::ref_option, reason = "serde passes the field as it is")]
fn autonomy_by_name<S: Serializer>(autonomy: &Option<Autonomy>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(autonomy.map_or("", Autonomy::as_str))
}

/// Where a facet comes from (`R-64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Seen by the kernel.
    #[default]
    Kernel,
    /// Derived by this project from a text.
    Parsed,
    /// Said by the caller.
    Reported,
}

/// The facets that have a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Facet {
    /// `paths`
    Paths,
    /// `refs`
    Refs,
    /// `hosts`
    Hosts,
    /// `commands`
    Commands,
    /// `cents`
    Cents,
}

impl Facet {
    /// The facets that are lists, in the order in which they are written.
    pub const LISTS: [Self; 4] = [Self::Paths, Self::Refs, Self::Hosts, Self::Commands];

    /// Name in requests and rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paths => "paths",
            Self::Refs => "refs",
            Self::Hosts => "hosts",
            Self::Commands => "commands",
            Self::Cents => "cents",
        }
    }
}

/// The source of each facet; the kernel where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<Facet, Source>);

impl Sources {
    /// Sets the source of one facet.
    #[must_use]
    pub fn with(mut self, facet: Facet, source: Source) -> Self {
        self.0.insert(facet, source);
        self
    }

    /// The source of one facet.
    #[must_use]
    pub fn get(&self, facet: Facet) -> Source {
        self.0.get(&facet).copied().unwrap_or_default()
    }

    fn is_default(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Sources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (facet, source) in &self.0 {
            map.serialize_entry(facet.as_str(), source)?;
        }
        map.end()
    }
}
