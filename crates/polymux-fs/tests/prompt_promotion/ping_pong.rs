//! No range goes to and fro: random workloads in virtual time, with the policy, the planner and the movers of the product.
//!
//! Setup: a workload is a row of phases, each with hot ranges, a rate of reads and a length of its own, as a seed gives them. The faster tier
//! holds a part of the hot ranges. Between two arrivals of a range on the faster tier at least the time lies within which a move has to pay
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_fs::{HandleId, Promotion};
use polymux_types::{Clock, Ino};

use super::common::{Volume, create, pattern, read_at, write_all};
use super::{MIB, NODE, Services, begin_service, two_tiers};

/// Random workloads; `POLYMUX_PING_PONG` asks for another number.
const WORKLOADS: u64 = 6;
const FILES: usize = 10;
const FILE_BYTES: u64 = 2 * NODE;
const NODES: usize = FILES * 2;
/// Space for seven of the twenty ranges below the high mark.
const CAPACITIES: [u64; 2] = [16 * MIB, 96 * MIB];

/// Seconds within which a move has to pay back.
const PAY_BACK_SECONDS: u64 = 30;

/// How often the background works.
const STEP: Duration = Duration::from_millis(50);

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("an index fits")
    }
}

/// One phase of a workload.
#[derive(Debug)]
struct Phase {
    seconds: u64,
    reads_per_second: u64,
    /// Of a hundred reads those that go to the hot ranges; the others go anywhere.
    hot_percent: u64,
    hot: Vec<usize>,
}

impl Phase {
    fn at_random(random: &mut Random) -> Self {
        let count = 1 + random.below(12);
        Self {
            seconds: 2 + random.below(40),
            reads_per_second: 20 + random.below(300),
            hot_percent: 70 + random.below(31),
            hot: (0..count).map(|_| random.index(NODES)).collect(),
        }
    }
}

/// A volume with its files, and when each range came to the faster tier.
struct World {
    volume: Volume,
    files: Vec<(Ino, HandleId)>,
    on_fast: BTreeSet<u64>,
    came: BTreeMap<u64, u64>,
    arrivals: u64,
}

impl World {
    fn new() -> (Self, Services) {
        let (volume, services) = two_tiers(CAPACITIES, [100, 1000], Promotion::Prompt);
        let content = pattern(1, usize::try_from(FILE_BYTES).expect("it fits"));
        let files = (0..FILES)
            .map(|number| {
                let (ino, handle) = create(volume.fs(), &format!("file-{number}"));
                write_all(volume.fs(), handle, 0, &content).expect("written");
                (ino, handle)
            })
            .collect();
        let mut world = Self { volume, files, on_fast: BTreeSet::new(), came: BTreeMap::new(), arrivals: 0 };
        for _ in 0..1000 {
            world.work();
            world.volume.clock.advance(STEP);
        }
        world.on_fast = world.ranges_on_fast();
        (world, services)
    }

    fn work(&self) {
        self.volume.fs().step();
        self.volume.fs().move_step();
    }

    fn ranges_on_fast(&self) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for (number, (ino, _)) in (0_u64..).zip(&self.files) {
            let location = self.volume.fs().locate(*ino).expect("located");
            for extent in location.extents.iter().filter(|extent| extent.tier.as_deref() == Some("fast")) {
                let nodes = extent.offset / NODE..(extent.offset + extent.length).div_ceil(NODE);
                found.extend(nodes.map(|node| number * 2 + node));
            }
        }
        found
    }

    fn seconds(&self) -> u64 {
        self.volume.clock.elapsed().as_secs()
    }

    /// Records the promotions since the last call. An error names ranges that were promoted again too soon.
    fn look(&mut self) -> Result<(), String> {
        let (now, on_fast) = (self.seconds(), self.ranges_on_fast());
        for range in on_fast.difference(&self.on_fast) {
            self.arrivals += 1;
            let since = self.came.insert(*range, now).map(|before| now - before);
            // Looked at once a second.
            if since.is_some_and(|since| since + 1 < PAY_BACK_SECONDS) {
                return Err(format!("range {range} came to the faster tier again after {since:?} s"));
            }
        }
        self.on_fast = on_fast;
        Ok(())
    }

    fn run(&mut self, phase: &Phase, random: &mut Random) -> Result<(), String> {
        let end = self.volume.clock.elapsed() + Duration::from_secs(phase.seconds);
        let gap = Duration::from_secs(1) / u32::try_from(phase.reads_per_second).expect("few");
        let (mut worked, mut looked) = (Duration::ZERO, self.seconds());
        while self.volume.clock.elapsed() < end {
            let is_hot = random.below(100) < phase.hot_percent;
            let range = if is_hot { phase.hot[random.index(phase.hot.len())] } else { random.index(NODES) };
            let offset = (range % 2) as u64 * NODE + random.below(NODE / 4096) * 4096;
            read_at(self.volume.fs(), self.files[range / 2].1, offset, 4096).expect("read");
            self.volume.clock.advance(gap);
            let now = self.volume.clock.elapsed();
            if now.saturating_sub(worked) >= STEP {
                worked = now;
                self.work();
            }
            if self.seconds() > looked {
                looked = self.seconds();
                self.look()?;
            }
        }
        Ok(())
    }
}

/// Runs the workload of a seed. Returns how often a range came to the faster tier.
fn run(seed: u64) -> Result<u64, String> {
    let mut random = Random(seed);
    let phases: Vec<Phase> = (0..3 + random.below(4)).map(|_| Phase::at_random(&mut random)).collect();
    let (mut world, services) = World::new();
    begin_service(&world.volume, &services);
    for phase in &phases {
        world.run(phase, &mut random).map_err(|error| format!("seed {seed}: {error}; {phases:?}"))?;
    }
    Ok(world.arrivals)
}

#[test]
fn no_range_comes_to_the_faster_tier_again_before_its_move_has_paid_back() {
    let wanted = std::env::var("POLYMUX_PING_PONG").ok().and_then(|text| text.parse().ok()).unwrap_or(WORKLOADS);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let seeds_of = |thread: u64| (0..wanted).filter(move |seed| seed % threads == thread);
    let arrivals: u64 = std::thread::scope(|scope| {
        let runs = |thread| seeds_of(thread).map(run).sum::<Result<u64, String>>();
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || runs(thread))).collect();
        let outcomes = threads.into_iter().map(|thread| thread.join().expect("a workload ends"));
        outcomes.sum::<Result<u64, String>>().unwrap_or_else(|error| panic!("{error}"))
    });
    println!("{wanted} random workloads, {arrivals} ranges came to the faster tier");
    assert!(arrivals > wanted, "something moves: {arrivals} arrivals in {wanted} workloads");
}
