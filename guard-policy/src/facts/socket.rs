//! What lies behind the path of a local socket (`R-69`).

use guard_common::ActionClass::{self, EnclosureControl, ProcessSpawn, SecretAccess};

enum Path {
    /// The last segment is this.
    Named(&'static str),
    /// This text is in the path.
    Holds(&'static str),
}

/// Class, socket, reason. The first row that matches counts.
const SOCKETS: &[(ActionClass, Path, &str)] = &[
    (EnclosureControl, Path::Named("docker.sock"), "a container engine starts anything as root"),
    (EnclosureControl, Path::Named("podman.sock"), "a container engine"),
    (EnclosureControl, Path::Named("containerd.sock"), "a container engine"),
    (EnclosureControl, Path::Named("containerd.sock.ttrpc"), "a container engine"),
    (EnclosureControl, Path::Named("buildkitd.sock"), "builds images, so runs commands outside"),
    (EnclosureControl, Path::Named("crio.sock"), "a container engine"),
    (EnclosureControl, Path::Holds("/libvirt/"), "starts virtual machines"),
    (EnclosureControl, Path::Named("firecracker.socket"), "drives a virtual machine"),
    (EnclosureControl, Path::Holds("/lxd/"), "a container engine"),
    (EnclosureControl, Path::Holds("/incus/"), "a container engine"),
    (SecretAccess, Path::Holds("/keyring/"), "the desktop keyring"),
    (SecretAccess, Path::Holds("/S.gpg-agent"), "signs and decrypts"),
    (SecretAccess, Path::Holds("/gnupg/"), "signs and decrypts"),
    (SecretAccess, Path::Holds("/ssh-"), "an ssh agent logs in elsewhere"),
    (SecretAccess, Path::Named("ssh-agent.socket"), "an ssh agent logs in elsewhere"),
    (SecretAccess, Path::Named("S.ssh-agent"), "an ssh agent logs in elsewhere"),
    (ProcessSpawn, Path::Holds("/systemd/"), "starts units outside of the agent"),
    (ProcessSpawn, Path::Named("system_bus_socket"), "D-Bus starts and drives services"),
    (ProcessSpawn, Path::Named("bus"), "the session's D-Bus starts and drives services"),
    (ProcessSpawn, Path::Holds("/dbus-"), "a D-Bus of its own"),
    (ProcessSpawn, Path::Holds("/atd"), "runs commands later"),
    (ProcessSpawn, Path::Holds("/cron"), "runs commands later"),
];

/// The class of a connection to this socket, if it is known.
pub(super) fn class(path: &str) -> Option<ActionClass> {
    let name = path.rsplit(['/', '@']).next();
    let row = SOCKETS.iter().find(|(_, socket, _)| match socket {
        Path::Named(wanted) => name == Some(wanted),
        Path::Holds(part) => path.contains(part),
    });
    row.map(|(class, ..)| *class)
}
