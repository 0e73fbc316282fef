//! The thread that ships.
//!
//! It is a loop around [`Inner::ship`], in the interval that the copy may lag; in longer ones after a round that found nothing
//! to ship; a sync of the log wakes it. When the store ends it ships once more and says that the copy is closed. A tier that
//! hangs may keep it for ever; no caller waits for it longer than for any other answer of the copy.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polymux_types::sync::Ordering;

use super::SecondCopy;
use crate::error::StoreError;
use crate::log_store::Inner;

/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Pause where the tables were just being written.
const BUSY_INTERVAL: Duration = Duration::from_millis(20);

/// Time between two rounds where only those who wait ask for them.
const SYNCHRONOUS_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time between two rounds while there is nothing to ship.
const QUIET_INTERVAL_MAX: Duration = Duration::from_secs(8);

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// The copy had everything.
    Idle,
    /// Something was shipped.
    Worked,
    /// Something has to be waited for.
    Busy,
    /// It failed.
    Failed,
}

/// The running thread.
pub(crate) struct CopyThread {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl CopyThread {
    pub(crate) fn start(inner: &Arc<Inner>) -> Result<Self, StoreError> {
        let shared = inner.clone();
        let thread = std::thread::Builder::new().name("meta-copy".to_owned()).spawn(move || {
            if let Some(copy) = shared.second_copy() {
                run(&shared, copy);
            }
        });
        let thread = thread.map_err(|error| StoreError::Io(format!("starting a thread of the store: {error}")))?;
        Ok(Self { inner: inner.clone(), thread: Some(thread) })
    }
}

fn run(inner: &Inner, copy: &SecondCopy) {
    let interval = if copy.is_synchronous() { SYNCHRONOUS_INTERVAL } else { copy.options.interval };
    let mut pause = Duration::ZERO;
    let mut is_quiet = false;
    while copy.wait_for_work(pause) {
        // Before the round, so that whatever becomes durable behind it ends the sleep.
        copy.sleeps_long.store(is_quiet, Ordering::SeqCst);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let round = inner.ship();
        pause = match round {
            Round::Idle if is_quiet => (pause * 2).clamp(interval, interval.max(QUIET_INTERVAL_MAX)),
            Round::Idle | Round::Worked => interval,
            Round::Busy => BUSY_INTERVAL,
            Round::Failed => RETRY_INTERVAL,
        };
        is_quiet = round == Round::Idle;
        if inner.is_poisoned() {
            break;
        }
    }
    if !inner.is_poisoned() {
        inner.finish_copy();
    }
    let mut status = copy.status.lock();
    status.finished = true;
    copy.changed.notify_all();
}

impl SecondCopy {
    /// Sleeps until a round is due or wanted. Returns whether there is to be one at all.
    fn wait_for_work(&self, pause: Duration) -> bool {
        let begun = Instant::now();
        let mut status = self.status.lock();
        loop {
            if status.stopping.is_some() {
                return false;
            }
            let waited = begun.elapsed();
            if waited >= pause || (status.kicked && !status.failing) {
                status.kicked = false;
                return true;
            }
            self.wake.wait_for(&mut status, pause - waited);
        }
    }

    /// Has the thread ship once more and end. Returns whether it did in time.
    pub(crate) fn stop(&self) -> bool {
        let begun = Instant::now();
        let mut status = self.status.lock();
        status.stopping.get_or_insert(begun);
        self.wake.notify_all();
        while !status.finished && begun.elapsed() < self.options.wait_max {
            self.changed.wait_for(&mut status, Duration::from_millis(100));
        }
        status.finished
    }

    /// Whether the store is ending, so that long work has to be abandoned.
    pub(super) fn is_out_of_time(&self) -> bool {
        self.status.lock().stopping.is_some_and(|begun| begun.elapsed() >= self.options.wait_max / 2)
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        let Some(copy) = self.inner.second_copy() else { return };
        match self.thread.take() {
            Some(thread) if copy.stop() => {
                if thread.join().is_err() {
                    log::error!("the thread of the second copy ended abnormally");
                }
            }
            _ => log::error!("the second copy in {} does not answer; it is left behind", copy.options.path.display()),
        }
    }
}
