//! Mover, writers, readers, truncation, fsync and unlink under the model checker: thousands of schedules of a few threads
//! each. Run by `make test-schedules`.
//!
//! Checked in every schedule: a reader sees the whole of each write that completed before it began, and never something older
//! than it saw before; at the end the file holds the last write; synced data survives a power failure at any
//! moment; no thread waits for ever (the checker reports a deadlock) and the mover ends; all source ranges are freed, and
//! the records keep their invariants.
//!
//! Checked over all schedules of a scene: that the case under test occurred, by the counters that it names.
//!
//! One planted mistake is kept (a writer that leaves a node does not note its blocks as dirty) and must be found.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polymux_meta::StoreError;
use polymux_records::blockmap::planted;
use polymux_sim::{MemoryStore, MemoryTier};
use polymux_types::{ByteSize, Ino, ManualClock, VolumeId};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use crate::{
    AllocateKind, Caller, FileSystem, HandleId, MountOptions, NewVolume, OpenOptions, Parts, Progress, Result,
    SetAttributes, SyncKind, TierMember, TierPresence, WriteOrigin, check_records,
};

/// Schedules of each of the two kinds, for each scene.
const SCHEDULES: usize = 1500;

/// Changes of priority in one schedule, at the most.
const PRIORITY_CHANGES: usize = 4;

/// Deep enough for a mount within a scene, with debugging symbols or without.
const STACK_BYTES: usize = 1024 * 1024;

const NODE: u64 = 2 << 20;
const BLOCK: usize = 4096;

/// More blocks than are copied with their writers kept out, so that the mover takes rounds.
const MANY_BLOCKS: usize = 40;

/// Runs a scene in all schedules; each of the counters must have counted in one of them.
fn check(counters: &[&'static str], scene: fn() -> Arc<Scene>) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    let seen = Arc::new(Mutex::new(BTreeMap::<&'static str, u64>::new()));
    let body = {
        let seen = Arc::clone(&seen);
        move || {
            let ended = scene();
            for (name, count) in ended.fs.status().unwrap().counters {
                *seen.lock().unwrap().entry(name).or_default() += count;
            }
        }
    };
    // Priorities changed at few points find ordering mistakes sooner; plain random schedules find the rest.
    Runner::new(PctScheduler::new(PRIORITY_CHANGES, SCHEDULES), config.clone()).run(body.clone());
    Runner::new(RandomScheduler::new(SCHEDULES), config).run(body);
    let seen = seen.lock().unwrap();
    let counts: Vec<_> = counters.iter().map(|name| (*name, seen[name])).collect();
    println!("{counts:?}");
    assert!(counts.iter().all(|(_, count)| *count > 0), "no schedule came to what the scene is about: {counts:?}");
}

/// A mounted volume with one open file.
struct Scene {
    fs: FileSystem,
    tiers: Vec<Arc<MemoryTier>>,
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    ino: Ino,
    handle: HandleId,
}

fn parts(tiers: &[Arc<MemoryTier>], store: &Arc<MemoryStore>, clock: &Arc<ManualClock>, seed: u64) -> Parts {
    let member = |tier: &Arc<MemoryTier>| TierMember {
        reserve: ByteSize(0),
        ..TierMember::new(tier.name().to_owned(), TierPresence::Present(Arc::clone(tier) as _))
    };
    Parts {
        name: "test".to_owned(),
        tiers: tiers.iter().map(member).collect(),
        store: Arc::clone(store) as _,
        metadata_tier: None,
        clock: Arc::clone(clock) as _,
        seed,
    }
}

fn options() -> MountOptions {
    MountOptions { heat_memory_bytes: 1 << 16, inline_size_max: 0, ..MountOptions::default() }
}

const READ_WRITE: fn() -> OpenOptions = || OpenOptions { read: true, write: true, ..OpenOptions::default() };

