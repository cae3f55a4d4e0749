//! The fence: what an agent cannot change, see or leave. Each attack runs as well where the layer is off, and must succeed there.

use std::{
    fs,
    os::linux::net::SocketAddrExt as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
    process::Command,
};

use guard_daemon::sandbox::{landlock::abi as landlock_abi, seccomp};
use guard_tests::fence::{AGENT, House, cgroup2, host_tier, program};

/// The uid of the agent and a place that it owns, with one file, one directory and one link in it.
fn victims(house: &House) {
    let outside = house.outside();
    let _ = fs::remove_dir_all(&outside);
    fs::create_dir(&outside).expect("outside");
    fs::write(outside.join("file"), "before").expect("a file");
    fs::write(outside.join("second"), "other").expect("a file");
    fs::create_dir(outside.join("directory")).expect("a directory");
    fs::write(house.worktree().join("mine"), "mine").expect("a file");
    for path in [
        outside.clone(),
        outside.join("file"),
        outside.join("second"),
        outside.join("directory"),
        house.worktree().join("mine"),
    ] {
        chown(&path, Some(AGENT), Some(AGENT)).expect("chown");
    }
}

/// Everything that could have changed, in one string.
fn state(house: &House) -> String {
    let mut lines = Vec::new();
    let mut add = |path: &Path| {
        let metadata = fs::symlink_metadata(path).expect("metadata");
        let content =
            if metadata.is_file() { fs::read_to_string(path).expect("content") } else { String::new() };
        let flags = Command::new("lsattr")
            .arg("-d")
            .arg(path)
            .output()
            .map(|output| output.stdout)
            .unwrap_or_default();
        let xattr = if metadata.is_symlink() {
            0
        } else {
            rustix::fs::listxattr(path, &mut [0_u8; 256][..]).expect("attributes")
        };
        lines.push(format!(
            "{} {:o} {} {} {} {}.{} {content} {xattr} {}",
            path.display(),
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.nlink(),
            metadata.ctime(),
            metadata.ctime_nsec(),
            String::from_utf8_lossy(&flags).split(' ').next().unwrap_or_default(),
        ));
    };
    add(&house.outside());
    for entry in fs::read_dir(house.outside()).expect("outside") {
        add(&entry.expect("an entry").path());
    }
    lines.sort();
    lines.join("\n")
}

/// What an attack said under these layers.
fn attack(layers: &str, house: &House, uid: u32, name: &str, arguments: &[&str]) -> String {
    let output = Command::new(program("fence-attack"))
        .args([layers, &uid.to_string()])
        .arg(house.worktree())
        .arg(name)
        .args(arguments)
        .output()
        .expect("fence-attack");
    assert!(output.status.success(), "{name} under {layers}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn errno(number: i32) -> String {
    number.to_string()
}

/// Changes outside of the worktree, with `{}` for that place. The second word says what Landlock alone makes of it.
const CHANGES: &[(&str, &[&str], Option<i32>)] = &[
    ("create", &["{}/new"], Some(libc::EACCES)),
    ("write", &["{}/file"], Some(libc::EACCES)),
    ("truncate", &["{}/file"], Some(libc::EACCES)),
    ("open-truncate", &["{}/file"], Some(libc::EACCES)),
    ("tmpfile", &["{}"], Some(libc::EACCES)),
    ("rename", &["{}/file", "{}/renamed"], Some(libc::EACCES)),
    ("exchange", &["{}/file", "{}/second"], Some(libc::EACCES)),
    ("link", &["{}/file", "{}/linked"], Some(libc::EACCES)),
    ("symlink", &["{}/pointer"], Some(libc::EACCES)),
    ("unlink", &["{}/file"], Some(libc::EACCES)),
    ("rmdir", &["{}/directory"], Some(libc::EACCES)),
    ("mkdir", &["{}/made"], Some(libc::EACCES)),
    ("mknod", &["{}/pipe"], Some(libc::EACCES)),
    // Landlock has no word for these: the view alone holds them.
    ("chmod", &["{}/file"], None),
    ("fchmod", &["{}/file"], None),
    ("chown", &["{}/file"], None),
    ("utimes", &["{}/file"], None),
    ("xattr", &["{}/file"], None),
    ("chattr", &["{}/file"], None),
];

/// Nothing outside of the worktree changes. The mount view alone holds every one of these, also for root without capabilities;
/// Landlock alone those that it knows; with neither each of them succeeds.
#[test]
fn outside_the_worktree_nothing_changes() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let outside = house.outside().display().to_string();
    for (name, arguments, landlock) in CHANGES {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| argument.replace("{}", &outside)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        victims(&house);
        if unsupported(name, &attack("none", &house, AGENT, name, &arguments)) {
            continue;
        }
        // Landlock learned about truncation with its third ABI; the view holds it all the same.
        let landlock =
            landlock.filter(|_| !matches!(*name, "truncate" | "open-truncate") || landlock_abi() >= 3);
        for (layers, uid, expected) in [
            ("view", AGENT, Some(libc::EROFS)),
            ("view", 0, Some(libc::EROFS)),
            ("landlock", AGENT, landlock),
            ("none", AGENT, None),
        ] {
            victims(&house);
            let before = state(&house);
            let said = attack(layers, &house, uid, name, &arguments);
            match expected {
                Some(number) => {
                    assert_eq!(said, errno(number), "{name} under {layers} as {uid}");
                    assert_eq!(state(&house), before, "{name} under {layers} as {uid}");
                }
                None => {
                    assert_eq!(said, "done", "{name} under {layers} as {uid}: the attack itself must work");
                    // An unnamed file leaves no trace; and a link count may hide behind an exchange of equals.
                    assert!(*name == "tmpfile" || state(&house) != before, "{name} under {layers} as {uid}");
                }
            }
        }
    }
}

