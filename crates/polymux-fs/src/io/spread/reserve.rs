//! Room that a program reserves for a file of which the policy spreads the growth (`fallocate`, `posix_fallocate`).
//!
//! What is true here:
//! * The room is divided before anything is written: ranges that the file has not reached go to tiers as their bandwidths say, and each
//!   is reserved where it will be written. So who writes there later finds his room, and has all devices.
//! * A file gets at most [`PIECES_MAX`] pieces from one call: in larger ones they are longer than a range.
//! * The barrier of the file is held alone. What was reserved is given back where a tier refuses; then all is divided anew without it.
//! * Blocks get their owners first; then objects become as long as what they own, so that a crash, which cuts them to the size on
//!   record, frees the room with that; then the room is reserved. The size is in memory, and on record when the file is synced, as that
//!   of any growth that is spread.
//!
//! Room behind the end that leaves the size as it is (`FALLOC_FL_KEEP_SIZE`) stays on one tier, as does a reservation that leaves a gap
//! and one of a policy that maps threads to tiers, because another thread will write.

use std::ops::Range;
use std::sync::atomic::Ordering;

use polymux_policy::Growth;
use polymux_tier::{TierError, Wait};
use polymux_types::TierId;
use smallvec::SmallVec;

use super::super::allocate::Part;
use super::super::{block_after, start_of};
use super::shares::{Share, Shares};
use crate::blockmap::{END, MapChange, Owner};
use crate::core::Core;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{FileState, Inode, reference_of};
use crate::placement::{Context, Request};
use crate::store::ObjectEntry;
use crate::volume::SaturationSource;

/// Most pieces of one reservation, each of which is an extent on record.
const PIECES_MAX: u64 = 4096;

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::io) enum SpreadReservation {
    Made,
    /// It is for one tier, as those of other policies.
    NotSpread,
}

/// Blocks, and the tier that gets them.
type Piece = (Range<u64>, TierId);

/// Objects, and how long they were before room was reserved in them.
type Lengths = SmallVec<[(ObjectEntry, u64); 4]>;

/// Tiers that had no room after all.
type Refused = SmallVec<[TierId; 4]>;

impl Core {
    /// Lets a file grow to `end` by room that is reserved on several tiers, from `start` on. Called with the barrier held alone, and with
    /// room for all of it somewhere. Where it cannot be divided, ranges may lie on other tiers than before, and nothing is reserved.
    pub(in crate::io) fn reserve_spread(
        &self,
        (inode, file): (&Inode, &FileState),
        start: u64,
        end: u64,
    ) -> Result<SpreadReservation> {
        let Some(context) = self.context_to_reserve_in((inode, file), start, end) else {
            return Ok(SpreadReservation::NotSpread);
        };
        self.check_growth(file)?;
        let Some(tail) = file.layout.read().tail_tier() else { return Ok(SpreadReservation::NotSpread) };
        let first = self.first_block_to_divide(file, tail);
        let mut refused = Refused::new();
        while let Some(pieces) = self.divide(&context, first..block_after(end).max(first), end, &refused) {
            let refusing = match self.give_pieces(inode, file, &pieces) {
                Ok(true) => self.reserve_parts(file, &self.parts(file, start, end), end)?,
                Ok(false) => return Ok(SpreadReservation::NotSpread),
                Err(error) => Some(tier_that_refuses(&error, &pieces).ok_or(error)?),
            };
            match refusing {
                None => {
                    Counters::count(&self.counters.spread_reservations);
                    file.spreads.store(true, Ordering::Release);
                    file.growth.note_growth();
                    file.size.store(end, Ordering::Release);
                    return Ok(SpreadReservation::Made);
                }
                Some(tier) if refused.contains(&tier) => break,
                Some(tier) => refused.push(tier),
            }
        }
        if !refused.is_empty() {
            // One tier has all behind the end again, as whoever reserves block by block expects.
            self.give_tail_to(inode, file, tail, block_after(file.size()))?;
        }
        Ok(SpreadReservation::NotSpread)
    }

    /// What holds for the file, where its policy spreads what is reserved now.
    fn context_to_reserve_in(&self, (inode, file): (&Inode, &FileState), start: u64, end: u64) -> Option<Context> {
        let end_of_file = start_of(block_after(file.size()));
        let leaves_gap = start > end_of_file || file.reserved_end.load(Ordering::Acquire) > end_of_file;
        // What ends in the range that a file has reached needs no other tier, but a file that is spread already needs no extender for it.
        let reaches_range = block_after(end) > self.reached_blocks(file) || file.grows_unsettled();
        if !self.may_spread() || leaves_gap || !reaches_range || file.is_passed_through() || file.is_moving() {
            return None;
        }
        let context = self.context_of(inode);
        let request = Request { length: self.range_bytes(), file_end: end, partial: true, except: None };
        let spreads = context.policy.spreads()
            && context.policy.thread_rule().is_none()
            && self.growth_in(&context, inode, &request) == Growth::IsSpread;
        spreads.then_some(context)
    }

    /// The range that the file has reached stays where it is, if there is room for all of it.
    fn first_block_to_divide(&self, file: &FileState, tail: TierId) -> u64 {
        let has_room = self.tiers.by_id(tail).is_ok_and(|tier| tier.headroom() >= self.range_bytes());
        if has_room { self.reached_blocks(file) } else { block_after(file.size()) }
    }

