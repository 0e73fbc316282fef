//! The kinds of records, each in one row: how its keys and values are described to people, fuzzed and made again, the rule that it keeps with other
//! records, how a check repairs it, and whether a rebuild makes it.
//!
//! A new kind is a row here, its format in a file of its own, and a paragraph of FORMAT.md. The rules among records themselves are in `store/check`.

use polymux_types::{Block, Ino, TierId};

use super::boot_format;
use super::check::Check;
use super::describe::{self, Description, Field, KeyFields, decode_bytes, decode_number};
use super::directory_format::{Dirent, PositionEntry};
use super::disowned_format::DisownedRecord;
use super::extent_format::ExtentRecord;
use super::formats::{self, DISOWNED, INO, appended, record};
use super::heat_format::{ClockRecord, HeatRecord};
use super::inline_format;
use super::inode_format::InodeRecord;
use super::keys::{self, Key, NumberKind};
use super::profile_format;
use super::stamp_mark_format::StampMark;
use super::volume_format::{EpochRecord, FORMAT_VERSION, TierRecord, VolumeRecord};
use crate::error::Result;
use crate::parts::BootId;

/// A record whose key is of a known kind.
pub(super) struct KnownRecord<'a> {
    /// The inode in its key; 0 where there is none.
    pub(super) ino: Ino,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

/// A kind of record.
pub(super) struct RecordKind {
    /// The letter of its keys.
    pub(super) letter: char,
    pub(super) name: &'static str,
    /// Fields of a key, which is given whole and without snapshot and letter.
    pub(super) key_fields: fn(&[u8], &[u8]) -> KeyFields,
    /// Fields of a value, for people.
    pub(super) value_fields: fn(&KnownRecord<'_>) -> Result<Vec<Field>>,
    /// Sample keys, each with all of its parts.
    pub(super) keys: fn() -> Vec<Key>,
    /// Makes a key again from its description and its bytes.
    pub(super) remake: fn(&Description, &[u8]) -> Option<Key>,
    /// `None` where the key says everything.
    pub(super) value: Option<ValueFormat>,
    /// Checks a readable record against the others; `None` where it refers to none of them, or is a hint that may outlive them.
    pub(super) check: Option<CheckRecord>,
    /// How fsck repairs one that cannot be read.
    pub(super) unreadable: Unreadable,
    /// Where all copies of the metadata store are lost.
    pub(super) rebuild: AfterRebuild,
}

/// Checks one record against the others of its volume.
pub(super) type CheckRecord = fn(&mut Check<'_>, &KnownRecord<'_>) -> Result<()>;

/// How a check of a volume repairs a record that cannot be read.
#[derive(Clone, Copy)]
pub enum Unreadable {
    /// It is removed: another record says the same, it is a hint, only free space depends on it, or its content is lost and it stands in the way.
    Removed,
    /// A record with this value takes its place.
    Replaced(fn() -> Vec<u8>),
    /// It is reported and left: people may still get data back from it.
    Left,
    /// It is examined with the volume as a whole, and not record by record.
    WithVolume,
}

/// Whether a rebuild from the objects on the tiers makes a kind of record, where all copies of the metadata store are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRebuild {
    /// Made again, from objects, their back-references and the labels of tiers.
    Made,
    /// Absent: it is learnt again, or tells of work of the lost store that does not go on.
    BeginsAnew,
    /// Absent, and its content with it: only the metadata store had that.
    Lost,
}

/// The format of the values of a kind of record, for its fuzz target.
#[derive(Clone, Copy)]
pub(super) struct ValueFormat {
    pub(super) name: &'static str,
    pub(super) samples: fn() -> Vec<Vec<u8>>,
    /// Decodes a value and encodes it again; `None` where it is none.
    pub(super) read_and_write: fn(&[u8]) -> Option<Vec<u8>>,
}

