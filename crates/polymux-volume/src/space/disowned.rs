//! The queue of pending frees; how they are carried out stands in `volume/pending_frees.rs`.
//!
//! Order, and why: the record must be durable, in the second copy of the store too, before the tier is touched, or a crash
//! could bring back the old owner with its bytes gone; the tier must be synced before the record goes, or a crash could
//! leave unreferenced bytes.
//!
//! Each tier has rounds of its own, so that one that does not answer keeps nothing from being freed elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use polymux_meta::Sequence;
use polymux_records::store::{DisownedKind, DisownedRecord};
use polymux_types::sync::{Condvar, Mutex};
use polymux_types::{ObjectId, TierId};

/// Records carried out in one round.
const ROUND_MAX: usize = 4096;

/// How often a thread that waits for a round of another one looks whether to give up.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A record, and when it may be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingFree {
    /// What is to be freed.
    pub record: DisownedRecord,
    /// A transaction that covers the record.
    pub sequence: Sequence,
    /// Bytes of a file that lie there, where that is known; otherwise 0. Free space grows by no more: they may contain holes.
    pub bytes: u64,
}

/// Bytes by tier. Sparse files may be as long as there are numbers, so that a sum of them needs a longer one.
type BytesByTier = BTreeMap<TierId, u128>;

/// Pending frees by tier, object and first byte, and the sum of their bytes by tier.
#[derive(Debug, Default)]
struct Pending {
    frees: BTreeMap<(TierId, ObjectId, u64), PendingFree>,
    bytes: BytesByTier,
    /// The last record of the latest full round of a tier: the next one goes on behind it, because those before may be refused again.
    rounds_end: BTreeMap<TierId, (ObjectId, u64)>,
}

impl Pending {
    /// Adds a free in place of one that begins at the same byte.
    fn insert(&mut self, free: PendingFree) {
        let key = key_of(&free.record);
        self.remove(&key);
        self.frees.insert(key, free);
        *self.bytes.entry(free.record.tier).or_default() += u128::from(free.bytes);
    }

    /// Whether any is of a tier.
    fn names(&self, tier: TierId) -> bool {
        self.frees.range((tier, ObjectId(0), 0)..).next().is_some_and(|((of, ..), _)| *of == tier)
    }

    fn remove(&mut self, key: &(TierId, ObjectId, u64)) -> Option<PendingFree> {
        let free = self.frees.remove(key)?;
        let bytes = self.bytes.get_mut(&key.0).expect("the tier of a pending free has a sum");
        *bytes = bytes.checked_sub(u128::from(free.bytes)).expect("the sum contains every pending free");
        Some(free)
    }
}

fn key_of(record: &DisownedRecord) -> (TierId, ObjectId, u64) {
    (record.tier, record.object, record.start)
}

/// Taken from the queue by rounds that are under way.
#[derive(Debug, Default)]
struct Carried {
    objects: BTreeSet<(TierId, ObjectId)>,
    /// Not freed yet.
    bytes: BytesByTier,
}

/// The pending frees of a volume.
#[derive(Debug, Default)]
pub struct DisownedQueue {
    pending: Mutex<Pending>,
    /// Changes with `pending` held, but for its bytes.
    carried: Mutex<Carried>,
    /// Tiers of which a round is under way: one thread carries out at a time.
    rounds: Mutex<BTreeSet<TierId>>,
    /// A round ended.
    round_ended: Condvar,
}

impl DisownedQueue {
    /// Adds records that were put into a transaction that is at most `sequence`.
    pub fn add(&self, records: &[DisownedRecord], sequence: Sequence) {
        self.add_all(records.iter().map(|record| PendingFree { record: *record, sequence, bytes: 0 }));
    }

    /// As [`Self::add`], where it is known how many bytes become free.
    pub fn add_all(&self, frees: impl IntoIterator<Item = PendingFree>) {
        let mut pending = self.pending.lock();
        frees.into_iter().for_each(|free| pending.insert(free));
    }

