//! How many reads of a tier's device in each second of the last minute bypassed the daemon, because the kernel served them itself
//! (docs/design/0033).
//!
//! Invariants:
//! * The reads of a file become known when its passthrough ends, and are spread evenly over the seconds that it lasted.
//! * Asked for is the busiest stretch of [`STRETCH_SECONDS`] of the last minute: a burst of a second is no load, and files that were closed some
//!   seconds apart were read at the same time.

use std::time::Duration;

use super::recent_counts::RecentCounts;

/// Seconds that are remembered.
const SECONDS: usize = 64;

/// Length of the stretch over which the rate is a mean.
const STRETCH_SECONDS: u64 = 8;

/// Reads are counted in this part of one: a file that was open for long has less than one in a second.
const READ: u64 = 1 << 20;

/// Reads of one tier, in units of 1/[`READ`].
#[derive(Debug, Default)]
pub(super) struct BypassingReads {
    seconds: RecentCounts<SECONDS>,
}

impl BypassingReads {
    /// Notes reads between two moments.
    pub(super) fn note(&mut self, reads: u64, from: Duration, to: Duration) {
        let (first, last) = (from.min(to).as_secs(), to.as_secs());
        self.seconds.follow(last);
        let each = reads.saturating_mul(READ) / (last - first + 1);
        (first.max(self.seconds.oldest())..=last).for_each(|second| self.seconds.add(second, each));
    }

    /// Reads a second in the busiest stretch of the last minute.
    pub(super) fn per_second(&mut self, now: Duration) -> u64 {
        self.seconds.follow(now.as_secs());
        let oldest = self.seconds.oldest();
        let stretch = |end: u64| {
            let first = (end + 1).saturating_sub(STRETCH_SECONDS).max(oldest);
            (first..=end).map(|second| self.seconds.of(second)).sum::<u64>()
        };
        (oldest..=self.seconds.now()).map(stretch).max().unwrap_or(0) / (STRETCH_SECONDS * READ)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn files_that_are_read_at_the_same_time_add_up_and_are_forgotten_after_a_minute() {
        let mut rate = BypassingReads::default();
        (0..32).for_each(|_| rate.note(2000, at(100), at(107)));
        assert_eq!(rate.per_second(at(107)), 8000);
        assert_eq!(rate.per_second(at(150)), 8000);
        assert_eq!(rate.per_second(at(200)), 0);
    }

    #[test]
    fn a_burst_of_a_second_counts_as_what_it_is_in_eight() {
        let mut rate = BypassingReads::default();
        rate.note(8000, at(3), at(3));
        assert_eq!(rate.per_second(at(3)), 1000);
        assert_eq!(rate.per_second(at(40)), 1000);
    }

    #[test]
    fn thousands_of_files_that_were_hardly_read_are_no_load() {
        let mut rate = BypassingReads::default();
        (0..5000).for_each(|_| rate.note(1, at(0), at(3599)));
        assert_eq!(rate.per_second(at(3599)), 1);
    }

    #[test]
    fn of_a_file_that_was_open_for_days_the_last_minute_counts() {
        let mut rate = BypassingReads::default();
        rate.note(100_000_000, at(0), at(99_999));
        assert_eq!(rate.per_second(at(99_999)), 1000);
        rate.note(5, at(10), at(20));
        assert_eq!(rate.per_second(at(99_999)), 1000, "what is older changes nothing");
    }
}
