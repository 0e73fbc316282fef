//! Room that growing parts of a file are given before they are written.
//!
//! What is true here:
//! * XFS takes room behind the end of what is appended, as much again as was written without a gap, and gives it back when the file
//!   is closed. An object of a spread file goes on behind a gap, and what was taken before it then lies inside the object, for
//!   ever: 40 % more than the bytes of a file were measured. Where room is there already, XFS takes none.
//! * So on such file systems a range gets its room in steps that double, from [`STEP_MIN`] to the range: who writes one block of
//!   it takes little, who writes all of it asks a few times. Each step follows from the write alone, nothing is remembered.
//! * Room is only ever added here for bytes that may be written at the same time. It is taken away ([`Core::trim_before_gap`]) only
//!   where nobody can write: behind the end of the file, with the append lock held, before any tier but the end's has something there.

use std::ops::Range;

use polymux_tier::{AllocateMode, Wait};
use polymux_types::limits::FILE_SIZE_MAX;

use super::super::{block_after, start_of};
use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::inode::{FileState, reference_of};
use crate::space::TierHandle;
use crate::store::ObjectEntry;

/// Least bytes that are asked for at once; what XFS itself takes where it has nothing to go by.
const STEP_MIN: u64 = 64 << 10;

/// The room that a write from `position` to `end`, within one range, is the first to need.
fn step_of(range_bytes: u64, position: u64, end: u64) -> Option<Range<u64>> {
    let range_start = position / range_bytes * range_bytes;
    let reached = |position: u64| match position - range_start {
        0 => 0,
        offset => offset.next_power_of_two().clamp(STEP_MIN.min(range_bytes), range_bytes),
    };
    let (before, after) = (reached(position), reached(end.min(range_start + range_bytes)));
    (after > before).then(|| range_start + before..range_start + after)
}

impl Core {
    /// Gives an object of a spread file the room that a write is the first to need, where its file system would take more. Where there
    /// is no room for all of the step the write does without.
    pub(in crate::io) fn make_room_for_growth(
        &self,
        file: &FileState,
        handle: &TierHandle,
        entry: &ObjectEntry,
        (position, end): (u64, u64),
        wait: Wait,
    ) -> Result<()> {
        let takes_ahead = handle.get()?.capabilities().allocates_ahead;
        if !takes_ahead || !file.grows_unsettled() {
            return Ok(());
        }
        let Some(step) = step_of(self.range_bytes(), position, end) else { return Ok(()) };
        if wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        let length = step.end - step.start;
        if handle.headroom() < length {
            return Ok(());
        }
        match handle.run(|tier| tier.allocate(reference_of(entry), step.start, length, AllocateMode::KeepSize)) {
            // What there is room for is found out by the write.
            Err(error) if error.is_out_of_room() => Ok(()),
            made => made,
        }
    }

    /// Gives back what the file system took behind the end of a file, before the file goes on elsewhere. Called with the append
    /// lock held, while the object at the end has all that is behind it. A failure costs room and nothing else.
    pub(super) fn trim_before_gap(&self, file: &FileState, tail: &ObjectEntry) {
        let Ok(handle) = self.tiers.by_id(tail.tier) else { return };
        let takes_ahead = handle.get().is_ok_and(|tier| tier.capabilities().allocates_ahead);
        if !takes_ahead {
            return;
        }
        let start = start_of(block_after(file.size()));
        if let Err(error) = handle.run(|tier| tier.punch(reference_of(tail), start, FILE_SIZE_MAX - start)) {
            log::debug!("tier `{}`: what was allocated ahead stays: {error}", handle.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const RANGE: u64 = 2048 * KIB;

    /// Steps of writes of so many bytes from the beginning to the end of the second range, in KiB of the range.
    fn steps(write_bytes: u64) -> Vec<(u64, u64)> {
        let writes = (RANGE..2 * RANGE).step_by(usize::try_from(write_bytes).unwrap());
        let in_kib = |step: Range<u64>| ((step.start - RANGE) / KIB, (step.end - RANGE) / KIB);
        writes.filter_map(|position| step_of(RANGE, position, position + write_bytes)).map(in_kib).collect()
    }

    #[test]
    fn a_range_that_is_written_in_order_gets_all_of_its_room_once_in_a_few_steps() {
        let doubling = [(0, 64), (64, 128), (128, 256), (256, 512), (512, 1024), (1024, 2048)];
        assert_eq!(steps(4 * KIB), doubling);
        assert_eq!(steps(128 * KIB), [(0, 128), (128, 256), (256, 512), (512, 1024), (1024, 2048)]);
        assert_eq!(steps(1024 * KIB), [(0, 1024), (1024, 2048)]);
        assert_eq!(steps(RANGE), [(0, 2048)]);
    }

    #[test]
    fn who_writes_one_block_takes_little() {
        assert_eq!(step_of(RANGE, 3 * RANGE, 3 * RANGE + 1), Some(3 * RANGE..3 * RANGE + 64 * KIB));
        assert_eq!(step_of(RANGE, RANGE + 1500 * KIB, RANGE + 1504 * KIB), None);
    }

    #[test]
    fn no_step_leaves_the_range() {
        for range_bytes in [4 * KIB, 64 * KIB, RANGE] {
            let step = step_of(range_bytes, range_bytes, 2 * range_bytes);
            assert_eq!(step, Some(range_bytes..2 * range_bytes));
        }
        // A range may have any number of blocks.
        assert_eq!(step_of(12 * KIB, 12 * KIB, 16 * KIB), Some(12 * KIB..24 * KIB));
        assert_eq!(step_of(12 * KIB, 16 * KIB, 24 * KIB), None);
    }
}
