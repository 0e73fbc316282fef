//! A tier that is lost for good is taken out of a volume (docs/design/0027).
//!
//! Invariants:
//! * A tier that works, holds the metadata store, is the last one that takes files or has calls under way that do not come back
//!   is refused, and nothing changes.
//! * The record says *forgotten*, durably wherever the volume can be started from; then the configuration no longer lists the
//!   tier. From there on nothing is rolled back: files drop their references to it one by one, each in one transaction, pending frees on
//!   it are dropped, and last the record goes. After a crash the configuration decides: a tier that it still lists is in service
//!   as before, and with one that it does not list the next mount goes on.
//! * No object is made on the tier and no file gets one there: it is draining and without a backend from before files are
//!   looked for.
//! * Inodes whose records cannot be read are passed over and counted: it is unknown whether they name the tier.
//! * References that could not be dropped stay named by the record of the tier. The tier is then in the set as a missing one; the same command or
//!   the next mount goes on.

use std::collections::BTreeMap;

use polymux_meta::Batch;
use polymux_records::error::{ErrorKind, Result};
use polymux_records::parts::{TierMember, TierPresence};
use polymux_records::report::{ForgottenTier, TierState};
use polymux_records::store::{InodeBody, InodeRecord, ObjectEntry, TierStanding};
use polymux_types::{Errno, Ino, TierId};
use polymux_volume::space::{Purpose, TierHandle};

use super::leave::{EventResult, busy, refused};
use crate::mounted::Mounted;

/// Why a tier that is being forgotten is missing.
pub(super) const FORGOTTEN: &str = "it is being forgotten: `polymux tier forget`, or the next mount, goes on";

/// Files that let go of a tier between two syncs of the tiers that take their place.
const BATCH_FILES: usize = 512;

/// Times that records are looked through for files that name the tier.
const ROUNDS_MAX: u32 = 4;

/// Records of inodes that are looked at together.
const RECORDS_AT_ONCE: usize = 20_000;

/// Pending frees dropped in one transaction.
const DROPPED_AT_ONCE: usize = 4096;

/// Inodes of files that have something on a tier.
#[derive(Debug, Default)]
pub(crate) struct InodesOn {
    pub(crate) inos: Vec<Ino>,
    /// Inodes that may have something on it: their records cannot be read.
    pub(crate) unreadable: Vec<Ino>,
}

fn names_tier(record: &InodeRecord, tier: TierId) -> bool {
    matches!(&record.body, InodeBody::Regular(file) if file.objects.iter().any(|entry| entry.tier == tier))
}

impl Mounted {
    /// Takes a tier that is lost for good out of the volume; see [`crate::FileSystem::forget_tier`].
    pub(crate) fn forget_tier(
        &self,
        name: &str,
        unlist: impl FnOnce() -> std::result::Result<(), String>,
    ) -> EventResult<ForgottenTier> {
        self.volume.check_writable()?;
        let _one_at_a_time = self.volume.epochs.tier_event.lock();
        let handle = self.tier_that_may_be_forgotten(name)?;
        // Each of these calls holds state that its file needs to let go of the tier, until it returns.
        if handle.is_slow() {
            return Err(busy(format!(
                "tier `{name}` does not answer, and calls to it are under way: try again when they have come back, or unmount and \
                 mount with --degraded"
            )));
        }
        if self.is_being_forgotten(handle.id)? {
            // It may have been listed again by hand meanwhile.
            unlist().map_err(refused)?;
        } else {
            self.begin_to_forget(&handle, unlist)?;
        }
        Ok(self.finish_forgetting(&handle)?)
    }

    /// The tier of this name, where it does not work and the volume can be without it.
    pub(crate) fn tier_that_may_be_forgotten(&self, name: &str) -> EventResult<std::sync::Arc<TierHandle>> {
        let handle = self.tier_that_may_go(name)?;
        if handle.state() == TierState::Online {
            return Err(refused(format!(
                "tier `{name}` works: `polymux tier drain` and `polymux tier remove` take it out without a loss"
            )));
        }
        let is_lent = |inode: &std::sync::Arc<polymux_volume::inode::Inode>| {
            inode.file().is_some_and(|file| file.is_passed_through() && file.layout.read().slot_of(handle.id).is_some())
        };
        let open = self.volume.inodes.all().into_iter().filter(is_lent).count();
        if open > 0 {
            return Err(busy(format!(
                "programs have files open that lie on tier `{name}` (files: {open}): end them, or unmount and mount with \
                 --degraded, and try again"
            )));
        }
        Ok(handle)
    }

