//! Tiers that are away, and come back while the volume is in use.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polymux_fs::{Caller, SetAttributes, TierState};
use polymux_tier::{CleanStamp, Label, Tier};
use polymux_types::{Errno, Ino, ManualClock};

use crate::world::{World, assert_eio, create, names, read, write};

const BEFORE: &[u8] = &[1; 10_000];
const AFTER: &[u8] = &[2; 20_000];

/// Takes a tier away as of the next mount.
fn take_away(world: &World, tier: usize) {
    world.places[tier].is_there.store(false, Ordering::Release);
}

fn bring_back(world: &World, tier: usize) {
    world.places[tier].is_there.store(true, Ordering::Release);
}

fn look(world: &World, clock: &ManualClock) {
    for _ in 0..3 {
        clock.advance(Duration::from_secs(3));
        world.fs().step();
    }
}

#[test]
fn a_tier_that_comes_back_is_taken_up_without_another_mount() {
    let (mut world, clock) = World::with_manual_clock();
    world.file_on(1, "away", BEFORE);
    world.file_on(0, "here", BEFORE);
    world.unmount().expect("unmounted");
    take_away(&world, 1);
    world.mount_degraded();
    assert_eq!(names(world.fs()), ["away", "here"]);
    assert_eio(world.content("away"));
    assert_eq!(
        world.fs().lookup(&Caller::root(), Ino::ROOT, b"none").expect_err("no such name").errno(),
        Errno::ENOENT
    );
    look(&world, &clock);
    assert_eq!(world.state(1), TierState::Missing("the test took it away".to_owned()));
    bring_back(&world, 1);
    look(&world, &clock);
    assert_eq!(world.state(1), TierState::Online);
    assert_eq!(world.content("away").expect("read"), BEFORE);
    let handle = world.open("away").expect("opened");
    write(world.fs(), handle, 0, AFTER).expect("written");
    world.sync(handle).expect("synced");
    world.crash();
    world.mount();
    assert_eq!(world.content("away").expect("read"), AFTER);
}

#[test]
fn no_synced_byte_is_cut_while_a_tier_is_away_after_a_crash() {
    let (mut world, clock) = World::with_manual_clock();
    let (_, handle) = world.file_on(1, "appended", BEFORE);
    write(world.fs(), handle, 10_000, AFTER).expect("appended");
    world.sync(handle).expect("synced, and the size is known to the object only");
    world.crash();
    take_away(&world, 1);
    world.mount_degraded();
    assert_eio(world.open("appended"));
    let ino = world.fs().lookup(&Caller::root(), Ino::ROOT, b"appended").expect("its name is there").ino;
    assert!(!world.fs().may_keep_attributes(), "the size is a guess");
    for size in [0, 5, 100_000] {
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        assert_eio(world.fs().set_attributes(&Caller::root(), ino, &change));
    }
    look(&world, &clock);
    bring_back(&world, 1);
    look(&world, &clock);
    assert_eq!(world.fs().attributes(&Caller::root(), ino).expect("told").size, 30_000);
    assert!(world.fs().may_keep_attributes());
    assert_eq!(world.content("appended").expect("read")[10_000..], *AFTER);
    world.unmount().expect("clean");
    world.mount();
    assert_eq!(world.content("appended").expect("read").len(), 30_000);
}

#[test]
fn what_was_unlinked_truncated_and_renamed_meanwhile_is_right_when_the_tier_is_back() {
    let (mut world, clock) = World::with_manual_clock();
    for name in ["unlinked", "renamed", "replaced", "untouched"] {
        world.file_on(1, name, BEFORE);
    }
    world.unmount().expect("unmounted");
    take_away(&world, 1);
    world.mount_degraded();
    let root = Caller::root();
    world.fs().unlink(&root, Ino::ROOT, b"unlinked").expect("unlinked");
    world
        .fs()
        .rename(&root, Ino::ROOT, b"renamed", Ino::ROOT, b"new name", polymux_fs::RenameMode::Replace)
        .expect("renamed");
    let (_, handle) = create(world.fs(), "other");
    write(world.fs(), handle, 0, AFTER).expect("written");
    world.fs().release(handle).expect("closed");
    world
        .fs()
        .rename(&root, Ino::ROOT, b"other", Ino::ROOT, b"replaced", polymux_fs::RenameMode::Replace)
        .expect("renamed");
    bring_back(&world, 1);
    look(&world, &clock);
    assert_eq!(names(world.fs()), ["new name", "replaced", "untouched"]);
    assert_eq!(world.content("new name").expect("read"), BEFORE);
    assert_eq!(world.content("replaced").expect("read"), AFTER);
    assert_eq!(world.content("untouched").expect("read"), BEFORE);
    look(&world, &clock);
    let used = world.memory[1].space().expect("answered").used;
    assert!(used <= 2 * 12_288, "what nobody owns was freed: {used}");
}

