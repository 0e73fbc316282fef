//! Pending frees (`g<tier><object><first byte>`), version 1: bytes on a tier that no file owns any more but that still
//! exist (DESIGN section 6). The tier is touched only after the record is durable; the record is removed only after the
//! tier made its part durable. Carrying one out twice is harmless.

use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, ObjectId, TierId};

use super::frame::{Reader, Writer};
use super::inode_format::ObjectEntry;
use super::keys;
use crate::error::Error;

const VERSION: u8 = 1;

/// Which bytes of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisownedKind {
    /// The object as a whole is removed.
    Object,
    /// Everything from the first byte on is cut off.
    Tail,
    /// The bytes from the first one up to `end` are punched.
    Range {
        /// The byte behind the last one.
        end: u64,
    },
}

/// One pending free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisownedRecord {
    /// The tier.
    pub tier: TierId,
    /// The object on it.
    pub object: ObjectId,
    /// The bucket that the object lies in.
    pub bucket: Bucket,
    /// First byte; `u64::MAX` for a whole object, so that its key is never that of a range.
    pub start: u64,
    /// How much of the object is to be freed.
    pub kind: DisownedKind,
}

impl DisownedRecord {
    /// Gives up an object as a whole. Its first byte is none, so that its key is never that of a range.
    pub fn of_object(entry: &ObjectEntry) -> Self {
        Self::of(entry, u64::MAX, DisownedKind::Object)
    }

    /// Gives up the bytes of an object from `start` on.
    pub fn of_tail(entry: &ObjectEntry, start: u64) -> Self {
        Self::of(entry, start, DisownedKind::Tail)
    }

    /// Gives up the bytes of an object from `start` up to `end`.
    pub fn of_range(entry: &ObjectEntry, start: u64, end: u64) -> Self {
        Self::of(entry, start, DisownedKind::Range { end })
    }

    fn of(entry: &ObjectEntry, start: u64, kind: DisownedKind) -> Self {
        Self { tier: entry.tier, object: entry.object, bucket: entry.bucket, start, kind }
    }

    /// The key of the record.
    pub fn key(&self) -> keys::Key {
        keys::disowned(self.tier, self.object, self.start)
    }

    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        let (kind, end) = match self.kind {
            DisownedKind::Object => (1, 0),
            DisownedKind::Tail => (2, 0),
            DisownedKind::Range { end } => (3, end),
        };
        writer.u16(self.bucket.0).u8(kind).u64(end);
        writer.finish()
    }

    /// Reads a record and its key.
    pub fn decode(key: &[u8], record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("a disowned range", record, VERSION)?;
        let (tier, object, start) =
            keys::parts_of_disowned_key(key).ok_or_else(|| reader.invalid("its key is malformed"))?;
        let bucket = Bucket(reader.u16()?);
        let (kind, end) = (reader.u8()?, reader.u64()?);
        let kind = match kind {
            1 => DisownedKind::Object,
            2 => DisownedKind::Tail,
            // An empty one was written by mistake by a former version; it is done as soon as it is looked at.
            3 => DisownedKind::Range { end },
            _ => return Err(reader.invalid("it names no bytes")),
        };
        if bucket.0 >= BUCKETS {
            return Err(reader.invalid("its object lies nowhere"));
        }
        reader.finish()?;
        Ok(Self { tier, object, bucket, start, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disowned_range_reads_back_as_it_was_written() {
        for kind in [DisownedKind::Object, DisownedKind::Tail, DisownedKind::Range { end: 8192 }] {
            let record = DisownedRecord { tier: TierId(3), object: ObjectId(9), bucket: Bucket(17), start: 4096, kind };
            assert_eq!(DisownedRecord::decode(&record.key(), &record.encode()).unwrap(), record);
        }
    }
}
