//! Pending frees: they must not cover bytes that a file uses (DESIGN section 6).
//!
//! Invariants: where a record and a file claim the same bytes, the file keeps them: leaking space is harmless, losing
//! bytes is not. Object numbers are unique over all tiers, so one bit per object tells which objects to look up.

use std::collections::BTreeMap;

use polymux_meta::Batch;
use polymux_records::blockmap::{BlockMap, Owner};
use polymux_records::error::Result;
use polymux_records::store::{DisownedKind, DisownedRecord, FileRecord, ObjectEntry, TierRecord, keys};
use polymux_types::{Block, Ino, TierId};

use super::number_set::NumberSet;
use super::{Examination, kinds};

/// Objects named by pending frees.
#[derive(Default)]
pub(super) struct GivenUp {
    objects: NumberSet,
}

/// Reads the records of pending frees.
pub(super) fn gather(exam: &mut Examination<'_>, tiers: &BTreeMap<TierId, TierRecord>) -> Result<GivenUp> {
    let mut given_up = GivenUp::default();
    let mut cursor = exam.cursor(keys::all_disowned());
    while let Some((key, value)) = cursor.next()? {
        let Ok(record) = DisownedRecord::decode(&key, &value) else { continue };
        let subject = format!("object {:016x} of tier {}", record.object, record.tier);
        let mut repair = Batch::new();
        repair.delete(&key);
        if matches!(record.kind, DisownedKind::Range { end } if end <= record.start) {
            exam.found(&kinds::DISOWNED_EMPTY, None, subject, Some(repair))?;
        } else if !exam.knows_tier(tiers, record.tier) {
            exam.found(&kinds::DISOWNED_TIER, None, subject, Some(repair))?;
        } else {
            given_up.objects.insert(record.object.0);
        }
    }
    Ok(given_up)
}

/// Whether anything of an object is to be freed.
pub(super) fn is_given_up(exam: &Examination<'_>, tier: TierId, object: polymux_types::ObjectId) -> Result<bool> {
    let (from, to) = keys::disowned_of(tier, object);
    Ok(!exam.store.range(&from, &to, 1)?.is_empty())
}

/// Compares the records that name an object of a file with the ranges that the file owns in it.
pub(super) fn check_object(
    exam: &mut Examination<'_>,
    given_up: &GivenUp,
    ino: Ino,
    file: &FileRecord,
    map: &BlockMap,
    slot: u8,
    entry: &ObjectEntry,
) -> Result<()> {
    if !given_up.objects.contains(entry.object.0) {
        return Ok(());
    }
    let mut cursor = exam.cursor(keys::disowned_of(entry.tier, entry.object));
    while let Some((key, value)) = cursor.next()? {
        let Ok(record) = DisownedRecord::decode(&key, &value) else { continue };
        let (kind, end) = match record.kind {
            DisownedKind::Object => (&kinds::DISOWNED_OBJECT_LIVE, u64::MAX),
            DisownedKind::Tail => (&kinds::DISOWNED_LIVE, u64::MAX),
            DisownedKind::Range { end } if end > record.start => (&kinds::DISOWNED_LIVE, end),
            DisownedKind::Range { .. } => continue,
        };
        if record.kind != DisownedKind::Object && !owns_bytes(map, slot, record.start, end.min(file.size_floor)) {
            continue;
        }
        let mut repair = Batch::new();
        repair.delete(&key);
        let detail = format!("object {:016x} of tier {}, from byte {}", entry.object, entry.tier, record.start);
        exam.found(kind, Some(ino), detail, Some(repair))?;
    }
    Ok(())
}

/// Whether a slot owns any of these bytes.
pub(super) fn owns_bytes(map: &BlockMap, slot: u8, start: u64, end: u64) -> bool {
    start < end
        && map
            .runs(Block::holding(start), Block::at_or_after(end))
            .iter()
            .any(|run| run.owner == Some(Owner::Slot(slot)))
}
