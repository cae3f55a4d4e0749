//! The agents of this guardd: launched by ticket, watched through their shims, cleaned up when they end, adopted after a crash.

use std::{
    collections::HashMap,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use guard_proto::v1::{self, from_daemon, observation::Act};
use prost::Message as _;

use super::{SharedEnforcement, outbox::Outbox};
use crate::{
    enforce::{Cgroup, CgroupError, Whose},
    launch::{self, Answers, Caller, Launch, Report, Shim},
};

/// How long a ticket is good.
const TICKET_LIFE: Duration = Duration::from_secs(10);

/// Pauses between looks for a process whose start may still wait in the kernel's ring.
const UNTIL_KNOWN: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(150)];

/// How long killed processes may take to be gone.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Why a command about an agent cannot be carried out; the code goes to the caller as it is.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("no agent `{0}` is running here")]
    Unknown(String),
    #[error("this ticket is not known, used, or older than {} s", TICKET_LIFE.as_secs())]
    Ticket,
    #[error("this ticket is for uid {expected}, not uid {actual}")]
    Owner { expected: u32, actual: u32 },
    #[error("the cgroup of {agent}: {source}")]
    Cgroup { agent: String, source: CgroupError },
    #[error("the connection of {agent}: {source}")]
    Connection { agent: String, source: io::Error },
    #[error("the kernel's table for {agent}: {message}")]
    Table { agent: String, message: String },
    #[error("the record of running agents, {}: {source}", path.display())]
    State { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Launch(#[from] launch::LaunchError),
}

impl AgentError {
    /// The stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Unknown(_) => "no_such_agent",
            Self::Ticket => "invalid_ticket",
            Self::Owner { .. } => "not_permitted",
            Self::Cgroup { .. } => "cgroup",
            Self::Connection { .. } => "launch",
            Self::Table { .. } => "enforcement",
            Self::State { .. } => "state",
            Self::Launch(error) => error.code(),
        }
    }
}

/// All agents of one guardd.
pub struct Agents {
    enforcement: Option<SharedEnforcement>,
    whose: Option<Whose>,
    outbox: Arc<Outbox>,
    root: Cgroup,
    run_dir: PathBuf,
    shim: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tickets: HashMap<Vec<u8>, (v1::Launch, Instant)>,
    running: HashMap<String, v1::Agent>,
    /// The ways back to the shims.
    answers: HashMap<String, Answers>,
}

impl Agents {
    /// An empty house. Without `enforcement` (a degraded start) agents run with the fence alone.
    pub fn new(
        enforcement: Option<SharedEnforcement>,
        outbox: Arc<Outbox>,
        root: Cgroup,
        run_dir: &Path,
        shim: PathBuf,
    ) -> Result<Arc<Self>, AgentError> {
        let whose = enforcement.as_ref().map(|enforcement| super::lock(enforcement).whose());
        let agents = Self {
            enforcement,
            whose,
            outbox,
            root,
            run_dir: run_dir.to_owned(),
            shim,
            inner: Mutex::new(Inner::default()),
        };
        for directory in [agents.state_dir(), agents.shim_dir()] {
            fs::create_dir_all(&directory).map_err(|source| AgentError::State { path: directory, source })?;
        }
        Ok(Arc::new(agents))
    }

    /// The agents that run, for guard-core.
    pub fn list(&self) -> Vec<v1::Agent> {
        self.lock().running.values().cloned().collect()
    }

    /// Takes a launch that guard-core has checked; its ticket may come within [`TICKET_LIFE`].
    pub fn expect(&self, launch: v1::Launch) {
        let mut inner = self.lock();
        inner.tickets.retain(|_, (_, since)| since.elapsed() < TICKET_LIFE);
        inner.tickets.insert(launch.ticket.clone(), (launch, Instant::now()));
    }

    /// Stops an agent's processes where they are.
    ///
    /// # Errors
    /// [`AgentError`]
    pub fn freeze(&self, id: &str, frozen: bool) -> Result<(), AgentError> {
        self.known(id)?;
        let cgroup = self.cgroup(id)?;
        let done = if frozen { cgroup.freeze() } else { cgroup.thaw() };
        done.map_err(|source| AgentError::Cgroup { agent: id.to_owned(), source })?;
        self.change(id, |agent| (if frozen { "frozen" } else { "running" }).clone_into(&mut agent.state))
    }

