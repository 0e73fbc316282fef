//! What is learnt of the speed of a tier, from the requests that pass it: meters, lanes, the recorded profile, and which requests yield.

use std::sync::Arc;
use std::time::Duration;

use polymux_records::error::Result;
use polymux_records::report::{DeferralReport, LaneReport};
use polymux_tier::{Tier, TierError};
use polymux_types::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

use super::profile::KnownProfile;
use super::tier_handle::TierHandle;
use crate::sched::{
    Deferrable, Direction, Finished, Lane, MoverLimits, Saturation, SmallWriteMeter, TierSchedule, Timing, Urgency,
    Waits,
};

/// The speed of the device of a tier, and the requests that tell it.
pub struct TierSpeed {
    /// Activity of foreground and movers on this tier.
    pub schedule: TierSchedule,
    /// Throughput of the device for readers.
    pub read_lane: Lane,
    /// Throughput of the device for write-behind data. Writes into the page cache of its file system say nothing about it.
    pub write_lane: Lane,
    /// Small syncs, and small writes at random that a page cache sends.
    pub small_writes: SmallWriteMeter,
    /// Whether writers hand it more than it takes.
    pub saturation: Saturation,
    /// The recorded performance of the device, and the lane measurements already included in it.
    profile: Mutex<KnownProfile>,
    /// Bytes that were given to the tier and did not begin their way to the device.
    claimed_bytes: AtomicU64,
}

impl Default for TierSpeed {
    fn default() -> Self {
        Self {
            schedule: TierSchedule::new(MoverLimits::default()),
            read_lane: Lane::default(),
            write_lane: Lane::of_writes(),
            small_writes: SmallWriteMeter::default(),
            saturation: Saturation::default(),
            profile: Mutex::default(),
            claimed_bytes: AtomicU64::new(0),
        }
    }
}

impl TierHandle {
    /// As [`TierHandle::run`] for a transfer that a caller waits for; `bytes_of` says how much it was. Movers see it and
    /// yield.
    pub fn transfer<T>(
        &self,
        direction: Direction,
        bytes_of: impl Fn(&T) -> usize,
        operation: impl FnOnce(&dyn Tier) -> std::result::Result<T, TierError>,
    ) -> Result<T> {
        self.timed_transfer(direction, bytes_of, operation).map(|(done, _)| done)
    }

    /// As [`TierHandle::transfer`], and how long a read took.
    pub fn timed_transfer<T>(
        &self,
        direction: Direction,
        bytes_of: impl Fn(&T) -> usize,
        operation: impl FnOnce(&dyn Tier) -> std::result::Result<T, TierError>,
    ) -> Result<(T, Duration)> {
        let began = match self.speed.schedule.foreground_began() {
            Timing::Timed => Some(self.clock.elapsed()),
            Timing::Untimed => None,
        };
        let began_read = (direction == Direction::Read).then(|| self.speed.read_lane.began(0, self.clock.elapsed()));
        let result = self.run(operation);
        let bytes = result.as_ref().map_or(0, |done| bytes_of(done) as u64);
        let took = began_read.map(|began| self.speed.read_lane.ended(began, bytes, self.clock.elapsed()));
        let finished = began.map(|began| {
            let now = self.clock.elapsed();
            Finished { latency: now.saturating_sub(began), now }
        });
        self.speed.schedule.foreground_ended(direction, bytes, finished);
        Ok((result?, took.unwrap_or_default()))
    }

    /// Sets how long background requests yield here at most, in milliseconds.
    pub fn set_deferral_max(&self, milliseconds: u32) {
        self.speed.schedule.deferral().set_bound(Duration::from_millis(u64::from(milliseconds)));
    }

    /// Whether the tier has something to do that goes before background requests.
    pub(crate) fn urgency(&self, now: Duration) -> Urgency {
        self.speed.schedule.deferral().urgency(&self.speed.read_lane, now)
    }

    /// How long requests that yield waited: those of movers, and write-behind.
    pub fn deferral_reports(&self) -> (DeferralReport, DeferralReport) {
        let report = |class| {
            let Waits { requests, at_bound, longest_us, by_wait } = self.speed.schedule.deferral().waits(class);
            DeferralReport { requests, at_bound, longest_us, by_wait }
        };
        (report(Deferrable::Move), report(Deferrable::WriteBehind))
    }

    /// Counts a sync that a caller waits for, which is no transfer, until the answer is dropped.
    pub fn waited_for(self: Arc<Self>, bytes: SyncedBytes) -> WaitedFor {
        self.speed.schedule.deferral().sync_began();
        if bytes == SyncedBytes::Few {
            self.speed.small_writes.sync_began(self.clock.elapsed());
        }
        let began = match self.speed.schedule.foreground_began() {
            Timing::Timed => Some(self.clock.elapsed()),
            Timing::Untimed => None,
        };
        WaitedFor { handle: self, began, bytes }
    }

    /// Bytes were given to the tier that are not on their way to the device yet.
    pub(super) fn claim_bytes(&self, bytes: u64) {
        self.speed.claimed_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// They are now, or never will be.
    pub(super) fn unclaim_bytes(&self, bytes: u64) {
        let before = self.speed.claimed_bytes.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "what is given back was claimed");
    }

    /// Bytes that the device still has to take: claimed, or on their way.
    pub fn bytes_behind(&self) -> u64 {
        self.speed.claimed_bytes.load(Ordering::Acquire).saturating_add(self.speed.write_lane.outstanding_bytes())
    }

    pub(super) fn known_profile(&self) -> MutexGuard<'_, KnownProfile> {
        self.speed.profile.lock()
    }

    /// The performance of the device for readers and writers.
    pub fn lane_reports(&self, now: Duration) -> (LaneReport, LaneReport) {
        let report = |lane: &Lane| {
            let state = lane.state(now);
            LaneReport {
                bytes_per_second: state.bytes_per_second,
                outstanding_bytes: state.outstanding_bytes,
                in_flight: state.in_flight,
                service_us: state.service_us,
                is_saturated: state.is_saturated,
                delivered_bytes: state.delivered_bytes,
            }
        };
        let write = LaneReport { outstanding_bytes: self.bytes_behind(), ..report(&self.speed.write_lane) };
        (report(&self.speed.read_lane), write)
    }
}

/// How much a sync has to bring to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncedBytes {
    /// Few bytes in one place, which cost the device a request.
    Few,
    /// So many that the time of the sync is that of their transfer, or an unknown number.
    Many,
}

/// A sync of a tier that a caller waits for.
pub struct WaitedFor {
    handle: Arc<TierHandle>,
    began: Option<Duration>,
    bytes: SyncedBytes,
}

impl Drop for WaitedFor {
    fn drop(&mut self) {
        let now = self.handle.clock.elapsed();
        if self.bytes == SyncedBytes::Few {
            self.handle.speed.small_writes.sync_ended(now);
        }
        let finished = self.began.map(|began| Finished { latency: now.saturating_sub(began), now });
        self.handle.speed.schedule.foreground_ended(Direction::Write, 0, finished);
        self.handle.speed.schedule.deferral().sync_ended(now);
    }
}
