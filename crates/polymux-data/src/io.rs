//! Data: reads and writes split by owner, spill, size, durability.
//!
//! Invariants:
//! * A byte is read from the object that the map names, and written to it first; a block changes its owner only after
//!   the new one holds the whole block (no ghost bytes, DESIGN section 6).
//! * A record that replaces a mapping is committed only after the new owner synced its bytes.
//! * Readers hold no lock while they read: they note the map's version and read again if it changed (DESIGN section 7).
//! * Lock order inside a file: barrier, append, range nodes, record lock, layout.

mod accept;
mod allocate;
mod allocation;
mod bypassing_reads;
mod flush;
mod forget_tier;
mod heat;
mod holders;
mod inline;
mod inline_move;
mod layout_change;
mod log_growth;
mod messages;
mod objects;
mod passthrough;
mod read;
mod read_ahead;
mod reclaim;
mod rewritten;
mod seek;
mod short;
mod size;
mod spill;
mod spread;
mod sync;
mod truncate;
mod waited_for;
mod write;
mod write_streams;

pub use layout_change::Company;
pub use read::Keeper;
pub use reclaim::Loss;
pub(crate) use reclaim::delete_records;
pub use sync::lost_bytes;
pub use write::{WriteRequest, patience};

use std::ops::Range;

use polymux_records::blockmap::END;
use polymux_records::store::{DisownedRecord, ObjectEntry};
use polymux_types::limits::BLOCK_SIZE;

/// The block that a byte lies in.
#[inline]
pub fn block_of(offset: u64) -> u64 {
    offset / BLOCK_SIZE
}

/// The first block that begins at or after a byte.
#[inline]
pub fn block_after(offset: u64) -> u64 {
    offset.div_ceil(BLOCK_SIZE)
}

/// The pending free of blocks that an object had, up to all that may follow where they end at [`END`].
pub fn pending_free_of_blocks(entry: &ObjectEntry, blocks: Range<u64>) -> DisownedRecord {
    match blocks.end {
        END => DisownedRecord::of_tail(entry, start_of(blocks.start)),
        end => DisownedRecord::of_range(entry, start_of(blocks.start), start_of(end)),
    }
}

/// First byte of a block; of one beyond the largest file, a byte beyond it too.
#[inline]
pub fn start_of(block: u64) -> u64 {
    block.saturating_mul(BLOCK_SIZE)
}
