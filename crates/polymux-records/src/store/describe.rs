//! Human-readable records: the fields of a key and of its value.
//!
//! Invariants:
//! * Every kind of record of the formats is described, and nothing else is: a key of no known kind is said to be one.
//! * A record that does not verify is described as far as its key goes, with the reason. Nothing is guessed.
//! * Bytes that people chose (names, targets, values) are printed so that they cannot act on a terminal.

use polymux_tier::measure::Point;
use polymux_types::{Block, Bucket, Ino, TierId, Timestamp};

use super::directory_format::{Dirent, EntryCount, PositionEntry};
use super::disowned_format::{DisownedKind, DisownedRecord};
use super::extent_format::ExtentRecord;
use super::frame::Reader;
use super::heat_format::{ClockRecord, HeatNode, HeatRecord};
use super::inode_format::{FileRecord, InodeBody, InodeRecord, ObjectEntry};
use super::keys;
use super::record_kinds::{KnownRecord, kind_of};
use super::stamp_mark_format::StampMark;
use super::volume_format::{EpochRecord, Shutdown, TierRecord, TierStanding, VolumeRecord};
use crate::attributes::{ATTRIBUTE_APPEND_ONLY, ATTRIBUTE_IMMUTABLE, ATTRIBUTE_NO_ATIME, ATTRIBUTE_NO_DUMP, FileKind};
use crate::blockmap::Owner;
use crate::error::{Error, Result};
use crate::parts::BootId;
use crate::report::{LiveBandwidth, MeasuredProfile, TierProfile};

/// Longest value of which every byte is shown.
const SHOWN_BYTES_MAX: usize = 64;

/// The content of a field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A number, or a flag (0 or 1).
    Number(u64),
    /// Anything else, ready to print.
    Text(String),
    /// Several of a kind, each with fields of its own.
    List(Vec<Vec<Field>>),
}

/// A named part of a key or of a value.
pub type Field = (&'static str, FieldValue);

/// A record for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Letter of its kind; `None` where the key is of no known kind.
    pub letter: Option<char>,
    /// The name of its kind.
    pub kind: &'static str,
    /// Inode that it belongs to.
    pub ino: Option<Ino>,
    /// Further fields of the key.
    pub key: Vec<Field>,
    /// Fields of the value; empty where it does not verify.
    pub value: Vec<Field>,
    /// Why it does not verify.
    pub problem: Option<String>,
}

/// Describes a key without its value.
#[must_use]
pub fn describe_key(key: &[u8]) -> Description {
    let malformed = |kind, letter, problem: &str| Description {
        letter,
        kind,
        ino: None,
        key: vec![("bytes", bytes(key))],
        value: Vec::new(),
        problem: Some(problem.to_owned()),
    };
    let Some((snapshot, [letter, rest @ ..])) = key.split_first_chunk::<4>() else {
        return malformed("unknown", None, "the key is too short for one");
    };
    let letter = char::from(*letter);
    let Some(known) = kind_of(letter) else {
        return malformed("unknown", None, "the key is of no known kind");
    };
    let kind = known.name;
    if *snapshot != [0; 4] {
        return malformed(kind, Some(letter), "the key is of a snapshot, which this program does not know");
    }
    match (known.key_fields)(key, rest) {
        Some((ino, fields)) => {
            Description { letter: Some(letter), kind, ino, key: fields, value: Vec::new(), problem: None }
        }
        None => malformed(kind, Some(letter), "the key has a wrong length"),
    }
}

/// Describes a record.
#[must_use]
pub fn describe_record(key: &[u8], value: &[u8]) -> Description {
    let mut description = describe_key(key);
    if description.problem.is_some() {
        return description;
    }
    let letter = description.letter.expect("a key without a problem is of a known kind");
    let kind = kind_of(letter).expect("a letter that was described is of a known kind");
    let record = KnownRecord { ino: description.ino.unwrap_or(Ino(0)), key, value };
    match (kind.value_fields)(&record) {
        Ok(fields) => description.value = fields,
        Err(error) => description.problem = Some(error.to_string()),
    }
    description
}

/// Inode and further fields of a key; `None` where its length does not fit its kind.
pub(super) type KeyFields = Option<(Option<Ino>, Vec<Field>)>;

