//! What lies behind the path of a local socket (`R-69`).
//!
//! Only sockets that stand for somebody else's power have a class. A socket that takes notes (a journal, a readiness
//! message) or answers look-ups has none; below systemd's directory what no row knows counts as a manager.

use guard_common::ActionClass::{
    self, EnclosureControl, PackageInstall, ProcessSpawn, SecretAccess, WorkspaceMutation,
};

use super::Facts;
use crate::request::Action;
use crate::value::Host;

/// How a row knows a socket.
#[derive(Clone, Copy)]
pub(super) enum Socket {
    /// The last segment is this; a `*` stands for any text.
    Named(&'static str),
    /// These segments follow each other; a `*` stands for any text within one.
    Within(&'static str),
}

/// One line: class, socket, reason, a path that is one.
pub(super) struct Row {
    pub(super) class: Option<ActionClass>,
    pub(super) socket: Socket,
    pub(super) reason: &'static str,
    pub(super) example: &'static str,
}

const fn row(class: Option<ActionClass>, socket: Socket, reason: &'static str, example: &'static str) -> Row {
    Row { class, socket, reason, example }
}

use Socket::{Named, Within};

const ENGINE: Option<ActionClass> = Some(EnclosureControl);
const SECRET: Option<ActionClass> = Some(SecretAccess);
const SPAWN: Option<ActionClass> = Some(ProcessSpawn);

/// The first row that fits counts.
#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    row(ENGINE, Named("docker*.sock"), "a container engine starts anything as root", "/var/run/docker.sock"),
    row(ENGINE, Named("cri-dockerd.sock"), "a container engine", "/run/cri-dockerd.sock"),
    row(ENGINE, Named("podman.sock"), "a container engine", "/run/user/1000/podman/podman.sock"),
    row(ENGINE, Named("containerd.sock*"), "a container engine", "/run/containerd/containerd.sock.ttrpc"),
    row(ENGINE, Within("containerd-shim/*"), "a running container's manager", "@/containerd-shim/x.sock"),
    row(ENGINE, Within("containerd/s/*"), "a running container's manager", "/run/containerd/s/0a1b"),
    row(ENGINE, Named("buildkitd*.sock"), "builds images, so runs commands outside", "/run/buildkit/buildkitd.sock"),
    row(ENGINE, Named("crio.sock"), "a container engine", "/run/crio/crio.sock"),
    row(ENGINE, Named("nerdctl.sock"), "a container engine", "/run/nerdctl.sock"),
    row(ENGINE, Within("kubelet/*"), "a node's manager", "/var/lib/kubelet/pod-resources"),
    row(ENGINE, Within("libvirt/*"), "starts virtual machines", "/run/libvirt/libvirt-sock"),
    row(ENGINE, Named("virtlogd-sock"), "serves virtual machines", "/run/virtlogd-sock"),
    row(ENGINE, Named("firecracker*.sock*"), "drives a virtual machine", "/tmp/firecracker.socket"),
    row(ENGINE, Named("*qmp*"), "drives a virtual machine", "/tmp/qmp.sock"),
    row(ENGINE, Named("ha.sock"), "drives a virtual machine", "/home/u/.lima/default/ha.sock"),
    row(ENGINE, Named("multipass_socket"), "drives virtual machines", "/run/multipass_socket"),
    row(ENGINE, Within("lxd/*"), "a container engine", "/var/lib/lxd/unix.socket"),
    row(ENGINE, Within("incus/*"), "a container engine", "/var/lib/incus/unix.socket"),
    row(ENGINE, Within("systemd/machine/*"), "drives containers and machines", "/run/systemd/machine/io.systemd.Machine"),
    row(ENGINE, Within("systemd/nspawn/*"), "drives containers", "/run/systemd/nspawn/x"),
    row(ENGINE, Within("tmux-*/*"), "a terminal server types into terminals outside", "/tmp/tmux-1000/default"),
    row(ENGINE, Within("screen/*/*"), "a terminal server types into terminals outside", "/run/screen/S-u/1.x"),
    row(ENGINE, Within(".X11-unix/*"), "a display server types into other programs", "/tmp/.X11-unix/X0"),
    row(ENGINE, Within("at-spi/*"), "drives other programs' windows", "/run/user/1000/at-spi/bus_0"),
    row(SECRET, Within("keyring/*"), "the desktop's keyring", "/run/user/1000/keyring/ssh"),
    row(SECRET, Named("S.gpg-agent*"), "signs and decrypts", "/home/u/.gnupg/S.gpg-agent.extra"),
    row(SECRET, Named("S.keyboxd"), "holds keys", "/run/user/1000/gnupg/S.keyboxd"),
    row(SECRET, Named("S.scdaemon"), "signs and decrypts with a card", "/run/user/1000/gnupg/S.scdaemon"),
    row(SECRET, Within("gnupg/*"), "signs and decrypts", "/run/user/1000/gnupg/d.x/S.y"),
    row(SECRET, Within("ssh-*/agent.*"), "an ssh agent logs in elsewhere", "/tmp/ssh-XXXXab/agent.12"),
    row(SECRET, Within(".ssh/agent/*"), "an ssh agent logs in elsewhere", "/home/u/.ssh/agent/s.x"),
    row(SECRET, Named("ssh-agent*"), "an ssh agent logs in elsewhere", "/run/user/1000/ssh-agent.socket"),
    row(SECRET, Named("S.ssh-agent"), "an ssh agent logs in elsewhere", "/x/S.ssh-agent"),
    row(SECRET, Within("openssh_agent"), "an ssh agent logs in elsewhere", "/run/user/1000/openssh_agent"),
    row(SECRET, Within(".1password/*"), "a password manager", "/home/u/.1password/agent.sock"),
    row(SECRET, Named("*bitwarden*"), "a password manager", "/home/u/.bitwarden-ssh-agent.sock"),
    row(SECRET, Named("*KeePassXC*"), "a password manager", "/run/user/1000/org.keepassxc.KeePassXC.BrowserServer"),
    row(SECRET, Named("pcscd.comm"), "smart cards", "/run/pcscd/pcscd.comm"),
    row(SECRET, Within("git/credential/*"), "passwords that git keeps", "/home/u/.cache/git/credential/socket"),
    row(SECRET, Within(".git-credential-cache/*"), "passwords that git keeps", "/home/u/.git-credential-cache/socket"),
    row(SECRET, Named("io.systemd.Credentials"), "decrypts credentials", "/run/systemd/io.systemd.Credentials"),
    row(SECRET, Named("kwallet*.socket"), "the desktop's keyring", "/run/user/1000/kwallet5.socket"),
    row(SECRET, Named("*vault*.sock"), "a secret store's agent", "/run/vault-agent.sock"),
    row(Some(PackageInstall), Named("snapd*.socket"), "installs applications", "/run/snapd.socket"),
    row(Some(PackageInstall), Within("nix/daemon-socket/*"), "builds packages", "/nix/var/nix/daemon-socket/socket"),
    row(Some(PackageInstall), Within("PackageKit/*"), "installs packages", "/run/PackageKit/x"),
    row(None, Within("systemd/journal/*"), "takes notes", "/run/systemd/journal/socket"),
    row(None, Named("journal-*"), "takes notes", "/run/systemd/journal.x/journal-1"),
    row(None, Within("systemd/notify"), "takes a unit's readiness", "/run/systemd/notify"),
    row(None, Within("systemd/coredump"), "takes what is left of a crash", "/run/systemd/coredump"),
    row(None, Within("systemd/fsck.progress"), "takes progress", "/run/systemd/fsck.progress"),
    row(None, Within("systemd/userdb/*"), "answers look-ups of users", "/run/systemd/userdb/io.systemd.DynamicUser"),
    row(None, Within("systemd/io.systemd.DynamicUser"), "answers look-ups of users", "/run/systemd/io.systemd.DynamicUser"),
    row(None, Within("systemd/resolve/*"), "answers look-ups of names, as the resolver's port does", "/run/systemd/resolve/io.systemd.Resolve"),
    row(None, Within("systemd/oom/*"), "tells about memory", "/run/systemd/oom/io.systemd.ManagedOOM"),
    row(None, Within("systemd/io.systemd.ManagedOOM"), "tells about memory", "/run/systemd/io.systemd.ManagedOOM"),
    row(None, Within("systemd/ask-password*"), "answers to a question that was asked", "/run/systemd/ask-password-block"),
    row(SPAWN, Within("systemd/*"), "starts units outside of the agent", "/run/systemd/private"),
    row(SPAWN, Named("system_bus_socket"), "D-Bus starts and drives services", "/run/dbus/system_bus_socket"),
    row(SPAWN, Within("user/*/bus"), "the session's D-Bus starts and drives services", "/run/user/1000/bus"),
    row(SPAWN, Within("dbus-*"), "a D-Bus of its own starts and drives services", "/tmp/dbus-abc"),
    row(SPAWN, Within("dbus/*"), "D-Bus starts and drives services", "/run/dbus/x"),
    row(SPAWN, Named("atd*"), "runs commands later", "/run/atd.sock"),
    row(SPAWN, Named("*cron*"), "runs commands later", "/run/cron.sock"),
    row(SPAWN, Named("vscode-*.sock"), "an editor opens files and runs commands", "/run/user/1000/vscode-ipc-1.sock"),
    row(SPAWN, Within("emacs*/server"), "an editor runs what it is sent", "/run/user/1000/emacs/server"),
    row(SPAWN, Named("nvim.*"), "an editor runs what it is sent", "/run/user/1000/nvim.1.0"),
    row(SPAWN, Named("kitty*"), "a terminal types what it is sent", "/tmp/kitty-1"),
    row(SPAWN, Within("supervisor*"), "starts and stops services", "/run/supervisor.sock"),
    row(SPAWN, Within("polkit/*"), "grants rights", "/run/polkit/agent-helper.socket"),
    row(Some(WorkspaceMutation), Within("guard/guard.sock"), "drives guard itself", "/run/guard/guard.sock"),
];

/// The row that knows this socket.
fn found(path: &str) -> Option<&'static Row> {
    let path = path.strip_prefix('@').unwrap_or(path);
    let segments: Vec<&str> = path.split('/').filter(|segment| !matches!(*segment, "" | ".")).collect();
    ROWS.iter().find(|row| match row.socket {
        Named(name) => segments.last().is_some_and(|last| wild(name, last)),
        Within(parts) => {
            let parts: Vec<&str> = parts.split('/').collect();
            segments
                .windows(parts.len())
                .any(|window| window.iter().zip(&parts).all(|(segment, part)| wild(part, segment)))
        }
    })
}

