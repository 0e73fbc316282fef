//! What is learnt of the speed of a tier, from the requests that pass it: meters, lanes, the recorded profile, and which requests yield.

use std::sync::Arc;
use std::time::Duration;

use polymux_records::error::Result;
use polymux_records::report::{DeferralReport, LaneReport};
use polymux_tier::{ObjectRef, SeekTarget, Tier, TierError, Wait};
use polymux_types::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

use super::profile::KnownProfile;
use super::tier_handle::TierHandle;
use crate::sched::{
    Began, Deferrable, Direction, Finished, Lane, MoverLimits, Saturation, SmallWriteMeter, TierSchedule, Timing,
    Urgency, Waits,
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
    /// The last read that memory refused while no other was under way. Its caller makes it again.
    refused: Mutex<Option<(Piece, Began)>>,
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
            refused: Mutex::default(),
        }
    }
}

impl TierSpeed {
    /// The first attempt at a read, where that was the last one that memory refused, and the second one, which began now, is chosen as a sample.
    fn take_refused(&self, piece: Piece, again: &Began) -> Option<Began> {
        let (refused_piece, refused) = self.refused.lock().take()?;
        let is_second_attempt = refused_piece == piece && again.is_soon_after(&refused);
        (is_second_attempt && self.read_lane.choose_sample()).then_some(refused)
    }
}

impl TierHandle {
    /// As [`TierHandle::run`] for a transfer that a caller waits for; `bytes_of` says how much it was. Movers see it and
    /// yield. Reads go through [`TierHandle::timed_read`], which tells the speed of the device as well.
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

    /// As [`TierHandle::transfer`], for a read of a piece of an object by `operation`, which may wait for the device or not. Returns the bytes that came,
    /// and the time.
    ///
    /// Callers that serve several programs read without waiting first, and again where that is refused. Some of these pairs show the time that a
    /// single read takes the device, however fast that is: it began with the first attempt.
    pub fn timed_read(
        &self,
        piece: Piece,
        wait: Wait,
        operation: impl FnOnce(&dyn Tier) -> std::result::Result<usize, TierError>,
    ) -> Result<(usize, Duration)> {
        let lane = &self.speed.read_lane;
        let mut began = lane.began(0, self.clock.elapsed());
        let refused = match wait {
            Wait::Allowed if began.is_alone() => self.speed.take_refused(piece, &began),
            Wait::Allowed | Wait::Never => None,
        };
        let mut is_refused = false;
        let result = self.transfer(
            Direction::Read,
            |count| *count,
            |tier| {
                if let Some(refused) = &refused
                    && piece.is_data(tier)
                {
                    began = began.as_second_attempt_of(refused);
                }
                // Beside a write, a file system may refuse a read for its lock, whoever has the bytes.
                let is_changed = self.speed.schedule.is_changed(lane);
                operation(tier).inspect_err(|error| is_refused = *error == TierError::WouldBlock && !is_changed)
            },
        );
        if is_refused && wait == Wait::Never && began.is_alone() {
            *self.speed.refused.lock() = Some((piece, began));
        }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The object.
    pub object: ObjectRef,
    /// Where in it.
    pub offset: u64,
    /// How many.
    pub length: usize,
}

impl Piece {
    /// Whether it begins with data. Holes are not in memory either, and come from no device.
    fn is_data(self, tier: &dyn Tier) -> bool {
        tier.seek(self.object, self.offset, SeekTarget::Data) == Ok(Some(self.offset))
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
    use polymux_types::{Bucket, Clock, ManualClock, ObjectId, TierId};

    use super::super::tier_handle::Purpose;
    use super::*;

    /// Time of a first attempt, which begins the work of the device, and of the second one.
    const ATTEMPT_TAKES: Duration = Duration::from_micros(10);
    const READS: u64 = 400;

    struct Stand {
        clock: Arc<ManualClock>,
        handle: TierHandle,
        piece: Piece,
    }

    impl Stand {
        /// A tier with one object that has a block of data, and a hole behind that.
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(Duration::from_secs(1)));
            let tier = MemoryTier::new("t", 1 << 20);
            let object = ObjectRef::new(ObjectId(1), Bucket(1));
            tier.create(object).expect("it is new");
            tier.write(object, 0, &[1; 4096], Wait::Allowed).expect("there is space");
            tier.write(object, 8192, &[1; 4096], Wait::Allowed).expect("there is space");
            let member = TierMember::new("t", TierPresence::Present(Arc::new(tier)));
            let handle = TierHandle::new(TierId(0), member, Purpose::Data, Arc::clone(&clock) as _);
            Self { clock, handle, piece: Piece { object, offset: 0, length: 4096 } }
        }

