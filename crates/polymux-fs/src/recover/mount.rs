//! Taking a volume into service: every check before the first write, then the epoch, then the recovery passes.

use std::sync::atomic::Ordering;

use polymux_records::error::Error;
use polymux_records::parts::{Access, MissingTiers, MountOptions, Parts, TierMember, TierPresence, VolumeError};
use polymux_records::store::keys::NumberKind;
use polymux_records::store::volume_format::FORMAT_VERSION;
use polymux_records::store::{EpochRecord, Metadata, Shutdown, TierRecord, TierStanding, VolumeRecord};
use polymux_tier::{CleanStamp, Label, TierError};
use polymux_types::{Clock, Ino, TierId};
use polymux_volume::space::{Purpose, TierHandle, TierSet};
use polymux_volume::volume::Volume;

use super::forget::FORGOTTEN;
use crate::mounted::Mounted;

/// A tier of the volume, matched with its member of the configuration and its label.
pub(super) struct Matched {
    pub(super) id: TierId,
    pub(super) record: TierRecord,
    pub(super) member: TierMember,
    pub(super) label: Option<Label>,
}

/// Checks labels and epochs, raises the epoch, and recovers where the last stop was unclean.
pub(crate) fn mount(parts: Parts, options: MountOptions) -> std::result::Result<Mounted, VolumeError> {
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
    let made_before_mount =
        metadata.number_range_end(NumberKind::ObjectMark)?..metadata.number_range_end(NumberKind::Object)?;
    let volume = Volume::new(volume.id, volume.name, options, parts.clock, metadata, tiers);
    let mounted = Mounted::new(volume, parts.seed, made_before_mount)?;
    mounted.volume.size_recovery.after_unclean_stop.store(!was_clean, Ordering::Release);
    if !was_clean && mounted.volume.metadata.only_the_daemon_died() {
        mounted.volume.tiers.all().iter().for_each(|tier| mounted.data.rewritten.note_death(tier.id));
    }
    *mounted.volume.size_recovery.asked_up_to.lock() = (!was_clean).then_some(Ino(0));
    mounted.volume.epochs.set_present(epoch.epoch);
    mounted.data.read_holders()?;
    for (id, profile) in mounted.volume.metadata.profiles()? {
        // Numbers of tiers are never used again: the profile of a removed tier matches none that exists.
        if let Ok(handle) = mounted.volume.tiers.by_id(id) {
            handle.set_profile(profile);
        }
    }
    if options.access == Access::ReadWrite {
        mounted.forget_tiers(&unlisted)?;
        mounted.volume.raise_epoch(epoch.epoch, &labels)?;
        mounted.run_passes(!was_clean)?;
        mounted.go_on_forgetting()?;
        mounted.release_survivors();
    }
    Ok(mounted)
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
