//! Which variables of the caller reach the agent.
//!
//! Everything passes but three kinds: what makes a permitted program run other code, what points at a helper process outside
//! of the fence, and what looks like a secret. A name that the operator or a profile lets through passes all the same.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

/// Why a variable is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Loads code into, or starts programs from, a program that is itself permitted.
    Injects,
    /// Leads to a process outside of the fence.
    Reaches,
    /// Is a secret by its name.
    Secret,
}

/// How a line of the table matches a name; letters match in either case.
enum Pattern {
    Is(&'static str),
    Begins(&'static str),
    Ends(&'static str),
}

use Pattern::{Begins, Ends, Is};
use Reason::{Injects, Reaches, Secret};

/// The first line that matches speaks.
const TABLE: &[(Pattern, Option<Reason>)] = &[
    // Names that a pattern below would catch although they are harmless.
    (Is("GPG_TTY"), None),
    (Is("GIT_AUTHOR_NAME"), None),
    (Is("GIT_AUTHOR_EMAIL"), None),
    (Is("GIT_AUTHOR_DATE"), None),
    (Is("GIT_COMMITTER_NAME"), None),
    (Is("GIT_COMMITTER_EMAIL"), None),
    (Is("GIT_COMMITTER_DATE"), None),
    (Is("GIT_TERMINAL_PROMPT"), None),
    (Is("GIT_PS1_SHOWDIRTYSTATE"), None),
    // The dynamic loader and the C library.
    (Begins("LD_"), Some(Injects)),
    (Begins("DYLD_"), Some(Injects)),
    (Begins("GLIBC_TUNABLES"), Some(Injects)),
    (Is("GCONV_PATH"), Some(Injects)),
    (Is("GETCONF_DIR"), Some(Injects)),
    (Is("HOSTALIASES"), Some(Injects)),
    (Is("LOCPATH"), Some(Injects)),
    (Is("NLSPATH"), Some(Injects)),
    (Begins("MALLOC_"), Some(Injects)),
    (Is("RES_OPTIONS"), Some(Injects)),
    // Shells.
    (Is("BASH_ENV"), Some(Injects)),
    (Is("ENV"), Some(Injects)),
    (Is("ZDOTDIR"), Some(Injects)),
    (Is("SHELLOPTS"), Some(Injects)),
    (Is("BASHOPTS"), Some(Injects)),
    (Is("PROMPT_COMMAND"), Some(Injects)),
    (Is("PS4"), Some(Injects)),
    (Is("IFS"), Some(Injects)),
    (Is("CDPATH"), Some(Injects)),
    (Is("GLOBIGNORE"), Some(Injects)),
    (Begins("BASH_FUNC_"), Some(Injects)),
    // Interpreters.
    (Is("NODE_PATH"), Some(Injects)),
    (Is("NODE_EXTRA_CA_CERTS"), None),
    (Is("NODE_REPL_EXTERNAL_MODULE"), Some(Injects)),
    (Is("PYTHONSTARTUP"), Some(Injects)),
    (Is("PYTHONPATH"), Some(Injects)),
    (Is("PYTHONHOME"), Some(Injects)),
    (Is("PYTHONINSPECT"), Some(Injects)),
    (Is("PYTHONBREAKPOINT"), Some(Injects)),
    (Is("PYTHONUSERBASE"), Some(Injects)),
    (Is("PYTHONWARNINGS"), Some(Injects)),
    (Is("PYTHONEXECUTABLE"), Some(Injects)),
    (Is("PYTHONPLATLIBDIR"), Some(Injects)),
    (Is("PERL5OPT"), Some(Injects)),
    (Is("PERL5LIB"), Some(Injects)),
    (Is("PERLLIB"), Some(Injects)),
    (Is("PERL5DB"), Some(Injects)),
    (Is("RUBYOPT"), Some(Injects)),
    (Is("RUBYLIB"), Some(Injects)),
    (Is("BUNDLE_GEMFILE"), Some(Injects)),
    (Is("LUA_INIT"), Some(Injects)),
    (Begins("LUA_INIT_"), Some(Injects)),
    (Is("LUA_PATH"), Some(Injects)),
    (Is("LUA_CPATH"), Some(Injects)),
    (Is("CLASSPATH"), Some(Injects)),
    (Is("JDK_JAVA_OPTIONS"), Some(Injects)),
    (Is("_JAVA_OPTIONS"), Some(Injects)),
    (Is("PHPRC"), Some(Injects)),
    (Is("PHP_INI_SCAN_DIR"), Some(Injects)),
    (Is("RUSTC_WRAPPER"), Some(Injects)),
    (Is("RUSTC_WORKSPACE_WRAPPER"), Some(Injects)),
    (Is("RUSTFLAGS"), Some(Injects)),
    (Is("CARGO_ENCODED_RUSTFLAGS"), Some(Injects)),
    (Is("GOFLAGS"), Some(Injects)),
    (Is("MAKEFLAGS"), Some(Injects)),
    (Is("MAKEFILES"), Some(Injects)),
    (Is("GNUMAKEFLAGS"), Some(Injects)),
    // NODE_OPTIONS, BUN_OPTIONS, JAVA_TOOL_OPTIONS, ELECTRON_… and what comes after them.
    (Ends("_OPTIONS"), Some(Injects)),
    (Begins("NPM_CONFIG_SCRIPT"), Some(Injects)),
    (Is("NPM_CONFIG_NODE_OPTIONS"), Some(Injects)),
    // Git runs programs that its environment names.
    (Begins("GIT_"), Some(Injects)),
    (Is("EDITOR"), None),
    (Is("PAGER"), None),
    (Is("LESSOPEN"), Some(Injects)),
    (Is("LESSCLOSE"), Some(Injects)),
    (Is("SSH_ASKPASS"), Some(Injects)),
    (Is("SUDO_ASKPASS"), Some(Injects)),
    (Begins("SUDO_EDITOR"), Some(Injects)),
    // Helpers outside.
    (Is("SSH_AUTH_SOCK"), Some(Reaches)),
    (Is("SSH_AGENT_PID"), Some(Reaches)),
    (Begins("DBUS_"), Some(Reaches)),
    (Is("XDG_RUNTIME_DIR"), Some(Reaches)),
    (Is("DOCKER_HOST"), Some(Reaches)),
    (Is("CONTAINER_HOST"), Some(Reaches)),
    (Is("CONTAINERD_ADDRESS"), Some(Reaches)),
    (Is("BUILDKIT_HOST"), Some(Reaches)),
    (Is("KUBECONFIG"), Some(Reaches)),
    (Begins("GPG_"), Some(Reaches)),
    (Is("GNOME_KEYRING_CONTROL"), Some(Reaches)),
    (Is("DISPLAY"), Some(Reaches)),
    (Is("XAUTHORITY"), Some(Reaches)),
    (Is("WAYLAND_DISPLAY"), Some(Reaches)),
    (Is("SESSION_MANAGER"), Some(Reaches)),
    (Is("TMUX"), Some(Reaches)),
    (Is("TMUX_PANE"), Some(Reaches)),
    (Is("STY"), Some(Reaches)),
    (Begins("VSCODE_"), Some(Reaches)),
    (Is("NOTIFY_SOCKET"), Some(Reaches)),
    (Begins("LISTEN_"), Some(Reaches)),
    (Is("GUARD_SOCKET"), Some(Reaches)),
    // Secrets.
    (Begins("AWS_"), Some(Secret)),
    (Begins("AZURE_"), Some(Secret)),
    (Begins("GOOGLE_"), Some(Secret)),
    (Begins("GCLOUD_"), Some(Secret)),
    (Begins("CLOUDSDK_"), Some(Secret)),
    (Is("DATABASE_URL"), Some(Secret)),
    (Is("REDIS_URL"), Some(Secret)),
    (Is("MONGODB_URI"), Some(Secret)),
    (Is("SENTRY_DSN"), Some(Secret)),
    (Is("NETRC"), Some(Secret)),
    (Is("PGPASSFILE"), Some(Secret)),
    (Ends("TOKEN"), Some(Secret)),
    (Ends("SECRET"), Some(Secret)),
    (Ends("_KEY"), Some(Secret)),
    (Ends("APIKEY"), Some(Secret)),
    (Ends("_KEY_ID"), Some(Secret)),
    (Ends("PASSWORD"), Some(Secret)),
    (Ends("PASSWD"), Some(Secret)),
    (Ends("PASSPHRASE"), Some(Secret)),
    (Ends("_PAT"), Some(Secret)),
    (Ends("_AUTH"), Some(Secret)),
    (Ends("CREDENTIALS"), Some(Secret)),
    (Ends("_COOKIE"), Some(Secret)),
];

/// Takes out what an agent must not have; `keep` names what passes all the same. Entries without `=` and with an empty name go.
#[must_use]
pub fn scrub(environment: &[OsString], keep: &[&str]) -> Vec<OsString> {
    environment
        .iter()
        .filter(|entry| {
            let bytes = entry.as_bytes();
            let Some(end) = bytes.iter().position(|byte| *byte == b'=') else { return false };
            let name = &bytes[..end];
            !name.is_empty()
                && (keep.iter().any(|kept| kept.as_bytes() == name)
                    || judge(OsStr::from_bytes(name)).is_none())
        })
        .cloned()
        .collect()
}

/// Why a variable of this name is taken out; `None` when it passes.
#[must_use]
pub fn judge(name: &OsStr) -> Option<Reason> {
    let name = name.as_bytes();
    let matches = |pattern: &Pattern| match pattern {
        Is(whole) => name.eq_ignore_ascii_case(whole.as_bytes()),
        Begins(start) => {
            name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()))
        }
        Ends(end) => name
            .len()
            .checked_sub(end.len())
            .is_some_and(|at| name[at..].eq_ignore_ascii_case(end.as_bytes())),
    };
    TABLE.iter().find(|(pattern, _)| matches(pattern)).and_then(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    ///
    #[test]
    fn code_injection_helpers_and_secrets_do_not_pass() {
        for (name, expected) in [
            ("LD_PRELOAD", Some(Injects)),
            ("ld_preload", Some(Injects)),
            ("NODE_OPTIONS", Some(Injects)),
            ("BUN_OPTIONS", Some(Injects)),
            ("JAVA_TOOL_OPTIONS", Some(Injects)),
            ("PYTHONSTARTUP", Some(Injects)),
            ("PERL5OPT", Some(Injects)),
            ("RUBYOPT", Some(Injects)),
            ("BASH_ENV", Some(Injects)),
            ("ENV", Some(Injects)),
            ("BASH_FUNC_ls%%", Some(Injects)),
            ("GIT_CONFIG_COUNT", Some(Injects)),
            ("GIT_CONFIG_KEY_0", Some(Injects)),
            ("GIT_SSH_COMMAND", Some(Injects)),
            ("GIT_EXTERNAL_DIFF", Some(Injects)),
            ("GIT_PAGER", Some(Injects)),
            ("GIT_EXEC_PATH", Some(Injects)),
            ("GIT_AUTHOR_NAME", None),
            ("SSH_AUTH_SOCK", Some(Reaches)),
            ("DBUS_SESSION_BUS_ADDRESS", Some(Reaches)),
            ("XDG_RUNTIME_DIR", Some(Reaches)),
            ("DOCKER_HOST", Some(Reaches)),
            ("GPG_AGENT_INFO", Some(Reaches)),
            ("GPG_TTY", None),
            ("GITHUB_TOKEN", Some(Secret)),
            ("npm_token", Some(Secret)),
            ("AWS_REGION", Some(Secret)),
            ("OPENAI_API_KEY", Some(Secret)),
            ("DB_PASSWORD", Some(Secret)),
            ("PATH", None),
            ("HOME", None),
            ("LANG", None),
            ("TERM", None),
            ("CARGO_HOME", None),
            ("KEYBOARD", None),
            ("SUDO_UID", None),
            ("ENVIRONMENT", None),
        ] {
            assert_eq!(judge(OsStr::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn kept_names_pass_and_malformed_entries_do_not() {
        let given: Vec<OsString> =
            ["A=1", "GITHUB_TOKEN=t", "NPM_TOKEN=n", "=x", "rubbish", "LD_PRELOAD=l", "B==2"]
                .map(OsString::from)
                .to_vec();
        let passed = scrub(&given, &["GITHUB_TOKEN"]);
        assert_eq!(passed, ["A=1", "GITHUB_TOKEN=t", "B==2"].map(OsString::from));
    }
}
