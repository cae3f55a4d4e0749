//! Loads the programs, attaches them to the guard root and pins everything, so that the kernel goes on without
//! this process.
//!
//! Pins live in `<bpffs>/guard/<layout>/<run directory>/`: maps by their name, links as `link_<program>`. A new
//! process keeps the maps that fit (type, sizes, flags), loads its own programs on them, attaches each beside
//! the old one and only then lets the old one go: both refuse what is denied, so there is no gap.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aya::maps::{Map, MapData, MapInfo};
use aya::programs::cgroup_skb::CgroupSkbAttachType;
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, Program, ProgramError};
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use guard_common::event::Hook;
use sha2::{Digest as _, Sha256};

use super::btf::{BtfError, KernelTypes};
use super::cgroup::{Cgroup, CgroupError, Hierarchy, mounts_of_type};

/// Counts up when the meaning of a map's bytes changes; part of the pin path.
const LAYOUT: &str = "v2";

/// How long the kernel may take to do away with a program that was replaced.
const SETTLE: Duration = Duration::from_secs(2);

/// Maps that outlive this process.
const PINNED_MAPS: [&str; 7] = ["NETWORK", "CONFIG", "AGENTS", "EVENTS", "DENIALS", "COUNTERS", "SOCKETS"];

/// What is missing, or what failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The daemon was built without BPF programs.
    #[error("built without BPF programs: run `cargo xtask build` and build the daemon again")]
    NoObject,
    /// Not enough privilege.
    #[error(
        "not allowed to {what}: guardd needs root, or CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_SYS_ADMIN"
    )]
    Privilege {
        /// What was refused.
        what: String,
    },
    /// The hierarchy of control groups cannot be used.
    #[error(transparent)]
    Cgroup(CgroupError),
    /// The kernel's type information cannot be used.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The BPF file system is not there and cannot be mounted.
    #[error("no BPF file system at {path} and none can be mounted there: {error}")]
    NoBpffs {
        /// Where it was looked for.
        path: PathBuf,
        /// Why mounting failed.
        #[source]
        error: io::Error,
    },
    /// A pin could not be made, moved or removed.
    #[error("cannot {what} the pin {path}: {error}")]
    Pin {
        /// What was tried.
        what: &'static str,
        /// Which pin.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The object does not load.
    #[error("cannot load the BPF object: {0}")]
    Object(#[source] Box<EbpfError>),
    /// A program does not load or attach.
    #[error("cannot {what} the BPF program {program}: {error}")]
    Program {
        /// "load" or "attach".
        what: &'static str,
        /// Its name.
        program: &'static str,
        /// Why not.
        #[source]
        error: Box<ProgramError>,
    },
    /// The object lacks a part that this daemon needs.
    #[error("the BPF object has no {0}: it belongs to another version of guardd")]
    Part(&'static str),
    /// What an earlier process left cannot be taken over.
    #[error("cannot take over the agents of an earlier guardd: {0}")]
    Adopt(#[source] Box<super::table::TableError>),
    /// The thread that reads the rings cannot be started.
    #[error("cannot start the thread that reads the kernel's records: {error}")]
    Thread {
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The kernel does not say what is attached.
    #[error("cannot ask what is attached to {path}: {error}")]
    Query {
        /// The group.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// After attaching, not exactly one program of ours is there.
    #[error("{count} programs {program} are attached to {path} where there should be one")]
    Attached {
        /// The program.
        program: &'static str,
        /// How many there are.
        count: usize,
        /// The group.
        path: PathBuf,
    },
}

impl LoadError {
    /// The stable code of this failure in `guardd`'s messages.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Privilege { .. } => "no_privilege",
            Self::Cgroup(_) => "no_cgroup2",
            Self::Btf(_) => "no_btf",
            Self::NoBpffs { .. } | Self::Pin { .. } => "no_bpffs",
            _ => "no_bpf",
        }
    }
}

impl From<CgroupError> for LoadError {
    fn from(error: CgroupError) -> Self {
        match error {
            CgroupError::Io { what, path, error } if lacks_privilege(&error) => {
                Self::Privilege { what: format!("{what} {}", path.display()) }
            }
            other => Self::Cgroup(other),
        }
    }
}

/// Whether a refusal means that this process is not root, and not that the kernel or the platform says no.
fn lacks_privilege(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root()
}

type Result<T> = std::result::Result<T, LoadError>;

/// The object that was embedded when the daemon was built.
#[must_use]
pub fn object() -> Option<&'static [u8]> {
    #[cfg(guard_bpf_object)]
    {
        static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guard.o"));
        Some(OBJECT)
    }
    #[cfg(not(guard_bpf_object))]
    None
}

/// One program of the object.
struct Entry {
    name: &'static str,
    attach: Attach,
}

enum Attach {
    /// To the guard root; with the number of the attach type for queries.
    Cgroup(Hook, u32),
    /// To the guard root, only to watch; with the number of the attach type.
    Watch(u32),
    /// To a tracepoint of the kernel.
    Tracepoint(&'static str),
}

impl Attach {
    /// Whether the plan wants it, and the number of its attach type if it is attached to the guard root.
    fn wanted(&self, hooks: &[Hook]) -> (bool, Option<u32>) {
        match self {
            Self::Cgroup(hook, kind) => (hooks.contains(hook), Some(*kind)),
            Self::Watch(kind) => (true, Some(*kind)),
            Self::Tracepoint(_) => (true, None),
        }
    }
}

const PROGRAMS: [Entry; 14] = [
    Entry { name: "guard_connect4", attach: Attach::Cgroup(Hook::Connect4, 10) },
    Entry { name: "guard_connect6", attach: Attach::Cgroup(Hook::Connect6, 11) },
    Entry { name: "guard_sendmsg4", attach: Attach::Cgroup(Hook::Sendmsg4, 14) },
    Entry { name: "guard_sendmsg6", attach: Attach::Cgroup(Hook::Sendmsg6, 15) },
    Entry { name: "guard_egress", attach: Attach::Cgroup(Hook::Egress, 1) },
    Entry { name: "guard_sock_create", attach: Attach::Cgroup(Hook::SockCreate, 2) },
    Entry { name: "guard_ingress", attach: Attach::Watch(0) },
    Entry { name: "guard_bound4", attach: Attach::Watch(12) },
    Entry { name: "guard_bound6", attach: Attach::Watch(13) },
    Entry { name: "guard_released", attach: Attach::Watch(34) },
    Entry { name: "guard_sock_ops", attach: Attach::Watch(3) },
    Entry { name: "guard_fork", attach: Attach::Tracepoint("sched_process_fork") },
    Entry { name: "guard_exec", attach: Attach::Tracepoint("sched_process_exec") },
    Entry { name: "guard_exit", attach: Attach::Tracepoint("sched_process_exit") },
];

/// Where and what to load.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) run_dir: &'a Path,
    pub(crate) bpffs: &'a Path,
    pub(crate) hooks: &'a [Hook],
    pub(crate) ring_bytes: Option<u32>,
}

/// What is loaded.
pub(crate) struct Loaded {
    pub(crate) bpf: Ebpf,
    /// Whether the maps of an earlier process were taken over.
    pub(crate) adopted: bool,
    /// What had to be done that somebody should know.
    pub(crate) notes: Vec<String>,
    /// The kernel's types; reading them takes long enough to do it once.
    pub(crate) types: KernelTypes,
}

/// Loads and attaches everything that the plan names.
pub(crate) fn load(plan: &Plan<'_>, hierarchy: &Hierarchy, root: &Cgroup) -> Result<Loaded> {
    let bytes = object().ok_or(LoadError::NoObject)?;
    let mut notes = Vec::new();
    if mount_bpffs(plan.bpffs)? {
        notes.push(format!("mounted a BPF file system at {}", plan.bpffs.display()));
    }
    let directory = pin_directory(plan.bpffs, plan.run_dir);
    fs::create_dir_all(&directory).map_err(pin_error("make the directory of", &directory))?;

    let ring = plan.ring_bytes;
    let adopted = keep_fitting_maps(bytes, &directory, ring, &mut notes)?;
    let types = KernelTypes::running()?;
    let offsets = offsets(&types)?;
    let kernel = Btf::from_sys_fs().map_err(|error| LoadError::Object(Box::new(error.into())))?;
    let (root_id, level) = (root.id().0, hierarchy.level(root.path())?);
    let pins: Vec<_> = PINNED_MAPS.iter().map(|name| (*name, directory.join(name))).collect();
    let mut loader = EbpfLoader::new();
    loader.btf(Some(&kernel));
    loader.override_global("ROOT_ID", &root_id, true).override_global("ROOT_LEVEL", &level, true);
    for (name, offset) in &offsets {
        loader.override_global(name, offset, true);
    }
    for (name, path) in &pins {
        loader.map_pin_path(name, path.as_path());
    }
    if let Some(bytes) = &ring {
        loader.map_max_entries("EVENTS", *bytes).map_max_entries("DENIALS", *bytes);
    }
    let mut bpf = loader.load(bytes).map_err(object_error)?;

    for entry in &PROGRAMS {
        let (wanted, _) = entry.attach.wanted(plan.hooks);
        let pin = directory.join(format!("link_{}", entry.name));
        if wanted {
            let link = attach(&mut bpf, entry, root, &kernel)?;
            replace_link(link, &pin)?;
        } else {
            remove_pin(&pin)?;
        }
    }
    remove_other_layouts(plan)?;
    for entry in &PROGRAMS {
        if let (wanted, Some(kind)) = entry.attach.wanted(plan.hooks) {
            let expected = usize::from(wanted);
            let count = settled_count(root, kind, entry.name, expected)?;
            if count != expected {
                let path = root.path().to_path_buf();
                return Err(LoadError::Attached { program: entry.name, count, path });
            }
        }
    }
    Ok(Loaded { bpf, adopted, notes, types })
}

/// Removes every pin of a run directory, so that nothing of it is enforced any more.
///
/// # Errors
/// If a pin is there and cannot be removed.
pub fn release(bpffs: &Path, run_dir: &Path) -> Result<()> {
    for layout in list(&bpffs.join("guard"))? {
        let directory = layout.join(pin_name(run_dir));
        remove_directory(&directory)?;
        // The layout's directory goes with its last user.
        let _ = fs::remove_dir(&layout);
    }
    let _ = fs::remove_dir(bpffs.join("guard"));
    Ok(())
}

fn remove_directory(directory: &Path) -> Result<()> {
    let pins = list(directory)?;
    // Links first: maps without programs enforce nothing, programs without maps deny.
    let (links, maps): (Vec<_>, Vec<_>) = pins.into_iter().partition(|path| is_link(path));
    for pin in links.iter().chain(&maps) {
        remove_pin(pin)?;
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(pin_error("remove the directory of", directory)(error))
        }
        _ => Ok(()),
    }
}

fn is_link(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"link_"))
}

