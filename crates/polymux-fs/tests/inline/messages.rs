//! Messages that begin in the metadata store (docs/design/0042).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use polymux_fs::{Caller, HandleId, NamedRule, OpenOptions, PolicyKind, RuleMatch, SetAttributes};
use polymux_types::Ino;

use super::common::{
    Hook, HookedTier, Verdict, Volume, close, create_in, make_directory, pattern, read_whole, read_write, write_all,
};
use super::{KIB, MIB, is_inline, sync, touched};

/// Longest message in the store.
const LONGEST: usize = 32 * 1024;
/// Time after which one is idle.
const IDLE: Duration = Duration::from_secs(601);

/// A volume whose first tier also holds the metadata, and a directory in which eight messages were made and removed.
fn queue_of(capacities: &[u64]) -> (Volume, Ino) {
    queue_on(Volume::new(capacities))
}

fn queue_on(mut volume: Volume) -> (Volume, Ino) {
    volume.survive_deaths();
    volume.metadata_tier = Some("fast".to_owned());
    volume.remount();
    let directory = learnt(&volume, "incoming");
    (volume, directory)
}

fn learnt(volume: &Volume, name: &str) -> Ino {
    let directory = make_directory(volume.fs(), name);
    for number in 0..8 {
        let name = format!("first-{number}");
        let (ino, handle) = message(volume, directory, &name, 10_000);
        assert!(!is_inline(volume, ino), "the directory is not known to be one of messages");
        close(volume.fs(), handle).expect("closed");
        remove(volume, directory, &name);
    }
    directory
}

fn queue() -> (Volume, Ino) {
    queue_of(&[64 * MIB, 256 * MIB])
}

/// A file that is written and synced.
fn message(volume: &Volume, directory: Ino, name: &str, length: usize) -> (Ino, HandleId) {
    let (ino, handle) = create_in(volume.fs(), directory, name);
    write_all(volume.fs(), handle, 0, &pattern(5, length)).expect("written");
    sync(volume, handle);
    (ino, handle)
}

fn closed_message(volume: &Volume, directory: Ino, name: &str, length: usize) -> Ino {
    let (ino, handle) = message(volume, directory, name, length);
    close(volume.fs(), handle).expect("closed");
    ino
}

fn remove(volume: &Volume, directory: Ino, name: &str) {
    volume.fs().unlink(&Caller::root(), directory, name.as_bytes()).expect("removed");
}

/// Time passes, and then a minute in which background work is done: a few messages move at once.
fn pass(volume: &Volume, time: Duration) {
    volume.clock.advance(time);
    (0..60).for_each(|_| {
        volume.step();
    });
}

#[test]
fn a_message_is_one_flush_and_touches_no_tier_and_a_longer_file_gets_an_object() {
    let (mut volume, directory) = queue();
    volume.drain();
    let before = (volume.counter("log_flushes"), touched(&volume, 0), touched(&volume, 1));
    let ino = closed_message(&volume, directory, "message", LONGEST);
    let after = (volume.counter("log_flushes"), touched(&volume, 0), touched(&volume, 1));
    assert_eq!(after, (before.0 + 1, before.1, before.2));
    assert!(is_inline(&volume, ino));
    let longer = closed_message(&volume, directory, "longer", LONGEST + 1);
    assert!(!is_inline(&volume, longer));
    let elsewhere = closed_message(&volume, Ino::ROOT, "elsewhere", 10_000);
    assert!(!is_inline(&volume, elsewhere));
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(5, LONGEST));
    assert_eq!(read_whole(volume.fs(), longer).expect("read"), pattern(5, LONGEST + 1));
}

#[test]
fn an_unsynced_message_is_after_a_crash_a_state_that_it_had() {
    for extra in 0..4 {
        let (mut volume, directory) = queue();
        let (ino, handle) = message(&volume, directory, "message", 10_000);
        write_all(volume.fs(), handle, 10_000, &pattern(7, 9000)).expect("written");
        write_all(volume.fs(), handle, 0, &pattern(9, 12_000)).expect("written");
        assert!(is_inline(&volume, ino));
        volume.crash_keeping_transactions(extra);
        let grown = [pattern(5, 10_000), pattern(7, 9000)].concat();
        let overwritten = [pattern(9, 12_000), grown[12_000..].to_vec()].concat();
        let states = [pattern(5, 10_000), grown, overwritten];
        let content = read_whole(volume.fs(), ino).expect("read");
        assert!(states.contains(&content), "{} bytes after {extra} more transactions", content.len());
    }
}

