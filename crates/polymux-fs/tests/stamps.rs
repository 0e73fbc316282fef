//! Stamps on objects follow the changes of their files: renames, links, attributes, moves; also over crashes,
//! unmounts and tiers that do not take them.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Volume, close, create_in, find, make_directory, pattern, write_all};
use polymux_fs::{Access, Caller, RenameMode, SetAttributes, XattrMode};
use polymux_sim::{FaultyTier, OperationKind};
use polymux_tier::{ObjectRef, ObjectStamp, Tier, TierError};
use polymux_types::{Bucket, Errno, Ino, Timestamp};

const MEBIBYTE: u64 = 1 << 20;

fn root() -> Caller {
    Caller::root()
}

/// A file of four blocks, closed.
fn write_file(volume: &Volume, parent: Ino, name: &str) -> Ino {
    let (ino, handle) = create_in(volume.fs(), parent, name);
    write_all(volume.fs(), handle, 0, &pattern(3, 16_384)).expect("it is written");
    close(volume.fs(), handle).expect("it is closed");
    ino
}

fn rename(volume: &Volume, from: (Ino, &str), to: (Ino, &str)) {
    let renamed = volume.fs().rename(&root(), from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), RenameMode::Replace);
    renamed.expect("it is renamed");
}

/// The stamps of all objects of a tier, by inode.
fn stamps(volume: &Volume, tier: usize) -> BTreeMap<Ino, ObjectStamp> {
    let mut found = BTreeMap::new();
    for bucket in (0..polymux_types::limits::BUCKETS).map(Bucket) {
        for id in volume.list(tier, bucket) {
            let stamp = volume.memory(tier).stamp_of(ObjectRef::new(id, bucket));
            found.extend(stamp.map(|stamp| (stamp.ino, stamp)));
        }
    }
    found
}

fn path(volume: &Volume, ino: Ino) -> Option<String> {
    let stamp = stamps(volume, 0).remove(&ino)?;
    Some(String::from_utf8(stamp.path).expect("paths of the tests are text"))
}

/// Longer than any delay.
fn settle(volume: &Volume) {
    volume.clock.advance(Duration::from_secs(60));
    volume.drain();
}

#[test]
fn a_new_object_is_described_with_its_path_and_the_directories_on_it() {
    let volume = Volume::new(&[16 * MEBIBYTE]);
    let outer = make_directory(volume.fs(), "outer");
    let inner = volume.fs().make_directory(&root(), outer, b"inner", 0o710).expect("a directory is made").ino;
    let ino = write_file(&volume, inner, "file");
    assert_eq!(path(&volume, ino), None, "nobody waited for that");
    settle(&volume);
    let stamp = stamps(&volume, 0).remove(&ino).expect("it is described");
    assert_eq!((stamp.path.as_slice(), stamp.mode), (b"outer/inner/file".as_slice(), 0o100_644));
    let refresh = stamp.refresh.expect("the stamp is of the newest version");
    let directories: Vec<(Ino, u16)> =
        refresh.directories.iter().map(|directory| (directory.ino, directory.permissions)).collect();
    assert_eq!(directories, [(Ino::ROOT, 0o755), (outer, 0o755), (inner, 0o710)]);
    assert_eq!((refresh.size, refresh.links, refresh.may_have_xattrs), (16_384, 1, false));
}

#[test]
fn a_file_is_described_by_its_present_name_owner_time_and_links() {
    let volume = Volume::new(&[16 * MEBIBYTE]);
    let directory = make_directory(volume.fs(), "directory");
    let ino = write_file(&volume, Ino::ROOT, "old");
    settle(&volume);
    rename(&volume, (Ino::ROOT, "old"), (directory, "new"));
    let time = Timestamp::new(77, 5);
    let change = SetAttributes {
        permissions: Some(0o640),
        uid: Some(5),
        modified: Some(polymux_fs::SetTime::To(time)),
        ..SetAttributes::default()
    };
    volume.fs().set_attributes(&root(), ino, &change).expect("attributes are set");
    volume.fs().set_xattr(&root(), ino, b"user.a", b"b", XattrMode::Create).expect("an attribute is set");
    volume.fs().link(&root(), ino, Ino::ROOT, b"zzz").expect("a link is made");
    settle(&volume);
    let stamp = stamps(&volume, 0).remove(&ino).expect("it is described");
    assert_eq!((stamp.mode, stamp.uid, stamp.modified), (0o100_640, 5, time));
    let refresh = stamp.refresh.expect("the stamp is of the newest version");
    assert_eq!((refresh.links, refresh.may_have_xattrs), (2, true));
}

