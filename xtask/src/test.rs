//! Runs the tests by tier and ends in a summary that a person and a machine can read.
//!
//! `pure` needs no privilege. `host` needs root: cgroup programs, Landlock, seccomp, real programs in namespaces
//! that each test makes. `vm` boots kernels under emulation.

use std::{
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::{
    bpf,
    setup::{self, Need},
    vm,
};

/// A kind of test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    Pure,
    Host,
    Vm,
}

/// Which tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this tier; may be repeated [default: all]
    #[arg(long, value_enum)]
    tier: Vec<Tier>,
    /// Go on where a tier cannot run on this machine, and say so
    #[arg(long)]
    skip_unavailable: bool,
    /// Only tests whose name holds this text
    filter: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

enum Outcome {
    Ran(Count),
    Unavailable(String),
}

/// Runs the chosen tiers one after the other; a failure does not keep the next from running.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let tiers = if arguments.tier.is_empty() {
        vec![Tier::Pure, Tier::Host, Tier::Vm]
    } else {
        arguments.tier.clone()
    };
    let mut total = Count::default();
    let mut lines = Vec::new();
    let mut failed = false;
    for tier in tiers {
        let since = Instant::now();
        let name = tier.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        eprintln!("== tier {name}");
        let line = match tier_outcome(tier, arguments) {
            Ok(Outcome::Ran(count)) => {
                total.passed += count.passed;
                total.failed += count.failed;
                total.skipped += count.skipped;
                failed |= count.failed > 0 || count.passed == 0;
                format!("{} passed, {} failed, {} skipped", count.passed, count.failed, count.skipped)
            }
            Ok(Outcome::Unavailable(why)) if arguments.skip_unavailable => {
                format!("NOT RUN (skipped as told): {why}")
            }
            Ok(Outcome::Unavailable(why)) => {
                failed = true;
                format!("NOT RUN: {why}")
            }
            Err(error) => {
                failed = true;
                format!("BROKEN: {error:#}")
            }
        };
        lines.push(format!("{name:<6} {line} ({:.0} s)", since.elapsed().as_secs_f64()));
    }
    println!("\nsummary");
    for line in &lines {
        println!("  {line}");
    }
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    if failed {
        bail!("not everything passed");
    }
    Ok(())
}

fn tier_outcome(tier: Tier, arguments: &Arguments) -> Result<Outcome> {
    let root = std::fs::metadata("/proc/self").context("/proc is not mounted")?.uid() == 0;
    match tier {
        Tier::Pure => {
            setup::ensure(Need::Pure)?;
            cargo_tests(tier, arguments.filter.as_deref()).map(Outcome::Ran)
        }
        Tier::Host | Tier::Vm if !root => Ok(Outcome::Unavailable("it needs root".to_owned())),
        Tier::Host => {
            build()?;
            setup::ensure(Need::Host)?;
            cargo_tests(tier, arguments.filter.as_deref()).map(Outcome::Ran)
        }
        Tier::Vm => match vm::unavailable() {
            Some(why) => Ok(Outcome::Unavailable(why)),
            None => {
                let count = vm::boot(&vm::Arguments::for_tests(arguments.filter.clone()))?;
                let vm::Count { passed, failed, skipped } = count;
                Ok(Outcome::Ran(Count { passed, failed, skipped }))
            }
        },
    }
}

/// The BPF object first, then the daemons that the tests start.
fn build() -> Result<()> {
    setup::ensure(Need::Bpf)?;
    let paths = bpf::Paths::find()?;
    bpf::build(&paths)?;
    bpf::workspace(&paths, false)
}

/// Files in `tests/tests` that need root begin with these.
const HOST_BINARIES: [&str; 2] = ["host_", "e2e_"];

/// Whether a test program belongs to the host tier.
pub(crate) fn needs_host(name: &str) -> bool {
    HOST_BINARIES.iter().any(|prefix| name.starts_with(prefix))
}

fn cargo_tests(tier: Tier, filter: Option<&str>) -> Result<Count> {
    let nextest = Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    let mut total = Count::default();
    for arguments in if nextest { nextest_runs(tier, filter) } else { libtest_runs(tier, filter) } {
        let count = tests_of(&arguments)?;
        total.passed += count.passed;
        total.failed += count.failed;
        total.skipped += count.skipped;
    }
    Ok(total)
}

