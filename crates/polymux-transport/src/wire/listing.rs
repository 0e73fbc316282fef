//! Entries of a directory, as many as an answer may hold.

use super::bytes::Writer;
use super::reply::EntryReply;

/// Whether an answer has space left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The entry is in the answer.
    Left,
    /// It did not fit and is not.
    Full,
}

/// The answer to a request that lists a directory.
#[derive(Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    length_max: usize,
}

const ENTRY_LENGTH: usize = 24;
/// Entries begin at multiples of this.
const ALIGNMENT: usize = 8;

impl Listing {
    /// An empty one, of as many bytes as the request allows.
    #[must_use]
    pub fn new(size: u32) -> Self {
        let length_max = usize::try_from(size).unwrap_or(usize::MAX);
        Self { bytes: Vec::new(), length_max }
    }

    /// Adds an entry; `offset` is where a listing goes on after it, `mode` has the type bits of the file.
    ///
    /// # Panics
    /// The name is longer than the protocol can say.
    pub fn add(&mut self, ino: u64, offset: u64, mode: u32, name: &[u8]) -> Room {
        self.add_after(&[], ino, offset, mode, name)
    }

    /// Adds an entry with its attributes.
    ///
    /// # Panics
    /// The name is longer than the protocol can say.
    pub fn add_with_attr(&mut self, entry: &EntryReply, offset: u64, name: &[u8]) -> Room {
        self.add_after(&entry.encode(), entry.attr.ino, offset, entry.attr.mode, name)
    }

    /// Adds an entry to a listing with attributes whose own are not known: the kernel asks when it needs them.
    ///
    /// # Panics
    /// The name is longer than the protocol can say.
    pub fn add_without_attr(&mut self, ino: u64, offset: u64, mode: u32, name: &[u8]) -> Room {
        self.add_after(&EntryReply::default().encode(), ino, offset, mode, name)
    }

    fn add_after(&mut self, before: &[u8], ino: u64, offset: u64, mode: u32, name: &[u8]) -> Room {
        let length = (before.len() + ENTRY_LENGTH + name.len()).next_multiple_of(ALIGNMENT);
        if self.bytes.len() + length > self.length_max {
            return Room::Full;
        }
        let end = self.bytes.len() + length;
        let name_length = u32::try_from(name.len()).expect("a name is short");
        let kind = (mode & libc::S_IFMT) >> 12;
        let entry: [u8; ENTRY_LENGTH] = Writer::new().u64(ino).u64(offset).u32(name_length).u32(kind).finish();
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(&entry);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        Room::Left
    }

    /// Whether it has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of the answer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_at_multiples_of_eight_and_end_where_the_room_ends() {
        let mut listing = Listing::new(80);
        assert_eq!(listing.add(5, 1, libc::S_IFREG, b"a"), Room::Left);
        assert_eq!(listing.bytes().len(), 32);
        assert_eq!(listing.add(6, 2, libc::S_IFDIR, b"twelve bytes"), Room::Left);
        assert_eq!(listing.bytes().len(), 72);
        assert_eq!(listing.add(7, 3, libc::S_IFREG, b"b"), Room::Full);
        assert_eq!(listing.bytes().len(), 72);
    }
}
