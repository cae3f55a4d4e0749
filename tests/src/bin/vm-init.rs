//! The first process of the virtual machine that `cargo xtask vm` boots.
//!
//! As PID 1 it makes the machine usable, starts itself again as the runner, reaps whatever else ends, and switches
//! the machine off. The runner starts the test programs that `/guard/plan` lists, one process a test, and writes one
//! line each to the second serial port, which nothing else writes to:
//!
//! ```text
//! kernel 6.1.0-57-cloud-amd64
//! test host_network::sendmsg4_refuses_datagrams ok 1.20
//! said | a line that a failed test wrote, or why one was skipped
//! coverage {"kernel": …}
//! end
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    mount::{MountFlags, mount, mount_move},
    process::{Pid, WaitOptions, chroot, wait},
};

/// Where the test programs, the daemons and the plan are.
const HOME: &str = "/guard";
/// How long one test may take; emulation is some twenty times slower than the machine.
const LIMIT: Duration = Duration::from_secs(300);
/// At most this many lines of what a failed test wrote.
const LINES: usize = 60;

fn main() {
    let role = std::env::args().nth(1);
    if role.as_deref() == Some("run") {
        report_to_port(run());
        return;
    }
    let made = init();
    report_to_port(made);
    rustix::fs::sync();
    // SAFETY: takes no memory; there is nothing left to lose.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
}

fn report_to_port(result: Result<()>) {
    if let Err(error) = result {
        eprintln!("vm-init: {error:#}");
        if let Ok(mut port) = port() {
            // The console has it already.
            let _ = writeln!(port, "broken {error:#}");
        }
    }
}

fn port() -> io::Result<File> {
    OpenOptions::new().write(true).open("/dev/ttyS1")
}

fn init() -> Result<()> {
    leave_rootfs()?;
    // Without /dev/null nothing can be spawned.
    for (kind, place) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("cgroup2", "/sys/fs/cgroup"),
        ("securityfs", "/sys/kernel/security"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/run"),
        ("tmpfs", "/dev/shm"),
        ("devpts", "/dev/pts"),
    ] {
        fs::create_dir_all(place).with_context(|| format!("cannot make {place}"))?;
        mount(kind, place, kind, MountFlags::empty(), None)
            .with_context(|| format!("cannot mount {place}"))?;
    }
    fs::set_permissions("/tmp", fs::Permissions::from_mode(0o1777))?;
    for (name, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        symlink(format!("/proc/self/{target}"), format!("/dev/{name}"))?;
    }
    let runner = Command::new("/proc/self/exe")
        .arg("run")
        .env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin")
        .env("HOME", "/root")
        .stdin(Stdio::null())
        .spawn()
        .context("the runner did not start")?;
    let runner = i32::try_from(runner.id()).ok().and_then(Pid::from_raw).context("the runner has no pid")?;
    // Reaps everything that its own parent left behind, as the first process must.
    while let Some((pid, _)) = wait(WaitOptions::empty())? {
        if pid == runner {
            break;
        }
    }
    Ok(())
}

/// Moves everything to a tmpfs: on the initial rootfs nobody can pivot_root, and agents' views need that.
fn leave_rootfs() -> Result<()> {
    let new = Path::new("/new");
    fs::create_dir(new)?;
    mount("tmpfs", new, "tmpfs", MountFlags::empty(), Some(c"size=90%,mode=0755"))
        .context("cannot mount a tmpfs")?;
    for entry in fs::read_dir("/")? {
        let path = entry?.path();
        if path != new {
            move_tree(&path, &new.join(path.strip_prefix("/")?))?;
        }
    }
    std::env::set_current_dir(new)?;
    mount_move(".", "/").context("cannot move the tmpfs to /")?;
    chroot(".").context("cannot change root")?;
    std::env::set_current_dir("/")?;
    Ok(())
}

