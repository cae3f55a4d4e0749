//! guard-core: the unprivileged half. Parses everything that comes from outside, owns policy and record.
//!
//! It has three listeners, which guardd (or systemd) passes in: `guard` for people, `agent` for peers inside an
//! agent, `core` for guardd. What guardd observed is judged by the one engine in [`record`] and written to the audit.

use std::{
    io,
    net::IpAddr,
    os::{
        fd::FromRawFd,
        unix::{fs::MetadataExt, net::UnixListener},
    },
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use guard_policy::{Context, Request, Sessions, request::Line};
use guard_proto::v1::{
    self, agents_server::AgentsServer, approvals_server::ApprovalsServer, host_server::HostServer,
    link_server::LinkServer, policy_server::PolicyServer, rules_server::RulesServer,
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::{StreamExt, wrappers::UnixListenerStream};
use tonic::{Code, Status, transport::Server};

use crate::{
    audit::{
        Effect, Entry, Kind,
        writer::{Audit, Settings as AuditSettings},
    },
    enforce::{Cgroup, CgroupError, Hierarchy},
    settings::{Options, Settings},
};

pub mod approvals;
pub mod database;
pub mod link;
pub mod peer;
pub mod policy;
pub mod prepare;
pub mod record;
pub mod registry;
pub mod rules;
pub mod scratch;
pub mod services;
pub mod tail;

use peer::{Peer, PeerStream, Role};

/// How often the policy files are looked at.
const WATCH: Duration = Duration::from_secs(1);
/// Largest request that one call may carry, bytes.
const MESSAGE: usize = 4 << 20;

/// Everything that the services share.
pub struct Core {
    pub settings: Settings,
    pub policy: policy::Store,
    pub audit: Audit,
    pub registry: registry::Registry,
    pub line: link::Line,
    pub approvals: approvals::Approvals,
    sessions: std::sync::Mutex<Sessions>,
    hello: ArcSwapOption<v1::Hello>,
    /// As of the last snapshot.
    resolvers: ArcSwap<Vec<IpAddr>>,
    /// The guard root.
    root: PathBuf,
}

impl Core {
    /// A guardd has attached: this is what its host does and who runs there.
    pub fn attached(&self, hello: v1::Hello) {
        self.registry.replace(hello.agents.clone());
        let detail = json!({"event": "guardd attached", "pid": hello.pid, "agents": hello.agents.len()});
        self.hello.store(Some(Arc::new(hello)));
        self.write(Entry::new(Kind::Daemon, Effect::Done).with_detail(&detail));
    }

    /// `coverage --json`, once a guardd has attached.
    pub fn coverage(&self) -> Option<Vec<u8>> {
        self.hello.load().as_ref().map(|hello| hello.coverage.clone())
    }

    /// The kernel's address table under the current generation, for everyone and for each running agent.
    pub fn snapshot(&self) -> v1::Snapshot {
        let current = self.policy.current();
        let resolvers = Arc::new(resolvers());
        self.resolvers.store(Arc::clone(&resolvers));
        let now = jiff::Timestamp::now();
        let mut network = record::network(&current.policy, None, &resolvers, now);
        for agent in self.registry.list() {
            let principal = agent.principal.unwrap_or_default();
            network.extend(record::network(
                &current.policy,
                Some((&agent.agent_id, &principal)),
                &resolvers,
                now,
            ));
        }
        v1::Snapshot { generation: current.number, network }
    }

    /// guardd has brought a generation into force.
    pub fn in_force(&self, generation: u64) {
        let detail = json!({"event": "in force", "generation": generation});
        self.write(Entry::new(Kind::Policy, Effect::Done).with_detail(&detail));
    }

    /// Judges and records what guardd observed, in order.
    pub fn observe(self: &Arc<Self>, batch: v1::Observations) {
        for observation in batch.items {
            if let Some(entry) = record::judge(self, observation) {
                self.write(entry);
            }
        }
        let core = Arc::clone(self);
        // The writer's end is logged by the writer; without it nothing is acknowledged.
        let _ = self.audit.when_written(move || core.line.acknowledge(batch.number));
    }

    /// Answers a line that came over gRPC: a decision for a request, an acknowledgement for a receipt.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the reader's code and place.
    pub fn decide_bytes(&self, bytes: &[u8], peer: &Peer) -> Result<(Vec<u8>, u64), Status> {
        let line = Line::parse(bytes).map_err(|(fault, _)| {
            services::refusal(Code::InvalidArgument, fault.code.as_str(), fault.message.clone())
        })?;
        let current = self.policy.current();
        let text = match line {
            Line::Receipt(receipt) => {
                if peer.agent.is_some() {
                    let message = "an agent does not say what became of its own acts";
                    return Err(services::refusal(Code::PermissionDenied, "not_permitted", message));
                }
                let settled = self.settle(&receipt);
                serde_json::to_vec(&json!({"id": receipt.receipt, "settled": settled}))
            }
            Line::Request(request) => {
                let request = self.as_peer(*request, peer);
                let context = self.context(jiff::Timestamp::now(), request.approver);
                let decision = self.judge(&current.policy, &request, &context);
                self.write(record::of_request(&request, &decision, current.number));
                if decision.overridden.is_some() {
                    self.write(record::of_override(&request, &decision, current.number, peer));
                }
                serde_json::to_vec(&decision)
            }
        };
        let text = text.map_err(|error| Status::internal(error.to_string()))?;
        Ok((text, current.number))
    }

    /// What a request would be answered now; nothing is counted and nothing recorded (C-142).
    ///
    /// # Errors
    /// As [`Core::decide_bytes`].
    pub fn probe_bytes(&self, bytes: &[u8], peer: &Peer) -> Result<(Vec<u8>, u64), Status> {
        let mut request = Request::parse(bytes).map_err(|fault| {
            services::refusal(Code::InvalidArgument, fault.code.as_str(), fault.message.clone())
        })?;
        request.derive();
        let request = self.as_peer(request, peer);
        let current = self.policy.current();
        let context = self.context(jiff::Timestamp::now(), request.approver);
        let decision = self.sessions().peek(&current.policy, &request, &context);
        let text = serde_json::to_vec(&decision).map_err(|error| Status::internal(error.to_string()))?;
        Ok((text, current.number))
    }

    /// The request as its caller may ask it: an agent speaks for itself alone, and an override is one only
    /// from somebody who holds that permission (C-092), whose name is the kernel's word and not the caller's.
    fn as_peer(&self, mut request: Request, peer: &Peer) -> Request {
        // Nobody can answer an ask yet; the core knows that by itself, whatever the request says.
        request.approver = false;
        request.overridden =
            request.overridden.filter(|_| peer.holds(Role::Override, &self.settings.permissions));
        if let Some(overridden) = &mut request.overridden {
            overridden.by = Some(name_of(peer.uid));
        }
        if let Some(principal) = peer.speaks_as(&self.registry) {
            request.principal = record::principal_of(&principal);
        }
        request
    }

    /// Judges a request in its session and keeps what it used and lifted.
    pub fn judge(
        &self,
        policy: &guard_policy::Policy,
        request: &Request,
        context: &Context,
    ) -> guard_policy::Decision {
        let mut sessions = self.sessions();
        let decision = sessions.decide(policy, request, context);
        let session = request.principal.session.as_deref().unwrap_or_default();
        let mut kept = Ok(());
        if decision.outcome == guard_policy::Outcome::Allow
            && let Some(usage) = sessions.usage(session).filter(|usage| usage.iter().next().is_some())
        {
            kept = self.policy.database().save_usage(session, usage);
        }
        if let Some(lifted) = &decision.overridden {
            kept = kept.and(self.policy.database().add_override(session, lifted));
        }
        if let Err(error) = kept {
            // It counts on while this process lives; a restart would forget it, so somebody has to know.
            tracing::error!(%error, "what a session used is not kept");
        }
        decision
    }

    fn settle(&self, receipt: &guard_policy::request::Receipt) -> bool {
        let mut sessions = self.sessions();
        let settled = sessions.settle(receipt);
        let session = receipt.session.as_deref().unwrap_or_default();
        if let Some(usage) = sessions.usage(session)
            && let Err(error) = self.policy.database().save_usage(session, usage)
        {
            tracing::error!(%error, "what a session used is not kept");
        }
        settled
    }

    /// What sessions have used.
    pub fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What a decision is given besides policy and request.
    pub fn context(&self, now: jiff::Timestamp, approver: bool) -> Context {
        Context::new(now, approver).with_resolvers(self.resolvers.load().as_ref().clone())
    }

    /// Reads the policy files again and sends the new generation down.
    ///
    /// # Errors
    /// The faults; the last good generation stays in force.
    pub async fn reload(&self, by: &str) -> Result<u64, policy::PolicyError> {
        let result = self.policy.reload();
        let detail = match &result {
            Ok(generation) => json!({"event": "reload", "by": by, "generation": generation.number}),
            Err(error) => json!({"event": "reload refused", "by": by, "faults": error.to_string()}),
        };
        let effect = if result.is_ok() { Effect::Done } else { Effect::Refused };
        self.write(Entry::new(Kind::Policy, effect).with_detail(&detail));
        let number = result?.number;
        self.line.snapshot(self.snapshot()).await;
        Ok(number)
    }

    /// Why the service is not as it should be; empty when it is.
    pub fn degraded(&self) -> Vec<String> {
        let mut reasons = self.policy.faults().as_ref().clone();
        if !self.line.is_up() {
            reasons.push("guardd is not connected".to_owned());
        }
        reasons
    }

    /// Processes in an agent's cgroup tree; 0 when it cannot be read.
    pub fn processes(&self, agent_id: &str) -> u64 {
        let found = Cgroup::open(&self.root.join(agent_id)).and_then(|cgroup| cgroup.processes());
        found.map_or(0, |processes| processes.len() as u64)
    }

    /// Records that a person stopped or released an agent.
    pub fn record_lifecycle(&self, what: &str, agent: &v1::Agent, peer: &Peer) {
        match what {
            "freeze" => self.registry.update(&agent.agent_id, |agent| "frozen".clone_into(&mut agent.state)),
            "thaw" => self.registry.update(&agent.agent_id, |agent| "running".clone_into(&mut agent.state)),
            "net-cut" => self.registry.update(&agent.agent_id, |agent| agent.net_cut = true),
            _ => {}
        }
        let detail = json!({"event": what, "by_uid": peer.uid, "by_pid": peer.pid});
        let mut entry = Entry::new(Kind::Daemon, Effect::Done).with_detail(&detail);
        entry.agent_id = Some(agent.agent_id.clone());
        self.write(entry);
    }

    fn write(&self, entry: Entry) {
        if let Err(error) = self.audit.write(entry) {
            // Without a record nothing may go on as if there were one: guardd starts a new core, which says why it cannot.
            tracing::error!(%error, "guard-core ends because its record cannot be kept");
            std::process::exit(1);
        }
    }
}

/// The name of a user, or the number where it has none.
pub fn name_of(uid: u32) -> String {
    let named = crate::accounts::user_with(uid);
    named.map_or_else(|| format!("uid {uid}"), |user| user.name.to_string_lossy().into_owned())
}

/// The resolvers of this host; the policy decides whether they are a hole.
pub fn resolvers() -> Vec<IpAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        // A zone (`fe80::1%eth0`) names an interface, not another address.
        .filter_map(|rest| rest.trim().split(['%', ' ', '\t']).next()?.parse().ok())
        .collect()
}

/// Options of guard-core.
#[derive(Debug, clap::Parser)]
#[command(
    name = "guard-core",
    version,
    about = "The unprivileged half of guard: policy, record, gRPC",
    max_term_width = 100
)]
pub struct Arguments {
    #[command(flatten)]
    pub options: Options,
}

