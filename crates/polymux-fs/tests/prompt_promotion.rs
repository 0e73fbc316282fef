//! Prompt promotion: data that keeps a slower device busy moves up at once (docs/design/0033). In virtual time: a read of the slower
//! tier takes a millisecond, of the faster one a tenth of that.

mod common;

#[path = "prompt_promotion/load_balance.rs"]
mod load_balance;
#[path = "prompt_promotion/logs.rs"]
mod logs;
#[path = "prompt_promotion/messages.rs"]
mod messages;
#[path = "prompt_promotion/ping_pong.rs"]
mod ping_pong;
#[path = "prompt_promotion/steady_load.rs"]
mod steady_load;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::{
    Hook, HookedTier, Verdict, Volume, bytes_on, close, create, create_in, make_directory, pattern, read_at, read_only,
    read_write, write_all,
};
use polymux_fs::{
    Benefit, Caller, HandleId, JobState, MountOptions, MoversState, NamedRule, PolicyKind, Promotion, RuleMatch,
    SyncKind, WriteOrigin,
};
use polymux_tier::ObjectRef;
use polymux_types::{Clock, Ino, ManualClock};

const MIB: u64 = 1 << 20;
const NODE: u64 = 2 * MIB;

/// Lets reads and syncs of a tier take time, as soon as it has the clock.
struct Service {
    takes_us: AtomicU64,
    syncs_take_us: AtomicU64,
    clock: OnceLock<Arc<ManualClock>>,
}

impl Service {
    fn take(&self, microseconds: &AtomicU64) -> Verdict {
        if let Some(clock) = self.clock.get() {
            clock.advance(Duration::from_micros(microseconds.load(Ordering::Relaxed)));
        }
        Verdict::Pass
    }
}

impl Hook for Service {
    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.take(&self.takes_us)
    }

    fn before_sync(&self) -> Verdict {
        self.take(&self.syncs_take_us)
    }
}

/// A file of 32 MiB on the slower tier, open for reading.
struct Tested {
    volume: Volume,
    ino: Ino,
    handle: HandleId,
}

/// The faster tier and the slower one.
type Services = [Arc<Service>; 2];

/// A volume of two tiers with these capacities, and microseconds that a read takes from [`begin_service`] on.
fn two_tiers(capacities: [u64; 2], reads_take_us: [u64; 2], promotion: Promotion) -> (Volume, Services) {
    let services = reads_take_us.map(|microseconds| {
        let (takes_us, syncs_take_us) = (AtomicU64::new(microseconds), AtomicU64::new(0));
        Arc::new(Service { takes_us, syncs_take_us, clock: OnceLock::new() })
    });
    let mut volume =
        Volume::wrapping(&capacities, |index, tier| Arc::new(HookedTier::new(tier, Arc::clone(&services[index]) as _)));
    volume.options = MountOptions { promotion, ..volume.options };
    volume.remount();
    (volume, services)
}

/// From now on reads take time.
fn begin_service(volume: &Volume, services: &Services) {
    services.iter().for_each(|service| service.clock.set(Arc::clone(&volume.clock)).expect("once"));
}

fn tested(promotion: Promotion) -> Tested {
    tested_on([100, 1000], promotion)
}

fn tested_on(reads_take_us: [u64; 2], promotion: Promotion) -> Tested {
    let (volume, services) = two_tiers([64 * MIB, 256 * MIB], reads_take_us, promotion);
    let (ino, handle) = create(volume.fs(), "file");
    write_all(volume.fs(), handle, 0, &pattern(1, 32 << 20)).expect("written");
    close(volume.fs(), handle).expect("closed");
    move_to_slow(&volume, ino, None);
    // The activity from the setup is past.
    for _ in 0..100 {
        volume.clock.advance(Duration::from_secs(1));
        volume.fs().step();
    }
    begin_service(&volume, &services);
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    Tested { volume, ino, handle }
}

/// Moves a file or a part of it to the slower tier.
fn move_to_slow(volume: &Volume, ino: Ino, range: Option<Range<u64>>) {
    let job = volume.fs().migrate(ino, "slow", range).expect("accepted");
    while volume.fs().job(job).expect("known").state != JobState::Done {
        volume.fs().step();
        volume.fs().move_step();
        volume.clock.advance(Duration::from_millis(10));
    }
}

