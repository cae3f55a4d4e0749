//! Presets: what a known tool needs beyond its worktree, as a table. Several profiles of one launch add up.

use std::path::{Path, PathBuf};

/// What one tool needs. The secrets among it are hidden by [`super::view`] for every agent, and open with `--ro`. Paths are relative to the home directory unless absolute; a path that does not exist is skipped at launch.
struct Preset {
    name: &'static str,
    read_write: &'static [&'static str],
    read_only: &'static [&'static str],
    environment: &'static [&'static str],
}

const PRESETS: &[Preset] = &[
    Preset {
        name: "claude-code",
        read_write: &[
            ".claude",
            ".claude.json",
            ".cache/claude",
            ".local/state/claude",
            ".local/share/claude",
        ],
        read_only: &[".gitconfig", ".config/git"],
        environment: &[
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
        ],
    },
    Preset {
        name: "codex",
        read_write: &[".codex"],
        read_only: &[".gitconfig", ".config/git"],
        environment: &["OPENAI_API_KEY", "CODEX_API_KEY"],
    },
    Preset {
        name: "gemini",
        read_write: &[".gemini", ".cache/gemini"],
        read_only: &[".gitconfig", ".config/git"],
        environment: &["GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT"],
    },
    Preset {
        name: "cargo",
        // Not the whole of .cargo: config.toml and bin/ would run code outside of the fence later.
        read_write: &[".cargo/registry", ".cargo/git", ".cargo/.package-cache", ".cargo/.global-cache"],
        read_only: &[".cargo/config.toml", ".cargo/config", ".cargo/bin", ".rustup"],
        environment: &[],
    },
    Preset {
        name: "npm",
        read_write: &[".npm", ".cache/node", ".cache/node-gyp", ".node-gyp"],
        read_only: &[],
        environment: &[],
    },
    Preset {
        name: "pip",
        read_write: &[".cache/pip"],
        read_only: &[".config/pip", ".pip"],
        environment: &[],
    },
    Preset {
        name: "git",
        read_write: &[],
        read_only: &[".gitconfig", ".config/git", ".ssh/known_hosts"],
        environment: &["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"],
    },
];

/// What the profiles of one launch open together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub read_write: Vec<PathBuf>,
    pub read_only: Vec<PathBuf>,
    /// Variables that pass the scrubbing.
    pub environment: Vec<&'static str>,
}

/// No preset has this name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("no profile is called `{name}`; did you mean `{nearest}`? There are {}", names().collect::<Vec<_>>().join(", "))]
pub struct UnknownProfile {
    pub name: String,
    pub nearest: &'static str,
}

/// The names of all presets.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|preset| preset.name)
}

/// Adds the named presets up, for this home directory.
///
/// # Errors
/// [`UnknownProfile`], with the nearest name.
pub fn resolve(wanted: &[&str], home: &Path) -> Result<Profile, UnknownProfile> {
    let mut profile = Profile::default();
    for name in wanted {
        let preset = PRESETS.iter().find(|preset| preset.name == *name).ok_or_else(|| unknown(name))?;
        add(&mut profile.read_write, preset.read_write, home);
        add(&mut profile.read_only, preset.read_only, home);
        for variable in preset.environment {
            if !profile.environment.contains(variable) {
                profile.environment.push(variable);
            }
        }
    }
    Ok(profile)
}

fn add(paths: &mut Vec<PathBuf>, more: &[&str], home: &Path) {
    for path in more.iter().map(|path| home.join(path)) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
}

fn unknown(name: &str) -> UnknownProfile {
    let lower = name.to_lowercase();
    let nearest = names()
        .min_by_key(|known| (!known.starts_with(&lower), strsim::damerau_levenshtein(known, &lower)))
        .unwrap_or("git");
    UnknownProfile { name: name.escape_debug().to_string(), nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_add_up_without_doubles() {
        let profile = resolve(&["git", "codex", "git"], Path::new("/home/u")).expect("both exist");
        assert_eq!(profile.read_write, [Path::new("/home/u/.codex")]);
        let git = profile.read_only.iter().filter(|path| path.ends_with(".gitconfig")).count();
        assert_eq!(git, 1);
        assert!(profile.environment.contains(&"OPENAI_API_KEY"));
        assert_eq!(resolve(&[], Path::new("/h")).expect("none"), Profile::default());
    }

    #[test]
    fn an_unknown_name_gets_the_nearest() {
        for (name, nearest) in
            [("claude", "claude-code"), ("cagro", "cargo"), ("nmp", "npm"), ("Codex!", "codex")]
        {
            let error = resolve(&[name], Path::new("/h")).expect_err("unknown");
            assert_eq!(error.nearest, nearest, "{name}");
        }
    }
}
