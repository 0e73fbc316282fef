//! Use of the objects of a file beside the daemon: of the one that the kernel has (DESIGN section 10, docs/design/0017), and by leases (docs/design/0048).

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use polymux_records::passthrough::{BackingId, Obstacle};
use polymux_tier::Loan;
use polymux_types::Timestamp;
use polymux_types::sync::Mutex;

use super::direct_users::DirectUsers;
use super::growth_history::GrowthHistory;
use super::io_mode::IoModes;
use super::outside_changes::OutsideChanges;

/// How the open descriptions of a file do their I/O, and the state of its passthrough grant.
#[derive(Debug, Default)]
pub struct PassedThrough {
    /// How the open descriptions do their I/O.
    pub modes: IoModes,
    /// The object as the kernel has it open.
    pub loan: Option<Box<dyn Loan>>,
    /// The number by which the kernel knows it.
    pub backing: Option<BackingId>,
    /// Why the last description that could have been passed through was not.
    pub refused: Option<Obstacle>,
    /// Space counted for it on its tier.
    pub granted_bytes: u64,
    /// Pages that the kernel had of it when it began to be passed through.
    pub pages_before: Option<PagesSeen>,
}

/// Pages of a file that the kernel had in memory at a moment, node after node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagesSeen {
    /// Since mounting.
    pub at: Duration,
    /// Pages in memory of each range node, at the last look.
    pub pages: Vec<u32>,
}

impl PagesSeen {
    /// Those of a node; none of one that was not looked at.
    pub fn pages_of(&self, node: u64) -> u32 {
        usize::try_from(node).ok().and_then(|node| self.pages.get(node)).copied().unwrap_or(0)
    }
}

/// Use of the objects of a file beside the daemon.
#[derive(Debug)]
pub struct DirectState {
    /// Held while a description begins or ends, as the kernel has them.
    pub passed: Mutex<PassedThrough>,
    /// Who uses the object beside the daemon.
    pub users: DirectUsers,
    /// Whether such holders were looked for.
    pub holder_looked_for: AtomicBool,
    /// Directly changed bytes may not be durable, and it is unknown which ones.
    ///
    /// Counted down by syncs that succeed after the last change: the first one may have begun before it.
    pub has_direct_changes: AtomicU32,
    /// Modification time of the object, as last seen while it was changed directly. Held while the object is queried and its
    /// answer applied, so that no older answer follows a newer one.
    pub object_modified: Mutex<Timestamp>,
    /// Changes that programs make by leases.
    pub outside: OutsideChanges,
    /// Whether those who change it make it longer.
    pub growth: GrowthHistory,
    /// Pages that the kernel has of the file may be older than its object.
    pub pages_stale: AtomicBool,
    /// A program wrote past the page cache of a kernel that collects writes, and keeps an older modification time than that.
    pub written_past_pages: AtomicBool,
}

impl Default for DirectState {
    fn default() -> Self {
        Self {
            passed: Mutex::default(),
            users: DirectUsers::default(),
            holder_looked_for: AtomicBool::new(false),
            has_direct_changes: AtomicU32::new(0),
            object_modified: Mutex::new(Timestamp::new(0, 0)),
            outside: OutsideChanges::default(),
            growth: GrowthHistory::default(),
            pages_stale: AtomicBool::new(false),
            written_past_pages: AtomicBool::new(false),
        }
    }
}
