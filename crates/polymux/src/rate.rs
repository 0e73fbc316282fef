//! How fast a number of bytes grows, over the last seconds, and how long the rest takes.
//!
//! Invariant: time comes from the caller, so that nothing here reads a clock.

use std::collections::VecDeque;
use std::time::Duration;

/// How far back is looked. Movers tell of their progress batch by batch, which takes seconds on a slow device.
const WINDOW: Duration = Duration::from_secs(15);

/// Readings of one number of bytes, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    readings: VecDeque<(Duration, u64)>,
}

impl Rate {
    /// Takes a reading in. A number that went down begins anew.
    pub fn note(&mut self, now: Duration, bytes: u64) {
        if self.readings.back().is_some_and(|(_, last)| *last > bytes) {
            self.readings.clear();
        }
        self.readings.push_back((now, bytes));
        while self.readings.len() > 2 && now.saturating_sub(self.readings[1].0) >= WINDOW {
            self.readings.pop_front();
        }
    }

    /// Bytes per second; `None` before two readings at different moments.
    pub fn per_second(&self) -> Option<u64> {
        let ((first, before), (last, now)) = (self.readings.front()?, self.readings.back()?);
        per_second(now - before, last.saturating_sub(*first))
    }

    /// How long so many bytes more take; `None` where nothing moves.
    pub fn time_for(&self, bytes: u64) -> Option<Duration> {
        let rate = self.per_second().filter(|rate| *rate > 0)?;
        Some(Duration::from_secs(bytes.div_ceil(rate)))
    }
}

/// So many bytes in so much time, per second; `None` for no time at all.
pub fn per_second(bytes: u64, time: Duration) -> Option<u64> {
    let micros = time.as_micros();
    if micros == 0 {
        return None;
    }
    Some(u64::try_from(u128::from(bytes) * 1_000_000 / micros).unwrap_or(u64::MAX))
}

/// A duration for people: its two largest units.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(), None);
        for second in 0..30 {
            rate.note(SECOND * second, 1000 * u64::from(second));
        }
        assert_eq!(rate.per_second(), Some(1000));
        assert_eq!(rate.time_for(2500), Some(Duration::from_secs(3)));
        for second in 30..60 {
            rate.note(SECOND * second, 29_000);
        }
        assert_eq!((rate.per_second(), rate.time_for(1)), (Some(0), None), "what stands still has no end");
    }

    #[test]
    fn a_number_that_went_down_begins_anew() {
        let mut rate = Rate::default();
        rate.note(SECOND, 500);
        rate.note(SECOND * 2, 100);
        assert_eq!(rate.per_second(), None);
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        for (seconds, text) in [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
