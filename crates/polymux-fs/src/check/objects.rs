//! Pass over objects: compares the objects that files name with those on the tiers.
//!
//! Invariants:
//! * Files are in the order of their numbers, and objects lie in buckets. The two are compared by sums over buckets; only
//!   buckets whose sums differ are compared object by object (`object_compare`).
//! * Object numbers are unique over all tiers, so a bit for each finds one that two files name.
//! * Nothing on a tier is touched: an object to delete becomes a pending free.
//! * After an unclean stop objects may be longer than their files, may be missing where nothing of them was synced, and may
//!   be unreferenced: recovery looks after that, and none of it is a finding.

use std::collections::{BTreeMap, HashMap};

use polymux_meta::Batch;
use polymux_records::error::{Error, Result};
use polymux_records::store::{DisownedRecord, FileRecord, InodeBody, InodeRecord, ObjectEntry, keys};
use polymux_tier::{ObjectRef, Tier};
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Ino, ObjectId, TierId};

use super::number_set::NumberSet;
use super::sums::{Side, Sums};
use super::{Examination, given_up, kinds, object_compare, short};

/// A tier that is there, with the sums over its buckets.
pub(super) struct Present<'a> {
    pub(super) tier: &'a dyn Tier,
    pub(super) name: &'a str,
    pub(super) sums: Sums,
}

pub(super) type PresentTiers<'a> = BTreeMap<TierId, Present<'a>>;

/// Objects that are named twice, and who names them.
pub(super) type Shared = HashMap<ObjectId, Vec<Ino>>;

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let mut tiers = present_tiers(exam);
    let mut named = NumberSet::default();
    let mut shared = Shared::new();
    let mut inodes = exam.cursor(keys::inodes());
    while let Some((key, value)) = inodes.next()? {
        let Some(ino) = keys::ino_of_inode_key(&key) else { continue };
        let Ok(InodeRecord { body: InodeBody::Regular(file), .. }) = InodeRecord::decode(ino, &value) else { continue };
        for entry in &file.objects {
            if !named.insert(entry.object.0) {
                shared.insert(entry.object, Vec::new());
            }
            if let Some(present) = tiers.get_mut(&entry.tier) {
                present.sums.add(Side::Left, usize::from(entry.bucket.0), &entry.object.0);
                let tier = present.tier;
                length(exam, tier, ino, &file, entry)?;
            }
        }
    }
    exam.report.objects = 0;
    for (id, present) in &mut tiers {
        for bucket in 0..BUCKETS {
            let objects = present.tier.list(Bucket(bucket)).map_err(|error| Error::tier(*id, error))?;
            exam.report.objects += objects.len() as u64;
            exam.meter.add(objects.len())?;
            for object in objects {
                present.sums.add(Side::Right, usize::from(bucket), &object.0);
            }
        }
    }
    exam.flush()?;
    if !shared.is_empty() || tiers.values().any(|present| present.sums.any_differs()) {
        object_compare::compare(exam, &tiers, &named, shared)?;
    }
    Ok(())
}

fn present_tiers<'a>(exam: &Examination<'a>) -> PresentTiers<'a> {
    let present = |tier: &super::ExaminedTier<'a>| {
        let sums = Sums::new(usize::from(BUCKETS));
        Some((tier.id?, Present { tier: tier.tier?, name: tier.name, sums }))
    };
    exam.tiers.iter().filter_map(present).collect()
}

/// An object that is longer than its file holds bytes that would appear if the file grew, and one that is shorter than it was has
/// lost some.
fn length(exam: &mut Examination<'_>, tier: &dyn Tier, ino: Ino, file: &FileRecord, entry: &ObjectEntry) -> Result<()> {
    let may_extend = file.extenders & (1 << entry.tier.0) != 0;
    let may_be_longer = exam.report.unclean || exam.is_live || may_extend;
    if may_be_longer && !entry.covers {
        return Ok(());
    }
    // One that is missing differs in its bucket.
    let Ok(stat) = tier.stat(ObjectRef::new(entry.object, entry.bucket)) else { return Ok(()) };
    if entry.covers && stat.size < file.size_floor {
        return short::check_object(exam, tier, ino, entry);
    }
    if may_be_longer || stat.size <= file.size_floor || given_up::is_given_up(exam, entry.tier, entry.object)? {
        return Ok(());
    }
    let ObjectEntry { tier, object, .. } = *entry;
    let record = DisownedRecord::of_tail(entry, file.size_floor);
    let mut repair = Batch::new();
    repair.put(record.key(), record.encode());
    let detail = format!("object {object:016x} of tier {tier} has {} bytes, the file {}", stat.size, file.size_floor);
    exam.found(&kinds::OBJECT_LONG, Some(ino), detail, Some(repair)).map(|_| ())
}
