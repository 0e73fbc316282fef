//! The ring: where positions of the log lie on its medium, and reading it back (A9).
//!
//! Position `p` lies at the header's length plus `p` modulo the ring's length. Replay takes entries
//! from the checkpoint on, one after the other, and ends at the first that is torn, stale or of a smaller generation than
//! the one before it, or than the one that set the checkpoint. It writes nothing, so it may be repeated. Whether that is
//! where the log ended, or where a durable part of it was damaged, is found out afterwards (`damage`).

mod damage;
mod end;
#[cfg(test)]
mod image_medium;

pub use damage::LogDamage;
pub use end::LogEnd;

use super::entry_format::{ALIGNMENT, EntryShape, HEADER_WORDS, WORD, decode};
use super::header_format::{HEADER_LENGTH, LogHeader};
use super::medium::{BLOCK, LogMedium};
use super::region::RegionLog;
use crate::error::StoreError;

/// Bytes read from the medium at once.
const READ_LENGTH: u64 = 1024 * 1024;

/// Splits `from .. to` of the log into pieces of the medium: offset there, and range of positions.
pub(crate) fn pieces(ring_length: u64, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let mut at = from;
    std::iter::from_fn(move || {
        if at >= to {
            return None;
        }
        let start = at;
        let offset = start % ring_length;
        at = to.min(start - offset + ring_length);
        Some((HEADER_LENGTH + offset, start, at))
    })
}

/// Reads entries in order.
pub(crate) struct Replay<'a> {
    medium: &'a dyn LogMedium,
    region: Option<&'a RegionLog>,
    header: LogHeader,
    /// Bytes of the log from `start` on.
    buffer: Vec<u8>,
    start: u64,
    /// Where the next entry begins, or the end of the log once one is missing.
    position: u64,
    generation: u32,
}

/// One entry that replay took.
pub(crate) struct Replayed<'a> {
    /// Its first byte in the log.
    pub(crate) position: u64,
    /// The byte after it.
    pub(crate) end: u64,
    /// Generation that wrote it.
    pub(crate) generation: u32,
    pub(crate) shape: EntryShape,
    /// Position before which the log was durable when it was written; 0 where its version does not say.
    pub(crate) durable_through: u64,
    pub(crate) payload: &'a [u8],
}

impl<'a> Replay<'a> {
    /// Begins at the checkpoint.
    pub(crate) fn new(medium: &'a dyn LogMedium, header: LogHeader) -> Self {
        let position = header.checkpoint;
        Self {
            medium,
            region: None,
            header,
            buffer: Vec::new(),
            start: position,
            position,
            generation: header.checkpoint_generation,
        }
    }

    /// As [`Self::new`], with the end of the log in a region, which [`RegionLog::open`] found to belong to it.
    pub(crate) fn with_region(medium: &'a dyn LogMedium, region: Option<&'a RegionLog>, header: LogHeader) -> Self {
        Self { region, ..Self::new(medium, header) }
    }

    /// Where the log ends, once [`Replay::next`] has given `None`.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry; `None` at the end of the complete prefix.
    ///
    /// # Errors
    ///
    /// The medium cannot be read: then the end of the log is unknown, and taking the error for the end would lose synced
    /// entries.
    pub(crate) fn next(&mut self) -> Result<Option<Replayed<'_>>, StoreError> {
        let position = self.position;
        let limit = self.header.checkpoint + self.header.ring_length;
        let head_end = position + HEADER_WORDS * WORD;
        if position + ALIGNMENT > limit {
            return Ok(None);
        }
        self.load(position, head_end)?;
        let first = u64::from_le_bytes(self.bytes(position, position + WORD).try_into().expect("eight bytes"));
        let second = u64::from_le_bytes(self.bytes(position + WORD, position + 16).try_into().expect("eight bytes"));
        let Some(shape) = EntryShape::of(first).filter(|_| second == position) else { return Ok(None) };
        let end = position + shape.length();
        if end > limit {
            return Ok(None);
        }
        self.load(position, end)?;
        let decoded = decode(self.bytes(position, end), position, self.header.salt);
        let (generation, durable_through) = match decoded {
            Some(entry) if entry.generation >= self.generation && entry.generation <= self.header.generation => {
                (entry.generation, entry.durable_through)
            }
            _ => return Ok(None),
        };
        self.position = end;
        self.generation = generation;
        let from = position + shape.payload_start();
        let payload = self.bytes(from, from + shape.payload_length);
        Ok(Some(Replayed { position, end, generation, shape, durable_through, payload }))
    }

    fn bytes(&self, from: u64, to: u64) -> &[u8] {
        let index = |position: u64| usize::try_from(position - self.start).expect("the buffer fits into memory");
        &self.buffer[index(from)..index(to)]
    }

    /// Sees to it that the buffer covers `from .. to`.
    fn load(&mut self, from: u64, to: u64) -> Result<(), StoreError> {
        let covered = self.start + self.buffer.len() as u64;
        if from >= self.start && to <= covered {
            return Ok(());
        }
        self.start = from - from % BLOCK;
        let limit = self.header.checkpoint + self.header.ring_length;
        let end = to.max(self.start + READ_LENGTH).next_multiple_of(BLOCK).min(limit.next_multiple_of(BLOCK));
        let length = usize::try_from(end - self.start).expect("the buffer fits into memory");
        self.buffer.resize(length, 0);
        for (offset, start, end) in pieces(self.header.ring_length, self.start, end) {
            let index = |position: u64| usize::try_from(position - self.start).expect("the buffer fits into memory");
            let target = &mut self.buffer[index(start)..index(end)];
            self.medium.read(offset, target).map_err(|error| StoreError::Io(format!("reading the log: {error}")))?;
        }
        if let Some(region) = self.region {
            region.overlay(self.start, limit, &mut self.buffer);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_passes_the_end_of_the_ring_goes_on_at_its_beginning() {
        let found: Vec<_> = pieces(1000, 1900, 2300).collect();
        assert_eq!(found, [(HEADER_LENGTH + 900, 1900, 2000), (HEADER_LENGTH, 2000, 2300)]);
        assert_eq!(pieces(1000, 100, 100).count(), 0);
    }
}
