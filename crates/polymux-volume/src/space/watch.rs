//! Calls under way on a tier, and whether it answers them (docs/design/0014).
//!
//! Invariants:
//! * Every call of the file system to a tier goes through [`WatchedTier`], which notes when it began and on which thread.
//!   That costs two stores to a cache line that no other thread uses at the moment, and no look at a clock: the time is
//!   that of the last [`WatchedTier::look`].
//! * Calls are of three classes, because a tier may answer some and not others: a frozen file system still reads, and a
//!   sync may rightly take longer than a write. A class *does not answer* while its oldest call is older than the limit,
//!   none of the class has come back for as long, and an attempt of the tier's own ([`Prober`]) hangs too. An attempt that returns counts as a
//!   call of each class that came back.
//! * A class that does not answer gets no new calls: they fail with [`TierError::NotAnswering`] before anything is done.
//!   The hanging calls and the attempt detect recovery: as soon as one of them returns, the class answers again.
//! * A tier that does not answer reads counts as answering nothing; one that does not answer changes or syncs still serves reads.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use polymux_tier::{
    AllocateMode, Capabilities, CounterSnapshot, Label, Loan, LoanPurpose, MemoryReads, ObjectRef, ObjectStamp,
    ObjectStat, SeekTarget, Space, Tier, TierError, Wait,
};
use polymux_types::sync::Mutex;
use polymux_types::{Bucket, InFlight, InFlightTable, ObjectId};

use super::asker::Asker;
use super::prober::Prober;

type Result<T> = std::result::Result<T, TierError>;

/// Calls that can be noted at once; more are made all the same, unnoted.
const SLOTS: usize = 512;
/// A look has seen the call.
const SEEN: u64 = 0b100;
/// A sync may take so many times longer than anything else.
const SYNC_FACTOR: u64 = 6;
/// A tier that answered anything within this time may be asked by a thread that many wait for.
const LATELY_MS: u64 = 2000;
/// How long such a thread waits where the tier did not.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often one who asks looks whether it is his turn.
const TURN_INTERVAL: Duration = Duration::from_millis(1);

fn milliseconds(duration: Duration) -> u64 {
    // Capped so that the time fits into a slot beside the other fields.
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(u64::MAX >> 8)
}

/// Kinds of calls that are judged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallClass {
    Read,
    Change,
    Sync,
}

impl CallClass {
    const ALL: [Self; 3] = [Self::Read, Self::Change, Self::Sync];

    fn bit(self) -> u8 {
        1 << (self as u8)
    }

    /// Classes that must answer for a call of this one to be made.
    fn needs(self) -> u8 {
        match self {
            Self::Read => Self::Read.bit(),
            Self::Change | Self::Sync => 0b111,
        }
    }

    /// How long a call may take, by the limit for most.
    fn limit(self, limit_ms: u64) -> u64 {
        if self == Self::Sync { limit_ms.saturating_mul(SYNC_FACTOR) } else { limit_ms }
    }

    /// The calls that the tier does not answer, for messages.
    fn words(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Change => "writes",
            Self::Sync => "syncs",
        }
    }
}

/// A call under way, as one word: the moment in milliseconds plus one, [`SEEN`], and the class in the lowest two bits. The moment is that of the
/// last look before the call, and, once a look has seen the call, that of the first such look: a call never appears older than it is, however
/// rarely the tier is checked.
fn word_of(class: CallClass, began_ms: u64) -> NonZeroU64 {
    NonZeroU64::new((began_ms + 1) << 3 | class as u64).expect("the moment plus one is not zero")
}

/// The class of calls that the tier does not answer, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    pub(crate) class: CallClass,
    /// On the volume's clock.
    pub since: Duration,
}

/// The changes seen by [`WatchedTier::look`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    FellSilent(Silence),
    AnswersAgain,
}

/// A tier whose calls are noted.
pub struct WatchedTier {
    inner: Arc<dyn Tier>,
    calls: InFlightTable<()>,
    /// The moment of the last look, in milliseconds on the volume's clock.
    now_ms: AtomicU64,
    /// When a call of each class last came back.
    returned_ms: [AtomicU64; 3],
    /// Bits of the classes that do not answer.
    silent: AtomicU8,
    /// The limit at the last look, in milliseconds.
    limit_ms: AtomicU64,
    has_given_objects_out: AtomicBool,
    silence: Mutex<Option<Silence>>,
    prober: Prober,
    /// A thread is waiting for an answer already on behalf of all.
    asking: AtomicBool,
    /// The thread that does.
    asker: Asker,
    /// Syncs that failed after their caller had gone: the next sync of the object reports them.
    untold: Mutex<Vec<(ObjectRef, TierError)>>,
    untold_count: AtomicUsize,
}