        fn attempt(&self, piece: Piece, wait: Wait, outcome: std::result::Result<usize, TierError>) {
            let read = self.handle.timed_read(piece, wait, |_| {
                self.clock.advance(ATTEMPT_TAKES);
                outcome.clone()
            });
            assert_eq!(read.is_ok(), outcome.is_ok());
        }

        /// A read that is refused in this way first, and then served.
        fn read_twice(&self, piece: Piece, refusal: &TierError) {
            self.attempt(piece, Wait::Never, Err(refusal.clone()));
            self.attempt(piece, Wait::Allowed, Ok(piece.length));
        }

        fn sampled(&self) -> (u64, u64) {
            let work = self.handle.speed.read_lane.work();
            (work.sampled, work.sampled_us)
        }
    }

    #[test]
    fn a_read_that_was_refused_first_tells_the_time_of_the_device_however_short_it_is() {
        let stand = Stand::new();
        (0..READS).for_each(|_| stand.read_twice(stand.piece, &TierError::WouldBlock));
        let (count, took_us) = stand.sampled();
        assert!((READS / 5..=READS / 3).contains(&count), "one in four: {count}");
        assert_eq!(took_us, count * 20, "from the first attempt on");
        assert_eq!(stand.handle.speed.read_lane.work().alone, 0, "by its time memory may have served each of them");
    }

    #[test]
    fn reads_that_no_device_may_have_served_are_no_samples() {
        let stand = Stand::new();
        (0..READS).for_each(|_| stand.read_twice(stand.piece, &TierError::MayBlock));
        assert_eq!(stand.sampled().0, 0, "the object was not open");
        (0..READS).for_each(|_| stand.read_twice(Piece { offset: 4096, ..stand.piece }, &TierError::WouldBlock));
        assert_eq!(stand.sampled().0, 0, "a hole");
        (0..READS).for_each(|_| stand.attempt(stand.piece, Wait::Never, Ok(4096)));
        (0..READS).for_each(|_| stand.attempt(stand.piece, Wait::Allowed, Ok(4096)));
        assert_eq!(stand.sampled().0, 0, "nothing was refused");
    }

    #[test]
    fn a_refusal_beside_a_write_may_be_for_a_lock_and_begins_no_sample() {
        let stand = Stand::new();
        let written = stand.handle.transfer(
            Direction::Write,
            |count| *count,
            |_| {
                (0..READS).for_each(|_| stand.read_twice(stand.piece, &TierError::WouldBlock));
                Ok(4096)
            },
        );
        assert_eq!(written.expect("it is written"), 4096);
        assert_eq!(stand.sampled().0, 0);
        (0..READS).for_each(|_| stand.read_twice(stand.piece, &TierError::WouldBlock));
        assert!(stand.sampled().0 > 0, "once it ended they count");
    }

    #[test]
    fn an_attempt_that_belongs_to_another_read_or_comes_late_is_no_sample() {
        let stand = Stand::new();
        let other = Piece { offset: 8192, ..stand.piece };
        for _ in 0..READS {
            stand.attempt(other, Wait::Never, Err(TierError::WouldBlock));
            stand.attempt(stand.piece, Wait::Allowed, Ok(4096));
            stand.attempt(other, Wait::Allowed, Ok(4096));
            stand.attempt(stand.piece, Wait::Never, Err(TierError::WouldBlock));
            stand.clock.advance(Duration::from_millis(2));
            stand.attempt(stand.piece, Wait::Allowed, Ok(4096));
            let under_way = stand.handle.speed.read_lane.began(0, stand.clock.elapsed());
            stand.read_twice(other, &TierError::WouldBlock);
            let _ = stand.handle.speed.read_lane.ended(under_way, 0, stand.clock.elapsed());
        }
        assert_eq!(stand.sampled().0, 0);
    }
}
