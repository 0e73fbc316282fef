//! Records of names, version 1: `d<parent><name>` finds a name, `c<parent><cookie>` gives names a stable order.
//!
//! Invariant: the two exist in pairs with the same inode and type, and a cookie is never used twice in one directory.

use polymux_types::Ino;

use super::frame::{Reader, Writer};
use crate::attributes::FileKind;
use crate::error::Error;

const VERSION: u8 = 1;

/// The recorded number of names in a directory (docs/design/0009).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryCount {
    /// So many, as of this record, and every later change writes a record too.
    Exact(u64),
    /// Not counted. Otherwise as `Exact`.
    Unknown,
    /// Names came and went after this record, which was not written again: it tells neither their number nor the times of
    /// the directory.
    Open,
}

impl EntryCount {
    /// The encoded number. The numbers of the two others exceed the entry count of any directory.
    pub(crate) fn to_number(self) -> u64 {
        match self {
            Self::Exact(count) => {
                assert!(count < u64::MAX - 1, "a directory holds fewer names than there are cookies");
                count
            }
            Self::Unknown => u64::MAX - 1,
            Self::Open => u64::MAX,
        }
    }

    pub(crate) fn from_number(number: u64) -> Self {
        match number {
            u64::MAX => Self::Open,
            number if number == u64::MAX - 1 => Self::Unknown,
            count => Self::Exact(count),
        }
    }
}

/// Value of a `d` record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// The inode that has the name.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// Position of the name in listings; grows with each new name of the directory.
    pub cookie: u64,
}

/// Value of a `c` record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionEntry<Name = Vec<u8>> {
    /// The inode that has the name.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// The name.
    pub name: Name,
}

impl Dirent {
    /// Appends the record to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        Writer::append(bytes, VERSION, |writer| {
            writer.u64(self.ino.0).u32(self.kind.type_bits()).u64(self.cookie);
        });
    }

    /// Reads a `d` record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("a directory entry", record, VERSION)?;
        let ino = Ino(reader.u64()?);
        let kind = decode_kind(&mut reader)?;
        let cookie = reader.u64()?;
        reader.finish()?;
        Ok(Self { ino, kind, cookie })
    }
}

impl<Name: AsRef<[u8]>> PositionEntry<Name> {
    /// Appends the record to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        Writer::append(bytes, VERSION, |writer| {
            writer.u64(self.ino.0).u32(self.kind.type_bits()).bytes(self.name.as_ref());
        });
    }
}

impl PositionEntry {
    /// Reads a `c` record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("a directory position", record, VERSION)?;
        let ino = Ino(reader.u64()?);
        let kind = decode_kind(&mut reader)?;
        let name = reader.bytes()?;
        reader.finish()?;
        Ok(Self { ino, kind, name })
    }
}

fn decode_kind(reader: &mut Reader<'_>) -> Result<FileKind, Error> {
    let bits = reader.u32()?;
    FileKind::from_type_bits(bits).ok_or_else(|| reader.invalid("its file type is unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_back_as_they_were_written() {
        for count in [EntryCount::Exact(0), EntryCount::Exact(u64::MAX - 2), EntryCount::Unknown, EntryCount::Open] {
            assert_eq!(EntryCount::from_number(count.to_number()), count);
        }
    }

    #[test]
    fn names_read_back_as_they_were_written() {
        let dirent = Dirent { ino: Ino(4), kind: FileKind::Fifo, cookie: 12 };
        let mut bytes = b"what stands before".to_vec();
        let start = bytes.len();
        dirent.encode(&mut bytes);
        assert_eq!(Dirent::decode(&bytes[start..]).unwrap(), dirent);
        let entry = PositionEntry { ino: Ino(4), kind: FileKind::Regular, name: vec![0xff; 255] };
        let start = bytes.len();
        entry.encode(&mut bytes);
        assert_eq!(PositionEntry::decode(&bytes[start..]).unwrap(), entry);
    }
}
