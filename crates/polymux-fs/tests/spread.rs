//! Files that grow on several tiers at once: where their ranges go, which of them survive a crash, and that small files and other
//! policies are as ever.
//!
//! Setup: write-behind runs only where a test asks for it, so that written data counts as on its way to its tier, and the ranges of
//! a file go to the tiers in turn.

mod common;

use std::cell::RefCell;
use std::sync::Arc;

use common::{Volume, bytes_on, close, create, errno, find, pattern, read_at, read_whole, write_all};
use polymux_fs::{
    AllocateKind, Caller, FileSystem, HandleId, MountOptions, PolicyKind, SetAttributes, SyncKind, Wait, WriteOrigin,
};
use polymux_sim::{FaultyTier, MemoryTier, OperationKind};
use polymux_tier::{Tier, TierError};
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Of these volumes.
const RANGE: u64 = 64 * KIB;

fn spread_volume(capacities: &[u64]) -> Volume {
    let mut volume = Volume::new(capacities);
    volume.options = MountOptions { spread_range_bytes: 64 << 10, inline_size_max: 0, ..volume.options };
    volume.remount();
    steer(&volume);
    volume
}

fn steer(volume: &Volume) {
    volume.fs().set_steering(PolicyKind::Spread, &[]).expect("taken");
}

fn crash(volume: &mut Volume) {
    volume.crash();
    steer(volume);
}

fn sync(fs: &FileSystem, handle: HandleId) {
    fs.sync(&Caller::root(), handle, SyncKind::All).expect("synced");
}

fn open_again(fs: &FileSystem, name: &str) -> (Ino, HandleId) {
    let ino = find(fs, name).ino;
    (ino, fs.open(&Caller::root(), ino, common::read_write()).expect("opened"))
}

fn data(length: u64) -> Vec<u8> {
    pattern(3, usize::try_from(length).expect("small"))
}

#[test]
fn a_large_file_is_on_all_tiers_and_reads_as_it_was_written() {
    let mut volume = spread_volume(&[16 * MIB; 3]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = data(30 * RANGE + 1000);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    for tier in ["fast", "middle", "slow"] {
        let bytes = bytes_on(volume.fs(), ino, tier);
        assert!((8 * RANGE..=12 * RANGE).contains(&bytes), "{bytes} bytes on {tier}");
    }
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    close(volume.fs(), handle).expect("closed");
    volume.remount();
    assert!(read_whole(volume.fs(), ino).expect("read") == data, "after a clean stop");
    volume.unmount().expect("unmounted");
    assert_eq!(volume.findings(), [] as [String; 0]);
}

#[test]
fn a_small_file_and_any_file_of_another_policy_stays_on_one_tier() {
    let volume = spread_volume(&[16 * MIB; 2]);
    let (small, handle) = create(volume.fs(), "small");
    write_all(volume.fs(), handle, 0, &data(RANGE)).expect("written");
    assert_eq!(volume.fs().locate(small).expect("located").shares.len(), 1);
    volume.fs().set_steering(PolicyKind::HotCold, &[]).expect("taken");
    let (large, handle) = create(volume.fs(), "large");
    write_all(volume.fs(), handle, 0, &data(20 * RANGE)).expect("written");
    assert_eq!(volume.fs().locate(large).expect("located").shares.len(), 1);
    assert_eq!(volume.counter("spread_switches"), 0);
}

#[test]
fn growing_over_tiers_waits_for_no_sync() {
    let volume = spread_volume(&[16 * MIB; 2]);
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &data(40 * RANGE)).expect("written");
    assert!(volume.counter("spread_switches") >= 10);
    let syncs: u64 = (0..2).map(|tier| volume.memory(tier).counters().syncs).sum();
    assert_eq!((syncs, volume.counter("settles")), (0, 0));
}

