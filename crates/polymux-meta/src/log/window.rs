//! The window: the end of the log, filled by many threads at once, in memory or in a byte-addressable region (A7).
//!
//! Invariants:
//! * Position `p` of the log stands in word `p / 8` modulo the size of the window. The part of the log that is in it is
//!   `low .. low + length`; a thread fills only positions that it has reserved and that lie there.
//! * Word 1 of every line of 64 bytes that no thread has filled yet in this round is zero ([`Window::release`] sees to
//!   that), and position 0 never holds an entry. So a walker that finds the position of an entry in its word 1 knows that
//!   the entry's first word was written, and one that finds the commit mark knows that all of it was.
//! * Ordering: the filling thread stores word 0, then word 1 (release), then the rest, then the commit mark (release); the
//!   walker loads word 1 and the mark (acquire).
//! * In a region an entry is written back before its commit mark is stored, and the mark before the end of the entry is
//!   noted in memory, where the walker looks: so complete entries are durable, and the region is not read while it is
//!   filled. A note of an earlier round is smaller than the position that it would be taken for.
//! * In surviving memory it is filled as in any other; `surviving` handles the entries that a dead process left there.
//! * No thread waits here for another.

use std::io;

use super::entry_format::{ALIGNMENT, HEADER_WORDS, WORD, checksum, commit_mark, entry_length, first_word};
use super::entry_format::{payload_length_of, third_word};
use super::medium::BLOCK;
use super::region::RegionLog;
use super::surviving::SurvivingWindow;
use polymux_types::sync::{AtomicU64, Ordering};

/// Words that hold the end of the log.
pub(crate) struct Window {
    place: Place,
}

enum Place {
    Memory(Box<[AtomicU64]>),
    Surviving(SurvivingWindow),
    Region {
        region: Box<RegionLog>,
        /// For each line of the region, the end of the entry that begins there, once it is durable.
        ends: Box<[AtomicU64]>,
    },
}

impl Window {
    /// An empty window of so many bytes, a power of two.
    pub(crate) fn new(length: u64) -> Self {
        assert!(length.is_power_of_two() && length >= 2 * ALIGNMENT, "a window is a power of two long");
        Self { place: Place::Memory(zeros(length / WORD)) }
    }

    /// An empty window in surviving memory, which is ready for it.
    pub(crate) fn in_surviving(memory: SurvivingWindow) -> Self {
        Self { place: Place::Surviving(memory) }
    }

    /// The surviving memory, where it is in one.
    pub(crate) fn surviving(&self) -> Option<&SurvivingWindow> {
        match &self.place {
            Place::Surviving(memory) => Some(memory),
            Place::Memory(_) | Place::Region { .. } => None,
        }
    }

    /// A window on the content of a region.
    pub(crate) fn in_region(region: RegionLog) -> Self {
        let ends = zeros(region.data_length() / ALIGNMENT);
        Self { place: Place::Region { region: Box::new(region), ends } }
    }

    /// The region, where it is in one.
    pub(crate) fn region(&self) -> Option<&RegionLog> {
        match &self.place {
            Place::Memory(_) | Place::Surviving(_) => None,
            Place::Region { region, .. } => Some(region),
        }
    }

    /// Longest entry for which space can always be made.
    pub(crate) fn entry_length_max(&self) -> u64 {
        match &self.place {
            Place::Memory(_) | Place::Surviving(_) => self.length() - BLOCK,
            // The other half is given up whole.
            Place::Region { .. } => self.length() / 2,
        }
    }

    fn words(&self) -> &[AtomicU64] {
        match &self.place {
            Place::Memory(words) => words,
            Place::Surviving(memory) => memory.words(),
            Place::Region { region, .. } => region.data(),
        }
    }

    /// Bytes of the log that fit.
    pub(crate) fn length(&self) -> u64 {
        self.words().len() as u64 * WORD
    }

