//! `audit tail`, `audit show`, `audit verify`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use guard_proto::v1::{self, host_client::HostClient};
use serde_json::{Value, json};

use super::{CliError, connection::talk, print};
use crate::audit::verify::{Reason, verify};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Audit {
    /// The last records, and new ones as they come
    Tail {
        /// Records to look back
        #[arg(short = 'n', long, default_value_t = 20)]
        lines: u32,
        /// End after the last record instead of waiting for more
        #[arg(long)]
        no_follow: bool,
        /// Only this agent's records
        #[arg(long, value_name = "AGENT-ID")]
        agent: Option<String>,
    },
    /// One record, whole
    Show {
        /// Number of the record
        seq: u64,
    },
    /// Check the chain of hashes and the checkpoints' signatures; needs no daemon
    Verify {
        /// Directory of segments, or one segment
        #[arg(default_value = "/var/log/guard")]
        path: PathBuf,
        /// Public key (base64) that must have signed the checkpoints
        #[arg(long)]
        key: Option<String>,
    },
}

impl Audit {
    /// Runs the sub-command.
    pub(super) fn run(self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        match self {
            Self::Tail { lines, no_follow, agent } => {
                let request = v1::AuditRequest {
                    backlog: lines,
                    follow: !no_follow,
                    agent_id: agent.unwrap_or_default(),
                };
                read(socket, request, |line| {
                    if json {
                        print(line);
                    } else {
                        print(human(line));
                    }
                    true
                })?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Show { seq } => show(socket, seq, json),
            Self::Verify { path, key } => verify_path(&path, key.as_deref(), json),
        }
    }
}

/// Reads lines until the stream ends or `each` has seen enough.
fn read(
    socket: &Path,
    request: v1::AuditRequest,
    mut each: impl FnMut(&str) -> bool,
) -> Result<(), CliError> {
    talk(socket, |channel| async move {
        let mut lines = HostClient::new(channel).audit(request).await?.into_inner();
        while let Some(line) = lines.message().await? {
            if !each(&String::from_utf8_lossy(&line.line)) {
                break;
            }
        }
        Ok(())
    })
}

fn show(socket: &Path, seq: u64, json: bool) -> Result<ExitCode, CliError> {
    let start = format!(r#"{{"seq":{seq},"#);
    let mut found = None;
    let request = v1::AuditRequest { backlog: u32::MAX, follow: false, agent_id: String::new() };
    read(socket, request, |line| {
        if line.starts_with(&start) {
            found = Some(line.to_owned());
        }
        found.is_none()
    })?;
    let Some(line) = found else {
        return Err(CliError::refused("no_such_record", format!("there is no record {seq}")));
    };
    if json {
        print(line);
    } else {
        let value: Value = serde_json::from_str(&line)
            .map_err(|error| CliError::refused("audit_unreadable", format!("record {seq}: {error}")))?;
        print(format_args!("{value:#}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn verify_path(path: &Path, key: Option<&str>, json: bool) -> Result<ExitCode, CliError> {
    let report =
        verify(path, key).map_err(|error| CliError::refused("audit_unreadable", error.to_string()))?;
    if json {
        print(json!(report));
    } else if let Some(bad) = &report.first_bad {
        let why = match bad.reason {
            Reason::Hash => "its hash does not fit its content",
            Reason::Prev => "it does not follow the record before it",
            Reason::Seq => "its number is not the next one",
            Reason::Form => "it is not a record",
            Reason::Signature => "the checkpoint's signature is not valid",
            Reason::Truncated => "it ends in the middle",
        };
        print(format_args!("record {} is bad: {why} ({}:{})", bad.seq, bad.file.display(), bad.line));
    } else {
        print(format_args!(
            "{} records, {} signed checkpoints: all good",
            report.records, report.checkpoints
        ));
    }
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One record as one line for people: number, time, agent, outcome, effect, classes and the act.
fn human(line: &str) -> String {
    let Ok(record) = serde_json::from_str::<Value>(line) else { return line.to_owned() };
    let text = |path: &str| record.pointer(path).and_then(Value::as_str).unwrap_or("");
    let list = |path: &str| {
        record
            .pointer(path)
            .and_then(Value::as_array)
            .map(|items| items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
    };
    let time = text("/ts").get(11..23).unwrap_or("");
    let act = ["commands", "hosts", "paths"]
        .into_iter()
        .filter_map(|facet| list(&format!("/request/action/{facet}")))
        .find(|facet| !facet.is_empty())
        .unwrap_or_else(|| record.get("detail").map(Value::to_string).unwrap_or_default());
    let subject = if text("/agent_id").is_empty() { text("/kind") } else { text("/agent_id") };
    format!(
        "{:>7} {time} {subject:<16} {:<18} {:<8} {:<24} {act}",
        record.get("seq").and_then(Value::as_u64).unwrap_or(0),
        text("/decision/outcome"),
        text("/effect"),
        list("/request/action/classes").unwrap_or_default(),
    )
}
