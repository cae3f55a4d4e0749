//! What of the host an agent must not see, as tables.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Directories of the system that lead out of the fence or show what is not the agent's.
const SYSTEM: &[&str] = &[
    "/sys/fs/cgroup",
    "/sys/fs/bpf",
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
    "/sys/kernel/security",
    "/sys/kernel/config",
    "/sys/fs/fuse",
    "/sys/fs/pstore",
    "/sys/firmware",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/lxd",
    "/var/snap/lxd",
    "/var/lib/incus",
    "/var/lib/libvirt",
    "/var/lib/gssproxy",
    "/var/lib/sss/pipes",
    "/var/lib/systemd/coredump",
    "/var/spool/cron",
    "/var/spool/postfix",
];

/// Where homes lie that no user database needs to list.
const HOMES: &[&str] = &["/home", "/root"];

/// Secrets in a home directory.
const SECRETS: &[&str] = &[
    ".ssh",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".kube",
    ".gnupg",
    ".netrc",
    ".docker",
    ".config/containers",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".npmrc",
    ".yarnrc.yml",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".composer/auth.json",
    ".config/op",
    ".config/sops",
    ".config/age",
    ".config/doctl",
    ".config/heroku",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".pgpass",
    ".my.cnf",
    ".s3cfg",
    ".boto",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".pki",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".config/Signal",
    ".config/Slack",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".lesshst",
];

/// Whether a path of a home is one that [`hidden_of`] hides because secrets lie there.
#[must_use]
pub fn is_place_of_secrets(path: &Path) -> bool {
    SECRETS.iter().any(|secret| path.ends_with(secret))
}

/// A path to cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Covered {
    pub(super) path: PathBuf,
    pub(super) directory: bool,
}

/// Everything that this launch hides; each path exists on the host, symlinks resolved.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    /// By our tables: a launch may open these again.
    pub(super) usual: Vec<Covered>,
    /// By guard itself and by `--hide`: nothing opens these but the worktree.
    pub(super) forced: Vec<Covered>,
}

/// What is hidden from an agent that has this home, on this host as it is now.
#[must_use]
pub fn hidden_of(home: &Path, other_homes: &[PathBuf], forced: &[PathBuf]) -> Hidden {
    let usual = SYSTEM
        .iter()
        .chain(HOMES)
        .map(PathBuf::from)
        .chain(other_homes.iter().filter(|other| other.as_path() != home).cloned())
        .chain(SECRETS.iter().map(|secret| home.join(secret)));
    Hidden { usual: existing(usual), forced: existing(forced.iter().cloned()) }
}

fn existing(paths: impl Iterator<Item = PathBuf>) -> Vec<Covered> {
    let mut covered: Vec<Covered> = Vec::new();
    for path in paths {
        let Ok(path) = fs::canonicalize(path) else { continue };
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if path != Path::new("/") && covered.iter().all(|known| known.path != path) {
            covered.push(Covered { path, directory: metadata.is_dir() });
        }
    }
    covered
}
