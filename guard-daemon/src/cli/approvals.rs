//! `approvals`: what waits for a yes, and what is remembered of earlier ones.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Read as _},
    path::Path,
    process::ExitCode,
};

use guard_proto::v1::{self, approvals_client::ApprovalsClient, change_rules_request::Change};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{
    CliError,
    connection::talk,
    print,
    rules::{change, parsed, seconds, show},
    visible,
};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Approvals {
    /// The acts that wait for a yes, then the answers that are remembered, each with its end
    List,
    /// Show what waits as it comes, and answer with one key; as long as this runs there is somebody who can
    Watch,
    /// Answer one act that waits
    Answer(Answer),
    /// Remember a yes for a while
    Grant(Grant),
    /// End one before its time
    Revoke {
        /// Its name
        id: String,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Answer {
    /// Its number
    id: u64,
    /// What is to become of it
    answer: YesNo,
    /// Keep a yes as a rule
    #[arg(long, requires = "ttl", requires = "scope")]
    remember: bool,
    /// For how long it is kept, such as 4h; at most 30 days
    #[arg(long, value_parser = seconds, value_name = "TIME", requires = "remember")]
    ttl: Option<u64>,
    /// Where it is kept: space:ID, agent:ID or workspace:ID
    #[arg(long, requires = "remember")]
    scope: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum YesNo {
    Yes,
    No,
}

#[derive(Debug, clap::Args)]
pub(super) struct Grant {
    /// Class that is approved
    #[arg(long)]
    class: String,
    /// File of the act; in the worktree its directory is approved
    #[arg(long, value_name = "PATH")]
    path: Vec<String>,
    /// Ref of the act; `feature/login` approves `feature/**`
    #[arg(long = "ref", value_name = "REF")]
    reference: Vec<String>,
    /// Host of the act
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Where it holds: space:ID, agent:ID or workspace:ID
    #[arg(long)]
    scope: String,
    /// How long, such as 4h; at most 30 days
    #[arg(long, value_parser = seconds, value_name = "TIME")]
    ttl: u64,
    /// Only show the rule that would be written
    #[arg(long)]
    preview: bool,
}

impl Approvals {
    pub(super) fn run(self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        match self {
            Self::List => {
                list(socket, json)?;
                show(socket, json, |rule| rule["provenance"] == "remembered")
            }
            Self::Watch => watch(socket, json),
            Self::Answer(answer) => answer.run(socket, json),
            Self::Grant(grant) => change(socket, Change::Grant(grant.message()), json),
            Self::Revoke { id } => change(socket, Change::Remove(id), json),
        }
    }
}

impl Grant {
    fn message(self) -> v1::Grant {
        let mut action = json!({"classes": [self.class]});
        for (key, list) in [("paths", &self.path), ("refs", &self.reference), ("hosts", &self.host)] {
            if !list.is_empty() {
                action[key] = json!(list);
            }
        }
        v1::Grant {
            request: json!({"action": action}).to_string().into_bytes(),
            class: self.class,
            scope: self.scope,
            ttl_seconds: self.ttl,
            preview: self.preview,
        }
    }
}

fn list(socket: &Path, json: bool) -> Result<(), CliError> {
    let response = talk(socket, |channel| async move {
        Ok(ApprovalsClient::new(channel).list(v1::ListApprovalsRequest {}).await?.into_inner())
    })?;
    for waiting in parsed(&response.json)?.as_array().into_iter().flatten() {
        if json { print(waiting) } else { print(told(waiting)) }
    }
    Ok(())
}

/// Who wants what, and why that is asked: every reason, and the exact object.
fn told(waiting: &Value) -> String {
    let word = |value: &Value| visible(value.as_str().unwrap_or_default()).into_owned();
    let act = &waiting["act"];
    let who = match waiting["principal"]["agent"].as_str() {
        Some(name) => format!("{} ({})", visible(name), word(&waiting["agent_id"])),
        None => word(&waiting["agent_id"]),
    };
    let mut text = format!("[{}] {who} wants to {} {}", waiting["id"], word(&act["act"]), word(&act["path"]));
    if act["other"].as_str().is_some_and(|other| !other.is_empty()) {
        text.push_str(&format!(" onto {}", word(&act["other"])));
    }
    text.push_str(&format!("\n    by {}, process {}", word(&waiting["exe"]), waiting["pid"]));
    for ask in waiting["asks"].as_array().into_iter().flatten() {
        text.push_str(&format!("\n    {}: {}", word(&ask["resource_class"]), word(&ask["reason"])));
    }
    for sentence in waiting["remember"]["sentences"].as_array().into_iter().flatten() {
        text.push_str(&format!("\n    r keeps: {}", word(sentence)));
    }
    text.push_str(&format!("\n    refused at {}", word(&waiting["expires"])));
    text
}

impl Answer {
    fn run(self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        let request = v1::AnswerRequest {
            id: self.id,
            yes: self.answer == YesNo::Yes,
            remember_seconds: self.ttl.unwrap_or(0),
            scope: self.scope.unwrap_or_default(),
        };
        let response = talk(socket, |channel| async move {
            Ok(ApprovalsClient::new(channel).answer(request).await?.into_inner())
        })?;
        if json {
            print(
                json!({"id": self.id, "answer": self.answer == YesNo::Yes, "remembered": response.remembered}),
            );
        } else {
            for sentence in &response.remembered {
                print(sentence);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn watch(socket: &Path, json: bool) -> Result<ExitCode, CliError> {
    let keys = Keys::take();
    let (press, mut pressed) = mpsc::unbounded_channel();
    if keys.is_some() {
        eprintln!("of the oldest that waits: y yes, n no, r yes and keep it; q quit");
        std::thread::spawn(move || {
            for key in std::io::stdin().lock().bytes().map_while(Result::ok) {
                if press.send(key).is_err() {
                    return;
                }
            }
        });
    }
    talk(socket, |channel| async move {
        let no_signals = |error: std::io::Error| CliError::refused("runtime", error.to_string());
        let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
        let mut client = ApprovalsClient::new(channel);
        let mut events = client.watch(v1::WatchApprovalsRequest {}).await?.into_inner();
        let mut waiting: BTreeMap<u64, Value> = BTreeMap::new();
        loop {
            tokio::select! {
                event = events.message() => {
                    let Some(event) = event? else { return Ok(ExitCode::SUCCESS) };
                    let event: Value = parsed(&event.json)?;
                    if event["event"] == "watching" && !json {
                        continue;
                    }
                    if event["event"] == "asked" {
                        let id = event["waiting"]["id"].as_u64();
                        waiting.extend(id.map(|id| (id, event["waiting"]["remember"].clone())));
                    } else if let Some(id) = event["id"].as_u64() {
                        waiting.remove(&id);
                    }
                    if json {
                        print(event);
                    } else if event["event"] == "asked" {
                        print(told(&event["waiting"]));
                    } else {
                        let by = event["by"]["name"].as_str().map(|name| format!(" by {name}"));
                        let answer = event["answer"].as_str().unwrap_or_default();
                        print(format_args!("[{}] {answer}{}", event["id"], by.unwrap_or_default()));
                    }
                }
                // Ended otherwise, the terminal would stay without echo.
                _ = interrupt.recv() => return Ok(ExitCode::from(130)),
                _ = terminate.recv() => return Ok(ExitCode::from(143)),
                Some(key) = pressed.recv() => {
                    let Some((id, kept)) = waiting.first_key_value() else {
                        if key == b'q' {
                            return Ok(ExitCode::SUCCESS);
                        }
                        continue;
                    };
                    let mut answer = v1::AnswerRequest { id: *id, yes: key != b'n', ..Default::default() };
                    match key {
                        b'q' => return Ok(ExitCode::SUCCESS),
                        b'y' | b'n' => {}
                        b'r' if kept.is_null() => {
                            eprintln!("this cannot be kept narrowly; y or n");
                            continue;
                        }
                        b'r' => {
                            answer.remember_seconds = kept["seconds"].as_u64().unwrap_or_default();
                            kept["scope"].as_str().unwrap_or_default().clone_into(&mut answer.scope);
                        }
                        _ => continue,
                    }
                    // Somebody else may have been faster: the event says so.
                    if let Err(error) = client.answer(answer).await {
                        eprintln!("{}", CliError::from(error));
                    }
                }
            }
        }
    })
}

/// Keys one by one, without echo; dropping it brings back what was before.
struct Keys(Termios);

impl Keys {
    fn take() -> Option<Self> {
        let stdin = std::io::stdin();
        let before = stdin.is_terminal().then(|| tcgetattr(&stdin).ok()).flatten()?;
        let mut single = before.clone();
        single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Now, &single).ok()?;
        Some(Self(before))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // Nothing better can be done if the terminal has gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}
