//! The mark of descriptions (key `S`), version 1: up to when the stamps on objects follow the records (docs/design/0013).

use polymux_types::Timestamp;

use super::frame::{Reader, Writer};
use crate::error::Error;

const VERSION: u8 = 1;

/// Value of the `S` record. Without one nothing is known of any stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampMark {
    /// Files whose record changed before this moment are described as they are, as far as no directory above them has a
    /// record of its own (`s`).
    pub through: Timestamp,
    /// All files are: the volume was unmounted with nothing left to do. Never set while it is in use.
    pub is_complete: bool,
}

impl StampMark {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { through: Timestamp { seconds: i64::MIN, nanoseconds: 0 }, is_complete: false };

    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.i64(self.through.seconds).u32(self.through.nanoseconds).u8(u8::from(self.is_complete));
        writer.finish()
    }

    /// Reads a record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("the mark of descriptions", record, VERSION)?;
        let through = Timestamp { seconds: reader.i64()?, nanoseconds: reader.u32()? };
        let is_complete = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(reader.invalid("it is in no known state")),
        };
        if through.nanoseconds >= 1_000_000_000 {
            return Err(reader.invalid("a time has more than a second of nanoseconds"));
        }
        reader.finish()?;
        Ok(Self { through, is_complete })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_as_it_was_written() {
        for mark in [StampMark::UNKNOWN, StampMark { through: Timestamp::new(77, 5), is_complete: true }] {
            assert_eq!(StampMark::decode(&mark.encode()).unwrap(), mark);
        }
    }
}
