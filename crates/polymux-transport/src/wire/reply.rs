//! Answers as bytes.

use std::time::Duration;

use polymux_types::{Errno, Timestamp};

use super::bytes::Writer;

/// Length of the header of each answer.
const ANSWER_HEADER_LENGTH: usize = 16;

/// The header of an answer with a body of this length.
pub(crate) fn answer_header(unique: u64, outcome: Result<(), Errno>, body_length: usize) -> [u8; ANSWER_HEADER_LENGTH] {
    let length =
        u32::try_from(ANSWER_HEADER_LENGTH + body_length).expect("an answer is no longer than a request allows");
    Writer::new().u32(length).i32(outcome.map_or_else(|errno| -errno.raw(), |()| 0)).u64(unique).finish()
}

/// Bytes of a notification that an inode changed: its number, and where its data did and how much of it.
const EXPIRY_LENGTH: usize = ANSWER_HEADER_LENGTH + 24;
/// `FUSE_NOTIFY_INVAL_INODE`, where answers have their error.
const EXPIRE_INODE: i32 = 2;

/// The notification that pages of an inode are outdated, all of them: those that were changed are written first.
pub(crate) fn outdated_pages(node: u64) -> [u8; EXPIRY_LENGTH] {
    let length = u32::try_from(EXPIRY_LENGTH).expect("it is short");
    // A length of 0 is the rest of the file.
    Writer::new().u32(length).i32(EXPIRE_INODE).u64(0).u64(node).i64(0).i64(0).finish()
}

/// The notification that attributes of an inode are outdated. No pages go: the offset is negative.
pub(crate) fn expiry(node: u64) -> [u8; EXPIRY_LENGTH] {
    let length = u32::try_from(EXPIRY_LENGTH).expect("it is short");
    // No request is answered: its number is 0.
    Writer::new().u32(length).i32(EXPIRE_INODE).u64(0).u64(node).i64(-1).i64(0).finish()
}

/// `FUSE_NOTIFY_RESEND`, where answers have their error.
const RESEND: i32 = 7;

/// The notification that requests which were read and not answered are to be sent again (Linux 6.9).
pub(crate) fn resend() -> [u8; ANSWER_HEADER_LENGTH] {
    let length = u32::try_from(ANSWER_HEADER_LENGTH).expect("it is short");
    Writer::new().u32(length).i32(RESEND).u64(0).finish()
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the data.
    pub modified: Timestamp,
    /// Last change of the attributes.
    pub changed: Timestamp,
    /// Creation; only [`StatxReply`] carries it.
    pub born: Timestamp,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number in the kernel's encoding.
    pub device: u32,
    /// Preferred size of I/O.
    pub block_size: u32,
}

const ATTR_LENGTH: usize = 88;

impl Attr {
    fn put<const N: usize>(&self, writer: Writer<N>) -> Writer<N> {
        writer
            .u64(self.ino)
            .u64(self.size)
            .u64(self.blocks)
            .i64(self.accessed.seconds)
            .i64(self.modified.seconds)
            .i64(self.changed.seconds)
            .u32(self.accessed.nanoseconds)
            .u32(self.modified.nanoseconds)
            .u32(self.changed.nanoseconds)
            .u32(self.mode)
            .u32(self.links)
            .u32(self.uid)
            .u32(self.gid)
            .u32(self.device)
            .u32(self.block_size)
            // No submount, no DAX.
            .u32(0)
    }
}

/// A name and the inode that it leads to; inode 0 for a name that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryReply {
    /// Generation of the inode.
    pub generation: u64,
    /// How long the name may be kept.
    pub keep_name: Duration,
    /// How long the attributes may be kept.
    pub keep_attr: Duration,
    /// The inode.
    pub attr: Attr,
}

impl EntryReply {
    pub(super) const LENGTH: usize = 40 + ATTR_LENGTH;

