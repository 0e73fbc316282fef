//! Files that grow on several tiers at once, one of which hangs, fails, is away, or joins at a bad moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use polymux_fs::{Caller, HandleId, PolicyKind, SetAttributes, TierState};
use polymux_sim::OperationKind;
use polymux_tier::{Tier, TierError};
use polymux_types::{Ino, ManualClock};

use crate::world::{EIO, World, assert_eio, create, promptly, read, wait_until, write};

/// Of these volumes.
const RANGE: usize = 64 << 10;

fn remount_spread(mut world: World) -> World {
    world.options.spread_range_bytes = 64 << 10;
    world.unmount().expect("unmounted");
    world.mount();
    steer(&world);
    world
}

fn steer(world: &World) {
    world.fs().set_steering(PolicyKind::Spread, &[]).expect("taken");
}

/// A clock that stands still: nothing is slow.
fn spread_world() -> (World, std::sync::Arc<ManualClock>) {
    let (world, clock) = World::with_manual_clock();
    (remount_spread(world), clock)
}

fn data(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at / 4096 + at % 239 + seed * 7) % 251 + 1).expect("at most 251")).collect()
}

fn write_all(world: &World, handle: HandleId, offset: usize, data: &[u8]) -> polymux_fs::Result<()> {
    for (index, piece) in data.chunks(16 << 10).enumerate() {
        assert_eq!(write(world.fs(), handle, (offset + index * (16 << 10)) as u64, piece)?, piece.len());
    }
    Ok(())
}

fn size(world: &World, name: &str) -> usize {
    let found = world.fs().lookup(&Caller::root(), Ino::ROOT, name.as_bytes()).expect("it is there");
    usize::try_from(found.size).expect("small")
}

fn whole(world: &World, name: &str) -> polymux_fs::Result<Vec<u8>> {
    let handle = world.open(name)?;
    read(world.fs(), handle, 0, 64 * RANGE)
}

fn bytes_on(world: &World, ino: Ino, tier: &str) -> u64 {
    let location = world.fs().locate(ino).expect("located");
    location.shares.iter().filter(|share| share.name == tier).map(|share| share.bytes_mapped).sum()
}

/// Nothing that others get meanwhile could be put on record, and a crash would take all of it.
#[test]
fn a_file_with_unsynced_bytes_on_a_tier_that_hangs_does_not_grow_and_grows_again_afterwards() {
    let mut world = remount_spread(World::new());
    let (_, handle) = create(world.fs(), "f");
    let content = data(1, 20 * RANGE);
    write_all(&world, handle, 0, &content[..10 * RANGE]).expect("written");
    world.sync(handle).expect("synced");
    write_all(&world, handle, 10 * RANGE, &content[10 * RANGE..16 * RANGE]).expect("written");
    world.tiers[1].hang_all();
    thread::scope(|scope| {
        let stuck = scope.spawn(|| world.sync(handle));
        wait_until("the sync hangs", || world.tiers[1].hanging_calls() > 0);
        world.wait_until_silent(1);
        assert_eio(promptly("an append", || write_all(&world, handle, 16 * RANGE, &content[16 * RANGE..])));
        assert_eq!(
            promptly("an overwrite elsewhere", || write(world.fs(), handle, 0, &content[..10])).expect("written"),
            10
        );
        world.tiers[1].release();
        if let Err(error) = stuck.join().expect("no panic") {
            assert_eq!(error.errno(), polymux_types::Errno::EIO);
        }
    });
    world.wait_until_online(1);
    write_all(&world, handle, 16 * RANGE, &content[16 * RANGE..]).expect("it grows again");
    world.sync(handle).expect("synced");
    world.crash();
    world.mount();
    assert!(whole(&world, "f").expect("read") == content);
}

