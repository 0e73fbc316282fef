//! Whether somebody else has an object open or mapped (docs/design/0017).
//!
//! What is true here:
//! * The kernel grants a write lease to the only open description of a file, and a mapping keeps one of its own. Nobody else has
//!   the object then. The lease is asked for by the description that this tier keeps anyhow.
//! * Whoever opens the object while the lease is held waits for the moment until it is given back. The kernel tells the owner
//!   of the lease by a signal; `SIGURG` is one that does nothing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::PosixTier;
use crate::capabilities::{Capabilities, Guarantee};
use crate::error::TierError;
use crate::object::ObjectRef;
use crate::tier::Tier;

/// `F_SETSIG` of include/uapi/asm-generic/fcntl.h, which the crate `libc` does not have.
const SET_SIGNAL: libc::c_int = 10;

/// What the kernel said to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// Nobody else has the file.
    Granted,
    /// Somebody has it.
    Refused,
    /// This file system gives none, or not to this process.
    Impossible,
}

impl PosixTier {
    pub(super) fn object_may_be_open_elsewhere(&self, object: ObjectRef) -> Result<bool, TierError> {
        let Capabilities { guarantee, .. } = *self.capabilities();
        if guarantee == Guarantee::Remote {
            // No object of it was ever lent.
            return Ok(false);
        }
        let open = match self.object(object) {
            Ok(open) => open,
            Err(TierError::NotFound(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        // Where there are no leases, nothing is lent.
        Ok(ask_for_lease(open.descriptor.as_fd()) == Lease::Refused)
    }
}

/// Asks for a write lease, and gives it back.
pub(super) fn ask_for_lease(descriptor: BorrowedFd<'_>) -> Lease {
    // SAFETY: the descriptor is open, and this request takes a whole number and touches no memory of ours.
    let ask = |request, argument: libc::c_int| unsafe { libc::fcntl(descriptor.as_raw_fd(), request, argument) } == 0;
    if !ask(SET_SIGNAL, libc::SIGURG) {
        return Lease::Impossible;
    }
    if ask(libc::F_SETLEASE, libc::F_WRLCK) {
        let given_back = ask(libc::F_SETLEASE, libc::F_UNLCK);
        return if given_back { Lease::Granted } else { Lease::Impossible };
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Lease::Refused,
        _ => Lease::Impossible,
    }
}
