//! Which tiers are being emptied, and how far that is.

use std::collections::{BTreeMap, BTreeSet};

use polymux_records::store::TierStanding;
use polymux_types::TierId;
use polymux_types::sync::Mutex;
use polymux_volume::space::TierHandle;

/// How far the emptying of one tier is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drain {
    /// The last inode of the walk.
    pub(crate) after: u64,
    /// Files found in this walk.
    pub(crate) found: u64,
    /// Files and bytes of the first walk.
    pub(crate) files_total: u64,
    pub(crate) bytes_total: u64,
    pub(crate) is_counted: bool,
    pub(crate) is_empty: bool,
    /// When its directories are looked at again, after a look that found something.
    pub(crate) look_due_ms: u64,
}

/// All tiers that are being emptied.
#[derive(Debug, Default)]
pub struct Drains {
    pub(crate) by_tier: Mutex<BTreeMap<TierId, Drain>>,
    /// Tiers whose removal is under way. Held while `draining` of a tier is set for that.
    leaving: Mutex<BTreeSet<TierId>>,
}

/// Draining state of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It is as any other.
    InService,
    /// Files are taken off it.
    Emptied,
    /// It is being removed: it takes nothing new, and files stay.
    Leaving,
}

impl Drains {
    pub(crate) fn work_on(&self, handle: &TierHandle) -> Work {
        let leaving = self.leaving.lock();
        match (leaving.contains(&handle.id), handle.is_draining()) {
            (true, _) => Work::Leaving,
            (false, true) => Work::Emptied,
            (false, false) => Work::InService,
        }
    }

    /// Whether files are taken off a tier.
    pub(crate) fn is_emptied(&self, handle: &TierHandle) -> bool {
        self.work_on(handle) == Work::Emptied
    }

    /// From here on nothing new comes to a tier, so that it can be seen whether it is empty.
    pub fn begin_removal(&self, handle: &TierHandle) {
        let mut leaving = self.leaving.lock();
        leaving.insert(handle.id);
        handle.set_draining(true);
    }

    /// Reverts a removal: the tier gets its former standing back. Whether it is empty is determined anew.
    pub fn take_removal_back(&self, handle: &TierHandle, before: TierStanding) {
        let mut leaving = self.leaving.lock();
        if leaving.contains(&handle.id) {
            handle.set_draining(before == TierStanding::Draining);
            leaving.remove(&handle.id);
        }
        drop(leaving);
        if let Some(drain) = self.by_tier.lock().get_mut(&handle.id) {
            drain.is_empty = false;
        }
    }

    /// A tier has left the volume.
    pub fn forget(&self, tier: TierId) {
        self.by_tier.lock().remove(&tier);
        self.leaving.lock().remove(&tier);
    }
}
