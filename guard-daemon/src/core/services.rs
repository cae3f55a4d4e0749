//! The gRPC services for people and agents. Each call first asks [`Peer`] what the caller may do.

use std::{pin::Pin, sync::Arc};

use guard_proto::v1::{self, agents_server, command::Command, host_server, policy_server};
use tokio_stream::Stream;
use tonic::{Code, Request, Response, Status, metadata::MetadataValue};

use super::{
    Core,
    link::LinkError,
    peer::{Peer, Role},
    prepare,
};
use crate::audit::filter::Filter;

/// An error with a stable code in the metadata key `guard-code`.
pub fn refusal(code: Code, stable: &str, message: impl Into<String>) -> Status {
    let mut status = Status::new(code, message);
    if let Ok(value) = MetadataValue::try_from(stable) {
        status.metadata_mut().insert("guard-code", value);
    }
    status
}

pub fn peer_of<T>(request: &Request<T>) -> Result<Peer, Status> {
    request.extensions().get::<Peer>().cloned().ok_or_else(|| Status::internal("the caller is not known"))
}

fn link_refused(error: &LinkError) -> Status {
    let code = match error {
        LinkError::Down | LinkError::Silent => Code::Unavailable,
        LinkError::Refused { .. } => Code::FailedPrecondition,
    };
    refusal(code, error.code(), error.to_string())
}

/// The one policy engine, over gRPC.
pub struct PolicyService(pub Arc<Core>);

#[tonic::async_trait]
impl policy_server::Policy for PolicyService {
    async fn decide(
        &self,
        request: Request<v1::DecideRequest>,
    ) -> Result<Response<v1::DecideResponse>, Status> {
        let peer = peer_of(&request)?;
        if peer.agent.is_none() {
            peer.require(Role::Run, &self.0.settings.permissions)?;
        }
        let v1::DecideRequest { request, probe } = request.get_ref();
        let (decision, generation) =
            if *probe { self.0.probe_bytes(request, &peer)? } else { self.0.decide_bytes(request, &peer)? };
        Ok(Response::new(v1::DecideResponse { decision, generation }))
    }
}

/// Launching and stopping.
pub struct AgentsService(pub Arc<Core>);

impl AgentsService {
    /// The agents that the caller chose and may act on.
    fn chosen(&self, peer: &Peer, selection: &v1::Selection) -> Result<Vec<v1::Agent>, Status> {
        let permissions = &self.0.settings.permissions;
        peer.require(Role::Run, permissions)?;
        if selection.all != selection.agents.is_empty() {
            return Err(refusal(Code::InvalidArgument, "invalid_selection", "name agents, or all of them"));
        }
        let mut agents = self.0.registry.select(selection).map_err(|name| {
            refusal(
                Code::NotFound,
                "no_such_agent",
                format!("no agent `{name}` is running; `guardctl ps` lists them"),
            )
        })?;
        if !peer.holds(Role::Operate, permissions) {
            if selection.all {
                agents.retain(|agent| agent.owner_uid == peer.uid);
            } else if let Some(other) = agents.iter().find(|agent| agent.owner_uid != peer.uid) {
                return Err(refusal(
                    Code::PermissionDenied,
                    "not_permitted",
                    format!(
                        "agent {} belongs to uid {}; that takes the role `operate`",
                        other.agent_id, other.owner_uid
                    ),
                ));
            }
        }
        Ok(agents)
    }

    async fn act(
        &self,
        request: Request<v1::Selection>,
        name: &'static str,
        command: impl Fn(v1::Act) -> Command,
    ) -> Result<Response<v1::Changed>, Status> {
        let peer = peer_of(&request)?;
        let agents = self.chosen(&peer, request.get_ref())?;
        let mut changed = Vec::with_capacity(agents.len());
        for agent in agents {
            let act = v1::Act { agent_id: agent.agent_id.clone() };
            self.0.line.command(command(act)).await.map_err(|error| link_refused(&error))?;
            self.0.record_lifecycle(name, &agent, &peer);
            changed.push(agent.agent_id);
        }
        Ok(Response::new(v1::Changed { agent_ids: changed }))
    }
}

