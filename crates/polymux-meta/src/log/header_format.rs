//! The header of a log: two slots of one block each, written in turn.
//!
//! ```text
//! magic 8 bytes | version u32 | reserved u32 | store id u64 | salt u64 | ring length u64
//! | turn u64 | generation u32 | checkpoint generation u32 | checkpoint u64 | checksum u32
//! | reserved u32 | beginnings of openings 32 u64 | checksum u32
//! ```
//!
//! The slot with the greater turn counts, so a write that a crash tears leaves the other one. The fields
//! that change are the generation (raised once at each opening, before the first entry) and the checkpoint (everything before
//! it is in the tables). Entries from the checkpoint on were written by the generation that set it or a later one: bytes that an
//! earlier generation left there belong to writes that recovery had found incomplete. The second checksum is over
//! everything before it; where it does not fit, as in headers of earlier programs, the openings are not known.

use super::openings::{self, Openings};
use crate::slots::{SLOT_LENGTH, SlotError, SlotRecord};

/// Bytes before the ring.
pub(crate) const HEADER_LENGTH: u64 = 2 * SLOT_LENGTH as u64;

const MAGIC: [u8; 8] = *b"PMUXMLOG";
/// Version 2: entries say how far the log was durable. A program that knows version 1 alone would take them for the end of
/// the log, so it has to refuse.
const VERSION: u32 = 2;
const CONTENT_LENGTH: usize = 68;

/// Where the beginnings of openings are, and where their checksum is.
const OPENINGS_START: usize = 72;
const OPENINGS_END: usize = OPENINGS_START + openings::LENGTH;

/// Shortest ring in bytes.
const RING_LENGTH_MIN: u64 = 4 * SLOT_LENGTH as u64;

/// No position comes near this one; with a checkpoint below it, sums of positions and lengths never overflow.
const POSITION_MAX: u64 = 1 << 61;

/// Contents of a log header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    /// Number of the store, the same in its second copy.
    pub(crate) store: u64,
    /// Start of every checksum.
    pub(crate) salt: u64,
    /// Bytes of the ring.
    pub(crate) ring_length: u64,
    /// Counts the writes of the header.
    pub(crate) turn: u64,
    /// Counts the openings for writing.
    pub(crate) generation: u32,
    /// Generation that set the checkpoint.
    pub(crate) checkpoint_generation: u32,
    /// Entries before this position are in the tables.
    pub(crate) checkpoint: u64,
    /// Where this opening and those before it began.
    pub(crate) openings: Openings,
}

