//! The core's end of the line to guardd: snapshots and commands down, replies and observations up.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use guard_proto::v1::{self, command, from_daemon, link_server, to_daemon};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{Core, peer::Peer};

/// How long guardd may take to answer a command.
const REPLY_WITHIN: Duration = Duration::from_secs(10);
/// Messages that may wait on the way down.
const DOWN: usize = 256;

/// Why a command to guardd has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("guardd is not connected; it connects by itself within a second when it runs")]
    Down,
    #[error("guardd did not answer within {} s", REPLY_WITHIN.as_secs())]
    Silent,
    #[error("{message}")]
    Refused { code: String, message: String },
}

impl LinkError {
    /// The stable code for people's errors.
    pub fn code(&self) -> &str {
        match self {
            Self::Down | Self::Silent => "daemon_unreachable",
            Self::Refused { code, .. } => code,
        }
    }
}

/// The line itself: at most one guardd at a time, the newer replaces the older.
#[derive(Default)]
pub struct Line {
    inner: Mutex<Inner>,
    next: AtomicU64,
}

#[derive(Default)]
struct Inner {
    down: Option<(u64, mpsc::Sender<Result<v1::ToDaemon, Status>>)>,
    waiting: HashMap<u64, oneshot::Sender<v1::Reply>>,
}

impl Line {
    /// Whether a guardd is attached.
    pub fn is_up(&self) -> bool {
        self.lock().down.is_some()
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// [`LinkError`]
    pub async fn command(&self, command: command::Command) -> Result<(), LinkError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (reply, answer) = oneshot::channel();
        let down = {
            let mut inner = self.lock();
            let (_, down) = inner.down.clone().ok_or(LinkError::Down)?;
            inner.waiting.insert(id, reply);
            down
        };
        let message = v1::Command { id, command: Some(command) };
        let answered = match down.send(Ok(to_daemon(to_daemon::Message::Command(message)))).await {
            Ok(()) => tokio::time::timeout(REPLY_WITHIN, answer).await.map_err(|_| LinkError::Silent),
            Err(_) => Err(LinkError::Down),
        };
        self.lock().waiting.remove(&id);
        let reply = answered?.map_err(|_| LinkError::Down)?;
        if reply.code.is_empty() {
            return Ok(());
        }
        Err(LinkError::Refused { code: reply.code, message: reply.message })
    }

    /// Tells guardd that observations up to `number` are in the audit file; sent again is better than waited for.
    pub fn acknowledge(&self, number: u64) {
        let inner = self.lock();
        if let Some((_, down)) = &inner.down {
            // A full line means that later acknowledgements follow, which cover this one.
            let _ = down.try_send(Ok(to_daemon(to_daemon::Message::Acknowledged(number))));
        }
    }

    /// Tells guardd what becomes of an act that waits; it asks again when it hears nothing.
    pub fn verdict(&self, verdict: v1::Verdict) {
        if let Some((_, down)) = &self.lock().down {
            let _ = down.try_send(Ok(to_daemon(to_daemon::Message::Verdict(verdict))));
        }
    }

    /// Sends a snapshot; without a guardd the next one to attach gets the then current one.
    pub async fn snapshot(&self, snapshot: v1::Snapshot) {
        let down = self.lock().down.clone();
        if let Some((_, down)) = down {
            // A guardd that went away asks for the snapshot again when it attaches.
            let _ = down.send(Ok(to_daemon(to_daemon::Message::Snapshot(snapshot)))).await;
        }
    }

    fn attach(&self) -> (u64, mpsc::Receiver<Result<v1::ToDaemon, Status>>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let (down, messages) = mpsc::channel(DOWN);
        let mut inner = self.lock();
        inner.down = Some((id, down));
        inner.waiting.clear();
        (id, messages)
    }

    fn detach(&self, id: u64) {
        let mut inner = self.lock();
        if inner.down.as_ref().is_some_and(|(current, _)| *current == id) {
            inner.down = None;
            inner.waiting.clear();
        }
    }

    fn reply(&self, reply: v1::Reply) {
        if let Some(waiting) = self.lock().waiting.remove(&reply.id) {
            // Whoever asked may have given up.
            let _ = waiting.send(reply);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_daemon(message: to_daemon::Message) -> v1::ToDaemon {
    v1::ToDaemon { message: Some(message) }
}

/// The gRPC service that guardd attaches to.
pub struct LinkService {
    pub core: Arc<Core>,
    /// The uid that guardd runs with.
    pub daemon_uid: u32,
}

#[tonic::async_trait]
impl link_server::Link for LinkService {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<v1::ToDaemon, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::FromDaemon>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        if !peer.is_some_and(|peer| peer.uid == self.daemon_uid && peer.agent.is_none()) {
            return Err(Status::permission_denied("only guardd may attach"));
        }
        let (id, down) = self.core.line.attach();
        let core = Arc::clone(&self.core);
        tokio::spawn(async move {
            serve(&core, request.into_inner()).await;
            core.line.detach(id);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(down))))
    }
}

async fn serve(core: &Arc<Core>, mut up: Streaming<v1::FromDaemon>) {
    while let Some(Ok(message)) = up.next().await {
        match message.message {
            Some(from_daemon::Message::Hello(hello)) => {
                core.attached(hello);
                core.line.snapshot(core.snapshot()).await;
            }
            Some(from_daemon::Message::Reply(reply)) => core.line.reply(reply),
            Some(from_daemon::Message::Observations(observations)) => {
                // Judging is quick, but the record may make us wait for the disk.
                tokio::task::block_in_place(|| core.observe(observations));
            }
            Some(from_daemon::Message::InForce(in_force)) => core.in_force(in_force.generation),
            Some(from_daemon::Message::Ask(ask)) => {
                let verdict = tokio::task::block_in_place(|| core.approvals.asked(core, ask));
                if let Some(verdict) = verdict {
                    core.line.verdict(verdict);
                }
            }
            None => {}
        }
    }
}
