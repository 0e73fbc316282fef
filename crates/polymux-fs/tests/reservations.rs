//! Space that programs reserve (`fallocate`): that writers find it on a full volume, where it lies for files whose growth is spread, and
//! how much of it remains after a crash and on full tiers.

mod common;

use std::sync::Arc;

use common::{Volume, bytes_on, close, create, find, pattern, read_whole, write_all};
use polymux_fs::{
    AllocateKind, Caller, FileSystem, HandleId, JobState, MountOptions, PolicyKind, SaturationSource, SetAttributes,
    SyncKind,
};
use polymux_sim::{FaultyTier, OperationKind};
use polymux_tier::{Tier, TierError};
use polymux_types::Errno;

const MIB: u64 = 1 << 20;
/// Of these volumes.
const RANGE: u64 = 64 << 10;

fn volume_of(mut volume: Volume, policy: PolicyKind) -> Volume {
    volume.options = MountOptions {
        spread_range_bytes: 64 << 10,
        inline_size_max: 0,
        saturation: SaturationSource::Assumed,
        ..volume.options
    };
    volume.remount();
    volume.fs().set_steering(policy, &[]).expect("taken");
    volume
}

fn spread_volume(capacities: &[u64]) -> Volume {
    volume_of(Volume::new(capacities), PolicyKind::Spread)
}

fn reserve(fs: &FileSystem, handle: HandleId, offset: u64, length: u64) -> polymux_fs::Result<()> {
    fs.allocate(&Caller::root(), handle, offset, length, AllocateKind::Extend)
}

fn data(length: u64) -> Vec<u8> {
    pattern(3, usize::try_from(length).expect("small"))
}

/// Leaves no free space on any tier.
fn fill_up(volume: &Volume) {
    let (_, handle) = create(volume.fs(), "filler");
    let chunk = data(RANGE / 4);
    let mut offset = 0;
    while write_all(volume.fs(), handle, offset, &chunk).is_ok() {
        offset += chunk.len() as u64;
    }
}

#[test]
fn reserved_room_is_divided_among_the_tiers_and_reads_as_zeros() {
    let mut volume = spread_volume(&[16 * MIB; 3]);
    let (ino, handle) = create(volume.fs(), "f");
    reserve(volume.fs(), handle, 0, 30 * RANGE + 1000).expect("reserved");
    for tier in ["fast", "middle", "slow"] {
        let bytes = bytes_on(volume.fs(), ino, tier);
        assert!((8 * RANGE..=12 * RANGE).contains(&bytes), "{bytes} bytes on {tier}");
    }
    assert!((0..3).all(|tier| volume.used(tier) >= 8 * RANGE), "room is taken where it will be written");
    let zeros = vec![0; usize::try_from(30 * RANGE + 1000).expect("small")];
    assert!(read_whole(volume.fs(), ino).expect("read") == zeros);
    close(volume.fs(), handle).expect("closed");
    volume.remount();
    assert!(read_whole(volume.fs(), ino).expect("read") == zeros, "after a clean stop");
    volume.unmount().expect("unmounted");
    assert_eq!(volume.findings(), [] as [String; 0]);
}

#[test]
fn a_write_into_reserved_room_finds_it_when_nothing_else_is_left() {
    for policy in [PolicyKind::HotCold, PolicyKind::Spread] {
        let mut volume = volume_of(Volume::new(&[4 * MIB, 6 * MIB]), policy);
        let (ino, handle) = create(volume.fs(), "f");
        reserve(volume.fs(), handle, 0, 40 * RANGE).expect("reserved");
        fill_up(&volume);
        let before = (0..2).map(|tier| volume.used(tier)).collect::<Vec<_>>();
        let content = data(40 * RANGE);
        write_all(volume.fs(), handle, 0, &content).expect("there is room for every byte");
        assert_eq!((0..2).map(|tier| volume.used(tier)).collect::<Vec<_>>(), before, "{policy:?}");
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        volume.crash();
        assert!(read_whole(volume.fs(), ino).expect("read") == content, "{policy:?}");
    }
}

#[test]
fn room_that_was_reserved_and_not_written_is_reserved_where_the_file_moves() {
    let volume = volume_of(Volume::new(&[8 * MIB, 12 * MIB]), PolicyKind::HotCold);
    let (ino, handle) = create(volume.fs(), "f");
    reserve(volume.fs(), handle, 0, 40 * RANGE).expect("reserved");
    write_all(volume.fs(), handle, 7 * RANGE, &data(3 * RANGE)).expect("written");
    let hole = volume.fs().allocate(&Caller::root(), handle, 20 * RANGE, 5 * RANGE, AllocateKind::PunchHole);
    hole.expect("punched");
    let job = volume.fs().migrate(ino, "slow", None).expect("accepted");
    while volume.fs().job(job).expect("known").state != JobState::Done {
        volume.step();
        volume.fs().move_step();
    }
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 35 * RANGE), "what was punched stays a hole");
    fill_up(&volume);
    let content = data(20 * RANGE);
    write_all(volume.fs(), handle, 0, &content).expect("there is room for every byte");
    assert!(read_whole(volume.fs(), ino).expect("read").starts_with(&content));
}