#[test]
fn an_unsynced_message_outlives_the_daemon() {
    let (mut volume, directory) = queue();
    let (ino, handle) = message(&volume, directory, "message", 10_000);
    write_all(volume.fs(), handle, 10_000, &pattern(7, 9000)).expect("written");
    write_all(volume.fs(), handle, 3, b"changed").expect("written");
    volume.kill_daemon();
    let mut expected = [pattern(5, 10_000), pattern(7, 9000)].concat();
    expected[3..10].copy_from_slice(b"changed");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), expected);
}

#[test]
fn a_message_that_is_not_used_any_more_moves_to_an_object() {
    let (mut volume, directory) = queue();
    let (idle, used) =
        (closed_message(&volume, directory, "idle", 20_000), closed_message(&volume, directory, "used", 20_000));
    let (open, handle) = message(&volume, directory, "open", 20_000);
    pass(&volume, IDLE / 2);
    assert!(is_inline(&volume, idle));
    assert_eq!(read_whole(volume.fs(), used).expect("read"), pattern(5, 20_000));
    pass(&volume, IDLE / 2);
    assert_eq!([idle, used, open].map(|ino| is_inline(&volume, ino)), [false, true, true]);
    close(volume.fs(), handle).expect("closed");
    pass(&volume, IDLE * 2);
    assert_eq!([idle, used, open].map(|ino| is_inline(&volume, ino)), [false; 3]);
    assert_eq!(volume.inline_records(), 0);
    volume.crash();
    for ino in [idle, used, open] {
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(5, 20_000));
    }
}

#[test]
fn messages_of_an_earlier_mount_move_as_well_and_small_files_do_not() {
    let (mut volume, directory) = queue();
    let messages: Vec<Ino> =
        (0..200).map(|number| closed_message(&volume, directory, &format!("{number}"), 5000)).collect();
    let small = closed_message(&volume, directory, "small", 3000);
    volume.remount();
    pass(&volume, IDLE);
    assert!(messages.iter().all(|ino| !is_inline(&volume, *ino)));
    assert!(is_inline(&volume, small));
    assert!(messages.iter().all(|ino| read_whole(volume.fs(), *ino).expect("read") == pattern(5, 5000)));
}

#[test]
fn a_file_that_grows_in_small_pieces_moves_to_an_object_and_one_that_grows_by_messages_does_not() {
    let (mut volume, directory) = queue();
    let (boxed, handle) = message(&volume, directory, "box", 8 * 1024);
    for number in 1..4 {
        write_all(volume.fs(), handle, number * 8 * KIB, &pattern(5, 8 * 1024)).expect("written");
        sync(&volume, handle);
        assert!(is_inline(&volume, boxed));
    }
    let (journal, handle) = message(&volume, directory, "journal", 8 * 1024);
    write_all(volume.fs(), handle, 8 * KIB, &pattern(6, 100)).expect("written");
    assert!(!is_inline(&volume, journal), "each sync would log all of it again");
    volume.crash();
    assert_eq!(read_whole(volume.fs(), boxed).expect("read"), pattern(5, 8 * 1024).repeat(4));
    let content = read_whole(volume.fs(), journal).expect("read");
    assert!([pattern(5, 8 * 1024), [pattern(5, 8 * 1024), pattern(6, 100)].concat()].contains(&content));
}

#[test]
fn messages_beyond_a_bound_of_their_bytes_begin_as_objects_until_some_are_removed() {
    let (volume, directory) = queue_of(&[512 * MIB, 512 * MIB]);
    let bound = 64 * MIB / LONGEST as u64;
    for number in 0..bound {
        let ino = closed_message(&volume, directory, &format!("{number}"), LONGEST);
        assert!(is_inline(&volume, ino), "message {number}");
    }
    assert!(!is_inline(&volume, closed_message(&volume, directory, "one more", LONGEST)));
    remove(&volume, directory, "7");
    assert!(is_inline(&volume, closed_message(&volume, directory, "in its place", LONGEST)));
    assert!(!is_inline(&volume, closed_message(&volume, directory, "and another", LONGEST)));
}

#[test]
fn a_message_that_belongs_to_another_tier_begins_there() {
    let (volume, _) = queue();
    let rule = NamedRule {
        matches: RuleMatch { path: Some("slow-mail/**".to_owned()), ..RuleMatch::default() },
        tiers: vec!["slow".to_owned()],
        ..NamedRule::default()
    };
    volume.fs().set_steering(PolicyKind::HotCold, &[rule]).expect("taken");
    let directory = learnt(&volume, "slow-mail");
    let ino = closed_message(&volume, directory, "message", 10_000);
    assert_eq!(volume.fs().locate(ino).expect("located").home.as_deref(), Some("slow"));
}

