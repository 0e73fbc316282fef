//! Preallocates space for growing parts of a file before they are written.
//!
//! Invariants:
//! * XFS takes space behind the end of an append, as much again as was written without a gap, and gives it back when the file is
//!   closed. An object of a spread file goes on behind a gap, and space that was taken before the gap then lies inside the object, for
//!   ever: 40 % more than the bytes of a file were measured. Where space is allocated already, XFS takes none.
//! * So on such file systems an append asks for space first, in steps that grow from [`STEP_MIN`] to [`STEP_MAX`], none beyond the
//!   range; a write that leaves a gap asks for its own blocks. Nothing is remembered: the steps follow from the write.
//! * It is advice: no write fails because of it. But it changes the object, so it comes after the note that the object has
//!   something unsynced.
//! * Space is only ever added in a file (`fallocate`, size kept). It is freed only where no write is possible, behind the end:
//!   with the append lock held, while the object at the end owns everything behind it ([`DataPath::trim_before_gap`]), and after an unclean
//!   stop, before the file is used ([`give_back_room`]).

use std::ops::Range;
use std::sync::atomic::Ordering;

use polymux_records::error::{ErrorKind, Result};
use polymux_records::store::ObjectEntry;
use polymux_tier::{AllocateMode, ObjectRef, ObjectStat, Tier, Wait};
use polymux_types::Block;
use polymux_types::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use polymux_volume::inode::{FileState, reference_of};
use polymux_volume::space::TierHandle;

use crate::data_path::DataPath;

/// Minimum number of bytes requested at once; XFS itself preallocates as much by default.
const STEP_MIN: u64 = 64 << 10;

/// Bytes that may be asked for and not be written, at most.
const STEP_MAX: u64 = 256 << 10;

/// Space that a file system charges to an object for its own metadata.
const ROOM_OF_MAPS: u64 = 64 << 10;

/// The space that a write from `position` to `end`, within one range of a file of `size`, is the first to need.
fn step_of(range_bytes: u64, size: u64, position: u64, end: u64) -> Option<Range<u64>> {
    let range_start = position / range_bytes * range_bytes;
    let range_end = range_start + range_bytes;
    if position > size {
        // It leaves a gap, and whether more follows is not known.
        return Some(Block::holding(position).first_byte()..Block::at_or_after(end).first_byte().min(range_end));
    }
    let reached = |position: u64| match position - range_start {
        0 => 0,
        offset if offset <= STEP_MAX => offset.next_power_of_two().max(STEP_MIN).min(range_bytes),
        offset => offset.next_multiple_of(STEP_MAX).min(range_bytes),
    };
    let (before, after) = (reached(position), reached(end.min(range_end)));
    (end > size && after > before).then(|| range_start + before..range_start + after)
}

impl DataPath {
    /// Gives an object of a spread file the space that a write is the first to need, where its file system would take more. Called
    /// after the write was noted as unsynced.
    pub(in crate::io) fn make_room_for_growth(
        &self,
        file: &FileState,
        handle: &TierHandle,
        entry: &ObjectEntry,
        position: u64,
        end: u64,
        wait: Wait,
    ) -> Result<()> {
        let takes_ahead = handle.get()?.capabilities().allocates_ahead;
        if !takes_ahead || !file.grows_unsettled() {
            return Ok(());
        }
        let Some(step) = step_of(self.range_bytes(), file.size(), position, end) else { return Ok(()) };
        if wait == Wait::Never {
            return Err(ErrorKind::WouldBlock.into());
        }
        let length = step.end - step.start;
        if handle.headroom() < length {
            return Ok(());
        }
        // A wish that is refused tells nothing of the tier.
        let made = handle.get()?.allocate(reference_of(entry), step.start, length, AllocateMode::KeepSize);
        if let Err(error) = made {
            log::debug!("tier `{}`: no room is made ahead of a write: {error}", handle.name);
        }
        Ok(())
    }

    /// Frees space that the file system preallocated behind the end of a file, before the file goes on elsewhere. Called with the
    /// append lock held, while the object at the end, which is in this slot, owns everything behind it. A failure costs only space.
    pub(super) fn trim_before_gap(&self, file: &FileState, slot: u8, tail: &ObjectEntry) {
        let Ok(handle) = self.volume.tiers.by_id(tail.tier) else { return };
        let Some(tier) = handle.present() else { return };
        if !tier.capabilities().allocates_ahead || handle.is_failing() || handle.is_slow() {
            return;
        }
        let end = file.size();
        let stat = match tier.stat(reference_of(tail)) {
            // An object that another program made longer, unknown to us, stays as it is.
            Ok(stat) if stat.size <= end && stat.allocated > 0 => stat,
            _ => return,
        };
        // Space that a program reserved stays, too.
        let start = Block::at_or_after(end.max(file.spreading.reserved_end.load(Ordering::Acquire))).first_byte();
        file.note_unsynced(slot, end, end);
        // Space that was taken ahead follows the end without a gap, and is part of the allocated bytes.
        let length = stat.allocated.next_multiple_of(BLOCK_SIZE).min(FILE_SIZE_MAX.saturating_sub(start));
        if let Err(error) = tier.punch(reference_of(tail), start, length) {
            log::debug!("tier `{}`: what was allocated ahead stays: {error}", handle.name);
        }
    }
}

