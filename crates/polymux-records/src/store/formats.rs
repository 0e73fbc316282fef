//! The formats of keys and records, for their fuzz targets.

use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
use polymux_types::{Block, Bucket, Epoch, Ino, ObjectId, TierId, Timestamp, VolumeId};

use super::boot_format;
use super::describe::{describe_key, describe_record};
use super::directory_format::{Dirent, EntryCount, PositionEntry};
use super::disowned_format::{DisownedKind, DisownedRecord};
use super::extent_format::ExtentRecord;
use super::frame::Writer;
use super::heat_format::{ClockRecord, HeatNode, HeatRecord};
use super::inline_format;
use super::inode_format::{FileRecord, InodeBody, InodeRecord, ObjectEntry};
use super::keys::Key;
use super::profile_format;
use super::record_kinds::{KINDS, RecordKind, ValueFormat, kind_of};
use super::stamp_mark_format::StampMark;
use super::volume_format::{EpochRecord, FORMAT_VERSION, Shutdown, TierRecord, TierStanding, VolumeRecord};
use crate::attributes::{ATTRIBUTE_FLAGS_KNOWN, FileKind};
use crate::blockmap::Owner;
use crate::parts::BootId;

/// The inode, and the key of a pending free, used to decode values that hold no key of their own.
pub(super) const INO: Ino = Ino(5);
pub(super) const DISOWNED: DisownedRecord = DisownedRecord {
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
    let keys = OnDiskFormat {
        name: "key",
        samples: || KINDS.iter().flat_map(|kind| (kind.keys)()).map(|key| key.to_vec()).collect(),
        repair: |_| {},
        read_and_write: read_and_write_key,
        form: FormatForm::Unique,
    };
    let values = KINDS.iter().filter_map(|kind| kind.value.map(framed));
    values.chain([keys, described_record()]).collect()
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

fn framed(ValueFormat { name, samples, read_and_write }: ValueFormat) -> OnDiskFormat {
    // An inode record may have the file type of another system in bits that are not ours, and an extent of a hole a slot.
    OnDiskFormat { name, samples, repair: repair_frame, read_and_write, form: FormatForm::HasUnused }
}

fn repair_frame(bytes: &mut [u8]) {
    if let Some((body, checksum)) = bytes.split_last_chunk_mut::<4>() {
        *checksum = crc32c::crc32c(body).to_le_bytes();
    }
}

pub(super) fn record(fields: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(1);
    fields(&mut writer);
    writer.finish()
}

pub(super) fn appended(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

pub(super) fn volumes() -> Vec<Vec<u8>> {
    let id = VolumeId::from_random([9; 16]);
    vec![VolumeRecord { format_version: FORMAT_VERSION, id, name: "media".to_owned() }.encode()]
}

pub(super) fn epochs() -> Vec<Vec<u8>> {
    let record = |raising, shutdown| EpochRecord { epoch: Epoch(7), raising, shutdown }.encode();
    vec![record(true, Shutdown::Unclean), record(false, Shutdown::Clean)]
}

pub(super) fn tiers() -> Vec<Vec<u8>> {
    [TierStanding::InService, TierStanding::Draining, TierStanding::Joining, TierStanding::Leaving]
        .map(|standing| TierRecord { name: "fast".to_owned(), instance: 1 << 60, epoch: Epoch(2), standing }.encode())
        .to_vec()
}

pub(super) fn number_ranges() -> Vec<Vec<u8>> {
    vec![record(|writer| {
        writer.u64(65_552);
    })]
}

pub(super) fn inodes() -> Vec<Vec<u8>> {
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

pub(super) fn dirents() -> Vec<Vec<u8>> {
    let dirent = Dirent { ino: Ino(4), kind: FileKind::Fifo, cookie: 12 };
    vec![appended(|bytes| dirent.encode(bytes))]
}

pub(super) fn positions() -> Vec<Vec<u8>> {
    let entry = PositionEntry { ino: Ino(4), kind: FileKind::Regular, name: b"name".to_vec() };
    vec![appended(|bytes| entry.encode(bytes))]
}

pub(super) fn extents() -> Vec<Vec<u8>> {
    [Owner::Slot(63), Owner::Hole].map(|owner| ExtentRecord { start_block: Block(1 << 50), owner }.encode()).to_vec()
}

pub(super) fn disowned() -> Vec<Vec<u8>> {
    [DisownedKind::Object, DisownedKind::Tail, DISOWNED.kind]
        .map(|kind| DisownedRecord { kind, ..DISOWNED }.encode())
        .to_vec()
}

pub(super) fn inline() -> Vec<Vec<u8>> {
    vec![appended(|bytes| inline_format::encode_into(bytes, b"a small file"))]
}

pub(super) fn xattrs() -> Vec<Vec<u8>> {
    vec![record(|writer| {
        writer.bytes(b"a value");
    })]
}

pub(super) fn heats() -> Vec<Vec<u8>> {
    let node =
        HeatNode { index: 5, reads: 512, writes: 300, accessed: 90, moved: 80, visits: 3, sequential: 9, synced: 255 };
    vec![HeatRecord { nodes: vec![node, HeatNode { index: 63, ..node }] }.encode()]
}

pub(super) fn marks() -> Vec<Vec<u8>> {
    let through = Timestamp::new(1_700_000_000, 999_999_999);
    vec![StampMark::UNKNOWN.encode(), StampMark { through, is_complete: true }.encode()]
}

pub(super) fn boots() -> Vec<Vec<u8>> {
    vec![boot_format::encode(BootId([7; 16]))]
}

pub(super) fn profiles() -> Vec<Vec<u8>> {
    profile_format::samples().iter().map(profile_format::encode).collect()
}

pub(super) fn clocks() -> Vec<Vec<u8>> {
    vec![ClockRecord { seconds: 90_000, promoted: vec![(TierId(0), 1 << 40), (TierId(2), 7)] }.encode()]
}

/// Takes a key apart and makes it again.
fn read_and_write_key(key: &[u8]) -> Option<Vec<u8>> {
    let description = describe_key(key);
    if description.problem.is_some() {
        return None;
    }
    let kind = kind_of(description.letter?)?;
    Some((kind.remake)(&description, key)?.to_vec())
}

/// Records with their keys: the length of the key in a byte, the key, the value.
fn described() -> Vec<Vec<u8>> {
    let join =
        |key: Key, value: &[u8]| [&[u8::try_from(key.len()).expect("a sample is short")][..], &key, value].concat();
    let of_kind = |kind: &RecordKind| {
        let values = kind.value.map_or_else(|| vec![Vec::new()], |value| (value.samples)());
        (kind.keys)().into_iter().map(move |key| join(key, &values[0])).collect::<Vec<_>>()
    };
    KINDS.iter().flat_map(of_kind).collect()
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