/// Notes the end of a call.
struct Call<'a> {
    tier: &'a WatchedTier,
    class: CallClass,
    /// Freed after the rest.
    _slot: Option<InFlight<'a, ()>>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let now = self.tier.now_ms.load(Ordering::Relaxed);
        let returned = &self.tier.returned_ms[self.class as usize];
        // Mostly the same as before, and then the line stays shared.
        if returned.load(Ordering::Relaxed) != now {
            returned.store(now, Ordering::Relaxed);
        }
    }
}

/// The turn of one who asks; over when this is dropped.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl WatchedTier {
    /// `now` is the moment on the clock of the looks.
    pub fn new(inner: Arc<dyn Tier>, now: Duration) -> Self {
        let now_ms = milliseconds(now);
        Self {
            inner,
            calls: InFlightTable::new(SLOTS),
            now_ms: AtomicU64::new(now_ms),
            returned_ms: std::array::from_fn(|_| AtomicU64::new(now_ms)),
            silent: AtomicU8::new(0),
            limit_ms: AtomicU64::new(0),
            has_given_objects_out: AtomicBool::new(false),
            silence: Mutex::new(None),
            prober: Prober::default(),
            asking: AtomicBool::new(false),
            asker: Asker::default(),
            untold: Mutex::new(Vec::new()),
            untold_count: AtomicUsize::new(0),
        }
    }

    fn begin(&self, class: CallClass) -> Result<Call<'_>> {
        let silent = self.silent.load(Ordering::Relaxed);
        if silent != 0 && silent & class.needs() != 0 {
            return Err(TierError::NotAnswering);
        }
        let slot = self.calls.take(word_of(class, self.now_ms.load(Ordering::Relaxed)));
        Ok(Call { tier: self, class, _slot: slot })
    }

    fn call<T>(&self, class: CallClass, operation: impl FnOnce(&dyn Tier) -> Result<T>) -> Result<T> {
        let _call = self.begin(class)?;
        operation(self.inner.as_ref())
    }

    /// Whether any call is under way.
    pub fn is_called(&self) -> bool {
        self.calls_under_way().next().is_some()
    }

    /// Calls under way: class, when it began, and its thread.
    fn calls_under_way(&self) -> impl Iterator<Item = (CallClass, u64, usize)> + '_ {
        self.calls.taken().filter_map(|(slot, word)| {
            let class = CallClass::ALL.get(usize::try_from(word.get() & 3).unwrap_or(0))?;
            Some((*class, (word.get() >> 3) - 1, slot.token()))
        })
    }

    /// Marks the calls that no look has seen yet.
    fn mark_seen(&self, now_ms: u64) {
        for (slot, word) in self.calls.taken().filter(|(_, word)| word.get() & SEEN == 0) {
            let seen = (now_ms + 1) << 3 | SEEN | (word.get() & 3);
            slot.update(word, NonZeroU64::new(seen).expect("the moment plus one is not zero"));
        }
    }

    /// Re-evaluates which classes the tier answers. `limit_ms` 0 switches that off.
    pub fn look(&self, now: Duration, limit_ms: u64) -> Change {
        let now_ms = milliseconds(now);
        self.now_ms.store(now_ms, Ordering::Relaxed);
        self.limit_ms.store(limit_ms, Ordering::Relaxed);
        self.mark_seen(now_ms);
        if self.prober.take_answer() {
            self.returned_ms.iter().for_each(|returned| returned.store(now_ms, Ordering::Relaxed));
        }
        let mut silence: Option<Silence> = None;
        let mut bits = 0;
        for (class, began, _) in self.calls_under_way().filter(|_| limit_ms > 0) {
            let limit = class.limit(limit_ms);
            let since_ms = began.max(self.returned_ms[class as usize].load(Ordering::Relaxed));
            let quiet_ms = now_ms.saturating_sub(since_ms);
            if quiet_ms >= limit / 2 {
                self.prober.begin(&self.inner, now_ms, limit_ms / 2);
            }
            if quiet_ms < limit || !self.prober.confirms_silence(now_ms, limit_ms) {
                continue;
            }
            bits |= class.bit();
            let since = Duration::from_millis(since_ms);
            if silence.is_none_or(|known| since < known.since) {
                silence = Some(Silence { class, since });
            }
        }
        let before = self.silent.swap(bits, Ordering::AcqRel);
        *self.silence.lock() = silence;
        match (before, silence) {
            (0, Some(silence)) => Change::FellSilent(silence),
            (0, None) => Change::None,
            (_, None) => Change::AnswersAgain,
            (_, Some(_)) => Change::None,
        }
    }

    /// The silence of the tier now, if any.
    pub(crate) fn silence(&self) -> Option<Silence> {
        if self.silent.load(Ordering::Acquire) == 0 { None } else { *self.silence.lock() }
    }

    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed) != 0
    }

    fn refuses(&self, class: CallClass) -> bool {
        self.silent.load(Ordering::Relaxed) & class.needs() != 0
    }

    /// Whether syncs of the tier would be refused.
    pub(crate) fn refuses_syncs(&self) -> bool {
        self.refuses(CallClass::Sync)
    }

    /// Threads whose call is of a class that does not answer.
    pub fn stuck_threads(&self) -> Vec<usize> {
        let silent = self.silent.load(Ordering::Acquire);
        if silent == 0 {
            return Vec::new();
        }
        self.calls_under_way().filter(|(class, ..)| silent & class.bit() != 0).map(|(_, _, token)| token).collect()
    }

    /// Whether any object was given to the kernel or to a program since this tier was opened.
    pub(crate) fn has_given_objects_out(&self) -> bool {
        self.has_given_objects_out.load(Ordering::Acquire)
    }

    /// Whether a change is under way.
    pub(crate) fn is_being_changed(&self) -> bool {
        self.calls_under_way().any(|(class, ..)| class == CallClass::Change)
    }

    /// Threads whose call takes longer than a tier may keep silent, whether the tier answers others or not; without syncs, which rightly take long.
    pub fn held_up_threads(&self) -> Vec<usize> {
        let (now_ms, limit_ms) = (self.now_ms.load(Ordering::Relaxed), self.limit_ms.load(Ordering::Relaxed));
        let is_held_up = |class: CallClass, began| class != CallClass::Sync && now_ms.saturating_sub(began) >= limit_ms;
        let calls = self.calls_under_way().filter(|_| limit_ms > 0);
        calls.filter(|(class, began, _)| is_held_up(*class, *began)).map(|(_, _, token)| token).collect()
    }

    /// Whether anything that was begun a moment ago or earlier has not come back, and nothing else has: then a thread that
    /// many wait for keeps away.
    pub fn is_slow(&self) -> bool {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        self.is_silent()
            || self.calls_under_way().any(|(class, began, _)| {
                let returned = self.returned_ms[class as usize].load(Ordering::Relaxed);
                class != CallClass::Sync && now_ms.saturating_sub(began.max(returned)) >= LATELY_MS / 2
            })
    }

    /// Whether any call came back within the last moments, or there are no looks.
    fn answered_lately(&self) -> bool {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let last = self.returned_ms.iter().map(|returned| returned.load(Ordering::Relaxed)).max().unwrap_or(0);
        now_ms.saturating_sub(last) < LATELY_MS
    }

    /// Runs a question for a caller that must not block on this tier: on a thread for that, for [`PATIENCE`] at most and one
    /// at a time. [`TierError::NotAnswering`] where there is no answer by then.
    pub fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        question: impl FnOnce(&dyn Tier) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // The checker of schedules knows no such thread.
        if cfg!(shuttle) {
            return question(self.as_ref());
        }
        let began = Instant::now();
        while self.refuses(CallClass::Read) || self.asking.swap(true, Ordering::AcqRel) {
            if self.refuses(CallClass::Read) || began.elapsed() >= PATIENCE {
                return Err(TierError::NotAnswering);
            }
            std::thread::sleep(TURN_INTERVAL);
        }
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let tier = Arc::clone(self);
        let begun = self.asker.begin(Box::new(move || {
            let answer = {
                let _turn = Turn(&tier.asking);
                question(tier.as_ref())
            };
            // The thread waits for the next question, and keeps no tier meanwhile.
            drop(tier);
            // The caller may have gone.
            let _ = sender.send(answer);
        }));
        if let Err(error) = begun {
            self.asking.store(false, Ordering::Release);
            log::debug!("no thread to ask a tier: {error}");
            return Err(TierError::NotAnswering);
        }
        receiver.recv_timeout(PATIENCE).unwrap_or(Err(TierError::NotAnswering))
    }

    /// As [`Self::ask`], for a caller that asks often: runs on the calling thread if the tier answered lately.
    pub fn ask_often<T: Send + 'static>(
        self: &Arc<Self>,
        question: impl FnOnce(&dyn Tier) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let may_wait = self.answered_lately() && !self.is_slow() && !self.is_asked();
        if may_wait { question(self.as_ref()) } else { self.ask(question) }
    }

    /// Whether a question that was given up may still be carried out.
    pub(crate) fn is_asked(&self) -> bool {
        self.asking.load(Ordering::Acquire)
    }

    /// Keeps a failure of a sync whose caller has gone.
    pub(crate) fn keep_untold(&self, object: ObjectRef, error: TierError) {
        self.untold.lock().push((object, error));
        self.untold_count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn has_untold(&self, object: ObjectRef) -> bool {
        self.untold_count.load(Ordering::Acquire) > 0 && self.untold.lock().iter().any(|(of, _)| *of == object)
    }

    fn take_untold(&self, object: ObjectRef) -> Result<()> {
        if self.untold_count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut untold = self.untold.lock();
        match untold.iter().position(|(of, _)| *of == object) {
            Some(place) => {
                self.untold_count.fetch_sub(1, Ordering::Release);
                Err(untold.swap_remove(place).1)
            }
            None => Ok(()),
        }
    }

    /// In words, for people.
    pub(crate) fn words_of(silence: Silence, now: Duration) -> String {
        let seconds = now.saturating_sub(silence.since).as_secs();
        format!("it does not answer {} for {seconds} s; what needs it fails until it does", silence.class.words())
    }
}

