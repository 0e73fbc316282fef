//! Gathers the writes of spread files until a mebibyte is complete, and tracks ranges assigned to a tier whose bytes have not arrived.
//!
//! Invariants: each byte in here counts in `TierHandle::claim_bytes`, until it is on its way to the device or is not
//! expected any more. Bytes that were handed over go on counting there.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use polymux_tier::ObjectRef;
use polymux_types::limits::RANGE_NODE_SIZE;

use super::queue::Piece;
use crate::space::TierHandle;

/// Bytes of a range that go to the device as one.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// How long fewer wait for more.
pub(super) const GATHER: Duration = Duration::from_millis(100);

/// How long a range that was given to a tier is waited for.
pub(super) const CLAIM_AGE_MAX: Duration = Duration::from_secs(1);

/// A range of an object, by its number.
type Place = (ObjectRef, u64);

/// State of a range that is being written.
struct Gathered {
    /// Bytes that were written and are not handed over: from where to where, and how many (again written ones twice).
    start: u64,
    end: u64,
    bytes: u64,
    /// Bytes that are expected.
    claimed: u64,
    touched: Duration,
}

/// Of one tier.
pub(super) struct Gathering {
    handle: Arc<TierHandle>,
    ranges: HashMap<Place, Gathered>,
}

impl Gathering {
    pub(super) fn new(handle: Arc<TierHandle>) -> Self {
        Self { handle, ranges: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Ranges of which parts are gathered or expected.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether a part of the range is gathered or expected in which an offset lies.
    pub(super) fn has(&self, object: ObjectRef, offset: u64) -> bool {
        self.ranges.contains_key(&(object, offset / RANGE_NODE_SIZE))
    }

    /// Bytes of an object from an offset on are going to be written.
    pub(super) fn claim(&mut self, object: ObjectRef, offset: u64, length: u64, now: Duration) {
        let gathered = Gathered { start: 0, end: 0, bytes: 0, claimed: 0, touched: now };
        let gathered = self.ranges.entry((object, offset / RANGE_NODE_SIZE)).or_insert(gathered);
        self.handle.claim_bytes(length);
        gathered.claimed += length;
        gathered.touched = now;
    }

    /// A part of one range was written. Returns the piece that it completes.
    pub(super) fn note(&mut self, object: ObjectRef, range: Range<u64>, now: Duration) -> Option<Piece> {
        let Range { start, end } = range;
        let place = (object, start / RANGE_NODE_SIZE);
        let gathered = self.ranges.entry(place).or_insert(Gathered { start, end, bytes: 0, claimed: 0, touched: now });
        let bytes = end - start;
        // The expected bytes are here now, and count as before.
        let expected = bytes.min(gathered.claimed);
        gathered.claimed -= expected;
        self.handle.claim_bytes(bytes - expected);
        let is_first = gathered.bytes == 0;
        gathered.start = if is_first { start } else { gathered.start.min(start) };
        gathered.end = if is_first { end } else { gathered.end.max(end) };
        gathered.bytes += bytes;
        gathered.touched = now;
        let is_complete = gathered.bytes >= PIECE_BYTES || gathered.end.is_multiple_of(RANGE_NODE_SIZE);
        if is_complete { self.hand_over(place, now) } else { None }
    }

    /// Hands over the gathered bytes of a range; forgets the range where no more bytes are expected.
    fn hand_over(&mut self, place: Place, now: Duration) -> Option<Piece> {
        let gathered = self.ranges.get_mut(&place)?;
        let Gathered { start, end, bytes, .. } = *gathered;
        gathered.bytes = 0;
        if gathered.claimed == 0 {
            self.ranges.remove(&place);
        }
        (bytes > 0).then(|| Piece::new(Arc::clone(&self.handle), place.0, start..end, bytes, now))
    }

    /// Hands over bytes that waited long enough for more, and drops expectations that were not met.
    pub(super) fn age(&mut self, now: Duration) -> Vec<Piece> {
        let age = |gathered: &Gathered| now.saturating_sub(gathered.touched);
        let due = |gathered: &Gathered| gathered.bytes > 0 && age(gathered) >= GATHER;
        let places: Vec<Place> =
            self.ranges.iter().filter(|(_, gathered)| due(gathered)).map(|(place, _)| *place).collect();
        let pieces = places.into_iter().filter_map(|place| self.hand_over(place, now)).collect();
        let handle = &self.handle;
        self.ranges.retain(|_, gathered| {
            let is_stale = gathered.bytes == 0 && age(gathered) >= CLAIM_AGE_MAX;
            if is_stale {
                handle.unclaim_bytes(gathered.claimed);
            }
            !is_stale
        });
        pieces
    }
}
