//! Plays guardd and guardctl for one launch, so that the fence can be tested without the rest.
//!
//! `play-launch serve RUN-DIR CGROUP SHIM` takes tickets on RUN-DIR/launch.sock; the sandbox of a ticket lies in
//! RUN-DIR/TICKET.sandbox, and what the shim reports is written to RUN-DIR/TICKET.reports.
//! PLAY_WITHOUT names the number of a system call that this kernel shall lack.
//! `play-launch run RUN-DIR TICKET WORKTREE` redeems one and ends as the command ended; it claims the network namespace whose file
//! PLAY_NETWORK names, or else its own.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, IsTerminal as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::Path,
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use guard_daemon::launch::{self, Descriptors, Launch, Report, client};
use guard_proto::v1::{Sandbox, observation::Act};
use prost::Message as _;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let arguments: Vec<&Path> = arguments.iter().map(Path::new).collect();
    let done = match arguments.as_slice() {
        [verb, run_dir, cgroup, shim] if verb.as_os_str() == "serve" => serve(run_dir, cgroup, shim),
        [verb, run_dir, ticket, worktree] if verb.as_os_str() == "run" => run(run_dir, ticket, worktree),
        _ => Err(anyhow::anyhow!("usage: serve RUN-DIR CGROUP SHIM | run RUN-DIR TICKET WORKTREE")),
    };
    done.unwrap_or_else(|error| {
        eprintln!("play-launch: {error:#}");
        ExitCode::from(99)
    })
}

fn run(run_dir: &Path, ticket: &Path, worktree: &Path) -> anyhow::Result<ExitCode> {
    let bytes = unhex(&ticket.to_string_lossy())?;
    let network = std::env::var_os("PLAY_NETWORK");
    let open = |path: &Path| -> io::Result<OwnedFd> {
        Ok(OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)?.into())
    };
    let descriptors = Descriptors {
        stdio: [
            io::stdin().as_fd().try_clone_to_owned()?,
            io::stdout().as_fd().try_clone_to_owned()?,
            io::stderr().as_fd().try_clone_to_owned()?,
        ],
        worktree: open(worktree)?,
        directory: open(Path::new("."))?,
        network: File::open(network.as_deref().unwrap_or("/proc/self/ns/net".as_ref()))?.into(),
    };
    let terminals = [io::stdin().is_terminal(), io::stdout().is_terminal(), io::stderr().is_terminal()];
    match client::run(&run_dir.join("launch.sock"), &bytes, descriptors, terminals) {
        Ok(status) => Ok(status),
        Err(error) => {
            eprintln!("error[{}]: {error}", error.code());
            Ok(ExitCode::from(error.exit()))
        }
    }
}

fn serve(run_dir: &Path, cgroup: &Path, shim: &Path) -> anyhow::Result<ExitCode> {
    if let Some(call) = std::env::var_os("PLAY_WITHOUT") {
        refuse(call.to_string_lossy().parse()?)?;
    }
    let path = run_dir.join("launch.sock");
    let socket = launch::listen(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    println!("ready");
    io::stdout().flush()?;
    loop {
        let connection: OwnedFd = rustix::net::accept_with(&socket, rustix::net::SocketFlags::CLOEXEC)?;
        let (run_dir, cgroup, shim) = (run_dir.to_owned(), cgroup.to_owned(), shim.to_owned());
        std::thread::spawn(move || {
            if let Err(error) = one(&run_dir, &cgroup, &shim, connection) {
                eprintln!("play-launch: {error:#}");
            }
        });
    }
}

/// From here on this system call fails with EOPNOTSUPP, as on a kernel that lacks it.
fn refuse(call: i64) -> anyhow::Result<()> {
    let rules = [(call, Vec::new())].into();
    let errno = SeccompAction::Errno(libc::EOPNOTSUPP.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, std::env::consts::ARCH.try_into()?)?;
    Ok(seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?)
}

fn one(run_dir: &Path, cgroup: &Path, shim: &Path, connection: OwnedFd) -> anyhow::Result<()> {
    let (ticket, descriptors, caller) = launch::receive_ticket(&connection)?;
    let name = hex(&ticket);
    let sandbox = fs::read(run_dir.join(format!("{name}.sandbox"))).context("the sandbox of this ticket")?;
    let sandbox = Sandbox::decode(sandbox.as_slice())?;
    let agent = cgroup.join(&name);
    fs::create_dir_all(agent.join("main"))?;
    let mut reports = File::create(run_dir.join(format!("{name}.reports")))?;
    let socket = run_dir.join(format!("{name}.sock"));
    let mut running = launch::spawn_shim(
        shim,
        Launch {
            sandbox,
            caller,
            descriptors,
            client: connection.try_clone()?,
            reconnect: launch::listen(&socket)?,
            cgroup: agent.join("main"),
        },
    )?;
    while let Some(report) = running.next_report()? {
        writeln!(reports, "{}", line_of(&report))?;
        if matches!(report, Report::Ended { .. }) {
            break;
        }
    }
    drop(running);
    clean(&agent)?;
    fs::remove_file(socket)?;
    drop(connection);
    Ok(())
}

/// A report as tests read it: effect, what was done, to what, how often.
fn line_of(report: &Report) -> String {
    let Report::Observed(observation) = report else { return format!("{report:?}") };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let act = match &observation.act {
        Some(Act::File(change)) => {
            format!("{} {} {}", change.operation, text(&change.path), text(&change.other))
        }
        Some(Act::Unix(connect)) => format!("connect {}", text(&connect.path)),
        other => format!("{other:?}"),
    };
    format!("{} {act} count={}", observation.effect, observation.count)
}

/// Removes the agent's cgroup; one that is not empty is a fault that a test shall see.
fn clean(agent: &Path) -> anyhow::Result<()> {
    for directory in [agent.join("main"), agent.to_owned()] {
        if let Err(error) = fs::remove_dir(&directory) {
            fs::write(agent.join("cgroup.kill"), "1")?;
            bail!("{} was left behind: {error}", directory.display());
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> anyhow::Result<Vec<u8>> {
    (0..text.len())
        .step_by(2)
        .map(|at| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect::<Option<_>>()
        .context("a ticket in hexadecimal")
}