    fn is_being_forgotten(&self, id: TierId) -> Result<bool> {
        let tiers = self.volume.metadata.tiers()?;
        Ok(tiers.into_iter().any(|(of, record)| of == id && record.standing == TierStanding::Forgotten))
    }

    /// Refuses other changes of a tier that is being forgotten: its record says so until the last file let go of it.
    pub(super) fn check_not_being_forgotten(&self, id: TierId, name: &str) -> EventResult<()> {
        if self.is_being_forgotten(id)? {
            return Err(refused(format!("tier `{name}` is being forgotten: `polymux tier forget` goes on")));
        }
        Ok(())
    }

    /// Everything that can still be refused or taken back.
    fn begin_to_forget(
        &self,
        handle: &TierHandle,
        unlist: impl FnOnce() -> std::result::Result<(), String>,
    ) -> EventResult<()> {
        let before = if handle.is_draining() { TierStanding::Draining } else { TierStanding::InService };
        self.mover.drains.begin_removal(handle);
        let raised = {
            let _raising = self.volume.epochs.raising.lock();
            self.volume.raise_epoch_for_event()
        };
        let recorded = raised.and_then(|()| self.put_standing(handle.id, TierStanding::Forgotten));
        let begun = recorded.map_err(Into::into).and_then(|()| {
            unlist().map_err(|reason| {
                if let Err(error) = self.put_standing(handle.id, before) {
                    log::warn!("volume {}: tier `{}` is listed and stays: {error}", self.volume.name, handle.name);
                }
                refused(reason)
            })
        });
        if begun.is_err() {
            self.mover.drains.take_removal_back(handle, before);
            return begun;
        }
        // A backend that fails or does not answer is let go of, too: nothing that it may still hold counts.
        let member = TierMember::new(handle.name.clone(), TierPresence::Missing(FORGOTTEN.to_owned()));
        let gone = TierHandle::new(handle.id, member, Purpose::Data, self.volume.clock.clone());
        gone.set_draining(true);
        self.volume.tiers.replace(gone);
        self.end_moves_of(handle);
        Ok(())
    }

    /// At the mount: goes on with tiers that were being forgotten when the last daemon stopped. One that cannot be let go of
    /// now keeps no volume from being mounted.
    pub(super) fn go_on_forgetting(&self) -> Result<()> {
        for (id, record) in self.volume.metadata.tiers()? {
            let Ok(handle) = self.volume.tiers.by_id(id) else { continue };
            let goes_on = record.standing == TierStanding::Forgotten && handle.source().is_none();
            if !goes_on || handle.present().is_some() {
                continue;
            }
            match self.finish_forgetting(&handle) {
                Ok(_) => {
                    self.volume.note_recovery(format!("tier `{}` was being forgotten, and is no more", record.name))
                }
                Err(error) => {
                    self.volume.note_recovery(format!("tier `{}` is still being forgotten: {error}", record.name))
                }
            }
        }
        Ok(())
    }

