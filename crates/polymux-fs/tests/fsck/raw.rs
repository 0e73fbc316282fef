//! Records by their bytes, as FORMAT.md gives them: the tests must not share a mistake with the code under test.

use polymux_types::Ino;

pub const INODE_LINKS: usize = 13;
pub const INODE_FLAGS: usize = 21;
/// Where the fields begin that depend on the type.
pub const INODE_BODY: usize = 70;
pub const FILE_FLOOR: usize = INODE_BODY;
pub const FILE_EXTENDERS: usize = INODE_BODY + 8;
pub const FILE_HOME: usize = INODE_BODY + 16;
pub const FILE_OBJECTS: usize = INODE_BODY + 17;
/// Bytes of an object in an inode record: tier, number, role, generation, bucket.
pub const OBJECT_LENGTH: usize = 2 + 8 + 1 + 4 + 2;
pub const DIRECTORY_PARENT: usize = INODE_BODY;
pub const DIRECTORY_COOKIE: usize = INODE_BODY + 8;
pub const DIRECTORY_ENTRIES: usize = INODE_BODY + 16;

pub const REGULAR: u32 = 0o100_000;
pub const DIRECTORY: u32 = 0o040_000;
pub const SYMLINK: u32 = 0o120_000;

/// A key of a kind, with numbers in the order of their bytes.
pub fn key(letter: u8, numbers: &[u64], name: &[u8]) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, letter];
    numbers.iter().for_each(|number| key.extend_from_slice(&number.to_be_bytes()));
    key.extend_from_slice(name);
    key
}

pub fn inode(ino: Ino) -> Vec<u8> {
    key(b'i', &[ino.0], &[])
}

pub fn dirent(parent: Ino, name: &str) -> Vec<u8> {
    key(b'd', &[parent.0], name.as_bytes())
}

pub fn position(parent: Ino, cookie: u64) -> Vec<u8> {
    key(b'c', &[parent.0, cookie], &[])
}

pub fn listed(ino: Ino, parent: Ino, name: &str) -> Vec<u8> {
    key(b'p', &[ino.0, parent.0], name.as_bytes())
}

pub fn tier(id: u16) -> Vec<u8> {
    key(b't', &[], &id.to_be_bytes())
}

pub fn disowned(tier: u16, object: u64, start: u64) -> Vec<u8> {
    let mut key = key(b'g', &[], &tier.to_be_bytes());
    key.extend_from_slice(&object.to_be_bytes());
    key.extend_from_slice(&start.to_be_bytes());
    key
}

/// A record: version, fields, checksum.
pub fn framed(version: u8, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![version];
    fields.iter().for_each(|field| bytes.extend_from_slice(field));
    seal(bytes)
}

/// Bytes with their checksum.
pub fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A record with some of its bytes replaced, and a checksum that fits.
pub fn edited(record: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut body = record[..record.len() - 4].to_vec();
    body[at..at + bytes.len()].copy_from_slice(bytes);
    seal(body)
}

pub fn number(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"))
}

pub fn dirent_value(ino: Ino, kind: u32, cookie: u64) -> Vec<u8> {
    framed(1, &[&ino.0.to_le_bytes(), &kind.to_le_bytes(), &cookie.to_le_bytes()])
}

pub fn position_value(ino: Ino, kind: u32, name: &str) -> Vec<u8> {
    let length = u32::try_from(name.len()).expect("a name is short").to_le_bytes();
    framed(1, &[&ino.0.to_le_bytes(), &kind.to_le_bytes(), &length, name.as_bytes()])
}

pub fn extent_value(start: u64, slot: u8) -> Vec<u8> {
    framed(1, &[&start.to_le_bytes(), &[slot, 0], &0_i64.to_le_bytes()])
}

/// A hole: an extent without an owner.
pub fn hole_value(start: u64) -> Vec<u8> {
    framed(1, &[&start.to_le_bytes(), &[0, 1], &0_i64.to_le_bytes()])
}

/// Kinds of pending frees: 1 the object, 2 its tail, 3 a range that ends at `end`.
pub fn disowned_value(bucket: u16, kind: u8, end: u64) -> Vec<u8> {
    framed(1, &[&bucket.to_le_bytes(), &[kind], &end.to_le_bytes()])
}

pub fn number_value(end: u64) -> Vec<u8> {
    framed(1, &[&end.to_le_bytes()])
}

/// Bytes with their length: extended attributes and inline data.
pub fn bytes_value(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("contents of the tests are short").to_le_bytes();
    framed(1, &[&length, content])
}
