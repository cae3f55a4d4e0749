//! Which program it was: its file, its hash, its script, or that it has no name at all.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;
use std::time::Duration;

use guard_proto::v1::observation::Act;
use guard_proto::v1::{Exec, Executable, Observation};
use sha2::{Digest as _, Sha256};

use super::fixture::{Fixture, host_tier};
use super::reports::collect;

fn exec<'a>(all: &'a [Observation], last: &str) -> Option<(&'a Observation, &'a Exec)> {
    all.iter().find_map(|one| match &one.act {
        Some(Act::Exec(exec)) if exec.argv.last().is_some_and(|argument| argument == last.as_bytes()) => {
            Some((one, exec))
        }
        _ => None,
    })
}

/// Copies and links of a program, a script with an interpreter, a program in memory, one that was removed: each is named by
/// what the kernel runs, and its content is hashed once.
#[test]
fn a_program_is_known_by_its_file() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name);
    fs::copy("/bin/sleep", path("git")).expect("a copy under another's name");
    fs::hard_link(path("git"), path("link")).expect("a second name");
    fs::write(path("script"), "#!/bin/sh -u\n/bin/sleep 0.1\n: end\n").expect("a script");
    fs::set_permissions(path("script"), fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    let python = "import os,sys
f=os.memfd_create('hidden'); os.write(f, open('/bin/sleep','rb').read())
os.execve(f, ['sleep','0.11'], {})";
    let script = format!(
        "echo $$ > {procs}/cgroup.procs; cd {place}
        ./git 0.12; ./git 0.12; ./link 0.13; ./script last-of-script
        /usr/bin/python3 -c \"$1\"
        ./git 0.5 & sleep 0.1; rm git link; wait",
        procs = agent.path().display(),
        place = place.path().display(),
    );
    let about = fs::metadata(path("git")).expect("the copy");
    let sum = |path: &str| Sha256::digest(fs::read(path).expect("a program")).to_vec();
    let sleeps = sum("/bin/sleep");
    let shell = Command::new("/bin/sh").args(["-c", &script, "sh", python]).status().expect("a shell");
    assert!(shell.success());
    std::thread::sleep(Duration::from_millis(300));
    let all = collect(&mut events, |all| exec(all, "0.11").is_some() && exec(all, "0.5").is_some());
    let executables: Vec<&Executable> = all
        .iter()
        .filter_map(|one| match &one.act {
            Some(Act::Executable(executable)) => Some(executable),
            _ => None,
        })
        .collect();

    let (one, copy) = exec(&all, "0.12").expect("the copy ran");
    assert_eq!((copy.inode, copy.name.as_slice(), copy.nameless), (about.ino(), &b"git"[..], false));
    assert!(one.exe.ends_with(b"/git"), "{one:?}");
    assert_eq!(copy.directory, place.path().as_os_str().as_encoded_bytes());
    let hashed: Vec<_> = executables.iter().filter(|one| one.inode == about.ino()).collect();
    assert_eq!(hashed.len(), 1, "once for each inode: {hashed:?}");
    assert_eq!((&hashed[0].sha256, hashed[0].note.as_str()), (&sleeps, ""));
    let (_, link) = exec(&all, "0.13").expect("the link ran");
    assert_eq!((link.inode, link.name.as_slice()), (about.ino(), &b"link"[..]));
    assert_eq!(link.sha256, sleeps, "known by then");

    let (one, script) = exec(&all, "last-of-script").expect("the script ran");
    assert_eq!(script.script, b"./script");
    let interpreter = fs::canonicalize("/bin/sh").expect("a shell");
    assert_eq!(one.exe, interpreter.as_os_str().as_encoded_bytes());
    assert_eq!(script.inode, fs::metadata("/bin/sh").expect("a shell").ino());
    assert_eq!(script.argv[..3], [b"/bin/sh".to_vec(), b"-u".to_vec(), b"./script".to_vec()]);

    let (_, memory) = exec(&all, "0.11").expect("the program in memory ran");
    assert_eq!((memory.name.as_slice(), memory.nameless), (&b"memfd:hidden"[..], true));
    assert!(
        executables.iter().any(|one| one.inode == memory.inode && one.sha256 == sleeps),
        "{executables:#?}"
    );

    let (_, before) = exec(&all, "0.5").expect("it ran before it was removed");
    assert!(!before.nameless);
}

/// A process that runs nothing new is known by its end, with its parent, its status and how long it was there.
#[test]
fn every_process_ends_with_status_and_duration() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let mut enforcement = fixture.start(&fixture.options());
    let mut events = enforcement.take_events().expect("the first call gets them");
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    let python = "import os,time
if os.fork() == 0:
    time.sleep(0.3); os._exit(3)
os.wait()";
    let script =
        format!("echo $$ > {}/cgroup.procs; exec /usr/bin/python3 -c \"$1\"", agent.path().display());
    let mut shell = Command::new("/bin/sh").args(["-c", &script, "sh", python]).spawn().expect("a shell");
    let pid = shell.id();
    assert!(shell.wait().expect("it ends").success());
    let ends = |one: &Observation| match &one.act {
        Some(Act::Exit(exit)) => Some((one.parent_pid, exit.status, exit.duration_ns)),
        _ => None,
    };
    let all = collect(&mut events, |all| all.iter().filter_map(ends).count() == 2);
    let (parent, _, duration) =
        all.iter().filter_map(ends).find(|(_, status, _)| *status == 3 << 8).expect("the child's end");
    assert_eq!(parent, pid);
    let duration = Duration::from_nanos(duration);
    assert!(Duration::from_millis(300) <= duration && duration < Duration::from_secs(3), "{duration:?}");
}