fn exactly(rest: &[u8], length: usize) -> Option<()> {
    (rest.len() == length).then_some(())
}

fn ino_in(rest: &[u8]) -> Option<Ino> {
    rest.first_chunk::<8>().map(|bytes| Ino(u64::from_be_bytes(*bytes)))
}

/// Of a kind that has one record.
pub(super) fn key_alone(_: &[u8], rest: &[u8]) -> KeyFields {
    exactly(rest, 0).map(|()| (None, Vec::new()))
}

pub(super) fn tier_of(key: &[u8], rest: &[u8]) -> KeyFields {
    exactly(rest, 2)?;
    Some((None, vec![("tier", number(u64::from(keys::tier_of_key(key)?.0)))]))
}

pub(super) fn numbers_of(_: &[u8], rest: &[u8]) -> KeyFields {
    let of = match rest {
        b"i" => "inodes",
        b"o" => "objects",
        b"m" => "first object of this mount",
        b"t" => "tiers",
        _ => return None,
    };
    Some((None, vec![("of", text(of))]))
}

pub(super) fn inode_of(_: &[u8], rest: &[u8]) -> KeyFields {
    exactly(rest, 8).map(|()| (ino_in(rest), Vec::new()))
}

pub(super) fn inode_and_name_of(_: &[u8], rest: &[u8]) -> KeyFields {
    Some((Some(ino_in(rest)?), vec![("name", bytes(&rest[8..]))]))
}

pub(super) fn position_of(key: &[u8], rest: &[u8]) -> KeyFields {
    exactly(rest, 16)?;
    Some((ino_in(rest), vec![("cookie", number(keys::cookie_of_position_key(key)?))]))
}

pub(super) fn heat_chunk_of(key: &[u8], rest: &[u8]) -> KeyFields {
    exactly(rest, 12)?;
    let (_, chunk) = keys::parts_of_heat_key(key)?;
    Some((ino_in(rest), vec![("chunk", number(u64::from(chunk)))]))
}

pub(super) fn end_block_of(key: &[u8], rest: &[u8]) -> KeyFields {
    exactly(rest, 16)?;
    Some((ino_in(rest), vec![("end_block", block(keys::end_block_of_key(key)?))]))
}

pub(super) fn parent_name_of(key: &[u8], rest: &[u8]) -> KeyFields {
    let (parent, name) = keys::parent_and_name_of_key(key)?;
    Some((ino_in(rest), vec![("parent", number(parent.0)), ("name", bytes(&name))]))
}

pub(super) fn disowned_of(key: &[u8], rest: &[u8]) -> KeyFields {
    exactly(rest, 18)?;
    let (tier, object, start) = keys::parts_of_disowned_key(key)?;
    let object = text(format!("{object:016x}"));
    Some((None, vec![("tier", number(u64::from(tier.0))), ("object", object), ("start", number(start))]))
}

/// Of a kind whose key says everything.
pub(super) fn nothing(record: &KnownRecord<'_>) -> Result<Vec<Field>> {
    match record.value.is_empty() {
        true => Ok(Vec::new()),
        false => Err(Error::corrupted("a record that is only a key", "it has a value")),
    }
}

pub(super) fn number_range(end: u64) -> Vec<Field> {
    vec![("end", number(end))]
}

pub(super) fn xattr(value: &[u8]) -> Vec<Field> {
    vec![("value", bytes(value))]
}

pub(super) fn inline(content: &[u8]) -> Vec<Field> {
    vec![("length", number(content.len() as u64)), ("content", bytes(content))]
}

pub(super) fn boot(boot: BootId) -> Vec<Field> {
    vec![("boot", text(format!("{:032x}", u128::from_be_bytes(boot.0))))]
}

/// The end of a number range.
pub fn decode_number(value: &[u8]) -> Result<u64> {
    let mut reader = Reader::new("a number range", value, 1)?;
    let end = reader.u64()?;
    reader.finish()?;
    Ok(end)
}

