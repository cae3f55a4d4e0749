//! Builds with optimisation and measures what guard costs; `guard-tests`' program `bench` does it.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    bpf,
    setup::{self, Need},
};

/// Installs what is missing, builds, measures; the figures go to `bench.json` in the target directory.
pub(crate) fn run() -> Result<()> {
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
