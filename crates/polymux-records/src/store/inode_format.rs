//! Inode records (key `i<ino>`): version 1, version 2 for files with inline data, and version 3 with more fields at the end.
//!
//! Version 2 has the fields of version 1; it is written only for a regular file without objects and with a size above zero,
//! whose bytes are in a `b` record. A program that knows version 1 alone refuses such a file instead of reading it as zeros.
//! Version 3 is written only where one of its own fields is not at its default, for files with inline data too, so that a
//! volume which uses none of them stays readable by programs that do not know it.
//!
//! Invariants of a record that verifies:
//! * A file without objects is empty, or inline and within the limit of that.
//! * The home slot and every size authority name an object of the list.
//! * No two objects of the role owner lie on the same tier.
//! * Every bit of `extenders` stands for the tier of that number (DESIGN section 6).
//! * Every attribute flag is one of [`ATTRIBUTE_FLAGS_KNOWN`].

use polymux_types::limits::{BUCKETS, FILE_SIZE_MAX, TIERS_MAX};
use polymux_types::{Bucket, Ino, ObjectId, TierId, Timestamp};

use super::directory_format::EntryCount;
use super::frame::{Reader, Writer};
use super::inline_format::INLINE_SIZE_LIMIT;
use crate::attributes::{ATTRIBUTE_FLAGS_KNOWN, FileKind};
use crate::error::Error;

const VERSION: u8 = 1;
const VERSION_INLINE: u8 = 2;
const VERSION_FACTS: u8 = 3;

/// In the place of a number of allocated blocks that is not known.
const ALLOCATION_UNKNOWN: u64 = u64::MAX;
/// 2^64 bytes in units of 512. No object has more, and sums over all tiers stay within 64 bits.
const ALLOCATED_BLOCKS_MAX: u64 = 1 << 55;
/// Flag of an object: it is at least as long as the map says of it.
const COVERS: u8 = 1;

/// Flags of a record. One that is not set says nothing was known, so that more can be added.
const HAS_ACCESS_ACL: u8 = 1;
const HAS_DEFAULT_ACL: u8 = 2;
const LACKS_XATTRS: u8 = 4;

/// The role of an object in its file. Replicas and copies under way come later; their numbers are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectRole {
    /// It holds blocks that the map gives to it.
    Owner,
}

/// One object of a file; extents name it by its place in the list (its slot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectEntry {
    /// The tier that holds the object.
    pub tier: TierId,
    /// Its number.
    pub object: ObjectId,
    /// Its part in the file.
    pub role: ObjectRole,
    /// Kept in the format; 1 in every record so far.
    pub generation: u32,
    /// The bucket that it lies in.
    pub bucket: Bucket,
    /// Units of 512 bytes that its tier said it takes, when last asked; `None`: not known.
    pub allocated_blocks: Option<u64>,
    /// It is at least as long as the last run of it in the map, within the size floor: a shorter one has lost bytes.
    pub covers: bool,
    /// It has at least so many bytes, durably, as far as that is known; not of the record, which says no more than `covers`.
    pub known_length: u64,
}

impl ObjectEntry {
    /// A new object, of which nothing more is known.
    pub fn new(tier: TierId, object: ObjectId, bucket: Bucket) -> Self {
        let role = ObjectRole::Owner;
        Self { tier, object, role, generation: 1, bucket, allocated_blocks: None, covers: false, known_length: 0 }
    }

    fn has_facts(&self) -> bool {
        self.allocated_blocks.is_some() || self.covers
    }
}

/// Fields that only regular files have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRecord {
    /// The file is at least this long.
    pub size_floor: u64,
    /// Tiers whose object may have extended the file since the floor was logged, one bit a tier.
    pub extenders: u64,
    /// Slot of the home tier.
    pub home: Option<u8>,
    /// The objects, by slot.
    pub objects: Vec<ObjectEntry>,
    /// Raised by every failed sync.
    pub error_sequence: u32,
    /// Byte ranges lost by a failed sync and not written since: start and end.
    pub damaged: Vec<(u64, u64)>,
}

/// Fields that depend on the type of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InodeBody {
    /// A regular file.
    Regular(FileRecord),
    /// A directory.
    Directory {
        /// The directory that it lies in.
        parent: Ino,
        /// Position of the next name in it.
        next_cookie: u64,
        /// Names in it.
        entries: EntryCount,
    },
    /// A symbolic link.
    Symlink {
        /// The path that it names.
        target: Vec<u8>,
    },
    /// A pipe, a socket or a device.
    Special {
        /// Which of them.
        kind: FileKind,
        /// Number of the device; 0 for others.
        device: u64,
    },
}