#[test]
fn a_file_that_loses_the_name_it_was_described_by_is_described_by_another_one() {
    let volume = Volume::new(&[16 * MEBIBYTE]);
    let ino = write_file(&volume, Ino::ROOT, "a");
    volume.fs().link(&root(), ino, Ino::ROOT, b"b").expect("a link is made");
    settle(&volume);
    let first = path(&volume, ino).expect("it is described");
    volume.fs().unlink(&root(), Ino::ROOT, first.as_bytes()).expect("a name goes");
    settle(&volume);
    let other = if first == "a" { "b" } else { "a" };
    assert_eq!(path(&volume, ino).as_deref(), Some(other));
}

#[test]
fn everything_below_a_renamed_directory_is_described_anew() {
    let volume = Volume::new(&[64 * MEBIBYTE]);
    let top = make_directory(volume.fs(), "top");
    let below = volume.fs().make_directory(&root(), top, b"below", 0o755).expect("a directory is made").ino;
    let files: Vec<Ino> = (0..300).map(|number| write_file(&volume, below, &format!("file{number}"))).collect();
    settle(&volume);
    rename(&volume, (Ino::ROOT, "top"), (Ino::ROOT, "renamed"));
    settle(&volume);
    for (number, ino) in files.iter().enumerate() {
        assert_eq!(path(&volume, *ino), Some(format!("renamed/below/file{number}")));
    }
    assert_eq!(volume.fs().status().expect("status answers").stamps_late, 0);
}

#[test]
fn exchanged_directories_and_files_are_described_where_they_are() {
    let volume = Volume::new(&[16 * MEBIBYTE]);
    let (one, other) = (make_directory(volume.fs(), "one"), make_directory(volume.fs(), "other"));
    let (first, second) = (write_file(&volume, one, "file"), write_file(&volume, other, "file"));
    settle(&volume);
    let exchange = |a: &[u8], b: &[u8]| volume.fs().rename(&root(), Ino::ROOT, a, Ino::ROOT, b, RenameMode::Exchange);
    exchange(b"one", b"other").expect("they are exchanged");
    settle(&volume);
    assert_eq!(path(&volume, first).as_deref(), Some("other/file"));
    assert_eq!(path(&volume, second).as_deref(), Some("one/file"));
}

#[test]
fn what_was_late_in_a_crash_is_described_after_it() {
    let mut volume = Volume::new(&[64 * MEBIBYTE]);
    let top = make_directory(volume.fs(), "top");
    let below = write_file(&volume, top, "below");
    let renamed = write_file(&volume, Ino::ROOT, "old");
    let untouched = write_file(&volume, Ino::ROOT, "untouched");
    settle(&volume);
    // The mark up to which back-references are current passes all this.
    (0..10).for_each(|_| settle(&volume));
    let before = stamps(&volume, 0)[&untouched].clone();
    let made = write_file(&volume, Ino::ROOT, "made");
    rename(&volume, (Ino::ROOT, "old"), (Ino::ROOT, "new"));
    rename(&volume, (Ino::ROOT, "top"), (Ino::ROOT, "bottom"));
    volume.fs().sync_volume().expect("the volume syncs");
    volume.crash();
    assert_eq!(path(&volume, renamed).as_deref(), Some("old"), "the crash was before it was described");
    settle(&volume);
    assert_eq!(path(&volume, made).as_deref(), Some("made"));
    assert_eq!(path(&volume, renamed).as_deref(), Some("new"));
    assert_eq!(path(&volume, below).as_deref(), Some("bottom/below"));
    assert_eq!(stamps(&volume, 0)[&untouched], before, "what did not change is left alone");
}

#[test]
fn an_unmount_describes_what_is_late_and_the_next_mount_looks_at_nothing() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    let ino = write_file(&volume, Ino::ROOT, "old");
    settle(&volume);
    rename(&volume, (Ino::ROOT, "old"), (Ino::ROOT, "new"));
    volume.remount();
    assert_eq!(path(&volume, ino).as_deref(), Some("new"));
    settle(&volume);
    assert_eq!(volume.counter("stamps_written"), 0, "a clean unmount left nothing to do");
}