    /// Bytes of a tier that are about to be freed, as far as is known. Those that the tier refused to free do not count.
    pub fn bytes_on(&self, tier: TierId) -> u64 {
        let pending = self.pending.lock();
        let carried = self.carried.lock();
        let bytes: u128 = [&pending.bytes, &carried.bytes].iter().filter_map(|bytes| bytes.get(&tier)).sum();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The tier has freed one that a round carries out: it is part of the free space now.
    pub(crate) fn note_freed(&self, free: &PendingFree) {
        if let Some(bytes) = self.carried.lock().bytes.get_mut(&free.record.tier) {
            *bytes = bytes.saturating_sub(u128::from(free.bytes));
        }
    }

    /// Begins a round of a tier when the one that is under way has ended. `None` where `gives_up` says so before.
    pub(crate) fn begin_round(&self, tier: TierId, gives_up: impl Fn() -> bool) -> Option<TierRound<'_>> {
        let mut rounds = self.rounds.lock();
        while !rounds.insert(tier) {
            if gives_up() {
                return None;
            }
            self.round_ended.wait_for(&mut rounds, LOOK_INTERVAL);
        }
        Some(TierRound { queue: self, tier })
    }

    /// Whether bytes of an object are still to be freed, or are being freed.
    pub fn holds(&self, tier: TierId, object: ObjectId) -> bool {
        self.holds_from(tier, object, 0)
    }

    /// Whether bytes of an object from `position` on are still to be freed, or any of it is being freed.
    pub fn holds_from(&self, tier: TierId, object: ObjectId, position: u64) -> bool {
        let pending = self.pending.lock();
        let concerns = |record: &DisownedRecord| match record.kind {
            DisownedKind::Range { end } => end > position,
            DisownedKind::Tail | DisownedKind::Object => true,
        };
        let mut of_object = pending.frees.range((tier, object, 0)..=(tier, object, u64::MAX));
        of_object.any(|(_, free)| concerns(&free.record)) || self.carried.lock().objects.contains(&(tier, object))
    }

    /// Whether anything on a tier is still to be freed.
    pub fn names(&self, tier: TierId) -> bool {
        self.pending.lock().names(tier)
    }

    /// Whether anything is still to be freed, or is being freed.
    pub fn is_freeing_anything(&self) -> bool {
        let pending = self.pending.lock();
        !pending.frees.is_empty() || !self.carried.lock().objects.is_empty()
    }

    /// Whether anything on a tier is still to be freed, or is being freed.
    pub fn is_freeing_on(&self, tier: TierId) -> bool {
        let pending = self.pending.lock();
        pending.names(tier) || self.is_carrying(tier)
    }

    /// Whether a round of a tier frees something.
    pub(crate) fn is_carrying(&self, tier: TierId) -> bool {
        self.carried.lock().objects.range((tier, ObjectId(0))..).next().is_some_and(|(of, _)| *of == tier)
    }

    /// Drops the pending frees of a tier that left before they were carried out.
    pub fn forget_tier(&self, tier: TierId) {
        let mut pending = self.pending.lock();
        pending.frees.retain(|(of, ..), _| *of != tier);
        pending.bytes.remove(&tier);
    }

    /// Puts one back that could not be carried out; one that was added for the same bytes meanwhile stays. The tier may refuse it for long, so
    /// its bytes do not count any more.
    pub fn put_back(&self, free: PendingFree) {
        let mut pending = self.pending.lock();
        if !pending.frees.contains_key(&key_of(&free.record)) {
            pending.insert(PendingFree { bytes: 0, ..free });
        }
    }

    pub fn len(&self) -> usize {
        self.pending.lock().frees.len()
    }

    /// Takes records for a round, [`ROUND_MAX`] at the most.
    pub fn take(&self, tier: TierId, scope: Scope) -> Vec<PendingFree> {
        let (first, last) = match scope {
            Scope::Tier => (ObjectId(0), ObjectId(u64::MAX)),
            Scope::Object(object) => (object, object),
        };
        let mut pending = self.pending.lock();
        let within = (tier, first, 0)..=(tier, last, u64::MAX);
        let last_round_end = match scope {
            Scope::Tier => pending.rounds_end.remove(&tier),
            Scope::Object(_) => None,
        };
        let keys: Vec<_> = match last_round_end {
            Some((object, start)) => {
                let behind = (Bound::Excluded((tier, object, start)), Bound::Included((tier, last, u64::MAX)));
                let before = (tier, first, 0)..=(tier, object, start);
                let both = pending.frees.range(behind).chain(pending.frees.range(before));
                both.map(|(key, _)| *key).take(ROUND_MAX).collect()
            }
            None => pending.frees.range(within).map(|(key, _)| *key).take(ROUND_MAX).collect(),
        };
        if let (Scope::Tier, ROUND_MAX, Some((_, object, start))) = (scope, keys.len(), keys.last()) {
            pending.rounds_end.insert(tier, (*object, *start));
        }
        let taken: Vec<PendingFree> = keys.iter().filter_map(|key| pending.remove(key)).collect();
        let mut carried = self.carried.lock();
        carried.objects.extend(keys.iter().map(|(tier, object, _)| (*tier, *object)));
        *carried.bytes.entry(tier).or_default() += taken.iter().map(|free| u128::from(free.bytes)).sum::<u128>();
        taken
    }