#[test]
fn a_file_that_has_bytes_is_reserved_on_from_its_end_and_grows_on_behind_it() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    let mut expected = data(3 * RANGE + 77);
    write_all(volume.fs(), handle, 0, &expected).expect("written");
    reserve(volume.fs(), handle, 10, 20 * RANGE).expect("reserved");
    expected.resize(usize::try_from(20 * RANGE + 10).expect("small"), 0);
    let more = data(9 * RANGE);
    write_all(volume.fs(), handle, 20 * RANGE + 10, &more).expect("appended");
    expected.extend_from_slice(&more);
    write_all(volume.fs(), handle, 7 * RANGE - 5, &more).expect("written in the middle");
    let at = usize::try_from(7 * RANGE - 5).expect("small");
    expected[at..at + more.len()].copy_from_slice(&more);
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    volume.crash();
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
    let cut = SetAttributes { size: Some(5 * RANGE), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &cut).expect("cut");
    volume.drain();
    assert!(volume.used(0) + volume.used(1) <= 6 * RANGE, "what was reserved behind is free");
}

#[test]
fn a_reservation_that_was_not_synced_leaves_no_trace_after_a_crash() {
    for flushes_log in [false, true] {
        let mut volume = spread_volume(&[16 * MIB; 2]);
        let (_, handle) = create(volume.fs(), "f");
        let content = data(2 * RANGE);
        write_all(volume.fs(), handle, 0, &content).expect("written");
        volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
        reserve(volume.fs(), handle, 2 * RANGE, 20 * RANGE).expect("reserved");
        if flushes_log {
            volume.flush_log();
        }
        (0..2).for_each(|tier| volume.memory(tier).sync_all().expect("synced"));
        volume.crash();
        let ino = find(volume.fs(), "f").ino;
        assert!(read_whole(volume.fs(), ino).expect("read") == content, "{flushes_log}");
        volume.drain();
        assert!(volume.used(0) + volume.used(1) <= 2 * RANGE, "{flushes_log}: the room is free again");
        volume.unmount().expect("unmounted");
        assert_eq!(volume.findings(), [] as [String; 0]);
    }
}

#[test]
fn a_reservation_that_returned_survives_the_death_of_the_daemon() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    volume.survive_deaths();
    volume.fs().set_steering(PolicyKind::Spread, &[]).expect("taken");
    let (ino, handle) = create(volume.fs(), "f");
    reserve(volume.fs(), handle, 0, 20 * RANGE).expect("reserved");
    write_all(volume.fs(), handle, 9 * RANGE, &data(RANGE)).expect("written");
    volume.kill_daemon();
    let mut expected = vec![0; usize::try_from(20 * RANGE).expect("small")];
    let at = usize::try_from(9 * RANGE).expect("small");
    expected[at..at + usize::try_from(RANGE).expect("small")].copy_from_slice(&data(RANGE));
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
}

#[test]
fn tiers_with_little_room_get_what_they_have_room_for() {
    let volume = spread_volume(&[6 * RANGE, 10 * RANGE, 16 * MIB]);
    let (ino, handle) = create(volume.fs(), "f");
    reserve(volume.fs(), handle, 0, 60 * RANGE).expect("reserved");
    assert!(bytes_on(volume.fs(), ino, "slow") >= 44 * RANGE);
    write_all(volume.fs(), handle, 0, &data(60 * RANGE)).expect("written");
    assert!(read_whole(volume.fs(), ino).expect("read") == data(60 * RANGE));
}

