//! Sorting what the kernel saw into action classes.
//!
//! The object decides, not the text: an executable is known by its file, a file by where it lies and whether it
//! was there before, a socket by its path. `rm` is no deletion here, the unlink that it does is (`R-70`). Every
//! facet that is set comes from the kernel, which is what [`Sources`](crate::request::Sources) says by default.

mod git;
mod program;
mod socket;

use std::path::Path;

use guard_common::ActionClass;
use guard_common::address::{Address, only_loopback};

use crate::request::{Action, Transport};
use crate::value::{ActPath, Host};

/// An executable that starts; `exe` is the file that the kernel runs, or the script that it was asked to run.
///
/// `truncated` says that `argv` is not all there is. What then is not known counts as the worst that the program
/// could have been told: a long harmless argument must not hide a push behind it.
///
/// ```
/// use guard_common::ActionClass::{GitPush, ProcessSpawn};
/// use guard_policy::facts;
///
/// let argv = ["git", "push", "origin", "HEAD:main"].map(String::from);
/// let action = facts::exec("/usr/bin/git".as_ref(), &argv, false);
/// assert_eq!(action.classes, [GitPush, ProcessSpawn]);
/// assert_eq!(action.refs.unwrap()[0].clean(), "main");
/// ```
#[must_use]
pub fn exec(exe: &Path, argv: &[String], truncated: bool) -> Action {
    let mut action = Action::of([ActionClass::ProcessSpawn]);
    action.commands = Some(vec![argv.join(" ")]);
    // The last word that is there may be half a word.
    let whole = if truncated { &argv[..argv.len().saturating_sub(1)] } else { argv };
    let program = program::Program::of(exe, whole, truncated);
    action.add_classes(program.classes());
    if program.name == "git" {
        let git = git::read(&program.arguments, truncated);
        action.add_classes(git.classes);
        action.refs = git.refs.filter(|_| !truncated);
    }
    action
}

/// A connection or a datagram to an address; what stays on this host is no egress (`R-72`).
#[must_use]
pub fn connect(address: Address, port: Option<u16>, protocol: u8) -> Action {
    let class = (!only_loopback(&address)).then_some(ActionClass::NetworkEgress);
    Action {
        hosts: Some(vec![Host::address(address)]),
        port,
        transport: Transport::from_number(protocol),
        ..Action::of(class)
    }
}

/// Connecting to a local socket; its path is the host (`R-69`).
#[must_use]
pub fn unix_connect(path: &str) -> Action {
    let mut action = Action::of(socket::class(path));
    action.hosts = Host::parse(path).ok().map(|host| vec![host]);
    action
}

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileOperation {
    /// It is removed.
    Remove,
    /// Another file is renamed onto it.
    Replace,
    /// It is truncated by its path.
    Truncate,
    /// Its content, its name or its attributes change in another way.
    Change,
}

/// Where a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the worktree of the agent; its path is relative to it.
    Worktree,
    /// In the agent's private temp.
    PrivateTemp,
    /// Elsewhere; its path is absolute.
    Outside,
}

/// A file that changes (`C-012`, `C-017`, `R-70`).
///
/// Deleting is the removal, the replacement or the truncation of a file that was there before the session;
/// builds and clones do the same to their own files all the time and must not ask.
#[must_use]
pub fn file_change(operation: FileOperation, path: &Path, place: Place, existed_before: bool) -> Action {
    let mut action = Action::default();
    if place == Place::Outside {
        action.add_classes([ActionClass::FileWriteOutsideWorktree]);
    }
    if existed_before && place != Place::PrivateTemp && operation != FileOperation::Change {
        action.add_classes([ActionClass::FileDelete]);
    }
    // A path that cannot be read stays unknown, so a rule about paths asks.
    action.paths = ActPath::parse(&path.to_string_lossy()).ok().map(|path| vec![path]);
    action
}

#[cfg(test)]
mod tests {
    use guard_common::ActionClass::{
        EnclosureControl, FileDelete, FileWriteOutsideWorktree, GitCommit, GitPush, NetworkEgress,
        PackageInstall, PrCreate, PrPublish, ProcessSpawn, SecretAccess, VendorSyncWrite,
    };
    use guard_common::address::v4;

    use super::*;

    fn classes_of(exe: &str, command: &str) -> Vec<ActionClass> {
        let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let mut classes = exec(exe.as_ref(), &argv, false).classes;
        assert!(classes.contains(&ProcessSpawn), "C-022: {command}");
        classes.retain(|class| *class != ProcessSpawn);
        classes
    }