#[test]
fn what_a_file_grew_by_is_on_record_after_the_flush_interval_and_not_at_once() {
    let volume = spread_volume(&[16 * MIB; 2]);
    for second in 0..20 {
        // Any time after the mount: only the time at which the file began to grow counts.
        volume.step();
        assert_eq!(volume.counter("spread_floors"), 0, "{second}");
    }
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &data(10 * RANGE)).expect("written");
    let floors: Vec<u64> = (0..6)
        .map(|_| {
            volume.step();
            volume.counter("spread_floors")
        })
        .collect();
    assert_eq!((floors[0], floors[2], floors[5]), (0, 0, 1), "{floors:?}");
}

/// Data that became durable on one tier only must not make holes.
#[test]
fn an_append_that_nobody_synced_is_a_prefix_whatever_became_durable_where() {
    for durable in [vec![], vec![0], vec![1], vec![0, 1]] {
        for flushes_log in [false, true] {
            let mut volume = spread_volume(&[16 * MIB; 2]);
            let (_, handle) = create(volume.fs(), "f");
            let data = data(10 * RANGE + 77);
            write_all(volume.fs(), handle, 0, &data[..300_000]).expect("written");
            sync(volume.fs(), handle);
            write_all(volume.fs(), handle, 300_000, &data[300_000..]).expect("written");
            if flushes_log {
                volume.flush_log();
            }
            for tier in &durable {
                volume.memory(*tier).sync_all().expect("synced");
            }
            crash(&mut volume);
            let (ino, handle) = open_again(volume.fs(), "f");
            let left = read_whole(volume.fs(), ino).expect("read");
            assert!(left.len() >= 300_000 && data.starts_with(&left), "{durable:?}: {} bytes are left", left.len());
            // None of the lost bytes come back where the file grows over them.
            let end = 12 * RANGE;
            write_all(volume.fs(), handle, end, b"end").expect("written");
            let read = read_whole(volume.fs(), ino).expect("read");
            let zeros = usize::try_from(end).expect("small") - left.len();
            let expected = [left.as_slice(), &vec![0; zeros], b"end"].concat();
            assert!(read == expected, "{durable:?}: old bytes show");
        }
    }
}

#[test]
fn what_was_synced_before_a_file_began_to_spread_survives() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    let (_, handle) = create(volume.fs(), "f");
    let data = data(10 * RANGE);
    write_all(volume.fs(), handle, 0, &data[..50_000]).expect("written");
    sync(volume.fs(), handle);
    write_all(volume.fs(), handle, 50_000, &data[50_000..]).expect("written");
    volume.flush_log();
    crash(&mut volume);
    let left = read_whole(volume.fs(), find(volume.fs(), "f").ino).expect("read");
    assert!(left.len() >= 50_000 && data.starts_with(&left), "{} bytes are left", left.len());
}

#[test]
fn a_sync_of_the_volume_counts_as_a_promise_too() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    let (_, handle) = create(volume.fs(), "f");
    let data = data(10 * RANGE);
    write_all(volume.fs(), handle, 0, &data[..50_000]).expect("written");
    volume.fs().sync_volume().expect("synced");
    write_all(volume.fs(), handle, 50_000, &data[50_000..400_000]).expect("written");
    volume.flush_log();
    volume.memory(1).sync_all().expect("synced");
    crash(&mut volume);
    let (_, handle) = open_again(volume.fs(), "f");
    let left = read_whole(volume.fs(), find(volume.fs(), "f").ino).expect("read");
    assert!(left.len() >= 50_000 && data.starts_with(&left), "{} bytes are left", left.len());
    write_all(volume.fs(), handle, 0, &data).expect("written");
    volume.fs().sync_volume().expect("synced");
    crash(&mut volume);
    assert!(read_whole(volume.fs(), find(volume.fs(), "f").ino).expect("read") == data);
}

#[test]
fn a_synced_file_is_there_after_a_crash_as_a_whole() {
    let mut volume = spread_volume(&[16 * MIB; 3]);
    let (_, handle) = create(volume.fs(), "f");
    let data = data(20 * RANGE + 5);
    for (index, chunk) in data.chunks(100_000).enumerate() {
        write_all(volume.fs(), handle, index as u64 * 100_000, chunk).expect("written");
        sync(volume.fs(), handle);
    }
    crash(&mut volume);
    assert!(read_whole(volume.fs(), find(volume.fs(), "f").ino).expect("read") == data);
}

