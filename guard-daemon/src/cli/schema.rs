//! `schema`: the formats as JSON Schema.

use std::process::ExitCode;

use guard_policy::schema::{self, Format};

use super::{CliError, print};

#[derive(Debug, clap::Args)]
pub(super) struct Schema {
    /// policy, managed, request, receipt, decision or audit
    #[arg(value_parser = format)]
    format: Format,
}

fn format(written: &str) -> Result<Format, String> {
    Format::ALL.into_iter().find(|format| format.as_str() == written).ok_or_else(|| {
        let known: Vec<&str> = Format::ALL.iter().map(|format| format.as_str()).collect();
        format!("known: {}", known.join(", "))
    })
}

impl Schema {
    pub(super) fn run(&self) -> Result<ExitCode, CliError> {
        print(format_args!("{:#}", schema::of(self.format)));
        Ok(ExitCode::SUCCESS)
    }
}
