//! Builds with optimisation and measures what guard costs; `guard-tests`' program `bench` does it.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    bpf,
    setup::{self, Need},
};

/// What is measured.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// `policy`: the engine beside cedar-policy and regorus, without root; else what guard costs a host
    what: Option<What>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    Policy,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match arguments.what {
        Some(What::Policy) => policy(),
        None => host(),
    }
}

/// Builds the crate that compares engines, which is not part of the workspace, and runs it.
fn policy() -> Result<()> {
    let paths = bpf::Paths::find()?;
    let status = Command::new("cargo")
        .args(["run", "--release", "--locked", "--manifest-path"])
        .arg(paths.root.join("bench/Cargo.toml"))
        .arg("--target-dir")
        .arg(paths.target.join("bench"))
        .arg("--")
        .arg(paths.target.join("bench-policy.json"))
        .status()
        .context("cargo did not start")?;
    if !status.success() {
        bail!("the comparison did not come to its end: {status}");
    }
    Ok(())
}

/// Installs what is missing, builds, measures; the figures go to `bench.json` in the target directory.
fn host() -> Result<()> {
    let paths = bpf::Paths::find()?;
    for need in [Need::Bpf, Need::Host, Need::Bench] {
        setup::ensure(need)?;
    }
    bpf::build(&paths)?;
    bpf::workspace(&paths, true)?;
    let program = paths.target.join("release/bench");
    let status = Command::new(&program)
        .arg(paths.target.join("bench.json"))
        .status()
        .with_context(|| format!("{} did not start", program.display()))?;
    if !status.success() {
        bail!("the measurement did not come to its end: {status}");
    }
    Ok(())
}
