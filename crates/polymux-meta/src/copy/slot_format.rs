//! The slots of a second copy, which describe it: two of one block each, written in turn.
//!
//! ```text
//! magic 8 bytes | version u32 | state u32 | store id u64 | turn u64 | generation u32 | reserved u32
//! | arrived u64 | time u64 | checksum u32
//! ```
//!
//! All numbers are little-endian; the slot with the greater turn counts, so a write that a crash tears
//! leaves the other one. A copy is worth something only as far as its slot says: bytes of its log beyond `arrived` are not
//! part of it, whatever they look like.

use crate::slots::{SLOT_LENGTH, SlotError, SlotRecord};

/// Bytes of the file.
pub(crate) const FILE_LENGTH: u64 = 2 * SLOT_LENGTH as u64;

const MAGIC: [u8; 8] = *b"PMUXCOPY";
const VERSION: u32 = 1;
const CONTENT_LENGTH: usize = 60;

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// It is being made, and nothing can be started from it.
    Incomplete,
    /// It holds everything up to `arrived`.
    Complete,
    /// The store was closed in order, and there is nothing beyond `arrived`.
    Closed,
}

/// One slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) state: SlotState,
    /// Number of the store that this is a copy of.
    pub(crate) store: u64,
    /// Counts the writes of slots.
    pub(crate) turn: u64,
    /// Opening of the store that wrote it.
    pub(crate) generation: u32,
    /// Position of the log up to which everything is here.
    pub(crate) arrived: u64,
    /// When that was all there was, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
}

impl Slot {
    pub(crate) fn encode(&self) -> [u8; SLOT_LENGTH] {
        let mut content = Vec::with_capacity(CONTENT_LENGTH);
        let state: u32 = match self.state {
            SlotState::Incomplete => 0,
            SlotState::Complete => 1,
            SlotState::Closed => 2,
        };
        content.extend_from_slice(&MAGIC);
        content.extend_from_slice(&VERSION.to_le_bytes());
        content.extend_from_slice(&state.to_le_bytes());
        content.extend_from_slice(&self.store.to_le_bytes());
        content.extend_from_slice(&self.turn.to_le_bytes());
        content.extend_from_slice(&self.generation.to_le_bytes());
        content.extend_from_slice(&[0; 4]);
        content.extend_from_slice(&self.arrived.to_le_bytes());
        content.extend_from_slice(&self.time_ns.to_le_bytes());
        let checksum = crc32c::crc32c(&content);
        content.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(content.len(), CONTENT_LENGTH, "the layout of a slot is fixed");
        let mut bytes = [0; SLOT_LENGTH];
        bytes[..CONTENT_LENGTH].copy_from_slice(&content);
        bytes
    }
}

impl SlotRecord for Slot {
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
        if u32_at(56) != crc32c::crc32c(&content[..56]) {
            return Err(SlotError::Damaged);
        }
        let state = match u32_at(12) {
            0 => SlotState::Incomplete,
            1 => SlotState::Complete,
            2 => SlotState::Closed,
            _ => return Err(SlotError::Damaged),
        };
        Ok(Self {
            state,
            store: u64_at(16),
            turn: u64_at(24),
            generation: u32_at(32),
            arrived: u64_at(40),
            time_ns: u64_at(48),
        })
    }
}

/// The format, for its fuzz targets.
pub(crate) fn on_disk_format() -> polymux_types::on_disk_format::OnDiskFormat {
    use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
    OnDiskFormat {
        name: "copy-slots",
        samples: || {
            let slot = |turn, state| Slot { state, store: 7, turn, generation: 3, arrived: 6400, time_ns: 1 << 60 };
            let (complete, closed) = (slot(4, SlotState::Complete), slot(5, SlotState::Closed));
            vec![[complete.encode(), closed.encode()].concat(), [closed.encode(), [0; SLOT_LENGTH]].concat()]
        },
        repair: |bytes| {
            for slot in bytes.chunks_mut(SLOT_LENGTH).take(2) {
                if let Some((content, rest)) = slot.split_at_mut_checked(CONTENT_LENGTH - 4)
                    && let Some(target) = rest.first_chunk_mut::<4>()
                {
                    *target = crc32c::crc32c(content).to_le_bytes();
                }
            }
        },
        read_and_write: |bytes| {
            let slot = Slot::newest(bytes).ok()?;
            Some([slot.encode(), slot.encode()].concat())
        },
        form: FormatForm::HasUnused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(turn: u64) -> Slot {
        Slot { state: SlotState::Closed, store: 7, turn, generation: 3, arrived: 6400, time_ns: 1 << 60 }
    }

    #[test]
    fn the_later_slot_counts_and_the_other_one_where_any_bit_of_it_is_wrong() {
        let whole = [slot(4).encode(), slot(5).encode()].concat();
        assert_eq!(Slot::newest(&whole), Ok(slot(5)));
        for bit in 0..CONTENT_LENGTH * 8 {
            let mut bytes = whole.clone();
            bytes[SLOT_LENGTH + bit / 8] ^= 1 << (bit % 8);
            match Slot::newest(&bytes) {
                Ok(found) => assert_eq!(found, slot(4), "bit {bit}"),
                Err(error) => assert!(matches!(error, SlotError::NewerVersion(_)), "bit {bit}: {error:?}"),
            }
        }
        assert_eq!(Slot::newest(&vec![0; 2 * SLOT_LENGTH]), Err(SlotError::Damaged));
        assert_eq!(Slot::newest(&whole[..100]), Err(SlotError::Damaged));
    }

    #[test]
    fn a_newer_version_is_said_to_be_one() {
        let mut bytes = [slot(4).encode(), slot(5).encode()].concat();
        bytes[8] = 9;
        assert_eq!(Slot::newest(&bytes), Err(SlotError::NewerVersion(9)));
    }
}
