//! When the reads of a tier should reach the daemon for a while, because the kernel itself serves so many of them that the tier may be the limit of its
//! readers (docs/design/0033).
//!
//! Invariants:
//! * Observation lasts [`OBSERVED_FOR`]. A tier that turns out to be the limit beside any other one meanwhile is observed for that reason alone, and the
//!   next time begins without a rest.
//! * If it does not, it rests for [`RESTS`], and twice as long each further time, up to [`RESTS_MAX`]: a device that serves such a load by
//!   itself pays with a message for each read only for a small part of the time.

use std::collections::BTreeMap;
use std::time::Duration;

use polymux_types::TierId;

/// How long reads reach the daemon. Files are opened now and then, and a tier that is the limit shows it within seconds.
const OBSERVED_FOR: Duration = Duration::from_secs(60);

/// Time after an observation in vain until the next one, at first,
const RESTS: Duration = Duration::from_secs(600);
/// and at the most.
const RESTS_MAX: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug)]
struct Turn {
    began: Duration,
    rests: Duration,
}

/// The tiers that are or were observed.
#[derive(Debug, Default)]
pub(super) struct Observation {
    turns: BTreeMap<TierId, Turn>,
}

impl Observation {
    /// Whether a tier is to be observed now that there is a reason. Observation begins with this call, unless the tier rests.
    pub(super) fn is_due(&mut self, tier: TierId, now: Duration) -> bool {
        let turn = self.turns.entry(tier).or_insert(Turn { began: now, rests: RESTS });
        let since = now.saturating_sub(turn.began);
        if since >= OBSERVED_FOR + turn.rests {
            *turn = Turn { began: now, rests: (turn.rests * 2).min(RESTS_MAX) };
            return true;
        }
        since < OBSERVED_FOR
    }

    /// The tier is the limit of its readers beside another one: the next observation may begin at once.
    pub(super) fn note_limit(&mut self, tier: TierId) {
        self.turns.remove(&tier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIER: TierId = TierId(1);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_tier_that_is_not_the_limit_is_observed_for_a_minute_and_then_rests_longer_each_time() {
        let mut observation = Observation::default();
        let observed: Vec<u64> =
            (0..20_000).step_by(10).filter(|second| observation.is_due(TIER, at(*second))).collect();
        let begins: Vec<u64> =
            observed.iter().copied().filter(|second| !observed.contains(&second.wrapping_sub(10))).collect();
        assert_eq!(begins, [0, 660, 1920, 4380, 8040, 11_700, 15_360, 19_020]);
        assert_eq!(observed.len(), begins.len() * 6);
    }

    #[test]
    fn a_tier_that_is_the_limit_begins_anew() {
        let mut observation = Observation::default();
        assert!(observation.is_due(TIER, at(0)));
        assert!(!observation.is_due(TIER, at(100)));
        observation.note_limit(TIER);
        assert!(observation.is_due(TIER, at(101)));
    }
}
