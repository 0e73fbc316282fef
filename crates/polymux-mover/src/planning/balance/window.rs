//! Which devices readers kept busy, and which tiers have nothing to do.
//!
//! Invariants:
//! * A device is considered busy for the bytes its tier read in a window, at the measured speed of such reads. Reads that would
//!   have taken much longer than the window came from memory, at least in part, and are not evaluated.
//! * No map is looked at: the cost does not depend on the size of files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use polymux_records::counters::Counters;
use polymux_records::parts::ReaderLayout;
use polymux_types::{Ino, TierId};
use polymux_volume::heat::ReadUse;
use polymux_volume::space::TierHandle;

use super::layout::picoseconds_per_byte;
use crate::Mover;
use crate::mover::layout_queue::{Added, Cause, QueuedFile};

/// Least length of a window.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Part of a window in percent for which reads must have kept a device busy. Less than 100: measurements are not exact, and the
/// window begins and ends at any time.
const BUSY_PERCENT_MIN: u128 = 70;

/// Reads that would have kept a device busy for more of the window came from memory.
const BUSY_PERCENT_MAX: u128 = 150;

/// How long a tier must have had nothing to do.
pub(crate) const REST_MIN: Duration = Duration::from_secs(2);

/// The work of a tier for readers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Its device had something to do nearly all of the time.
    KeptBusy,
    /// Its memory answered.
    FromMemory,
    /// It had time to spare, or its state is unknown.
    Else,
}

impl Mover {
    /// Evaluates the reads of a window that is over.
    pub(crate) fn end_window_of_readers(&self) {
        let Some((length, read)) = self.next_window() else { return };
        let uses = self.data.read_uses.take();
        if uses.is_empty() || self.volume.options.reader_layout == ReaderLayout::Never {
            return;
        }
        let tiers = self.volume.tiers.all();
        let reading: BTreeMap<TierId, Reading> =
            tiers.iter().map(|handle| (handle.id, reading_of(handle, &uses, read.get(&handle.id), length))).collect();
        if !reading.values().any(|reading| *reading == Reading::KeptBusy) {
            return;
        }
        for (ino, reads) in uses {
            let Ok(inode) = self.volume.inode(ino) else { continue };
            let Some(file) = inode.file() else { continue };
            let of_file: Vec<Option<Reading>> =
                file.layout.read().objects.iter().map(|entry| reading.get(&entry.tier).copied()).collect();
            let waited = of_file.contains(&Some(Reading::KeptBusy)) && !of_file.contains(&Some(Reading::FromMemory));
            let queued = QueuedFile::new(reads, Cause::ReadersWaited);
            if waited && self.layout_queue.state.lock().add(ino, queued) == Added::Yes {
                Counters::count(&self.volume.counters.windows_of_waiting_readers);
            }
        }
    }

    /// Begins the next window when it is due. Returns the length of the last one and the bytes that each tier read in it.
    fn next_window(&self) -> Option<(Duration, BTreeMap<TierId, u64>)> {
        let now = self.volume.clock.elapsed();
        let mut state = self.layout_queue.state.lock();
        let length = now.saturating_sub(state.window_began);
        if length < WINDOW_MIN {
            return None;
        }
        state.window_began = now;
        let bytes_of = |handle: &Arc<TierHandle>| Some((handle.id, handle.present()?.counters().bytes_read));
        let bytes_read: BTreeMap<TierId, u64> = self.volume.tiers.all().iter().filter_map(bytes_of).collect();
        let before = std::mem::replace(&mut state.bytes_read, bytes_read.clone());
        let since = |(tier, bytes): (TierId, u64)| Some((tier, bytes.saturating_sub(*before.get(&tier)?)));
        Some((length, bytes_read.into_iter().filter_map(since).collect()))
    }

    /// Tiers that no program used lately, and that have taken all that was written.
    pub(crate) fn tiers_at_rest(&self) -> Vec<TierId> {
        let now = self.volume.clock.elapsed();
        let mut state = self.layout_queue.state.lock();
        let mut at_rest = Vec::new();
        for handle in self.volume.tiers.all().iter() {
            // Asking for the load ends an interval that nothing else ends.
            let load = handle.speed.schedule.load(now);
            let is_busy = load.queue_depth > load.mover_queue_depth
                || handle.speed.schedule.foreground_is_active(now)
                || handle.bytes_behind() > 0;
            let seen = state.busy_seen.entry(handle.id).or_insert(now);
            if is_busy {
                *seen = now;
            }
            if now.saturating_sub(*seen) >= REST_MIN {
                at_rest.push(handle.id);
            }
        }
        at_rest
    }
}

/// The work of a tier in a window in which files were read so, if it has read that many bytes.
fn reading_of(
    handle: &TierHandle,
    uses: &BTreeMap<Ino, ReadUse>,
    bytes_read: Option<&u64>,
    length: Duration,
) -> Reading {
    let Some(bytes_read) = bytes_read.filter(|bytes| **bytes > 0) else { return Reading::Else };
    let (mut bytes, mut time) = (0, 0);
    for reads in uses.values() {
        let cost = handle.look_at_profile(|profile| picoseconds_per_byte(profile, reads));
        let Some(cost) = cost else { return Reading::Else };
        bytes += u128::from(reads.bytes());
        time += u128::from(reads.bytes()).saturating_mul(u128::from(cost));
    }
    let per_byte = time.checked_div(bytes).unwrap_or(0);
    let window = length.as_nanos().max(1) * 1000;
    let percent = u128::from(*bytes_read).saturating_mul(per_byte) / (window / 100).max(1);
    match percent {
        percent if percent > BUSY_PERCENT_MAX => Reading::FromMemory,
        percent if percent >= BUSY_PERCENT_MIN => Reading::KeptBusy,
        _ => Reading::Else,
    }
}
