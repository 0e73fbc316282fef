//! Which pieces are begun when, on a tier without other requests and beside something urgent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use polymux_records::parts::{TierMember, TierPresence};
use polymux_sim::MemoryTier;
use polymux_types::{Bucket, ManualClock, ObjectId};

use super::super::{Purpose, SyncedBytes};
use super::gathering::{CLAIM_AGE_MAX, GATHER};
use super::*;
use crate::sched::Deferrable;

const MIB: u64 = 1 << 20;
const MIB_IN_MEMORY: usize = 1 << 20;

struct Stand {
    clock: Arc<ManualClock>,
    behind: WriteBehind,
    tiers: Vec<Arc<TierHandle>>,
}

impl Stand {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000_000)));
        let tier = |number: u16| {
            let tier = Arc::new(MemoryTier::with_clock("t", 1 << 40, Arc::clone(&clock) as _));
            let member = TierMember::new(format!("tier-{number}"), TierPresence::Present(tier));
            Arc::new(TierHandle::new(TierId(number), member, Purpose::Data, Arc::clone(&clock) as _))
        };
        Self { behind: WriteBehind::new(Arc::clone(&clock) as _), tiers: vec![tier(0), tier(1)], clock }
    }

    /// Bytes that were handed over to the device of the first tier, and those that were not.
    fn bytes(&self) -> (u64, u64) {
        let begun = self.tiers[0].speed.write_lane.outstanding_bytes();
        (begun, self.tiers[0].bytes_behind() - begun)
    }

    fn wrote(&self, offset: u64, length: usize) {
        self.behind.wrote(&self.tiers[0], object(), offset, length);
    }
}

fn object() -> ObjectRef {
    ObjectRef::new(ObjectId(1), Bucket(0))
}

#[test]
fn small_writes_go_to_the_device_by_the_mebibyte_at_the_end_of_a_range_or_after_a_while() {
    let stand = Stand::new();
    for index in 0..255 {
        stand.wrote(index * 4096, 4096);
    }
    assert_eq!(stand.bytes(), (0, 255 * 4096));
    assert!(!stand.behind.step(TierId(0)));
    stand.wrote(255 * 4096, 4096);
    assert!(stand.behind.step(TierId(0)));
    assert_eq!(stand.bytes(), (MIB, 0));
    stand.wrote(RANGE_NODE_SIZE - 4096, 4096);
    assert!(stand.behind.step(TierId(0)));
    assert_eq!(stand.bytes(), (MIB + 4096, 0));
    stand.wrote(RANGE_NODE_SIZE, 4096);
    assert_eq!(stand.bytes(), (MIB + 4096, 4096));
    while stand.behind.step(TierId(0)) {}
    assert_eq!(stand.bytes(), (0, 4096));
    stand.clock.advance(GATHER);
    while stand.behind.step(TierId(0)) {}
    assert_eq!(stand.bytes(), (0, 0));
    assert_eq!(stand.tiers[0].speed.write_lane.state(stand.clock.elapsed()).delivered_bytes, MIB + 8192);
}

#[test]
fn of_scattered_writes_that_nobody_waits_for_only_so_many_wait_here() {
    let stand = Stand::new();
    let taken = |index: u64| stand.behind.collected(&stand.tiers[0], object(), index * RANGE_NODE_SIZE, 4096);
    for index in 0..256 {
        assert_eq!(taken(index), 4096);
    }
    assert_eq!((taken(256), stand.bytes()), (0, (0, 256 * 4096)), "the kernel writes it when it wants to");
    assert_eq!(taken(7), 4096, "a range that is gathered already goes on");
    stand.clock.advance(GATHER);
    while stand.behind.step(TierId(0)) {}
    assert_eq!((taken(256), stand.bytes()), (4096, (0, 4096)), "there is room again");
}

#[test]
fn a_write_over_several_ranges_is_divided_among_them() {
    let ends = |part: std::ops::Range<u64>| (part.start, part.end);
    let parts = |offset, length| super::parts_of_ranges(offset, length).map(ends).collect::<Vec<_>>();
    assert_eq!(parts(5, 0), []);
    assert_eq!(parts(5, 10), [(5, 15)]);
    let (first, second) = (RANGE_NODE_SIZE, 2 * RANGE_NODE_SIZE);
    assert_eq!(parts(0, usize::try_from(first).expect("it fits")), [(0, first)]);
    let three = usize::try_from(RANGE_NODE_SIZE).expect("it fits") + 2;
    assert_eq!(parts(first - 1, three), [(first - 1, first), (first, second), (second, second + 1)]);
}

#[test]
fn what_is_given_to_a_tier_counts_at_once_and_is_forgotten_where_it_does_not_come() {
    let stand = Stand::new();
    stand.behind.claim(&stand.tiers[0], object(), 0, RANGE_NODE_SIZE);
    assert_eq!(stand.bytes(), (0, RANGE_NODE_SIZE));
    stand.wrote(0, MIB_IN_MEMORY);
    assert_eq!(stand.bytes(), (0, RANGE_NODE_SIZE), "bytes that were expected are not counted twice");
    while stand.behind.step(TierId(0)) {}
    stand.clock.advance(CLAIM_AGE_MAX);
    stand.behind.step(TierId(0));
    assert_eq!(stand.bytes(), (0, 0));
}

#[test]
fn a_writer_waits_for_no_tier_while_another_has_room() {
    let stand = Stand::new();
    stand.behind.claim(&stand.tiers[0], object(), 0, 1 << 30);
    assert!(!stand.behind.wait_for_room(&stand.tiers));
    assert!(!stand.behind.wait_for_room(&[]), "and for nothing where there is none");
}