/// Whether the file system of these tests has no such thing, as tmpfs before 6.6 has no user's attributes. Says so.
fn unsupported(name: &str, said: &str) -> bool {
    let may = matches!(name, "xattr" | "chattr");
    let lacks = may && [libc::EOPNOTSUPP, libc::ENOTTY].iter().any(|number| said == errno(*number));
    if lacks {
        eprintln!("not tried: {name}, which this file system does not have");
    }
    lacks
}

/// Inside the worktree the same changes work under all layers together.
#[test]
fn inside_the_worktree_everything_works() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let work = house.worktree().display().to_string();
    for (name, arguments, _) in CHANGES {
        for path in ["file", "second", "directory"] {
            let path = house.worktree().join(path);
            let _ = fs::remove_dir(&path);
            if path.ends_with("directory") {
                fs::create_dir(&path).expect("a directory");
            } else {
                fs::write(&path, "before").expect("a file");
            }
            chown(&path, Some(AGENT), Some(AGENT)).expect("chown");
        }
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("{}", &work)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = attack("view,landlock,seccomp", &house, AGENT, name, &arguments);
        if !unsupported(name, &said) {
            assert_eq!(said, "done", "{name}");
        }
    }
}

/// Calls that no agent needs give exactly EPERM, those that hide their arguments ENOSYS; without the filter they give something else.
#[test]
fn the_seccomp_tables_hold_line_by_line() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let call = |layers: &str, numbers: &[i64]| {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        attack(layers, &house, AGENT, "call", &numbers)
    };
    for (number, name) in seccomp::DENIED {
        // vhangup, fork-like and restart calls take no arguments: refused by capability alone without the filter.
        assert_eq!(call("seccomp", &[*number, -1, -1, -1, -1, -1, -1]), errno(libc::EPERM), "{name}");
    }
    for (number, name) in seccomp::ABSENT {
        assert_eq!(call("seccomp", &[*number, -1, -1, -1, -1, -1, -1]), errno(libc::ENOSYS), "{name}");
    }
    let flag = |flag: i32| i64::from(flag.cast_unsigned());
    for (what, numbers, filtered) in [
        ("unshare a user namespace", vec![libc::SYS_unshare, flag(libc::CLONE_NEWUSER)], libc::EPERM),
        ("unshare time", vec![libc::SYS_unshare, 0x80], libc::EPERM),
        (
            "clone a user namespace",
            vec![libc::SYS_clone, flag(libc::CLONE_NEWUSER | libc::SIGCHLD)],
            libc::EPERM,
        ),
        ("TIOCSTI", vec![libc::SYS_ioctl, 0, libc::TIOCSTI as i64], libc::EPERM),
        ("TIOCSTI with a high bit", vec![libc::SYS_ioctl, 0, libc::TIOCSTI as i64 | 1 << 40], libc::EPERM),
        ("TIOCLINUX", vec![libc::SYS_ioctl, 0, libc::TIOCLINUX as i64], libc::EPERM),
        ("personality", vec![libc::SYS_personality, 0x0040_0000], libc::EPERM),
        (
            "packet socket",
            vec![libc::SYS_socket, flag(libc::AF_PACKET), flag(libc::SOCK_DGRAM), 0],
            libc::EPERM,
        ),
        ("vsock", vec![libc::SYS_socket, flag(libc::AF_VSOCK), flag(libc::SOCK_STREAM), 0], libc::EPERM),
        (
            "alg socket",
            vec![libc::SYS_socket, flag(libc::AF_ALG), flag(libc::SOCK_SEQPACKET), 0],
            libc::EPERM,
        ),
        (
            "family with a high bit",
            vec![libc::SYS_socket, flag(libc::AF_PACKET) | 1 << 40, 1, 0],
            libc::EPERM,
        ),
        ("raw socket", vec![libc::SYS_socket, flag(libc::AF_INET), flag(libc::SOCK_RAW), 1], libc::EPERM),
        (
            "raw socket, flags",
            vec![
                libc::SYS_socket,
                flag(libc::AF_INET),
                flag(libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK),
                1,
            ],
            libc::EPERM,
        ),
        (
            "raw socket, six",
            vec![libc::SYS_socket, flag(libc::AF_INET6), flag(libc::SOCK_RAW), 58],
            libc::EPERM,
        ),
        (
            "netlink, not route",
            vec![libc::SYS_socket, flag(libc::AF_NETLINK), flag(libc::SOCK_RAW), 9],
            libc::EPERM,
        ),
        ("a listener of one's own", vec![libc::SYS_seccomp, 1, 8, 0], libc::EPERM),
        (
            "multipath tcp",
            vec![libc::SYS_socket, flag(libc::AF_INET), flag(libc::SOCK_STREAM), 262],
            libc::EPROTONOSUPPORT,
        ),
        (
            "sctp",
            vec![libc::SYS_socket, flag(libc::AF_INET6), flag(libc::SOCK_STREAM), 132],
            libc::EPROTONOSUPPORT,
        ),
    ] {
        let mut numbers = numbers;
        numbers.resize(7, 0);
        assert_eq!(call("seccomp", &numbers), errno(filtered), "{what}");
    }
    for (what, numbers) in [
        ("unix", [libc::SYS_socket, flag(libc::AF_UNIX), 1, 0]),
        ("tcp", [libc::SYS_socket, flag(libc::AF_INET), flag(libc::SOCK_STREAM | libc::SOCK_CLOEXEC), 6]),
        ("udp", [libc::SYS_socket, flag(libc::AF_INET6), 2, 0]),
        ("route netlink", [libc::SYS_socket, flag(libc::AF_NETLINK), 3, 0]),
        ("files of one's own", [libc::SYS_unshare, flag(libc::CLONE_FILES), 0, 0]),
        ("personality question", [libc::SYS_personality, 0xffff_ffff, 0, 0]),
    ] {
        assert_eq!(call("seccomp", &numbers), "done", "{what}");
    }
    #[cfg(target_arch = "x86_64")]
    assert_eq!(attack("seccomp", &house, AGENT, "x32", &["39"]), errno(libc::ENOSYS));
    // The controls: what an ordinary user can do without the filter.
    for (what, numbers) in [
        ("unshare a user namespace", vec![libc::SYS_unshare, flag(libc::CLONE_NEWUSER)]),
        ("personality", vec![libc::SYS_personality, 0x0040_0000]),
        ("kcmp", vec![libc::SYS_kcmp, 1, 1, 0, 0, 0, 0]),
        ("alg socket", vec![libc::SYS_socket, flag(libc::AF_ALG), flag(libc::SOCK_SEQPACKET), 0]),
        ("another netlink", vec![libc::SYS_socket, flag(libc::AF_NETLINK), flag(libc::SOCK_RAW), 9]),
    ] {
        let mut numbers = numbers;
        numbers.resize(7, 0);
        let said = call("none", &numbers);
        let known =
            said == "done" || what == "kcmp" || (what == "alg socket" && said == errno(libc::EAFNOSUPPORT));
        assert!(known, "{what}: {said}");
    }
}

