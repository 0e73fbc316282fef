//! A tier joins a volume that is in use (DESIGN section 4).
//!
//! Invariants:
//! * The record says *joining*, durably wherever the volume can be started from, before anything of the tier changes. Then
//!   come the label, the configuration, the record *in service*, and only then is anything placed on the tier.
//! * So a tier that is recorded as joining holds nothing. After a crash the configuration decides: a tier that it lists
//!   is in service, one that it does not list never joined, and its record goes.
//! * The number of a tier is never used again: remains of a removed one can never be taken for those of another.
//! * Records of tiers are read and written with `raising` held, so that raising the epoch loses no change.

use polymux_meta::{Batch, Sequence};
use polymux_records::error::{Error, Result};
use polymux_records::parts::{TierMember, TierPresence, VolumeError};
use polymux_records::store::keys::{self, NumberKind};
use polymux_records::store::{TierRecord, TierStanding, put_number_range_end};
use polymux_tier::{CleanStamp, Label, TierError};
use polymux_types::TierId;
use polymux_types::limits::TIERS_MAX;
use polymux_volume::space::{Purpose, TierHandle, objects_on};

use super::format::{FIRST_EPOCH, mix};
use crate::mounted::Mounted;

type EventResult<T> = std::result::Result<T, VolumeError>;

impl Mounted {
    /// Takes a tier into the volume; see [`crate::FileSystem::add_tier`].
    pub(crate) fn add_tier(
        &self,
        member: TierMember,
        position: usize,
        list: impl FnOnce() -> std::result::Result<(), String>,
    ) -> EventResult<TierId> {
        self.volume.check_writable()?;
        let _one_at_a_time = self.volume.epochs.tier_event.lock();
        let name = member.name.clone();
        let id = self.check_newcomer(&member)?;
        {
            let _raising = self.volume.epochs.raising.lock();
            self.volume.raise_epoch_for_event()?;
        }
        let instance = mix(self.seed, u64::from(id.0));
        let record = TierRecord { name, instance, epoch: FIRST_EPOCH, standing: TierStanding::Joining };
        let joining = self.change_tier_record(id, |_| Some(record.clone()))?;
        self.volume.flush_through_copy(joining)?;
        let handle = TierHandle::new(id, member, Purpose::Data, self.volume.clock.clone());
        if let Err(error) =
            self.label_newcomer(&handle, &record).and_then(|()| list().map_err(VolumeError::TierRefused))
        {
            self.give_up_joining(&handle);
            return Err(error);
        }
        let joined =
            self.change_tier_record(id, |_| Some(TierRecord { standing: TierStanding::InService, ..record.clone() }));
        self.volume.flush_through_copy(joined?)?;
        log::info!("volume {}: tier `{}` joined as number {id}", self.volume.name, handle.name);
        handle.note_room_freed();
        handle.set_deferral_max(self.volume.options.deferral_ms_max);
        self.volume.tiers.add(handle, position);
        Ok(id)
    }

    /// Rejects a tier that cannot join. Returns the number for it.
    fn check_newcomer(&self, member: &TierMember) -> EventResult<TierId> {
        let name = &member.name;
        let refused = |reason: String| VolumeError::TierRefused(reason);
        let records = self.volume.metadata.tiers()?;
        if records.iter().any(|(_, record)| record.name == *name) {
            return Err(refused(format!("the volume has a tier `{name}` already")));
        }
        if records.len() >= usize::from(TIERS_MAX) {
            return Err(refused(format!("the volume has {TIERS_MAX} tiers already, and cannot have more")));
        }
        let next = self.volume.metadata.next_tier()?;
        let number = u16::try_from(next).ok().filter(|number| *number < TIERS_MAX);
        let id = number.map(TierId).ok_or_else(|| {
            refused(format!(
                "the volume has used up its {TIERS_MAX} tier numbers: those of tiers that left are not used again, so no \
                 further tier can join"
            ))
        })?;
        let tier = match &member.presence {
            TierPresence::Present(tier) => tier,
            TierPresence::Missing(reason) => {
                return Err(VolumeError::TierMissing { name: name.clone(), reason: reason.clone() });
            }
        };
        let label = match tier.read_label() {
            Err(TierError::Label(_)) => return Ok(id),
            Err(error) => return Err(refused(format!("tier `{name}`: {error}"))),
            Ok(label) => label,
        };
        if label.volume != self.volume.id {
            return Err(VolumeError::OtherVolume {
                name: name.clone(),
                found: label.volume_name,
                expected: self.volume.name.clone(),
            });
        }
        if records.iter().any(|(id, _)| *id == label.tier) {
            return Err(VolumeError::OtherTier { name: name.clone(), found: label.tier_name });
        }
        // Left by a crash while this very directory joined or left: then there is nothing on it.
        if u64::from(label.tier.0) >= next || objects_on(tier.as_ref()).map_err(|error| Error::tier(id, error))? > 0 {
            return Err(refused(format!(
                "tier `{name}`: the directory has the label of a tier `{}` that this volume does not know, and objects \
                 of it; move its `.polymux` away",
                label.tier_name
            )));
        }
        Ok(id)
    }

    fn label_newcomer(&self, handle: &TierHandle, record: &TierRecord) -> EventResult<()> {
        let label = Label {
            volume: self.volume.id,
            volume_name: self.volume.name.clone(),
            tier: handle.id,
            tier_name: handle.name.clone(),
            instance: record.instance,
            epoch: record.epoch,
            clean: CleanStamp::InUse,
        };
        Ok(handle.run(|tier| tier.write_label(&label))?)
    }

    /// Rolls back the preparations for a tier that does not join after all. The next mount rolls back
    /// the rest.
    fn give_up_joining(&self, handle: &TierHandle) {
        let unlabelled = handle.run(|tier| tier.remove_label());
        let forgotten =
            self.change_tier_record(handle.id, |_| None).and_then(|sequence| self.volume.flush_through(sequence));
        for error in [unlabelled.err(), forgotten.err()].into_iter().flatten() {
            log::warn!(
                "volume {}: tier `{}` did not join, and something of it stays: {error}",
                self.volume.name,
                handle.name
            );
        }
    }

    /// Changes the record of a tier, `None` where there is none or shall be none. Returns the transaction.
    pub(super) fn change_tier_record(
        &self,
        id: TierId,
        change: impl FnOnce(Option<TierRecord>) -> Option<TierRecord>,
    ) -> Result<Sequence> {
        let _raising = self.volume.epochs.raising.lock();
        let next_tier = self.volume.metadata.next_tier()?.max(u64::from(id.0) + 1);
        let present = self.volume.metadata.tiers()?.into_iter().find(|(of, _)| *of == id).map(|(_, record)| record);
        let mut batch = Batch::new();
        put_number_range_end(&mut batch, NumberKind::Tier, next_tier);
        match change(present) {
            Some(record) => batch.put(keys::tier(id), record.encode()),
            None => {
                batch.delete(keys::tier(id));
                batch.delete(keys::profile(id));
            }
        }
        self.volume.metadata.commit(batch)
    }

    /// Removes the records of tiers that hold nothing and that the configuration does not list.
    pub(super) fn forget_tiers(&self, ids: &[TierId]) -> Result<()> {
        for id in ids {
            let sequence = self.change_tier_record(*id, |_| None)?;
            self.volume.metadata.sync(sequence)?;
            self.volume.note_recovery(format!(
                "tier {id} was joining or leaving when the last daemon stopped, and is no more"
            ));
        }
        Ok(())
    }
}
