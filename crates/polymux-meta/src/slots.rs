//! Two slots of one block each, written in turn: how a small record is replaced so that a crash never loses it.
//!
//! The slot with the greater turn counts, so a write that a crash tears leaves the other one. A slot has
//! a block of its own, so that writing one never touches the other.

/// Bytes of one slot.
pub(crate) const SLOT_LENGTH: usize = 4096;

/// Why a slot is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotError {
    /// It was never written, or a crash tore it.
    Damaged,
    /// A later version of Polymux wrote it.
    NewerVersion(u32),
}

/// The record that a slot holds.
pub(crate) trait SlotRecord: Sized {
    /// Counts the writes.
    fn turn(&self) -> u64;

    /// Reads a slot.
    fn decode(bytes: &[u8]) -> Result<Self, SlotError>;

    /// Where it is written, from the beginning of the two slots.
    fn offset(&self) -> u64 {
        self.turn() % 2 * SLOT_LENGTH as u64
    }

    /// The record that counts, of two slots.
    fn newest(slots: &[u8]) -> Result<Self, SlotError> {
        let (first, second) = slots.split_at_checked(SLOT_LENGTH).ok_or(SlotError::Damaged)?;
        match (Self::decode(first), Self::decode(second)) {
            (Ok(first), Ok(second)) => Ok(if first.turn() > second.turn() { first } else { second }),
            (Err(SlotError::NewerVersion(version)), _) | (_, Err(SlotError::NewerVersion(version))) => {
                Err(SlotError::NewerVersion(version))
            }
            (Ok(one), Err(SlotError::Damaged)) | (Err(SlotError::Damaged), Ok(one)) => Ok(one),
            (Err(SlotError::Damaged), Err(SlotError::Damaged)) => Err(SlotError::Damaged),
        }
    }
}
