//! The window in memory that outlives the process, and recovery of the entries that the last process left in it (docs/design/0023).
//!
//! Invariants:
//! * The window of one opening is bound to the generation of the log. The next opening takes its entries up in this order:
//!   they are written to the ring behind its end; the ring is flushed; the header of the next generation; only then the
//!   window is made anew. So they are in the ring or in the window at each moment, and taking them up may be repeated.
//! * A thread that died while it filled its place leaves a gap, and entries of others behind it were acknowledged. A gap was
//!   never answered and nothing depends on it: a thread that needs the change of a transaction waits until it is committed. Gaps become
//!   entries without changes, so that the ring is whole.
//! * The entries taken up are whole, each with its own position, generation, and salted checksum.

use std::sync::Arc;

use polymux_types::surviving::{SurvivingMemory, SurvivingPlace, boot_words, snapshot};

use super::entry_format::{ALIGNMENT, EntryShape, WORD, decode, encode as encode_entry};
use super::header_format::{HEADER_LENGTH, LogHeader};
use super::medium::{BLOCK, BlockBuffer, LogMedium};
use super::ring::{LogDamage, Replayed, pieces};
use super::surviving_format::{HEADER_WORDS, LOW_WORD, encode, refusal};
use crate::error::StoreError;
use polymux_types::sync::{AtomicU64, Ordering};

/// Name of the memory that belongs to a store.
fn name_of(store: u64) -> String {
    format!("{store:016x}.window")
}

fn bytes_of(window_length: u64) -> u64 {
    HEADER_WORDS as u64 * WORD + window_length
}

/// Surviving memory that holds the window of an open log.
pub(crate) struct SurvivingWindow {
    memory: Arc<dyn SurvivingMemory>,
    boot: [u64; 2],
}

impl SurvivingWindow {
    /// The memory of a store, for a window of so many bytes. Nothing in it is changed.
    ///
    /// # Errors
    ///
    /// Why there is none to be had, for people.
    pub(crate) fn open(place: &dyn SurvivingPlace, header: &LogHeader, window_length: u64) -> Result<Self, String> {
        let memory = place.open(&name_of(header.store), bytes_of(window_length))?;
        Ok(Self { memory, boot: boot_words(place.boot()) })
    }

    /// Finds the entries that the last process left in it.
    pub(crate) fn survivors(&self, header: &LogHeader) -> Result<Survivors, &'static str> {
        Survivors::of(&snapshot(self.memory.words()), header, self.boot)
    }

    /// Empties it for the opening that `header` says, whose window begins at `low`.
    pub(super) fn begin(&self, header: &LogHeader, low: u64) {
        let words = self.memory.words();
        // The header goes first: while the rest is emptied no process takes anything out of it.
        for word in words {
            word.store(0, Ordering::Release);
        }
        self.set_low(low);
        for (word, value) in words.iter().zip(encode(header, self.length(), self.boot)) {
            word.store(value, Ordering::Release);
        }
    }

    /// Notes that the ring has everything before `low`.
    pub(super) fn set_low(&self, low: u64) {
        self.memory.words()[LOW_WORD].store(low, Ordering::Release);
    }

    fn length(&self) -> u64 {
        self.words().len() as u64 * WORD
    }

    /// The words of the window.
    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.memory.words()[HEADER_WORDS..]
    }

    pub(crate) fn description(&self) -> String {
        self.memory.description()
    }

    /// Removes it: all of it is durable in the log, or belongs to a store that is lost.
    pub(crate) fn discard(&self) {
        self.memory.words()[0].store(0, Ordering::Release);
        self.memory.discard();
    }
}

/// The bytes of a window that outlived its process.
pub(crate) struct Survivors {
    /// From the position 0 of the window on.
    bytes: Vec<u8>,
    /// The ring has everything before it.
    low: u64,
    header: LogHeader,
}

