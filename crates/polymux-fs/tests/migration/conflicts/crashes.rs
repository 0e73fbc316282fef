//! The power goes at every operation of a move.
//!
//! Invariants: the operations of a move, on tiers and store, are counted by a run that is not disturbed; then the volume
//! stops without warning before each of them in turn, mounts again, and must hold the synced data, and not a byte more
//! than that once the pending frees are done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use polymux_fs::{Caller, SetAttributes, SyncKind};
use polymux_meta::{Batch, StoreError};
use polymux_tier::{ObjectRef, Tier, TierError};
use polymux_types::{Errno, Ino};

use super::gate::move_all;
use crate::common::{Hook, HookedTier, StoreHook, Verdict, Volume, create, pattern, read_whole, write_all};
use crate::{MIB, migrate, settle};

const LENGTH: usize = crate::mebibytes(5) - 1000;

fn first_content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| pattern(1, LENGTH))
}

/// From this operation on nothing reaches a tier or the store any more.
struct Power {
    operations: AtomicU64,
    fails_at: AtomicU64,
}

impl Power {
    fn is_on(&self) -> bool {
        self.operations.fetch_add(1, Ordering::SeqCst) < self.fails_at.load(Ordering::SeqCst)
    }

    fn verdict(&self) -> Verdict {
        let gone = TierError::Io { operation: "without power", errno: Errno::ENOSYS };
        if self.is_on() { Verdict::Pass } else { Verdict::Fail(gone) }
    }
}

impl Hook for Power {
    fn before_write(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.verdict()
    }

    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        self.verdict()
    }

    fn before_sync(&self) -> Verdict {
        self.verdict()
    }
}

impl StoreHook for Power {
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        if self.is_on() { Ok(()) } else { Err(StoreError::NoSpace) }
    }
}

/// Where the file lies before the move, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ToNewObject,
    OntoAnObject,
    Back,
}

struct Scene {
    volume: Volume,
    power: Arc<Power>,
    ino: Ino,
    data: &'static [u8],
    target: &'static str,
}

fn scene(way: Way) -> Scene {
    let power = Arc::new(Power { operations: AtomicU64::new(0), fails_at: AtomicU64::new(u64::MAX) });
    let mut volume = Volume::wrapping(&[64 * MIB, 64 * MIB], |_, tier| -> Arc<dyn Tier> {
        Arc::new(HookedTier::new(tier, Arc::clone(&power) as Arc<dyn Hook>))
    });
    volume.hook_store(Arc::clone(&power) as Arc<dyn StoreHook>);
    let (ino, handle) = create(volume.fs(), "f");
    let data = first_content();
    write_all(volume.fs(), handle, 0, data).expect("written");
    match way {
        Way::ToNewObject => {}
        Way::OntoAnObject => {
            volume.fs().migrate(ino, "slow", Some(2 * MIB..2 * MIB + 1)).expect("accepted");
            settle(&volume);
        }
        Way::Back => {
            migrate(&volume, ino, "slow");
        }
    }
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    let target = if way == Way::Back { "fast" } else { "slow" };
    Scene { volume, power, ino, data, target }
}

impl Scene {
    /// The move and its cleanup: freeing the source ranges.
    fn go(&self) {
        self.volume.fs().migrate(self.ino, self.target, None).expect("accepted");
        for _ in 0..3 {
            move_all(&self.volume);
            self.volume.step();
        }
    }
}

fn crash_everywhere(way: Way) {
    let undisturbed = scene(way);
    let before = undisturbed.power.operations.load(Ordering::SeqCst);
    undisturbed.go();
    let count = undisturbed.power.operations.load(Ordering::SeqCst) - before;
    assert!(count >= 8, "a move of three nodes has reads, writes, syncs and transactions: {count}");
    for place in 0..=count {
        for kept in [0, usize::MAX] {
            let what = format!("{way:?}, operation {place} of {count}, {kept} transactions kept");
            let mut scene = scene(way);
            let now = scene.power.operations.load(Ordering::SeqCst);
            scene.power.fails_at.store(now + place, Ordering::SeqCst);
            scene.go();
            scene.power.fails_at.store(u64::MAX, Ordering::SeqCst);
            // No waiter was notified since, so the return of the power has no effect.
            scene.volume.crash_keeping_transactions(kept);
            let content = read_whole(scene.volume.fs(), scene.ino).expect("read");
            assert!(content == scene.data, "{what}: what was synced is lost");
            settle(&scene.volume);
            let used = scene.volume.used(0) + scene.volume.used(1);
            assert_eq!(used, (LENGTH as u64).next_multiple_of(4096), "{what}: bytes on all tiers");
            // Old ranges are no ghosts.
            for size in [MIB, 9 * MIB] {
                let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
                scene.volume.fs().set_attributes(&Caller::root(), scene.ino, &change).expect("the size is set");
            }
            let content = read_whole(scene.volume.fs(), scene.ino).expect("read");
            let (kept_bytes, grown) = content.split_at(crate::mebibytes(1));
            assert!(*kept_bytes == scene.data[..crate::mebibytes(1)], "{what}: cut");
            assert!(*grown == vec![0; crate::mebibytes(8)], "{what}: ghost bytes");
        }
    }
}

#[test]
fn a_crash_at_any_operation_of_a_move_to_a_tier_without_an_object() {
    crash_everywhere(Way::ToNewObject);
}

#[test]
fn a_crash_at_any_operation_of_a_move_onto_an_object_that_is_there() {
    crash_everywhere(Way::OntoAnObject);
}

#[test]
fn a_crash_at_any_operation_of_a_move_back() {
    crash_everywhere(Way::Back);
}
