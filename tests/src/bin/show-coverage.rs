//! Starts guardd here, prints its coverage as one line of JSON, and removes everything again.
//!
//! `cargo xtask vm` runs it on this machine and in the virtual one and shows where they differ.

use anyhow::{Result, bail};
use guard_tests::host::{Host, output};

fn main() -> Result<()> {
    let mut host = Host::new()?;
    // A host that misses a layer has a coverage too.
    host.option("--degraded");
    host.start_daemon()?;
    let coverage = output(&mut host.guardctl(&["--json", "coverage"]))?;
    if !coverage.status.success() {
        bail!("{}\n{}", String::from_utf8_lossy(&coverage.stderr), host.log());
    }
    print!("{}", String::from_utf8(coverage.stdout)?);
    Ok(())
}
