//! A tier is drained, and leaves a volume that is in use.
//!
//! Invariants:
//! * A refused request changes nothing: a tier with files on it is refused before it is kept from taking new ones.
//! * That a tier drains is durable before anything relies on it, and stays so over mounts.
//! * A tier leaves only when it is empty: no record names an object on it, no free is pending on it, and
//!   there is no object on it. No new object is placed on it meanwhile: the creator of an object looks for `draining` *after* the object
//!   is there, and here `draining` is set before objects are looked for.
//! * Then the record says *leaving*, durably wherever the volume can be started from; the configuration no longer lists
//!   it; the label goes, and last the record. After a crash the configuration decides: a tier that it still lists drains
//!   as before, and the record of one that it does not list goes.

use polymux_data::placement::PIN_ATTRIBUTE;
use polymux_records::error::Result;
use polymux_records::parts::VolumeError;
use polymux_records::report::{Destination, MoveReason};
use polymux_records::store::{InodeBody, TierRecord, TierStanding};
use polymux_types::{ByteSize, TierId};
use polymux_volume::space::TierHandle;

use crate::mounted::Mounted;

pub(super) type EventResult<T> = std::result::Result<T, VolumeError>;

pub(super) fn refused(reason: impl Into<String>) -> VolumeError {
    VolumeError::TierRefused(reason.into())
}

pub(super) fn busy(reason: impl Into<String>) -> VolumeError {
    VolumeError::TierBusy(reason.into())
}

/// How many files have an object on a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesOnTier {
    pub(crate) named: usize,
    /// Removed, and open still or not reclaimed yet; or never named.
    pub(crate) nameless: usize,
}

impl Mounted {
    /// Puts on record that files leave a tier; see [`crate::FileSystem::start_drain`].
    pub(crate) fn start_drain(&self, name: &str) -> EventResult<TierId> {
        self.volume.check_writable()?;
        let _one_at_a_time = self.volume.epochs.tier_event.lock();
        let handle = self.tier_that_may_go(name)?;
        self.check_not_being_forgotten(handle.id, name)?;
        if handle.is_draining() {
            return Err(refused(format!("tier `{name}` is being drained already")));
        }
        self.put_standing(handle.id, TierStanding::Draining)?;
        handle.set_draining(true);
        self.cancel_moves_to(&handle);
        Ok(handle.id)
    }

    /// Puts on record that files stay on a tier after all; see [`crate::FileSystem::cancel_drain`].
    pub(crate) fn cancel_drain(&self, name: &str) -> EventResult<TierId> {
        self.volume.check_writable()?;
        let _one_at_a_time = self.volume.epochs.tier_event.lock();
        let handle = self.tier_named(name)?;
        self.check_not_being_forgotten(handle.id, name)?;
        if !handle.is_draining() {
            return Err(refused(format!("tier `{name}` is not being drained")));
        }
        self.put_standing(handle.id, TierStanding::InService)?;
        handle.set_draining(false);
        Ok(handle.id)
    }

    /// Takes a tier out of the volume; see [`crate::FileSystem::remove_tier`].
    pub(crate) fn remove_tier(
        &self,
        name: &str,
        unlist: impl FnOnce() -> std::result::Result<(), String>,
    ) -> EventResult<()> {
        self.volume.check_writable()?;
        let _one_at_a_time = self.volume.epochs.tier_event.lock();
        let handle = self.tier_that_may_go(name)?;
        self.check_not_being_forgotten(handle.id, name)?;
        let before = if handle.is_draining() { TierStanding::Draining } else { TierStanding::InService };
        // Checked before anything changes, so that a refused request has no effect.
        let refusal = self.check_no_file_on(&handle).and_then(|()| {
            self.mover.drains.begin_removal(&handle);
            self.take_out(&handle, before, unlist)
        });
        if let Err(error) = refusal {
            self.mover.drains.take_removal_back(&handle, before);
            return Err(error);
        }
        // From here on the tier has left, whatever happens: the configuration does not list it any more.
        self.volume.tiers.remove(handle.id);
        self.mover.drains.forget(handle.id);
        self.end_moves_of(&handle);
        if let Some(tier) = handle.present()
            && let Err(error) = tier.remove_label()
        {
            log::warn!("volume {}: tier `{name}` has left, but its label stays: {error}", self.volume.name);
        }
        let sequence = self.change_tier_record(handle.id, |_| None)?;
        self.volume.flush_through_copy(sequence)?;
        log::info!("volume {}: tier `{name}` has left", self.volume.name);
        Ok(())
    }

    /// Everything of a removal that can still be refused or taken back.
    fn take_out(
        &self,
        handle: &TierHandle,
        before: TierStanding,
        unlist: impl FnOnce() -> std::result::Result<(), String>,
    ) -> EventResult<()> {
        self.check_empty(handle)?;
        {
            let _raising = self.volume.epochs.raising.lock();
            self.volume.raise_epoch_for_event()?;
        }
        self.put_standing(handle.id, TierStanding::Leaving)?;
        unlist().map_err(|reason| {
            if let Err(error) = self.put_standing(handle.id, before) {
                log::warn!("volume {}: tier `{}` stays, as draining: {error}", self.volume.name, handle.name);
            }
            refused(reason)
        })
    }

    /// Cancels the moves to a tier, except those requested by users: they wait, and continue when the tier accepts files again.
    fn cancel_moves_to(&self, handle: &TierHandle) {
        let to = Destination::To(handle.id);
        self.mover
            .moves
            .cancel(|job| job.destination == to && job.reason != MoveReason::User, self.volume.clock.elapsed());
    }

