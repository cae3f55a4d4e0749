//! What executables and connections are.

use guard_common::ActionClass::{
    EnclosureControl, GitCommit, GitPush, NetworkEgress, PackageInstall, PrCreate, PrPublish, ProcessSpawn,
    SecretAccess, VendorSyncWrite, WorkspaceMutation,
};
use guard_common::address::v4;

use super::*;

fn classes_of(exe: &str, command: &str) -> Vec<ActionClass> {
    let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let mut classes = exec(exe.as_ref(), &argv, false).action.classes;
    assert!(classes.contains(&ProcessSpawn), "C-022: {command}");
    classes.retain(|class| *class != ProcessSpawn);
    classes
}

/// `C-022` and the classes of the tables: what each executable does.
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
        ("/usr/bin/git", "git stash push", &[WorkspaceMutation]),
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
    const WORST: &[ActionClass] = &[GitPush, GitCommit, SecretAccess, WorkspaceMutation];
    let table: [(&str, &str, &[ActionClass]); 8] = [
        ("/usr/bin/git", "git -c a.b=xxxx", WORST),
        ("/usr/bin/git", "git pus", WORST),
        ("/usr/bin/git", "git push origin x mai", &[GitPush]),
        ("/usr/bin/git", "git status xxxx", &[]),
        ("/usr/bin/gh", "gh pr crea", &[PrCreate, PrPublish]),
        ("/usr/bin/node", "node /usr/bin/npm --prefix xxxx", &[SecretAccess, PackageInstall]),
        ("/usr/bin/cargo", "cargo build xxxx", &[]),
        ("/usr/bin/git", "git", WORST),
    ];
    for (exe, command, classes) in table {
        let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let mut action = exec(exe.as_ref(), &argv, true).action;
        action.classes.retain(|class| *class != ProcessSpawn);
        assert_eq!(action.classes, classes, "{exe}: {command}");
        assert_eq!(action.refs, None, "{command}");
    }
    assert_eq!(
        exec("/usr/bin/git".as_ref(), &[], true).action.classes,
        [GitPush, GitCommit, SecretAccess, ProcessSpawn, WorkspaceMutation]
    );
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
        let action = exec("/usr/bin/git".as_ref(), &argv, false).action;
        let found = action.refs.as_ref().map(|refs| refs.iter().map(|one| one.clean()).collect::<Vec<_>>());
        assert_eq!(found.as_deref(), wanted, "{command}");
    }
}

/// `C-019`, `R-72`
#[test]
fn destinations_have_classes() {
    assert_eq!(connect(v4([1, 1, 1, 1]), Some(443), 6).action.classes, [NetworkEgress]);
    assert_eq!(connect(v4([127, 0, 0, 1]), Some(443), 6).action.classes, []);
}
