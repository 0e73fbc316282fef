//! The measuring of a device whose service times are known, and the fate of the file that a tier is measured with.

#[path = "measure/device.rs"]
mod device;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use device::{Model, SimulatedDevice};
use polymux_tier::measure::{
    Direction, MeasureError, MeasureOptions, Measurement, Pattern, Point, TIME_DEFAULT, TIME_MIN, Way, measure,
};
use polymux_tier::{Label, PosixTier, PosixTierOptions, Tier, TierError};
use polymux_types::{Clock, Epoch, SystemClock, TierId, VolumeId};

const MB: u64 = 1_000_000;
const GENEROUS: MeasureOptions = MeasureOptions { time: TIME_DEFAULT, file_bytes_max: 512 << 20, seed: 1 };

fn measured(device: &SimulatedDevice) -> Measurement {
    measured_for(device, TIME_DEFAULT)
}

fn measured_for(device: &SimulatedDevice, time: Duration) -> Measurement {
    measure(device, device, &MeasureOptions { time, ..GENEROUS }, &mut |_| ControlFlow::Continue(()))
        .expect("a device that works is measured")
}

#[track_caller]
fn assert_near(found: u64, wanted: u64, percent: u64) {
    assert!(found.abs_diff(wanted) * 100 <= wanted * percent, "{found} is not within {percent} % of {wanted}");
}

fn point(found: &Measurement, direction: Direction, pattern: Pattern, bytes: u32, in_flight: u16) -> Point {
    let matches = |point: &&Point| {
        (point.direction, point.pattern, point.request_bytes, point.in_flight) == (direction, pattern, bytes, in_flight)
    };
    *found.points.iter().find(matches).expect("the load was tried")
}

/// One thing at a time, as a disk: a request of any kind costs the same, and then its bytes.
const DISK: Model =
    Model { channels: 1, read_us: 8000, write_us: 9000, sequential_us: 100, bytes_per_second: 120 * MB, all: 120 * MB };

/// Sixteen at a time: each answers a small read in 100 us, and all of them together deliver a gigabyte in a second.
const FLASH: Model =
    Model { channels: 16, read_us: 90, write_us: 20, sequential_us: 90, bytes_per_second: 400 * MB, all: 1000 * MB };

#[test]
fn the_numbers_of_a_device_that_does_one_thing_at_a_time_are_found() {
    let found = measured(&SimulatedDevice::new(DISK));
    // A mebibyte takes 100 us and 8.74 ms.
    let mebibytes = (1 << 20) * 1_000_000 / (100 + (1 << 20) / 120);
    for direction in [Direction::Read, Direction::Write] {
        assert_near(found.sequential_bytes_per_second(direction).unwrap(), mebibytes, 3);
        assert_near(point(&found, direction, Pattern::Sequential, 64 << 10, 1).bytes_per_second, 101_400_000, 3);
    }
    // 8 ms and 34 us: 124 in a second, however many wait.
    assert_near(found.random_requests_per_second(Direction::Read).unwrap(), 124, 3);
    assert_near(u64::from(found.latency(Direction::Read).unwrap().median_us), 8034, 1);
    assert_near(u64::from(point(&found, Direction::Read, Pattern::Random, 4096, 2).median_us), 2 * 8034, 3);
    assert_near(u64::from(found.latency(Direction::Write).unwrap().median_us), 9034, 1);
    assert_eq!(found.saturating_in_flight(Direction::Read), Some(1));
    assert!(!found.caveats.may_be_memory && !found.caveats.takes_less_room, "{:?}", found.caveats);
}

#[test]
fn how_many_requests_at_once_a_parallel_device_needs_is_found() {
    // The threads of a simulated device cost this machine more than the device's own time.
    let found = measured_for(&SimulatedDevice::new(FLASH), Duration::from_secs(1));
    // Each channel: 90 us and 10.2 us. Sixteen: 160,000 in a second, within the gigabyte of all together.
    assert_near(found.random_requests_per_second(Direction::Read).unwrap(), 159_600, 3);
    assert_eq!(found.saturating_in_flight(Direction::Read), Some(16));
    assert_near(point(&found, Direction::Read, Pattern::Random, 4096, 4).requests_per_second(), 39_900, 3);
    assert_near(found.sequential_bytes_per_second(Direction::Read).unwrap(), 1000 * MB, 5);
    // One request of a mebibyte alone reaches the bandwidth of one channel.
    let alone = point(&found, Direction::Read, Pattern::Sequential, 1 << 20, 1).bytes_per_second;
    assert_near(alone, (1 << 20) * 1_000_000 / (90 + (1 << 20) / 400), 3);
}

#[test]
fn what_is_measured_takes_as_long_as_it_may_and_no_more_room_than_it_may() {
    for (model, room) in [(DISK, 512 << 20), (DISK, 8 << 20), (FLASH, 8 << 20)] {
        let long = if model.channels == 1 { Duration::from_secs(20) } else { Duration::from_secs(1) };
        for time in [Duration::from_secs(1), long] {
            let device = SimulatedDevice::new(model);
            let options = MeasureOptions { time, file_bytes_max: room, seed: 3 };
            let began = device.elapsed();
            let found = measure(&device, &device, &options, &mut |_| ControlFlow::Continue(())).unwrap();
            let took = device.elapsed() - began;
            // Requests in flight when a load ends are waited for.
            assert!(took <= time + time / 4 + Duration::from_millis(300), "{took:?} of {time:?}");
            assert!(device.highest_byte() <= room && found.file_bytes <= room);
            assert_eq!(device.reads_of_holes(), 0, "what was never written was read");
        }
    }
}

