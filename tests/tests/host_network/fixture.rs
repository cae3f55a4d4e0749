//! A guard root, a BPF file system and a network namespace of this test's own, all gone when it ends.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use std::{env, fs, process, thread};

use guard_daemon::enforce::{self, Cgroup, Enforcement, Hierarchy, Options};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Names the environment variable in which the act for [`act_in_child`] stands.
pub(crate) const ACT: &str = "GUARD_TEST_ACT";

/// Whether host tests run here. They fail where they cannot run, unless that is asked for.
pub(crate) fn host_tier() -> bool {
    if env::var_os("GUARD_SKIP_HOST").is_some() {
        eprintln!("SKIPPED because GUARD_SKIP_HOST is set: nothing was proven about this host");
        return false;
    }
    assert!(rustix::process::geteuid().is_root(), "host tests need root; GUARD_SKIP_HOST=1 leaves them out");
    assert!(enforce::object().is_some(), "built without BPF programs: run `cargo xtask build` first");
    true
}

/// What a test has to itself.
pub(crate) struct Fixture {
    directory: tempfile::TempDir,
    root: PathBuf,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mount = Hierarchy::find().expect("cgroup2 is mounted").mount().to_path_buf();
        let name = format!("guard-test-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { root: mount.join(name), directory }
    }

    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new(self.run_dir());
        options.bpffs = self.bpffs();
        options.root = Some(self.root.clone());
        options.self_test = false;
        options
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    pub(crate) fn bpffs(&self) -> PathBuf {
        self.directory.path().join("bpf")
    }

    pub(crate) fn start(&self, options: &Options) -> Enforcement {
        Enforcement::start(options).unwrap_or_else(|error| panic!("{}: {error}", error.code()))
    }

    /// A process that starts enforcement here and waits to be killed.
    pub(crate) fn holder(&self) -> Child {
        let paths = [self.run_dir(), self.bpffs(), self.root.clone()].map(|path| path.display().to_string());
        let mut command = this_program(&format!("hold {}", paths.join(" ")));
        command.spawn().expect("this program runs")
    }

    /// A group below the guard root.
    pub(crate) fn agent(&self, name: &str) -> Cgroup {
        Cgroup::create(&self.root.join(name)).expect("a group below the guard root")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Ok(root) = Cgroup::open(&self.root) {
            let _ = root.kill();
            let _ = root.wait_empty(Duration::from_secs(5));
            let _ = root.remove();
        }
        let _ = enforce::release(&self.bpffs(), &self.run_dir());
        let _ = rustix::mount::unmount(self.bpffs(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Addresses that exist only in a [`Network`].
pub(crate) const ADDRESSES: [&str; 9] = [
    "169.254.169.254/32",
    "10.1.2.3/32",
    "203.0.113.10/32",
    "224.0.0.251/32",
    "fd00:ec2::254/128",
    "64:ff9b::a9fe:a9fe/128",
    "2002:a01:203::1/128",
    "2001:db8::10/128",
    "fc00::7/128",
];

/// A network namespace with real servers and no way out.
pub(crate) struct Network {
    namespace: Arc<OwnedFd>,
    received: Arc<Mutex<Vec<u8>>>,
    /// Ends the namespace's threads when it goes.
    _alive: mpsc::Sender<()>,
}

impl Network {
    pub(crate) fn new() -> Self {
        let (send, receive) = mpsc::channel();
        let (alive, ended) = mpsc::channel::<()>();
        let received = Arc::new(Mutex::new(Vec::new()));
        let bytes = Arc::clone(&received);
        thread::spawn(move || {
            // SAFETY: a new network namespace changes no memory; only this thread moves.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace");
            ip(&["link", "set", "lo", "up"]);
            for address in ADDRESSES {
                ip(&["address", "add", address, "dev", "lo"]);
            }
            fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").expect("ping sockets");
            fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3").expect("fast open");
            let tcp = TcpListener::bind("[::]:80").expect("a listener");
            let udp = UdpSocket::bind("[::]:53").expect("a datagram socket");
            thread::spawn(move || serve_tcp(&tcp, &bytes));
            thread::spawn(move || serve_udp(&udp));
            let namespace: OwnedFd =
                fs::File::open("/proc/thread-self/ns/net").expect("its descriptor").into();
            send.send(namespace).expect("the test waits");
            let _ = ended.recv();
        });
        let namespace = Arc::new(receive.recv().expect("the namespace was set up"));
        Self { namespace, received, _alive: alive }
    }

    /// What the TCP servers have read so far.
    pub(crate) fn received(&self) -> Vec<u8> {
        self.received.lock().expect("no server panicked").clone()
    }

    /// A child of this test program that performs one act here, in the given group.
    pub(crate) fn child(&self, cgroup: Option<&Path>, act: &str) -> Child {
        let namespace = Arc::clone(&self.namespace);
        let procs = cgroup.map(|path| path.join("cgroup.procs"));
        let mut command = this_program(act);
        // SAFETY: between fork and exec only system calls are made; the paths were built before.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                if let Some(procs) = &procs {
                    fs::write(procs, "0")?;
                }
                Ok(())
            });
        }
        command.spawn().unwrap_or_else(|error| panic!("{act}: {error}"))
    }

    /// Performs one act; the errno, 0 for success.
    pub(crate) fn act(&self, cgroup: Option<&Path>, act: &str) -> i32 {
        let output = self.child(cgroup, act).wait_with_output().expect("the child ends");
        let text = String::from_utf8_lossy(&output.stdout);
        let result = text.lines().find_map(|line| line.split_once("errno=")?.1.parse().ok());
        result.unwrap_or_else(|| {
            panic!("{act} said nothing: {} {text} {}", output.status, String::from_utf8_lossy(&output.stderr))
        })
    }
}

/// This test program again, to perform one act.
pub(crate) fn this_program(act: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "act_in_child", "--nocapture", "--test-threads=1"]).env(ACT, act);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The fixture's options with the self-test on.
pub(crate) fn options_with_self_test(fixture: &Fixture) -> Options {
    let mut options = fixture.options();
    options.self_test = true;
    options
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {arguments:?}: {status}");
}

fn serve_tcp(listener: &TcpListener, received: &Arc<Mutex<Vec<u8>>>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let received = Arc::clone(received);
        thread::spawn(move || {
            let mut buffer = [0; 256];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                received.lock().expect("no server panicked").extend(&buffer[..count]);
                let _ = stream.write_all(&buffer[..count]);
            }
        });
    }
}

fn serve_udp(socket: &UdpSocket) {
    let mut buffer = [0; 256];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        let _: io::Result<usize> = socket.send_to(&buffer[..count], from as SocketAddr);
    }
}
