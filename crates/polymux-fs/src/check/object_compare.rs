//! Objects of the buckets whose sums differ, one by one.
//!
//! Invariants: buckets are compared some hundred at a time, so that memory is bounded by their objects; missing and
//! unreferenced objects are kept to the end, because an object in a wrong bucket is both.

use std::collections::{HashMap, HashSet};

use polymux_meta::Batch;
use polymux_records::blockmap::{BlockMap, Extent};
use polymux_records::error::{Error, Result};
use polymux_records::store::describe::decode_number;
use polymux_records::store::keys::{self, NumberKind};
use polymux_records::store::{
    DisownedKind, DisownedRecord, ExtentRecord, FileRecord, InodeBody, InodeRecord, ObjectEntry, put_number_range_end,
};
use polymux_tier::ObjectRef;
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Ino, ObjectId, TierId};

use super::given_up::{is_given_up, owns_bytes};
use super::number_set::NumberSet;
use super::objects::{PresentTiers, Shared};
use super::records::new_directory;
use super::{Examination, Found, kinds, put_inode};

/// Buckets that are compared at once.
const BUCKETS_AT_ONCE: usize = 512;

/// An object of a tier.
type Place = (TierId, ObjectId);

/// Missing and surplus objects of the tiers.
#[derive(Default)]
struct Difference {
    missing: Vec<(Place, Ino, Bucket)>,
    extra: HashMap<Place, Bucket>,
}

pub(super) fn compare(
    exam: &mut Examination<'_>,
    tiers: &PresentTiers<'_>,
    named: &NumberSet,
    mut shared: Shared,
) -> Result<()> {
    let mut buckets: Vec<(TierId, u16)> = Vec::new();
    for (id, present) in tiers {
        let differing = (0..BUCKETS).filter(|bucket| present.sums.differs(usize::from(*bucket)));
        buckets.extend(differing.map(|bucket| (*id, bucket)));
    }
    let mut difference = Difference::default();
    for some in buckets.chunks(BUCKETS_AT_ONCE) {
        compare_buckets(exam, tiers, some, &mut difference)?;
    }
    if !shared.is_empty() {
        find_sharers(exam, &mut shared)?;
    }
    for ((tier, object), ino, bucket) in std::mem::take(&mut difference.missing) {
        match difference.extra.remove(&(tier, object)) {
            Some(found) => wrong_bucket(exam, ino, (tier, object), bucket, found)?,
            None => missing(exam, ino, (tier, object))?,
        }
    }
    let mut extra: Vec<(Place, Bucket)> = difference.extra.into_iter().collect();
    extra.sort_unstable();
    for ((tier, object), bucket) in extra {
        unnamed(exam, tiers, named, tier, object, bucket)?;
    }
    Ok(())
}

fn compare_buckets(
    exam: &mut Examination<'_>,
    tiers: &PresentTiers<'_>,
    buckets: &[(TierId, u16)],
    difference: &mut Difference,
) -> Result<()> {
    let wanted: HashSet<(TierId, u16)> = buckets.iter().copied().collect();
    let mut named: HashMap<(Place, Bucket), Ino> = HashMap::new();
    each_object(exam, |ino, entry| {
        if wanted.contains(&(entry.tier, entry.bucket.0)) {
            named.insert(((entry.tier, entry.object), entry.bucket), ino);
        }
    })?;
    for (id, bucket) in buckets {
        let bucket = Bucket(*bucket);
        let objects = tiers[id].tier.list(bucket).map_err(|error| Error::tier(*id, error))?;
        for object in objects {
            if named.remove(&((*id, object), bucket)).is_none() {
                difference.extra.insert((*id, object), bucket);
            }
        }
    }
    let mut missing: Vec<_> = named.into_iter().map(|((place, bucket), ino)| (place, ino, bucket)).collect();
    missing.sort_unstable_by_key(|(place, ino, _)| (*ino, *place));
    difference.missing.extend(missing);
    Ok(())
}

