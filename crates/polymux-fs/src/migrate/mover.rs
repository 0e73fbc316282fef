//! The owner of all state of moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64};

use super::balance::LayoutQueue;
use super::drain::Drains;
use super::planner::Planner;
use super::queue::MoveQueue;
use crate::data_path::DataPath;
use crate::placement::Placement;
use crate::sched::{Gate, LookBudget, Windows};
use crate::stamps::Stamps;
use crate::volume::Volume;

/// Plans moves of blocks and carries them out.
pub(crate) struct Mover {
    pub(crate) volume: Arc<Volume>,
    pub(crate) stamps: Arc<Stamps>,
    pub(crate) placement: Arc<Placement>,
    pub(crate) data: Arc<DataPath>,
    pub(crate) moves: MoveQueue,
    pub(crate) drains: Drains,
    pub(crate) planner: Planner,
    /// Files to be laid out anew for their readers.
    pub(super) layout_queue: LayoutQueue,
    /// Looks at the page caches of tiers before ranges are promoted.
    pub(super) cache_looks: LookBudget,
    /// Whether movers may run now.
    pub(super) gate: Gate,
    /// Local time less universal time.
    pub(super) utc_offset_seconds: AtomicI32,
    /// When free space that others freed is looked for again.
    pub(super) room_look_due_ms: AtomicU64,
}

impl Mover {
    pub(crate) fn new(
        volume: Arc<Volume>,
        stamps: Arc<Stamps>,
        placement: Arc<Placement>,
        data: Arc<DataPath>,
    ) -> Self {
        Self {
            volume,
            stamps,
            placement,
            data,
            moves: MoveQueue::default(),
            drains: Drains::default(),
            planner: Planner::default(),
            layout_queue: LayoutQueue::default(),
            cache_looks: LookBudget::default(),
            gate: Gate::new(Windows::default()),
            utc_offset_seconds: AtomicI32::new(0),
            room_look_due_ms: AtomicU64::new(0),
        }
    }
}
