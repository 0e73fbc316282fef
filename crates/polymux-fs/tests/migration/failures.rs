//! Tiers and stores that fail in the middle of a move.
//!
//! Invariants: whatever fails, the file holds the written data and nothing is recorded as damaged if only a copy lost it;
//! the job waits for the missing resource, counts as parked, and costs nothing until the event comes.

use std::sync::Arc;

use polymux_fs::{Caller, HandleId, JobId, JobState, SyncKind, WaitsFor};
use polymux_meta::{Batch, StoreError};
use polymux_sim::{FaultyTier, OperationKind};
use polymux_tier::{Tier, TierError};
use polymux_types::sync::Mutex;
use polymux_types::{Errno, Ino};

use crate::common::{StoreHook, Volume, create, pattern, read_at, read_only, read_whole, read_write, write_all};
use crate::{MIB, settle, shares};

const EIO: TierError = TierError::Io { operation: "testing", errno: Errno::EIO };

/// A volume of two tiers that fail on request, and a file on the fast one whose node 1 lies on the slow one.
struct Scene {
    volume: Volume,
    faults: Vec<Arc<FaultyTier>>,
    ino: Ino,
    handle: HandleId,
    data: Vec<u8>,
}

/// Whether the target has an object of the file before the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    New,
    Existing,
}

const TARGETS: [Target; 2] = [Target::New, Target::Existing];

fn scene(target: Target) -> Scene {
    let faults = Mutex::new(Vec::new());
    let volume = Volume::wrapping(&[64 * MIB, 64 * MIB], |_, tier| -> Arc<dyn Tier> {
        let faulty = Arc::new(FaultyTier::new(tier));
        faults.lock().push(Arc::clone(&faulty));
        faulty
    });
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(1, crate::mebibytes(5) - 500);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    if target == Target::Existing {
        volume.fs().migrate(ino, "slow", Some(2 * MIB..2 * MIB + 1)).expect("accepted");
    }
    settle(&volume);
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    Scene { volume, faults: faults.into_inner(), ino, handle, data }
}

impl Scene {
    fn begin(&self) -> JobId {
        self.volume.fs().migrate(self.ino, "slow", None).expect("accepted")
    }

    fn state(&self, job: JobId) -> JobState {
        self.volume.fs().job(job).expect("remembered").state
    }

    #[track_caller]
    fn assert_unharmed(&self) {
        // Through a description that is open: a full store opens none.
        let content = read_at(self.volume.fs(), self.handle, 0, self.data.len() + 1).expect("nothing is damaged");
        assert!(content == self.data, "the content changed");
    }

    /// Nothing more happens, however often the mover is stepped, while the event does not come and no time passes.
    #[track_caller]
    fn assert_nothing_spins(&self) {
        let counters = || {
            let all = self.volume.fs().status().expect("status answers").counters;
            all.into_iter().filter(|(name, _)| name.contains("move")).collect::<Vec<_>>()
        };
        let step = || {
            self.volume.fs().move_step();
            self.volume.fs().step();
        };
        (0..5).for_each(|_| step());
        let before = counters();
        (0..100).for_each(|_| step());
        assert_eq!(counters(), before, "parked work costs nothing");
    }

    /// All is as if nothing had happened, also after a crash.
    #[track_caller]
    fn assert_moved_and_clean(mut self) {
        settle(&self.volume);
        self.assert_unharmed();
        assert_eq!(shares(self.volume.fs(), self.ino), [("slow".to_owned(), self.data.len() as u64)]);
        let blocks = (self.data.len() as u64).next_multiple_of(4096);
        assert_eq!((self.volume.used(0), self.volume.used(1)), (0, blocks), "nothing leaks");
        self.volume.fs().sync(&Caller::root(), self.handle, SyncKind::All).expect("synced");
        self.volume.crash();
        self.handle = self.volume.fs().open(&Caller::root(), self.ino, read_write()).expect("opened");
        self.assert_unharmed();
        settle(&self.volume);
        assert_eq!((self.volume.used(0), self.volume.used(1)), (0, blocks), "nothing leaks");
    }
}