fn remove_other_layouts(plan: &Plan<'_>) -> Result<()> {
    for layout in list(&plan.bpffs.join("guard"))? {
        if layout.file_name() != Some(LAYOUT.as_ref()) {
            remove_directory(&layout.join(pin_name(plan.run_dir)))?;
        }
    }
    Ok(())
}

fn pin_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> LoadError + 'a {
    move |error| {
        if lacks_privilege(&error) {
            return LoadError::Privilege { what: format!("{what} {}", path.display()) };
        }
        LoadError::Pin { what, path: path.to_path_buf(), error }
    }
}

fn object_error(error: EbpfError) -> LoadError {
    let text = error_chain(&error);
    if rustix::process::geteuid().is_root() || !text.contains("Operation not permitted") {
        LoadError::Object(Box::new(error))
    } else {
        LoadError::Privilege { what: "load BPF programs".into() }
    }
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

/// The name under which a run directory's pins are found again: readable, and different for different paths.
fn pin_name(run_dir: &Path) -> String {
    let path = fs::canonicalize(run_dir).unwrap_or_else(|_| run_dir.to_path_buf());
    let last = path.file_name().unwrap_or_default().to_string_lossy();
    let readable: String =
        last.chars().take(32).map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    let digest = Sha256::digest(path.as_os_str().as_bytes());
    let tail: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{readable}-{tail}")
}

fn pin_directory(bpffs: &Path, run_dir: &Path) -> PathBuf {
    bpffs.join("guard").join(LAYOUT).join(pin_name(run_dir))
}

fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(pin_error("list", directory)(error)),
    }
}

