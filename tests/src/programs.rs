//! Where the programs of this build are, for every user of this machine.
//!
//! A build below `/root` can be entered by root alone, while agents and people of the tests are other users: then the
//! programs are linked (or copied) into a directory that all may enter, as a package would install them, for as long
//! as this process lives.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
/// By which process, since a forked child that exits has nothing to remove.
static INSTALLED: OnceLock<(u32, PathBuf)> = OnceLock::new();

/// The directory of the programs of this build.
///
/// # Panics
/// If only root may enter it and they cannot be put elsewhere.
#[must_use]
pub fn programs() -> PathBuf {
    let found = || {
        let built = built();
        if open_to_all(&built) || !rustix::process::geteuid().is_root() {
            return built;
        }
        install(&built).unwrap_or_else(|error| {
            panic!("only root may enter {}, and its programs cannot be installed: {error}", built.display())
        })
    };
    PROGRAMS.get_or_init(found).clone()
}

/// Beside this program, or above it: tests lie one level below the programs.
fn built() -> PathBuf {
    let me = std::env::current_exe().unwrap_or_default();
    let directory = me.parent().map(PathBuf::from).unwrap_or_default();
    if directory.ends_with("deps") {
        directory.parent().map(PathBuf::from).unwrap_or_default()
    } else {
        directory
    }
}

/// Whether everybody may enter it.
fn open_to_all(directory: &Path) -> bool {
    directory
        .ancestors()
        .all(|path| fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o001 != 0))
}

fn install(built: &Path) -> std::io::Result<PathBuf> {
    // Not below /tmp, which agents do not see.
    let directory = tempfile::Builder::new().prefix("guard-test-programs-").tempdir_in("/var/lib")?.keep();
    INSTALLED.get_or_init(|| (std::process::id(), directory.clone()));
    // SAFETY: the handler is a plain function that stays for the life of the process.
    unsafe { libc::atexit(uninstall) };
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(built)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
            continue;
        }
        let place = directory.join(entry.file_name());
        // A link cannot cross file systems; a copy can.
        if fs::hard_link(entry.path(), &place).is_err() {
            fs::copy(entry.path(), &place)?;
        }
    }
    Ok(directory)
}

extern "C" fn uninstall() {
    if let Some((process, directory)) = INSTALLED.get()
        && *process == std::process::id()
    {
        // The process is ending: what cannot be removed stays, with a name that says whose it is.
        let _ = fs::remove_dir_all(directory);
    }
}
