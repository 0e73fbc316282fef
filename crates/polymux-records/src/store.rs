//! The only door to the metadata store: record formats, keys and transactions.
//!
//! Invariants:
//! * Nothing outside this module knows a key or the bytes of a record.
//! * Every record is framed with a version and a checksum; one that does not verify is an error, never a guess.
//! * An inode record is written only inside a [`Metadata::commit`] whose batch also holds everything that must become
//!   durable together with it.

pub mod boot_format;
mod check;
pub mod describe;
pub mod directory_format;
pub mod disowned_format;
pub mod extent_format;
mod formats;
pub mod frame;
pub mod heat_format;
pub mod inline_format;
pub mod inode_format;
pub mod keys;
mod metadata;
mod number_range;
pub mod profile_format;
mod record_kinds;
mod stamp_mark_format;
pub mod volume_format;

pub use check::{CheckReport, INVARIANTS, Violation, check_records, for_each_record};
pub use describe::{Description, Field, FieldValue, describe_key, describe_record};
pub use directory_format::{Dirent, EntryCount, PositionEntry};
pub use disowned_format::{DisownedKind, DisownedRecord};
pub use extent_format::ExtentRecord;
#[doc(hidden)]
pub use formats::on_disk_formats;
pub use heat_format::{ClockRecord, HeatNode, HeatRecord, NODES_PER_CHUNK};
pub use inline_format::INLINE_SIZE_LIMIT;
pub use inode_format::{FileRecord, InodeBody, InodeRecord, ObjectEntry};
pub use keys::store_boundaries;
pub use metadata::describe_all_anew;
pub use metadata::{Metadata, put_number_range_end, put_xattr};
pub use number_range::BLOCK_BITS;
pub use record_kinds::{AfterRebuild, RECORD_KINDS, Unreadable, after_rebuild, unreadable_record};
pub use stamp_mark_format::StampMark;
pub use volume_format::{EpochRecord, Shutdown, TierRecord, TierStanding, VolumeRecord};
