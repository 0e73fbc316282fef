//! Stops without warning. The tiers and the store keep exactly the data that they confirmed as durable, unless a test makes more
//! of it durable by hand, as a kernel that writes back on its own would.

mod common;

use common::{
    Volume, close, create, errno, find, finish_job, make_directory, pattern, read_at, read_only, read_whole,
    read_write, write_all,
};
use polymux_fs::{Caller, HandleId, OpenOptions, Progress, RenameMode, SetAttributes, SetTime, SyncKind};
use polymux_tier::{ObjectRef, Tier, Wait};
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Errno, Ino, TierId, Timestamp};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn volume() -> Volume {
    Volume::new(&[64 * KIB, 16 * MIB])
}

fn sync(volume: &Volume, handle: polymux_fs::HandleId) {
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
}

fn exists(volume: &Volume, name: &str) -> bool {
    match volume.fs().lookup(&Caller::root(), Ino::ROOT, name.as_bytes()) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.errno(), Errno::ENOENT);
            false
        }
    }
}

#[test]
fn what_was_synced_is_there_after_a_crash() {
    let mut volume = volume();
    let place = make_directory(volume.fs(), "d");
    let (ino, handle) = common::create_in(volume.fs(), place, "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 150_000)).expect("written");
    volume.fs().set_xattr(&Caller::root(), ino, b"user.a", b"v", polymux_fs::XattrMode::Create).expect("set");
    sync(&volume, handle);
    volume.crash();
    let found = volume.fs().lookup(&Caller::root(), place, b"f").expect("the name is there");
    assert_eq!((found.ino, found.size), (ino, 150_000));
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(1, 150_000));
    assert_eq!(volume.fs().xattr(&Caller::root(), ino, b"user.a").expect("there"), b"v");
}

#[test]
fn a_data_sync_keeps_the_size_of_an_append() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 5000)).expect("written");
    sync(&volume, handle);
    write_all(volume.fs(), handle, 5000, &pattern(3, 3000)).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), [pattern(1, 5000), pattern(3, 3000)].concat());
}

#[test]
fn each_write_of_a_synchronous_description_survives() {
    let mut volume = volume();
    let options = OpenOptions { synchronous: true, ..read_write() };
    let (made, handle) = volume.fs().create(&Caller::root(), Ino::ROOT, b"f", 0o644, options).expect("made");
    write_all(volume.fs(), handle, 0, &pattern(1, 100_000)).expect("written");
    volume.crash();
    assert_eq!(read_whole(volume.fs(), made.ino).expect("read"), pattern(1, 100_000));
}

#[test]
fn an_unsynced_file_may_vanish_and_nothing_else_is_touched() {
    let mut volume = volume();
    let (kept, handle) = create(volume.fs(), "kept");
    write_all(volume.fs(), handle, 0, &pattern(1, 30_000)).expect("written");
    sync(&volume, handle);
    let (lost, handle) = create(volume.fs(), "lost");
    write_all(volume.fs(), handle, 0, &pattern(3, 200_000)).expect("written");
    volume.crash();
    assert_eq!(read_whole(volume.fs(), kept).expect("read"), pattern(1, 30_000));
    assert!(!exists(&volume, "lost"), "nobody made its name durable");
    let (new, _) = create(volume.fs(), "new");
    assert_ne!(new, lost, "numbers are never used twice");
    volume.drain();
    assert_eq!(volume.used(0) + volume.used(1), 32_768, "no space is lost");
}

