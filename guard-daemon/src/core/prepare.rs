//! Checks a launch and fills in what the caller left open: profiles, environment, session, what the host lacks.

use std::{
    ffi::{OsStr, OsString},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use guard_proto::v1;

use super::{Core, peer::Peer, record, registry::Subject};
use crate::{
    accounts::user_with,
    coverage::{Coverage, Strength},
    sandbox::{environment, profiles},
};

/// Arguments and environment may not be larger than this together, bytes; execve(2) has a like limit.
const TEXT_LIMIT: usize = 2 << 20;

/// A launch that may go to guardd.
pub struct Prepared {
    pub launch: v1::Launch,
    pub subject: Subject,
    pub warnings: Vec<String>,
}

/// Why a launch is refused before anything starts.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("no command was given")]
    NoCommand,
    #[error("arguments and environment have {0} bytes together; at most {TEXT_LIMIT} are taken")]
    TooLarge(usize),
    #[error("{what} must be an absolute path, not `{path}`")]
    Relative { what: &'static str, path: String },
    #[error("the name `{0}` holds control characters or is longer than 200 bytes")]
    Name(String),
    #[error("{0}")]
    Profile(#[from] profiles::UnknownProfile),
    #[error(
        "this host does not enforce everything: {missing}; see `guardctl coverage`, or accept it with --degraded"
    )]
    NotEnforced { missing: String },
    #[error("guardd is not connected; it connects by itself within a second when it runs")]
    NoDaemon,
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

impl PrepareError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoCommand => "no_command",
            Self::TooLarge(_) => "too_large",
            Self::Relative { .. } => "invalid_path",
            Self::Name(_) => "invalid_name",
            Self::Profile(_) => "unknown_profile",
            Self::NotEnforced { .. } => "not_enforced",
            Self::NoDaemon => "daemon_unreachable",
            Self::Random(_) => "random",
        }
    }
}

/// Checks a request and makes the launch of it.
///
/// # Errors
/// [`PrepareError`]; nothing has started then.
pub fn prepare(core: &Core, peer: &Peer, request: v1::PrepareRequest) -> Result<Prepared, PrepareError> {
    let command = request.argv.first().filter(|name| !name.is_empty()).ok_or(PrepareError::NoCommand)?;
    let size: usize = request.argv.iter().chain(&request.environment).map(Vec::len).sum();
    if size > TEXT_LIMIT {
        return Err(PrepareError::TooLarge(size));
    }
    absolute("the worktree", &request.worktree)?;
    absolute("the directory", &request.directory)?;
    for path in request.read_write.iter().chain(&request.read_only).chain(&request.hide) {
        absolute("a path of --rw, --ro or --hide", path)?;
    }
    let mut principal = request.principal.clone().unwrap_or_default();
    for name in [&principal.agent, &principal.workspace, &principal.space, &principal.mode] {
        if name.len() > 200 || name.chars().any(char::is_control) {
            return Err(PrepareError::Name(name.escape_debug().to_string()));
        }
    }
    let mut warnings = weaker(core, request.degraded)?;
    if request.as_root {
        warnings
            .push("runs as root: file permissions protect nothing from it, only the fence does".to_owned());
    }
    if request.allow_setuid {
        warnings.push("setuid programs work: what they do is outside of what guard promises".to_owned());
    }

    let agent_id = format!("{}-{}", slug(&principal.agent, command), hex::encode(random::<4>()?));
    if principal.session.is_empty() {
        principal.session = format!("s-{}", hex::encode(random::<6>()?));
    }
    let sandbox = sandbox(core, peer, &request)?;
    let current = core.policy.current();
    let launch = v1::Launch {
        ticket: random::<16>()?.to_vec(),
        network: record::network(
            &current.policy,
            Some((&agent_id, &principal)),
            &super::resolvers(),
            jiff::Timestamp::now(),
        ),
        agent_id,
        principal: Some(principal.clone()),
        caller_uid: peer.uid,
        sandbox: Some(sandbox),
    };
    let started_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let subject = Subject { principal, worktree: request.worktree, started_ms };
    Ok(Prepared { launch, subject, warnings })
}

