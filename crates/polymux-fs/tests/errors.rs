//! Tiers that fail: lost bytes are reported and never shown as sound; data on other tiers is not touched.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{
    Broken, Volume, close, create, errno, find, pattern, read_at, read_only, read_whole, read_write,
    volume_with_broken_tier, write_all,
};
use polymux_fs::{Caller, HandleId, MissingTiers, SyncKind, TierState, VolumeError};
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A volume whose fast tier can be broken.
fn volume() -> (Volume, Arc<Broken>) {
    volume_with_broken_tier(&[256 * KIB, 16 * MIB], 0)
}

fn sync(volume: &Volume, handle: HandleId) -> polymux_fs::Result<()> {
    volume.fs().sync(&Caller::root(), handle, SyncKind::All)
}

/// A file of ten blocks, synced, two blocks of which were overwritten and lost by a failed sync. The descriptions were
/// open meanwhile; only the first asked.
fn lose_two_blocks(volume: &Volume, broken: &Broken) -> (Ino, [HandleId; 2]) {
    let (ino, first) = create(volume.fs(), "f");
    let second = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    write_all(volume.fs(), first, 0, &pattern(1, 40_960)).expect("written");
    sync(volume, first).expect("synced");
    write_all(volume.fs(), first, 8192, &pattern(3, 8192)).expect("written");
    broken.syncs.store(true, Ordering::Relaxed);
    assert_eq!(errno(sync(volume, first)), Errno::EIO);
    broken.syncs.store(false, Ordering::Relaxed);
    (ino, [first, second])
}

fn damaged(volume: &Volume, ino: Ino) -> Vec<(u64, u64)> {
    volume.fs().locate(ino).expect("located").damaged
}

#[test]
fn every_description_is_told_of_a_failed_sync() {
    let (volume, broken) = volume();
    let (_, [_, second]) = lose_two_blocks(&volume, &broken);
    // The tier works again, and reports success when asked: the loss must come from memory.
    assert_eq!(errno(volume.fs().flush(&Caller::root(), second)), Errno::EIO);
}

#[test]
fn no_sync_succeeds_before_lost_bytes_were_written_again() {
    let (volume, broken) = volume();
    let (ino, [first, second]) = lose_two_blocks(&volume, &broken);
    assert_eq!(errno(sync(&volume, first)), Errno::EIO, "asking again does not help");
    assert_eq!(errno(sync(&volume, second)), Errno::EIO);
    write_all(volume.fs(), first, 8192, &pattern(5, 8192)).expect("written");
    assert_eq!(damaged(&volume, ino), []);
    sync(&volume, first).expect("all is durable now");
    sync(&volume, second).expect("it was told before");
}

#[test]
fn lost_bytes_are_never_read_as_sound_and_their_neighbours_are() {
    let (volume, broken) = volume();
    let (ino, [first, _]) = lose_two_blocks(&volume, &broken);
    assert_eq!(damaged(&volume, ino), [(8192, 8192)]);
    assert_eq!(errno(read_at(volume.fs(), first, 8192, 4096)), Errno::EIO);
    assert_eq!(read_at(volume.fs(), first, 0, 8192).expect("read"), pattern(1, 40_960)[..8192]);
    assert_eq!(read_at(volume.fs(), first, 16_384, 9000).expect("read"), pattern(1, 40_960)[16_384..25_384]);
    // Writing half of it heals that half.
    write_all(volume.fs(), first, 8192, &pattern(5, 4096)).expect("written");
    assert_eq!(damaged(&volume, ino), [(12_288, 4096)]);
    assert_eq!(read_at(volume.fs(), first, 8192, 4096).expect("read"), pattern(5, 4096));
    assert_eq!(errno(read_at(volume.fs(), first, 12_288, 1)), Errno::EIO);
}

#[test]
fn a_loss_is_remembered_across_a_remount_and_a_crash() {
    let (mut volume, broken) = volume();
    let (ino, [first, second]) = lose_two_blocks(&volume, &broken);
    let _told = (close(volume.fs(), first), close(volume.fs(), second));
    let _told = volume.unmount();
    volume.mount().expect("mounted");
    assert_eq!(damaged(&volume, ino), [(8192, 8192)]);
    volume.crash();
    assert_eq!(damaged(&volume, ino), [(8192, 8192)]);
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    assert_eq!(errno(read_at(volume.fs(), handle, 8192, 4096)), Errno::EIO);
    assert_eq!(errno(sync(&volume, handle)), Errno::EIO);
    write_all(volume.fs(), handle, 8192, &pattern(5, 8192)).expect("written");
    sync(&volume, handle).expect("healed");
    volume.remount();
    assert_eq!(damaged(&volume, ino), []);
}

