//! Growth of a file over several tiers (docs/design/0018).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};

use polymux_meta::Sequence;
use polymux_types::sync::Mutex;
use polymux_types::{ObjectId, TierId};

/// A transaction that removes the size authority of a file from its record.
#[derive(Clone, Copy, Debug)]
pub struct AwaitedSwitch {
    /// The size authority until then.
    pub tier: TierId,
    /// From this byte on other tiers have the file.
    pub from: u64,
    /// The transaction that no longer names the tier.
    pub sequence: Sequence,
}

/// Growth of a file over several tiers.
#[derive(Debug, Default)]
pub struct Spreading {
    /// Its new ranges are placed one by one: as the policy said when the last one was.
    pub is_spread: AtomicBool,
    /// No tier is recorded as its size authority although it grows; see [`super::FileState::grows_unsettled`]. Set under the append lock.
    pub may_grow_unsettled: AtomicBool,
    /// When the upkeep first saw bytes that its record does not know, in milliseconds since mounting; 0: it has not.
    pub(super) unsettled_since_ms: AtomicU64,
    /// Number of the next sync of the volume when the file got its home, while nothing of it was promised to be durable since;
    /// 0 where something may have been.
    pub unpromised: AtomicU64,
    /// Whether `switches` has something.
    pub awaits_switch: AtomicBool,
    /// Tiers removed from the record as its size authority, where that may not be durable yet. A leaf.
    pub switches: Mutex<Vec<AwaitedSwitch>>,
    /// Objects on absent tiers whose bytes beyond the end of the file were given up. A leaf.
    pub cut_off: Mutex<HashSet<(TierId, ObjectId)>>,
    /// End of the space reserved beyond the end of the file.
    pub reserved_end: AtomicU64,
}
