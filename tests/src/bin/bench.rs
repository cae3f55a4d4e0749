//! `cargo xtask bench`: what guard costs, always against bare, in one run, interleaved.
//!
//! "Bare" means that guard is not loaded at all. Each round measures bare, then starts guardd and measures processes that are not agents,
//! agents, and agents without traps; the medians of the rounds are compared. Figures of one machine mean nothing on another; ratios may.

use std::{
    fs,
    hint::black_box,
    io::Write,
    net::{TcpListener, TcpStream},
    os::unix::{fs::chown, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use guard_tests::host::{Host, UID};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Rounds of the whole comparison.
const ROUNDS: usize = 5;
/// Launches a round.
const LAUNCHES: usize = 10;
/// Times that one act is done in one round.
const REPEAT: [(&str, u32); 3] = [("exec", 300), ("connect", 3_000), ("file", 3_000)];

/// One line of the table.
struct Row {
    what: &'static str,
    act: &'static str,
    against: &'static str,
    measured: &'static str,
    target: f64,
}

const fn row(what: &'static str, act: &'static str, measured: &'static str, target: f64) -> Row {
    Row { what, act, against: "bare", measured, target }
}

const ROWS: [Row; 10] = [
    Row {
        what: "guardctl run -- true, against bwrap",
        act: "launch",
        against: "bwrap",
        measured: "agent",
        target: 1.2,
    },
    row("fork+exec, agent", "exec", "agent", 1.05),
    row("TCP connect on loopback, agent", "connect", "agent", 1.05),
    row("open+write+close, agent", "file", "agent", 1.03),
    row("fork+exec, agent without traps", "exec", "no_trap", 1.05),
    row("TCP connect, agent without traps", "connect", "no_trap", 1.05),
    row("open+write+close, agent without traps", "file", "no_trap", 1.03),
    row("fork+exec, not an agent", "exec", "other", 1.01),
    row("TCP connect, not an agent", "connect", "other", 1.01),
    row("open+write+close, not an agent", "file", "other", 1.01),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("worker") => worker(),
        Some(path) => compare(Path::new(path)),
        None => bail!("name the JSON file to write"),
    }
}

/// Does each act in a loop and prints nanoseconds each, one line a kind.
fn worker() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream)
        }
    });
    for (act, times) in REPEAT {
        let once: &dyn Fn() -> Result<()> = match act {
            "exec" => &|| {
                Command::new("/bin/true").status()?;
                Ok(())
            },
            "connect" => &|| {
                TcpStream::connect(address)?;
                Ok(())
            },
            _ => &|| Ok(fs::File::create("bench-file")?.write_all(b"x")?),
        };
        once()?;
        let since = Instant::now();
        for _ in 0..times {
            once()?;
        }
        println!("{act} {}", since.elapsed().as_nanos() / u128::from(times));
    }
    fs::remove_file("bench-file")?;
    Ok(())
}

/// Samples by who and what, nanoseconds.
#[derive(Default)]
struct Samples(Vec<(&'static str, String, f64)>);

impl Samples {
    fn of(&self, who: &str, act: &str) -> Vec<f64> {
        let mut found: Vec<f64> =
            self.0.iter().filter(|(w, a, _)| *w == who && a == act).map(|(_, _, value)| *value).collect();
        found.sort_by(f64::total_cmp);
        found
    }

    fn take(&mut self, who: &'static str, command: &mut Command) -> Result<()> {
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            bail!("{command:?} ended with {}", output.status);
        }
        for line in String::from_utf8(output.stdout)?.lines() {
            let (act, value) = line.split_once(' ').context("a worker's line has two words")?;
            self.0.push((who, act.to_owned(), value.parse()?));
        }
        Ok(())
    }

    fn time(&mut self, who: &'static str, act: &str, command: &mut Command) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let since = Instant::now();
        let status = command.status()?;
        let ns = since.elapsed().as_secs_f64() * 1e9;
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
        self.0.push((who, act.to_owned(), ns));
        Ok(())
    }
}

fn compare(file: &Path) -> Result<()> {
    let mut samples = Samples::default();
    let own = guard_tests::programs().join("bench");
    for round in 1..=ROUNDS {
        eprintln!("round {round} of {ROUNDS}");
        let mut host = Host::new()?;
        // Agents cannot look into a directory of root's.
        let program = host.path("bench");
        fs::copy(&own, &program)?;
        let plain = |name: &str| -> Result<Command> {
            let place = host.path(name);
            fs::create_dir_all(&place)?;
            chown(&place, Some(UID), Some(UID))?;
            let mut command = Command::new(&program);
            command.arg("worker").current_dir(place).uid(UID).gid(UID);
            Ok(command)
        };
        samples.take("bare", &mut plain("bare")?)?;
        for _ in 0..LAUNCHES {
            samples.time(
                "bwrap",
                "launch",
                Command::new("bwrap").args([
                    "--unshare-all",
                    "--bind",
                    "/",
                    "/",
                    "--dev",
                    "/dev",
                    "--proc",
                    "/proc",
                    "true",
                ]),
            )?;
            samples.time("bare", "launch", &mut Command::new("true"))?;
        }
        let mut other = plain("other")?;
        host.start_daemon()?;
        let worker = [program.to_str().context("a plain path")?, "worker"];
        samples.take("other", &mut other)?;
        samples.take("agent", &mut host.run(&[], &worker))?;
        samples.take("no_trap", &mut host.run(&["--no-trap"], &worker))?;
        for _ in 0..LAUNCHES {
            samples.time("agent", "launch", &mut host.run(&[], &["true"]))?;
        }
    }
    report(file, &samples)
}

fn report(file: &Path, samples: &Samples) -> Result<()> {
    let mut rows = Vec::new();
    println!(
        "{:<40} {:>12} {:>12} {:>7} {:>7} {:>9}  RESULT",
        "WHAT", "AGAINST us", "GUARD us", "RATIO", "TARGET", "SPREAD"
    );
    for row in ROWS {
        let (against, measured) = (samples.of(row.against, row.act), samples.of(row.measured, row.act));
        let (base, value) = (median(&against), median(&measured));
        let ratio = value / base;
        let spread =
            measured.last().copied().unwrap_or(f64::NAN) / measured.first().copied().unwrap_or(f64::NAN);
        let result = if ratio <= row.target { "met" } else { "missed" };
        println!(
            "{:<40} {:>12.1} {:>12.1} {ratio:>7.2} {:>7.2} {spread:>9.2}  {result}",
            row.what,
            base / 1e3,
            value / 1e3,
            row.target
        );
        rows.push(json!({
            "what": row.what, "against": row.against, "against_ns": base, "guard_ns": value,
            "ratio": ratio, "target": row.target, "spread": spread, "met": ratio <= row.target,
        }));
    }
    let calibration = calibrate();
    println!("calibration: {calibration}");
    let page: Value = json!({"rounds": ROUNDS, "rows": rows, "calibration": calibration});
    fs::write(file, format!("{page:#}\n"))?;
    println!("written to {}", file.display());
    Ok(())
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How fast this machine is: a system call, and hashing one MiB.
fn calibrate() -> Value {
    let since = Instant::now();
    for _ in 0..1_000_000 {
        black_box(rustix::process::getppid());
    }
    let call = since.elapsed().as_secs_f64() * 1e3;
    let block = vec![7_u8; 1 << 20];
    let since = Instant::now();
    black_box(Sha256::digest(&block));
    json!({"getppid_ns": call, "sha256_1mib_us": since.elapsed().as_secs_f64() * 1e6})
}
