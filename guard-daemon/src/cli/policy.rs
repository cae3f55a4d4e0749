//! `policy`: what files say, before they are in force; offline.

use std::{path::PathBuf, process::ExitCode};

use guard_policy::{
    Policy, Principal, Request,
    review::{diff, lint, matrix, sentence},
    templates,
};
use serde_json::json;

use super::{CliError, eval::Files, print, probe::Scope};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Policies {
    /// Faults with their places, and rules that do not do what they seem to
    Lint(Read),
    /// What decides for an agent: class by class, with the rules that others keep from being asked
    Show(Show),
    /// Every rule as one sentence
    Sentences(Read),
    /// What changes from one policy to another, each change with one request that shows it
    Diff(Diff),
    /// A policy to start from
    Template(Template),
}

/// Which files are read.
#[derive(Debug, clap::Args)]
pub(super) struct Read {
    /// Policy file
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Managed policy file
    #[arg(long, value_name = "FILE")]
    managed: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    #[command(flatten)]
    read: Read,
    #[command(flatten)]
    scope: Scope,
}

#[derive(Debug, clap::Args)]
pub(super) struct Diff {
    /// Policy file before
    before: PathBuf,
    /// Policy file after
    after: PathBuf,
    /// Managed policy file, the same for both
    #[arg(long, value_name = "FILE")]
    managed: Option<PathBuf>,
    /// End with status 1 if anything becomes newly allowed or milder
    #[arg(long)]
    no_new_access: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Template {
    /// Which one; without a name they are listed
    name: Option<String>,
}

impl Policies {
    pub(super) fn run(self, json: bool) -> Result<ExitCode, CliError> {
        match self {
            Self::Lint(read) => lint_of(&read.load()?, json),
            Self::Show(show) => {
                matrix_of(&show.read.load()?, &show.scope.of()?, json);
                Ok(ExitCode::SUCCESS)
            }
            Self::Sentences(read) => {
                for sentence in sentence::policy(&read.load()?) {
                    if json {
                        print(json!({"rule": sentence.rule, "sentence": sentence.text}));
                    } else {
                        print(format_args!("{}: {}", sentence.rule, sentence.text));
                    }
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::Diff(diff) => diff.run(json),
            Self::Template(template) => template.run(json),
        }
    }
}

impl Read {
    fn load(&self) -> Result<Policy, CliError> {
        if self.file.is_none() && self.managed.is_none() {
            return Err(CliError::usage("name a policy file, --managed FILE, or both"));
        }
        Files { policy: self.file.clone(), managed: self.managed.clone() }.load()
    }
}

fn lint_of(policy: &Policy, json: bool) -> Result<ExitCode, CliError> {
    let warnings = lint::lint(policy, jiff::Timestamp::now());
    for warning in &warnings {
        if json {
            print(json!(warning));
        } else {
            let place = match (warning.line, warning.managed) {
                (0, _) => String::new(),
                (line, true) => format!("managed:{line}:{}: ", warning.column),
                (line, false) => format!("{line}:{}: ", warning.column),
            };
            let kind = json!(warning.kind);
            let kind = kind.as_str().unwrap_or_default();
            print(format_args!("warning[{kind}]: {place}{}: {}", warning.rule, warning.message));
        }
    }
    if !json {
        print(format_args!("no faults, {} warnings", warnings.len()));
    }
    Ok(ExitCode::SUCCESS)
}

fn matrix_of(policy: &Policy, principal: &Principal, json: bool) {
    let matrix = matrix::of(policy, principal, jiff::Timestamp::now());
    if json {
        return print(json!(matrix));
    }
    print(format_args!("autonomy {}: {}", matrix.autonomy, matrix.dial));
    for (title, rows) in
        [("", &matrix.rows), ("the managed file; the more severe of both counts", &matrix.managed)]
    {
        if !title.is_empty() && !rows.is_empty() {
            print(format_args!("\n{title}"));
        }
        let mut about = "";
        for row in rows {
            let turn = json!(row.turn);
            let turn = turn.as_str().unwrap_or_default().replace('_', " ");
            let constraint = row.constraint.as_ref().map(|text| format!("  ({text})")).unwrap_or_default();
            let name = if row.about == about { "" } else { &row.about };
            print(format_args!(
                "{name:<26}{turn:<12}{:<7}{:<9}{}  {}{constraint}",
                row.effect, row.level, row.rule, row.scope
            ));
            about = &row.about;
        }
    }
    if !matrix.net.is_empty() {
        print(format_args!("\nrefused whatever the rules say: {}", matrix.net.join(", ")));
    }
}

impl Diff {
    fn run(&self, json: bool) -> Result<ExitCode, CliError> {
        let load =
            |file: &PathBuf| Files { policy: Some(file.clone()), managed: self.managed.clone() }.load();
        let changes = diff::compare(&load(&self.before)?, &load(&self.after)?, jiff::Timestamp::now());
        for change in &changes {
            if json {
                print(json!(change));
            } else {
                print(change.sentence());
                print(format_args!("  {}", json!(change.example)));
            }
        }
        let widens = changes.iter().any(|change| change.direction != diff::Direction::Stricter);
        if !json && changes.is_empty() {
            print("no request was found whose answer changes");
        }
        Ok(ExitCode::from(u8::from(self.no_new_access && widens)))
    }
}

impl Template {
    fn run(&self, json: bool) -> Result<ExitCode, CliError> {
        let Some(name) = &self.name else {
            for template in templates::ALL {
                if json {
                    print(json!({"name": template.name, "about": template.about}));
                } else {
                    print(format_args!("{:<12} {}", template.name, template.about));
                }
            }
            return Ok(ExitCode::SUCCESS);
        };
        let found = templates::ALL.iter().find(|template| template.name == name);
        let found = found.ok_or_else(|| {
            let known: Vec<&str> = templates::ALL.iter().map(|template| template.name).collect();
            CliError::refused(
                "no_such_template",
                format!("no template `{name}`; there are {}", known.join(", ")),
            )
        })?;
        print(found.text.trim_end());
        Ok(ExitCode::SUCCESS)
    }
}

impl Scope {
    /// The principal itself.
    pub(super) fn of(&self) -> Result<Principal, CliError> {
        let request = json!({"principal": self.principal()}).to_string();
        let parsed = Request::parse(request.as_bytes());
        parsed
            .map(|request| request.principal)
            .map_err(|fault| CliError::refused(fault.code.as_str(), fault.message))
    }
}