impl Tested {
    /// For so long, reads that follow one another at once, at the offsets that `next` gives, beside the work in the background.
    fn read_for(&self, duration: Duration, mut next: impl FnMut(u64) -> (u64, usize)) {
        let end = self.volume.clock.elapsed() + duration;
        for number in 0.. {
            if self.volume.clock.elapsed() >= end {
                break;
            }
            let (offset, length) = next(number);
            read_at(self.volume.fs(), self.handle, offset, length).expect("read");
            self.volume.fs().step();
            self.volume.fs().move_step();
        }
    }

    fn bytes_on_fast(&self) -> u64 {
        bytes_on(self.volume.fs(), self.ino, "fast")
    }

    fn promoted_at_once(&self) -> u64 {
        self.volume.counter("bytes_promoted_at_once")
    }
}

/// The blocks of two nodes, in an order that no stream has.
fn at_random(number: u64) -> (u64, usize) {
    let block = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (3 * NODE + block % (2 * NODE / 4096) * 4096, 4096)
}

#[test]
fn what_is_read_at_random_all_the_time_is_on_the_faster_tier_within_seconds_and_nothing_else_is() {
    let tested = tested(Promotion::Prompt);
    tested.read_for(Duration::from_secs(5), at_random);
    assert_eq!(tested.bytes_on_fast(), 2 * NODE);
    // The low-priority promotion of blocks that are read twice may be first; neither comes a second time.
    let promoted = tested.promoted_at_once();
    assert!(promoted <= 2 * NODE, "{promoted}");
    let explained = tested.volume.fs().explain(tested.ino).expect("explained");
    let hot = explained.ranges.iter().find(|range| range.offset == 3 * NODE).expect("it is told of");
    assert_eq!(hot.tier, "fast");
    assert!(hot.device_reads_per_kilosecond > 100_000, "{hot:?}");
    tested.read_for(Duration::from_secs(5), at_random);
    assert_eq!((tested.promoted_at_once(), tested.bytes_on_fast()), (promoted, 2 * NODE), "it stays where it is");
}

#[test]
fn a_file_that_is_read_from_one_end_to_the_other_moves_nothing_at_once() {
    let tested = tested(Promotion::Prompt);
    for offset in (0..32 * MIB).step_by(128 << 10) {
        read_at(tested.volume.fs(), tested.handle, offset, 128 << 10).expect("read");
        tested.volume.fs().step();
        tested.volume.fs().move_step();
    }
    for _ in 0..50 {
        tested.volume.clock.advance(Duration::from_millis(100));
        tested.volume.fs().step();
    }
    assert_eq!(tested.promoted_at_once(), 0);
}

#[test]
fn requests_of_a_stream_that_overtake_one_another_move_nothing_at_once() {
    let tested = tested(Promotion::Prompt);
    // Each pair of requests comes in the wrong order, as from two threads that read ahead; all of the file every quarter of a second.
    let requests = 32 * MIB / (128 << 10);
    tested.read_for(Duration::from_secs(8), |number| ((number ^ 1) % requests * (128 << 10), 128 << 10));
    assert_eq!(tested.promoted_at_once(), 0);
}

#[test]
fn nothing_moves_at_once_to_a_tier_that_was_seen_to_be_read_no_faster() {
    let tested = tested_on([1000, 1100], Promotion::Prompt);
    let (_, handle) = create(tested.volume.fs(), "on the faster tier");
    write_all(tested.volume.fs(), handle, 0, &pattern(2, 4 << 20)).expect("written");
    for number in 0..3000 {
        read_at(tested.volume.fs(), handle, at_random(number).0 % (4 * MIB), 4096).expect("read");
        tested.volume.fs().step();
    }
    tested.read_for(Duration::from_secs(8), at_random);
    assert_eq!(tested.promoted_at_once(), 0);
}

#[test]
fn plan_names_what_pays_back_with_the_seconds_and_changes_nothing() {
    let tested = tested(Promotion::Prompt);
    tested.volume.fs().set_movers(MoversState::Paused);
    tested.read_for(Duration::from_secs(8), at_random);
    for _ in 0..2 {
        let plan = tested.volume.fs().plan(None).expect("planned");
        let up: Vec<_> = plan.moves.iter().map(|moves| (moves.from.as_str(), moves.to.as_str(), moves.bytes)).collect();
        assert_eq!(up, [("slow", "fast", 2 * NODE)], "{plan:?}");
        assert!(plan.files[0].benefit.pays_back_seconds.is_some_and(|seconds| seconds <= 30), "{plan:?}");
    }
    let plan = tested.volume.fs().plan(Some(PolicyKind::Static)).expect("planned");
    assert!(plan.moves.is_empty(), "another policy would leave it: {plan:?}");
    assert_eq!(tested.bytes_on_fast(), 0);
}

