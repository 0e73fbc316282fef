//! What spread files are writing: begun early on every tier, followed until it is on the device, and never more of it at once
//! than a device takes in [`HORIZON`] (docs/design/0018).
//!
//! What is true here:
//! * The bytes are in the memory of the tier's file system. Nothing here is needed for them to be read or made durable, and no
//!   error is heard here: whatever could not be written is told by the next sync of the object.
//! * So a writer waits for a device only where it would begin a new range, before it takes any lock, until *one* of its tiers
//!   has room, and never longer than [`PATIENCE`]. A slow tier holds up nobody who may write to another one.
//! * Each tier has one thread that begins and waits, started with its first bytes once [`WriteBehind::allow_threads`] was
//!   called. One that hangs in its tier keeps nobody else. Before that whoever waits for room does the work, and
//!   `FileSystem::step` does.
//! * A range that was given to a tier counts there at once, although its bytes come later: of many writers who ask at the same
//!   time each sees what the others were given. What does not come within [`CLAIM_AGE_MAX`] is forgotten.
//! * Background work is `Shared::step`; the thread is a loop around it. The lock is held for no call of a tier.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use polymux_tier::ObjectRef;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::sync::{Condvar, Mutex};
use polymux_types::{Clock, TierId};

use super::tier_set::TierHandle;
use crate::sched::Began;

/// How long a device may need for what is on its way to it: more than the slices of 100 ms in which devices deliver, and
/// little, because that is how long a sync, or a read behind it, waits.
const HORIZON: Duration = Duration::from_millis(300);

/// So much may be on its way to any tier: four ranges.
const ROOM_MIN: u64 = 4 * RANGE_NODE_SIZE;

/// Bytes per second of a device of which nothing is known.
const BANDWIDTH_UNKNOWN: u64 = 100_000_000;

/// Bytes of a range that go to the device as one.
const PIECE_BYTES: u64 = 1 << 20;

/// How long fewer wait for more.
const GATHER: Duration = Duration::from_millis(100);

/// How long a range that was given to a tier is waited for.
const CLAIM_AGE_MAX: Duration = Duration::from_secs(1);

/// How long a writer waits for room at most. Then it goes on, and the kernel holds it up where it wants to.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often whoever waits looks again, in case that a tier is measured to be faster.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A range of an object, by its number.
type Place = (ObjectRef, u64);

/// What is known of a range that is being written.
struct Gathered {
    /// Bytes that were written and are not begun: from where to where, and how many (again written ones twice).
    start: u64,
    end: u64,
    bytes: u64,
    /// Bytes that are expected.
    claimed: u64,
    touched: Duration,
}

/// What goes to the device, or is on its way.
struct Piece {
    handle: Arc<TierHandle>,
    object: ObjectRef,
    start: u64,
    end: u64,
    began: Began,
}

/// One tier.
struct Queue {
    handle: Arc<TierHandle>,
    gathered: HashMap<Place, Gathered>,
    waiting: VecDeque<Piece>,
    begun: VecDeque<Piece>,
}

#[derive(Default)]
struct State {
    queues: HashMap<TierId, Queue>,
    threads: Vec<std::thread::JoinHandle<()>>,
    threads_allowed: bool,
    /// Steps that are in a call of their tier.
    busy: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// For the threads: there is something to do.
    work: Condvar,
    /// For writers: something is on the device.
    done: Condvar,
}

/// Whether a step found something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Worked,
    Nothing,
}

impl Queue {
    fn new(handle: Arc<TierHandle>) -> Self {
        Self { handle, gathered: HashMap::new(), waiting: VecDeque::new(), begun: VecDeque::new() }
    }

    /// Hands over what was gathered of a range; forgets the range where nothing more of it is expected.
    fn hand_over(&mut self, place: Place, now: Duration) {
        let Some(gathered) = self.gathered.get_mut(&place) else { return };
        if gathered.bytes > 0 {
            self.handle.unclaim_bytes(gathered.bytes);
            let began = self.handle.write_lane.began(gathered.bytes, now);
            let (start, end) = (gathered.start, gathered.end);
            self.waiting.push_back(Piece { handle: Arc::clone(&self.handle), object: place.0, start, end, began });
            gathered.bytes = 0;
        }
        if gathered.claimed == 0 {
            self.gathered.remove(&place);
        }
    }

