//! The line to guard-core.

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
};

use tonic::transport::Channel;

use super::CliError;
use crate::daemon::link::connect;

/// `--socket`, else `GUARD_SOCKET`, else the packaged place.
pub(super) fn socket(given: Option<PathBuf>) -> PathBuf {
    given
        .or_else(|| std::env::var_os("GUARD_SOCKET").map(PathBuf::from))
        .unwrap_or_else(|| "/run/guard/guard.sock".into())
}

/// Connects and runs one conversation.
///
/// # Errors
/// Status 3 when nobody answers, 4 when the socket may not be used, or what the conversation ends with.
pub(super) fn talk<T, F: Future<Output = Result<T, CliError>>>(
    socket: &Path,
    conversation: impl FnOnce(Channel) -> F,
) -> Result<T, CliError> {
    reachable(socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::refused("runtime", format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let channel = connect(socket).await.map_err(|error| unreachable_at(socket, &error.to_string()))?;
        conversation(channel).await
    })
}

/// A plain connect first: it tells the reasons apart that gRPC folds into one.
fn reachable(socket: &Path) -> Result<(), CliError> {
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(CliError {
            code: "not_permitted".to_owned(),
            message: format!(
                "you may not use {}; root and members of group `guard` may (log in again after joining it)",
                socket.display()
            ),
            exit: 4,
        }),
        Err(error) => Err(unreachable_at(socket, &error.to_string())),
    }
}

fn unreachable_at(socket: &Path, why: &str) -> CliError {
    CliError {
        code: "daemon_unreachable".to_owned(),
        message: format!(
            "no guard daemon at {}: {why}; start guardd, or name its socket with --socket or GUARD_SOCKET",
            socket.display()
        ),
        exit: 3,
    }
}
