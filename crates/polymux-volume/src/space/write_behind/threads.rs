//! Where write-behind runs: one thread for each tier, or the caller of a step.
//!
//! Invariants:
//! * Background work is [`Shared::step`]; the thread is a loop around it. The lock is held for no call of a tier.
//! * A thread that hangs in its tier holds up no other.

use std::collections::HashMap;
use std::time::Duration;

use polymux_types::sync::{Condvar, Mutex};
use polymux_types::{Clock, TierId};

use super::gathering::GATHER;
use super::queue::{Next, Queue};

/// When to look again where something came just now.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct State {
    pub(super) queues: HashMap<TierId, Queue>,
    pub(super) threads: Vec<std::thread::JoinHandle<()>>,
    pub(super) threads_allowed: bool,
    /// Steps that are in a call of their tier.
    pub(super) busy: usize,
    pub(super) closed: bool,
}

#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// For the threads: there is something to do.
    pub(super) work: Condvar,
    /// For writers: something is on the device.
    pub(super) done: Condvar,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Worked,
    /// Something urgent goes first; to be asked again after that.
    MadeWay(Duration),
    Nothing,
}

impl Shared {
    /// Performs the next step for a tier: begins waiting pieces, or waits for the oldest one begun.
    pub(super) fn step(&self, tier: TierId, clock: &dyn Clock) -> Step {
        let mut state = self.state.lock();
        if state.closed {
            return Step::Nothing;
        }
        let Some(queue) = state.queues.get_mut(&tier) else { return Step::Nothing };
        match queue.next(clock.elapsed()) {
            Next::Nothing => return Step::Nothing,
            Next::MakeWay(wait) => return Step::MadeWay(wait),
            Next::Begin(begun) => {
                state.busy += 1;
                drop(state);
                for begun in &begun {
                    begun.piece.begin_on_device();
                }
                let mut state = self.state.lock();
                state.busy -= 1;
                if let Some(queue) = state.queues.get_mut(&tier) {
                    queue.follow(begun);
                }
            }
            Next::WaitFor(oldest) => {
                state.busy += 1;
                drop(state);
                oldest.wait_for_device();
                oldest.ended(clock.elapsed());
                self.state.lock().busy -= 1;
                self.done.notify_all();
            }
        }
        Step::Worked
    }

    pub(super) fn serve(&self, tier: TierId, clock: &dyn Clock) {
        loop {
            let step = self.step(tier, clock);
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            // Pieces added since the step are seen here: they are added under the same lock.
            let queue = state.queues.get(&tier);
            let has_work = queue.is_some_and(|queue| queue.waiting() > 0);
            let is_gathering = queue.is_some_and(|queue| !queue.gathering.is_empty());
            match step {
                Step::Worked => {}
                Step::MadeWay(wait) => {
                    self.work.wait_for(&mut state, wait);
                }
                Step::Nothing if has_work => {
                    self.work.wait_for(&mut state, LOOK_AGAIN);
                }
                Step::Nothing if is_gathering => {
                    self.work.wait_for(&mut state, GATHER / 2);
                }
                Step::Nothing => self.work.wait(&mut state),
            }
        }
    }
}
