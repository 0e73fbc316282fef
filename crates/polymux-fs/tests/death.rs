//! The death of the daemon, and of nothing else: acknowledged data is there after the next mount, synced or not
//! (docs/design/0023). A power failure keeps to the rules that it always had.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{StoreHook, Volume, close, create, find, pattern, read_only, read_whole, read_write, write_all};
use polymux_fs::{
    Access, AllocateKind, Caller, HandleId, OpenOptions, Permissions, PolicyKind, SetAttributes, SyncKind,
};
use polymux_meta::{Batch, StoreError};
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Of spread volumes.
const RANGE: u64 = 64 * KIB;

fn volume() -> Volume {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    volume.survive_deaths();
    volume
}

fn spread_volume() -> Volume {
    let mut volume = Volume::new(&[16 * MIB; 3]);
    volume.options.spread_range_bytes = 64 << 10;
    volume.policy = Some(PolicyKind::Spread);
    volume.survive_deaths();
    volume
}

fn open_with(volume: &Volume, ino: Ino, options: OpenOptions) -> HandleId {
    volume.fs().open(&Caller::root(), ino, options).expect("opened")
}

fn sync(volume: &Volume, handle: HandleId) {
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
}

fn resize(volume: &Volume, ino: Ino, size: u64) {
    let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("resized");
}

fn content(volume: &Volume, name: &str) -> Vec<u8> {
    read_whole(volume.fs(), find(volume.fs(), name).ino).expect("read")
}

fn assert_sound(mut volume: Volume) {
    volume.unmount().expect("unmounted");
    assert_eq!(volume.findings(), [] as [String; 0]);
}

#[test]
fn what_was_written_to_a_small_file_that_is_open_outlives_the_daemon() {
    let mut volume = volume();
    let (_, handle) = create(volume.fs(), "written");
    write_all(volume.fs(), handle, 0, &pattern(1, 700)).expect("written");
    write_all(volume.fs(), handle, 700, &pattern(2, 1)).expect("appended");
    write_all(volume.fs(), handle, 100, &pattern(3, 50)).expect("overwritten");
    let (cut, handle) = create(volume.fs(), "cut");
    write_all(volume.fs(), handle, 0, &pattern(4, 900)).expect("written");
    sync(&volume, handle);
    resize(&volume, cut, 333);
    let (_, handle) = create(volume.fs(), "punched");
    write_all(volume.fs(), handle, 0, &pattern(5, 900)).expect("written");
    volume.fs().allocate(&Caller::root(), handle, 10, 100, AllocateKind::PunchHole).expect("punched");
    let (emptied, handle) = create(volume.fs(), "emptied");
    write_all(volume.fs(), handle, 0, &pattern(6, 900)).expect("written");
    close(volume.fs(), handle).expect("closed");
    open_with(&volume, emptied, OpenOptions { truncate: true, ..read_write() });
    let mut expected = [pattern(1, 700), pattern(2, 1)].concat();
    expected[100..150].copy_from_slice(&pattern(3, 50));
    let mut punched = pattern(5, 900);
    punched[10..110].fill(0);
    volume.kill_daemon();
    for _ in 0..2 {
        assert_eq!(content(&volume, "written"), expected);
        assert_eq!(content(&volume, "cut"), pattern(4, 900)[..333]);
        assert_eq!(content(&volume, "punched"), punched);
        assert_eq!(content(&volume, "emptied"), b"");
        // It is as durable as the data that any mount finds.
        volume.flush_log();
        volume.crash();
    }
    assert_sound(volume);
}

#[test]
fn after_a_power_failure_a_small_file_is_what_was_logged_although_notes_were_made() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 700)).expect("written");
    close(volume.fs(), handle).expect("closed");
    let handle = open_with(&volume, ino, OpenOptions { truncate: true, ..read_write() });
    write_all(volume.fs(), handle, 0, &pattern(2, 300)).expect("written");
    volume.flush_log();
    volume.crash();
    assert_eq!(content(&volume, "f"), pattern(1, 700), "old or new, and it was not closed");
}

