//! Small writes of a tier: syncs that programs wait for, and writes at random that a page cache sends.
//!
//! Invariants: the time in which any sync is under way counts once, however many are; a sync that began ends. Writes are counted when the tier
//! takes them into memory, so how long the device needs for one shows only in the syncs beside them.

use std::time::Duration;

use polymux_types::sync::{AtomicU64, Mutex, Ordering};

use super::microseconds;

/// Totals since mounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallWriteWork {
    /// Small syncs that ended.
    pub(crate) syncs: u64,
    /// Small writes at random.
    pub(crate) writes: u64,
    /// Time in which any of the syncs was under way, in microseconds.
    pub(crate) busy_us: u64,
}

#[derive(Debug, Default)]
struct Syncs {
    under_way: u32,
    busy_since: Duration,
    work: SmallWriteWork,
}

/// Counts the small writes of a tier.
#[derive(Debug, Default)]
pub struct SmallWriteMeter {
    syncs: Mutex<Syncs>,
    writes: AtomicU64,
}

impl SmallWriteMeter {
    pub(crate) fn sync_began(&self, now: Duration) {
        let mut syncs = self.syncs.lock();
        if syncs.under_way == 0 {
            syncs.busy_since = now;
        }
        syncs.under_way += 1;
    }

    pub(crate) fn sync_ended(&self, now: Duration) {
        let mut syncs = self.syncs.lock();
        assert!(syncs.under_way > 0, "a sync that ends was begun");
        syncs.under_way -= 1;
        syncs.work.syncs += 1;
        if syncs.under_way == 0 {
            syncs.work.busy_us += microseconds(now.saturating_sub(syncs.busy_since));
        }
    }

    /// Counts a small write at random that a page cache sent.
    pub fn note_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// The work since mounting.
    pub fn work(&self, now: Duration) -> SmallWriteWork {
        let syncs = self.syncs.lock();
        let under_way = if syncs.under_way > 0 { now.saturating_sub(syncs.busy_since) } else { Duration::ZERO };
        SmallWriteWork {
            writes: self.writes.load(Ordering::Relaxed),
            busy_us: syncs.work.busy_us + microseconds(under_way),
            ..syncs.work
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_side_by_side_count_their_time_once() {
        let meter = SmallWriteMeter::default();
        let at = Duration::from_micros;
        meter.sync_began(at(10));
        meter.sync_began(at(20));
        meter.sync_ended(at(30));
        assert_eq!(meter.work(at(35)), SmallWriteWork { syncs: 1, writes: 0, busy_us: 25 }, "one is under way");
        meter.sync_ended(at(40));
        meter.note_write();
        meter.sync_began(at(100));
        meter.sync_ended(at(105));
        assert_eq!(meter.work(at(200)), SmallWriteWork { syncs: 3, writes: 1, busy_us: 35 });
    }
}