/// A loss on one tier is reported; the data of the other tiers is on record all the same.
#[test]
fn a_sync_that_one_tier_refuses_puts_on_record_what_the_others_have() {
    let (mut world, _clock) = spread_world();
    let (ino, handle) = create(world.fs(), "f");
    let content = data(2, 10 * RANGE);
    write_all(&world, handle, 0, &content).expect("written");
    assert!(bytes_on(&world, ino, "middle") > 0);
    world.tiers[1].fail_always(OperationKind::Sync, EIO);
    assert_eio(world.sync(handle));
    world.crash();
    world.mount();
    assert_eq!(size(&world, "f"), content.len());
    let location = world.fs().locate(ino).expect("located");
    assert!(!location.damaged.is_empty());
    let handle = world.open("f").expect("opened");
    let mut read_well = 0;
    for (range, expected) in content.chunks(RANGE).enumerate() {
        match read(world.fs(), handle, (range * RANGE) as u64, RANGE) {
            Ok(found) => {
                assert!(found == expected, "range {range}");
                read_well += 1;
            }
            Err(error) => assert_eq!(error.errno(), polymux_types::Errno::EIO),
        }
    }
    assert!(read_well >= 5, "{read_well} ranges are left");
}

/// Takes a tier away as of the next mount.
fn take_away(world: &World, tier: usize) {
    world.places[tier].is_there.store(false, Ordering::Release);
}

/// The tier kept bytes that were not synced before a crash, and was missing while the others were cut.
#[test]
fn a_tier_that_was_away_after_a_crash_brings_no_old_bytes_back_into_a_file_that_grew() {
    for syncs_before in [false, true] {
        let (mut world, clock) = spread_world();
        let (_, handle) = create(world.fs(), "f");
        let mut content = data(3, 10 * RANGE);
        write_all(&world, handle, 0, &content).expect("written");
        world.sync(handle).expect("synced");
        write_all(&world, handle, 10 * RANGE, &data(9, 9 * RANGE)).expect("written");
        world.memory[1].sync_all().expect("the tier's own sync");
        world.crash();
        take_away(&world, 1);
        world.mount_degraded();
        steer(&world);
        assert_eq!(size(&world, "f"), 10 * RANGE);
        let handle = world.open("f").expect("opened");
        content.resize(25 * RANGE, 0);
        content.extend(data(4, 2 * RANGE));
        write_all(&world, handle, 25 * RANGE, &content[25 * RANGE..]).expect("written");
        world.places[1].is_there.store(true, Ordering::Release);
        for _ in 0..3 {
            clock.advance(Duration::from_secs(3));
            if !syncs_before {
                // Nothing is put on record meanwhile.
                world.tiers[0].fail_always(OperationKind::Sync, TierError::NotAnswering);
            }
            world.fs().step();
            world.tiers[0].heal();
        }
        assert_eq!(world.state(1), TierState::Online);
        // Whatever is placed now goes to the tier that is back.
        for other in ["fast", "slow"] {
            world.fs().start_drain(other).expect("it drains");
        }
        if syncs_before {
            world.sync(handle).expect("synced");
        }
        for range in 10..25 {
            let at = range * RANGE + 20_000;
            content[at..at + 100].fill(7);
            write(world.fs(), handle, at as u64, &[7; 100]).expect("written");
        }
        assert!(whole(&world, "f").expect("read") == content, "old bytes came back, {syncs_before}");
        world.sync(handle).expect("synced");
        world.crash();
        world.mount();
        assert!(whole(&world, "f").expect("read") == content, "old bytes came back after a crash, {syncs_before}");
    }
}

/// The object of the third tier is made, and gets a hole, while the others are being synced.
#[test]
fn the_size_is_not_put_on_record_over_an_object_that_joined_during_the_sync() {
    let (mut world, _clock) = spread_world();
    let (ino, handle) = create(world.fs(), "f");
    let first = data(5, RANGE);
    world.tiers[2].fail_always(OperationKind::Create, TierError::NoSpace);
    write_all(&world, handle, 0, &first).expect("written");
    write_all(&world, handle, 8 * RANGE, &first).expect("written");
    world.tiers[2].heal();
    assert_eq!(bytes_on(&world, ino, "slow"), 0);
    world.tiers[0].hang(&[OperationKind::Sync]);
    thread::scope(|scope| {
        let syncing = scope.spawn(|| world.sync(handle));
        wait_until("the sync hangs", || world.tiers[0].hanging_calls() > 0);
        for range in 1..8 {
            write_all(&world, handle, range * RANGE, &first).expect("written");
        }
        world.tiers[0].release();
        syncing.join().expect("no panic").expect("synced");
    });
    assert!(bytes_on(&world, ino, "slow") > 0, "the third tier joined");
    world.crash();
    world.mount();
    let left = whole(&world, "f").expect("every byte can be read");
    assert_eq!(left.len(), 9 * RANGE);
    assert!(left[..RANGE] == first && left[8 * RANGE..] == first);
}