/// The append was lost twice: by the sync that failed, and by the crash that left the file as long as before.
#[test]
fn a_file_that_grows_over_an_append_lost_before_a_crash_has_zeros_there() {
    let (mut volume, broken) = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 40_960)).expect("written");
    sync(&volume, handle).expect("synced");
    write_all(volume.fs(), handle, 40_960, &pattern(3, 8192)).expect("written");
    broken.syncs.store(true, Ordering::Relaxed);
    assert_eq!(errno(sync(&volume, handle)), Errno::EIO);
    broken.syncs.store(false, Ordering::Relaxed);
    assert_eq!(damaged(&volume, ino), [(40_960, 8192)]);
    volume.crash();
    for round in 0..2 {
        assert_eq!(damaged(&volume, ino), [], "round {round}");
        let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
        write_all(volume.fs(), handle, 60_000, b"x").expect("written");
        sync(&volume, handle).expect("nothing of the file is lost");
        let content = read_at(volume.fs(), handle, 0, 60_001).expect("read");
        assert_eq!(content[..40_960], pattern(1, 40_960));
        assert!(content[40_960..60_000].iter().all(|byte| *byte == 0));
        close(volume.fs(), handle).expect("closed");
        volume.crash();
    }
}

#[test]
fn a_sync_of_the_volume_that_fails_is_told_to_the_files_concerned() {
    let (volume, broken) = volume();
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    broken.syncs.store(true, Ordering::Relaxed);
    assert_eq!(errno(volume.fs().sync_volume()), Errno::EIO);
    broken.syncs.store(false, Ordering::Relaxed);
    assert_eq!(errno(sync(&volume, handle)), Errno::EIO, "whoever asked first, the file's user is told");
}

#[test]
fn room_that_turns_out_missing_at_the_sync_is_reported_as_such() {
    let (volume, broken) = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    broken.quota.store(true, Ordering::Relaxed);
    broken.syncs.store(true, Ordering::Relaxed);
    assert_eq!(errno(sync(&volume, handle)), Errno::EDQUOT);
    broken.syncs.store(false, Ordering::Relaxed);
    assert_eq!(damaged(&volume, ino), [(0, 12_288)], "whole blocks");
}

#[test]
fn a_failing_tier_does_not_touch_files_elsewhere() {
    let (volume, broken) = volume();
    let (_, filler) = create(volume.fs(), "filler");
    write_all(volume.fs(), filler, 0, &pattern(1, 250 * 1024)).expect("written");
    let (elsewhere, handle) = create(volume.fs(), "elsewhere");
    write_all(volume.fs(), handle, 0, &pattern(3, 100_000)).expect("written");
    let location = volume.fs().locate(elsewhere).expect("located");
    let on_slow = location.extents.iter().find(|extent| extent.tier.as_deref() == Some("slow")).expect("it spilled");
    for switch in [&broken.reads, &broken.writes, &broken.syncs] {
        switch.store(true, Ordering::Relaxed);
    }
    assert_eq!(errno(read_at(volume.fs(), filler, 0, 100)), Errno::EIO);
    let start = usize::try_from(on_slow.offset).expect("it fits");
    let length = usize::try_from(on_slow.length).expect("it fits").min(100_000 - start);
    let read = read_at(volume.fs(), handle, on_slow.offset, length).expect("read");
    assert_eq!(read, pattern(3, 100_000)[start..start + length]);
    write_all(volume.fs(), handle, on_slow.offset + 10, b"changed").expect("written");
    let status = volume.fs().status().expect("answered");
    assert!(matches!(status.tiers[0].state, TierState::Failing(_)), "{:?}", status.tiers[0].state);
    assert_eq!(status.tiers[1].state, TierState::Online);
}

