//! Entries of the log (A7).
//!
//! ```text
//! word 0       magic u32 | payload length in bytes u32
//! word 1       position of the entry in the log, in bytes
//! word 2       generation u32 | checksum u32
//! word 3       position before which the log was durable when the entry was made (`durable_through`)
//! words 4..    payload, padded with zeros
//! last word    commit mark: the position with every bit turned
//! ```
//!
//! Invariants:
//! * All words are little-endian u64. An entry begins at a multiple of 64 bytes and its length is one.
//! * A position occurs once in the life of a store, so an entry that an earlier round of the ring left behind never
//!   passes for a present one. One that an earlier *mount* left beyond the end that recovery found has a smaller
//!   generation than the entries written there now.
//! * Entries of format version 1 have another magic and no word 3: their payload begins at word 3. They are read, and not
//!   written any more.
//! * `durable_through` is never beyond the position that survives a power failure at that moment, so an entry that is whole proves
//!   that everything before it was durable once (docs/design/0022).
//! * The checksum covers words 0 and 1, the generation, word 3 and the payload, and starts from the salt of the store. A program
//!   that can choose bytes of a payload (the value of an extended attribute) but cannot read the salt cannot make a payload
//!   that reads as an entry later.

/// Entries begin at multiples of this many bytes: a cache line, so that two threads never fill the same line.
pub(crate) const ALIGNMENT: u64 = 64;

/// Bytes of a word.
pub(crate) const WORD: u64 = 8;

/// Words before the payload.
pub(crate) const HEADER_WORDS: u64 = 4;

/// Words before the payload in format version 1.
const HEADER_WORDS_V1: u64 = 3;

/// Longest payload in bytes.
pub(crate) const PAYLOAD_MAX: u64 = 64 * 1024 * 1024;

const MAGIC_V1: u32 = 0x474c_4d50; // "PMLG"
const MAGIC: u32 = 0x324c_4d50; // "PML2"

/// Bytes that an entry with a payload of this many bytes takes in the log.
pub(crate) const fn entry_length(payload_length: u64) -> u64 {
    length_of(HEADER_WORDS, payload_length)
}

const fn length_of(header_words: u64, payload_length: u64) -> u64 {
    (header_words * WORD + payload_length + WORD).next_multiple_of(ALIGNMENT)
}

/// Where the parts of an entry lie, as its first word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryShape {
    /// Words before the payload.
    header_words: u64,
    /// Bytes of the payload.
    pub(crate) payload_length: u64,
}

impl EntryShape {
    /// The shape that a first word tells of; `None` where it is not one.
    pub(crate) fn of(first_word: u64) -> Option<Self> {
        let header_words = match first_word & u64::from(u32::MAX) {
            magic if magic == u64::from(MAGIC) => HEADER_WORDS,
            magic if magic == u64::from(MAGIC_V1) => HEADER_WORDS_V1,
            _ => return None,
        };
        let payload_length = first_word >> 32;
        (payload_length <= PAYLOAD_MAX).then_some(Self { header_words, payload_length })
    }

    /// Bytes that the entry takes in the log.
    pub(crate) const fn length(self) -> u64 {
        length_of(self.header_words, self.payload_length)
    }

    /// Bytes before the payload.
    pub(crate) const fn payload_start(self) -> u64 {
        self.header_words * WORD
    }

    /// Whether entries of this version say how far the log was durable.
    pub(crate) const fn has_durable_through(self) -> bool {
        self.header_words == HEADER_WORDS
    }
}

/// The first word of an entry.
pub(crate) fn first_word(payload_length: u32) -> u64 {
    u64::from(MAGIC) | u64::from(payload_length) << 32
}

/// The payload length in a first word; `None` where it is not one.
pub(crate) fn payload_length_of(first_word: u64) -> Option<u64> {
    EntryShape::of(first_word).map(|shape| shape.payload_length)
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
pub(crate) fn checksum(
    salt: u64,
    first_word: u64,
    position: u64,
    generation: u32,
    durable_through: u64,
    payload: &[u8],
) -> u32 {
    let head = checksum_of_head(salt, first_word, position, generation);
    crc32c::crc32c_append(crc32c::crc32c_append(head, &durable_through.to_le_bytes()), payload)
}

fn checksum_of_head(salt: u64, first_word: u64, position: u64, generation: u32) -> u32 {
    let mut head = [0_u8; 28];
    head[0..8].copy_from_slice(&salt.to_le_bytes());
    head[8..16].copy_from_slice(&first_word.to_le_bytes());
    head[16..24].copy_from_slice(&position.to_le_bytes());
    head[24..28].copy_from_slice(&generation.to_le_bytes());
    crc32c::crc32c(&head)
}

/// An entry that was read and is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded<'a> {
    pub(crate) generation: u32,
    /// Position before which the log was durable when the entry was made; 0 where its version does not say.
    pub(crate) durable_through: u64,
    pub(crate) payload: &'a [u8],
}

