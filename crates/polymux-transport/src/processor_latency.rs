//! Idle processors that stay awake while requests come one upon the other (docs/design/0041).
//!
//! Design:
//! * A program that waits for an answer leaves its processor idle, and the kernel puts that processor to sleep. Waking it takes longer than serving most
//!   requests: 15 to 25 us on a virtual machine, where sleeping means leaving the guest, and as long on a real one that sleeps deeply.
//! * The kernel bounds that time for as long as a process holds `/dev/cpu_dma_latency` open with a bound written to it
//!   (Documentation/power/pm_qos_interface.rst). With a bound of 0 us idle processors poll for work. The bound ends with the process, however that ends.
//! * It holds for all processors of the machine and costs energy. So it is set for bursts of requests alone, and only where it was asked for or where
//!   sleeping is known to be expensive and there are few processors.
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

/// Most processors that are kept awake without being asked for.
const PROCESSORS_MAX: usize = 16;

/// Whether idle processors are kept awake during bursts of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessorLatency {
    /// On virtual machines with up to sixteen processors.
    #[default]
    Auto,
    /// On every machine that allows it.
    Low,
    /// Never: they sleep as the system decides.
    System,
}

/// The processors of this machine, as far as they matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    /// All that are switched on: the bound holds for those that this process may not use as well.
    processors: usize,
    is_virtual: bool,
    can_poll: bool,
}

impl Machine {
    fn this() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            processors: count_of(&text("/sys/devices/system/cpu/online")),
            is_virtual: is_virtual(&text("/proc/cpuinfo")),
            can_poll: can_poll(&text("/sys/devices/system/cpu/cpuidle/current_driver")),
        }
    }
}

/// The numbers in a list of ranges such as `0-3,8`.
fn count_of(list: &str) -> usize {
    let length = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first).map(|more| more + 1)
    };
    list.trim().split(',').filter_map(length).sum()
}

/// Whether the kernel chooses among ways to be idle; else the bound changes nothing.
fn can_poll(idle_driver: &str) -> bool {
    !matches!(idle_driver.trim(), "" | "none")
}

/// Whether processors that are described like this belong to a virtual machine. Those of x86 say so; others count as real.
fn is_virtual(cpuinfo: &str) -> bool {
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags.next().is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// Why processors sleep as the system decides; `None` where the bound is of use.
fn obstacle(wish: ProcessorLatency, machine: Machine) -> Option<String> {
    match wish {
        ProcessorLatency::System => Some("`processor_latency` is `system`".to_owned()),
        _ if machine.processors < 2 => Some("there is one processor".to_owned()),
        _ if !machine.can_poll => Some("this kernel has one way to be idle".to_owned()),
        ProcessorLatency::Low => None,
        ProcessorLatency::Auto if !machine.is_virtual => Some("the machine is not virtual".to_owned()),
        ProcessorLatency::Auto if machine.processors > PROCESSORS_MAX => {
            Some(format!("there are more than {PROCESSORS_MAX} processors"))
        }
        ProcessorLatency::Auto => None,
    }
}

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

/// Opens the interface for the bound, if it is of use on this machine.
///
/// # Errors
/// The reason why processors sleep as the system decides.
pub(crate) fn open(wish: ProcessorLatency) -> Result<File, String> {
    match obstacle(wish, Machine::this()) {
        Some(obstacle) => Err(obstacle),
        None => open_device(Path::new(DEVICE)).map_err(|error| format!("{DEVICE}: {error}")),
    }
}

fn open_device(path: &Path) -> io::Result<File> {
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
        let device = open_device(&path).expect("opened");
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

    #[test]
    fn it_is_chosen_on_small_virtual_machines_and_where_it_is_asked_for() {
        let machine = |processors, is_virtual| Machine { processors, is_virtual, can_poll: true };
        let is_chosen = |wish, machine| obstacle(wish, machine).is_none();
        for (wish, of_virtual, of_many, of_real) in [
            (ProcessorLatency::Auto, true, false, false),
            (ProcessorLatency::Low, true, true, true),
            (ProcessorLatency::System, false, false, false),
        ] {
            assert_eq!(is_chosen(wish, machine(2, true)), of_virtual, "{wish:?}");
            assert_eq!(is_chosen(wish, machine(64, true)), of_many, "{wish:?}");
            assert_eq!(is_chosen(wish, machine(8, false)), of_real, "{wish:?}");
            assert!(!is_chosen(wish, machine(1, true)), "no other processor has to be woken");
            assert!(!is_chosen(wish, Machine { can_poll: false, ..machine(2, true) }));
        }
    }

    #[test]
    fn processors_and_ways_to_be_idle_are_read_as_the_kernel_shows_them() {
        assert_eq!(["0-1\n", "0-3,8\n", "0\n", "", "3-1"].map(count_of), [2, 5, 1, 0, 0]);
        assert_eq!(["haltpoll\n", "intel_idle\n", "none\n", ""].map(can_poll), [true, true, false, false]);
    }

    #[test]
    fn a_virtual_machine_is_known_by_the_flag_of_its_processors() {
        assert!(is_virtual("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\nbugs\t\t: spectre_v1\n"));
        assert!(!is_virtual("processor\t: 0\nmodel name\t: hypervisor\nflags\t\t: fpu lahf_lm\n"));
        assert!(!is_virtual(""));
    }
}
