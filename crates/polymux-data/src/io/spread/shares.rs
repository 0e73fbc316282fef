//! Dividing ranges among tiers by bandwidth, before any of them is written.
//!
//! Invariant: each range goes to the tier that would be done soonest with all that it was given, this range included. Tiers below
//! their high mark come first, as in placement; none gets more than it has free space for.

use smallvec::SmallVec;

/// A tier, or the slot of an object on it, that takes ranges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share<K> {
    pub(super) key: K,
    /// Bytes per second; 0 where it is not known.
    pub(super) bandwidth: u64,
    /// Bytes that may be given below the high mark of the tier.
    pub(super) room_below_mark: u64,
    /// Bytes that may be given at all.
    pub(super) room: u64,
}

/// Tiers and how much each was given.
pub(super) struct Shares<K> {
    shares: SmallVec<[(Share<K>, u64); 4]>,
}

impl<K: Copy> Shares<K> {
    /// An unknown bandwidth counts as twice the best known one, as in the policy: a device that is taken for slow stays unknown.
    pub(super) fn new(shares: impl Iterator<Item = Share<K>>) -> Self {
        let mut shares: SmallVec<[(Share<K>, u64); 4]> = shares.map(|share| (share, 0)).collect();
        let best = shares.iter().map(|(share, _)| share.bandwidth).max().unwrap_or(0);
        for (share, _) in shares.iter_mut().filter(|(share, _)| share.bandwidth == 0) {
            share.bandwidth = best.saturating_mul(2).max(1);
        }
        Self { shares }
    }

    /// Whether there is nothing to divide.
    pub(super) fn are_of_one(&self) -> bool {
        self.shares.len() < 2
    }

    /// Gives `bytes` to a tier; `None` if they fit on none.
    pub(super) fn give(&mut self, bytes: u64) -> Option<K> {
        self.give_within(bytes, |share| share.room_below_mark).or_else(|| self.give_within(bytes, |share| share.room))
    }

    fn give_within(&mut self, bytes: u64, room: impl Fn(&Share<K>) -> u64) -> Option<K> {
        let done_after = |share: &Share<K>, given: u64| {
            (u128::from(given) + u128::from(bytes)) * (1 << 60) / u128::from(share.bandwidth)
        };
        let fits = |(share, given): &&mut (Share<K>, u64)| given.saturating_add(bytes) <= room(share).min(share.room);
        let soonest = self.shares.iter_mut().filter(fits).min_by_key(|(share, given)| done_after(share, *given))?;
        soonest.1 += bytes;
        Some(soonest.0.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(of: &[(u64, u64, u64)]) -> Shares<usize> {
        let share = |(key, (bandwidth, room_below_mark, room)): (usize, &(u64, u64, u64))| Share {
            key,
            bandwidth: *bandwidth,
            room_below_mark: *room_below_mark,
            room: *room,
        };
        Shares::new(of.iter().enumerate().map(share))
    }

    fn given(shares: &mut Shares<usize>, times: usize) -> Vec<usize> {
        (0..times).map_while(|_| shares.give(10)).collect()
    }

    #[test]
    fn each_tier_gets_ranges_as_its_bandwidth_says() {
        let mut shares = shares(&[(120, 1000, 1000), (60, 1000, 1000)]);
        assert_eq!(given(&mut shares, 6), [0, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn an_unknown_bandwidth_counts_as_twice_the_best_and_all_unknown_ones_as_equal() {
        let mut one = shares(&[(100, 1000, 1000), (0, 1000, 1000)]);
        assert_eq!(given(&mut one, 3).iter().filter(|key| **key == 1).count(), 2);
        let mut none = shares(&[(0, 1000, 1000), (0, 1000, 1000)]);
        assert_eq!(given(&mut none, 4), [0, 1, 0, 1]);
    }

    #[test]
    fn tiers_at_their_mark_come_after_all_others_and_none_is_given_more_than_it_has_room_for() {
        let mut shares = shares(&[(1000, 20, 40), (10, 30, 35)]);
        assert_eq!(given(&mut shares, 99), [0, 0, 1, 1, 1, 0, 0]);
    }
}