fn remove_pin(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(pin_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Mounts the BPF file system if it is not there; says whether it had to.
fn mount_bpffs(path: &Path) -> Result<bool> {
    let failed = |error| {
        if lacks_privilege(&error) {
            return LoadError::Privilege { what: format!("mount a BPF file system at {}", path.display()) };
        }
        LoadError::NoBpffs { path: path.to_path_buf(), error }
    };
    let text = fs::read("/proc/self/mountinfo").map_err(failed)?;
    if mounts_of_type(&text, b"bpf").any(|mount| mount.point == path) {
        return Ok(false);
    }
    fs::create_dir_all(path).map_err(failed)?;
    let options = CString::from(c"mode=0700");
    rustix::mount::mount("bpf", path, "bpf", rustix::mount::MountFlags::empty(), Some(options.as_c_str()))
        .map_err(|error| failed(error.into()))?;
    Ok(true)
}

/// Removes pinned maps that do not fit this object; all of them if one does not, since they belong together.
fn keep_fitting_maps(
    object: &[u8],
    directory: &Path,
    ring: Option<u32>,
    notes: &mut Vec<String>,
) -> Result<bool> {
    let object = aya_obj::Object::parse(object).map_err(|error| LoadError::Object(Box::new(error.into())))?;
    let mut present = 0;
    let mut misfit = None;
    for name in PINNED_MAPS {
        let path = directory.join(name);
        if !path.exists() {
            continue;
        }
        present += 1;
        let wanted = object.maps.get(name).ok_or(LoadError::Part(name))?;
        let is_ring = matches!(name, "EVENTS" | "DENIALS");
        let entries = ring.filter(|_| is_ring).unwrap_or(wanted.max_entries());
        let fits = MapInfo::from_pin(&path).is_ok_and(|info| {
            info.map_type().is_ok_and(|kind| kind as u32 == wanted.map_type())
                && info.key_size() == wanted.key_size()
                && info.value_size() == wanted.value_size()
                && info.max_entries() == entries
                && info.map_flags() == wanted.map_flags()
        });
        if !fits {
            misfit = Some(name);
        }
    }
    if present == 0 {
        return Ok(false);
    }
    if misfit.is_none() && present == PINNED_MAPS.len() {
        return Ok(true);
    }
    let why = misfit.map_or_else(|| "some are missing".to_owned(), |name| format!("{name} does not fit"));
    notes.push(format!(
        "the maps of an earlier guardd are not used ({why}): only loopback passes until rules come"
    ));
    for name in PINNED_MAPS {
        remove_pin(&directory.join(name))?;
    }
    Ok(false)
}

fn offsets(types: &KernelTypes) -> Result<Vec<(&'static str, u32)>> {
    type Fields = &'static [(&'static str, &'static str)];
    const WANTED: [(&str, Fields); 9] = [
        (
            "task_struct",
            &[
                ("TASK_TGID", "tgid"),
                ("TASK_PID", "pid"),
                ("TASK_REAL_PARENT", "real_parent"),
                ("TASK_GROUP_LEADER", "group_leader"),
                ("TASK_EXIT_CODE", "exit_code"),
                ("TASK_SIGNAL", "signal"),
                ("TASK_MM", "mm"),
                ("TASK_START", "start_boottime"),
            ],
        ),
        ("signal_struct", &[("SIGNAL_LIVE", "live"), ("SIGNAL_GROUP_EXIT_CODE", "group_exit_code")]),
        ("mm_struct", &[("MM_ARG_START", "arg_start"), ("MM_ARG_END", "arg_end")]),
        ("linux_binprm", &[("BPRM_FILE", "file"), ("BPRM_FILENAME", "filename"), ("BPRM_INTERP", "interp")]),
        ("file", &[("FILE_INODE", "f_inode")]),
        ("inode", &[("INODE_NUMBER", "i_ino"), ("INODE_SUPER", "i_sb"), ("INODE_LINKS", "i_nlink")]),
        ("super_block", &[("SUPER_DEVICE", "s_dev")]),
        (
            "tcp_sock",
            &[
                ("TCP_SENT", "bytes_sent"),
                ("TCP_SENT_AGAIN", "bytes_retrans"),
                ("TCP_RECEIVED", "bytes_received"),
            ],
        ),
        ("sock_common", &[("SOCK_FLAGS", "skc_flags")]),
    ];
    /// A field of a structure that lies within another.
    const NESTED: [(&str, [(&str, &str); 2]); 2] = [
        ("FILE_DENTRY", [("file", "f_path"), ("path", "dentry")]),
        ("DENTRY_NAME", [("dentry", "d_name"), ("qstr", "name")]),
    ];
    let mut found = Vec::new();
    for (structure, fields) in WANTED {
        let names: Vec<_> = fields.iter().map(|(_, field)| *field).collect();
        let values = types.offsets(structure, &names)?;
        found.extend(fields.iter().map(|(global, _)| *global).zip(values));
    }
    for (global, steps) in NESTED {
        let mut sum = 0;
        for (structure, field) in steps {
            sum += types.offsets(structure, &[field])?.into_iter().sum::<u32>();
        }
        found.push((global, sum));
    }
    Ok(found)
}

fn attach(bpf: &mut Ebpf, entry: &Entry, root: &Cgroup, kernel: &Btf) -> Result<FdLink> {
    let program = bpf.program_mut(entry.name).ok_or(LoadError::Part(entry.name))?;
    let failed = |what| {
        move |error: ProgramError| {
            let refused = error_chain(&error).contains("Operation not permitted");
            if refused && !rustix::process::geteuid().is_root() {
                return LoadError::Privilege { what: format!("{what} {}", entry.name) };
            }
            LoadError::Program { what, program: entry.name, error: Box::new(error) }
        }
    };
    let not_a_link = |_| LoadError::Part("bpf_link: the kernel is older than 5.7");
    let mode = CgroupAttachMode::default();
    match program {
        Program::CgroupSockAddr(program) => {
            program.load().map_err(failed("load"))?;
            let id = program.attach(root, mode).map_err(failed("attach"))?;
            program.take_link(id).map_err(failed("attach"))?.try_into().map_err(not_a_link)
        }
        Program::CgroupSkb(program) => {
            program.load().map_err(failed("load"))?;
            let way = match entry.attach {
                Attach::Watch(_) => CgroupSkbAttachType::Ingress,
                _ => CgroupSkbAttachType::Egress,
            };
            let id = program.attach(root, way, mode).map_err(failed("attach"))?;
            program.take_link(id).map_err(failed("attach"))?.try_into().map_err(not_a_link)
        }
        Program::CgroupSock(program) => {
            program.load().map_err(failed("load"))?;
            let id = program.attach(root, mode).map_err(failed("attach"))?;
            program.take_link(id).map_err(failed("attach"))?.try_into().map_err(not_a_link)
        }
        Program::SockOps(program) => {
            program.load().map_err(failed("load"))?;
            let id = program.attach(root, mode).map_err(failed("attach"))?;
            program.take_link(id).map_err(failed("attach"))?.try_into().map_err(not_a_link)
        }
        Program::BtfTracePoint(program) => {
            let Attach::Tracepoint(name) = entry.attach else { return Err(LoadError::Part(entry.name)) };
            program.load(name, kernel).map_err(failed("load"))?;
            let id = program.attach().map_err(failed("attach"))?;
            Ok(program.take_link(id).map_err(failed("attach"))?.into())
        }
        _ => Err(LoadError::Part(entry.name)),
    }
}

/// Pins a link under a name that an older link may have: the older one lets go when its pin is replaced.
fn replace_link(link: FdLink, pin: &Path) -> Result<()> {
    // The file system takes no dots in names.
    let mut new = pin.as_os_str().to_owned();
    new.push("_new");
    let new = PathBuf::from(new);
    remove_pin(&new)?;
    link.pin(&new).map_err(|error| pin_error("make", &new)(io::Error::other(error)))?;
    remove_pin(pin)?;
    fs::rename(&new, pin).map_err(pin_error("put in place", pin))
}

/// [`count_attached`], once the kernel has done away with what was replaced: it frees a link some time after its
/// last pin and descriptor are gone. Too few programs do not become more, so only too many are waited for.
fn settled_count(root: &Cgroup, attach_type: u32, name: &str, expected: usize) -> Result<usize> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let count = count_attached(root, attach_type, name)?;
        if count <= expected || Instant::now() >= deadline {
            return Ok(count);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How many programs of this name are attached to the group itself. `BPF_PROG_ATTACH` has been seen to add where
/// it was asked to replace, so this is looked at and not believed.
fn count_attached(root: &Cgroup, attach_type: u32, name: &str) -> Result<usize> {
    /// `struct bpf_attr` for `BPF_PROG_QUERY`.
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        target: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        padding: u32,
        attach_flags_of_each: u64,
        link_ids: u64,
        link_attach_flags: u64,
        revision: u64,
    }
    const BPF_PROG_QUERY: libc::c_long = 16;
    let mut ids = [0_u32; 64];
    let mut query = Query {
        target: u32::try_from(root.as_fd().as_raw_fd()).unwrap_or(u32::MAX),
        attach_type,
        ids: ids.as_mut_ptr() as u64,
        count: 64,
        ..Query::default()
    };
    // SAFETY: the structure is laid out as the kernel reads it, and `ids` has room for `count` numbers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, &raw mut query, size_of::<Query>()) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(LoadError::Query { path: root.path().to_path_buf(), error });
    }
    // The kernel keeps 15 bytes of a program's name.
    let short = &name.as_bytes()[..name.len().min(15)];
    let attached: Vec<u32> = ids[..query.count.min(64) as usize].to_vec();
    let infos = aya::programs::loaded_programs().flatten();
    Ok(infos.filter(|info| attached.contains(&info.id()) && info.name() == short).count())
}

/// Takes a map out of the loaded object.
pub(crate) fn take_map(bpf: &mut Ebpf, name: &'static str) -> Result<Map> {
    bpf.take_map(name).ok_or(LoadError::Part(name))
}

/// For readers that only want the map's descriptor.
pub(crate) type Data = MapData;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_directories_have_names_of_their_own() {
        let names =
            ["/run/guard", "/run/guard2", "/tmp/guard", "/tmp/g g"].map(|path| pin_name(Path::new(path)));
        assert!(names[0].starts_with("guard-"), "{}", names[0]);
        assert!(names[3].starts_with("g_g-"), "{}", names[3]);
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name}");
        }
    }

    #[test]
    fn each_failure_has_its_own_code() {
        let io = || io::Error::other("x");
        let path = || PathBuf::from("/x");
        assert_eq!(LoadError::NoObject.code(), "no_bpf");
        assert_eq!(LoadError::Privilege { what: String::new() }.code(), "no_privilege");
        assert_eq!(LoadError::Cgroup(CgroupError::NotMounted).code(), "no_cgroup2");
        assert_eq!(LoadError::Btf(BtfError::Malformed { at: 0 }).code(), "no_btf");
        assert_eq!(LoadError::NoBpffs { path: path(), error: io() }.code(), "no_bpffs");
    }
}
