//! `replay` and `learn`: a record judged again, and a policy made from one.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::ExitCode,
};

use guard_policy::{
    Policy,
    history::{Learner, Recorded, Replay},
    review::sentence,
};
use guard_proto::v1;
use serde_json::json;

use super::{CliError, eval::Files, print, records::From};
use crate::audit::segments;

#[derive(Debug, clap::Args)]
pub(super) struct ReplayCommand {
    /// Directory of segments, or one segment
    audit: PathBuf,
    #[command(flatten)]
    files: Files,
    /// Also tell where the answer is the same and another rule gives it
    #[arg(long)]
    rules: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Learn {
    /// Session, or agent id, whose acts are looked at
    session: String,
    #[command(flatten)]
    from: From,
}

/// Gives each line of a record on disk.
fn lines(path: &Path, mut each: impl FnMut(&[u8])) -> Result<(), CliError> {
    let refused = |message: String| CliError::refused("audit_unreadable", message);
    for segment in segments(path).map_err(|error| refused(error.to_string()))? {
        let wrong = |error: std::io::Error| refused(format!("cannot read {}: {error}", segment.display()));
        for line in BufReader::new(File::open(&segment).map_err(wrong)?).split(b'\n') {
            each(&line.map_err(wrong)?);
        }
    }
    Ok(())
}

impl ReplayCommand {
    pub(super) fn run(&self, json: bool) -> Result<ExitCode, CliError> {
        let mut replay = Replay::new(self.files.load()?);
        let mut number = 0_u64;
        lines(&self.audit, |line| {
            number += 1;
            if line.iter().all(u8::is_ascii_whitespace) {
                return;
            }
            match replay.line(line) {
                Ok(Some(difference)) if difference.is_another_answer() || self.rules => {
                    if json {
                        return print(json!(difference));
                    }
                    let classes: Vec<&str> =
                        difference.request.action.classes.iter().map(|class| class.as_str()).collect();
                    print(format_args!(
                        "{:>7} {} {}: {} by {} would be {} by {}{}",
                        difference.seq,
                        difference.at,
                        classes.join(" "),
                        difference.before.0,
                        difference.before.1,
                        difference.after.0,
                        difference.after.1,
                        difference.reason.map(|reason| format!(" ({reason})")).unwrap_or_default(),
                    ));
                }
                Ok(_) => {}
                Err(fault) => eprintln!("line {number}: {}", fault.message),
            }
        })?;
        let summary = replay.summary();
        if json {
            print(json!({"summary": summary}));
        } else {
            for (rule, advice) in &summary.advisory {
                print(format_args!(
                    "advisory {rule}: would have denied {}, asked about {}, allowed {} (records {})",
                    advice.denied,
                    advice.asked,
                    advice.allowed,
                    advice.examples.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
                ));
            }
            print(format_args!(
                "{} decisions, {} with another answer: {} newly denied, {} newly asked about, {} newly allowed; {} lines could not be read",
                summary.decisions,
                summary.changed,
                summary.newly_denied,
                summary.newly_asked,
                summary.newly_allowed,
                summary.unreadable,
            ));
        }
        Ok(ExitCode::from(u8::from(summary.unreadable > 0)))
    }
}

impl Learn {
    pub(super) fn run(&self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        let mut learner = Learner::default();
        let mut take = |line: &[u8]| {
            let Ok(Some(recorded)) = Recorded::parse(line) else { return };
            let session = recorded.request.principal.session.as_deref();
            if session == Some(self.session.as_str()) || recorded.agent_id == self.session {
                learner.observe(&recorded);
            }
        };
        let request = v1::AuditRequest { backlog: u32::MAX, ..v1::AuditRequest::default() };
        self.from.read(socket, request, |line| {
            take(line.as_bytes());
            true
        })?;
        let learned = learner.propose();
        if learned.acts == 0 {
            let message = format!("the record has no act of session `{}` that went through", self.session);
            return Err(CliError::refused("no_such_session", message));
        }
        let text = learned.policy.to_string();
        let policy = Policy::load(Some(("proposal", text.as_bytes())), None).map_err(|faults| {
            CliError::faults(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        })?;
        if json {
            print(json!({"policy": learned.policy, "acts": learned.acts, "left_out": learned.left_out,
                "sentences": sentence::policy(&policy).iter().map(|one| &one.text).collect::<Vec<_>>()}));
        } else {
            print(format_args!("{:#}", learned.policy));
            eprintln!("from {} acts:", learned.acts);
            for sentence in sentence::policy(&policy) {
                eprintln!("  {}: {}", sentence.rule, sentence.text);
            }
            for left_out in &learned.left_out {
                eprintln!("  asked about as before: {left_out}");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
