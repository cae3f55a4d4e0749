//! Somebody's desk: guard, a user with a home, and a network that leads nowhere.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, bail};
use rustix::{mount::MountPropagationFlags, thread::UnshareFlags};
use serde_json::Value;

use crate::{
    attack::as_user,
    host::{Host, UID, output},
    world::World,
};

/// Where Debian's programs are.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Gives a tree to the agents' user.
///
/// # Errors
/// A file cannot be given away.
pub fn give(path: &Path) -> Result<()> {
    std::os::unix::fs::lchown(path, Some(UID), Some(UID))?;
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path())?;
        }
    }
    Ok(())
}

/// guard with a user who has a home, in a network that leads nowhere.
pub struct Desk {
    /// guard.
    pub host: Host,
    /// The network.
    pub world: World,
}

impl Desk {
    /// The profiles are about the home that the user database names, so this thread gets a user database of its own.
    ///
    /// # Errors
    /// This is not root, or guard does not start.
    pub fn new() -> Result<Self> {
        let mut host = Host::new()?;
        let users = host.path("passwd");
        let home = host.path("home");
        let entry = format!("agent:x:{UID}:{UID}::{}:/bin/bash\n", home.display());
        fs::write(&users, fs::read_to_string("/etc/passwd")? + &entry)?;
        // SAFETY: this thread gets mounts of its own; what it starts inherits them, the rest of the process keeps the old ones.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        rustix::mount::mount_bind(&users, "/etc/passwd")?;
        let world = World::start()?;
        host.start_daemon()?;
        Ok(Self { host, world })
    }

    fn ready(&self, mut command: Command) -> Command {
        command.env_clear().env("PATH", PATH).env("HOME", self.host.path("home"));
        command.current_dir(self.host.worktree());
        command
    }

    /// Something that is done before, by the same user without guard.
    ///
    /// # Errors
    /// The script fails.
    pub fn before(&self, script: &str) -> Result<String> {
        let mut command = as_user(self.ready(self.world.command("setpriv")));
        succeed(command.args(["/bin/bash", "-ec", script]))
    }

    /// The work itself, by an agent under this profile, ready to run.
    pub fn agent(&self, options: &[&str], script: &str) -> Command {
        let guardctl = self.world.command(crate::programs().join("guardctl"));
        self.ready(self.host.run_in(guardctl, options, &["/bin/bash", "-ec", script]))
    }

    /// The same, run to its end.
    ///
    /// # Errors
    /// The script fails.
    pub fn governed(&self, options: &[&str], script: &str) -> Result<String> {
        succeed(&mut self.agent(options, script))
    }

    /// That the record has this class of act, and that it was done.
    ///
    /// # Errors
    /// There is no such record.
    pub fn recorded(&self, class: &str) -> Result<Value> {
        let record = self.host.wait_for_record(|record| {
            let classes = record["request"]["action"]["classes"].as_array();
            classes.is_some_and(|classes| classes.iter().any(|name| name == class))
        })?;
        if record["effect"] != "done" {
            bail!("{record}");
        }
        Ok(record)
    }
}

/// Runs it to its end; anything but success is the test's failure, with all it said.
///
/// # Errors
/// It fails.
pub fn succeed(command: &mut Command) -> Result<String> {
    let done = output(command)?;
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        bail!("{command:?}: {}\n{stdout}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    Ok(stdout)
}