#[test]
fn a_note_never_comes_after_what_was_logged_later() {
    let mut volume = volume();
    let names = ["closed", "grown", "cut to nothing", "written again"];
    let made: Vec<_> = names.iter().map(|name| create(volume.fs(), name)).collect();
    for (_, handle) in &made {
        write_all(volume.fs(), *handle, 0, &pattern(1, 700)).expect("written");
        sync(&volume, *handle);
        write_all(volume.fs(), *handle, 0, &pattern(2, 800)).expect("written");
    }
    close(volume.fs(), made[0].1).expect("closed");
    write_all(volume.fs(), made[1].1, 800, &pattern(3, 9000)).expect("written");
    write_all(volume.fs(), made[2].1, 0, &pattern(3, 9000)).expect("written");
    let handle = open_with(&volume, made[2].0, OpenOptions { truncate: true, ..read_write() });
    write_all(volume.fs(), handle, 0, b"small again").expect("written");
    close(volume.fs(), handle).expect("closed");
    sync(&volume, made[3].1);
    write_all(volume.fs(), made[3].1, 5, b"last").expect("written");
    let (gone, handle) = create(volume.fs(), "gone");
    write_all(volume.fs(), handle, 0, b"never seen again").expect("written");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"gone").expect("unlinked");
    let mut last = pattern(2, 800);
    last[5..9].copy_from_slice(b"last");
    volume.kill_daemon();
    assert_eq!(content(&volume, names[0]), pattern(2, 800));
    assert_eq!(content(&volume, names[1]), [pattern(2, 800), pattern(3, 9000)].concat());
    assert_eq!(content(&volume, names[2]), b"small again");
    assert_eq!(content(&volume, names[3]), last);
    let lost = volume.fs().attributes(&Caller::root(), gone);
    assert_eq!(lost.expect_err("it had no name").errno(), Errno::ENOENT);
    assert_sound(volume);
}

#[test]
fn more_small_files_than_there_is_room_for_notes_outlive_the_daemon() {
    const FILES: u32 = 17_000;
    let mut volume = volume();
    for file in 0..FILES {
        let (_, handle) = create(volume.fs(), &file.to_string());
        write_all(volume.fs(), handle, 0, &file.to_le_bytes()).expect("written");
    }
    assert!(volume.counter("notes_without_room") > 10_000);
    let handle = open_with(&volume, find(volume.fs(), "16999").ino, read_write());
    write_all(volume.fs(), handle, 4, b"more").expect("written without room for a note");
    volume.kill_daemon();
    for file in 0..FILES {
        let expected =
            if file == 16_999 { [&file.to_le_bytes()[..], b"more"].concat() } else { file.to_le_bytes().to_vec() };
        assert_eq!(content(&volume, &file.to_string()), expected, "file {file}");
    }
    // There is free space again.
    let handle = open_with(&volume, find(volume.fs(), "1").ino, read_write());
    write_all(volume.fs(), handle, 0, b"anew").expect("written");
    assert_eq!(volume.counter("notes_without_room"), 0);
    volume.kill_daemon();
    assert_eq!(content(&volume, "1"), b"anew");
}

#[test]
fn a_note_goes_when_the_file_is_logged_deleted_or_outgrows_the_limit() {
    let mut volume = volume();
    for file in 0..6000_u32 {
        let name = file.to_string();
        let (_, handle) = create(volume.fs(), &name);
        write_all(volume.fs(), handle, 0, &file.to_le_bytes()).expect("written");
        match file % 4 {
            0 => sync(&volume, handle),
            1 => write_all(volume.fs(), handle, 4, &pattern(1, 5000)).expect("grown"),
            2 => {}
            _ => volume.fs().unlink(&Caller::root(), Ino::ROOT, name.as_bytes()).expect("unlinked"),
        }
        if file % 4 != 0 || file > 4000 {
            close(volume.fs(), handle).expect("closed");
        }
    }
    assert_eq!(volume.counter("notes_without_room"), 0);
    volume.kill_daemon();
    assert_sound(volume);
}