#[test]
fn explain_says_when_a_move_would_pay_back_of_what_is_read_too_seldom() {
    let tested = tested(Promotion::Prompt);
    // Eight reads in each second.
    for number in 0..160 {
        let (offset, length) = at_random(number);
        read_at(tested.volume.fs(), tested.handle, offset, length).expect("read");
        tested.volume.clock.advance(Duration::from_millis(125));
        tested.volume.fs().step();
    }
    let explained = tested.volume.fs().explain(tested.ino).expect("explained");
    let read = explained.ranges.iter().filter(|range| range.device_reads_per_kilosecond > 0);
    let after: Vec<_> = read.filter_map(|range| range.benefit.clone()).collect();
    let is_later = |(tier, benefit): &(String, Benefit)| tier == "fast" && benefit.pays_back_seconds > Some(0);
    assert!(!after.is_empty() && after.iter().all(is_later), "{explained:?}");
}

#[test]
fn a_rule_that_prefers_the_slower_tier_keeps_there_what_is_read_all_the_time() {
    let tested = tested(Promotion::Prompt);
    let rule = NamedRule {
        matches: RuleMatch { path: Some("file".to_owned()), ..RuleMatch::default() },
        tiers: vec!["slow".to_owned(), "fast".to_owned()],
        ..NamedRule::default()
    };
    tested.volume.fs().set_steering(PolicyKind::HotCold, &[rule]).expect("taken");
    tested.read_for(Duration::from_secs(8), at_random);
    assert_eq!((tested.promoted_at_once(), tested.bytes_on_fast()), (0, 0));
}

#[test]
fn nothing_is_planned_while_moves_are_paused() {
    let tested = tested(Promotion::Prompt);
    tested.volume.fs().set_movers(MoversState::Paused);
    tested.read_for(Duration::from_secs(8), at_random);
    assert_eq!((tested.promoted_at_once(), tested.bytes_on_fast()), (0, 0));
    tested.volume.fs().set_movers(MoversState::Working);
    tested.read_for(Duration::from_secs(5), at_random);
    assert_eq!(tested.bytes_on_fast(), 2 * NODE);
}

#[test]
fn a_burst_of_reads_moves_nothing_at_once() {
    let tested = tested(Promotion::Prompt);
    tested.read_for(Duration::from_millis(900), at_random);
    for _ in 0..100 {
        tested.volume.clock.advance(Duration::from_millis(100));
        tested.volume.fs().step();
        tested.volume.fs().move_step();
    }
    assert_eq!(tested.promoted_at_once(), 0);
}

#[test]
fn nothing_moves_at_once_where_nobody_asked_for_it() {
    let tested = tested(Promotion::Polite);
    tested.read_for(Duration::from_secs(5), at_random);
    assert_eq!(tested.promoted_at_once(), 0);
}