#[test]
fn a_tier_restored_from_an_older_copy_stays_away() {
    let (mut world, clock) = World::with_manual_clock();
    world.file_on(1, "f", BEFORE);
    let old = world.memory[1].read_label().expect("it has a label");
    world.unmount().expect("unmounted");
    world.mount();
    world.unmount().expect("unmounted");
    take_away(&world, 1);
    world.mount_degraded();
    let right = world.memory[1].read_label().expect("it has a label");
    let wrong = [
        Label { clean: CleanStamp::Clean { bytes_used: 0 }, ..old.clone() },
        Label { instance: right.instance + 1, ..right.clone() },
        Label { tier: polymux_types::TierId(0), ..right.clone() },
        Label { volume: polymux_types::VolumeId::from_random([9; 16]), ..right.clone() },
    ];
    for label in wrong {
        world.memory[1].write_label(&label).expect("written");
        bring_back(&world, 1);
        look(&world, &clock);
        assert!(matches!(world.state(1), TierState::Missing(_)), "taken up with {label:?}");
        assert_eio(world.content("f"));
        take_away(&world, 1);
    }
    world.memory[1].write_label(&right).expect("written");
    bring_back(&world, 1);
    look(&world, &clock);
    assert_eq!(world.content("f").expect("read"), BEFORE);
}

#[test]
fn a_tier_that_missed_a_mount_is_current_and_one_that_was_used_elsewhere_is_not() {
    let (mut world, clock) = World::with_manual_clock();
    world.file_on(1, "f", BEFORE);
    world.unmount().expect("unmounted");
    take_away(&world, 1);
    for _ in 0..3 {
        world.mount_degraded();
        let (_, handle) = create(world.fs(), &format!("n{}", names(world.fs()).len()));
        write(world.fs(), handle, 0, AFTER).expect("written");
        world.unmount().expect("unmounted");
    }
    bring_back(&world, 1);
    world.mount();
    assert_eq!(world.content("f").expect("read"), BEFORE);
    // Its epoch rose with this mount, so a copy of its earlier state is stale from now on.
    let label = world.memory[1].read_label().expect("a label");
    world.unmount().expect("unmounted");
    world.memory[1].write_label(&Label { epoch: polymux_types::Epoch(label.epoch.0 - 1), ..label }).expect("written");
    take_away(&world, 1);
    world.mount_degraded();
    bring_back(&world, 1);
    look(&world, &clock);
    assert!(matches!(world.state(1), TierState::Missing(reason) if reason.contains("stale")));
}

#[test]
fn objects_of_a_tier_that_was_missing_after_a_crash_are_looked_at_when_it_is_back() {
    let (mut world, clock) = World::with_manual_clock();
    world.file_on(1, "kept", BEFORE);
    // Made and durable, and the record that names it is not.
    world.create_on(1, "leaked", BEFORE);
    world.memory[1].sync_all().expect("the tier's own sync");
    let used = world.memory[1].space().expect("answered").used;
    world.crash();
    take_away(&world, 1);
    world.mount_degraded();
    world.unmount().expect("unmounted, not clean for the tier that was away");
    world.mount_degraded();
    bring_back(&world, 1);
    look(&world, &clock);
    assert_eq!(world.content("kept").expect("read"), BEFORE);
    if !names(world.fs()).contains(&"leaked".to_owned()) {
        let left = world.memory[1].space().expect("answered").used;
        assert!(left < used, "the object that no record names is gone: {left} of {used}");
    }
}

#[test]
fn a_tier_lost_while_in_use_gives_errors_and_never_missing_files() {
    let (world, clock) = World::with_manual_clock();
    let (_, handle) = world.file_on(1, "lost", BEFORE);
    world.file_on(0, "here", BEFORE);
    world.tiers[1].vanish();
    assert_eio(read(world.fs(), handle, 0, 10));
    assert_eio(write(world.fs(), handle, 0, AFTER));
    assert_eq!(names(world.fs()), ["here", "lost"]);
    assert_eq!(world.content("here").expect("read"), BEFORE);
    assert!(matches!(world.state(1), TierState::Failing(_)));
    let told = world.fs().files_of_tier("middle", 10).expect("told");
    assert_eq!((told.files, told.only, told.listed.len()), (1, 1, 1));
    assert_eq!(told.listed[0].path.as_deref(), Some(&b"lost"[..]));
    world.tiers[1].come_back();
    clock.advance(Duration::from_secs(60));
    world.fs().step();
    assert_eq!(world.state(1), TierState::Online);
    assert_eq!(read(world.fs(), handle, 0, 10_000).expect("read"), BEFORE);
}

#[test]
fn what_depends_on_a_tier_is_listed_within_bounds() {
    let (world, _clock) = World::with_manual_clock();
    for number in 0..20 {
        let (_, handle) = world.file_on(2, &format!("f{number:02}"), BEFORE);
        world.fs().release(handle).expect("closed");
    }
    let told = world.fs().files_of_tier("slow", 5).expect("told");
    assert_eq!((told.files, told.only, told.listed.len()), (20, 20, 5));
    assert_eq!(world.fs().files_of_tier("none", 5).expect_err("no such tier").errno(), Errno::ENOENT);
}