    pub(super) fn put<const N: usize>(&self, writer: Writer<N>) -> Writer<N> {
        let writer = writer
            .u64(self.attr.ino)
            .u64(self.generation)
            .u64(self.keep_name.as_secs())
            .u64(self.keep_attr.as_secs())
            .u32(self.keep_name.subsec_nanos())
            .u32(self.keep_attr.subsec_nanos());
        self.attr.put(writer)
    }

    /// The bytes of the answer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        self.put(Writer::new()).finish()
    }
}

/// Attributes and how long they may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    /// How long the attributes may be kept.
    pub keep_attr: Duration,
    /// The attributes.
    pub attr: Attr,
}

impl AttrReply {
    /// The bytes of the answer.
    #[must_use]
    pub fn encode(&self) -> [u8; 16 + ATTR_LENGTH] {
        let writer = Writer::new().u64(self.keep_attr.as_secs()).u32(self.keep_attr.subsec_nanos()).skip(4);
        self.attr.put(writer).finish()
    }
}

/// Attributes with the birth time, for `STATX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatxReply {
    /// How long the attributes may be kept.
    pub keep_attr: Duration,
    /// The attributes.
    pub attr: Attr,
}

impl StatxReply {
    /// All that `stat(2)` knows, and the birth time.
    const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

    /// The bytes of the answer.
    #[must_use]
    pub fn encode(&self) -> [u8; 288] {
        let attr = &self.attr;
        let time = |writer: Writer<288>, time: Timestamp| writer.i64(time.seconds).u32(time.nanoseconds).skip(4);
        let writer = Writer::new()
            .u64(self.keep_attr.as_secs())
            .u32(self.keep_attr.subsec_nanos())
            .skip(20)
            .u32(Self::MASK)
            .u32(attr.block_size)
            .skip(8)
            .u32(attr.links)
            .u32(attr.uid)
            .u32(attr.gid)
            .u16(u16::try_from(attr.mode & 0xffff).expect("sixteen bits"))
            .skip(2)
            .u64(attr.ino)
            .u64(attr.size)
            .u64(attr.blocks)
            .skip(8);
        let times = [attr.accessed, attr.born, attr.changed, attr.modified];
        times.into_iter().fold(writer, time).u32(major_of(attr.device)).u32(minor_of(attr.device)).finish()
    }
}

/// The parts of a device number in the kernel's encoding (`new_decode_dev`).
fn major_of(device: u32) -> u32 {
    (device & 0xf_ff00) >> 8
}

fn minor_of(device: u32) -> u32 {
    (device & 0xff) | ((device >> 12) & 0xf_ff00)
}

/// How the kernel treats an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Nothing is cached.
    pub const DIRECT_IO: Self = Self(1 << 0);
    /// Cached pages stay.
    pub const KEEP_CACHE: Self = Self(1 << 1);
    /// No `FLUSH` comes when a descriptor is closed.
    pub const NO_FLUSH: Self = Self(1 << 5);
    /// Of a description without the page cache: writes within the file come side by side.
    pub const PARALLEL_DIRECT_WRITES: Self = Self(1 << 6);
    /// The kernel uses the object with the number in [`OpenReply::backing`] itself.
    pub const PASSTHROUGH: Self = Self(1 << 7);

    /// These and others.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenReply {
    /// The handle by which the kernel refers to it.
    pub handle: u64,
    /// How it is treated.
    pub flags: OpenFlags,
    /// Number of the object that is passed through, else 0.
    pub backing: u32,
}

impl OpenReply {
    const LENGTH: usize = 16;

    /// One that goes through the file system.
    #[must_use]
    pub const fn new(handle: u64, flags: OpenFlags) -> Self {
        Self { handle, flags, backing: 0 }
    }

    fn put<const N: usize>(&self, writer: Writer<N>) -> Writer<N> {
        writer.u64(self.handle).u32(self.flags.0).u32(self.backing)
    }

    /// The bytes of the answer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        self.put(Writer::new()).finish()
    }
}

