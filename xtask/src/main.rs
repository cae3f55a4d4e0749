//! Builds guard; see `cargo xtask --help`.

mod bpf;

use anyhow::Result;
use clap::Parser;

/// Builds guard.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Build the BPF programs; the next build of the daemon embeds them.
    Build,
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Build => {
            let built = bpf::build(&bpf::Paths::find()?)?;
            eprintln!("{} (linked by {})", built.toolchain, built.linker.display());
            println!("{}", built.object.display());
        }
    }
    Ok(())
}