    fn note(&mut self, object: ObjectRef, (start, end): (u64, u64), now: Duration) {
        let place = (object, start / RANGE_NODE_SIZE);
        let gathered =
            self.gathered.entry(place).or_insert(Gathered { start, end, bytes: 0, claimed: 0, touched: now });
        let bytes = end - start;
        // What was expected of it is there now, and counts as before.
        let expected = bytes.min(gathered.claimed);
        gathered.claimed -= expected;
        self.handle.claim_bytes(bytes - expected);
        let is_first = gathered.bytes == 0;
        gathered.start = if is_first { start } else { gathered.start.min(start) };
        gathered.end = if is_first { end } else { gathered.end.max(end) };
        gathered.bytes += bytes;
        gathered.touched = now;
        if gathered.bytes >= PIECE_BYTES || gathered.end.is_multiple_of(RANGE_NODE_SIZE) {
            self.hand_over(place, now);
        }
    }

    /// What waited long enough goes to the device, what did not come is not expected any more.
    fn age(&mut self, now: Duration) {
        let age = |gathered: &Gathered| now.saturating_sub(gathered.touched);
        let due = |gathered: &Gathered| gathered.bytes > 0 && age(gathered) >= GATHER;
        let places: Vec<Place> =
            self.gathered.iter().filter(|(_, gathered)| due(gathered)).map(|(place, _)| *place).collect();
        for place in places {
            self.hand_over(place, now);
        }
        let handle = &self.handle;
        self.gathered.retain(|_, gathered| {
            let is_stale = gathered.bytes == 0 && age(gathered) >= CLAIM_AGE_MAX;
            if is_stale {
                handle.unclaim_bytes(gathered.claimed);
            }
            !is_stale
        });
    }
}

impl Shared {
    /// Does the next thing for a tier: begins what waits, or waits for the oldest that was begun.
    fn step(&self, tier: TierId, clock: &dyn Clock) -> Step {
        let mut state = self.state.lock();
        if state.closed {
            return Step::Nothing;
        }
        let Some(queue) = state.queues.get_mut(&tier) else { return Step::Nothing };
        queue.age(clock.elapsed());
        let waiting = std::mem::take(&mut queue.waiting);
        if waiting.is_empty() && queue.begun.is_empty() {
            return Step::Nothing;
        }
        state.busy += 1;
        drop(state);
        for piece in &waiting {
            if let Some(device) = piece.handle.present() {
                device.begin_write_back(piece.object, piece.start, piece.end - piece.start);
            }
        }
        let mut state = self.state.lock();
        let oldest = state.queues.get_mut(&tier).and_then(|queue| {
            queue.begun.extend(waiting);
            queue.begun.pop_front()
        });
        drop(state);
        if let Some(piece) = oldest {
            let length = piece.end - piece.start;
            if let Some(device) = piece.handle.present() {
                device.wait_for_write_back(piece.object, piece.start, length);
            }
            piece.handle.write_lane.ended(piece.began, length.min(piece.began.bytes()), clock.elapsed());
        }
        self.state.lock().busy -= 1;
        self.done.notify_all();
        Step::Worked
    }

    fn serve(&self, tier: TierId, clock: &dyn Clock) {
        loop {
            let step = self.step(tier, clock);
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            // What came since the step is seen here: it is added under the same lock.
            let queue = state.queues.get(&tier);
            let has_work = queue.is_some_and(|queue| !queue.waiting.is_empty());
            let is_gathering = queue.is_some_and(|queue| !queue.gathered.is_empty());
            if step == Step::Worked || has_work {
                continue;
            }
            if is_gathering {
                self.work.wait_for(&mut state, GATHER / 2);
            } else {
                self.work.wait(&mut state);
            }
        }
    }
}

/// The queues and threads of one volume.
pub(crate) struct WriteBehind {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
}

