//! Where the daemons keep things and who may do what: command line over environment over `guard.toml` over defaults.
//!
//! Both guardd and guard-core take these options, so that a core started by systemd and one started by guardd read the same.

use std::path::{Path, PathBuf};

use guard_policy::{facts::Secrets, value::PathPattern};
use serde::Deserialize;

/// Options that guardd and guard-core share.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Configuration file [default: /etc/guard/guard.toml if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Policy file [default: /etc/guard/policy.json if it is there]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Managed policy file, which nobody below can loosen [env: GUARD_MANAGED_POLICY] [default: /etc/guard/managed-policy.json if it is there]
    #[arg(long, value_name = "FILE")]
    pub managed: Option<PathBuf>,
    /// Directory of the sockets
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Directory of keys and state
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Directory of the audit record
    #[arg(long, value_name = "DIR")]
    pub audit_dir: Option<PathBuf>,
    /// Cgroup that holds all agents, an absolute path below the cgroup2 mount or relative to it [default: guard]
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
}

/// What the daemons run with.
#[derive(Clone, Debug)]
pub struct Settings {
    pub config: Option<PathBuf>,
    pub policy: Option<PathBuf>,
    pub managed: Option<PathBuf>,
    pub run_dir: PathBuf,
    pub state_dir: PathBuf,
    pub audit_dir: PathBuf,
    pub cgroup: PathBuf,
    pub permissions: Permissions,
    pub audit: AuditFile,
    pub approvals: ApprovalsFile,
    pub secrets: Vec<SecretPattern>,
}

/// `guard.toml`; every key may be left out, a key that is not known is an error with its place.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    policy: Option<PathBuf>,
    managed: Option<PathBuf>,
    run_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    audit_dir: Option<PathBuf>,
    cgroup: Option<PathBuf>,
    permissions: Permissions,
    audit: AuditFile,
    approvals: ApprovalsFile,
    secrets: Vec<SecretPattern>,
}

/// Who holds which role: user names, and group names with a leading `@`. Root holds all.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Permissions {
    /// Launch agents, list them, and stop one's own.
    pub run: Vec<String>,
    /// Answer held acts.
    pub approve: Vec<String>,
    /// Override soft denials.
    pub r#override: Vec<String>,
    /// Stop any agent, reload policy, read the record.
    pub operate: Vec<String>,
}

impl Default for Permissions {
    fn default() -> Self {
        let group = |name: &str| vec![format!("@{name}")];
        Self {
            run: group("guard"),
            approve: group("guard-approve"),
            r#override: group("guard-admin"),
            operate: group("guard-admin"),
        }
    }
}

/// How the audit record is kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditFile {
    /// Size at which a new segment begins, bytes.
    pub segment_bytes: u64,
}

impl Default for AuditFile {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

/// How people are asked.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalsFile {
    /// How long an act waits for a person before that is a no, seconds.
    pub timeout_s: u32,
}

impl Default for ApprovalsFile {
    fn default() -> Self {
        Self { timeout_s: 120 }
    }
}

/// Files that hold secrets besides those that guard knows: a path pattern as in rules, relative to the worktree or absolute.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct SecretPattern(PathPattern);

