//! Messages over the launch sockets, and descriptors beside them.
//!
//! Every socket here is `SOCK_SEQPACKET`: one message is one packet, and an empty read is the end.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use prost::Message;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Largest message; whatever can be larger travels in a memfd.
pub const MESSAGE_LIMIT: usize = 64 << 10;
/// Most descriptors beside one message.
const DESCRIPTOR_LIMIT: usize = 16;

/// guardctl → guardd, beside the six descriptors of [`super::Descriptors`].
#[derive(Clone, PartialEq, Message)]
pub struct Ticket {
    #[prost(bytes = "vec", tag = "1")]
    pub ticket: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub terminal: Option<TerminalState>,
}

/// How the caller's terminal looks, so that the agent's own begins alike.
#[derive(Clone, PartialEq, Message)]
pub struct TerminalState {
    #[prost(uint32, tag = "1")]
    pub rows: u32,
    #[prost(uint32, tag = "2")]
    pub columns: u32,
    /// `struct termios` of this machine, as it lies in memory; empty keeps the kernel's defaults.
    #[prost(bytes = "vec", tag = "3")]
    pub settings: Vec<u8>,
    /// The caller's terminal goes on to translate output, so the agent's must not.
    #[prost(bool, tag = "4")]
    pub cooked: bool,
}

/// guardd → shim, beside the descriptors in the order of [`super::daemon::spawn_shim`].
#[derive(Clone, PartialEq, Message)]
pub struct Setup {
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
    #[prost(message, optional, tag = "4")]
    pub terminal: Option<TerminalState>,
    #[prost(uint32, tag = "5")]
    pub pid: u32,
}

/// shim → guardctl. The terminal's master side comes beside `started`.
#[derive(Clone, PartialEq, Message)]
pub struct ToClient {
    #[prost(oneof = "ClientEvent", tags = "1, 2, 3, 4")]
    pub event: Option<ClientEvent>,
}

/// What a caller hears about its command.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ClientEvent {
    #[prost(message, tag = "1")]
    Started(Started),
    /// The command was stopped by this signal.
    #[prost(uint32, tag = "2")]
    Stopped(u32),
    /// The command ended with this wait status.
    #[prost(uint32, tag = "3")]
    Exited(u32),
    #[prost(message, tag = "4")]
    Failed(Failed),
}

/// The command runs.
#[derive(Clone, PartialEq, Message)]
pub struct Started {
    /// Layers that this launch goes without, a line each.
    #[prost(string, repeated, tag = "1")]
    pub warnings: Vec<String>,
    #[prost(uint32, tag = "2")]
    pub landlock_abi: u32,
}

/// Nothing was started.
#[derive(Clone, PartialEq, Message)]
pub struct Failed {
    /// Stable code.
    #[prost(string, tag = "1")]
    pub code: String,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// guardctl → shim → init: this signal for the command's process group.
#[derive(Clone, PartialEq, Message)]
pub struct ToCommand {
    #[prost(uint32, tag = "1")]
    pub signal: u32,
}

/// init → shim. The view's root directory, the seccomp listener, the terminal's master and the marks on
/// secrets come beside `ready`, in this order.
#[derive(Clone, PartialEq, Message)]
pub struct FromInit {
    #[prost(oneof = "InitEvent", tags = "1, 2, 3, 4")]
    pub event: Option<InitEvent>,
}

/// What the agent's first process has to say.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum InitEvent {
    #[prost(message, tag = "1")]
    Ready(Ready),
    #[prost(uint32, tag = "2")]
    Stopped(u32),
    #[prost(message, tag = "3")]
    Exited(Exited),
    #[prost(message, tag = "4")]
    Failed(Failed),
}

/// Every layer stands.
#[derive(Clone, PartialEq, Message)]
pub struct Ready {
    #[prost(message, optional, tag = "1")]
    pub started: Option<Started>,
    #[prost(bool, tag = "2")]
    pub listener: bool,
    #[prost(bool, tag = "3")]
    pub terminal: bool,
    #[prost(bool, tag = "4")]
    pub reads: bool,
}

/// The command ended.
#[derive(Clone, PartialEq, Message)]
pub struct Exited {
    /// Wait status.
    #[prost(uint32, tag = "1")]
    pub status: u32,
    /// Processes of the agent that were still there.
    #[prost(uint32, tag = "2")]
    pub left: u32,
}

/// shim → guardd.
#[derive(Clone, PartialEq, Message)]
pub struct ToDaemon {
    #[prost(oneof = "DaemonEvent", tags = "1, 2, 3, 4")]
    pub event: Option<DaemonEvent>,
}

/// What guardd hears about an agent.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum DaemonEvent {
    /// Host pid of the agent's first process.
    #[prost(uint32, tag = "1")]
    Started(u32),
    #[prost(message, tag = "2")]
    Observed(guard_proto::v1::Observation),
    #[prost(message, tag = "3")]
    Ended(Exited),
    #[prost(message, tag = "4")]
    Asked(guard_proto::v1::Ask),
}

/// One received message.
#[derive(Debug)]
pub struct Packet<M> {
    pub message: M,
    pub descriptors: Vec<OwnedFd>,
}

/// Sends one message with descriptors.
///
/// # Errors
/// The socket's error, unchanged.
pub fn send(
    socket: impl AsFd,
    message: &impl Message,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = message.encode_to_vec();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTOR_LIMIT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message; `None` at the end.
///
/// # Errors
/// The socket's error, a message that is cut off or cannot be decoded.
pub fn receive<M: Message + Default>(socket: impl AsFd) -> io::Result<Option<Packet<M>>> {
    let mut bytes = vec![0; MESSAGE_LIMIT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTOR_LIMIT))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was cut off"));
    }
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(None);
    }
    let message = M::decode(&bytes[..received.bytes])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some(Packet { message, descriptors }))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket pair")
    }

    #[test]
    fn descriptors_arrive_in_order_and_closed_on_exec() {
        let (a, b) = pair();
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        send(&a, &ToCommand { signal: 15 }, &[reader.as_fd(), writer.as_fd()], SendFlags::empty())
            .expect("sent");
        let packet = receive::<ToCommand>(&b).expect("received").expect("a message");
        assert_eq!(packet.message.signal, 15);
        assert_eq!(packet.descriptors.len(), 2);
        rustix::io::write(&packet.descriptors[1], b"x").expect("the second is the writing end");
        for descriptor in &packet.descriptors {
            let flags = rustix::io::fcntl_getfd(descriptor).expect("flags");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn the_end_is_none_and_rubbish_is_an_error() {
        let (a, b) = pair();
        rustix::io::write(&a, &[0xff, 0xff]).expect("written");
        assert!(receive::<ToCommand>(&b).is_err());
        drop(a);
        assert!(receive::<ToCommand>(&b).expect("the end").is_none());
    }
}