/// Why guard-core cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] crate::settings::SettingsError),
    #[error("{0}")]
    Policy(#[from] policy::PolicyError),
    #[error("{0}")]
    Database(#[from] database::DatabaseError),
    #[error("error[no_cgroup2]: {0}")]
    Cgroup(#[from] CgroupError),
    #[error("error[audit]: {0}")]
    Audit(#[from] crate::audit::AuditError),
    #[error(
        "error[listeners]: guard-core takes its listeners from guardd or systemd (LISTEN_FDS with names guard, agent, core): {0}"
    )]
    Listeners(String),
    #[error("error[runtime]: {0}")]
    Runtime(io::Error),
}

/// Runs guard-core until it is told to end.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = <Arguments as clap::Parser>::parse();
    crate::log::start();
    match start(&arguments.options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Options) -> Result<(), StartError> {
    // It was executed through a descriptor, whose number would be its name in `ps`.
    if let Err(error) = rustix::thread::set_name(c"guard-core") {
        tracing::debug!(%error, "this process keeps its name");
    }
    // A core holds what agents and people said: no same-uid process reads its memory.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(|error| StartError::Runtime(error.into()))?;
    let settings = Settings::load(options)?;
    let database = database::Database::open(&settings.state_dir.join("store.db"))?;
    let sessions = std::sync::Mutex::new(database.sessions()?);
    let policy = policy::Store::open(settings.policy.clone(), settings.managed.clone(), database)?;
    let (audit, writer) = Audit::open(AuditSettings {
        directory: settings.audit_dir.clone(),
        key: settings.audit_key(),
        segment_bytes: settings.audit.segment_bytes,
    })?;
    let listeners = listeners()?;
    let hierarchy = Hierarchy::find()?;
    let root = hierarchy.mount().join(&settings.cgroup);
    let below = root.strip_prefix(hierarchy.mount()).unwrap_or(&settings.cgroup);
    let root_name = format!("/{}", below.display());
    let core = Arc::new(Core {
        settings,
        policy,
        audit,
        registry: registry::Registry::default(),
        line: link::Line::default(),
        approvals: approvals::Approvals::default(),
        sessions,
        hello: ArcSwapOption::empty(),
        resolvers: ArcSwap::from_pointee(resolvers()),
        root,
    });
    core.write(Entry::new(Kind::Daemon, Effect::Done).with_detail(&json!({
        "event": "guard-core started",
        "version": env!("CARGO_PKG_VERSION"),
        "policy": core.settings.policy,
        "managed": core.settings.managed,
    })));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(StartError::Runtime)?;
    let result = runtime.block_on(serve(&core, listeners, &root_name));
    core.write(Entry::new(Kind::Daemon, Effect::Done).with_detail(&json!({"event": "guard-core ended"})));
    runtime.shutdown_timeout(Duration::from_secs(1));
    writer.close()?;
    result.map_err(StartError::Runtime)
}

struct Listeners {
    guard: UnixListener,
    agent: UnixListener,
    core: UnixListener,
}

/// Takes the inherited listeners by name (sd_listen_fds(3)).
fn listeners() -> Result<Listeners, StartError> {
    let missing = |what: &str| StartError::Listeners(what.to_owned());
    let names = std::env::var("LISTEN_FDNAMES").map_err(|_| missing("LISTEN_FDNAMES is not set"))?;
    let count: usize = std::env::var("LISTEN_FDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| missing("LISTEN_FDS is not set"))?;
    let mut found: Vec<(String, UnixListener)> = Vec::new();
    for (name, descriptor) in names.split(':').zip(3..).take(count) {
        // SAFETY: the protocol hands these descriptors to this process; each is taken once.
        let listener = unsafe { UnixListener::from_raw_fd(descriptor) };
        rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| missing(&format!("descriptor {descriptor}: {error}")))?;
        found.push((name.to_owned(), listener));
    }
    let mut take = |wanted: &str| {
        let at = found.iter().position(|(name, _)| name == wanted);
        at.map(|at| found.swap_remove(at).1).ok_or_else(|| missing(&format!("no listener named {wanted}")))
    };
    Ok(Listeners { guard: take("guard")?, agent: take("agent")?, core: take("core")? })
}

fn incoming(
    listener: UnixListener,
    root: &str,
) -> io::Result<impl tokio_stream::Stream<Item = io::Result<PeerStream>> + use<>> {
    listener.set_nonblocking(true)?;
    let root = root.to_owned();
    let accepted = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
    // A caller that is gone before it is known is nobody's error.
    Ok(accepted.filter_map(move |stream| match stream.and_then(|stream| PeerStream::new(stream, &root)) {
        Ok(stream) => Some(Ok(stream)),
        Err(error) => {
            tracing::debug!(%error, "a connection was dropped");
            None
        }
    }))
}

async fn serve(core: &Arc<Core>, listeners: Listeners, root: &str) -> io::Result<()> {
    let daemon_uid = std::fs::metadata(&core.settings.run_dir)?.uid();
    let policy =
        || PolicyServer::new(services::PolicyService(Arc::clone(core))).max_decoding_message_size(MESSAGE);
    let people = Server::builder()
        .add_service(policy())
        .add_service(
            AgentsServer::new(services::AgentsService(Arc::clone(core))).max_decoding_message_size(MESSAGE),
        )
        .add_service(HostServer::new(services::HostService(Arc::clone(core))))
        .add_service(ApprovalsServer::new(approvals::ApprovalsService(Arc::clone(core))))
        .add_service(RulesServer::new(rules::RulesService(Arc::clone(core))))
        .serve_with_incoming(incoming(listeners.guard, root)?);
    let agents =
        Server::builder().add_service(policy()).serve_with_incoming(incoming(listeners.agent, root)?);
    let link = link::LinkService { core: Arc::clone(core), daemon_uid };
    let daemon = Server::builder()
        .add_service(LinkServer::new(link).max_decoding_message_size(64 << 20))
        .serve_with_incoming(incoming(listeners.core, root)?);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        result = async { tokio::try_join!(people, agents, daemon) } => {
            result.map(|_| ()).map_err(io::Error::other)
        }
        result = watch(core) => result,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Reloads on SIGHUP and when a policy file looks different; a rule that expires makes a new generation.
async fn watch(core: &Arc<Core>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        let by = tokio::select! {
            _ = hangup.recv() => "SIGHUP",
            () = tokio::time::sleep(WATCH) => {
                if core.policy.expire(jiff::Timestamp::now()) {
                    core.line.snapshot(core.snapshot()).await;
                }
                if !core.policy.changed() {
                    continue;
                }
                "file change"
            }
        };
        if let Err(error) = core.reload(by).await {
            tracing::error!(
                "the policy files have faults; the last good generation stays in force:\n{error}"
            );
        }
    }
}
