//! Keys: big-endian, so that their bytewise order is the order of the numbers in them.
//!
//! Every key begins with a snapshot id (0 until there are snapshots) and a letter for the kind of record
//! (DESIGN section 5): `V` volume, `E` epoch, `t` tier, `n` number range, `i` inode, `d` name, `c` directory position,
//! `p` names of an inode, `x` extended attribute, `e` extent, `g` pending free, `o` orphan, `b` inline data, `h` heat,
//! `P` profile of a tier, `L` logical clock, `S` mark of descriptions, `s` renamed directory, `K` boot of a kernel that uses objects.

use polymux_types::{Block, Ino, ObjectId, TierId};
use smallvec::SmallVec;

const LIVE_SNAPSHOT: u32 = 0;

/// A key. Those with names of ordinary length are made on the stack: each operation makes half a dozen of them.
pub type Key = SmallVec<[u8; 64]>;

/// Kinds of records at which the store's tables are cut: each kind arrives mostly in the order of its keys, and kinds are
/// not mixed in one table then. Part of the format of a volume.
const PARTITIONED_KINDS: [u8; 7] = *b"cdeijpq";

/// The keys at which the tables of the metadata store are cut into partitions.
#[must_use]
pub fn store_boundaries() -> Vec<Vec<u8>> {
    PARTITIONED_KINDS.iter().map(|kind| key(*kind, &[]).into_vec()).collect()
}

/// A half-open range of keys.
pub type KeyRange = (Key, Key);

/// Number ranges (DESIGN section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// Inode numbers.
    Ino,
    /// Object numbers.
    Object,
    /// Not a range: the first object number of the present mount, below which every object is accounted for.
    ObjectMark,
    /// The first tier number that no tier ever had. Missing until a tier joins or leaves: then it is the one after the
    /// largest of the tier table.
    Tier,
}

fn key(kind: u8, parts: &[&[u8]]) -> Key {
    let mut bytes = Key::new();
    bytes.extend_from_slice(&LIVE_SNAPSHOT.to_be_bytes());
    bytes.push(kind);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// A key that begins with a number, as most do.
fn numbered(kind: u8, number: u64, rest: &[u8]) -> Key {
    let mut start = [0; 13];
    start[..4].copy_from_slice(&LIVE_SNAPSHOT.to_be_bytes());
    start[4] = kind;
    start[5..].copy_from_slice(&number.to_be_bytes());
    let mut bytes = Key::from_slice(&start);
    bytes.extend_from_slice(rest);
    bytes
}

/// All keys that begin with `prefix`.
fn prefix_range(prefix: Key) -> KeyRange {
    let mut end = prefix.clone();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            break;
        }
    }
    assert!(!end.is_empty(), "a prefix begins with a snapshot id below the maximum");
    (prefix, end)
}

/// Key of the volume record.
pub fn volume() -> Key {
    key(b'V', &[])
}

/// Key of the epoch record.
pub fn epoch() -> Key {
    key(b'E', &[])
}

/// Key of the record of a tier.
pub fn tier(id: TierId) -> Key {
    key(b't', &[&id.0.to_be_bytes()])
}

/// The tier number in a `t` or a `P` key.
pub fn tier_of_key(key: &[u8]) -> Option<TierId> {
    let number: [u8; 2] = key.get(5..)?.try_into().ok()?;
    Some(TierId(u16::from_be_bytes(number)))
}

/// All records of a kind, by its letter.
pub fn of_kind(letter: u8) -> KeyRange {
    prefix_range(key(letter, &[]))
}

/// All names in a directory.
pub fn dirents(parent: Ino) -> KeyRange {
    prefix_range(numbered(b'd', parent.0, &[]))
}

/// The name in a `d` key.
pub fn name_of_dirent_key(key: &[u8]) -> &[u8] {
    key.get(13..).unwrap_or_default()
}

/// All pending frees of an object.
pub fn disowned_of(tier: TierId, object: ObjectId) -> KeyRange {
    prefix_range(key(b'g', &[&tier.0.to_be_bytes(), &object.0.to_be_bytes()]))
}

/// All records of tiers.
pub fn tiers() -> KeyRange {
    prefix_range(key(b't', &[]))
}

/// Key of the record of a [`NumberKind`].
pub fn number_range(kind: NumberKind) -> Key {
    let letter = match kind {
        NumberKind::Ino => b'i',
        NumberKind::Object => b'o',
        NumberKind::ObjectMark => b'm',
        NumberKind::Tier => b't',
    };
    key(b'n', &[&[letter]])
}

