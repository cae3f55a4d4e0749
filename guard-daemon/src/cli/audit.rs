//! `audit tail`, `audit show`, `audit verify`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use guard_proto::v1;
use serde_json::{Value, json};

use super::{
    CliError, print,
    records::{From, Wanted},
    visible,
};
use crate::audit::{
    record::Record,
    verify::{Reason, verify},
};

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
        #[command(flatten)]
        wanted: Box<Wanted>,
        #[command(flatten)]
        from: From,
    },
    /// One record, whole
    Show {
        /// Number of the record
        seq: u64,
        #[command(flatten)]
        from: From,
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
            Self::Tail { lines, no_follow, wanted, from } => {
                let request = v1::AuditRequest {
                    backlog: lines,
                    follow: !no_follow && !from.is_files(),
                    filter: Some(wanted.filter()),
                };
                from.read(socket, request, |line| {
                    if json {
                        print(line);
                    } else {
                        print(human(line));
                    }
                    true
                })?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Show { seq, from } => show(socket, &from, seq, json),
            Self::Verify { path, key } => verify_path(&path, key.as_deref(), json),
        }
    }
}

fn show(socket: &Path, from: &From, seq: u64, json: bool) -> Result<ExitCode, CliError> {
    let start = format!(r#"{{"seq":{seq},"#);
    let mut found = None;
    let request = v1::AuditRequest { backlog: u32::MAX, follow: false, filter: None };
    from.read(socket, request, |line| {
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
    let Ok(record) = Record::read(line) else { return line.to_owned() };
    let time = record.ts.strftime("%H:%M:%S%.3f");
    let subject = if record.agent_id.is_empty() { &record.kind } else { &record.agent_id };
    let times = if record.acts() > 1 { format!(" ×{}", record.acts()) } else { String::new() };
    format!(
        "{:>7} {time} {subject:<16} {:<18} {:<8} {:<24} {}{times}",
        record.seq,
        record.decision.outcome,
        record.effect,
        record.request.action.classes.join(" "),
        visible(&record.act()),
    )
}
