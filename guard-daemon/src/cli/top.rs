//! `top`: what agents do right now.

use std::{
    collections::HashMap,
    io::{IsTerminal as _, Write as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use guard_proto::v1::{self, agents_client::AgentsClient, host_client::HostClient};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{CliError, connection::talk, print, visible};
use crate::audit::record::Record;

#[derive(Debug, clap::Args)]
pub(super) struct Top {
    /// Seconds between two looks
    #[arg(short, long, default_value_t = 2.0, value_parser = interval)]
    interval: f64,
    /// End after so many looks
    #[arg(short = 'n', long)]
    iterations: Option<u64>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("an interval is between 0.1 and 3600 seconds".to_owned()),
    }
}

/// What one agent did since the last look, and since this began.
#[derive(Clone, Debug, Default)]
struct Seen {
    now: u64,
    acts: u64,
    stopped: u64,
    unasked: u64,
    last: String,
}

impl Seen {
    fn add(&mut self, record: &Record) {
        self.now += record.acts();
        self.acts += record.acts();
        match record.effect.as_str() {
            "refused" | "fenced" | "killed" => self.stopped += record.acts(),
            "done" if record.is_unasked() => self.unasked += record.acts(),
            _ => {}
        }
        self.last = record.act();
    }
}

impl Top {
    pub(super) fn run(self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        talk(socket, |channel| async move {
            let request = v1::AuditRequest {
                backlog: 0,
                follow: true,
                filter: Some(v1::AuditFilter { kinds: vec!["decision".to_owned()], ..Default::default() }),
            };
            let mut lines = HostClient::new(channel.clone()).audit(request).await?.into_inner();
            let mut agents = AgentsClient::new(channel);
            let mut seen: HashMap<String, Seen> = HashMap::new();
            let mut looks = 0;
            loop {
                let until = Instant::now() + Duration::from_secs_f64(self.interval);
                loop {
                    tokio::select! {
                        () = sleep_until(until) => break,
                        line = lines.message() => {
                            let Some(line) = line? else {
                                return Err(CliError::refused("daemon_ended", "the daemon ended the conversation"));
                            };
                            if let Ok(record) = Record::read(&String::from_utf8_lossy(&line.line)) {
                                seen.entry(record.agent_id.clone()).or_default().add(&record);
                            }
                        }
                    }
                }
                let running = agents.list(v1::ListRequest {}).await?.into_inner().agents;
                self.look(&running, &seen, json);
                seen.values_mut().for_each(|seen| seen.now = 0);
                looks += 1;
                if self.iterations.is_some_and(|iterations| looks >= iterations) {
                    return Ok(());
                }
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn look(&self, running: &[v1::Agent], seen: &HashMap<String, Seen>, json: bool) {
        let nothing = Seen::default();
        if !json {
            if std::io::stdout().is_terminal() {
                print!("\x1b[H\x1b[2J");
            }
            print(format_args!(
                "{:<20} {:<9} {:>5} {:>8} {:>8} {:>8} {:>8}  LAST ACT",
                "AGENT", "STATE", "PROCS", "ACTS/S", "ACTS", "STOPPED", "UNASKED"
            ));
        }
        for agent in running {
            let seen = seen.get(&agent.agent_id).unwrap_or(&nothing);
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = seen.now as f64 / self.interval;
            if json {
                print(json!({
                    "agent_id": agent.agent_id, "state": agent.state, "processes": agent.processes,
                    "acts_per_second": rate, "acts": seen.acts, "stopped": seen.stopped,
                    "unasked": seen.unasked, "last": seen.last,
                }));
            } else {
                let last: String = visible(&seen.last).chars().take(60).collect();
                print(format_args!(
                    "{:<20} {:<9} {:>5} {rate:>8.1} {:>8} {:>8} {:>8}  {last}",
                    agent.agent_id, agent.state, agent.processes, seen.acts, seen.stopped, seen.unasked
                ));
            }
        }
        if !json && running.is_empty() {
            print("no agent is running");
        }
        // A terminal that went away is noticed by the next line.
        let _ = std::io::stdout().flush();
    }
}
