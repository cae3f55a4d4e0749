//! `ps`, `freeze`, `thaw`, `kill`, `net-cut`.

use std::{path::Path, process::ExitCode};

use guard_proto::v1::{self, agents_client::AgentsClient};
use serde_json::json;

use super::{CliError, connection::talk, print};

/// Which agents.
#[derive(Debug, clap::Args)]
#[group(required = true)]
pub(super) struct Selection {
    /// Ids or names, as `guardctl ps` shows them
    #[arg(value_name = "AGENT")]
    agents: Vec<String>,
    /// Every agent that you may act on
    #[arg(long, conflicts_with = "agents")]
    all: bool,
}

/// What to do with them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Freeze,
    Thaw,
    Kill,
    NetCut,
}

impl Change {
    fn done(self) -> &'static str {
        match self {
            Self::Freeze => "frozen",
            Self::Thaw => "thawed",
            Self::Kill => "killed",
            Self::NetCut => "cut off",
        }
    }
}

impl Selection {
    /// Acts on the selected agents and names each.
    pub(super) fn change(self, socket: &Path, json: bool, change: Change) -> Result<ExitCode, CliError> {
        let selection = v1::Selection { all: self.all, agents: self.agents };
        let changed = talk(socket, |channel| async move {
            let mut client = AgentsClient::new(channel);
            let changed = match change {
                Change::Freeze => client.freeze(selection).await?,
                Change::Thaw => client.thaw(selection).await?,
                Change::Kill => client.kill(selection).await?,
                Change::NetCut => client.net_cut(selection).await?,
            };
            Ok(changed.into_inner())
        })?;
        if json {
            print(json!({"done": change.done(), "agents": changed.agent_ids}));
        } else if changed.agent_ids.is_empty() {
            print("no agent is running");
        } else {
            for id in changed.agent_ids {
                print(format_args!("{} {id}", change.done()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Lists agents.
pub(super) fn list(socket: &Path, json: bool) -> Result<ExitCode, CliError> {
    let agents = talk(socket, |channel| async move {
        Ok(AgentsClient::new(channel).list(v1::ListRequest {}).await?.into_inner().agents)
    })?;
    if json {
        for agent in &agents {
            print(as_json(agent));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if agents.is_empty() {
        print("no agent is running");
        return Ok(ExitCode::SUCCESS);
    }
    print(format_args!("{:<20} {:>6} {:>8} {:>5} {:<9} COMMAND", "AGENT", "UID", "PID", "PROCS", "STATE"));
    for agent in &agents {
        let state = if agent.net_cut { format!("{}, cut", agent.state) } else { agent.state.clone() };
        print(format_args!(
            "{:<20} {:>6} {:>8} {:>5} {:<9} {}",
            agent.agent_id,
            agent.uid,
            agent.pid,
            agent.processes,
            state,
            String::from_utf8_lossy(&agent.argv0)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(agent: &v1::Agent) -> serde_json::Value {
    let principal = agent.principal.clone().unwrap_or_default();
    json!({
        "agent_id": agent.agent_id,
        "principal": {
            "agent": principal.agent, "session": principal.session, "workspace": principal.workspace,
            "space": principal.space, "mode": principal.mode,
        },
        "uid": agent.uid,
        "owner_uid": agent.owner_uid,
        "pid": agent.pid,
        "command": String::from_utf8_lossy(&agent.argv0),
        "started_ms": agent.started_ms,
        "state": agent.state,
        "net_cut": agent.net_cut,
        "worktree": String::from_utf8_lossy(&agent.worktree),
        "processes": agent.processes,
    })
}
