//! Placement of new data and spill: the fastest tier with space first, then the next, by block, and never an error while
//! any tier has space.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{
    Full, Hook, HookedTier, PosixVolume, Verdict, Volume, bytes_on, close, create, errno, find, pattern, read_at,
    read_only, read_whole, write_all,
};
use polymux_fs::{AllocateKind, Caller, FileSystem, HandleId, SetAttributes, SyncKind, Wait, WriteOrigin};
use polymux_tier::{ObjectRef, Tier, TierError};
use polymux_types::limits::RANGE_NODE_SIZE;
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn truncate(fs: &FileSystem, ino: Ino, size: u64) {
    let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
    fs.set_attributes(&Caller::root(), ino, &change).expect("truncated");
}

fn unlink(fs: &FileSystem, name: &str) {
    fs.unlink(&Caller::root(), Ino::ROOT, name.as_bytes()).expect("unlinked");
}

fn sync(fs: &FileSystem, handle: HandleId) {
    fs.sync(&Caller::root(), handle, SyncKind::All).expect("synced");
}

#[test]
fn new_data_goes_to_the_fastest_tier() {
    let volume = Volume::new(&[256 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    assert_eq!(volume.fs().locate(ino).expect("located").home, None, "an empty file is nowhere");
    write_all(volume.fs(), handle, 0, &pattern(1, 40_000)).expect("written");
    let location = volume.fs().locate(ino).expect("located");
    assert_eq!(location.home.as_deref(), Some("fast"));
    assert_eq!((location.shares.len(), location.extent_records), (1, 0));
    assert_eq!(location.path.as_deref(), Some(b"f".as_slice()));
    assert_eq!((volume.used(0), volume.used(1)), (40_960, 0));
}

#[test]
fn a_write_beyond_the_room_of_every_tier_is_split_by_block() {
    let mut volume = Volume::new(&[64 * KIB, 160 * KIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(3, 200_000);
    let written = volume.fs().write(&Caller::root(), handle, 0, &data, WriteOrigin::Call).expect("written");
    assert_eq!(written, data.len(), "a write is short only when no tier has room");
    assert!(volume.used(0) > 32 * KIB, "the fast tier is used: {} bytes", volume.used(0));
    assert_eq!(bytes_on(volume.fs(), ino, "fast") + bytes_on(volume.fs(), ino, "slow"), 200_000);
    assert!(bytes_on(volume.fs(), ino, "slow") >= 200_000 - 64 * KIB);
    assert_eq!(bytes_on(volume.fs(), ino, "fast") % 4096, 0, "the seam lies between blocks");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    close(volume.fs(), handle).expect("closed");
    volume.remount();
    assert_eq!(find(volume.fs(), "f").ino, ino, "the inode number is stable");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    assert_eq!(find(volume.fs(), "f").blocks, (volume.used(0) + volume.used(1)) / 512, "blocks are the sum");
}

#[test]
fn a_growing_file_moves_on_through_all_tiers() {
    let mut volume = Volume::new(&[64 * KIB, 128 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(5, 400_000);
    for (index, chunk) in data.chunks(1000).enumerate() {
        write_all(volume.fs(), handle, index as u64 * 1000, chunk).expect("written");
    }
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    for tier in ["fast", "middle", "slow"] {
        assert!(bytes_on(volume.fs(), ino, tier) > 0, "nothing on {tier}");
    }
    sync(volume.fs(), handle);
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
}

#[test]
fn a_write_that_may_not_wait_is_done_as_a_whole_or_not_at_all() {
    let volume = Volume::new(&[64 * KIB, 128 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut expected = pattern(5, 400_000);
    write_all(volume.fs(), handle, 0, &expected).expect("written");
    let hasty = Caller { wait: Wait::Never, ..Caller::root() };
    let (mut done, mut refused) = (0, 0);
    for index in 0..87_u8 {
        let (offset, data) = (u64::from(index) * 4096, pattern(index, 40_960));
        match volume.fs().write(&hasty, handle, offset, &data, WriteOrigin::Call) {
            Ok(count) => {
                assert_eq!(count, data.len(), "at {offset}");
                let start = usize::try_from(offset).expect("small");
                expected[start..start + count].copy_from_slice(&data);
                done += 1;
            }
            Err(error) => {
                assert_eq!(error.errno(), Errno::EAGAIN);
                refused += 1;
            }
        }
        assert!(read_whole(volume.fs(), ino).expect("read") == expected, "at {offset}");
    }
    assert!(done > 0 && refused > 0, "{done} writes were done, {refused} refused");
}

#[test]
fn whoever_must_not_wait_is_not_told_the_room_of_an_open_file_that_a_tier_would_have_to_be_asked_for() {
    let volume = Volume::new(&[64 * KIB, 128 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(5, 100_000)).expect("written");
    let hasty = Caller { wait: Wait::Never, ..Caller::root() };
    assert_eq!(errno(volume.fs().attributes(&hasty, ino)), Errno::EAGAIN);
    let blocks = volume.fs().attributes(&Caller::root(), ino).expect("answered").blocks;
    assert_eq!(volume.fs().attributes(&hasty, ino).expect("it is known now").blocks, blocks);
}

#[test]
fn writing_goes_on_until_every_tier_is_full_and_deleting_brings_all_room_back() {
    let volume = Volume::new(&[256 * KIB, 512 * KIB, MIB]);
    let before = volume.fs().space().expect("answered");
    let (mut written, mut names) = (0, Vec::new());
    let chunk = pattern(7, 40_000);
    'filling: loop {
        let name = format!("f{}", names.len());
        let (_, handle) = create(volume.fs(), &name);
        names.push(name);
        for index in 0..8 {
            match volume.fs().write(&Caller::root(), handle, index * 40_000, &chunk, WriteOrigin::Call) {
                Ok(count) => written += count as u64,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ENOSPC);
                    close(volume.fs(), handle).expect("closed");
                    break 'filling;
                }
            }
        }
        close(volume.fs(), handle).expect("closed");
        assert!(written < 4 * MIB, "more was written than there is room");
    }
    for index in 0..3 {
        let space = volume.memory(index).space().expect("answered");
        assert!(space.free < 8 * KIB, "tier {index} has {} bytes left", space.free);
    }
    assert!(written.abs_diff(before.available) * 50 <= before.available, "{written} of {}", before.available);
    assert!(volume.fs().space().expect("answered").available < 32 * KIB);
    for (index, name) in names.iter().enumerate() {
        let content = read_whole(volume.fs(), find(volume.fs(), name).ino).expect("read");
        assert!(content.chunks(40_000).all(|read| chunk.starts_with(read)), "file {index}");
        unlink(volume.fs(), name);
    }
    volume.drain();
    assert_eq!([volume.used(0), volume.used(1), volume.used(2)], [0; 3]);
    assert_eq!(volume.fs().space().expect("answered").available, before.available);
}

/// Removing an object takes until it is let go on.
#[derive(Default)]
struct SlowRemoval {
    is_removing: AtomicBool,
    may_end: AtomicBool,
}

impl Hook for SlowRemoval {
    fn before_remove(&self, _object: ObjectRef) {
        self.is_removing.store(true, Ordering::SeqCst);
        while !self.may_end.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_file_takes_the_room_of_a_deleted_one_at_once_where_it_lies_already() {
    let volume = Volume::new(&[8 * MIB]);
    let fs = volume.fs();
    for reserves in [false, true] {
        let (_, old) = create(fs, "old");
        write_all(fs, old, 0, &pattern(1, 4 << 20)).expect("written");
        let (ino, handle) = create(fs, "new");
        write_all(fs, handle, 0, &pattern(2, 2 << 20)).expect("written");
        close(fs, old).expect("closed");
        unlink(fs, "old");
        if reserves {
            fs.allocate(&Caller::root(), handle, 2 * MIB, 3 * MIB, AllocateKind::Extend).expect("there is room");
        }
        write_all(fs, handle, 2 * MIB, &pattern(3, 3 << 20)).expect("there is room");
        assert_eq!(bytes_on(fs, ino, "fast"), 5 * MIB);
        close(fs, handle).expect("closed");
        unlink(fs, "new");
    }
}

/// Runs `action` on a new file, for which there is space as soon as a deleted one is freed, while that goes on.
fn while_room_is_being_freed(action: impl Fn(&FileSystem, HandleId) -> polymux_fs::Result<()> + Sync) -> Volume {
    let removal = Arc::new(SlowRemoval::default());
    let hook = Arc::clone(&removal);
    let volume = Volume::wrapping(&[8 * MIB], move |_, tier| Arc::new(HookedTier::new(tier, Arc::clone(&hook) as _)));
    let (_, handle) = create(volume.fs(), "old");
    write_all(volume.fs(), handle, 0, &pattern(1, 6 << 20)).expect("written");
    close(volume.fs(), handle).expect("closed");
    unlink(volume.fs(), "old");
    let (_, handle) = create(volume.fs(), "new");
    std::thread::scope(|scope| {
        let background = scope.spawn(|| {
            while !removal.may_end.load(Ordering::SeqCst) {
                volume.fs().step();
            }
        });
        while !removal.is_removing.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let writer = scope.spawn(|| action(volume.fs(), handle));
        // Long enough for a writer that does not wait to be refused.
        std::thread::sleep(Duration::from_millis(100));
        removal.may_end.store(true, Ordering::SeqCst);
        writer.join().expect("no panic").expect("there is room");
        background.join().expect("no panic");
    });
    volume
}

#[test]
fn a_write_waits_for_the_room_of_a_deleted_file_that_is_just_being_freed() {
    let volume = while_room_is_being_freed(|fs, handle| write_all(fs, handle, 0, &pattern(2, 6 << 20)));
    assert_eq!(read_whole(volume.fs(), find(volume.fs(), "new").ino).expect("read"), pattern(2, 6 << 20));
}

#[test]
fn reserving_waits_for_the_room_of_a_deleted_file_that_is_just_being_freed() {
    for kind in [AllocateKind::Extend, AllocateKind::KeepSize] {
        while_room_is_being_freed(|fs, handle| fs.allocate(&Caller::root(), handle, 0, 6 * MIB, kind));
    }
}

#[test]
fn a_hole_takes_no_room_and_reads_as_zeros() {
    let volume = Volume::new(&[64 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 100 * MIB, b"far").expect("written");
    write_all(volume.fs(), handle, 50 * MIB + 1, b"near").expect("written");
    assert!(volume.used(0) + volume.used(1) <= 8 * KIB);
    assert_eq!(volume.fs().attributes(&Caller::root(), ino).expect("known").size, 100 * MIB + 3);
    assert_eq!(read_at(volume.fs(), handle, 50 * MIB, 6).expect("read"), b"\0near\0");
    assert_eq!(read_at(volume.fs(), handle, 100 * MIB - 2, 100).expect("read"), b"\0\0far");
    assert_eq!(read_at(volume.fs(), handle, 3 * MIB, 5000).expect("read"), vec![0; 5000]);
}

#[test]
fn a_split_file_shrinks_and_grows_again_without_showing_old_bytes() {
    let mut volume = Volume::new(&[64 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(9, 200_000);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    truncate(volume.fs(), ino, 30_001);
    truncate(volume.fs(), ino, 180_000);
    let mut expected = data[..30_001].to_vec();
    expected.resize(180_000, 0);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), expected);
    let more = pattern(11, 50_000);
    write_all(volume.fs(), handle, 120_000, &more).expect("written");
    expected[120_000..170_000].copy_from_slice(&more);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), expected);
    close(volume.fs(), handle).expect("closed");
    volume.remount();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), expected);
    truncate(volume.fs(), ino, 0);
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}

#[test]
fn punching_a_hole_across_tiers_frees_blocks_on_both() {
    let volume = Volume::new(&[64 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(13, 200_000);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    let used = (volume.used(0), volume.used(1));
    let punch = |offset, length| volume.fs().allocate(&Caller::root(), handle, offset, length, AllocateKind::PunchHole);
    punch(5000, 120_000).expect("punched");
    data[5000..125_000].fill(0);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    volume.drain();
    assert!(volume.used(0) < used.0 && volume.used(1) < used.1);
}

#[test]
fn reserving_more_than_a_tier_has_takes_the_rest_from_the_next() {
    let volume = Volume::new(&[64 * KIB, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, b"begin").expect("written");
    volume.fs().allocate(&Caller::root(), handle, 0, 300_000, AllocateKind::Extend).expect("there is room");
    let content = read_whole(volume.fs(), ino).expect("read");
    assert_eq!((content.len(), &content[..6]), (300_000, b"begin\0".as_slice()));
    assert!(volume.used(0) + volume.used(1) >= 300_000, "the room is taken");
    let too_much = volume.fs().allocate(&Caller::root(), handle, 0, 64 * MIB, AllocateKind::Extend);
    assert_eq!(errno(too_much), Errno::ENOSPC);
}

#[test]
fn zeroing_a_range_for_which_there_is_no_room_leaves_every_byte() {
    for kind in [AllocateKind::ZeroRange, AllocateKind::ZeroRangeKeepSize] {
        let volume = Volume::new(&[64 * KIB, 512 * KIB]);
        let (ino, handle) = create(volume.fs(), "f");
        let mut data = pattern(14, 20_000);
        write_all(volume.fs(), handle, 0, &data).expect("written");
        // A hole that does not fit on all tiers together.
        truncate(volume.fs(), ino, MIB);
        data.resize(usize::try_from(MIB).expect("small"), 0);
        let zero = |offset, length| volume.fs().allocate(&Caller::root(), handle, offset, length, kind);
        assert_eq!(errno(zero(1000, 64 * MIB)), Errno::ENOSPC, "{kind:?} beyond the end");
        assert!(read_whole(volume.fs(), ino).expect("read") == data, "{kind:?} beyond the end: bytes changed");
        assert_eq!(errno(zero(1000, MIB - 1000)), Errno::ENOSPC, "{kind:?} of a hole");
        assert!(read_whole(volume.fs(), ino).expect("read") == data, "{kind:?} of a hole: bytes changed");
        zero(1000, 100_000).expect("there is room");
        data[1000..101_000].fill(0);
        assert!(read_whole(volume.fs(), ino).expect("read") == data, "{kind:?} with room");
    }
}

#[test]
fn the_reserve_of_a_tier_stays_free() {
    let mut volume = Volume::new(&[256 * KIB, 16 * MIB]);
    volume.set_reserve(0, 128 * KIB);
    volume.remount();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(15, 400_000)).expect("written");
    assert!(volume.used(0) <= 128 * KIB, "{} bytes on the fast tier", volume.used(0));
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(15, 400_000));
}

#[test]
fn an_overwrite_that_its_tier_has_no_room_for_moves_the_blocks() {
    let full = Arc::new(Full::default());
    let mut volume = Volume::wrapping(&[MIB, 16 * MIB], |index, tier| -> Arc<dyn Tier> {
        if index == 0 { Arc::new(HookedTier::new(tier, Arc::clone(&full) as _)) } else { tier }
    });
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(17, 100_000);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    full.0.store(true, Ordering::Relaxed);
    // Inside, unaligned at both ends; then the last block; then beyond the end.
    for (seed, offset, length) in [(19, 10_001, 9000), (21, 99_000, 1000), (23, 99_500, 20_000)] {
        let change = pattern(seed, length);
        write_all(volume.fs(), handle, offset as u64, &change).expect("there is room elsewhere");
        data.resize(data.len().max(offset + length), 0);
        data[offset..offset + length].copy_from_slice(&change);
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), data, "after the write at {offset}");
    }
    assert!(bytes_on(volume.fs(), ino, "slow") >= 30_000);
    assert!(bytes_on(volume.fs(), ino, "fast") >= 80_000, "what was not written stays");
    volume.drain();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data, "after the old copies were freed");
    sync(volume.fs(), handle);
    full.0.store(false, Ordering::Relaxed);
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    write_all(volume.fs(), volume.fs().open(&Caller::root(), ino, common::read_write()).expect("opened"), 0, &data)
        .expect("written");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
}

#[test]
fn a_file_of_ten_gib_on_one_tier_has_no_extent_records() {
    let volume = PosixVolume::new(&[None, None]);
    let fs = volume.fs();
    let (ino, handle) = create(fs, "f");
    let stamp = |offset: u64| [offset.to_le_bytes(); 512].concat();
    let offsets: Vec<u64> = (0..=40).map(|step| step * (256 * MIB - 4096) / 4096 * 4096).collect();
    for offset in &offsets {
        write_all(fs, handle, *offset, &stamp(*offset)).expect("written");
    }
    truncate(fs, ino, 10 << 30);
    let location = fs.locate(ino).expect("located");
    assert_eq!((location.size, location.extent_records), (10 << 30, 0));
    assert_eq!(location.shares.len(), 1);
    for offset in &offsets {
        assert_eq!(read_at(fs, handle, *offset, 4096).expect("read"), stamp(*offset));
    }
    assert_eq!(read_at(fs, handle, (10 << 30) - 5, 100).expect("read"), [0; 5]);
    assert!(fs.attributes(&Caller::root(), ino).expect("known").blocks < 64 * 1024 * 2, "it is sparse below, too");
}

/// Refuses writes that begin in every other 2 MiB.
struct RefusesEveryOther {
    parity: u64,
}

impl Hook for RefusesEveryOther {
    fn before_write(&self, _object: ObjectRef, offset: u64, _length: usize) -> Verdict {
        if offset / RANGE_NODE_SIZE % 2 == self.parity { Verdict::Fail(TierError::NoSpace) } else { Verdict::Pass }
    }
}

#[test]
fn the_map_of_a_file_split_every_two_mib_costs_at_most_a_four_thousandth_of_it() {
    const NODES: u64 = 24;
    let mut volume = Volume::wrapping(&[256 * MIB, 256 * MIB], |index, tier| -> Arc<dyn Tier> {
        Arc::new(HookedTier::new(tier, Arc::new(RefusesEveryOther { parity: 1 - index as u64 })))
    });
    let (ino, handle) = create(volume.fs(), "f");
    sync(volume.fs(), handle);
    let before = volume.fs().status().expect("answered").metadata_bytes;
    let data = pattern(25, usize::try_from(RANGE_NODE_SIZE / 2).expect("it fits"));
    for half in 0..2 * NODES {
        write_all(volume.fs(), handle, half * RANGE_NODE_SIZE / 2, &data).expect("written");
    }
    sync(volume.fs(), handle);
    let location = volume.fs().locate(ino).expect("located");
    assert_eq!(location.extents.len() as u64, NODES, "it is split every two MiB");
    assert!(location.extent_records <= NODES, "{} records", location.extent_records);
    let cost = volume.fs().status().expect("answered").metadata_bytes - before;
    assert!(cost * 4000 <= NODES * RANGE_NODE_SIZE, "{cost} bytes of metadata");
    volume.crash();
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    for half in 0..2 * NODES {
        let read = read_at(volume.fs(), handle, half * RANGE_NODE_SIZE / 2, data.len()).expect("read");
        assert!(read == data, "half {half}");
    }
}
