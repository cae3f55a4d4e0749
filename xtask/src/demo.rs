//! Builds everything and runs the demonstration, `guard-tests`' program `demo`.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{
    bpf,
    setup::{self, Need},
};

/// Installs what is missing, builds, runs.
pub(crate) fn run() -> Result<()> {
    let paths = bpf::Paths::find()?;
    setup::ensure(Need::Bpf)?;
    setup::ensure(Need::Host)?;
    bpf::build(&paths)?;
    bpf::workspace(&paths, false)?;
    let program = paths.target.join("debug/demo");
    let status =
        Command::new(&program).status().with_context(|| format!("{} did not start", program.display()))?;
    if !status.success() {
        bail!("the demonstration did not go as it should: {status}");
    }
    Ok(())
}