    /// `C-012` … `C-024`: what each executable does.
    #[test]
    fn executables_are_known_by_their_file_and_verb() {
        let table: [(&str, &str, &[ActionClass]); 50] = [
            ("/usr/bin/git", "git push", &[GitPush]),
            ("/usr/bin/git", "git -C sub -c a.b=c --git-dir x push origin main", &[GitPush]),
            ("/usr/bin/git", "renamed push", &[GitPush]),
            ("/usr/lib/git-core/git-push", "git-push origin", &[GitPush]),
            ("/usr/bin/git", "/usr/lib/git-core/git-push origin", &[GitPush]),
            ("/usr/bin/git", "git send-pack --stateless-rpc", &[GitPush]),
            ("/usr/bin/git", "git -c alias.p=push p origin", &[GitPush]),
            ("/usr/bin/git", "git commit -m push", &[GitCommit]),
            ("/usr/bin/git", "git status", &[]),
            ("/usr/bin/git", "git stash push", &[]),
            ("/usr/bin/git", "git log push", &[]),
            ("/tmp/git-pushx", "git push", &[]),
            ("/usr/bin/echo", "git push", &[]),
            ("/usr/bin/node", "node /usr/bin/npm install left-pad", &[PackageInstall]),
            ("/usr/bin/node", "npm --prefix x ci", &[]),
            ("/usr/bin/node", "node /usr/lib/node_modules/npm/bin/npm-cli.js ci", &[PackageInstall]),
            ("/usr/bin/node", "node -r ./hook /usr/bin/npm --prefix x ci", &[PackageInstall]),
            ("/usr/bin/node", "node /usr/bin/npm run install", &[]),
            ("/usr/bin/node", "node server.js install", &[]),
            ("/usr/bin/node", "node /usr/bin/yarn", &[PackageInstall]),
            ("/usr/bin/node", "node /usr/bin/npx cowsay", &[PackageInstall]),
            ("/usr/bin/python3.11", "python3 -m pip install x", &[PackageInstall]),
            ("/usr/bin/python3.11", "/usr/bin/python3 /usr/bin/pip3 install x", &[PackageInstall]),
            ("/usr/bin/python3.11", "python3 -c pip install", &[]),
            ("/usr/bin/python3.11", "python3 -m pip list", &[]),
            ("/usr/bin/uv", "uv pip install x", &[PackageInstall]),
            ("/usr/bin/uv", "uv pip list", &[]),
            ("/usr/bin/uv", "uv add x", &[PackageInstall]),
            ("/usr/bin/cargo", "cargo +nightly install x", &[PackageInstall]),
            ("/usr/bin/cargo", "cargo build", &[]),
            ("/usr/bin/apt-get", "apt-get -o a=b -y install x", &[PackageInstall]),
            ("/usr/bin/dpkg", "dpkg -i x.deb", &[PackageInstall]),
            ("/usr/bin/bash", "/bin/bash /home/linuxbrew/bin/brew install x", &[PackageInstall]),
            ("/usr/bin/ruby3.1", "ruby /usr/bin/gem install x", &[PackageInstall]),
            ("/usr/bin/go", "go get x", &[PackageInstall]),
            ("/usr/bin/dart", "dart pub add x", &[PackageInstall]),
            ("/usr/bin/gh", "gh pr create --fill", &[PrCreate]),
            ("/usr/bin/gh", "gh -R a/b pr merge 1", &[PrPublish]),
            ("/usr/bin/gh", "gh pr review 1", &[PrPublish]),
            ("/usr/bin/gh", "gh pr list", &[]),
            ("/usr/bin/gh", "gh issue create", &[VendorSyncWrite]),
            ("/usr/bin/glab", "glab mr create", &[PrCreate]),
            ("/usr/bin/docker", "docker ps", &[EnclosureControl]),
            ("/usr/bin/qemu-system-x86_64", "qemu-system-x86_64 -m 1", &[EnclosureControl]),
            // A script by its own name, as the kernel tells it where the process is gone already.
            ("/usr/bin/pip3", "/usr/bin/python3 /usr/bin/pip3 install x", &[PackageInstall]),
            ("/usr/bin/npm", "/usr/bin/env node /usr/bin/npm ci", &[PackageInstall]),
            ("./pip", "/usr/bin/python3 -I ./pip install x", &[PackageInstall]),
            ("/usr/bin/pip3", "/usr/bin/python3 /usr/bin/pip3 list", &[]),
            ("/usr/bin/rm", "rm -rf src", &[]),
            ("/usr/bin/bash", "bash -c git", &[]),
        ];
        for (exe, command, classes) in table {
            assert_eq!(classes_of(exe, command), classes, "{exe}: {command}");
        }
    }