#[test]
fn the_size_is_on_record_some_seconds_later_although_nobody_syncs() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = data(10 * RANGE);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    close(volume.fs(), handle).expect("closed");
    for _ in 0..8 {
        volume.step();
    }
    assert_eq!(volume.counter("spread_floors"), 1);
    crash(&mut volume);
    assert!(read_whole(volume.fs(), ino).expect("read") == data);
}

/// Threads that each write their part of one file leave holes, which they fill.
#[test]
fn parts_of_one_file_that_are_written_side_by_side_are_spread_and_read_zeros_until_then() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    let whole = data(32 * RANGE);
    let part = 8 * RANGE;
    let piece = |offset: u64| {
        let start = usize::try_from(offset).expect("small");
        &whole[start..start + 32 * 1024]
    };
    let mut written = vec![0; whole.len()];
    for step in 0..part / (32 * KIB) {
        for thread in [3, 0, 2, 1] {
            let offset = thread * part + step * 32 * KIB;
            write_all(volume.fs(), handle, offset, piece(offset)).expect("written");
            let start = usize::try_from(offset).expect("small");
            written[start..start + 32 * 1024].copy_from_slice(piece(offset));
        }
        let left = read_whole(volume.fs(), ino).expect("read");
        assert!(written.starts_with(&left), "after step {step}");
        if step == 8 {
            sync(volume.fs(), handle);
            assert!(volume.counter("spread_holes_filled") > 4);
        }
    }
    let relocations = volume.counter("relocations");
    assert_eq!(relocations, 0, "no part was written twice");
    for tier in ["fast", "slow"] {
        let bytes = bytes_on(volume.fs(), ino, tier);
        assert!((12 * RANGE..=20 * RANGE).contains(&bytes), "{bytes} bytes on {tier}");
    }
    sync(volume.fs(), handle);
    crash(&mut volume);
    assert!(read_whole(volume.fs(), ino).expect("read") == whole);
}

#[test]
fn whoever_must_not_wait_is_sent_away_where_a_range_begins_and_only_there() {
    let volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = data(3 * RANGE);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    let hasty = Caller { wait: Wait::Never, ..Caller::root() };
    let write = |offset, length| volume.fs().write(&hasty, handle, offset, &data[..length], WriteOrigin::Call);
    assert_eq!(errno(write(3 * RANGE, 4096)), Errno::EAGAIN);
    assert_eq!(volume.fs().attributes(&Caller::root(), ino).expect("known").size, 3 * RANGE);
    write_all(volume.fs(), handle, 3 * RANGE, &data[..4096]).expect("written");
    assert_eq!(write(3 * RANGE + 4096, 4096).expect("it goes on in the same range"), 4096);
    assert_eq!(errno(write(4 * RANGE - 4096, 8192)), Errno::EAGAIN, "the next range begins in it");
}

#[test]
fn a_spread_file_is_cut_punched_and_grows_again() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut expected = data(10 * RANGE);
    write_all(volume.fs(), handle, 0, &expected).expect("written");
    let change = SetAttributes { size: Some(300_001), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("cut");
    expected.truncate(300_001);
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
    volume.fs().allocate(&Caller::root(), handle, 50_000, 100_000, AllocateKind::PunchHole).expect("punched");
    expected[50_000..150_000].fill(0);
    let more = data(8 * RANGE);
    write_all(volume.fs(), handle, 300_001, &more).expect("written");
    expected.extend_from_slice(&more);
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
    sync(volume.fs(), handle);
    crash(&mut volume);
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}

