//! Tiers that answer with errors, or turned read-only.

use std::time::Duration;

use polymux_fs::{Caller, OpenOptions, Progress, TierState};
use polymux_sim::OperationKind;
use polymux_tier::TierError;
use polymux_types::TierId;

use crate::world::{EIO, READ_WRITE, World, assert_eio, create, read, write};

const BEFORE: &[u8] = &[1; 10_000];

fn reason(state: &TierState) -> &str {
    match state {
        TierState::Failing(reason) => reason,
        other => panic!("it does not fail: {other:?}"),
    }
}

#[test]
fn a_tier_that_fails_takes_no_new_data_and_is_still_read() {
    let (world, clock) = World::with_manual_clock();
    let (old, handle) = world.file_on(0, "old", BEFORE);
    world.tiers[0].fail_next(OperationKind::Write, 1, EIO);
    assert_eio(write(world.fs(), handle, 0, b"x"));
    assert!(reason(&world.state(0)).contains("new data goes to other tiers"));
    let (new, other) = create(world.fs(), "new");
    write(world.fs(), other, 0, BEFORE).expect("written");
    assert_eq!(world.home(new).as_deref(), Some("middle"));
    assert_eq!(read(world.fs(), handle, 0, 10_000).expect("read"), BEFORE);
    let told = world.fs().explain(old).expect("explained").tiers_out;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, "fast");
    clock.advance(Duration::from_secs(20));
    world.fs().step();
    assert!(matches!(world.state(0), TierState::Failing(_)), "not before a quiet time");
}

#[test]
fn it_comes_back_after_a_quiet_time_and_an_attempt_that_succeeds() {
    let (world, clock) = World::with_manual_clock();
    let (_, handle) = world.file_on(0, "old", BEFORE);
    world.tiers[0].fail_always(OperationKind::Write, EIO);
    assert_eio(write(world.fs(), handle, 0, b"x"));
    clock.advance(Duration::from_secs(31));
    world.fs().step();
    assert!(matches!(world.state(0), TierState::Failing(_)), "the attempt failed: time alone does not help");
    world.tiers[0].heal();
    world.fs().step();
    assert!(matches!(world.state(0), TierState::Failing(_)), "another quiet time first");
    clock.advance(Duration::from_secs(31));
    world.fs().step();
    assert_eq!(world.state(0), TierState::Online);
    assert_eq!(world.fs().status().expect("told").tiers[0].taken_out, 1);
    let (new, other) = create(world.fs(), "new");
    write(world.fs(), other, 0, BEFORE).expect("written");
    assert_eq!(world.home(new).as_deref(), Some("fast"));
}

#[test]
fn a_tier_that_turned_read_only_takes_no_new_data_and_is_still_read() {
    let (world, clock) = World::with_manual_clock();
    let (_, handle) = world.file_on(0, "old", BEFORE);
    for kind in [OperationKind::Write, OperationKind::Create, OperationKind::Sync, OperationKind::Truncate] {
        world.tiers[0].fail_always(kind, TierError::ReadOnly);
    }
    let (new, other) = create(world.fs(), "new");
    write(world.fs(), other, 0, BEFORE).expect("another tier takes it at once");
    assert_eq!(world.home(new).as_deref(), Some("middle"));
    assert!(reason(&world.state(0)).contains("read-only"));
    assert_eq!(read(world.fs(), handle, 0, 10_000).expect("read"), BEFORE);
    world.tiers[0].heal();
    clock.advance(Duration::from_secs(31));
    world.fs().step();
    assert_eq!(world.state(0), TierState::Online);
}

#[test]
fn many_errors_are_one_event() {
    let (world, _clock) = World::with_manual_clock();
    let (_, handle) = world.file_on(0, "old", BEFORE);
    world.tiers[0].fail_always(OperationKind::Write, EIO);
    for _ in 0..100 {
        assert_eio(write(world.fs(), handle, 0, b"x"));
    }
    assert!(reason(&world.state(0)).contains("(100 errors)"), "{:?}", world.state(0));
    assert_eq!(world.fs().status().expect("told").tiers[0].taken_out, 1);
}

