//! Device time of a small write on each tier, learnt from syncs that programs wait for.
//!
//! Invariants:
//! * While a sync is under way the device serves it and the small writes beside it. It is assumed that these come as often then as at other times.
//!   So the time of one is that in which any sync was under way, divided by the number of both.
//! * It is that of the load at present. A device that has time to spare takes a write as soon as it takes a read; one that is at its limit takes
//!   as many requests in a second as it can, and that is when it matters where the writes go.
//! * A window with few syncs tells nothing, unless they took most of it, and the time that was known stays.

use std::time::Duration;

use crate::heat::follow;
use crate::sched::{SmallWriteWork, microseconds};

/// Syncs of a window from which on it tells the time of a write,
const SYNCS_ENOUGH: u64 = 20;
/// and those that tell it where one was under way for half of the window: a disk under one writer may do no more.
const SYNCS_OF_BUSY_ENOUGH: u64 = 2;

/// Device time of the small writes of one tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SmallWrites {
    /// In nanoseconds; 0 while unknown.
    write_ns: u64,
    /// Totals at the end of the last window.
    counted: SmallWriteWork,
}

impl SmallWrites {
    /// Ends a window of this length with the totals since mounting.
    pub(crate) fn note(&mut self, work: SmallWriteWork, length: Duration) {
        let before = std::mem::replace(&mut self.counted, work);
        let syncs = work.syncs.saturating_sub(before.syncs);
        let (busy_us, length_us) = (work.busy_us.saturating_sub(before.busy_us), microseconds(length).max(1));
        let enough = if busy_us.saturating_mul(2) >= length_us { SYNCS_OF_BUSY_ENOUGH } else { SYNCS_ENOUGH };
        if syncs < enough {
            return;
        }
        let writes = work.writes.saturating_sub(before.writes).saturating_mul(busy_us.min(length_us)) / length_us;
        let seen_ns = busy_us.saturating_mul(1000) / syncs.saturating_add(writes);
        self.write_ns = if self.write_ns == 0 { seen_ns } else { follow(self.write_ns, seen_ns) };
    }

    /// Device time of one in nanoseconds; `None` while too few were seen.
    pub(crate) fn write_ns(&self) -> Option<u64> {
        (self.write_ns > 0).then_some(self.write_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_device_at_its_limit_shows_how_many_requests_it_takes() {
        let mut small = SmallWrites::default();
        assert_eq!(small.write_ns(), None);
        // A thousand syncs that leave it a tenth of the time, and 1,700 writes at random: 3,000 requests a second.
        small.note(SmallWriteWork { syncs: 1000, writes: 1700, busy_us: 900_000 }, SECOND);
        let known = small.write_ns().expect("it is known");
        assert!((340_000..370_000).contains(&known), "{known}");
        small.note(SmallWriteWork { syncs: 1010, writes: 1700, busy_us: 901_000 }, SECOND);
        assert_eq!(small.write_ns(), Some(known), "ten syncs tell nothing");
    }

    #[test]
    fn a_disk_that_does_sixteen_syncs_a_second_is_known() {
        let mut small = SmallWrites::default();
        small.note(SmallWriteWork { syncs: 16, writes: 0, busy_us: 960_000 }, SECOND);
        assert_eq!(small.write_ns(), Some(60_000_000));
    }
}