impl WriteBehind {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { shared: Arc::default(), clock }
    }

    /// From now on each tier that is written to gets a thread.
    pub(crate) fn allow_threads(&self) {
        self.shared.state.lock().threads_allowed = true;
    }

    /// What a thread of the tier would do next. Returns whether there was something.
    pub(crate) fn step(&self, tier: TierId) -> bool {
        self.shared.step(tier, self.clock.as_ref()) == Step::Worked
    }

    /// Bytes of an object from an offset on are going to be written.
    pub(crate) fn claim(&self, handle: &Arc<TierHandle>, object: ObjectRef, offset: u64, length: u64) {
        self.with_queue(handle, |queue, now| {
            let gathered = Gathered { start: 0, end: 0, bytes: 0, claimed: 0, touched: now };
            let gathered = queue.gathered.entry((object, offset / RANGE_NODE_SIZE)).or_insert(gathered);
            handle.claim_bytes(length);
            gathered.claimed += length;
            gathered.touched = now;
        });
    }

    /// Bytes of an object were written to its tier.
    pub(crate) fn wrote(&self, handle: &Arc<TierHandle>, object: ObjectRef, offset: u64, length: usize) {
        self.with_queue(handle, |queue, now| {
            let (mut start, last) = (offset, offset + length as u64);
            while start < last {
                let end = last.min((start / RANGE_NODE_SIZE + 1) * RANGE_NODE_SIZE);
                queue.note(object, (start, end), now);
                start = end;
            }
        });
    }

    fn with_queue(&self, handle: &Arc<TierHandle>, change: impl FnOnce(&mut Queue, Duration)) {
        let mut state = self.shared.state.lock();
        if state.closed {
            return;
        }
        let is_new = state.queues.get(&handle.id).is_none_or(|queue| !Arc::ptr_eq(&queue.handle, handle));
        if is_new {
            // The tier left and came back: what was on its way is a matter of the old one.
            let is_served = state.queues.insert(handle.id, Queue::new(Arc::clone(handle))).is_some();
            if state.threads_allowed && !is_served && !self.start_thread(&mut state, handle.id) {
                // Nothing is begun early there, and the kernel writes when it wants to.
                state.queues.remove(&handle.id);
            }
        }
        let Some(queue) = state.queues.get_mut(&handle.id) else { return };
        let (waiting, was_idle) = (queue.waiting.len(), queue.gathered.is_empty());
        change(queue, self.clock.elapsed());
        let has_work = queue.waiting.len() > waiting || was_idle && !queue.gathered.is_empty();
        drop(state);
        if has_work {
            self.shared.work.notify_all();
        }
    }

    fn start_thread(&self, state: &mut State, tier: TierId) -> bool {
        // The checker of schedules knows no such thread.
        if cfg!(shuttle) {
            return false;
        }
        let (shared, clock) = (Arc::clone(&self.shared), Arc::clone(&self.clock));
        let name = format!("polymux-behind-{}", tier.0);
        match std::thread::Builder::new().name(name).spawn(move || shared.serve(tier, clock.as_ref())) {
            Ok(thread) => {
                state.threads.push(thread);
                true
            }
            Err(error) => {
                log::debug!("no thread for writing behind on tier {tier}, the kernel does it: {error}");
                false
            }
        }
    }

    /// Waits until one of the tiers has room for a range. Called with no lock held. Returns whether it had to wait.
    pub(crate) fn wait_for_room(&self, tiers: &[Arc<TierHandle>]) -> bool {
        let has_room = || tiers.is_empty() || tiers.iter().any(|handle| has_room(handle, self.clock.elapsed()));
        if has_room() || cfg!(shuttle) {
            return false;
        }
        if !self.shared.state.lock().threads_allowed {
            // Nobody else does it.
            while !has_room() && tiers.iter().any(|handle| self.step(handle.id)) {}
            return true;
        }
        // Not by the clock, which in a simulation may stand still.
        let mut looks_left = PATIENCE.as_millis() / LOOK_INTERVAL.as_millis();
        let mut state = self.shared.state.lock();
        while looks_left > 0 && !has_room() && !state.closed {
            if self.shared.done.wait_for(&mut state, LOOK_INTERVAL).timed_out() {
                looks_left -= 1;
            }
        }
        true
    }

    /// Threads started so far.
    pub(crate) fn threads_started(&self) -> usize {
        self.shared.state.lock().threads.len()
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        let (threads, busy) = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            (std::mem::take(&mut state.threads), state.busy)
        };
        self.shared.work.notify_all();
        self.shared.done.notify_all();
        if busy > 0 {
            // It may hang in its tier, and ends when that lets it go.
            return;
        }
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread that writes behind ended abnormally");
            }
        }
    }
}

/// Whether a tier takes another range within [`HORIZON`].
fn has_room(handle: &TierHandle, now: Duration) -> bool {
    let lane = handle.write_lane.state(now);
    let bandwidth = if lane.bytes_per_second == 0 { BANDWIDTH_UNKNOWN } else { lane.bytes_per_second };
    let horizon_ms = u64::try_from(HORIZON.as_millis()).unwrap_or(u64::MAX);
    let room = (bandwidth.saturating_mul(horizon_ms) / 1000).max(ROOM_MIN);
    handle.bytes_behind() + RANGE_NODE_SIZE <= room && !handle.is_failing()
}

#[cfg(test)]
mod tests {
    use polymux_sim::MemoryTier;
    use polymux_types::{Bucket, ManualClock, ObjectId};

    use super::super::Purpose;
    use super::*;
    use crate::volume::{TierMember, TierPresence};

