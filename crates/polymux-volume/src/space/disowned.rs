//! The queue of pending frees; how they are carried out stands in `volume/pending_frees.rs`.
//!
//! Order, and why: the record must be durable, in the second copy of the store too, before the tier is touched, or a crash
//! could bring back the old owner with its bytes gone; the tier must be synced before the record goes, or a crash could
//! leave unreferenced bytes.
//!
//! Each tier has rounds of its own, so that one that does not answer keeps nothing from being freed elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_meta::Sequence;
use polymux_records::store::{DisownedKind, DisownedRecord};
use polymux_types::sync::{Condvar, Mutex};
use polymux_types::{ObjectId, TierId};

/// Records carried out in one round.
const ROUND_MAX: usize = 4096;

/// How often a thread that waits for a round of another one looks whether to give up.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// By tier, object and first byte: the record, and a transaction that covers it.
type Pending = BTreeMap<(TierId, ObjectId, u64), (DisownedRecord, Sequence)>;

/// Pending frees, by tier, object and first byte.
#[derive(Debug, Default)]
pub struct DisownedQueue {
    pending: Mutex<Pending>,
    /// Objects of which a round that is under way has taken records. Changes with `pending` held.
    carried: Mutex<BTreeSet<(TierId, ObjectId)>>,
    /// Tiers of which a round is under way: one thread carries out at a time.
    rounds: Mutex<BTreeSet<TierId>>,
    /// A round ended.
    round_ended: Condvar,
}

impl DisownedQueue {
    /// Adds records that were put into a transaction that is at most `sequence`.
    pub fn add(&self, records: &[DisownedRecord], sequence: Sequence) {
        let mut pending = self.pending.lock();
        for record in records {
            pending.insert((record.tier, record.object, record.start), (*record, sequence));
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
        let of_object = pending.range((tier, object, 0)..=(tier, object, u64::MAX));
        of_object.map(|(_, (record, _))| record).any(concerns) || self.carried.lock().contains(&(tier, object))
    }

    /// Whether anything on a tier is still to be freed.
    pub fn names(&self, tier: TierId) -> bool {
        self.pending.lock().range((tier, ObjectId(0), 0)..).next().is_some_and(|((of, ..), _)| *of == tier)
    }

    /// Whether anything is still to be freed, or is being freed.
    pub fn is_freeing_anything(&self) -> bool {
        let pending = self.pending.lock();
        !pending.is_empty() || !self.carried.lock().is_empty()
    }

    /// Whether a round of a tier frees something.
    pub(crate) fn is_carrying(&self, tier: TierId) -> bool {
        self.carried.lock().range((tier, ObjectId(0))..).next().is_some_and(|(of, _)| *of == tier)
    }

    /// Drops the pending frees of a tier that left before they were carried out.
    pub fn forget_tier(&self, tier: TierId) {
        self.pending.lock().retain(|(of, ..), _| *of != tier);
    }

    /// Puts a record back that could not be carried out; one that was added for the same bytes meanwhile stays.
    pub fn put_back(&self, record: DisownedRecord, sequence: Sequence) {
        self.pending.lock().entry((record.tier, record.object, record.start)).or_insert((record, sequence));
    }

    pub fn len(&self) -> usize {
        self.pending.lock().len()
    }

    /// Takes records for a round, [`ROUND_MAX`] at the most.
    pub fn take(&self, tier: TierId, scope: Scope) -> Vec<(DisownedRecord, Sequence)> {
        let (first, last) = match scope {
            Scope::Tier => (ObjectId(0), ObjectId(u64::MAX)),
            Scope::Object(object) => (object, object),
        };
        let mut pending = self.pending.lock();
        let within = (tier, first, 0)..=(tier, last, u64::MAX);
        let keys: Vec<_> = pending.range(within).map(|(key, _)| *key).take(ROUND_MAX).collect();
        self.carried.lock().extend(keys.iter().map(|(tier, object, _)| (*tier, *object)));
        keys.iter().filter_map(|key| pending.remove(key)).collect()
    }

    /// Ends a round of a tier: ranges that it could not free are pending again.
    fn end_round(&self, tier: TierId) {
        {
            let _pending = self.pending.lock();
            self.carried.lock().retain(|(of, _)| *of != tier);
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
