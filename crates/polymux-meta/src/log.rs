//! One logical log, filled in parallel (A4-A9; DESIGN section 5).
//!
//! Invariants:
//! * A thread reserves its place by one atomic step on `tail`, copies its own entry into the window and goes on. No thread
//!   copies for another and none waits for a leader to copy.
//! * Four positions, always in this order:
//!   `checkpoint <= low <= durable <= complete <= tail`, and `low <= written <= complete`.
//!   Before `checkpoint` everything is in the tables; `low` is where the window begins; before `durable` everything
//!   survives a power failure; before `written` it was handed to the medium; before `complete` every entry is filled;
//!   before `tail` every place is taken.
//! * `complete`, `written`, `durable` and `low` are changed by the *leader* alone: the thread that found `leading` false.
//!   A sync is leaderless in that a thread that needs it becomes the leader for one flush of the complete prefix; those who
//!   wait meanwhile find it done, or one of them leads the next.
//! * The leader waits only for threads that are copying, never for one that waits: where a thread waits for space in the
//!   window, the leader first writes out the complete prefix.
//! * `tail` never passes `checkpoint` (rounded down to a block) plus the ring: entries that are not in the tables yet are not
//!   overwritten. An entry that does not fit there is refused before it takes a place.
//! * After a failed write the content of the medium is unknown: the log is poisoned, and every later call fails.
//!
//! ```text
//!  commit ──reserve──► fill ──► (memtable)                                      recovery: checkpoint ─► end
//!                        │                                                                    ▲
//!  sync ──► lead: walk to `complete` ─► copy out ─► one durable write ─► durable ─► wake      │
//!                                                        └──────────────► medium: header | ring
//! ```

mod block_file;
#[cfg(test)]
pub(crate) mod crash_medium;
#[cfg(all(test, not(shuttle)))]
mod crash_region;
mod entry_format;
mod flush;
mod formats;
mod header_format;
mod medium;
mod openings;
mod read_back;
mod region;
mod region_spill;
mod ring;
mod surviving;
mod surviving_format;
#[cfg(all(test, not(shuttle)))]
mod surviving_tests;
#[cfg(test)]
pub(crate) mod test_machine;
mod window;

use std::sync::{Arc, OnceLock};

pub(crate) use block_file::BlockFile;
pub(crate) use entry_format::{ALIGNMENT, entry_length};
pub(crate) use formats::on_disk_formats;
pub(crate) use header_format::{HEADER_LENGTH, LogHeader};
pub(crate) use medium::BlockBuffer;
pub use medium::{BLOCK, LogMedium};
pub(crate) use openings::Openings;
pub(crate) use read_back::cut_last_block;
pub(crate) use region::{LogRegion, REGION_DATA_LENGTH_MIN, REGION_HEADER_LENGTH, RegionLog};
pub use ring::{LogDamage, LogEnd};
pub(crate) use ring::{Replay, Replayed, pieces};
pub(crate) use surviving::{SurvivingWindow, Survivors};

use self::flush::Flush;
use self::region_spill::SpillUrgency;
use self::window::Window;
use crate::error::StoreError;
use crate::slots::{SLOT_LENGTH, SlotError, SlotRecord};
use polymux_types::sync::{AtomicU64, Condvar, Mutex, Ordering, thread};

/// Where the first entry of a new log begins. Not 0, so that no entry has the position that an empty word shows.
pub(crate) const FIRST_POSITION: u64 = ALIGNMENT;

/// How often a thread that waits for space checks whether any can become free.
const ROOM_LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(100);

/// An atomic that shares its cache line with nothing.
#[repr(align(128))]
struct Apart(AtomicU64);

/// Counters of a log since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Entries appended.
    pub entries: u64,
    /// Bytes of the payloads appended.
    pub payload_bytes: u64,
    /// Bytes appended, headers and padding included.
    pub appended_bytes: u64,
    /// Bytes written to the medium, blocks that are written again included.
    pub device_bytes: u64,
    /// Flushes of the medium.
    pub flushes: u64,
    /// Syncs that were asked for and were not durable already.
    pub syncs: u64,
    /// Times that a thread found no space in the ring, and waited for tables.
    pub stalls: u64,
}

