//! The write-behind queue of one tier: bytes gathered, waiting, and on their way to the device.
//!
//! Invariants:
//! * Waiting bytes count in `TierHandle::claim_bytes`, and once started, in the lane of the tier instead: the lane knows
//!   the work of the device, and nothing of queues.
//! * No more goes to the device than it absorbs in [`HORIZON`], as measured by its lane: a device that became slower gets less, and
//!   a faster one more.
//! * Bytes that a sync or the kernel may have written out while they waited here, and that therefore complete at once, say nothing
//!   about the speed of the device, and do not count as delivered.
//! * During urgent requests (`sched/deferral.rs`), the device has at most as much at once as one request of a mover: its work of
//!   [`TURN`]. The next turn asks again, and may go once the previous one is on the device.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use polymux_tier::ObjectRef;
use polymux_types::limits::RANGE_NODE_SIZE;

use super::gathering::{Gathering, PIECE_BYTES};
use super::turns::{Turns, Waiting};
use crate::sched::{Began, Deferrable, Ready, UNKNOWN_BYTES_PER_SECOND, Urgency};
use crate::space::TierHandle;

/// How long a device may need for the bytes on their way to it: more than the slices of 100 ms in which devices deliver, and
/// little, because that is how long a sync, or a read behind it, waits.
const HORIZON: Duration = Duration::from_millis(300);

/// How long a device may need for it while something urgent is in flight, as for a mover (DESIGN section 8).
const TURN: Duration = Duration::from_millis(10);

/// So much may be on its way to any tier: four ranges.
const ROOM_MIN: u64 = 4 * RANGE_NODE_SIZE;

/// Pieces of streams that wait to be begun on a tier. The bytes are in memory with them or without.
const STREAM_PIECES_MAX: usize = 1024;

/// Ranges of which parts are gathered or expected, from which on no part of another one is gathered: all are looked at in each step.
const GATHERED_MAX: usize = 256;

/// Pieces that waited this long may already have been written out by the kernel's periodic writeback.
const WRITTEN_OUT_AFTER: Duration = Duration::from_millis(100);

/// Rate over all outstanding bytes, in bytes per microsecond, above which a piece that may have been written out counts as written out.
const AT_ONCE_BYTES_PER_US: u64 = 4000;

/// A contiguous write to the device.
pub(super) struct Piece {
    handle: Arc<TierHandle>,
    object: ObjectRef,
    start: u64,
    end: u64,
    bytes: u64,
    /// When it began to wait.
    queued: Duration,
}

/// A piece that is on its way to the device.
pub(super) struct Begun {
    pub(super) piece: Piece,
    began: Began,
    at: Duration,
    /// A sync or the kernel may have written it out before: then bytes that were on their way with it, else none.
    may_be_clean_with: u64,
}

/// The next action for a tier.
pub(super) enum Next {
    /// These go to the device, and count as on their way.
    Begin(Vec<Begun>),
    /// The oldest that is on its way is waited for.
    WaitFor(Begun),
    /// Something urgent goes first; to be asked again after that.
    MakeWay(Duration),
    Nothing,
}

/// One tier.
pub(super) struct Queue {
    pub(super) handle: Arc<TierHandle>,
    pub(super) gathering: Gathering,
    waiting: Turns<Piece>,
    begun: VecDeque<Begun>,
    ready: Ready,
}

/// Bytes that a tier takes within a time, as far as it is known.
fn bytes_within(handle: &TierHandle, time: Duration, now: Duration) -> u64 {
    let lane = handle.speed.write_lane.state(now);
    let bandwidth = if lane.bytes_per_second == 0 { UNKNOWN_BYTES_PER_SECOND } else { lane.bytes_per_second };
    let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    bandwidth.saturating_mul(time_ms) / 1000
}

/// Bytes that may be on their way to a tier.
fn room_of(handle: &TierHandle, now: Duration) -> u64 {
    bytes_within(handle, HORIZON, now).max(ROOM_MIN)
}

/// Whether a tier takes another range within [`HORIZON`].
pub(super) fn has_room(handle: &TierHandle, now: Duration) -> bool {
    handle.bytes_behind() + RANGE_NODE_SIZE <= room_of(handle, now) && !handle.is_failing()
}

impl Piece {
    /// A piece whose bytes count as claimed.
    pub(super) fn new(
        handle: Arc<TierHandle>,
        object: ObjectRef,
        range: Range<u64>,
        bytes: u64,
        queued: Duration,
    ) -> Self {
        Self { handle, object, start: range.start, end: range.end, bytes, queued }
    }