impl TryFrom<String> for SecretPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        PathPattern::parse(&text).map(Self).map_err(|error| format!("`{text}` is no path pattern: {error}"))
    }
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("error[config_unreadable]: cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("error[config_invalid]: {}:{line}:{column}: {message}", path.display())]
    Invalid { path: PathBuf, line: usize, column: usize, message: String },
    #[error("error[config_invalid]: {} must be an absolute path, not {}", name, path.display())]
    Relative { name: &'static str, path: PathBuf },
}

const CONFIG: &str = "/etc/guard/guard.toml";
const POLICY: &str = "/etc/guard/policy.json";
const MANAGED: &str = "/etc/guard/managed-policy.json";

impl Settings {
    /// Merges command line, environment, configuration file and defaults.
    ///
    /// A file that was named must be there; the default ones may be absent.
    ///
    /// # Errors
    /// [`SettingsError`] if the configuration cannot be read or has a fault.
    pub fn load(options: &Options) -> Result<Self, SettingsError> {
        let config = options.config.clone().or_else(|| existing(CONFIG));
        let file = config.as_deref().map_or_else(|| Ok(File::default()), read)?;
        // the second name is an alias.
        let managed_variable = || {
            ["GUARD_MANAGED_POLICY", "CC_SERVER_MANAGED_POLICY"]
                .into_iter()
                .find_map(std::env::var_os)
                .map(PathBuf::from)
        };
        let settings = Self {
            policy: options.policy.clone().or(file.policy).or_else(|| existing(POLICY)),
            managed: options
                .managed
                .clone()
                .or_else(managed_variable)
                .or(file.managed)
                .or_else(|| existing(MANAGED)),
            run_dir: options.run_dir.clone().or(file.run_dir).unwrap_or_else(|| "/run/guard".into()),
            state_dir: options
                .state_dir
                .clone()
                .or(file.state_dir)
                .unwrap_or_else(|| "/var/lib/guard".into()),
            audit_dir: options
                .audit_dir
                .clone()
                .or(file.audit_dir)
                .unwrap_or_else(|| "/var/log/guard".into()),
            cgroup: options.cgroup.clone().or(file.cgroup).unwrap_or_else(|| "guard".into()),
            permissions: file.permissions,
            audit: file.audit,
            approvals: file.approvals,
            secrets: file.secrets,
            config,
        };
        for (name, path) in [
            ("run-dir", &settings.run_dir),
            ("state-dir", &settings.state_dir),
            ("audit-dir", &settings.audit_dir),
        ] {
            if !path.is_absolute() {
                return Err(SettingsError::Relative { name, path: path.clone() });
            }
        }
        Ok(settings)
    }

    /// The same settings as options, for the core that guardd starts.
    pub fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments = Vec::new();
        let mut push = |name: &str, path: Option<&Path>| {
            if let Some(path) = path {
                arguments.push(name.into());
                arguments.push(path.into());
            }
        };
        push("--config", self.config.as_deref());
        push("--policy", self.policy.as_deref());
        push("--managed", self.managed.as_deref());
        push("--run-dir", Some(&self.run_dir));
        push("--state-dir", Some(&self.state_dir));
        push("--audit-dir", Some(&self.audit_dir));
        push("--cgroup", Some(&self.cgroup));
        arguments
    }

    /// The files that hold secrets on this host.
    pub fn secrets(&self) -> Secrets {
        Secrets::with(self.secrets.iter().map(|pattern| pattern.0.clone()).collect())
    }

    /// The same, as written.
    pub fn secret_patterns(&self) -> Vec<String> {
        self.secrets.iter().map(|pattern| pattern.0.written().to_owned()).collect()
    }

    /// The file of the signing key of audit checkpoints.
    pub fn audit_key(&self) -> PathBuf {
        self.state_dir.join("audit-key")
    }

    /// The socket for people.
    pub fn guard_socket(&self) -> PathBuf {
        self.run_dir.join("guard.sock")
    }

    /// The socket for agents.
    pub fn agent_socket(&self) -> PathBuf {
        self.run_dir.join("agent.sock")
    }

    /// The line between guardd and guard-core.
    pub fn core_socket(&self) -> PathBuf {
        self.run_dir.join("core.sock")
    }

    /// Where launch tickets are redeemed.
    pub fn launch_socket(&self) -> PathBuf {
        self.run_dir.join("launch.sock")
    }
}

fn existing(path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path);
    path.exists().then_some(path)
}

fn read(path: &Path) -> Result<File, SettingsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
    toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = &text[..at.min(text.len())];
        SettingsError::Invalid {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1,
            message: error.message().to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Settings, SettingsError> {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), text).expect("write");
        Settings::load(&Options {
            config: Some(file.path().to_owned()),
            policy: None,
            managed: None,
            run_dir: None,
            state_dir: None,
            audit_dir: None,
            cgroup: None,
        })
    }

    #[test]
    fn a_fault_names_its_place_and_the_known_keys() {
        let error = load("[audit]\nsegment_byte = 3\n").expect_err("a typo").to_string();
        assert!(error.contains(":2:1: unknown field `segment_byte`, expected `segment_bytes`"), "{error}");
        let error = load("secrets = [\"ok/**\", \"\"]\n").expect_err("no pattern").to_string();
        assert!(error.contains(":1:") && error.contains("`` is no path pattern"), "{error}");
        let error = load("run_dir = 7\n").expect_err("a wrong type").to_string();
        assert!(error.contains(":1:11: "), "{error}");
    }

    #[test]
    fn relative_directories_are_refused() {
        let error = load("run_dir = \"run\"\n").expect_err("relative").to_string();
        assert!(error.contains("run-dir must be an absolute path"), "{error}");
    }

    #[test]
    fn defaults_name_the_three_groups() {
        let settings = load("").expect("empty is fine");
        assert_eq!(settings.permissions.run, ["@guard"]);
        assert_eq!(settings.permissions.approve, ["@guard-approve"]);
        assert_eq!(settings.permissions.operate, ["@guard-admin"]);
    }
}
