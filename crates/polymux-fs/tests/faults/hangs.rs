//! Calls to a tier that do not return.

use std::sync::Arc;
use std::thread;

use polymux_fs::{BackgroundThreads, Caller, JobState, TierState};
use polymux_sim::OperationKind;
use polymux_tier::Tier;
use polymux_types::{Errno, Ino};

use crate::world::{World, assert_eio, create, promptly, read, wait_until, write};

const BEFORE: &[u8] = &[1; 10_000];
const AFTER: &[u8] = &[2; 10_000];

#[test]
fn operations_that_need_a_tier_that_hangs_fail_in_time_and_others_go_on() {
    let world = World::new();
    let (hung, on_fast) = world.file_on(0, "hung", BEFORE);
    let (_, on_slow) = world.file_on(2, "elsewhere", BEFORE);
    world.tiers[0].hang_all();
    thread::scope(|scope| {
        let stuck = scope.spawn(|| write(world.fs(), on_fast, 0, AFTER));
        wait_until("the write hangs", || world.tiers[0].hanging_calls() > 0);
        promptly("an overwrite elsewhere", || write(world.fs(), on_slow, 0, AFTER)).expect("written");
        promptly("a sync elsewhere", || world.sync(on_slow)).expect("synced");
        promptly("a read elsewhere", || read(world.fs(), on_slow, 0, 100)).expect("read");
        promptly("statfs", || world.fs().space()).expect("answered");
        promptly("where", || world.fs().locate(hung)).expect("answered");
        world.wait_until_silent(0);
        assert_eio(promptly("a second write", || write(world.fs(), on_fast, 20_000, AFTER)));
        assert_eio(promptly("a read", || read(world.fs(), on_fast, 0, 10)));
        let (new, handle) = promptly("a new file", || create(world.fs(), "new"));
        promptly("its first write", || write(world.fs(), handle, 0, AFTER)).expect("it goes elsewhere");
        assert_eq!(world.home(new).as_deref(), Some("middle"));
        world.tiers[0].release();
        // It is done after all, or a later call of it was not made.
        if let Err(error) = stuck.join().expect("no panic") {
            assert_eq!(error.errno(), Errno::EIO);
        }
    });
    world.wait_until_online(0);
    write(world.fs(), on_fast, 0, AFTER).expect("it works again by itself");
    assert_eq!(world.content("hung").expect("read")[..AFTER.len()], *AFTER);
    world.sync(on_fast).expect("synced");
}

#[test]
fn a_write_without_room_does_not_wait_for_a_tier_that_hangs_while_it_frees() {
    const PIECE: &[u8] = &[3; 1 << 20];
    let world = World::new();
    let (_, old) = world.file_on(0, "old", &[1; 4 << 20]);
    let (_, filler) = create(world.fs(), "filler");
    let mut offset = 0;
    while write(world.fs(), filler, offset, PIECE).is_ok() {
        offset += PIECE.len() as u64;
    }
    let (_, handle) = create(world.fs(), "new");
    world.fs().release(old).expect("closed");
    world.fs().unlink(&Caller::root(), Ino::ROOT, b"old").expect("removed");
    world.tiers[0].hang(&[OperationKind::Remove]);
    thread::scope(|scope| {
        let freeing = scope.spawn(|| world.fs().step());
        wait_until("the removal hangs", || world.tiers[0].hanging_calls() > 0);
        let writer = scope.spawn(|| promptly("a write without room", || write(world.fs(), handle, 0, PIECE)));
        world.wait_until_silent(0);
        assert_eq!(writer.join().expect("no panic").expect_err("no tier has room").errno(), Errno::ENOSPC);
        world.tiers[0].release();
        freeing.join().expect("no panic");
    });
    world.wait_until_online(0);
    write(world.fs(), handle, 0, PIECE).expect("there is room again");
}