#[test]
fn new_data_avoids_a_failing_tier() {
    let (volume, broken) = volume();
    let (_, handle) = create(volume.fs(), "first");
    write_all(volume.fs(), handle, 0, &pattern(1, 5000)).expect("written");
    broken.writes.store(true, Ordering::Relaxed);
    assert_eq!(errno(write_all(volume.fs(), handle, 0, b"y")), Errno::EIO);
    let (ino, handle) = create(volume.fs(), "second");
    write_all(volume.fs(), handle, 0, &pattern(7, 10_000)).expect("another tier takes it");
    sync(&volume, handle).expect("synced");
    assert_eq!(volume.fs().locate(ino).expect("located").home.as_deref(), Some("slow"));
}

/// A file on the fast tier, one on the slow tier, one on both.
fn spread(volume: &Volume) -> [Ino; 3] {
    let file = |name: &str, seed, length| {
        let (ino, handle) = create(volume.fs(), name);
        write_all(volume.fs(), handle, 0, &pattern(seed, length)).expect("written");
        close(volume.fs(), handle).expect("closed");
        ino
    };
    let [fast, both, slow] = [file("fast", 1, 100_000), file("both", 3, 300_000), file("slow", 5, 20_000)];
    assert_eq!(volume.fs().locate(slow).expect("located").home.as_deref(), Some("slow"));
    assert_eq!(volume.fs().locate(both).expect("located").shares.len(), 2);
    [fast, both, slow]
}

#[test]
fn a_missing_tier_is_refused_by_name() {
    let (mut volume, _) = volume();
    let [_, both, _] = spread(&volume);
    volume.unmount().expect("unmounted");
    volume.set_missing(0, true);
    match volume.mount() {
        Err(VolumeError::TierMissing { name, .. }) => assert_eq!(name, "fast"),
        other => panic!("mounted without a tier: {:?}", other.err()),
    }
    volume.set_missing(0, false);
    volume.mount().expect("nothing was changed");
    assert_eq!(read_whole(volume.fs(), both).expect("read"), pattern(3, 300_000));
}

#[test]
fn a_degraded_mount_shows_all_names_and_fails_only_on_what_is_missing() {
    let (mut volume, _) = volume();
    let [fast, both, slow] = spread(&volume);
    volume.unmount().expect("unmounted");
    volume.set_missing(0, true);
    volume.options.missing = MissingTiers::Degraded;
    volume.mount().expect("mounted");
    for (name, size) in [("fast", 100_000), ("both", 300_000), ("slow", 20_000)] {
        assert_eq!(find(volume.fs(), name).size, size, "{name}");
    }
    assert_eq!(errno(read_whole(volume.fs(), fast)), Errno::EIO);
    let handle = volume.fs().open(&Caller::root(), both, read_only()).expect("opened");
    assert_eq!(errno(read_at(volume.fs(), handle, 0, 10)), Errno::EIO);
    assert_eq!(read_at(volume.fs(), handle, 299_000, 2000).expect("read"), pattern(3, 300_000)[299_000..]);
    assert_eq!(read_whole(volume.fs(), slow).expect("read"), pattern(5, 20_000));
    let (_, new) = create(volume.fs(), "new");
    write_all(volume.fs(), new, 0, &pattern(7, 5000)).expect("new data goes to what is there");
    close(volume.fs(), new).expect("closed");
    assert!(matches!(volume.fs().status().expect("answered").tiers[0].state, TierState::Missing(_)));
    volume.unmount().expect("unmounted");
    volume.set_missing(0, false);
    volume.mount().expect("the tier comes back");
    assert_eq!(read_whole(volume.fs(), fast).expect("read"), pattern(1, 100_000));
    assert_eq!(read_whole(volume.fs(), both).expect("read"), pattern(3, 300_000));
    assert_eq!(read_whole(volume.fs(), find(volume.fs(), "new").ino).expect("read"), pattern(7, 5000));
}

#[test]
fn what_is_deleted_while_a_tier_is_missing_is_freed_when_it_is_back() {
    let (mut volume, _) = volume();
    spread(&volume);
    volume.unmount().expect("unmounted");
    volume.set_missing(0, true);
    volume.options.missing = MissingTiers::Degraded;
    volume.mount().expect("mounted");
    for name in ["fast", "both", "slow"] {
        volume.fs().unlink(&Caller::root(), Ino::ROOT, name.as_bytes()).expect("unlinked");
    }
    volume.unmount().expect("unmounted");
    volume.set_missing(0, false);
    volume.mount().expect("mounted");
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}