#[test]
fn replacing_by_rename_without_a_sync_gives_the_old_or_the_new_content() {
    for flushed in [false, true] {
        let mut volume = volume();
        let (_, handle) = create(volume.fs(), "f");
        write_all(volume.fs(), handle, 0, &pattern(1, 20_000)).expect("written");
        sync(&volume, handle);
        close(volume.fs(), handle).expect("closed");
        let (_, handle) = create(volume.fs(), "f.new");
        write_all(volume.fs(), handle, 0, &pattern(3, 90_000)).expect("written");
        close(volume.fs(), handle).expect("closed");
        volume
            .fs()
            .rename(&Caller::root(), Ino::ROOT, b"f.new", Ino::ROOT, b"f", RenameMode::Replace)
            .expect("renamed");
        if flushed {
            // The log becomes durable by the flush of another caller; the data of the file was not synced.
            volume.flush_log();
        }
        volume.crash();
        let content = read_whole(volume.fs(), find(volume.fs(), "f").ino).expect("read");
        assert!(content == pattern(1, 20_000) || content == pattern(3, 90_000), "{} bytes", content.len());
        assert!(!flushed || content.len() == 90_000, "the rename was durable");
    }
}

/// Whatever part of the log a crash leaves: the old name is that of the file, or of a whiteout once the file has the new one.
#[test]
fn a_whiteout_and_the_new_name_come_together_also_over_a_crash() {
    for extra in 0..6 {
        let mut volume = volume();
        let (ino, handle) = create(volume.fs(), "old");
        let (replaced, other) = create(volume.fs(), "new");
        sync(&volume, handle);
        sync(&volume, other);
        close(volume.fs(), handle).expect("closed");
        close(volume.fs(), other).expect("closed");
        let rename = |to: &[u8], mode| volume.fs().rename(&Caller::root(), Ino::ROOT, b"old", Ino::ROOT, to, mode);
        assert_eq!(errno(rename(b"new", RenameMode::WhiteoutNoReplace)), Errno::EEXIST);
        rename(b"new", RenameMode::Whiteout).expect("renamed");
        let whiteout = find(volume.fs(), "old");
        assert_eq!((whiteout.kind, whiteout.device), (polymux_fs::FileKind::CharacterDevice, 0));
        rename(b"moved", RenameMode::Whiteout).expect("a whiteout may be moved, and leaves one");
        volume.crash_keeping_transactions(extra);
        let at =
            |name: &str| exists(&volume, name).then(|| find(volume.fs(), name)).map(|found| (found.ino, found.kind));
        let kind = polymux_fs::FileKind::Regular;
        match (at("old"), at("new"), at("moved")) {
            (Some(old), Some(new), None) if old == (ino, kind) => assert_eq!(new, (replaced, kind)),
            (Some(old), Some(new), moved) => {
                assert_eq!((old.1, new), (polymux_fs::FileKind::CharacterDevice, (ino, kind)));
                assert!(moved.is_none_or(|moved| moved.0 == whiteout.ino && old.0 != whiteout.ino));
            }
            other => panic!("after {extra} more transactions: {other:?}"),
        }
    }
}

#[test]
fn emptying_and_writing_anew_does_not_leave_an_empty_file_once_it_is_closed() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 20_000)).expect("written");
    sync(&volume, handle);
    close(volume.fs(), handle).expect("closed");
    let options = OpenOptions { truncate: true, ..read_write() };
    let handle = volume.fs().open(&Caller::root(), ino, options).expect("opened");
    write_all(volume.fs(), handle, 0, &pattern(3, 10_000)).expect("written");
    close(volume.fs(), handle).expect("closed");
    volume.flush_log();
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(3, 10_000));
}

/// Syncs the rewritten files that are due, as the background does.
fn sync_rewritten(volume: &Volume) {
    while (0..3).any(|tier| volume.fs().sync_rewritten_step(TierId(tier)) == Progress::Worked) {}
}

/// A file of 20,000 bytes that are durable.
fn durable_file(volume: &Volume) -> Ino {
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 20_000)).expect("written");
    sync(volume, handle);
    close(volume.fs(), handle).expect("closed");
    ino
}

fn open_emptied(volume: &Volume, ino: Ino) -> HandleId {
    let options = OpenOptions { truncate: true, ..read_write() };
    volume.fs().open(&Caller::root(), ino, options).expect("opened")
}

