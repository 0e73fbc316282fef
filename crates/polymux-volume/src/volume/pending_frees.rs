//! Carrying out pending frees.
//!
//! Order, and why: the record must be durable, in the second copy of the store too, before the tier is touched, or a crash
//! could bring back the old owner with its bytes gone; the tier must be synced before the record goes, or a crash could
//! leave unreferenced bytes.

use std::time::Duration;

use polymux_records::counters::Counters;
use polymux_records::error::{Error, Result};
use polymux_records::planted_faults::{PlantedFault, is_planted};
use polymux_types::{ObjectId, TierId};

use super::Volume;
use crate::space::{PendingFree, Scope, TierHandle, TierRound};
use crate::transaction::Transaction;

/// Outcome of carrying out some records.
#[derive(Debug, Default)]
pub struct Round {
    /// Records that were carried out and are gone.
    pub freed: usize,
    /// Why some are pending again, if any are.
    pub refused: Option<Error>,
}

impl Volume {
    /// Carries out pending frees; returns the number done. Those of a tier that is missing, fails or does not answer
    /// stay.
    pub fn free_disowned(&self) -> Result<usize> {
        let mut done = 0;
        for tier in self.tiers.all().iter() {
            if tier.present().is_some() && !tier.is_slow() && self.disowned.names(tier.id) {
                done += self.free_disowned_on(tier.id)?;
            }
        }
        Ok(done)
    }

    /// For a writer that found no space when [`TierSet::room_generation`](crate::space::TierSet::room_generation) was `before`: carries out pending
    /// frees, or waits for the threads that do, until any tier has more free space. Returns whether one has.
    ///
    /// It begins nothing on a tier that is slow or fails, and waits for none that does not answer: the space needed may come from
    /// another one.
    pub fn free_for_writer(&self, before: u64) -> Result<bool> {
        let mut tiers = self.tiers.all().to_vec();
        tiers.sort_by_key(|tier| tier.is_draining() || tier.is_slow());
        let has_freed = || self.tiers.room_generation() != before;
        for tier in &tiers {
            if has_freed() {
                break;
            }
            if !self.may_free_on(tier) {
                continue;
            }
            let Some(round) = self.disowned.begin_round(tier.id, || tier.is_silent()) else { continue };
            if !has_freed() && may_begin_round(tier) {
                self.carry_out_round(tier, round, Scope::Tier)?;
            }
        }
        Ok(has_freed())
    }

    /// Whether pending frees of a tier are being carried out, or may begin.
    pub fn may_free_on(&self, tier: &TierHandle) -> bool {
        tier.present().is_some()
            && !tier.is_silent()
            && (self.disowned.is_carrying(tier.id) || self.disowned.names(tier.id) && may_begin_round(tier))
    }

    /// Carries out the pending frees of one tier; returns the number done.
    pub fn free_disowned_on(&self, tier: TierId) -> Result<usize> {
        Ok(self.free_disowned_where(&*self.tiers.by_id(tier)?, Scope::Tier)?.freed)
    }

    /// Carries out the pending frees of a tier through a handle that is not in the tier set yet.
    pub fn free_disowned_through(&self, handle: &TierHandle) -> Result<()> {
        while self.free_disowned_where(handle, Scope::Tier)?.freed > 0 {}
        Ok(())
    }

    /// Carries out the pending frees of one object now, so that its ranges may be used again.
    pub fn free_disowned_of(&self, tier: TierId, object: ObjectId) -> Result<Round> {
        self.free_disowned_where(&*self.tiers.by_id(tier)?, Scope::Object(object))
    }

    fn free_disowned_where(&self, handle: &TierHandle, scope: Scope) -> Result<Round> {
        // A round that is under way may hold records wanted here.
        let round = self.disowned.begin_round(handle.id, || false).expect("it does not give up");
        self.carry_out_round(handle, round, scope)
    }

    fn carry_out_round(&self, handle: &TierHandle, of_tier: TierRound<'_>, scope: Scope) -> Result<Round> {
        if self.is_read_only() {
            return Ok(Round::default());
        }
        let frees = self.disowned.take(handle.id, scope);
        let Some(last) = frees.iter().map(|free| free.sequence).max() else { return Ok(Round::default()) };
        let durable = if is_planted(PlantedFault::PunchBeforeCommit) {
            Ok(())
        } else if is_planted(PlantedFault::FreedBeforeCopy) {
            self.flush_through(last)
        } else {
            self.flush_through_copy(last)
        };
        let result = durable.and_then(|()| self.carry_out(handle, &frees, scope.patience()));
        if result.is_err() {
            self.put_back(&frees);
        }
        drop(of_tier);
        let round = result?;
        Counters::add(&self.counters.disowned_freed, round.freed);
        Ok(round)
    }

    fn put_back(&self, frees: &[PendingFree]) {
        frees.iter().for_each(|free| self.disowned.put_back(*free));
    }

    /// Touches the tier, syncs it, and removes the records. Records that the tier refuses go back into the queue.
    fn carry_out(&self, handle: &TierHandle, frees: &[PendingFree], mut patience: Duration) -> Result<Round> {
        let (mut done, mut refused) = (Vec::new(), None);
        for free in frees {
            let record = &free.record;
            match handle.free_bytes(record, &mut patience) {
                Ok(()) => {
                    self.disowned.note_freed(free);
                    done.push(*free);
                }
                Err(error) => {
                    let level = error.log_level().unwrap_or(log::Level::Debug);
                    log::log!(
                        level,
                        "tier {}: bytes of object {:016x} stay ({:?} from {}): {error}",
                        record.tier,
                        record.object,
                        record.kind,
                        record.start
                    );
                    self.disowned.put_back(*free);
                    refused = Some(error);
                }
            }
        }
        if done.is_empty() {
            return Ok(Round { freed: 0, refused });
        }
        let synced = handle.run(|tier| match is_planted(PlantedFault::RecordGoneBeforeTierSync) {
            true => Ok(()),
            false => tier.sync_all(),
        });
        if let Err(error) = synced {
            let level = error.log_level().unwrap_or(log::Level::Debug);
            log::log!(level, "tier {}: freed bytes are not durable yet: {error}", handle.id);
            self.put_back(&done);
            return Ok(Round { freed: 0, refused: Some(error) });
        }
        handle.note_room_freed();
        let mut transaction = Transaction::default();
        done.iter().for_each(|free| transaction.delete_disowned(&free.record));
        self.metadata.commit(transaction.batch)?;
        Ok(Round { freed: done.len(), refused })
    }
}

/// Whether a writer may begin a round on a tier.
fn may_begin_round(tier: &TierHandle) -> bool {
    !tier.is_slow() && !tier.is_failing()
}