impl Scene {
    /// A file with a block of ones at each of the offsets, durable, on the first of two tiers.
    fn new(fast_bytes: u64, offsets: &[u64]) -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000_000_000)));
        let tier = |name, bytes| Arc::new(MemoryTier::with_clock(name, bytes, Arc::clone(&clock) as _));
        let tiers = vec![tier("fast", fast_bytes), tier("slow", 16 << 20)];
        let store = Arc::new(MemoryStore::new());
        let new = NewVolume { id: VolumeId::from_random([7; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
        FileSystem::format(&parts(&tiers, &store, &clock, 1), &new).unwrap();
        let fs = FileSystem::mount(parts(&tiers, &store, &clock, 2), options()).unwrap();
        let (attributes, handle) = fs.create(&Caller::root(), Ino::ROOT, b"f", 0o644, READ_WRITE()).unwrap();
        let scene = Self { fs, tiers, store, clock, ino: attributes.ino, handle };
        offsets.iter().for_each(|offset| scene.write(*offset, 1));
        scene.fs.sync_volume().unwrap();
        assert_eq!(scene.used(1), 0, "the file begins on the fast tier");
        scene
    }

    /// Two nodes with a block in each, and plenty of free space.
    fn with_two_nodes() -> Self {
        Self::new(16 << 20, &[0, NODE])
    }

    fn move_to(&self, tier: &str, range: Option<std::ops::Range<u64>>) {
        self.fs.migrate(self.ino, tier, range).unwrap();
    }

    fn try_write(&self, offset: u64, fill: u8, blocks: usize) -> Result<()> {
        let data = vec![fill; blocks * BLOCK];
        let count = self.fs.write(&Caller::root(), self.handle, offset, &data, WriteOrigin::Call)?;
        assert_eq!(count, data.len());
        Ok(())
    }

    fn write(&self, offset: u64, fill: u8) {
        self.try_write(offset, fill, 1).unwrap();
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync(&Caller::root(), self.handle, SyncKind::All)
    }

    /// The byte that fills a block; `None` at or beyond the end of the file.
    fn read(&self, offset: u64) -> Option<u8> {
        let mut data = [0xa5; BLOCK];
        let count = self.fs.read(&Caller::root(), self.handle, offset, &mut data).unwrap();
        assert!(count == 0 || data[..count].iter().all(|byte| *byte == data[0]), "a torn block");
        (count > 0).then_some(data[0])
    }

    fn cut(&self, size: u64) {
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.fs.set_attributes(&Caller::root(), self.ino, &change).unwrap();
    }

    /// Carries moves out until there are none, or all of them are with another mover.
    fn move_all(&self) {
        for _ in 0..200 {
            if self.fs.move_step() == Progress::Idle {
                return;
            }
        }
        panic!("the mover does not end: {:?}", self.fs.moves());
    }

    fn used(&self, tier: usize) -> u64 {
        polymux_tier::Tier::space(&*self.tiers[tier]).unwrap().used
    }

    /// The threads are through: the rest of the moves, and no record may be wrong.
    fn finish(&self) {
        self.move_all();
        let report = self.fs.moves();
        let open = report.queued_count + report.parked_count + report.running.len() as u64;
        assert_eq!(open, 0, "every move comes to its end: {report:?}");
        self.check_records();
    }

    fn check_records(&self) {
        let report = check_records(&*self.store).unwrap();
        assert!(report.violations.is_empty(), "{:?}", report.violations);
    }

    /// Bytes in use after everything that was left behind was freed.
    fn used_after_freeing(&self) -> u64 {
        for _ in 0..20 {
            self.fs.step();
        }
        self.used(0) + self.used(1)
    }
}

type Work = fn(&Scene);

/// Runs each of the works in a thread of its own, beside the mover.
fn run_beside_the_mover(scene: Scene, works: &[Work]) -> Arc<Scene> {
    let scene = Arc::new(scene);
    let begin = |work: &Work| {
        let (scene, work) = (Arc::clone(&scene), *work);
        thread::spawn(move || work(&scene))
    };
    let mover: Work = Scene::move_all;
    let threads: Vec<_> = [mover].iter().chain(works).map(begin).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    scene
}

/// Looks at both nodes twice; a later look never sees older bytes.
fn reader(scene: &Scene) {
    let first = scene.read(0).expect("the file is not cut");
    assert!(scene.read(0) >= Some(first), "time runs backwards");
    assert_eq!(scene.read(NODE), Some(1), "nobody writes there");
}

#[test]
fn a_writer_and_a_reader_beside_a_move_of_the_whole_file() {
    check(&["moves_committed", "move_conflicts", "read_retries"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", None);
        let writer: Work = |scene| {
            for fill in 2..4 {
                scene.write(0, fill);
                assert_eq!(scene.read(0), Some(fill), "its own write");
            }
        };
        let scene = run_beside_the_mover(scene, &[writer, reader]);
        scene.finish();
        assert_eq!((scene.read(0), scene.read(NODE)), (Some(3), Some(1)));
        assert_eq!(scene.used_after_freeing(), 2 * BLOCK as u64, "the old copy is freed");
        assert_eq!(scene.used(0), 0, "all of it moved");
        scene
    });
}

/// More blocks are dirty than are copied under the lock, so the mover takes them while writers go on.
fn rounds_of_copying_beside_a_large_writer() -> Arc<Scene> {
    let scene = Scene::with_two_nodes();
    scene.move_to("slow", Some(0..NODE));
    let writer: Work = |scene| {
        for fill in 2..4 {
            scene.try_write(0, fill, MANY_BLOCKS).unwrap();
        }
    };
    let scene = run_beside_the_mover(scene, &[writer]);
    scene.finish();
    let last = (MANY_BLOCKS - 1) as u64 * BLOCK as u64;
    assert_eq!((scene.read(0), scene.read(last), scene.read(NODE)), (Some(3), Some(3), Some(1)), "a write is lost");
    scene
}

#[test]
fn rounds_of_copying_lose_no_write() {
    check(&["moves_committed", "move_conflicts", "move_retries"], rounds_of_copying_beside_a_large_writer);
}

/// The checker finds a mistake that was planted: blocks that are not dirty again when their writer leaves.
#[test]
#[should_panic(expected = "a write is lost")]
fn the_checker_notices_a_writer_that_leaves_without_a_trace() {
    planted::forget_leaving();
    check(&[], rounds_of_copying_beside_a_large_writer);
}

/// To a tier where the file has an object already, so the range is claimed first; and back again.
#[test]
fn part_of_a_file_goes_there_and_back() {
    check(&["moves_committed", "move_conflicts", "read_retries"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", Some(0..NODE));
        scene.move_to("fast", Some(0..NODE));
        let writer: Work = |scene| {
            for fill in 2..4 {
                scene.write(0, fill);
            }
        };
        let scene = run_beside_the_mover(scene, &[writer, reader]);
        scene.finish();
        assert_eq!((scene.read(0), scene.read(NODE)), (Some(3), Some(1)));
        assert_eq!(scene.used_after_freeing(), 2 * BLOCK as u64);
        scene
    });
}

#[test]
fn two_movers_share_the_jobs_of_one_file() {
    check(&["moves_committed", "move_conflicts"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", Some(NODE..NODE + 1));
        scene.move_to("slow", Some(0..NODE));
        let writer: Work = |scene| {
            scene.write(0, 2);
            scene.write(NODE, 2);
        };
        let scene = run_beside_the_mover(scene, &[writer, Scene::move_all]);
        scene.finish();
        assert_eq!((scene.read(0), scene.read(NODE)), (Some(2), Some(2)));
        assert_eq!(scene.used_after_freeing(), 2 * BLOCK as u64);
        assert_eq!(scene.used(0), 0, "all of it moved");
        scene
    });
}

/// Each write covers the last block of a node that moves and the first one of a node that stays, and is atomic.
#[test]
fn overlapping_writers_across_the_edge_of_what_moves() {
    check(&["moves_committed", "move_conflicts", "read_retries"], || {
        let edge = NODE - BLOCK as u64;
        let scene = Scene::new(16 << 20, &[edge, NODE]);
        scene.move_to("slow", Some(0..NODE));
        let writers: [Work; 2] = [
            |scene| scene.try_write(NODE - BLOCK as u64, 2, 2).unwrap(),
            |scene| scene.try_write(NODE - BLOCK as u64, 3, 2).unwrap(),
        ];
        let seen: Work = |scene| {
            let first = [scene.read(NODE - BLOCK as u64), scene.read(NODE)];
            assert!(first.iter().all(|byte| matches!(byte, Some(1..=3))), "foreign bytes: {first:?}");
            let then = [scene.read(NODE - BLOCK as u64), scene.read(NODE)];
            let is_older = |(first, then): (&Option<u8>, &Option<u8>)| *first != Some(1) && *then == Some(1);
            assert!(!first.iter().zip(&then).any(is_older), "time runs backwards: {first:?}, {then:?}");
        };
        let scene = run_beside_the_mover(scene, &[writers[0], writers[1], seen]);
        scene.finish();
        let last = scene.read(edge);
        assert!(matches!(last, Some(2 | 3)), "a write is lost: {last:?}");
        assert_eq!(last, scene.read(NODE), "a write is torn");
        assert_eq!(scene.used_after_freeing(), 2 * BLOCK as u64);
        scene
    });
}

/// The file ends in the middle of the node that moves.
#[test]
fn an_append_and_a_sync_where_the_file_ends() {
    check(&["moves_committed", "move_conflicts"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", Some(NODE..NODE + 1));
        let writer: Work = |scene| {
            scene.write(NODE + BLOCK as u64, 5);
            scene.write(2 * NODE, 6);
        };
        let scene = run_beside_the_mover(scene, &[writer, |scene| scene.sync().unwrap()]);
        scene.finish();
        assert_eq!((scene.read(NODE), scene.read(NODE + BLOCK as u64)), (Some(1), Some(5)));
        assert_eq!((scene.read(0), scene.read(2 * NODE)), (Some(1), Some(6)));
        scene
    });
}

/// The file ends with the node that moves, so appended bytes lie in a node that is not closed. Found to notice a mover
/// that holds the append lock only where the end lies before that of its last node.
#[test]
fn an_append_where_the_file_ends_with_the_node() {
    check(&["moves_committed", "settles"], || {
        let scene = Scene::new(16 << 20, &[0, 2 * NODE - BLOCK as u64]);
        scene.move_to("slow", Some(NODE..2 * NODE));
        let appender: Work = |scene| {
            scene.write(2 * NODE, 5);
            scene.write(2 * NODE + BLOCK as u64, 6);
            assert_eq!(scene.read(2 * NODE), Some(5), "an append is lost");
        };
        let scene = run_beside_the_mover(scene, &[appender]);
        scene.finish();
        let end = 2 * NODE;
        assert_eq!((scene.read(end), scene.read(end + BLOCK as u64)), (Some(5), Some(6)), "an append is lost");
        assert_eq!((scene.read(0), scene.read(end - BLOCK as u64)), (Some(1), Some(1)));
        scene
    });
}

/// Two descriptions append to a file that is moved whole, and to its new end.
#[test]
fn appenders_beside_a_move_of_the_whole_file() {
    check(&["moves_committed", "move_conflicts"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", None);
        let appender: Work = |scene| {
            let options = OpenOptions { append: true, ..READ_WRITE() };
            let handle = scene.fs.open(&Caller::root(), scene.ino, options).unwrap();
            let count = scene.fs.write(&Caller::root(), handle, 0, &[7; BLOCK], WriteOrigin::Call).unwrap();
            assert_eq!(count, BLOCK);
            scene.fs.sync(&Caller::root(), handle, SyncKind::Data).unwrap();
            scene.fs.release(handle).unwrap();
        };
        let scene = run_beside_the_mover(scene, &[appender, appender]);
        scene.finish();
        let ends = [1, 2, 3].map(|block| scene.read(NODE + block * BLOCK as u64));
        assert_eq!(ends, [Some(7), Some(7), None], "an append is lost");
        assert_eq!((scene.read(0), scene.read(NODE)), (Some(1), Some(1)));
        assert_eq!(scene.used_after_freeing(), 4 * BLOCK as u64);
        scene
    });
}

#[test]
fn a_hole_is_punched_into_what_moves() {
    check(&["moves_committed", "moves_stopped"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", Some(0..NODE));
        let puncher: Work = |scene| {
            let (handle, length) = (scene.handle, BLOCK as u64);
            scene.fs.allocate(&Caller::root(), handle, 0, length, AllocateKind::PunchHole).unwrap();
            assert_eq!(scene.read(0), Some(0), "a hole");
            scene.write(length, 2);
        };
        let scene = run_beside_the_mover(scene, &[puncher]);
        scene.finish();
        assert_eq!((scene.read(0), scene.read(BLOCK as u64), scene.read(NODE)), (Some(0), Some(2), Some(1)));
        assert_eq!(scene.used_after_freeing(), 2 * BLOCK as u64);
        scene
    });
}

#[test]
fn truncation_and_a_writer() {
    check(&["moves_committed", "moves_stopped"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", None);
        let cutter: Work = |scene| {
            scene.cut(NODE / 2);
            scene.cut(2 * NODE);
        };
        let scene = run_beside_the_mover(scene, &[cutter, |scene| scene.write(0, 2)]);
        scene.finish();
        assert_eq!((scene.read(0), scene.read(NODE)), (Some(2), Some(0)), "cut and grown: zeros");
        assert_eq!(scene.used_after_freeing(), BLOCK as u64);
        scene
    });
}

/// A move that is stopped again and again ends all the same, with its writers kept out.
#[test]
fn many_truncations_cannot_keep_a_file_from_moving() {
    check(&["moves_committed", "moves_stopped", "move_lock_fallbacks"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", Some(0..NODE));
        let cutter: Work = |scene| {
            for size in 1..7 {
                scene.cut(2 * NODE + size * BLOCK as u64);
            }
        };
        let scene = run_beside_the_mover(scene, &[cutter, |scene| scene.write(0, 2)]);
        scene.finish();
        assert_eq!((scene.read(0), scene.read(NODE)), (Some(2), Some(1)));
        assert_eq!((scene.used_after_freeing(), scene.used(1)), (2 * BLOCK as u64, BLOCK as u64));
        scene
    });
}

/// The fast tier is full, so new blocks go to the target of the move, which the mover has claimed.
#[test]
fn a_writer_that_spills_onto_the_target() {
    check(&["moves_committed", "moves_stopped"], || {
        let scene = Scene::new(2 * BLOCK as u64, &[0, NODE]);
        scene.move_to("slow", Some(0..NODE));
        let writer: Work = |scene| {
            scene.write(BLOCK as u64, 2);
            scene.write(0, 3);
        };
        let scene = run_beside_the_mover(scene, &[writer, reader]);
        scene.finish();
        assert_eq!((scene.read(0), scene.read(BLOCK as u64), scene.read(NODE)), (Some(3), Some(2), Some(1)));
        assert_eq!(scene.used_after_freeing(), 3 * BLOCK as u64);
        scene
    });
}

/// Bytes written during the drain leave, too.
#[test]
fn writers_and_truncation_beside_a_drain() {
    check(&["moves_committed", "moves_stopped"], || {
        let scene = Scene::with_two_nodes();
        scene.fs.start_drain("fast").unwrap();
        scene.fs.step();
        let writer: Work = |scene| {
            scene.write(0, 2);
            scene.write(2 * NODE, 3);
        };
        let scene = run_beside_the_mover(scene, &[writer, |scene| scene.cut(3 * NODE)]);
        for _ in 0..8 {
            scene.fs.step();
            scene.move_all();
        }
        scene.finish();
        assert_eq!([0, NODE, 2 * NODE].map(|at| scene.read(at).filter(|byte| *byte > 0)), [Some(2), Some(1), Some(3)]);
        assert_eq!((scene.used_after_freeing(), scene.used(0)), (3 * BLOCK as u64, 0), "the tier is empty");
        scene
    });
}

#[test]
fn unlink_and_the_last_close() {
    check(&["moves_committed"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", None);
        let user: Work = |scene| {
            scene.fs.unlink(&Caller::root(), Ino::ROOT, b"f").unwrap();
            scene.fs.release(scene.handle).unwrap();
        };
        let scene = run_beside_the_mover(scene, &[user]);
        scene.finish();
        assert_eq!(scene.used_after_freeing(), 0, "nothing is left of the file");
        scene
    });
}

/// The store stops at any moment, and then the power fails: synced data is still there.
#[test]
fn what_was_synced_survives_a_power_failure_beside_a_move() {
    check(&["moves_begun"], || {
        let scene = Scene::with_two_nodes();
        scene.move_to("slow", Some(0..NODE));
        scene.move_to("fast", Some(0..NODE));
        let promised = Arc::new(shuttle::sync::atomic::AtomicU64::new(1));
        let scene = Arc::new(scene);
        let mover = thread::spawn({
            let scene = Arc::clone(&scene);
            // With a store that fails the mover parks its jobs.
            move || (0..4).for_each(|_| drop(scene.fs.move_step()))
        });
        let writer = thread::spawn({
            let (scene, promised) = (Arc::clone(&scene), Arc::clone(&promised));
            move || {
                for fill in 2..4_u8 {
                    if scene.try_write(0, fill, 1).and_then(|()| scene.sync()).is_err() {
                        return;
                    }
                    promised.store(u64::from(fill), shuttle::sync::atomic::Ordering::SeqCst);
                }
            }
        });
        scene.store.poison(StoreError::Io("the power fails".to_owned()));
        [mover, writer].into_iter().for_each(|thread| thread.join().unwrap());
        scene.tiers.iter().for_each(|tier| tier.crash());
        scene.store.crash();
        let again = scene.after_failure();
        let found = again.read(0).expect("the size is durable");
        assert!(u64::from(found) >= promised.load(shuttle::sync::atomic::Ordering::SeqCst), "a synced write is lost");
        assert_eq!(again.read(NODE), Some(1), "nobody wrote there");
        assert_eq!(again.used_after_freeing(), 2 * BLOCK as u64, "what the move left behind is freed");
        scene
    });
}

impl Scene {
    /// This volume, mounted anew.
    fn after_failure(&self) -> Self {
        self.check_records();
        let fs = FileSystem::mount(parts(&self.tiers, &self.store, &self.clock, 3), options()).unwrap();
        let handle = fs.open(&Caller::root(), self.ino, READ_WRITE()).unwrap();
        Self {
            fs,
            tiers: self.tiers.clone(),
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            ino: self.ino,
            handle,
        }
    }
}
