//! A tier that limits its readers hands some of the ranges that they read over to another one (docs/design/0033).
//!
//! Setup: eight reads begin together and end together, after the time that the tier needs which has more of them to serve, one
//! after the other: as if as many readers went on at once. Movers read by themselves, in no time.

use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use polymux_fs::{
    Caller, HandleId, JobState, MountOptions, MoveReason, MoversState, NamedRule, PolicyKind, Promotion, RuleMatch,
    SyncKind,
};
use polymux_tier::ObjectRef;
use polymux_types::{Clock, Ino, ManualClock};

use super::common::{Hook, HookedTier, Verdict, Volume, bytes_on, close, create, pattern, read_at, write_all};
use super::{MIB, NODE, block_of_node};

const READERS: usize = 8;
const NODES: u64 = 16;

/// Reads that are under way together.
#[derive(Default)]
struct Together {
    clock: OnceLock<Arc<ManualClock>>,
    state: Mutex<Group>,
    ended: Condvar,
}

#[derive(Default)]
struct Group {
    /// How many are still to begin; 0: no read waits for another.
    missing: usize,
    /// Those that began, by tier.
    begun: [u32; 2],
    number: u64,
}

/// One of the two tiers.
struct Seat {
    tier: usize,
    together: Arc<Together>,
    takes: [Duration; 2],
}

impl Hook for Seat {
    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        let mut group = self.together.state.lock().expect("no reader panicked");
        if group.missing == 0 {
            return Verdict::Pass;
        }
        group.missing -= 1;
        group.begun[self.tier] += 1;
        if group.missing == 0 {
            let takes = (0..2).map(|tier| self.takes[tier] * group.begun[tier]).max().expect("two tiers");
            self.together.clock.get().expect("it runs").advance(takes);
            group.begun = [0; 2];
            group.number += 1;
            self.together.ended.notify_all();
        } else {
            let own = group.number;
            drop(self.together.ended.wait_while(group, |group| group.number == own).expect("no reader panicked"));
        }
        Verdict::Pass
    }
}

struct Stand {
    volume: Volume,
    together: Arc<Together>,
    ino: Ino,
    handle: HandleId,
    read: u64,
}

impl Stand {
    /// A file of 16 nodes on the first of two tiers, of which each needs so many microseconds for a read, as was seen of the second one.
    fn new(takes_us: [u64; 2]) -> Self {
        let together: Arc<Together> = Arc::default();
        let takes = takes_us.map(Duration::from_micros);
        let seat = |tier| Seat { tier, together: Arc::clone(&together), takes };
        let mut volume = Volume::wrapping(&[64 * MIB, 256 * MIB], |index, tier| {
            Arc::new(HookedTier::new(tier, Arc::new(seat(index)) as _))
        });
        volume.options = MountOptions { promotion: Promotion::Prompt, ..volume.options };
        volume.remount();
        together.clock.set(Arc::clone(&volume.clock)).expect("once");
        let (ino, handle) = create(volume.fs(), "file");
        write_all(volume.fs(), handle, 0, &pattern(1, usize::try_from(NODES * NODE).expect("it fits")))
            .expect("written");
        let mut stand = Self { volume, together, ino, handle, read: 0 };
        stand.read_of_slow();
        stand.read_alone(handle);
        stand.rest(Duration::from_secs(100));
        stand
    }

    /// Reads of another file, which is on the second tier.
    fn read_of_slow(&mut self) {
        let (other, handle) = create(self.volume.fs(), "other");
        write_all(self.volume.fs(), handle, 0, &pattern(2, 4 << 20)).expect("written");
        let job = self.volume.fs().migrate(other, "slow", None).expect("accepted");
        while self.volume.fs().job(job).expect("known").state != JobState::Done {
            self.rest(Duration::from_millis(100));
        }
        self.read_alone(handle);
        self.rest(Duration::from_secs(2));
        for _ in 0..40 {
            self.read_together(READERS, handle, |number| block_of_node(0, number));
        }
        close(self.volume.fs(), handle).expect("closed");
    }

    /// Reads by themselves, which show how long one takes that waits for no other.
    fn read_alone(&mut self, handle: HandleId) {
        for _ in 0..10 {
            self.read_together(1, handle, |number| block_of_node(0, number));
        }
    }

    /// Each of so many readers reads a block.
    fn read_together(&mut self, readers: usize, handle: HandleId, block: impl Fn(u64) -> u64) {
        self.together.state.lock().expect("no reader panicked").missing = readers;
        let (fs, first) = (self.volume.fs(), self.read);
        thread::scope(|scope| {
            for number in first..first + readers as u64 {
                let offset = block(number);
                scope.spawn(move || read_at(fs, handle, offset, 4096).expect("read"));
            }
        });
        self.read += readers as u64;
    }

    /// Time passes in which nothing is read.
    fn rest(&self, duration: Duration) {
        let end = self.volume.clock.elapsed() + duration;
        while self.volume.clock.elapsed() < end {
            self.volume.clock.advance(Duration::from_millis(100));
            self.work();
        }
    }

    fn work(&self) {
        self.volume.fs().step();
        self.volume.fs().move_step();
    }

    /// Eight readers that never rest, beside the work in the background, each of all nodes alike.
    fn read_for(&mut self, duration: Duration) {
        let end = self.volume.clock.elapsed() + duration;
        while self.volume.clock.elapsed() < end {
            self.read_together(READERS, self.handle, |number| {
                block_of_node(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60, number)
            });
            self.work();
        }
    }

