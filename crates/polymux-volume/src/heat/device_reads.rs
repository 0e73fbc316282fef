//! Small reads that the device of each tier served in each minute of the last hour (P13): how often the fastest tier had the requested data.
//!
//! Invariants:
//! * Reads through the daemon come as totals of the tier's read lane; those of files that the kernel reads itself are noted when that ends
//!   (`io/bypassing_reads.rs`), and are spread evenly over the time that it lasted.
//! * Reads served from memory are not included, nor are requests of more than 64 KiB. The kernel's own reads count by pages.
//! * A tier that comes back begins a new lane: a total that is lower than before is one of that.
//! * One lock, a leaf; a note costs as much as a few additions.

use std::collections::BTreeMap;
use std::time::Duration;

use polymux_types::TierId;
use polymux_types::sync::Mutex;

use super::bypassing_reads::BypassingReads;
use super::recent_counts::RecentCounts;

/// Minutes that are remembered, the one under way included.
pub const MINUTES: usize = 60;

/// Reads in each minute, oldest first; the last one is under way.
pub type Minutes = [u64; MINUTES];

#[derive(Debug, Default)]
pub struct DeviceReads {
    tiers: Mutex<BTreeMap<TierId, Course>>,
}

#[derive(Debug, Default)]
struct Course {
    /// The total of the lane that is counted already.
    counted: u64,
    /// Reads by minute since mounting.
    minutes: RecentCounts<MINUTES>,
    /// Those of the last minute that bypassed the daemon.
    bypassing: BypassingReads,
}

fn minute_of(time: Duration) -> u64 {
    time.as_secs() / 60
}

impl DeviceReads {
    /// Takes over how many reads the lane of a tier has counted. The lane is asked under the lock, so that totals come in their order.
    pub fn note_total(&self, tier: TierId, total: impl FnOnce() -> u64, now: Duration) {
        let mut tiers = self.tiers.lock();
        let course = tiers.entry(tier).or_default();
        let total = total();
        let new = if total < course.counted { total } else { total - course.counted };
        course.counted = total;
        course.minutes.add(minute_of(now), new);
    }

    /// Notes reads of a file that the kernel read itself between two moments.
    pub fn note_bypassing(&self, tier: TierId, reads: u64, from: Duration, to: Duration) {
        let (first, last) = (minute_of(from.min(to)), minute_of(to));
        let minutes = last - first + 1;
        let mut tiers = self.tiers.lock();
        let course = tiers.entry(tier).or_default();
        course.bypassing.note(reads, from, to);
        // The rest of the division belongs to the last minute.
        let (each, rest) = (reads / minutes, reads % minutes);
        for minute in first.max((last + 1).saturating_sub(MINUTES as u64))..=last {
            course.minutes.add(minute, if minute == last { each + rest } else { each });
        }
    }

    /// Reads a second that bypassed the daemon, in the busiest eight seconds of the last minute.
    pub fn bypassing_per_second(&self, tier: TierId, now: Duration) -> u64 {
        self.tiers.lock().get_mut(&tier).map_or(0, |course| course.bypassing.per_second(now))
    }

    /// The last hour of a tier.
    pub fn last_hour(&self, tier: TierId, now: Duration) -> Minutes {
        let mut tiers = self.tiers.lock();
        let Some(course) = tiers.get_mut(&tier) else { return [0; MINUTES] };
        course.minutes.follow(minute_of(now));
        course.minutes.in_order()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIER: TierId = TierId(1);

    fn at(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60 + 30)
    }

    /// Minutes with reads, by their distance from the last one.
    fn told(reads: &DeviceReads, now: Duration) -> Vec<(usize, u64)> {
        let hour = reads.last_hour(TIER, now);
        let ago = |(place, reads): (usize, &u64)| (MINUTES - 1 - place, *reads);
        hour.iter().enumerate().map(ago).filter(|(_, reads)| *reads > 0).collect()
    }

    #[test]
    fn totals_become_reads_of_the_minute_in_which_they_grew_and_are_forgotten_after_an_hour() {
        let reads = DeviceReads::default();
        reads.note_total(TIER, || 10, at(0));
        reads.note_total(TIER, || 15, at(0));
        reads.note_total(TIER, || 115, at(3));
        assert_eq!(told(&reads, at(3)), [(3, 15), (0, 100)]);
        assert_eq!(told(&reads, at(59)), [(59, 15), (56, 100)]);
        assert_eq!(told(&reads, at(60)), [(57, 100)]);
        reads.note_total(TIER, || 116, at(500));
        assert_eq!(told(&reads, at(500)), [(0, 1)]);
        reads.note_total(TIER, || 4, at(501));
        reads.note_total(TIER, || 6, at(501));
        assert_eq!(told(&reads, at(501)), [(1, 1), (0, 6)], "the tier came back");
        assert_eq!(reads.last_hour(TierId(2), at(500)), [0; MINUTES]);
    }

    #[test]
    fn what_the_kernel_read_itself_is_spread_over_the_time_that_it_lasted() {
        let reads = DeviceReads::default();
        reads.note_bypassing(TIER, 11, at(2), at(4));
        assert_eq!(told(&reads, at(4)), [(2, 3), (1, 3), (0, 5)]);
        reads.note_bypassing(TIER, 240, at(4), at(123));
        let hour = told(&reads, at(123));
        assert_eq!((hour.len(), hour[0], hour[59]), (60, (59, 2), (0, 2)), "no more than the last hour of it counts");
        reads.note_bypassing(TIER, 7, at(50), at(60));
        assert_eq!(told(&reads, at(123)).len(), 60, "what is older than an hour changes nothing");
    }
}
