//! Files whose backing object is in use without an open file description of this mount, as far as they were found (docs/design/0017): by a
//! mapping, or by a program that has it open since an earlier mount (`io::holders` finds them).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polymux_tier::Loan;
use polymux_types::Ino;
use polymux_types::sync::Mutex;

use super::Inode;

/// State known of earlier holders.
#[derive(Default)]
pub(crate) struct Holders {
    /// Some file may be held that was not looked at.
    pub(crate) are_possible: AtomicBool,
    pub(crate) held: Mutex<BTreeMap<Ino, Held>>,
    /// A file could not be looked at: all are, once more.
    pub(crate) look_failed: AtomicBool,
    /// When they are looked at again.
    pub(crate) look_due_ms: AtomicU64,
}

/// A file that has a holder.
pub(crate) struct Held {
    pub(crate) inode: Arc<Inode>,
    /// Keeps the object open here, so that each sync is carried out.
    pub(crate) loan: Option<Box<dyn Loan>>,
}

impl Holders {
    pub(crate) fn are_possible(&self) -> bool {
        self.are_possible.load(Ordering::Acquire)
    }

    /// A file is held from now on.
    pub(crate) fn note(&self, inode: Arc<Inode>, loan: Option<Box<dyn Loan>>) {
        let mut held = self.held.lock();
        let known = held.entry(inode.ino).or_insert(Held { inode, loan: None });
        if loan.as_ref().map(|loan| loan.purpose()) > known.loan.as_ref().map(|loan| loan.purpose()) {
            known.loan = loan;
        }
        // Descriptors that are being closed are gone at once.
        self.look_due_ms.store(0, Ordering::Relaxed);
    }

    /// Files that are held.
    pub(crate) fn inos(&self) -> Vec<Ino> {
        self.held.lock().keys().copied().collect()
    }
}
