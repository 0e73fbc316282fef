//! The bound, which is set while requests come one upon the other.
//!
//! Invariants:
//! * A burst begins with [`BURST_REQUESTS`] requests within [`BURST_TIME`], and ends when fewer than [`REQUESTS_MIN`] come in a [`LOOK_INTERVAL`].
//! * A thread that serves requests never waits for this: it counts, and at most wakes the thread that sets the bound.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The kernel's interface for the bound.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// "No bound": the default of the kernel, in microseconds.
const UNBOUNDED_US: i32 = 2_000_000_000;

/// Requests within [`BURST_TIME`] that are a burst: 4,000 a second, of which waking takes a tenth of the time.
const BURST_REQUESTS: u64 = 16;
const BURST_TIME: Duration = Duration::from_millis(4);
/// Time between two looks whether the burst goes on.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Requests between two looks below which it has ended: 3,200 a second. Streams of large requests stay below that.
const REQUESTS_MIN: u64 = 16;

/// Bursts so far, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bursts {
    /// How many there were, with the one that goes on.
    pub count: u64,
    /// For how long processors were kept awake.
    pub duration: Duration,
}

#[derive(Debug)]
struct Phase {
    /// When the last [`BURST_REQUESTS`] requests were complete.
    counted: Instant,
    is_ended: bool,
    /// Since when a burst goes on.
    began: Option<Instant>,
    /// Those that have ended.
    bursts: Bursts,
}

impl Phase {
    fn bursts_with_present(&self) -> Bursts {
        let Some(began) = self.began else { return self.bursts };
        Bursts { count: self.bursts.count + 1, duration: self.bursts.duration + began.elapsed() }
    }

    fn end_burst(&mut self) {
        self.bursts = self.bursts_with_present();
        self.began = None;
    }
}

/// Follows the pace of requests, and keeps processors awake during bursts.
#[derive(Debug)]
pub(crate) struct AwakeProcessors {
    /// Requests so far, while a thread sets bounds.
    received: AtomicU64,
    /// Such a thread runs.
    is_followed: AtomicBool,
    /// A burst was noticed, and its end not yet.
    is_burst: AtomicBool,
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Default for AwakeProcessors {
    fn default() -> Self {
        let phase = Phase { counted: Instant::now(), is_ended: false, began: None, bursts: Bursts::default() };
        Self {
            received: AtomicU64::new(0),
            is_followed: AtomicBool::new(false),
            is_burst: AtomicBool::new(false),
            phase: Mutex::new(phase),
            changed: Condvar::new(),
        }
    }
}

/// Opens the interface for the bound.
pub(super) fn open_device() -> Result<File, String> {
    open_at(Path::new(DEVICE)).map_err(|error| format!("{DEVICE}: {error}"))
}

fn open_at(path: &Path) -> io::Result<File> {
    let mut device = File::options().write(true).open(path)?;
    // An open descriptor has the default bound, which is written here to see that it can be.
    bound(&mut device, UNBOUNDED_US)?;
    Ok(device)
}

#[expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]
fn bound(device: &mut File, latency_us_max: i32) -> io::Result<()> {
    device.write_all(&latency_us_max.to_ne_bytes())
}

impl AwakeProcessors {
    /// A request came.
    pub(crate) fn note_request(&self) {
        if !self.is_followed.load(Ordering::Relaxed) {
            return;
        }
        let number = self.received.fetch_add(1, Ordering::Relaxed) + 1;
        if number.is_multiple_of(BURST_REQUESTS) && !self.is_burst.load(Ordering::Relaxed) {
            self.note_requests_of_burst(Instant::now());
        }
    }

    /// So many requests came as may be a burst.
    fn note_requests_of_burst(&self, now: Instant) {
        let mut phase = self.phase.lock();
        let is_burst = now.saturating_duration_since(phase.counted) <= BURST_TIME;
        phase.counted = now;
        if is_burst && !self.is_burst.swap(true, Ordering::Relaxed) {
            self.changed.notify_one();
        }
    }

    /// Sets the bound during bursts until [`AwakeProcessors::end`]. An interface that fails leaves processors as they are.
    ///
    /// # Errors
    /// The bound cannot be written.
    pub(crate) fn keep_awake(&self, mut device: File) -> io::Result<()> {
        self.is_followed.store(true, Ordering::Relaxed);
        let outcome = self.set_bounds(&mut device);
        self.is_followed.store(false, Ordering::Relaxed);
        outcome
    }