/// The record of one inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Permission bits with set-id and sticky bits (`07777`).
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Generation of the inode number.
    pub generation: u32,
    /// It has an access ACL that says more than the mode.
    pub has_access_acl: bool,
    /// It has a default ACL.
    pub has_default_acl: bool,
    /// It certainly has no extended attribute, so that none need be looked for when it is deleted.
    pub lacks_xattrs: bool,
    /// Bits as `FS_IOC_SETFLAGS` has them.
    pub attribute_flags: u32,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of the content or of the attributes.
    pub changed: Timestamp,
    /// When it was made.
    pub born: Timestamp,
    /// What depends on its type.
    pub body: InodeBody,
}

impl InodeBody {
    /// The type.
    pub fn kind(&self) -> FileKind {
        match self {
            Self::Regular(_) => FileKind::Regular,
            Self::Directory { .. } => FileKind::Directory,
            Self::Symlink { .. } => FileKind::Symlink,
            Self::Special { kind, .. } => *kind,
        }
    }
}

impl InodeRecord {
    fn version(&self) -> u8 {
        match &self.body {
            _ if self.attribute_flags != 0 => VERSION_FACTS,
            InodeBody::Regular(file) if file.objects.iter().any(ObjectEntry::has_facts) => VERSION_FACTS,
            InodeBody::Regular(file) if file.is_inline() => VERSION_INLINE,
            _ => VERSION,
        }
    }

    /// Appends the record to `bytes`.
    pub fn encode_into(&self, bytes: &mut Vec<u8>) {
        let version = self.version();
        Writer::append(bytes, version, |writer| {
            self.write(writer);
            if version == VERSION_FACTS {
                self.write_facts(writer);
            }
        });
    }

    fn write_facts(&self, writer: &mut Writer) {
        writer.u32(self.attribute_flags);
        let InodeBody::Regular(file) = &self.body else { return };
        for entry in &file.objects {
            writer.u64(entry.allocated_blocks.unwrap_or(ALLOCATION_UNKNOWN));
            writer.u8(if entry.covers { COVERS } else { 0 });
        }
    }

    fn read_facts(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        self.attribute_flags = reader.u32()?;
        if self.attribute_flags & !ATTRIBUTE_FLAGS_KNOWN != 0 {
            return Err(reader.invalid("it has unknown attribute flags"));
        }
        let InodeBody::Regular(file) = &mut self.body else { return Ok(()) };
        for entry in &mut file.objects {
            entry.allocated_blocks = match reader.u64()? {
                ALLOCATION_UNKNOWN => None,
                blocks @ ..=ALLOCATED_BLOCKS_MAX => Some(blocks),
                _ => return Err(reader.invalid("an object takes more than there can be")),
            };
            let flags = reader.u8()?;
            if flags & !COVERS != 0 {
                return Err(reader.invalid("an object has unknown flags"));
            }
            entry.covers = flags & COVERS != 0;
        }
        Ok(())
    }

    fn write(&self, writer: &mut Writer) {
        writer.u32(self.body.kind().type_bits() | self.permissions);
        writer.u32(self.uid).u32(self.gid).u32(self.links).u32(self.generation);
        let flags = [(self.has_access_acl, HAS_ACCESS_ACL), (self.has_default_acl, HAS_DEFAULT_ACL)];
        let flags = flags.into_iter().chain([(self.lacks_xattrs, LACKS_XATTRS)]);
        writer.u8(flags.fold(0, |all, (is_set, flag)| if is_set { all | flag } else { all }));
        for time in [self.accessed, self.modified, self.changed, self.born] {
            writer.i64(time.seconds).u32(time.nanoseconds);
        }
        match &self.body {
            InodeBody::Regular(file) => encode_file(writer, file),
            InodeBody::Directory { parent, next_cookie, entries } => {
                writer.u64(parent.0).u64(*next_cookie).u64(entries.to_number());
            }
            InodeBody::Symlink { target } => {
                writer.bytes(target);
            }
            InodeBody::Special { device, .. } => {
                writer.u64(*device);
            }
        }
    }

