//! guardd: the privileged half. Holds BPF programs, cgroups and launches; parses nothing that comes from outside.
//!
//! Data flows one way: kernel events and shims' reports go through the [`outbox`] up the [`link`] to guard-core;
//! snapshots and commands come down it.

use std::{
    io,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, ExitCode},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use guard_proto::v1::{self, command::Command, from_daemon, to_daemon};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    coverage::Coverage,
    enforce::{self, Cgroup, CgroupError, CgroupId, Enforcement, Hierarchy},
    settings::{Options, Settings, SettingsError},
};

pub mod agents;
pub mod core_process;
pub mod link;
pub mod outbox;
pub mod privilege;
pub mod self_test;
pub mod sockets;
pub mod trial;

use agents::Agents;
use core_process::{CoreError, CoreIdentity};
use outbox::Outbox;
use sockets::{SocketError, Sockets};

/// How long guard-core may take to bring a first policy into force.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Pause before a core that died is started again; doubled each time up to the last.
const RESTART: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Options of guardd.
#[derive(Debug, clap::Parser)]
#[command(
    name = "guardd",
    version,
    about = "Keeps AI agents on this host inside what their operator decided",
    max_term_width = 100
)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Socket of a guard-core that runs already; without it guardd starts one itself
    #[arg(long, value_name = "PATH")]
    core: Option<PathBuf>,
    /// Start although a layer is missing on this host, and say which
    #[arg(long)]
    degraded: bool,
    /// Remove the kernel programs and tables of this run directory, and end
    #[arg(long)]
    release: bool,
}

