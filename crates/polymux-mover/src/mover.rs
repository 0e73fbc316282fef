//! The owner of all state of moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64};

use polymux_data::data_path::DataPath;
use polymux_data::placement::Placement;
use polymux_volume::sched::{Gate, LookBudget, Windows};
use polymux_volume::stamps::Stamps;
use polymux_volume::volume::Volume;

use super::balance::LayoutQueue;
use super::drain::Drains;
use super::planner::Planner;
use super::queue::MoveQueue;

/// Plans moves of blocks and carries them out.
pub struct Mover {
    /// The volume whose blocks move.
    pub volume: Arc<Volume>,
    /// Describes objects that the mover makes.
    pub stamps: Arc<Stamps>,
    /// Facts and decisions about where blocks belong.
    pub placement: Arc<Placement>,
    /// Layouts, sizes and syncs of the files that move.
    pub data: Arc<DataPath>,
    /// Jobs that wait, run or are parked.
    pub moves: MoveQueue,
    /// Tiers that are being emptied.
    pub drains: Drains,
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
    /// A mover without jobs.
    pub fn new(volume: Arc<Volume>, stamps: Arc<Stamps>, placement: Arc<Placement>, data: Arc<DataPath>) -> Self {
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