/// Whether `text` is `pattern`, in which a `*` stands for any text.
pub(super) fn wild(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| wild(rest, &text[at..]))
        }),
    }
}

/// Connecting to a local socket; its path is the host.
#[must_use]
pub fn unix_connect(path: &str) -> Facts {
    let mut action = Action::of(found(path).and_then(|row| row.class));
    action.hosts = Host::parse(path).ok().map(|host| vec![host]);
    Facts { action, ..Facts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `R-69`: each row decides about its own example, so none is hidden by one before it.
    #[test]
    fn every_row_holds_for_its_own_example() {
        for row in ROWS {
            let found = found(row.example).unwrap_or_else(|| panic!("{}", row.example));
            assert!(std::ptr::eq(found, row), "{}: {} comes first", row.example, found.example);
            let facts = unix_connect(row.example);
            assert_eq!(facts.action.classes.first().copied(), row.class, "{}", row.example);
            assert_eq!(facts.action.hosts.map(|hosts| hosts.len()), Some(1));
        }
    }

    /// What is no other's power has no class, whatever its name reminds of.
    #[test]
    fn ordinary_sockets_have_no_class() {
        for path in [
            "/tmp/x.sock",
            "/run/systemd/journal/stdout",
            "/run/systemd/journal/dev-log",
            "/dev/log",
            "/run/nscd/socket",
            "/run/postgresql/.s.PGSQL.5432",
            "/run/mysqld/mysqld.sock",
            "/home/u/bus/x.sock",
            "/work/src/ssh-client.sock",
            "/tmp/omnibus",
            "@abstract",
        ] {
            assert_eq!(unix_connect(path).action.classes, [], "{path}");
        }
        for path in ["/run/systemd/private", "/run/user/1000/systemd/private", "/run/systemd/io.systemd.New"]
        {
            assert_eq!(unix_connect(path).action.classes, [ProcessSpawn], "{path}");
        }
        assert_eq!(unix_connect("/proc/self/root/run//docker.sock").action.classes, [EnclosureControl]);
        assert_eq!(unix_connect("docker.sock").action.classes, [EnclosureControl]);
    }
}
