//! guardd's end of the line to guard-core: attaches, and attaches again whenever the line breaks.

use std::{path::Path, sync::Arc, time::Duration};

use guard_proto::v1::{self, from_daemon, link_client::LinkClient, to_daemon};
use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, sync::mpsc};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::{Channel, Endpoint};

use super::outbox::Outbox;

/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(100);
/// Messages that may be on their way at once.
const IN_FLIGHT: usize = 16;

/// What guardd does with what comes down.
pub trait Receiver: Send + Sync + 'static {
    /// What to say when attaching.
    fn hello(&self) -> v1::Hello;
    /// A snapshot or a command (acknowledgements stay here); must not block for long.
    fn receive(&self, message: to_daemon::Message);
}

/// Keeps the line up for ever.
pub async fn keep(socket: &Path, outbox: &Outbox, receiver: Arc<dyn Receiver>) {
    loop {
        if let Err(error) = attach(socket, outbox, receiver.as_ref()).await {
            tracing::debug!(%error, "the line to guard-core is down");
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn attach(
    socket: &Path,
    outbox: &Outbox,
    receiver: &dyn Receiver,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut client = LinkClient::new(connect(socket).await?).max_decoding_message_size(64 << 20);
    let (up, messages) = mpsc::channel(IN_FLIGHT);
    up.send(v1::FromDaemon { message: Some(from_daemon::Message::Hello(receiver.hello())) }).await?;
    let mut down = client.attach(ReceiverStream::new(messages)).await?.into_inner();
    tracing::debug!("attached to guard-core");
    outbox.rewind();
    let take = |message: v1::ToDaemon| match message.message {
        Some(to_daemon::Message::Acknowledged(number)) => outbox.acknowledge(number),
        Some(message) => receiver.receive(message),
        None => {}
    };
    loop {
        tokio::select! {
            message = down.next() => match message {
                Some(message) => take(message?),
                None => return Ok(()),
            },
            // `reserve` first: a message taken from the outbox always has a place to go.
            permit = up.reserve() => {
                let permit = permit?;
                tokio::select! {
                    message = outbox.next() => {
                        permit.send(v1::FromDaemon { message: Some(message) });
                    }
                    message = down.next() => match message {
                        Some(message) => take(message?),
                        None => return Ok(()),
                    },
                }
            }
        }
    }
}

/// A gRPC channel over a Unix socket.
///
/// # Errors
/// The socket cannot be connected to.
pub async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    Endpoint::from_static("http://guard")
        .connect_with_connector(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
        .await
}