/// Signals and abstract sockets do not cross Landlock's scopes.
#[test]
fn nothing_outside_is_signalled_or_reached_by_abstract_socket() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mut victim = std::os::unix::process::CommandExt::uid(&mut Command::new("sleep"), AGENT)
        .arg("60")
        .spawn()
        .expect("sleep");
    let pid = victim.id().to_string();
    let name = format!("guard-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("a socket");
    // Before ABI 6 there are no scopes, and coverage lists that as a hole.
    let scoped = if landlock_abi() >= 6 { errno(libc::EPERM) } else { "done".to_owned() };
    for (layers, signal, connect) in
        [("landlock", scoped.clone(), scoped), ("none", "done".to_owned(), "done".to_owned())]
    {
        assert_eq!(attack(layers, &house, AGENT, "signal", &[&pid]), signal, "{layers}");
        assert_eq!(attack(layers, &house, AGENT, "abstract", &[&name]), connect, "{layers}");
    }
    drop(listener);
    victim.kill().expect("ended");
    victim.wait().expect("reaped");
}

/// The ways out of the cgroup: `cgroup.procs` through the view, clone3 through seccomp; as root both work where the layer is off.
#[test]
fn nobody_leaves_the_cgroup() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let elsewhere = house.cgroup().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a cgroup");
    let procs = elsewhere.join("cgroup.procs").display().to_string();
    let directory = elsewhere.display().to_string();
    assert_eq!(attack("none", &house, 0, "move-to-cgroup", &[&procs]), "done");
    assert_eq!(attack("view", &house, 0, "move-to-cgroup", &[&procs]), errno(libc::ENOENT));
    assert_eq!(attack("landlock", &house, 0, "move-to-cgroup", &[&procs]), errno(libc::EACCES));
    assert_eq!(attack("none", &house, 0, "clone-into", &[&directory]), "done");
    assert_eq!(
        attack("landlock", &house, 0, "clone-into", &[&directory]),
        "done",
        "Landlock does not hold this"
    );
    assert_eq!(attack("seccomp", &house, 0, "clone-into", &[&directory]), errno(libc::ENOSYS));
    assert_eq!(attack("view", &house, 0, "clone-into", &[&directory]), errno(libc::ENOENT));
    let root = cgroup2().join("cgroup.procs").display().to_string();
    assert_eq!(attack("none", &house, 0, "exists", &[&root]), "done");
    assert_eq!(attack("view", &house, 0, "exists", &[&root]), errno(libc::ENOENT));
    // The killed children of these attacks are gone by now.
    fs::remove_dir(&elsewhere).expect("the cgroup is empty");
}

