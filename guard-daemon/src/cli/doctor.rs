//! `doctor`: what is missing on this host, and the cure. Works without a daemon and without privilege.

use std::{path::Path, process::ExitCode};

use serde::Serialize;
use serde_json::json;

use super::{CliError, coverage::fetch, print};
use crate::{accounts::group_id, coverage::Strength};

/// One finding.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    ok: bool,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
}

impl Finding {
    fn new(what: &'static str, ok: bool, found: impl Into<String>, cure: &str) -> Self {
        Self { what, ok, found: found.into(), cure: (!ok).then(|| cure.to_owned()) }
    }
}

/// Looks at the host, then asks the daemon for the words that its self-tests earned.
pub(super) fn run(socket: &Path, json: bool) -> Result<ExitCode, CliError> {
    let mut findings = host();
    match fetch(socket) {
        Ok(coverage) => {
            findings.push(Finding::new("daemon", true, format!("answers at {}", socket.display()), ""));
            for layer in &coverage.layers {
                let ok = layer.strength == Strength::Enforced;
                let got = layer.self_test.as_ref().map(|test| test.got.clone()).unwrap_or_default();
                let found = format!("{}: {} {got}", layer.layer, layer.strength.word());
                findings.push(Finding::new("layer", ok, found, "see `guardctl coverage`"));
            }
            for note in &coverage.notes {
                findings.push(Finding::new("note", true, note.clone(), ""));
            }
            for cure in &coverage.cures {
                findings.push(Finding::new("daemon says", false, "weaker than it could be", cure));
            }
        }
        Err(error) => findings.push(Finding::new(
            "daemon",
            false,
            error.message,
            "start guardd as root, or name its socket with --socket or GUARD_SOCKET",
        )),
    }
    let all_well = findings.iter().all(|finding| finding.ok);
    for finding in &findings {
        if json {
            print(json!(finding));
            continue;
        }
        print(format_args!(
            "{} {:<14} {}",
            if finding.ok { "ok  " } else { "MISS" },
            finding.what,
            finding.found
        ));
        if let Some(cure) = &finding.cure {
            print(format_args!("     {:<14} -> {cure}", ""));
        }
    }
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn host() -> Vec<Finding> {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = |kind: &str| {
        mountinfo.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            (after.split(' ').next() == Some(kind)).then(|| before.split(' ').nth(4).map(str::to_owned))?
        })
    };
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let cgroup2 = mounted("cgroup2");
    let bpffs = mounted("bpf");
    let lsm = std::fs::read_to_string("/sys/kernel/security/lsm").ok();
    let btf = Path::new("/sys/kernel/btf/vmlinux").exists();
    let abi = crate::sandbox::landlock::abi();
    vec![
        Finding::new("kernel", true, kernel, ""),
        Finding::new(
            "cgroup2",
            cgroup2.is_some(),
            cgroup2.unwrap_or_else(|| "not mounted".to_owned()),
            "mount -t cgroup2 none /sys/fs/cgroup/unified",
        ),
        Finding::new(
            "BTF",
            btf,
            if btf { "/sys/kernel/btf/vmlinux" } else { "no /sys/kernel/btf/vmlinux" },
            "boot a kernel with CONFIG_DEBUG_INFO_BTF=y (every Debian kernel since 11 has it)",
        ),
        Finding::new(
            "bpffs",
            true,
            bpffs.unwrap_or_else(|| "not mounted; guardd mounts one when it starts".to_owned()),
            "",
        ),
        Finding::new(
            "Landlock",
            abi > 0,
            if abi > 0 { format!("ABI {abi}") } else { "not available".to_owned() },
            "boot a kernel of 5.13 or later with `landlock` in lsm= on the kernel command line",
        ),
        Finding::new(
            "BPF LSM",
            true,
            lsm.map_or_else(
                || "not known (securityfs is not mounted); guardd tries by loading".to_owned(),
                |list| format!("active: {}", list.trim()),
            ),
            "",
        ),
        Finding::new(
            "group guard",
            group_id("guard").is_some(),
            if group_id("guard").is_some() { "there" } else { "missing: only root can launch agents" },
            "groupadd --system guard, then add people: usermod -aG guard NAME",
        ),
    ]
}
