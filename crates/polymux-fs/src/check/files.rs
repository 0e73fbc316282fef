//! Pass over the contents of files according to their records: extents, inline data, damaged ranges, pending frees.
//!
//! Invariants: a block of which it is unknown in which object it is becomes a hole that is marked damaged. It reads as
//! an error until it is written; bytes that may belong to it stay where they are.

use std::collections::{BTreeMap, BTreeSet};

use polymux_meta::{Batch, Entry};
use polymux_records::blockmap::{BlockMap, Extent, Owner};
use polymux_records::error::Result;
use polymux_records::store::describe::decode_bytes;
use polymux_records::store::{
    ExtentRecord, FileRecord, INLINE_SIZE_LIMIT, InodeBody, InodeRecord, TierRecord, TierStanding, keys,
};
use polymux_types::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use polymux_types::{Block, Ino, TierId};

use super::cursor::{Cursor, first_of};
use super::given_up::{self, GivenUp};
use super::{Examination, FindingKind, kinds, put_inode};

/// Blocks of the largest file.
const BLOCKS_MAX: Block = Block(Block::whole_in(FILE_SIZE_MAX) + 1);

/// State of the pass over files.
struct Context {
    tiers: BTreeMap<TierId, TierRecord>,
    given_up: GivenUp,
    /// Tiers that hold files.
    used: BTreeSet<TierId>,
}

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let tiers = exam.tier_records()?;
    let given_up = given_up::gather(exam, &tiers)?;
    let mut context = Context { tiers, given_up, used: BTreeSet::new() };
    let mut inodes = exam.cursor(keys::inodes());
    let mut extents = exam.cursor(keys::of_kind(b'e'));
    let mut contents = exam.cursor(keys::of_kind(b'b'));
    while let Some(ino) = first_of([inodes.ino()?, extents.ino()?, contents.ino()?]) {
        let record = inodes.next_of(ino)?.map(|(_, value)| InodeRecord::decode(ino, &value));
        let extents = all_of(&mut extents, ino)?;
        let content = contents.next_of(ino)?;
        match record {
            Some(Ok(record)) if matches!(record.body, InodeBody::Regular(_)) => {
                file(exam, &mut context, ino, record, &extents, content.as_ref())?;
            }
            Some(Err(_)) => {}
            Some(Ok(_)) | None => {
                for (key, _) in &extents {
                    stray(exam, &kinds::EXTENT_STRAY, ino, key)?;
                }
                if let Some((key, _)) = &content {
                    stray(exam, &kinds::INLINE_STRAY, ino, key)?;
                }
            }
        }
    }
    standings(exam, &context)
}

fn all_of(cursor: &mut Cursor<'_>, ino: Ino) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    while let Some(entry) = cursor.next_of(ino)? {
        found.push(entry);
    }
    Ok(found)
}

fn stray(exam: &mut Examination<'_>, kind: &'static FindingKind, ino: Ino, key: &[u8]) -> Result<()> {
    let mut repair = Batch::new();
    repair.delete(key);
    exam.found(kind, Some(ino), format!("inode {ino} is no file that has any"), Some(repair)).map(|_| ())
}

fn file(
    exam: &mut Examination<'_>,
    context: &mut Context,
    ino: Ino,
    mut record: InodeRecord,
    extents: &[Entry],
    content: Option<&Entry>,
) -> Result<()> {
    home(exam, ino, &mut record)?;
    let map = map_of(exam, ino, &mut record, extents)?;
    inline(exam, ino, &mut record, content)?;
    damaged(exam, ino, &mut record)?;
    let InodeBody::Regular(file) = &record.body else { return Ok(()) };
    for (slot, entry) in (0_u8..).zip(&file.objects) {
        context.used.insert(entry.tier);
        if !exam.knows_tier(&context.tiers, entry.tier) {
            let detail = format!("object {:016x} is on tier {}", entry.object, entry.tier);
            exam.found(&kinds::OBJECT_TIER, Some(ino), detail, None)?;
        }
        if let Some(map) = &map {
            given_up::check_object(exam, &context.given_up, ino, file, map, slot, entry)?;
        }
    }
    Ok(())
}