/// All kinds of records, in the order of their keys.
pub(super) const KINDS: [RecordKind; 19] = [
    RecordKind {
        letter: 'E',
        name: "epoch",
        key_fields: describe::key_alone,
        value_fields: |record| Ok(describe::epoch(EpochRecord::decode(record.value)?)),
        keys: || vec![keys::epoch()],
        remake: |_, _| Some(keys::epoch()),
        value: value("record-epoch", formats::epochs, |bytes| Some(EpochRecord::decode(bytes).ok()?.encode())),
        check: None,
        unreadable: Unreadable::WithVolume,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'K',
        name: "boot of a kernel that uses objects",
        key_fields: describe::key_alone,
        value_fields: |record| Ok(describe::boot(boot_format::decode(record.value)?)),
        keys: || vec![keys::boot_with_objects()],
        remake: |_, _| Some(keys::boot_with_objects()),
        value: value("record-boot", formats::boots, |bytes| {
            Some(boot_format::encode(boot_format::decode(bytes).ok()?))
        }),
        check: None,
        // It may have said that the present kernel uses objects.
        unreadable: Unreadable::Replaced(|| boot_format::encode(BootId::UNKNOWN)),
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'L',
        name: "logical clock",
        key_fields: describe::key_alone,
        value_fields: |record| Ok(describe::clock(&ClockRecord::decode(record.value)?)),
        keys: || vec![keys::logical_clock()],
        remake: |_, _| Some(keys::logical_clock()),
        value: value("record-clock", formats::clocks, |bytes| Some(ClockRecord::decode(bytes).ok()?.encode())),
        check: None,
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::BeginsAnew,
    },
    RecordKind {
        letter: 'P',
        name: "profile of a tier",
        key_fields: describe::tier_of,
        value_fields: |record| Ok(describe::profile(&profile_format::decode(record.value)?)),
        keys: || vec![keys::profile(TierId(3))],
        remake: |_, key| Some(keys::profile(keys::tier_of_key(key)?)),
        value: value("record-profile", formats::profiles, |bytes| {
            Some(profile_format::encode(&profile_format::decode(bytes).ok()?))
        }),
        check: None,
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::BeginsAnew,
    },
    RecordKind {
        letter: 'S',
        name: "mark of descriptions",
        key_fields: describe::key_alone,
        value_fields: |record| Ok(describe::stamp_mark(StampMark::decode(record.value)?)),
        keys: || vec![keys::stamp_mark()],
        remake: |_, _| Some(keys::stamp_mark()),
        value: value("record-stamp-mark", formats::marks, |bytes| Some(StampMark::decode(bytes).ok()?.encode())),
        check: None,
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::BeginsAnew,
    },
    RecordKind {
        letter: 'V',
        name: "volume",
        key_fields: describe::key_alone,
        value_fields: |record| Ok(describe::volume(&VolumeRecord::decode(record.value)?)),
        keys: || vec![keys::volume()],
        remake: |_, _| Some(keys::volume()),
        value: value("record-volume", formats::volumes, |bytes| {
            let record = VolumeRecord::decode(bytes).ok()?;
            // Of a newer version only the fields needed to say so are read.
            (record.format_version <= FORMAT_VERSION).then(|| record.encode())
        }),
        check: None,
        unreadable: Unreadable::WithVolume,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'b',
        name: "inline data",
        key_fields: describe::inode_of,
        value_fields: |record| Ok(describe::inline(&decode_bytes("inline data", record.value)?)),
        keys: || vec![keys::inline(INO)],
        remake: |description, _| Some(keys::inline(description.ino?)),
        value: value("record-inline", formats::inline, |bytes| {
            // Any length that a record may have, as if the inode said so.
            let length = decode_bytes("inline data", bytes).ok()?.len() as u64;
            let content = inline_format::decode(INO, length, bytes).expect("it is as long as it is");
            assert!(inline_format::decode(INO, length + 1, bytes).is_err(), "another length is refused");
            (length <= super::INLINE_SIZE_LIMIT).then(|| appended(|bytes| inline_format::encode_into(bytes, &content)))
        }),
        check: Some(|check, record| check.inline(record)),
        unreadable: Unreadable::Left,
        rebuild: AfterRebuild::Lost,
    },
    RecordKind {
        letter: 'c',
        name: "directory position",
        key_fields: describe::position_of,
        value_fields: |record| Ok(describe::position(&PositionEntry::decode(record.value)?)),
        keys: || vec![keys::position(INO, 16)],
        remake: |description, key| Some(keys::position(description.ino?, keys::cookie_of_position_key(key)?)),
        value: value("record-position", formats::positions, |bytes| {
            let entry = PositionEntry::decode(bytes).ok()?;
            Some(appended(|bytes| entry.encode(bytes)))
        }),
        check: Some(|check, record| check.position(record)),
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'd',
        name: "directory entry",
        key_fields: describe::inode_and_name_of,
        value_fields: |record| Ok(describe::dirent(Dirent::decode(record.value)?)),
        keys: || vec![keys::dirent(INO, b"name")],
        remake: |description, key| Some(keys::dirent(description.ino?, keys::name_of_dirent_key(key))),
        value: value("record-dirent", formats::dirents, |bytes| {
            let dirent = Dirent::decode(bytes).ok()?;
            Some(appended(|bytes| dirent.encode(bytes)))
        }),
        check: Some(|check, record| check.dirent(record)),
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'e',
        name: "extent",
        key_fields: describe::end_block_of,
        value_fields: |record| Ok(describe::extent(ExtentRecord::decode(record.value)?)),
        keys: || vec![keys::extent(INO, Block::END)],
        remake: |description, key| Some(keys::extent(description.ino?, keys::end_block_of_key(key)?)),
        value: value("record-extent", formats::extents, |bytes| Some(ExtentRecord::decode(bytes).ok()?.encode())),
        check: Some(|check, record| check.extent(record)),
        unreadable: Unreadable::Left,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'g',
        name: "disowned range",
        key_fields: describe::disowned_of,
        value_fields: |record| Ok(describe::disowned(DisownedRecord::decode(record.key, record.value)?)),
        keys: || vec![DISOWNED.key()],
        remake: |_, key| {
            let (tier, object, start) = keys::parts_of_disowned_key(key)?;
            Some(keys::disowned(tier, object, start))
        },
        value: value("record-disowned", formats::disowned, |bytes| {
            Some(DisownedRecord::decode(&DISOWNED.key(), bytes).ok()?.encode())
        }),
        check: Some(|check, record| check.disowned(record)),
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::BeginsAnew,
    },
    RecordKind {
        letter: 'h',
        name: "heat",
        key_fields: describe::heat_chunk_of,
        value_fields: |record| Ok(describe::heat(&HeatRecord::decode(record.value)?)),
        keys: || vec![keys::heat(INO, 1)],
        remake: |_, key| {
            let (ino, chunk) = keys::parts_of_heat_key(key)?;
            Some(keys::heat(ino, chunk))
        },
        value: value("record-heat", formats::heats, |bytes| Some(HeatRecord::decode(bytes).ok()?.encode())),
        check: None,
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::BeginsAnew,
    },
    RecordKind {
        letter: 'i',
        name: "inode",
        key_fields: describe::inode_of,
        value_fields: |record| Ok(describe::inode(&InodeRecord::decode(record.ino, record.value)?)),
        keys: || vec![keys::inode(INO)],
        remake: |_, key| Some(keys::inode(keys::ino_of_inode_key(key)?)),
        value: value("record-inode", formats::inodes, |bytes| {
            let record = InodeRecord::decode(INO, bytes).ok()?;
            Some(appended(|bytes| record.encode_into(bytes)))
        }),
        check: Some(|check, record| check.inode(record)),
        unreadable: Unreadable::Left,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'n',
        name: "number range",
        key_fields: describe::numbers_of,
        value_fields: |record| Ok(describe::number_range(decode_number(record.value)?)),
        keys: || NUMBER_KINDS.map(keys::number_range).to_vec(),
        remake: |_, key| NUMBER_KINDS.map(keys::number_range).into_iter().find(|made| made[..] == *key),
        value: value("record-number-range", formats::number_ranges, |bytes| {
            let end = decode_number(bytes).ok()?;
            Some(record(|writer| {
                writer.u64(end);
            }))
        }),
        check: None,
        unreadable: Unreadable::WithVolume,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'o',
        name: "orphan",
        key_fields: describe::inode_of,
        value_fields: describe::nothing,
        keys: || vec![keys::orphan(INO)],
        remake: |_, key| Some(keys::orphan(keys::ino_of_orphan_key(key)?)),
        value: None,
        check: Some(|check, record| check.orphan(record)),
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::BeginsAnew,
    },
    RecordKind {
        letter: 'p',
        name: "name of an inode",
        key_fields: describe::parent_name_of,
        value_fields: describe::nothing,
        keys: || vec![keys::parent_name(INO, Ino(1), b"name")],
        remake: |description, key| {
            let (parent, name) = keys::parent_and_name_of_key(key)?;
            Some(keys::parent_name(description.ino?, parent, &name))
        },
        value: None,
        check: Some(|check, record| check.parent_name(record)),
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 's',
        name: "renamed directory",
        key_fields: describe::inode_of,
        value_fields: describe::nothing,
        keys: || vec![keys::renamed_directory(INO)],
        remake: |description, _| Some(keys::renamed_directory(description.ino?)),
        value: None,
        check: None,
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::BeginsAnew,
    },
    RecordKind {
        letter: 't',
        name: "tier",
        key_fields: describe::tier_of,
        value_fields: |record| {
            let id = keys::tier_of_key(record.key).unwrap_or(TierId(0));
            Ok(describe::tier(&TierRecord::decode(id, record.value)?))
        },
        keys: || vec![keys::tier(TierId(3))],
        remake: |_, key| Some(keys::tier(keys::tier_of_key(key)?)),
        value: value("record-tier", formats::tiers, |bytes| Some(TierRecord::decode(TierId(0), bytes).ok()?.encode())),
        check: None,
        unreadable: Unreadable::WithVolume,
        rebuild: AfterRebuild::Made,
    },
    RecordKind {
        letter: 'x',
        name: "extended attribute",
        key_fields: describe::inode_and_name_of,
        value_fields: |record| Ok(describe::xattr(&decode_bytes("an extended attribute", record.value)?)),
        keys: || vec![keys::xattr(INO, b"user.comment")],
        remake: |description, key| Some(keys::xattr(description.ino?, &keys::name_of_xattr_key(key)?)),
        value: value("record-xattr", formats::xattrs, |bytes| {
            let value = decode_bytes("an extended attribute", bytes).ok()?;
            Some(record(|writer| {
                writer.bytes(&value);
            }))
        }),
        check: Some(|check, record| check.xattr(record)),
        unreadable: Unreadable::Removed,
        rebuild: AfterRebuild::Lost,
    },
];

