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
mod leases;
mod log_growth;
mod memory_reads;
mod messages;
mod objects;
mod outside_changes;
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
pub use leases::LeasedFile;
pub use read::Keeper;
pub use reclaim::Loss;
pub(crate) use reclaim::delete_records;
pub use sync::lost_bytes;
pub use write::{WriteRequest, patience};

use std::ops::Range;

use polymux_records::store::{DisownedRecord, ObjectEntry};
use polymux_types::Block;

/// The pending free of blocks that an object had, up to all that may follow where they end at [`Block::END`].
pub fn pending_free_of_blocks(entry: &ObjectEntry, blocks: Range<Block>) -> DisownedRecord {
    match blocks.end {
        Block::END => DisownedRecord::of_tail(entry, blocks.start.first_byte()),
        end => DisownedRecord::of_range(entry, blocks.start.first_byte(), end.first_byte()),
    }
}