#[test]
fn a_file_can_be_cut_while_a_sync_waits_for_a_device() {
    let (world, _clock) = spread_world();
    let (ino, handle) = create(world.fs(), "f");
    let content = data(6, 10 * RANGE);
    write_all(&world, handle, 0, &content).expect("written");
    world.tiers[1].hang(&[OperationKind::Sync]);
    let is_cut = AtomicBool::new(false);
    thread::scope(|scope| {
        let syncing = scope.spawn(|| world.sync(handle));
        wait_until("the sync hangs", || world.tiers[1].hanging_calls() > 0);
        // A cut needs the remaining data to be durable; an emptied file has none.
        scope.spawn(|| {
            let change = SetAttributes { size: Some(0), ..SetAttributes::default() };
            world.fs().set_attributes(&Caller::root(), ino, &change).expect("emptied");
            is_cut.store(true, Ordering::Release);
        });
        for _ in 0..1000 {
            thread::sleep(Duration::from_millis(2));
            if is_cut.load(Ordering::Acquire) {
                break;
            }
        }
        let in_time = is_cut.load(Ordering::Acquire);
        world.tiers[1].release();
        syncing.join().expect("no panic").expect("synced");
        assert!(in_time, "it waited for the device");
    });
    assert_eq!(size(&world, "f"), 0);
}

#[test]
fn a_tier_that_takes_no_object_is_passed_over() {
    let (world, _clock) = spread_world();
    for error in [TierError::NoSpace, EIO] {
        let (ino, handle) = create(world.fs(), &format!("{error}").replace('/', ""));
        world.tiers[1].fail_always(OperationKind::Create, error);
        let content = data(7, 10 * RANGE);
        write_all(&world, handle, 0, &content).expect("there is room elsewhere");
        assert!(bytes_on(&world, ino, "fast") > 0 && bytes_on(&world, ino, "slow") > 0);
        assert_eq!(bytes_on(&world, ino, "middle"), 0);
        world.tiers[1].heal();
    }
}

#[test]
fn holes_are_not_given_to_a_tier_that_drains() {
    let (world, _clock) = spread_world();
    let (ino, handle) = create(world.fs(), "f");
    let first = data(8, RANGE);
    write_all(&world, handle, 0, &first).expect("written");
    write_all(&world, handle, 20 * RANGE, &data(9, 4 * RANGE)).expect("written");
    let of = |tier| bytes_on(&world, ino, tier);
    let other = if of("middle") > 0 { "middle" } else { "slow" };
    let before = of(other);
    assert!(before > 0);
    world.fs().start_drain(other).expect("it drains");
    world.sync(handle).expect("synced");
    assert_eq!(of(other), before, "it got holes that were left out");
}

/// A device that is busy with later data must not delay the requested data.
#[test]
fn a_stream_is_read_ahead_only_when_the_reader_has_his_own_bytes() {
    let (world, _clock) = spread_world();
    let (_, handle) = create(world.fs(), "f");
    write_all(&world, handle, 0, &data(10, 60 * RANGE)).expect("written");
    let asked = || {
        let counters = world.fs().status().expect("status answers").counters;
        counters.iter().find(|(name, _)| *name == "ranges_read_ahead").expect("it is counted").1
    };
    let length = 16 * RANGE;
    assert_eq!(read(world.fs(), handle, 0, length).expect("read").len(), length);
    let before = asked();
    world.tiers.iter().for_each(|tier| tier.fail_always(OperationKind::Read, EIO));
    assert_eio(read(world.fs(), handle, length as u64, length));
    assert_eq!(asked(), before);
    world.tiers.iter().for_each(|tier| tier.heal());
    assert_eq!(read(world.fs(), handle, length as u64, length).expect("read").len(), length);
    assert!(asked() > before, "the stream goes on");
}
