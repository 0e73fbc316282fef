//! Where new blocks go.
//!
//! Invariants: a decision names every offered tier that takes new data and has headroom, once, and no other. A policy orders
//! only the first part of the list, so no policy can cause ENOSPC while a tier has free space.

use polymux_types::limits::{RANGE_NODE_SIZE, TIERS_MAX};

use crate::LARGE_FILE_RANGES;
use crate::tier_fill::{TierFill, TierTable, mask_has};

/// Version of the structs of this crate.
pub const FACTS_VERSION: u32 = 4;

const TIERS: usize = TIERS_MAX as usize;

/// The least that must be known about a tier that may take the blocks; [`TierFill`] says more.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierFacts {
    /// Number of the tier.
    pub tier: u16,
    /// Bytes that new data may take: free space less the reserve.
    pub headroom: u64,
    /// Size of the tier in bytes.
    pub total: u64,
}

impl From<TierFacts> for TierFill {
    /// A tier of which only the free space is known: it counts as below its marks while it has headroom.
    fn from(facts: TierFacts) -> Self {
        Self { high_mark: u64::MAX, low_mark: u64::MAX, ..Self::new(facts.tier, facts.total, 0, facts.headroom) }
    }
}

/// Everything a placement policy may look at.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementFacts {
    /// [`FACTS_VERSION`].
    pub version: u32,
    /// Mean heat of the file's ranges, in the unit of [`crate::RangeFacts::heat`].
    pub file_heat: u32,
    /// Bytes to place: the length of the write.
    pub length: u64,
    /// Size of the file once they are written.
    pub file_end: u64,
    /// Tiers that rules and pins allow, as a bit set.
    pub allowed: u64,
    /// Not zero where writes of the file are waited for: most of them are soon followed by a sync, or so it is with other files of
    /// its directory. A value of [`Synced`].
    pub synchronous: u8,
    /// Not zero for the first bytes of a file.
    pub is_new: u8,
    /// Share of the file's accesses that were part of a sequential stream, 0..=100.
    pub sequential: u8,
    /// Share of the file's writes so far that were synchronous or soon followed by a sync, 0..=100.
    pub sync_share: u8,
    /// The tier that has the end of the file now; [`NO_TIER`] for a new file.
    pub tail_tier: u16,
    /// The tier that the writer is mapped to ([`crate::WriterMap`]); [`NO_TIER`] where writers are not mapped.
    pub mapped_tier: u16,
    /// The tiers, in speed order or in the order that the rule prefers.
    pub tiers: TierTable,
}

/// Bytes from which on a file counts as large ([`crate::LARGE_FILE_RANGES`]), and no more as one whose writes are waited for: a log or a
/// journal.
pub const WAITED_FOR_FILE_MAX: u64 = LARGE_FILE_RANGES * RANGE_NODE_SIZE;

/// Why the writes of a file are waited for, as [`PlacementFacts::synchronous`] has it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// It is synced again and again, or other files of its directory are.
    Log = 1,
    /// Files of its directory are small, and synced after they were made.
    Message = 2,
}

const MESSAGE: u8 = Synced::Message as u8;

/// Size of a file up to which it can be a message: mail with its attachments, but no photo.
pub const MESSAGE_FILE_MAX: u64 = 1 << 20;

/// No tier, where a number of one is asked.
pub const NO_TIER: u16 = u16::MAX;

impl PlacementFacts {
    /// Facts without tiers about an asynchronous write to a file without history that may go anywhere.
    #[must_use]
    pub fn new(length: u64, file_end: u64) -> Self {
        Self {
            version: FACTS_VERSION,
            file_heat: 0,
            length,
            file_end,
            allowed: u64::MAX,
            synchronous: 0,
            is_new: 0,
            sequential: 0,
            sync_share: 0,
            tail_tier: NO_TIER,
            mapped_tier: NO_TIER,
            tiers: TierTable::default(),
        }
    }

    /// Adds an eligible tier; tiers are offered in speed order. Panics beyond the largest number of tiers.
    pub fn offer(&mut self, tier: impl Into<TierFill>) {
        self.tiers.offer(tier.into());
    }

    /// Programs wait for writes of the file, and it is small enough for the space that is kept above the high mark of a tier.
    pub(crate) fn is_waited_for(&self) -> bool {
        match self.synchronous {
            0 => false,
            MESSAGE => self.is_message(),
            _ => self.file_end < WAITED_FOR_FILE_MAX,
        }
    }

    /// Files of the directory are synced once they are made, and this one is as small.
    #[must_use]
    pub fn is_message(&self) -> bool {
        self.synchronous == MESSAGE && self.file_end <= MESSAGE_FILE_MAX
    }

    /// The first of the eligible tiers that the file may be on, in the order that rules prefer.
    #[must_use]
    pub fn first_allowed(&self) -> Option<u16> {
        self.offered().iter().map(|tier| tier.tier).find(|tier| mask_has(self.allowed, *tier))
    }

    /// Whether the beginning of a file is placed: small files end with it (P5).
    #[must_use]
    pub fn is_of_first_range(&self) -> bool {
        self.is_new != 0 || self.file_end <= self.length
    }

    /// The eligible tiers in the order in which they were offered.
    #[must_use]
    pub fn offered(&self) -> &[TierFill] {
        self.tiers.offered()
    }
}

