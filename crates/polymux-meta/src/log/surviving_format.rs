//! The header of a window in surviving memory, version 1.
//!
//! ```text
//! word 0       magic
//! word 1       version u32 | generation u32
//! word 2       store id
//! word 3       bytes of the window
//! words 4, 5   boot of the machine
//! word 6       checksum, which starts from the salt of the store
//! word 64      position before which the window was given back, because the ring has it
//! ```
//!
//! The header is all zero while the window is made ready, and written as a whole before the first entry. It says
//! which opening of which store filled the window, and under which boot; anything else is not taken. Only word 64 changes
//! while the window is filled.

use super::header_format::LogHeader;

/// Words before the window: one page, so that the lines of the window are lines of the processor's cache.
pub(super) const HEADER_WORDS: usize = 512;

/// The word of the position before which the window was given back: in a line of its own.
pub(super) const LOW_WORD: usize = 64;

const WORDS: usize = 7;
const MAGIC: u64 = u64::from_le_bytes(*b"PMUXKEPT");
const VERSION: u64 = 1;

/// The header that belongs to the window of an opening.
pub(super) fn encode(header: &LogHeader, window_length: u64, boot: [u64; 2]) -> [u64; WORDS] {
    let mut words =
        [MAGIC, VERSION | u64::from(header.generation) << 32, header.store, window_length, boot[0], boot[1], 0];
    let mut sum = crc32c::crc32c(&header.salt.to_le_bytes());
    for word in &words[..WORDS - 1] {
        sum = crc32c::crc32c_append(sum, &word.to_le_bytes());
    }
    words[WORDS - 1] = u64::from(sum);
    words
}

/// Why the content of surviving memory is not used; `None` where the last opening of the store left it.
pub(super) fn refusal(words: &[u64], header: &LogHeader, window_length: u64, boot: [u64; 2]) -> Option<&'static str> {
    let expected = encode(header, window_length, boot);
    if words[..WORDS] == expected {
        return None;
    }
    Some(match () {
        () if words[..WORDS].iter().all(|word| *word == 0) => "it is empty",
        () if words[0] != MAGIC || words[1] & u64::from(u32::MAX) != VERSION => "it is damaged, or of another version",
        () if words[4..6] != boot => "it is of an earlier boot",
        () if words[1] != expected[1] => "it is of another opening of the store",
        () => "it is damaged, or of another store",
    })
}
