//! The block lookup table of a file: which slot owns each block (M6). Pure: no I/O, no lock, no clock.
//!
//! Invariants:
//! * Every block has one owner: the extent that covers it, else the home slot, else none (a file without objects).
//! * Extents do not overlap, are not empty, never name the home slot, and equal neighbours are one extent. So a file
//!   that lies on one tier has no extent.
//! * The map knows no size. An extent that ends at [`Block::END`](polymux_types::Block::END) owns all blocks that the file
//!   may still grow to: the *tail*.

mod dirty;
mod exceptions;
mod map;
mod node;
mod node_moves;
#[cfg(all(test, shuttle))]
mod outside_schedules;
mod outside_users;
#[cfg(all(test, shuttle))]
mod outside_write_schedules;
#[cfg(shuttle)]
pub mod planted;
mod undo;

pub(crate) use dirty::DirtyBlocks;
pub use map::{BlockMap, Extent, MapChange, Run};
pub use node::NodeTable;
pub use node_moves::{ClosedNodes, whole_nodes};
pub use outside_users::{HeldOff, LeasedFor, OutsideUser, OutsideUsers, PageChange};
pub use undo::UndoLog;

pub use polymux_types::block::BLOCKS_PER_NODE;

/// Who owns a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The object in this place of the file's list.
    Slot(u8),
    /// Intentionally unowned: it reads as zeros, and the home object must not be asked.
    Hole,
}
