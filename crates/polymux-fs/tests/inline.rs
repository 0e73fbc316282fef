//! Small files in the metadata store: when they are there, when they leave it, and their state after a crash.

mod common;
#[path = "inline/crashes.rs"]
mod crashes;
#[path = "inline/messages.rs"]
mod messages;
#[path = "inline/room.rs"]
mod room;

use common::{Volume, close, create, errno, find, pattern, read_at, read_only, read_whole, read_write, write_all};
use polymux_fs::{
    Access, AllocateKind, Caller, HandleId, MissingTiers, OpenOptions, RenameMode, SeekTarget, SetAttributes, SyncKind,
    Wait, WriteOrigin,
};
use polymux_tier::Tier;
use polymux_types::{Errno, Ino};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn volume() -> Volume {
    Volume::new(&[64 * KIB, 16 * MIB])
}

fn sync(volume: &Volume, handle: HandleId) {
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
}

fn resize(volume: &Volume, ino: Ino, size: u64) {
    let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("resized");
}

fn committed(volume: &Volume) -> u64 {
    volume.fs().status().expect("answered").transactions_committed
}

fn is_inline(volume: &Volume, ino: Ino) -> bool {
    let location = volume.fs().locate(ino).expect("located");
    assert_eq!(location.bytes_inline > 0, location.shares.is_empty() && location.size > 0);
    location.bytes_inline > 0
}

/// Objects made, writes and syncs on a tier so far.
fn touched(volume: &Volume, index: usize) -> (u64, u64, u64) {
    let counters = volume.memory(index).counters();
    (counters.creates, counters.writes, counters.syncs + counters.syncs_all)
}

#[test]
fn creating_writing_and_syncing_a_small_file_is_one_flush_and_touches_no_tier() {
    let volume = volume();
    let (_, warm_up) = create(volume.fs(), "numbers are reserved");
    sync(&volume, warm_up);
    let before = (volume.counter("log_flushes"), touched(&volume, 0), touched(&volume, 1));
    for name in ["a", "b", "c"] {
        let (ino, handle) = create(volume.fs(), name);
        write_all(volume.fs(), handle, 0, &pattern(1, 4096)).expect("written");
        sync(&volume, handle);
        assert!(is_inline(&volume, ino));
    }
    let after = (volume.counter("log_flushes"), touched(&volume, 0), touched(&volume, 1));
    assert_eq!(after, (before.0 + 3, before.1, before.2));
}

#[test]
fn a_small_file_leaves_the_metadata_store_when_it_grows_beyond_the_limit() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    let data = pattern(1, 4097);
    write_all(volume.fs(), handle, 0, &data[..4096]).expect("written");
    sync(&volume, handle);
    let location = volume.fs().locate(ino).expect("located");
    assert_eq!((location.home, location.bytes_inline), (None, 4096));
    assert_eq!(location.extents[0].tier.as_deref(), Some("in the metadata store"));
    assert_eq!((volume.inline_records(), volume.used(0)), (1, 0));
    write_all(volume.fs(), handle, 4096, &data[4096..]).expect("written");
    let location = volume.fs().locate(ino).expect("located");
    assert_eq!((location.home.as_deref(), location.bytes_inline), (Some("fast"), 0));
    assert_eq!((volume.inline_records(), volume.counter("inline_moves")), (0, 1));
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    sync(&volume, handle);
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
}

#[test]
fn a_file_whose_bytes_were_never_logged_grows_into_an_object_without_a_sync() {
    let volume = volume();
    let (_, handle) = create(volume.fs(), "f");
    for offset in 0..100 {
        write_all(volume.fs(), handle, offset * 100, &pattern(1, 100)).expect("written");
    }
    let (creates, _, syncs) = touched(&volume, 0);
    assert_eq!((creates, syncs), (1, 0), "nothing durable was replaced");
}

