//! Images that a power failure may leave of the disks below a mounted volume (docs/design/0015-disk-crash-images.md).
//!
//! Invariants:
//! * A disk keeps, after a power failure, every write that came before its last flush, and any subset of the sectors
//!   written since. Disks are independent of one another. A sector (512 bytes) is written whole or not at all.
//! * One sequence holds the writes and flushes of all disks. Attempts and promises of the workload are noted with positions
//!   in it (`promises`).
//!
//! ```text
//!  workload ──► mount ──► polymux ──► ext4, XFS ──► loop devices ──► recorder (FUSE) ──► Recording
//!     └──► ledgers ──────────────────────────────────────┐              position, fates │
//!                                                        ▼                              ▼
//!                      judge ◄── mount ◄── polymux ◄── ext4, XFS ◄── loop devices ◄── image
//! ```

pub mod campaign;
pub mod disk;
pub mod image;
pub mod recorder;
pub mod stand;
