//! Measures that keep data from moving back and forth.
//!
//! A heat is a sample of a random process: a range that is used at random with a mean heat of `n` accesses shows `n` with a
//! standard deviation of the square root of `n / 2`, and among thousands of ranges several are off by four of these. Comparing
//! two such numbers, even with a factor of two, would swap equals for ever. So a victim must be half as hot *and* further away
//! than chance explains, for the hottest of those that wait.
//!
//! A margin that stays the same is not enough. Every half-life is another draw, so whatever lies a little below the margin
//! crosses it at some time, and each crossing sends a whole gap between the marks away. The longer a range was warm without
//! having crossed, the less one crossing says: the margin grows with the logarithm of that time, which is faster than the
//! extremes of a random walk do (the square root of the logarithm). A range that becomes hot at once has the first, small margin.

use crate::{HEAT_ONE, NEVER, RangeFacts};

/// Standard deviations (of the sum of both) that lie between a range and the victim that is evicted for it, at first. Against
/// data that is not used at all this asks for 13 accesses.
const DEVIATIONS_FIRST: u64 = 5;
/// Deviations that each doubling of the time adds for which the range was warm, and the half-lives at which that ends.
const DEVIATIONS_PER_DOUBLING: u64 = 2;
const HALF_LIVES_MAX: u32 = 7;

/// Deviations that a range must show.
fn deviations(facts: &RangeFacts) -> u64 {
    let half_lives = match facts.warm_seconds {
        NEVER => 1,
        seconds => (seconds / facts.half_life_seconds.max(1)).min(HALF_LIVES_MAX),
    };
    DEVIATIONS_FIRST + DEVIATIONS_PER_DOUBLING * u64::from((half_lives + 1).ilog2())
}

/// Whether `hot`, a heat of the range or its file, is hotter than `cold` by a factor of two and by more than chance; both in
/// 1/256 access.
pub(crate) fn is_hotter(facts: &RangeFacts, hot: u32, cold: u32) -> bool {
    let (hot, cold) = (u64::from(hot), u64::from(cold));
    // In 1/256 access the deviation of `n` accesses, sqrt(n / 2), is sqrt(heat * 256 / 2).
    let deviation = ((hot + cold) * u64::from(HEAT_ONE) / 2).isqrt();
    hot > 0 && hot >= 2 * cold && hot - cold >= deviations(facts) * deviation
}

/// The heat with which a range defends itself against another move: a recently moved range counts for half when it would go
/// further up, so that it must be four times as hot as its victim.
pub(crate) fn heat_for_promotion(facts: &RangeFacts, heat: u32) -> u32 {
    if facts.moved_lately() { heat / 2 } else { heat }
}

/// The heat by which eviction sorts: a recently moved range counts for twice as hot and four accesses more, so that a range that has just
/// arrived does not leave before its use could be seen, but does leave where the rest is hotter still.
pub(crate) fn heat_for_eviction(facts: &RangeFacts, heat: u32) -> u32 {
    if facts.moved_lately() { heat.saturating_mul(2).saturating_add(4 * HEAT_ONE) } else { heat }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warm_for(half_lives: u32) -> RangeFacts {
        let facts = RangeFacts::new(0, 0);
        RangeFacts { warm_seconds: half_lives * facts.half_life_seconds, ..facts }
    }

    /// Accesses that it takes against `cold` accesses.
    fn needed(half_lives: u32, cold: u32) -> u32 {
        let hot = (1..10_000).find(|hot| is_hotter(&warm_for(half_lives), hot * HEAT_ONE, cold * HEAT_ONE));
        hot.expect("there is always one")
    }

    #[test]
    fn a_factor_is_not_enough_where_both_are_small_or_differ_by_chance() {
        let facts = warm_for(0);
        assert!(!is_hotter(&facts, 0, 0));
        assert!(!is_hotter(&facts, 4 * HEAT_ONE, HEAT_ONE));
        assert_eq!((needed(0, 0), needed(0, 1000)), (13, 2000));
        assert!(!is_hotter(&facts, u32::MAX, u32::MAX));
    }

    #[test]
    fn the_margin_grows_with_each_doubling_of_the_time_up_to_seven_half_lives() {
        let against_idle: Vec<u32> = [0, 1, 2, 3, 6, 7, 1000].map(|half_lives| needed(half_lives, 0)).to_vec();
        assert_eq!(against_idle, [13, 25, 25, 41, 41, 61, 61]);
        let unknown = RangeFacts { warm_seconds: NEVER, ..warm_for(0) };
        assert_eq!(deviations(&unknown), deviations(&warm_for(1)));
    }
}
