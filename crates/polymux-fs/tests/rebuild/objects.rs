//! Objects that say nothing, or something that cannot be.

use std::collections::BTreeSet;
use std::sync::Arc;

use polymux_tier::{ObjectRef, ObjectStamp, StampDirectory, StampOrder, StampRefresh, Tier, Wait};
use polymux_types::{Bucket, Epoch, Errno, Ino, ObjectId, Sequence, Timestamp, VolumeId};

use crate::common::{Hook, HookedTier, Verdict, Volume, new_volume, pattern};
use crate::truth::{MEBIBYTE, directory, files, rebuild, rebuild_unmounted, settle, told, write_file};

/// An object that the volume did not make, beyond the numbers in use.
pub fn plant(volume: &Volume, tier: usize, number: u64, content: &[u8]) -> ObjectRef {
    let object = ObjectRef::new(ObjectId(9_000_000 + number), Bucket(7));
    let memory = volume.memory(tier);
    memory.create(object).expect("an object is made");
    memory.write(object, 0, content, Wait::Allowed).expect("it is written");
    memory.sync_all().expect("the tier syncs");
    object
}

/// A stamp of the volume of the tests: a file in the root directory.
pub fn stamp(ino: u64, name: &str, order: u64) -> ObjectStamp {
    ObjectStamp {
        volume: new_volume().id,
        ino: Ino(ino),
        generation: 1,
        mode: 0o100_640,
        uid: 1,
        gid: 2,
        modified: Timestamp::new(5, 0),
        path: name.as_bytes().to_vec(),
        refresh: Some(StampRefresh {
            order: StampOrder { epoch: Epoch(1), sequence: Sequence(order) },
            at: Timestamp::new(2_000_000_000, 0),
            size: 0,
            links: 1,
            may_have_xattrs: false,
            directories: vec![StampDirectory { ino: Ino::ROOT, permissions: 0o755, uid: 0, gid: 0 }],
        }),
    }
}

/// A stamp of a file in a directory of the root directory.
pub fn stamp_below(ino: u64, (above, above_ino): (&str, u64), name: &str, order: u64) -> ObjectStamp {
    let mut stamp = stamp(ino, &format!("{above}/{name}"), order);
    let below = StampDirectory { ino: Ino(above_ino), permissions: 0o700, uid: 3, gid: 4 };
    stamp.refresh.as_mut().expect("it is of the newest version").directories.push(below);
    stamp
}

/// An empty volume that is not mounted.
pub fn empty(capacities: &[u64]) -> Volume {
    let mut volume = Volume::new(capacities);
    volume.unmount().expect("the volume unmounts");
    volume
}

pub fn give(volume: &Volume, tier: usize, object: ObjectRef, stamp: &ObjectStamp) {
    volume.memory(tier).stamp(object, stamp).expect("it is described");
}

fn expect(findings: &[(&'static str, &str)]) -> BTreeSet<(&'static str, String)> {
    findings.iter().map(|(kind, path)| (*kind, (*path).to_owned())).collect()
}

#[test]
fn an_object_without_a_stamp_is_in_lost_and_found_under_its_number_tier_and_size() {
    let mut volume = empty(&[16 * MEBIBYTE, 16 * MEBIBYTE]);
    let object = plant(&volume, 1, 1, &pattern(3, 9000));
    let report = rebuild_unmounted(&mut volume);
    let name = format!("/lost+found/object-{:016x}-slow-9000", object.id);
    assert_eq!(told(&report), expect(&[("without-stamp", &name)]));
    let found = files(&volume);
    assert_eq!(found.len(), 1);
    assert_eq!(found[&name].content, pattern(3, 9000));
    let finding = &report.findings[0];
    assert_eq!((finding.size, finding.tier.as_deref(), finding.object), (Some(9000), Some("slow"), Some(object.id)));
}

#[test]
fn a_stamp_that_cannot_be_is_not_believed() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    let mut wrong = [
        stamp(100, "a", 1),
        stamp(1, "b", 1),
        stamp(3, "c", 1),
        stamp(101, "", 1),
        stamp_below(102, ("..", 200), "d", 1),
        stamp(103, "e\0", 1),
    ];
    wrong[0].mode = 0o040_755;
    for (number, stamp) in (0..).zip(&wrong) {
        let object = plant(&volume, 0, number, &pattern(1, 5000));
        give(&volume, 0, object, stamp);
    }
    let report = rebuild_unmounted(&mut volume);
    assert_eq!(report.counts.get("stamp-invalid"), Some(&6));
    assert_eq!(report.findings.len(), 6);
    assert!(files(&volume).keys().all(|path| path.starts_with("/lost+found/")));
}

#[test]
fn an_object_of_another_volume_is_left_alone_and_told() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    let object = plant(&volume, 0, 1, &pattern(1, 5000));
    let mut foreign = stamp(100, "file", 1);
    foreign.volume = VolumeId::from_random([99; 16]);
    give(&volume, 0, object, &foreign);
    let report = volume.rebuild().expect("the volume is rebuilt");
    assert_eq!(told(&report), expect(&[("object-foreign", "")]));
    assert_eq!((report.files, report.findings[0].object), (0, Some(object.id)));
    volume.mount().expect("the volume mounts");
    volume.unmount().expect("the volume unmounts");
    assert!(volume.memory(0).stat(object).is_ok(), "it is still there");
}

/// Fails every look at one object.
struct Unreadable(ObjectId);