    /// Ends a round of a tier: ranges that it could not free are pending again.
    fn end_round(&self, tier: TierId) {
        {
            let _pending = self.pending.lock();
            let mut carried = self.carried.lock();
            carried.objects.retain(|(of, _)| *of != tier);
            carried.bytes.remove(&tier);
        }
        self.rounds.lock().remove(&tier);
        self.round_ended.notify_all();
    }
}

/// Pending frees of a tier that a round carries out.
#[derive(Clone, Copy, Debug)]
pub enum Scope {
    /// All of the tier.
    Tier,
    /// Those of one object.
    Object(ObjectId),
}

impl Scope {
    /// How long a round waits for programs that may have its objects open, for all of them together. Other rounds of the tier wait meanwhile; the user
    /// of the one object waits in any case.
    pub(crate) fn patience(self) -> Duration {
        match self {
            Self::Tier => Duration::from_millis(20),
            Self::Object(_) => Duration::from_millis(200),
        }
    }
}

/// A round of a tier. Ends when dropped, after a panic too: threads waiting for its records would otherwise wait forever.
pub(crate) struct TierRound<'a> {
    queue: &'a DisownedQueue,
    tier: TierId,
}

impl Drop for TierRound<'_> {
    fn drop(&mut self) {
        self.queue.end_round(self.tier);
    }
}

#[cfg(test)]
mod tests {
    use polymux_types::Bucket;

    use super::*;

    const TIER: TierId = TierId(1);

    fn range(object: u64, start: u64, bytes: u64) -> PendingFree {
        let kind = DisownedKind::Range { end: start + bytes };
        let record = DisownedRecord { tier: TIER, object: ObjectId(object), bucket: Bucket(0), start, kind };
        PendingFree { record, sequence: Sequence(1), bytes }
    }

    #[test]
    fn bytes_count_until_their_tier_has_freed_or_refused_them() {
        let queue = DisownedQueue::default();
        queue.add_all([range(1, 0, 10), range(1, 10, 5), range(2, 0, 20)]);
        assert_eq!((queue.bytes_on(TIER), queue.bytes_on(TierId(2))), (35, 0));
        let round = queue.begin_round(TIER, || false).expect("no other one");
        let taken = queue.take(TIER, Scope::Object(ObjectId(1)));
        assert_eq!(taken, [range(1, 0, 10), range(1, 10, 5)]);
        assert_eq!(queue.bytes_on(TIER), 35);
        queue.note_freed(&taken[0]);
        assert_eq!(queue.bytes_on(TIER), 25);
        queue.put_back(taken[1]);
        drop(round);
        assert_eq!((queue.bytes_on(TIER), queue.len()), (20, 2));
    }

    #[test]
    fn records_that_are_refused_again_and_again_keep_none_from_its_turn() {
        let queue = DisownedQueue::default();
        let objects = ROUND_MAX as u64 + 10;
        queue.add_all((0..objects).map(|object| range(object, 0, 1)));
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            // One that is wanted in between changes nothing.
            queue.take(TIER, Scope::Object(ObjectId(7))).into_iter().for_each(|free| queue.put_back(free));
            let _round = queue.begin_round(TIER, || false).expect("no other one");
            for free in queue.take(TIER, Scope::Tier) {
                seen.insert(free.record.object);
                queue.put_back(free);
            }
        }
        assert_eq!(seen.len() as u64, objects);
    }

    #[test]
    fn sparse_files_of_any_length_can_be_summed() {
        let queue = DisownedQueue::default();
        queue.add_all((0..4).map(|object| range(object, 0, u64::MAX / 2)));
        assert_eq!(queue.bytes_on(TIER), u64::MAX);
        let _round = queue.begin_round(TIER, || false).expect("no other one");
        queue.take(TIER, Scope::Tier).iter().for_each(|free| queue.note_freed(free));
        assert_eq!(queue.bytes_on(TIER), 0);
    }

    #[test]
    fn a_free_of_the_same_bytes_counts_once() {
        let queue = DisownedQueue::default();
        queue.add_all([range(1, 0, 10), range(1, 0, 15)]);
        queue.put_back(range(1, 0, 10));
        assert_eq!(queue.bytes_on(TIER), 15);
        queue.forget_tier(TIER);
        assert_eq!(queue.bytes_on(TIER), 0);
    }
}