/// A kernel that collects writes does not say when a program closes a file.
#[test]
fn an_emptied_file_is_synced_in_the_background_where_no_close_is_heard_of() {
    let mut volume = volume();
    let ino = durable_file(&volume);
    for round in 2..6 {
        let handle = open_emptied(&volume, ino);
        // The release is not that of the last description.
        volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
        write_all(volume.fs(), handle, 0, &pattern(round, 10_000)).expect("written");
        volume.fs().release(handle).expect("released");
        sync_rewritten(&volume);
        volume.flush_log();
        volume.crash();
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(round, 10_000));
    }
}

#[test]
fn a_file_that_is_emptied_again_before_its_first_new_content_is_synced_is_synced_after_the_second() {
    for synced_between in [false, true] {
        let mut volume = volume();
        let ino = durable_file(&volume);
        let first = open_emptied(&volume, ino);
        write_all(volume.fs(), first, 0, &pattern(2, 10_000)).expect("written");
        volume.fs().release(first).expect("released");
        let second = open_emptied(&volume, ino);
        if synced_between {
            sync_rewritten(&volume);
        }
        write_all(volume.fs(), second, 0, &pattern(3, 12_000)).expect("written");
        if !synced_between {
            sync_rewritten(&volume);
        }
        volume.fs().release(second).expect("released");
        sync_rewritten(&volume);
        volume.flush_log();
        volume.crash();
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(3, 12_000), "{synced_between}");
    }
}

#[test]
fn of_many_rewritten_files_all_are_durable_at_the_end() {
    let mut volume = volume();
    let files: Vec<_> = (0..600)
        .map(|number| {
            let (ino, handle) = create(volume.fs(), &format!("f{number}"));
            write_all(volume.fs(), handle, 0, &pattern(1, 5_000)).expect("written");
            close(volume.fs(), handle).expect("closed");
            ino
        })
        .collect();
    volume.fs().sync_volume().expect("synced");
    for ino in &files {
        let handle = open_emptied(&volume, *ino);
        write_all(volume.fs(), handle, 0, &pattern(2, 4_500)).expect("written");
        volume.fs().release(handle).expect("released");
    }
    let before = volume.counter("file_syncs");
    let step = volume.fs().sync_rewritten_step(TierId(1));
    assert_eq!(
        (step, volume.fs().sync_rewritten_step(TierId(1))),
        (Progress::Worked, Progress::Idle),
        "all of them at once"
    );
    assert!(volume.counter("file_syncs") - before >= 590, "each of them is looked at");
    sync_rewritten(&volume);
    volume.flush_log();
    volume.crash();
    for ino in files {
        assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(2, 4_500));
    }
}

/// A crash after which the tiers of a subset have everything, by their bits, and with the bit behind them the log.
fn crash_with(volume: &mut Volume, tiers: usize, subset: u32) {
    for index in (0..tiers).filter(|index| subset & (1 << index) != 0) {
        volume.memory(index).sync_all().expect("synced");
    }
    if subset & (1 << tiers) != 0 {
        volume.flush_log();
    }
    volume.crash();
}

/// Any set of tiers, and the log or not, may have become durable on their own before the crash: the part of the
/// append that survives is a prefix of it in every case.
#[test]
fn an_unsynced_append_over_several_tiers_is_a_prefix() {
    for subset in 0_u32..16 {
        let mut volume = Volume::new(&[64 * KIB, 64 * KIB, 16 * MIB]);
        let (ino, handle) = create(volume.fs(), "f");
        let data = pattern(1, 300_000);
        write_all(volume.fs(), handle, 0, &data[..40_000]).expect("written");
        sync(&volume, handle);
        for (index, chunk) in data[40_000..].chunks(13_000).enumerate() {
            write_all(volume.fs(), handle, 40_000 + index as u64 * 13_000, chunk).expect("written");
        }
        crash_with(&mut volume, 3, subset);
        let content = read_whole(volume.fs(), ino).expect("read");
        assert!(content.len() >= 40_000, "subset {subset}: {} bytes are left", content.len());
        assert!(data.starts_with(&content), "subset {subset}: {} bytes are no prefix", content.len());
        let again = read_whole(volume.fs(), ino).expect("read");
        assert_eq!(content.len(), again.len(), "subset {subset}");
    }
}