#[test]
fn writes_reach_the_log_at_close_sync_rename_and_the_periodic_flush_only() {
    let volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    let write = |seed: u8| {
        let before = committed(&volume);
        for offset in 0..40 {
            write_all(volume.fs(), handle, offset * 100, &pattern(seed, 100)).expect("written");
        }
        assert_eq!(committed(&volume), before, "a write logs nothing");
    };
    let logged = |what: &str| {
        let before = volume.store();
        let key = [0, 0, 0, 0, b'b'].iter().copied().chain(ino.0.to_be_bytes()).collect::<Vec<u8>>();
        let record = polymux_meta::MetadataStore::get(&*before, &key).expect("answered");
        let record = record.unwrap_or_else(|| panic!("{what} logs it"));
        record[5..record.len() - 4].to_vec()
    };
    write(1);
    sync(&volume, handle);
    assert_eq!(logged("fsync")[..100], pattern(1, 100));
    write(3);
    volume.fs().rename(&Caller::root(), Ino::ROOT, b"f", Ino::ROOT, b"g", RenameMode::Replace).expect("renamed");
    assert_eq!(logged("rename")[..100], pattern(3, 100));
    write(5);
    volume.clock.advance(std::time::Duration::from_secs(6));
    volume.step();
    assert_eq!(logged("the periodic flush")[..100], pattern(5, 100));
    write(7);
    volume.fs().flush(&Caller::root(), handle).expect("flushed");
    assert_eq!(logged("close")[..100], pattern(7, 100));
    write(9);
    volume.fs().release(handle).expect("released");
    assert_eq!(logged("the last close")[..100], pattern(9, 100));
}

#[test]
fn the_interval_of_the_periodic_flush_is_an_option() {
    let mut volume = volume();
    volume.options.flush_interval_ms = 500;
    volume.remount();
    volume.step();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, b"soon").expect("written");
    volume.step();
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"soon");
}

#[test]
fn opening_reading_and_a_remount_leave_a_small_file_where_it_is() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 3000)).expect("written");
    close(volume.fs(), handle).expect("closed");
    for _ in 0..2 {
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(1, 3000));
        let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
        write_all(volume.fs(), handle, 0, &pattern(1, 10)).expect("written");
        close(volume.fs(), handle).expect("closed");
        assert!(is_inline(&volume, ino));
        volume.remount();
        assert_eq!(find(volume.fs(), "f").size, 3000, "the size is in the inode record");
    }
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}

#[test]
fn a_small_file_with_holes_is_all_data_and_has_blocks() {
    let volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 2000, b"end").expect("written");
    assert!(is_inline(&volume, ino));
    let mut expected = vec![0; 2000];
    expected.extend_from_slice(b"end");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), expected);
    // As programs that copy holes understand it: a file without blocks would be one hole.
    assert_eq!(find(volume.fs(), "f").blocks, 4);
    let seek = |offset, target| volume.fs().seek(&Caller::root(), handle, offset, target);
    assert_eq!(seek(100, SeekTarget::Data).expect("found"), 100);
    assert_eq!(seek(100, SeekTarget::Hole).expect("found"), 2003);
    assert_eq!(errno(seek(2003, SeekTarget::Data)), Errno::ENXIO);
}

#[test]
fn punching_and_zeroing_keep_a_small_file_inline_and_reserving_does_not() {
    let volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    let mut data = pattern(1, 3000);
    write_all(volume.fs(), handle, 0, &data).expect("written");
    let allocate = |offset, length, kind| volume.fs().allocate(&Caller::root(), handle, offset, length, kind);
    allocate(100, 200, AllocateKind::PunchHole).expect("punched");
    allocate(2900, 5000, AllocateKind::PunchHole).expect("punched");
    allocate(500, 10, AllocateKind::ZeroRange).expect("zeroed");
    allocate(600, 10, AllocateKind::ZeroRangeKeepSize).expect("zeroed");
    for range in [100..300, 2900..3000, 500..510, 600..610] {
        data[range].fill(0);
    }
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    assert!(is_inline(&volume, ino));
    allocate(0, 3500, AllocateKind::Extend).expect("reserved");
    data.resize(3500, 0);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), data);
    assert!(!is_inline(&volume, ino), "room is reserved on a tier");
    let (zeroed, handle) = create(volume.fs(), "zeroed");
    write_all(volume.fs(), handle, 0, &pattern(3, 100)).expect("written");
    volume.fs().allocate(&Caller::root(), handle, 50, 100, AllocateKind::ZeroRange).expect("zeroed");
    let mut expected = pattern(3, 50);
    expected.resize(150, 0);
    assert_eq!(read_whole(volume.fs(), zeroed).expect("read"), expected);
}

