//! The byte-addressable medium: a small region that holds the end of the log, in front of the block medium (A7, A8).
//!
//! ```text
//! byte 0      slot: magic | store id | bytes of data | version u32, generation u32 | turn | low | 0 | checksum
//! byte 2048   the other slot
//! byte 4096   data: position p of the log stands at p modulo the bytes of data, in the format of every entry
//! ```
//!
//! Invariants:
//! * `low` is a multiple of half of the data. Before it the log is on the block medium (or in the tables and nowhere
//!   else); from it on, up to the bytes of data, it is in the region and nowhere else.
//! * Both slots are written, one after the other, a line each, and the one with the greater turn counts. So a crash tears
//!   at most one of them, whichever counts then is true, and between changes the loss of either harms nothing.
//! * The generation of the region is that of the log's header, or the next one: it is written before the header at each
//!   opening. A region with any other belongs to another time of this store, and its content must not be replayed.
//! * The checksum of a slot begins with the salt of the store, so the region of another store is not taken for ours.
//! * Words are in the order of the processor: a region does not leave its machine.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::entry_format::WORD;
use super::header_format::LogHeader;
use super::medium::{BLOCK, BlockBuffer};
use crate::error::StoreError;
use polymux_types::sync::{AtomicU64, Mutex, Ordering};

/// Bytes before the data.
pub(crate) const REGION_HEADER_LENGTH: u64 = 4096;

/// Fewest bytes of data: a spill writes whole blocks, and entries need space beside it.
pub(crate) const REGION_DATA_LENGTH_MIN: u64 = 8 * BLOCK;

const MAGIC: u64 = u64::from_le_bytes(*b"PMUXLREG");
const VERSION: u32 = 1;
const SLOT_WORDS: usize = 8;
/// Words from one slot to the other: a block of the medium apart.
const SLOT_STRIDE: usize = 256;
/// Bytes of the log copied out at once by a spill.
const SPILL_CHUNK: u64 = 1024 * 1024;

/// Memory whose bytes survive a power failure once they were written back.
pub(crate) trait LogRegion: Send + Sync {
    /// All of it.
    fn words(&self) -> &[AtomicU64];

    /// Makes the lines of a range of bytes durable, before anything that is stored later.
    fn write_back(&self, bytes: Range<usize>) -> io::Result<()>;

    /// Description for people.
    fn description(&self) -> String;
}

#[cfg(not(shuttle))]
impl LogRegion for polymux_tier::mapped::MappedRegion {
    fn words(&self) -> &[AtomicU64] {
        Self::words(self)
    }

    fn write_back(&self, bytes: Range<usize>) -> io::Result<()> {
        Self::write_back(self, bytes)
    }

    fn description(&self) -> String {
        Self::description(self)
    }
}

/// Contents of a region header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegionHeader {
    store: u64,
    data_length: u64,
    generation: u32,
    turn: u64,
    low: u64,
}

impl RegionHeader {
    fn encode(&self, salt: u64) -> [u64; SLOT_WORDS] {
        let version = u64::from(VERSION) | u64::from(self.generation) << 32;
        let mut words = [MAGIC, self.store, self.data_length, version, self.turn, self.low, 0, 0];
        words[SLOT_WORDS - 1] = checksum(salt, &words);
        words
    }

    /// `None` where the slot was never written, is torn, or is another store's.
    fn decode(words: [u64; SLOT_WORDS], salt: u64) -> Option<Self> {
        let version = u32::try_from(words[3] & u64::from(u32::MAX)).ok()?;
        let whole = words[0] == MAGIC && version == VERSION && words[SLOT_WORDS - 1] == checksum(salt, &words);
        whole.then_some(Self {
            store: words[1],
            data_length: words[2],
            generation: u32::try_from(words[3] >> 32).ok()?,
            turn: words[4],
            low: words[5],
        })
    }
}

