//! What holds when the daemon dies, comes back or goes for good.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use guard_common::event::Hook;
use guard_daemon::enforce::{self, Cgroup, Enforcement, Hierarchy};

use super::fixture::{Fixture, Network, host_tier, this_program};
use super::{DENY, pause, rule, snapshot, wait_for_line};

/// In a process of its own: starts, adds the agent `agent`, brings the built-in table into force, waits to be killed.
pub(crate) fn hold(places: &str) {
    let mut places = places.split(' ').map(Path::new);
    let (run_dir, bpffs, root) =
        (places.next().expect("run"), places.next().expect("bpffs"), places.next().expect("root"));
    let mut options = enforce::Options::new(run_dir);
    options.bpffs = bpffs.into();
    options.root = Some(root.into());
    options.self_test = false;
    let mut enforcement = Enforcement::start(&options).expect("it starts");
    let agent = Cgroup::create(&root.join("agent")).expect("a group");
    enforcement.add_agent("agent", &agent, &[rule("agent", "203.0.113.10", 128, DENY)]).expect("a new agent");
    let rules = vec![rule("agent", "203.0.113.10", 128, DENY)];
    enforcement.bring_into_force(&snapshot(rules)).expect("the built-in table");
    println!("holding");
    thread::sleep(Duration::from_secs(600));
}

/// In a process of its own: gives up root, tries to start, says why it cannot.
pub(crate) fn start_as_nobody() {
    // SAFETY: this process does nothing else.
    assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
    let mut options = enforce::Options::new("/tmp/guard-nobody");
    options.self_test = false;
    let error = Enforcement::start(&options).err().expect("nobody may not");
    println!("code={} {error}", error.code());
}

/// A process that tries to connect all the time, and how often it got through.
struct Hammer {
    child: Child,
    through: Arc<AtomicU64>,
}

impl Hammer {
    fn start(network: &Network, cgroup: &Path) -> Self {
        let mut child = network.child(Some(cgroup), "hammer 10.1.2.3:80");
        wait_for_line(&mut child, "hammering");
        let out = child.stdout.take().expect("piped");
        let through = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&through);
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.contains("got through") {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { child, through }
    }

    fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }
}

impl Drop for Hammer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// After SIGKILL the kernel goes on refusing; the next daemon takes over without a gap; release opens.
#[test]
fn sigkill_leaves_the_fence_and_adoption_leaves_no_gap() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut holder = fixture.holder();
    wait_for_line(&mut holder, "holding");
    let agent = fixture.agent("agent");
    let mut hammer = Hammer::start(&network, agent.path());
    pause();
    assert_eq!(hammer.through(), 0, "the daemon is there");

    holder.kill().expect("it runs");
    holder.wait().expect("it ended");
    assert_eq!(
        network.act(Some(agent.path()), "tcp 203.0.113.10:80"),
        libc::EPERM,
        "its own rule still holds"
    );
    pause();
    assert_eq!(hammer.through(), 0, "the daemon was killed");

    for round in 0..5 {
        let mut enforcement = fixture.start(&fixture.options());
        let adopted: Vec<_> = enforcement.adopted().iter().map(|agent| agent.id.as_str()).collect();
        assert_eq!(adopted, ["agent"], "round {round}");
        assert!(enforcement.in_force(), "the rules were taken over");
        assert_eq!(network.act(Some(agent.path()), "tcp 203.0.113.10:80"), libc::EPERM, "round {round}");
        let rules = vec![rule("agent", "203.0.113.10", 128, DENY)];
        enforcement.bring_into_force(&snapshot(rules)).expect("the built-in table");
    }
    assert_eq!(hammer.through(), 0, "five daemons came and went");

    enforce::release(&fixture.bpffs(), &fixture.run_dir()).expect("pins can be removed");
    let start = Instant::now();
    while hammer.through() == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "the hammer ({:?}) never gets through: it proved nothing",
            hammer.child.try_wait()
        );
        pause();
    }
    assert!(!fixture.bpffs().join("guard").exists(), "no pin is left");
}

/// A reload under fire: each generation denies the same, so nothing ever gets through.
#[test]
fn a_reload_has_no_moment_without_rules() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let mut enforcement = fixture.start(&fixture.options());
    let agent = fixture.agent("agent");
    enforcement.add_agent("agent", &agent, &[]).expect("a new agent");
    enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    let hammer = Hammer::start(&network, agent.path());
    for _ in 0..200 {
        enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    }
    pause();
    assert_eq!(hammer.through(), 0);
    drop(enforcement);
    enforce::release(&fixture.bpffs(), &fixture.run_dir()).expect("pins can be removed");
    pause();
    assert!(hammer.through() > 0, "the hammer works");
}