/// The bytes of a record that has nothing else, of any kind.
pub fn decode_bytes(subject: &str, value: &[u8]) -> Result<Vec<u8>> {
    let mut reader = Reader::new(subject, value, 1)?;
    let content = reader.bytes()?;
    reader.finish()?;
    Ok(content)
}

pub(super) fn stamp_mark(mark: StampMark) -> Vec<Field> {
    vec![("through", time(mark.through)), ("complete", number(u64::from(mark.is_complete)))]
}

fn number(value: u64) -> FieldValue {
    FieldValue::Number(value)
}

fn text(value: impl Into<String>) -> FieldValue {
    FieldValue::Text(value.into())
}

/// Text where the bytes are some, with everything escaped that could act on a terminal; the beginning where they are many.
fn bytes(value: &[u8]) -> FieldValue {
    if value.len() > SHOWN_BYTES_MAX && std::str::from_utf8(value).is_err() || value.len() > 4 * SHOWN_BYTES_MAX {
        let shown = value[..SHOWN_BYTES_MAX].escape_ascii();
        return text(format!("{shown}... ({} bytes)", value.len()));
    }
    match std::str::from_utf8(value) {
        Ok(name) => text(name.escape_debug().to_string()),
        Err(_) => text(value.escape_ascii().to_string()),
    }
}

/// A block number, or that there is no end.
fn block(value: Block) -> FieldValue {
    if value == Block::END { text("end of the file") } else { number(value.0) }
}

fn time(value: Timestamp) -> FieldValue {
    text(format!("{}.{:09}", value.seconds, value.nanoseconds))
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
        FileKind::CharacterDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

pub(super) fn volume(record: &VolumeRecord) -> Vec<Field> {
    let version = number(u64::from(record.format_version));
    vec![("format_version", version), ("id", text(record.id.to_string())), ("name", bytes(record.name.as_bytes()))]
}

pub(super) fn epoch(record: EpochRecord) -> Vec<Field> {
    let shutdown = match record.shutdown {
        Shutdown::Clean => "clean",
        Shutdown::Unclean => "in use, or unclean",
    };
    vec![
        ("epoch", number(record.epoch.0)),
        ("raising", number(u64::from(record.raising))),
        ("shutdown", text(shutdown)),
    ]
}

pub(super) fn tier(record: &TierRecord) -> Vec<Field> {
    let standing = match record.standing {
        TierStanding::InService => "in service",
        TierStanding::Draining => "draining",
        TierStanding::Joining => "joining",
        TierStanding::Leaving => "leaving",
        TierStanding::Forgotten => "forgotten",
    };
    vec![
        ("name", bytes(record.name.as_bytes())),
        ("instance", text(format!("{:016x}", record.instance))),
        ("epoch", number(record.epoch.0)),
        ("standing", text(standing)),
    ]
}

pub(super) fn dirent(record: Dirent) -> Vec<Field> {
    vec![("ino", number(record.ino.0)), ("type", text(kind_name(record.kind))), ("cookie", number(record.cookie))]
}

pub(super) fn position(record: &PositionEntry) -> Vec<Field> {
    vec![("ino", number(record.ino.0)), ("type", text(kind_name(record.kind))), ("name", bytes(&record.name))]
}

pub(super) fn extent(record: ExtentRecord) -> Vec<Field> {
    let owner = match record.owner {
        Owner::Slot(slot) => text(format!("slot {slot}")),
        Owner::Hole => text("hole"),
    };
    vec![("start_block", number(record.start_block.0)), ("owner", owner)]
}

pub(super) fn disowned(record: DisownedRecord) -> Vec<Field> {
    let what = match record.kind {
        DisownedKind::Object => text("the whole object"),
        DisownedKind::Tail => text("everything from there on"),
        DisownedKind::Range { end } => text(format!("up to byte {end}")),
    };
    vec![("bucket", bucket(record.bucket)), ("what", what)]
}

fn bucket(bucket: Bucket) -> FieldValue {
    text(format!("{:03x}", bucket.0))
}

fn attribute_flag_names(flags: u32) -> Vec<&'static str> {
    let names = [
        (ATTRIBUTE_IMMUTABLE, "immutable"),
        (ATTRIBUTE_APPEND_ONLY, "append only"),
        (ATTRIBUTE_NO_DUMP, "no dump"),
        (ATTRIBUTE_NO_ATIME, "no access time"),
    ];
    names.into_iter().filter_map(|(flag, name)| (flags & flag != 0).then_some(name)).collect()
}