    /// Reads the record of an inode and checks its invariants.
    pub fn decode(ino: Ino, record: &[u8]) -> Result<Self, Error> {
        let subject = format!("inode {ino}");
        let mut reader = Reader::new(&subject, record, VERSION_FACTS)?;
        let mode = reader.u32()?;
        let kind = FileKind::from_type_bits(mode).ok_or_else(|| reader.invalid("its file type is unknown"))?;
        let (uid, gid, links, generation) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let flags = reader.u8()?;
        if flags & !(HAS_ACCESS_ACL | HAS_DEFAULT_ACL | LACKS_XATTRS) != 0 {
            return Err(reader.invalid("it has unknown flags"));
        }
        let accessed = decode_time(&mut reader)?;
        let modified = decode_time(&mut reader)?;
        let changed = decode_time(&mut reader)?;
        let born = decode_time(&mut reader)?;
        let body = match kind {
            FileKind::Regular => InodeBody::Regular(decode_file(&mut reader)?),
            FileKind::Directory => {
                let (parent, next_cookie) = (Ino(reader.u64()?), reader.u64()?);
                InodeBody::Directory { parent, next_cookie, entries: EntryCount::from_number(reader.u64()?) }
            }
            FileKind::Symlink => InodeBody::Symlink { target: reader.bytes()? },
            kind => InodeBody::Special { kind, device: reader.u64()? },
        };
        let mut decoded = Self {
            permissions: mode & 0o7777,
            uid,
            gid,
            links,
            generation,
            has_access_acl: flags & HAS_ACCESS_ACL != 0,
            has_default_acl: flags & HAS_DEFAULT_ACL != 0,
            lacks_xattrs: flags & LACKS_XATTRS != 0,
            attribute_flags: 0,
            accessed,
            modified,
            changed,
            born,
            body,
        };
        if record.first() == Some(&VERSION_FACTS) {
            decoded.read_facts(&mut reader)?;
        }
        if record.first() != Some(&decoded.version()) {
            return Err(reader.invalid("its version is not that of its content"));
        }
        reader.finish()?;
        Ok(decoded)
    }
}

impl FileRecord {
    /// Whether the bytes are in a `b` record.
    pub fn is_inline(&self) -> bool {
        self.objects.is_empty() && self.size_floor > 0
    }
}

fn decode_time(reader: &mut Reader<'_>) -> Result<Timestamp, Error> {
    let (seconds, nanoseconds) = (reader.i64()?, reader.u32()?);
    if nanoseconds >= 1_000_000_000 {
        return Err(reader.invalid("a time has more than a second of nanoseconds"));
    }
    Ok(Timestamp::new(seconds, nanoseconds))
}

fn encode_file(writer: &mut Writer, file: &FileRecord) {
    writer.u64(file.size_floor).u64(file.extenders);
    writer.u8(file.home.map_or(u8::MAX, |slot| slot));
    writer.u8(u8::try_from(file.objects.len()).expect("a file has one object a tier at the most"));
    for entry in &file.objects {
        writer.u16(entry.tier.0).u64(entry.object.0).u8(match entry.role {
            ObjectRole::Owner => 1,
        });
        writer.u32(entry.generation).u16(entry.bucket.0);
    }
    writer.u32(file.error_sequence);
    writer.u32(u32::try_from(file.damaged.len()).expect("damaged ranges are coalesced"));
    for (start, end) in &file.damaged {
        writer.u64(*start).u64(*end);
    }
}

fn decode_file(reader: &mut Reader<'_>) -> Result<FileRecord, Error> {
    let (size_floor, extenders) = (reader.u64()?, reader.u64()?);
    if size_floor > FILE_SIZE_MAX {
        return Err(reader.invalid("its size is beyond the largest file"));
    }
    let home = match reader.u8()? {
        u8::MAX => None,
        slot => Some(slot),
    };
    let count = reader.u8()?;
    let mut objects = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (tier, object) = (TierId(reader.u16()?), ObjectId(reader.u64()?));
        let role = match reader.u8()? {
            1 => ObjectRole::Owner,
            other => return Err(reader.invalid(format!("an object has the unknown role {other}"))),
        };
        let (generation, bucket) = (reader.u32()?, Bucket(reader.u16()?));
        if bucket.0 >= BUCKETS || tier.0 >= TIERS_MAX {
            return Err(reader.invalid("an object lies nowhere"));
        }
        objects.push(ObjectEntry { role, generation, ..ObjectEntry::new(tier, object, bucket) });
    }
    let error_sequence = reader.u32()?;
    let mut damaged = Vec::new();
    for _ in 0..reader.u32()? {
        damaged.push((reader.u64()?, reader.u64()?));
    }
    let file = FileRecord { size_floor, extenders, home, objects, error_sequence, damaged };
    check_file(&file).map_err(|detail| reader.invalid(detail))?;
    Ok(file)
}