fn sandbox(core: &Core, peer: &Peer, request: &v1::PrepareRequest) -> Result<v1::Sandbox, PrepareError> {
    // A root caller becomes the worktree's owner, unless it says otherwise; so the profiles are about that home.
    let owner =
        std::fs::metadata(Path::new(OsStr::from_bytes(&request.worktree))).map(|metadata| metadata.uid());
    let uid = if peer.uid == 0 && !request.as_root { owner.unwrap_or(0) } else { peer.uid };
    let home = user_with(uid).map_or_else(|| PathBuf::from("/nonexistent"), |user| user.home);
    let names: Vec<&str> = request.profiles.iter().map(String::as_str).collect();
    let profile = profiles::resolve(&names, &home)?;
    let keep: Vec<&str> = request
        .keep_environment
        .iter()
        .map(String::as_str)
        .chain(profile.environment.iter().copied())
        .collect();
    let given: Vec<OsString> =
        request.environment.iter().map(|pair| OsStr::from_bytes(pair).to_owned()).collect();
    let own = [
        core.settings.run_dir.clone(),
        core.settings.state_dir.clone(),
        core.settings.audit_dir.clone(),
        PathBuf::from("/etc/guard"),
    ];
    let bytes = |paths: &[PathBuf], own: &[Vec<u8>]| {
        paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).chain(own.iter().cloned()).collect()
    };
    Ok(v1::Sandbox {
        argv: request.argv.clone(),
        environment: environment::scrub(&given, &keep).into_iter().map(OsString::into_vec).collect(),
        worktree: request.worktree.clone(),
        directory: request.directory.clone(),
        read_write: bytes(&profile.read_write, &request.read_write),
        read_only: bytes(&profile.read_only, &request.read_only),
        hide: bytes(&own, &request.hide),
        as_root: request.as_root,
        allow_setuid: request.allow_setuid,
        degraded: request.degraded,
        terminals: request.terminals.clone(),
        no_trap: request.no_trap,
        secrets: core.settings.secret_patterns(),
        home: home.into_os_string().into_vec(),
        agent_socket: core.settings.agent_socket().into_os_string().into_vec(),
    })
}

/// What is below `enforced` in the daemon's own measure: fatal, or warnings when the caller accepts it.
fn weaker(core: &Core, degraded: bool) -> Result<Vec<String>, PrepareError> {
    let bytes = core.coverage().ok_or(PrepareError::NoDaemon)?;
    let missing = match serde_json::from_slice::<Coverage>(&bytes) {
        Ok(coverage) => coverage
            .network
            .iter()
            .filter(|range| range.range != "public" && range.range != "loopback")
            .map(|range| (&range.range, range.strength))
            .chain(coverage.layers.iter().map(|layer| (&layer.layer, layer.strength)))
            .filter(|(_, strength)| *strength < Strength::Enforced)
            .map(|(what, strength)| format!("{what} {}", strength.word()))
            .collect(),
        Err(error) => vec![format!("the daemon's coverage cannot be read ({error})")],
    };
    match (missing.is_empty(), degraded) {
        (true, _) => Ok(Vec::new()),
        (false, true) => Ok(missing.into_iter().map(|what| format!("degraded: {what}")).collect()),
        (false, false) => Err(PrepareError::NotEnforced { missing: missing.join(", ") }),
    }
}

fn absolute(what: &'static str, path: &[u8]) -> Result<(), PrepareError> {
    if Path::new(OsStr::from_bytes(path)).is_absolute() {
        return Ok(());
    }
    Err(PrepareError::Relative { what, path: String::from_utf8_lossy(path).into_owned() })
}

/// A name that is safe as a cgroup and easy to type.
fn slug(agent: &str, command: &[u8]) -> String {
    let command = String::from_utf8_lossy(command);
    let name = if agent.is_empty() { command.rsplit('/').next().unwrap_or("agent") } else { agent };
    let slug: String = name
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' })
        .take(24)
        .collect();
    let slug = slug.trim_matches('-');
    if slug.is_empty() { "agent".to_owned() } else { slug.to_owned() }
}

fn random<const N: usize>() -> Result<[u8; N], PrepareError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(PrepareError::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_names_become_safe_cgroup_names() {
        for (agent, command, expected) in [
            ("Claude Code", "/usr/bin/claude", "claude-code"),
            ("", "/usr/bin/npm", "npm"),
            ("../../x", "c", "x"),
            ("日本", "c", "agent"),
            ("", "/", "agent"),
        ] {
            assert_eq!(slug(agent, command.as_bytes()), expected);
        }
    }
}
