//! The threads of a store: one for the log, one for memtables, one for compaction.
//!
//! Each is a loop around one function of `maintenance`, asleep until its signal is raised or a second has passed, and for
//! longer while there are no transactions. They stop before the store is dropped, and a failure has poisoned the store before
//! it ends a thread.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Inner;
use crate::error::StoreError;
use polymux_types::sync::{AtomicBool, Condvar, Mutex, Ordering};

/// Longest sleep of a thread; also the interval at which free space is checked.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Longest sleep of a thread where nothing was logged for long.
const QUIET_SLEEP_MAX: Duration = Duration::from_secs(8);

/// Something that is counted and waited for.
#[derive(Default)]
pub(super) struct Signal {
    count: Mutex<u64>,
    raised: Condvar,
}

impl Signal {
    pub(super) fn raise(&self) {
        *self.count.lock() += 1;
        self.raised.notify_all();
    }

    pub(super) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until it was raised after it stood at `seen`, but not for ever: the caller looks again.
    pub(super) fn wait_beyond(&self, seen: u64) -> u64 {
        self.wait_beyond_for(seen, SLEEP_MAX)
    }

    fn wait_beyond_for(&self, seen: u64, sleep: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count <= seen {
            self.raised.wait_for(&mut count, sleep);
        }
        *count
    }
}

/// How commits and threads tell each other that there is work.
#[derive(Default)]
pub(super) struct Signals {
    pub(super) write_log: Signal,
    pub(super) write_memtable: Signal,
    pub(super) compact: Signal,
    /// The sealed memtable is in the tables, or could not be written.
    pub(super) memtable_written: Signal,
    workers: AtomicBool,
    stopping: AtomicBool,
}

impl Signals {
    /// Whether threads of the store do the work; otherwise the caller that needs it does it.
    pub(super) fn has_workers(&self) -> bool {
        self.workers.load(Ordering::Acquire)
    }
}

/// The running threads.
pub(super) struct Background {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start(inner: &Arc<Inner>) -> Result<Self, StoreError> {
        let mut background = Self { inner: inner.clone(), threads: Vec::new() };
        background.spawn("meta-log", |signals| &signals.write_log, Inner::write_log_if_due)?;
        background.spawn("meta-tables", |signals| &signals.write_memtable, Inner::write_memtable_if_due)?;
        background.spawn("meta-compact", |signals| &signals.compact, Inner::compact_if_due)?;
        inner.signals.workers.store(true, Ordering::Release);
        Ok(background)
    }

    fn spawn(
        &mut self,
        name: &str,
        signal: fn(&Signals) -> &Signal,
        work: fn(&Inner) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let inner = self.inner.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let (mut seen, mut sleep, mut tail) = (0, SLEEP_MAX, 0);
            while !inner.signals.stopping.load(Ordering::Acquire) {
                match work(&inner) {
                    Ok(true) => {}
                    Ok(false) => {
                        let now = inner.log.tail();
                        let is_quiet = now == tail && !inner.ballast.is_short();
                        sleep = if is_quiet { (sleep * 2).min(QUIET_SLEEP_MAX) } else { SLEEP_MAX };
                        tail = now;
                        seen = signal(&inner.signals).wait_beyond_for(seen, sleep);
                    }
                    Err(error) => {
                        log::error!("the metadata store in {} stops: {error}", inner.path.display());
                        return;
                    }
                }
            }
        });
        let thread = thread.map_err(|error| StoreError::Io(format!("starting a thread of the store: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let signals = &self.inner.signals;
        signals.workers.store(false, Ordering::Release);
        signals.stopping.store(true, Ordering::Release);
        for signal in [&signals.write_log, &signals.write_memtable, &signals.compact] {
            signal.raise();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of the metadata store ended abnormally");
            }
        }
    }
}
