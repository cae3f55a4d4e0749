//! One canary for each layer of a launch: the denied act is done, and done once more without the layer, which must succeed,
//! or the test proves nothing. Landlock and seccomp are tried alone, each in a child of its own; the mount view by a whole launch
//! whose agent does what only the view refuses, and whose other acts the listener has to tell.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Instant,
};

use guard_proto::v1;
use rustix::{
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketFlags, SocketType},
};

use crate::{
    coverage::{LayerCoverage, SelfTest, Strength},
    enforce::{Cgroup, CgroupId},
    launch::{
        self, Caller, Descriptors, Launch, Report,
        wire::{self, ClientEvent, ToClient},
    },
    sandbox::{landlock, seccomp},
};

/// Who the canary of a launch is: `nobody`, who owns nothing else.
const NOBODY: u32 = 65_534;
/// Its cgroup; no agent's id begins with a dot.
const CANARY: &str = ".canary-launch";

/// Exit status of a child whose layer could not be put up, as an errno that no act gives.
const NO_LAYER: i32 = 250;

/// Tries Landlock and seccomp. Must run before this process has a second thread.
pub fn layers() -> Vec<LayerCoverage> {
    let place = match Place::new() {
        Ok(place) => place,
        Err(error) => {
            let got = format!("no place to try: {error}");
            return ["Landlock", "seccomp"].map(|layer| not_covered(layer, &got)).into();
        }
    };
    let file = place.0.join("made");
    vec![
        layer(
            "Landlock",
            "make a file outside the worktree",
            "EACCES",
            || landlock::apply(&landlock::Fence::default()).is_ok(),
            || {
                let done = fs::write(&file, b"x").and_then(|()| fs::remove_file(&file));
                done.map_err(|error| error.raw_os_error().unwrap_or(NO_LAYER))
            },
        ),
        layer(
            "seccomp",
            "unshare a mount namespace",
            "EPERM",
            || seccomp::compile(false).and_then(|filter| seccomp::load(&filter)).is_ok(),
            || {
                // SAFETY: plain system call without pointers, in a child that ends right after.
                let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
                if result == 0 {
                    Ok(())
                } else {
                    Err(io::Error::last_os_error().raw_os_error().unwrap_or(NO_LAYER))
                }
            },
        ),
    ]
}

/// What the canary of a whole launch showed.
pub struct Launched {
    /// Refuses what Landlock and the filter do not.
    pub view: LayerCoverage,
    /// Tells what is lost inside the worktree; no layer, since it refuses nothing.
    pub files: LayerCoverage,
    /// Tells which secrets are opened; no layer either.
    pub secrets: LayerCoverage,
}

/// Launches an agent that changes the mode of its own file outside the worktree, and does away with files in it that were there
/// before. Landlock does not stop the first and the filter does not know paths: the mount view alone refuses. The rest is done,
/// and told by the listener. `cgroup` gets the id of the cgroup that the canary ran in.
pub fn launch(root: &Cgroup, shim: &Path, cgroup: &mut Option<CgroupId>) -> Launched {
    let since = Instant::now();
    let holds = seccomp::holds();
    let [refused, lost, opened] = match try_launch(root, shim, cgroup) {
        Ok(got) => got,
        Err(error) => [(); 3].map(|()| format!("{error:#}")),
    };
    let ms = since.elapsed().as_secs_f64() * 1e3;
    let result = |layer: &str, did: &str, expected: &str, got: String, best| LayerCoverage {
        layer: layer.to_owned(),
        strength: if got == expected { best } else { Strength::NotCovered },
        self_test: Some(SelfTest { did: did.to_owned(), expected: expected.to_owned(), got, ms }),
    };
    Launched {
        view: result(
            "mount view",
            "launch an agent that changes the mode of a file of its own outside",
            "refused",
            refused,
            Strength::Enforced,
        ),
        files: result(
            "seccomp listener",
            "launch an agent that removes, replaces and truncates old files, one against a no, and a new one",
            if holds { HELD } else { LOSSES },
            lost,
            if holds { Strength::Held } else { Strength::Observed },
        ),
        secrets: result(
            "fanotify marks",
            "launch an agent that opens a hidden secret and one in the worktree",
            OPENED,
            opened,
            Strength::Observed,
        ),
    }
}

/// The file for whose removal the canary gets a no.
const KEPT: &str = "kept";

/// What the listener is to tell of the canary: the new file is not among it.
const LOSSES: &str =
    "done unlink removed, done unlink kept, done rename replaced, done truncate truncated; kept is gone";

/// The same where calls can wait.
const HELD: &str =
    "done unlink removed, refused unlink kept, done rename replaced, done truncate truncated; kept is there";

/// What the marks are to tell.
const OPENED: &str = "fenced hidden, done .env";