pub(super) fn inode(record: &InodeRecord) -> Vec<Field> {
    let flags = [
        (record.has_access_acl, "access ACL"),
        (record.has_default_acl, "default ACL"),
        (record.lacks_xattrs, "no extended attribute"),
    ];
    let flags: Vec<&str> = flags.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect();
    let mut fields = vec![
        ("type", text(kind_name(record.body.kind()))),
        ("permissions", text(format!("{:04o}", record.permissions))),
        ("uid", number(u64::from(record.uid))),
        ("gid", number(u64::from(record.gid))),
        ("links", number(u64::from(record.links))),
        ("generation", number(u64::from(record.generation))),
        ("flags", text(flags.join(", "))),
        ("attribute_flags", text(attribute_flag_names(record.attribute_flags).join(", "))),
        ("accessed", time(record.accessed)),
        ("modified", time(record.modified)),
        ("changed", time(record.changed)),
        ("born", time(record.born)),
    ];
    match &record.body {
        InodeBody::Regular(file) => fields.extend(regular(file)),
        InodeBody::Directory { parent, next_cookie, entries } => {
            let entries = match entries {
                EntryCount::Exact(count) => number(*count),
                EntryCount::Unknown => text("not counted"),
                EntryCount::Open => text("open: names came and went since"),
            };
            fields.extend([("parent", number(parent.0)), ("next_cookie", number(*next_cookie)), ("entries", entries)]);
        }
        InodeBody::Symlink { target } => fields.push(("target", bytes(target))),
        InodeBody::Special { device, .. } => fields.push(("device", number(*device))),
    }
    fields
}

fn regular(file: &FileRecord) -> Vec<Field> {
    let object = |(slot, entry): (usize, &ObjectEntry)| {
        vec![
            ("slot", number(slot as u64)),
            ("tier", number(u64::from(entry.tier.0))),
            ("object", text(format!("{:016x}", entry.object))),
            ("bucket", bucket(entry.bucket)),
            ("generation", number(u64::from(entry.generation))),
            ("allocated_blocks", entry.allocated_blocks.map_or_else(|| text("not known"), number)),
            ("covers", text(if entry.covers { "yes" } else { "not known" })),
        ]
    };
    let extenders: Vec<String> =
        (0..u64::BITS).filter(|bit| file.extenders >> bit & 1 != 0).map(|bit| bit.to_string()).collect();
    let damaged = file.damaged.iter().map(|(start, end)| vec![("start", number(*start)), ("end", number(*end))]);
    let content = if file.is_inline() { "inline" } else { "objects" };
    vec![
        ("size_floor", number(file.size_floor)),
        ("content", text(if file.size_floor == 0 && file.objects.is_empty() { "none" } else { content })),
        ("extenders", text(extenders.join(", "))),
        ("home_slot", file.home.map_or_else(|| text("none"), |slot| number(u64::from(slot)))),
        ("error_sequence", number(u64::from(file.error_sequence))),
        ("objects", FieldValue::List(file.objects.iter().enumerate().map(object).collect())),
        ("damaged", FieldValue::List(damaged.collect())),
    ]
}

pub(super) fn heat(record: &HeatRecord) -> Vec<Field> {
    let node = |node: &HeatNode| {
        vec![
            ("index", number(u64::from(node.index))),
            ("reads_256", number(u64::from(node.reads))),
            ("writes_256", number(u64::from(node.writes))),
            ("accessed", number(u64::from(node.accessed))),
            ("moved", number(u64::from(node.moved))),
            ("visits", number(u64::from(node.visits & 0x0f))),
            ("warm", number(u64::from(node.visits >> 6))),
            ("sequential_255", number(u64::from(node.sequential))),
            ("synced_255", number(u64::from(node.synced))),
        ]
    };
    vec![("nodes", FieldValue::List(record.nodes.iter().map(node).collect()))]
}

