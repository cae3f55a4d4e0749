//! What a caller claims with its descriptors. The shim uses them as root, so each is held against what the caller itself is.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a caller may not have.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    #[error(
        "the worktree belongs to uid {owner}, not to the caller (uid {caller}); choose a directory of your own"
    )]
    Worktree { owner: u32, caller: u32 },
    #[error("the network namespace is not the one that the caller lives in; start the agent from within it")]
    Network,
    #[error("the caller has ended before its agent was started")]
    Gone,
    #[error("asking for the caller's network namespace: {0}")]
    Unknown(#[source] io::Error),
}

impl ClaimError {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Worktree { .. } => "invalid_worktree",
            Self::Network => "invalid_network",
            Self::Gone | Self::Unknown(_) => "launch",
        }
    }
}

/// A user's agent works in a directory of that user.
pub(super) fn worktree(caller: u32, owner: u32) -> Result<(), ClaimError> {
    if caller == 0 || caller == owner {
        return Ok(());
    }
    Err(ClaimError::Worktree { owner, caller })
}

/// Names of network namespaces can be opened by everybody, and entered by root only: the shim must not lend that.
pub(super) fn network(
    client: &OwnedFd,
    caller: u32,
    pid: u32,
    network: BorrowedFd<'_>,
) -> Result<(), ClaimError> {
    if caller == 0 {
        return Ok(());
    }
    let process = peer(client);
    let own = fs::metadata(format!("/proc/{pid}/ns/net")).map_err(ClaimError::Unknown)?;
    let given = rustix::fs::fstat(network).map_err(|error| ClaimError::Unknown(error.into()))?;
    // Its number could be another's by now; before Linux 6.5 there is no way to tell.
    if process.is_some_and(|process| has_ended(process.as_fd())) {
        return Err(ClaimError::Gone);
    }
    if (own.dev(), own.ino()) == (given.st_dev, given.st_ino) { Ok(()) } else { Err(ClaimError::Network) }
}

/// The process that connected.
fn peer(client: &OwnedFd) -> Option<OwnedFd> {
    /// `SO_PEERPIDFD`, Linux 6.5.
    const PEER_PIDFD: libc::c_int = 77;

    let mut descriptor: libc::c_int = -1;
    let mut size = libc::socklen_t::try_from(size_of_val(&descriptor)).ok()?;
    // SAFETY: both pointers live through the call and the size is that of the number.
    let result = unsafe {
        libc::getsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            PEER_PIDFD,
            (&raw mut descriptor).cast(),
            &raw mut size,
        )
    };
    // SAFETY: the kernel just made it.
    (result == 0 && descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A descriptor of a process is readable once it has ended.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
}
