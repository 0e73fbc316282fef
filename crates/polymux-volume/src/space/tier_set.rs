//! The tiers of the volume in speed order, with their free space and their state.
//!
//! Invariants:
//! * Tiers come and go while the volume is in use. The holder of a handle keeps the tier (and its lock) for that long; a
//!   tier that left is in no later answer of [`TierSet`].
//! * The lock of the set is held for a short scan and never while a tier is asked: every read and write passes here.
//! * The durable state of a tier is in its record. `draining` here follows the record, and is set after it is durable
//!   and before anything may rely on it.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use polymux_meta::Room;
use polymux_records::attributes::VolumeSpace;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::parts::{TierMember, TierPresence, TierSource};
use polymux_records::report::{DeferralReport, LaneReport, TierState};
use polymux_tier::{Rotation, Space, Tier, TierError};
use polymux_types::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, RwLock};
use polymux_types::{Clock, Percent, TierId};

use super::failure::{Failures, means_failure};
use super::profile::KnownProfile;
use super::refused_messages::RefusedMessages;
use super::watch::{Change, WatchedTier};
use crate::sched::{
    Deferrable, Direction, Finished, Lane, MoverLimits, Saturation, TierSchedule, Timing, Urgency, Waits,
};

/// Maximum age of a tier's space information before the tier is asked again.
const ROOM_AGE_MAX: Duration = Duration::from_millis(100);
/// Below this much free space the tier is asked each time.
const ROOM_LOW_BYTES: u64 = 256 * 1024 * 1024;
/// Free space below which in-place writers respect the pending claims of others: as much as all request threads may write at once.
pub const LAST_ROOM_BYTES: u64 = 64 * 1024 * 1024;

/// Maximum space reserved for the metadata store on its tier.
const METADATA_RESERVE_MAX: u64 = 64 * 1024 * 1024;
/// Divisor that yields the reserve on a small tier from its capacity.
const METADATA_RESERVE_DIVISOR: u64 = 32;

/// Objects less than could be made on a tier that holds the metadata store: its tables are files as well.
const METADATA_OBJECTS: u64 = 64;

/// Bytes reserved for the metadata store on a tier of this capacity.
fn metadata_reserve_of(space: &Space) -> u64 {
    METADATA_RESERVE_MAX.min(space.total / METADATA_RESERVE_DIVISOR)
}

/// The use of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Bytes of files alone.
    Data,
    /// Its file system holds the metadata store as well.
    DataAndMetadata,
}

/// One tier.
pub struct TierHandle {
    /// Its number.
    pub id: TierId,
    /// Its name in the configuration.
    pub name: String,
    reserve: u64,
    high_mark: Percent,
    low_mark: Percent,
    purpose: Purpose,
    clock: Arc<dyn Clock>,
    /// Activity of foreground and movers on this tier.
    pub schedule: TierSchedule,
    /// Throughput of the device for readers.
    pub read_lane: Lane,
    /// Throughput of the device for write-behind data. Writes into the page cache of its file system say nothing about it.
    pub write_lane: Lane,
    /// Whether writers hand it more than it takes.
    pub saturation: Saturation,
    /// The recorded performance of the device, and the lane measurements already included in it.
    profile: Mutex<KnownProfile>,
    /// Bytes that were given to the tier and did not begin their way to the device.
    claimed_bytes: AtomicU64,
    tier: Option<Arc<WatchedTier>>,
    missing_reason: Mutex<String>,
    /// Looks for the tier where it is missing or was lost.
    source: Option<Arc<dyn TierSource>>,
    /// When that was last done, or the tier tried.
    looked_for: Mutex<Option<Duration>>,
    failures: RwLock<Failures>,
    room: Mutex<Option<(Duration, Space)>>,
    /// Bytes written here since `room` was refreshed.
    written_since: AtomicI64,
    /// Space that passthrough-open files may still take, as far as it was counted.
    granted_bytes: AtomicU64,
    /// Bytes that writers side by side are about to take here.
    taking_bytes: AtomicU64,
    /// Files leave this tier, and nothing new comes to it.
    draining: AtomicBool,
    /// Grows whenever there may be more free space here than before.
    room_generation: AtomicU64,
    /// The file system is busy with [`TierSet::give_back_room_ahead`].
    is_giving_back: Arc<AtomicBool>,
    /// Messages that went to a slower tier for lack of space here.
    pub refused_messages: RefusedMessages,
}

