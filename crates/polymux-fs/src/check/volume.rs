//! Pass over the records of the volume as a whole: identity, epoch, tier table, compared with the labels of the tiers.
//!
//! Invariants: labels are never written. A missing record is rebuilt from the labels; one that
//! contradicts a label is left, because only a person knows which of the two was restored from a copy.

use std::collections::BTreeMap;

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::store::volume_format::FORMAT_VERSION;
use polymux_records::store::{EpochRecord, Shutdown, TierRecord, TierStanding, VolumeRecord, keys};
use polymux_tier::{CleanStamp, Label};
use polymux_types::{Epoch, TierId};

use super::{Examination, kinds};

/// Labels by the place of their tier in the configuration.
type Labels = Vec<(usize, Label)>;

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let mut labels: Labels = Vec::new();
    for (place, tier) in exam.tiers.iter().enumerate() {
        if let Some(Ok(label)) = tier.tier.map(|tier| tier.read_label()) {
            labels.push((place, label));
        }
    }
    identity(exam, &labels)?;
    let epoch = epoch(exam, &labels)?;
    let records = exam.tier_records()?;
    for (place, label) in &labels {
        exam.tiers[*place].id = Some(label.tier);
        tier(exam, *place, label, &records, epoch)?;
    }
    unmatched(exam, &records)?;
    let was_clean = epoch.is_some_and(|epoch| epoch.shutdown == Shutdown::Clean && !epoch.raising);
    exam.report.unclean =
        !exam.is_live && (!was_clean || labels.iter().any(|(_, label)| label.clean == CleanStamp::InUse));
    Ok(())
}

fn identity(exam: &mut Examination<'_>, labels: &Labels) -> Result<()> {
    let record = exam.store.get(&keys::volume())?.map(|value| VolumeRecord::decode(&value));
    let reason = match record {
        Some(Ok(_)) => return Ok(()),
        Some(Err(error)) => error.to_string(),
        None => "it is missing".to_owned(),
    };
    let same = labels.windows(2).all(|pair| pair[0].1.volume == pair[1].1.volume);
    let repair = labels.first().filter(|_| same).map(|(_, label)| {
        let name = exam.volume_name.to_owned();
        let mut batch = Batch::new();
        let record = VolumeRecord { format_version: FORMAT_VERSION, id: label.volume, name };
        batch.put(keys::volume(), record.encode());
        batch
    });
    exam.found(&kinds::VOLUME_RECORD, None, reason, repair).map(|_| ())
}

fn epoch(exam: &mut Examination<'_>, labels: &Labels) -> Result<Option<EpochRecord>> {
    let record = exam.store.get(&keys::epoch())?.map(|value| EpochRecord::decode(&value));
    let reason = match record {
        Some(Ok(record)) => return Ok(Some(record)),
        Some(Err(error)) => error.to_string(),
        None => "it is missing".to_owned(),
    };
    let recorded = exam.tier_records()?.into_values().map(|record| record.epoch);
    let newest = labels.iter().map(|(_, label)| label.epoch).chain(recorded).max();
    let record = newest.map(|epoch| EpochRecord { epoch, raising: false, shutdown: Shutdown::Unclean });
    let repair = record.map(|record| {
        let mut batch = Batch::new();
        batch.put(keys::epoch(), record.encode());
        batch
    });
    exam.found(&kinds::EPOCH_RECORD, None, reason, repair)?;
    Ok(record)
}

/// Compares the label of a tier with its record.
fn tier(
    exam: &mut Examination<'_>,
    place: usize,
    label: &Label,
    records: &BTreeMap<TierId, TierRecord>,
    epoch: Option<EpochRecord>,
) -> Result<()> {
    let listed = exam.tiers[place].name.to_owned();
    let Some(record) = records.get(&label.tier) else {
        let record = TierRecord {
            name: listed.clone(),
            instance: label.instance,
            epoch: label.epoch,
            standing: TierStanding::InService,
        };
        let mut repair = Batch::new();
        repair.put(keys::tier(label.tier), record.encode());
        let detail = format!("tier `{listed}` (number {}) has no record that can be read", label.tier);
        return exam.found(&kinds::TIER_RECORD, None, detail, Some(repair)).map(|_| ());
    };
    if record.name != listed {
        let detail = format!("tier {} is recorded as `{}` and listed as `{listed}`", label.tier, record.name);
        exam.found(&kinds::TIER_NAME, None, detail, None)?;
    }
    let raising = epoch.is_some_and(|epoch| epoch.raising);
    let Epoch(found) = label.epoch;
    let Epoch(expected) = record.epoch;
    let detail = format!("tier `{listed}`: its label is of epoch {found}, the record of epoch {expected}");
    if label.instance != record.instance || found < expected {
        exam.tiers[place].tier = None;
        exam.found(&kinds::TIER_STALE, None, detail, None)?;
    } else if found > expected && !(raising && found == expected + 1) && !exam.is_live {
        exam.found(&kinds::TIER_NEWER, None, detail, None)?;
        exam.mode = super::CheckMode::Report;
    }
    Ok(())
}

/// Tiers of the configuration without a label, and records without a tier.
fn unmatched(exam: &mut Examination<'_>, records: &BTreeMap<TierId, TierRecord>) -> Result<()> {
    for place in 0..exam.tiers.len() {
        let name = exam.tiers[place].name;
        if exam.tiers[place].id.is_none() {
            let record = records.iter().find(|(_, record)| record.name == name);
            exam.tiers[place].id = record.map(|(id, _)| *id);
        }
        if exam.tiers[place].tier.is_none() {
            exam.found(&kinds::TIER_MISSING, None, format!("tier `{name}` was not looked at"), None)?;
        }
    }
    for (id, record) in records {
        let is_listed = exam.tiers.iter().any(|tier| tier.id == Some(*id) || tier.name == record.name);
        if !is_listed && !record.standing.may_be_unlisted() {
            let detail = format!("tier `{}` (number {id})", record.name);
            exam.found(&kinds::TIER_UNLISTED, None, detail, None)?;
        }
    }
    Ok(())
}
