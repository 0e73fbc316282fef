//! Objects that the kernel uses directly.
//!
//! Invariants:
//! * A passthrough-open object stays in the descriptor cache, so that a failed write-back is reported to a descriptor that is older than the
//!   write; an object that is passthrough-open for changes is synced on every request.
//! * At most half of the descriptors are passthrough-open: others must be opened, too. A second open of the same object takes no further one, and
//!   an externally open object (of an earlier mount) is given to the kernel in any case.
//! * This needs a file system with leases: without leases it is unknown whether an object is still in use (`holders`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::PosixTier;
use super::descriptors::OpenObject;
use super::holders::{Lease, ask_for_lease};
use super::objects::path_of;
use crate::error::TierError;
use crate::object::{Loan, LoanPurpose, ObjectRef};

/// Passthrough-open objects of a tier.
pub(super) struct Loans {
    count: Arc<Mutex<usize>>,
    max: usize,
    /// Whether the file system gives leases, once it was asked.
    has_leases: OnceLock<bool>,
}

impl Loans {
    pub(super) fn up_to(max: usize) -> Self {
        Self { count: Arc::default(), max, has_leases: OnceLock::new() }
    }
}

struct LentObject {
    open: Arc<OpenObject>,
    /// Number of passthrough-open objects of the tier.
    lent: Arc<Mutex<usize>>,
    purpose: LoanPurpose,
}

impl std::fmt::Debug for LentObject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LentObject").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl Loan for LentObject {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.open.descriptor.as_fd()
    }

    fn purpose(&self) -> LoanPurpose {
        self.purpose
    }
}

impl Drop for LentObject {
    fn drop(&mut self) {
        if self.purpose >= LoanPurpose::Change {
            self.open.end_loan();
        }
        let mut lent = self.lent.lock();
        if self.open.loans.fetch_sub(1, Ordering::Relaxed) == 1 {
            *lent -= 1;
        }
    }
}

impl PosixTier {
    pub(super) fn lend_object(&self, object: ObjectRef, purpose: LoanPurpose) -> Result<Box<dyn Loan>, TierError> {
        let may_change = purpose >= LoanPurpose::Change;
        if may_change {
            self.require_writable()?;
        }
        let open = self.object(object)?;
        let has_leases =
            self.loans.has_leases.get_or_init(|| ask_for_lease(open.descriptor.as_fd()) != Lease::Impossible);
        if !has_leases {
            return Err(TierError::Unsupported("lending an object without leases"));
        }
        if purpose == LoanPurpose::Change {
            // The kernel will open it once more. A failure of that would reach the program, and not this process.
            let opened = self.open_path(&path_of(object), self.flags());
            opened.map_err(|errno| self.error("opening an object", object, errno))?;
        }
        {
            let mut lent = self.loans.count.lock();
            let is_first = open.loans.load(Ordering::Relaxed) == 0;
            if is_first && *lent >= self.loans.max && purpose != LoanPurpose::Held {
                return Err(TierError::Unsupported("lending further objects"));
            }
            open.loans.fetch_add(1, Ordering::Relaxed);
            *lent += usize::from(is_first);
        }
        if may_change {
            open.begin_loan();
        }
        Ok(Box::new(LentObject { open, lent: Arc::clone(&self.loans.count), purpose }))
    }
}