/// secrets, other homes and engine sockets are not there; the own home is, without its secrets.
#[test]
fn what_is_not_the_agents_is_not_there() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let home = Path::new("/home").join(format!("guard-test-{}", std::process::id()));
    let made_home = !Path::new("/home").exists();
    for directory in [".ssh", ".aws", ".config/gcloud", "project", ".npm"] {
        fs::create_dir_all(home.join(directory)).expect(directory);
    }
    for file in [".ssh/id_ed25519", ".netrc", ".bashrc", ".aws/credentials"] {
        fs::write(home.join(file), "content\n").expect(file);
    }
    assert!(
        Command::new("chown").args(["-R", &AGENT.to_string()]).arg(&home).status().expect("chown").success()
    );
    let script = format!(
        "for p in {0}/.ssh/id_ed25519 {0}/.aws/credentials /root/. /run/dbus /run/user /var/run/docker.sock /sys/fs/cgroup/unified; do
           [ -e $p ] && ls -A $p 2>/dev/null | grep -q . && echo \"$p is there\"; done
         [ -s {0}/.netrc ] && echo netrc has content
         cat {0}/.bashrc; echo x > {0}/.bashrc; echo y > {0}/.npm/cache && echo cached; ls /home",
        home.display()
    );
    let bytes = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
    let done = house
        .script(&script)
        .with(|sandbox| {
            sandbox.home = bytes(&home);
            sandbox.read_write.push(bytes(&home.join(".npm")));
            sandbox.read_write.push(bytes(&home.join(".not-there")));
        })
        .run();
    let name = home.file_name().expect("a name").to_string_lossy();
    assert_eq!(done.stdout(), format!("content\ncached\n{name}\n"), "{done:?}");
    assert_eq!(fs::read_to_string(home.join(".bashrc")).expect("content"), "content\n");
    assert!(
        done.reports.contains(&format!("fenced truncate {}/.bashrc", home.display())),
        "{}",
        done.reports
    );
    // The control: the same user reads all of it without the fence.
    let said =
        attack("none", &house, AGENT, "exists", &[&home.join(".ssh/id_ed25519").display().to_string()]);
    assert_eq!(said, "done");
    fs::remove_dir_all(&home).expect("removed");
    if made_home {
        let _ = fs::remove_dir("/home");
    }
}

