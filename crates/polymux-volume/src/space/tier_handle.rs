//! One tier of the volume: its state, and calls of it.
//!
//! Invariants:
//! * The holder of a handle keeps the tier (and its lock) for that long.
//! * The durable state of a tier is in its record. `draining` here follows the record, and is set after it is durable
//!   and before anything may rely on it.

use std::sync::Arc;
use std::time::Duration;

use polymux_meta::Room;
use polymux_records::error::{Error, ErrorKind, Result};
use polymux_records::parts::{TierMember, TierPresence, TierSource};
use polymux_records::report::TierState;
use polymux_records::store::DisownedRecord;
use polymux_tier::{ObjectRef, Rotation, Tier, TierError};
use polymux_types::sync::{AtomicBool, Mutex, Ordering, RwLock};
use polymux_types::{Clock, TierId};

use super::apart::{Apart, free_bytes, free_bytes_of_open};
use super::failure::{Failures, means_failure};
use super::free_space::FreeSpace;
use super::refused_messages::RefusedMessages;
use super::tier_speed::TierSpeed;
use super::watch::{Change, WatchedTier};

/// Programs beside the daemon that may have an object open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    None,
    Possible,
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
    pub(super) purpose: Purpose,
    pub(super) clock: Arc<dyn Clock>,
    /// The speed of its device, and the requests that tell it.
    pub speed: TierSpeed,
    /// Free space, and the promises on it.
    pub(super) free_space: FreeSpace,
    pub(super) tier: Option<Arc<WatchedTier>>,
    missing_reason: Mutex<String>,
    /// Looks for the tier where it is missing or was lost.
    source: Option<Arc<dyn TierSource>>,
    /// When that was last done, or the tier tried.
    looked_for: Mutex<Option<Duration>>,
    failures: RwLock<Failures>,
    /// Files leave this tier, and nothing new comes to it.
    draining: AtomicBool,
    /// Messages that went to a slower tier for lack of space here.
    pub refused_messages: RefusedMessages,
    /// Changes of objects that programs may have open, and whether programs may have some since before this mount.
    apart: Apart,
    gave_objects_out_before: AtomicBool,
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
            purpose,
            clock,
            speed: TierSpeed::default(),
            free_space: FreeSpace::new(member.reserve, member.high_mark, member.low_mark),
            tier,
            missing_reason: Mutex::new(missing_reason),
            source: member.source,
            looked_for: Mutex::new(None),
            failures: RwLock::default(),
            draining: AtomicBool::new(false),
            refused_messages: RefusedMessages::default(),
            apart: Apart::default(),
            gave_objects_out_before: AtomicBool::new(false),
        }
    }

    /// Whether files leave this tier and nothing new comes to it.
    #[inline]
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

    /// The tier, or the error that its absence is.
    #[inline]
    pub fn get(&self) -> Result<&dyn Tier> {
        self.present().ok_or_else(|| ErrorKind::TierMissing(self.id).into())
    }

    /// The tier; `None` while it is missing.
    #[inline]
    pub fn present(&self) -> Option<&dyn Tier> {
        self.tier.as_deref().map(|tier| tier as &dyn Tier)
    }

    /// The tier where it is there, to be shared with a thread that outlives the call.
    pub fn shared(&self) -> Option<Arc<WatchedTier>> {
        self.tier.clone()
    }

    /// As [`Self::shared`], without another reference count, to see which calls are answered.
    #[inline]
    pub fn watched(&self) -> Option<&WatchedTier> {
        self.tier.as_deref()
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

    /// Whether the metadata store lies on the file system of the tier.
    #[inline]
    pub fn holds_metadata(&self) -> bool {
        self.purpose == Purpose::DataAndMetadata
    }

    /// Runs an operation on the tier; failures other than lack of space mark it failing.
    pub fn run<T>(&self, operation: impl FnOnce(&dyn Tier) -> std::result::Result<T, TierError>) -> Result<T> {
        operation(self.get()?).map_err(|error| self.note_error(error))
    }

    /// Carries out a pending free, and takes from `patience` the time for which it waited for a program that may have the object open.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] where a program has, and the free has to be tried again; errors of the tier.
    pub(crate) fn free_bytes(&self, record: &DisownedRecord, patience: &mut Duration) -> Result<()> {
        self.get()?;
        let record = *record;
        let object = ObjectRef::new(record.object, record.bucket);
        let outcome = self.change_object(object, patience, move |tier, users| match users {
            Users::None => free_bytes(tier, &record),
            Users::Possible => free_bytes_of_open(tier, &record),
        });
        outcome.map_err(|error| self.note_error(error))
    }

    /// Makes a change of an object for a background thread, and takes from `patience` the time for which it waited for a program that may have the
    /// object open, of which the change learns.
    ///
    /// # Errors
    /// [`TierError::WouldBlock`] where a program holds the object, and the change has to be made again; [`TierError::NotAnswering`] where the tier is
    /// missing; errors of the change.
    pub(crate) fn change_object(
        &self,
        object: ObjectRef,
        patience: &mut Duration,
        change: impl FnOnce(&dyn Tier, Users) -> std::result::Result<(), TierError> + Send + 'static,
    ) -> std::result::Result<(), TierError> {
        let tier = self.shared().ok_or(TierError::NotAnswering)?;
        // The checker of schedules knows no such thread.
        if cfg!(shuttle) || !self.may_have_given_objects_out(&tier) {
            return change(tier.as_ref(), Users::None);
        }
        if patience.is_zero() && self.apart.is_waiting(object.id) {
            return Err(TierError::WouldBlock);
        }
        if !tier.may_be_open_elsewhere(object)? {
            return self.apart.change_here(tier.as_ref(), object.id, |tier| change(tier, Users::None));
        }
        self.apart.change(&tier, object.id, patience, Box::new(move |tier| change(tier, Users::Possible)))
    }

    fn may_have_given_objects_out(&self, tier: &WatchedTier) -> bool {
        tier.has_given_objects_out() || self.gave_objects_out_before.load(Ordering::Acquire)
    }

    /// An earlier daemon may have given objects to programs that still have them.
    pub fn note_objects_out(&self) {
        self.gave_objects_out_before.store(true, Ordering::Release);
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
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.watched().is_some_and(WatchedTier::is_silent)
    }

    /// Threads whose call takes too long, for which the reason may be that a program holds an object. None where programs have none.
    pub fn held_up_threads(&self) -> Vec<usize> {
        let tier = self.watched().filter(|tier| self.may_have_given_objects_out(tier));
        tier.map_or_else(Vec::new, WatchedTier::held_up_threads)
    }

    /// Whether a change of an object is under way.
    pub fn is_being_changed(&self) -> bool {
        self.watched().is_some_and(WatchedTier::is_being_changed)
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
        self.speed.schedule.follow(&before.speed.schedule);
        self.set_profile(before.profile());
        self.free_space.follow(before.room_generation());
        self.failures.write().taken_out = before.times_taken_out();
        let given_out = before.gave_objects_out_before.load(Ordering::Acquire)
            || before.watched().is_some_and(WatchedTier::has_given_objects_out);
        self.gave_objects_out_before.store(given_out, Ordering::Release);
    }

    /// Whether the tier fails in such a way that it may have gone altogether.
    pub fn may_have_gone(&self) -> bool {
        self.tier.is_some() && self.source.is_some() && self.failures.read().is_failing()
    }
}