    fn set_bounds(&self, device: &mut File) -> io::Result<()> {
        while self.wait_for_burst() {
            self.phase.lock().began = Some(Instant::now());
            bound(device, 0)?;
            self.wait_for_end_of_burst();
            bound(device, UNBOUNDED_US)?;
            self.phase.lock().end_burst();
            self.is_burst.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns whether a burst began, rather than everything ended.
    fn wait_for_burst(&self) -> bool {
        let mut phase = self.phase.lock();
        while !phase.is_ended && !self.is_burst.load(Ordering::Relaxed) {
            self.changed.wait(&mut phase);
        }
        !phase.is_ended
    }

    fn wait_for_end_of_burst(&self) {
        let mut phase = self.phase.lock();
        let mut received = self.received.load(Ordering::Relaxed);
        while !phase.is_ended {
            self.changed.wait_for(&mut phase, LOOK_INTERVAL);
            let now = self.received.load(Ordering::Relaxed);
            if now.wrapping_sub(received) < REQUESTS_MIN {
                return;
            }
            received = now;
        }
    }

    /// The connection is closed.
    pub(crate) fn end(&self) {
        self.phase.lock().is_ended = true;
        self.changed.notify_all();
    }

    pub(crate) fn bursts(&self) -> Bursts {
        self.phase.lock().bursts_with_present()
    }
}

/// Ends the bound when a thread that serves requests ends, in whichever way.
pub(crate) struct EndsAwakeProcessors<'a>(pub(crate) &'a AwakeProcessors);

impl Drop for EndsAwakeProcessors<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// The bounds that were written to a file in place of the device.
    #[expect(clippy::host_endian_bytes, reason = "the interface of the kernel has the byte order of the machine")]
    fn bounds(path: &Path) -> Vec<i32> {
        let bytes = std::fs::read(path).expect("read");
        let (bounds, rest) = bytes.as_chunks::<4>();
        assert!(rest.is_empty());
        bounds.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
    }

    fn wait_until(mut condition: impl FnMut() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < SOON, "in vain");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Requests one upon the other until a bound was written.
    fn burst(awake: &AwakeProcessors, path: &Path) {
        let (began, written) = (Instant::now(), bounds(path).len());
        while bounds(path).len() == written {
            assert!(began.elapsed() < SOON, "in vain");
            (0..BURST_REQUESTS * 2).for_each(|_| awake.note_request());
        }
    }

    /// Asserts that each bound of 0 was taken back, and returns how many there were.
    fn count_bounded(bounds: &[i32]) -> u64 {
        assert!(bounds.len() % 2 == 1 && bounds.iter().step_by(2).all(|bound| *bound == UNBOUNDED_US), "{bounds:?}");
        assert!(bounds.iter().skip(1).step_by(2).all(|bound| *bound == 0), "{bounds:?}");
        bounds.len() as u64 / 2
    }

    /// Calls `during` while a thread sets bounds, which it returns.
    fn bounds_set(during: impl FnOnce(&AwakeProcessors, &Path)) -> (Vec<i32>, Bursts) {
        let directory = tempfile::tempdir().expect("made");
        let path = directory.path().join("latency");
        File::create(&path).expect("made");
        let awake = Arc::new(AwakeProcessors::default());
        let device = open_at(&path).expect("opened");
        let setter = {
            let awake = Arc::clone(&awake);
            thread::spawn(move || awake.keep_awake(device))
        };
        wait_until(|| awake.is_followed.load(Ordering::Relaxed));
        during(&awake, &path);
        awake.end();
        setter.join().expect("no panic").expect("written");
        (bounds(&path), awake.bursts())
    }

    #[test]
    fn processors_stay_awake_for_as_long_as_requests_come_one_upon_the_other() {
        let (bounds, bursts) = bounds_set(|awake, path| {
            for _ in 0..2 {
                burst(awake, path);
                wait_until(|| bounds(path).last() == Some(&UNBOUNDED_US));
            }
        });
        // Where the test was held up, a burst may have ended and begun again.
        assert!(count_bounded(&bounds) >= 2);
        assert_eq!(bursts.count, count_bounded(&bounds));
        assert!(bursts.duration >= LOOK_INTERVAL * 2, "{bursts:?}");
    }

    #[test]
    fn requests_now_and_then_keep_no_processor_awake() {
        let (bounds, bursts) = bounds_set(|awake, _| {
            for _ in 0..BURST_REQUESTS * 3 {
                awake.note_request();
                thread::sleep(BURST_TIME / 8);
            }
        });
        assert_eq!((bounds, bursts), (vec![UNBOUNDED_US], Bursts::default()));
    }

    #[test]
    fn a_burst_that_the_connection_does_not_outlive_ends_with_it() {
        let (bounds, _) = bounds_set(burst);
        assert!(count_bounded(&bounds) >= 1);
    }

    #[test]
    fn requests_are_counted_where_no_thread_sets_bounds() {
        let awake = AwakeProcessors::default();
        (0..1000).for_each(|_| awake.note_request());
        assert_eq!(awake.bursts(), Bursts::default());
        awake.end();
    }
}
