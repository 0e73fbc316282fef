//! The cost of a sync: tiers and a log with nothing to do are left out, and the others are synced in parallel.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{
    Hook, HookedTier, StoreHook, Verdict, Volume, create, errno, pattern, read_whole, volume_with_broken_tier,
    write_all,
};
use polymux_fs::{Caller, HandleId, SetAttributes, SyncKind};
use polymux_meta::{Batch, StoreError};
use polymux_tier::Tier;
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn data_sync(volume: &Volume, handle: HandleId) {
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
}

/// Syncs of single objects and of everything on a tier.
fn syncs(volume: &Volume, index: usize) -> (u64, u64) {
    let counters = volume.memory(index).counters();
    (counters.syncs, counters.syncs_all)
}

fn change_mode(volume: &Volume, ino: Ino, permissions: u32) {
    let change = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("changed");
}

#[test]
fn appending_and_syncing_costs_the_tiers_sync_and_no_flush() {
    let volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 8192)).expect("written");
    data_sync(&volume, handle);
    let before = (volume.counter("log_flushes"), syncs(&volume, 0), syncs(&volume, 1));
    let transactions = volume.fs().status().expect("answered").transactions_committed;
    let threads = volume.counter("sync_threads");
    for index in 0..50 {
        write_all(volume.fs(), handle, 8192 + index * 4096, &pattern(3, 4096)).expect("written");
        data_sync(&volume, handle);
    }
    let after = (volume.counter("log_flushes"), syncs(&volume, 0), syncs(&volume, 1));
    assert_eq!(after, (before.0, (before.1.0 + 50, before.1.1), before.2));
    assert_eq!(volume.fs().status().expect("answered").transactions_committed, transactions, "nothing is logged");
    assert_eq!(volume.counter("sync_threads"), threads, "nobody is woken for it");
}

#[test]
fn a_sync_with_nothing_to_do_does_nothing() {
    let volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 8192)).expect("written");
    data_sync(&volume, handle);
    let before = (volume.counter("log_flushes"), syncs(&volume, 0));
    data_sync(&volume, handle);
    volume.fs().sync_directory(&Caller::root(), Ino::ROOT).expect("synced");
    assert_eq!((volume.counter("log_flushes"), syncs(&volume, 0)), before);
}

#[test]
fn a_sync_of_data_and_records_starts_no_thread_of_its_own() {
    let volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    for index in 0..200 {
        write_all(volume.fs(), handle, index * 8192, &pattern(3, 8192)).expect("written");
        change_mode(&volume, ino, 0o600 + u32::try_from(index % 8).expect("small"));
        data_sync(&volume, handle);
    }
    assert!(volume.counter("sync_threads") <= 1, "{} threads", volume.counter("sync_threads"));
}

/// Where the tier and the log meet: each waits until the other has begun, and remembers whether it came.
#[derive(Default)]
struct Meeting {
    tier_is_here: AtomicBool,
    log_is_here: AtomicBool,
    missed: AtomicBool,
    open: AtomicBool,
}