fn each_object(exam: &Examination<'_>, mut visit: impl FnMut(Ino, &ObjectEntry)) -> Result<()> {
    let mut inodes = exam.cursor(keys::inodes());
    while let Some((key, value)) = inodes.next()? {
        let Some(ino) = keys::ino_of_inode_key(&key) else { continue };
        if let Ok(InodeRecord { body: InodeBody::Regular(file), .. }) = InodeRecord::decode(ino, &value) {
            file.objects.iter().for_each(|entry| visit(ino, entry));
        }
    }
    Ok(())
}

fn find_sharers(exam: &mut Examination<'_>, shared: &mut Shared) -> Result<()> {
    each_object(exam, |ino, entry| {
        if let Some(inos) = shared.get_mut(&entry.object) {
            inos.push(ino);
        }
    })?;
    let mut found: Vec<(&ObjectId, &Vec<Ino>)> = shared.iter().collect();
    found.sort_unstable();
    for (object, inos) in found {
        let [first, others @ ..] = inos.as_slice() else { continue };
        let first = exam.path_of(*first)?;
        for ino in others {
            let detail = format!("object {object:016x} is that of {first} too");
            exam.found(&kinds::OBJECT_SHARED, Some(*ino), detail, None)?;
        }
    }
    Ok(())
}

/// The record of a file and its map; `None` where it cannot be read.
pub(super) fn file_of(exam: &Examination<'_>, ino: Ino) -> Result<Option<(InodeRecord, FileRecord, BlockMap)>> {
    let Found::Record(record) = exam.inode(ino)? else { return Ok(None) };
    let InodeBody::Regular(file) = record.body.clone() else { return Ok(None) };
    let mut extents = Vec::new();
    let mut cursor = exam.cursor(keys::extents(ino));
    while let Some((key, value)) = cursor.next()? {
        if let (Some(end), Ok(record)) = (keys::end_block_of_key(&key), ExtentRecord::decode(&value)) {
            extents.push(Extent { start: record.start_block, end, owner: record.owner });
        }
    }
    Ok(BlockMap::from_extents(file.home, &extents).ok().map(|map| (*record, file, map)))
}

fn wrong_bucket(exam: &mut Examination<'_>, ino: Ino, place: Place, recorded: Bucket, found: Bucket) -> Result<()> {
    let Some((mut record, _, _)) = file_of(exam, ino)? else { return Ok(()) };
    if let InodeBody::Regular(file) = &mut record.body {
        for entry in file.objects.iter_mut().filter(|entry| (entry.tier, entry.object) == place) {
            entry.bucket = found;
        }
    }
    let mut repair = Batch::new();
    put_inode(&mut repair, ino, &record);
    let detail = format!(
        "object {:016x} of tier {}: bucket {:03x} on record, found in {:03x}",
        place.1, place.0, recorded.0, found.0
    );
    exam.found(&kinds::OBJECT_BUCKET, Some(ino), detail, Some(repair))?;
    exam.flush()
}

