//! A house for tests of launch and fence: a cgroup of its own, somebody who plays guardd, a worktree and a place outside of it.
//!
//! Needs root. Without it a test fails; `GUARD_SKIP_HOST=1` skips it and says so.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use guard_proto::v1::Sandbox;
use prost::Message as _;

/// An ordinary user of the tests; no such user needs to exist.
pub const AGENT: u32 = 47_001;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Whether host tests can run; panics when they should and cannot.
#[must_use]
pub fn host_tier() -> bool {
    if std::env::var_os("GUARD_SKIP_HOST").is_some_and(|value| value == "1") {
        eprintln!("SKIPPED: GUARD_SKIP_HOST=1 is set, so nothing of the host tier was tested");
        return false;
    }
    assert!(rustix::process::geteuid().is_root(), "the host tier needs root; GUARD_SKIP_HOST=1 skips it");
    true
}

/// One place with everything that launches need; gone when dropped.
pub struct House {
    root: tempfile::TempDir,
    cgroup: PathBuf,
    server: Child,
}

impl Default for House {
    fn default() -> Self {
        Self::new()
    }
}

impl House {
    /// Builds the house and starts who plays guardd.
    ///
    /// # Panics
    /// When the host lacks what the tests need.
    #[must_use]
    pub fn new() -> Self {
        Self::without(None)
    }

    /// A house on a kernel that lacks this system call.
    ///
    /// # Panics
    /// As [`House::new`].
    #[must_use]
    pub fn without(call: Option<libc::c_long>) -> Self {
        // Not below /tmp, which every agent has for itself, so that what lies outside the worktree can be seen by it.
        let root =
            tempfile::Builder::new().prefix("guard-test-").tempdir_in("/opt").expect("a directory in /opt");
        open_to_all(root.path());
        for name in ["work", "outside", "run"] {
            let path = root.path().join(name);
            fs::create_dir(&path).expect(name);
            open_to_all(&path);
            if name != "run" {
                std::os::unix::fs::chown(&path, Some(AGENT), Some(AGENT)).expect(name);
            }
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let cgroup = cgroup2().join(format!("guard-test-{}-{number}", std::process::id()));
        fs::create_dir(&cgroup).expect("a cgroup");
        let mut server = Command::new(program("play-launch"))
            .arg("serve")
            .envs(call.map(|call| ("PLAY_WITHOUT", call.to_string())))
            .args([root.path().join("run"), cgroup.clone(), program("guard-shim")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("play-launch");
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Self { root, cgroup, server }
    }

    #[must_use]
    pub fn worktree(&self) -> PathBuf {
        self.root.path().join("work")
    }

    /// A directory that the agent's uid owns and that the fence must keep as it is.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        self.root.path().join("outside")
    }

    /// Ends who plays guardd, as a crash does.
    ///
    /// # Panics
    /// When it cannot be ended.
    pub fn kill_guardd(&mut self) {
        self.server.kill().expect("killed");
        self.server.wait().expect("reaped");
    }

    /// Where shims wait for a guardd that comes back.
    #[must_use]
    pub fn shim_socket(&self, ticket: &str) -> PathBuf {
        self.root.path().join("run").join(format!("{ticket}.sock"))
    }

    /// Cgroups of the agents that are there.
    #[must_use]
    pub fn agents(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.cgroup).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    /// The directory around worktree and outside; everybody can read it.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// A launch of this command, as an ordinary user in the worktree.
    #[must_use]
    pub fn launch<A: AsRef<OsStr>>(&self, argv: &[A]) -> LaunchOf<'_> {
        let sandbox = Sandbox {
            argv: argv.iter().map(|argument| argument.as_ref().as_bytes().to_vec()).collect(),
            environment: vec![b"PATH=/usr/local/bin:/usr/bin:/bin".to_vec(), b"HOME=/nonexistent".to_vec()],
            worktree: self.worktree().as_os_str().as_bytes().to_vec(),
            home: b"/nonexistent".to_vec(),
            ..Sandbox::default()
        };
        LaunchOf { house: self, sandbox, uid: AGENT, worktree: self.worktree(), input: None, ticket: None }
    }

    /// A launch of a shell script.
    #[must_use]
    pub fn script(&self, text: &str) -> LaunchOf<'_> {
        self.launch(&["bash", "-c", text])
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = fs::write(self.cgroup.join("cgroup.kill"), "1");
        let _ = self.server.kill();
        let _ = self.server.wait();
        // Killed processes leave the cgroup a moment later.
        for _ in 0..200 {
            let mut directories = vec![self.cgroup.clone()];
            for agent in fs::read_dir(&self.cgroup).into_iter().flatten().flatten() {
                if agent.path().is_dir() {
                    directories.extend([agent.path(), agent.path().join("main")]);
                }
            }
            for directory in directories.iter().rev() {
                let _ = fs::remove_dir(directory);
            }
            if !self.cgroup.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("{} is left behind", self.cgroup.display());
    }
}

/// One launch before it happens.
pub struct LaunchOf<'a> {
    house: &'a House,
    pub sandbox: Sandbox,
    pub uid: u32,
    worktree: PathBuf,
    input: Option<Vec<u8>>,
    pub ticket: Option<String>,
}