fn move_tree(from: &Path, to: &Path) -> Result<()> {
    let about = fs::symlink_metadata(from)?;
    if about.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else if about.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            move_tree(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if about.is_file() {
        fs::copy(from, to).with_context(|| format!("cannot move {}", from.display()))?;
        fs::remove_file(from)?;
    }
    Ok(())
}

fn run() -> Result<()> {
    let mut port = port().context("no second serial port")?;
    writeln!(port, "kernel {}", fs::read_to_string("/proc/sys/kernel/osrelease")?.trim())?;
    writeln!(port, "lsm {}", fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default().trim())?;
    let mut loopback = Command::new("ip");
    loopback.args(["link", "set", "lo", "up"]);
    if let (false, said) = output(loopback)? {
        bail!("no loopback: {said}");
    }
    let plan = fs::read_to_string(Path::new(HOME).join("plan")).context("no plan")?;
    let mut unfit = BTreeMap::new();
    for line in plan.lines() {
        match line.split_once(' ') {
            Some(("unfit", rest)) => unfit.extend(rest.split_once(' ')),
            Some(("coverage", program)) => coverage(&mut port, program)?,
            Some(("tests", rest)) => {
                let (program, filter) = rest.split_once(' ').unwrap_or((rest, ""));
                tests(&mut port, program, filter, &unfit)?;
            }
            _ => bail!("the plan has a line that is not understood: {line:?}"),
        }
    }
    writeln!(port, "end")?;
    Ok(())
}

fn coverage(port: &mut File, program: &str) -> Result<()> {
    let (ok, output) = output(Command::new(Path::new(HOME).join(program)))?;
    match output.lines().find(|line| line.starts_with('{')) {
        Some(line) if ok => writeln!(port, "coverage {line}")?,
        _ => {
            writeln!(port, "test {program}::coverage failed 0")?;
            said(port, &output)?;
        }
    }
    Ok(())
}

fn tests(port: &mut File, program: &str, filter: &str, unfit: &BTreeMap<&str, &str>) -> Result<()> {
    let path = Path::new(HOME).join("deps").join(program);
    let mut list = Command::new(&path);
    list.args(["--list", "--format", "terse"]);
    let (ok, names) = output(list)?;
    if !ok {
        bail!("{program} does not list its tests: {names}");
    }
    for name in names.lines().filter_map(|line| line.strip_suffix(": test")) {
        if !name.contains(filter) {
            continue;
        }
        let full = format!("{program}::{name}");
        if let Some(reason) = unfit.get(full.as_str()) {
            writeln!(port, "test {full} skipped 0")?;
            said(port, reason)?;
            continue;
        }
        let since = Instant::now();
        let mut test = Command::new(&path);
        test.args(["--exact", name, "--nocapture", "--test-threads=1"]).current_dir("/tmp");
        let (ok, text) = output(test)?;
        let word = match () {
            () if ok && text.contains(" 1 passed;") => "ok",
            () if ok && text.contains(" 1 ignored;") => "skipped",
            () => "failed",
        };
        writeln!(port, "test {full} {word} {:.2}", since.elapsed().as_secs_f64())?;
        if word == "failed" {
            said(port, &text)?;
        }
    }
    Ok(())
}

fn said(port: &mut File, text: &str) -> io::Result<()> {
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        writeln!(port, "said | {line}")?;
    }
    Ok(())
}

/// Runs a command to its end or the limit; whether it succeeded, and all that it wrote.
fn output(mut command: Command) -> Result<(bool, String)> {
    let (mut reader, writer) = io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("{command:?} did not start"))?;
    // The command holds the ends that write; they must not outlive the child here.
    drop(command);
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read until then is what there is.
        let _ = reader.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Something that the test left behind may still hold the pipe.
    let patience = Instant::now() + Duration::from_secs(5);
    while !reading.is_finished() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut text = if reading.is_finished() {
        reading.join().unwrap_or_default()
    } else {
        "(a process that was left behind keeps the output open)".to_owned()
    };
    if status.is_none() {
        text.push_str("\ndid not end in time");
    }
    Ok((status.is_some_and(|status| status.success()), text))
}
