//! Files that hold secrets (`C-020`).

use guard_common::ActionClass::SecretAccess;

use super::Facts;
use super::socket::wild;
use crate::request::Action;
use crate::value::{ActPath, PathPattern};

/// One line: the last segments of a path, in which a `*` stands for any text within one and a final `**` for all
/// below; reason; a path that is one; a path that looks like it and is none.
pub(super) struct Row {
    pub(super) path: &'static str,
    pub(super) reason: &'static str,
    pub(super) yes: &'static str,
    pub(super) no: &'static str,
}

const fn row(path: &'static str, reason: &'static str, yes: &'static str, no: &'static str) -> Row {
    Row { path, reason, yes, no }
}

#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    row(".ssh/id_*", "private keys log in elsewhere", "/home/u/.ssh/id_ed25519", "/home/u/.ssh/id_ed25519.pub"),
    row(".ssh/*_key", "private keys log in elsewhere", "/home/u/.ssh/deploy_key", "/home/u/.ssh/known_hosts"),
    row(".ssh/*.pem", "private keys log in elsewhere", "/home/u/.ssh/aws.pem", "/home/u/.ssh/config"),
    row("etc/ssh/ssh_host_*_key", "the host's own keys", "/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_rsa_key.pub"),
    row(".gnupg/private-keys-v1.d/**", "private keys sign and decrypt", "/home/u/.gnupg/private-keys-v1.d/a.key", "/home/u/.gnupg/gpg.conf"),
    row(".gnupg/secring.gpg", "private keys sign and decrypt", "/home/u/.gnupg/secring.gpg", "/home/u/.gnupg/pubring.kbx"),
    row(".aws/credentials", "keys of a cloud account", "/home/u/.aws/credentials", "/home/u/.aws/config"),
    row(".aws/sso/cache/**", "tokens of a cloud account", "/home/u/.aws/sso/cache/a.json", "/home/u/.aws/cli/alias"),
    row(".aws/cli/cache/**", "tokens of a cloud account", "/home/u/.aws/cli/cache/a.json", "/home/u/.aws/models/a.json"),
    row(".azure/*oken*", "tokens of a cloud account", "/home/u/.azure/accessTokens.json", "/home/u/.azure/config"),
    row(".azure/msal_*", "tokens of a cloud account", "/home/u/.azure/msal_http_cache.bin", "/home/u/.azure/clouds.config"),
    row(".azure/service_principal_entries*", "keys of a cloud account", "/home/u/.azure/service_principal_entries.json", "/home/u/.azure/az.json"),
    row("gcloud/credentials.db", "tokens of a cloud account", "/home/u/.config/gcloud/credentials.db", "/home/u/.config/gcloud/active_config"),
    row("gcloud/access_tokens.db", "tokens of a cloud account", "/home/u/.config/gcloud/access_tokens.db", "/home/u/.config/gcloud/logs/a"),
    row("gcloud/application_default_credentials.json", "keys of a cloud account", "/home/u/.config/gcloud/application_default_credentials.json", "/home/u/.config/gcloud/configurations/a"),
    row("gcloud/legacy_credentials/**", "keys of a cloud account", "/home/u/.config/gcloud/legacy_credentials/a/adc.json", "/home/u/.config/gcloud/a"),
    row(".oci/*.pem", "keys of a cloud account", "/home/u/.oci/api.pem", "/home/u/.oci/config"),
    row(".kube/config", "a cluster's credentials", "/home/u/.kube/config", "/home/u/.kube/cache/a"),
    row("etc/kubernetes/*.conf", "a cluster's credentials", "/etc/kubernetes/admin.conf", "/etc/kubernetes/manifests/a.yaml"),
    row("rancher/k3s/k3s.yaml", "a cluster's credentials", "/etc/rancher/k3s/k3s.yaml", "/etc/rancher/k3s/config.yaml"),
    row("secrets/kubernetes.io/serviceaccount/**", "a container's own token", "/var/run/secrets/kubernetes.io/serviceaccount/token", "/var/run/kubernetes.io/a"),
    row("run/secrets/**", "secrets given to a container", "/run/secrets/db", "/run/secretsx/db"),
    row("run/credentials/**", "secrets given to a unit", "/run/credentials/x.service/key", "/run/user/1000/x"),
    row(".netrc", "passwords of machines", "/home/u/.netrc", "/home/u/.netrc.md"),
    row("_netrc", "passwords of machines", "/home/u/_netrc", "/home/u/a_netrc"),
    row(".env", "settings of a service, passwords among them", "app/.env", "app/.environment"),
    row(".env.*", "settings of a service, passwords among them", "app/.env.production", "app/.env.example"),
    row("*.env", "settings of a service, passwords among them", "app/prod.env", "app/env"),
    row(".envrc", "settings of a directory, passwords among them", "app/.envrc", "app/envrc.md"),
    row(".npmrc", "a registry's token", "/home/u/.npmrc", "/home/u/.npmignore"),
    row(".yarnrc.yml", "a registry's token", "/home/u/.yarnrc.yml", "/home/u/.yarnrc"),
    row(".pypirc", "a registry's token", "/home/u/.pypirc", "/home/u/.pylintrc"),
    row("pip/pip.conf", "a registry's password", "/home/u/.config/pip/pip.conf", "/home/u/pip.conf.md"),
    row("pypoetry/auth.toml", "a registry's token", "/home/u/.config/pypoetry/auth.toml", "/home/u/.config/pypoetry/config.toml"),
    row(".cargo/credentials", "a registry's token", "/home/u/.cargo/credentials", "/home/u/.cargo/config"),
    row(".cargo/credentials.toml", "a registry's token", "/home/u/.cargo/credentials.toml", "/home/u/.cargo/config.toml"),
    row(".gem/credentials", "a registry's token", "/home/u/.gem/credentials", "/home/u/.gem/ruby/a"),
    row(".bundle/config", "a registry's password", "/home/u/.bundle/config", "/home/u/.bundle/cache/a"),
    row(".composer/auth.json", "a registry's token", "/home/u/.composer/auth.json", "/home/u/.composer/cache/a"),
    row("composer/auth.json", "a registry's token", "/home/u/.config/composer/auth.json", "/home/u/.config/composer/config.json"),
    row(".m2/settings*.xml", "a registry's password", "/home/u/.m2/settings-security.xml", "/home/u/.m2/toolchains.xml"),
    row(".gradle/gradle.properties", "a registry's password", "/home/u/.gradle/gradle.properties", "/home/u/.gradle/init.gradle"),
    row(".nuget/NuGet/NuGet.Config", "a registry's password", "/home/u/.nuget/NuGet/NuGet.Config", "/home/u/.nuget/packages/a"),
    row(".docker/config.json", "a registry's password", "/home/u/.docker/config.json", "/home/u/.docker/daemon.json"),
    row("containers/auth.json", "a registry's password", "/run/user/1000/containers/auth.json", "/etc/containers/policy.json"),
    row("helm/registry/config.json", "a registry's password", "/home/u/.config/helm/registry/config.json", "/home/u/.config/helm/repositories.yaml"),
    row(".git-credentials", "passwords that git keeps", "/home/u/.git-credentials", "/home/u/.gitconfig"),
    row("git/credentials", "passwords that git keeps", "/home/u/.config/git/credentials", "/home/u/.config/git/config"),
    row("gh/hosts.yml", "a forge's token", "/home/u/.config/gh/hosts.yml", "/home/u/.config/gh/config.yml"),
    row("glab-cli/config.yml", "a forge's token", "/home/u/.config/glab-cli/config.yml", "/home/u/.config/glab-cli/aliases.yml"),
    row("config/hub", "a forge's token", "/home/u/config/hub", "/home/u/hub"),
    row(".config/hub", "a forge's token", "/home/u/.config/hub", "/home/u/.config/hubx"),
    row("tea/config.yml", "a forge's token", "/home/u/.config/tea/config.yml", "/home/u/tea/a"),
    row(".jira.d/**", "a tracker's token", "/home/u/.jira.d/config.yml", "/home/u/.jira/a"),
    row("keyrings/**", "the desktop's keyring", "/home/u/.local/share/keyrings/login.keyring", "/home/u/keyring.md"),
    row("kwalletd/**", "the desktop's keyring", "/home/u/.local/share/kwalletd/a.kwl", "/home/u/kwalletd.md"),
    row(".password-store/**", "the password store", "/home/u/.password-store/a.gpg", "/home/u/password-store.md"),
    row("*.kdbx", "a password manager's file", "/home/u/a.kdbx", "/home/u/a.kdb.md"),
    row("1Password/**", "a password manager's files", "/home/u/.config/1Password/a.sqlite", "/home/u/1password.md"),
    row("Bitwarden/**", "a password manager's files", "/home/u/.config/Bitwarden/data.json", "/home/u/bitwarden.md"),
    row(".vault-token", "a secret store's token", "/home/u/.vault-token", "/home/u/.vaultrc"),
    row("sops/age/keys.txt", "decrypts", "/home/u/.config/sops/age/keys.txt", "/home/u/keys.txt"),
    row("Login Data*", "a browser's passwords", "/home/u/.config/google-chrome/Default/Login Data", "/home/u/Login"),
    row("Cookies", "a browser's sessions", "/home/u/.config/chromium/Default/Cookies", "/home/u/Cookies.md"),
    row("Web Data", "a browser's cards and forms", "/home/u/.config/chromium/Default/Web Data", "/home/u/Web"),
    row("logins.json", "a browser's passwords", "/home/u/.mozilla/firefox/a/logins.json", "/home/u/logins.json.md"),
    row("key[34].db", "a browser's keys", "/home/u/.mozilla/firefox/a/key4.db", "/home/u/key5.db"),
    row("cookies.sqlite*", "a browser's sessions", "/home/u/.mozilla/firefox/a/cookies.sqlite-wal", "/home/u/cookies.md"),
    row("etc/shadow*", "passwords of users", "/etc/shadow-", "/etc/passwd"),
    row("etc/gshadow*", "passwords of groups", "/etc/gshadow", "/etc/group"),
    row("etc/sudoers*", "who may become root", "/etc/sudoers", "/etc/sudo.conf"),
    row("etc/sudoers.d/**", "who may become root", "/etc/sudoers.d/a", "/etc/sudo.d/a"),
    row("etc/ssl/private/**", "private keys of services", "/etc/ssl/private/a.key", "/etc/ssl/certs/a.pem"),
    row("etc/letsencrypt/**", "private keys of services", "/etc/letsencrypt/live/a/privkey.pem", "/etc/letsencrypt.md"),
    row("etc/krb5.keytab", "the host's own key", "/etc/krb5.keytab", "/etc/krb5.conf"),
    row("krb5cc_*", "tickets of a user", "/tmp/krb5cc_1000", "/tmp/krb5.log"),
    row("etc/wireguard/**", "private keys of networks", "/etc/wireguard/wg0.conf", "/etc/wireguard.md"),
    row("NetworkManager/system-connections/**", "passwords of networks", "/etc/NetworkManager/system-connections/a", "/etc/NetworkManager/conf.d/a"),
    row("proc/*/environ", "another process's environment", "/proc/1/environ", "/proc/1/status"),
    row("proc/*/task/*/environ", "another process's environment", "/proc/1/task/1/environ", "/proc/1/task/1/stat"),
    row("proc/*/mem", "another process's memory", "/proc/1/mem", "/proc/meminfo"),
    row("proc/kcore", "the kernel's memory", "/proc/kcore", "/proc/cpuinfo"),
    row("proc/keys", "the kernel's keyring", "/proc/keys", "/proc/key-users"),
    row(".pgpass", "passwords of databases", "/home/u/.pgpass", "/home/u/.pgpass.md"),
    row(".my.cnf", "passwords of databases", "/home/u/.my.cnf", "/etc/my.cnf"),
    row(".mylogin.cnf", "passwords of databases", "/home/u/.mylogin.cnf", "/home/u/mylogin.cnf"),
    row(".terraform.d/credentials.tfrc.json", "a deployment's token", "/home/u/.terraform.d/credentials.tfrc.json", "/home/u/.terraformrc.md"),
    row("*.tfstate*", "a deployment's state, passwords among it", "infra/a.tfstate", "infra/a.tf"),
    row(".claude/.credentials.json", "an agent's own token", "/home/u/.claude/.credentials.json", "/home/u/.claude/settings.json"),
    row(".codex/auth.json", "an agent's own token", "/home/u/.codex/auth.json", "/home/u/.codex/config.toml"),
    row(".gemini/oauth_creds.json", "an agent's own token", "/home/u/.gemini/oauth_creds.json", "/home/u/.gemini/settings.json"),
    row("rclone/rclone.conf", "tokens of storage services", "/home/u/.config/rclone/rclone.conf", "/home/u/rclone.md"),
    row(".s3cfg", "keys of a storage service", "/home/u/.s3cfg", "/home/u/s3cfg"),
    row("*.p12", "a private key and its certificate", "certs/a.p12", "certs/a.crt"),
    row("*.pfx", "a private key and its certificate", "certs/a.pfx", "certs/a.cer"),
    row("*.jks", "a store of private keys", "certs/a.jks", "certs/a.jar"),
    row("*.keystore", "a store of private keys", "certs/a.keystore", "certs/keystore.md"),
    row(".bash_history", "what a user typed, passwords among it", "/home/u/.bash_history", "/home/u/.bashrc"),
    row(".zsh_history", "what a user typed, passwords among it", "/home/u/.zsh_history", "/home/u/.zshrc"),
];

