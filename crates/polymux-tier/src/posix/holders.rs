//! Whether an object is open or mapped elsewhere (docs/design/0017).
//!
//! Invariants:
//! * The kernel grants a write lease only to the sole open file description of a file, and a mapping keeps one of its own. A granted
//!   lease means that the object is open nowhere else. The lease is requested through the description that this tier keeps anyhow.
//! * An open of the object while the lease is held blocks until the lease is given back. The kernel notifies the owner of the
//!   lease by a signal; `SIGURG` is one that does nothing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::PosixTier;
use crate::capabilities::{Capabilities, Guarantee};
use crate::error::TierError;
use crate::object::ObjectRef;
use crate::tier::Tier;

/// `F_SETSIG` of include/uapi/asm-generic/fcntl.h, which the crate `libc` does not have.
const SET_SIGNAL: libc::c_int = 10;

/// The kernel's answer to the request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// The file is open nowhere else.
    Granted,
    /// The file is open elsewhere.
    Refused,
    /// This file system gives none, or not to this process.
    Impossible,
}

impl PosixTier {
    pub(super) fn object_may_be_open_elsewhere(&self, object: ObjectRef) -> Result<bool, TierError> {
        let Capabilities { guarantee, .. } = *self.capabilities();
        if guarantee == Guarantee::Remote {
            // No object of it was ever passthrough-open.
            return Ok(false);
        }
        let open = match self.object(object) {
            Ok(open) => open,
            Err(TierError::NotFound(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        // Where leases do not work, no object is passthrough-open.
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