/// A block of a node, in an order that no stream has.
fn block_of_node(node: u64, number: u64) -> u64 {
    node * NODE + (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % (NODE / 4096) * 4096
}

#[test]
fn a_range_that_is_overdue_and_finds_no_room_does_not_keep_a_hot_one_off_the_faster_tier() {
    const LUKEWARM: u64 = 0;
    const HOT: Range<u64> = 3..5;
    const TICKS_PER_SECOND: u64 = 100;
    let tested = tested(Promotion::Prompt);
    let fs = tested.volume.fs();
    let (_, in_use) = create(fs, "in use");
    write_all(fs, in_use, 0, &pattern(3, 56 << 20)).expect("written");
    let second = |seconds: Range<u64>| seconds.start * TICKS_PER_SECOND..seconds.end * TICKS_PER_SECOND;
    let read = |ticks: Range<u64>, is_hot: bool| {
        for tick in ticks {
            // Each of 28 nodes is read nearly twice a second, the lukewarm one four times in five seconds.
            if tick % 2 == 0 {
                read_at(fs, in_use, block_of_node(tick / 2 % 28, tick), 4096).expect("read");
            }
            if tick % 125 == 0 {
                read_at(fs, tested.handle, block_of_node(LUKEWARM, tick), 4096).expect("read");
            }
            if is_hot {
                read_at(fs, tested.handle, block_of_node(HOT.start + tick % 2, tick), 4096).expect("read");
            }
            tested.volume.clock.advance(Duration::from_secs(1) / u32::try_from(TICKS_PER_SECOND).expect("it fits"));
            fs.step();
            fs.move_step();
        }
    };
    read(second(0..150), false);
    let explained = fs.explain(tested.ino).expect("explained");
    let (_, benefit) = explained.ranges[0].benefit.as_ref().expect("it would be worth something");
    assert!(benefit.is_overdue && tested.bytes_on_fast() == 0, "{explained:?}");
    read(second(150..180), true);
    assert_eq!(tested.bytes_on_fast(), 2 * NODE);
}

/// Writes a block in each millisecond for five seconds, at the offsets of [`at_random`]. Returns the requests in a thousand seconds that are expected
/// of the device in one of the ranges.
fn demand_of_writes(origin: WriteOrigin) -> u64 {
    let tested = tested(Promotion::Prompt);
    let (volume, fs) = (&tested.volume, tested.volume.fs());
    let writer = fs.open(&Caller::root(), tested.ino, read_write()).expect("opened");
    for number in 0..5000 {
        let (offset, length) = at_random(number);
        let block = pattern(1, length);
        assert_eq!(fs.write(&Caller::root(), writer, offset, &block, origin).expect("written"), length);
        volume.clock.advance(Duration::from_millis(1));
        fs.step();
        fs.move_step();
    }
    let explained = fs.explain(tested.ino).expect("explained");
    let range = explained.ranges.iter().find(|range| range.offset == 3 * NODE).expect("it is told of");
    range.device_reads_per_kilosecond
}

#[test]
fn small_writes_at_random_are_demand_where_a_page_cache_has_merged_them() {
    for origin in [WriteOrigin::WriteBack, WriteOrigin::PageCache] {
        let demand = demand_of_writes(origin);
        assert!((300_000..700_000).contains(&demand), "{origin:?}: {demand}");
    }
    assert_eq!(demand_of_writes(WriteOrigin::Call), 0, "the tier may merge them");
}

#[test]
fn advice_counts_what_devices_served_wherever_it_lay_and_says_what_more_room_would_serve() {
    let tested = tested(Promotion::Prompt);
    let fs = tested.volume.fs();
    let none = fs.advise().expect("told");
    assert_eq!((none.reads, none.served_percent, none.ranges), (0, None, 0));
    // Two ranges that move up within seconds.
    tested.read_for(Duration::from_secs(30), at_random);
    let advice = fs.advise().expect("told");
    assert_eq!((advice.tier.as_str(), advice.ranges, advice.range_bytes), ("fast", 2, 2 * NODE));
    assert!(advice.reads > 30_000, "{advice:?}");
    assert!((90..100).contains(&advice.served_percent.expect("there were reads")), "{advice:?}");
    let rooms: Vec<u64> = advice.steps.iter().map(|step| step.room_bytes).collect();
    let room = advice.room_bytes;
    assert_eq!(rooms, [room / 2, room, 2 * room, 4 * room]);
    let unserved =
        |advice: &polymux_fs::Advice| advice.steps.iter().map(|step| advice.reads - step.reads).collect::<Vec<_>>();
    assert!(
        unserved(&advice).iter().all(|reads| *reads <= 2),
        "half of it holds both, but for what is rounded: {advice:?}"
    );
    // Reads of ranges that were hardly read count, and no capacity would serve them.
    let rarely = |number: u64| (number % 16 * NODE, 4096);
    tested.read_for(Duration::from_millis(50), rarely);
    tested.volume.clock.advance(Duration::from_secs(10));
    tested.read_for(Duration::from_secs(8), at_random);
    let advice = fs.advise().expect("told");
    assert_eq!(advice.ranges, 2, "{advice:?}");
    assert!(unserved(&advice).iter().all(|reads| (20..100).contains(reads)), "{advice:?}");
    let status = fs.status().expect("told");
    let minutes = |tier: usize| &status.tiers[tier].device_reads_by_minute;
    assert_eq!((minutes(0).len(), minutes(1).len()), (60, 60));
    let (fast, slow) = (minutes(0).iter().sum::<u64>(), minutes(1).iter().sum::<u64>());
    assert!(fast > 10 * slow && slow > 0, "{fast} {slow}");
    // A deleted file is no reason for more capacity.
    close(fs, tested.handle).expect("closed");
    fs.unlink(&Caller::root(), Ino::ROOT, b"file").expect("removed");
    let after = fs.advise().expect("told");
    assert_eq!((after.ranges, after.range_bytes), (0, 0));
}