impl Hook for Unreadable {
    fn before_stat(&self, object: ObjectRef) -> Verdict {
        match object.id == self.0 {
            true => Verdict::Fail(polymux_tier::TierError::Io { operation: "stat", errno: Errno::EIO }),
            false => Verdict::Pass,
        }
    }
}

#[test]
fn an_object_that_cannot_be_read_is_left_and_told_and_the_others_are_back() {
    let broken = ObjectId(9_000_001);
    let mut volume = Volume::wrapping(&[16 * MEBIBYTE], |_, tier| {
        Arc::new(HookedTier::new(tier, Arc::new(Unreadable(broken)))) as Arc<dyn Tier>
    });
    write_file(&volume, Ino::ROOT, "whole", &pattern(2, 9000));
    settle(&volume);
    volume.unmount().expect("the volume unmounts");
    plant(&volume, 0, 1, &pattern(1, 5000));
    let report = volume.rebuild().expect("the volume is rebuilt");
    assert_eq!(told(&report), expect(&[("object-unreadable", "")]));
    assert_eq!(report.findings[0].object, Some(broken));
    volume.mount().expect("the volume mounts");
    assert_eq!(files(&volume).keys().collect::<Vec<_>>(), ["/whole"]);
}

#[test]
fn a_stamp_of_the_first_version_brings_its_path_back() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    for (number, path) in [(1, "a/b/one"), (2, "a/two")] {
        let object = plant(&volume, 0, number, &pattern(1, 5000));
        give(&volume, 0, object, &ObjectStamp { refresh: None, ..stamp(100 + number, path, 0) });
    }
    let report = rebuild_unmounted(&mut volume);
    assert_eq!(files(&volume).keys().collect::<Vec<_>>(), ["/a/b/one", "/a/two"]);
    assert_eq!(told(&report), expect(&[("xattrs-lost", "/a/b/one"), ("xattrs-lost", "/a/two")]));
}

#[test]
fn of_two_objects_of_a_file_on_one_tier_the_later_described_one_is_the_file() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    for (number, order) in [(1, 7), (2, 5)] {
        let object = plant(&volume, 0, number, &pattern(u8::try_from(number).expect("it is small"), 5000));
        give(&volume, 0, object, &stamp(100, "file", order));
    }
    let report = rebuild_unmounted(&mut volume);
    let found = files(&volume);
    assert_eq!(found["/file"].content, pattern(1, 5000));
    assert_eq!(found["/lost+found/100-fast-5000"].content, pattern(2, 5000));
    assert_eq!(told(&report), expect(&[("older-object", "/lost+found/100-fast-5000")]));
}

#[test]
fn a_directory_is_where_the_latest_stamp_below_it_says() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    let stamps = [
        stamp_below(100, ("old", 200), "a", 5),
        stamp_below(101, ("new", 200), "b", 9),
        stamp_below(102, ("older", 200), "c", 2),
    ];
    for (number, stamp) in (0..).zip(&stamps) {
        let object = plant(&volume, 0, number, &pattern(1, 5000));
        give(&volume, 0, object, stamp);
    }
    let report = rebuild_unmounted(&mut volume);
    assert_eq!(files(&volume).keys().collect::<Vec<_>>(), ["/new/a", "/new/b", "/new/c"]);
    assert_eq!(report.findings, []);
}

#[test]
fn a_directory_of_which_nobody_says_where_it_lies_is_in_lost_and_found_with_all_below_it() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    let object = plant(&volume, 0, 1, &pattern(1, 5000));
    let mut cut = stamp_below(100, ("above", 200), "file", 5);
    // A tier without space for the whole path keeps its end.
    cut = cut.without_upper_half().expect("two names can be cut");
    give(&volume, 0, object, &cut);
    // Two directories that lie in one another.
    for (number, ino, (name, above), (inner, below)) in
        [(2, 110, ("x", 300), ("y", 301)), (3, 111, ("y", 301), ("x", 300))]
    {
        let object = plant(&volume, 0, number, &pattern(1, 5000));
        let mut stamp = stamp_below(ino, (name, above), &format!("{inner}/file"), 5);
        let refresh = stamp.refresh.as_mut().expect("it is of the newest version");
        refresh.directories.push(StampDirectory { ino: Ino(below), permissions: 0o700, uid: 3, gid: 4 });
        refresh.directories.remove(0);
        stamp.path = format!("{inner}/file").into_bytes();
        give(&volume, 0, object, &stamp);
    }
    let report = rebuild_unmounted(&mut volume);
    let found: Vec<String> = files(&volume).into_keys().collect();
    assert_eq!(
        found,
        ["/lost+found/directory-200/file", "/lost+found/directory-300/file", "/lost+found/directory-300/y/file"]
    );
    let expected =
        [("directory-unplaced", "/lost+found/directory-200"), ("directory-unplaced", "/lost+found/directory-300")];
    assert_eq!(told(&report), expect(&expected));
}

#[test]
fn a_lost_and_found_that_the_volume_had_is_used() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    let own = directory(&volume, Ino::ROOT, "lost+found", 0o755);
    write_file(&volume, own, "mine", &pattern(2, 9000));
    settle(&volume);
    volume.fs().sync_volume().expect("the volume syncs");
    let object = plant(&volume, 0, 1, &pattern(1, 5000));
    rebuild(&mut volume);
    let found: Vec<String> = files(&volume).into_keys().collect();
    assert_eq!(found, ["/lost+found/mine".to_owned(), format!("/lost+found/object-{:016x}-fast-5000", object.id)]);
}