#[tonic::async_trait]
impl agents_server::Agents for AgentsService {
    async fn prepare(
        &self,
        request: Request<v1::PrepareRequest>,
    ) -> Result<Response<v1::PrepareResponse>, Status> {
        let peer = peer_of(&request)?;
        peer.require(Role::Run, &self.0.settings.permissions)?;
        let prepared = prepare::prepare(&self.0, &peer, request.into_inner())
            .map_err(|error| refusal(Code::InvalidArgument, error.code(), error.to_string()))?;
        let launch = prepared.launch;
        self.0.registry.prepare(&launch.agent_id, prepared.subject);
        let response = v1::PrepareResponse {
            ticket: launch.ticket.clone(),
            agent_id: launch.agent_id.clone(),
            session: launch.principal.as_ref().map(|principal| principal.session.clone()).unwrap_or_default(),
            warnings: prepared.warnings,
        };
        self.0.line.command(Command::Launch(launch)).await.map_err(|error| link_refused(&error))?;
        Ok(Response::new(response))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let peer = peer_of(&request)?;
        let permissions = &self.0.settings.permissions;
        peer.require(Role::Run, permissions)?;
        let mut agents = self.0.registry.list();
        if !peer.holds(Role::Operate, permissions) {
            agents.retain(|agent| agent.owner_uid == peer.uid);
        }
        for agent in &mut agents {
            agent.processes = self.0.processes(&agent.agent_id);
        }
        Ok(Response::new(v1::ListResponse { agents }))
    }

    async fn freeze(&self, request: Request<v1::Selection>) -> Result<Response<v1::Changed>, Status> {
        self.act(request, "freeze", Command::Freeze).await
    }

    async fn thaw(&self, request: Request<v1::Selection>) -> Result<Response<v1::Changed>, Status> {
        self.act(request, "thaw", Command::Thaw).await
    }

    async fn kill(&self, request: Request<v1::Selection>) -> Result<Response<v1::Changed>, Status> {
        self.act(request, "kill", Command::Kill).await
    }

    async fn net_cut(&self, request: Request<v1::Selection>) -> Result<Response<v1::Changed>, Status> {
        self.act(request, "net-cut", Command::NetCut).await
    }
}

/// What this host does, and what happened.
pub struct HostService(pub Arc<Core>);

impl HostService {
    fn status(&self) -> v1::StatusResponse {
        v1::StatusResponse {
            generation: self.0.policy.current().number,
            daemon_connected: self.0.line.is_up(),
            degraded: self.0.degraded(),
            audit_seq: self.0.audit.seq(),
        }
    }
}

#[tonic::async_trait]
impl host_server::Host for HostService {
    async fn coverage(
        &self,
        request: Request<v1::CoverageRequest>,
    ) -> Result<Response<v1::CoverageResponse>, Status> {
        peer_of(&request)?.require(Role::Run, &self.0.settings.permissions)?;
        let json = self.0.coverage().ok_or_else(|| link_refused(&LinkError::Down))?;
        Ok(Response::new(v1::CoverageResponse { json }))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        peer_of(&request)?.require(Role::Run, &self.0.settings.permissions)?;
        Ok(Response::new(HostService::status(self)))
    }

    async fn reload(
        &self,
        request: Request<v1::ReloadRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let peer = peer_of(&request)?;
        peer.require(Role::Operate, &self.0.settings.permissions)?;
        self.0
            .reload(&format!("uid {}", peer.uid))
            .await
            .map_err(|error| refusal(Code::FailedPrecondition, "policy_invalid", error.to_string()))?;
        Ok(Response::new(HostService::status(self)))
    }

    type AuditStream = Pin<Box<dyn Stream<Item = Result<v1::AuditLine, Status>> + Send>>;

    async fn audit(&self, request: Request<v1::AuditRequest>) -> Result<Response<Self::AuditStream>, Status> {
        peer_of(&request)?.require(Role::Operate, &self.0.settings.permissions)?;
        let mut request = request.into_inner();
        let filter = Filter::new(request.filter.take().unwrap_or_default())
            .map_err(|error| refusal(Code::InvalidArgument, "unknown_word", error.to_string()))?;
        let stream = super::tail::stream(&self.0, &request, filter)
            .map_err(|error| refusal(Code::Internal, "audit_unreadable", error.to_string()))?;
        Ok(Response::new(Box::pin(stream)))
    }
}
