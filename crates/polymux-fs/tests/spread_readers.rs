//! Spread files are laid out anew for their readers when the tiers have nothing else to do: for a stream when they were written, and
//! for those who waited for one tier.
//!
//! Setup: time moves where a test moves it, and where a device that is measured is at work.

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use common::{Hook, HookedTier, Volume, bytes_on, close, create, pattern, read_at, read_write, write_all};
use polymux_fs::{Caller, FileSystem, HandleId, MoveReason, PolicyKind, Progress, ReaderLayout, SyncKind};
use polymux_tier::TierError;
use polymux_tier::measure::{Ground, Way};
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::sync::Mutex;
use polymux_types::{Ino, ManualClock};

const MIB: u64 = 1 << 20;
const MB: u64 = 1_000_000;
/// Bytes of a read.
const CHUNK: usize = 1 << 20;
const TIERS: [&str; 3] = ["fast", "middle", "slow"];
/// Bytes that they read in a second.
const SPEEDS: [u64; 3] = [66 * MB, 12 * MB, 5_300_000];
const NODES: u64 = 30;

/// A device whose requests take as long as their bytes do.
struct Timed {
    bytes_per_second: u64,
    clock: Arc<Mutex<Option<Arc<ManualClock>>>>,
}

impl Timed {
    fn take(&self, bytes: usize) {
        let nanoseconds = bytes as u64 * 1_000_000_000 / self.bytes_per_second;
        self.clock.lock().as_ref().expect("the volume is there").advance(Duration::from_nanos(nanoseconds));
    }
}

impl Ground for Timed {
    fn way(&self) -> Way {
        Way::Memory
    }

    fn write(&self, _offset: u64, data: &[u8]) -> Result<(), TierError> {
        self.take(data.len());
        Ok(())
    }

    fn read(&self, _offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        self.take(buffer.len());
        Ok(())
    }