fn nextest_runs(tier: Tier, filter: Option<&str>) -> Vec<Vec<String>> {
    let host = HOST_BINARIES.map(|prefix| format!("binary(/^{prefix}/)")).join(" + ");
    let expression = match tier {
        Tier::Pure => format!("not ({host})"),
        Tier::Host | Tier::Vm => host,
    };
    let mut arguments: Vec<String> =
        ["nextest", "run", "--workspace", "--exclude", "guard-ebpf", "--no-fail-fast", "--hide-progress-bar"]
            .map(str::to_owned)
            .to_vec();
    arguments.extend(["--status-level", "fail", "--final-status-level", "fail", "-E"].map(str::to_owned));
    arguments.push(expression);
    arguments.extend(filter.map(str::to_owned));
    vec![arguments]
}

fn libtest_runs(tier: Tier, filter: Option<&str>) -> Vec<Vec<String>> {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut runs = match tier {
        Tier::Pure => vec![
            owned(&[
                "test",
                "--workspace",
                "--exclude",
                "guard-ebpf",
                "--exclude",
                "guard-tests",
                "--no-fail-fast",
            ]),
            owned(&["test", "-p", "guard-tests", "--lib", "--bins", "--no-fail-fast"]),
        ],
        Tier::Host | Tier::Vm => {
            vec![owned(&[
                "test",
                "-p",
                "guard-tests",
                "--test",
                "host_*",
                "--test",
                "e2e_*",
                "--no-fail-fast",
            ])]
        }
    };
    for run in &mut runs {
        run.extend(filter.map(str::to_owned));
    }
    runs
}

/// Runs cargo, passes its output on, and reads the closing lines of nextest and libtest.
fn tests_of(arguments: &[String]) -> Result<Count> {
    let paths = bpf::Paths::find()?;
    let mut child = Command::new("cargo")
        .args(arguments)
        .current_dir(&paths.root)
        .env_remove("CARGO_MANIFEST_DIR")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cargo did not start")?;
    let streams: [Option<Box<dyn std::io::Read + Send>>; 2] = [
        child.stdout.take().map(|stream| Box::new(stream) as _),
        child.stderr.take().map(|stream| Box::new(stream) as _),
    ];
    let readers: Vec<_> = streams
        .into_iter()
        .flatten()
        .map(|stream| {
            std::thread::spawn(move || {
                let mut count = Count::default();
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    read_closing(&line, &mut count);
                    eprintln!("{line}");
                }
                count
            })
        })
        .collect();
    let mut total = Count::default();
    for reader in readers {
        let count = reader.join().map_err(|_| anyhow::anyhow!("the reader of cargo's output panicked"))?;
        total.passed += count.passed;
        total.failed += count.failed;
        total.skipped += count.skipped;
    }
    let status = child.wait()?;
    if !status.success() && total.failed == 0 {
        bail!("cargo {} ended with {status} before a test failed", arguments.join(" "));
    }
    Ok(total)
}

fn read_closing(line: &str, count: &mut Count) {
    let plain = line.trim();
    if let Some(rest) = plain.strip_prefix("test result: ") {
        count.passed += number_before(rest, " passed");
        count.failed += number_before(rest, " failed");
        count.skipped += number_before(rest, " ignored");
    } else if plain.starts_with("Summary [") {
        count.passed += number_before(plain, " passed");
        count.failed += number_before(plain, " failed") + number_before(plain, " timed out");
    }
}

/// The number that stands right before a word.
fn number_before(text: &str, word: &str) -> u64 {
    let Some(at) = text.find(word) else { return 0 };
    let digits = text[..at].rsplit(|character: char| !character.is_ascii_digit()).next().unwrap_or("");
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_both_runners_are_read() {
        let mut count = Count::default();
        read_closing(
            "test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out",
            &mut count,
        );
        read_closing(
            "     Summary [   0.9s] 51 tests run: 49 passed (2 slow), 2 failed, 7 skipped",
            &mut count,
        );
        assert_eq!((count.passed, count.failed, count.skipped), (51, 3, 3));
    }
}