#[test]
fn a_directory_renamed_right_before_an_unmount_is_followed_after_the_next_mount() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    let top = make_directory(volume.fs(), "top");
    let ino = write_file(&volume, top, "file");
    settle(&volume);
    rename(&volume, (Ino::ROOT, "top"), (Ino::ROOT, "renamed"));
    volume.remount();
    settle(&volume);
    assert_eq!(path(&volume, ino).as_deref(), Some("renamed/file"));
}

#[test]
fn a_file_that_moved_is_described_on_its_new_tier_although_a_crash_follows() {
    let mut volume = Volume::new(&[16 * MEBIBYTE, 16 * MEBIBYTE]);
    let ino = write_file(&volume, Ino::ROOT, "file");
    (0..10).for_each(|_| settle(&volume));
    volume.fs().migrate(ino, "slow", None).expect("it may be moved");
    while volume.fs().move_step() == polymux_fs::Progress::Worked {}
    assert_eq!(volume.fs().locate(ino).expect("it can be located").home.as_deref(), Some("slow"));
    volume.flush_log();
    volume.crash();
    let stamp = stamps(&volume, 1).remove(&ino).expect("the new object is described");
    assert_eq!(stamp.path, b"file");
}

#[test]
fn a_step_describes_a_bounded_number_of_files() {
    let volume = Volume::new(&[64 * MEBIBYTE]);
    for number in 0..500 {
        write_file(&volume, Ino::ROOT, &format!("file{number}"));
    }
    volume.clock.advance(Duration::from_secs(60));
    let before = volume.counter("stamps_written");
    volume.step();
    let done = volume.counter("stamps_written") - before;
    assert!((1..=256).contains(&done), "{done} files in one step");
    settle(&volume);
    assert_eq!(volume.counter("stamps_written") - before, 500);
}

#[test]
fn what_a_tier_does_not_take_is_tried_again_later() {
    let faulty = std::sync::Mutex::new(None);
    let mut volume = Volume::wrapping(&[16 * MEBIBYTE], |_, tier| {
        let wrapped = Arc::new(FaultyTier::new(tier));
        *faulty.lock().expect("nobody panicked") = Some(Arc::clone(&wrapped));
        wrapped as Arc<dyn Tier>
    });
    let faulty = faulty.into_inner().expect("nobody panicked").expect("there is a tier");
    let ino = write_file(&volume, Ino::ROOT, "file");
    faulty.fail_always(OperationKind::Stamp, TierError::Io { operation: "stamp", errno: Errno::EIO });
    settle(&volume);
    assert_eq!(path(&volume, ino), None);
    assert!(volume.counter("stamps_failed") > 0);
    faulty.heal();
    volume.clock.advance(Duration::from_secs(700));
    settle(&volume);
    assert_eq!(path(&volume, ino).as_deref(), Some("file"));
    volume.unmount().expect("the volume unmounts");
}

#[test]
fn a_read_only_mount_describes_nothing() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    let ino = write_file(&volume, Ino::ROOT, "file");
    volume.fs().sync_volume().expect("the volume syncs");
    volume.stop_uncleanly();
    volume.options.access = Access::ReadOnly;
    volume.mount().expect("the volume mounts");
    settle(&volume);
    assert_eq!(find(volume.fs(), "file").ino, ino);
    assert_eq!(path(&volume, ino), None);
}

#[test]
fn a_description_never_says_what_a_crash_takes_back() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    volume.options.flush_interval_ms = 3_600_000;
    volume.remount();
    let directory = make_directory(volume.fs(), "directory");
    let ino = write_file(&volume, directory, "file");
    settle(&volume);
    rename(&volume, (directory, "file"), (directory, "renamed"));
    rename(&volume, (Ino::ROOT, "directory"), (Ino::ROOT, "moved"));
    settle(&volume);
    let described = path(&volume, ino).expect("it is described");
    assert_eq!(described, "moved/renamed");
    volume.crash();
    let found = volume.fs().path_of(ino).expect("the volume answers").expect("the file has a name");
    assert_eq!(String::from_utf8(found).expect("paths of the tests are text"), described);
}

#[test]
fn a_store_that_was_made_from_its_copy_has_everything_described_anew() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    write_file(&volume, Ino::ROOT, "file");
    settle(&volume);
    volume.unmount().expect("the volume unmounts");
    polymux_fs::describe_all_anew(&*volume.store()).expect("the store can be written");
    volume.mount().expect("the volume mounts");
    settle(&volume);
    assert_eq!(volume.counter("stamps_written"), 1);
}
