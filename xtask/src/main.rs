//! Builds, tests and demonstrates guard; see `cargo xtask --help`. One file a task.

mod bench;
mod bpf;
mod demo;
mod fresh;
mod setup;
mod test;
mod trace;
mod vm;

use anyhow::Result;
use clap::Parser;

/// Builds, tests and demonstrates guard.
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
enum Task {
    /// Install what is missing on this machine for the given tiers (Debian, as root)
    Setup(setup::Arguments),
    /// Build the BPF programs, then everything else; the daemon embeds the programs
    Build(bpf::Arguments),
    /// Measure what guard costs, against bare and against a peer; needs root and a quiet machine
    Bench(bench::Arguments),
    /// Show what guard does to an agent that does as it likes; needs root
    Demo,
    /// Run the tests; installs what they need
    Test(test::Arguments),
    /// Compare the requirements that the docs claim with those that tests name
    Trace,
    /// Boot Debian's 6.1 kernel under emulation and run the host tier in it
    Vm(vm::Arguments),
    /// Run both commands of the README on a bare Debian 12, twice each, and say how long they took
    Fresh(fresh::Arguments),
}

fn main() -> Result<()> {
    match Task::parse() {
        Task::Setup(arguments) => setup::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Build(arguments) => bpf::run(&arguments),
        Task::Demo => demo::run(),
        Task::Test(arguments) => test::run(&arguments),
        Task::Trace => trace::run(),
        Task::Vm(arguments) => vm::run(&arguments),
        Task::Fresh(arguments) => fresh::run(&arguments),
    }
}