/// Key of an inode record.
#[inline]
pub fn inode(ino: Ino) -> Key {
    numbered(b'i', ino.0, &[])
}

/// All inode records.
pub fn inodes() -> KeyRange {
    prefix_range(key(b'i', &[]))
}

/// The inode number in an inode key.
pub fn ino_of_inode_key(key: &[u8]) -> Option<Ino> {
    key.get(5..13)?.try_into().ok().map(|bytes| Ino(u64::from_be_bytes(bytes)))
}

/// Key of a name in a directory.
#[inline]
pub fn dirent(parent: Ino, name: &[u8]) -> Key {
    numbered(b'd', parent.0, name)
}

/// Key of a position in a directory.
#[inline]
pub fn position(parent: Ino, cookie: u64) -> Key {
    numbered(b'c', parent.0, &cookie.to_be_bytes())
}

/// Positions of a directory after a cookie.
pub fn positions_after(parent: Ino, after: u64) -> KeyRange {
    let (_, end) = prefix_range(numbered(b'c', parent.0, &[]));
    match after.checked_add(1) {
        Some(first) => (position(parent, first), end),
        None => (end.clone(), end),
    }
}

/// The cookie in a position key.
pub fn cookie_of_position_key(key: &[u8]) -> Option<u64> {
    key.get(13..21)?.try_into().ok().map(u64::from_be_bytes)
}

