//! Boots another kernel under emulation and runs the host tier's tests in it.
//!
//! The machine has no network card and no disk: an initramfs holds the daemons, the test programs and the few tools
//! they use, and `vm-init` is its first process. The kernel has BPF LSM, which many hosts refuse, so what the tests
//! and the coverage say there and here may differ; both are printed.

mod compare;
mod initramfs;
mod kernel;

use std::{
    fs,
    io::{BufRead, BufReader, BufWriter},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use initramfs::Initramfs;

use crate::{
    bpf::{self, Paths},
    setup::{self, Need},
};

/// For which kernel, and which tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Series of Debian's cloud kernel
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Only test programs whose name holds this text [default: host_, one layer each; the whole path is slow here and
    /// some of it wants programs that are not packed]
    #[arg(long)]
    program: Option<String>,
    /// Only tests whose name holds this text
    filter: Option<String>,
}

impl Arguments {
    /// What the tier of the tests boots.
    pub(crate) fn for_tests(filter: Option<String>) -> Self {
        Self { kernel: "6.1".to_owned(), program: None, filter }
    }
}

/// How the tests in the machine ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// The machine is given up if it says nothing for this long.
const SILENCE: Duration = Duration::from_secs(400);

/// Tools that tests start besides those of [`PACKAGES`]; those that this machine lacks are left out.
const TOOLS: [&str; 21] = [
    "bash", "chattr", "curl", "find", "grep", "ip", "kill", "lsattr", "mount", "nsenter", "ps", "sed",
    "setfattr", "setpriv", "setsid", "sh", "tar", "umount", "unshare", "script", "xargs",
];

/// Debian's packages that go in whole, without documentation.
const PACKAGES: [&str; 5] =
    ["coreutils", "python3-minimal", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"];

/// Tests that want what is not packed, and what that is.
const UNFIT: [(&str, &str); 1] =
    [("host_launch::real_programs_work", "git, node, npm and pip are not in the initramfs")];

/// The daemons, and what the tests start as agents.
const PROGRAMS: [&str; 4] = ["guardd", "guard-core", "guard-shim", "guardctl"];

/// Prints the coverage of the machine it runs on.
const COVERAGE: &str = "show-coverage";

/// Why no machine can be booted here; `None` if one can.
pub(crate) fn unavailable() -> Option<String> {
    (std::env::consts::ARCH != "x86_64").then(|| "it boots x86_64 kernels only".to_owned())
}

/// Runs the task.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let count = boot(arguments)?;
    println!("{} passed, {} failed, {} skipped", count.passed, count.failed, count.skipped);
    if count.failed > 0 || count.passed == 0 {
        bail!("not everything passed in the virtual machine");
    }
    Ok(())
}

/// Builds, boots and reports.
pub(crate) fn boot(arguments: &Arguments) -> Result<Count> {
    setup::ensure(Need::Bpf)?;
    setup::ensure(Need::Host)?;
    setup::ensure(Need::Vm)?;
    let paths = Paths::find()?;
    bpf::build(&paths)?;
    bpf::workspace(&paths, false)?;
    let tests = test_programs(&paths)?;
    let image = kernel::image(&paths.cache, &arguments.kernel)?;
    let directory = paths.target.join("vm");
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let archive = directory.join("initramfs.cpio");
    pack(&archive, &paths, &tests, arguments)?;
    eprintln!("booting {} without network and disk", image.display());
    let console = directory.join("console.log");
    let report = Machine::start(&image, &archive, &console)?
        .follow()
        .with_context(|| format!("what the kernel said is in {}", console.display()))?;
    if let Some(there) = &report.coverage {
        println!("\n{}", compare::table(&coverage_here(&paths)?, there));
    }
    Ok(report.count)
}

/// What guardd says of this machine.
fn coverage_here(paths: &Paths) -> Result<serde_json::Value> {
    let program = paths.target.join("debug").join(COVERAGE);
    let output = Command::new(&program).output().with_context(|| format!("no {}", program.display()))?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no coverage of this machine: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The end-to-end test programs of this build, by name.
fn test_programs(paths: &Paths) -> Result<Vec<(String, PathBuf)>> {
    let output = Command::new("cargo")
        .args(["test", "--no-run", "--quiet", "-p", "guard-tests", "--tests", "--message-format", "json"])
        .current_dir(&paths.root)
        .env_remove("CARGO_MANIFEST_DIR")
        .stderr(Stdio::inherit())
        .output()
        .context("cargo did not start")?;
    if !output.status.success() {
        bail!("building the tests failed with {}", output.status);
    }
    let mut found = Vec::new();
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(line).context("cargo's messages are JSON")?;
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let executable = message["executable"].as_str();
        if let Some(executable) = executable.filter(|_| crate::test::needs_host(name)) {
            found.push((name.to_owned(), PathBuf::from(executable)));
        }
    }
    found.sort();
    Ok(found)
}

fn pack(archive: &Path, paths: &Paths, tests: &[(String, PathBuf)], arguments: &Arguments) -> Result<()> {
    let file = fs::File::create(archive).with_context(|| format!("cannot write {}", archive.display()))?;
    let mut initramfs = Initramfs::new(BufWriter::new(file));
    // Debian keeps programs and libraries below /usr.
    for name in ["bin", "sbin", "lib", "lib64"] {
        initramfs.link(&Path::new("/").join(name), &Path::new("usr").join(name))?;
        initramfs.directory(&Path::new("/usr").join(name))?;
    }
    for directory in [
        "/opt", "/srv", "/mnt", "/var/tmp", "/dev", "/proc", "/sys", "/tmp", "/run", "/root", "/home",
        "/var/lib", "/var/log", "/etc",
    ] {
        initramfs.directory(Path::new(directory))?;
    }
    initramfs.file(
        Path::new("/etc/passwd"),
        0o644,
        b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    )?;
    initramfs.file(Path::new("/etc/group"), 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    initramfs.file(Path::new("/etc/hosts"), 0o644, b"127.0.0.1 localhost\n::1 localhost\n")?;
    let built = paths.target.join("debug");
    let stripped = paths.target.join("vm/stripped");
    fs::create_dir_all(&stripped)?;
    let mut add = |name: &str, from: &Path, to: &Path| -> Result<()> {
        initramfs.program(&strip(from, &stripped.join(name))?, &usr(to))
    };
    add("init", &built.join("vm-init"), Path::new("/init"))?;
    for name in PROGRAMS {
        add(name, &built.join(name), &Path::new("/guard").join(name))?;
    }
    for name in tests_helpers(paths) {
        add(&name, &built.join(&name), &Path::new("/guard").join(&name))?;
    }
    let mut plan = format!("coverage {COVERAGE}\n");
    for (test, reason) in UNFIT {
        plan.push_str(&format!("unfit {test} {reason}\n"));
    }
    for (name, executable) in tests {
        let wanted = match &arguments.program {
            Some(wanted) => name.contains(wanted),
            None => name.starts_with("host_"),
        };
        if !wanted {
            println!("vm  {name} is not run; `cargo xtask vm --program {name}` would");
            continue;
        }
        add(name, executable, &Path::new("/guard/deps").join(name))?;
        plan.push_str(&format!("tests {name} {}\n", arguments.filter.as_deref().unwrap_or_default()));
    }
    for tool in TOOLS {
        let places = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(|place| Path::new(place).join(tool));
        if let Some(from) = places.iter().find(|path| path.exists()) {
            initramfs.program(from, &Path::new("/usr/bin").join(tool))?;
        }
    }
    for package in PACKAGES {
        add_package(&mut initramfs, package)?;
    }
    initramfs.file(Path::new("/guard/plan"), 0o644, plan.as_bytes())?;
    initramfs.finish()?;
    Ok(())
}

/// Everything that an installed package put on this machine; nothing if it is not installed.
fn add_package<W: std::io::Write>(initramfs: &mut Initramfs<W>, package: &str) -> Result<()> {
    let output = Command::new("dpkg").args(["-L", package]).output().context("dpkg did not start")?;
    if !output.status.success() {
        return Ok(());
    }
    let left_out = ["/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/lintian/"];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let path = Path::new(line);
        let Ok(about) = fs::symlink_metadata(path) else { continue };
        if left_out.iter().any(|prefix| line.starts_with(prefix)) {
            continue;
        }
        let to = usr(path);
        if about.is_symlink() && !["/bin", "/sbin", "/lib", "/lib64"].contains(&line) {
            initramfs.link(&to, &fs::read_link(path)?)?;
        } else if about.is_file() {
            let mode = about.permissions().mode();
            if mode & 0o111 != 0 || path.extension().is_some_and(|extension| extension == "so") {
                initramfs.program(path, &to)?;
            } else {
                initramfs.file(&to, mode, &fs::read(path)?)?;
            }
        }
    }
    Ok(())
}

/// The programs of the tests' crate, as far as they are built.
fn tests_helpers(paths: &Paths) -> Vec<String> {
    let built = paths.target.join("debug");
    let names = fs::read_dir(paths.root.join("tests/src/bin"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned()));
    names.filter(|name| name != "vm-init" && built.join(name).exists()).collect()
}

/// A path without the links that lead to /usr.
fn usr(path: &Path) -> PathBuf {
    let linked = ["/bin/", "/sbin/", "/lib/", "/lib64/"];
    let text = path.to_string_lossy();
    if linked.iter().any(|link| text.starts_with(link)) {
        return PathBuf::from(format!("/usr{text}"));
    }
    path.to_path_buf()
}

/// A copy without debug information, made again when the program changed.
fn strip(from: &Path, to: &Path) -> Result<PathBuf> {
    let modified = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
    if modified(to).is_none_or(|old| modified(from).is_none_or(|new| new > old)) {
        let status =
            Command::new("strip").arg("-o").arg(to).arg(from).status().context("strip did not start")?;
        if !status.success() {
            bail!("stripping {} failed with {status}", from.display());
        }
    }
    Ok(to.to_path_buf())
}

/// A running virtual machine; it is ended when this is dropped.
struct Machine {
    process: Child,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It has ended already, or is not wanted any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Machine {
    fn start(image: &Path, archive: &Path, console: &Path) -> Result<Self> {
        let process = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot"])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(["-serial", "stdio", "-append"])
            .arg("console=ttyS0 loglevel=4 panic=-1 lsm=landlock,lockdown,yama,bpf")
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(archive)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("qemu-system-x86_64 did not start")?;
        Ok(Self { process })
    }

    /// Prints what the machine reports until it has ended.
    fn follow(mut self) -> Result<Report> {
        let stdout = self.process.stdout.take().context("no output of the virtual machine")?;
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let mut report = Report::default();
        loop {
            let line = match lines.recv_timeout(SILENCE) {
                Ok(line) => line,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!("the virtual machine said nothing for {} s", SILENCE.as_secs())
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the virtual machine ended early"),
            };
            match report.read(line.trim_end())? {
                Next::More => {}
                Next::End => return Ok(report),
            }
        }
    }
}

enum Next {
    More,
    End,
}

/// What the machine has said so far.
#[derive(Debug, Default)]
struct Report {
    count: Count,
    coverage: Option<serde_json::Value>,
}

impl Report {
    /// Reads one line of `vm-init`, counts and prints it.
    fn read(&mut self, line: &str) -> Result<Next> {
        let count = &mut self.count;
        match line.split_once(' ').unwrap_or((line, "")) {
            ("kernel" | "lsm", _) => println!("{line}"),
            ("test", rest) => {
                match rest.split(' ').nth(1) {
                    Some("ok") => count.passed += 1,
                    Some("skipped") => count.skipped += 1,
                    _ => count.failed += 1,
                }
                println!("vm  {rest} s");
            }
            ("said", rest) => println!("    {rest}"),
            ("broken", rest) => bail!("in the virtual machine: {rest}"),
            ("coverage", json) => {
                self.coverage = Some(serde_json::from_str(json).context("the coverage is no JSON")?);
            }
            ("end", _) => return Ok(Next::End),
            _ => eprintln!("the virtual machine says: {line}"),
        }
        Ok(Next::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_machine_are_counted() -> Result<()> {
        let mut report = Report::default();
        for line in ["test a::b ok 0.10", "test a::c failed 2.00", "said | why", "test a::d skipped 0.10"] {
            report.read(line)?;
        }
        assert_eq!(report.count, Count { passed: 1, failed: 1, skipped: 1 });
        assert!(report.read("broken no plan").is_err());
        assert!(matches!(report.read("end")?, Next::End));
        Ok(())
    }
}
