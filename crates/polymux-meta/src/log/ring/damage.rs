//! Telling a damaged log from one that ends (docs/design/0022).
//!
//! Replay stopped at the first place without a whole entry. A power failure leaves such a place only
//! behind everything durable, so durable entries are lost if and only if one of these proves it:
//! * A later entry that is whole says that the log was durable beyond that place when it was made. Writes of one unfinished
//!   flush, in whatever order a device carried them out, say so of nothing in that flush.
//! * An entry of an opening that the header does not know of, or of a round of the ring that begins behind the checkpoint
//!   of the header: both headers were durable before such an entry was written, so the header that counts is lost.
//! * The entry in that place is whole but for one bit, in the sector that holds its position. A torn write leaves earlier content
//!   of whole sectors, and no earlier content has this position. This covers the last flush, behind which nothing was written
//!   that could prove anything. Other sectors prove nothing: a commit mark is the position with every bit turned, and that of
//!   the entry one round of the ring before differs in a single bit. A region, which is filled word by word, proves nothing
//!   either.
//!
//! It is asked with the log locked: while entries are written, replay falls behind them.

use std::fmt;

use super::Replay;
use crate::error::StoreError;
use crate::log::entry_format::{ALIGNMENT, EntryShape, HEADER_WORDS, WORD, checksums, commit_mark, decode};

/// Bytes that a device writes whole or not at all.
const SECTOR: u64 = 512;

/// Proof that durable entries of a log are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDamage {
    /// A later entry was written when the log was durable beyond the damaged one.
    EntryLost {
        /// Where the entry stood that is damaged.
        position: u64,
        /// The entry that proves it.
        later: u64,
    },
    /// An entry has one wrong bit.
    EntryAltered {
        /// Where it stands.
        position: u64,
    },
    /// There are entries that were written after a header that is lost.
    HeaderLost {
        /// One of them.
        later: u64,
    },
    /// The log had more, under the same boot, as the memory says that outlived the last process.
    WritesLost {
        /// Where it ends.
        position: u64,
        /// Everything before this was durable.
        had: u64,
    },
}

impl fmt::Display for LogDamage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EntryLost { position, later } => write!(
                formatter,
                "the log is damaged at {position}: the entry at {later} was written after that one was durable"
            ),
            Self::EntryAltered { position } => {
                write!(formatter, "the log is damaged at {position}: one bit of the entry there is wrong")
            }
            Self::HeaderLost { later } => write!(
                formatter,
                "the last header of the log is damaged: the entry at {later} was written after the one that is left"
            ),
            Self::WritesLost { position, had } => write!(
                formatter,
                "the device of the log lost writes that it had acknowledged: the log ends at {position}, and was durable up to {had}"
            ),
        }
    }
}