#[test]
fn a_file_is_longer_than_any_tier_and_a_full_tier_ends_nothing() {
    let mut volume = spread_volume(&[6 * RANGE, 10 * RANGE, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = data(60 * RANGE);
    write_all(volume.fs(), handle, 0, &data).expect("there is room");
    assert!(read_whole(volume.fs(), ino).expect("read") == data);
    for tier in ["fast", "middle"] {
        assert!(bytes_on(volume.fs(), ino, tier) >= 4 * RANGE, "nothing on {tier}");
    }
    sync(volume.fs(), handle);
    crash(&mut volume);
    assert!(read_whole(volume.fs(), ino).expect("read") == data);
}

#[test]
fn a_spread_file_moves_while_it_grows() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut expected = data(10 * RANGE);
    write_all(volume.fs(), handle, 0, &expected).expect("written");
    volume.fs().migrate(ino, "slow", None).expect("asked for");
    for round in 0..20 {
        volume.fs().move_step();
        let more = pattern(round, 20_000);
        write_all(volume.fs(), handle, expected.len() as u64, &more).expect("written");
        expected.extend_from_slice(&more);
    }
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
    volume.drain();
    sync(volume.fs(), handle);
    assert_eq!(read_at(volume.fs(), handle, 0, 5).expect("read"), expected[..5]);
    crash(&mut volume);
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
}

/// Until the record without the size authority is durable, a crash leaves one that asks the size authority how long the file is.
#[test]
fn a_crash_before_the_first_switch_is_durable_leaves_a_prefix() {
    for (transactions, synced) in (0..12).flat_map(|transactions| [(transactions, 0), (transactions, 40_000)]) {
        for durable in [vec![0], vec![1], vec![0, 1]] {
            let mut volume = spread_volume(&[16 * MIB; 2]);
            let (_, handle) = create(volume.fs(), "f");
            let data = data(10 * RANGE + 77);
            if synced > 0 {
                write_all(volume.fs(), handle, 0, &data[..synced]).expect("written");
                sync(volume.fs(), handle);
            }
            write_all(volume.fs(), handle, synced as u64, &data[synced..]).expect("written");
            for tier in &durable {
                volume.memory(*tier).sync_all().expect("synced");
            }
            volume.crash_keeping_transactions(transactions);
            let found = volume.fs().lookup(&Caller::root(), Ino::ROOT, b"f");
            let Ok(found) = found else { continue };
            let left = read_whole(volume.fs(), found.ino).expect("read");
            let what = format!("{transactions} transactions, {durable:?}, {synced} synced: {} bytes", left.len());
            assert!(left.len() >= synced && data.starts_with(&left), "{what}");
        }
    }
}

#[test]
fn a_file_that_is_cut_in_what_was_left_out_grows_again() {
    for syncs in [false, true] {
        for end in [3 * RANGE + 5, 3 * RANGE] {
            let mut volume = spread_volume(&[16 * MIB; 2]);
            let (ino, handle) = create(volume.fs(), "f");
            let start = data(RANGE);
            write_all(volume.fs(), handle, 0, &start).expect("written");
            write_all(volume.fs(), handle, 8 * RANGE, &data(4 * RANGE)).expect("written");
            assert_eq!(volume.fs().locate(ino).expect("located").shares.len(), 2);
            if syncs {
                sync(volume.fs(), handle);
            }
            let resize = |size| {
                let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
                volume.fs().set_attributes(&Caller::root(), ino, &change).map(drop)
            };
            resize(end).expect("cut");
            resize(5 * RANGE).expect("longer again");
            write_all(volume.fs(), handle, 6 * RANGE, &start).expect("written");
            let mut expected = start.clone();
            expected.resize(usize::try_from(6 * RANGE).expect("small"), 0);
            expected.extend(&start);
            assert!(read_whole(volume.fs(), ino).expect("read") == expected);
            sync(volume.fs(), handle);
            crash(&mut volume);
            assert!(read_whole(volume.fs(), ino).expect("read") == expected);
        }
    }
}

#[test]
fn what_was_reserved_for_a_file_is_used_by_it() {
    let volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    volume.fs().allocate(&Caller::root(), handle, 0, 10 * RANGE, AllocateKind::KeepSize).expect("reserved");
    let home = volume.fs().locate(ino).expect("located").home.expect("it has a home");
    write_all(volume.fs(), handle, 0, &data(10 * RANGE)).expect("written");
    assert_eq!(bytes_on(volume.fs(), ino, &home), 10 * RANGE);
    write_all(volume.fs(), handle, 10 * RANGE, &data(10 * RANGE)).expect("written");
    assert!(bytes_on(volume.fs(), ino, &home) < 20 * RANGE, "it is spread behind that");
}

/// Ranges that one file with one object left out are holes in memory only.
#[test]
fn a_file_with_one_object_has_no_extents_on_record() {
    for syncs in [false, true] {
        let mut volume = spread_volume(&[16 * MIB]);
        let (ino, handle) = create(volume.fs(), "f");
        let start = data(RANGE);
        write_all(volume.fs(), handle, 0, &start).expect("written");
        write_all(volume.fs(), handle, 4 * RANGE, &start).expect("written");
        if syncs {
            sync(volume.fs(), handle);
        }
        assert_eq!(volume.fs().locate(ino).expect("located").extent_records, 0);
        volume.flush_log();
        crash(&mut volume);
        let report = polymux_fs::check_records(&*volume.store()).expect("checked");
        assert_eq!(report.violations, []);
        let left = read_whole(volume.fs(), ino).expect("read");
        assert_eq!(!left.is_empty(), syncs);
        assert!(left.is_empty() || left[..start.len()] == start && left[4 * start.len()..] == start);
    }
}

/// A volume on tiers that preallocate space, and the tiers.
fn volume_that_takes_ahead() -> (Volume, Vec<Arc<FaultyTier>>) {
    let tiers = RefCell::new(Vec::new());
    let mut volume = Volume::wrapping(&[64 * MIB; 2], |_, _| -> Arc<dyn Tier> {
        let memory = MemoryTier::new("takes ahead", 64 * MIB).with_capabilities(|can| can.allocates_ahead = true);
        let tier = Arc::new(FaultyTier::new(Arc::new(memory)));
        tiers.borrow_mut().push(Arc::clone(&tier));
        tier
    });
    volume.options = MountOptions { spread_range_bytes: 256 << 10, inline_size_max: 0, ..volume.options };
    volume.remount();
    steer(&volume);
    (volume, tiers.into_inner())
}

#[test]
fn room_is_asked_for_a_few_times_and_no_more_of_it_than_is_written() {
    let (volume, tiers) = volume_that_takes_ahead();
    let (ino, handle) = create(volume.fs(), "f");
    let content = data(4 * MIB);
    for (place, block) in (0..).zip(content.chunks(4096)) {
        write_all(volume.fs(), handle, place * 4096, block).expect("written");
    }
    let sum = |count: fn(&FaultyTier) -> u64| tiers.iter().map(|tier| count(tier)).sum::<u64>();
    assert_eq!(used(&tiers), 4 * MIB);
    // Each range is asked for in three steps: 64, 128 and 256 KiB. The first one is not placed.
    let allocates = sum(|tier| tier.counters().allocates);
    assert!((15..=45).contains(&allocates), "{allocates} for 1024 writes");
    assert_eq!(sum(|tier| tier.counters().punches), 1, "where it gave up its extender");
    assert!(read_whole(volume.fs(), ino).expect("read") == content);
}

#[test]
fn room_that_is_refused_fails_no_write() {
    let broken = TierError::Io { operation: "reserving room", errno: Errno::EIO };
    for error in [TierError::NoSpace, TierError::Unsupported("reserving room"), broken] {
        let (volume, tiers) = volume_that_takes_ahead();
        let (ino, handle) = create(volume.fs(), "f");
        let content = data(4 * MIB + 1000);
        for kind in [OperationKind::Allocate, OperationKind::Punch] {
            tiers.iter().for_each(|tier| tier.fail_always(kind, error.clone()));
        }
        write_all(volume.fs(), handle, 0, &content).expect("written");
        sync(volume.fs(), handle);
        assert!(read_whole(volume.fs(), ino).expect("read") == content, "{error}");
    }
}

/// A volume that preallocates, with a file `f` of a mebibyte, after a crash while preallocated space had no data. Returns the content of
/// `f`, too.
fn crashed_with_room() -> (Volume, Vec<Arc<FaultyTier>>, Vec<u8>) {
    let (mut volume, tiers) = volume_that_takes_ahead();
    let (_, handle) = create(volume.fs(), "f");
    let content = data(MIB);
    write_all(volume.fs(), handle, 0, &content).expect("written");
    sync(volume.fs(), handle);
    assert_eq!(used(&tiers), MIB);
    for tier in &tiers {
        tier.fail_always(OperationKind::Write, TierError::Io { operation: "writing", errno: Errno::EIO });
    }
    write_all(volume.fs(), handle, MIB, &content[..1000]).expect_err("no tier takes it");
    assert!(used(&tiers) > MIB, "room was asked for");
    tiers.iter().for_each(|tier| tier.heal());
    crash(&mut volume);
    (volume, tiers, content)
}

/// Bytes that all of them hold.
fn used(tiers: &[Arc<FaultyTier>]) -> u64 {
    tiers.iter().map(|tier| tier.space().expect("answered").used).sum()
}

#[test]
fn room_that_growth_had_asked_for_is_given_back_after_a_crash() {
    let (volume, tiers, content) = crashed_with_room();
    let (ino, _) = open_again(volume.fs(), "f");
    assert!(read_whole(volume.fs(), ino).expect("read") == content);
    assert_eq!(used(&tiers), MIB);
}

#[test]
fn a_device_that_fails_syncs_keeps_nobody_from_reading_after_a_crash() {
    let (volume, tiers, content) = crashed_with_room();
    for tier in &tiers {
        tier.fail_always(OperationKind::Sync, TierError::Io { operation: "syncing", errno: Errno::EIO });
    }
    let (ino, _) = open_again(volume.fs(), "f");
    assert!(read_whole(volume.fs(), ino).expect("read") == content);
    tiers.iter().for_each(|tier| tier.heal());
}

#[test]
fn room_that_a_program_reserved_is_there_after_a_crash() {
    let (mut volume, tiers) = volume_that_takes_ahead();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &data(MIB)).expect("written");
    let reserved = volume.fs().allocate(&Caller::root(), handle, MIB, 2 * MIB, AllocateKind::KeepSize);
    reserved.expect("reserved");
    sync(volume.fs(), handle);
    let before = used(&tiers);
    assert!(before >= 3 * MIB, "{before}");
    crash(&mut volume);
    assert_eq!(read_whole(volume.fs(), ino).expect("read").len() as u64, MIB);
    assert_eq!(used(&tiers), before);
}

#[test]
fn a_file_that_is_moved_as_a_whole_gets_no_room_ahead_and_parts_of_one_do() {
    let (volume, tiers) = volume_that_takes_ahead();
    volume.fs().set_steering(PolicyKind::Static, &[]).expect("taken");
    let (ino, handle) = create(volume.fs(), "f");
    // More than a mover takes at once.
    let content = data(45 * MIB);
    write_all(volume.fs(), handle, 0, &content).expect("written");
    sync(volume.fs(), handle);
    let allocates = |tier: usize| tiers[tier].counters().allocates;
    let moved = |to: &str, range: Option<std::ops::Range<u64>>| {
        volume.fs().migrate(ino, to, range).expect("taken");
        while volume.fs().move_step() == polymux_fs::Progress::Worked {}
    };
    moved("slow", None);
    assert_eq!((bytes_on(volume.fs(), ino, "slow"), allocates(1)), (45 * MIB, 0));
    moved("fast", Some(20 * MIB..24 * MIB));
    assert_eq!(bytes_on(volume.fs(), ino, "fast"), 4 * MIB);
    assert!(allocates(0) > 0);
    assert!(read_whole(volume.fs(), ino).expect("read") == content);
}
