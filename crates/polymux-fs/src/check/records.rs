//! Pass over every record: whether it can be read, and whether the next numbers are above those in use.
//!
//! Invariants: a record is removed only where the row of its kind says so ([`Unreadable`]): another one says the same (names, positions), it is a
//! hint (heat, the logical clock, device capabilities), only free space depends on it (pending frees), or its content is gone for good and it only
//! stands in the way (extended attributes). An inode, an extent or a content that cannot be read is left.

use polymux_meta::Batch;
use polymux_records::error::Result;
use polymux_records::store::describe::{decode_number, describe_record};
use polymux_records::store::keys::{self, NumberKind};
use polymux_records::store::{EntryCount, InodeBody, InodeRecord, Unreadable, put_number_range_end, unreadable_record};
use polymux_types::{Ino, Timestamp};

use super::{Examination, NamedInode, kinds, put_inode};

/// First position of a directory, as `namespace` gives it.
const COOKIE_FIRST: u64 = 16;

/// Greatest numbers in use.
#[derive(Default)]
struct InUse {
    ino: u64,
    object: u64,
    tier: u64,
}

pub(crate) fn check(exam: &mut Examination<'_>) -> Result<()> {
    let mut in_use = InUse::default();
    (exam.report.records, exam.report.inodes) = (0, 0);
    let mut cursor = exam.cursor((keys::Key::new(), keys::Key::from_slice(&[0xff; 4])));
    while let Some((key, value)) = cursor.next()? {
        exam.report.records += 1;
        if key.get(4) == Some(&b'i') && key.len() == 13 {
            exam.report.inodes += 1;
        }
        record(exam, &mut in_use, &key, &value)?;
    }
    numbers(exam, &in_use)?;
    root(exam)
}

fn record(exam: &mut Examination<'_>, in_use: &mut InUse, key: &[u8], value: &[u8]) -> Result<()> {
    note_numbers(in_use, key, value);
    let Some(problem) = problem_of(key, value) else { return Ok(()) };
    let description = describe_record(key, value);
    let Some(letter) = description.letter else {
        let detail = format!("key `{}`: {problem}", key.escape_ascii());
        return exam.found(&kinds::KEY_UNKNOWN, None, detail, None).map(|_| ());
    };
    let how = unreadable_record(letter).expect("a described letter is of a known kind");
    if matches!(how, Unreadable::WithVolume) {
        return Ok(());
    }
    let mut repair = Batch::new();
    let ino = description.ino;
    let detail = format!("{} `{}`: {problem}", description.kind, key.escape_ascii());
    if matches!(letter, 'p' | 'o') && key.len() >= 13 {
        repair.put(key, []);
        return exam.found(&kinds::VALUE_STRAY, ino, detail, Some(repair)).map(|_| ());
    }
    if letter == 'i' {
        exam.unreadable_inodes += 1;
    }
    match how {
        Unreadable::Replaced(value) => repair.put(key, value()),
        _ => repair.delete(key),
    };
    let repair = Some(repair).filter(|_| !matches!(how, Unreadable::Left) || key_is_malformed(letter, key));
    if letter == 'd' && key.len() > 13 {
        let parent = ino.unwrap_or(Ino(0));
        let place = NamedInode { parent, name: keys::name_of_dirent_key(key), ino: parent };
        return exam.found_name(&kinds::RECORD_UNREADABLE, place, detail, repair).map(|_| ());
    }
    exam.found(&kinds::RECORD_UNREADABLE, ino, detail, repair).map(|_| ())
}

/// The defect of a record that cannot be read. The frequent kinds are decoded without describing them.
fn problem_of(key: &[u8], value: &[u8]) -> Option<String> {
    use polymux_records::store::{Dirent, PositionEntry};
    let is_fine = match (key.get(4), key.len()) {
        (Some(b'i'), 13) => InodeRecord::decode(Ino(0), value).is_ok(),
        (Some(b'd'), 13..) => Dirent::decode(value).is_ok(),
        (Some(b'c'), 21) => PositionEntry::decode(value).is_ok(),
        (Some(b'p'), 21..) => value.is_empty(),
        _ => false,
    };
    if is_fine && key.starts_with(&[0; 4]) { None } else { describe_record(key, value).problem }
}

