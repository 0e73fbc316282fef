//! The queue of disowned ranges and how they are carried out.
//!
//! Order, and why: the record must be durable, in the second copy of the store too, before the tier is touched, or a crash
//! could bring back the old owner with its bytes gone; the tier must be synced before the record goes, or a crash could leave bytes that nobody knows of.

use std::collections::BTreeMap;

use polymux_meta::Sequence;
use polymux_tier::{ObjectRef, TierError};
use polymux_types::sync::Mutex;
use polymux_types::{ObjectId, TierId};

use crate::core::{Core, Transaction};
use crate::counters::Counters;
use crate::error::Result;
use crate::planted_faults::{PlantedFault, is_planted};
use crate::store::{DisownedKind, DisownedRecord, ObjectEntry};

/// Records carried out in one round.
const ROUND_MAX: usize = 4096;

/// By tier, object and first byte: the record, and a transaction that covers it.
type Pending = BTreeMap<(TierId, ObjectId, u64), (DisownedRecord, Sequence)>;

/// Disowned records that still have to be carried out, by tier, object and first byte.
#[derive(Debug, Default)]
pub(crate) struct DisownedQueue {
    pending: Mutex<Pending>,
    /// One thread carries out at a time.
    round: Mutex<()>,
}

impl DisownedQueue {
    /// Adds records that were put into a transaction that is at most `sequence`.
    pub(crate) fn add(&self, records: &[DisownedRecord], sequence: Sequence) {
        let mut pending = self.pending.lock();
        for record in records {
            pending.insert((record.tier, record.object, record.start), (*record, sequence));
        }
    }

    /// Whether bytes of an object are still to be freed.
    pub(crate) fn holds(&self, tier: TierId, object: ObjectId) -> bool {
        let first = (tier, object, 0);
        self.pending.lock().range(first..=(tier, object, u64::MAX)).next().is_some()
    }

    /// Whether anything on a tier is still to be freed.
    pub(crate) fn names(&self, tier: TierId) -> bool {
        self.pending.lock().range((tier, ObjectId(0), 0)..).next().is_some_and(|((of, ..), _)| *of == tier)
    }

    /// Puts a record back that could not be carried out; one that was added for the same bytes meanwhile stays.
    fn put_back(&self, record: DisownedRecord, sequence: Sequence) {
        self.pending.lock().entry((record.tier, record.object, record.start)).or_insert((record, sequence));
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.lock().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.lock().is_empty()
    }

    fn take(&self, wanted: impl Fn(&DisownedRecord) -> bool) -> Vec<(DisownedRecord, Sequence)> {
        let mut pending = self.pending.lock();
        let keys: Vec<_> =
            pending.iter().filter(|(_, (record, _))| wanted(record)).map(|(key, _)| *key).take(ROUND_MAX).collect();
        keys.iter().filter_map(|key| pending.remove(key)).collect()
    }
}

/// The record that gives up an object as a whole. Its first byte is none, so that its key is never that of a range.
pub(crate) fn disown_object(entry: &ObjectEntry) -> DisownedRecord {
    DisownedRecord {
        tier: entry.tier,
        object: entry.object,
        bucket: entry.bucket,
        start: u64::MAX,
        kind: DisownedKind::Object,
    }
}

impl Core {
    /// Carries out disowned records; returns how many were done. Those of a tier that is missing or fails stay.
    pub(crate) fn free_disowned(&self) -> Result<usize> {
        self.free_disowned_where(|record| self.tiers.by_id(record.tier).is_ok_and(|tier| tier.present().is_some()))
    }

    /// Carries out the disowned records of one object now, so that its ranges may be used again.
    pub(crate) fn free_disowned_of(&self, tier: TierId, object: ObjectId) -> Result<usize> {
        self.free_disowned_where(|record| record.tier == tier && record.object == object)
    }

    fn free_disowned_where(&self, wanted: impl Fn(&DisownedRecord) -> bool) -> Result<usize> {
        if self.is_read_only() {
            return Ok(0);
        }
        // A round that is under way may hold what is wanted here.
        let _round = self.disowned.round.lock();
        let records = self.disowned.take(wanted);
        let Some(last) = records.iter().map(|(_, sequence)| *sequence).max() else { return Ok(0) };
        let durable = if is_planted(PlantedFault::PunchBeforeCommit) { Ok(()) } else { self.flush_through_copy(last) };
        let result = durable.and_then(|()| self.carry_out(&records));
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                self.put_back(&records);
                return Err(error);
            }
        };
        Counters::add(&self.counters.disowned_freed, done);
        Ok(done)
    }

    fn put_back(&self, records: &[(DisownedRecord, Sequence)]) {
        for (record, sequence) in records {
            self.disowned.put_back(*record, *sequence);
        }
    }

    /// Touches the tiers, syncs them, and removes the records. What a tier refuses goes back into the queue.
    fn carry_out(&self, records: &[(DisownedRecord, Sequence)]) -> Result<usize> {
        let mut touched: Vec<TierId> = Vec::new();
        let mut done = Vec::new();
        for (record, sequence) in records {
            match self.tiers.by_id(record.tier)?.run(|tier| free_bytes(tier, record)) {
                Ok(()) => {
                    if !touched.contains(&record.tier) {
                        touched.push(record.tier);
                    }
                    done.push((*record, *sequence));
                }
                Err(error) => {
                    log::warn!("tier {}: bytes of object {:016x} stay for now: {error}", record.tier, record.object);
                    self.disowned.put_back(*record, *sequence);
                }
            }
        }
        let mut synced = Vec::new();
        for tier in touched {
            match self.tiers.by_id(tier)?.run(|tier| match is_planted(PlantedFault::RecordGoneBeforeTierSync) {
                true => Ok(()),
                false => tier.sync_all(),
            }) {
                Ok(()) => {
                    synced.push(tier);
                    if let Ok(handle) = self.tiers.by_id(tier) {
                        handle.note_room_freed();
                    }
                }
                Err(error) => log::warn!("tier {tier}: freed bytes are not durable yet: {error}"),
            }
        }
        let (done, again): (Vec<_>, Vec<_>) = done.into_iter().partition(|(record, _)| synced.contains(&record.tier));
        self.put_back(&again);
        let mut transaction = Transaction { batch: polymux_meta::Batch::new() };
        for (record, _) in &done {
            transaction.delete_disowned(record);
        }
        self.metadata.commit(transaction.batch)?;
        Ok(done.len())
    }
}

fn free_bytes(tier: &dyn polymux_tier::Tier, record: &DisownedRecord) -> std::result::Result<(), TierError> {
    let object = ObjectRef::new(record.object, record.bucket);
    let outcome = match record.kind {
        DisownedKind::Object => tier.remove(object),
        DisownedKind::Tail => tier
            .stat(object)
            .and_then(|stat| if stat.size > record.start { tier.truncate(object, record.start) } else { Ok(()) }),
        // Written by mistake by a former version.
        DisownedKind::Range { end } if end <= record.start => Ok(()),
        DisownedKind::Range { end } => match tier.punch(object, record.start, end - record.start) {
            // Without holes the bytes stay; nobody owns them, and whoever takes the range writes it whole.
            Err(TierError::Unsupported(_)) => Ok(()),
            other => other,
        },
    };
    match outcome {
        Err(TierError::NotFound(_)) => Ok(()),
        other => other,
    }
}
