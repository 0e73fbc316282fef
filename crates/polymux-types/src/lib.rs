//! The types that all Polymux crates share: identifiers, units, time, limits and error numbers.
//!
//! Invariants:
//! * No I/O happens here and no global state is kept.
//! * An identifier is never mixed with another one or with a plain number: each has its own type.
//! * Arithmetic on sizes and offsets that could overflow is checked by the caller against
//!   [`limits::FILE_SIZE_MAX`], which is low enough that block rounding never overflows.

#![forbid(unsafe_code)]

pub mod block;
pub mod clock;
mod enum_with_all;
pub mod errno;
pub mod file_system_space;
pub mod ids;
pub mod in_flight;
mod lease;
mod lease_refusal;
pub mod limits;
pub mod on_disk_format;
pub mod surviving;
pub mod sync;
pub mod units;
pub mod watermark;

pub use block::Block;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use errno::Errno;
pub use file_system_space::FileSystemSpace;
pub use ids::{Bucket, Epoch, Ino, ObjectId, Sequence, StreamId, TierId, VolumeId};
pub use in_flight::{InFlight, InFlightSlot, InFlightTable, thread_token};
pub use lease::{LeaseApplicant, LeaseTicket, LeaseWish, MapRun, OutsideUse, Secret};
pub use lease_refusal::LeaseRefusal;
pub use units::{ByteSize, Percent};
pub use watermark::Watermark;