impl Meeting {
    fn meet(&self, own: &AtomicBool, other: &AtomicBool) {
        if !self.open.load(Ordering::SeqCst) {
            return;
        }
        own.store(true, Ordering::SeqCst);
        let patience = Instant::now() + Duration::from_secs(20);
        while !other.load(Ordering::SeqCst) {
            if Instant::now() > patience {
                self.missed.store(true, Ordering::SeqCst);
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Hook for Meeting {
    fn before_sync(&self) -> Verdict {
        self.meet(&self.tier_is_here, &self.log_is_here);
        Verdict::Pass
    }
}

impl StoreHook for Meeting {
    fn before_sync(&self) {
        self.meet(&self.log_is_here, &self.tier_is_here);
    }
}

fn meeting_volume() -> (Volume, Arc<Meeting>) {
    let meeting = Arc::new(Meeting::default());
    let mut volume = Volume::wrapping(&[16 * MIB], |_, tier| -> Arc<dyn Tier> {
        Arc::new(HookedTier::new(tier, Arc::clone(&meeting) as _))
    });
    volume.hook_store(Arc::clone(&meeting) as _);
    (volume, meeting)
}

#[test]
fn the_data_sync_and_the_log_flush_go_side_by_side() {
    for of_volume in [false, true] {
        let (volume, meeting) = meeting_volume();
        let (_, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, &pattern(1, 8192)).expect("written");
        meeting.open.store(true, Ordering::SeqCst);
        if of_volume {
            volume.fs().sync_volume().expect("synced");
        } else {
            data_sync(&volume, handle);
        }
        meeting.open.store(false, Ordering::SeqCst);
        assert!(!meeting.missed.load(Ordering::SeqCst), "one waited for the other to end");
    }
}

#[test]
fn a_failed_data_sync_beside_a_log_flush_is_told() {
    let (mut volume, broken) = volume_with_broken_tier(&[16 * MIB, 16 * MIB], 0);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 8192)).expect("written");
    broken.syncs.store(true, Ordering::Relaxed);
    assert_eq!(errno(volume.fs().sync(&Caller::root(), handle, SyncKind::All)), Errno::EIO);
    broken.syncs.store(false, Ordering::Relaxed);
    assert_eq!(errno(volume.fs().sync(&Caller::root(), handle, SyncKind::All)), Errno::EIO);
    volume.crash();
    assert_eq!(volume.fs().locate(ino).expect("located").damaged, [(0, 8192)]);
}

/// Holds a commit up while it is shut.
#[derive(Default)]
struct Gate {
    shut: AtomicBool,
    somebody_waits: AtomicBool,
}

impl StoreHook for Gate {
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        while self.shut.load(Ordering::SeqCst) {
            self.somebody_waits.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Another thread is just committing the bytes of a small file, with a change of its mode: a sync must not take them
/// for logged before they are.
#[test]
fn a_sync_waits_for_whoever_logs_the_same_bytes() {
    let mut volume = Volume::new(&[16 * MIB]);
    let gate = Arc::new(Gate::default());
    volume.hook_store(Arc::clone(&gate) as _);
    let (ino, handle) = create(volume.fs(), "f");
    data_sync(&volume, handle);
    write_all(volume.fs(), handle, 0, b"bytes").expect("written");
    gate.shut.store(true, Ordering::SeqCst);
    let synced = AtomicBool::new(false);
    let too_early = std::thread::scope(|scope| {
        scope.spawn(|| change_mode(&volume, ino, 0o600));
        while !gate.somebody_waits.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        scope.spawn(|| {
            data_sync(&volume, handle);
            synced.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(100));
        let too_early = synced.load(Ordering::SeqCst);
        gate.shut.store(false, Ordering::SeqCst);
        too_early
    });
    assert!(!too_early, "nothing of it was committed yet");
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"bytes");
}

#[test]
fn syncing_a_volume_of_many_files_is_one_sync_a_tier_and_one_flush() {
    let mut volume = Volume::new(&[256 * KIB, 16 * MIB]);
    let mut files = Vec::new();
    for index in 0..60 {
        let (ino, handle) = create(volume.fs(), &format!("f{index}"));
        write_all(volume.fs(), handle, 0, &pattern(index, 3000 * usize::from(index % 5 + 1))).expect("written");
        files.push((ino, pattern(index, 3000 * usize::from(index % 5 + 1))));
    }
    let before = (volume.counter("log_flushes"), syncs(&volume, 0), syncs(&volume, 1));
    volume.fs().sync_volume().expect("synced");
    let after = (volume.counter("log_flushes"), syncs(&volume, 0), syncs(&volume, 1));
    let of_tier = |(single, all): (u64, u64)| (single, all + 1);
    assert_eq!(after, (before.0 + 1, of_tier(before.1), of_tier(before.2)));
    volume.crash();
    for (ino, content) in files {
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), content);
    }
}
