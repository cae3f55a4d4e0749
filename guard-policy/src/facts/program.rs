//! Which program runs, and which of its verbs are acts of a class.

use std::path::Path;

use guard_common::ActionClass::{
    self, EnclosureControl, PackageInstall, PrCreate, PrPublish, SecretAccess, VendorSyncWrite,
};

/// A program and its arguments, interpreters looked through.
pub(super) struct Program {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    /// There are more arguments than are known.
    truncated: bool,
}

/// Programs whose second word is what really runs.
const INTERPRETERS: [&str; 11] =
    ["node", "nodejs", "bun", "python", "pypy", "ruby", "perl", "bash", "sh", "dash", "zsh"];

/// Options of interpreters that take the next word.
const INTERPRETER_VALUES: [&str; 7] = ["-r", "--require", "--import", "--loader", "-W", "-X", "-I"];

impl Program {
    pub(super) fn of(exe: &Path, argv: &[String], truncated: bool) -> Self {
        let path = exe.to_string_lossy();
        let name = base(&path);
        let own: Vec<String> = argv.iter().skip(1).cloned().collect();
        // A script that is named itself: the kernel puts its interpreter, that one's option, and it before its
        // arguments.
        if let Some(at) = own.iter().take(2).position(|word| *word == path) {
            return Self { arguments: own[at + 1..].to_vec(), truncated, name };
        }
        let unversioned =
            name.trim_end_matches(|character: char| character.is_ascii_digit() || character == '.');
        if INTERPRETERS.contains(&unversioned)
            && let Some(script) = script(&own)
        {
            return Self { truncated, ..script };
        }
        // Git's own commands are links to one file; the name that they were called by is their verb.
        let called = argv.first().map(|first| base(first)).unwrap_or_default();
        let verb = if name == "git" { &called } else { &name };
        if let Some(verb) = verb.strip_prefix("git-").filter(|verb| super::git::is_verb(verb)) {
            let arguments = std::iter::once(verb.to_owned()).chain(own).collect();
            return Self { name: "git".to_owned(), arguments, truncated };
        }
        Self { name, arguments: own, truncated }
    }

    /// The classes of what it does.
    pub(super) fn classes(&self) -> Vec<ActionClass> {
        let rows = PROGRAMS.iter().filter(|row| row.program(&self.name));
        rows.filter(|row| row.verbs.is_empty() || row.verbs.iter().any(|verb| self.says(verb)))
            .map(|row| row.class)
            .collect()
    }

    /// Whether the words of `verb` are the first ones that are no options. A word right after an option may be
    /// its value, so it may be left out. What was cut off may have been them.
    fn says(&self, verb: &str) -> bool {
        if verb.is_empty() {
            return self.arguments.iter().all(|argument| argument.starts_with('-'));
        }
        let mut wanted = verb.split(' ').peekable();
        let mut after_option = false;
        for argument in &self.arguments {
            let Some(next) = wanted.peek() else { return true };
            let is_option = argument.starts_with(['-', '+']);
            if argument == next {
                wanted.next();
            } else if !is_option && !after_option {
                return false;
            }
            after_option = is_option && argument.starts_with('-') && !argument.contains('=');
        }
        wanted.peek().is_none() || self.truncated
    }
}

fn base(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// What an interpreter is told to run; nothing if that is a text on its command line.
fn script(arguments: &[String]) -> Option<Program> {
    let mut index = 0;
    while let Some(argument) = arguments.get(index) {
        if argument == "-m" {
            let name = arguments.get(index + 1)?.clone();
            return Some(Program { name, arguments: arguments[index + 2..].to_vec(), truncated: false });
        }
        if !argument.starts_with('-') {
            let file = base(argument);
            let name = [".js", ".cjs", ".mjs", ".py", ".rb", ".sh"]
                .iter()
                .find_map(|ending| file.strip_suffix(ending))
                .unwrap_or(&file);
            let name = name.strip_suffix("-cli").unwrap_or(name).to_owned();
            return Some(Program { name, arguments: arguments[index + 1..].to_vec(), truncated: false });
        }
        if ["-c", "-e", "-p", "--eval", "--print"].contains(&argument.as_str()) {
            return None;
        }
        index += if INTERPRETER_VALUES.contains(&argument.as_str()) { 2 } else { 1 };
    }
    None
}

/// One line of the table.
struct Row {
    class: ActionClass,
    /// Names; one that ends in `*` is a prefix.
    names: &'static [&'static str],
    /// What it is told to do; nothing named: whatever it does. The empty verb is a call without any.
    verbs: &'static [&'static str],
}

impl Row {
    fn program(&self, name: &str) -> bool {
        self.names.iter().any(|known| match known.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => *known == name,
        })
    }
}

const fn row(
    class: ActionClass,
    names: &'static [&'static str],
    verbs: &'static [&'static str],
    _reason: &'static str,
) -> Row {
    Row { class, names, verbs }
}