#[derive(Default)]
struct Counts {
    entries: AtomicU64,
    payload_bytes: AtomicU64,
    device_bytes: AtomicU64,
    flushes: AtomicU64,
    stalls: AtomicU64,
}

/// The memory behind the window of a log.
pub(crate) enum WindowMemory {
    /// Memory of the process, so many bytes.
    Plain {
        /// A power of two.
        length: u64,
    },
    /// Memory that outlives the process.
    Surviving(SurvivingWindow),
}

/// The place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    position: u64,
    /// The byte after the entry: the position of the next.
    pub(crate) end: u64,
}

/// The log of a store that is open for writing.
pub(crate) struct Log {
    medium: Arc<dyn LogMedium>,
    window: Window,
    generation: u32,
    salt: u64,
    ring_length: u64,
    first: u64,
    tail: Apart,
    low: Apart,
    durable: Apart,
    checkpoint: AtomicU64,
    header: Mutex<LogHeader>,
    flush: Flush,
    room: Condvar,
    counts: Counts,
    poison: OnceLock<StoreError>,
}

impl Log {
    /// Writes the header of a new, empty log. The medium must be all zero.
    pub(crate) fn format(medium: &dyn LogMedium, store: u64, salt: u64) -> Result<(), StoreError> {
        let ring_length = medium
            .length()
            .checked_sub(HEADER_LENGTH)
            .map_or(0, |room| if room.is_power_of_two() { room } else { room.next_power_of_two() / 2 });
        assert!(ring_length >= 4 * BLOCK, "a log has room for a ring");
        let header = LogHeader {
            store,
            salt,
            ring_length,
            turn: 0,
            generation: 0,
            checkpoint_generation: 0,
            checkpoint: FIRST_POSITION,
            openings: Openings::UNKNOWN,
        };
        write_header(medium, &header)
    }

    /// Reads the header of a log, before anything is appended: replay starts from its checkpoint.
    pub(crate) fn read_header(medium: &dyn LogMedium) -> Result<LogHeader, StoreError> {
        let mut slots = vec![0; 2 * SLOT_LENGTH];
        medium
            .read(0, &mut slots)
            .map_err(|error| StoreError::Io(format!("reading the header of the log: {error}")))?;
        let header = LogHeader::newest(&slots).map_err(|error| match error {
            SlotError::Damaged => StoreError::Corrupted("both headers of the log are damaged".to_owned()),
            SlotError::NewerVersion(version) => {
                StoreError::Open(format!("the metadata log has format version {version}, made by a newer Polymux"))
            }
        })?;
        if HEADER_LENGTH + header.ring_length > medium.length() {
            return Err(StoreError::Corrupted("the log is shorter than its header says".to_owned()));
        }
        Ok(header)
    }

    /// Opens a log for writing, to continue at `position`, where replay found its end. Entries from surviving memory are in the ring.
    pub(crate) fn resume(
        medium: Arc<dyn LogMedium>,
        header: LogHeader,
        position: u64,
        window: WindowMemory,
    ) -> Result<Self, StoreError> {
        let header = next_life(header, position)?;
        let low = position - position % BLOCK;
        let mut block = vec![0; usize::try_from(BLOCK).expect("a block fits into memory")];
        let offset = HEADER_LENGTH + low % header.ring_length;
        medium.read(offset, &mut block).map_err(|error| StoreError::Io(format!("reading the log: {error}")))?;
        // A process that was killed may have written entries that it never flushed, and replay found them.
        medium.flush().map_err(|error| StoreError::of_write("flushing the log", &error))?;
        write_header(&*medium, &header)?;
        let window = match window {
            WindowMemory::Plain { length } => Window::new(length.min(header.ring_length)),
            // Its entries are in the ring by now.
            WindowMemory::Surviving(memory) => {
                memory.begin(&header, low);
                Window::in_surviving(memory)
            }
        };
        // The first block to be written already holds the end of the durable log.
        window.restore(low, position, &block);
        Ok(Self::begin(medium, header, window, low, position))
    }

