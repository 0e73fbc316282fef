//! The formats of keys and records, for their fuzz targets.

use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
use polymux_types::{Bucket, Epoch, Ino, ObjectId, TierId, Timestamp, VolumeId};

use super::boot_format;
use super::describe::{decode_bytes, decode_number, describe_key, describe_record};
use super::directory_format::{Dirent, EntryCount, PositionEntry};
use super::disowned_format::{DisownedKind, DisownedRecord};
use super::extent_format::ExtentRecord;
use super::frame::Writer;
use super::heat_format::{ClockRecord, HeatNode, HeatRecord};
use super::inline_format;
use super::inode_format::{FileRecord, InodeBody, InodeRecord, ObjectEntry};
use super::keys::{self, NumberKind};
use super::profile_format;
use super::stamp_mark_format::StampMark;
use super::volume_format::{EpochRecord, FORMAT_VERSION, Shutdown, TierRecord, TierStanding, VolumeRecord};
use crate::attributes::{ATTRIBUTE_FLAGS_KNOWN, FileKind};
use crate::blockmap::{END, Owner};
use crate::parts::BootId;

/// The inode, and the key of a pending free, used to decode values that hold no key of their own.
const INO: Ino = Ino(5);
const DISOWNED: DisownedRecord = DisownedRecord {
    tier: TierId(3),
    object: ObjectId(9),
    bucket: Bucket(17),
    start: 4096,
    kind: DisownedKind::Range { end: 8192 },
};

/// Every format of this crate.
#[doc(hidden)]
#[must_use]
pub fn on_disk_formats() -> Vec<OnDiskFormat> {
    vec![
        framed("record-volume", volumes, |bytes| {
            let record = VolumeRecord::decode(bytes).ok()?;
            // Of a newer version only the fields needed to say so are read.
            (record.format_version <= FORMAT_VERSION).then(|| record.encode())
        }),
        framed("record-epoch", epochs, |bytes| Some(EpochRecord::decode(bytes).ok()?.encode())),
        framed("record-tier", tiers, |bytes| Some(TierRecord::decode(TierId(0), bytes).ok()?.encode())),
        framed("record-number-range", number_ranges, |bytes| {
            let end = decode_number(bytes).ok()?;
            Some(record(|writer| {
                writer.u64(end);
            }))
        }),
        framed("record-inode", inodes, |bytes| {
            let record = InodeRecord::decode(INO, bytes).ok()?;
            Some(appended(|bytes| record.encode_into(bytes)))
        }),
        framed("record-dirent", dirents, |bytes| {
            let dirent = Dirent::decode(bytes).ok()?;
            Some(appended(|bytes| dirent.encode(bytes)))
        }),
        framed("record-position", positions, |bytes| {
            let entry = PositionEntry::decode(bytes).ok()?;
            Some(appended(|bytes| entry.encode(bytes)))
        }),
        framed("record-extent", extents, |bytes| Some(ExtentRecord::decode(bytes).ok()?.encode())),
        framed("record-disowned", disowned, |bytes| {
            Some(DisownedRecord::decode(&DISOWNED.key(), bytes).ok()?.encode())
        }),
        framed("record-inline", inline, |bytes| {
            // Any length that a record may have, as if the inode said so.
            let length = decode_bytes("inline data", bytes).ok()?.len() as u64;
            let content = inline_format::decode(INO, length, bytes).expect("it is as long as it is");
            assert!(inline_format::decode(INO, length + 1, bytes).is_err(), "another length is refused");
            (length <= super::INLINE_SIZE_LIMIT).then(|| appended(|bytes| inline_format::encode_into(bytes, &content)))
        }),
        framed("record-heat", heats, |bytes| Some(HeatRecord::decode(bytes).ok()?.encode())),
        framed("record-stamp-mark", marks, |bytes| Some(StampMark::decode(bytes).ok()?.encode())),
        framed("record-boot", boots, |bytes| Some(boot_format::encode(boot_format::decode(bytes).ok()?))),
        framed("record-profile", profiles, |bytes| Some(profile_format::encode(&profile_format::decode(bytes).ok()?))),
        framed("record-clock", clocks, |bytes| Some(ClockRecord::decode(bytes).ok()?.encode())),
        framed("record-xattr", xattrs, |bytes| {
            let value = decode_bytes("an extended attribute", bytes).ok()?;
            Some(record(|writer| {
                writer.bytes(&value);
            }))
        }),
        OnDiskFormat {
            name: "key",
            samples: || all_keys().iter().map(|key| key.to_vec()).collect(),
            repair: |_| {},
            read_and_write: read_and_write_key,
            form: FormatForm::Unique,
        },
        described_record(),
    ]
}

