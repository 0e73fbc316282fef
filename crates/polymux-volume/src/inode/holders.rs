//! Files whose objects are in use without an open file description of this mount, as far as they were found (docs/design/0017): by a
//! mapping, or by a program that has it open since an earlier mount (`io::holders` finds them); and files that programs change by leases (docs/design/0048).

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
    /// Files whose objects programs may have changed since they were last asked.
    pub leased: Mutex<BTreeMap<Ino, Arc<Inode>>>,
    /// When these are asked again.
    leased_due_ms: AtomicU64,
}

/// Time between two questions to the objects of leased files.
const LEASED_INTERVAL_MS: u64 = 1_000;

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

    /// Whether the objects of leased files are to be asked now.
    pub fn is_look_at_leased_due(&self, now_ms: u64) -> bool {
        let is_due = !self.leased.lock().is_empty() && now_ms >= self.leased_due_ms.load(Ordering::Relaxed);
        if is_due {
            self.leased_due_ms.store(now_ms + LEASED_INTERVAL_MS, Ordering::Relaxed);
        }
        is_due
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