fn try_launch(root: &Cgroup, shim: &Path, cgroup: &mut Option<CgroupId>) -> anyhow::Result<[String; 3]> {
    use std::os::unix::{fs::chown, process::CommandExt};

    let place = Place::new()?;
    let (file, worktree) = (place.0.join("file"), place.0.join("worktree"));
    fs::write(&file, b"x")?;
    fs::create_dir(&worktree)?;
    let old = ["removed", KEPT, "replaced", "truncated"].map(|name| worktree.join(name));
    let secrets = [place.0.join("hidden"), worktree.join(".env")];
    for path in old.iter().chain(&secrets) {
        fs::write(path, b"x")?;
    }
    for path in old.iter().chain(&secrets).chain([&file, &worktree]) {
        chown(path, Some(NOBODY), Some(NOBODY))?;
    }
    let mode = || fs::metadata(&file).map(|metadata| metadata.permissions().mode() & 0o777);
    let text = file.display().to_string();
    let control =
        std::process::Command::new("/bin/chmod").args(["604", &text]).uid(NOBODY).gid(NOBODY).status()?;
    if !control.success() || mode()? != 0o604 {
        let got = "refused even without the view".to_owned();
        return Ok([(); 3].map(|()| got.clone()));
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let script = "cat \"$1\" .env; rm removed; rm kept; echo >new; mv -f new replaced; : >truncated; echo >new; rm new; exec /bin/chmod 604 \"$0\"";
    let hidden = secrets[0].display().to_string();
    let command = ["/bin/sh", "-c", script, &text, &hidden].map(str::to_owned);
    let Ran { status, told } = launch_canary(root, shim, &place.0, &worktree, &command, cgroup)?;
    let refused = match (status, mode()?) {
        (Err(why), _) => why,
        (Ok(_), 0o604) => "done".to_owned(),
        (Ok(0), _) => "nothing, but it said that it was done".to_owned(),
        (Ok(_), _) => "refused".to_owned(),
    };
    let kept = if old[1].exists() { "there" } else { "gone" };
    Ok([refused, format!("{}; kept is {kept}", losses(&told)), opened(&told)])
}

fn listed(mut all: Vec<(u64, String)>) -> String {
    all.sort();
    let all: Vec<String> = all.into_iter().map(|(_, one)| one).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join(", ") }
}

fn last_of(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default())
}

/// The secrets that were opened, in this order.
fn opened(told: &[v1::Observation]) -> String {
    let opened = told.iter().filter_map(|observation| match &observation.act {
        Some(v1::observation::Act::Read(read)) => {
            Some((observation.time_ns, format!("{} {}", observation.effect, last_of(&read.path))))
        }
        _ => None,
    });
    listed(opened.collect())
}

/// The losses among what was told, in the order in which they came about.
fn losses(told: &[v1::Observation]) -> String {
    let losses = told.iter().filter_map(|observation| match &observation.act {
        Some(v1::observation::Act::File(change)) if change.existed_before => {
            let path = if change.other.is_empty() { &change.path } else { &change.other };
            Some((
                observation.time_ns,
                format!("{} {} {}", observation.effect, change.operation, last_of(path)),
            ))
        }
        _ => None,
    });
    listed(losses.collect())
}

/// How a canary's command ended, and what was told of it meanwhile.
struct Ran {
    status: Result<u32, String>,
    told: Vec<v1::Observation>,
}

