//! Where new blocks go.

use polymux_types::limits::TIERS_MAX;

/// Version of [`PlacementFacts`] and [`PlacementDecision`].
pub const FACTS_VERSION: u32 = 1;

const TIERS: usize = TIERS_MAX as usize;

/// Facts about one tier that may take the blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierFacts {
    /// Number of the tier.
    pub tier: u16,
    /// Bytes that new data may take: free room less the reserve.
    pub headroom: u64,
    /// Size of the tier in bytes.
    pub total: u64,
}

/// Everything a placement policy may look at.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementFacts {
    /// [`FACTS_VERSION`].
    pub version: u32,
    count: u32,
    /// Bytes to place.
    pub length: u64,
    /// Size of the file once they are written.
    pub file_end: u64,
    tiers: [TierFacts; TIERS],
}

impl PlacementFacts {
    /// Facts without tiers.
    #[must_use]
    pub fn new(length: u64, file_end: u64) -> Self {
        Self { version: FACTS_VERSION, count: 0, length, file_end, tiers: [TierFacts::default(); TIERS] }
    }

    /// Adds an eligible tier; tiers are offered in speed order. Panics beyond the largest number of tiers.
    pub fn offer(&mut self, tier: TierFacts) {
        self.tiers[self.count as usize] = tier;
        self.count += 1;
    }

    /// The eligible tiers in speed order.
    #[must_use]
    pub fn offered(&self) -> &[TierFacts] {
        &self.tiers[..self.count as usize]
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

/// The default: the fastest tier that has room for all of the bytes; where none has, the fastest that has room for some.
/// A tier whose headroom is used up is never named, so that its reserve stays.
#[must_use]
pub fn fastest_with_headroom(facts: &PlacementFacts) -> PlacementDecision {
    let mut decision = PlacementDecision::none();
    let fits = |tier: &&TierFacts| tier.headroom >= facts.length.max(1);
    for tier in facts.offered().iter().filter(fits) {
        decision.push(tier.tier);
    }
    for tier in facts.offered().iter().filter(|tier| !fits(tier) && tier.headroom > 0) {
        decision.push(tier.tier);
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