/// XFS frees preallocated blocks after it has written dirty ones: seconds on a busy disk, in which a full volume only looks full.
#[test]
fn space_is_being_freed_while_a_file_system_gives_back_what_it_preallocated() {
    let mut world = World::allocating_ahead();
    // Slow, and not silent.
    world.remount_with(|options| options.hang_after_ms = 60_000);
    assert!(!world.fs().is_freeing_space());
    world.tiers[2].hang(&[OperationKind::FreePreallocated]);
    promptly("the request to give back", || world.fs().give_back_room_ahead());
    assert!(world.tiers[2].hanging_calls() > 0 && world.fs().is_freeing_space());
    world.tiers[2].release();
    wait_until("it gave back", || !world.fs().is_freeing_space());
}

#[test]
fn a_file_system_that_does_not_answer_frees_no_space() {
    let world = World::allocating_ahead();
    world.tiers[2].hang(&[OperationKind::FreePreallocated]);
    promptly("the request to give back", || world.fs().give_back_room_ahead());
    world.wait_until_silent(2);
    assert!(!world.fs().is_freeing_space());
    world.tiers[2].release();
    world.wait_until_online(2);
}

#[test]
fn a_tier_that_hangs_in_writes_is_still_read() {
    let world = World::new();
    let (_, handle) = world.file_on(0, "f", BEFORE);
    world.tiers[0].hang(&[OperationKind::Write]);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| write(world.fs(), handle, 50_000, AFTER));
        world.wait_until_silent(0);
        assert_eq!(promptly("a read", || read(world.fs(), handle, 0, 10_000)).expect("read"), BEFORE);
        world.tiers[0].release();
        stuck.join().expect("no panic").expect("written");
    });
}

#[test]
fn a_sync_that_was_not_made_loses_nothing_and_is_made_later() {
    let world = World::new();
    let (ino, handle) = world.file_on(0, "f", BEFORE);
    write(world.fs(), handle, 0, AFTER).expect("written");
    world.tiers[0].hang(&[OperationKind::Write]);
    let (_, other) = world.create_on(1, "other", BEFORE);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let (_, third) = create(world.fs(), "third");
            write(world.fs(), third, 0, BEFORE)
        });
        world.wait_until_silent(0);
        assert_eio(promptly("a sync", || world.sync(handle)));
        promptly("a sync elsewhere", || world.sync(other)).expect("synced");
        assert_eq!(world.fs().locate(ino).expect("located").damaged, []);
        world.tiers[0].release();
        stuck.join().expect("no panic").expect("written");
    });
    world.wait_until_online(0);
    world.sync(handle).expect("now it is made");
    let mut world = world;
    world.crash();
    world.mount();
    assert_eq!(world.content("f").expect("read"), AFTER);
}

#[test]
fn background_work_of_other_tiers_goes_on() {
    let world = World::new();
    for (tier, name) in [(0, "hung"), (1, "fine")] {
        let (_, handle) = world.file_on(tier, name, BEFORE);
        world.fs().release(handle).expect("released");
    }
    let used = world.memory[1].space().expect("answered").used;
    assert!(used > 0);
    world.tiers[0].hang_all();
    let background = BackgroundThreads::start(world.fs(), 1).expect("started");
    for name in ["hung", "fine"] {
        promptly("unlink", || world.fs().unlink(&Caller::root(), Ino::ROOT, name.as_bytes())).expect("unlinked");
    }
    background.wake();
    wait_until("the other tier's bytes are free", || world.memory[1].space().expect("answered").used == 0);
    wait_until("the tier falls silent", || matches!(world.state(0), TierState::NotAnswering(_)));
    assert!(world.memory[0].space().expect("answered").used > 0);
    promptly("the end of the threads", || background.stop()).expect("none panicked");
    world.tiers[0].release();
    wait_until("it is freed there as well", || {
        world.fs().step();
        world.memory[0].space().expect("answered").used == 0
    });
}