/// What a built-in pattern is about and is no secret.
const PUBLIC: &[&str] =
    &["*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist", ".env.test.example"];

/// The files that hold secrets: those that everybody has, and those that an operator names.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    named: Vec<PathPattern>,
}

impl Secrets {
    /// The built-in files and these.
    #[must_use]
    pub fn with(named: Vec<PathPattern>) -> Self {
        Self { named }
    }

    /// Whether this file holds a secret.
    ///
    /// A path is looked at as it is written and as it is once `..` and `/proc/…/root` are gone, so neither hides one.
    #[must_use]
    pub fn hold(&self, path: &ActPath) -> bool {
        let clean = path.clean();
        let (positive, negative): (Vec<_>, Vec<_>) =
            self.named.iter().partition(|pattern| !pattern.negative());
        let named = positive.iter().any(|pattern| pattern.covers(clean))
            && negative.iter().all(|pattern| !pattern.covers(clean));
        named || built_in(clean).is_some()
    }
}

/// The row that knows this path.
fn built_in(path: &str) -> Option<&'static Row> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let last = segments.last()?;
    if PUBLIC.iter().any(|public| wild(public, last)) {
        return None;
    }
    ROWS.iter().find(|row| match row.path.strip_suffix("/**") {
        Some(above) => (1..segments.len()).any(|end| ends_with(&segments[..end], above)),
        None => ends_with(&segments, row.path),
    })
}

