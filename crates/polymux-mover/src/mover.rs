//! The owner of all state of moves.

pub(crate) mod drains;
pub(crate) mod layout_queue;
pub(crate) mod planner;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use polymux_data::data_path::DataPath;
use polymux_data::placement::Placement;
use polymux_records::report::{Destination, JobId, MoveReason};
use polymux_types::{Block, Ino, TierId};
use polymux_volume::sched::{Gate, GateState, LookBudget, MoverPace, Windows, minute_of_week};
use polymux_volume::stamps::Stamps;
use polymux_volume::volume::Volume;

use self::drains::Drains;
use self::layout_queue::LayoutQueue;
use self::planner::Planner;
use crate::queue::{MoveQueue, Order, Scope};

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
    pub(crate) layout_queue: LayoutQueue,
    /// Looks at the page caches of tiers before ranges are promoted.
    pub(crate) cache_looks: LookBudget,
    /// Whether movers may run now.
    pub(crate) gate: Gate,
    /// Local time less universal time.
    pub(crate) utc_offset_seconds: AtomicI32,
    /// When free space that others freed is looked for again.
    pub(crate) room_look_due_ms: AtomicU64,
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

    /// Minute of the week, local time.
    pub(crate) fn minute_of_week(&self) -> u32 {
        minute_of_week(self.volume.now().seconds, self.utc_offset_seconds.load(Ordering::Relaxed))
    }

    /// Takes a job in that moves a whole file, or whole nodes of it.
    pub(crate) fn submit_move(
        &self,
        ino: Ino,
        ranges: Option<Vec<Range<Block>>>,
        destination: Destination,
        reason: MoveReason,
        pace: MoverPace,
        bytes: u64,
    ) -> Option<JobId> {
        let order = Order { ino, scope: scope_of(ranges), destination, leaves: None, reason, pace, bytes };
        self.moves.submit(order, self.volume.clock.elapsed())
    }

    /// All files are to be examined for moves that rules and pins demand.
    pub fn want_walk(&self) {
        self.planner.state.lock().is_walk_wanted = true;
    }

    pub(crate) fn name_of_tier(&self, tier: TierId) -> String {
        self.volume.tiers.by_id(tier).map_or_else(|_| format!("tier {tier}"), |handle| handle.name.clone())
    }

    /// Why no job begins now, where that is so for all of them.
    pub(crate) fn why_nothing_moves(&self) -> Option<String> {
        if self.volume.is_read_only() {
            return Some("The volume is mounted read-only.".to_owned());
        }
        match self.gate.state(self.minute_of_week()) {
            GateState::Open => None,
            GateState::Paused => Some("Moving is paused.".to_owned()),
            GateState::Shut(Some(minutes)) => Some(format!("The next time window opens in {minutes} minutes.")),
            GateState::Shut(None) => Some("No time window ever opens.".to_owned()),
        }
    }
}

/// All of a file, or these blocks.
pub(crate) fn scope_of(ranges: Option<Vec<Range<Block>>>) -> Scope {
    ranges.map_or(Scope::Whole, |ranges| Scope::Ranges(VecDeque::from(ranges)))
}