    fn flush(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn forget(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn allocated_bytes(&self) -> Option<u64> {
        None
    }
}

struct Device(u64, Arc<Mutex<Option<Arc<ManualClock>>>>);

impl Hook for Device {
    fn measuring_ground(&self) -> Option<Box<dyn Ground>> {
        Some(Box::new(Timed { bytes_per_second: self.0, clock: Arc::clone(&self.1) }))
    }
}

/// A volume of three such devices, and a file with a third of it on each.
fn volume_with_file(layout: ReaderLayout) -> (Volume, Ino, HandleId) {
    let clock = Arc::new(Mutex::new(None));
    let device = |tier: usize| Arc::new(Device(SPEEDS[tier], Arc::clone(&clock)));
    let mut volume = Volume::wrapping(&[256 * MIB; 3], |tier, inner| Arc::new(HookedTier::new(inner, device(tier))));
    *clock.lock() = Some(Arc::clone(&volume.clock));
    volume.options.inline_size_max = 0;
    volume.options.reader_layout = layout;
    volume.remount();
    volume.fs().set_steering(PolicyKind::Spread, &[]).expect("taken");
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &content()).expect("written");
    for tier in TIERS {
        let nodes = bytes_on(volume.fs(), ino, tier) / RANGE_NODE_SIZE;
        assert!((8..=12).contains(&nodes), "{nodes} on {tier}");
    }
    (volume, ino, handle)
}

fn content() -> Vec<u8> {
    pattern(3, usize::try_from(NODES * RANGE_NODE_SIZE).expect("small"))
}

/// As [`volume_with_file`], with devices that were measured, where only readers that waited count.
fn measured_volume_with_file() -> (Volume, Ino, HandleId) {
    measured_volume_with(ReaderLayout::WhenRead)
}

fn measured_volume_with(layout: ReaderLayout) -> (Volume, Ino, HandleId) {
    let (volume, ino, handle) = volume_with_file(layout);
    for tier in TIERS {
        let measured = volume.fs().measure_tier(tier, Duration::from_secs(1), &mut |_| ControlFlow::Continue(()));
        measured.expect("a device is measured");
    }
    (volume, ino, handle)
}

/// Reads the file three times, in this time each.
fn read_three_times(volume: &Volume, handle: HandleId, each: Duration) {
    read(volume, handle, 3, each);
}

fn read(volume: &Volume, handle: HandleId, times: u32, each: Duration) {
    let content = content();
    // Earlier reads are of another window.
    volume.clock.advance(Duration::from_secs(3));
    volume.fs().step();
    for _ in 0..times {
        let mut read = Vec::new();
        for offset in (0..NODES * RANGE_NODE_SIZE).step_by(CHUNK) {
            read.extend(read_at(volume.fs(), handle, offset, CHUNK).expect("read"));
        }
        assert!(read == content, "other bytes than were written");
        volume.clock.advance(each);
    }
}

fn sync(fs: &FileSystem, handle: HandleId) {
    fs.sync(&Caller::root(), handle, SyncKind::All).expect("synced");
}

fn rest(volume: &Volume) {
    for _ in 0..40 {
        volume.step();
        while volume.fs().move_step() == Progress::Worked {}
    }
}

fn nodes(fs: &FileSystem, ino: Ino) -> [u64; 3] {
    TIERS.map(|tier| bytes_on(fs, ino, tier) / RANGE_NODE_SIZE)
}

/// A third of the file on the slowest takes this long.
const KEPT_BUSY: Duration = Duration::from_millis(4200);

#[test]
fn a_file_is_laid_out_for_those_who_waited_for_its_slowest_tier() {
    let (volume, ino, handle) = measured_volume_with_file();
    read_three_times(&volume, handle, KEPT_BUSY);
    volume.fs().step();
    let waited = volume.fs().explain(ino).expect("explained").readers.expect("its readers waited");
    assert!(waited.starts_with("Its readers waited for a tier, most for `slow`: "), "{waited}");
    let plan = volume.fs().plan(None).expect("planned").moves;
    assert!(plan.iter().any(|moves| (moves.reason, moves.to.as_str()) == (MoveReason::Rebalance, "fast")), "{plan:?}");
    rest(&volume);
    // 66, 12 and 5.3 of 83.3.
    let [fast, middle, slow] = nodes(volume.fs(), ino);
    assert!(fast.abs_diff(24) <= 1 && middle.abs_diff(4) <= 1 && slow.abs_diff(2) <= 1, "{fast} {middle} {slow}");
    read_three_times(&volume, handle, Duration::from_millis(800));
    rest(&volume);
    assert_eq!(nodes(volume.fs(), ino), [fast, middle, slow], "it is as it should be");
    assert_eq!(volume.fs().explain(ino).expect("explained").readers, None);
}

#[test]
fn what_moves_up_is_taken_from_all_over_the_file() {
    let (volume, ino, handle) = measured_volume_with_file();
    read_three_times(&volume, handle, KEPT_BUSY);
    rest(&volume);
    let ranges = volume.fs().explain(ino).expect("explained").ranges;
    let slow: Vec<u64> = ranges.iter().filter(|range| range.tier == "slow").map(|range| range.offset).collect();
    let middle: Vec<u64> = ranges.iter().filter(|range| range.tier == "middle").map(|range| range.offset).collect();
    let [fast, ..] = nodes(volume.fs(), ino);
    assert!(fast > 20, "{fast} are on the fastest");
    let half = NODES * RANGE_NODE_SIZE / 2;
    for left in [slow, middle] {
        assert!(left.iter().any(|offset| *offset <= half) && left.iter().any(|offset| *offset > half), "{left:?}");
    }
}

#[test]
fn nothing_moves_where_nobody_knows_how_fast_devices_are_read_and_explain_says_so() {
    let (volume, ino, handle) = volume_with_file(ReaderLayout::WhenWritten);
    let before = nodes(volume.fs(), ino);
    read_three_times(&volume, handle, KEPT_BUSY);
    rest(&volume);
    assert_eq!(nodes(volume.fs(), ino), before);
    let why = volume.fs().explain(ino).expect("explained").readers.expect("there is a reason");
    assert!(why.contains("polymux tier measure test"), "{why}");
}

#[test]
fn a_reader_who_waits_for_nothing_moves_nothing() {
    // The reader is slow, or its data is in memory.
    for (times, each) in [(3, Duration::from_secs(20)), (10, Duration::from_millis(100))] {
        let (volume, ino, handle) = measured_volume_with_file();
        let before = nodes(volume.fs(), ino);
        read(&volume, handle, times, each);
        volume.clock.advance(Duration::from_secs(1));
        rest(&volume);
        assert_eq!(nodes(volume.fs(), ino), before, "{each:?}");
    }
}

#[test]
fn nothing_moves_while_programs_use_the_tiers() {
    let (volume, ino, handle) = measured_volume_with_file();
    let before = nodes(volume.fs(), ino);
    read_three_times(&volume, handle, KEPT_BUSY);
    let (_, other) = create(volume.fs(), "other");
    for round in 0..40 {
        write_all(volume.fs(), other, round * 4096, &[1; 4096]).expect("written");
        volume.step();
        while volume.fs().move_step() == Progress::Worked {}
    }
    assert_eq!(nodes(volume.fs(), ino), before);
    rest(&volume);
    assert_ne!(nodes(volume.fs(), ino), before, "and then it does");
}

#[test]
fn another_policy_moves_nothing_for_streams() {
    let (volume, ino, handle) = measured_volume_with_file();
    let before = nodes(volume.fs(), ino);
    volume.fs().set_steering(PolicyKind::Poly, &[]).expect("taken");
    read_three_times(&volume, handle, KEPT_BUSY);
    rest(&volume);
    assert_eq!(nodes(volume.fs(), ino), before);
    assert_eq!(volume.fs().explain(ino).expect("explained").readers, None);
}

#[test]
fn what_was_written_is_laid_out_for_a_stream_before_anybody_reads_it() {
    let (volume, ino, handle) = measured_volume_with(ReaderLayout::WhenWritten);
    let before = nodes(volume.fs(), ino);
    sync(volume.fs(), handle);
    rest(&volume);
    assert_eq!(nodes(volume.fs(), ino), before, "whoever has it open may write on");
    let expected = volume.fs().explain(ino).expect("explained").readers.expect("something is to be done");
    assert!(expected.starts_with("Who reads all of it would wait for a tier, most for `slow`: "), "{expected}");
    close(volume.fs(), handle).expect("closed");
    rest(&volume);
    let [fast, middle, slow] = nodes(volume.fs(), ino);
    assert!(fast.abs_diff(24) <= 1 && middle.abs_diff(4) <= 1 && slow.abs_diff(2) <= 1, "{fast} {middle} {slow}");
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, NODES * RANGE_NODE_SIZE, &[7; 4096]).expect("written");
    sync(volume.fs(), handle);
    close(volume.fs(), handle).expect("closed");
    let moved = volume.counter("bytes_moved_for_readers");
    rest(&volume);
    assert_eq!(volume.counter("bytes_moved_for_readers"), moved, "a little more of it is no reason");
}

#[test]
fn what_was_written_stays_until_it_is_read_where_the_user_wants_that() {
    let (volume, ino, handle) = measured_volume_with(ReaderLayout::WhenRead);
    let before = nodes(volume.fs(), ino);
    sync(volume.fs(), handle);
    close(volume.fs(), handle).expect("closed");
    rest(&volume);
    assert_eq!(nodes(volume.fs(), ino), before);
}

#[test]
fn files_stay_as_they_were_written_where_the_user_wants_that() {
    let (volume, ino, handle) = measured_volume_with(ReaderLayout::Never);
    let before = nodes(volume.fs(), ino);
    sync(volume.fs(), handle);
    read_three_times(&volume, handle, KEPT_BUSY);
    rest(&volume);
    assert_eq!(nodes(volume.fs(), ino), before);
    assert_eq!(volume.fs().explain(ino).expect("explained").readers, None);
}