#[test]
fn a_small_file_shrinks_and_grows_without_showing_old_bytes() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 4000)).expect("written");
    close(volume.fs(), handle).expect("closed");
    resize(&volume, ino, 100);
    resize(&volume, ino, 4096);
    let mut expected = pattern(1, 100);
    expected.resize(4096, 0);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), expected);
    assert!(is_inline(&volume, ino));
    volume.flush_log();
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("a change by path is logged at once"), expected);
    resize(&volume, ino, 10 * MIB);
    assert!(!is_inline(&volume, ino), "a long hole is an object's");
    expected.resize(10 << 20, 0);
    assert!(read_whole(volume.fs(), ino).expect("read") == expected);
    assert!(volume.used(0) + volume.used(1) <= 8192, "a hole takes no room");
    resize(&volume, ino, 0);
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, 0, b"small again").expect("written");
    close(volume.fs(), handle).expect("closed");
    assert!(is_inline(&volume, ino), "a file that is written anew is placed anew");
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}

#[test]
fn names_of_a_small_file_share_its_bytes_and_the_last_one_takes_them_along() {
    let volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, b"shared").expect("written");
    volume.fs().link(&Caller::root(), ino, Ino::ROOT, b"g").expect("linked");
    close(volume.fs(), handle).expect("closed");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
    let handle = volume.fs().open(&Caller::root(), find(volume.fs(), "g").ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, 6, b" bytes").expect("written");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"g").expect("unlinked");
    assert_eq!(read_at(volume.fs(), handle, 0, 100).expect("it is still open"), b"shared bytes");
    sync(&volume, handle);
    assert_eq!(volume.inline_records(), 1);
    volume.fs().release(handle).expect("closed");
    assert_eq!(volume.inline_records(), 0);
}

#[test]
fn replacing_by_rename_needs_no_flush_and_leaves_the_old_or_the_new_content() {
    for extra in 0..8 {
        let mut volume = volume();
        let (_, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, b"old").expect("written");
        close(volume.fs(), handle).expect("closed");
        volume.fs().sync_volume().expect("synced");
        let flushes = volume.counter("log_flushes");
        let (_, handle) = create(volume.fs(), "f.new");
        write_all(volume.fs(), handle, 0, b"new").expect("written");
        // Without a close before it: the bytes go with the rename.
        let rename = |from: &[u8], to: &[u8]| {
            volume.fs().rename(&Caller::root(), Ino::ROOT, from, Ino::ROOT, to, RenameMode::Replace)
        };
        rename(b"f.new", b"f").expect("renamed");
        assert_eq!(volume.counter("log_flushes"), flushes);
        volume.crash_keeping_transactions(extra);
        let content = read_whole(volume.fs(), find(volume.fs(), "f").ino).expect("read");
        assert!(content == b"old" || content == b"new", "{content:?}");
        assert!(extra < 4 || content == b"new", "the rename was in the log");
    }
}

#[test]
fn emptying_and_writing_a_small_file_leaves_the_old_or_the_new_content_at_any_moment() {
    for flush_between in [false, true] {
        let mut volume = volume();
        let (ino, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, b"old").expect("written");
        sync(&volume, handle);
        close(volume.fs(), handle).expect("closed");
        let flushes = volume.counter("log_flushes");
        let options = OpenOptions { truncate: true, ..read_write() };
        let handle = volume.fs().open(&Caller::root(), ino, options).expect("opened");
        assert_eq!(find(volume.fs(), "f").size, 0);
        if flush_between {
            volume.flush_log();
        }
        write_all(volume.fs(), handle, 0, b"new").expect("written");
        close(volume.fs(), handle).expect("closed");
        assert_eq!(volume.counter("log_flushes"), flushes, "the close needs no flush");
        volume.crash();
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"old", "nothing was flushed since");
    }
}

#[test]
fn a_large_file_that_becomes_a_small_one_is_durable_when_it_is_closed() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 50_000)).expect("written");
    sync(&volume, handle);
    close(volume.fs(), handle).expect("closed");
    let options = OpenOptions { truncate: true, ..read_write() };
    let handle = volume.fs().open(&Caller::root(), ino, options).expect("opened");
    volume.flush_log();
    write_all(volume.fs(), handle, 0, b"small").expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"small");
}