/// Runs a command as an agent; its wait status, or why it did not start.
fn launch_canary(
    root: &Cgroup,
    shim: &Path,
    place: &Path,
    worktree: &Path,
    command: &[String],
    id: &mut Option<CgroupId>,
) -> anyhow::Result<Ran> {
    use std::os::unix::ffi::OsStrExt;

    let cgroup = root.child(CANARY)?;
    let main = cgroup.child("main")?;
    *id = Some(main.id());
    let open = |path: &Path, flags: OFlags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    let null = || open(Path::new("/dev/null"), OFlags::RDWR);
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let mut canary = launch::spawn_shim(
        shim,
        Launch {
            sandbox: v1::Sandbox {
                argv: command.iter().map(|word| word.clone().into_bytes()).collect(),
                environment: vec![b"PATH=/usr/bin:/bin".to_vec()],
                worktree: bytes(worktree),
                directory: bytes(worktree),
                hide: vec![bytes(&place.join("hidden"))],
                home: b"/nonexistent".to_vec(),
                terminals: vec![false; 3],
                ..Default::default()
            },
            caller: Caller {
                pid: std::process::id(),
                uid: NOBODY,
                gid: NOBODY,
                groups: Vec::new(),
                terminal: None,
            },
            descriptors: Descriptors {
                stdio: [null()?, null()?, null()?],
                worktree: open(worktree, OFlags::PATH | OFlags::DIRECTORY)?,
                directory: open(worktree, OFlags::PATH | OFlags::DIRECTORY)?,
                network: open(Path::new("/proc/self/ns/net"), OFlags::RDONLY)?,
            },
            client: theirs,
            reconnect: launch::listen(&place.join("shim.sock"))?,
            cgroup: main.path().to_owned(),
        },
    )?;
    let answers = canary.answers()?;
    let mut ended = Err("the shim ended before the agent".to_owned());
    let mut told = Vec::new();
    while let Some(report) = canary.next_report()? {
        match report {
            Report::Ended { status, .. } => {
                ended = Ok(status);
                break;
            }
            Report::Observed(observation) => told.push(observation),
            Report::Asked(ask) => {
                let answer = match ask.observation.and_then(|observation| observation.act) {
                    Some(v1::observation::Act::File(change)) if last_of(&change.path) == KEPT => {
                        v1::verdict::Answer::Refuse
                    }
                    _ => v1::verdict::Answer::Allow,
                };
                answers.send(&v1::Verdict {
                    agent_id: String::new(),
                    id: ask.id,
                    answer: answer.into(),
                    free_ms: 0,
                })?;
            }
            Report::Started { .. } => {}
        }
    }
    drop(canary);
    if ended.is_err()
        && let Some(packet) = wire::receive::<ToClient>(&ours)?
        && let Some(ClientEvent::Failed(failed)) = packet.message.event
    {
        ended = Err(failed.message);
    }
    cgroup.kill()?;
    cgroup.wait_empty(std::time::Duration::from_secs(2))?;
    cgroup.remove()?;
    Ok(Ran { status: ended, told })
}

fn not_covered(layer: &str, got: &str) -> LayerCoverage {
    LayerCoverage {
        layer: layer.to_owned(),
        strength: Strength::NotCovered,
        self_test: Some(SelfTest {
            did: "nothing".to_owned(),
            expected: String::new(),
            got: got.to_owned(),
            ms: 0.0,
        }),
    }
}

fn layer(
    name: &str,
    did: &str,
    expected: &str,
    put_up: impl Fn() -> bool,
    act: impl Fn() -> Result<(), i32>,
) -> LayerCoverage {
    let since = Instant::now();
    let control = in_child(&act);
    let tried = in_child(|| if put_up() { act() } else { Err(NO_LAYER) });
    let got = match (control, tried) {
        (Ok(Ok(())), Ok(Err(NO_LAYER))) => "the kernel refused the layer".to_owned(),
        (Ok(Ok(())), Ok(Err(errno))) => errno_name(errno),
        (Ok(Ok(())), Ok(Ok(()))) => "done".to_owned(),
        (Ok(Err(errno)), _) => format!("even without the layer: {}", errno_name(errno)),
        (Err(error), _) | (_, Err(error)) => format!("no child: {error}"),
    };
    let strength = if got == expected { Strength::Enforced } else { Strength::NotCovered };
    let ms = since.elapsed().as_secs_f64() * 1e3;
    let self_test = SelfTest { did: did.to_owned(), expected: expected.to_owned(), got, ms };
    LayerCoverage { layer: name.to_owned(), strength, self_test: Some(self_test) }
}

/// Runs something in a child and brings its errno back as the exit status.
fn in_child(run: impl FnOnce() -> Result<(), i32>) -> io::Result<Result<(), i32>> {
    // SAFETY: this process has one thread here, so the child may use everything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = run().err().unwrap_or(0);
            // SAFETY: ends the child at once, without running anything of the parent's.
            unsafe { libc::_exit(status) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child just made; `status` outlives the call.
            if unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
                return Err(io::Error::last_os_error());
            }
            Ok(match libc::WEXITSTATUS(status) {
                0 if libc::WIFEXITED(status) => Ok(()),
                _ if !libc::WIFEXITED(status) => Err(NO_LAYER),
                errno => Err(errno),
            })
        }
    }
}

fn errno_name(errno: i32) -> String {
    match errno {
        libc::EPERM => "EPERM".to_owned(),
        libc::EACCES => "EACCES".to_owned(),
        libc::EROFS => "EROFS".to_owned(),
        libc::ENOSYS => "ENOSYS".to_owned(),
        other => io::Error::from_raw_os_error(other).to_string(),
    }
}

/// A directory that anybody could write to, gone when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> io::Result<Self> {
        let path = Path::new("/var/lib").join(format!(".guard-canary-{}", std::process::id()));
        fs::create_dir(&path)?;
        let place = Self(path);
        fs::set_permissions(&place.0, fs::Permissions::from_mode(0o777))?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a canary's directory is left behind");
        }
    }
}