/// Key of a name in the list of the names of an inode.
#[inline]
pub fn parent_name(ino: Ino, parent: Ino, name: &[u8]) -> Key {
    let mut key = numbered(b'p', ino.0, &parent.0.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// All names of an inode.
pub fn parent_names(ino: Ino) -> KeyRange {
    prefix_range(numbered(b'p', ino.0, &[]))
}

/// Parent and name in a `p` key.
pub fn parent_and_name_of_key(key: &[u8]) -> Option<(Ino, Vec<u8>)> {
    let parent = key.get(13..21)?.try_into().ok().map(u64::from_be_bytes)?;
    Some((Ino(parent), key.get(21..)?.to_vec()))
}

/// Key of an extended attribute.
#[inline]
pub fn xattr(ino: Ino, name: &[u8]) -> Key {
    numbered(b'x', ino.0, name)
}

/// All extended attributes of an inode.
pub fn xattrs(ino: Ino) -> KeyRange {
    prefix_range(numbered(b'x', ino.0, &[]))
}

/// All extended attributes.
pub fn all_xattrs() -> KeyRange {
    prefix_range(key(b'x', &[]))
}

/// Inode and name in an `x` key.
pub(crate) fn parts_of_xattr_key(key: &[u8]) -> Option<(Ino, &[u8])> {
    let (ino, name) = key.get(5..)?.split_first_chunk()?;
    Some((Ino(u64::from_be_bytes(*ino)), name))
}

/// Name in an `x` key.
pub fn name_of_xattr_key(key: &[u8]) -> Option<Vec<u8>> {
    key.get(13..).map(<[u8]>::to_vec)
}

/// Key of the extent that ends at a block.
#[inline]
pub fn extent(ino: Ino, end_block: Block) -> Key {
    numbered(b'e', ino.0, &end_block.0.to_be_bytes())
}

/// All extents of a file.
pub fn extents(ino: Ino) -> KeyRange {
    prefix_range(numbered(b'e', ino.0, &[]))
}

/// The end block in an `e` key.
pub fn end_block_of_key(key: &[u8]) -> Option<Block> {
    key.get(13..21)?.try_into().ok().map(u64::from_be_bytes).map(Block)
}

/// Key of a pending free.
#[inline]
pub fn disowned(tier: TierId, object: ObjectId, start: u64) -> Key {
    key(b'g', &[&tier.0.to_be_bytes(), &object.0.to_be_bytes(), &start.to_be_bytes()])
}

/// All pending frees.
pub fn all_disowned() -> KeyRange {
    prefix_range(key(b'g', &[]))
}

/// Tier, object and first byte in a `g` key.
pub fn parts_of_disowned_key(key: &[u8]) -> Option<(TierId, ObjectId, u64)> {
    let tier = key.get(5..7)?.try_into().ok().map(u16::from_be_bytes)?;
    let object = key.get(7..15)?.try_into().ok().map(u64::from_be_bytes)?;
    let start = key.get(15..23)?.try_into().ok().map(u64::from_be_bytes)?;
    Some((TierId(tier), ObjectId(object), start))
}

/// Key of the mark of an inode without a name.
#[inline]
pub fn orphan(ino: Ino) -> Key {
    numbered(b'o', ino.0, &[])
}

/// Key of the content of an inline file.
#[inline]
pub fn inline(ino: Ino) -> Key {
    numbered(b'b', ino.0, &[])
}

/// Inline data of inodes after a number.
pub(crate) fn inline_after(after: Ino) -> KeyRange {
    let (_, end) = prefix_range(key(b'b', &[]));
    match after.0.checked_add(1) {
        Some(next) => (inline(Ino(next)), end),
        None => (end.clone(), end),
    }
}

/// All marks of inodes without a name.
pub fn orphans() -> KeyRange {
    prefix_range(key(b'o', &[]))
}

/// The inode number in an `o` key.
pub(crate) fn ino_of_orphan_key(key: &[u8]) -> Option<Ino> {
    ino_of_inode_key(key)
}

/// Heat of 64 range nodes of an inode.
pub fn heat(ino: Ino, chunk: u32) -> Key {
    numbered(b'h', ino.0, &chunk.to_be_bytes())
}

/// Heat records from a place on; `None`: all.
pub(crate) fn heat_from(from: Option<(Ino, u32)>) -> KeyRange {
    let (first, end) = prefix_range(key(b'h', &[]));
    (from.map_or(first, |(ino, chunk)| heat(ino, chunk)), end)
}

/// Inode and chunk in an `h` key.
pub(crate) fn parts_of_heat_key(key: &[u8]) -> Option<(Ino, u32)> {
    let chunk = key.get(13..17)?.try_into().ok().map(u32::from_be_bytes)?;
    Some((ino_of_inode_key(key)?, chunk))
}

/// How far descriptions of objects follow.
pub fn stamp_mark() -> Key {
    key(b'S', &[])
}

/// The profile of the device of a tier.
pub fn profile(id: TierId) -> Key {
    key(b'P', &[&id.0.to_be_bytes()])
}

/// The measured profiles of all tiers.
pub fn profiles() -> KeyRange {
    prefix_range(key(b'P', &[]))
}

/// The boot of a kernel that uses objects.
pub fn boot_with_objects() -> Key {
    key(b'K', &[])
}

/// A directory below which objects are to be described anew.
pub fn renamed_directory(ino: Ino) -> Key {
    numbered(b's', ino.0, &[])
}

/// All directories that were renamed and below which back-references are late.
pub fn renamed_directories() -> KeyRange {
    prefix_range(key(b's', &[]))
}

/// Key of the logical clock.
pub fn logical_clock() -> Key {
    key(b'L', &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_like_the_numbers_in_them() {
        assert!(extent(Ino(1), Block(255)) < extent(Ino(1), Block(256)));
        assert!(extent(Ino(1), Block::END) < extent(Ino(2), Block(0)));
        assert!(position(Ino(7), 2) < position(Ino(7), 10));
    }

    #[test]
    fn a_prefix_range_ends_right_before_the_next_prefix() {
        let (from, to) = xattrs(Ino(u64::MAX));
        assert!(from <= xattr(Ino(u64::MAX), b"") && xattr(Ino(u64::MAX), &[255; 255]) < to);
        assert!(to <= key(b'y', &[]));
    }

    #[test]
    fn what_a_key_was_made_of_can_be_read_back() {
        assert_eq!(ino_of_inode_key(&inode(Ino(9))), Some(Ino(9)));
        assert_eq!(parts_of_heat_key(&heat(Ino(2), 7)), Some((Ino(2), 7)));
        assert_eq!(parts_of_xattr_key(&xattr(Ino(3), b"user.x")), Some((Ino(3), b"user.x".as_slice())));
        assert_eq!(cookie_of_position_key(&position(Ino(9), 77)), Some(77));
        assert_eq!(parent_and_name_of_key(&parent_name(Ino(3), Ino(9), b"x")), Some((Ino(9), b"x".to_vec())));
        assert_eq!(parts_of_disowned_key(&disowned(TierId(2), ObjectId(5), 6)), Some((TierId(2), ObjectId(5), 6)));
    }
}
