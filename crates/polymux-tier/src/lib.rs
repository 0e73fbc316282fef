//! Tiers: directories on mounted file systems that hold the objects of a volume.
//!
//! Invariants:
//! * A tier knows objects and bytes, never inodes, names or other tiers.
//! * [`Tier`] is *the* seam of Polymux: every fault, delay, throttle and crash recorder is a wrapper over it, and every
//!   backend and wrapper passes the suite in [`conformance`].
//! * Data that a tier acknowledged is in the page cache of its file system; it is durable only after [`Tier::sync`] of that
//!   object or [`Tier::sync_all`] returned success. A failed sync is remembered and reported to the next sync of that
//!   object, whichever caller requested the failed one (DESIGN section 6).
//! * Blocks keep their file offset on every tier (M7): objects are sparse, and a byte never written reads as zero.

pub mod capabilities;
pub mod conformance;
pub mod counters;
pub mod error;
pub mod forks;
mod forward;
pub mod label;
pub mod label_format;
pub mod lockable_file;
pub mod mapped;
pub mod measure;
pub mod object;
pub mod posix;
mod tier;

pub use capabilities::{Capabilities, Guarantee, OverwriteStyle, Rotation};
pub use counters::{CounterSnapshot, Counters};
pub use error::TierError;
pub use label::{CleanStamp, Label};
pub use lockable_file::{LockOutcome, LockableFile};
pub use object::{
    AllocateMode, Loan, LoanPurpose, MemoryReads, ObjectRef, ObjectStamp, ObjectStat, SeekTarget, Space,
    StampDirectory, StampOrder, StampRefresh, Wait,
};
pub use posix::{
    BytesUsed, OWN_DIRECTORY, OpenAccess, PosixTier, PosixTierOptions, disks_of, probe_directory, read_label_at,
};
pub use tier::Tier;
// As `forward_to_tier!` names them.
#[doc(hidden)]
pub use polymux_types::{Bucket, ObjectId};

/// The on-disk formats of this crate, for their fuzz targets.
#[doc(hidden)]
#[must_use]
pub fn on_disk_formats() -> Vec<polymux_types::on_disk_format::OnDiskFormat> {
    vec![label_format::on_disk_format(), posix::stamp_on_disk_format()]
}