    /// One read at a time, with pauses.
    fn read_seldom_for(&mut self, duration: Duration) {
        let end = self.volume.clock.elapsed() + duration;
        while self.volume.clock.elapsed() < end {
            self.read += 1;
            let offset = block_of_node(self.read % NODES, self.read);
            read_at(self.volume.fs(), self.handle, offset, 4096).expect("read");
            self.volume.clock.advance(Duration::from_millis(20));
            self.work();
        }
    }

    fn nodes_on_slow(&self) -> u64 {
        bytes_on(self.volume.fs(), self.ino, "slow") / NODE
    }
}

#[test]
fn a_tier_with_more_to_read_than_it_can_serve_hands_a_part_over_that_stays_there_as_long_as_that_lasts() {
    let mut stand = Stand::new([4000, 4000]);
    stand.read_for(Duration::from_secs(30));
    let there = stand.nodes_on_slow();
    assert!((4..=9).contains(&there), "{there} of {NODES}");
    let handed_over = stand.volume.counter("bytes_handed_over");
    stand.read_for(Duration::from_secs(90));
    assert!(stand.nodes_on_slow().abs_diff(there) <= 1, "{} after {there}", stand.nodes_on_slow());
    assert!(stand.volume.counter("bytes_handed_over") - handed_over <= NODE, "nothing goes to and fro");
    let explained = stand.volume.fs().explain(stand.ino).expect("explained");
    let why = |tier: &str| {
        let range = explained.ranges.iter().find(|range| range.tier == tier).expect("it is on both");
        range.why.clone()
    };
    assert!(why("fast").starts_with("Its tier has more to read"), "{explained:?}");
    assert!(why("slow").contains("answers hardly sooner"), "{explained:?}");
    // The readers leave, and one comes now and then.
    stand.read_seldom_for(Duration::from_secs(200));
    assert_eq!(stand.nodes_on_slow(), 0, "the faster tier has time for all of it");
}

#[test]
fn plan_names_what_is_to_be_handed_over_and_changes_nothing() {
    let mut stand = Stand::new([4000, 4000]);
    stand.volume.fs().set_movers(MoversState::Paused);
    stand.read_for(Duration::from_secs(20));
    for _ in 0..2 {
        let plan = stand.volume.fs().plan(None).expect("planned");
        let down: u64 = plan
            .moves
            .iter()
            .filter(|moves| (moves.reason, moves.to.as_str()) == (MoveReason::Handover, "slow"))
            .map(|moves| moves.bytes)
            .sum();
        assert!((4 * NODE..=8 * NODE).contains(&down), "{plan:?}");
    }
    assert_eq!((stand.nodes_on_slow(), stand.volume.counter("bytes_handed_over")), (0, 0));
}

#[test]
fn a_log_stays_on_the_faster_tier_although_that_has_more_to_read_than_it_can_serve() {
    let mut stand = Stand::new([4000, 4000]);
    let (log, handle) = create(stand.volume.fs(), "log");
    write_all(stand.volume.fs(), handle, 0, &pattern(3, 2 << 20)).expect("written");
    for number in 0..30 {
        for record in 0..20 {
            write_all(stand.volume.fs(), handle, record * 4096, &pattern(4, 4096)).expect("written");
            stand.volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
        }
        stand.read_for(Duration::from_secs(1));
        assert_eq!(bytes_on(stand.volume.fs(), log, "slow"), 0, "after {number} s");
    }
    assert!(stand.nodes_on_slow() >= 2, "what is read went there");
}

#[test]
fn a_set_that_moves_to_ranges_of_the_other_tier_is_not_kept_there() {
    let mut stand = Stand::new([4000, 4000]);
    stand.read_for(Duration::from_secs(30));
    let there = stand.nodes_on_slow();
    assert!(there >= 4);
    // Now only the migrated ranges are read.
    let location = stand.volume.fs().locate(stand.ino).expect("located");
    let on_slow: Vec<u64> = location
        .extents
        .iter()
        .filter(|extent| extent.tier.as_deref() == Some("slow"))
        .flat_map(|extent| extent.offset / NODE..(extent.offset + extent.length) / NODE)
        .collect();
    let end = stand.volume.clock.elapsed() + Duration::from_secs(60);
    while stand.volume.clock.elapsed() < end {
        stand.read_together(READERS, stand.handle, |number| {
            let at = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            block_of_node(on_slow[usize::try_from(at).expect("it fits") % on_slow.len()], number)
        });
        stand.work();
    }
    assert!(stand.nodes_on_slow() <= there - 2, "{} of {there} are still there", stand.nodes_on_slow());
}

#[test]
fn a_tier_that_is_much_slower_takes_nothing_over() {
    let mut stand = Stand::new([1000, 8000]);
    stand.read_for(Duration::from_secs(30));
    assert_eq!((stand.nodes_on_slow(), stand.volume.counter("bytes_handed_over")), (0, 0));
}

#[test]
fn a_file_with_an_order_of_tiers_of_its_own_takes_part_in_no_handover() {
    let mut stand = Stand::new([4000, 4000]);
    let rule = NamedRule {
        matches: RuleMatch { path: Some("file".to_owned()), ..RuleMatch::default() },
        tiers: vec!["fast".to_owned(), "slow".to_owned()],
        ..NamedRule::default()
    };
    stand.volume.fs().set_steering(PolicyKind::HotCold, &[rule]).expect("taken");
    stand.read_for(Duration::from_secs(30));
    assert_eq!((stand.nodes_on_slow(), stand.volume.counter("bytes_handed_over")), (0, 0));
}
