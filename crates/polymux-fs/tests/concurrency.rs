//! Many threads on one file and in one tree, through `FileSystem`, over directories of the machine, with a fast tier so
//! small that the file is split.
//!
//! Invariants: every cell of eight bytes names the write that filled it, so that a reader can tell bytes of a
//! write from anything else. `POLYMUX_CONCURRENCY_SECONDS` sets the length of each test.

#[path = "concurrency/appends.rs"]
mod appends;
mod common;
#[path = "concurrency/directories.rs"]
mod directories;
#[path = "concurrency/overlapping.rs"]
mod overlapping;
#[path = "concurrency/truncation.rs"]
mod truncation;

use std::sync::mpsc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Readers and writers together.
const THREADS: usize = 32;

/// Longer than any test takes that makes progress.
const PATIENCE: Duration = Duration::from_secs(240);

fn test_length() -> Duration {
    let seconds =
        std::env::var("POLYMUX_CONCURRENCY_SECONDS").map_or(15, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

/// Runs a test that may hang: a deadlock fails it instead of stopping everything.
fn with_watchdog(body: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let test = std::thread::spawn(move || {
        body();
        let _nobody_waits = done.send(());
    });
    match finished.recv_timeout(test_length() + PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("no progress: a deadlock"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            if let Err(panic) = test.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// A small generator of numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// A moment until which a thread goes on.
struct Until(Instant);

impl Until {
    fn after(length: Duration) -> Self {
        Self(Instant::now() + length)
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.0
    }
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).expect("it fits")
}
