//! guardctl: what people type. Results on stdout, diagnostics on stderr, `--json` for programs.
//!
//! Exit status: 0 done; 1 understood and the answer is no, or inputs had errors; 2 usage; 3 the daemon is
//! unreachable; 4 not permitted. `run` ends as its command does.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod agents;
mod approvals;
mod audit;
mod connection;
mod coverage;
mod doctor;
mod eval;
mod history;
mod policy;
mod probe;
mod records;
mod rules;
mod run;
mod schema;
mod session;
mod top;

/// Launch AI agents under guard and see what they did.
#[derive(Debug, Parser)]
#[command(name = "guardctl", version, max_term_width = 100)]
pub struct Arguments {
    /// Socket of the daemon [env: GUARD_SOCKET] [default: /run/guard/guard.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON, one object or one a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a command as a governed agent and end as it does
    Run(Box<run::Run>),
    /// List the agents that run
    Ps,
    /// Stop agents where they are; they keep everything and do nothing
    Freeze(agents::Selection),
    /// Let frozen agents go on
    Thaw(agents::Selection),
    /// End agents and everything they started
    Kill(agents::Selection),
    /// Cut agents off from every address but loopback, for good
    NetCut(agents::Selection),
    /// The record of what was decided and done
    #[command(subcommand)]
    Audit(audit::Audit),
    /// Sessions told as stories
    #[command(subcommand)]
    Session(session::Session),
    /// What agents do right now
    Top(top::Top),
    /// Decide requests, one JSON object a line from stdin; offline unless --socket names a daemon
    Eval(eval::Eval),
    /// Which rule decides about an act, and why; offline with --policy
    Probe(Box<probe::Probe>),
    /// What policy files say, before they are in force; offline
    #[command(subcommand)]
    Policy(policy::Policies),
    /// What a policy would have decided on a record; offline
    Replay(history::ReplayCommand),
    /// A proposed policy from what a session did, least first
    Learn(history::Learn),
    /// Rules that are kept beside the policy file, and in force at once
    #[command(subcommand)]
    Rules(rules::Rules),
    /// Acts that wait for a yes, and answers that are remembered for a while
    #[command(subcommand)]
    Approvals(approvals::Approvals),
    /// How freely agents act in a space
    #[command(subcommand)]
    Autonomy(rules::Autonomy),
    /// Hand a task to another agent, if the guards of delegation let it pass
    Delegate(rules::Delegate),
    /// JSON Schema of a format
    Schema(schema::Schema),
    /// What this host enforces, only observes or misses, and the self-test behind each word
    Coverage,
    /// What is missing on this host, and the cure
    Doctor,
    /// Read the policy files again
    Reload,
}

/// A refusal for the terminal: stable code, one line, exit status.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", if code.is_empty() { String::new() } else { format!("error[{code}]: ") })]
pub struct CliError {
    /// Empty where the message names the code itself, line by line.
    pub code: String,
    pub message: String,
    pub exit: u8,
}

impl CliError {
    /// The request was understood and the answer is no, or an input was wrong.
    fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), exit: 1 }
    }

    /// Faults of operator's files, one a line, each with its code and place.
    fn faults(lines: String) -> Self {
        Self { code: String::new(), message: lines, exit: 1 }
    }

    /// The command line makes no sense.
    fn usage(message: impl Into<String>) -> Self {
        Self { code: "usage".to_owned(), message: message.into(), exit: 2 }
    }
}

impl From<tonic::Status> for CliError {
    fn from(status: tonic::Status) -> Self {
        let stable = status.metadata().get("guard-code").and_then(|value| value.to_str().ok());
        let (code, exit) = match status.code() {
            tonic::Code::PermissionDenied => ("not_permitted", 4),
            tonic::Code::Unavailable => ("daemon_unreachable", 3),
            _ => ("daemon_refused", 1),
        };
        Self { code: stable.unwrap_or(code).to_owned(), message: status.message().to_owned(), exit }
    }
}

/// Runs guardctl with this process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let Arguments { socket, json, command } = Arguments::parse();
    let named = socket.clone();
    let socket = connection::socket(socket);
    let result = match command {
        Command::Run(run) => run.run(&socket),
        Command::Audit(audit) => audit.run(&socket, json),
        Command::Session(session) => session.run(&socket, json),
        Command::Top(top) => top.run(&socket, json),
        Command::Ps => agents::list(&socket, json),
        Command::Freeze(selection) => selection.change(&socket, json, agents::Change::Freeze),
        Command::Thaw(selection) => selection.change(&socket, json, agents::Change::Thaw),
        Command::Kill(selection) => selection.change(&socket, json, agents::Change::Kill),
        Command::NetCut(selection) => selection.change(&socket, json, agents::Change::NetCut),
        Command::Eval(eval) => eval.run(named.as_deref()),
        Command::Probe(probe) => probe.run(&socket, json),
        Command::Policy(policies) => policies.run(json),
        Command::Replay(replay) => replay.run(json),
        Command::Learn(learn) => learn.run(&socket, json),
        Command::Rules(rules) => rules.run(&socket, json),
        Command::Approvals(approvals) => approvals.run(&socket, json),
        Command::Autonomy(autonomy) => autonomy.run(&socket, json),
        Command::Delegate(delegate) => delegate.run(&socket, json),
        Command::Schema(schema) => schema.run(),
        Command::Coverage => coverage::show(&socket, json),
        Command::Doctor => doctor::run(&socket, json),
        Command::Reload => coverage::reload(&socket, json),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(error.exit)
    })
}

/// Writes a line to stdout; a reader that went away (`| head`) ends us quietly.
fn print(line: impl std::fmt::Display) {
    use std::io::Write;

    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(0);
    }
}

/// Text that agents had a hand in, for a terminal: what would move the cursor, ring, recolour or turn the direction
/// of writing is shown as an escape.
fn visible(text: &str) -> std::borrow::Cow<'_, str> {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if !text.contains(odd) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if odd(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn what_an_agent_wrote_cannot_drive_the_terminal() {
        assert_eq!(visible("plain ünïcode 文"), "plain ünïcode 文");
        assert_eq!(visible("a\u{1b}[2Jb\nc\u{9b}d\u{202e}e"), "a\\u{1b}[2Jb\\nc\\u{9b}d\\u{202e}e");
    }
}