#[test]
fn without_the_option_small_files_are_objects_and_older_ones_stay_readable() {
    let mut volume = volume();
    let (old, handle) = create(volume.fs(), "old");
    write_all(volume.fs(), handle, 0, b"inline").expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.unmount().expect("unmounted");
    volume.options.inline_size_max = 0;
    volume.mount().expect("mounted");
    let (new, handle) = create(volume.fs(), "new");
    write_all(volume.fs(), handle, 0, b"x").expect("written");
    assert!(!is_inline(&volume, new));
    assert_eq!(read_whole(volume.fs(), old).expect("read"), b"inline");
    assert!(is_inline(&volume, old));
    let handle = volume.fs().open(&Caller::root(), old, read_write()).expect("opened");
    write_all(volume.fs(), handle, 2, b"LINE").expect("written");
    assert!(!is_inline(&volume, old));
    assert_eq!(read_whole(volume.fs(), old).expect("read"), b"inLINE");
}

#[test]
fn small_files_need_no_tier_to_be_read_or_written() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, b"here").expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.unmount().expect("unmounted");
    volume.set_missing(0, true);
    volume.options.missing = MissingTiers::Degraded;
    volume.mount().expect("mounted");
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, 4, b" and there").expect("written");
    sync(&volume, handle);
    close(volume.fs(), handle).expect("closed");
    volume.unmount().expect("unmounted");
    volume.options.access = Access::ReadOnly;
    volume.mount().expect("mounted read-only");
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"here and there");
    let refused = volume.fs().open(&Caller::root(), ino, read_write());
    assert_eq!(errno(refused), Errno::EROFS);
}

#[test]
fn a_write_that_must_not_wait_changes_a_small_file_and_does_not_move_it() {
    let volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, b"a").expect("written");
    sync(&volume, handle);
    let caller = Caller { wait: Wait::Never, ..Caller::root() };
    let write = |offset, data: &[u8]| volume.fs().write(&caller, handle, offset, data, WriteOrigin::Call);
    assert_eq!(write(1, b"b").expect("written"), 1);
    assert_eq!(errno(write(2, &pattern(1, 5000))), Errno::EAGAIN);
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), b"ab");
    let reader = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    let mut buffer = [0; 8];
    assert_eq!(volume.fs().read(&caller, reader, 0, &mut buffer).expect("read"), 2);
}

#[test]
fn copies_between_small_files_stay_in_the_metadata_store() {
    let volume = volume();
    let (_, from) = create(volume.fs(), "from");
    let (target, to) = create(volume.fs(), "to");
    write_all(volume.fs(), from, 0, &pattern(1, 4000)).expect("written");
    let copied = volume.fs().copy_range(&Caller::root(), from, 10, to, 0, 9999).expect("copied");
    assert_eq!(copied, 3990);
    assert_eq!(read_whole(volume.fs(), target).expect("read"), pattern(1, 4000)[10..]);
    assert!(is_inline(&volume, target));
}

#[test]
fn readers_beside_a_writer_of_a_small_file_see_whole_writes_also_when_it_grows() {
    let volume = volume();
    let fs = volume.fs();
    for round in 0..30 {
        let (ino, writer) = create(fs, &format!("f{round}"));
        write_all(fs, writer, 0, &[0; 512]).expect("written");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..=200_u8 {
                    write_all(fs, writer, 0, &[value; 512]).expect("written");
                    if value == 100 {
                        write_all(fs, writer, 512, &[value; 8192]).expect("grown into an object");
                    }
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let reader = fs.open(&Caller::root(), ino, read_only()).expect("opened");
                    let mut last = 0;
                    while last < 90 {
                        let read = read_at(fs, reader, 0, 512).expect("read");
                        assert_eq!(read.len(), 512);
                        assert!(read.iter().all(|byte| *byte == read[0]), "a torn write: {read:?}");
                        assert!(read[0] >= last, "from {last} back to {}", read[0]);
                        last = read[0];
                    }
                    fs.release(reader).expect("closed");
                });
            }
        });
        close(fs, writer).expect("closed");
        assert_eq!(read_whole(fs, ino).expect("read").len(), 512 + 8192);
    }
}