/// A file with objects has a home.
fn home(exam: &mut Examination<'_>, ino: Ino, record: &mut InodeRecord) -> Result<()> {
    let InodeBody::Regular(file) = &mut record.body else { return Ok(()) };
    if file.home.is_some() || file.objects.is_empty() {
        return Ok(());
    }
    let detail = format!("it has {} objects", file.objects.len());
    let is_only = file.objects.len() == 1;
    file.home = Some(0).filter(|_| is_only);
    let repair = is_only.then(|| record_alone(ino, record));
    exam.found(&kinds::HOME_MISSING, Some(ino), detail, repair).map(|_| ())
}

fn record_alone(ino: Ino, record: &InodeRecord) -> Batch {
    let mut batch = Batch::new();
    put_inode(&mut batch, ino, record);
    batch
}

/// Problems found in extents, and the map without them.
struct Mended {
    map: BlockMap,
    problems: Vec<(&'static FindingKind, String)>,
    /// Blocks that no object can be asked for.
    lost: Vec<(Block, Block)>,
}

/// Checks the extents of a file. Returns the map, `None` where an extent cannot be read or there is no home.
fn map_of(
    exam: &mut Examination<'_>,
    ino: Ino,
    record: &mut InodeRecord,
    entries: &[Entry],
) -> Result<Option<BlockMap>> {
    let InodeBody::Regular(file) = &mut record.body else { return Ok(None) };
    let Some(home) = file.home else {
        if file.objects.is_empty() {
            for (key, _) in entries {
                stray(exam, &kinds::EXTENT_STRAY, ino, key)?;
            }
        }
        return Ok(None);
    };
    if file.objects.len() == 1 {
        return alone(exam, ino, home, entries).map(Some);
    }
    let mut extents = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        match (keys::end_block_of_key(key), ExtentRecord::decode(value)) {
            (Some(end), Ok(record)) => extents.push(Extent { start: record.start_block, end, owner: record.owner }),
            // Found by the pass over all records.
            _ => return Ok(None),
        }
    }
    let mended = mend(home, file.objects.len(), &extents);
    if mended.problems.is_empty() {
        return Ok(Some(mended.map));
    }
    let size = if file.extenders == 0 { file.size_floor } else { FILE_SIZE_MAX };
    for (start, end) in &mended.lost {
        let end = end.first_byte().min(size.next_multiple_of(BLOCK_SIZE));
        add_damage(file, start.first_byte(), end);
    }
    let mut repair = record_alone(ino, record);
    entries.iter().for_each(|(key, _)| repair.delete(key));
    for extent in mended.map.exceptions() {
        let record = ExtentRecord { start_block: extent.start, owner: extent.owner };
        repair.put(keys::extent(ino, extent.end), record.encode());
    }
    for (kind, detail) in mended.problems {
        // All of them are repaired together, with the first.
        exam.found(kind, Some(ino), detail, Some(std::mem::take(&mut repair)))?;
    }
    Ok(Some(mended.map))
}

/// The map of a file with one object. Loading such a file ignores its extents, so that it was read and written
/// without them.
fn alone(exam: &mut Examination<'_>, ino: Ino, home: u8, entries: &[Entry]) -> Result<BlockMap> {
    if !entries.is_empty() {
        let mut repair = Batch::new();
        entries.iter().for_each(|(key, _)| repair.delete(key));
        exam.found(&kinds::EXTENT_ALONE, Some(ino), format!("it has {}", entries.len()), Some(repair))?;
    }
    let mut map = BlockMap::default();
    map.set_home(home);
    Ok(map)
}

fn mend(home: u8, objects: usize, extents: &[Extent]) -> Mended {
    let mut map = BlockMap::default();
    map.set_home(home);
    let mut mended = Mended { map, problems: Vec::new(), lost: Vec::new() };
    let mut taken: Vec<(Block, Block)> = Vec::new();
    let mut reached = Block(0);
    for extent in extents {
        let Extent { start, mut end, mut owner } = *extent;
        let blocks = format!("blocks {start} to {end}");
        if start >= end {
            mended.problems.push((&kinds::EXTENT_EMPTY, blocks));
            continue;
        }
        if end != Block::END && end > BLOCKS_MAX {
            end = Block::END;
            mended.problems.push((&kinds::EXTENT_BOUNDS, blocks.clone()));
        }
        if let Owner::Slot(slot) = owner
            && usize::from(slot) >= objects
        {
            owner = Owner::Hole;
            mended.lost.push((start, end));
            mended.problems.push((&kinds::EXTENT_SLOT, format!("{blocks}, object {slot} of {objects}")));
        } else if owner == Owner::Slot(home) {
            mended.problems.push((&kinds::EXTENT_REDUNDANT, blocks.clone()));
        }
        mended.map.assign(start, end, owner);
        if start < reached {
            let overlaps = taken.iter().filter(|(from, to)| *from < end && start < *to);
            let overlaps: Vec<(Block, Block)> = overlaps.map(|(from, to)| (start.max(*from), end.min(*to))).collect();
            for (from, to) in overlaps {
                mended.map.assign(from, to, Owner::Hole);
                mended.lost.push((from, to));
                mended.problems.push((&kinds::EXTENT_OVERLAP, format!("blocks {from} to {to}")));
            }
        }
        taken.push((start, end));
        reached = reached.max(end);
    }
    mended
}