/// A record with its key, as it is described to people.
fn described_record() -> OnDiskFormat {
    OnDiskFormat {
        name: "described-record",
        samples: described,
        repair: |bytes| repair_frame(split_record(bytes).1),
        read_and_write: |bytes| {
            let mut copy = bytes.to_vec();
            let (key, value) = split_record(&mut copy);
            let description = describe_record(key, value);
            let printable = |text: &str| !text.chars().any(char::is_control);
            assert!(printable(&format!("{:?}", description.key)), "a key can be printed");
            description.problem.is_none().then(|| bytes.to_vec())
        },
        form: FormatForm::Unique,
    }
}

fn framed(
    name: &'static str,
    samples: fn() -> Vec<Vec<u8>>,
    read_and_write: fn(&[u8]) -> Option<Vec<u8>>,
) -> OnDiskFormat {
    // An inode record may have the file type of another system in bits that are not ours, and an extent of a hole a slot.
    OnDiskFormat { name, samples, repair: repair_frame, read_and_write, form: FormatForm::HasUnused }
}

fn repair_frame(bytes: &mut [u8]) {
    if let Some((body, checksum)) = bytes.split_last_chunk_mut::<4>() {
        *checksum = crc32c::crc32c(body).to_le_bytes();
    }
}

fn record(fields: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(1);
    fields(&mut writer);
    writer.finish()
}