impl LogHeader {
    pub(crate) fn encode(&self) -> [u8; SLOT_LENGTH] {
        let mut bytes = [0; SLOT_LENGTH];
        let mut content = Vec::with_capacity(CONTENT_LENGTH);
        content.extend_from_slice(&MAGIC);
        content.extend_from_slice(&VERSION.to_le_bytes());
        content.extend_from_slice(&[0; 4]);
        for number in [self.store, self.salt, self.ring_length, self.turn] {
            content.extend_from_slice(&number.to_le_bytes());
        }
        content.extend_from_slice(&self.generation.to_le_bytes());
        content.extend_from_slice(&self.checkpoint_generation.to_le_bytes());
        content.extend_from_slice(&self.checkpoint.to_le_bytes());
        let checksum = crc32c::crc32c(&content);
        content.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(content.len(), CONTENT_LENGTH, "the layout of the header is fixed");
        bytes[..CONTENT_LENGTH].copy_from_slice(&content);
        bytes[OPENINGS_START..OPENINGS_END].copy_from_slice(&self.openings.encode());
        let checksum = crc32c::crc32c(&bytes[..OPENINGS_END]);
        bytes[OPENINGS_END..OPENINGS_END + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

impl SlotRecord for LogHeader {
    fn turn(&self) -> u64 {
        self.turn
    }

    fn decode(bytes: &[u8]) -> Result<Self, SlotError> {
        let content = bytes.get(..CONTENT_LENGTH).ok_or(SlotError::Damaged)?;
        let u32_at = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"));
        if content[..8] != MAGIC {
            return Err(SlotError::Damaged);
        }
        if u32_at(8) > VERSION {
            return Err(SlotError::NewerVersion(u32_at(8)));
        }
        let header = Self {
            store: u64_at(16),
            salt: u64_at(24),
            ring_length: u64_at(32),
            turn: u64_at(40),
            generation: u32_at(48),
            checkpoint_generation: u32_at(52),
            checkpoint: u64_at(56),
            openings: openings_of(bytes),
        };
        let whole = u32_at(64) == crc32c::crc32c(&content[..64]);
        let sane = header.ring_length.is_power_of_two()
            && header.checkpoint.is_multiple_of(64)
            && (RING_LENGTH_MIN..=POSITION_MAX).contains(&header.ring_length)
            && header.checkpoint <= POSITION_MAX;
        if whole && sane { Ok(header) } else { Err(SlotError::Damaged) }
    }
}

fn openings_of(slot: &[u8]) -> Openings {
    let checksum = slot.get(OPENINGS_END..OPENINGS_END + 4);
    match checksum {
        Some(found) if found == crc32c::crc32c(&slot[..OPENINGS_END]).to_le_bytes() => {
            Openings::decode(&slot[OPENINGS_START..OPENINGS_END])
        }
        _ => Openings::UNKNOWN,
    }
}

/// Makes the checksums of a slot match its content, for fuzz targets.
pub(super) fn repair(slot: &mut [u8]) {
    for end in [CONTENT_LENGTH - 4, OPENINGS_END] {
        if let Some((content, rest)) = slot.split_at_mut_checked(end)
            && let Some(target) = rest.first_chunk_mut::<4>()
        {
            *target = crc32c::crc32c(content).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(turn: u64) -> LogHeader {
        LogHeader {
            store: 7,
            salt: 9,
            ring_length: 1 << 20,
            turn,
            generation: 3,
            checkpoint_generation: 2,
            checkpoint: 6400,
            openings: Openings::UNKNOWN.and_then(64).and_then(3200),
        }
    }

    fn slots(first: &LogHeader, second: &LogHeader) -> Vec<u8> {
        [first.encode(), second.encode()].concat()
    }

    #[test]
    fn the_slot_with_the_later_turn_counts_and_the_other_one_where_it_is_torn() {
        let mut bytes = slots(&header(4), &header(5));
        assert_eq!(LogHeader::newest(&bytes), Ok(header(5)));
        bytes[SLOT_LENGTH + 50] ^= 1;
        assert_eq!(LogHeader::newest(&bytes), Ok(header(4)));
        bytes[50] ^= 1;
        assert_eq!(LogHeader::newest(&bytes), Err(SlotError::Damaged));
        assert_eq!(LogHeader::newest(&bytes[..100]), Err(SlotError::Damaged));
    }

    #[test]
    fn a_newer_version_is_said_to_be_one() {
        let mut bytes = slots(&header(4), &header(5));
        bytes[8] = 3;
        assert_eq!(LogHeader::newest(&bytes), Err(SlotError::NewerVersion(3)));
    }

    #[test]
    fn turns_alternate_between_the_slots() {
        assert_eq!((header(4).offset(), header(5).offset()), (0, SLOT_LENGTH as u64));
    }

    #[test]
    fn a_header_of_an_earlier_program_and_one_with_damaged_openings_are_read_and_know_of_none() {
        let unknown = LogHeader { openings: Openings::UNKNOWN, ..header(4) };
        let mut earlier = [header(4).encode(), [0; SLOT_LENGTH]].concat();
        earlier[CONTENT_LENGTH..SLOT_LENGTH].fill(0);
        assert_eq!(LogHeader::newest(&earlier), Ok(unknown));
        let mut damaged = slots(&header(4), &header(3));
        damaged[OPENINGS_START + 3] ^= 1;
        assert_eq!(LogHeader::newest(&damaged), Ok(unknown));
    }
}
