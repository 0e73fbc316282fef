//! Keeps the mount answering while threads hang in a tier (docs/design/0014).
//!
//! Invariants:
//! * The watcher serves no requests, holds no lock while it waits, and asks no tier.
//! * While the volume rests the watcher sleeps for long. Requests that end the rest count from the moment at which it has woken.
//! * For each request that takes long there is one thread more than the mount began with, and some ahead, up to
//!   [`SPARE_MAX`]: a thread that waits for a device holds up no other request. Threads that were added stay, and cost nothing while idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polymux_transport::{Connection, Worker};

use crate::adapter::Adapter;

/// Most threads that are added to those of the mount.
const SPARE_MAX: usize = 256;
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Threads that are added beyond those that are needed now, because those that hang come in crowds.
const AHEAD: usize = 16;

/// The parts of a connection that the watcher needs.
pub(crate) struct Watcher {
    pub(crate) adapter: Adapter,
    pub(crate) connection: Arc<Connection>,
    pub(crate) must_end: Arc<AtomicBool>,
}

impl Watcher {
    /// Watches until `must_end` is set; returns the threads that were added.
    pub(crate) fn run(self) -> Vec<Worker> {
        let began = Instant::now();
        let mut spare = Vec::new();
        let mut said = false;
        let mut rested = false;
        while !self.must_end.load(Ordering::Acquire) {
            let now_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            if rested {
                self.adapter.requests.rested_until(now_ms);
            }
            let stalled = self.adapter.requests.look(now_ms);
            if stalled > 0 {
                self.fail_stuck(now_ms);
            } else {
                self.adapter.requests.forget_crowds();
            }
            let wanted = if stalled == 0 { 0 } else { (stalled + AHEAD).min(SPARE_MAX) };
            for _ in spare.len()..wanted {
                match self.connection.start_worker() {
                    Ok(thread) => spare.push(thread),
                    Err(error) => {
                        if !std::mem::replace(&mut said, true) {
                            log::error!("no further thread to serve requests: {error}");
                        }
                        break;
                    }
                }
            }
            rested = if self.adapter.requests.any_under_way() {
                thread::sleep(LOOK_INTERVAL);
                false
            } else {
                self.adapter.fs.pause(LOOK_INTERVAL)
            };
        }
        spare
    }

    fn fail_stuck(&self, now_ms: u64) {
        let stuck = self.adapter.fs.stuck_threads();
        if stuck.is_empty() {
            self.adapter.requests.forget_crowds();
            return;
        }
        let failed = self.adapter.requests.fail_stuck(&stuck, now_ms);
        if failed > 0 {
            log::warn!("{failed} requests that wait for a tier which does not answer were answered with an error");
        }
    }
}