/// Nothing can ever find such a record.
fn key_is_malformed(letter: char, key: &[u8]) -> bool {
    let length = key.len();
    match letter {
        'i' | 'b' => length != 13,
        'e' => length != 21,
        _ => false,
    }
}

fn note_numbers(in_use: &mut InUse, key: &[u8], value: &[u8]) {
    match key.get(4) {
        Some(b'i') => {
            let Some(ino) = keys::ino_of_inode_key(key) else { return };
            in_use.ino = in_use.ino.max(ino.0);
            if let Ok(InodeRecord { body: InodeBody::Regular(file), .. }) = InodeRecord::decode(ino, value) {
                let objects = file.objects.iter().map(|entry| entry.object.0);
                in_use.object = objects.chain([in_use.object]).max().unwrap_or(0);
            }
        }
        Some(b'g') => {
            if let Some((_, object, _)) = keys::parts_of_disowned_key(key) {
                in_use.object = in_use.object.max(object.0);
            }
        }
        Some(b't') => in_use.tier = in_use.tier.max(keys::tier_of_key(key).map_or(0, |id| u64::from(id.0))),
        _ => {}
    }
}

fn numbers(exam: &mut Examination<'_>, in_use: &InUse) -> Result<()> {
    for (kind, name, found, last) in [
        (NumberKind::Ino, "inodes", &kinds::INODE_NUMBER, in_use.ino),
        (NumberKind::Object, "objects", &kinds::OBJECT_NUMBER, in_use.object),
        (NumberKind::Tier, "tiers", &kinds::TIER_NUMBER, in_use.tier),
    ] {
        let value = exam.store.get(&keys::number_range(kind))?;
        if value.is_none() && kind == NumberKind::Tier {
            continue;
        }
        let end = value.map(|value| decode_number(&value).ok()).unwrap_or_default();
        let (found, detail) = match end {
            Some(end) if last < end => continue,
            Some(end) => (found, format!("the next number of {name} is {end}, and {last} is in use")),
            None => (&kinds::NUMBER_RANGE, format!("the range of {name}")),
        };
        let mut repair = Batch::new();
        put_number_range_end(&mut repair, kind, last.saturating_add(1));
        exam.found(found, None, detail, Some(repair))?;
    }
    exam.flush()?;
    mark(exam)
}

/// The mark is a number that objects had when the last mount began.
fn mark(exam: &mut Examination<'_>) -> Result<()> {
    let read = |kind| -> Result<Option<u64>> {
        Ok(exam.store.get(&keys::number_range(kind))?.and_then(|value| decode_number(&value).ok()))
    };
    let (mark, end) = (read(NumberKind::ObjectMark)?, read(NumberKind::Object)?);
    let Some(end) = end else { return Ok(()) };
    let (kind, detail) = match mark {
        Some(mark) if mark <= end => return Ok(()),
        Some(mark) => (&kinds::OBJECT_MARK, format!("it is {mark}, and no object has a number above {end}")),
        None => (&kinds::NUMBER_RANGE, "the first object of the last mount".to_owned()),
    };
    let mut repair = Batch::new();
    put_number_range_end(&mut repair, NumberKind::ObjectMark, end);
    exam.found(kind, None, detail, Some(repair)).map(|_| ())
}

fn root(exam: &mut Examination<'_>) -> Result<()> {
    if exam.store.get(&keys::inode(Ino::ROOT))?.is_some() {
        return Ok(());
    }
    let mut repair = Batch::new();
    put_inode(&mut repair, Ino::ROOT, &new_directory(exam.now, Ino::ROOT, 0o755));
    exam.found(&kinds::ROOT_MISSING, Some(Ino::ROOT), "it has no record".to_owned(), Some(repair))?;
    exam.flush()
}

/// The record of an empty directory of the superuser.
pub(super) fn new_directory(now: Timestamp, parent: Ino, permissions: u32) -> InodeRecord {
    InodeRecord {
        permissions,
        uid: 0,
        gid: 0,
        links: 2,
        generation: 1,
        has_access_acl: false,
        has_default_acl: false,
        lacks_xattrs: true,
        attribute_flags: 0,
        accessed: now,
        modified: now,
        changed: now,
        born: now,
        body: InodeBody::Directory { parent, next_cookie: COOKIE_FIRST, entries: EntryCount::Exact(0) },
    }
}