/// Free space of a tier that a caller is about to take.
pub struct TakenRoom<'a> {
    handle: &'a TierHandle,
    bytes: u64,
    /// Bytes available to this claim: the headroom less the earlier claims of others.
    pub left: u64,
}

impl Drop for TakenRoom<'_> {
    fn drop(&mut self) {
        self.handle.taking_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl TierHandle {
    /// A member of the configuration, present or missing.
    pub fn new(id: TierId, member: TierMember, purpose: Purpose, clock: Arc<dyn Clock>) -> Self {
        let (tier, missing_reason) = match member.presence {
            TierPresence::Present(tier) => (Some(Arc::new(WatchedTier::new(tier, clock.elapsed()))), String::new()),
            TierPresence::Missing(reason) => (None, reason),
        };
        Self {
            id,
            name: member.name,
            reserve: member.reserve.0,
            high_mark: member.high_mark,
            low_mark: member.low_mark,
            purpose,
            clock,
            schedule: TierSchedule::new(MoverLimits::default()),
            read_lane: Lane::default(),
            write_lane: Lane::of_writes(),
            saturation: Saturation::default(),
            profile: Mutex::default(),
            claimed_bytes: AtomicU64::new(0),
            tier,
            missing_reason: Mutex::new(missing_reason),
            source: member.source,
            looked_for: Mutex::new(None),
            failures: RwLock::default(),
            room: Mutex::new(None),
            written_since: AtomicI64::new(0),
            granted_bytes: AtomicU64::new(0),
            taking_bytes: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            room_generation: AtomicU64::new(0),
            is_giving_back: Arc::default(),
            refused_messages: RefusedMessages::default(),
        }
    }

    /// Whether files leave this tier and nothing new comes to it.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Whether parts of files may come here that their own tier does not take fast enough: its device does not seek, as far as is known.
    pub fn takes_spread_growth(&self) -> bool {
        self.present().is_some_and(|tier| tier.capabilities().rotation == Rotation::NonRotational)
    }

    /// Follows the record of the tier.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::SeqCst);
        if !draining {
            self.note_room_freed();
        }
    }

    /// Notes that there may be more free space here than before: operations waiting for space are worth retrying.
    pub fn note_room_freed(&self) {
        // The known value is from before.
        *self.room.lock() = None;
        self.room_generation.fetch_add(1, Ordering::AcqRel);
    }

    /// A number that grows whenever there may be more free space here than before.
    pub fn room_generation(&self) -> u64 {
        self.room_generation.load(Ordering::Acquire)
    }

    /// Used bytes of a tier of this capacity above which files leave it (DESIGN section 9).
    pub fn high_mark_bytes(&self, space: &Space) -> u64 {
        self.high_mark.of(space.total)
    }

    /// Used bytes at which that ends.
    pub fn low_mark_bytes(&self, space: &Space) -> u64 {
        self.low_mark.of(space.total)
    }

    /// The tier, or the error that its absence is.
    pub fn get(&self) -> Result<&dyn Tier> {
        self.present().ok_or_else(|| ErrorKind::TierMissing(self.id).into())
    }

    /// The tier; `None` while it is missing.
    pub fn present(&self) -> Option<&dyn Tier> {
        self.tier.as_deref().map(|tier| tier as &dyn Tier)
    }

    /// The tier where it is there, to be shared with a thread that outlives the call.
    pub fn shared(&self) -> Option<Arc<WatchedTier>> {
        self.tier.clone()
    }

    /// As [`Self::shared`], without another reference count, to see which calls are answered.
    pub fn watched(&self) -> Option<&WatchedTier> {
        self.tier.as_deref()
    }

    /// Bytes that data must leave free on a tier of this capacity.
    pub fn reserve_of(&self, space: &Space) -> u64 {
        match self.purpose {
            Purpose::Data => self.reserve,
            Purpose::DataAndMetadata => self.reserve.max(metadata_reserve_of(space)),
        }
    }

    /// Whether new objects may be created on a tier with this free space.
    pub fn takes_objects(&self, space: &Space) -> bool {
        let kept = if self.holds_metadata() { METADATA_OBJECTS } else { 0 };
        space.objects_free > kept
    }

    /// Why a tier in service accepts no new data, where the reason is not its free bytes.
    pub fn shortage(&self, metadata: Room) -> Option<String> {
        let space = self.space()?;
        let why = if self.holds_metadata() && metadata == Room::Ballast {
            "no room is left for metadata but what removals need: nothing new can be made until there is some"
        } else if !self.takes_objects(&space) {
            "its file system has no free inodes: new data goes to other tiers"
        } else {
            return None;
        };
        Some(why.to_owned())
    }

    /// A notice that the performance of the tier is assumed rather than measured, in words.
    pub fn assumption(&self) -> Option<String> {
        let capabilities = self.present()?.capabilities();
        let name = &capabilities.file_system;
        let words = || format!("its file system was too full to be tried out: what every {name} can do is assumed");
        capabilities.is_assumed.then(words)
    }

    /// Whether the file system of the tier keeps as much for root as metadata needs.
    fn keeps_root_reserve(&self) -> bool {
        self.space().is_some_and(|space| space.root_reserve >= metadata_reserve_of(&space))
    }

    /// Whether so much is in use that files leave the tier.
    pub fn is_above_high_mark(&self) -> bool {
        self.space().is_some_and(|space| space.used > self.high_mark_bytes(&space))
    }

    /// Whether so much is in use that nothing more comes for its use alone.
    pub fn is_above_low_mark(&self) -> bool {
        self.space().is_some_and(|space| space.used > self.low_mark_bytes(&space))
    }

    /// Whether the metadata store lies on the file system of the tier.
    pub fn holds_metadata(&self) -> bool {
        self.purpose == Purpose::DataAndMetadata
    }

    /// Runs an operation on the tier; failures other than lack of space mark it failing.
    pub fn run<T>(&self, operation: impl FnOnce(&dyn Tier) -> std::result::Result<T, TierError>) -> Result<T> {
        operation(self.get()?).map_err(|error| self.note_error(error))
    }

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
        let began = match self.schedule.foreground_began() {
            Timing::Timed => Some(self.clock.elapsed()),
            Timing::Untimed => None,
        };
        let began_read = (direction == Direction::Read).then(|| self.read_lane.began(0, self.clock.elapsed()));
        let result = self.run(operation);
        let bytes = result.as_ref().map_or(0, |done| bytes_of(done) as u64);
        let took = began_read.map(|began| self.read_lane.ended(began, bytes, self.clock.elapsed()));
        let finished = began.map(|began| {
            let now = self.clock.elapsed();
            Finished { latency: now.saturating_sub(began), now }
        });
        self.schedule.foreground_ended(direction, bytes, finished);
        Ok((result?, took.unwrap_or_default()))
    }

    /// Sets how long background requests yield here at most, in milliseconds.
    pub fn set_deferral_max(&self, milliseconds: u32) {
        self.schedule.deferral().set_bound(Duration::from_millis(u64::from(milliseconds)));
    }

    /// Whether the tier has something to do that goes before background requests.
    pub(crate) fn urgency(&self, now: Duration) -> Urgency {
        self.schedule.deferral().urgency(&self.read_lane, now)
    }

    /// How long requests that yield waited: those of movers, and write-behind.
    pub fn deferral_reports(&self) -> (DeferralReport, DeferralReport) {
        let report = |class| {
            let Waits { requests, at_bound, longest_us, by_wait } = self.schedule.deferral().waits(class);
            DeferralReport { requests, at_bound, longest_us, by_wait }
        };
        (report(Deferrable::Move), report(Deferrable::WriteBehind))
    }

    /// Counts a sync that a caller waits for, which is no transfer, until the answer is dropped.
    pub fn waited_for(self: Arc<Self>) -> WaitedFor {
        self.schedule.deferral().sync_began();
        let began = match self.schedule.foreground_began() {
            Timing::Timed => Some(self.clock.elapsed()),
            Timing::Untimed => None,
        };
        WaitedFor { handle: self, began }
    }

    /// Turns an error of the tier into one of the file system, and remembers it where it means that the tier fails.
    pub fn note_error(&self, error: TierError) -> Error {
        if means_failure(&error) && self.failures.write().note(&error, self.clock.elapsed()) {
            log::error!("tier `{}` fails: {error}; new data goes to other tiers until it works again", self.name);
        }
        Error::tier(self.id, error)
    }

    /// Whether new data should go elsewhere: the tier fails, or does not answer.
    pub fn is_failing(&self) -> bool {
        self.is_silent() || self.failures.read().is_failing()
    }

    /// Whether the tier does not answer.
    pub fn is_silent(&self) -> bool {
        self.watched().is_some_and(WatchedTier::is_silent)
    }

    /// Whether a thread that many wait for should keep away from the tier.
    pub fn is_slow(&self) -> bool {
        self.watched().is_some_and(WatchedTier::is_slow)
    }

    /// Its state, for `status`.
    pub fn state(&self) -> TierState {
        let Some(tier) = self.watched() else { return TierState::Missing(self.missing_reason.lock().clone()) };
        if let Some(silence) = tier.silence() {
            return TierState::NotAnswering(WatchedTier::words_of(silence, self.clock.elapsed()));
        }
        self.failures.read().words().map_or(TierState::Online, TierState::Failing)
    }

    /// Times that the tier was taken out of placement because it failed.
    pub fn times_taken_out(&self) -> u64 {
        self.failures.read().taken_out
    }

    /// Looks at the calls under way, and says once when the tier stops answering or answers again.
    pub fn look(&self, now: Duration, hang_after_ms: u64) {
        let Some(tier) = self.watched() else { return };
        match tier.look(now, hang_after_ms) {
            Change::None => {}
            Change::FellSilent(silence) => {
                log::error!("tier `{}`: {}", self.name, WatchedTier::words_of(silence, now));
            }
            Change::AnswersAgain => {
                log::warn!("tier `{}` answers again", self.name);
                self.note_room_freed();
            }
        }
    }

    /// Tries a tier that failed and was quiet since. Returns whether it works again.
    pub fn try_again(&self) -> bool {
        let now = self.clock.elapsed();
        if self.is_silent() || !self.failures.read().is_due(now) {
            return false;
        }
        match self.run(|tier| tier.probe()) {
            Ok(()) => {}
            Err(error) => {
                // Also where the error is none that means failure: the next attempt is after a quiet time.
                self.failures.write().note(&TierError::Label(error.to_string()), now);
                return false;
            }
        }
        if self.failures.write().end(now) {
            log::warn!("tier `{}` works again", self.name);
            self.note_room_freed();
        }
        true
    }

    /// The source that looks for the tier, unless it was queried within the last `interval`.
    pub fn source_when_due(&self, interval: Duration) -> Option<Arc<dyn TierSource>> {
        let source = self.source.as_ref()?;
        let now = self.clock.elapsed();
        let mut looked_for = self.looked_for.lock();
        if looked_for.is_some_and(|when| now.saturating_sub(when) < interval) {
            return None;
        }
        *looked_for = Some(now);
        Some(Arc::clone(source))
    }

    /// Replaces the reason why the tier is missing. Returns whether it is another one.
    pub fn set_missing_reason(&self, reason: &str) -> bool {
        let mut known = self.missing_reason.lock();
        let is_new = *known != reason;
        reason.clone_into(&mut known);
        is_new
    }

    /// The source that looks for the tier.
    pub fn source(&self) -> Option<Arc<dyn TierSource>> {
        self.source.clone()
    }

    /// Takes over the state of an earlier handle of this tier that the tier itself does not know.
    pub fn follow(&self, before: &Self) {
        self.schedule.follow(&before.schedule);
        self.set_profile(before.profile());
        self.room_generation.store(before.room_generation() + 1, Ordering::Release);
        self.failures.write().taken_out = before.times_taken_out();
    }

    /// Whether the tier fails in such a way that it may have gone altogether.
    pub fn may_have_gone(&self) -> bool {
        self.tier.is_some() && self.source.is_some() && self.failures.read().is_failing()
    }

    /// Free space as the tier reports it right now.
    ///
    /// Does not wait for a silent tier: then the last known value is returned, if any.
    pub fn space_now(&self) -> Option<Space> {
        let tier = self.tier.as_ref()?;
        self.written_since.store(0, Ordering::Relaxed);
        self.note_space(tier.ask(|tier| tier.space()))
    }

    fn note_space(&self, answer: std::result::Result<Space, TierError>) -> Option<Space> {
        let space = match answer {
            Ok(space) => space,
            Err(TierError::NotAnswering) => return self.room.lock().map(|(_, space)| space),
            Err(error) => {
                self.note_error(error);
                return None;
            }
        };
        *self.room.lock() = Some((self.clock.elapsed(), space));
        Some(space)
    }

    /// The last reported free space, less the bytes written since.
    pub fn space(&self) -> Option<Space> {
        let known = *self.room.lock();
        if let Some((asked, mut space)) = known {
            let written = u64::try_from(self.written_since.load(Ordering::Relaxed)).unwrap_or(0);
            space.free = space.free.saturating_sub(written);
            let fresh = self.clock.elapsed().saturating_sub(asked) < ROOM_AGE_MAX;
            if fresh && space.free > self.reserve_of(&space).saturating_add(ROOM_LOW_BYTES) {
                return Some(space);
            }
        }
        let tier = self.tier.as_ref()?;
        self.written_since.store(0, Ordering::Relaxed);
        self.note_space(tier.ask_often(|tier| tier.space()))
    }

    /// Notes that the caller is about to take so much free space, until this is dropped: others, who look at it meanwhile, would take the same.
    pub fn take_room(&self, bytes: usize) -> TakenRoom<'_> {
        let bytes = bytes as u64;
        let by_others = self.taking_bytes.fetch_add(bytes, Ordering::AcqRel);
        // Asked afterwards: space that another caller has taken is in one of the two.
        TakenRoom { handle: self, bytes, left: self.headroom().saturating_sub(by_others) }
    }

    /// Bytes that new data may still take here, beside those promised to files that the kernel changes directly.
    pub fn headroom(&self) -> u64 {
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        self.space().map_or(0, |space| space.free.saturating_sub(self.reserve_of(&space)).saturating_sub(granted))
    }

    /// A passthrough-open file may take so many bytes more without a request to the daemon.
    pub fn grant_bytes(&self, bytes: u64) {
        self.granted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes bytes back that were granted.
    pub fn return_bytes(&self, bytes: u64) {
        let less = |granted: u64| Some(granted.saturating_sub(bytes));
        let _ = self.granted_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Bytes were given to the tier that are not on their way to the device yet.
    pub(super) fn claim_bytes(&self, bytes: u64) {
        self.claimed_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// They are now, or never will be.
    pub(super) fn unclaim_bytes(&self, bytes: u64) {
        let before = self.claimed_bytes.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "what is given back was claimed");
    }

    /// Bytes that the device still has to take: claimed, or on their way.
    pub fn bytes_behind(&self) -> u64 {
        self.claimed_bytes.load(Ordering::Acquire).saturating_add(self.write_lane.outstanding_bytes())
    }

    pub(super) fn known_profile(&self) -> MutexGuard<'_, KnownProfile> {
        self.profile.lock()
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
        let write = LaneReport { outstanding_bytes: self.bytes_behind(), ..report(&self.write_lane) };
        (report(&self.read_lane), write)
    }

    /// Bytes were written since the free space was last asked for.
    pub fn note_written(&self, bytes: usize) {
        self.written_since.fetch_add(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

/// A sync of a tier that a caller waits for.
pub struct WaitedFor {
    handle: Arc<TierHandle>,
    began: Option<Duration>,
}

impl Drop for WaitedFor {
    fn drop(&mut self) {
        let now = self.handle.clock.elapsed();
        let finished = self.began.map(|began| Finished { latency: now.saturating_sub(began), now });
        self.handle.schedule.foreground_ended(Direction::Write, 0, finished);
        self.handle.schedule.deferral().sync_ended(now);
    }
}

/// Tiers on one file system, whose combined space never exceeds that of the file system.
struct Group {
    device: u64,
    file_system_total: u64,
    file_system_free: u64,
    total: u64,
    free: u64,
    available: u64,
    objects_free: u64,
}

impl Group {
    fn new(device: u64, space: &Space, available: u64) -> Self {
        Self {
            device,
            file_system_total: space.file_system_total,
            file_system_free: space.file_system_free,
            total: space.total,
            free: space.total.saturating_sub(space.used),
            available,
            objects_free: space.objects_free,
        }
    }

    fn add(&mut self, space: &Space, available: u64) {
        let free = space.total.saturating_sub(space.used);
        // A tier without a limit counts the use by all programs, so its free space is that of the file system.
        let is_whole = |total: u64| total == self.file_system_total;
        self.free = match (is_whole(self.total), is_whole(space.total)) {
            (true, _) => self.free,
            (false, true) => free,
            (false, false) => self.free.saturating_add(free).min(self.file_system_total),
        };
        self.total = self.total.saturating_add(space.total).min(self.file_system_total);
        self.available = self.available.saturating_add(available).min(self.file_system_free);
    }
}

/// All tiers, fastest first.
pub struct TierSet {
    tiers: RwLock<Arc<[Arc<TierHandle>]>>,
}

impl TierSet {
    /// The tiers in their order of speed.
    pub fn new(tiers: Vec<TierHandle>) -> Self {
        Self { tiers: RwLock::new(tiers.into_iter().map(Arc::new).collect()) }
    }

    /// The tiers as they are now.
    pub fn all(&self) -> Arc<[Arc<TierHandle>]> {
        Arc::clone(&self.tiers.read())
    }

    /// A number that changes when there may be more free space on any tier than before.
    pub fn room_generation(&self) -> u64 {
        self.tiers.read().iter().map(|tier| 1 + tier.room_generation()).sum()
    }

    /// The tier of a number; one that the volume does not have is an error of the record that names it.
    pub fn by_id(&self, id: TierId) -> Result<Arc<TierHandle>> {
        let found = self.tiers.read().iter().find(|tier| tier.id == id).cloned();
        found.ok_or_else(|| Error::corrupted("the tier table", format!("tier {id} is named by a record but not in it")))
    }

    /// The tier of a name.
    pub fn by_name(&self, name: &str) -> Option<Arc<TierHandle>> {
        self.tiers.read().iter().find(|tier| tier.name == name).cloned()
    }

    /// The tier whose file system also holds the metadata store.
    pub fn metadata_tier(&self) -> Option<Arc<TierHandle>> {
        self.tiers.read().iter().find(|tier| tier.holds_metadata()).cloned()
    }

    /// Takes a tier into the set; `position` 0 is the fastest, and one beyond the end is the slowest.
    pub fn add(&self, handle: TierHandle, position: usize) {
        let mut tiers = self.tiers.write();
        assert!(tiers.iter().all(|tier| tier.id != handle.id), "the number of a tier is its own");
        let mut changed = tiers.to_vec();
        changed.insert(position.min(changed.len()), Arc::new(handle));
        *tiers = changed.into();
    }

    /// Puts the handle of a tier that came back in the place of the one of the tier that was missing.
    pub fn replace(&self, handle: TierHandle) {
        let mut tiers = self.tiers.write();
        let handle = Arc::new(handle);
        *tiers = tiers.iter().map(|tier| if tier.id == handle.id { handle.clone() } else { tier.clone() }).collect();
    }

    /// Takes a tier out of the set.
    pub fn remove(&self, id: TierId) {
        let mut tiers = self.tiers.write();
        *tiers = tiers.iter().filter(|tier| tier.id != id).cloned().collect();
    }

    /// Space of the volume. Tiers that share a file system never count for more than the file system has.
    pub fn volume_space(&self) -> VolumeSpace {
        self.space_of(|_| true)
    }

    /// Space of some of the tiers together. Free space on a tier that is being drained is not available.
    pub fn space_of(&self, which: impl Fn(&TierHandle) -> bool) -> VolumeSpace {
        let mut groups: Vec<Group> = Vec::new();
        for tier in self.all().iter().filter(|tier| which(tier)) {
            let (Some(space), Some(present)) = (tier.space_now(), tier.present()) else { continue };
            let available = match tier.is_draining() {
                true => 0,
                false => space.free.saturating_sub(tier.reserve_of(&space)),
            };
            let device = present.capabilities().device;
            match groups.iter_mut().find(|group| group.device == device) {
                Some(group) => group.add(&space, available),
                None => groups.push(Group::new(device, &space, available)),
            }
        }
        let mut volume = VolumeSpace { total: 0, free: 0, available: 0, files_total: 0, files_free: 0 };
        for group in groups {
            volume.total = volume.total.saturating_add(group.total);
            volume.free = volume.free.saturating_add(group.free);
            volume.available = volume.available.saturating_add(group.available);
            volume.files_free = volume.files_free.saturating_add(group.objects_free);
        }
        volume
    }

    /// Makes the file systems of the tiers give back space that they allocated ahead of writes and that is not needed. Does not wait for a
    /// silent tier.
    pub fn give_back_room_ahead(&self) {
        for tier in self.all().iter() {
            let takes_ahead = tier.present().is_some_and(|present| present.capabilities().allocates_ahead);
            if let Some(watched) = tier.tier.as_ref().filter(|_| takes_ahead) {
                let is_giving_back = Arc::clone(&tier.is_giving_back);
                // A failure only leaves preallocated space in place for some minutes.
                let _ = watched.ask(move |tier| {
                    is_giving_back.store(true, Ordering::Release);
                    let outcome = tier.give_back_room_ahead();
                    is_giving_back.store(false, Ordering::Release);
                    outcome
                });
            }
        }
    }

    /// Whether the file system of a tier that answers is still busy with [`Self::give_back_room_ahead`].
    pub fn are_giving_back_room_ahead(&self) -> bool {
        self.all().iter().any(|tier| tier.is_giving_back.load(Ordering::Acquire) && !tier.is_silent())
    }

    /// Whether a program that writes to a tier unheard leaves the reserve of the metadata alone: no metadata is on the file system of that
    /// tier, or the file system keeps as much for root, and such a program is not root to it.
    pub fn keep_metadata_reserve(&self, tier: &TierHandle) -> bool {
        let device = |tier: &TierHandle| tier.present().map(|tier| tier.capabilities().device);
        let own = device(tier);
        let has_metadata = |other: &Arc<TierHandle>| other.holds_metadata() && device(other) == own;
        let is_beside_metadata = tier.holds_metadata() || self.all().iter().any(has_metadata);
        !is_beside_metadata || tier.keeps_root_reserve()
    }

    /// Names of other tiers on the same file system.
    pub fn sharing_with(&self, tier: &TierHandle) -> Vec<String> {
        let device = |tier: &TierHandle| tier.present().map(|tier| tier.capabilities().device);
        let own = device(tier);
        if own.is_none() {
            return Vec::new();
        }
        self.all()
            .iter()
            .filter(|other| other.id != tier.id && device(other) == own)
            .map(|other| other.name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use polymux_sim::MemoryTier;
    use polymux_types::ManualClock;

    use super::*;

    /// A tier on a file system that keeps nothing for root.
    fn tier_on(device: u64, id: u16, purpose: Purpose) -> TierHandle {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Duration::from_secs(1_000)));
        let memory = MemoryTier::with_clock(format!("tier {id}"), 1 << 30, Arc::clone(&clock));
        let memory = memory.with_capabilities(|can| can.device = device);
        let presence = TierPresence::Present(Arc::new(memory));
        TierHandle::new(TierId(id), TierMember::new(format!("tier {id}"), presence), purpose, clock)
    }

    #[test]
    fn a_tier_beside_the_metadata_on_one_file_system_has_their_reserve_to_keep_too() {
        let tiers = TierSet::new(vec![
            tier_on(70, 0, Purpose::DataAndMetadata),
            tier_on(70, 1, Purpose::Data),
            tier_on(71, 2, Purpose::Data),
        ]);
        let keeps = |id| tiers.keep_metadata_reserve(&tiers.by_id(TierId(id)).unwrap());
        assert_eq!([keeps(0), keeps(1), keeps(2)], [false, false, true]);
    }
}