#[test]
fn more_than_all_tiers_have_is_refused_and_leaves_the_file_as_it_was() {
    let volume = spread_volume(&[2 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &data(3 * RANGE)).expect("written");
    let before = volume.used(0) + volume.used(1);
    let refused = reserve(volume.fs(), handle, 0, 5 * MIB);
    assert_eq!(common::errno(refused), Errno::ENOSPC);
    assert_eq!(find(volume.fs(), "f").size, 3 * RANGE);
    assert_eq!(volume.used(0) + volume.used(1), before);
    assert!(read_whole(volume.fs(), ino).expect("read") == data(3 * RANGE));
}

#[test]
fn what_a_tier_refuses_after_all_is_given_back_and_lies_on_the_others() {
    let faulty: std::cell::RefCell<Vec<Arc<FaultyTier>>> = std::cell::RefCell::default();
    let volume = Volume::wrapping(&[16 * MIB; 3], |_, tier| {
        let wrapped = Arc::new(FaultyTier::new(tier));
        faulty.borrow_mut().push(Arc::clone(&wrapped));
        wrapped
    });
    let volume = volume_of(volume, PolicyKind::Spread);
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &data(RANGE)).expect("written");
    faulty.borrow()[1].fail_always(OperationKind::Allocate, TierError::NoSpace);
    reserve(volume.fs(), handle, 0, 30 * RANGE).expect("reserved");
    assert_eq!((bytes_on(volume.fs(), ino, "middle"), volume.used(1)), (0, 0));
    assert_eq!(volume.counter("spread_reservations"), 1);
    // Where every tier refuses, the call fails, and the file is unchanged.
    faulty.borrow().iter().for_each(|tier| tier.fail_always(OperationKind::Allocate, TierError::NoSpace));
    assert_eq!(common::errno(reserve(volume.fs(), handle, 30 * RANGE, 30 * RANGE)), Errno::ENOSPC);
    assert_eq!(find(volume.fs(), "f").size, 30 * RANGE);
    faulty.borrow().iter().for_each(|tier| tier.heal());
    write_all(volume.fs(), handle, 30 * RANGE, &data(10 * RANGE)).expect("it grows as ever");
    let read = read_whole(volume.fs(), ino).expect("read");
    assert!(read[usize::try_from(30 * RANGE).expect("small")..] == data(10 * RANGE));
}

#[test]
fn a_long_reservation_is_divided_into_few_pieces() {
    let volume = spread_volume(&[4096 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    reserve(volume.fs(), handle, 0, 20_000 * RANGE).expect("reserved");
    let pieces = volume.fs().locate(ino).expect("located").extents.len();
    assert!((2000..=4097).contains(&pieces), "{pieces}");
}

#[test]
fn policies_that_keep_growth_on_one_tier_reserve_there() {
    for policy in [PolicyKind::HotCold, PolicyKind::Static] {
        let volume = volume_of(Volume::new(&[16 * MIB; 2]), policy);
        let (ino, handle) = create(volume.fs(), "f");
        reserve(volume.fs(), handle, 0, 40 * RANGE).expect("reserved");
        assert_eq!(volume.fs().locate(ino).expect("located").shares.len(), 1, "{policy:?}");
        assert_eq!(volume.counter("spread_reservations"), 0);
    }
}

/// A guess would stay: reserved space that was divided is not divided anew when the first bytes show how fast a device is.
#[test]
fn room_is_divided_only_among_tiers_of_known_bandwidth() {
    let mut volume = spread_volume(&[16 * MIB; 2]);
    volume.options.saturation = SaturationSource::Measured;
    volume.remount();
    volume.fs().set_steering(PolicyKind::Spread, &[]).expect("taken");
    let (ino, handle) = create(volume.fs(), "f");
    reserve(volume.fs(), handle, 0, 40 * RANGE).expect("reserved");
    assert_eq!(volume.fs().locate(ino).expect("located").shares.len(), 1);
}

#[test]
fn room_that_is_reserved_again_costs_no_room() {
    for policy in [PolicyKind::HotCold, PolicyKind::Spread] {
        let volume = volume_of(Volume::new(&[4 * MIB, 6 * MIB]), policy);
        let (ino, handle) = create(volume.fs(), "f");
        reserve(volume.fs(), handle, 0, 40 * RANGE).expect("reserved");
        fill_up(&volume);
        reserve(volume.fs(), handle, 0, 40 * RANGE).expect("it has its room");
        let zeroed = volume.fs().allocate(&Caller::root(), handle, 0, 40 * RANGE, AllocateKind::ZeroRange);
        zeroed.expect("so has what is zeroed");
        assert_eq!(find(volume.fs(), "f").ino, ino);
    }
}

#[test]
fn room_reserved_behind_the_end_is_used_by_what_is_reserved_over_it() {
    let volume = spread_volume(&[16 * MIB; 2]);
    let (ino, handle) = create(volume.fs(), "f");
    let behind = volume.fs().allocate(&Caller::root(), handle, 0, 30 * RANGE, AllocateKind::KeepSize);
    behind.expect("reserved");
    reserve(volume.fs(), handle, 0, 30 * RANGE).expect("reserved");
    assert_eq!(volume.fs().locate(ino).expect("located").shares.len(), 1);
    assert_eq!(volume.used(0) + volume.used(1), 30 * RANGE);
}