/// Why guardd cannot start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Privilege(#[from] privilege::NoPrivilege),
    #[error("error[{}]: {_0}", _0.code())]
    Enforce(#[from] enforce::LoadError),
    #[error("error[no_cgroup2]: {0}")]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error("error[agents]: {0}")]
    Agents(#[from] agents::AgentError),
    #[error("error[core_ended]: guard-core ended before it was ready; what it said is above")]
    CoreEnded,
    #[error("error[core_silent]: no policy came into force within {} s", READY_WITHIN.as_secs())]
    CoreSilent,
    #[error("error[capabilities]: unneeded capabilities cannot be given up: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    #[error("error[runtime]: {0}")]
    Runtime(#[from] io::Error),
}

/// Runs guardd until it is told to end.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = <Arguments as clap::Parser>::parse();
    crate::log::start();
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> Result<(), StartError> {
    let settings = Settings::load(&arguments.options)?;
    if arguments.release {
        privilege::check()?;
        enforce::release(Path::new(enforce::BPFFS), &settings.run_dir)?;
        println!("released {}", settings.run_dir.display());
        return Ok(());
    }
    match privilege::check() {
        Err(error) if arguments.degraded => tracing::warn!("degraded: {error}"),
        result => result?,
    }
    // Before any other thread: the canaries fork.
    let mut layers = trial::layers();
    let root = guard_root(&settings.cgroup)?;
    let identity = CoreIdentity::for_run_dir(&settings.run_dir);
    let sockets = sockets::bind(&settings, identity.uid, identity.gid)?;
    let options =
        enforce::Options { root: Some(root.path().to_owned()), ..enforce::Options::new(&settings.run_dir) };
    let enforcement = match Enforcement::start(&options) {
        Ok(enforcement) => Some(enforcement),
        Err(error) if arguments.degraded => {
            tracing::warn!("degraded: {error}");
            None
        }
        Err(error) => return Err(error.into()),
    };
    // Before the runtime's threads: capabilities belong to threads. The canary launch then shows that the rest suffices.
    privilege::drop_rest()?;
    let mut canary = None;
    let launched = trial::launch(&root, &core_process::beside("guard-shim")?, &mut canary);
    layers.push(launched.view);
    let mut coverage =
        self_test::measure(enforcement.as_ref(), &root, layers, [&launched.files, &launched.secrets]);
    coverage.cures.extend(sockets.warnings.iter().cloned());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let host = Host { root, enforcement, coverage, canary };
    runtime.block_on(serve(arguments, &settings, identity, sockets, host))
}

/// Opens or makes the cgroup that holds all agents.
fn guard_root(given: &Path) -> Result<Cgroup, CgroupError> {
    let hierarchy = Hierarchy::find()?;
    Cgroup::create(&hierarchy.mount().join(given))
}

/// The kernel side, changed by one at a time.
pub type SharedEnforcement = Arc<Mutex<Enforcement>>;

/// Takes the kernel side; a thread that panicked with it left the kernel's tables whole.
pub(crate) fn lock(enforcement: &SharedEnforcement) -> std::sync::MutexGuard<'_, Enforcement> {
    enforcement.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This host as the start found it.
struct Host {
    root: Cgroup,
    enforcement: Option<Enforcement>,
    coverage: Coverage,
    /// Where the canary launch ran.
    canary: Option<CgroupId>,
}

/// What the tasks of guardd share.
struct Daemon {
    agents: Arc<Agents>,
    enforcement: Option<SharedEnforcement>,
    outbox: Arc<Outbox>,
    coverage: Vec<u8>,
    generation: AtomicU64,
    in_force: tokio::sync::Notify,
}

impl link::Receiver for Daemon {
    fn hello(&self) -> v1::Hello {
        v1::Hello { coverage: self.coverage.clone(), agents: self.agents.list(), pid: std::process::id() }
    }

    fn receive(&self, message: to_daemon::Message) {
        match message {
            to_daemon::Message::Snapshot(snapshot) => self.bring_into_force(&snapshot),
            to_daemon::Message::Command(command) => self.carry_out(command),
            to_daemon::Message::Verdict(verdict) => self.agents.answer(&verdict),
            to_daemon::Message::Acknowledged(_) => {}
        }
    }
}

impl Daemon {
    fn bring_into_force(&self, snapshot: &v1::Snapshot) {
        if let Some(enforcement) = &self.enforcement
            && let Err(error) = lock(enforcement).bring_into_force(snapshot)
        {
            // The table before it stays in force: nothing loosens.
            tracing::error!(generation = snapshot.generation, %error, "a policy could not come into force");
            return;
        }
        self.generation.store(snapshot.generation, Ordering::Relaxed);
        let in_force = v1::InForce { generation: snapshot.generation };
        self.outbox.send(from_daemon::Message::InForce(in_force));
        self.in_force.notify_waiters();
    }

    fn carry_out(&self, command: v1::Command) {
        let result = match command.command {
            Some(Command::Launch(launch)) => {
                self.agents.expect(launch);
                Ok(())
            }
            Some(Command::Freeze(act)) => self.agents.freeze(&act.agent_id, true),
            Some(Command::Thaw(act)) => self.agents.freeze(&act.agent_id, false),
            Some(Command::Kill(act)) => self.agents.kill(&act.agent_id),
            Some(Command::NetCut(act)) => self.agents.net_cut(&act.agent_id),
            None => Ok(()),
        };
        let (code, message) = match result {
            Ok(()) => (String::new(), String::new()),
            Err(error) => (error.code().to_owned(), error.to_string()),
        };
        self.outbox.send(from_daemon::Message::Reply(v1::Reply { id: command.id, code, message }));
    }
}

async fn serve(
    arguments: &Arguments,
    settings: &Settings,
    identity: CoreIdentity,
    sockets: Sockets,
    host: Host,
) -> Result<(), StartError> {
    let Host { root, mut enforcement, coverage, canary } = host;
    let Sockets { core: listeners, launch, .. } = sockets;
    let outbox = Arc::new(Outbox::default());
    let shim = core_process::beside("guard-shim")?;
    if let Some(mut events) = enforcement.as_mut().and_then(Enforcement::take_events) {
        let outbox = Arc::clone(&outbox);
        tokio::spawn(async move {
            // What the canary did is in the coverage, not in the record.
            let canary = canary.map(|id| id.0);
            while let Some(mut observations) = events.recv().await {
                observations.retain(|observation| Some(observation.cgroup) != canary);
                outbox.observe(observations);
            }
        });
    }
    let enforcement = enforcement.map(|enforcement| Arc::new(Mutex::new(enforcement)));
    let agents = Agents::new(enforcement.clone(), Arc::clone(&outbox), root, &settings.run_dir, shim)?;
    agents.adopt()?;
    let strength = coverage.overall().word();
    let daemon = Arc::new(Daemon {
        agents: Arc::clone(&agents),
        enforcement,
        outbox: Arc::clone(&outbox),
        coverage: serde_json::to_vec(&coverage).map_err(io::Error::other)?,
        generation: AtomicU64::new(0),
        in_force: tokio::sync::Notify::new(),
    });
    let keeper = match &arguments.core {
        Some(_) => None,
        None => Some(Arc::new(Keeper::start(settings, identity, listeners)?)),
    };
    let core_socket = arguments.core.clone().unwrap_or_else(|| settings.core_socket());
    let receiver: Arc<dyn link::Receiver> = Arc::clone(&daemon) as _;
    let line = Arc::clone(&outbox);
    tokio::spawn(async move { link::keep(&core_socket, &line, receiver).await });
    ready(&daemon, keeper.as_deref()).await?;
    if let Some(keeper) = &keeper {
        keeper.keep();
    }
    std::thread::Builder::new().name("accept".to_owned()).spawn(move || agents::accept(&agents, &launch))?;

    // Before anybody is told that it is ready: a signal without a handler would end it.
    let signals = Signals::take()?;
    println!(
        "guardd ready socket={} pid={} strength={strength}",
        settings.guard_socket().display(),
        std::process::id()
    );
    // Without systemd there is nobody to tell.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    signals.until_told(keeper.as_deref()).await;
    if let Some(keeper) = &keeper {
        keeper.stop();
    }
    Ok(())
}

/// Waits until a policy is in force in the kernel; a core that ends before has refused to start.
async fn ready(daemon: &Daemon, keeper: Option<&Keeper>) -> Result<(), StartError> {
    let deadline = Instant::now() + READY_WITHIN;
    while daemon.generation.load(Ordering::Relaxed) == 0 {
        if keeper.is_some_and(Keeper::has_ended) {
            return Err(StartError::CoreEnded);
        }
        if Instant::now() >= deadline {
            return Err(StartError::CoreSilent);
        }
        // A notification between the check and here is made up for by the timeout.
        let _ = tokio::time::timeout(Duration::from_millis(20), daemon.in_force.notified()).await;
    }
    Ok(())
}

/// The signals that guardd answers.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn take() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Passes reloads on to the core until guardd is told to end.
    async fn until_told(mut self, keeper: Option<&Keeper>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    if let Some(keeper) = keeper {
                        keeper.signal(rustix::process::Signal::HUP);
                    }
                }
            }
        }
    }
}

