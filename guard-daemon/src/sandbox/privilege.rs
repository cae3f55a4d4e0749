//! Giving up privilege: no capabilities, no way to get any, one identity.

use std::io;

use caps::CapSet;

use super::identity::Identity;

/// Why privilege could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error("emptying the {set} capability set: {source}")]
    Capabilities { set: &'static str, source: caps::errors::CapsError },
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },
}

/// `SECBIT_NOROOT`, `SECBIT_NO_SETUID_FIXUP` and `SECBIT_NO_CAP_AMBIENT_RAISE`, each with its lock (`linux/securebits.h`).
const SECURE_BITS: libc::c_ulong = 0b1100_1111;

/// No program that is executed from here on can gain privilege, whatever bits its file has.
///
/// # Errors
/// [`PrivilegeError::Step`]
pub fn no_new_privileges() -> Result<(), PrivilegeError> {
    check("setting no_new_privs", prctl(libc::PR_SET_NO_NEW_PRIVS, 1))
}

/// Limits what a later exec may gain: nothing. Needs `CAP_SETPCAP`, so it comes before [`become_identity`].
///
/// # Errors
/// [`PrivilegeError`]
pub fn limit_capabilities() -> Result<(), PrivilegeError> {
    // Not `caps::clear`: it asks about every capability first, some forty calls more.
    for capability in caps::runtime::thread_all_supported() {
        caps::drop(None, CapSet::Bounding, capability)
            .map_err(|source| PrivilegeError::Capabilities { set: "bounding", source })?;
    }
    caps::clear(None, CapSet::Ambient)
        .map_err(|source| PrivilegeError::Capabilities { set: "ambient", source })?;
    caps::clear(None, CapSet::Inheritable)
        .map_err(|source| PrivilegeError::Capabilities { set: "inheritable", source })?;
    check("locking the secure bits", prctl(libc::PR_SET_SECUREBITS, SECURE_BITS))
}

/// Takes the agent's groups and ids for good and gives up every capability; uid 0 keeps none either.
///
/// # Errors
/// [`PrivilegeError`]
pub fn become_identity(identity: &Identity) -> Result<(), PrivilegeError> {
    // SAFETY: the pointer and the length describe one live slice.
    let groups = unsafe { libc::setgroups(identity.groups.len(), identity.groups.as_ptr()) };
    check("setting the groups", groups)?;
    // SAFETY: no memory is involved.
    let gid = unsafe { libc::setresgid(identity.gid, identity.gid, identity.gid) };
    check("setting the gid", gid)?;
    // SAFETY: no memory is involved.
    let uid = unsafe { libc::setresuid(identity.uid, identity.uid, identity.uid) };
    check("setting the uid", uid)?;
    for (set, name) in [(CapSet::Effective, "effective"), (CapSet::Permitted, "permitted")] {
        let held =
            caps::read(None, set).map_err(|source| PrivilegeError::Capabilities { set: name, source })?;
        if !held.is_empty() {
            caps::clear(None, set).map_err(|source| PrivilegeError::Capabilities { set: name, source })?;
        }
    }
    Ok(())
}

/// Nobody may trace this process or read its memory, also not with its own uid.
///
/// # Errors
/// [`PrivilegeError::Step`]
pub fn hide_memory() -> Result<(), PrivilegeError> {
    check("making the process undumpable", prctl(libc::PR_SET_DUMPABLE, 0))
}

/// Ends this process when its parent ends.
///
/// # Errors
/// [`PrivilegeError::Step`]
pub fn die_with_parent() -> Result<(), PrivilegeError> {
    let signal = libc::c_ulong::from(libc::SIGKILL.unsigned_abs());
    check("asking for a parent death signal", prctl(libc::PR_SET_PDEATHSIG, signal))
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> libc::c_int {
    // SAFETY: the options used in this file take plain numbers.
    unsafe { libc::prctl(option, value, 0, 0, 0) }
}

fn check(step: &'static str, result: libc::c_int) -> Result<(), PrivilegeError> {
    if result == 0 {
        return Ok(());
    }
    Err(PrivilegeError::Step { step, source: io::Error::last_os_error() })
}
