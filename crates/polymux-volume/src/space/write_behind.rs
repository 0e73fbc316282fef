//! Write-behind of spread files and long streams: begun early on every tier and followed until it reaches the device, and never
//! more at once than a device absorbs in 300 ms (docs/design/0018).
//!
//! Invariants:
//! * The bytes are in the page cache of the tier's file system. Reads and durability do not depend on this module, and no
//!   error is reported here: the next sync of the object reports a failed write.
//! * The writer of a spread file therefore waits for a device only where it would begin a new range, before it takes any lock, until *one*
//!   of its tiers has capacity, and never longer than [`PATIENCE`]. A slow tier does not block a writer that may use another one. The
//!   writer of a stream never waits.
//! * Each tier has one thread that begins and awaits writes, started with its first bytes once [`WriteBehind::allow_threads`] was
//!   called. Before that, a writer that waits for capacity does the work, and so does `FileSystem::step`.
//! * A range assigned to a tier counts there at once, although its bytes arrive later: of several writers that ask at the same
//!   time, each sees the ranges of the others. A range whose bytes do not arrive within a second is forgotten.
//! * Waiting pieces are written stream by stream in turns (`turns.rs`), and yield to urgent requests (`sched/deferral.rs`).

mod gathering;
mod queue;
mod threads;
mod turns;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use polymux_tier::ObjectRef;
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Clock, TierId};

use self::queue::{Queue, has_room};
use self::threads::{Shared, State, Step};
use super::tier_handle::TierHandle;

/// The longest time a writer waits for capacity. It then continues, and the kernel may throttle it.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a waiting writer looks again, in case that a tier is measured to be faster.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// From where to where some bytes are in each of their ranges.
fn parts_of_ranges(offset: u64, length: usize) -> impl Iterator<Item = Range<u64>> {
    let last = offset + length as u64;
    let end_after = move |start: u64| last.min((start / RANGE_NODE_SIZE + 1) * RANGE_NODE_SIZE);
    let first = (length > 0).then(|| offset..end_after(offset));
    std::iter::successors(first, move |part| (part.end < last).then(|| part.end..end_after(part.end)))
}

/// The queues and threads of one volume.
pub struct WriteBehind {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
}

impl WriteBehind {
    /// Nothing to write out yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { shared: Arc::default(), clock }
    }

    /// From now on each tier that is written to gets a thread.
    pub fn allow_threads(&self) {
        self.shared.state.lock().threads_allowed = true;
    }

    /// Runs the next step of the tier's thread. Returns whether it had any work.
    pub fn step(&self, tier: TierId) -> bool {
        self.shared.step(tier, self.clock.as_ref()) == Step::Worked
    }

    /// Bytes of an object from an offset on are going to be written.
    pub fn claim(&self, handle: &Arc<TierHandle>, object: ObjectRef, offset: u64, length: u64) {
        self.with_queue(handle, |queue, now| queue.gathering.claim(object, offset, length, now));
    }

    /// Bytes of an object were written to its tier.
    pub fn wrote(&self, handle: &Arc<TierHandle>, object: ObjectRef, offset: u64, length: usize) {
        self.with_queue(handle, |queue, now| {
            parts_of_ranges(offset, length).for_each(|part| queue.note(object, part, now));
        });
    }

    /// Bytes of an object were written to its tier that are to be on the device soon, though no program waits for them. Returns how many are
    /// taken: where much waits on the tier already, the kernel writes when it wants to.
    pub fn collected(&self, handle: &Arc<TierHandle>, object: ObjectRef, offset: u64, length: usize) -> u64 {
        let mut taken = 0;
        self.with_queue(handle, |queue, now| {
            taken = parts_of_ranges(offset, length).map(|part| queue.collected(object, part, now)).sum();
        });
        taken
    }

    /// A part of a long stream was written to its tier, and no caller waits for it. Returns how many bytes of it are taken: where
    /// much waits on the tier already, the kernel writes when it wants to.
    pub fn stream(&self, handle: &Arc<TierHandle>, object: ObjectRef, offset: u64, length: u64) -> u64 {
        let mut taken = 0;
        self.with_queue(handle, |queue, now| taken = queue.stream(object, offset, length, now));
        taken
    }

    fn with_queue(&self, handle: &Arc<TierHandle>, change: impl FnOnce(&mut Queue, Duration)) {
        let mut state = self.shared.state.lock();
        if state.closed {
            return;
        }
        let is_new = state.queues.get(&handle.id).is_none_or(|queue| !Arc::ptr_eq(&queue.handle, handle));
        if is_new {
            // The tier left and came back: writes in flight belong to the old handle.
            let is_served = state.queues.insert(handle.id, Queue::new(Arc::clone(handle))).is_some();
            if state.threads_allowed && !is_served && !self.start_thread(&mut state, handle.id) {
                // Nothing is begun early there, and the kernel writes when it wants to.
                state.queues.remove(&handle.id);
            }
        }
        let Some(queue) = state.queues.get_mut(&handle.id) else { return };
        let (waiting, was_idle) = (queue.waiting(), queue.gathering.is_empty());
        change(queue, self.clock.elapsed());
        let has_work = queue.waiting() > waiting || was_idle && !queue.gathering.is_empty();
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

    /// Waits until one of the tiers has capacity for a range. Called with no lock held. Returns whether it had to wait.
    pub fn wait_for_room(&self, tiers: &[Arc<TierHandle>]) -> bool {
        let has_room = || tiers.is_empty() || tiers.iter().any(|handle| has_room(handle, self.clock.elapsed()));
        if has_room() || cfg!(shuttle) {
            return false;
        }
        if !self.shared.state.lock().threads_allowed {
            // No other thread does it.
            while !has_room() && tiers.iter().any(|handle| self.step(handle.id)) {}
            return true;
        }
        // By the clock, because pieces of other tiers wake us all the time; and by looks, because in a simulation it may stand still.
        let mut looks_left = PATIENCE.as_millis() / LOOK_INTERVAL.as_millis();
        let until = self.clock.elapsed().saturating_add(PATIENCE);
        let is_lost =
            || tiers.iter().all(|handle| handle.is_failing() || handle.is_silent() || handle.present().is_none());
        let mut state = self.shared.state.lock();
        while looks_left > 0 && self.clock.elapsed() < until && !has_room() && !is_lost() && !state.closed {
            if self.shared.done.wait_for(&mut state, LOOK_INTERVAL).timed_out() {
                looks_left -= 1;
            }
        }
        true
    }

    /// Threads started so far.
    pub fn threads_started(&self) -> usize {
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

#[cfg(test)]
mod tests;