#[test]
fn a_tier_without_inodes_takes_no_new_objects_and_says_so() {
    let (world, _clock) = World::with_manual_clock();
    let (old, handle) = world.file_on(0, "old", BEFORE);
    world.tiers[0].objects(Some(0));
    // The known free space of it is out of date.
    world.fs().status().expect("told");
    for name in ["one", "two", "three"] {
        let (new, other) = create(world.fs(), name);
        write(world.fs(), other, 0, BEFORE).expect("another tier has room");
        assert_eq!(world.home(new).as_deref(), Some("middle"));
    }
    write(world.fs(), handle, 10_000, BEFORE).expect("what is there goes on");
    assert_eq!(world.state(0), TierState::Online);
    let shortage = world.fs().status().expect("told").tiers[0].shortage.clone();
    assert!(shortage.as_deref().is_some_and(|why| why.contains("no free inodes")), "{shortage:?}");
    let told = world.fs().explain(old).expect("explained").tiers_out;
    assert_eq!(told, [("fast".to_owned(), shortage.expect("it was told"))]);
    world.tiers[0].objects(None);
    assert_eq!(world.fs().status().expect("told").tiers[0].shortage, None);
    let (new, other) = create(world.fs(), "four");
    write(world.fs(), other, 0, BEFORE).expect("there is room");
    assert_eq!(world.home(new).as_deref(), Some("fast"));
}

/// A kernel that collects writes does not say when a program closes a file, so no program waits for this sync.
#[test]
fn the_sync_of_a_rewritten_file_is_tried_again_where_the_tier_did_not_answer() {
    let (mut world, clock) = World::with_manual_clock();
    let (ino, handle) = world.file_on(0, "f", BEFORE);
    world.fs().release(handle).expect("released");
    let handle = world.fs().open(&Caller::root(), ino, OpenOptions { truncate: true, ..READ_WRITE }).expect("opened");
    write(world.fs(), handle, 0, &[2; 9_000]).expect("written");
    assert_eq!(world.home(ino).as_deref(), Some("fast"));
    world.tiers[0].fail_always(OperationKind::Sync, TierError::NotAnswering);
    world.fs().release(handle).expect("released");
    let step = || world.fs().sync_rewritten_step(TierId(0));
    assert_eq!((step(), step()), (Progress::Worked, Progress::Idle), "it rests after a failure");
    world.tiers[0].heal();
    assert_eq!(step(), Progress::Idle);
    clock.advance(Duration::from_secs(11));
    assert_eq!((step(), step()), (Progress::Worked, Progress::Idle));
    world.crash();
    world.mount();
    assert_eq!(world.content("f").expect("read"), [2; 9_000]);
}

/// Behind many files one sync covers the whole tier: what it made durable is not taken for lost when a later sync fails.
#[test]
fn a_failed_sync_damages_nothing_that_the_sync_of_its_tier_covered() {
    let (world, _) = World::with_manual_clock();
    let emptied = OpenOptions { truncate: true, ..READ_WRITE };
    let files: Vec<_> = (0..300).map(|number| world.file_on(0, &format!("f{number}"), BEFORE)).collect();
    for (ino, handle) in &files {
        world.fs().release(*handle).expect("released");
        let handle = world.fs().open(&Caller::root(), *ino, emptied).expect("opened");
        write(world.fs(), handle, 0, &[2; 10_000]).expect("written");
        world.fs().release(handle).expect("released");
    }
    while world.fs().sync_rewritten_step(TierId(0)) == Progress::Worked {}
    let handle = world.open("f7").expect("opened");
    write(world.fs(), handle, 12_288, b"more").expect("written");
    world.tiers[0].fail_next(OperationKind::Sync, 1, EIO);
    assert_eio(world.sync(handle));
    assert_eq!(read(world.fs(), handle, 0, 10_000).expect("it was durable"), [2; 10_000]);
}