    /// As [`Log::resume`], with the end of the log in a region.
    pub(crate) fn resume_in_region(
        medium: Arc<dyn LogMedium>,
        region: RegionLog,
        header: LogHeader,
        position: u64,
    ) -> Result<Self, StoreError> {
        let header = next_life(header, position)?;
        let held = region.low()..=region.low() + region.data_length();
        if !held.contains(&position) {
            return Err(StoreError::Corrupted("the log ends before what its region holds".to_owned()));
        }
        region.begin(header.generation, position)?;
        write_header(&*medium, &header)?;
        let low = region.low();
        Ok(Self::begin(medium, header, Window::in_region(region), low, position))
    }

    fn begin(medium: Arc<dyn LogMedium>, header: LogHeader, window: Window, low: u64, position: u64) -> Self {
        Self {
            window,
            generation: header.generation,
            salt: header.salt,
            ring_length: header.ring_length,
            first: position,
            tail: Apart(AtomicU64::new(position)),
            low: Apart(AtomicU64::new(low)),
            durable: Apart(AtomicU64::new(position)),
            checkpoint: AtomicU64::new(header.checkpoint),
            header: Mutex::new(header),
            flush: Flush::new(position),
            room: Condvar::new(),
            counts: Counts::default(),
            poison: OnceLock::new(),
            medium,
        }
    }