fn checksum(salt: u64, words: &[u64; SLOT_WORDS]) -> u64 {
    let mut sum = crc32c::crc32c(&salt.to_le_bytes());
    for word in &words[..SLOT_WORDS - 1] {
        sum = crc32c::crc32c_append(sum, &word.to_le_bytes());
    }
    u64::from(sum)
}

/// The format of a slot, for its fuzz targets; its checksum begins with `SALT`.
pub(super) fn on_disk_format() -> polymux_types::on_disk_format::OnDiskFormat {
    use polymux_types::on_disk_format::{FormatForm, OnDiskFormat};
    const SALT: u64 = 99;
    const SLOT_BYTES: usize = SLOT_WORDS * size_of::<u64>();
    fn words(bytes: &[u8]) -> Option<[u64; SLOT_WORDS]> {
        let bytes: &[u8; SLOT_BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        Some(std::array::from_fn(|index| u64::from_le_bytes(words[index])))
    }
    fn bytes(words: [u64; SLOT_WORDS]) -> Vec<u8> {
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }
    OnDiskFormat {
        name: "region-header",
        samples: || {
            let header = RegionHeader { store: 7, data_length: 1 << 20, generation: 3, turn: 4, low: 1 << 19 };
            vec![bytes(header.encode(SALT))]
        },
        repair: |slot| {
            if let Some(mut found) = words(slot) {
                found[SLOT_WORDS - 1] = checksum(SALT, &found);
                slot.copy_from_slice(&bytes(found));
            }
        },
        read_and_write: |slot| Some(bytes(RegionHeader::decode(words(slot)?, SALT)?.encode(SALT))),
        form: FormatForm::HasUnused,
    }
}

/// A region that belongs to an open log.
pub(crate) struct RegionLog {
    region: Arc<dyn LogRegion>,
    salt: u64,
    data_length: u64,
    header: Mutex<RegionHeader>,
    /// Bytes on their way to the block medium. The holder of the lock is the thread that spills.
    pub(super) spill_buffer: Mutex<BlockBuffer>,
}

impl RegionLog {
    /// Writes the header of an empty log into a region.
    pub(crate) fn format(region: &dyn LogRegion, store: u64, salt: u64) -> Result<(), StoreError> {
        let data_length = data_length_of(region)?;
        let header = RegionHeader { store, data_length, generation: 0, turn: 0, low: 0 };
        write_slots(region, &header, salt)
    }

    /// Takes the region that belongs to a log. Nothing is changed.
    pub(crate) fn open(region: Arc<dyn LogRegion>, log: &LogHeader) -> Result<Self, StoreError> {
        let refuse = |reason: &str| Err(StoreError::Open(format!("the region of the metadata log: {reason}")));
        let data_length = data_length_of(&*region)?;
        let slots = [0, 1].map(|slot| RegionHeader::decode(read_slot(&*region, slot), log.salt));
        let Some(header) = slots.into_iter().flatten().max_by_key(|header| header.turn) else {
            return refuse("it is damaged, or it belongs to another store");
        };
        if header.store != log.store || header.data_length != data_length {
            return refuse("it belongs to another store");
        }
        if header.generation < log.generation {
            return refuse("it is an old copy: the store was used since with another one");
        }
        if header.generation - log.generation > 1 {
            return refuse("it is newer than the store, which is an old copy");
        }
        // The values that a region of this generation can have; anything else was not written by us.
        let sane = header.low.is_multiple_of(data_length / 2)
            && header.low <= log.checkpoint + log.ring_length
            && log.checkpoint <= header.low + data_length;
        if !sane || data_length > log.ring_length {
            return Err(StoreError::Corrupted("the region does not fit its log".to_owned()));
        }
        let length = usize::try_from((data_length / 2).min(SPILL_CHUNK)).expect("a chunk fits into memory");
        let spill_buffer = Mutex::new(BlockBuffer::new(length));
        Ok(Self { region, salt: log.salt, data_length, header: Mutex::new(header), spill_buffer })
    }

    /// Begins the next life of the log, which goes on at `end`: the entries that replay found are made durable, because an earlier
    /// process may have died between storing it and writing it back.
    pub(super) fn begin(&self, generation: u32, end: u64) -> Result<(), StoreError> {
        self.write_back(self.low()..end).map_err(|error| failed(&error))?;
        self.write_header(|header| header.generation = generation)
    }

    /// The log is in the region from this position on.
    pub(crate) fn low(&self) -> u64 {
        self.header.lock().low
    }

    /// Bytes of the log that fit.
    pub(crate) fn data_length(&self) -> u64 {
        self.data_length
    }

    /// Records that the log is on the block medium up to `low`, durably.
    pub(super) fn set_low(&self, low: u64) -> Result<(), StoreError> {
        assert!(low.is_multiple_of(self.data_length / 2), "the halves of a region are given up whole");
        self.write_header(|header| header.low = low)
    }

    fn write_header(&self, change: impl FnOnce(&mut RegionHeader)) -> Result<(), StoreError> {
        let mut header = self.header.lock();
        let mut next = RegionHeader { turn: header.turn + 1, ..*header };
        change(&mut next);
        write_slots(&*self.region, &next, self.salt)?;
        *header = next;
        Ok(())
    }

    /// The words of the data.
    pub(super) fn data(&self) -> &[AtomicU64] {
        &self.region.words()[index(REGION_HEADER_LENGTH / WORD)..]
    }

    /// Makes a range of positions durable that the region holds.
    pub(super) fn write_back(&self, positions: Range<u64>) -> io::Result<()> {
        assert!(positions.end - positions.start <= self.data_length, "a region holds its data once");
        let mut at = positions.start;
        while at < positions.end {
            let offset = at % self.data_length;
            let piece = (positions.end - at).min(self.data_length - offset);
            let start = index(REGION_HEADER_LENGTH + offset);
            self.region.write_back(start..start + index(piece))?;
            at += piece;
        }
        Ok(())
    }

    /// Replaces those of the `bytes` of the log from `start` on that are not on the block medium. `limit` is where the ring
    /// of the block medium ends: no entry lies beyond it.
    pub(crate) fn overlay(&self, start: u64, limit: u64, bytes: &mut [u8]) {
        let low = self.low();
        let from = start.max(low);
        let to = (start + bytes.len() as u64).min(limit).min(low + self.data_length);
        let data = self.data();
        for position in (from..to).step_by(index(WORD)) {
            let word = data[index(position % self.data_length / WORD)].load(Ordering::Relaxed);
            let at = index(position - start);
            // The end of the ring may lie within a block, never within a word.
            bytes[at..at + index(WORD)].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Description for people.
    pub(crate) fn description(&self) -> String {
        self.region.description()
    }
}

fn data_length_of(region: &dyn LogRegion) -> Result<u64, StoreError> {
    let length = region.words().len() as u64 * WORD;
    match length.checked_sub(REGION_HEADER_LENGTH) {
        Some(data) if data.is_power_of_two() && data >= REGION_DATA_LENGTH_MIN => Ok(data),
        _ => Err(StoreError::Open(format!("{length} bytes cannot be the region of a metadata log"))),
    }
}

fn read_slot(region: &dyn LogRegion, slot: usize) -> [u64; SLOT_WORDS] {
    std::array::from_fn(|word| region.words()[slot * SLOT_STRIDE + word].load(Ordering::Acquire))
}

fn write_slots(region: &dyn LogRegion, header: &RegionHeader, salt: u64) -> Result<(), StoreError> {
    for first in [0, SLOT_STRIDE] {
        for (word, value) in region.words()[first..].iter().zip(header.encode(salt)) {
            word.store(value, Ordering::Release);
        }
        let start = first * size_of::<u64>();
        region.write_back(start..start + SLOT_WORDS * size_of::<u64>()).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn failed(error: &io::Error) -> StoreError {
    StoreError::Io(format!("writing the region of the log: {error}"))
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("a region fits into memory")
}
