//! Reads the record for people: the last lines of the files, then lines as they are written.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufRead, BufReader},
    sync::Arc,
};

use guard_proto::v1;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

use super::Core;
use crate::audit::{AuditError, filter::Filter, segments};

/// The most lines that one call may look back.
const BACKLOG: usize = 1_000_000;

/// The last `backlog` lines that fit the filter, then (with `follow`) new ones.
///
/// # Errors
/// The segments cannot be read.
pub fn stream(
    core: &Core,
    request: &v1::AuditRequest,
    filter: Filter,
) -> Result<impl Stream<Item = Result<v1::AuditLine, Status>> + Send + use<>, AuditError> {
    // Following starts before reading back, so that no line falls between; `seen` drops those read twice.
    let follow = core.audit.follow();
    let backlog = usize::try_from(request.backlog).unwrap_or(BACKLOG).min(BACKLOG);
    let lines = last(core, backlog, &filter)?;
    let follows = request.follow;
    let (sender, receiver) = mpsc::channel(256);
    tokio::spawn(async move {
        let mut seen = None;
        for line in lines {
            seen = seq(&line).or(seen);
            if sender.send(Ok(v1::AuditLine { line: line.into_bytes() })).await.is_err() {
                return;
            }
        }
        if follows {
            forward(follow, &filter, seen, &sender).await;
        }
    });
    Ok(ReceiverStream::new(receiver))
}

async fn forward(
    mut follow: broadcast::Receiver<Arc<str>>,
    filter: &Filter,
    seen: Option<u64>,
    sender: &mpsc::Sender<Result<v1::AuditLine, Status>>,
) {
    loop {
        match follow.recv().await {
            Ok(line) => {
                if !filter.fits(&line) || seq(&line) <= seen {
                    continue;
                }
                if sender.send(Ok(v1::AuditLine { line: line.as_bytes().to_vec() })).await.is_err() {
                    return;
                }
            }
            Err(broadcast::error::RecvError::Lagged(count)) => {
                let message =
                    format!("this follower was too slow and missed {count} lines; the files have them");
                // The follower may be gone already.
                let _ = sender.send(Err(Status::data_loss(message))).await;
                return;
            }
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn last(core: &Core, count: usize, filter: &Filter) -> Result<VecDeque<String>, AuditError> {
    let mut lines = VecDeque::new();
    if count == 0 {
        return Ok(lines);
    }
    for segment in segments(&core.settings.audit_dir)?.into_iter().rev() {
        let failed = |source| AuditError::Read { path: segment.clone(), source };
        let mut part = VecDeque::new();
        for line in BufReader::new(File::open(&segment).map_err(failed)?).lines() {
            let line = line.map_err(failed)?;
            if filter.fits(&line) {
                part.push_back(line);
                if part.len() + lines.len() > count {
                    part.pop_front();
                }
            }
        }
        part.append(&mut lines);
        lines = part;
        if lines.len() >= count {
            break;
        }
    }
    Ok(lines)
}

fn seq(line: &str) -> Option<u64> {
    line.strip_prefix(r#"{"seq":"#)?.split(',').next()?.parse().ok()
}
