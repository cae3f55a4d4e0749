//! Runs both commands of the README on a bare Debian 12, twice each, as its first user would.
//!
//! The system is made by debootstrap and holds a Rust toolchain with what links programs (`gcc`, `libc6-dev`), nothing
//! else. It runs in a mount namespace of its own with this machine's kernel, so all of its mounts end with it; its
//! root is a pivoted one, since a chroot may not do what agents' views do. What is tested is the commit, not the
//! working tree.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    bpf::Paths,
    setup::{self, Need},
};

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this command of the README; may be repeated [default: demo and test]
    #[arg(long, value_name = "TASK")]
    only: Vec<String>,
    /// Leave the system there afterwards
    #[arg(long)]
    keep: bool,
}

const SUITE: &str = "bookworm";
/// Besides the base system: what rustc links with, and what cargo trusts registries by.
const INCLUDE: &str = "ca-certificates,gcc,libc6-dev";
/// Variables of this machine that say how to reach the archives.
const PASSED_ON: [&str; 8] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "CARGO_HTTP_CAINFO",
];

/// Runs the task.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if fs::metadata("/proc/self").context("/proc is not mounted")?.uid() != 0 {
        bail!("only root can make a Debian system");
    }
    setup::ensure(Need::Fresh)?;
    let paths = Paths::find()?;
    let home = paths.cache.join("fresh");
    let base = base(&home)?;
    let system = System::new(&home, &base, arguments.keep)?;
    system.install_sources(&paths.root)?;
    let tasks = if arguments.only.is_empty() {
        vec!["demo".to_owned(), "test".to_owned()]
    } else {
        arguments.only.clone()
    };
    let mut rows = Vec::new();
    for task in &tasks {
        for time in ["first", "second"] {
            let log = home.join(format!("{task}-{time}.log"));
            eprintln!("cargo xtask {task}, the {time} time; its output is in {}", log.display());
            let (ok, took) = system.run_task(task, &log)?;
            rows.push((format!("cargo xtask {task}"), time, took, ok));
            eprintln!("{} after {:.0} s", if ok { "done" } else { "FAILED" }, took.as_secs_f64());
        }
    }
    println!("{:<20} {:<8} {:>8}  RESULT", "COMMAND", "TIME", "SECONDS");
    for (command, time, took, ok) in &rows {
        let word = if *ok { "ok" } else { "FAILED" };
        println!("{command:<20} {time:<8} {:>8.0}  {word}", took.as_secs_f64());
    }
    if rows.iter().any(|(_, _, _, ok)| !ok) {
        bail!("not every command succeeded on a bare Debian 12");
    }
    Ok(())
}

/// The bare system; made once.
fn base(home: &Path) -> Result<PathBuf> {
    let base = home.join("base");
    if base.exists() {
        return Ok(base);
    }
    let making = home.join("base.making");
    // What an interrupted attempt left.
    let _ = fs::remove_dir_all(&making);
    fs::create_dir_all(&making).with_context(|| format!("cannot make {}", making.display()))?;
    eprintln!("making a bare Debian 12 in {}", base.display());
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={INCLUDE}"), SUITE]).arg(&making);
    checked(&mut command)?;
    // The way to the mirrors is this machine's, and so are the authorities that vouch for it; the packages are not.
    let apt = making.join("etc/apt");
    checked(Command::new("cp").args(["-aT", "--remove-destination", "/etc/apt"]).arg(apt))?;
    let trusted = "etc/ssl/certs/ca-certificates.crt";
    fs::copy(Path::new("/").join(trusted), making.join(trusted))
        .with_context(|| format!("cannot copy /{trusted}"))?;
    fs::rename(&making, &base)?;
    Ok(base)
}

fn checked(command: &mut Command) -> Result<()> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("{command:?} did not start"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        bail!("{command:?} failed with {}:\n{}", output.status, said.concat());
    }
    Ok(())
}

/// One copy of the bare system, removed afterwards.
struct System {
    root: PathBuf,
    keep: bool,
}

impl System {
    fn new(home: &Path, base: &Path, keep: bool) -> Result<Self> {
        let root = home.join("system");
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        checked(Command::new("cp").args(["-a", "--reflink=auto"]).arg(base).arg(&root))?;
        let system = Self { root, keep };
        fs::copy("/etc/resolv.conf", system.root.join("etc/resolv.conf"))
            .context("cannot copy /etc/resolv.conf")?;
        fs::create_dir_all(system.root.join("opt/rust"))?;
        Ok(system)
    }

    /// The commit that is checked out.
    fn install_sources(&self, workspace: &Path) -> Result<()> {
        let target = self.root.join("root/guard");
        fs::create_dir_all(&target)?;
        let mut archive = Command::new("git")
            .args(["archive", "HEAD"])
            .current_dir(workspace)
            .stdout(Stdio::piped())
            .spawn()
            .context("git did not start")?;
        let stream = archive.stdout.take().context("git has no output")?;
        let unpacked = Command::new("tar").arg("-xC").arg(&target).stdin(stream).status()?;
        if !archive.wait()?.success() || !unpacked.success() {
            bail!("the sources could not be copied");
        }
        Ok(())
    }

    /// Runs `cargo xtask TASK` in the system; whether it succeeded, and how long it took.
    fn run_task(&self, task: &str, log: &Path) -> Result<(bool, Duration)> {
        let mut file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().context("no rustc")?;
        let toolchain = String::from_utf8(sysroot.stdout)?.trim().to_owned();
        // $1 the root, $2 the toolchain, $3 the task; the rest is VARIABLE=value.
        let script = r#"
            set -e
            root=$1 toolchain=$2 task=$3
            shift 3
            mount --bind "$root" "$root"
            cd "$root"
            for place in proc sys dev; do mount --rbind "/$place" "$place"; done
            mount --bind "$toolchain" opt/rust
            mount -o remount,bind,ro opt/rust
            mount -t tmpfs tmpfs tmp -o mode=1777
            mount -t tmpfs tmpfs run
            pivot_root . mnt
            exec env -i "$@" sh -c 'umount -l /mnt; cd /root/guard; exec cargo xtask "$0"' "$task"
        "#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(&self.root).args([&toolchain, task]);
        command.args(["PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"]);
        command
            .args(PASSED_ON.iter().filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?))));
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
        let since = Instant::now();
        let status = command.status().context("unshare did not start")?;
        let took = since.elapsed();
        let left = self.processes()?;
        for (pid, name) in &left {
            writeln!(file, "left behind: process {pid}, {name}")?;
        }
        Ok((status.success() && left.is_empty(), took))
    }

    /// Processes whose root is this system's.
    fn processes(&self) -> Result<Vec<(u32, String)>> {
        let own = fs::metadata(&self.root)?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let path = entry?.path();
            let pid = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            let Some(pid) = pid else { continue };
            // A process that ended meanwhile is not one that was left.
            let Ok(root) = fs::metadata(path.join("root")) else { continue };
            if (root.dev(), root.ino()) == (own.dev(), own.ino()) {
                let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
                found.push((pid, name.trim().to_owned()));
            }
        }
        Ok(found)
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("the system is in {}", self.root.display());
            return;
        }
        match self.processes() {
            Ok(left) if left.is_empty() => {
                if let Err(error) = fs::remove_dir_all(&self.root) {
                    eprintln!("{} could not be removed: {error}", self.root.display());
                }
            }
            Ok(left) => eprintln!("{} stays: {left:?} still run in it", self.root.display()),
            Err(error) => eprintln!("{} stays: {error:#}", self.root.display()),
        }
    }
}