const PROGRAMS: &[Row] = &[
    row(
        PackageInstall,
        &["npm", "cnpm"],
        &[
            "install",
            "i",
            "in",
            "add",
            "ci",
            "clean-install",
            "install-test",
            "it",
            "cit",
            "update",
            "up",
            "upgrade",
            "exec",
            "x",
        ],
        "downloads packages and runs their scripts",
    ),
    row(PackageInstall, &["pnpm"], &["install", "i", "add", "update", "up", "dlx"], "as npm"),
    row(
        PackageInstall,
        &["yarn", "yarnpkg"],
        &["", "install", "add", "upgrade", "up", "dlx", "global add"],
        "as npm; alone it installs",
    ),
    row(PackageInstall, &["bun"], &["install", "i", "add", "update", "x"], "as npm"),
    row(PackageInstall, &["npx", "pnpx", "bunx", "uvx"], &[], "downloads a package and runs it"),
    row(
        PackageInstall,
        &["pip", "pip2*", "pip3*"],
        &["install", "download", "wheel"],
        "runs the set-up of packages",
    ),
    row(PackageInstall, &["pipx"], &["install", "run", "inject", "upgrade"], "pip with an environment"),
    row(
        PackageInstall,
        &["uv"],
        &["add", "sync", "pip install", "pip sync", "tool install", "tool run"],
        "as pip",
    ),
    row(PackageInstall, &["poetry", "pdm", "pipenv"], &["install", "add", "update", "sync"], "as pip"),
    row(
        PackageInstall,
        &["conda", "mamba", "micromamba"],
        &["install", "create", "update"],
        "installs packages",
    ),
    row(PackageInstall, &["cargo"], &["install", "binstall", "add"], "brings foreign code into the build"),
    row(PackageInstall, &["gem"], &["install", "update"], "runs native extensions' build"),
    row(PackageInstall, &["bundle", "bundler"], &["", "install", "add", "update"], "as gem"),
    row(PackageInstall, &["go"], &["install", "get", "mod download"], "downloads modules"),
    row(PackageInstall, &["composer"], &["install", "require", "update"], "runs scripts of packages"),
    row(PackageInstall, &["dart", "flutter"], &["pub add", "pub get", "pub upgrade"], "downloads packages"),
    row(
        PackageInstall,
        &["apt", "apt-get", "aptitude"],
        &["install", "reinstall", "upgrade", "full-upgrade", "dist-upgrade", "build-dep"],
        "runs maintainer scripts as root",
    ),
    row(PackageInstall, &["dpkg"], &["-i", "--install"], "as apt, from a file"),
    row(
        PackageInstall,
        &["dnf", "yum", "microdnf", "zypper"],
        &["install", "upgrade", "update", "reinstall"],
        "as apt",
    ),
    row(
        PackageInstall,
        &["rpm"],
        &["-i", "-U", "-ivh", "-Uvh", "--install", "--upgrade"],
        "as dnf, from a file",
    ),
    row(PackageInstall, &["apk"], &["add", "upgrade"], "as apt"),
    row(PackageInstall, &["pacman"], &["-S", "-Sy", "-Syu", "-U", "--sync"], "as apt"),
    row(PackageInstall, &["brew"], &["install", "reinstall", "upgrade", "bundle"], "as apt"),
    row(
        PackageInstall,
        &["snap", "flatpak", "nix-env"],
        &["install", "-i", "--install"],
        "installs applications",
    ),
    row(PrCreate, &["gh"], &["pr create", "pr new"], "opens a pull request"),
    row(PrCreate, &["glab"], &["mr create", "mr new"], "opens a merge request"),
    row(
        PrPublish,
        &["gh"],
        &["pr merge", "pr review", "pr comment", "pr ready"],
        "speaks or merges for the user",
    ),
    row(
        PrPublish,
        &["glab"],
        &["mr merge", "mr accept", "mr approve", "mr note"],
        "speaks or merges for the user",
    ),
    row(
        VendorSyncWrite,
        &["gh", "glab"],
        &[
            "issue create",
            "issue new",
            "issue edit",
            "issue update",
            "issue close",
            "issue reopen",
            "issue comment",
            "issue note",
            "issue delete",
        ],
        "changes tickets",
    ),
    row(
        EnclosureControl,
        &["docker", "docker-compose", "podman", "podman-compose", "nerdctl", "ctr", "crictl", "buildah"],
        &[],
        "drives containers",
    ),
    row(
        EnclosureControl,
        &["qemu-*", "virsh", "virt-install", "firecracker", "cloud-hypervisor", "vagrant", "VBoxManage"],
        &[],
        "drives virtual machines",
    ),
    row(
        EnclosureControl,
        &["lxc", "lxc-*", "incus", "machinectl", "systemd-nspawn", "runc", "crun"],
        &[],
        "drives containers",
    ),
    row(SecretAccess, &["secret-tool"], &["lookup", "search"], "reads the desktop keyring"),
    row(SecretAccess, &["pass", "gopass"], &["", "show"], "reads the password store"),
    row(SecretAccess, &["op"], &["read", "item get"], "reads a password manager"),
];