    /// It goes to the device.
    fn begin(self, now: Duration) -> Begun {
        self.handle.unclaim_bytes(self.bytes);
        let began = self.handle.speed.write_lane.began(self.bytes, now);
        let may_be_clean = now.saturating_sub(self.queued) >= WRITTEN_OUT_AFTER
            || self.handle.speed.schedule.deferral().synced_since(self.queued);
        let may_be_clean_with = if may_be_clean { self.handle.speed.write_lane.outstanding_bytes() } else { 0 };
        Begun { piece: self, began, at: now, may_be_clean_with }
    }

    pub(super) fn begin_on_device(&self) {
        if let Some(device) = self.handle.present() {
            device.begin_write_back(self.object, self.start, self.end - self.start);
        }
    }
}

impl Waiting for Piece {
    fn object(&self) -> ObjectRef {
        self.object
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Begun {
    pub(super) fn wait_for_device(&self) {
        if let Some(device) = self.piece.handle.present() {
            device.wait_for_write_back(self.piece.object, self.piece.start, self.piece.end - self.piece.start);
        }
    }

    /// It is on the device.
    pub(super) fn ended(self, now: Duration) {
        let bytes = (self.piece.end - self.piece.start).min(self.piece.bytes);
        let took_us = u64::try_from(now.saturating_sub(self.at).as_micros()).unwrap_or(u64::MAX);
        let was_clean = took_us < self.may_be_clean_with / AT_ONCE_BYTES_PER_US;
        let delivered = if was_clean { 0 } else { bytes };
        self.piece.handle.speed.write_lane.ended(self.began, delivered, now);
    }
}

impl Queue {
    pub(super) fn new(handle: Arc<TierHandle>) -> Self {
        let gathering = Gathering::new(Arc::clone(&handle));
        Self { handle, gathering, waiting: Turns::new(), begun: VecDeque::new(), ready: Ready::default() }
    }

    /// Pieces that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A part of a range of a spread file was written.
    pub(super) fn note(&mut self, object: ObjectRef, range: Range<u64>, now: Duration) {
        if let Some(piece) = self.gathering.note(object, range, now) {
            self.waiting.push(piece);
        }
    }

    /// A part of a file was written that is on its way anyway. Returns how many bytes of it are taken: none where much waits already.
    pub(super) fn collected(&mut self, object: ObjectRef, range: Range<u64>, now: Duration) -> u64 {
        let begins_one = !self.gathering.has(object, range.start);
        if self.waiting.len() >= STREAM_PIECES_MAX || begins_one && self.gathering.len() >= GATHERED_MAX {
            return 0;
        }
        let bytes = range.end - range.start;
        self.note(object, range, now);
        bytes
    }

    /// A part of a stream was written. Returns how many bytes of it are taken.
    pub(super) fn stream(&mut self, object: ObjectRef, offset: u64, length: u64, now: Duration) -> u64 {
        let mut taken = 0;
        while taken < length && self.waiting.len() < STREAM_PIECES_MAX {
            let start = offset + taken;
            let end = (offset + length).min((start / PIECE_BYTES + 1) * PIECE_BYTES);
            self.handle.claim_bytes(end - start);
            self.waiting.push(Piece::new(Arc::clone(&self.handle), object, start..end, end - start, now));
            taken = end - offset;
        }
        taken
    }

    /// Tracks begun pieces as in flight.
    pub(super) fn follow(&mut self, begun: Vec<Begun>) {
        self.begun.extend(begun);
    }

    /// Decides the next action. Beside something urgent the device has one turn at a time, which asks before it goes.
    pub(super) fn next(&mut self, now: Duration) -> Next {
        for piece in self.gathering.age(now) {
            self.waiting.push(piece);
        }
        let urgency = self.handle.urgency(now);
        let on_device = self.handle.speed.write_lane.outstanding_bytes();
        let room = match urgency {
            Urgency::Quiet => room_of(&self.handle, now),
            Urgency::Urgent => bytes_within(&self.handle, TURN, now),
        };
        let may_begin = self.begun.is_empty() || urgency == Urgency::Quiet;
        let fits = |piece: &Piece, beside: u64| beside == 0 || beside + piece.bytes <= room;
        if may_begin && self.waiting.first().is_some_and(|piece| fits(piece, on_device)) {
            let wait =
                self.handle.speed.schedule.deferral().ask(Deferrable::WriteBehind, &mut self.ready, urgency, now);
            if !wait.is_zero() {
                return Next::MakeWay(wait);
            }
            let (mut begun, mut beside) = (Vec::new(), on_device);
            while self.waiting.first().is_some_and(|piece| fits(piece, beside)) {
                let Some(piece) = self.waiting.pop() else { break };
                beside += piece.bytes;
                begun.push(piece.begin(now));
            }
            return Next::Begin(begun);
        }
        // It waits for capacity, not for its turn.
        self.ready = Ready::default();
        self.begun.pop_front().map_or(Next::Nothing, Next::WaitFor)
    }
}