fn appended(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

fn volumes() -> Vec<Vec<u8>> {
    let id = VolumeId::from_random([9; 16]);
    vec![VolumeRecord { format_version: FORMAT_VERSION, id, name: "media".to_owned() }.encode()]
}

fn epochs() -> Vec<Vec<u8>> {
    let record = |raising, shutdown| EpochRecord { epoch: Epoch(7), raising, shutdown }.encode();
    vec![record(true, Shutdown::Unclean), record(false, Shutdown::Clean)]
}

fn tiers() -> Vec<Vec<u8>> {
    [TierStanding::InService, TierStanding::Draining, TierStanding::Joining, TierStanding::Leaving]
        .map(|standing| TierRecord { name: "fast".to_owned(), instance: 1 << 60, epoch: Epoch(2), standing }.encode())
        .to_vec()
}

fn number_ranges() -> Vec<Vec<u8>> {
    vec![record(|writer| {
        writer.u64(65_552);
    })]
}

fn inodes() -> Vec<Vec<u8>> {
    let object = |tier, object| ObjectEntry::new(TierId(tier), ObjectId(object), Bucket(4095));
    let objects = FileRecord {
        size_floor: 1 << 40,
        extenders: 0b10,
        home: Some(0),
        objects: vec![object(0, 77), object(1, 78)],
        error_sequence: 3,
        damaged: vec![(4096, 8192)],
    };
    let known = ObjectEntry { allocated_blocks: Some(16), covers: true, ..object(0, 79) };
    let known = FileRecord { home: Some(0), objects: vec![known, object(1, 80)], ..FileRecord::default() };
    let bodies = [
        InodeBody::Regular(objects),
        InodeBody::Regular(known),
        InodeBody::Regular(FileRecord { size_floor: 4096, ..FileRecord::default() }),
        InodeBody::Directory { parent: Ino(1), next_cookie: 9, entries: EntryCount::Exact(5) },
        InodeBody::Directory { parent: Ino(1), next_cookie: 9, entries: EntryCount::Open },
        InodeBody::Symlink { target: b"../target".to_vec() },
        InodeBody::Special { kind: FileKind::BlockDevice, device: 0x801 },
    ];
    let time = Timestamp::new(-2, 999_999_999);
    let encode = |body, attribute_flags| {
        let record = InodeRecord {
            permissions: 0o4755,
            uid: 1000,
            gid: 100,
            links: 2,
            generation: 1,
            has_access_acl: true,
            has_default_acl: false,
            lacks_xattrs: false,
            attribute_flags,
            accessed: time,
            modified: time,
            changed: time,
            born: time,
            body,
        };
        appended(|bytes| record.encode_into(bytes))
    };
    let plain = bodies.iter().map(|body| encode(body.clone(), 0));
    let flagged = bodies.iter().map(|body| encode(body.clone(), ATTRIBUTE_FLAGS_KNOWN));
    plain.chain(flagged).collect()
}

fn dirents() -> Vec<Vec<u8>> {
    let dirent = Dirent { ino: Ino(4), kind: FileKind::Fifo, cookie: 12 };
    vec![appended(|bytes| dirent.encode(bytes))]
}

fn positions() -> Vec<Vec<u8>> {
    let entry = PositionEntry { ino: Ino(4), kind: FileKind::Regular, name: b"name".to_vec() };
    vec![appended(|bytes| entry.encode(bytes))]
}

fn extents() -> Vec<Vec<u8>> {
    [Owner::Slot(63), Owner::Hole].map(|owner| ExtentRecord { start_block: 1 << 50, owner }.encode()).to_vec()
}

fn disowned() -> Vec<Vec<u8>> {
    [DisownedKind::Object, DisownedKind::Tail, DISOWNED.kind]
        .map(|kind| DisownedRecord { kind, ..DISOWNED }.encode())
        .to_vec()
}

fn inline() -> Vec<Vec<u8>> {
    vec![appended(|bytes| inline_format::encode_into(bytes, b"a small file"))]
}

fn xattrs() -> Vec<Vec<u8>> {
    vec![record(|writer| {
        writer.bytes(b"a value");
    })]
}

fn heats() -> Vec<Vec<u8>> {
    let node =
        HeatNode { index: 5, reads: 512, writes: 300, accessed: 90, moved: 80, visits: 3, sequential: 9, synced: 255 };
    vec![HeatRecord { nodes: vec![node, HeatNode { index: 63, ..node }] }.encode()]
}

fn marks() -> Vec<Vec<u8>> {
    let through = Timestamp::new(1_700_000_000, 999_999_999);
    vec![StampMark::UNKNOWN.encode(), StampMark { through, is_complete: true }.encode()]
}

fn boots() -> Vec<Vec<u8>> {
    vec![boot_format::encode(BootId([7; 16]))]
}

fn profiles() -> Vec<Vec<u8>> {
    profile_format::samples().iter().map(profile_format::encode).collect()
}

fn clocks() -> Vec<Vec<u8>> {
    vec![ClockRecord { seconds: 90_000, promoted: vec![(TierId(0), 1 << 40), (TierId(2), 7)] }.encode()]
}

fn all_keys() -> Vec<keys::Key> {
    vec![
        keys::volume(),
        keys::epoch(),
        keys::tier(TierId(3)),
        keys::number_range(NumberKind::Ino),
        keys::number_range(NumberKind::Object),
        keys::number_range(NumberKind::ObjectMark),
        keys::number_range(NumberKind::Tier),
        keys::inode(INO),
        keys::dirent(INO, b"name"),
        keys::position(INO, 16),
        keys::parent_name(INO, Ino(1), b"name"),
        keys::xattr(INO, b"user.comment"),
        keys::extent(INO, END),
        DISOWNED.key(),
        keys::orphan(INO),
        keys::inline(INO),
        keys::heat(INO, 1),
        keys::logical_clock(),
        keys::stamp_mark(),
        keys::renamed_directory(INO),
        keys::boot_with_objects(),
        keys::profile(TierId(3)),
    ]
}

/// Takes a key apart and makes it again.
fn read_and_write_key(key: &[u8]) -> Option<Vec<u8>> {
    let description = describe_key(key);
    if description.problem.is_some() {
        return None;
    }
    let number = || key.get(5..7)?.try_into().ok().map(u16::from_be_bytes);
    let ino = description.ino.unwrap_or(Ino(0));
    let made = match description.letter? {
        'V' => keys::volume(),
        'E' => keys::epoch(),
        't' => keys::tier(TierId(number()?)),
        'n' => keys::number_range(match key.last()? {
            b'i' => NumberKind::Ino,
            b'o' => NumberKind::Object,
            b't' => NumberKind::Tier,
            _ => NumberKind::ObjectMark,
        }),
        'i' => keys::inode(keys::ino_of_inode_key(key)?),
        'd' => keys::dirent(ino, &key[13..]),
        'c' => keys::position(ino, keys::cookie_of_position_key(key)?),
        'p' => {
            let (parent, name) = keys::parent_and_name_of_key(key)?;
            keys::parent_name(ino, parent, &name)
        }
        'x' => keys::xattr(ino, &keys::name_of_xattr_key(key)?),
        'e' => keys::extent(ino, keys::end_block_of_key(key)?),
        'g' => {
            let (tier, object, start) = keys::parts_of_disowned_key(key)?;
            keys::disowned(tier, object, start)
        }
        'o' => keys::orphan(keys::ino_of_orphan_key(key)?),
        'b' => keys::inline(ino),
        'h' => {
            let (ino, chunk) = keys::parts_of_heat_key(key)?;
            keys::heat(ino, chunk)
        }
        'L' => keys::logical_clock(),
        'S' => keys::stamp_mark(),
        's' => keys::renamed_directory(ino),
        'K' => keys::boot_with_objects(),
        'P' => keys::profile(TierId(number()?)),
        _ => return None,
    };
    Some(made.to_vec())
}

/// Records with their keys: the length of the key in a byte, the key, the value.
fn described() -> Vec<Vec<u8>> {
    let values = [
        volumes,
        epochs,
        tiers,
        number_ranges,
        number_ranges,
        number_ranges,
        number_ranges,
        inodes,
        dirents,
        positions,
    ];
    let values = values.map(|samples| samples().swap_remove(0)).into_iter();
    let values =
        values.chain([Vec::new(), xattrs().swap_remove(0), extents().swap_remove(0), disowned().swap_remove(0)]);
    let values = values.chain([Vec::new(), inline().swap_remove(0), heats().swap_remove(0), clocks().swap_remove(0)]);
    let values = values.chain([marks().swap_remove(0), Vec::new(), boots().swap_remove(0), profiles().swap_remove(0)]);
    let join = |(key, value): (keys::Key, Vec<u8>)| {
        [&[u8::try_from(key.len()).expect("a sample is short")][..], &key, &value].concat()
    };
    all_keys().into_iter().zip(values).map(join).collect()
}

fn split_record(bytes: &mut [u8]) -> (&[u8], &mut [u8]) {
    let Some((length, rest)) = bytes.split_first_mut() else { return (&[], &mut []) };
    let length = usize::from(*length).min(rest.len());
    let (key, value) = rest.split_at_mut(length);
    (key, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_types::on_disk_format::Acceptance;

    #[test]
    fn every_sample_is_accepted() {
        for format in on_disk_formats() {
            for sample in (format.samples)() {
                assert_eq!(format.check(&sample), Ok(Acceptance::Accepted), "{}: {sample:?}", format.name);
                let mut repaired = sample.clone();
                (format.repair)(&mut repaired);
                assert_eq!(repaired, sample, "{}: what is whole needs no repair", format.name);
            }
        }
    }
}
