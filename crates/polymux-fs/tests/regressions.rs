//! Findings of reviews, each as a small test, kept for ever.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{
    Broken, Volume, close, create, errno, find, pattern, read_at, read_only, read_whole, read_write,
    volume_with_broken_tier, write_all,
};
use polymux_fs::{Caller, HandleId, MissingTiers, SetAttributes, SyncKind};
use polymux_tier::Tier;
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A volume whose slow tier may fail its syncs.
fn volume_with_failing_syncs() -> (Volume, Arc<Broken>) {
    volume_with_broken_tier(&[64 * KIB, 16 * MIB], 1)
}

fn sync(volume: &Volume, handle: HandleId) -> polymux_fs::Result<()> {
    volume.fs().sync(&Caller::root(), handle, SyncKind::All)
}

fn cut(volume: &Volume, ino: Ino, size: u64) -> polymux_fs::Result<()> {
    let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).map(|_| ())
}

/// A file on both tiers: written in parts, so that the first ones find space on the fast tier.
fn split_file(volume: &Volume, name: &str, length: usize) -> (Ino, HandleId) {
    let (ino, handle) = create(volume.fs(), name);
    write_all(volume.fs(), handle, 0, &pattern(1, length)).expect("written");
    assert_eq!(volume.fs().locate(ino).expect("located").shares.len(), 2, "the file is on both tiers");
    (ino, handle)
}

/// A cut that a tier could not make durable leaves a pending free; carried out later, it would cut data appended
/// meanwhile.
#[test]
fn a_cut_that_failed_on_a_tier_never_takes_what_is_appended_later() {
    let (volume, hook) = volume_with_failing_syncs();
    let (ino, handle) = split_file(&volume, "f", 300_000);
    sync(&volume, handle).expect("synced");
    // The bytes before the cut are synced; the sync of the cut itself fails.
    hook.syncs_passing.store(1, Ordering::Relaxed);
    hook.syncs.store(true, Ordering::Relaxed);
    let outcome = cut(&volume, ino, 100_000);
    hook.syncs.store(false, Ordering::Relaxed);
    assert_eq!(hook.syncs_passing.load(Ordering::Relaxed), 0, "the test reached the sync that it means to fail");
    if outcome.is_err() {
        cut(&volume, ino, 100_000).expect("the tier works again");
    }
    let size = usize::try_from(find(volume.fs(), "f").size).expect("it fits");
    write_all(volume.fs(), handle, size as u64, &pattern(9, 500_000)).expect("written");
    sync(&volume, handle).expect("synced");
    volume.drain();
    let whole = read_whole(volume.fs(), ino).expect("read");
    assert_eq!(whole.len(), size + 500_000);
    assert_eq!(whole[size..], pattern(9, 500_000));
}

/// Only the missing tier knows how long the file is: a degraded mount must not record the shorter size that it sees.
#[test]
fn a_degraded_mount_does_not_cut_what_only_the_missing_tier_knows() {
    let mut volume = Volume::new(&[64 * KIB, 16 * MIB]);
    let (ino, handle) = split_file(&volume, "f", 300_000);
    sync(&volume, handle).expect("synced");
    volume.crash();
    volume.stop_uncleanly();
    volume.set_missing(1, true);
    volume.options.missing = MissingTiers::Degraded;
    volume.mount().expect("degraded");
    find(volume.fs(), "f");
    volume.unmount().expect("unmounted");
    volume.set_missing(1, false);
    volume.mount().expect("whole again");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(1, 300_000));
}

/// The record says "settled" although the tier kept more: the bit of the append had not become durable.
#[test]
fn an_append_that_the_log_forgot_does_not_come_back_when_the_file_grows() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 5000)).expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.remount();
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, 5000, &pattern(3, 500_000)).expect("written");
    // The kernel writes back on its own; the log does not become durable.
    volume.memory(0).sync_all().expect("synced");
    volume.crash();
    let size = find(volume.fs(), "f").size;
    cut(&volume, ino, 1_000_000).expect("grown");
    let whole = read_whole(volume.fs(), ino).expect("read");
    let kept = usize::try_from(size).expect("it fits");
    assert_eq!(whole[..5000], pattern(1, 5000));
    assert!(whole[kept..].iter().all(|byte| *byte == 0), "old bytes came back beyond {kept}");
}

/// A relocation to a tier that also holds an unsynced append of the file: the failed sync concerns both.
#[test]
fn a_failed_sync_of_a_relocation_is_told_to_whoever_syncs_the_file() {
    let (volume, hook) = volume_with_failing_syncs();
    let (ino, handle) = create(volume.fs(), "f");
    cut(&volume, ino, 40_960).expect("a hole on the fast tier");
    let (_, filler) = create(volume.fs(), "filler");
    write_all(volume.fs(), filler, 0, &pattern(5, 60 * 1024)).expect("written");
    write_all(volume.fs(), handle, 40_960, &pattern(7, 100_000)).expect("appended to the slow tier");
    hook.syncs.store(true, Ordering::Relaxed);
    let relocated = write_all(volume.fs(), handle, 8192, &pattern(9, 8192));
    hook.syncs.store(false, Ordering::Relaxed);
    if relocated.is_err() {
        assert_eq!(errno(sync(&volume, handle)), Errno::EIO, "the append may be lost, and its sync must say so");
    } else {
        sync(&volume, handle).expect("nothing was lost");
        let reader = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
        assert_eq!(read_at(volume.fs(), reader, 8192, 8192).expect("read"), pattern(9, 8192));
    }
}

/// Many threads spill different parts of one file at once: it gets one object a tier.
#[test]
fn parallel_spills_of_one_file_make_one_object_a_tier() {
    for _ in 0..20 {
        let volume = Volume::new(&[16 * KIB, 64 * MIB]);
        let (ino, handle) = create(volume.fs(), "f");
        cut(&volume, ino, 8 * MIB).expect("a hole");
        let (_, filler) = create(volume.fs(), "filler");
        write_all(volume.fs(), filler, 0, &pattern(1, 16 * 1024)).expect("written");
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let fs = volume.fs();
                scope.spawn(move || {
                    let offset = u64::from(thread) * MIB;
                    write_all(fs, handle, offset, &pattern(thread + 1, 50_000)).expect("written");
                    if thread == 0 {
                        write_all(fs, handle, 8 * MIB, &pattern(9, 50_000)).expect("appended");
                    }
                });
            }
        });
        for thread in 0..8_u8 {
            let read = read_at(volume.fs(), handle, u64::from(thread) * MIB, 50_000).expect("read");
            assert_eq!(read, pattern(thread + 1, 50_000));
        }
        sync(&volume, handle).expect("synced");
        assert!(volume.fs().locate(ino).expect("located").shares.len() <= 2);
    }
}

/// Objects and ranges of them have records of their own: an unlink while a range is being freed is not forgotten.
#[test]
fn unlinking_a_file_whose_blocks_are_being_freed_frees_all_of_it() {
    let volume = Volume::new(&[64 * KIB, 16 * MIB]);
    let (ino, handle) = split_file(&volume, "f", 300_000);
    cut(&volume, ino, 10).expect("cut");
    write_all(volume.fs(), handle, 0, &pattern(3, 200_000)).expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}
