//! `session list` and `session show`: one run told as a story.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, process::ExitCode};

use guard_common::ActionClass;
use guard_proto::v1;
use serde_json::json;

use super::{CliError, print, records::From, visible};
use crate::audit::{
    record::Record,
    story::{Run, Step, Story},
};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Session {
    /// The sessions in the record
    List {
        #[command(flatten)]
        from: From,
    },
    /// What one session did, step by step
    Show {
        /// A session, or an agent's id
        id: String,
        #[command(flatten)]
        from: From,
    },
}

impl Session {
    pub(super) fn run(self, socket: &Path, json: bool) -> Result<ExitCode, CliError> {
        match self {
            Self::List { from } => list(socket, &from, json),
            Self::Show { id, from } => show(socket, &from, &id, json),
        }
    }
}

fn everything(filter: v1::AuditFilter) -> v1::AuditRequest {
    v1::AuditRequest { backlog: u32::MAX, follow: false, filter: Some(filter) }
}

fn list(socket: &Path, from: &From, json: bool) -> Result<ExitCode, CliError> {
    let mut stories: BTreeMap<String, Story> = BTreeMap::new();
    from.read(socket, everything(v1::AuditFilter::default()), |line| {
        if let Ok(record) = Record::read(line)
            && !record.agent_id.is_empty()
        {
            let story = stories.entry(record.principal.session.clone()).or_default();
            story.add(&record);
            // Only numbers are shown.
            story.steps.clear();
        }
        true
    })?;
    let mut stories: Vec<Story> = stories.into_values().filter(|story| !story.runs.is_empty()).collect();
    stories.sort_by_key(|story| story.runs.first().and_then(|run| run.started));
    if json {
        for story in &stories {
            print(json!(story));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if stories.is_empty() {
        print("no session is in the record");
        return Ok(ExitCode::SUCCESS);
    }
    print(format_args!(
        "{:<20} {:<24} {:<14} {:>8} {:>8} {:>8}  COMMAND",
        "STARTED (UTC)", "SESSION", "AGENT", "ACTS", "STOPPED", "UNASKED"
    ));
    for story in &stories {
        let Some(run) = story.runs.first() else { continue };
        let started = run.started.map(|at| at.strftime("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default();
        print(format_args!(
            "{started:<20} {:<24} {:<14} {:>8} {:>8} {:>8}  {}",
            visible(&story.session),
            visible(&story.principal.agent),
            story.acts,
            story.stopped,
            story.unasked,
            visible(&run.command)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(socket: &Path, from: &From, id: &str, json: bool) -> Result<ExitCode, CliError> {
    let mut story = Story::default();
    for filter in [
        v1::AuditFilter { session: id.to_owned(), ..Default::default() },
        v1::AuditFilter { agent_id: id.to_owned(), ..Default::default() },
    ] {
        from.read(socket, everything(filter), |line| {
            if let Ok(record) = Record::read(line) {
                story.add(&record);
            }
            true
        })?;
        if !story.is_empty() {
            break;
        }
    }
    if story.is_empty() {
        let message =
            format!("no session or agent `{id}` is in the record; `guardctl session list` lists them");
        return Err(CliError::refused("no_such_session", message));
    }
    count_losses(socket, from, &mut story)?;
    if json {
        print(json!(story));
    } else {
        print(told(&story).trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// A full buffer does not know whose events it dropped, so every loss while the session ran may be one of its own.
fn count_losses(socket: &Path, from: &From, story: &mut Story) -> Result<(), CliError> {
    let nanoseconds = |at: jiff::Timestamp| u64::try_from(at.as_nanosecond()).unwrap_or(0);
    let since = story.runs.iter().filter_map(|run| run.started).min();
    let ended = story.runs.iter().map(|run| run.ended).collect::<Option<Vec<_>>>();
    let until = ended.and_then(|ended| ended.into_iter().max());
    let filter = v1::AuditFilter {
        kinds: vec!["loss".to_owned()],
        since_ns: since.map_or(0, nanoseconds),
        // It is recorded within a second of the loss.
        until_ns: until.map_or(0, |at| nanoseconds(at) + 1_000_000_000),
        ..Default::default()
    };
    story.lost = 0;
    from.read(socket, everything(filter), |line| {
        story.lost += Record::read(line).map_or(0, |record| record.acts());
        true
    })
}

/// The story for people.
fn told(story: &Story) -> String {
    let mut text = String::new();
    let who = &story.principal;
    let parts =
        [("agent", &who.agent), ("workspace", &who.workspace), ("space", &who.space), ("mode", &who.mode)];
    let named = parts.into_iter().filter(|(_, name)| !name.is_empty());
    let named: Vec<String> = named.map(|(part, name)| format!(", {part} {}", visible(name))).collect();
    let _ = writeln!(text, "session {}{}", visible(&story.session), named.concat());
    for run in &story.runs {
        text += &ran(run);
    }
    let _ = writeln!(
        text,
        "\n{} acts, {} stopped, {} that policy wanted a yes for and nothing held",
        story.acts, story.stopped, story.unasked
    );
    if story.lost > 0 {
        let _ = writeln!(
            text,
            "{} events of this host were lost in full buffers meanwhile; what follows may not be all",
            story.lost
        );
    }
    for (class, effects) in &story.classes {
        let effects: Vec<String> =
            effects.iter().map(|(effect, count)| format!("{count} {effect}")).collect();
        let class = if class == "none" { "no class" } else { class };
        let _ = writeln!(text, "  {class:<26} {}", effects.join(", "));
    }
    text.push('\n');
    let several = story.runs.len() > 1;
    for step in &story.steps {
        let _ = write!(text, "{}  ", step.at.strftime("%H:%M:%S"));
        if several {
            let _ = write!(text, "{:<16} ", step.agent_id);
        }
        text += &sentence(step);
        text.push('\n');
    }
    text
}

fn ran(run: &Run) -> String {
    let at = |moment: Option<jiff::Timestamp>| {
        moment.map_or("?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
    };
    let ended = match (run.started, run.ended) {
        (Some(started), Some(ended)) => {
            let took = ended.duration_since(started).as_secs_f64();
            let status = run.status.and_then(|status| i32::try_from(status).ok()).unwrap_or(0);
            let how = match (libc::WIFSIGNALED(status), libc::WEXITSTATUS(status)) {
                (true, _) => format!("ended by signal {}", libc::WTERMSIG(status)),
                (false, code) => format!("ended with status {code}"),
            };
            format!("{how} after {took:.1} s")
        }
        _ => "still running, or its end is not in the record".to_owned(),
    };
    format!(
        "  {} as uid {} in {}\n  {} from {}, {ended}\n",
        visible(&run.command),
        run.uid,
        visible(&run.worktree),
        run.agent_id,
        at(run.started)
    )
}

/// What one step did, in words.
fn sentence(step: &Step) -> String {
    let class = step.classes.iter().filter_map(|class| class.parse::<ActionClass>().ok()).min();
    let stopped = matches!(step.effect.as_str(), "refused" | "fenced" | "killed");
    let [did, tried] = class.map_or(["did", "tried"], words);
    let mut text = format!("{:<26} {}", if stopped { tried } else { did }, visible(&step.act));
    if step.count > 1 {
        let _ = write!(text, " (and {} more like it)", step.count - 1);
    }
    if stopped {
        let by = if step.mechanism.is_empty() { "guard" } else { &step.mechanism };
        let _ = write!(text, " — {} by {by}", step.effect);
    }
    match step.outcome.as_str() {
        "deny" => {
            let _ = write!(text, "; {}: {}", step.rule, visible(&step.reason));
        }
        "defer_for_approval" if !step.answer.is_empty() => {
            let _ = write!(text, " — {}; {}: {}", visible(&step.answer), step.rule, visible(&step.reason));
        }
        "defer_for_approval" if step.effect == "done" => {
            let _ = write!(text, " — done unasked; {}: {}", step.rule, visible(&step.reason));
        }
        "defer_for_approval" => {
            let _ = write!(text, "; {}: {}", step.rule, visible(&step.reason));
        }
        _ => {}
    }
    text
}

fn words(class: ActionClass) -> [&'static str; 2] {
    match class {
        ActionClass::FileDelete => ["deleted", "tried to delete"],
        ActionClass::GitPush => ["pushed", "tried to push"],
        ActionClass::PrCreate => ["opened a pull request", "tried to open a PR"],
        ActionClass::PrPublish => ["published a review", "tried to publish"],
        ActionClass::VendorSyncWrite => ["wrote to a tracker", "tried to write a tracker"],
        ActionClass::FileWriteOutsideWorktree => ["wrote outside", "tried to write outside"],
        ActionClass::GitCommit => ["committed", "tried to commit"],
        ActionClass::NetworkEgress => ["connected to", "tried to connect to"],
        ActionClass::SecretAccess => ["read a secret", "tried to read a secret"],
        ActionClass::PackageInstall => ["installed", "tried to install"],
        ActionClass::ProcessSpawn => ["ran", "tried to run"],
        ActionClass::WorkspaceMutation => ["changed the workspace", "tried to change"],
        ActionClass::EnclosureControl => ["drove an enclosure", "tried to drive an enclosure"],
    }
}