/// All kinds of records: letter and name, in the order of their keys.
pub const RECORD_KINDS: [(char, &str); KINDS.len()] = {
    let mut kinds = [(' ', ""); KINDS.len()];
    let mut place = 0;
    while place < kinds.len() {
        kinds[place] = (KINDS[place].letter, KINDS[place].name);
        place += 1;
    }
    kinds
};

/// The kind with a letter.
pub(super) fn kind_of(letter: char) -> Option<&'static RecordKind> {
    const ALL: &[RecordKind] = &KINDS;
    ALL.iter().find(|kind| kind.letter == letter)
}

/// How a check repairs an unreadable record of the kind with this letter; `None`: there is no such kind.
pub fn unreadable_record(letter: char) -> Option<Unreadable> {
    kind_of(letter).map(|kind| kind.unreadable)
}

/// Whether a rebuild makes the kind with this letter; `None`: there is no such kind.
pub fn after_rebuild(letter: char) -> Option<AfterRebuild> {
    kind_of(letter).map(|kind| kind.rebuild)
}

const NUMBER_KINDS: [NumberKind; 4] = [NumberKind::Ino, NumberKind::Object, NumberKind::ObjectMark, NumberKind::Tier];

const fn value(
    name: &'static str,
    samples: fn() -> Vec<Vec<u8>>,
    read_and_write: fn(&[u8]) -> Option<Vec<u8>>,
) -> Option<ValueFormat> {
    Some(ValueFormat { name, samples, read_and_write })
}

#[cfg(test)]
mod tests {
    use super::describe::describe_key;
    use super::*;

    #[test]
    fn kinds_stand_in_the_order_of_their_keys_and_each_describes_its_own() {
        assert!(KINDS.map(|kind| kind.letter).is_sorted_by(|one, next| one < next));
        for kind in KINDS {
            for key in (kind.keys)() {
                let found = describe_key(&key);
                assert_eq!((found.letter, found.problem), (Some(kind.letter), None), "{}", kind.name);
            }
        }
    }
}