/// Reads the entry at `position` from `bytes`, which begin there and hold at least the length that
/// [`EntryShape::length`] gave. `None` where it is torn, stale, or not an entry.
pub(crate) fn decode(bytes: &[u8], position: u64, salt: u64) -> Option<Decoded<'_>> {
    let word =
        |index: usize| -> Option<u64> { bytes.get(index * 8..index * 8 + 8)?.try_into().ok().map(u64::from_le_bytes) };
    let first = word(0)?;
    let shape = EntryShape::of(first)?;
    let length = usize::try_from(shape.length()).ok()?;
    if word(1)? != position || word(length / 8 - 1)? != commit_mark(position) {
        return None;
    }
    let (stored, computed) = checksums(bytes, position, salt)?;
    let generation = u32::try_from(word(2)? & u64::from(u32::MAX)).ok()?;
    let start = usize::try_from(shape.payload_start()).ok()?;
    let payload = bytes.get(start..start + usize::try_from(shape.payload_length).ok()?)?;
    let durable_through = if shape.has_durable_through() { word(3)? } else { 0 };
    (stored == computed).then_some(Decoded { generation, durable_through, payload })
}

/// The checksum that an entry has, and the one that it should have; `None` where its first word is not one.
pub(crate) fn checksums(bytes: &[u8], position: u64, salt: u64) -> Option<(u32, u32)> {
    let word =
        |index: usize| -> Option<u64> { bytes.get(index * 8..index * 8 + 8)?.try_into().ok().map(u64::from_le_bytes) };
    let (first, third) = (word(0)?, word(2)?);
    let shape = EntryShape::of(first)?;
    let generation = u32::try_from(third & u64::from(u32::MAX)).ok()?;
    let start = usize::try_from(shape.payload_start()).ok()?;
    // Behind the third word: `durable_through`, where there is one, and the payload.
    let rest = bytes.get(24..start + usize::try_from(shape.payload_length).ok()?)?;
    let computed = crc32c::crc32c_append(checksum_of_head(salt, first, position, generation), rest);
    Some((u32::try_from(third >> 32).ok()?, computed))
}

/// Makes the bytes of an entry, as the filling of a window does it word by word.
pub(crate) fn encode(position: u64, generation: u32, salt: u64, durable_through: u64, payload: &[u8]) -> Vec<u8> {
    let first = first_word(u32::try_from(payload.len()).expect("a payload is short"));
    let checksum = checksum(salt, first, position, generation, durable_through, payload);
    let words = [first, position, third_word(generation, checksum), durable_through];
    finish_entry(words.into_iter().flat_map(u64::to_le_bytes).collect(), position, payload)
}

/// Makes the bytes of an entry of format version 1.
pub(crate) fn encode_v1(position: u64, generation: u32, salt: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload is short");
    let first = u64::from(MAGIC_V1) | u64::from(length) << 32;
    let checksum = crc32c::crc32c_append(checksum_of_head(salt, first, position, generation), payload);
    let words = [first, position, third_word(generation, checksum)];
    finish_entry(words.into_iter().flat_map(u64::to_le_bytes).collect(), position, payload)
}

fn finish_entry(mut bytes: Vec<u8>, position: u64, payload: &[u8]) -> Vec<u8> {
    bytes.extend_from_slice(payload);
    bytes.resize((bytes.len() + 8).next_multiple_of(64) - 8, 0);
    bytes.extend_from_slice(&commit_mark(position).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_CHECKSUM: u32 = 0xf925_7714;

    #[test]
    fn an_entry_comes_back() {
        for length in [0, 1, 31, 32, 33, 95, 96, 97, 4000] {
            let payload: Vec<u8> = (0..length).map(|index: u32| index.to_le_bytes()[0]).collect();
            let bytes = encode(640, 3, 99, 512, &payload);
            assert_eq!(bytes.len() as u64, entry_length(u64::from(length)));
            let whole = Decoded { generation: 3, durable_through: 512, payload: &payload };
            assert_eq!(decode(&bytes, 640, 99), Some(whole));
        }
    }

    #[test]
    fn an_entry_of_format_version_1_comes_back_and_says_nothing_of_what_was_durable() {
        // As version 1 wrote it: position 640, generation 3, salt 99, payload `abc`.
        let mut written = b"PMLG\x03\0\0\0".to_vec();
        written.extend(640_u64.to_le_bytes());
        written.extend(3_u32.to_le_bytes());
        written.extend(V1_CHECKSUM.to_le_bytes());
        written.extend(b"abc");
        written.resize(56, 0);
        written.extend((!640_u64).to_le_bytes());
        assert_eq!(encode_v1(640, 3, 99, b"abc"), written);
        for length in [0, 1, 31, 32, 33, 95, 96, 97, 4000] {
            let payload = vec![7; length];
            let bytes = encode_v1(640, 3, 99, &payload);
            let whole = Decoded { generation: 3, durable_through: 0, payload: &payload };
            assert_eq!(decode(&bytes, 640, 99), Some(whole));
        }
    }

    #[test]
    fn an_entry_with_any_bit_turned_a_foreign_position_or_another_salt_is_refused() {
        let bytes = encode(640, 3, 99, 64, b"payload that is longer than one line of the processor's cache, a little");
        assert_eq!(decode(&bytes, 704, 99), None, "stale: it was written for another position");
        assert_eq!(decode(&bytes, 640, 98), None, "it was not made by this store");
        let payload_end = 32 + 71;
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
        let bytes = encode(0, 1, 7, 0, &[5; 3000]);
        for end in (0..bytes.len()).step_by(64) {
            let mut torn = bytes.clone();
            torn[end..].fill(0);
            assert_eq!(decode(&torn, 0, 7), None, "cut at {end}");
            assert_eq!(decode(&bytes[..end], 0, 7), None, "short at {end}");
        }
    }
}
