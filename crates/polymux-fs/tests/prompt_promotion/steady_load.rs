//! A load that does not change: ranges that are read alike do not take each other's place, and a set that becomes hot comes at once all the
//! same.

use super::*;

/// The faster tier holds two thirds of the file.
const FAST_BYTES: u64 = 128 * MIB;
/// 90 per cent of it.
const HIGH_MARK: u64 = FAST_BYTES / 10 * 9;
const FILE_NODES: u64 = 96;
/// Reads per second of each node, about.
const READS_OF_NODE: u64 = 2;
const TICK: Duration = Duration::from_millis(5);

struct Steady {
    volume: Volume,
    ino: Ino,
    handle: HandleId,
    /// A small file that is pinned to the faster tier.
    on_fast: HandleId,
    services: Services,
    ticks: u64,
}

impl Steady {
    fn new() -> Self {
        let (volume, services) = two_tiers([FAST_BYTES, 512 * MIB], [100, 1000], Promotion::Prompt);
        let (pinned, on_fast) = create(volume.fs(), "on fast");
        volume.fs().pin_to_tier(pinned, Some("fast")).expect("pinned");
        write_all(volume.fs(), on_fast, 0, &pattern(2, 64 << 10)).expect("written");
        let (ino, handle) = create(volume.fs(), "file");
        let node = pattern(1, usize::try_from(NODE).expect("it fits"));
        (0..FILE_NODES).for_each(|number| write_all(volume.fs(), handle, number * NODE, &node).expect("written"));
        close(volume.fs(), handle).expect("closed");
        move_to_slow(&volume, ino, None);
        begin_service(&volume, &services);
        let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
        Self { volume, ino, handle, on_fast, services, ticks: 0 }
    }

    /// All nodes are read at random for so many seconds, and `hot` ones 25 times a second each beside that.
    fn read_for(&mut self, seconds: u64, hot: Range<u64>) {
        let end = self.volume.clock.elapsed() + Duration::from_secs(seconds);
        let per_second = 1000 / u64::try_from(TICK.as_millis()).expect("a few");
        while self.volume.clock.elapsed() < end {
            self.ticks += 1;
            let chance =
                self.ticks.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xd134_2543_de82_ef95);
            let fs = self.volume.fs();
            if chance % per_second < FILE_NODES * READS_OF_NODE {
                let node = (chance >> 40) % FILE_NODES;
                read_at(fs, self.handle, block_of_node(node, self.ticks), 4096).expect("read");
            }
            if !hot.is_empty() && self.ticks.is_multiple_of(per_second / 25) {
                hot.clone().for_each(|node| {
                    read_at(fs, self.handle, block_of_node(node, self.ticks), 4096).expect("read");
                });
            }
            self.volume.clock.advance(TICK);
            fs.step();
            fs.move_step();
        }
    }

    /// Bytes on the faster tier.
    fn used(&self) -> u64 {
        self.volume.fs().status().expect("status answers").tiers[0].space.expect("it is there").used
    }

    fn moved(&self) -> u64 {
        self.volume.counter("bytes_moved")
    }

    fn nodes_on_slow(&self) -> Vec<u64> {
        let explained = self.volume.fs().explain(self.ino).expect("explained");
        let on_slow = explained.ranges.iter().filter(|range| range.tier == "slow");
        on_slow.flat_map(|range| range.offset / NODE..(range.offset + range.length).div_ceil(NODE)).collect()
    }
}

/// Two causes: of many ranges chance shows some twice as busy as others in any second; and a tier that went above its high mark by a little was
/// emptied down to the low one, and filled again.
#[test]
fn ranges_that_are_read_alike_stay_where_they_are_and_a_hot_set_comes_at_once() {
    let mut steady = Steady::new();
    steady.read_for(240, 0..0);
    let before = steady.moved();
    assert!(before > FAST_BYTES / 2, "{before}: the faster tier is used");
    steady.read_for(60, 0..0);
    assert_eq!(steady.moved(), before, "a minute of the same load");
    // It stays on its tier, and takes that above its mark.
    write_all(steady.volume.fs(), steady.on_fast, 64 << 10, &pattern(3, 3 << 20)).expect("written");
    assert!(steady.used() > HIGH_MARK, "{} bytes", steady.used());
    steady.read_for(60, 0..0);
    let moved = steady.moved() - before;
    assert!((NODE..=4 * NODE).contains(&moved), "{moved} bytes");
    assert!(steady.used() <= HIGH_MARK, "{} bytes", steady.used());
    let cold = steady.nodes_on_slow();
    let hot = cold[0]..cold[0] + 4;
    steady.read_for(15, hot.clone());
    let left = steady.nodes_on_slow();
    assert!(hot.clone().all(|node| !left.contains(&node)), "{hot:?} of {left:?}");
}

/// A tier that was above its high mark gave up a tenth of itself in the seconds in which it answered later than the resting one, and took all of
/// that back at once.
#[test]
fn a_busy_tier_that_answers_later_for_some_seconds_keeps_what_would_come_back() {
    let mut steady = Steady::new();
    steady.read_for(240, 0..0);
    write_all(steady.volume.fs(), steady.on_fast, 64 << 10, &pattern(3, 3 << 20)).expect("written");
    steady.read_for(60, 0..0);
    let before = steady.moved();
    steady.services[0].takes_us.store(1100, Ordering::Relaxed);
    steady.read_for(12, 0..0);
    steady.services[0].takes_us.store(100, Ordering::Relaxed);
    steady.read_for(30, 0..0);
    assert_eq!(steady.moved(), before);
}