#[test]
fn a_target_that_fills_up_parks_the_job_until_room_is_freed() {
    for target in TARGETS {
        let scene = scene(target);
        let (other, other_handle) = create(scene.volume.fs(), "other");
        write_all(scene.volume.fs(), other_handle, 0, &pattern(3, crate::mebibytes(2))).expect("written");
        scene.volume.fs().migrate(other, "slow", None).expect("accepted");
        settle(&scene.volume);
        scene.faults[1].room(Some(MIB));
        scene.volume.clock.advance(std::time::Duration::from_secs(60));
        let job = scene.begin();
        settle(&scene.volume);
        assert!(matches!(scene.state(job), JobState::Parked(WaitsFor::Room(_))), "{target:?}: {:?}", scene.state(job));
        assert_eq!(scene.volume.counter("moves_parked"), 1, "{target:?}");
        scene.assert_unharmed();
        scene.assert_nothing_spins();
        // The event: something on the tier is freed.
        scene.faults[1].room(None);
        scene.volume.fs().unlink(&Caller::root(), Ino::ROOT, b"other").expect("unlinked");
        scene.volume.fs().release(other_handle).expect("released");
        settle(&scene.volume);
        assert_eq!(scene.state(job), JobState::Done, "{target:?}");
        assert_eq!(scene.volume.counter("moves_woken"), 1, "{target:?}");
        scene.assert_moved_and_clean();
    }
}

#[test]
fn a_target_that_says_it_has_room_and_takes_no_bytes_is_not_asked_for_ever() {
    for target in TARGETS {
        let scene = scene(target);
        scene.faults[1].fail_always(OperationKind::Write, TierError::NoSpace);
        let job = scene.begin();
        settle(&scene.volume);
        assert!(matches!(scene.state(job), JobState::Parked(WaitsFor::Room(_))), "{target:?}: {:?}", scene.state(job));
        scene.assert_unharmed();
        scene.volume.fs().sync(&Caller::root(), scene.handle, SyncKind::All).expect("nothing was lost");
        scene.faults[1].heal();
        scene.volume.clock.advance(std::time::Duration::from_secs(60));
        // The tier is large: the check for free space from other sources finds some.
        settle(&scene.volume);
        assert!(scene.volume.counter("moves_parked") >= 1);
    }
}

fn fails_once(kind: OperationKind, tier: usize, count: u64) {
    for target in TARGETS {
        let scene = scene(target);
        scene.faults[tier].fail_next(kind, count, EIO);
        let job = scene.begin();
        for _ in 0..10 {
            scene.volume.fs().move_step();
        }
        scene.assert_unharmed();
        scene.volume.fs().sync(&Caller::root(), scene.handle, SyncKind::All).expect("nothing of the file was lost");
        scene.assert_nothing_spins();
        scene.faults[tier].heal();
        // Failures are forgotten after a while; then it is tried again.
        scene.volume.clock.advance(std::time::Duration::from_secs(3600));
        settle(&scene.volume);
        assert_eq!(scene.state(job), JobState::Done, "{kind:?} {target:?}: {:?}", scene.volume.fs().moves());
        scene.assert_moved_and_clean();
    }
}

#[test]
fn an_error_of_the_source_changes_nothing_and_is_tried_again() {
    fails_once(OperationKind::Read, 0, 1);
}

#[test]
fn an_error_of_the_target_changes_nothing_and_is_tried_again() {
    fails_once(OperationKind::Write, 1, 1);
}

#[test]
fn a_sync_of_the_target_that_fails_gives_the_copy_up_and_nothing_else() {
    fails_once(OperationKind::Sync, 1, 1);
}

/// How long a store refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Once,
    UntilRoomIsThere,
}

/// Refuses commits after a number of them.
#[derive(Default)]
struct FullStore {
    left: Mutex<Option<(u64, Refusal)>>,
}