/// The answer to a request that makes and opens a file.
#[must_use]
pub fn created(entry: &EntryReply, open: &OpenReply) -> [u8; EntryReply::LENGTH + OpenReply::LENGTH] {
    open.put(entry.put(Writer::new())).finish()
}

/// The answer to a write of so many bytes, also to a copy that is answered in 32 bits.
#[must_use]
pub fn written(count: u32) -> [u8; 8] {
    Writer::new().u32(count).finish()
}

/// The answer to a copy that is answered in 64 bits.
#[must_use]
pub fn copied(count: u64) -> [u8; 8] {
    Writer::new().u64(count).finish()
}

/// The answer to a search for data or a hole.
#[must_use]
pub fn seek_result(offset: u64) -> [u8; 8] {
    Writer::new().u64(offset).finish()
}

/// The answer to a command that succeeded, with these bytes.
#[must_use]
pub fn commanded(data: &[u8]) -> Vec<u8> {
    let result: [u8; 16] = Writer::new().i32(0).u32(0).u32(0).u32(0).finish();
    [&result, data].concat()
}

/// The answer to a question for the length of a value.
#[must_use]
pub fn xattr_size(size: u32) -> [u8; 8] {
    Writer::new().u32(size).finish()
}

/// Space on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Blocks there are, are free, and can be written.
    pub blocks: [u64; 3],
    /// Files there can be, and that can still be made.
    pub files: [u64; 2],
    /// Bytes of a block.
    pub block_size: u32,
    /// Longest name.
    pub name_length_max: u32,
}

impl Space {
    /// The bytes of the answer.
    #[must_use]
    pub fn encode(&self) -> [u8; 80] {
        let numbers = self.blocks.into_iter().chain(self.files);
        let writer = numbers.fold(Writer::new(), Writer::u64);
        writer.u32(self.block_size).u32(self.name_length_max).u32(self.block_size).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes::Reader;
    use super::*;

    #[test]
    fn times_before_1970_and_the_earliest_of_all_are_written_as_they_are() {
        let earliest = Timestamp::new(i64::MIN, 999_999_999);
        let attr = Attr { accessed: earliest, modified: Timestamp::new(-1, 5), ..Attr::default() };
        let bytes = AttrReply { keep_attr: Duration::ZERO, attr }.encode();
        let mut reader = Reader::new(&bytes[16 + 24..]);
        assert_eq!((reader.i64(), reader.i64()), (Ok(i64::MIN), Ok(-1)));
        let mut reader = Reader::new(&bytes[16 + 48..]);
        assert_eq!((reader.u32(), reader.u32()), (Ok(999_999_999), Ok(5)));
    }

    #[test]
    fn a_device_number_has_the_parts_that_it_was_made_of() {
        // 259:70000 in the kernel's encoding.
        let encoded = (70_000 & 0xff) | (259 << 8) | ((70_000 & 0xf_ff00) << 12);
        assert_eq!((major_of(encoded), minor_of(encoded)), (259, 70_000));
    }

    #[test]
    fn the_header_of_an_answer_carries_the_error_negated() {
        let bytes = answer_header(77, Err(Errno::ENOENT), 0);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u32(), reader.i32(), reader.u64()), (Ok(16), Ok(-libc::ENOENT), Ok(77)));
    }

    #[test]
    fn the_birth_time_lies_between_access_and_change_and_the_mask_says_so() {
        let attr = Attr { born: Timestamp::new(7, 9), changed: Timestamp::new(8, 0), ..Attr::default() };
        let bytes = StatxReply { keep_attr: Duration::ZERO, attr }.encode();
        let mut reader = Reader::new(&bytes[32..]);
        assert_eq!(reader.u32().map(|mask| mask & libc::STATX_BTIME), Ok(libc::STATX_BTIME));
        let mut reader = Reader::new(&bytes[32 + 64 + 16..]);
        assert_eq!((reader.i64(), reader.u32()), (Ok(7), Ok(9)));
    }
}
