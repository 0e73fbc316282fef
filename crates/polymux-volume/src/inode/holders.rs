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
pub struct Holders {
    /// Some file may be held that was not looked at.
    pub are_possible: AtomicBool,
    /// Files that are known to be held.
    pub held: Mutex<BTreeMap<Ino, Held>>,
    /// A file could not be looked at: all are, once more.
    pub look_failed: AtomicBool,
    /// When they are looked at again.
    pub look_due_ms: AtomicU64,
}

/// A file that has a holder.
pub struct Held {
    pub inode: Arc<Inode>,
    /// Keeps the object open here, so that each sync is carried out.
    pub loan: Option<Box<dyn Loan>>,
}

impl Holders {
    /// Whether there may be any.
    pub fn are_possible(&self) -> bool {
        self.are_possible.load(Ordering::Acquire)
    }

    /// A file is held from now on.
    pub fn note(&self, inode: Arc<Inode>, loan: Option<Box<dyn Loan>>) {
        let mut held = self.held.lock();
        let known = held.entry(inode.ino).or_insert(Held { inode, loan: None });
        if loan.as_ref().map(|loan| loan.purpose()) > known.loan.as_ref().map(|loan| loan.purpose()) {
            known.loan = loan;
        }
        // Descriptors that are being closed are gone at once.
        self.look_due_ms.store(0, Ordering::Relaxed);
    }

    /// Files that are held.
    pub fn inos(&self) -> Vec<Ino> {
        self.held.lock().keys().copied().collect()
    }
}
