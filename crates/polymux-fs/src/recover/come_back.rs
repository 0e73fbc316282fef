//! A tier that was missing, or was lost while in use, is there again and is taken up without another mount
//! (docs/design/0014).
//!
//! Invariants:
//! * It is checked exactly as a mount checks it: the right volume, the right tier, and the epoch that was last written to
//!   it. One that was restored from an older copy or cloned stays missing.
//! * It is not visible before its epoch was raised, its pending frees were carried out, and unreferenced objects were
//!   removed: its part of the passes of recovery. A size is asked of it only after that.
//! * Bytes that were written to a tier before it was lost, and not synced, count as lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_records::error::{Error, Result};
use polymux_records::parts::Progress;
use polymux_records::parts::{MissingTiers, TierMember, TierPresence, VolumeError};
use polymux_records::store::{EpochRecord, Shutdown, TierStanding};
use polymux_tier::{CleanStamp, Tier, TierError};
use polymux_types::{Ino, TierId};
use polymux_volume::inode::{FileState, Inode};
use polymux_volume::space::{Purpose, TierHandle};

use super::mount::{Matched, check_label, read_volume};
use crate::mounted::Mounted;

/// How often a tier that is not there is looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

type TakeUp<T> = std::result::Result<T, VolumeError>;

impl Mounted {
    /// Looks for a tier that is not there, now and then, and takes it up. Returns whether it did.
    pub(crate) fn look_for_tier(&self, tier: TierId) -> Progress {
        let Ok(handle) = self.volume.tiers.by_id(tier) else { return Progress::Idle };
        let is_wanted = handle.present().is_none() || handle.may_have_gone();
        if self.volume.is_read_only()
            || self.volume.unmounted.load(Ordering::Acquire)
            || !is_wanted
            || handle.is_silent()
        {
            return Progress::Idle;
        }
        let Some(source) = handle.source_when_due(LOOK_INTERVAL) else { return Progress::Idle };
        // One that fails, and is still where it was, is tried again elsewhere.
        if handle.present().is_some() && !matches!(handle.get().map(Tier::probe), Ok(Err(TierError::Label(_)))) {
            return Progress::Idle;
        }
        let found = source.open().and_then(|member| {
            let taken = self.take_up(&handle, member);
            taken.map_err(|error| error.to_string())
        });
        match found {
            Ok(()) => Progress::Worked,
            Err(reason) => {
                if handle.set_missing_reason(&reason) {
                    log::warn!("volume {}: tier `{}` stays away: {reason}", self.volume.name, handle.name);
                }
                Progress::Idle
            }
        }
    }

    fn take_up(&self, away: &Arc<TierHandle>, member: TierMember) -> TakeUp<()> {
        let _one_at_a_time = self.volume.epochs.tier_event.lock();
        let handle = self.take_up_with_records(away, member)?;
        // With `raising` released, which a round of freeing takes where the second copy is late.
        if let Err(error) = self.volume.free_disowned_through(&handle) {
            log::error!("volume {}: freeing disowned bytes failed: {error}", self.volume.name);
        }
        self.volume.note_recovery(format!("tier `{}` is there again and was taken up", handle.name));
        Ok(())
    }