#[test]
fn of_a_slow_device_the_numbers_that_are_told_are_found_in_the_shortest_time() {
    let found = measured_for(&SimulatedDevice::new(DISK), TIME_MIN);
    let random = found.random_requests_per_second(Direction::Read).expect("small reads were tried");
    assert_near(random, 124, 10);
    assert_near(found.sequential_bytes_per_second(Direction::Read).expect("streams were tried"), 118 * MB, 10);
    assert!(found.latency(Direction::Read).is_some() && found.saturating_in_flight(Direction::Read).is_some());
    assert!(found.points.len() >= 8, "{}", found.points.len());
}

#[test]
fn no_time_is_too_long_to_be_asked_for() {
    let device = SimulatedDevice::new(DISK);
    let options = MeasureOptions { time: Duration::MAX, ..GENEROUS };
    let ended = measure(&device, &device, &options, &mut |_| ControlFlow::Break(()));
    assert_eq!(ended, Err(MeasureError::Ended));
}

#[test]
fn a_device_that_answers_from_memory_or_stores_less_is_told() {
    let device = SimulatedDevice::new(DISK);
    device.keep_in_memory();
    device.compress();
    let found = measured(&device);
    assert!(found.caveats.may_be_memory && found.caveats.takes_less_room, "{:?}", found.caveats);
    assert_eq!(found.caveats.words().len(), 2, "{:?}", found.caveats.words());
}

#[test]
fn no_two_blocks_that_are_written_are_alike() {
    let device = SimulatedDevice::new(DISK);
    device.remember_blocks();
    measured(&device);
    let (blocks, different) = device.blocks_written();
    assert!(blocks > 10_000);
    assert_eq!(blocks, different);
}

#[test]
fn it_ends_when_it_is_told_to_and_when_the_device_fails() {
    let device = SimulatedDevice::new(DISK);
    let mut told = 0;
    let ended = measure(&device, &device, &GENEROUS, &mut |progress| {
        told += 1;
        assert_eq!(progress.total, 15);
        if progress.done >= 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(ended, Err(MeasureError::Ended));
    assert!(told >= 4);
    for after in [0, 3, 40, 400] {
        let device = SimulatedDevice::new(DISK);
        device.fail_after(after);
        let ended = measure(&device, &device, &GENEROUS, &mut |_| ControlFlow::Continue(()));
        assert_eq!(ended, Err(MeasureError::Tier(TierError::NoSpace)), "after {after} requests");
    }
}

fn label() -> Label {
    Label {
        volume: VolumeId::from_random([1; 16]),
        volume_name: "v".to_owned(),
        tier: TierId(0),
        tier_name: "t".to_owned(),
        instance: 1,
        epoch: Epoch(1),
        clean: polymux_tier::CleanStamp::InUse,
    }
}

fn tier(path: &Path) -> PosixTier {
    let tier = PosixTier::prepare(path, PosixTierOptions::new("t")).expect("a directory becomes a tier");
    tier.write_label(&label()).expect("it is labelled");
    tier
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path.join(".polymux")).expect("the tier's own directory can be read");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_tier_of_this_machine_is_measured_within_its_time_and_nothing_stays() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tier = tier(directory.path());
    let before = names(directory.path());
    let clock = SystemClock::new();
    let options = MeasureOptions { time: Duration::from_secs(1), file_bytes_max: 16 << 20, seed: 7 };
    let found = {
        let ground = tier.measuring_ground().unwrap();
        let found = measure(ground.as_ref(), &clock, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(names(directory.path()), before, "on a local file system it has no name at all");
        found
    };
    assert!(found.points.iter().all(|point| point.requests > 0 && point.bytes_per_second > 0), "{found:?}");
    assert!(found.file_bytes <= 16 << 20 && found.caveats.is_small);
    assert_ne!(found.way, Way::Memory);
    assert_eq!(names(directory.path()), before);
    assert_eq!(tier.list(polymux_types::Bucket(0)), Ok(Vec::new()));
}

#[test]
fn what_a_crash_left_of_a_measurement_goes_when_the_tier_is_opened_for_changes_and_not_before() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    drop(tier(directory.path()));
    let before = names(directory.path());
    let left = directory.path().join(".polymux/measure");
    std::fs::write(&left, vec![7; 1 << 20]).unwrap();
    let read_only =
        PosixTierOptions { access: polymux_tier::posix::OpenAccess::ReadOnly, ..PosixTierOptions::new("t") };
    drop(PosixTier::open(directory.path(), read_only).unwrap());
    assert!(left.exists(), "whoever only reads changes nothing");
    drop(PosixTier::open(directory.path(), PosixTierOptions::new("t")).unwrap());
    assert_eq!(names(directory.path()), before);
}

#[test]
fn a_tier_that_is_open_for_reading_alone_is_not_measured() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    drop(tier(directory.path()));
    let options = PosixTierOptions { access: polymux_tier::posix::OpenAccess::ReadOnly, ..PosixTierOptions::new("t") };
    let tier = PosixTier::open(directory.path(), options).unwrap();
    assert!(matches!(tier.measuring_ground(), Err(TierError::ReadOnly)));
}
