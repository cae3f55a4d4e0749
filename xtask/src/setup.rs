//! Installs what a task needs and this machine lacks, from Debian's archive; everything else goes to the cache.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::bpf;

/// What a task is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Need {
    /// Build the BPF programs
    Bpf,
    /// Programs that words are held against
    Pure,
    /// Real programs as agents, network namespaces
    Host,
    /// Boot kernels
    Vm,
    /// Peers to measure against
    Bench,
    /// Make a bare Debian system
    Fresh,
}

/// For which tasks.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// What to prepare for [default: bpf and host]
    #[arg(value_enum)]
    needs: Vec<Need>,
}

/// A program that must be there, and the Debian package that has it.
const PURE: [(&str, &str); 2] = [("git", "git"), ("bash", "bash")];

/// The same for agents and their work.
const HOST: [(&str, &str); 11] = [
    ("busybox", "busybox-static"),
    ("curl", "curl"),
    ("ed", "ed"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("python3", "python3"),
    ("pip3", "python3-pip"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("setfattr", "attr"),
    ("vim", "vim"),
];

/// Packages that have no program of their own to look for, by a file that they bring.
const HOST_FILES: [(&str, &str); 2] = [
    ("/usr/lib/python3/dist-packages/wheel", "python3-wheel"),
    ("/usr/share/python-wheels", "python3-pip-whl"),
];

const FRESH: [(&str, &str); 1] = [("debootstrap", "debootstrap")];

const VM: [(&str, &str); 2] = [("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static")];

/// Runs the task.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let needs =
        if arguments.needs.is_empty() { vec![Need::Bpf, Need::Host] } else { arguments.needs.clone() };
    for need in needs {
        ensure(need)?;
    }
    println!("everything needed is here");
    Ok(())
}

/// Installs what is missing for one need; does nothing, quickly, when all is there.
pub(crate) fn ensure(need: Need) -> Result<()> {
    let programs = |table: &[(&str, &'static str)]| -> Vec<String> {
        table
            .iter()
            .filter(|(program, _)| !on_path(program))
            .map(|(_, package)| (*package).to_owned())
            .collect()
    };
    match need {
        Need::Bpf => bpf_packages().and_then(|packages| install(&packages)),
        Need::Pure => install(&programs(&PURE)),
        Need::Host => {
            let mut packages = programs(&HOST);
            let files = HOST_FILES.iter().filter(|(file, _)| !Path::new(file).exists());
            packages.extend(files.map(|(_, package)| (*package).to_owned()));
            install(&packages)
        }
        Need::Bench => install(&programs(&[("bwrap", "bubblewrap")])),
        Need::Vm => {
            let mut packages = programs(&VM);
            if packages.iter().any(|package| package == "qemu-system-x86") {
                // The emulator and its tools must be of one release; another one may be installed already.
                packages.push("qemu-utils=1:7.2*".to_owned());
            }
            install(&packages)
        }
        Need::Fresh => install(&programs(&FRESH)),
    }
}

/// Debian's packages for building BPF programs, unless a compiler here can do it already.
fn bpf_packages() -> Result<Vec<String>> {
    let missing = bpf::missing_debian_packages();
    Ok(missing.into_iter().filter(|package| !installed(package)).collect())
}

fn install(packages: &[String]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") {
        bail!(
            "these are missing and there is no apt-get to install them: {}; install them by hand",
            packages.join(" ")
        );
    }
    let root = std::fs::metadata("/proc/self").map(|data| std::os::unix::fs::MetadataExt::uid(&data) == 0);
    if !root.unwrap_or(false) {
        bail!("these are missing and only root can install them: {}", packages.join(" "));
    }
    eprintln!("installing {}", packages.join(" "));
    apt(&["update", "-qq"])?;
    let mut arguments = vec![
        "install",
        "-y",
        "-qq",
        "--no-install-recommends",
        "--allow-downgrades",
        "-o",
        "Dpkg::Use-Pty=0",
    ];
    arguments.extend(packages.iter().map(String::as_str));
    apt(&arguments)
}

fn apt(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .context("apt-get did not start")?;
    if output.status.success() {
        return Ok(());
    }
    bail!(
        "apt-get {} failed with {}:\n{}{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(usual).any(|directory| directory.join(program).exists())
}
