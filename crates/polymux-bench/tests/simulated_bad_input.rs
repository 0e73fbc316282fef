//! Loads that tiering should not make worse, in virtual time over simulated devices ([`polymux_bench::simulation`]): scans, loops, changing and
//! oversized hot sets, devices that become slow, are equal or tiny.
//!
//! Setup: an SSD of 160 MB and a disk, 96 files of 4 MiB each that were written one after the other, and eight readers at full speed. Sizes and
//! speeds are an eighth of those that `polymux-bench tiering` measures, so that times are the same.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use polymux_bench::simulation::{Caches, DeviceOf, Readers, Simulation};
use polymux_bench::statistics::mean;
use polymux_fs::{MoverLimits, PolicyKind};
use polymux_sim::DeviceSpeed;

/// Bytes that move as one.
const NODE_BYTES: u64 = 2 << 20;
const FILES: usize = 96;
const FILE_BYTES: u64 = 4 << 20;
const SSD_BYTES: u64 = 160_000_000;
const DISK_BYTES: u64 = 1_000_000_000;
const ROUND: Duration = Duration::from_secs(8);

const SSD: DeviceSpeed = DeviceSpeed {
    reads_per_second: 2_500,
    writes_per_second: 2_500,
    read_bytes_per_second: 82_000_000,
    written_bytes_per_second: 29_000_000,
    burst: Duration::ZERO,
    latency: Duration::from_micros(40),
};
const DISK: DeviceSpeed = DeviceSpeed {
    reads_per_second: 375,
    writes_per_second: 375,
    read_bytes_per_second: 15_000_000,
    written_bytes_per_second: 15_000_000,
    ..SSD
};

/// A hot set of a sixth of the files.
const HOT: Range<usize> = 80..96;
const HOT_BYTES: u64 = 16 * FILE_BYTES;

fn devices(ssd_bytes: u64) -> [DeviceOf; 2] {
    [DeviceOf { name: "ssd", bytes: ssd_bytes, speed: SSD }, DeviceOf { name: "disk", bytes: DISK_BYTES, speed: DISK }]
}

/// One simulation at a time: each has dozens of threads.
static TURN: Mutex<()> = Mutex::new(());

/// A simulation, and the number of the next round.
struct Stand {
    simulation: Simulation,
    round: u64,
    _turn: MutexGuard<'static, ()>,
}

impl Stand {
    fn new() -> Self {
        Self::over(&devices(SSD_BYTES), FILES, FILE_BYTES)
    }

    fn over(devices: &[DeviceOf], files: usize, file_bytes: u64) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let simulation = Simulation::make(devices, PolicyKind::HotCold, files, file_bytes).expect("it is made");
        Self { simulation, round: 0, _turn: turn }
    }

    fn readers(&mut self, hot: &Range<usize>) -> Readers {
        self.round += 1;
        Readers {
            count: 8,
            hot: hot.clone(),
            hot_percent: 95,
            think: Duration::ZERO,
            length: ROUND,
            caches: Caches::Dropped,
            seed: self.round,
        }
    }

    /// Reads per second in each of so many rounds.
    fn read(&mut self, hot: &Range<usize>, rounds: usize) -> Vec<f64> {
        let read = |_| {
            let readers = self.readers(hot);
            self.simulation.read(&readers).expect("read")
        };
        (0..rounds).map(read).collect()
    }

    /// Reads per second of the last of so many rounds.
    fn read_last(&mut self, hot: &Range<usize>, rounds: usize) -> f64 {
        *self.read(hot, rounds).last().expect("a round")
    }

    fn written_to_ssd(&self) -> u64 {
        self.simulation.traffic()[0].bytes_written
    }

    /// Bytes that were written to the SSD meanwhile.
    fn written_during(&mut self, work: impl FnOnce(&mut Self)) -> u64 {
        let before = self.written_to_ssd();
        work(self);
        self.written_to_ssd() - before
    }
}

#[test]
fn a_scan_every_night_moves_nothing_and_the_hot_set_is_as_fast_after_it() {
    let mut stand = Stand::new();
    let before = stand.read_last(&HOT, 16);
    for _night in 0..3 {
        let written = stand.written_during(|stand| {
            let mut beside = stand.readers(&HOT);
            beside.length = Duration::from_secs(1);
            let simulation = &stand.simulation;
            simulation.scan_beside(|| simulation.read(&beside).map(drop)).expect("scanned");
        });
        assert!(written <= SSD_BYTES / 50, "{written} bytes because of a scan");
        let after = stand.read_last(&HOT, 3);
        assert!(after >= before * 0.9, "{after} reads a second after {before}");
        stand.read(&HOT, 5);
    }
}

#[test]
fn a_loop_a_little_larger_than_the_fast_tier_moves_nothing_to_and_fro() {
    let mut stand = Stand::over(&devices(SSD_BYTES), 40, FILE_BYTES);
    let mut scan = |times: usize| {
        stand.written_during(|stand| {
            (0..times).for_each(|_| stand.simulation.scan_beside(|| Ok(())).expect("scanned"));
        })
    };
    scan(4);
    let written = scan(8);
    assert!(written <= SSD_BYTES / 50, "{written} bytes");
}