/// Adds a damaged range, and coalesces.
pub(super) fn add_damage(file: &mut FileRecord, start: u64, end: u64) {
    if start >= end {
        return;
    }
    file.damaged.push((start, end));
    file.damaged.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(file.damaged.len());
    for (from, to) in file.damaged.drain(..) {
        match merged.last_mut() {
            Some((_, last)) if from <= *last => *last = (*last).max(to),
            _ => merged.push((from, to)),
        }
    }
    file.damaged = merged;
}

fn inline(exam: &mut Examination<'_>, ino: Ino, record: &mut InodeRecord, content: Option<&Entry>) -> Result<()> {
    let InodeBody::Regular(file) = &mut record.body else { return Ok(()) };
    // Beside objects a content means nothing.
    if !file.objects.is_empty() {
        return Ok(());
    }
    let Some((key, value)) = content else {
        if file.size_floor == 0 {
            return Ok(());
        }
        let detail = format!("its {} bytes are not in the store", file.size_floor);
        return exam.found(&kinds::INLINE_MISSING, Some(ino), detail, None).map(|_| ());
    };
    // One that cannot be read was found by the pass over all records.
    let Ok(content) = decode_bytes("inline data", value) else { return Ok(()) };
    let length = content.len() as u64;
    if length == file.size_floor || length > INLINE_SIZE_LIMIT {
        return Ok(());
    }
    let detail = format!("there are {length} bytes, and {} on record", file.size_floor);
    file.size_floor = length;
    let mut repair = record_alone(ino, record);
    if length == 0 {
        repair.delete(key);
    }
    exam.found(&kinds::INLINE_SIZE, Some(ino), detail, Some(repair)).map(|_| ())
}

fn damaged(exam: &mut Examination<'_>, ino: Ino, record: &mut InodeRecord) -> Result<()> {
    let InodeBody::Regular(file) = &mut record.body else { return Ok(()) };
    if file.damaged.is_empty() {
        return Ok(());
    }
    let ranges: Vec<String> = file.damaged.iter().map(|(start, end)| format!("{start}..{end}")).collect();
    exam.found(&kinds::DATA_DAMAGED, Some(ino), format!("bytes {}", ranges.join(", ")), None)?;
    let end = FILE_SIZE_MAX.next_multiple_of(BLOCK_SIZE);
    if file.damaged.iter().all(|(_, to)| *to <= end) {
        return Ok(());
    }
    file.damaged.retain(|(from, _)| *from < end);
    file.damaged.iter_mut().for_each(|(_, to)| *to = (*to).min(end));
    let repair = record_alone(ino, record);
    let detail = format!("bytes {}, and no file is longer than {FILE_SIZE_MAX}", ranges.join(", "));
    exam.found(&kinds::DAMAGED_BEYOND, Some(ino), detail, Some(repair)).map(|_| ())
}

/// A tier that is joining or leaving holds nothing.
fn standings(exam: &mut Examination<'_>, context: &Context) -> Result<()> {
    for (id, record) in &context.tiers {
        let should_be_empty = matches!(record.standing, TierStanding::Joining | TierStanding::Leaving);
        if !should_be_empty || !context.used.contains(id) {
            continue;
        }
        let record = TierRecord { standing: record.standing.when_listed(), ..record.clone() };
        let mut repair = Batch::new();
        repair.put(keys::tier(*id), record.encode());
        let detail = format!("tier `{}` (number {id})", record.name);
        exam.found(&kinds::TIER_STANDING, None, detail, Some(repair))?;
    }
    Ok(())
}