impl Tier for WatchedTier {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn space(&self) -> Result<Space> {
        self.call(CallClass::Read, |tier| tier.space())
    }

    fn create(&self, object: ObjectRef) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.create(object))
    }

    fn remove(&self, object: ObjectRef) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.remove(object))
    }

    fn stat(&self, object: ObjectRef) -> Result<ObjectStat> {
        self.call(CallClass::Read, |tier| tier.stat(object))
    }

    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize> {
        self.call(CallClass::Read, |tier| tier.read(object, offset, buffer, wait))
    }

    fn read_for_keeper(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize> {
        self.call(CallClass::Read, |tier| tier.read_for_keeper(object, offset, buffer, wait))
    }

    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], wait: Wait) -> Result<usize> {
        self.call(CallClass::Change, |tier| tier.write(object, offset, data, wait))
    }

    fn read_exactly(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize> {
        self.call(CallClass::Read, |tier| tier.read_exactly(object, offset, buffer, wait))
    }

    fn begin_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        if let Ok(_call) = self.begin(CallClass::Sync) {
            self.inner.begin_write_back(object, offset, length);
        }
    }

    fn wait_for_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        if let Ok(_call) = self.begin(CallClass::Sync) {
            self.inner.wait_for_write_back(object, offset, length);
        }
    }

    fn read_ahead(&self, object: ObjectRef, offset: u64, length: u64) {
        if let Ok(_call) = self.begin(CallClass::Read) {
            self.inner.read_ahead(object, offset, length);
        }
    }

    fn memory_reads(&self, object: ObjectRef) -> Option<Weak<dyn MemoryReads>> {
        // Not watched: users make none while a tier is silent, and few where memory does not answer.
        self.inner.memory_reads(object)
    }

    fn cached_bytes(&self, object: ObjectRef, offset: u64, length: u64) -> Option<u64> {
        let _call = self.begin(CallClass::Read).ok()?;
        self.inner.cached_bytes(object, offset, length)
    }

    fn drop_behind(&self, object: ObjectRef, offset: u64, length: u64) {
        if let Ok(_call) = self.begin(CallClass::Read) {
            self.inner.drop_behind(object, offset, length);
        }
    }

    fn lend(&self, object: ObjectRef, purpose: LoanPurpose) -> Result<Box<dyn Loan>> {
        self.has_given_objects_out.store(true, Ordering::Release);
        self.call(CallClass::Read, |tier| tier.lend(object, purpose))
    }

    fn may_be_open_elsewhere(&self, object: ObjectRef) -> Result<bool> {
        self.call(CallClass::Read, |tier| tier.may_be_open_elsewhere(object))
    }

    fn empty_for_removal(&self, object: ObjectRef) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.empty_for_removal(object))
    }

    fn open_for_program(&self, object: ObjectRef, purpose: LoanPurpose) -> Result<std::os::fd::OwnedFd> {
        self.has_given_objects_out.store(true, Ordering::Release);
        self.call(CallClass::Read, |tier| tier.open_for_program(object, purpose))
    }

    fn share_for_copy(&self, object: ObjectRef) -> Option<std::os::fd::OwnedFd> {
        let _call = self.begin(CallClass::Read).ok()?;
        self.inner.share_for_copy(object)
    }

    fn copy_within_file_system(
        &self,
        object: ObjectRef,
        offset: u64,
        length: u64,
        source: &std::os::fd::OwnedFd,
    ) -> Result<u64> {
        self.call(CallClass::Change, |tier| tier.copy_within_file_system(object, offset, length, source))
    }

    fn truncate(&self, object: ObjectRef, size: u64) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.truncate(object, size))
    }

    fn allocate(&self, object: ObjectRef, offset: u64, length: u64, mode: AllocateMode) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.allocate(object, offset, length, mode))
    }

    fn punch(&self, object: ObjectRef, offset: u64, length: u64) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.punch(object, offset, length))
    }

    fn seek(&self, object: ObjectRef, offset: u64, target: SeekTarget) -> Result<Option<u64>> {
        self.call(CallClass::Read, |tier| tier.seek(object, offset, target))
    }

    fn allocated(&self, object: ObjectRef, start: u64, end: u64) -> Result<Option<Range<u64>>> {
        self.call(CallClass::Read, |tier| tier.allocated(object, start, end))
    }

    fn give_back_room_ahead(&self) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.give_back_room_ahead())
    }

    fn stamp(&self, object: ObjectRef, stamp: &ObjectStamp) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.stamp(object, stamp))
    }

    fn read_stamp(&self, object: ObjectRef) -> Result<Option<ObjectStamp>> {
        self.call(CallClass::Read, |tier| tier.read_stamp(object))
    }

    fn sync(&self, object: ObjectRef) -> Result<()> {
        self.take_untold(object)?;
        self.call(CallClass::Sync, |tier| tier.sync(object))
    }

    fn sync_all(&self) -> Result<()> {
        self.call(CallClass::Sync, |tier| tier.sync_all())
    }

    fn is_unsynced(&self, object: ObjectRef) -> bool {
        self.inner.is_unsynced(object) || self.has_untold(object)
    }

    fn list(&self, bucket: Bucket) -> Result<Vec<ObjectId>> {
        self.call(CallClass::Read, |tier| tier.list(bucket))
    }

    fn read_label(&self) -> Result<Label> {
        self.call(CallClass::Read, |tier| tier.read_label())
    }

    fn write_label(&self, label: &Label) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.write_label(label))
    }

    fn remove_label(&self) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.remove_label())
    }

    fn probe(&self) -> Result<()> {
        self.call(CallClass::Change, |tier| tier.probe())
    }

    fn measuring_ground(&self) -> Result<Box<dyn polymux_tier::measure::Ground>> {
        self.call(CallClass::Change, |tier| tier.measuring_ground())
    }

    fn counters(&self) -> CounterSnapshot {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_sim::{FaultyTier, MemoryTier, OperationKind};
    use polymux_types::Bucket;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs `body` while a call of a kind hangs, and so does the tier.
    fn while_hanging(kind: OperationKind, call: impl Fn(&WatchedTier) + Sync, body: impl FnOnce(&WatchedTier)) {
        while_stuck(kind, call, FaultyTier::hang, body);
    }

    fn while_stuck(
        kind: OperationKind,
        call: impl Fn(&WatchedTier) + Sync,
        begin: fn(&FaultyTier, &[OperationKind]),
        body: impl FnOnce(&WatchedTier),
    ) {
        let faulty = Arc::new(FaultyTier::new(Arc::new(MemoryTier::new("t", 1 << 20))));
        let tier = WatchedTier::new(faulty.clone(), 100 * SECOND);
        begin(&faulty, &[kind]);
        std::thread::scope(|scope| {
            scope.spawn(|| call(&tier));
            while faulty.hanging_calls() == 0 {
                std::thread::yield_now();
            }
            body(&tier);
            faulty.release();
        });
        tier.look(10_000 * SECOND, 1000);
        assert!(!tier.is_silent() && tier.stuck_threads().is_empty());
    }

    fn list(tier: &WatchedTier) {
        tier.list(Bucket(0)).expect("listed");
    }

    /// Looks once a second from one moment on; returns the moment at which the tier fell silent.
    fn silent_at(tier: &WatchedTier, from: u32, limit_ms: u64) -> Option<u32> {
        (from..from + 20).find(|moment| matches!(tier.look(*moment * SECOND, limit_ms), Change::FellSilent(_)))
    }

    #[test]
    fn a_call_is_never_taken_for_older_than_it_is() {
        while_hanging(OperationKind::List, list, |tier| {
            // There was no look for a long time.
            assert_eq!(
                silent_at(tier, 5000, 4000),
                Some(5006),
                "half the time until an attempt begins, and all of it for that"
            );
        });
    }

    #[test]
    fn a_class_of_which_calls_come_back_answers() {
        while_hanging(OperationKind::List, list, |tier| {
            for moment in 101..200 {
                tier.space().expect("another call of the class comes back");
                assert_eq!(tier.look(moment * SECOND, 4000), Change::None);
            }
            assert_eq!(silent_at(tier, 200, 4000), Some(204), "the last one came back at the look at 198");
            assert_eq!(tier.space(), Err(TierError::NotAnswering));
            assert_eq!(tier.stuck_threads().len(), 1);
        });
    }

    #[test]
    fn syncs_have_more_time_and_keep_nobody_from_reading() {
        let sync = |tier: &WatchedTier| tier.sync_all().expect("synced");
        while_hanging(OperationKind::SyncAll, sync, |tier| {
            assert_eq!(silent_at(tier, 101, 2000), Some(113), "the attempt has hung for long by then");
            tier.space().expect("reads go on");
            assert_eq!(tier.sync_all(), Err(TierError::NotAnswering));
            assert!(tier.refuses_syncs());
        });
    }

    #[test]
    fn a_call_that_hangs_in_a_tier_which_works_makes_no_silence() {
        while_stuck(OperationKind::List, list, FaultyTier::hold, |tier| {
            for moment in 101..200 {
                assert_eq!(tier.look(moment * SECOND, 4000), Change::None);
                // The attempt of this look, if any.
                while tier.prober.is_under_way() {
                    std::thread::yield_now();
                }
            }
            tier.space().expect("it answers");
            assert_eq!((tier.stuck_threads().len(), tier.held_up_threads().len()), (0, 1));
        });
    }

    #[test]
    fn an_attempt_that_shows_nothing_leaves_it_to_the_calls() {
        let faulty = Arc::new(FaultyTier::new(Arc::new(MemoryTier::new("t", 1 << 20))));
        faulty.fail_always(OperationKind::Write, TierError::ReadOnly);
        let tier = WatchedTier::new(faulty.clone(), 100 * SECOND);
        faulty.hold(&[OperationKind::List]);
        std::thread::scope(|scope| {
            scope.spawn(|| list(&tier));
            while faulty.hanging_calls() == 0 {
                std::thread::yield_now();
            }
            for moment in 101..104 {
                assert_eq!(tier.look(moment * SECOND, 4000), Change::None);
                while tier.prober.is_under_way() {
                    std::thread::yield_now();
                }
            }
            assert!(silent_at(&tier, 104, 4000).is_some());
            faulty.release();
        });
    }

    #[test]
    fn without_a_limit_every_tier_answers() {
        while_hanging(OperationKind::List, list, |tier| {
            for moment in [101, 102, 900_000] {
                assert_eq!(tier.look(moment * SECOND, 0), Change::None);
            }
            for moment in [900_001, 900_002] {
                tier.look(moment * SECOND, 1000);
            }
        });
    }
}
