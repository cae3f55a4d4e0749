//! What is read out of words, held against the programs that read them for real: git and bash.

mod git;
mod shell;

use std::path::Path;
use std::process::{Command, Output};

/// A command without anything of this user's own.
fn clean(program: &str, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", directory).env("GIT_CONFIG_NOSYSTEM", "1").env("LC_ALL", "C.UTF-8");
    command
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