/// Gives back space behind the end of an object for which growth had asked when the volume stopped uncleanly. Called before the file is
/// used, for an object that has these bytes of it. More than growth asks for was reserved by a program, and stays, as does space where
/// the object ends before its last byte of the file. Without success the space stays, too. Returns whether it was tried.
pub(in crate::io) fn give_back_room(tier: &dyn Tier, object: ObjectRef, stat: &ObjectStat, owned: &OwnedBytes) -> bool {
    let surplus = stat.allocated.saturating_sub(owned.bytes);
    let is_of_growth = surplus > 0 && surplus <= STEP_MAX + ROOM_OF_MAPS && stat.size >= owned.end;
    if !tier.capabilities().allocates_ahead || !is_of_growth {
        return false;
    }
    // Cutting an object where it ends frees all that is behind, however far behind.
    let given = tier.truncate(object, stat.size).and_then(|()| tier.sync(object));
    if let Err(error) = given {
        log::debug!("room behind the end of object {} stays: {error}", object.id);
    }
    true
}

/// The bytes of a file that an object owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::io) struct OwnedBytes {
    /// How many bytes,
    pub(in crate::io) bytes: u64,
    /// and where the last of them ends.
    pub(in crate::io) end: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const RANGE: u64 = 2048 * KIB;

    /// Steps of writes of so many bytes, one after the other, in the second range of a file; in KiB of the range.
    fn steps(write_bytes: u64) -> Vec<(u64, u64)> {
        let writes = (RANGE..2 * RANGE).step_by(usize::try_from(write_bytes).unwrap());
        let in_kib = |step: Range<u64>| ((step.start - RANGE) / KIB, (step.end - RANGE) / KIB);
        writes.filter_map(|at| step_of(RANGE, at, at, at + write_bytes)).map(in_kib).collect()
    }

    #[test]
    fn a_range_that_is_written_in_order_gets_all_of_its_room_once_in_a_few_steps() {
        let small = steps(4 * KIB);
        assert_eq!(small[..5], [(0, 64), (64, 128), (128, 256), (256, 512), (512, 768)]);
        for steps in [small, steps(128 * KIB), steps(512 * KIB)] {
            assert!(steps.windows(2).all(|pair| pair[0].1 == pair[1].0), "{steps:?}");
            assert_eq!((steps[0].0, steps[steps.len() - 1].1), (0, 2048));
        }
        assert_eq!(steps(1024 * KIB), [(0, 1024), (1024, 2048)]);
        assert_eq!(steps(RANGE), [(0, 2048)]);
    }

    #[test]
    fn who_leaves_a_gap_takes_his_own_blocks() {
        for offset in [0, 64 * KIB, 1024 * KIB, 1500 * KIB] {
            let position = 3 * RANGE + offset;
            assert_eq!(step_of(RANGE, 2 * RANGE, position, position + 1), Some(position..position + 4 * KIB));
        }
        assert_eq!(step_of(RANGE, RANGE, 2 * RANGE - 10, 2 * RANGE), Some(2 * RANGE - 4 * KIB..2 * RANGE));
    }

    #[test]
    fn what_is_written_within_the_size_asks_for_nothing() {
        assert_eq!(step_of(RANGE, 2 * RANGE, RANGE, RANGE + 100 * KIB), None);
    }

    #[test]
    fn no_step_leaves_the_range() {
        for range_bytes in [4 * KIB, 64 * KIB, RANGE] {
            let step = step_of(range_bytes, range_bytes, range_bytes, 2 * range_bytes);
            assert_eq!(step, Some(range_bytes..2 * range_bytes));
        }
        // A range may have any number of blocks.
        assert_eq!(step_of(12 * KIB, 12 * KIB, 12 * KIB, 16 * KIB), Some(12 * KIB..24 * KIB));
        assert_eq!(step_of(12 * KIB, 16 * KIB, 16 * KIB, 24 * KIB), None);
    }
}
