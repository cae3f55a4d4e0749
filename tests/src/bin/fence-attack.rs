//! Attacks on the fence, each under exactly the layers that are named, so that a test can say which layer holds.
//!
//! `fence-attack LAYERS UID WORKTREE ATTACK [ARGUMENT…]`: LAYERS is a list of `view`, `landlock`, `seccomp`, `none`. Prints
//! `done`, or the errno's number.

use std::{
    ffi::{CString, OsString},
    io,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use guard_daemon::sandbox::{
    identity::Identity,
    landlock, privilege, seccomp,
    view::{self, Trees},
};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match run(&arguments) {
        Ok(Ok(())) => println!("done"),
        Ok(Err(error)) => println!("{}", error.raw_os_error().unwrap_or(-1)),
        Err(error) => {
            eprintln!("fence-attack: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run(arguments: &[OsString]) -> anyhow::Result<io::Result<()>> {
    let [layers, uid, worktree, attack, rest @ ..] = arguments else {
        bail!("usage: LAYERS UID WORKTREE ATTACK [ARGUMENT…]");
    };
    let layers = layers.to_string_lossy();
    let has = |name| layers.split(',').any(|layer| layer == name);
    let uid: u32 = uid.to_string_lossy().parse().context("a uid")?;
    let identity = Identity { uid, gid: uid, groups: Vec::new() };
    let worktree = PathBuf::from(worktree);
    if has("view") {
        enter_view(&worktree)?;
    }
    privilege::limit_capabilities()?;
    privilege::no_new_privileges()?;
    if has("landlock") {
        landlock::apply(&landlock::Fence { read_write: vec![worktree.clone()], files: Vec::new() })?;
    }
    if uid != 0 {
        privilege::become_identity(&identity)?;
    }
    std::env::set_current_dir(&worktree)?;
    let rest: Vec<CString> =
        rest.iter().map(|argument| CString::new(argument.as_bytes())).collect::<Result<_, _>>()?;
    if has("seccomp") {
        seccomp::load(&seccomp::compile(false)?)?;
    }
    attack_by(&attack.to_string_lossy(), &rest)
}

/// The view needs a process that is the first of its PID namespace.
fn enter_view(worktree: &Path) -> anyhow::Result<()> {
    let mut trees = Trees::default();
    let descriptor = std::fs::File::open(worktree)?;
    let path = trees.add(descriptor.as_fd(), None, true)?;
    let plan = view::plan(&trees, &view::hidden_of(Path::new("/nonexistent"), &[], &[]), &path)?;
    // SAFETY: this program has one thread.
    let child = unsafe {
        if libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWPID) != 0 {
            return Err(io::Error::last_os_error().into());
        }
        libc::fork()
    };
    match child {
        -1 => Err(io::Error::last_os_error().into()),
        0 => Ok(view::build(&plan, trees, false)?),
        child => {
            let mut status = 0;
            // SAFETY: `status` lives through the call.
            unsafe {
                libc::waitpid(child, &raw mut status, 0);
                libc::_exit(libc::WEXITSTATUS(status));
            }
        }
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn attack_by(name: &str, rest: &[CString]) -> anyhow::Result<io::Result<()>> {
    let path = |position: usize| rest.get(position).map_or(c"".as_ptr(), |path| path.as_ptr());
    let number = |position: usize| -> anyhow::Result<libc::c_long> {
        let text = rest.get(position).map_or("0".into(), |text| text.to_string_lossy());
        Ok(match text.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16)?,
            None => text.parse()?,
        })
    };
    // SAFETY: every pointer is a live C string or a live local; numbers are what the attack is about.
    let result = unsafe {
        match name {
            // A call by its numbers alone: none of them is a valid pointer, so that nothing can happen if it is let through.
            "call" => check(libc::syscall(
                number(0)?,
                number(1)?,
                number(2)?,
                number(3)?,
                number(4)?,
                number(5)?,
                number(6)?,
            )),
            "create" => {
                check(libc::open(path(0), libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o600).into())
            }
            "write" => {
                let descriptor = libc::open(path(0), libc::O_WRONLY | libc::O_APPEND);
                if descriptor < 0 {
                    check(-1)
                } else {
                    check(libc::write(descriptor, b"evil".as_ptr().cast(), 4) as libc::c_long)
                }
            }
            "truncate" => check(libc::truncate(path(0), 0).into()),
            "open-truncate" => check(libc::open(path(0), libc::O_RDONLY | libc::O_TRUNC).into()),
            "tmpfile" => check(libc::open(path(0), libc::O_TMPFILE | libc::O_WRONLY, 0o600).into()),
            "rename" => check(libc::rename(path(0), path(1)).into()),
            "exchange" => check(libc::syscall(
                libc::SYS_renameat2,
                libc::AT_FDCWD,
                path(0),
                libc::AT_FDCWD,
                path(1),
                libc::RENAME_EXCHANGE,
            )),
            "link" => check(libc::link(path(0), path(1)).into()),
            "symlink" => check(libc::symlink(c"target".as_ptr(), path(0)).into()),
            "unlink" => check(libc::unlink(path(0)).into()),
            "rmdir" => check(libc::rmdir(path(0)).into()),
            "mkdir" => check(libc::mkdir(path(0), 0o700).into()),
            "mknod" => check(libc::mknod(path(0), libc::S_IFIFO | 0o600, 0).into()),
            "chmod" => check(libc::chmod(path(0), 0o777).into()),
            "fchmod" => {
                let descriptor = libc::open(path(0), libc::O_RDONLY);
                check(libc::fchmod(descriptor, 0o777).into())
            }
            "chown" => check(libc::chown(path(0), libc::uid_t::MAX, libc::getgid()).into()),
            "utimes" => check(
                libc::utimensat(
                    libc::AT_FDCWD,
                    path(0),
                    [libc::timespec { tv_sec: 1, tv_nsec: 0 }; 2].as_ptr(),
                    0,
                )
                .into(),
            ),
            "xattr" => {
                check(libc::setxattr(path(0), c"user.guard".as_ptr(), b"x".as_ptr().cast(), 1, 0).into())
            }
            "signal" => check(libc::kill(number(0)? as libc::pid_t, 0).into()),
            "abstract" => abstract_connect(path(0)),
            "chattr" => {
                let descriptor = libc::open(path(0), libc::O_RDONLY);
                let mut flags: libc::c_int = 0;
                // FS_IOC_GETFLAGS, FS_NOATIME_FL, FS_IOC_SETFLAGS
                libc::ioctl(descriptor, 0x8008_6601, &raw mut flags);
                flags |= 0x80;
                check(libc::ioctl(descriptor, 0x4008_6602, &raw const flags).into())
            }
            "move-to-cgroup" => check(libc::open(path(0), libc::O_WRONLY).into()).and_then(|()| {
                std::fs::write(Path::new(std::ffi::OsStr::from_bytes(rest[0].as_bytes())), "0")
            }),
            "clone-into" => clone_into(path(0)),
            "exists" => check(libc::access(path(0), libc::F_OK).into()),
            #[cfg(target_arch = "x86_64")]
            "old-gate" => old_gate(),
            "x32" => check(libc::syscall(0x4000_0000 + number(0)?)),
            other => bail!("no attack is called {other}"),
        }
    };
    Ok(result)
}

/// Connects to an abstract socket of this name.
///
/// # Safety
/// `name` is a C string.
unsafe fn abstract_connect(name: *const libc::c_char) -> io::Result<()> {
    // SAFETY: by this function's own condition.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes();
    let address = rustix::net::SocketAddrUnix::new_abstract_name(name)?;
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)?;
    Ok(rustix::net::connect(&socket, &address)?)
}

/// clone3 into the cgroup whose directory this is.
///
/// # Safety
/// `path` is a C string.
unsafe fn clone_into(path: *const libc::c_char) -> io::Result<()> {
    // SAFETY: `path` is a C string; the child ends at once.
    unsafe {
        let directory = libc::open(path, libc::O_RDONLY | libc::O_DIRECTORY);
        if directory < 0 {
            return check(-1);
        }
        let mut arguments: libc::clone_args = std::mem::zeroed();
        arguments.flags = 0x2_0000_0000;
        arguments.exit_signal = 17;
        arguments.cgroup = directory as u64;
        match libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) {
            0 => libc::_exit(0),
            other => check(other),
        }
    }
}

/// getpid by the gate of 32-bit programs, where the same numbers mean other calls.
#[cfg(target_arch = "x86_64")]
fn old_gate() -> io::Result<()> {
    let pid: i64;
    // SAFETY: call 20 of that table is getpid, which touches no memory.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") 20_i64 => pid,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    if pid > 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSYS)) }
}