/// The named invariants of a file record; checked before every commit and after every read.
pub fn check_file(file: &FileRecord) -> Result<(), &'static str> {
    if file.home.is_some_and(|slot| usize::from(slot) >= file.objects.len()) {
        return Err("its home is not among its objects");
    }
    if file.is_inline() && file.size_floor > INLINE_SIZE_LIMIT {
        return Err("it has no object and is too long to be inline");
    }
    let mut tiers = 0_u64;
    for entry in &file.objects {
        let bit = 1_u64 << entry.tier.0;
        if tiers & bit != 0 {
            return Err("two of its objects lie on one tier");
        }
        tiers |= bit;
    }
    if file.extenders & !tiers != 0 {
        return Err("a tier without an object of it extends it");
    }
    if file.damaged.iter().any(|(start, end)| start >= end) {
        return Err("a damaged range is empty");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{ATTRIBUTE_APPEND_ONLY, ATTRIBUTE_IMMUTABLE};

    /// Records as each version wrote them; kept for ever.
    const FIXTURE_REGULAR: &[u8] = include_bytes!("../../tests/fixtures/inode-regular-v1.bin");
    const FIXTURE_DIRECTORY: &[u8] = include_bytes!("../../tests/fixtures/inode-directory-v1.bin");
    const FIXTURE_INLINE: &[u8] = include_bytes!("../../tests/fixtures/inode-inline-v2.bin");
    const FIXTURE_REGULAR_FACTS: &[u8] = include_bytes!("../../tests/fixtures/inode-regular-v3.bin");
    const FIXTURE_INLINE_FLAGS: &[u8] = include_bytes!("../../tests/fixtures/inode-inline-v3.bin");

    fn encoded(record: &InodeRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode_into(&mut bytes);
        bytes
    }

    fn regular() -> InodeRecord {
        let time = |seconds| Timestamp::new(seconds, 999_999_999);
        InodeRecord {
            permissions: 0o4755,
            uid: 1000,
            gid: 100,
            links: 2,
            generation: 1,
            has_access_acl: true,
            has_default_acl: false,
            lacks_xattrs: false,
            attribute_flags: 0,
            accessed: time(1),
            modified: time(-2),
            changed: time(3),
            born: time(4),
            body: InodeBody::Regular(FileRecord {
                size_floor: 1 << 40,
                extenders: 0b10,
                home: Some(0),
                objects: vec![
                    ObjectEntry::new(TierId(0), ObjectId(77), Bucket(4095)),
                    ObjectEntry { generation: 2, ..ObjectEntry::new(TierId(1), ObjectId(78), Bucket(0)) },
                ],
                error_sequence: 3,
                damaged: vec![(4096, 8192)],
            }),
        }
    }

    fn inline() -> InodeRecord {
        let file = FileRecord { size_floor: 4096, error_sequence: 3, ..FileRecord::default() };
        InodeRecord { body: InodeBody::Regular(file), ..regular() }
    }

    /// Facts of the first object, and none of the second.
    fn regular_facts() -> InodeRecord {
        let mut record = InodeRecord { attribute_flags: ATTRIBUTE_IMMUTABLE, ..regular() };
        let InodeBody::Regular(file) = &mut record.body else { unreachable!("the record is of a regular file") };
        file.objects[0].allocated_blocks = Some(2048);
        file.objects[0].covers = true;
        record
    }

    fn inline_flags() -> InodeRecord {
        InodeRecord { attribute_flags: ATTRIBUTE_APPEND_ONLY, ..inline() }
    }

    fn directory() -> InodeRecord {
        InodeRecord {
            permissions: 0o1777,
            body: InodeBody::Directory { parent: Ino(1), next_cookie: 9, entries: EntryCount::Exact(5) },
            ..regular()
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let bare = InodeRecord { has_access_acl: false, lacks_xattrs: true, ..regular() };
        let flagged = InodeRecord { attribute_flags: ATTRIBUTE_FLAGS_KNOWN, ..directory() };
        for record in [regular(), directory(), inline(), bare, regular_facts(), inline_flags(), flagged] {
            assert_eq!(InodeRecord::decode(Ino(5), &encoded(&record)).unwrap(), record);
        }
    }

    #[test]
    fn records_of_released_versions_are_read_for_ever() {
        assert_eq!(InodeRecord::decode(Ino(5), FIXTURE_REGULAR).unwrap(), regular());
        assert_eq!(InodeRecord::decode(Ino(5), FIXTURE_DIRECTORY).unwrap(), directory());
        assert_eq!(InodeRecord::decode(Ino(5), FIXTURE_INLINE).unwrap(), inline());
        assert_eq!(InodeRecord::decode(Ino(5), FIXTURE_REGULAR_FACTS).unwrap(), regular_facts());
        assert_eq!(InodeRecord::decode(Ino(5), FIXTURE_INLINE_FLAGS).unwrap(), inline_flags());
    }

    #[test]
    fn a_record_without_the_fields_of_version_3_is_written_as_before() {
        for (record, fixture) in
            [(regular(), FIXTURE_REGULAR), (directory(), FIXTURE_DIRECTORY), (inline(), FIXTURE_INLINE)]
        {
            assert_eq!(encoded(&record), fixture);
        }
        let of_one = |change: fn(&mut ObjectEntry)| {
            let mut record = regular();
            let InodeBody::Regular(file) = &mut record.body else { unreachable!("the record is of a regular file") };
            change(&mut file.objects[1]);
            encoded(&record)[0]
        };
        assert_eq!((of_one(|_| {}), of_one(|entry| entry.allocated_blocks = Some(0))), (VERSION, VERSION_FACTS));
        assert_eq!(of_one(|entry| entry.covers = true), VERSION_FACTS);
    }

    /// A record of version 3 with other bytes at its end, and a checksum that fits.
    fn with_end(record: &InodeRecord, end: &[u8]) -> Vec<u8> {
        let mut bytes = encoded(record);
        bytes.truncate(bytes.len() - 4 - end.len());
        bytes.extend_from_slice(end);
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    #[test]
    fn what_version_3_does_not_know_is_refused() {
        let detail = |bytes: &[u8]| InodeRecord::decode(Ino(5), bytes).unwrap_err().to_string();
        let flagged = InodeRecord { attribute_flags: 0x10, ..directory() };
        assert_eq!(InodeRecord::decode(Ino(5), &with_end(&flagged, &[0x80, 0, 0, 0])).unwrap().attribute_flags, 0x80);
        assert!(detail(&with_end(&flagged, &[0x11, 0, 0, 0])).contains("unknown attribute flags"));
        assert!(detail(&with_end(&flagged, &[0, 0, 0, 0])).contains("its version is not that of its content"));
        assert!(detail(&with_end(&regular_facts(), &[2])).contains("an object has unknown flags"));
        let blocks = |blocks: u64| [blocks.to_le_bytes().as_slice(), &[0]].concat();
        assert!(InodeRecord::decode(Ino(5), &with_end(&regular_facts(), &blocks(ALLOCATED_BLOCKS_MAX))).is_ok());
        let beyond = with_end(&regular_facts(), &blocks(ALLOCATED_BLOCKS_MAX + 1));
        assert!(detail(&beyond).contains("takes more than there can be"));
    }

    #[test]
    fn no_damaged_record_is_read_and_none_panics() {
        for good in [encoded(&regular()), encoded(&regular_facts()), encoded(&inline_flags())] {
            for position in 0..good.len() {
                for bit in 0..8 {
                    let mut bad = good.clone();
                    bad[position] ^= 1 << bit;
                    assert!(InodeRecord::decode(Ino(5), &bad).is_err(), "bit {bit} of byte {position}");
                }
                assert!(InodeRecord::decode(Ino(5), &good[..position]).is_err());
            }
        }
    }

    #[test]
    fn a_file_that_breaks_an_invariant_is_refused() {
        let InodeBody::Regular(mut file) = regular().body else { unreachable!("the record is of a regular file") };
        assert_eq!(check_file(&file), Ok(()));
        file.extenders = 0b100;
        assert!(check_file(&file).is_err());
        file.extenders = 0;
        file.home = Some(2);
        assert!(check_file(&file).is_err());
        let inline = |size_floor| FileRecord { size_floor, ..FileRecord::default() };
        assert_eq!(check_file(&inline(INLINE_SIZE_LIMIT)), Ok(()));
        assert!(check_file(&inline(INLINE_SIZE_LIMIT + 1)).is_err());
    }
}
