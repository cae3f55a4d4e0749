//! Where records come from, the daemon or files, and which of them are wanted.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

use guard_proto::v1::{self, host_client::HostClient};

use super::{CliError, connection::talk};
use crate::audit::{filter::Filter, segments};

/// Which records.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Wanted {
    /// Only this agent's
    #[arg(long, value_name = "AGENT-ID")]
    agent: Option<String>,
    /// Only this session's
    #[arg(long)]
    session: Option<String>,
    /// Only of this kind: decision, approval, override, policy, sandbox, loss, daemon; may be repeated
    #[arg(long)]
    kind: Vec<String>,
    /// Only with this outcome: allow, allow_with_redaction, defer_for_approval, deny; may be repeated
    #[arg(long)]
    outcome: Vec<String>,
    /// Only with this effect: done, refused, fenced, killed, none; may be repeated
    #[arg(long)]
    effect: Vec<String>,
    /// Only acts of this class; may be repeated
    #[arg(long)]
    class: Vec<String>,
    /// Only records that hold this text
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Only from this moment on: RFC 3339, or how long ago (`10m`, `2h`)
    #[arg(long, value_parser = moment, value_name = "TIME")]
    since: Option<u64>,
    /// Only before this moment
    #[arg(long, value_parser = moment, value_name = "TIME")]
    until: Option<u64>,
}

impl Wanted {
    pub(super) fn filter(self) -> v1::AuditFilter {
        v1::AuditFilter {
            agent_id: self.agent.unwrap_or_default(),
            session: self.session.unwrap_or_default(),
            kinds: self.kind,
            outcomes: self.outcome,
            effects: self.effect,
            classes: self.class,
            text: self.grep.unwrap_or_default(),
            since_ns: self.since.unwrap_or(0),
            until_ns: self.until.unwrap_or(0),
        }
    }
}

fn moment(text: &str) -> Result<u64, String> {
    let at = text.parse::<jiff::Timestamp>().or_else(|error| {
        let ago: jiff::SignedDuration = text.parse().map_err(|_| {
            format!("{error}; a moment is `2026-11-30T12:00:00Z`, or how long ago it was, like `10m`")
        })?;
        jiff::Timestamp::now().checked_sub(ago.abs()).map_err(|error| error.to_string())
    })?;
    u64::try_from(at.as_nanosecond()).map_err(|_| "that is before 1970".to_owned())
}

/// Where to read.
#[derive(Debug, Default, clap::Args)]
pub(super) struct From {
    /// Read these files instead of asking the daemon: a directory of segments, or one segment
    #[arg(long = "from", value_name = "PATH")]
    path: Option<PathBuf>,
}

impl From {
    pub(super) fn is_files(&self) -> bool {
        self.path.is_some()
    }

    /// Gives the last `backlog` records that fit, in order, then new ones with `follow`, until `each` says no.
    ///
    /// # Errors
    /// The daemon or the files cannot be read.
    pub(super) fn read(
        &self,
        socket: &Path,
        request: v1::AuditRequest,
        each: impl FnMut(&str) -> bool,
    ) -> Result<(), CliError> {
        match &self.path {
            Some(path) => files(path, request, each),
            None => daemon(socket, request, each),
        }
    }
}

fn daemon(
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

fn files(path: &Path, request: v1::AuditRequest, mut each: impl FnMut(&str) -> bool) -> Result<(), CliError> {
    let unreadable = |what: &Path, error: &dyn std::fmt::Display| {
        CliError::refused("audit_unreadable", format!("cannot read {}: {error}", what.display()))
    };
    let filter = Filter::new(request.filter.unwrap_or_default())
        .map_err(|error| CliError::refused("unknown_word", error.to_string()))?;
    let backlog = usize::try_from(request.backlog).unwrap_or(usize::MAX);
    let mut last = std::collections::VecDeque::new();
    for segment in segments(path).map_err(|error| unreadable(path, &error))? {
        let file = File::open(&segment).map_err(|error| unreadable(&segment, &error))?;
        for line in BufReader::new(file).lines() {
            let line = line.map_err(|error| unreadable(&segment, &error))?;
            if filter.fits(&line) {
                last.push_back(line);
                if last.len() > backlog {
                    last.pop_front();
                }
            }
        }
    }
    for line in last {
        if !each(&line) {
            break;
        }
    }
    Ok(())
}
