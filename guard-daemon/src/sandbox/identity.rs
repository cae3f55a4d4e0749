//! Whose rights an agent has: those of the caller, never root's by accident.

use std::{
    ffi::{CStr, OsString},
    io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use crate::accounts::user_with;

/// One uid with its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Why no identity was found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdentityError {
    #[error(
        "root called, and the worktree belongs to root: chown it to the user that the agent shall be, or accept a root agent with --as-root"
    )]
    Root,
    #[error("--as-root is for root; the caller has uid {0}")]
    NotRoot(u32),
}

/// Who the agent will be.
///
/// A root caller without `as_root` becomes the owner of the worktree, or the user behind `sudo` (`sudo_uid`, which counts
/// for root callers only: any other caller could claim what it likes). `user_of` looks a uid up in the user database.
///
/// # Errors
/// [`IdentityError`]
pub fn choose(
    caller: Identity,
    as_root: bool,
    worktree_owner: (u32, u32),
    sudo_uid: Option<u32>,
    user_of: impl Fn(u32) -> Option<Identity>,
) -> Result<Identity, IdentityError> {
    match (caller.uid, as_root) {
        (0, true) => Ok(Identity { uid: 0, gid: 0, groups: vec![0] }),
        (uid, true) => Err(IdentityError::NotRoot(uid)),
        (0, false) => {
            let (owner, group) = worktree_owner;
            let chosen = if owner == 0 { sudo_uid.filter(|uid| *uid != 0) } else { Some(owner) };
            let uid = chosen.ok_or(IdentityError::Root)?;
            // A uid without a name has just the group that its files have.
            let gid = if owner == uid && group != 0 { group } else { uid };
            Ok(user_of(uid).unwrap_or(Identity { uid, gid, groups: Vec::new() }))
        }
        (_, false) => Ok(caller),
    }
}

/// The identity of a uid in the user database, with the groups that it lists.
#[must_use]
pub fn identity_of(uid: u32) -> Option<Identity> {
    let user = user_with(uid)?;
    let mut groups = vec![0; 128];
    let mut count = 128;
    // SAFETY: `groups` has `count` elements, the name is a C string, and both live through the call.
    let found =
        unsafe { libc::getgrouplist(user.name.as_ptr(), user.gid, groups.as_mut_ptr(), &raw mut count) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    if found < 0 {
        // More groups than any sane user has: keep the primary one, which takes rights away and gives none.
        groups = vec![user.gid];
    }
    Some(Identity { uid, gid: user.gid, groups })
}

/// The homes of root and of all people in the user database; those of the system's own users hold no person's files.
#[must_use]
pub fn homes() -> Vec<PathBuf> {
    const PEOPLE: std::ops::Range<u32> = 1000..65534;
    let mut homes = Vec::new();
    // SAFETY: the process has one thread here, so nobody else walks the database or reads its static buffer.
    unsafe {
        libc::setpwent();
        while let Some(entry) = libc::getpwent().as_ref() {
            let home = PathBuf::from(OsString::from_vec(CStr::from_ptr(entry.pw_dir).to_bytes().to_vec()));
            // `/` or `/data` as a home would hide half of the host.
            let deep = home.components().count() > 2 || home == Path::new("/root");
            if deep && (entry.pw_uid == 0 || PEOPLE.contains(&entry.pw_uid)) && !homes.contains(&home) {
                homes.push(home);
            }
        }
        libc::endpwent();
    }
    homes
}

/// Runs `act` with the file rights of `identity`, then takes root's back. For one thread only.
///
/// # Errors
/// The ids could not be changed; then the process must not go on, which is why this is an error and not a result of `act`.
pub fn with_file_rights<T>(identity: &Identity, act: impl FnOnce() -> T) -> io::Result<T> {
    if identity.uid == 0 {
        return Ok(act());
    }
    let own_groups = rustix::process::getgroups()?;
    let own_groups: Vec<u32> = own_groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    set_effective(&identity.groups, identity.gid, identity.uid, true)?;
    let result = act();
    set_effective(&own_groups, 0, 0, false)?;
    Ok(result)
}

/// Raw system calls: libc's would signal all other threads, of which there are none, and would touch the real ids.
fn set_effective(groups: &[u32], gid: u32, uid: u32, user_last: bool) -> io::Result<()> {
    let keep = u32::MAX;
    let set_user = || {
        // SAFETY: no memory is involved.
        check(unsafe { libc::syscall(libc::SYS_setresuid, keep, uid, keep) })
    };
    if !user_last {
        set_user()?;
    }
    // SAFETY: the pointer and the length describe one live slice.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: no memory is involved.
    check(unsafe { libc::syscall(libc::SYS_setresgid, keep, gid, keep) })?;
    if user_last { set_user() } else { Ok(()) }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Identity {
        Identity { uid, gid: uid, groups: vec![uid] }
    }

    /// C-007, K: a root caller gives an agent root only when it says so.
    #[test]
    fn root_is_never_an_accident() {
        let known = |uid| (uid == 1000).then(|| Identity { uid, gid: 100, groups: vec![100, 27] });
        let named = Identity { uid: 1000, gid: 100, groups: vec![100, 27] };
        let nameless = Identity { uid: 4242, gid: 4343, groups: vec![] };
        for (caller, as_root, owner, sudo, expected) in [
            (0, false, (1000, 1000), None, Ok(named.clone())),
            (0, false, (4242, 4343), None, Ok(nameless)),
            (0, false, (0, 0), Some(1000), Ok(named)),
            (0, false, (0, 0), Some(0), Err(IdentityError::Root)),
            (0, false, (0, 0), None, Err(IdentityError::Root)),
            (0, true, (1000, 1000), None, Ok(Identity { uid: 0, gid: 0, groups: vec![0] })),
            (7, true, (7, 7), None, Err(IdentityError::NotRoot(7))),
            (7, false, (8, 8), Some(0), Ok(user(7))),
        ] {
            assert_eq!(choose(user(caller), as_root, owner, sudo, known), expected);
        }
    }
}