    /// Files let go of a tier, and it leaves the volume.
    fn finish_forgetting(&self, handle: &TierHandle) -> Result<ForgottenTier> {
        let id = handle.id;
        let mut forgotten = ForgottenTier::default();
        let mut failure = None;
        for _ in 0..ROUNDS_MAX {
            let InodesOn { inos, unreadable } = self.inodes_on(id)?;
            forgotten.unreadable = unreadable.len() as u64;
            if inos.is_empty() {
                failure = None;
                break;
            }
            failure = Some(Errno::EBUSY.into());
            for some in inos.chunks(BATCH_FILES) {
                if let Err(error) = self.let_go_of(some, id, &mut forgotten) {
                    failure = Some(error);
                }
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        self.drop_disowned_of(id)?;
        self.volume.tiers.remove(id);
        self.mover.drains.forget(id);
        self.end_moves_of(handle);
        let sequence = self.change_tier_record(id, |_| None)?;
        self.volume.flush_through_copy(sequence)?;
        self.volume.disowned.forget_tier(id);
        let mut asked = self.volume.size_recovery.asked_up_to.lock();
        if asked.is_some() {
            // Size queries that were impossible while the tier was part of the volume are possible now.
            *asked = Some(Ino(0));
        }
        drop(asked);
        log::info!(
            "volume {}: tier `{}` is forgotten: {} files had data there",
            self.volume.name,
            handle.name,
            forgotten.files
        );
        Ok(forgotten)
    }

    /// Files that have an object on a tier.
    pub(crate) fn inodes_on(&self, tier: TierId) -> Result<InodesOn> {
        let mut found = InodesOn::default();
        let mut after = Ino(0);
        loop {
            let records = self.volume.metadata.inode_records_after(after, RECORDS_AT_ONCE)?;
            let Some((last, _)) = records.last() else { return Ok(found) };
            after = *last;
            for (ino, record) in records {
                match record {
                    // Extents must be read as well.
                    Ok(record) if names_tier(&record, tier) && self.is_unreadable(ino)? => found.unreadable.push(ino),
                    Ok(record) if names_tier(&record, tier) => found.inos.push(ino),
                    Ok(_) => {}
                    Err(_) => found.unreadable.push(ino),
                }
            }
        }
    }

    fn is_unreadable(&self, ino: Ino) -> Result<bool> {
        match self.inode_if_there(ino) {
            Ok(_) => Ok(false),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupted { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Some files let go of a tier. Goes on after one that cannot, and returns the last error.
    fn let_go_of(&self, inos: &[Ino], tier: TierId, forgotten: &mut ForgottenTier) -> Result<()> {
        let mut outcome = Ok(());
        let mut heirs: BTreeMap<Ino, ObjectEntry> = BTreeMap::new();
        for ino in inos {
            let Some(inode) = self.inode_if_there(*ino)? else { continue };
            let Some(file) = inode.file() else { continue };
            match self.data.make_heir(&inode, file, tier) {
                Ok(Some(entry)) => drop(heirs.insert(*ino, entry)),
                Ok(None) => {}
                Err(error) => outcome = Err(error),
            }
        }
        let mut taking: Vec<TierId> = heirs.values().map(|entry| entry.tier).collect();
        taking.sort_unstable();
        taking.dedup();
        for taker in taking {
            self.volume.tiers.by_id(taker)?.run(|tier| tier.sync_all())?;
        }
        for ino in inos {
            let Some(inode) = self.inode_if_there(*ino)? else { continue };
            let Some(file) = inode.file() else { continue };
            match self.data.let_go_of_tier(&inode, file, tier, heirs.get(ino)) {
                Ok(takes_heir) => {
                    forgotten.files += 1;
                    forgotten.whole += u64::from(takes_heir);
                    if takes_heir {
                        heirs.remove(ino);
                    }
                }
                Err(error) => outcome = Err(error),
            }
        }
        heirs.values().try_for_each(|entry| self.data.remove_heir(entry)).and(outcome)
    }

    /// An inode, unless it was deleted meanwhile.
    pub(crate) fn inode_if_there(&self, ino: Ino) -> Result<Option<std::sync::Arc<polymux_volume::inode::Inode>>> {
        match self.volume.inode(ino) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Drops the pending frees on a lost tier, which need not be carried out.
    fn drop_disowned_of(&self, tier: TierId) -> Result<()> {
        self.volume.disowned.forget_tier(tier);
        let records = self.volume.metadata.disowned()?;
        let keys: Vec<_> = records.iter().filter(|record| record.tier == tier).map(|record| record.key()).collect();
        for some in keys.chunks(DROPPED_AT_ONCE) {
            let mut batch = Batch::new();
            some.iter().for_each(|key| batch.delete(key.clone()));
            self.volume.metadata.commit(batch)?;
        }
        Ok(())
    }
}
