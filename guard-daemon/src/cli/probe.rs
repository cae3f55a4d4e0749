//! `probe`: which rule decides about an act, and why. It counts nothing and records nothing.

use std::{path::Path, process::ExitCode};

use guard_policy::{Context, Request, Sessions};
use guard_proto::v1::{self, policy_client::PolicyClient};
use serde_json::{Map, Value, json};

use super::{CliError, connection::talk, coverage, eval::Files, print};

#[derive(Debug, clap::Args)]
pub(super) struct Probe {
    /// Class of the act; may be repeated
    #[arg(long, value_name = "CLASS", required_unless_present = "command")]
    class: Vec<String>,
    /// Command as it would be written; may be repeated
    #[arg(long, value_name = "CMD")]
    command: Vec<String>,
    /// File that it touches; without one the act says nothing about files
    #[arg(long, value_name = "PATH")]
    path: Vec<String>,
    /// Git ref that it touches
    #[arg(long = "ref", value_name = "REF")]
    reference: Vec<String>,
    /// Host that it reaches
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Port at every host
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// How many things it does
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// What it costs, in hundredths
    #[arg(long, value_name = "N")]
    cents: Option<u64>,
    #[command(flatten)]
    scope: Scope,
    /// Ask as if nobody could answer a question
    #[arg(long)]
    no_approver: bool,
    #[command(flatten)]
    files: Files,
}

/// Who acts, and where.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Scope {
    /// Name of the agent
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// Workspace that it works in
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    /// Space that it works in
    #[arg(long, value_name = "ID")]
    space: Option<String>,
    /// Mode that it works in
    #[arg(long, value_name = "ID")]
    mode: Option<String>,
    /// Session, for ceilings
    #[arg(long, value_name = "ID")]
    session: Option<String>,
}

impl Scope {
    /// The principal of a request.
    pub(super) fn principal(&self) -> Value {
        let parts = [
            ("agent", &self.agent),
            ("workspace", &self.workspace),
            ("space", &self.space),
            ("mode", &self.mode),
            ("session", &self.session),
        ];
        let parts = parts.into_iter().filter_map(|(key, part)| Some((key.to_owned(), json!(part.as_ref()?))));
        Value::Object(parts.collect::<Map<_, _>>())
    }
}

impl Probe {
    pub(super) fn run(&self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        let request = self.request();
        // Parsed here in either case, so that a mistyped class is told the same way.
        let mut parsed = Request::parse(request.to_string().as_bytes())
            .map_err(|fault| CliError::refused(fault.code.as_str(), self.told(&fault)))?;
        parsed.derive();
        let (mut decision, strengths) = if self.files.is_empty() {
            ask(socket, &request)?
        } else {
            let policy = self.files.load()?;
            let context = Context::new(jiff::Timestamp::now(), !self.no_approver);
            let decision = Sessions::default().decide(&policy, &parsed, &context);
            (json!(decision), None)
        };
        if let Some(strengths) = strengths {
            decision["strength"] = strengths;
        }
        if json {
            print(&decision);
        } else {
            show(&decision);
        }
        Ok(ExitCode::from(u8::from(
            decision["outcome"] != "allow" && decision["outcome"] != "allow_with_redaction",
        )))
    }

    fn request(&self) -> Value {
        let mut action = json!({"classes": self.class});
        let lists = [
            ("paths", &self.path),
            ("refs", &self.reference),
            ("hosts", &self.host),
            ("commands", &self.command),
        ];
        for (key, list) in lists {
            if !list.is_empty() {
                action[key] = json!(list);
            }
        }
        for (key, amount) in
            [("port", self.port.map(u64::from)), ("count", self.count), ("cents", self.cents)]
        {
            if let Some(amount) = amount {
                action[key] = json!(amount);
            }
        }
        json!({"principal": self.scope.principal(), "action": action, "approver": !self.no_approver})
    }

    fn told(&self, fault: &guard_policy::Fault) -> String {
        match &fault.nearest {
            Some(nearest) => format!("{}; did you mean `{nearest}`?", fault.message),
            None => fault.message.clone(),
        }
    }
}

/// Asks the daemon, and how strongly this host holds each class.
fn ask(socket: &Path, request: &Value) -> Result<(Value, Option<Value>), CliError> {
    let request = request.to_string().into_bytes();
    let response = talk(socket, |channel| async move {
        let mut client = PolicyClient::new(channel).max_decoding_message_size(64 << 20);
        Ok(client.decide(v1::DecideRequest { request, probe: true }).await?.into_inner())
    })?;
    let mut decision: Value = serde_json::from_slice(&response.decision).map_err(|error| {
        CliError::refused("decision_unreadable", format!("the daemon's decision: {error}"))
    })?;
    decision["generation"] = json!(response.generation);
    let coverage = coverage::fetch(socket).ok();
    let strengths = coverage.map(|coverage| {
        let held = |class: &str| coverage.classes.iter().find(|row| row.class == class);
        let classes = decision["matched"].as_array().into_iter().flatten();
        let classes = classes.filter_map(|matched| matched["class"].as_str());
        classes.filter_map(|class| Some((class.to_owned(), json!(held(class)?.strength)))).collect()
    });
    Ok((decision, strengths))
}

/// The answer for people: what, why, and every rule that had a say.
fn show(decision: &Value) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    print(format_args!("{}  {}", word(&decision["outcome"]), word(&decision["rule"])));
    if let Some(denied) = decision.get("denied") {
        print(format_args!("  {}", word(&denied["reason"])));
    }
    for ask in decision["asks"].as_array().into_iter().flatten() {
        print(format_args!("  {}", word(&ask["reason"])));
    }
    for matched in decision["matched"].as_array().into_iter().flatten() {
        let constraint = matched["constraint"].as_str().map(|text| format!("  ({text})")).unwrap_or_default();
        print(format_args!(
            "  {:<9} {}  {}  {} {}{constraint}",
            word(&matched["status"]),
            word(&matched["rule"]),
            word(&matched["scope"]),
            word(&matched["level"]),
            word(&matched["effect"]),
        ));
    }
    for (class, strength) in decision["strength"].as_object().into_iter().flatten() {
        print(format_args!("  on this host {class} is {}", word(strength)));
    }
    let hidden = decision["matched"].as_array().into_iter().flatten();
    for matched in hidden.filter(|matched| matched["effect"] == "deny" && matched["status"] == "shadowed") {
        print(format_args!(
            "  note: the denial `{}` is shadowed by a more specific rule",
            word(&matched["rule"])
        ));
    }
}