#[test]
fn a_hot_set_that_changes_every_minute_is_fast_each_time_and_written_once() {
    let mut stand = Stand::new();
    for (phase, hot) in [80..96, 56..72, 32..48, 64..80].into_iter().enumerate() {
        let mut rates = Vec::new();
        let written = stand.written_during(|stand| rates = stand.read(&hot, 8));
        assert!(rates[7] >= 5_000.0, "phase {phase}: {rates:?}");
        // Before the first phase the SSD holds files that are read as little as all others: hardly any of them comes back.
        let written_max = if phase == 0 { HOT_BYTES * 4 / 3 } else { HOT_BYTES * 3 / 2 };
        assert!(written <= written_max, "phase {phase}: {written} bytes");
    }
}

#[test]
fn a_hot_set_larger_than_the_fast_tier_fills_it_and_stays() {
    let mut stand = Stand::new();
    let set = 32..96;
    stand.read(&set, 15);
    let mut rates = Vec::new();
    let written = stand.written_during(|stand| rates = stand.read(&set, 8));
    let mean = mean(&rates);
    // As much of it on the SSD as fits, and the disk at its limit with the rest.
    let on_ssd = 0.97 * SSD_BYTES as f64 * 0.85 / (64 * FILE_BYTES) as f64;
    let best = 375.0 / (1.0 - on_ssd);
    assert!(mean >= best * 0.9, "{mean} of {best}: {rates:?}");
    assert!(written <= SSD_BYTES / 10, "{written} bytes in a minute");
}

#[test]
fn readers_of_a_fast_tier_that_becomes_slow_get_the_speed_of_the_other_one() {
    let mut stand = Stand::new();
    stand.read(&HOT, 8);
    let slow = DeviceSpeed { reads_per_second: 40, writes_per_second: 40, ..SSD };
    stand.simulation.set_speed(0, slow);
    let rate = stand.read_last(&HOT, 20);
    assert!(rate >= 250.0, "{rate} reads a second, of 375 that the disk could serve");
}

#[test]
fn a_hot_file_that_stays_open_moves_while_it_is_read() {
    let mut stand = Stand::new();
    let mut readers = stand.readers(&HOT);
    // Once all of it is in memory, reads of other files would be the only ones that devices see.
    readers.hot_percent = 100;
    readers.length = Duration::from_secs(60);
    let written = stand.written_during(|stand| {
        stand.simulation.read(&readers).expect("read");
    });
    assert!((HOT_BYTES / 2..=HOT_BYTES * 3 / 2).contains(&written), "{written} bytes");
}

#[test]
fn thousands_of_small_hot_files_come_to_the_fast_tier() {
    let mut stand = Stand::over(&devices(64_000_000), 6_000, 32 << 10);
    let hot = 5_000..6_000;
    let before = stand.read_last(&hot, 1);
    let rate = stand.read_last(&hot, 10);
    assert!(rate >= before * 5.0, "{rate} reads a second after {before}");
}

#[test]
fn files_that_a_scan_brought_into_memory_and_that_are_hot_there_alone_stay_where_they_are() {
    let mut stand = Stand::new();
    let of_devices = |stand: &Stand| stand.simulation.traffic().iter().map(|traffic| traffic.reads).sum::<u64>();
    let before = stand.simulation.traffic()[0].bytes_written;
    stand.simulation.scan_beside(|| Ok(())).expect("scanned");
    let brought = of_devices(&stand);
    let readers = Readers { caches: Caches::Kept, length: Duration::from_secs(60), ..stand.readers(&HOT) };
    let rate = stand.simulation.read(&readers).expect("read");
    assert!(rate > 100_000.0 && of_devices(&stand) == brought, "memory serves {rate} reads a second");
    assert_eq!(stand.simulation.traffic()[0].bytes_written, before);
}

#[test]
fn a_fast_tier_of_64_mib_holds_what_is_read_most_and_is_not_written_again_and_again() {
    let mut stand = Stand::over(&devices(64 << 20), FILES, FILE_BYTES);
    stand.read(&HOT, 8);
    let mut rates = Vec::new();
    let written = stand.written_during(|stand| rates = stand.read(&HOT, 8));
    assert!(mean(&rates) >= 440.0, "{rates:?}");
    assert!(written <= 16 << 20, "{written} bytes in a minute");
}

#[test]
fn two_tiers_of_the_same_speed_share_the_reads_and_nothing_goes_to_and_fro() {
    let mut devices = devices(SSD_BYTES);
    devices[0].speed = DISK;
    let mut stand = Stand::over(&devices, FILES, FILE_BYTES);
    let before = stand.read(&HOT, 7);
    let mut rates = Vec::new();
    let written = stand.written_during(|stand| rates = stand.read(&HOT, 8));
    // What memory serves comes in addition to the 750 of the devices.
    assert!(mean(&rates) >= 750.0, "{before:?} {rates:?}");
    assert!(written <= 2 * NODE_BYTES, "{written} bytes in a minute");
}

#[test]
fn a_fast_tier_that_wears_out_is_written_no_more_than_its_budget_allows() {
    let mut stand = Stand::new();
    let budget = 24 << 20;
    let limits = MoverLimits { promoted_bytes_per_day: Some(budget), ..MoverLimits::default() };
    stand.simulation.file_system().set_mover_limits("ssd", limits).expect("taken");
    let written = stand.written_during(|stand| drop(stand.read(&HOT, 8)));
    assert!((budget / 2..=budget + (2 << 20)).contains(&written), "{written} bytes of {budget}");
}