/// Writes streams to a spread volume without a sync; returns the expected content of each file.
fn grow_everywhere(volume: &Volume) -> Vec<(&'static str, Vec<u8>)> {
    let data = pattern(3, 3 * 1024 * 1024);
    let bytes = |count: u64| data[..usize::try_from(count).expect("small")].to_vec();
    let mut files = Vec::new();
    let grown = |name: &'static str, length: u64| {
        let (ino, handle) = create(volume.fs(), name);
        for (index, chunk) in bytes(length).chunks(10_000).enumerate() {
            write_all(volume.fs(), handle, index as u64 * 10_000, chunk).expect("written");
        }
        (ino, handle)
    };
    grown("grown", 20 * RANGE + 777);
    files.push(("grown", bytes(20 * RANGE + 777)));
    let (_, handle) = grown("synced and grown", 9 * RANGE);
    sync(volume, handle);
    write_all(volume.fs(), handle, 9 * RANGE, &bytes(5 * RANGE + 1)).expect("written");
    files.push(("synced and grown", [bytes(9 * RANGE), bytes(5 * RANGE + 1)].concat()));
    let (ino, _) = grown("cut", 12 * RANGE);
    resize(volume, ino, 5 * RANGE + 11);
    files.push(("cut", bytes(5 * RANGE + 11)));
    let (ino, handle) = grown("cut and grown", 12 * RANGE);
    resize(volume, ino, 2 * RANGE + 11);
    write_all(volume.fs(), handle, 2 * RANGE + 11, &bytes(6 * RANGE)).expect("written");
    files.push(("cut and grown", [bytes(2 * RANGE + 11), bytes(6 * RANGE)].concat()));
    let (_, handle) = grown("with a hole", 3 * RANGE);
    write_all(volume.fs(), handle, 11 * RANGE + 5, b"behind a hole").expect("written");
    let hole = vec![0; usize::try_from(8 * RANGE + 5).expect("small")];
    files.push(("with a hole", [bytes(3 * RANGE), hole, b"behind a hole".to_vec()].concat()));
    let (ino, _) = grown("extended", 4 * RANGE);
    resize(volume, ino, 7 * RANGE + 3);
    let zeros = vec![0; usize::try_from(3 * RANGE + 3).expect("small")];
    files.push(("extended", [bytes(4 * RANGE), zeros].concat()));
    grown("small", 3000);
    files.push(("small", bytes(3000)));
    files
}

#[test]
fn the_end_of_a_file_that_grows_over_several_tiers_outlives_the_daemon() {
    let mut volume = spread_volume();
    let files = grow_everywhere(&volume);
    assert_eq!(volume.counter("spread_floors"), 2, "only the sync, and making one longer, put a size on record");
    volume.kill_daemon();
    // Before anything else asks for their sizes it dies again.
    volume.kill_daemon();
    for (name, expected) in &files {
        assert!(content(&volume, name) == *expected, "{name}");
    }
    let (name, expected) = &files[0];
    let handle = open_with(&volume, find(volume.fs(), name).ino, read_write());
    write_all(volume.fs(), handle, expected.len() as u64, b"and on").expect("appended");
    volume.kill_daemon();
    assert!(content(&volume, name) == [&expected[..], b"and on"].concat());
    volume.drain();
    volume.remount();
    for (name, expected) in &files[1..] {
        assert!(content(&volume, name) == *expected, "{name} after a clean stop");
    }
    volume.flush_log();
    volume.crash();
    for (name, expected) in &files[1..] {
        assert!(content(&volume, name) == *expected, "{name} after a power failure much later");
    }
    assert_sound(volume);
}

#[test]
fn a_power_failure_leaves_a_spread_file_as_its_last_sync_did_although_memory_outlives_the_daemon() {
    let mut volume = spread_volume();
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(3, 9 * 65_536)).expect("written");
    sync(&volume, handle);
    write_all(volume.fs(), handle, 9 * RANGE, &pattern(4, 5 * 65_536)).expect("written");
    volume.flush_log();
    volume.crash();
    assert!(content(&volume, "f") == pattern(3, 9 * 65_536));
}

