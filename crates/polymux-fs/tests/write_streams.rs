//! Long streams of writes begin their way to the device while they come; small and random writes, and files that the kernel
//! writes to by itself, are left in memory.
//!
//! Setup: begun write-back is recorded in front of the simulated tiers, together with syncs, and background work is done when
//! a test asks for it.

mod common;

use std::sync::Arc;

use common::{Hook, HookedTier, Verdict, Volume, create, pattern, write_all};
use polymux_fs::{Caller, FileSystem, HandleId, Progress, SyncKind, WriteOrigin};
use polymux_tier::ObjectRef;
use polymux_types::sync::Mutex;

const MIB: u64 = 1 << 20;

/// A request to a tier.
#[derive(Default)]
struct Seen {
    write_backs: Mutex<Vec<(ObjectRef, u64, u64)>>,
    syncs: Mutex<u64>,
}

impl Hook for Seen {
    fn before_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        self.write_backs.lock().push((object, offset, length));
    }

    fn before_sync(&self) -> Verdict {
        *self.syncs.lock() += 1;
        Verdict::Pass
    }
}

impl Seen {
    /// Bytes that were begun of the only file; each of them once, in order.
    fn bytes_begun(&self) -> u64 {
        let begun = self.write_backs.lock();
        assert!(begun.windows(2).all(|pair| pair[0].1 + pair[0].2 == pair[1].1), "{begun:?}");
        begun.iter().map(|(.., length)| *length).sum()
    }
}

struct Stand {
    volume: Volume,
    seen: Vec<Arc<Seen>>,
}

impl Stand {
    fn new(capacities: &[u64]) -> Self {
        let seen: Vec<Arc<Seen>> = capacities.iter().map(|_| Arc::default()).collect();
        let hooked = |index: usize, tier| Arc::new(HookedTier::new(tier, Arc::clone(&seen[index]) as _)) as _;
        let volume = Volume::wrapping(capacities, hooked);
        for seen in &seen {
            *seen.syncs.lock() = 0;
        }
        Self { volume, seen }
    }

    fn fs(&self) -> &FileSystem {
        self.volume.fs()
    }

    /// Writes from an offset on, some bytes at a time, with background work after each.
    fn write(&self, handle: HandleId, offset: u64, length: u64, at_a_time: u64) {
        let data = pattern(7, usize::try_from(at_a_time).expect("small"));
        for offset in (offset..offset + length).step_by(data.len()) {
            write_all(self.fs(), handle, offset, &data).expect("written");
            while self.volume.step() == Progress::Worked {}
        }
    }
}

#[test]
fn a_long_stream_is_on_its_way_before_anybody_syncs_and_what_is_written_over_it_again() {
    let stand = Stand::new(&[256 * MIB]);
    let (_, handle) = create(stand.fs(), "f");
    stand.write(handle, 0, 64 * MIB, MIB);
    assert!(stand.seen[0].bytes_begun() >= 62 * MIB, "{}", stand.seen[0].bytes_begun());
    assert_eq!(*stand.seen[0].syncs.lock(), 0);
    assert_eq!(stand.volume.counter("stream_bytes_behind"), stand.seen[0].bytes_begun());

    stand.seen[0].write_backs.lock().clear();
    stand.write(handle, 0, 64 * MIB, 4 * MIB);
    assert!(stand.seen[0].bytes_begun() >= 59 * MIB, "{}", stand.seen[0].bytes_begun());
    stand.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
}

#[test]
fn a_short_stream_and_one_that_is_written_again_and_again_stay_in_memory() {
    let stand = Stand::new(&[256 * MIB]);
    let (_, handle) = create(stand.fs(), "f");
    for _ in 0..5 {
        stand.write(handle, 0, 30 * MIB, MIB);
    }
    assert_eq!(stand.seen[0].bytes_begun(), 0);
}

#[test]
fn what_a_kernel_collected_is_on_its_way_as_it_comes_unless_programs_wait_for_its_file() {
    let stand = Stand::new(&[256 * MIB]);
    stand.fs().set_kernel_collects_writes();
    let send = |handle, offset: u64, data: &[u8]| {
        let sent = stand.fs().write(&Caller::root(), handle, offset, data, WriteOrigin::WriteBack);
        assert_eq!(sent.expect("written"), data.len());
        while stand.volume.step() == Progress::Worked {}
    };
    let (_, table) = create(stand.fs(), "table");
    // Far from one another, so that no stream is seen.
    for (index, offset) in [40, 4, 20].into_iter().enumerate() {
        send(table, offset * MIB, &pattern(1, 1 << 20));
        assert_eq!(stand.seen[0].write_backs.lock().len(), index + 1);
    }
    assert_eq!(stand.volume.counter("collected_bytes_behind"), 3 * MIB);

    let (_, log) = create(stand.fs(), "log");
    for record in 0..8 {
        send(log, record * 8192, &pattern(2, 8192));
        stand.fs().sync(&Caller::root(), log, SyncKind::Data).expect("synced");
    }
    stand.seen[0].write_backs.lock().clear();
    send(log, 8 * 8192, &pattern(3, 1 << 20));
    assert!(stand.seen[0].write_backs.lock().is_empty(), "it is synced in a moment");
}

#[test]
fn random_writes_stay_in_memory() {
    let stand = Stand::new(&[256 * MIB]);
    let (_, handle) = create(stand.fs(), "f");
    let data = pattern(3, 64 << 10);
    // Every 64 KiB of 64 MiB once, each far from the one before.
    for index in 0..1024_u64 {
        write_all(stand.fs(), handle, index * 389 % 1024 * (64 << 10), &data).expect("written");
        stand.volume.step();
    }
    assert_eq!(stand.seen[0].bytes_begun(), 0);
}

#[test]
fn each_tier_of_a_file_that_spills_begins_with_what_it_has() {
    let stand = Stand::new(&[40 * MIB, 256 * MIB]);
    let (_, handle) = create(stand.fs(), "f");
    stand.write(handle, 0, 80 * MIB, MIB);
    let begun = [stand.seen[0].bytes_begun(), stand.seen[1].bytes_begun()];
    assert!(begun[0] >= 30 * MIB && begun[1] >= 36 * MIB && begun[0] + begun[1] <= 80 * MIB, "{begun:?}");
}

#[test]
fn a_stream_with_much_waiting_holds_up_no_other_one() {
    let stand = Stand::new(&[256 * MIB]);
    let data = pattern(5, 1 << 20);
    let handles = ["long", "short"].map(|name| create(stand.fs(), name).1);
    for (handle, length) in handles.into_iter().zip([150 * MIB, 40 * MIB]) {
        for offset in (0..length).step_by(data.len()) {
            write_all(stand.fs(), handle, offset, &data).expect("written");
        }
    }
    while stand.volume.step() == Progress::Worked {}
    let begun = stand.seen[0].write_backs.lock();
    let (first, last) = (begun[0].0, begun.iter().rposition(|(object, ..)| *object != begun[0].0));
    let beside: u64 = begun[..last.expect("both were begun")]
        .iter()
        .filter(|(object, ..)| *object == first)
        .map(|(.., length)| length)
        .sum();
    assert!(beside <= 48 * MIB, "{beside} bytes of the long one went before the end of the short one");
}