impl Survivors {
    fn of(words: &[u64], header: &LogHeader, boot: [u64; 2]) -> Result<Self, &'static str> {
        let window = words.get(HEADER_WORDS..).unwrap_or_default();
        if !window.len().is_power_of_two() {
            return Err("it is too short");
        }
        match refusal(words, header, window.len() as u64 * WORD, boot) {
            Some(reason) => Err(reason),
            None => {
                let bytes = window.iter().flat_map(|word| word.to_le_bytes()).collect();
                Ok(Self { bytes, low: words[LOW_WORD], header: *header })
            }
        }
    }

    /// Reads, without changing it, the memory that the last process left of a store with a window of this length; `None` where there is
    /// nothing that could be taken up.
    pub(crate) fn read(place: &dyn SurvivingPlace, header: &LogHeader, window_length: u64) -> Option<Self> {
        let words = place.read(&name_of(header.store), bytes_of(window_length))?;
        Self::of(&words, header, boot_words(place.boot())).ok()
    }

    /// The damage proved where the ring ends before the entries that the window still holds: a device lost acknowledged writes.
    pub(crate) fn lost_writes(&self, ring_end: u64) -> Option<LogDamage> {
        (ring_end < self.low).then_some(LogDamage::WritesLost { position: ring_end, had: self.low })
    }

    /// Visits the entries behind the end of the ring, in order, and returns the bytes to be written there.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupted`] where the ring ends before the entries that the window holds: it lost writes. Otherwise the
    /// error of `visit`.
    pub(crate) fn take_up(
        &self,
        ring_end: u64,
        mut visit: impl FnMut(Replayed<'_>) -> Result<(), StoreError>,
    ) -> Result<TakenUp, StoreError> {
        if let Some(damage) = self.lost_writes(ring_end) {
            return Err(StoreError::Corrupted(damage.to_string()));
        }
        let limit = self.header.checkpoint + self.header.ring_length;
        let last = (ring_end + self.bytes.len() as u64).min(limit);
        let mut taken = TakenUp { start: ring_end, bytes: Vec::new(), entries: 0 };
        let mut at = ring_end;
        while at < last {
            let Some(entry) = self.entry_at(at, limit) else {
                at += ALIGNMENT;
                continue;
            };
            taken.fill_gap(at, &self.header);
            taken.entries += 1;
            at += entry.len() as u64;
            let decoded = decode(&entry, at - entry.len() as u64, self.header.salt).expect("it was decoded before");
            visit(Replayed {
                position: taken.end(),
                end: at,
                generation: decoded.generation,
                shape: self.shape_at(taken.end()).expect("it was decoded before"),
                durable_through: decoded.durable_through,
                payload: decoded.payload,
            })?;
            taken.bytes.extend_from_slice(&entry);
        }
        Ok(taken)
    }

    /// The bytes of the whole entry at a position, where there is one.
    fn entry_at(&self, position: u64, limit: u64) -> Option<Vec<u8>> {
        let length = self.shape_at(position)?.length();
        if length > self.bytes.len() as u64 || position + length > limit {
            return None;
        }
        let bytes: Vec<u8> =
            (0..length).step_by(8).flat_map(|offset| self.word(position + offset).to_le_bytes()).collect();
        let generation = decode(&bytes, position, self.header.salt)?.generation;
        (generation == self.header.generation).then_some(bytes)
    }

    fn shape_at(&self, position: u64) -> Option<EntryShape> {
        EntryShape::of(self.word(position)).filter(|_| self.word(position + WORD) == position)
    }

    fn word(&self, position: u64) -> u64 {
        let at = usize::try_from(position).expect("positions fit into an address") & (self.bytes.len() - 1);
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("a window is whole words"))
    }
}

/// Entries that go behind the end of the ring.
pub(crate) struct TakenUp {
    start: u64,
    bytes: Vec<u8>,
    entries: u64,
}

impl TakenUp {
    /// Where the log ends with them.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// How many there are.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Puts entries without changes where a place was never filled.
    fn fill_gap(&mut self, to: u64, header: &LogHeader) {
        while self.end() < to {
            let position = self.end();
            self.bytes.extend(encode_entry(position, header.generation, header.salt, 0, &[]));
        }
    }

    /// Writes them to the ring, durably.
    pub(crate) fn write(&self, medium: &dyn LogMedium, header: &LogHeader) -> Result<(), StoreError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let failed = |error: std::io::Error| StoreError::Io(format!("writing what was in memory to the log: {error}"));
        let index = |position: u64| usize::try_from(position).expect("a window fits into memory");
        let from = self.start - self.start % BLOCK;
        let to = self.end().next_multiple_of(BLOCK);
        let mut buffer = BlockBuffer::new(index(to - from));
        // The first block begins with bytes that the ring already holds.
        let offset = HEADER_LENGTH + from % header.ring_length;
        medium.read(offset, &mut buffer.as_mut_slice()[..index(BLOCK)]).map_err(failed)?;
        let blocks = buffer.as_mut_slice();
        blocks[index(self.start - from)..].fill(0);
        blocks[index(self.start - from)..index(self.end() - from)].copy_from_slice(&self.bytes);
        for (offset, start, end) in pieces(header.ring_length, from, to) {
            medium.write(offset, &blocks[index(start - from)..index(end - from)]).map_err(failed)?;
        }
        medium.flush().map_err(failed)
    }
}