#[test]
fn messages_begin_in_the_store_of_a_volume_of_one_tier_too() {
    let (volume, directory) = queue_of(&[64 * MIB]);
    for number in 0..3 {
        assert!(is_inline(&volume, closed_message(&volume, directory, &format!("before {number}"), 10_000)));
        // The planner finds that there is one tier.
        pass(&volume, Duration::from_secs(5));
    }
}

#[test]
fn a_message_that_was_cut_to_a_small_file_stays_when_it_is_idle() {
    let (volume, directory) = queue();
    let ino = closed_message(&volume, directory, "message", 20_000);
    super::resize(&volume, ino, 2000);
    pass(&volume, IDLE);
    assert!(is_inline(&volume, ino));
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, 0, &pattern(8, 2000)).expect("written");
    pass(&volume, IDLE);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(8, 2000));
}

#[test]
fn an_overwrite_of_a_message_succeeds_where_no_tier_has_space() {
    let (volume, directory) = queue();
    let (ino, handle) = message(&volume, directory, "message", 20_000);
    (0..2).for_each(|tier| volume.memory(tier).set_capacity(volume.used(tier)));
    pass(&volume, Duration::ZERO);
    write_all(volume.fs(), handle, 100, b"changed").expect("it takes no space");
    assert!(is_inline(&volume, ino));
}

/// Whether all of the old content of a message is there, or all of the new one, after it was emptied, changed by `change`, rewritten in these pieces
/// and closed.
fn is_old_or_new_after_a_crash(change: impl Fn(&Volume, Ino), pieces: &[usize], extra: usize) -> bool {
    let (mut volume, directory) = queue();
    let ino = closed_message(&volume, directory, "message", 10_000);
    let options = OpenOptions { truncate: true, ..read_write() };
    let handle = volume.fs().open(&Caller::root(), ino, options).expect("opened");
    change(&volume, ino);
    let mut new = Vec::new();
    for length in pieces {
        write_all(volume.fs(), handle, new.len() as u64, &pattern(7, *length)).expect("written");
        new.extend(pattern(7, *length));
    }
    close(volume.fs(), handle).expect("closed");
    volume.crash_keeping_transactions(extra);
    let content = read_whole(volume.fs(), ino).expect("read");
    content == pattern(5, 10_000) || content == new
}

#[test]
fn a_message_that_is_emptied_and_rewritten_in_pieces_has_the_old_or_the_new_content_once_it_is_closed() {
    for extra in 0..8 {
        for pieces in [&[5000, 5000][..], &[4096, 5904], &[1000, 1000, 8000], &[20_000], &[300]] {
            let is_whole = is_old_or_new_after_a_crash(|_, _| (), pieces, extra);
            assert!(is_whole, "in pieces of {pieces:?}, after {extra} transactions");
        }
    }
}

/// Its record is logged in between, with nothing in it, so that the old content may be gone; the close waits for the new one.
#[test]
fn a_message_whose_emptying_is_on_record_has_the_new_content_once_it_is_closed() {
    let change = |volume: &Volume, ino| {
        let change = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
        volume.fs().set_attributes(&Caller::root(), ino, &change).expect("changed");
        volume.flush_log();
    };
    for pieces in [&[5000, 5000][..], &[4096, 5904]] {
        assert!(is_old_or_new_after_a_crash(change, pieces, 0), "in pieces of {pieces:?}");
    }
}

/// Stops a sync of a tier, once.
struct StoppedSync {
    is_armed: AtomicBool,
    reached: Barrier,
    goes_on: Barrier,
}

impl Hook for StoppedSync {
    fn before_sync(&self) -> Verdict {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            self.reached.wait();
            self.goes_on.wait();
        }
        Verdict::Pass
    }
}

#[test]
fn a_message_that_is_removed_while_it_moves_leaves_nothing() {
    let stopped =
        Arc::new(StoppedSync { is_armed: AtomicBool::new(false), reached: Barrier::new(2), goes_on: Barrier::new(2) });
    let volume =
        Volume::wrapping(&[64 * MIB, 256 * MIB], |_, tier| Arc::new(HookedTier::new(tier, Arc::clone(&stopped) as _)));
    let (mut volume, directory) = queue_on(volume);
    let ino = closed_message(&volume, directory, "message", 20_000);
    assert!(is_inline(&volume, ino));
    volume.drain();
    volume.clock.advance(IDLE);
    stopped.is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| pass(&volume, Duration::ZERO));
        stopped.reached.wait();
        remove(&volume, directory, "message");
        stopped.goes_on.wait();
    });
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1), volume.inline_records()), (0, 0, 0));
    volume.unmount().expect("unmounted");
    assert_eq!(volume.findings(), Vec::<String>::new());
}