#[test]
fn a_mover_that_hangs_is_replaced_and_other_moves_go_on() {
    let world = World::new();
    let (stuck, _) = world.file_on(2, "to-hung", BEFORE);
    let (fine, _) = world.file_on(2, "to-fine", BEFORE);
    world.tiers[0].hang(&[OperationKind::Write]);
    let background = BackgroundThreads::start(world.fs(), 1).expect("started");
    let hung = world.fs().migrate(stuck, "fast", None).expect("taken in");
    background.wake();
    wait_until("the mover hangs", || world.tiers[0].hanging_calls() > 0);
    let job = world.fs().migrate(fine, "middle", None).expect("taken in");
    wait_until("the other move is done", || {
        background.wake();
        world.fs().job(job).is_some_and(|job| job.state == JobState::Done)
    });
    assert_eq!(world.content("to-hung").expect("the source is read"), BEFORE);
    world.tiers[0].release();
    wait_until("the first move is done", || {
        background.wake();
        world.fs().job(hung).is_some_and(|job| job.state == JobState::Done)
    });
    background.stop().expect("none panicked");
    assert_eq!(world.content("to-hung").expect("read"), BEFORE);
}

#[test]
fn an_unmount_ends_although_a_tier_hangs_and_nothing_synced_is_lost() {
    let mut world = World::new();
    world.file_on(0, "synced", BEFORE);
    let (_, handle) = world.file_on(0, "written", BEFORE);
    write(world.fs(), handle, 0, AFTER).expect("written, not synced");
    world.create_on(1, "elsewhere", AFTER);
    world.tiers[0].hang_all();
    let fs = Arc::clone(world.fs());
    let error = promptly("the unmount", || fs.unmount()).expect_err("it is not a clean one");
    assert!(error.to_string().contains("does not answer"), "{error}");
    drop(fs);
    world.tiers[0].release();
    world.crash();
    world.mount();
    assert_eq!(world.content("synced").expect("read"), BEFORE);
    assert_eq!(world.content("elsewhere").expect("synced by the unmount"), AFTER);
    let content = world.content("written").expect("read");
    assert!(content == BEFORE || content == AFTER);
}

#[test]
fn a_tier_that_is_only_slow_is_not_given_up() {
    let world = World::new();
    let (_, handle) = world.file_on(0, "f", BEFORE);
    // One call hangs, and others come back: the tier answers.
    world.tiers[0].hang(&[OperationKind::Truncate]);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let change = polymux_fs::SetAttributes { size: Some(5), ..Default::default() };
            let ino = world.fs().lookup(&Caller::root(), Ino::ROOT, b"f").expect("found").ino;
            world.fs().set_attributes(&Caller::root(), ino, &change)
        });
        wait_until("it hangs", || world.tiers[0].hanging_calls() > 0);
        for _ in 0..40 {
            let (_, other) = create(world.fs(), &format!("g{}", world.fs().status().expect("told").files_open));
            write(world.fs(), other, 0, BEFORE).expect("written");
            world.fs().watch_step();
            thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(world.state(0), TierState::Online);
        }
        world.tiers[0].release();
        stuck.join().expect("no panic").expect("cut");
    });
    read(world.fs(), handle, 0, 10).expect("read");
}

#[test]
fn a_tier_with_calls_that_do_not_return_is_not_forgotten_before_they_do() {
    let world = World::new();
    let (ino, handle) = world.file_on(1, "hung", BEFORE);
    world.tiers[1].hang(&[OperationKind::Write]);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| write(world.fs(), handle, 0, AFTER));
        world.wait_until_silent(1);
        let refused = promptly("a refusal", || world.fs().forget_tier("middle", || panic!("nothing is unlisted")));
        let refused = refused.expect_err("a call is under way").to_string();
        assert!(refused.contains("does not answer") && refused.contains("--degraded"), "{refused}");
        world.tiers[1].release();
        stuck.join().expect("no panic").expect("written");
    });
    world.wait_until_online(1);
    assert_eq!(world.home(ino).as_deref(), Some("middle"), "nothing was forgotten");
    assert_eq!(read(world.fs(), handle, 0, AFTER.len()).expect("read"), AFTER);
}
