//! Whether a copy knows more than its store, asked before anything of the copy is changed.
//!
//! Invariants:
//! * Transactions in a copy were durable in its store before they were shipped. So each later opening of the store began behind them, or
//!   the store lost some of them. The header of the log says where the last openings began (`log/openings.rs`).
//! * Where an opening is not on record there, the log decides, as far as it goes back: the last bytes of the copy are those of
//!   the store at the same position, or the store went on without them.
//! * A copy for which neither can be decided may be ahead, and is treated as if it were: one that was away for more openings than are on
//!   record (or for one of a program that recorded none), and whose log was written into tables when it was finished.

use std::path::Path;

use super::directory::{LOG_FILE, SLOT_FILE, failed, read_slot};
use super::slot_format::{FILE_LENGTH, Slot, SlotState};
use crate::error::StoreError;
use crate::log::{BLOCK, BlockFile, HEADER_LENGTH, Log, LogHeader, LogMedium, pieces};

/// Bytes before the end of the copy's log that are compared with the store's.
const COMPARED_LENGTH: u64 = 16 * BLOCK;

/// How the knowledge of a copy compares with its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// Nothing that the store does not know, or nothing that a store could be made of.
    Known,
    /// So many bytes of the log at least that the store has lost.
    Ahead(u64),
    /// The end of another history of the store.
    Other,
    /// It cannot be determined.
    Unclear,
}

impl Knowledge {
    /// Why a copy at `path` is refused; `None` where it is not.
    pub(super) fn refusal(self, path: &Path) -> Option<String> {
        let found = match self {
            Self::Known => return None,
            Self::Ahead(bytes) => {
                format!("it is ahead of the store by {bytes} bytes of the log: the store lost durable transactions")
            }
            Self::Other => "the store went on without what it holds: the store lost durable transactions".to_owned(),
            Self::Unclear => "it was away for so long that nothing tells whether it is ahead of the store".to_owned(),
        };
        Some(instead_of_making_anew(&found, path))
    }
}

/// Combines a finding about the copy at `path` with the advice for people.
pub(super) fn instead_of_making_anew(found: &str, path: &Path) -> String {
    format!(
        "{found}. It stays as it is, and there is no second copy meanwhile. To start from it: unmount, and `polymux mount \
         --from-copy`. To keep what the store has: remove {}, and a copy is made anew",
        path.display()
    )
}

/// Weighs the copy in a directory against an open store. Changes nothing.
///
/// # Errors
///
/// It cannot be read, or a newer program made it.
pub(super) fn weigh(path: &Path, log: &Log) -> Result<Knowledge, StoreError> {
    let Some(slot) = slot_in(path)? else { return Ok(Knowledge::Known) };
    match by_openings(&slot, &log.header(), log.durable()) {
        Knowledge::Unclear => {}
        known => return Ok(known),
    }
    let file = path.join(LOG_FILE);
    let ring = BlockFile::open(&file).map_err(|error| failed(&file, &error))?;
    by_log(&slot, &ring, log)
}

/// Reads the slot of the copy in a directory; `None` where it has none.
pub(super) fn slot_in(path: &Path) -> Result<Option<Slot>, StoreError> {
    let file = path.join(SLOT_FILE);
    if !file.try_exists().map_err(|error| failed(&file, &error))? {
        return Ok(None);
    }
    let slots = BlockFile::open(&file).map_err(|error| failed(&file, &error))?;
    if slots.length() < FILE_LENGTH {
        return Ok(None);
    }
    read_slot(&slots)
}

/// Weighs a copy by where the openings of the store began. `durable` is the end of the durable log.
pub(super) fn by_openings(slot: &Slot, header: &LogHeader, durable: u64) -> Knowledge {
    if slot.store != header.store || slot.state == SlotState::Incomplete {
        return Knowledge::Known;
    }
    if slot.arrived > durable {
        return Knowledge::Ahead(slot.arrived - durable);
    }
    if slot.generation > header.generation {
        return Knowledge::Unclear;
    }
    match header.openings.least_after(header.generation, slot.generation) {
        Some(least) if slot.arrived <= least => Knowledge::Known,
        Some(least) => Knowledge::Ahead(slot.arrived - least),
        None => Knowledge::Unclear,
    }
}

fn by_log(slot: &Slot, ring: &dyn LogMedium, log: &Log) -> Result<Knowledge, StoreError> {
    let header = log.header();
    let here = Log::read_header(ring)?;
    if (here.store, here.salt, here.ring_length) != (header.store, header.salt, header.ring_length) {
        return Ok(Knowledge::Unclear);
    }
    Ok(match ends_alike(ring, here.checkpoint, slot.arrived, log)? {
        Some(true) => Knowledge::Known,
        Some(false) => Knowledge::Other,
        None => Knowledge::Unclear,
    })
}

/// Whether the last bytes of a copy's log are those of the store; `None` where the store's log does not go back that far, or they
/// differ where the copy need not have them: entries before `checkpoint`, which its tables hold, were not always shipped.
pub(super) fn ends_alike(
    ring: &dyn LogMedium,
    checkpoint: u64,
    arrived: u64,
    log: &Log,
) -> Result<Option<bool>, StoreError> {
    let from = arrived.saturating_sub(COMPARED_LENGTH);
    if from >= arrived {
        return Ok(None);
    }
    let start = from - from % BLOCK;
    let length = |bytes: u64| usize::try_from(bytes).expect("what is compared fits into memory");
    let mut here = vec![0; length(arrived.next_multiple_of(BLOCK) - start)];
    let mut there = here.clone();
    read_ring(ring, log.ring_length(), start, &mut here)?;
    if !log.read_back(start, &mut there)? {
        return Ok(None);
    }
    let are_alike = |from: u64| {
        let range = length(from - start)..length(arrived - start);
        here[range.clone()] == there[range]
    };
    let needed = from.max(checkpoint);
    Ok(if needed < arrived { Some(are_alike(needed)) } else { are_alike(from).then_some(true) })
}

/// Reads blocks of a ring.
fn read_ring(ring: &dyn LogMedium, ring_length: u64, from: u64, blocks: &mut [u8]) -> Result<(), StoreError> {
    if ring.length() < HEADER_LENGTH + ring_length {
        return Err(StoreError::Corrupted("the log of the second copy is too short".to_owned()));
    }
    for (offset, start, end) in pieces(ring_length, from, from + blocks.len() as u64) {
        let index = |position: u64| usize::try_from(position - from).expect("the blocks fit into memory");
        let read = ring.read(offset, &mut blocks[index(start)..index(end)]);
        read.map_err(|error| StoreError::Io(format!("reading the log of a second copy: {error}")))?;
    }
    Ok(())
}
