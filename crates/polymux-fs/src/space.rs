//! Tiers and how they do: room on them, failures, calls that hang; and bytes that nobody owns any more.
//!
//! What is true here:
//! * Room is believed from the tier itself, a moment old at the most; what this volume writes is taken off at once.
//! * Bytes are freed in one way only: a disowned record becomes durable, the tier is touched and synced, the record goes
//!   (DESIGN section 6). Recovery carries out what is left.

mod disowned;
mod failure;
mod profile;
mod refused_messages;
mod sync_pool;
mod tier_set;
mod watch;
mod write_behind;

pub(crate) use disowned::{DisownedQueue, disown_object};
pub(crate) use sync_pool::{PendingSync, SyncPool, SyncTarget};
pub(crate) use tier_set::{LAST_ROOM_BYTES, Purpose, TierHandle, TierSet};
pub(crate) use watch::thread_token;
pub(crate) use write_behind::WriteBehind;
