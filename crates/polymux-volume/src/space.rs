//! Tiers and their state: free space on them, failures, calls that hang; and pending frees.
//!
//! Invariants:
//! * Free space is the tier's own report, at most a moment old; writes of this volume are subtracted at once.
//! * Bytes are freed in one way only: a pending free becomes durable, the tier is touched and synced, the record is removed
//!   (DESIGN section 6). Recovery carries out those that are left.

mod apart;
mod asker;
mod disowned;
mod failure;
mod free_space;
mod object_count;
mod prober;
mod profile;
mod refused_messages;
mod sync_pool;
mod tier_handle;
mod tier_set;
mod tier_speed;
mod watch;
mod write_behind;

pub(crate) use disowned::{DisownedQueue, TierRound};
pub use disowned::{PendingFree, Scope};
pub use free_space::LAST_ROOM_BYTES;
pub use object_count::objects_on;
pub use sync_pool::{PendingSync, SyncPool, SyncTarget};
pub use tier_handle::{Purpose, TierHandle};
pub use tier_set::TierSet;
pub use tier_speed::{Piece, SyncedBytes, TierSpeed};
pub use write_behind::WriteBehind;
