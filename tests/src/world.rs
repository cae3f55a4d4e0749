//! A small internet in a network namespace of its own: metadata service, private and public servers, all on its `lo`.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    net::IpAddr,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// What each address plays.
pub const ADDRESSES: [(&str, &str); 12] = [
    ("169.254.169.254", "metadata"),
    ("169.254.170.2", "metadata"),
    ("fd00:ec2::254", "metadata"),
    ("10.1.2.3", "private"),
    ("192.168.7.7", "private"),
    ("100.64.1.1", "private"),
    ("203.0.113.10", "public"),
    ("203.0.113.53", "public"),
    ("2001:db8::10", "public"),
    // The first metadata address, a private one and a public one behind NAT64's well-known prefix.
    ("64:ff9b::a9fe:a9fe", "metadata"),
    ("64:ff9b::a01:203", "private"),
    ("64:ff9b::cb00:710a", "public"),
];

/// TCP port of the web servers, on every address.
pub const HTTP: u16 = 80;
/// TCP and UDP port that sends back what it gets, on every address.
pub const ECHO: u16 = 7;

/// The namespace and its servers; both are gone when it is dropped.
pub struct World {
    name: String,
    servers: Child,
}

impl World {
    /// Makes the namespace, gives it its addresses and starts the servers in it.
    ///
    /// # Errors
    /// `ip` or `nsenter` is missing, or this is not root.
    pub fn start() -> Result<Self> {
        let name = crate::unique("guard-w");
        ip(&["netns", "add", &name])?;
        let made = Self::furnish(&name);
        if made.is_err() {
            // The error that led here is the one to report.
            let _ = ip(&["netns", "del", &name]);
        }
        made
    }

    fn furnish(name: &str) -> Result<Self> {
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        for (address, _) in ADDRESSES {
            let prefix = if address.contains(':') { 128 } else { 32 };
            let with_prefix = format!("{address}/{prefix}");
            let mut arguments = vec!["-n", name, "addr", "add", with_prefix.as_str(), "dev", "lo"];
            if prefix == 128 {
                arguments.push("nodad");
            }
            ip(&arguments)?;
        }
        let mut servers = enter_command(name, crate::programs().join("world"))
            .stdout(Stdio::piped())
            .spawn()
            .context("the world's servers did not start; build the tests' programs first")?;
        let mut line = String::new();
        let stdout = servers.stdout.take().context("no output of the servers")?;
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim() != "ready" {
            bail!("the world's servers said {line:?} instead of being ready");
        }
        Ok(Self { name: name.to_owned(), servers })
    }

    /// A command that runs in this world's network.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        enter_command(&self.name, program)
    }

    /// What an address plays.
    #[must_use]
    pub fn role(address: IpAddr) -> &'static str {
        let plain = address.to_canonical().to_string();
        ADDRESSES.iter().find(|(known, _)| *known == plain).map_or("unknown", |(_, role)| role)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Both may be gone already; what counts is that neither is there afterwards.
        let _ = self.servers.kill();
        let _ = self.servers.wait();
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Only the network changes: `ip netns exec` would also replace /sys, and with it the cgroups.
fn enter_command(name: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{name}")).arg("--").arg(program);
    // SAFETY: one async-signal-safe call; a test that dies takes what it started with it.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
                .map_err(Into::into)
        });
    }
    command
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output().context("`ip` did not start")?;
    if !output.status.success() {
        bail!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