pub(super) fn clock(record: &ClockRecord) -> Vec<Field> {
    let tier = |(tier, bytes): &(TierId, u64)| vec![("tier", number(u64::from(tier.0))), ("bytes", number(*bytes))];
    let promoted = FieldValue::List(record.promoted.iter().map(tier).collect());
    vec![("seconds", number(record.seconds)), ("promoted", promoted)]
}

pub(super) fn profile(profile: &TierProfile) -> Vec<Field> {
    let mut fields = Vec::new();
    if let Some(MeasuredProfile { at, measurement }) = &profile.measured {
        let point = |point: &Point| {
            vec![
                ("direction", text(format!("{:?}", point.direction).to_lowercase())),
                ("pattern", text(format!("{:?}", point.pattern).to_lowercase())),
                ("request_bytes", number(u64::from(point.request_bytes))),
                ("in_flight", number(u64::from(point.in_flight))),
                ("requests", number(u64::from(point.requests))),
                ("bytes_per_second", number(point.bytes_per_second)),
                ("median_us", number(u64::from(point.median_us))),
                ("p99_us", number(u64::from(point.p99_us))),
            ]
        };
        fields.extend([
            ("measured", time(*at)),
            ("way", text(format!("{:?}", measurement.way).to_lowercase())),
            ("file_bytes", number(measurement.file_bytes)),
            ("elapsed_ms", number(u64::from(measurement.elapsed_ms))),
            ("caveats", text(measurement.caveats.words().join("; "))),
            ("points", FieldValue::List(measurement.points.iter().map(point).collect())),
        ]);
    }
    let live = |live: &LiveBandwidth| {
        vec![
            ("direction", text(format!("{:?}", live.direction).to_lowercase())),
            ("bytes_per_second", number(live.bytes_per_second)),
            ("busy_seconds", number(u64::from(live.busy_seconds))),
            ("at", time(live.at)),
        ]
    };
    fields.push(("live", FieldValue::List(profile.live.iter().map(live).collect())));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_types::ObjectId;

    fn field<'a>(fields: &'a [Field], name: &str) -> &'a FieldValue {
        &fields.iter().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("no field {name}")).1
    }

    #[test]
    fn keys_are_told_apart_and_wrong_ones_are_said_to_be_wrong() {
        let found = describe_key(&keys::parent_name(Ino(7), Ino(1), b"a\x1b[1m"));
        assert_eq!((found.letter, found.ino, found.problem.clone()), (Some('p'), Some(Ino(7)), None));
        assert_eq!(field(&found.key, "parent"), &FieldValue::Number(1));
        assert_eq!(field(&found.key, "name"), &FieldValue::Text("a\\u{1b}[1m".to_owned()));
        let found = describe_key(&keys::disowned(TierId(1), ObjectId(0xab), 4096));
        assert_eq!(field(&found.key, "object"), &FieldValue::Text("00000000000000ab".to_owned()));
        for wrong in [&b""[..], b"\0\0\0\0", b"\0\0\0\0z", b"\0\0\0\x01V", b"\0\0\0\0i\0", b"\0\0\0\0Vx"] {
            assert!(describe_key(wrong).problem.is_some(), "{wrong:?}");
        }
    }

    #[test]
    fn a_record_is_described_field_by_field_and_a_damaged_one_with_its_reason() {
        let mut value = Vec::new();
        Dirent { ino: Ino(9), kind: FileKind::Fifo, cookie: 16 }.encode(&mut value);
        let key = keys::dirent(Ino(1), b"pipe");
        let found = describe_record(&key, &value);
        assert_eq!(field(&found.value, "type"), &FieldValue::Text("named pipe".to_owned()));
        value[3] ^= 1;
        let found = describe_record(&key, &value);
        assert!(
            found.value.is_empty() && found.problem.as_ref().is_some_and(|why| why.contains("checksum")),
            "{found:?}"
        );
        assert!(describe_record(&keys::orphan(Ino(1)), b"x").problem.is_some());
    }

    #[test]
    fn long_values_are_cut() {
        let FieldValue::Text(shown) = bytes(&[0xff; 5000]) else { panic!("bytes are text") };
        assert!(shown.ends_with("(5000 bytes)") && shown.len() < 400, "{shown}");
    }
}
