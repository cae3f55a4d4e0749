//! Runs the attack program, inside and outside of guard, and reads what it says.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::host::{Host, UID, output};

/// What an attack said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Worked(String),
    Refused(String),
}

/// What each attack of a run said, by its command line.
pub type Results = BTreeMap<String, Said>;

/// The attack program at a place where every user can run it.
pub struct Attacks {
    program: PathBuf,
}

impl Attacks {
    /// Copies the program next to the worktree: a target directory below somebody's home is closed to agents.
    ///
    /// # Errors
    /// It was not built, or cannot be copied.
    pub fn new(host: &Host) -> Result<Self> {
        let program = host.path("attacks");
        fs::copy(crate::programs().join("attacks"), &program)
            .context("the attack program is not built; `cargo xtask build` builds it")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { program })
    }

    /// Where it is.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A shell script that tries all of them, one after the other.
    #[must_use]
    pub fn script(&self, attacks: &[String]) -> String {
        let program = self.program.display();
        attacks.iter().map(|attack| format!("echo '@{attack}'; {program} {attack} 2>&1\n")).collect()
    }

    /// Tries them with this beginning of a command line, to which `sh -c SCRIPT` is added.
    ///
    /// # Errors
    /// It does not start, or an attack is broken here.
    pub fn by(&self, mut command: Command, attacks: &[String]) -> Result<Results> {
        command.args(["/bin/sh", "-c", &self.script(attacks)]);
        read(&mut command, attacks)
    }

    /// Tries them as an agent.
    ///
    /// # Errors
    /// The launch fails, or an attack is broken here.
    pub fn governed(
        &self,
        host: &Host,
        guardctl: Command,
        options: &[&str],
        attacks: &[String],
    ) -> Result<Results> {
        read(&mut host.run_in(guardctl, options, &["/bin/sh", "-c", &self.script(attacks)]), attacks)
    }
}

/// What lets a command begin as the agents' user, without guard: the control of every test.
#[must_use]
pub fn as_user(mut command: Command) -> Command {
    command.arg(format!("--reuid={UID}")).arg(format!("--regid={UID}")).arg("--clear-groups");
    command
}

/// Runs a command that ends in [`Attacks::script`], and reads it.
///
/// # Errors
/// It does not start, or an attack is broken here.
pub fn read(command: &mut Command, attacks: &[String]) -> Result<Results> {
    let done = output(command)?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let mut results = Results::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(attack) = line.strip_prefix('@') {
            current = Some(attack.to_owned());
        } else if let Some(attack) = current.take() {
            let said = match line.split_once(' ') {
                Some(("worked", rest)) => Said::Worked(rest.to_owned()),
                Some(("refused", rest)) => Said::Refused(rest.to_owned()),
                _ => bail!("`{attack}` is broken: {line}"),
            };
            results.insert(attack, said);
        }
    }
    if let Some(missing) = attacks.iter().find(|attack| !results.contains_key(*attack)) {
        bail!("`{missing}` said nothing\n{command:?}\n{text}{}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(results)
}

/// Those that worked, for a message.
#[must_use]
pub fn that_worked(results: &Results) -> Vec<&String> {
    results.iter().filter(|(_, said)| matches!(said, Said::Worked(_))).map(|(attack, _)| attack).collect()
}

/// Those that were refused, with what they said.
#[must_use]
pub fn that_were_refused(results: &Results) -> Vec<String> {
    let refused = |(attack, said): (&String, &Said)| match said {
        Said::Refused(why) => Some(format!("{attack}: {why}")),
        Said::Worked(_) => None,
    };
    results.iter().filter_map(refused).collect()
}
