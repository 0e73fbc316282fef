//! Tiers and their state: free space on them, failures, calls that hang; and pending frees.
//!
//! Invariants:
//! * Free space is the tier's own report, at most a moment old; writes of this volume are subtracted at once.
//! * Bytes are freed in one way only: a pending free becomes durable, the tier is touched and synced, the record is removed
//!   (DESIGN section 6). Recovery carries out those that are left.

mod disowned;
mod failure;
mod object_count;
mod profile;
mod refused_messages;
mod sync_pool;
mod tier_set;
mod watch;
mod write_behind;

pub(crate) use disowned::DisownedQueue;
pub(crate) use disowned::TierRound;
pub use disowned::{Scope, disown_object};
pub use object_count::objects_on;
pub use sync_pool::{PendingSync, SyncPool, SyncTarget};
pub use tier_set::{LAST_ROOM_BYTES, Purpose, TierHandle, TierSet};
pub use watch::thread_token;
pub use write_behind::WriteBehind;
