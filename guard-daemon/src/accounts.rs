//! Users and groups: the host's database, and what a socket's other end had when it connected.

use std::{
    ffi::{CStr, CString, OsString},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStringExt as _,
    },
    path::PathBuf,
};

/// A user as the host's user database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: CString,
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
}

/// A user by name.
#[must_use]
pub fn user_named(name: &str) -> Option<User> {
    let name = CString::new(name).ok()?;
    read_user(|entry, text, length, found| {
        // SAFETY: `read_user` passes pointers to live objects of the sizes given.
        unsafe { libc::getpwnam_r(name.as_ptr(), entry, text, length, found) }
    })
}

/// A user by uid.
#[must_use]
pub fn user_with(uid: u32) -> Option<User> {
    read_user(|entry, text, length, found| {
        // SAFETY: `read_user` passes pointers to live objects of the sizes given.
        unsafe { libc::getpwuid_r(uid, entry, text, length, found) }
    })
}

fn read_user(
    call: impl FnOnce(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
) -> Option<User> {
    let mut text = vec![0; 16 << 10];
    // SAFETY: all-zero is a valid `passwd`: numbers and null pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    let result = call(&raw mut entry, text.as_mut_ptr(), text.len(), &raw mut found);
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the user was found, so its strings point into `text`, which is alive.
    let (name, home) = unsafe { (CStr::from_ptr(entry.pw_name), CStr::from_ptr(entry.pw_dir)) };
    Some(User {
        name: name.to_owned(),
        uid: entry.pw_uid,
        gid: entry.pw_gid,
        home: PathBuf::from(OsString::from_vec(home.to_bytes().to_vec())),
    })
}

/// The id of a group by its name.
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut text = vec![0; 64 << 10];
    // SAFETY: all-zero is a valid `group`: numbers and null pointers.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: every pointer lives through the call and the length is that of `text`.
    let result = unsafe {
        libc::getgrnam_r(name.as_ptr(), &raw mut entry, text.as_mut_ptr(), text.len(), &raw mut found)
    };
    (result == 0 && !found.is_null()).then_some(entry.gr_gid)
}

/// The supplementary groups that the other end of a Unix socket had when it connected, not those that a user database lists.
///
/// # Errors
/// The kernel's refusal (`SO_PEERGROUPS`, Linux 4.13).
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut bytes =
            libc::socklen_t::try_from(size_of_val(groups.as_slice())).map_err(io::Error::other)?;
        // SAFETY: the buffer has `bytes` bytes and both pointers live through the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let needed = usize::try_from(bytes).map_err(io::Error::other)? / size_of::<u32>();
        if result == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || needed <= groups.len() {
            return Err(error);
        }
        groups.resize(needed, 0);
    }
}