    /// Ends an agent and everything it started.
    ///
    /// # Errors
    /// [`AgentError`]
    pub fn kill(&self, id: &str) -> Result<(), AgentError> {
        self.known(id)?;
        self.cgroup(id)?.kill().map_err(|source| AgentError::Cgroup { agent: id.to_owned(), source })
    }

    /// Cuts an agent off from every address but loopback.
    ///
    /// # Errors
    /// [`AgentError`]
    pub fn net_cut(&self, id: &str) -> Result<(), AgentError> {
        self.known(id)?;
        let Some(enforcement) = &self.enforcement else {
            let message = "no BPF programs are loaded on this host".to_owned();
            return Err(AgentError::Table { agent: id.to_owned(), message });
        };
        super::lock(enforcement)
            .net_cut(id)
            .map_err(|error| AgentError::Table { agent: id.to_owned(), message: error.to_string() })?;
        self.change(id, |agent| agent.net_cut = true)
    }

    /// Passes on what becomes of an act that waits. What does not get there is asked for again.
    pub fn answer(&self, verdict: &v1::Verdict) {
        if let Some(answers) = self.lock().answers.get(&verdict.agent_id)
            && let Err(error) = answers.send(verdict)
        {
            tracing::debug!(agent = verdict.agent_id, %error, "an answer did not get to its shim");
        }
    }