/// Keeps a guard-core running.
struct Keeper {
    path: PathBuf,
    identity: CoreIdentity,
    arguments: Vec<std::ffi::OsString>,
    listeners: [(&'static str, UnixListener); 3],
    child: Mutex<Child>,
    stopping: AtomicBool,
}

impl Keeper {
    fn start(
        settings: &Settings,
        identity: CoreIdentity,
        listeners: [(&'static str, UnixListener); 3],
    ) -> Result<Self, StartError> {
        let path = core_process::beside("guard-core")?;
        let arguments = settings.arguments();
        let child = core_process::start(&path, identity, &arguments, &listeners)?;
        Ok(Self {
            path,
            identity,
            arguments,
            listeners,
            child: Mutex::new(child),
            stopping: AtomicBool::new(false),
        })
    }

    fn has_ended(&self) -> bool {
        self.with_child(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// From now on a core that ends is started again.
    fn keep(self: &Arc<Self>) {
        let keeper = Arc::clone(self);
        tokio::spawn(async move {
            let mut pause = RESTART.0;
            let mut since = Instant::now();
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if keeper.stopping.load(Ordering::Relaxed) {
                    return;
                }
                if !keeper.has_ended() {
                    continue;
                }
                pause = if since.elapsed() > Duration::from_secs(60) {
                    RESTART.0
                } else {
                    (pause * 2).min(RESTART.1)
                };
                tracing::error!("guard-core ended; what the kernel holds stays in force, a new core starts");
                tokio::time::sleep(pause).await;
                since = Instant::now();
                match core_process::start(&keeper.path, keeper.identity, &keeper.arguments, &keeper.listeners)
                {
                    Ok(child) => keeper.with_child(|old| *old = child),
                    Err(error) => tracing::error!("{error}"),
                }
            }
        });
    }

    fn signal(&self, signal: rustix::process::Signal) {
        self.with_child(|child| {
            let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
            if let (Some(pid), Ok(None)) = (pid, child.try_wait())
                && let Err(error) = rustix::process::kill_process(pid, signal)
            {
                tracing::warn!(%error, "guard-core cannot be signalled");
            }
        });
    }

    /// Ends the core and waits until its record is closed.
    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.signal(rustix::process::Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.has_ended() {
            if Instant::now() > deadline {
                tracing::warn!("guard-core does not end; it is killed");
                self.with_child(|child| child.kill().and_then(|()| child.wait()).map(drop))
                    .unwrap_or_else(|error| tracing::error!(%error, "guard-core cannot be killed"));
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn with_child<T>(&self, run: impl FnOnce(&mut Child) -> T) -> T {
        run(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