    /// The part that changes records of tiers. Returns the tier as it is in the set then.
    fn take_up_with_records(&self, away: &Arc<TierHandle>, member: TierMember) -> TakeUp<Arc<TierHandle>> {
        let _raising = self.volume.epochs.raising.lock();
        let TierPresence::Present(present) = &member.presence else {
            let TierPresence::Missing(reason) = member.presence else { unreachable!("it is one of the two") };
            return Err(VolumeError::TierMissing { name: away.name.clone(), reason });
        };
        let present = Arc::clone(present);
        let found = self.volume.metadata.tiers()?.into_iter().find(|(id, _)| *id == away.id);
        let (id, record) = found.ok_or_else(|| Error::corrupted("the tier table", "a tier has no record"))?;
        let standing = record.standing;
        if standing == TierStanding::Forgotten {
            return Err(VolumeError::TierRefused(format!("tier `{}` is being forgotten", away.name)));
        }
        let volume = read_volume(&self.volume.metadata, &self.volume.name)?;
        let epoch =
            self.volume.metadata.epoch()?.ok_or_else(|| Error::corrupted("the epoch record", "it is missing"))?;
        let source = away.source();
        let mut matched = Matched { id, record, member: TierMember { source, ..member }, label: None };
        check_label(&mut matched, &volume, epoch, MissingTiers::Refuse)?;
        let label = matched.label.take().ok_or_else(|| Error::corrupted("the label", "it was not read"))?;
        let was_lost = away.present().is_some();
        if was_lost && label.clean != CleanStamp::InUse {
            let reason =
                "its label says that it was stopped, and this volume did not stop it: it was cloned".to_owned();
            return Err(VolumeError::TierMissing { name: away.name.clone(), reason });
        }
        let purpose = if away.holds_metadata() { Purpose::DataAndMetadata } else { Purpose::Data };
        let handle = TierHandle::new(id, matched.member, purpose, self.volume.clock.clone());
        handle.set_draining(standing == TierStanding::Draining);
        handle.follow(away);
        self.recover_tier(&handle, label.clean)?;
        if !was_lost {
            self.remove_unknown_objects(&handle)?;
        }
        drop(present);
        self.volume.tiers.replace(handle);
        let handle = self.volume.tiers.by_id(id)?;
        for inode in self.volume.inodes.all() {
            if let Some(file) = inode.file() {
                self.see_again(&inode, file, &handle, was_lost)?;
            }
        }
        handle.note_room_freed();
        Ok(handle)
    }

    /// The part of recovery that concerns one tier. Called before the tier is visible to any other thread.
    fn recover_tier(&self, handle: &TierHandle, clean: CleanStamp) -> Result<()> {
        let epoch = self.volume.epochs.present();
        self.volume.put_epoch(EpochRecord { epoch, raising: true, shutdown: Shutdown::Unclean }, &[])?;
        self.volume.raise_labels_and(epoch, Some(handle))?;
        if clean == CleanStamp::InUse {
            handle.run(|tier| tier.sync_all())?;
            // Its objects may be longer than their files say, or shorter.
            self.volume.size_recovery.after_unclean_stop.store(true, Ordering::Release);
        }
        if self.volume.size_recovery.after_unclean_stop.load(Ordering::Acquire) {
            *self.volume.size_recovery.asked_up_to.lock() = Some(Ino(0));
        }
        Ok(())
    }

    /// Objects that the last mount made and no record names. One that was lost while in use may hold some whose record is
    /// just being made.
    fn remove_unknown_objects(&self, handle: &TierHandle) -> Result<()> {
        let known = self.known_objects()?;
        let removed = self.remove_leaked_from(handle, &known)?;
        if removed > 0 {
            self.volume.note_recovery(format!(
                "{removed} objects that no file knows were removed from tier `{}`",
                handle.name
            ));
        }
        Ok(())
    }

    /// Updates the state in memory of a file that has bytes on a tier which came back.
    fn see_again(&self, inode: &Inode, file: &FileState, handle: &TierHandle, was_lost: bool) -> Result<()> {
        let (slot, extends) = {
            let layout = file.layout.read();
            let Some(slot) = layout.slot_of(handle.id) else { return Ok(()) };
            (slot, layout.extenders & (1 << handle.id.0) != 0)
        };
        file.allocation.note_change();
        if was_lost {
            return match file.take_unsynced(slot) {
                Some(written) => self.data.note_lost_bytes(inode, file, slot, Some(written)),
                None => Ok(()),
            };
        }
        // Determined while the tier was missing: no more than the record says.
        if file.grows_unsettled() {
            // Only memory knows its size.
            return Ok(());
        }
        if extends || self.volume.size_recovery.after_unclean_stop.load(Ordering::Acquire) {
            file.sizes.is_known.store(false, Ordering::Release);
        }
        Ok(())
    }
}