/// each try outside is recorded with its effect, also by `/proc/self/root`, a descriptor or a link; a loop is told with a number.
#[test]
fn tries_outside_are_recorded() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    victims(&house);
    let outside = house.outside();
    let script = "cd $OUT; touch a; rm file; mv second third; ln -s x y; mkdir m; rmdir directory; chmod 700 file; truncate -s 0 file
        touch -d yesterday file; ln file l; mkfifo p; echo > /proc/self/root$OUT/through-root; ln -s $OUT $OLDPWD/link; echo > $OLDPWD/link/by-link
        for i in $(seq 100); do echo > loop; done; echo >> $OLDPWD/fine";
    let done = house
        .script(script)
        .with(|sandbox| sandbox.environment.push(format!("OUT={}", outside.display()).into_bytes()))
        .run();
    let out = outside.display();
    for expected in [
        format!("fenced create {out}/a "),
        format!("fenced unlink {out}/file "),
        format!("fenced rename {out}/second {out}/third"),
        format!("fenced symlink {out}/y "),
        format!("fenced mkdir {out}/m "),
        format!("fenced rmdir {out}/directory "),
        format!("fenced chmod {out}/file "),
        format!("fenced write {out}/file "),
        format!("fenced utimes {out}/file "),
        format!("fenced link {out}/l {out}/file"),
        format!("fenced mknod {out}/p "),
        format!("fenced create {out}/through-root "),
        format!("fenced create {out}/by-link "),
        format!("fenced create {out}/loop  count=0"),
    ] {
        assert!(done.reports.contains(&expected), "{expected} in:\n{}\n{}", done.reports, done.stderr());
    }
    // Alike tries are told together once a second, so a slow machine tells them in several lines; none is left out.
    let line = format!("fenced create {out}/loop  count=");
    let told = done.reports.split(&line).skip(1);
    let counts =
        told.map(|rest| rest.split(|character: char| !character.is_ascii_digit()).next().unwrap_or(""));
    let tries: u64 = counts.map(|count| count.parse::<u64>().expect("a number").max(1)).sum();
    assert_eq!(tries, 100, "{}", done.reports);
    let fine = done.reports.lines().filter(|line| line.contains("/fine "));
    assert!(
        fine.clone().count() == 1 && fine.clone().all(|line| line.starts_with("done create ")),
        "inside the worktree is work, not a try: {}",
        done.reports
    );
}

/// Nothing of an agent is left: processes, mounts, cgroup.
#[test]
fn nothing_is_left_behind() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("mountinfo").lines().count();
    let before = mounts();
    let done = house
        .script("setsid sleep 471100 & (trap '' TERM HUP; sleep 471101) & echo x > /tmp/left; sleep 0.1")
        .run();
    assert_eq!(done.succeeded(), "");
    assert!(done.reports.contains("left: 2"), "{}", done.reports);
    assert_eq!(mounts(), before);
    assert!(!Path::new("/tmp/left").exists());
    let commands = fs::read_dir("/proc").expect("/proc").flatten();
    let left: Vec<_> = commands
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .filter(|command| command.starts_with(b"sleep\x0047110"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let left: Vec<_> = fs::read_dir(house.cgroup())
        .expect("the cgroup")
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Root stays root only without capabilities, and the fence holds it too.
#[test]
fn a_root_agent_has_no_capabilities() {
    if !host_tier() {
        return;
    }
    let house = House::new();
    fs::set_permissions(house.outside(), fs::Permissions::from_mode(0o777)).expect("permissions");
    let script = format!(
        "id -u; grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | cut -f2 | sort -u; touch {}/x; mount -t tmpfs x /mnt; /usr/sbin/chroot / true; echo > /proc/sys/kernel/hostname",
        house.outside().display()
    );
    let done = house.script(&script).uid(0).with(|sandbox| sandbox.as_root = true).run();
    assert_eq!(done.stdout(), "0\n0000000000000000\n", "{done:?}");
    for refused in ["touch: cannot touch", "mount: /mnt", "chroot: cannot", "hostname: Read-only"] {
        assert!(done.stderr().contains(refused), "{refused} in {}", done.stderr());
    }
    assert!(!house.outside().join("x").exists());
    // Without --as-root the same caller becomes the worktree's owner; and where that is root, nothing starts.
    let done = house.script("id -u; echo $HOME").uid(0).run();
    assert_eq!(done.succeeded(), format!("{AGENT}\n/tmp\n"));
    chown(house.worktree(), Some(0), Some(0)).expect("chown");
    let done = house.script("id -u").uid(0).run();
    assert_eq!((done.status(), done.stdout()), (1, String::new()));
    assert!(done.stderr().contains("error[root_worktree]"), "{}", done.stderr());
}