    /// Serves one connection on launch.sock: redeems the ticket, then watches the agent until it has ended.
    pub fn serve(self: &Arc<Self>, connection: OwnedFd) {
        let (ticket, descriptors, caller) = match launch::receive_ticket(&connection) {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "a launch connection was dropped");
                return;
            }
        };
        let started = self.redeem(&ticket, &caller).and_then(|launch| {
            let agent = agent_of(&launch, &caller);
            match self.start(launch, descriptors, &caller, &connection) {
                Ok(shim) => Ok((agent, shim)),
                Err(error) => {
                    self.clean(&agent.agent_id);
                    Err(error)
                }
            }
        });
        match started {
            Ok((agent, shim)) => self.watch(agent, shim, Some(connection)),
            Err(error) => launch::refuse(&connection, error.code(), &error.to_string()),
        }
    }

    /// Takes back the agents of an earlier guardd: their cgroups, and their shims where they still live.
    ///
    /// # Errors
    /// The state directory cannot be read.
    pub fn adopt(self: &Arc<Self>) -> Result<(), AgentError> {
        let state = self.state_dir();
        let failed = |source| AgentError::State { path: state.clone(), source };
        for entry in fs::read_dir(&state).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Ok(agent) = v1::Agent::decode(fs::read(&path).map_err(failed)?.as_slice()) else {
                tracing::warn!(path = %path.display(), "an agent's state cannot be read; its cgroup is removed if empty");
                continue;
            };
            let id = agent.agent_id.clone();
            match launch::reconnect(&self.shim_socket(&id)) {
                Ok(shim) => {
                    tracing::info!(agent = id, "adopted");
                    self.lock().running.insert(id.clone(), agent.clone());
                    let agents = Arc::clone(self);
                    spawn(&id, move || agents.watch(agent, shim, None));
                }
                Err(error) => {
                    tracing::warn!(agent = id, %error, "its shim is gone: the agent is ended");
                    self.clean(&id);
                    self.report_end(&id, 0, 0);
                }
            }
        }
        Ok(())
    }

    fn redeem(&self, ticket: &[u8], caller: &Caller) -> Result<v1::Launch, AgentError> {
        let (launch, since) = self.lock().tickets.remove(ticket).ok_or(AgentError::Ticket)?;
        if since.elapsed() >= TICKET_LIFE {
            return Err(AgentError::Ticket);
        }
        if launch.caller_uid != caller.uid {
            return Err(AgentError::Owner { expected: launch.caller_uid, actual: caller.uid });
        }
        Ok(launch)
    }

    fn start(
        &self,
        launch: v1::Launch,
        descriptors: launch::Descriptors,
        caller: &Caller,
        client: &OwnedFd,
    ) -> Result<Shim, AgentError> {
        let id = launch.agent_id.clone();
        let cgroup = self.cgroup(&id)?;
        let main = cgroup.child("main").map_err(|source| AgentError::Cgroup { agent: id.clone(), source })?;
        if let Some(enforcement) = &self.enforcement {
            super::lock(enforcement)
                .add_agent(&id, &cgroup, &launch.network)
                .map_err(|error| AgentError::Table { agent: id.clone(), message: error.to_string() })?;
        }
        let reconnect = launch::listen(&self.shim_socket(&id))?;
        let client =
            client.try_clone().map_err(|source| AgentError::Connection { agent: id.clone(), source })?;
        Ok(launch::spawn_shim(
            &self.shim,
            Launch {
                sandbox: launch.sandbox.unwrap_or_default(),
                caller: caller.clone(),
                descriptors,
                client,
                reconnect,
                cgroup: main.path().to_owned(),
            },
        )?)
    }

    /// Passes the shim's reports on until the agent has ended, then removes what is left of it.
    fn watch(&self, mut agent: v1::Agent, mut shim: Shim, client: Option<OwnedFd>) {
        let id = agent.agent_id.clone();
        let mut status = 0;
        let mut left = 0;
        match shim.answers() {
            Ok(answers) => drop(self.lock().answers.insert(id.clone(), answers)),
            Err(error) => tracing::error!(agent = id, %error, "what waits in this agent is refused"),
        }
        loop {
            match shim.next_report() {
                Ok(Some(Report::Started { pid })) => {
                    agent.pid = pid;
                    agent.uid = uid_of(pid).unwrap_or(agent.uid);
                    if let Err(error) = self.remember(&agent) {
                        tracing::error!(agent = id, %error, "this agent would not be adopted after a crash");
                    }
                    self.outbox.observe(vec![lifecycle(
                        &id,
                        Act::Started(v1::AgentStarted { agent: Some(agent.clone()) }),
                    )]);
                }
                Ok(Some(Report::Observed(mut observation))) => {
                    observation.agent_id.clone_from(&id);
                    if self.is_the_agents(&mut observation) {
                        self.outbox.observe(vec![observation]);
                    }
                }
                Ok(Some(Report::Asked(mut ask))) => {
                    if let Some(observation) = &mut ask.observation {
                        observation.agent_id.clone_from(&id);
                        self.outbox.send(from_daemon::Message::Ask(ask));
                    }
                }
                Ok(Some(Report::Ended { status: ended, left: processes })) => {
                    status = ended;
                    left = processes;
                    break;
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(agent = id, %error, "the shim cannot be read; the agent is ended");
                    break;
                }
            }
        }
        self.clean(&id);
        self.report_end(&id, status, left);
        // Last: guardctl waits for this end, and after it nothing of the agent is left.
        drop(client);
    }

    /// A secret may have been opened by somebody else; the shim cannot tell whose a process was that is gone by now.
    fn is_the_agents(&self, observation: &mut v1::Observation) -> bool {
        let gone = matches!(observation.act, Some(Act::Read(_))) && observation.exe.is_empty();
        let Some(whose) = self.whose.as_ref().filter(|_| gone) else { return true };
        for pause in UNTIL_KNOWN {
            if let Some((agent, exe, parent)) = whose.process(observation.pid) {
                (observation.exe, observation.parent_pid) = (exe, parent);
                return agent == observation.agent_id;
            }
            std::thread::sleep(pause);
        }
        false
    }

    fn report_end(&self, id: &str, status: u32, left: u32) {
        self.outbox.observe(vec![lifecycle(id, Act::Ended(v1::AgentEnded { status, left }))]);
    }

    /// Removes everything of an agent: processes, table entries, cgroup, state.
    fn clean(&self, id: &str) {
        if let Err(error) = self.remove_cgroup(id) {
            tracing::error!(agent = id, %error, "its cgroup is left behind");
        }
        if let Some(enforcement) = &self.enforcement
            && let Err(error) = super::lock(enforcement).remove_agent(id)
        {
            tracing::debug!(agent = id, %error, "no table entries to remove");
        }
        for path in [self.state_file(id), self.shim_socket(id)] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::error!(path = %path.display(), %error, "left behind");
            }
        }
        let mut inner = self.lock();
        inner.running.remove(id);
        inner.answers.remove(id);
    }

    fn remember(&self, agent: &v1::Agent) -> Result<(), AgentError> {
        self.lock().running.insert(agent.agent_id.clone(), agent.clone());
        self.save(agent)
    }

    fn save(&self, agent: &v1::Agent) -> Result<(), AgentError> {
        let path = self.state_file(&agent.agent_id);
        let fresh = path.with_extension("new");
        fs::write(&fresh, agent.encode_to_vec())
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|source| AgentError::State { path, source })
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut v1::Agent)) -> Result<(), AgentError> {
        let agent = {
            let mut inner = self.lock();
            let agent = inner.running.get_mut(id).ok_or_else(|| AgentError::Unknown(id.to_owned()))?;
            change(agent);
            agent.clone()
        };
        self.save(&agent)
    }

    fn known(&self, id: &str) -> Result<(), AgentError> {
        if self.lock().running.contains_key(id) {
            return Ok(());
        }
        Err(AgentError::Unknown(id.to_owned()))
    }

    fn cgroup(&self, id: &str) -> Result<Cgroup, AgentError> {
        self.root.child(id).map_err(|source| AgentError::Cgroup { agent: id.to_owned(), source })
    }

    fn remove_cgroup(&self, id: &str) -> Result<(), AgentError> {
        let failed = |source| AgentError::Cgroup { agent: id.to_owned(), source };
        let cgroup = self.cgroup(id)?;
        cgroup.thaw().and_then(|()| cgroup.kill()).map_err(failed)?;
        cgroup.wait_empty(ENDS_WITHIN).and_then(|()| cgroup.remove()).map_err(failed)
    }

    fn state_dir(&self) -> PathBuf {
        self.run_dir.join("agents")
    }

    fn shim_dir(&self) -> PathBuf {
        self.run_dir.join("shims")
    }

    fn state_file(&self, id: &str) -> PathBuf {
        self.state_dir().join(id)
    }

    fn shim_socket(&self, id: &str) -> PathBuf {
        self.shim_dir().join(format!("{id}.sock"))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts launches for ever, a thread each.
pub fn accept(agents: &Arc<Agents>, socket: &OwnedFd) {
    loop {
        match rustix::net::accept_with(socket.as_fd(), rustix::net::SocketFlags::CLOEXEC) {
            Ok(connection) => {
                let agents = Arc::clone(agents);
                spawn("launch", move || agents.serve(connection));
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::error!(%error, "launch.sock cannot be served");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    // Watchers need little; the default of 2 MiB each would count against every agent.
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10);
    if let Err(error) = builder.spawn(run) {
        tracing::error!(%error, name, "no thread for an agent");
    }
}

/// The uid that a process has; the owner of its directory in /proc is root while it cannot be dumped.
fn uid_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().next()?.parse().ok()
}

fn agent_of(launch: &v1::Launch, caller: &Caller) -> v1::Agent {
    let sandbox = launch.sandbox.clone().unwrap_or_default();
    v1::Agent {
        agent_id: launch.agent_id.clone(),
        principal: launch.principal.clone(),
        uid: caller.uid,
        owner_uid: caller.uid,
        pid: 0,
        argv0: sandbox.argv.first().cloned().unwrap_or_default(),
        started_ms: u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0),
        state: "running".to_owned(),
        net_cut: false,
        worktree: sandbox.worktree,
        processes: 0,
    }
}

fn lifecycle(id: &str, act: Act) -> v1::Observation {
    v1::Observation {
        time_ns: u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0),
        agent_id: id.to_owned(),
        effect: "done".to_owned(),
        mechanism: "guardd".to_owned(),
        strength: "observed".to_owned(),
        act: Some(act),
        ..Default::default()
    }
}