/// Whether the last of these segments fit the parts.
fn ends_with(segments: &[&str], parts: &str) -> bool {
    let mut segments = segments.iter().rev();
    parts.rsplit('/').all(|part| segments.next().is_some_and(|segment| segment_fits(part, segment)))
}

fn segment_fits(part: &str, segment: &str) -> bool {
    match part.split_once("[34]") {
        Some((start, end)) => ["3", "4"].iter().any(|digit| segment == format!("{start}{digit}{end}")),
        None => wild(part, segment),
    }
}

/// A file that is read; it has a class if it holds a secret.
#[must_use]
pub fn file_read(path: &str, secrets: &Secrets) -> Facts {
    let parsed = ActPath::parse(path).ok();
    let secret = parsed.as_ref().is_some_and(|path| secrets.hold(path));
    let mut action = Action::of(secret.then_some(SecretAccess));
    action.paths = parsed.map(|path| vec![path]);
    Facts { action, ..Facts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `C-020`: every row holds for its own example and not for what looks like it.
    #[test]
    fn every_row_holds_for_its_own_example() {
        for row in ROWS {
            let found = built_in(row.yes).unwrap_or_else(|| panic!("{} is no secret", row.yes));
            assert!(std::ptr::eq(found, row), "{}: {} comes first", row.yes, found.path);
            assert!(built_in(row.no).is_none(), "{} is one", row.no);
            let facts = file_read(row.yes, &Secrets::default());
            assert_eq!(facts.action.classes, [SecretAccess], "{}", row.yes);
        }
    }

    /// Another way to the same file is the same file.
    #[test]
    fn detours_hide_nothing() {
        for path in
            ["/home/u/.ssh/../.ssh/id_rsa", "//home//u/.ssh/./id_rsa", "/proc/self/root/home/u/.ssh/id_rsa"]
        {
            assert_eq!(file_read(path, &Secrets::default()).action.classes, [SecretAccess], "{path}");
        }
        assert_eq!(file_read("", &Secrets::default()), Facts::default());
    }

    /// An operator's own files count too, and cannot make a built-in one public.
    #[test]
    fn an_operator_names_more() {
        let patterns =
            ["vault/**", "!vault/readme", "!**/.netrc"].map(|text| PathPattern::parse(text).expect(text));
        let secrets = Secrets::with(patterns.to_vec());
        for (path, secret) in
            [("vault/a", true), ("vault/readme", false), ("a", false), ("/home/u/.netrc", true)]
        {
            assert_eq!(file_read(path, &secrets).action.classes.contains(&SecretAccess), secret, "{path}");
        }
    }
}