    /// Writes an entry into the place that the calling thread has reserved; in a region durably.
    ///
    /// # Errors
    ///
    /// The region could not be written back; the entry will never be complete.
    pub(crate) fn fill(
        &self,
        position: u64,
        generation: u32,
        salt: u64,
        durable_through: u64,
        payload: &[u8],
    ) -> io::Result<()> {
        let words = self.words();
        let length = u32::try_from(payload.len()).expect("a payload is checked before its place is reserved");
        let first = first_word(length);
        let checksum = checksum(salt, first, position, generation, durable_through, payload);
        at(words, position).store(first, Ordering::Relaxed);
        at(words, position + WORD).store(position, Ordering::Release);
        at(words, position + 2 * WORD).store(third_word(generation, checksum), Ordering::Relaxed);
        at(words, position + 3 * WORD).store(durable_through, Ordering::Relaxed);
        let mut next = position + HEADER_WORDS * WORD;
        let (whole, rest) = payload.as_chunks::<8>();
        for word in whole {
            at(words, next).store(u64::from_le_bytes(*word), Ordering::Relaxed);
            next += WORD;
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let end = position + entry_length(u64::from(length));
        let mark = end - WORD;
        let mut padding = u64::from_le_bytes(last);
        while next < mark {
            at(words, next).store(padding, Ordering::Relaxed);
            padding = 0;
            next += WORD;
        }
        match &self.place {
            Place::Memory(_) | Place::Surviving(_) => at(words, mark).store(commit_mark(position), Ordering::Release),
            Place::Region { region, ends } => {
                // The line of the mark also holds the bytes before it in that line, and a line is written in order.
                region.write_back(position..end - ALIGNMENT)?;
                at(words, mark).store(commit_mark(position), Ordering::Release);
                region.write_back(end - ALIGNMENT..end)?;
                note_of(ends, position).store(end, Ordering::Release);
            }
        }
        Ok(())
    }

    /// The end of the entry at `position`, if a thread has filled it completely.
    pub(crate) fn end_of_complete(&self, position: u64) -> Option<u64> {
        let words = match &self.place {
            Place::Memory(words) => words,
            Place::Surviving(memory) => memory.words(),
            Place::Region { ends, .. } => {
                let end = note_of(ends, position).load(Ordering::Acquire);
                return (end > position).then_some(end);
            }
        };
        if at(words, position + WORD).load(Ordering::Acquire) != position {
            return None;
        }
        let payload_length = payload_length_of(at(words, position).load(Ordering::Relaxed))
            .expect("the first word of an entry is written before its position");
        let end = position + entry_length(payload_length);
        (at(words, end - WORD).load(Ordering::Acquire) == commit_mark(position)).then_some(end)
    }

    /// Copies `from .. to` of the log; both are multiples of a word.
    pub(crate) fn copy_out(&self, from: u64, to: u64, bytes: &mut [u8]) {
        assert_eq!(bytes.len() as u64, to - from, "the bytes asked for are what is copied");
        let words = self.words();
        let mut position = from;
        for word in bytes.as_chunks_mut::<8>().0 {
            *word = at(words, position).load(Ordering::Relaxed).to_le_bytes();
            position += WORD;
        }
    }

    /// Restores bytes of an earlier opening: those of `from .. to`, which begin `bytes`.
    pub(crate) fn restore(&self, from: u64, to: u64, bytes: &[u8]) {
        let words = self.words();
        let mut position = from;
        for word in bytes.as_chunks::<8>().0 {
            if position >= to {
                break;
            }
            at(words, position).store(u64::from_le_bytes(*word), Ordering::Relaxed);
            position += WORD;
        }
    }

    /// Makes the lines of `from .. to` ready for the next round. Only the caller knows that no thread reads them any more.
    pub(crate) fn release(&self, from: u64, to: u64) {
        if let Some(memory) = self.surviving() {
            memory.set_low(to);
        }
        let mut line = from;
        while line < to {
            at(self.words(), line + WORD).store(0, Ordering::Release);
            line += ALIGNMENT;
        }
    }
}

fn zeros(count: u64) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// The word of a position. The length is a power of two, so the remainder is a mask.
fn at(words: &[AtomicU64], position: u64) -> &AtomicU64 {
    &words[usize::try_from(position / WORD).expect("positions fit into an address") & (words.len() - 1)]
}

/// Where the end of the entry at a position is noted.
fn note_of(ends: &[AtomicU64], position: u64) -> &AtomicU64 {
    &ends[usize::try_from(position / ALIGNMENT).expect("positions fit into an address") & (ends.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::entry_format;

    #[test]
    fn what_is_filled_reads_as_the_entry_format_says() {
        let window = Window::new(512);
        for (position, payload) in [(64, vec![7_u8; 100]), (448, vec![9; 64]), (576, vec![])] {
            assert_eq!(window.end_of_complete(position), None);
            window.fill(position, 2, 55, 64, &payload).unwrap();
            let end = window.end_of_complete(position).expect("it is complete");
            let mut bytes = vec![0; usize::try_from(end - position).unwrap()];
            window.copy_out(position, end, &mut bytes);
            assert_eq!(bytes, entry_format::encode(position, 2, 55, 64, &payload));
        }
    }

    #[test]
    fn a_payload_that_looks_like_an_entry_is_not_taken_for_one_in_the_next_round() {
        let window = Window::new(512);
        // The payload begins at 64 + 32; put the image of an entry for position 640 (= 128 of the next round) at 128.
        let mut payload = vec![0; 32];
        payload.extend(entry_format::encode(640, 1, 55, 0, b"forged"));
        window.fill(64, 1, 55, 0, &payload).unwrap();
        let end = window.end_of_complete(64).expect("it is complete");
        window.release(64, end);
        assert_eq!(window.end_of_complete(640), None);
    }
}