/// A log that goes on on the faster tier and, when that is full, on its first tier again: until the log of the volume is flushed, the durable record takes
/// the size from the object there.
#[test]
fn an_unsynced_append_to_a_log_that_comes_back_to_its_first_tier_is_a_prefix() {
    for subset in 0_u32..8 {
        let mut volume = Volume::new(&[8 * MIB, 64 * MIB]);
        let (ino, handle) = create(volume.fs(), "log");
        let data = pattern(1, 16 << 20);
        let mut end = 1 << 20;
        write_all(volume.fs(), handle, 0, &data[..end]).expect("written");
        let job = volume.fs().migrate(ino, "slow", None).expect("accepted");
        finish_job(volume.fs(), job);
        let mut append = |length: usize| {
            write_all(volume.fs(), handle, end as u64, &data[end..end + length]).expect("written");
            end += length;
        };
        for _ in 0..6 {
            append(5000);
            sync(&volume, handle);
        }
        (0..120).for_each(|_| append(100_000));
        assert_eq!(volume.counter("tail_switches_of_logs"), 1);
        assert!(volume.counter("tail_switches") >= 2, "it came back");
        crash_with(&mut volume, 2, subset);
        let content = read_whole(volume.fs(), ino).expect("read");
        assert!(content.len() >= (1 << 20) + 30_000, "subset {subset}: {} bytes are left", content.len());
        assert!(data.starts_with(&content), "subset {subset}: {} bytes are no prefix", content.len());
    }
}

#[test]
fn no_old_bytes_appear_when_a_file_grows_after_a_crash() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    sync(&volume, handle);
    let resize = |volume: &Volume, size| {
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        volume.fs().set_attributes(&Caller::root(), ino, &change).expect("resized");
    };
    resize(&volume, 3000);
    sync(&volume, handle);
    // An append whose data reaches the tier and whose size no sync promised.
    write_all(volume.fs(), handle, 3000, &pattern(3, 20_000)).expect("written");
    volume.crash();
    let size = find(volume.fs(), "f").size;
    let kept = read_whole(volume.fs(), ino).expect("read");
    assert_eq!(kept[..3000], pattern(1, 3000));
    resize(&volume, 60_000);
    let grown = read_whole(volume.fs(), ino).expect("read");
    assert!(grown[usize::try_from(size).expect("it fits")..].iter().all(|byte| *byte == 0), "old bytes came back");
}

#[test]
fn times_that_were_set_and_synced_survive() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 10_000)).expect("written");
    let time = Timestamp::new(1_000_000, 123_456_789);
    let change = SetAttributes { modified: Some(SetTime::To(time)), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("set");
    sync(&volume, handle);
    volume.crash();
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    assert_eq!(read_at(volume.fs(), handle, 0, 10).expect("read"), pattern(1, 10));
    assert_eq!(find(volume.fs(), "f").modified, time);
}

#[test]
fn a_file_that_was_open_without_a_name_is_freed() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 150_000)).expect("written");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
    assert_eq!(read_at(volume.fs(), handle, 0, 150_000).expect("it is still open"), pattern(1, 150_000));
    volume.fs().sync_volume().expect("synced");
    volume.crash();
    assert_eq!(errno(volume.fs().attributes(&Caller::root(), ino)), Errno::ENOENT);
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
}

#[test]
fn space_that_was_disowned_before_a_crash_comes_back_after_it() {
    let mut volume = volume();
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 150_000)).expect("written");
    sync(&volume, handle);
    close(volume.fs(), handle).expect("closed");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
    volume.fs().sync_directory(&Caller::root(), Ino::ROOT).expect("synced");
    volume.crash();
    assert!(!exists(&volume, "f"));
    volume.drain();
    assert_eq!((volume.used(0), volume.used(1)), (0, 0));
    assert_eq!(volume.fs().status().expect("answered").disowned_pending, 0);
}

