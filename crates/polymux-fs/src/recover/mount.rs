//! Taking a volume into service: every check before the first write, then the epoch, then the recovery passes.

use std::sync::atomic::Ordering;

use polymux_meta::{Batch, CopySync, Sequence};
use polymux_tier::{CleanStamp, Label, TierError};
use polymux_types::{Clock, Epoch, Ino, TierId};

use super::forget::FORGOTTEN;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::space::{Purpose, TierHandle, TierSet};
use crate::store::keys::NumberKind;
use crate::store::volume_format::FORMAT_VERSION;
use crate::store::{EpochRecord, Metadata, Shutdown, TierRecord, TierStanding, VolumeRecord, keys};
use crate::volume::{Access, MissingTiers, MountOptions, Parts, TierMember, TierPresence, VolumeError};

/// A tier of the volume, matched with its member of the configuration and its label.
pub(super) struct Matched {
    pub(super) id: TierId,
    pub(super) record: TierRecord,
    pub(super) member: TierMember,
    pub(super) label: Option<Label>,
}

/// Checks labels and epochs, raises the epoch, and recovers where the last stop was unclean.
pub(crate) fn mount(parts: Parts, options: MountOptions) -> std::result::Result<Core, VolumeError> {
    let metadata = Metadata::new(parts.store.clone());
    let volume = read_volume(&metadata, &parts.name)?;
    let epoch = metadata.epoch()?.ok_or_else(|| Error::corrupted("the epoch record", "it is missing"))?;
    let (mut matched, unlisted) = match_tiers(parts.tiers, metadata.tiers()?)?;
    for tier in &mut matched {
        check_label(tier, &volume, epoch, options.missing)?;
    }
    let was_clean = epoch.shutdown == Shutdown::Clean
        && !epoch.raising
        && matched.iter().filter_map(|tier| tier.label.as_ref()).all(|label| label.clean != CleanStamp::InUse);
    let labels: Vec<(TierId, TierRecord, Option<Label>)> =
        matched.iter().map(|tier| (tier.id, tier.record.clone(), tier.label.clone())).collect();
    let metadata_tier = parts.metadata_tier;
    let tiers =
        matched.into_iter().map(|tier| handle_of(tier, metadata_tier.as_deref(), parts.clock.clone())).collect();
    let tiers = TierSet::new(tiers);
    let mut core = Core::new((volume.id, volume.name), options, parts.clock, metadata, tiers)?;
    core.seed = parts.seed;
    core.made_before_mount =
        core.metadata.number_range_end(NumberKind::ObjectMark)?..core.metadata.number_range_end(NumberKind::Object)?;
    core.after_unclean_stop.store(!was_clean, Ordering::Release);
    if !was_clean && core.metadata.only_the_daemon_died() {
        core.tiers.all().iter().for_each(|tier| core.rewritten.note_death(tier.id));
    }
    *core.sizes_asked.lock() = (!was_clean).then_some(Ino(0));
    core.epoch.store(epoch.epoch.0, Ordering::Release);
    core.read_holders()?;
    for (id, profile) in core.metadata.profiles()? {
        // Numbers of tiers are never used again: the profile of a removed tier matches none that exists.
        if let Ok(handle) = core.tiers.by_id(id) {
            handle.set_profile(profile);
        }
    }
    if options.access == Access::ReadWrite {
        core.forget_tiers(&unlisted)?;
        core.raise_epoch(epoch.epoch, &labels)?;
        core.run_passes(!was_clean)?;
        core.go_on_forgetting()?;
        core.release_survivors();
    }
    Ok(core)
}

pub(super) fn read_volume(metadata: &Metadata, name: &str) -> std::result::Result<VolumeRecord, VolumeError> {
    let volume = metadata
        .volume()?
        .ok_or_else(|| VolumeError::Store(format!("the metadata store of `{name}` holds no volume")))?;
    if volume.format_version > FORMAT_VERSION {
        return Err(VolumeError::NewerFormat {
            name: volume.name,
            found: volume.format_version,
            known: FORMAT_VERSION,
        });
    }
    Ok(volume)
}

/// The tiers that the configuration lists, with their records; and those that it rightly does not list, because they were
/// joining or leaving when the daemon stopped: they hold nothing.
fn match_tiers(
    members: Vec<TierMember>,
    records: Vec<(TierId, TierRecord)>,
) -> std::result::Result<(Vec<Matched>, Vec<TierId>), VolumeError> {
    let is_listed = |record: &TierRecord| members.iter().any(|member| member.name == record.name);
    let mut unlisted = Vec::new();
    for (id, record) in records.iter().filter(|(_, record)| !is_listed(record)) {
        if !record.standing.may_be_unlisted() {
            return Err(VolumeError::TierTable(format!(
                "the volume has a tier `{}` that the configuration does not list: list it again",
                record.name
            )));
        }
        if record.standing != TierStanding::Forgotten {
            unlisted.push(*id);
        }
    }
    let mut matched = Vec::with_capacity(members.len());
    for member in members {
        let Some((id, record)) = records.iter().find(|(_, record)| record.name == member.name) else {
            return Err(VolumeError::TierTable(format!(
                "the configuration lists a tier `{}` that the volume does not have: take it out, mount, and use \
                 `polymux tier add`",
                member.name
            )));
        };
        let record = TierRecord { standing: record.standing.when_listed(), ..record.clone() };
        matched.push(Matched { id: *id, record, member, label: None });
    }
    for (id, record) in &records {
        if record.standing == TierStanding::Forgotten && !is_listed_name(&matched, &record.name) {
            let presence = TierPresence::Missing(FORGOTTEN.to_owned());
            let member = TierMember::new(record.name.clone(), presence);
            matched.push(Matched { id: *id, record: record.clone(), member, label: None });
        }
    }
    Ok((matched, unlisted))
}