impl Replay<'_> {
    /// Returns the proof that durable entries are lost, once [`Replay::next`] has given `None`. Reads the rest of the ring.
    pub(crate) fn damage(&mut self) -> Result<Option<LogDamage>, StoreError> {
        let end = self.position;
        let limit = self.header.checkpoint + self.header.ring_length;
        let mut at = end;
        while at + ALIGNMENT <= limit {
            self.load(at, at + ALIGNMENT)?;
            if let Some(found) = self.proof_at(at, end, limit)? {
                return Ok(Some(found));
            }
            at += ALIGNMENT;
        }
        Ok(if self.is_altered(end, limit)? { Some(LogDamage::EntryAltered { position: end }) } else { None })
    }

    /// Fails where durable entries are lost, once [`Replay::next`] has given `None`.
    pub(crate) fn refuse_damage(&mut self) -> Result<(), StoreError> {
        match self.damage()? {
            Some(damage) => Err(StoreError::Corrupted(damage.to_string())),
            None => Ok(()),
        }
    }

    fn word(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.bytes(at, at + WORD).try_into().expect("eight bytes"))
    }

    /// The damage that the line at `at` proves. Checksums are computed only where an entry would prove damage.
    fn proof_at(&mut self, at: u64, end: u64, limit: u64) -> Result<Option<LogDamage>, StoreError> {
        let Some(shape) = EntryShape::of(self.word(at)) else { return Ok(None) };
        let position = self.word(at + WORD);
        let generation = self.word(at + 2 * WORD) & u64::from(u32::MAX);
        let this_round = position == at;
        let later_round = position > at && (position - at).is_multiple_of(self.header.ring_length);
        let later_opening = generation > u64::from(self.header.generation);
        let durable_through = if shape.has_durable_through() { self.word(at + (HEADER_WORDS - 1) * WORD) } else { 0 };
        let proof = if later_round || this_round && later_opening {
            LogDamage::HeaderLost { later: position }
        } else if this_round && durable_through > end {
            LogDamage::EntryLost { position: end, later: position }
        } else {
            return Ok(None);
        };
        if at + shape.length() > limit {
            return Ok(None);
        }
        self.load(at, at + shape.length())?;
        Ok(decode(self.bytes(at, at + shape.length()), position, self.header.salt).map(|_| proof))
    }

    /// Whether the entry at `at` is whole but for one bit, in the sector that holds its position.
    fn is_altered(&mut self, at: u64, limit: u64) -> Result<bool, StoreError> {
        if at + ALIGNMENT > limit || self.region.is_some() {
            return Ok(false);
        }
        self.load(at, at + ALIGNMENT)?;
        let first = self.word(at);
        // The first word itself may have the wrong bit; it decides how long the entry is.
        for turned in std::iter::once(0).chain((0..u64::BITS).map(|bit| 1 << bit)) {
            let Some(shape) = EntryShape::of(first ^ turned) else { continue };
            let end = at + shape.length();
            if end > limit {
                continue;
            }
            self.load(at, end)?;
            if turned != 0 && self.word(end - WORD) != commit_mark(at) {
                continue;
            }
            let mut bytes = self.bytes(at, end).to_vec();
            bytes[..8].copy_from_slice(&(first ^ turned).to_le_bytes());
            let altered = if turned != 0 {
                decode(&bytes, at, self.header.salt).is_some()
            } else {
                altered_byte(&mut bytes, at, self.header.salt).is_some_and(|byte| is_beside_position(at, byte))
            };
            if altered {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The byte of an entry, whose first word is right, with the one wrong bit; `None` where it is whole or more is wrong. The
/// bit is turned back.
fn altered_byte(bytes: &mut [u8], position: u64, salt: u64) -> Option<usize> {
    let word =
        |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of an entry"));
    if decode(bytes, position, salt).is_some() {
        return None;
    }
    let mark = bytes.len() - 8;
    for (at, right) in [(8, position), (mark, commit_mark(position))] {
        let wrong = word(bytes, at) ^ right;
        if wrong != 0 {
            bytes[at..at + 8].copy_from_slice(&right.to_le_bytes());
            let alone = wrong.is_power_of_two() && decode(bytes, position, salt).is_some();
            return alone.then(|| at + byte_of(wrong));
        }
    }
    let (stored, computed) = checksums(bytes, position, salt)?;
    let wrong = stored ^ computed;
    if wrong.is_power_of_two() {
        bytes[20..24].copy_from_slice(&computed.to_le_bytes());
        return Some(20 + byte_of(u64::from(wrong)));
    }
    let shape = EntryShape::of(word(bytes, 0))?;
    let end = usize::try_from(shape.payload_start() + shape.payload_length).ok()?;
    // The bytes that the checksum covers, from the end: payload, word 3 if present, generation.
    let covered = (24..end).rev().chain((16..20).rev());
    let mut turned: [u32; 8] = std::array::from_fn(|bit| checksum_of_byte(1 << bit));
    for byte in covered {
        if let Some(bit) = turned.iter().position(|checksum| *checksum == wrong) {
            bytes[byte] ^= 1 << bit;
            return decode(bytes, position, salt).map(|_| byte);
        }
        // A byte further from the end: one byte of zeros more behind it.
        turned = turned.map(|checksum| checksum >> 8 ^ checksum_of_byte(checksum.to_le_bytes()[0]));
    }
    None
}

/// The byte of a word with this one bit.
fn byte_of(bit: u64) -> usize {
    usize::try_from(bit.trailing_zeros() / 8).expect("a word has eight bytes")
}

/// The contribution of a byte to a CRC-32C when it is the last one: the polynomial, reflected, divides bit by bit.
fn checksum_of_byte(byte: u8) -> u32 {
    (0..8).fold(u32::from(byte), |rest, _| rest >> 1 ^ if rest & 1 == 1 { 0x82f6_3b78 } else { 0 })
}

/// Whether a byte of the entry at `position` lies in the sector of that position's word. Sectors are those of the ring, which
/// begins at a multiple of their length; the first line of an entry lies in one.
fn is_beside_position(position: u64, byte: usize) -> bool {
    let start = usize::try_from(position % SECTOR).expect("a sector fits into memory");
    start + byte < usize::try_from(SECTOR).expect("a sector fits into memory")
}

#[cfg(test)]
mod tests {
    use super::super::image_medium::ImageMedium;
    use super::*;
    use crate::log::Openings;
    use crate::log::entry_format::{encode, encode_v1};
    use crate::log::header_format::{HEADER_LENGTH, LogHeader};

    #[test]
    fn one_wrong_bit_of_an_entry_is_found_wherever_it_is_and_two_are_not() {
        let payload: Vec<u8> = (0..700_u32).map(|index| (index * 7).to_le_bytes()[0]).collect();
        for (whole, payload_start) in [(encode(640, 3, 99, 512, &payload), 32), (encode_v1(640, 3, 99, &payload), 24)] {
            let mark = whole.len() - 8;
            for byte in (8..payload_start + payload.len()).chain(mark..whole.len()) {
                let mut bytes = whole.clone();
                bytes[byte] ^= 1 << (byte % 8);
                assert_eq!(altered_byte(&mut bytes, 640, 99), Some(byte));
                assert_eq!(bytes, whole);
                bytes[byte] ^= 3;
                assert_eq!(altered_byte(&mut bytes, 640, 99), None, "byte {byte}");
            }
            assert_eq!(altered_byte(&mut whole.clone(), 640, 99), None, "it is whole");
            assert_eq!(altered_byte(&mut whole.clone(), 704, 99), None, "it is another one");
        }
    }

    #[test]
    fn only_the_sector_of_the_position_proves_that_a_bit_turned() {
        assert!(is_beside_position(640, 40), "the sector of the head was written");
        assert!(!is_beside_position(640, 1532), "a device that did not write this sector leaves what was there");
        assert!(is_beside_position(512 + 448, 63) && !is_beside_position(512 + 448, 64));
    }

    /// The image of a ring in whose second round the entry at `position` was written as far as `written` bytes, over one that
    /// stood there a round before.
    fn torn_over_the_round_before(position: u64, payload: &[u8], written: usize) -> (Vec<u8>, LogHeader) {
        const RING: u64 = 64 * 1024;
        let (generation, salt) = (3, 99);
        let checkpoint = position - 64;
        let header = LogHeader {
            store: 1,
            salt,
            ring_length: RING,
            turn: 0,
            generation,
            checkpoint_generation: generation,
            checkpoint,
            openings: Openings::UNKNOWN,
        };
        let mut bytes = vec![0; usize::try_from(HEADER_LENGTH + RING).unwrap()];
        let offset = |at: u64| usize::try_from(HEADER_LENGTH + at % RING).unwrap();
        let mut put = |at: u64, content: &[u8]| bytes[offset(at)..][..content.len()].copy_from_slice(content);
        put(checkpoint, &encode(checkpoint, generation, salt, 0, &[5; 8]));
        put(position - RING, &encode(position - RING, generation, salt, 0, payload));
        put(position, &encode(position, generation, salt, 0, payload)[..written]);
        (bytes, header)
    }

    #[test]
    fn a_commit_mark_of_the_round_before_is_a_torn_tail_and_no_damage() {
        // Positions in odd rounds: the two marks differ in one bit.
        for round in [1, 3, 7] {
            let position = round * 64 * 1024 + 448;
            let (bytes, header) = torn_over_the_round_before(position, &[8; 80], 64);
            let medium = ImageMedium(bytes);
            let mut replay = Replay::new(&medium, header);
            assert!(replay.next().unwrap().is_some() && replay.next().unwrap().is_none());
            assert_eq!(replay.position(), position);
            assert_eq!(replay.damage().unwrap(), None, "round {round}");
        }
    }

    #[test]
    fn a_turned_bit_beside_the_position_is_damage() {
        let position = 64 * 1024 + 448;
        let (mut bytes, header) = torn_over_the_round_before(position, &[8; 80], 128);
        let at = usize::try_from(HEADER_LENGTH + position % (64 * 1024)).unwrap();
        bytes[at + 40] ^= 4;
        let medium = ImageMedium(bytes);
        let mut replay = Replay::new(&medium, header);
        assert!(replay.next().unwrap().is_some() && replay.next().unwrap().is_none());
        assert_eq!(replay.damage().unwrap(), Some(LogDamage::EntryAltered { position }));
    }
}