#[test]
fn an_unlink_that_was_not_synced_destroys_nothing() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 150_000)).expect("written");
    sync(&volume, handle);
    close(volume.fs(), handle).expect("closed");
    volume.fs().unlink(&Caller::root(), Ino::ROOT, b"f").expect("unlinked");
    volume.crash();
    assert_eq!(read_whole(volume.fs(), ino).expect("read"), pattern(1, 150_000));
    assert_eq!(find(volume.fs(), "f").links, 1);
}

#[test]
fn a_cut_that_was_not_synced_destroys_nothing() {
    let mut volume = volume();
    let (ino, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &pattern(1, 150_000)).expect("written");
    sync(&volume, handle);
    let change = SetAttributes { size: Some(10), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("cut");
    volume.crash();
    let content = read_whole(volume.fs(), ino).expect("read");
    let expected = pattern(1, 150_000);
    assert!(content == expected || content == expected[..10], "{} bytes", content.len());
}

/// Names, sizes and contents.
fn snapshot(volume: &Volume) -> Vec<(Vec<u8>, Ino, Vec<u8>)> {
    let paths = common::walk(volume.fs()).expect("walked");
    let content = |ino| match volume.fs().attributes(&Caller::root(), ino).expect("known").kind {
        polymux_fs::FileKind::Regular => read_whole(volume.fs(), ino).expect("read"),
        _ => Vec::new(),
    };
    paths.into_iter().map(|(path, ino)| (path, ino, content(ino))).collect()
}

#[test]
fn recovering_twice_is_the_same_as_recovering_once() {
    let mut volume = volume();
    let place = make_directory(volume.fs(), "d");
    for index in 0..6 {
        let (_, handle) = common::create_in(volume.fs(), place, &format!("f{index}"));
        write_all(volume.fs(), handle, 0, &pattern(index, 30_000)).expect("written");
        if index % 2 == 0 {
            sync(&volume, handle);
        }
        write_all(volume.fs(), handle, 30_000, &pattern(index, 9000)).expect("written");
    }
    volume.fs().unlink(&Caller::root(), place, b"f0").expect("unlinked");
    volume.memory(1).sync_all().expect("synced");
    volume.flush_log();
    volume.crash();
    let once = snapshot(&volume);
    volume.crash();
    assert!(snapshot(&volume) == once, "the second recovery changed something");
    volume.remount();
    assert!(snapshot(&volume) == once, "a clean remount changed something");
    assert_eq!(volume.fs().status().expect("answered").recovery, Vec::<String>::new(), "the last stop was clean");
}

/// A file that was not accessed in the first mount after a crash kept an object that was longer than the file, and the stop
/// after that was called clean: later the file grew over bytes that were cut off or never synced.
#[test]
fn what_a_crash_left_behind_the_end_of_a_file_is_gone_after_the_next_clean_stop() {
    let mut volume = Volume::new(&[MIB, MIB]);
    let (_, handle) = create(volume.fs(), "f");
    write_all(volume.fs(), handle, 0, &[1; 40_960]).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::All).expect("synced");
    close(volume.fs(), handle).expect("closed");
    // A clean stop settles the size, and after it bytes come behind it that no record speaks of.
    volume.unmount().expect("unmounted");
    volume.mount().expect("mounted");
    let entry = (0..BUCKETS)
        .map(Bucket)
        .find_map(|bucket| volume.list(0, bucket).first().map(|object| ObjectRef::new(*object, bucket)))
        .expect("the file has an object");
    volume.tier(0).write(entry, 40_960, &[9; 4096], Wait::Allowed).expect("written behind the back of the volume");
    volume.tier(0).sync(entry).expect("synced");
    volume.stop_uncleanly();
    // The file is not accessed in this mount.
    volume.mount().expect("mounted");
    volume.unmount().expect("unmounted");
    volume.mount().expect("mounted");
    assert_eq!(volume.tier(0).stat(entry).expect("it is there").size, 40_960, "the ghost is gone");
}