    /// Fails once a write has failed.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.poison.get() {
            Some(stays @ (StoreError::Poisoned(_) | StoreError::ReadOnly(_))) => Err(stays.clone()),
            Some(error) => Err(StoreError::Poisoned(error.to_string())),
            None => Ok(()),
        }
    }

    /// Stops the log for good. The first reason is the one that explains the others. The caller holds no lock of it.
    pub(crate) fn poison(&self, error: StoreError) -> StoreError {
        if self.poison.set(error.clone()).is_ok() {
            log::error!("metadata takes no more changes until the volume is mounted again: {error}");
        }
        // Each under its lock, so that no thread is between its check and its wait.
        drop(self.header.lock());
        self.room.notify_all();
        self.flush.wake();
        error
    }

    /// Takes a place for a payload of so many bytes; `None` where the ring has no space before a checkpoint advances.
    pub(crate) fn reserve(&self, payload_length: usize) -> Option<Place> {
        let length = entry_length(payload_length as u64);
        let mut position = self.tail.0.load(Ordering::Relaxed);
        loop {
            let checkpoint = self.checkpoint.load(Ordering::Acquire);
            let end = position + length;
            if end > checkpoint - checkpoint % BLOCK + self.ring_length {
                return None;
            }
            // An addition that is refused where it would pass the limit; under contention it is tried again.
            match self.tail.0.compare_exchange_weak(position, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(Place { position, end }),
                Err(now) => position = now,
            }
        }
    }

    /// Copies a payload into its place.
    pub(crate) fn fill(&self, place: Place, payload: &[u8]) -> Result<(), StoreError> {
        assert!(place.end - place.position <= self.entry_length_max(), "an entry fits into the window");
        while place.end > self.low.0.load(Ordering::Acquire) + self.window.length() {
            self.check()?;
            let moved = match self.window.region() {
                Some(region) => self.spill(region, SpillUrgency::Waiting)?,
                None => self.write_out()?,
            };
            if !moved {
                thread::yield_now();
            }
        }
        let durable = self.durable();
        if let Err(error) = self.window.fill(place.position, self.generation, self.salt, durable, payload) {
            return Err(self.poison(StoreError::Io(format!("writing the region of the log: {error}"))));
        }
        self.counts.entries.fetch_add(1, Ordering::Relaxed);
        self.counts.payload_bytes.fetch_add(payload.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Longest entry that can be filled.
    pub(crate) fn entry_length_max(&self) -> u64 {
        self.window.entry_length_max()
    }

    /// Where the next entry will begin.
    pub(crate) fn tail(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// Before this position everything survives a power failure.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.0.load(Ordering::Acquire)
    }

    /// Bytes of the ring.
    pub(crate) fn ring_length(&self) -> u64 {
        self.ring_length
    }

    /// Before this position everything is in the tables.
    pub(crate) fn checkpoint(&self) -> u64 {
        self.checkpoint.load(Ordering::Acquire)
    }

    /// Notes that everything before `position` is durable in the tables, and frees the ring up to there.
    pub(crate) fn advance_checkpoint(&self, position: u64) -> Result<(), StoreError> {
        assert!(position <= self.durable(), "tables never run ahead of the log");
        self.check()?;
        let mut header = self.header.lock();
        if position <= header.checkpoint {
            return Ok(());
        }
        // Behind where this opening began, everything is of this generation.
        let ours = position >= self.first;
        let checkpoint_generation = if ours { self.generation } else { header.checkpoint_generation };
        let next = LogHeader { checkpoint: position, checkpoint_generation, turn: header.turn + 1, ..*header };
        if let Err(error) = write_header(&*self.medium, &next) {
            drop(header);
            return Err(self.poison(error));
        }
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        *header = next;
        self.checkpoint.store(position, Ordering::Release);
        self.room.notify_all();
        Ok(())
    }

    /// Waits until the checkpoint is beyond `position`, the one that the caller saw when it found no space; not while
    /// `hopeless` says that there will be none.
    pub(crate) fn wait_for_room(&self, position: u64, hopeless: impl Fn() -> bool) -> Result<(), StoreError> {
        self.counts.stalls.fetch_add(1, Ordering::Relaxed);
        let mut header = self.header.lock();
        while header.checkpoint <= position {
            self.check()?;
            if hopeless() {
                return Err(StoreError::NoSpace);
            }
            self.room.wait_for(&mut header, ROOM_LOOK_INTERVAL);
        }
        Ok(())
    }

    /// Bytes of the window.
    pub(crate) fn window_length(&self) -> u64 {
        self.window.length()
    }

    /// Bytes of the medium.
    pub(crate) fn length(&self) -> u64 {
        self.medium.length()
    }

    /// Counters since it was opened.
    pub(crate) fn counters(&self) -> LogCounters {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogCounters {
            entries: count(&self.counts.entries),
            payload_bytes: count(&self.counts.payload_bytes),
            appended_bytes: self.tail() - self.first,
            device_bytes: count(&self.counts.device_bytes),
            flushes: count(&self.counts.flushes),
            syncs: self.flush.syncs(),
            stalls: count(&self.counts.stalls),
        }
    }

    /// Gives surviving memory up: everything is durable, and nothing is appended after this.
    pub(crate) fn discard_surviving(&self) {
        assert_eq!(self.durable(), self.tail(), "nothing is in memory alone");
        if let Some(memory) = self.window.surviving() {
            memory.discard();
        }
    }

    /// How the medium is written.
    pub(crate) fn description(&self) -> String {
        self.window.region().map_or_else(|| self.medium.description(), RegionLog::description)
    }
}

/// The header of the next opening, which begins at `position`.
fn next_life(header: LogHeader, position: u64) -> Result<LogHeader, StoreError> {
    let generation = header.generation.checked_add(1);
    let generation = generation.ok_or_else(|| StoreError::Corrupted("the generations are used up".to_owned()))?;
    Ok(LogHeader { generation, turn: header.turn + 1, openings: header.openings.and_then(position), ..header })
}

/// Writes a header to its slot, durably.
pub(crate) fn write_header(medium: &dyn LogMedium, header: &LogHeader) -> Result<(), StoreError> {
    let mut block = BlockBuffer::new(SLOT_LENGTH);
    block.as_mut_slice().copy_from_slice(&header.encode());
    let offset = header.offset();
    medium
        .write_durable(offset, block.as_slice())
        .map_err(|error| StoreError::of_write("writing the header of the log", &error))
}

#[cfg(all(test, shuttle))]
mod region_schedules;
#[cfg(all(test, not(shuttle)))]
mod region_tests;
#[cfg(test)]
mod tests;
