//! Who is calling: identity from the kernel's peer credentials, roles from `[permissions]`, agents by cgroup.

use std::{
    io,
    os::fd::AsFd,
    pin::Pin,
    task::{Context, Poll},
};

use guard_proto::v1;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};
use tonic::{Status, transport::server::Connected};

use super::registry::Registry;
use crate::{
    accounts::{group_id, peer_groups, user_named},
    settings::Permissions,
};

/// The process at the other end of a connection, as it was when it connected.
#[derive(Clone, Debug)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub pid: u32,
    /// Its cgroup below the guard root, if it is an agent, whatever its uid.
    pub agent: Option<AgentPeer>,
}

/// A peer inside a governed cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentPeer {
    /// The agent with this id.
    Known(String),
    /// Its cgroup cannot be read, or it runs in a PID namespace we do not see: treated as an agent.
    Unknown,
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Run,
    Approve,
    Override,
    Operate,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Approve => "approve",
            Self::Override => "override",
            Self::Operate => "operate",
        }
    }
}

impl Peer {
    /// Reads the credentials of a connected socket. `root` is the guard root's path below the cgroup2 mount.
    ///
    /// # Errors
    /// The socket's credentials cannot be read.
    pub fn of(socket: &impl AsFd, root: &str) -> io::Result<Self> {
        let credentials = rustix::net::sockopt::socket_peercred(socket)?;
        let pid = credentials.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Self {
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
            groups: peer_groups(socket)?,
            pid,
            agent: agent_of(pid, root),
        })
    }

    /// Whether this peer holds a role under these permissions. Agents hold none.
    pub fn holds(&self, role: Role, permissions: &Permissions) -> bool {
        if self.agent.is_some() {
            return false;
        }
        let named = match role {
            Role::Run => &permissions.run,
            Role::Approve => &permissions.approve,
            Role::Override => &permissions.r#override,
            Role::Operate => &permissions.operate,
        };
        self.uid == 0
            || named.iter().any(|name| match name.strip_prefix('@') {
                Some(group) => {
                    group_id(group).is_some_and(|gid| gid == self.gid || self.groups.contains(&gid))
                }
                None => user_named(name).is_some_and(|user| user.uid == self.uid),
            })
    }

    /// Whom an agent speaks for, whatever it says: itself, and nobody if it is not known. `None` for people, who may ask for anybody.
    pub fn speaks_as(&self, registry: &Registry) -> Option<v1::Principal> {
        let subject = match self.agent.as_ref()? {
            AgentPeer::Known(id) => registry.subject(id),
            AgentPeer::Unknown => None,
        };
        Some(subject.map(|subject| subject.principal).unwrap_or_default())
    }

    /// Refuses a caller without the role, naming what it would take.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`.
    pub fn require(&self, role: Role, permissions: &Permissions) -> Result<(), Status> {
        if self.holds(role, permissions) {
            return Ok(());
        }
        let reason = match &self.agent {
            Some(_) => "an agent may not do this".to_owned(),
            None => format!(
                "uid {} lacks the role `{}`; `[permissions] {} = …` in guard.toml says who has it",
                self.uid,
                role.name(),
                role.name()
            ),
        };
        Err(Status::permission_denied(reason))
    }
}

/// An accepted connection that carries its [`Peer`] to the services.
pub struct PeerStream {
    stream: UnixStream,
    peer: Peer,
}

impl PeerStream {
    /// Takes a connection and reads who is at the other end.
    ///
    /// # Errors
    /// The credentials cannot be read.
    pub fn new(stream: UnixStream, root: &str) -> io::Result<Self> {
        let peer = Peer::of(&stream, root)?;
        Ok(Self { stream, peer })
    }
}

impl Connected for PeerStream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Finds the agent that a process belongs to: the first segment below the guard root in its cgroup2 path.
fn agent_of(pid: u32, root: &str) -> Option<AgentPeer> {
    match std::fs::read_to_string(format!("/proc/{pid}/cgroup")) {
        Ok(text) => agent_in(&text, root),
        Err(_) => Some(AgentPeer::Unknown),
    }
}

fn agent_in(text: &str, root: &str) -> Option<AgentPeer> {
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Some(AgentPeer::Unknown);
    };
    let below = path.strip_prefix(root)?;
    match below.strip_prefix('/') {
        None if below.is_empty() => Some(AgentPeer::Unknown),
        None => None,
        Some(rest) => rest.split('/').next().map(|id| AgentPeer::Known(id.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32], agent: Option<AgentPeer>) -> Peer {
        Peer { uid, gid: uid, groups: groups.to_vec(), pid: 1, agent }
    }

    /// a peer within a governed cgroup is an agent whatever its uid.
    #[test]
    fn agents_are_known_by_cgroup_ancestry() {
        let known = |id: &str| Some(AgentPeer::Known(id.to_owned()));
        for (text, expected) in [
            ("0::/guard/a1/main\n", known("a1")),
            ("9:pids:/x\n0::/guard/a1/main/p-7/deep\n", known("a1")),
            ("0::/guard\n", Some(AgentPeer::Unknown)),
            ("0::/guardian/a1\n", None),
            ("0::/\n", None),
            ("1:name=systemd:/guard/a1\n", Some(AgentPeer::Unknown)),
        ] {
            assert_eq!(agent_in(text, "/guard"), expected, "{text:?}");
        }
    }

    ///
    #[test]
    fn roles_come_from_users_groups_and_root_and_never_to_agents() {
        let permissions = Permissions {
            run: vec!["@daemon".to_owned()],
            approve: vec!["bin".to_owned()],
            r#override: Vec::new(),
            operate: Vec::new(),
        };
        let daemon = group_id("daemon").expect("every Debian has this group");
        let bin = user_named("bin").expect("every Debian has this user").uid;
        assert!(peer(4000, &[daemon], None).holds(Role::Run, &permissions));
        assert!(!peer(4000, &[], None).holds(Role::Run, &permissions));
        assert!(peer(bin, &[], None).holds(Role::Approve, &permissions));
        assert!(!peer(bin, &[], None).holds(Role::Operate, &permissions));
        assert!(peer(0, &[], None).holds(Role::Operate, &permissions));
        assert!(!peer(0, &[], Some(AgentPeer::Unknown)).holds(Role::Operate, &permissions));
    }

    /// an agent speaks for itself alone, and one whose cgroup cannot be read for nobody.
    #[test]
    fn an_agent_speaks_for_itself_alone() {
        let registry = Registry::default();
        let principal = v1::Principal { agent: "coder".to_owned(), ..Default::default() };
        registry.started(v1::Agent {
            agent_id: "a1".to_owned(),
            principal: Some(principal.clone()),
            ..Default::default()
        });
        let known = |id: &str| Some(AgentPeer::Known(id.to_owned()));
        for (agent, expected) in [
            (None, None),
            (known("a1"), Some(principal)),
            (known("a2"), Some(v1::Principal::default())),
            (Some(AgentPeer::Unknown), Some(v1::Principal::default())),
        ] {
            assert_eq!(peer(0, &[], agent.clone()).speaks_as(&registry), expected, "{agent:?}");
        }
    }

    #[test]
    fn a_socket_tells_who_connected() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("socketpair");
        let peer = Peer::of(&one, "/no-such-root").expect("credentials");
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.agent, None);
    }
}