impl LaunchOf<'_> {
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Sandbox)) -> Self {
        change(&mut self.sandbox);
        self
    }

    #[must_use]
    pub fn uid(mut self, uid: u32) -> Self {
        self.uid = uid;
        self
    }

    /// Another worktree than the house's, also as the current directory.
    #[must_use]
    pub fn worktree(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.worktree);
        self.sandbox.worktree = path.as_os_str().as_bytes().to_vec();
        self
    }

    #[must_use]
    pub fn input(mut self, input: &[u8]) -> Self {
        self.input = Some(input.to_vec());
        self
    }

    /// The command line of a guardctl that redeems this launch.
    ///
    /// # Panics
    /// When the sandbox cannot be written.
    #[must_use]
    pub fn command(&mut self) -> Command {
        let ticket = format!("{:016x}{:016x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let run_dir = self.house.root.path().join("run");
        fs::write(run_dir.join(format!("{ticket}.sandbox")), self.sandbox.encode_to_vec())
            .expect("the sandbox");
        let mut command = Command::new(program("play-launch"));
        command.arg("run").arg(run_dir).arg(&ticket).arg(&self.worktree).current_dir(&self.worktree);
        command.env_clear().uid(self.uid).gid(self.uid);
        self.ticket = Some(ticket);
        crate::usual_signals(&mut command);
        command
    }

    /// Runs it to the end with pipes.
    ///
    /// # Panics
    /// When guardctl's player cannot be started.
    pub fn run(mut self) -> Done {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("play-launch");
        let mut stdin = child.stdin.take().expect("its input");
        let input = self.input.take().unwrap_or_default();
        // Beside the reading, since pipes hold little; a command may end without reading.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("its end");
        writer.join().expect("the writer");
        let reports = self
            .house
            .root
            .path()
            .join("run")
            .join(format!("{}.reports", self.ticket.as_deref().unwrap_or("")));
        Done { output, reports: fs::read_to_string(reports).unwrap_or_default() }
    }
}

/// How a launch ended.
#[derive(Debug)]
pub struct Done {
    pub output: Output,
    /// What the shim reported, a line each.
    pub reports: String,
}

impl Done {
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The exit status; panics with everything that is known when it was a signal.
    #[must_use]
    pub fn status(&self) -> i32 {
        self.output.status.code().unwrap_or_else(|| panic!("ended by a signal: {self:#?}"))
    }

    /// Its output, when it succeeded and said nothing on standard error.
    #[must_use]
    pub fn succeeded(&self) -> String {
        assert!(
            self.output.status.success(),
            "failed: {}\n{}\n{}\n{}",
            self.output.status,
            self.stdout(),
            self.stderr(),
            self.reports
        );
        self.stdout()
    }
}

/// A program of this workspace, beside the test.
///
/// # Panics
/// When it was not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let path = crate::programs().join(name);
    assert!(path.is_file(), "{name} is not built: run `cargo xtask build` first");
    path
}

/// Where cgroup2 is mounted.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn cgroup2() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a cgroup2 mount");
    PathBuf::from(line.split(' ').nth(4).expect("its place"))
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
}
