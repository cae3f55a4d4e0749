//! A line of the record as its readers take it: filters, people's views, and the story of a session.
//!
//! Readers are lenient where the writer is exact: a field that a later version added is passed over, one that is
//! missing reads as empty.

use serde::Deserialize;
use serde_json::Value;

/// Who acted; an empty part is an absent one.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize, PartialEq, Eq)]
#[serde(default)]
pub struct Who {
    pub agent: String,
    pub session: String,
    pub workspace: String,
    pub space: String,
    pub mode: String,
}

/// What was asked to be judged.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    pub action: Action,
}

/// Classes and facets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Action {
    pub classes: Vec<String>,
    pub paths: Vec<String>,
    pub refs: Vec<String>,
    pub hosts: Vec<String>,
    pub commands: Vec<String>,
}

/// What was decided.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Decided {
    pub outcome: String,
    pub rule: String,
    pub denied: Option<Reason>,
    pub asks: Vec<Reason>,
}

/// Why.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Reason {
    pub rule: String,
    pub reason: String,
    pub code: String,
}

/// One record.
#[derive(Clone, Debug, Deserialize)]
pub struct Record {
    pub seq: u64,
    pub ts: jiff::Timestamp,
    pub kind: String,
    #[serde(default)]
    pub agent_id: String,
    #[serde(default)]
    pub principal: Who,
    #[serde(default)]
    pub request: Asked,
    #[serde(default)]
    pub decision: Decided,
    #[serde(default)]
    pub effect: String,
    #[serde(default)]
    pub mechanism: String,
    #[serde(default)]
    pub strength: String,
    #[serde(default)]
    pub pid: u32,
    #[serde(default)]
    pub exe: String,
    #[serde(default)]
    pub detail: Value,
}

impl Record {
    /// Reads a line.
    ///
    /// # Errors
    /// It is no record.
    pub fn read(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }

    /// It needed a yes, and was done without one.
    #[must_use]
    pub fn is_unasked(&self) -> bool {
        self.decision.outcome == "defer_for_approval" && self.effect == "done" && self.answer().is_empty()
    }

    /// What became of the question, and who answered it; empty if there was none.
    #[must_use]
    pub fn answer(&self) -> String {
        let approval = &self.detail["approval"];
        let answer = approval["answer"].as_str().unwrap_or_default();
        match approval["by"]["name"].as_str() {
            Some(name) => format!("{answer} by {name}"),
            None => answer.to_owned(),
        }
    }

    /// The event that a `daemon` record tells of, for example `agent started`.
    #[must_use]
    pub fn event(&self) -> &str {
        self.detail.get("event").and_then(Value::as_str).unwrap_or("")
    }

    /// How many acts this record stands for.
    #[must_use]
    pub fn acts(&self) -> u64 {
        self.detail.get("count").and_then(Value::as_u64).unwrap_or(1).max(1)
    }

    /// The act in the fewest words that name its object: the command, the host, the path.
    #[must_use]
    pub fn act(&self) -> String {
        let action = &self.request.action;
        let facets = [&action.commands, &action.hosts, &action.paths, &action.refs];
        if let Some(facet) = facets.into_iter().find(|facet| !facet.is_empty()) {
            return facet.join(" ");
        }
        let of = |key: &str| self.detail.get(key).and_then(Value::as_str).unwrap_or("");
        let words = [of("event"), of("act"), of("path"), of("address"), of("class")];
        let mut said: Vec<String> =
            words.into_iter().filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let number = |key: &str| self.detail.get(key).and_then(Value::as_u64);
        if let Some(port) = number("port") {
            said.push(format!("port {port}"));
        }
        if let (Some(sent), Some(received)) = (number("sent"), number("received"))
            && let Some(last) = said.last_mut()
        {
            last.push_str(&format!(", {sent} bytes sent, {received} received"));
        }
        if said.is_empty() && !self.detail.is_null() { self.detail.to_string() } else { said.join(" ") }
    }
}
