//! Space that a program reserves for a file whose growth the policy spreads (`fallocate`, `posix_fallocate`).
//!
//! Invariants:
//! * The space is divided before anything is written: ranges that the file has not reached go to tiers in proportion to their
//!   bandwidths, and each is reserved where it will be written. So later writes find their space, and use all devices.
//! * A file gets at most [`PIECES_MAX`] pieces from one call: in larger ones they are longer than a range.
//! * The barrier of the file is held alone. If a tier refuses, the reservations are released and all is divided anew without it.
//! * Blocks get their owners first; then objects are extended to the end of their ranges, so that a crash, which cuts them to the size on
//!   record, frees that space too; then the space is reserved. The size is in memory, and logged when the file is synced, as for any
//!   spread growth.
//!
//! Space behind the end that leaves the size as it is (`FALLOC_FL_KEEP_SIZE`) stays on one tier, as does a reservation that leaves a gap
//! and one of a policy that maps writers to tiers, because another one will write.

use std::ops::Range;
use std::sync::atomic::Ordering;

use polymux_policy::Growth;
use polymux_records::blockmap::{MapChange, Owner};
use polymux_records::counters::Counters;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::parts::SaturationSource;
use polymux_records::store::ObjectEntry;
use polymux_tier::{TierError, Wait};
use polymux_types::{Block, TierId};
use polymux_volume::inode::{FileState, Inode, reference_of};
use smallvec::SmallVec;

use super::super::allocate::Part;
use super::shares::{Share, Shares};
use crate::data_path::DataPath;
use crate::placement::{Context, Request};

/// Most pieces of one reservation, each of which is an extent on record.
const PIECES_MAX: u64 = 4096;

/// The result of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::io) enum SpreadReservation {
    Made,
    /// It is for one tier, as those of other policies.
    NotSpread,
}

/// Blocks, and the tier that gets them.
type Piece = (Range<Block>, TierId);

/// Objects, and their lengths before space was reserved in them.
type Lengths = SmallVec<[(ObjectEntry, u64); 4]>;

/// Tiers that had too little free space after all.
type Refused = SmallVec<[TierId; 4]>;

impl DataPath {
    /// Extends a file to `end` with space that is reserved on several tiers, from `start` on. Called with the barrier held alone, and with
    /// enough free space on all tiers together. If it cannot be divided, ranges may be on other tiers than before, and nothing is reserved.
    pub(in crate::io) fn reserve_spread(
        &self,
        inode: &Inode,
        file: &FileState,
        start: u64,
        end: u64,
    ) -> Result<SpreadReservation> {
        let Some(context) = self.context_to_reserve_in(inode, file, start, end) else {
            return Ok(SpreadReservation::NotSpread);
        };
        self.check_growth(file)?;
        let Some(tail) = file.layout.read().tail_tier() else { return Ok(SpreadReservation::NotSpread) };
        let first = self.first_block_to_divide(file, tail);
        let mut refused = Refused::new();
        while let Some(pieces) = self.divide(&context, first..Block::at_or_after(end).max(first), end, &refused) {
            let refusing = match self.give_pieces(inode, file, &pieces) {
                Ok(true) => self.reserve_parts(file, &self.parts(file, start, end), end)?,
                Ok(false) => return Ok(SpreadReservation::NotSpread),
                Err(error) => Some(tier_that_refuses(&error, &pieces).ok_or(error)?),
            };
            match refusing {
                None => {
                    Counters::count(&self.volume.counters.spread_reservations);
                    file.spreading.is_spread.store(true, Ordering::Release);
                    file.direct.growth.note_growth();
                    file.sizes.bytes.store(end, Ordering::Release);
                    return Ok(SpreadReservation::Made);
                }
                Some(tier) if refused.contains(&tier) => break,
                Some(tier) => refused.push(tier),
            }
        }
        if !refused.is_empty() {
            // One tier has all behind the end again, as a reservation block by block expects.
            self.give_tail_to(inode, file, tail, Block::at_or_after(file.size()))?;
        }
        Ok(SpreadReservation::NotSpread)
    }

