//! What is learnt of the speed of a tier, from the requests that pass it: meters, lanes, the recorded profile, and which requests yield.

use std::sync::Arc;
use std::time::Duration;

use polymux_records::error::Result;
use polymux_records::report::{DeferralReport, LaneReport};
use polymux_tier::{ObjectRef, Tier, TierError, Wait};
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
        let began = match self.speed.schedule.foreground_began() {
            Timing::Timed => Some(self.clock.elapsed()),
            Timing::Untimed => None,
        };
        let result = self.run(operation);
        let finished = began.map(|began| {
            let now = self.clock.elapsed();
            Finished { latency: now.saturating_sub(began), now }
        });
        let bytes = result.as_ref().map_or(0, |done| bytes_of(done) as u64);
        self.speed.schedule.foreground_ended(direction, bytes, finished);
        result
    }

    /// As [`TierHandle::transfer`], for a read of a piece of an object; `operation` reads it, and waits for the device only where it is given leave to.
    /// Returns the bytes that came, and the time. Some reads that no other precedes ask memory first: those that it cannot serve show
    /// what a single read costs the device, however fast that is.
    pub fn timed_read(
        &self,
        piece: Piece,
        wait: Wait,
        mut operation: impl FnMut(&dyn Tier, Wait) -> std::result::Result<usize, TierError>,
    ) -> Result<(usize, Duration)> {
        let lane = &self.speed.read_lane;
        let mut began = lane.began(0, self.clock.elapsed());
        let is_sample = wait == Wait::Allowed && lane.is_sample(&began, piece.length as u64);
        let result = self.transfer(
            Direction::Read,
            |count| *count,
            |tier| {
                if is_sample && tier.capabilities().nowait_read && piece.may_be_on_device(tier) {
                    match operation(tier, Wait::Never) {
                        Ok(count) if count == piece.length => return Ok(count),
                        Err(TierError::WouldBlock) => began = began.from_device(),
                        // The read below says what it is.
                        Ok(_) | Err(_) => {}
                    }
                }
                operation(tier, wait)
            },
        );
        let bytes = result.as_ref().map_or(0, |count| *count as u64);
        let took = lane.ended(began, bytes, self.clock.elapsed());
        Ok((result?, took))
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

/// Bytes of an object that are read at once.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The object.
    pub object: ObjectRef,
    /// Where in it.
    pub offset: u64,
    /// How many.
    pub length: usize,
}

impl Piece {
    /// Whether memory holds none of it, as far as the kernel says. The object is open afterwards, so that a read which must not wait is refused for
    /// its bytes alone. That read is needed, too: a hole is in no memory, and comes from no device.
    fn may_be_on_device(self, tier: &dyn Tier) -> bool {
        tier.cached_bytes(self.object, self.offset, self.length as u64).unwrap_or(0) == 0
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

#[cfg(test)]
mod tests {
    use polymux_records::parts::{TierMember, TierPresence};
    use polymux_sim::MemoryTier;
    use polymux_types::{Bucket, ManualClock, ObjectId, TierId};

    use super::super::tier_handle::Purpose;
    use super::*;

    const DEVICE_TAKES: Duration = Duration::from_micros(20);
    const READS: u64 = 40;

    /// Reads one after the other on a device that is as fast as memory hardly is; how many asked memory first.
    fn read_on(tier: MemoryTier, in_memory: impl Fn() -> std::result::Result<usize, TierError>) -> (TierHandle, u64) {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1)));
        let member = TierMember::new("t", TierPresence::Present(Arc::new(tier)));
        let handle = TierHandle::new(TierId(0), member, Purpose::Data, Arc::clone(&clock) as _);
        let mut asked = 0;
        for _ in 0..READS {
            let piece = Piece { object: ObjectRef::new(ObjectId(1), Bucket(1)), offset: 0, length: 4096 };
            let read = handle.timed_read(piece, Wait::Allowed, |_, wait| {
                if wait == Wait::Never {
                    asked += 1;
                    return in_memory();
                }
                clock.advance(DEVICE_TAKES);
                Ok(4096)
            });
            assert_eq!(read.expect("it reads").0, 4096);
        }
        (handle, asked)
    }

    #[test]
    fn a_single_read_that_memory_refuses_tells_the_time_of_the_device_however_short_it_is() {
        let (handle, asked) = read_on(MemoryTier::new("t", 1 << 20), || Err(TierError::WouldBlock));
        let work = handle.speed.read_lane.work();
        assert_eq!(asked, READS / 4, "a part of the reads asks memory first");
        assert_eq!((work.sampled, work.sampled_us), (asked, asked * 20));
        assert_eq!((work.alone, work.small), (0, READS), "by its time alone memory may have served each of them");
    }

    #[test]
    fn reads_that_memory_serves_are_no_samples_of_the_device() {
        let tier = MemoryTier::new("t", 1 << 20);
        tier.set_cached_percent(100);
        let (handle, asked) = read_on(tier, || Err(TierError::WouldBlock));
        assert_eq!((asked, handle.speed.read_lane.work().sampled), (0, 0), "the kernel says that memory has them");
        let (handle, asked) = read_on(MemoryTier::new("t", 1 << 20), || Ok(4096));
        assert!(asked > 0);
        assert_eq!(handle.speed.read_lane.work().sampled, 0);
        let (handle, _) = read_on(MemoryTier::new("t", 1 << 20), || Ok(100));
        assert_eq!(handle.speed.read_lane.work().sampled, 0, "a short read is repeated, and says nothing");
    }

    #[test]
    fn a_tier_that_cannot_refuse_to_wait_is_not_asked_for_what_memory_holds() {
        let tier = MemoryTier::new("t", 1 << 20).with_capabilities(|capabilities| capabilities.nowait_read = false);
        assert_eq!(read_on(tier, || Err(TierError::WouldBlock)).1, 0);
    }
}