fn missing(exam: &mut Examination<'_>, ino: Ino, place: Place) -> Result<()> {
    let Some((mut record, mut file, mut map)) = file_of(exam, ino)? else { return Ok(()) };
    let at = file.objects.iter().position(|entry| (entry.tier, entry.object) == place);
    let Some(slot) = at.and_then(|at| u8::try_from(at).ok()) else { return Ok(()) };
    let owns = owns_bytes(&map, slot, 0, file.size_floor);
    let may_extend = file.extenders & (1 << place.0.0) != 0;
    // An object is made before a record names it, so one of the present mount is there.
    let may_be_unmade =
        if exam.is_live { place.1.0 < number(exam, NumberKind::ObjectMark)? } else { exam.report.unclean };
    if may_be_unmade && !owns {
        // Nothing of it was ever synced before a crash: it is made again when the file is used.
        return Ok(());
    }
    let subject = format!("object {:016x} of tier {}", place.1, place.0);
    if owns || may_extend {
        let detail = format!("{subject}; the file has {} bytes", file.size_floor);
        return exam.found(&kinds::OBJECT_MISSING, Some(ino), detail, None).map(|_| ());
    }
    let mut repair = Batch::new();
    let is_alone = file.objects.len() == 1;
    let is_owner = map.owners().contains(&slot);
    if is_alone {
        for end in map.clear().removed {
            repair.delete(keys::extent(ino, end));
        }
        file.home = None;
    } else if let Some(home) = file.home.filter(|_| !is_owner) {
        let number = |of: u8| if of > slot { of - 1 } else { of };
        let change = map.renumber(home, number);
        change.removed.iter().for_each(|end| repair.delete(keys::extent(ino, *end)));
        let has_extents = file.objects.len() > 2;
        for Extent { start, end, owner } in change.added {
            match has_extents {
                true => repair.put(keys::extent(ino, end), ExtentRecord { start_block: start, owner }.encode()),
                false => repair.delete(keys::extent(ino, end)),
            }
        }
        file.home = Some(number(home));
    }
    file.objects.remove(usize::from(slot));
    record.body = InodeBody::Regular(file);
    put_inode(&mut repair, ino, &record);
    let repair = Some(repair).filter(|_| is_alone || !is_owner);
    exam.found(&kinds::OBJECT_EMPTY_MISSING, Some(ino), subject, repair)?;
    exam.flush()
}

/// An object that no file names.
fn unnamed(
    exam: &mut Examination<'_>,
    tiers: &PresentTiers<'_>,
    named: &NumberSet,
    tier: TierId,
    object: ObjectId,
    bucket: Bucket,
) -> Result<()> {
    let (mark, end) = (number(exam, NumberKind::ObjectMark)?, number(exam, NumberKind::Object)?);
    // An object that recovery removes, or that is just being created.
    let is_new = object.0 >= mark && object.0 < end && exam.report.unclean || object.0 >= mark && exam.is_live;
    if is_new || is_given_up(exam, tier, object)? {
        return Ok(());
    }
    let present = &tiers[&tier];
    let Ok(stat) = present.tier.stat(ObjectRef::new(object, bucket)) else { return Ok(()) };
    let subject = format!("object {object:016x} in bucket {:03x} of tier `{}`", bucket.0, present.name);
    if exam.unreadable_inodes > 0 || named.contains(object.0) {
        let detail = format!("{subject}, {} bytes; it may be part of a file that cannot be read", stat.size);
        return exam.found(&kinds::OBJECT_UNNAMED, None, detail, None).map(|_| ());
    }
    if stat.allocated == 0 {
        let record = DisownedRecord { tier, object, bucket, start: u64::MAX, kind: DisownedKind::Object };
        let mut repair = Batch::new();
        repair.put(record.key(), record.encode());
        return exam.found(&kinds::OBJECT_LEAKED, None, subject, Some(repair)).map(|_| ());
    }
    let detail = format!("{subject}, {} bytes", stat.size);
    let mut repair = Batch::new();
    if object.0 >= end {
        put_number_range_end(&mut repair, NumberKind::Object, object.0.saturating_add(1));
    }
    if exam.found(&kinds::OBJECT_UNNAMED, None, detail, Some(repair))? {
        let entry = ObjectEntry::new(tier, object, bucket);
        let file = FileRecord { size_floor: stat.size, home: Some(0), objects: vec![entry], ..FileRecord::default() };
        let record = InodeRecord { body: InodeBody::Regular(file), ..new_directory(exam.now, Ino::ROOT, 0o600) };
        let ino = exam.new_ino()?;
        exam.attach(ino, record, &format!("{}-{object:016x}", present.name))?;
    }
    Ok(())
}

fn number(exam: &Examination<'_>, kind: NumberKind) -> Result<u64> {
    let value = exam.store.get(&keys::number_range(kind))?;
    Ok(value.and_then(|value| decode_number(&value).ok()).unwrap_or(0))
}