impl StoreHook for FullStore {
    fn before_commit(&self, batch: &Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut left = self.left.lock();
        match &mut *left {
            Some((0, refusal)) => {
                if *refusal == Refusal::Once {
                    *left = None;
                }
                Err(StoreError::NoSpace)
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn store_refuses(target: Target, passed: u64, refusal: Refusal) {
    let what = format!("{target:?}, {passed} transactions passed, {refusal:?}");
    let mut scene = scene(target);
    let hook = Arc::new(FullStore::default());
    scene.volume.hook_store(Arc::clone(&hook) as Arc<dyn StoreHook>);
    // The last one that was opened is the one that reads.
    scene.handle = scene.volume.fs().open(&Caller::root(), scene.ino, read_only()).expect("opened");
    scene.begin();
    *hook.left.lock() = Some((passed, refusal));
    for _ in 0..5 {
        scene.volume.fs().move_step();
    }
    scene.assert_unharmed();
    for _ in 0..20 {
        scene.volume.step();
    }
    scene.assert_unharmed();
    *hook.left.lock() = None;
    settle(&scene.volume);
    scene.assert_unharmed();
    scene.volume.fs().sync_volume().expect("synced");
    scene.volume.crash();
    let content = read_whole(scene.volume.fs(), scene.ino).expect("read");
    assert!(content == scene.data, "{what}: lost in a crash");
    settle(&scene.volume);
    // A removal that the store refused as well is a leaked object until a mount looks for those.
    if refusal == Refusal::Once {
        let used = scene.volume.used(0) + scene.volume.used(1);
        assert_eq!(used, (scene.data.len() as u64).next_multiple_of(4096), "{what}: bytes on all tiers");
    }
}

#[test]
fn a_store_that_refuses_any_transaction_of_a_move_changes_nothing() {
    for target in TARGETS {
        for passed in 0..6 {
            store_refuses(target, passed, Refusal::Once);
            store_refuses(target, passed, Refusal::UntilRoomIsThere);
        }
    }
}

/// The mover's sync is not the only one: where the user's own sync comes first and reports the loss, the copy is given
/// up all the same, and data that the user wrote long ago is not called damaged.
#[test]
fn a_user_who_syncs_first_and_hears_of_the_loss_of_a_copy_keeps_the_file() {
    use super::conflicts::gate::{Gate, Moment, move_all};
    use crate::common::{Hook, HookedTier};
    for target in TARGETS {
        let faults = Mutex::new(Vec::new());
        let gate = Arc::new(Gate::default());
        let volume = Volume::wrapping(&[64 * MIB, 64 * MIB], |_, tier| -> Arc<dyn Tier> {
            let faulty = Arc::new(FaultyTier::new(tier));
            faults.lock().push(Arc::clone(&faulty));
            Arc::new(HookedTier::new(faulty, Arc::clone(&gate) as Arc<dyn Hook>))
        });
        let (ino, handle) = create(volume.fs(), "f");
        let data = pattern(1, crate::mebibytes(5));
        write_all(volume.fs(), handle, 0, &data).expect("written");
        if target == Target::Existing {
            volume.fs().migrate(ino, "slow", Some(2 * MIB..2 * MIB + 1)).expect("accepted");
        }
        settle(&volume);
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        let slow = Arc::clone(&faults.lock()[1]);
        volume.fs().migrate(ino, "slow", None).expect("accepted");
        gate.at(
            Moment::Read,
            1,
            || move_all(&volume),
            || {
                slow.fail_next(OperationKind::Sync, 1, EIO);
                // Whatever it says: it concerns a copy.
                let _ = volume.fs().sync(&Caller::root(), handle, SyncKind::All);
            },
        );
        slow.heal();
        let content = read_whole(volume.fs(), ino);
        assert!(content.is_ok_and(|content| content == data), "{target:?}: the file counts as damaged");
    }
}