/// Maps of another shape are not used: then only loopback passes until rules come.
#[test]
fn maps_that_do_not_fit_are_replaced_and_nothing_opens() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let agent = fixture.agent("agent");
    let mut options = fixture.options();
    options.ring_bytes = Some(4096);
    let mut first = fixture.start(&options);
    first.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    drop(first);
    let hammer = Hammer::start(&network, agent.path());
    options.ring_bytes = Some(8192);
    let second = fixture.start(&options);
    assert!(!second.in_force());
    let notes = &second.coverage().notes;
    assert!(notes.iter().any(|note| note.contains("does not fit")), "{notes:?}");
    assert_eq!(network.act(Some(agent.path()), "tcp 203.0.113.10:80"), libc::EPERM);
    assert_eq!(network.act(Some(agent.path()), "tcp 127.0.0.1:80"), 0);
    assert_eq!(hammer.through(), 0);
}

/// Two daemons share a BPF file system and do not know of each other.
#[test]
fn one_daemon_does_not_disturb_another() {
    if !host_tier() {
        return;
    }
    let (one, two, network) = (Fixture::new(), Fixture::new(), Network::new());
    let mut options = two.options();
    let mut first = one.start(&one.options());
    options.bpffs = one.bpffs();
    let mut second = two.start(&options);
    for enforcement in [&mut first, &mut second] {
        enforcement.bring_into_force(&snapshot(vec![])).expect("the built-in table");
    }
    let (a, b) = (one.agent("agent"), two.agent("agent"));
    assert_eq!(network.act(Some(a.path()), "tcp 10.1.2.3:80"), libc::EPERM);
    assert_eq!(network.act(Some(b.path()), "tcp 10.1.2.3:80"), libc::EPERM);
    drop(second);
    enforce::release(&one.bpffs(), &two.run_dir()).expect("pins can be removed");
    assert_eq!(network.act(Some(b.path()), "tcp 10.1.2.3:80"), 0, "released");
    assert_eq!(network.act(Some(a.path()), "tcp 10.1.2.3:80"), libc::EPERM, "not released");
    assert_eq!(first.root().id(), Cgroup::open(first.root().path()).expect("it is there").id());
}

/// A daemon that asks for fewer hooks than the one before takes the others away.
#[test]
fn hooks_that_are_not_wanted_any_more_are_detached() {
    if !host_tier() {
        return;
    }
    let (fixture, network) = (Fixture::new(), Network::new());
    let agent = fixture.agent("agent");
    let mut options = fixture.options();
    drop(fixture.start(&options));
    assert_eq!(network.act(Some(agent.path()), "raw-socket 127.0.0.1:0"), libc::EPERM);
    options.hooks.retain(|hook| *hook != Hook::SockCreate);
    drop(fixture.start(&options));
    assert_eq!(network.act(Some(agent.path()), "raw-socket 127.0.0.1:0"), 0);
}

/// Without privilege each failure has its own code, and nothing is left behind.
#[test]
fn failures_are_told_apart() {
    if !host_tier() {
        return;
    }
    let fixture = Fixture::new();
    let mut options = fixture.options();
    let file = env::temp_dir().join(format!("guard-test-file-{}", std::process::id()));
    fs::write(&file, "").expect("a file");
    options.bpffs = file.join("below");
    let error = Enforcement::start(&options).err().expect("no BPF file system can be there");
    assert_eq!(error.code(), "no_bpffs", "{error}");
    fs::remove_file(&file).expect("it is there");
    let mut options = fixture.options();
    let mount = Hierarchy::find().expect("cgroup2 is mounted").mount().to_path_buf();
    for root in ["/nowhere/guard".into(), mount] {
        options.root = Some(root);
        let error = Enforcement::start(&options).err().expect("no guard root");
        assert_eq!(error.code(), "no_cgroup2", "{error}");
    }
    assert!(!Path::new("/nowhere").exists(), "nothing is made outside the hierarchy");
    let output = this_program("start-as-nobody").output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("code=no_privilege not allowed to make /sys/fs/cgroup"), "{text}");
}