    /// The placement context of a file, if its policy spreads this reservation.
    fn context_to_reserve_in(&self, inode: &Inode, file: &FileState, start: u64, end: u64) -> Option<Context> {
        let end_of_file = Block::at_or_after(file.size()).first_byte();
        let leaves_gap = start > end_of_file || file.spreading.reserved_end.load(Ordering::Acquire) > end_of_file;
        // A reservation that ends in the range reached needs no other tier, but a file that is spread already needs no size authority for it.
        let reaches_range = Block::at_or_after(end) > self.reached_blocks(file) || file.grows_unsettled();
        if !self.may_spread() || leaves_gap || !reaches_range || file.is_passed_through() || file.is_moving() {
            return None;
        }
        let context = self.placement.context_of(inode);
        let request = Request { length: self.range_bytes(), file_end: end, partial: true, except: None };
        let spreads = context.policy.spreads()
            && self.placement.writer_maps.of(context.policy).is_none()
            && self.placement.growth_in(&context, inode, &request) == Growth::IsSpread;
        spreads.then_some(context)
    }

    /// The range that the file has reached stays on its tier if all of it fits there.
    fn first_block_to_divide(&self, file: &FileState, tail: TierId) -> Block {
        let has_room = self.volume.tiers.by_id(tail).is_ok_and(|tier| tier.headroom() >= self.range_bytes());
        if has_room { self.reached_blocks(file) } else { Block::at_or_after(file.size()) }
    }

    /// Divides blocks among the tiers that may have them, except those that refused. `None` if they have too little free space.
    fn divide(&self, context: &Context, blocks: Range<Block>, file_end: u64, refused: &Refused) -> Option<Vec<Piece>> {
        let now = self.volume.clock.elapsed();
        let tiers = self.tiers_to_spread_to(context);
        let otherwise = (self.volume.options.saturation == SaturationSource::Assumed).then_some(0);
        let mut shares = Shares::new(tiers.iter().filter_map(|tier| {
            let (space, capabilities) = (tier.space()?, tier.present()?.capabilities());
            let takes_part = !refused.contains(&tier.id) && file_end <= capabilities.file_size_max;
            // A guess would be permanent: blocks are not divided again when the first bytes show how fast a device is.
            let known = Some(tier.speed.write_lane.state(now).bytes_per_second).filter(|rate| *rate > 0);
            let bandwidth = known.or(otherwise)?;
            takes_part.then(|| Share {
                key: tier.id,
                bandwidth,
                room_below_mark: tier.high_mark_bytes(&space).saturating_sub(space.unavailable()),
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
            let until = blocks.end.min(Block((at.0 / piece_blocks + 1) * piece_blocks));
            let tier = shares.give(Block::bytes_of(until - at))?;
            match pieces.last_mut().filter(|(_, of)| *of == tier) {
                Some((last, _)) => last.end = until,
                None => pieces.push((at..until, tier)),
            }
            at = until;
        }
        Some(pieces)
    }

    /// Logs the owners of pieces behind the end. `false` if the file has to stay on its size authority.
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
                let end = if pieces.last().is_some_and(|(last, _)| last == blocks) { Block::END } else { blocks.end };
                change.then(layout.map.assign(blocks.start, end, Owner::Slot(slot)));
            }
            Ok(change)
        })
    }

    /// Reserves parts on their owners, in objects that are extended to the end of their ranges. If a tier has too little free space after
    /// all, the objects are cut to their old lengths, and the tier is returned.
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

    /// Extends the object of a part to the end of the ranges it owns: a shorter one would have lost its end (docs/design/0032).
    fn lengthen(&self, file: &FileState, part: &Part, parts: &[Part], lengths: &mut Lengths) -> Result<()> {
        if lengths.iter().any(|(entry, _)| entry.object == part.entry.object) {
            return Ok(());
        }
        let end = parts.iter().rev().find(|later| later.slot == part.slot).map_or(part.end, |last| last.end);
        let (object, handle) = (reference_of(&part.entry), self.volume.tiers.by_id(part.entry.tier)?);
        let length = handle.run(|tier| tier.stat(object))?.size;
        lengths.push((part.entry, length));
        if length < end {
            file.note_unsynced(part.slot, part.start, end);
            handle.run(|tier| tier.truncate(object, end))?;
        }
        Ok(())
    }

    /// Cuts objects to their old lengths, which frees the space reserved behind. Durable, because one of them may be the size authority
    /// of the file from now on.
    fn shorten(&self, lengths: &Lengths) -> Result<()> {
        for (entry, length) in lengths {
            let (handle, object) = (self.volume.tiers.by_id(entry.tier)?, reference_of(entry));
            handle.run(|tier| {
                tier.truncate(object, *length)?;
                tier.sync(object)
            })?;
            // The known free space of the tier is from before the cut.
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