/// Tiers to try, best first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementDecision {
    /// [`FACTS_VERSION`].
    pub version: u32,
    count: u32,
    tiers: [u16; TIERS],
}

impl PlacementDecision {
    fn none() -> Self {
        Self { version: FACTS_VERSION, count: 0, tiers: [0; TIERS] }
    }

    fn push(&mut self, tier: u16) {
        self.tiers[self.count as usize] = tier;
        self.count += 1;
    }

    /// The tiers to try, best first.
    #[must_use]
    pub fn tiers(&self) -> &[u16] {
        &self.tiers[..self.count as usize]
    }
}

/// The default: the fastest tier that has space for all of the bytes; where none has, the fastest that has space for some.
/// A tier whose headroom is used up is never named, so that its reserve stays.
#[must_use]
pub fn fastest_with_headroom(facts: &PlacementFacts) -> PlacementDecision {
    let mut decision = PlacementDecision::none();
    let fits = |tier: &&TierFill| tier.headroom >= facts.length.max(1);
    for tier in facts.offered().iter().filter(fits) {
        decision.push(tier.tier);
    }
    for tier in facts.offered().iter().filter(|tier| !fits(tier) && tier.headroom > 0) {
        decision.push(tier.tier);
    }
    decision
}

/// Whether all of the bytes fit and the tier is still below its high mark. The write that crosses the mark is let in: it is
/// write that starts eviction, without which a tier would stay full of old data just below its mark.
#[must_use]
pub fn room_below_mark(facts: &PlacementFacts, tier: &TierFill) -> bool {
    tier.used < tier.high_mark && tier.headroom >= facts.length.max(1)
}

/// Whether there is space below the high mark, or the bytes are waited for (M5) and leave half of the space above it, three fourths where
/// they are a message: colder data leaves for them. A message also needs the remaining write budget.
#[must_use]
pub fn room_for_waited_for(facts: &PlacementFacts, tier: &TierFill) -> bool {
    // Between the mark and the reserve.
    let above_mark = tier.headroom.saturating_add(tier.used).saturating_sub(tier.high_mark);
    let kept = if facts.is_message() { above_mark / 4 * 3 } else { above_mark / 2 };
    let leaves_enough = || tier.headroom.saturating_sub(facts.length.max(1)) > kept;
    let has_budget = || !facts.is_message() || tier.write_budget_left >= facts.length;
    room_below_mark(facts, tier) || facts.is_waited_for() && leaves_enough() && has_budget()
}

/// All tiers that can help: the allowed ones by `rank` (the lower first, in the order offered among equals), then allowed ones
/// without a rank that fit all of the bytes, then allowed ones that fit some; then the same for those that rules do not
/// allow.
#[must_use]
pub fn order(facts: &PlacementFacts, rank: impl Fn(&TierFill) -> Option<u64>) -> PlacementDecision {
    let mut decision = PlacementDecision::none();
    let eligible = |tier: &&TierFill| tier.takes_new_data() && tier.headroom > 0;
    let place_of = |tier: &TierFill| {
        let (group, rank) = match rank(tier) {
            Some(rank) => (0_u8, rank),
            None if tier.headroom >= facts.length.max(1) => (1, 0),
            None => (2, 0),
        };
        (!mask_has(facts.allowed, tier.tier), group, rank)
    };
    let mut places = [(true, u8::MAX, u64::MAX); TIERS];
    for (place, tier) in places.iter_mut().zip(facts.offered()) {
        *place = place_of(tier);
    }
    let mut left = facts.offered().iter().filter(eligible).count();
    let mut is_named = [false; TIERS];
    while left > 0 {
        let rest = (0..).zip(facts.offered()).filter(|(at, tier)| !is_named[*at] && eligible(tier));
        // The first among equals: in the order offered.
        let Some((at, tier)) = rest.min_by_key(|(at, _)| places[*at]) else { break };
        decision.push(tier.tier);
        is_named[at] = true;
        left -= 1;
    }
    decision
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(length: u64, headrooms: &[u64]) -> PlacementFacts {
        let mut facts = PlacementFacts::new(length, length);
        for (tier, headroom) in (0..).zip(headrooms) {
            facts.offer(TierFacts { tier, headroom: *headroom, total: 1 << 40 });
        }
        facts
    }

    #[test]
    fn the_fastest_tier_with_room_for_everything_comes_first() {
        assert_eq!(fastest_with_headroom(&facts(100, &[50, 200, 300])).tiers(), [1, 2, 0]);
        assert_eq!(fastest_with_headroom(&facts(100, &[100, 200])).tiers(), [0, 1]);
    }

    #[test]
    fn a_tier_down_to_its_reserve_is_not_named() {
        assert_eq!(fastest_with_headroom(&facts(1, &[0, 0])).tiers(), [] as [u16; 0]);
        assert_eq!(fastest_with_headroom(&facts(0, &[0, 1])).tiers(), [1]);
    }

    proptest! {
        #[test]
        fn every_tier_with_headroom_is_named_once_and_no_other(
            length in 0_u64..1000,
            headrooms in prop::collection::vec(0_u64..1000, 0..TIERS),
        ) {
            let decision = fastest_with_headroom(&facts(length, &headrooms));
            let mut named = decision.tiers().to_vec();
            named.sort_unstable();
            let expected: Vec<u16> = (0..).zip(&headrooms).filter(|(_, room)| **room > 0).map(|(tier, _)| tier).collect();
            prop_assert_eq!(named, expected);
        }
    }
}
