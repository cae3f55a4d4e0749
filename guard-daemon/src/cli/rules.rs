//! `rules`, `autonomy`, `delegate`: what people change while the daemon runs.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use guard_proto::v1::{
    self, change_rules_request::Change, policy_client::PolicyClient, rules_client::RulesClient,
};
use serde_json::{Value, json};

use super::{CliError, connection::talk, eval::contents, print, probe::Scope};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Rules {
    /// The rules that are kept beside the policy file
    List,
    /// Add a rule, in force at once
    Add {
        /// File with one rule, as it stands in a policy file
        file: PathBuf,
    },
    /// Take a rule away
    Remove {
        /// Its name
        id: String,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Autonomy {
    /// The dial of each space that has one
    Show,
    /// Set the dial of a space: proposeOnly, actWithApproval or actFreely
    Set { space: String, value: String },
}

#[derive(Debug, clap::Args)]
pub(super) struct Delegate {
    /// Agent that gets the task
    #[arg(long, value_name = "AGENT")]
    to: String,
    /// Who handed it on before, the root agent first; may be repeated
    #[arg(long, value_name = "AGENT")]
    chain: Vec<String>,
    /// How freely it is to act
    #[arg(long, value_name = "VALUE")]
    autonomy: Option<String>,
    #[command(flatten)]
    scope: Scope,
}

pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let span: jiff::SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    u64::try_from(span.as_secs()).map_err(|_| "a time to come is positive".to_owned())
}

fn list(socket: &Path) -> Result<Value, CliError> {
    let response = talk(socket, |channel| async move {
        Ok(RulesClient::new(channel).list(v1::ListRulesRequest {}).await?.into_inner())
    })?;
    let mut found: Value = parsed(&response.json)?;
    found["generation"] = json!(response.generation);
    Ok(found)
}

pub(super) fn parsed(bytes: &[u8]) -> Result<Value, CliError> {
    serde_json::from_slice(bytes).map_err(|error| CliError::refused("answer_unreadable", error.to_string()))
}

pub(super) fn change(socket: &Path, change: Change, json: bool) -> Result<ExitCode, CliError> {
    let request = v1::ChangeRulesRequest { change: Some(change) };
    let response =
        talk(
            socket,
            |channel| async move { Ok(RulesClient::new(channel).change(request).await?.into_inner()) },
        )?;
    let mut done = parsed(&response.json)?;
    done["generation"] = json!(response.generation);
    if json {
        print(done);
    } else {
        for (word, rule) in [("was", &done["before"]), ("is", &done["after"])] {
            if !rule.is_null() {
                print(format_args!("{word} {rule}"));
            }
        }
        if let Some(sentence) = done["sentence"].as_str().filter(|sentence| !sentence.is_empty()) {
            print(sentence);
        }
        print(format_args!("policy generation {} is in force", response.generation));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(socket: &Path, json: bool, wanted: impl Fn(&Value) -> bool) -> Result<ExitCode, CliError> {
    let found = list(socket)?;
    for entry in found["rules"].as_array().into_iter().flatten().filter(|entry| wanted(&entry["rule"])) {
        if json {
            print(entry);
        } else {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            print(format_args!(
                "{}: {} (by {}, {})",
                word(&entry["rule"]["id"]),
                word(&entry["sentence"]),
                word(&entry["by"]),
                word(&entry["at"])
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Rules {
    pub(super) fn run(self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        match self {
            Self::List => show(socket, json, |_| true),
            Self::Add { file } => change(socket, Change::Add(contents(&file)?.1), json),
            Self::Remove { id } => change(socket, Change::Remove(id), json),
        }
    }
}

impl Autonomy {
    pub(super) fn run(self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        match self {
            Self::Show => {
                let found = list(socket)?;
                if json {
                    print(&found["autonomy"]);
                } else {
                    for (space, value) in found["autonomy"].as_object().into_iter().flatten() {
                        print(format_args!("{space}: {}", value.as_str().unwrap_or_default()));
                    }
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::Set { space, value } => {
                change(socket, Change::Autonomy(v1::SetAutonomy { space, value }), json)
            }
        }
    }
}

impl Delegate {
    pub(super) fn run(&self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        let mut delegate = json!({"to": self.to, "chain": self.chain});
        if let Some(autonomy) = &self.autonomy {
            delegate["autonomy"] = json!(autonomy);
        }
        let request = json!({"principal": self.scope.principal(), "delegate": delegate}).to_string();
        let response = talk(socket, |channel| async move {
            let request = v1::DecideRequest { request: request.into_bytes(), probe: false };
            Ok(PolicyClient::new(channel).decide(request).await?.into_inner())
        })?;
        let decision = parsed(&response.decision)?;
        let allowed = decision["outcome"] == "allow";
        if json {
            print(&decision);
        } else if allowed {
            print(format_args!("{} may have it", self.to));
        } else {
            print(decision["denied"]["reason"].as_str().unwrap_or_default());
        }
        Ok(ExitCode::from(u8::from(!allowed)))
    }
}