    /// Divides blocks among the tiers that may have them, but for those that refused. `None` where they have too little room.
    fn divide(&self, context: &Context, blocks: Range<u64>, file_end: u64, refused: &Refused) -> Option<Vec<Piece>> {
        let now = self.clock.elapsed();
        let tiers = self.tiers_to_spread_to(context);
        let otherwise = (self.options.saturation == SaturationSource::Assumed).then_some(0);
        let mut shares = Shares::new(tiers.iter().filter_map(|tier| {
            let (space, capabilities) = (tier.space()?, tier.present()?.capabilities());
            let takes_part = !refused.contains(&tier.id) && file_end <= capabilities.file_size_max;
            let used = space.total.saturating_sub(space.free);
            // A guess would be for good: what was divided is not divided again when the first bytes tell how fast a device is.
            let known = Some(tier.write_lane.state(now).bytes_per_second).filter(|rate| *rate > 0);
            let bandwidth = known.or(otherwise)?;
            takes_part.then(|| Share {
                key: tier.id,
                bandwidth,
                room_below_mark: tier.high_mark_bytes(&space).saturating_sub(used),
                room: tier.headroom(),
            })
        }));
        if shares.are_of_one() {
            return None;
        }
        let ranges = (blocks.end - blocks.start).div_ceil(self.range_blocks());
        let piece_blocks = ranges.div_ceil(PIECES_MAX).max(1) * self.range_blocks();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let until = blocks.end.min((at / piece_blocks + 1) * piece_blocks);
            let tier = shares.give(start_of(until - at))?;
            match pieces.last_mut().filter(|(_, of)| *of == tier) {
                Some((last, _)) => last.end = until,
                None => pieces.push((at..until, tier)),
            }
            at = until;
        }
        Some(pieces)
    }

    /// Puts the owners of pieces behind the end on record. `false` where the file has to stay on its extender.
    fn give_pieces(&self, inode: &Inode, file: &FileState, pieces: &[Piece]) -> Result<bool> {
        let mut tiers: SmallVec<[TierId; 4]> = SmallVec::new();
        for (_, tier) in pieces {
            if !tiers.contains(tier) {
                tiers.push(*tier);
            }
        }
        let Some(first) = pieces.first().map(|(blocks, _)| blocks.start) else { return Ok(file.grows_unsettled()) };
        self.give_end(inode, file, &tiers, first, |layout| {
            let slots: Vec<u8> = pieces.iter().map(|(_, tier)| layout.slot_on(*tier)).collect::<Result<_>>()?;
            let mut change = MapChange::default();
            for ((blocks, _), slot) in pieces.iter().zip(slots) {
                // The last one has all that is behind it, as the end of any file.
                let end = if pieces.last().is_some_and(|(last, _)| last == blocks) { END } else { blocks.end };
                change.then(layout.map.assign(blocks.start, end, Owner::Slot(slot)));
            }
            Ok(change)
        })
    }

    /// Reserves parts where they are owned, in objects that are made as long as what they own. Where a tier has no room after all, the
    /// objects are cut to what they were, and the tier is returned.
    fn reserve_parts(&self, file: &FileState, parts: &[Part], end: u64) -> Result<Option<TierId>> {
        let mut lengths = Lengths::new();
        for part in parts {
            let reserved = self
                .wait_for_switch(file, part.entry.tier, end, Wait::Allowed)
                .and_then(|()| self.lengthen(file, part, parts, &mut lengths))
                .and_then(|()| self.reserve_on(file, part.slot, &part.entry, part.start, part.end));
            let Err(error) = reserved else { continue };
            self.shorten(&lengths)?;
            return if is_refusal(&error) { Ok(Some(part.entry.tier)) } else { Err(error) };
        }
        Ok(None)
    }

    /// Makes the object of a part as long as what it owns: a shorter one would have lost its end (docs/design/0032).
    fn lengthen(&self, file: &FileState, part: &Part, parts: &[Part], lengths: &mut Lengths) -> Result<()> {
        if lengths.iter().any(|(entry, _)| entry.object == part.entry.object) {
            return Ok(());
        }
        let end = parts.iter().rev().find(|later| later.slot == part.slot).map_or(part.end, |last| last.end);
        let (object, handle) = (reference_of(&part.entry), self.tiers.by_id(part.entry.tier)?);
        let length = handle.run(|tier| tier.stat(object))?.size;
        lengths.push((part.entry, length));
        if length < end {
            file.note_unsynced(part.slot, part.start, end);
            handle.run(|tier| tier.truncate(object, end))?;
        }
        Ok(())
    }

    /// Cuts objects to what they were, which frees what was reserved behind. Durable, because one of them may tell the size of the file
    /// from now on.
    fn shorten(&self, lengths: &Lengths) -> Result<()> {
        for (entry, length) in lengths {
            let (handle, object) = (self.tiers.by_id(entry.tier)?, reference_of(entry));
            handle.run(|tier| {
                tier.truncate(object, *length)?;
                tier.sync(object)
            })?;
            // What is known of its room is from before.
            handle.space_now();
        }
        Ok(())
    }
}

/// Whether a tier takes no part in a reservation, so that others may.
fn is_refusal(error: &Error) -> bool {
    let is_unsupported = matches!(error.kind(), ErrorKind::Tier { source: TierError::Unsupported(_), .. });
    error.is_out_of_room() || is_unsupported
}

/// The tier of those that were to get pieces that a new object could not be made on.
fn tier_that_refuses(error: &Error, pieces: &[Piece]) -> Option<TierId> {
    let named = match error.kind() {
        ErrorKind::Tier { tier, .. } | ErrorKind::TierMissing(tier) => Some(*tier),
        _ => None,
    };
    named.filter(|tier| pieces.iter().any(|(_, of)| of == tier))
}
