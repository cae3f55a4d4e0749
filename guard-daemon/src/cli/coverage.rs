//! `coverage` and `reload`.

use std::{path::Path, process::ExitCode};

use guard_proto::v1::{self, host_client::HostClient};
use serde_json::json;

use super::{CliError, connection::talk, print};
use crate::coverage::Coverage;

/// Asks the daemon what this host does.
pub(super) fn fetch(socket: &Path) -> Result<Coverage, CliError> {
    let bytes = talk(socket, |channel| async move {
        Ok(HostClient::new(channel).coverage(v1::CoverageRequest {}).await?.into_inner().json)
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| CliError::refused("coverage_unreadable", format!("the daemon's coverage: {error}")))
}

/// Prints it.
pub(super) fn show(socket: &Path, json: bool) -> Result<ExitCode, CliError> {
    let coverage = fetch(socket)?;
    if json {
        print(json!(coverage));
    } else {
        print(coverage.table().trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// Has the policy files read again.
pub(super) fn reload(socket: &Path, json: bool) -> Result<ExitCode, CliError> {
    let status = talk(socket, |channel| async move {
        Ok(HostClient::new(channel).reload(v1::ReloadRequest {}).await?.into_inner())
    })?;
    if json {
        print(json!({"generation": status.generation}));
    } else {
        print(format_args!("policy generation {} is in force", status.generation));
    }
    Ok(ExitCode::SUCCESS)
}
