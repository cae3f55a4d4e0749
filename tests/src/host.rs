//! guard on this host, for one test: its own directories, its own cgroup, everything removed afterwards.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The ordinary user that agents run as: nobody has it, and it needs no entry anywhere.
pub const UID: u32 = 52_011;

/// Where a test's guard lives, and what it runs with.
pub struct Host {
    /// Everything of this test; agents see it, unless it is hidden for its own reasons.
    pub base: tempfile::TempDir,
    cgroup: String,
    daemon: Option<Child>,
    options: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Host {
    /// Makes directories and worktree; nothing runs yet.
    ///
    /// # Errors
    /// This is not root.
    pub fn new() -> Result<Self> {
        // Not below /tmp, which agents do not see.
        let base = tempfile::Builder::new().prefix("guard-test-").tempdir_in("/var/lib")?;
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755))?;
        for directory in ["worktree", "outside", "home"] {
            let path = base.path().join(directory);
            fs::create_dir(&path)?;
            chown(&path, Some(UID), Some(UID))?;
        }
        Ok(Self {
            base,
            cgroup: crate::unique("guard-t"),
            daemon: None,
            options: Vec::new(),
            variables: Vec::new(),
        })
    }

    /// guard running with the built-in policy.
    ///
    /// # Errors
    /// guardd does not get ready.
    pub fn start() -> Result<Self> {
        let mut host = Self::new()?;
        host.start_daemon()?;
        Ok(host)
    }

    /// guard running with this policy file.
    ///
    /// # Errors
    /// guardd does not get ready.
    pub fn with_policy(policy: &str) -> Result<Self> {
        let mut host = Self::new()?;
        let file = host.path("policy.json");
        fs::write(&file, policy)?;
        host.options = vec!["--policy".to_owned(), file.display().to_string()];
        host.start_daemon()?;
        Ok(host)
    }

    /// Further options for guardd, before it is started.
    pub fn option(&mut self, option: &str) -> &mut Self {
        self.options.push(option.to_owned());
        self
    }

    /// A variable of guardd's environment, before it is started.
    pub fn variable(&mut self, name: &str, value: &str) -> &mut Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A path below this test's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// The agents' worktree.
    #[must_use]
    pub fn worktree(&self) -> PathBuf {
        self.path("worktree")
    }

    /// guardd with all options, not started.
    #[must_use]
    pub fn daemon_command(&self) -> Command {
        let mut command = Command::new(crate::programs().join("guardd"));
        for name in ["run", "state", "audit"] {
            command.arg(format!("--{name}-dir")).arg(self.path(name));
        }
        command.arg("--cgroup").arg(&self.cgroup).args(&self.options);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts guardd and waits for its ready line.
    ///
    /// # Errors
    /// It ends, or says something else first; the error has what it said.
    pub fn start_daemon(&mut self) -> Result<String> {
        let log = self.path("guardd.log");
        let log_file = fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = self.daemon_command();
        // SAFETY: one async-signal-safe call; a test that dies takes its daemon with it.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
                    .map_err(Into::into)
            });
        }
        let mut daemon = command
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .context("guardd did not start; `cargo xtask build` builds it")?;
        let mut line = String::new();
        let stdout = daemon.stdout.take().context("no output of guardd")?;
        BufReader::new(stdout).read_line(&mut line)?;
        self.daemon = Some(daemon);
        if !line.starts_with("guardd ready ") {
            bail!("guardd is not ready: {line:?}\n{}", fs::read_to_string(log).unwrap_or_default());
        }
        Ok(line)
    }

    /// The pid of guardd.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().expect("guardd runs").id()
    }

    /// Ends guardd with a signal and waits for it; agents stay governed.
    ///
    /// # Errors
    /// It cannot be signalled.
    pub fn stop_daemon(&mut self, signal: rustix::process::Signal) -> Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            let pid = i32::try_from(daemon.id())?;
            let pid = rustix::process::Pid::from_raw(pid).context("guardd has no pid")?;
            rustix::process::kill_process(pid, signal)?;
            daemon.wait()?;
        }
        Ok(())
    }

    /// The socket for people.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("run/guard.sock")
    }

    /// Finishes a command line that begins with guardctl: socket and arguments.
    pub fn guardctl_into(&self, command: &mut Command, arguments: &[&str]) {
        command.arg("--socket").arg(self.socket()).args(arguments);
    }

    /// guardctl, with this test's socket.
    #[must_use]
    pub fn guardctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(crate::programs().join("guardctl"));
        self.guardctl_into(&mut command, arguments);
        command.current_dir(self.worktree());
        command
    }

    /// `guardctl run` in the worktree, ready for further options; the agent runs as [`UID`].
    #[must_use]
    pub fn run(&self, options: &[&str], agent: &[&str]) -> Command {
        self.run_in(Command::new(crate::programs().join("guardctl")), options, agent)
    }

    /// The same in another network: `world.command(guardctl)` as the beginning.
    #[must_use]
    pub fn run_in(&self, mut command: Command, options: &[&str], agent: &[&str]) -> Command {
        self.guardctl_into(&mut command, &["run"]);
        command.args(options).arg("--").args(agent).current_dir(self.worktree());
        command
    }

    /// The audit records so far.
    ///
    /// # Errors
    /// A segment cannot be read.
    pub fn records(&self) -> Result<Vec<Value>> {
        let mut records = Vec::new();
        for segment in guard_daemon::audit::segments(&self.path("audit"))? {
            let text = fs::read_to_string(segment)?;
            // The last line may be half written at this moment.
            records.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
        }
        Ok(records)
    }

    /// Waits until a record fits, and returns it.
    ///
    /// # Errors
    /// None does within half a minute; the error has the last records.
    pub fn wait_for_record(&self, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let records = self.records()?;
            if let Some(found) = records.iter().find(|record| fits(record)) {
                return Ok(found.clone());
            }
            if Instant::now() > deadline {
                let last: Vec<String> = records.iter().rev().take(20).map(brief).collect();
                bail!("no record fits; the last are:\n{}", last.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What guardd and guard-core wrote to stderr.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("guardd.log")).unwrap_or_default()
    }

    /// Where this guard's cgroups are.
    ///
    /// # Errors
    /// No cgroup2 is mounted.
    pub fn cgroup(&self) -> Result<PathBuf> {
        Ok(guard_daemon::enforce::Hierarchy::find()?.mount().join(&self.cgroup))
    }

    fn clean(&mut self) -> Result<()> {
        if let Ok(cgroup) = self.cgroup()
            && let Ok(root) = guard_daemon::enforce::Cgroup::open(&cgroup)
        {
            root.kill()?;
            root.wait_empty(Duration::from_secs(5))?;
        }
        self.stop_daemon(rustix::process::Signal::TERM)?;
        let released = self.daemon_command().arg("--release").output()?;
        if !released.status.success() {
            bail!("release: {}", String::from_utf8_lossy(&released.stderr));
        }
        if let Ok(cgroup) = self.cgroup()
            && let Ok(root) = guard_daemon::enforce::Cgroup::open(&cgroup)
        {
            root.remove()?;
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.clean() {
            eprintln!("guard's test host could not be cleaned up: {error:#}\n{}", self.log());
        }
        if std::thread::panicking() {
            eprintln!("--- what guardd said\n{}", self.log());
            let records = self.records().unwrap_or_default();
            for record in &records[records.len().saturating_sub(20)..] {
                eprintln!("{}", brief(record));
            }
        }
    }
}

/// The parts of a record that tell what happened.
#[must_use]
pub fn brief(record: &Value) -> String {
    let part = |path: &str| record.pointer(path).map(ToString::to_string).unwrap_or_default();
    format!(
        "{} {} {} {} {} {}",
        part("/seq"),
        part("/kind"),
        part("/effect"),
        part("/decision/outcome"),
        part("/request/action"),
        part("/detail")
    )
}

/// Runs a command to its end, at most a minute.
///
/// # Errors
/// It does not start, or does not end in time (it is killed then).
pub fn output(command: &mut Command) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{command:?} did not start"))?;
    let mut pipes: [Box<dyn Read + Send>; 2] = [
        Box::new(child.stdout.take().context("no stdout")?),
        Box::new(child.stderr.take().context("no stderr")?),
    ];
    let readers = pipes.each_mut().map(|pipe| std::mem::replace(pipe, Box::new(std::io::empty())));
    let [stdout, stderr] = readers.map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read until a broken pipe is what there is.
            let _ = pipe.read_to_end(&mut bytes);
            bytes
        })
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("{command:?} did not end within a minute");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let bytes = |reader: std::thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    Ok(Output { status, stdout: bytes(stdout), stderr: bytes(stderr) })
}

/// Writes a file that belongs to the agents' user.
///
/// # Errors
/// It cannot be written.
pub fn own_file(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content)?;
    chown(path, Some(UID), Some(UID))?;
    Ok(())
}