    const MIB: u64 = 1 << 20;
    const MIB_IN_MEMORY: usize = 1 << 20;

    struct Stand {
        clock: Arc<ManualClock>,
        behind: WriteBehind,
        tiers: Vec<Arc<TierHandle>>,
    }

    impl Stand {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000_000)));
            let tier = |number: u16| {
                let tier = Arc::new(MemoryTier::with_clock("t", 1 << 40, Arc::clone(&clock) as _));
                let member = TierMember::new(format!("tier-{number}"), TierPresence::Present(tier));
                Arc::new(TierHandle::new(TierId(number), member, Purpose::Data, Arc::clone(&clock) as _))
            };
            Self { behind: WriteBehind::new(Arc::clone(&clock) as _), tiers: vec![tier(0), tier(1)], clock }
        }

        /// Bytes that were handed over to the device of the first tier, and those that were not.
        fn bytes(&self) -> (u64, u64) {
            let begun = self.tiers[0].write_lane.outstanding_bytes();
            (begun, self.tiers[0].bytes_behind() - begun)
        }

        fn wrote(&self, offset: u64, length: usize) {
            self.behind.wrote(&self.tiers[0], object(), offset, length);
        }
    }

    fn object() -> ObjectRef {
        ObjectRef::new(ObjectId(1), Bucket(0))
    }

    #[test]
    fn small_writes_go_to_the_device_by_the_mebibyte_at_the_end_of_a_range_or_after_a_while() {
        let stand = Stand::new();
        for index in 0..255 {
            stand.wrote(index * 4096, 4096);
        }
        assert_eq!(stand.bytes(), (0, 255 * 4096));
        stand.wrote(255 * 4096, 4096);
        assert_eq!(stand.bytes(), (MIB, 0));
        stand.wrote(RANGE_NODE_SIZE - 4096, 4096);
        assert_eq!(stand.bytes(), (MIB + 4096, 0));
        stand.wrote(RANGE_NODE_SIZE, 4096);
        assert_eq!(stand.bytes(), (MIB + 4096, 4096));
        while stand.behind.step(TierId(0)) {}
        assert_eq!(stand.bytes(), (0, 4096));
        stand.clock.advance(GATHER);
        assert!(stand.behind.step(TierId(0)));
        assert_eq!(stand.bytes(), (0, 0));
        assert_eq!(stand.tiers[0].write_lane.state(stand.clock.elapsed()).delivered_bytes, MIB + 8192);
    }

    #[test]
    fn what_is_given_to_a_tier_counts_at_once_and_is_forgotten_where_it_does_not_come() {
        let stand = Stand::new();
        stand.behind.claim(&stand.tiers[0], object(), 0, RANGE_NODE_SIZE);
        assert_eq!(stand.bytes(), (0, RANGE_NODE_SIZE));
        stand.wrote(0, MIB_IN_MEMORY);
        assert_eq!(stand.bytes(), (MIB, MIB), "bytes that were expected are not counted twice");
        while stand.behind.step(TierId(0)) {}
        stand.clock.advance(CLAIM_AGE_MAX);
        stand.behind.step(TierId(0));
        assert_eq!(stand.bytes(), (0, 0));
    }

    #[test]
    fn a_writer_waits_for_no_tier_while_another_has_room() {
        let stand = Stand::new();
        stand.behind.claim(&stand.tiers[0], object(), 0, 1 << 30);
        assert!(!stand.behind.wait_for_room(&stand.tiers));
        assert!(!stand.behind.wait_for_room(&[]), "and for nothing where there is none");
    }

    #[test]
    fn without_threads_whoever_waits_does_the_work() {
        let stand = Stand::new();
        for range in 0..64 {
            stand.wrote(range * RANGE_NODE_SIZE, 2 * MIB_IN_MEMORY);
        }
        let before = stand.tiers[0].bytes_behind();
        assert!(stand.behind.wait_for_room(&stand.tiers[..1]));
        let after = stand.tiers[0].bytes_behind();
        assert!(after > 0 && after < before, "{after} of {before} bytes are left: no more is done than has to be");
        assert_eq!(stand.behind.threads_started(), 0);
    }

    #[test]
    fn with_threads_everything_is_written_out_and_they_end_with_the_volume() {
        let stand = Stand::new();
        stand.behind.allow_threads();
        for range in 0..64 {
            stand.wrote(range * RANGE_NODE_SIZE, 2 * MIB_IN_MEMORY);
        }
        while stand.tiers[0].bytes_behind() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(stand.behind.threads_started(), 1);
        drop(stand);
    }
}
