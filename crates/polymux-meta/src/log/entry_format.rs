//! Entries of the log (A7).
//!
//! ```text
//! word 0       magic u32 | payload length in bytes u32
//! word 1       position of the entry in the log, in bytes
//! word 2       generation u32 | checksum u32
//! words 3..    payload, padded with zeros
//! last word    commit mark: the position with every bit turned
//! ```
//!
//! What is true here:
//! * All words are little-endian u64. An entry begins at a multiple of 64 bytes and its length is one.
//! * A position occurs once in the life of a store, so an entry that an earlier round of the ring left behind never
//!   passes for a present one. One that an earlier *mount* left beyond the end that recovery found has a smaller
//!   generation than what is written there now.
//! * The checksum covers words 0 and 1, the generation and the payload, and starts from the salt of the store. Whoever
//!   can choose bytes of a payload (the value of an extended attribute) but cannot read the salt cannot make a payload
//!   that reads as an entry later.

/// Entries begin at multiples of this many bytes: a cache line, so that two threads never fill the same line.
pub(crate) const ALIGNMENT: u64 = 64;

/// Bytes of a word.
pub(crate) const WORD: u64 = 8;

/// Words before the payload.
pub(crate) const HEADER_WORDS: u64 = 3;

/// Longest payload in bytes.
pub(crate) const PAYLOAD_MAX: u64 = 64 * 1024 * 1024;

const MAGIC: u32 = 0x474c_4d50; // "PMLG"

/// Bytes that an entry with a payload of this many bytes takes in the log.
pub(crate) const fn entry_length(payload_length: u64) -> u64 {
    (HEADER_WORDS * WORD + payload_length + WORD).next_multiple_of(ALIGNMENT)
}

/// The first word of an entry.
pub(crate) fn first_word(payload_length: u32) -> u64 {
    u64::from(MAGIC) | u64::from(payload_length) << 32
}

/// The payload length in a first word; `None` where it is not one.
pub(crate) fn payload_length_of(first_word: u64) -> Option<u64> {
    let length = first_word >> 32;
    let magic = first_word & u64::from(u32::MAX);
    (magic == u64::from(MAGIC) && length <= PAYLOAD_MAX).then_some(length)
}

/// The third word of an entry.
pub(crate) fn third_word(generation: u32, checksum: u32) -> u64 {
    u64::from(generation) | u64::from(checksum) << 32
}

/// The last word of an entry.
pub(crate) fn commit_mark(position: u64) -> u64 {
    !position
}

/// The checksum of an entry.
pub(crate) fn checksum(salt: u64, first_word: u64, position: u64, generation: u32, payload: &[u8]) -> u32 {
    let mut head = [0_u8; 28];
    head[0..8].copy_from_slice(&salt.to_le_bytes());
    head[8..16].copy_from_slice(&first_word.to_le_bytes());
    head[16..24].copy_from_slice(&position.to_le_bytes());
    head[24..28].copy_from_slice(&generation.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&head), payload)
}

/// An entry that was read and is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded<'a> {
    pub(crate) generation: u32,
    pub(crate) payload: &'a [u8],
}

/// Reads the entry at `position` from `bytes`, which begin there and hold at least the length that
/// [`payload_length_of`] gave. `None` where it is torn, stale, or not an entry.
pub(crate) fn decode(bytes: &[u8], position: u64, salt: u64) -> Option<Decoded<'_>> {
    let word =
        |index: usize| -> Option<u64> { bytes.get(index * 8..index * 8 + 8)?.try_into().ok().map(u64::from_le_bytes) };
    let first = word(0)?;
    let payload_length = usize::try_from(payload_length_of(first)?).ok()?;
    let length = usize::try_from(entry_length(payload_length as u64)).ok()?;
    if word(1)? != position || word(length / 8 - 1)? != commit_mark(position) {
        return None;
    }
    let third = word(2)?;
    let generation = u32::try_from(third & u64::from(u32::MAX)).ok()?;
    let payload = bytes.get(24..24 + payload_length)?;
    (third == third_word(generation, checksum(salt, first, position, generation, payload)))
        .then_some(Decoded { generation, payload })
}

/// Makes the bytes of an entry, as the filling of a window does it word by word.
#[cfg(test)]
pub(crate) fn encode(position: u64, generation: u32, salt: u64, payload: &[u8]) -> Vec<u8> {
    let first = first_word(u32::try_from(payload.len()).expect("a payload is short"));
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&first.to_le_bytes());
    bytes.extend_from_slice(&position.to_le_bytes());
    let checksum = checksum(salt, first, position, generation, payload);
    bytes.extend_from_slice(&third_word(generation, checksum).to_le_bytes());
    bytes.extend_from_slice(payload);
    let length = usize::try_from(entry_length(payload.len() as u64)).expect("an entry is short");
    bytes.resize(length - 8, 0);
    bytes.extend_from_slice(&commit_mark(position).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back() {
        for length in [0, 1, 31, 32, 33, 95, 96, 97, 4000] {
            let payload: Vec<u8> = (0..length).map(|index: u32| index.to_le_bytes()[0]).collect();
            let bytes = encode(640, 3, 99, &payload);
            assert_eq!(bytes.len() % 64, 0);
            assert_eq!(decode(&bytes, 640, 99), Some(Decoded { generation: 3, payload: &payload }));
        }
    }

    #[test]
    fn an_entry_with_any_bit_turned_a_foreign_position_or_another_salt_is_refused() {
        let bytes = encode(640, 3, 99, b"payload that is longer than one line of the processor's cache, a little");
        assert_eq!(decode(&bytes, 704, 99), None, "stale: it was written for another position");
        assert_eq!(decode(&bytes, 640, 98), None, "it was not made by this store");
        let payload_end = 24 + 71;
        for bit in 0..bytes.len() * 8 {
            let byte = bit / 8;
            let padding = byte >= payload_end && byte < bytes.len() - 8;
            let mut torn = bytes.clone();
            torn[byte] ^= 1 << (bit % 8);
            assert_eq!(decode(&torn, 640, 99).is_some(), padding, "bit {bit}");
        }
    }

    #[test]
    fn an_entry_cut_at_any_sector_is_refused() {
        let bytes = encode(0, 1, 7, &[5; 3000]);
        for end in (0..bytes.len()).step_by(64) {
            let mut torn = bytes.clone();
            torn[end..].fill(0);
            assert_eq!(decode(&torn, 0, 7), None, "cut at {end}");
            assert_eq!(decode(&bytes[..end], 0, 7), None, "short at {end}");
        }
    }
}