#[test]
fn sizes_that_were_not_asked_before_a_stop_in_order_are_asked_after_it() {
    let mut volume = spread_volume();
    let files = grow_everywhere(&volume);
    volume.options.access = Access::ReadOnly;
    volume.kill_daemon();
    volume.unmount().expect("a mount that changes nothing ends");
    volume.options.access = Access::ReadWrite;
    volume.mount().expect("mounted");
    for (name, expected) in &files {
        assert!(content(&volume, name) == *expected, "{name}");
    }
    assert_sound(volume);
}

#[test]
fn set_id_bits_that_a_write_took_away_do_not_come_back_when_the_daemon_dies() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 9000)).expect("written");
    let set = |bits| SetAttributes { permissions: Some(bits), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &set(0o6777)).expect("set");
    let somebody = Caller { uid: 7, gid: 7, permissions: Permissions::Checked, ..Caller::root() };
    let origin = polymux_fs::WriteOrigin::Call;
    volume.fs().write(&somebody, handle, 0, b"x", origin).expect("written");
    volume.kill_daemon();
    assert_eq!(find(volume.fs(), "f").permissions, 0o777);
}

/// Refuses commits after a number of them, as if the daemon died there.
struct DiesAfter(AtomicI64);

impl StoreHook for DiesAfter {
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        if self.0.fetch_sub(1, Ordering::SeqCst) <= 0 { Err(StoreError::Io("it died".to_owned())) } else { Ok(()) }
    }
}

#[test]
fn a_daemon_that_dies_while_it_takes_up_what_the_last_one_left_loses_nothing_either() {
    let mut volume = volume();
    let names: Vec<String> = (0..5).map(|file| format!("f{file}")).collect();
    let hook = Arc::new(DiesAfter(AtomicI64::new(i64::MAX)));
    volume.hook_store(Arc::clone(&hook) as _);
    for name in &names {
        let (_, handle) = create(volume.fs(), name);
        write_all(volume.fs(), handle, 0, name.as_bytes()).expect("written");
    }
    let mut failures = 0;
    for commits in 0.. {
        hook.0.store(commits, Ordering::SeqCst);
        volume.let_daemon_die();
        if volume.mount().is_ok() {
            break;
        }
        failures += 1;
    }
    hook.0.store(i64::MAX, Ordering::SeqCst);
    assert!(failures >= 5, "each file was taken up by a transaction of its own: {failures}");
    for name in &names {
        assert_eq!(content(&volume, name), name.as_bytes());
    }
}

#[test]
fn a_clean_stop_leaves_nothing_to_be_taken_up() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, b"first").expect("written");
    volume.remount();
    let handle = open_with(&volume, ino, read_write());
    write_all(volume.fs(), handle, 0, b"other").expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.kill_daemon();
    assert_eq!(content(&volume, "f"), b"other");
    close(volume.fs(), open_with(&volume, ino, read_only())).expect("closed");
    assert_sound(volume);
}

/// Each fault that shows only when the daemon dies is seen by one of these tests.
#[cfg(feature = "planted-faults")]
#[test]
fn faults_that_only_the_death_of_the_daemon_shows_are_seen() {
    use polymux_fs::{FoundBy, PlantedFault};
    let seen_by: [(PlantedFault, fn()); 4] = [
        (PlantedFault::InlineNoteForgotten, what_was_written_to_a_small_file_that_is_open_outlives_the_daemon),
        (PlantedFault::InlineNoteStays, a_note_goes_when_the_file_is_logged_deleted_or_outgrows_the_limit),
        (PlantedFault::SpreadSizeNotAsked, the_end_of_a_file_that_grows_over_several_tiers_outlives_the_daemon),
        (PlantedFault::SetIdNotLogged, set_id_bits_that_a_write_took_away_do_not_come_back_when_the_daemon_dies),
    ];
    let is_meant = |fault: &PlantedFault| fault.found_by() == FoundBy::DeathOfTheDaemon;
    let meant = PlantedFault::ALL.into_iter().filter(is_meant);
    assert!(meant.eq(seen_by.iter().map(|(fault, _)| *fault)), "each of them has its test here");
    for (fault, test) in seen_by {
        PlantedFault::plant(Some(fault));
        let outcome = std::panic::catch_unwind(test);
        PlantedFault::plant(None);
        assert!(outcome.is_err(), "{fault:?} is not seen");
    }
}
