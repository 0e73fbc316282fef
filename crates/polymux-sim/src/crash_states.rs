//! The states that a power failure may leave, over all devices of a volume.
//!
//! Rules:
//! * Between two devices there is no order: the state kept by one says nothing of the others. Changes confirmed by a sync are kept.
//! * On a tier, an object keeps of its unsynced changes: of its *own changes* (making, cutting, punching, reserving,
//!   removing) a prefix of their order, as a file system with a log does; of each page that was written a prefix of the
//!   writes to that page, because a page goes to the device as it is in the cache. A write that needs space or makes the
//!   object longer needs the own changes before it. Nothing else is ordered: not pages among each other, not objects among
//!   each other, so not data against the changes of another object.
//! * A cut or a punch within a page is a write to that page: it goes to the device together with the earlier writes
//!   there, or not at all.
//! * A page is written whole or not at all (4 KiB, the atomic unit), so a write of several pages may be torn between them.
//! * A simulated store keeps a prefix of its transactions, as the trait promises. The files of a real one, and those of its
//!   second copy, are devices like the tiers, with the rules of [`crate::recording_file_system::CrashStates`].
//! * A [`State`] is the state that a mount after the crash finds: all of it is durable.
//!
//! ```text
//!  journal ──► World at a crash point ──Choice──► State ──► tiers and a store
//! ```

mod choice;
mod files;
mod state;
mod world;

pub use choice::{Choice, Keep, Random};
pub use files::{COPY_DIRECTORY, FilesKeep, Ignored, STORE_DIRECTORY};
pub use state::{State, StateHash};
pub use world::{EntryDurability, World};
