//! The state known of the device of a tier beforehand, and how live traffic refines it (docs/design/0019).
//!
//! Invariants:
//! * The lanes of a tier start from the recorded values and replace them with their own measurements within half a second.
//! * Only large writes that were on their way to the device are fed back: a read may have been served from memory, and a small
//!   request says little about bandwidth.
//! * The fed-back value is the mean over at least [`BUSY_MIN`] of busy time, weighted by that time: a device that was briefly
//!   busy with other work is not recorded as slow.

use std::time::Duration;

use polymux_records::report::{LiveBandwidth, TierProfile};
use polymux_tier::measure::Direction;
use polymux_types::Timestamp;

use super::tier_handle::TierHandle;

/// Busy time that tells something of a device.
const BUSY_MIN: Duration = Duration::from_secs(10);

/// Busy time that counts as much as all that was known before.
const BUSY_HALF: Duration = Duration::from_secs(60);

/// A measured bandwidth is recorded again if it differs from the recorded one by at least one part in this many.
const WORTH_DIVISOR: u64 = 20;

/// The profile state of a tier handle.
#[derive(Debug, Default)]
pub(super) struct KnownProfile {
    profile: TierProfile,
    /// The measurements of the write lane when the profile was last recorded.
    recorded: (u64, Duration),
}

impl TierHandle {
    /// The recorded profile.
    pub fn profile(&self) -> TierProfile {
        self.known_profile().profile.clone()
    }

    /// Looks at the recorded profile without a copy of it.
    pub fn look_at_profile<T>(&self, look: impl FnOnce(&TierProfile) -> T) -> T {
        look(&self.known_profile().profile)
    }

    /// Adopts the profile that is recorded from now on. Earlier measurements are either part of it or obsolete.
    pub fn set_profile(&self, profile: TierProfile) {
        let known = |direction| profile.bytes_per_second(direction).unwrap_or(0);
        self.speed.read_lane.begin_with(known(Direction::Read));
        self.speed.write_lane.begin_with(known(Direction::Write));
        *self.known_profile() = KnownProfile { profile, recorded: self.speed.write_lane.learnt() };
    }

    /// The profile as it should be on record by now; `None` where the recorded one is good enough.
    pub fn refined_profile(&self, now: Timestamp) -> Option<TierProfile> {
        let known = self.known_profile();
        let (bytes, busy) = self.speed.write_lane.learnt();
        let bytes = bytes.saturating_sub(known.recorded.0);
        let busy = busy.saturating_sub(known.recorded.1);
        if busy < BUSY_MIN {
            return None;
        }
        let profile = &known.profile;
        let before = profile.bytes_per_second(Direction::Write);
        let refined = blend(before, bytes, busy);
        if before.is_some_and(|before| before.abs_diff(refined) < before / WORTH_DIVISOR) {
            return None;
        }
        let all = profile.live(Direction::Write).map_or(0, |live| live.busy_seconds);
        let live = LiveBandwidth {
            direction: Direction::Write,
            bytes_per_second: refined,
            busy_seconds: all.saturating_add(u32::try_from(busy.as_secs()).unwrap_or(u32::MAX)),
            at: now,
        };
        Some(TierProfile { measured: profile.measured.clone(), live: vec![live] })
    }
}

/// Blends the previous bandwidth with that of `bytes` written in `busy` time.
fn blend(before: Option<u64>, bytes: u64, busy: Duration) -> u64 {
    let per_second = |bytes: u64| u128::from(bytes) * 1_000_000 / busy.as_micros().max(1);
    let (found, weight, half) = (per_second(bytes), busy.as_micros(), BUSY_HALF.as_micros());
    let blended = match before {
        Some(before) => (u128::from(before) * half + found * weight) / (half + weight),
        None => found,
    };
    u64::try_from(blended).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polymux_sim::MemoryTier;
    use polymux_types::{ManualClock, TierId};

    use super::super::tier_handle::Purpose;
    use super::*;
    use polymux_records::parts::{TierMember, TierPresence};

    const MB: u64 = 1_000_000;
    const SECOND: Duration = Duration::from_secs(1);

    fn handle() -> TierHandle {
        let tier = Arc::new(MemoryTier::new("t", 1 << 20));
        let member = TierMember::new("t", TierPresence::Present(tier));
        TierHandle::new(TierId(0), member, Purpose::Data, Arc::new(ManualClock::new(SECOND)))
    }

    fn known(bytes_per_second: u64) -> TierProfile {
        let at = Timestamp::new(1, 0);
        let live = LiveBandwidth { direction: Direction::Write, bytes_per_second, busy_seconds: 60, at };
        TierProfile { measured: None, live: vec![live] }
    }

    /// Lets the device take large writes for so long.
    fn work(handle: &TierHandle, begin: Duration, seconds: u32, bytes_per_second: u64) -> Duration {
        let mut now = begin;
        for _ in 0..seconds * 10 {
            let began = handle.speed.write_lane.began(bytes_per_second / 10, now);
            now += SECOND / 10;
            handle.speed.write_lane.ended(began, bytes_per_second / 10, now);
        }
        now
    }

    #[test]
    fn lanes_begin_with_what_is_on_record() {
        let handle = handle();
        assert_eq!(handle.speed.write_lane.state(SECOND).bytes_per_second, 0);
        handle.set_profile(known(120 * MB));
        assert_eq!(handle.speed.write_lane.state(SECOND).bytes_per_second, 120 * MB);
        assert_eq!(handle.speed.read_lane.state(SECOND).bytes_per_second, 0, "nothing is known of reads");
    }

    #[test]
    fn what_was_learnt_flows_back_after_long_enough_and_where_it_is_worth_it() {
        let handle = handle();
        handle.set_profile(known(120 * MB));
        let now = Timestamp::new(9, 0);
        let until = work(&handle, SECOND, 9, 60 * MB);
        assert_eq!(handle.refined_profile(now), None, "nine seconds tell little");
        let until = work(&handle, until, 51, 60 * MB);
        let refined = handle.refined_profile(now).expect("half as fast for a minute is worth a record");
        let live = refined.live(Direction::Write).unwrap();
        assert!(live.bytes_per_second.abs_diff(90 * MB) < 2 * MB, "a minute counts as much as before: {live:?}");
        assert!((118..=120).contains(&live.busy_seconds) && live.at == now, "{live:?}");
        handle.set_profile(refined);
        assert_eq!(handle.refined_profile(now), None, "it went on record");
        work(&handle, until, 60, 91 * MB);
        assert_eq!(handle.refined_profile(now), None, "as fast as is on record");
    }

    #[test]
    fn a_device_of_which_nothing_was_known_has_what_it_was_seen_to_deliver() {
        let handle = handle();
        work(&handle, SECOND, 12, 56 * MB);
        let refined = handle.refined_profile(Timestamp::new(9, 0)).unwrap();
        assert!(refined.bytes_per_second(Direction::Write).unwrap().abs_diff(56 * MB) < MB, "{refined:?}");
    }
}
