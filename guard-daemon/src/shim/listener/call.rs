//! What a trapped call is about, read from its number and registers; memory is not looked at here.

use std::os::fd::RawFd;

use crate::sandbox::seccomp::{SYS_FCHMODAT2, SYS_REMOVEXATTRAT, SYS_SETXATTRAT};

/// A place that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A path at this address, from this directory on.
    Path {
        directory: RawFd,
        address: u64,
    },
    Descriptor(RawFd),
}

/// Which object of the place is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    /// The directory in which the name is made or removed.
    Parent,
    /// What the name means; the last link is followed or not.
    Target { follow: bool },
    /// What an open with these flags touches.
    Opened { flags: libc::c_int },
}

/// A trapped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Change { operation: &'static str, place: Place, object: Object, other: Option<Place> },
    Connect { address: u64, length: u64 },
}

/// A rename that must not replace anything.
pub(super) const RENAME_NEW: &str = "rename to a new name";

const FOLLOW: Object = Object::Target { follow: true };
const NO_FOLLOW: Object = Object::Target { follow: false };
/// `RENAME_NOREPLACE`
const RENAME_NOREPLACE: libc::c_int = 1;
/// `RENAME_EXCHANGE`: nothing is lost.
const RENAME_EXCHANGE: libc::c_int = 2;
const CREATE: libc::c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// Reads one call; `None` when it is not one of the trapped.
pub(super) fn decode(number: libc::c_long, arguments: &[u64; 6]) -> Option<Call> {
    let [a, b, c, d, e, _] = *arguments;
    // The kernel looks at the low 32 bits of descriptors and flags; what else the register holds means nothing.
    let int = |argument: u64| (argument & 0xffff_ffff) as u32 as libc::c_int;
    let here = |address: u64| Place::Path { directory: libc::AT_FDCWD, address };
    let at = |directory: u64, address: u64| Place::Path { directory: int(directory), address };
    // With an empty or no path these mean the descriptor itself.
    let at_or_descriptor = |directory: u64, address: u64, flags: u64| {
        if address == 0 || int(flags) & libc::AT_EMPTY_PATH != 0 && int(directory) != libc::AT_FDCWD {
            Place::Descriptor(int(directory))
        } else {
            at(directory, address)
        }
    };
    let by_flags = |flags: u64| Object::Target { follow: int(flags) & libc::AT_SYMLINK_NOFOLLOW == 0 };
    let change = |operation, place, object| Some(Call::Change { operation, place, object, other: None });
    let two = |operation, place, other| {
        Some(Call::Change { operation, place, object: Object::Parent, other: Some(other) })
    };
    let open = |place, flags: libc::c_int| {
        let operation = if flags & libc::O_TRUNC != 0 { "truncate" } else { "write" };
        change(operation, place, Object::Opened { flags })
    };
    match number {
        libc::SYS_openat => open(at(a, b), int(c)),
        libc::SYS_unlinkat if int(c) & libc::AT_REMOVEDIR != 0 => change("rmdir", at(a, b), Object::Parent),
        libc::SYS_unlinkat => change("unlink", at(a, b), Object::Parent),
        libc::SYS_renameat2 if int(e) & RENAME_EXCHANGE != 0 => two("exchange", at(a, b), at(c, d)),
        libc::SYS_renameat2 if int(e) & RENAME_NOREPLACE != 0 => two(RENAME_NEW, at(a, b), at(c, d)),
        libc::SYS_renameat | libc::SYS_renameat2 => two("rename", at(a, b), at(c, d)),
        libc::SYS_linkat => two("link", at(c, d), at_or_descriptor(a, b, e)),
        libc::SYS_symlinkat => change("symlink", at(b, c), Object::Parent),
        libc::SYS_mkdirat => change("mkdir", at(a, b), Object::Parent),
        libc::SYS_mknodat => change("mknod", at(a, b), Object::Parent),
        libc::SYS_truncate => change("truncate", here(a), FOLLOW),
        libc::SYS_fchmod => change("chmod", Place::Descriptor(int(a)), FOLLOW),
        libc::SYS_fchmodat => change("chmod", at(a, b), FOLLOW),
        SYS_FCHMODAT2 => change("chmod", at_or_descriptor(a, b, d), by_flags(d)),
        libc::SYS_fchown => change("chown", Place::Descriptor(int(a)), FOLLOW),
        libc::SYS_fchownat => change("chown", at_or_descriptor(a, b, e), by_flags(e)),
        libc::SYS_utimensat => change("utimes", at_or_descriptor(a, b, d), by_flags(d)),
        libc::SYS_setxattr | libc::SYS_removexattr => change("xattr", here(a), FOLLOW),
        libc::SYS_lsetxattr | libc::SYS_lremovexattr => change("xattr", here(a), NO_FOLLOW),
        libc::SYS_fsetxattr | libc::SYS_fremovexattr => change("xattr", Place::Descriptor(int(a)), FOLLOW),
        SYS_SETXATTRAT | SYS_REMOVEXATTRAT => change("xattr", at_or_descriptor(a, b, c), by_flags(c)),
        libc::SYS_connect => Some(Call::Connect { address: b, length: c & 0xffff_ffff }),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => open(here(a), int(b)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => open(here(a), CREATE),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink => change("unlink", here(a), Object::Parent),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rmdir => change("rmdir", here(a), Object::Parent),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => two("rename", here(a), here(b)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_link => two("link", here(b), here(a)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_symlink => change("symlink", here(b), Object::Parent),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir => change("mkdir", here(a), Object::Parent),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mknod => change("mknod", here(a), Object::Parent),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => change("chmod", here(a), FOLLOW),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chown => change("chown", here(a), FOLLOW),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lchown => change("chown", here(a), NO_FOLLOW),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_utime | libc::SYS_utimes => change("utimes", here(a), FOLLOW),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_futimesat => change("utimes", at_or_descriptor(a, b, 0), FOLLOW),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trapped_call_is_understood() {
        for number in crate::sandbox::seccomp::trapped_calls().expect("the table") {
            assert!(decode(number, &[1; 6]).is_some(), "{number}");
        }
        assert_eq!(decode(libc::SYS_read, &[0; 6]), None);
    }

    #[test]
    fn high_register_bits_mean_nothing() {
        let junk = 0xdead_0000_0000_0000;
        let cwd = u64::from(libc::AT_FDCWD.cast_unsigned());
        let flags = u64::from((libc::O_WRONLY | libc::O_CREAT).cast_unsigned());
        let plain = decode(libc::SYS_openat, &[cwd, 8, flags, 0, 0, 0]);
        assert_eq!(decode(libc::SYS_openat, &[cwd | junk, 8, flags | junk, 0, 0, 0]), plain);
        let Some(Call::Change { place, .. }) = plain else { panic!("{plain:?}") };
        assert_eq!(place, Place::Path { directory: libc::AT_FDCWD, address: 8 });
    }

    #[test]
    fn without_a_path_the_descriptor_is_meant() {
        for (number, arguments) in [
            (libc::SYS_utimensat, [5, 0, 0, 0, 0, 0]),
            (libc::SYS_fchownat, [5, 64, 0, 0, libc::AT_EMPTY_PATH as u64, 0]),
            (libc::SYS_fchmod, [5, 0, 0, 0, 0, 0]),
        ] {
            let Some(Call::Change { place, .. }) = decode(number, &arguments) else { panic!("{number}") };
            assert_eq!(place, Place::Descriptor(5), "{number}");
        }
    }
}
