//! Notes in surviving memory, version 1. All numbers are words of the processor, little-endian.
//!
//! ```text
//! header, at word 0 and at word 64:
//!   word 0       magic
//!   word 1       version u32 | generation u32
//!   word 2       store id
//!   word 3       bytes of the memory
//!   words 4, 5   boot of the machine
//!   word 6       checksum, which starts from the salt of the store
//! place, from word 512 on, 520 words each:
//!   word 0       version of the note, 0: there is none
//!   word 1       number of its subject
//!   word 2       length of the content u32 | checksum u32
//!   word 3       seconds of its time, signed
//!   word 4       nanoseconds of its time
//!   words 5..8   zero
//!   words 8..    content, padded with zeros to whole words
//! ```
//!
//! The checksum of a note starts from the salt and goes over words 0, 1, the length, words 3, 4, and the content.

use polymux_types::Timestamp;
use polymux_types::sync::{AtomicU64, Ordering};

use super::{Note, Notes};
use crate::log::LogHeader;

/// Longest content of a note, in bytes.
pub const CONTENT_MAX: usize = 4096;

/// Words before the first place: one page.
pub(super) const HEADER_WORDS: usize = 512;

/// Where the headers are, each in a line of the processor's cache of its own.
pub(super) const HEADER_PLACES: [usize; 2] = [0, 64];

const CONTENT_WORD: usize = 8;

/// Words of one place.
pub(super) const PLACE_WORDS: usize = CONTENT_WORD + CONTENT_MAX / 8;

const MAGIC: u64 = u64::from_le_bytes(*b"PMUXNOTE");
const VERSION: u64 = 1;
const WORDS: usize = 7;

/// The header that belongs to an opening.
pub(super) fn encode_header(header: &LogHeader, boot: [u64; 2]) -> [u64; WORDS] {
    let mut words =
        [MAGIC, VERSION | u64::from(header.generation) << 32, header.store, Notes::BYTES, boot[0], boot[1], 0];
    let mut sum = crc32c::crc32c(&header.salt.to_le_bytes());
    for word in &words[..WORDS - 1] {
        sum = crc32c::crc32c_append(sum, &word.to_le_bytes());
    }
    words[WORDS - 1] = u64::from(sum);
    words
}

fn checksum(salt: u64, head: [u64; 5], content: &[u8]) -> u64 {
    let mut bytes = [0; 48];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([salt].into_iter().chain(head)) {
        *place = word.to_le_bytes();
    }
    u64::from(crc32c::crc32c_append(crc32c::crc32c(&bytes), content))
}

/// Fills a free place, its first word last.
pub(super) fn encode_note(
    words: &[AtomicU64],
    salt: u64,
    version: u64,
    (number, time, content): (u64, Timestamp, &[u8]),
) {
    let (seconds, nanoseconds) = (time.seconds.cast_unsigned(), u64::from(time.nanoseconds));
    let length = content.len() as u64;
    let sum = checksum(salt, [version, number, length, seconds, nanoseconds], content);
    for (word, value) in words[1..].iter().zip([number, length | sum << 32, seconds, nanoseconds, 0, 0, 0]) {
        word.store(value, Ordering::Relaxed);
    }
    let (whole, rest) = content.as_chunks::<8>();
    let places = &words[CONTENT_WORD..];
    for (word, bytes) in places.iter().zip(whole) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        places[whole.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
    }
    words[0].store(version, Ordering::Release);
}

/// Reads a place. `None`: no whole note is in it.
pub(super) fn decode_note(words: &[u64], salt: u64) -> Option<(u64, Note)> {
    let (version, number) = (words[0], words[1]);
    let (length, sum) = (words[2] & u64::from(u32::MAX), words[2] >> 32);
    let nanoseconds = u32::try_from(words[4]).ok().filter(|nanoseconds| *nanoseconds < 1_000_000_000)?;
    let mut content: Vec<u8> = words[CONTENT_WORD..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let is_whole = version != 0 && version != u64::MAX && length <= content.len() as u64;
    content.truncate(usize::try_from(length).ok().filter(|_| is_whole)?);
    let expected = checksum(salt, [version, number, length, words[3], words[4]], &content);
    let time = Timestamp::new(words[3].cast_signed(), nanoseconds);
    (expected == sum).then_some((version, Note { number, time, content }))
}