#[test]
fn who_waits_for_one_tier_is_let_go_in_time_although_another_one_is_at_work() {
    let stand = Stand::new();
    stand.behind.allow_threads();
    // Nothing of this ever comes to its device.
    stand.tiers[0].claim_bytes(1 << 30);
    let (is_over, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(20) {
                stand.clock.advance(Duration::from_millis(10));
                stand.behind.shared.done.notify_all();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let waited = stand.behind.wait_for_room(&stand.tiers[..1]);
        is_over.store(true, Ordering::Relaxed);
        assert!(waited && begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    });
}

#[test]
fn without_threads_whoever_waits_does_the_work() {
    let stand = Stand::new();
    for range in 0..64 {
        stand.wrote(range * RANGE_NODE_SIZE, 2 * MIB_IN_MEMORY);
    }
    let before = stand.tiers[0].bytes_behind();
    assert!(stand.behind.wait_for_room(&stand.tiers[..1]));
    let after = stand.tiers[0].bytes_behind();
    assert!(after > 0 && after < before, "{after} of {before} bytes are left: no more is done than has to be");
    assert_eq!(stand.behind.threads_started(), 0);
}

#[test]
fn with_threads_everything_is_written_out_and_they_end_with_the_volume() {
    let stand = Stand::new();
    stand.behind.allow_threads();
    for range in 0..64 {
        stand.wrote(range * RANGE_NODE_SIZE, 2 * MIB_IN_MEMORY);
    }
    while stand.tiers[0].bytes_behind() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(stand.behind.threads_started(), 1);
    drop(stand);
}

/// Lets the device deliver at a rate, so that the lane knows it.
fn teach(stand: &Stand, bytes_per_second: u64) {
    for _ in 0..30 {
        let began = stand.tiers[0].speed.write_lane.began(bytes_per_second / 10, stand.clock.elapsed());
        stand.clock.advance(Duration::from_millis(100));
        stand.tiers[0].speed.write_lane.ended(began, bytes_per_second / 10, stand.clock.elapsed());
    }
}

#[test]
fn a_device_gets_no_more_at_once_than_it_takes_in_three_tenths_of_a_second_also_when_its_speed_changed() {
    for (before, now, at_most) in [(60, 200, 60), (200, 60, 18), (200, 1, 8), (60, 400, 120)] {
        let stand = Stand::new();
        teach(&stand, before * MIB);
        teach(&stand, now * MIB);
        stand.behind.stream(&stand.tiers[0], object(), 0, 500 * MIB);
        assert!(stand.behind.step(TierId(0)));
        let (begun, _) = stand.bytes();
        assert!(begun <= at_most * MIB && begun + 2 * MIB > at_most * MIB, "{begun} bytes at {now} MiB/s");
    }
}

#[test]
fn the_queue_of_a_tier_is_bounded_and_what_is_more_is_left_to_the_kernel() {
    let stand = Stand::new();
    assert_eq!(stand.behind.stream(&stand.tiers[0], object(), 0, 5000 * MIB), 1024 * MIB);
    assert_eq!(stand.behind.stream(&stand.tiers[0], object(), 5000 * MIB, MIB), 0);
    while stand.behind.step(TierId(0)) {}
    assert_eq!(stand.bytes(), (0, 0));
    assert_eq!(stand.behind.stream(&stand.tiers[0], object(), 5000 * MIB, MIB), MIB);
}

#[test]
fn beside_a_sync_one_turn_goes_in_each_bound_and_everything_after_it() {
    let stand = Stand::new();
    let sync = Arc::clone(&stand.tiers[0]).waited_for(SyncedBytes::Few);
    stand.behind.stream(&stand.tiers[0], object(), 0, 20 * MIB);
    for turn in 1..=3 {
        assert!(!stand.behind.step(TierId(0)), "it makes way");
        stand.clock.advance(Duration::from_millis(29));
        assert!(!stand.behind.step(TierId(0)), "until the bound");
        stand.clock.advance(Duration::from_millis(1));
        assert!(stand.behind.step(TierId(0)));
        // For a device with no known speed, a piece is its work of 10 ms.
        assert_eq!(stand.bytes(), (MIB, (20 - turn) * MIB));
        assert!(stand.behind.step(TierId(0)), "it is waited for at once");
        assert_eq!(stand.bytes().0, 0);
    }
    drop(sync);
    stand.clock.advance(Duration::from_millis(5));
    while stand.behind.step(TierId(0)) {}
    assert_eq!(stand.bytes(), (0, 0));
    let waits = stand.tiers[0].speed.schedule.deferral().waits(Deferrable::WriteBehind);
    assert_eq!((waits.at_bound, waits.longest_us), (3, 30_000));
}

#[test]
fn what_a_sync_wrote_out_before_tells_nothing_of_the_speed_of_the_device() {
    let stand = Stand::new();
    teach(&stand, 100 * MIB);
    let speed = || stand.tiers[0].speed.write_lane.state(stand.clock.elapsed()).bytes_per_second;
    let known = speed();
    stand.behind.stream(&stand.tiers[0], object(), 0, 200 * MIB);
    stand.clock.advance(Duration::from_millis(1));
    drop(Arc::clone(&stand.tiers[0]).waited_for(SyncedBytes::Few));
    stand.clock.advance(Duration::from_millis(5));
    // The simulated tier has everything on its device at once.
    while stand.behind.step(TierId(0)) {
        stand.clock.advance(Duration::from_micros(20));
    }
    teach(&stand, 100 * MIB);
    assert!(speed() <= known + known / 100, "{} after {known}", speed());
    let delivered = stand.tiers[0].speed.write_lane.state(stand.clock.elapsed()).delivered_bytes;
    assert_eq!(delivered, 2 * 30 * 10 * MIB, "what was taught");
}