fn is_listed_name(matched: &[Matched], name: &str) -> bool {
    matched.iter().any(|tier| tier.record.name == name)
}

/// Reads the label of a tier and compares it with the records.
pub(super) fn check_label(
    tier: &mut Matched,
    volume: &VolumeRecord,
    epoch: EpochRecord,
    missing: MissingTiers,
) -> std::result::Result<(), VolumeError> {
    let name = tier.member.name.clone();
    let present = match &tier.member.presence {
        TierPresence::Present(present) => present,
        TierPresence::Missing(_) if missing == MissingTiers::Degraded => return Ok(()),
        TierPresence::Missing(_) if tier.record.standing == TierStanding::Forgotten => return Ok(()),
        TierPresence::Missing(reason) => return Err(VolumeError::TierMissing { name, reason: reason.clone() }),
    };
    let label = match present.read_label() {
        Ok(label) => label,
        Err(TierError::Label(reason)) => return Err(VolumeError::TierMissing { name, reason }),
        Err(error) => return Err(Error::tier(tier.id, error).into()),
    };
    if label.volume != volume.id {
        return Err(VolumeError::OtherVolume { name, found: label.volume_name, expected: volume.name.clone() });
    }
    if label.tier != tier.id {
        return Err(VolumeError::OtherTier { name, found: label.tier_name });
    }
    let (found, expected) = (label.epoch.0, tier.record.epoch.0);
    let raising = epoch.raising && found == expected + 1;
    if label.instance != tier.record.instance || found < expected {
        if missing == MissingTiers::Degraded {
            tier.member.presence = TierPresence::Missing(format!(
                "its label is of epoch {found}, the metadata recorded {expected}: it was restored or cloned"
            ));
            return Ok(());
        }
        return Err(VolumeError::StaleTier { name, found, expected });
    }
    if found > expected && !raising {
        return Err(VolumeError::StaleMetadata { name, found, expected });
    }
    tier.label = Some(label);
    Ok(())
}

fn handle_of(tier: Matched, metadata_tier: Option<&str>, clock: std::sync::Arc<dyn Clock>) -> TierHandle {
    let holds_metadata = metadata_tier == Some(tier.member.name.as_str());
    let purpose = if holds_metadata { Purpose::DataAndMetadata } else { Purpose::Data };
    let handle = TierHandle::new(tier.id, tier.member, purpose, clock);
    handle.set_draining(matches!(tier.record.standing, TierStanding::Draining | TierStanding::Forgotten));
    handle
}

impl Core {
    /// Raises the epoch of the volume and of every tier that is there.
    fn raise_epoch(&self, from: Epoch, labels: &[(TierId, TierRecord, Option<Label>)]) -> Result<()> {
        let to = Epoch(from.0 + 1);
        let raising = self.put_epoch(EpochRecord { epoch: from, raising: true, shutdown: Shutdown::Unclean }, &[])?;
        // A second copy that does not know it is older than the labels from here on, and nothing is started from it.
        let copy = self.metadata.sync_copy(raising)?;
        let mut raised = Vec::new();
        for (id, record, label) in labels {
            let Some(label) = label else {
                // The configured decision about a missing tier applies from now on.
                raised.push((*id, record.clone()));
                continue;
            };
            let next = Label {
                volume_name: self.name.clone(),
                tier_name: record.name.clone(),
                epoch: Epoch(record.epoch.0 + 1).max(label.epoch),
                clean: CleanStamp::InUse,
                ..label.clone()
            };
            self.tiers.by_id(*id)?.run(|tier| tier.write_label(&next))?;
            raised.push((*id, TierRecord { epoch: next.epoch, ..record.clone() }));
        }
        self.put_epoch(EpochRecord { epoch: to, raising: false, shutdown: Shutdown::Unclean }, &raised)?;
        self.epoch.store(to.0, Ordering::Release);
        if copy == CopySync::Late && self.metadata.abandon_copy(raising) == CopySync::Late {
            log::warn!("volume {}: the second copy of the metadata is slow", self.name);
        }
        Ok(())
    }

    /// Logs the epoch, durably; returns the transaction.
    pub(super) fn put_epoch(&self, epoch: EpochRecord, tiers: &[(TierId, TierRecord)]) -> Result<Sequence> {
        let mut batch = Batch::new();
        batch.put(keys::epoch(), epoch.encode());
        for (id, record) in tiers {
            batch.put(keys::tier(*id), record.encode());
        }
        let sequence = self.metadata.commit(batch)?;
        self.metadata.sync(sequence)?;
        Ok(sequence)
    }

    /// The end of a clean stop: everything is synced and settled; the store says so first, then the labels.
    pub(crate) fn stamp_clean(&self) -> Result<()> {
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        self.put_epoch(EpochRecord { epoch, raising: false, shutdown: Shutdown::Clean }, &[])?;
        for handle in self.tiers.all().iter().filter(|handle| handle.present().is_some()) {
            let bytes_used = handle.run(|tier| tier.space()).map_or(0, |space| space.used);
            handle.run(|tier| {
                let label = Label { clean: CleanStamp::Clean { bytes_used }, ..tier.read_label()? };
                tier.write_label(&label)
            })?;
        }
        Ok(())
    }
}