    /// A long argument hides nothing behind it: what is cut off counts as the worst.
    #[test]
    fn what_is_cut_off_counts_as_the_worst() {
        let table: [(&str, &str, &[ActionClass]); 8] = [
            ("/usr/bin/git", "git -c a.b=xxxx", &[GitPush, GitCommit]),
            ("/usr/bin/git", "git pus", &[GitPush, GitCommit]),
            ("/usr/bin/git", "git push origin x mai", &[GitPush]),
            ("/usr/bin/git", "git status xxxx", &[]),
            ("/usr/bin/gh", "gh pr crea", &[PrCreate, PrPublish]),
            ("/usr/bin/node", "node /usr/bin/npm --prefix xxxx", &[PackageInstall]),
            ("/usr/bin/cargo", "cargo build xxxx", &[]),
            ("/usr/bin/git", "git", &[GitPush, GitCommit]),
        ];
        for (exe, command, classes) in table {
            let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let mut action = exec(exe.as_ref(), &argv, true);
            action.classes.retain(|class| *class != ProcessSpawn);
            assert_eq!(action.classes, classes, "{exe}: {command}");
            assert_eq!(action.refs, None, "{command}");
        }
        assert_eq!(exec("/usr/bin/git".as_ref(), &[], true).classes, [GitPush, GitCommit, ProcessSpawn]);
    }

    /// `R-25`: destination refs, or silence where only the repository knows.
    #[test]
    fn pushes_name_what_they_touch_or_stay_silent() {
        let table: [(&str, Option<&[&str]>); 23] = [
            ("push origin main", Some(&["main"])),
            ("push origin HEAD:main", Some(&["main"])),
            ("push origin +main", Some(&["main"])),
            ("push origin :main", Some(&["main"])),
            ("push origin a:refs/heads/b c", Some(&["b", "c"])),
            ("push -f -o ci.skip origin main", Some(&["main"])),
            ("push --repo=origin x main", Some(&["main"])),
            ("push origin --delete main", Some(&["main"])),
            ("push origin tag v1", Some(&["refs/tags/v1"])),
            ("push origin refs/tags/v1", Some(&["refs/tags/v1"])),
            ("push", None),
            ("push origin", None),
            ("push origin HEAD", None),
            ("push origin @", None),
            ("push origin :", None),
            ("push --all origin", None),
            ("push --mirror origin main", None),
            ("push origin main --tags", None),
            ("push origin refs/heads/*:refs/heads/*", None),
            ("push --unheard-of origin main", None),
            ("-c remote.origin.mirror=true push origin main", None),
            ("-c alias.p=push p origin main", None),
            ("push origin tags/v1", None),
        ];
        for (command, wanted) in table {
            let argv: Vec<String> = format!("git {command}").split(' ').map(str::to_owned).collect();
            let action = exec("/usr/bin/git".as_ref(), &argv, false);
            let found =
                action.refs.as_ref().map(|refs| refs.iter().map(|one| one.clean()).collect::<Vec<_>>());
            assert_eq!(found.as_deref(), wanted, "{command}");
        }
    }

    /// `C-012`, `C-017`, `R-70`
    #[test]
    fn deleting_is_about_files_that_were_there() {
        use FileOperation::{Change, Remove, Replace, Truncate};
        use Place::{Outside, PrivateTemp, Worktree};
        let table: [(FileOperation, Place, bool, &[ActionClass]); 9] = [
            (Remove, Worktree, true, &[FileDelete]),
            (Replace, Worktree, true, &[FileDelete]),
            (Truncate, Worktree, true, &[FileDelete]),
            (Change, Worktree, true, &[]),
            (Remove, Worktree, false, &[]),
            (Remove, PrivateTemp, true, &[]),
            (Change, Outside, true, &[FileWriteOutsideWorktree]),
            (Remove, Outside, true, &[FileDelete, FileWriteOutsideWorktree]),
            (Remove, Outside, false, &[FileWriteOutsideWorktree]),
        ];
        for (operation, place, existed, classes) in table {
            let action = file_change(operation, "a/b".as_ref(), place, existed);
            assert_eq!(action.classes, classes, "{operation:?} {place:?} {existed}");
        }
    }

    /// `R-69`, `R-72`
    #[test]
    fn destinations_have_classes() {
        assert_eq!(connect(v4([1, 1, 1, 1]), Some(443), 6).classes, [NetworkEgress]);
        assert_eq!(connect(v4([127, 0, 0, 1]), Some(443), 6).classes, []);
        let table: [(&str, &[ActionClass]); 9] = [
            ("/var/run/docker.sock", &[EnclosureControl]),
            ("/run/user/1000/podman/podman.sock", &[EnclosureControl]),
            ("/run/containerd/containerd.sock", &[EnclosureControl]),
            ("/run/systemd/private", &[ProcessSpawn]),
            ("/run/user/1000/bus", &[ProcessSpawn]),
            ("/tmp/ssh-XXXXab/agent.12", &[SecretAccess]),
            ("/run/user/1000/keyring/ssh", &[SecretAccess]),
            ("/home/u/.gnupg/S.gpg-agent", &[SecretAccess]),
            ("/tmp/x.sock", &[]),
        ];
        for (path, classes) in table {
            let action = unix_connect(path);
            assert_eq!(action.classes, classes, "{path}");
            assert_eq!(action.hosts.map(|hosts| hosts.len()), Some(1));
        }
    }
}