    /// Nothing is moved to or off a tier that left.
    pub(super) fn end_moves_of(&self, handle: &TierHandle) {
        self.cancel_moves_to(handle);
        let now = self.volume.clock.elapsed();
        let (to, away) = (Destination::To(handle.id), Destination::AwayFrom(handle.id));
        self.mover.moves.fail(|job| job.destination == to, &format!("tier `{}` has left the volume", handle.name), now);
        self.mover.moves.cancel(|job| job.destination == away, now);
    }

    fn tier_named(&self, name: &str) -> EventResult<std::sync::Arc<TierHandle>> {
        self.volume.tiers.by_name(name).ok_or_else(|| refused(format!("the volume has no tier `{name}`")))
    }

    /// A tier without which the volume can be.
    pub(crate) fn tier_that_may_go(&self, name: &str) -> EventResult<std::sync::Arc<TierHandle>> {
        let handle = self.tier_named(name)?;
        if handle.holds_metadata() {
            return Err(refused(format!("tier `{name}` holds the metadata store, and stays")));
        }
        let stays = |tier: &TierHandle| tier.id != handle.id && !tier.is_draining();
        if !self.volume.tiers.all().iter().any(|tier| stays(tier)) {
            return Err(refused(format!("tier `{name}` is the last one that takes files, and stays")));
        }
        Ok(handle)
    }

    fn check_no_file_on(&self, handle: &TierHandle) -> EventResult<()> {
        let counted = |files: usize| if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
        let files = self.files_on(handle.id)?;
        if files.named > 0 {
            let files = counted(files.named + files.nameless);
            if handle.present().is_none() {
                return Err(refused(format!(
                    "tier `{}` is missing and holds data of {files}: bring it back and drain it, or let `polymux tier \
                     forget` give up what is on it",
                    handle.name
                )));
            }
            return Err(refused(format!("tier `{}` still holds data of {files}: drain it first", handle.name)));
        }
        if files.nameless > 0 {
            let files = counted(files.nameless);
            return Err(busy(format!(
                "tier `{}` still holds data of {files} removed while in use: try again when nobody has them open",
                handle.name
            )));
        }
        Ok(())
    }

    /// Refuses a tier that holds anything. Called once nothing new comes to it.
    fn check_empty(&self, handle: &TierHandle) -> EventResult<()> {
        let (name, id) = (&handle.name, handle.id);
        if self.mover.moves.is_busy(id) {
            return Err(busy(format!("something is just being moved to tier `{name}`: try again in a moment")));
        }
        self.check_no_file_on(handle)?;
        // Pending frees may be carried out at once, here also where the tier is slow; those that it refuses remain.
        while self.volume.free_disowned()? > 0 {}
        while handle.present().is_some() && self.volume.free_disowned_on(id)? > 0 {}
        let pending = self.volume.metadata.disowned()?.iter().filter(|record| record.tier == id).count();
        if pending > 0 {
            return Err(busy(format!(
                "tier `{name}` still holds what no file owns any more and what is not freed yet (ranges: {pending}): try \
                 again in a moment"
            )));
        }
        let objects = handle.object_count()?;
        if objects > 0 {
            return Err(busy(format!(
                "tier `{name}` still holds {objects} objects that no file names yet: try again in a moment"
            )));
        }
        Ok(())
    }

    /// Files of which a tier has an object.
    pub(crate) fn files_on(&self, tier: TierId) -> Result<FilesOnTier> {
        let mut files = FilesOnTier::default();
        self.volume.metadata.for_each_inode(|_, record| {
            if let InodeBody::Regular(file) = record.body
                && file.objects.iter().any(|entry| entry.tier == tier)
            {
                *(if record.links == 0 { &mut files.nameless } else { &mut files.named }) += 1;
            }
            Ok(())
        })?;
        Ok(files)
    }

    /// Changes how far a tier belongs to the volume, durably wherever the volume can be started from.
    pub(super) fn put_standing(&self, id: TierId, standing: TierStanding) -> Result<()> {
        let change = |record: Option<TierRecord>| record.map(|record| TierRecord { standing, ..record });
        let sequence = self.change_tier_record(id, change)?;
        self.volume.flush_through_copy(sequence)
    }

    /// Checks that the other tiers have space for the data of a tier, and begins to empty it.
    pub(crate) fn drain(&self, name: &str) -> std::result::Result<TierId, VolumeError> {
        let handle = self.tier_that_may_go(name)?;
        if handle.present().is_none() {
            return Err(VolumeError::TierRefused(format!(
                "tier `{name}` is missing, so nothing can be taken off it: bring it back, or let `polymux tier forget` give \
                 up what is on it"
            )));
        }
        let available = self.volume.tiers.space_of(|tier| tier.id != handle.id && !tier.is_failing()).available;
        let needed = self.mover.bytes_to_drain(&handle, available)?;
        if needed > available {
            let pinned =
                self.volume.metadata.pins(PIN_ATTRIBUTE)?.iter().filter(|(_, tier)| *tier == handle.name).count();
            let pins = match pinned {
                0 => String::new(),
                count => format!("; {count} pins name this tier, and what they hold must go elsewhere, too"),
            };
            return Err(VolumeError::TierRefused(format!(
                "tier `{name}` cannot be emptied: it holds {}, the other tiers have room for {}, and {} are missing{pins}",
                ByteSize(needed),
                ByteSize(available),
                ByteSize(needed - available)
            )));
        }
        self.start_drain(name)
    }
}
