//! Objects that are shorter than they were when their length was recorded.
//!
//! Invariants:
//! * Only an object whose record says that it covers its whole mapped range can be found. In any other, the range behind its end is
//!   a hole.
//! * An operation that shortens an object is recorded before the object is cut. So the records are read before the object is checked, and once more
//!   after it: where they are the same, the object was not cut meanwhile.

use polymux_meta::Batch;
use polymux_records::blockmap::{BlockMap, Owner};
use polymux_records::error::Result;
use polymux_records::store::{FileRecord, InodeBody, ObjectEntry};
use polymux_tier::{ObjectRef, Tier};
use polymux_types::limits::BLOCK_SIZE;
use polymux_types::{Block, Ino};

use super::files::add_damage;
use super::object_compare::file_of;
use super::{Examination, kinds, put_inode};

/// Byte ranges of a file that its object in a slot should have and, as it ends at `end`, does not.
fn lost_ranges(file: &FileRecord, map: &BlockMap, slot: u8, end: u64) -> Vec<(u64, u64)> {
    let runs = map.runs(Block::holding(end), Block::at_or_after(file.size_floor));
    let owned = runs.iter().filter(|run| run.owner == Some(Owner::Slot(slot)));
    owned
        .map(|run| (end.max(run.start.first_byte()), file.size_floor.min(run.end.first_byte())))
        .filter(|(from, to)| from < to)
        .collect()
}

/// Compares the length of an object with the ranges that its file has in it. `covering` is its entry in the record as that was read before.
pub(super) fn check_object(
    exam: &mut Examination<'_>,
    tier: &dyn Tier,
    ino: Ino,
    covering: &ObjectEntry,
) -> Result<()> {
    let Some((mut record, mut file, map)) = file_of(exam, ino)? else { return Ok(()) };
    let is_same = |entry: &ObjectEntry| (entry.tier, entry.object) == (covering.tier, covering.object);
    let found = (0_u8..).zip(&file.objects).find(|(_, entry)| is_same(entry) && entry.covers);
    let Some((slot, entry)) = found else { return Ok(()) };
    let Ok(stat) = tier.stat(ObjectRef::new(entry.object, entry.bucket)) else { return Ok(()) };
    let lost = lost_ranges(&file, &map, slot, stat.size);
    if lost.is_empty() || file_of(exam, ino)?.is_none_or(|again| (&again.1, &again.2) != (&file, &map)) {
        return Ok(());
    }
    for (from, to) in &lost {
        add_damage(&mut file, *from, to.next_multiple_of(BLOCK_SIZE));
    }
    file.objects[usize::from(slot)].covers = false;
    record.body = InodeBody::Regular(file);
    let mut repair = Batch::new();
    put_inode(&mut repair, ino, &record);
    let ranges: Vec<String> = lost.iter().map(|(from, to)| format!("{from}..{to}")).collect();
    let ObjectEntry { tier, object, .. } = covering;
    let detail = format!("object {object:016x} of tier {tier} has {} bytes: lost are {}", stat.size, ranges.join(", "));
    if exam.found(&kinds::OBJECT_SHORT, Some(ino), detail, Some(repair))? {
        exam.flush()?;
    }
    Ok(())
}
