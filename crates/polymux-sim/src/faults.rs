//! Faults that a test asked for.
//!
//! An operation that hangs fails, if at all, when it is released; a lost tier fails everything;
//! a lasting failure comes before a counted one; a counted failure is used up by the operation that it fails. Without a request nothing fails.

use std::collections::{HashMap, HashSet};

use polymux_tier::TierError;
use polymux_types::Errno;

polymux_types::enum_with_all! {
    /// Operations of a tier that can be made to fail.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum OperationKind {
        /// Querying free space.
        Space,
        /// Making an object.
        Create,
        /// Removing an object.
        Remove,
        /// Looking at an object.
        Stat,
        /// Reading.
        Read,
        /// Writing.
        Write,
        /// Setting the size.
        Truncate,
        /// Reserving space.
        Allocate,
        /// Making a hole.
        Punch,
        /// Looking for data or a hole.
        Seek,
        /// Freeing space that was preallocated.
        FreePreallocated,
        /// Describing an object for `rebuild`.
        Stamp,
        /// Making an object durable.
        Sync,
        /// Making the tier durable.
        SyncAll,
        /// Listing a bucket.
        List,
        /// Reading the label.
        ReadLabel,
        /// Writing the label.
        WriteLabel,
    }
}

#[derive(Default)]
pub(crate) struct Faults {
    /// Operations that do not return.
    pub(crate) hanging: HashSet<OperationKind>,
    /// As these, and attempts whether the tier works return.
    pub(crate) held: HashSet<OperationKind>,
    /// How many are waiting for that to end.
    pub(crate) waiting: usize,
    pub(crate) vanished: bool,
    pub(crate) programs_have_objects: bool,
    always: HashMap<OperationKind, TierError>,
    next: HashMap<OperationKind, (u64, TierError)>,
    /// Bytes that may still be taken.
    pub(crate) room: Option<u64>,
    /// Objects that may still be made.
    pub(crate) objects: Option<u64>,
    /// Every so manieth write is dropped.
    pub(crate) drop_period: Option<u64>,
    pub(crate) writes_seen: u64,
}

impl Faults {
    pub(crate) fn fail_next(&mut self, kind: OperationKind, count: u64, error: TierError) {
        self.next.insert(kind, (count, error));
    }

    pub(crate) fn fail_always(&mut self, kind: OperationKind, error: TierError) {
        self.always.insert(kind, error);
    }

    /// Clears everything but a lost tier and hanging operations.
    pub(crate) fn heal(&mut self) {
        let hanging = std::mem::take(&mut self.hanging);
        *self = Self { vanished: self.vanished, hanging, waiting: self.waiting, ..Self::default() };
    }

    /// The error that this operation is to end with, if any; uses up a counted one.
    pub(crate) fn strike(&mut self, kind: OperationKind) -> Option<TierError> {
        if self.vanished {
            return Some(TierError::Io { operation: "reaching the tier", errno: Errno::EIO });
        }
        if let Some(error) = self.always.get(&kind) {
            return Some(error.clone());
        }
        let (left, error) = self.next.get_mut(&kind)?;
        *left = left.checked_sub(1)?;
        Some(error.clone())
    }

    /// Whether the write that begins now is one to be dropped.
    pub(crate) fn drops_this_write(&mut self) -> bool {
        let Some(period) = self.drop_period else { return false };
        self.writes_seen += 1;
        self.writes_seen.is_multiple_of(period)
    }
}
