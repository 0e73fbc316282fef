//! When the reads of a tier should reach the daemon for a while, because the kernel itself serves so many of them that the tier may be the limit of its
//! readers (docs/design/0033).
//!
//! Invariants:
//! * Listening lasts [`LISTENS`]. If the tier turns out to be the limit beside any other one meanwhile, that alone keeps its reads heard, and the next
//!   time begins without a rest.
//! * If it does not, it rests for [`RESTS`], and twice as long each further time, up to [`RESTS_MAX`]: a device that serves such a load by
//!   itself pays with a message for each read only for a small part of the time.

use std::collections::BTreeMap;
use std::time::Duration;

use polymux_types::TierId;

/// How long reads reach the daemon. Files are opened now and then, and a tier that is the limit shows it within seconds.
const LISTENS: Duration = Duration::from_secs(60);

/// Time after listening in vain until the next time, at first,
const RESTS: Duration = Duration::from_secs(600);
/// and at the most.
const RESTS_MAX: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug)]
struct Turn {
    began: Duration,
    rests: Duration,
}

/// The tiers that are or were listened to.
#[derive(Debug, Default)]
pub(super) struct Listening {
    turns: BTreeMap<TierId, Turn>,
}

impl Listening {
    /// Whether the reads of a tier should be heard now that there is a reason. It begins with this call, unless the tier rests.
    pub(super) fn is_due(&mut self, tier: TierId, now: Duration) -> bool {
        let turn = self.turns.entry(tier).or_insert(Turn { began: now, rests: RESTS });
        let since = now.saturating_sub(turn.began);
        if since >= LISTENS + turn.rests {
            *turn = Turn { began: now, rests: (turn.rests * 2).min(RESTS_MAX) };
            return true;
        }
        since < LISTENS
    }

    /// The tier is the limit of its readers beside another one: listening may begin at once again.
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
    fn a_tier_that_is_not_the_limit_is_listened_to_for_a_minute_and_then_rests_longer_each_time() {
        let mut listening = Listening::default();
        let heard: Vec<u64> = (0..20_000).step_by(10).filter(|second| listening.is_due(TIER, at(*second))).collect();
        let begins: Vec<u64> =
            heard.iter().copied().filter(|second| !heard.contains(&second.wrapping_sub(10))).collect();
        assert_eq!(begins, [0, 660, 1920, 4380, 8040, 11_700, 15_360, 19_020]);
        assert_eq!(heard.len(), begins.len() * 6);
    }

    #[test]
    fn a_tier_that_is_the_limit_begins_anew() {
        let mut listening = Listening::default();
        assert!(listening.is_due(TIER, at(0)));
        assert!(!listening.is_due(TIER, at(100)));
        listening.note_limit(TIER);
        assert!(listening.is_due(TIER, at(101)));
    }
}
