//! Why the log ends where it does, for people.
//!
//! Replay needs only to know that there is no further entry. The content found in its place is examined afterwards, when a
//! store is inspected, and decides nothing; a proof of a loss does (`damage`).

use super::Replay;
use super::damage::LogDamage;
use crate::error::StoreError;
use crate::log::entry_format::{ALIGNMENT, EntryShape, HEADER_WORDS, WORD, decode};

/// The content of the place where the next entry of a log would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    /// Zeros: nothing was written there yet.
    Unwritten,
    /// The beginning of the log: the ring is full.
    Full,
    /// An entry of an earlier round of the ring, with the position that it had.
    EarlierRound {
        /// Its position.
        position: u64,
    },
    /// A whole entry that an earlier opening of the store left behind, beyond the end that recovery found then.
    EarlierOpening {
        /// Generation that wrote it.
        generation: u32,
    },
    /// A whole entry of an opening that the header does not know of: header and ring are not of the same time.
    LaterOpening {
        /// Generation that wrote it.
        generation: u32,
    },
    /// An entry of this position that was not written to its end: its commit mark is missing, or its checksum is wrong.
    Torn {
        /// Bytes that it was to take.
        length: u64,
    },
    /// Bytes that are no entry.
    Foreign,
    /// The end that the slot of a second copy names. Bytes behind it are not part of the copy.
    OfCopy,
    /// Durable entries that are lost: this is not where the log ended.
    Damaged(LogDamage),
}

impl Replay<'_> {
    /// Examines [`Replay::position`], once [`Replay::next`] has given `None`.
    pub(crate) fn end(&mut self) -> Result<LogEnd, StoreError> {
        let position = self.position;
        let limit = self.header.checkpoint + self.header.ring_length;
        if position + ALIGNMENT > limit {
            return Ok(LogEnd::Full);
        }
        self.load(position, position + HEADER_WORDS * WORD)?;
        let word = |index: u64| {
            let bytes = self.bytes(position + index * WORD, position + (index + 1) * WORD);
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        let (first, second, third) = (word(0), word(1), word(2));
        let Some(shape) = EntryShape::of(first) else {
            return Ok(if (first, second, third) == (0, 0, 0) { LogEnd::Unwritten } else { LogEnd::Foreign });
        };
        if second != position {
            return Ok(LogEnd::EarlierRound { position: second });
        }
        let length = shape.length();
        if position + length > limit {
            return Ok(LogEnd::Torn { length });
        }
        self.load(position, position + length)?;
        let bytes = self.bytes(position, position + length);
        Ok(match decode(bytes, position, self.header.salt) {
            Some(entry) if entry.generation > self.header.generation => {
                LogEnd::LaterOpening { generation: entry.generation }
            }
            Some(entry) => LogEnd::EarlierOpening { generation: entry.generation },
            None => LogEnd::Torn { length },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::image_medium::ImageMedium;
    use super::*;
    use crate::log::Openings;
    use crate::log::entry_format::encode;
    use crate::log::header_format::{HEADER_LENGTH, LogHeader};

    const RING: usize = 64 * 1024;
    const HEADER: LogHeader = LogHeader {
        store: 1,
        salt: 5,
        ring_length: RING as u64,
        turn: 0,
        generation: 4,
        checkpoint_generation: 0,
        checkpoint: 640,
        openings: Openings::UNKNOWN,
    };

    /// The end of a log with one entry, where `rest` follows it.
    fn end_before(rest: &[u8]) -> LogEnd {
        let mut bytes = vec![0; RING + usize::try_from(HEADER_LENGTH).unwrap()];
        let start = usize::try_from(HEADER_LENGTH).unwrap() + 640;
        let entry = encode(640, 4, 5, 0, &[7; 20]);
        assert_eq!(entry.len(), 64);
        bytes[start..start + 64].copy_from_slice(&entry);
        bytes[start + 64..start + 64 + rest.len()].copy_from_slice(rest);
        let medium = ImageMedium(bytes);
        let mut replay = Replay::new(&medium, HEADER);
        assert!(replay.next().unwrap().is_some() && replay.next().unwrap().is_none());
        assert_eq!(replay.position(), 704);
        replay.end().unwrap()
    }

    #[test]
    fn the_end_of_a_log_says_what_stands_there_instead_of_an_entry() {
        assert_eq!(end_before(&[]), LogEnd::Unwritten);
        assert_eq!(end_before(b"something else"), LogEnd::Foreign);
        assert_eq!(end_before(&encode(128, 4, 5, 0, &[1])), LogEnd::EarlierRound { position: 128 });
        assert_eq!(end_before(&encode(704, 3, 5, 0, &[1])), LogEnd::EarlierOpening { generation: 3 });
        assert_eq!(end_before(&encode(704, 5, 5, 0, &[1])), LogEnd::LaterOpening { generation: 5 });
        let mut torn = encode(704, 4, 5, 0, &[1; 100]);
        torn[64..].fill(0);
        assert_eq!(end_before(&torn), LogEnd::Torn { length: 192 });
    }

    #[test]
    fn a_full_ring_ends_at_its_own_beginning() {
        let header = LogHeader { checkpoint: 0, ..HEADER };
        let mut bytes = vec![0; usize::try_from(HEADER_LENGTH).unwrap()];
        for position in (0..RING as u64).step_by(64) {
            bytes.extend_from_slice(&encode(position, 4, 5, 0, &[1]));
        }
        let medium = ImageMedium(bytes);
        let mut replay = Replay::new(&medium, header);
        while replay.next().unwrap().is_some() {}
        assert_eq!(replay.end().unwrap(), LogEnd::Full);
    }
}
