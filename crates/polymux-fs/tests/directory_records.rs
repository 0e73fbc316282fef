//! The record of a directory is not written with each change of its names (docs/design/0009). Its state after a crash
//! must still be right: positions are never used twice, an empty directory is known to be one and a full one is not.

mod common;

use std::collections::BTreeMap;

use common::{Volume, create_in, errno, make_directory};
use polymux_fs::{Caller, RenameMode};
use polymux_types::{Errno, Ino};

fn volume() -> Volume {
    Volume::new(&[16 << 20])
}

fn unlink(volume: &Volume, parent: Ino, name: &str) {
    volume.fs().unlink(&Caller::root(), parent, name.as_bytes()).expect("unlinked");
}

fn make_files(volume: &Volume, parent: Ino, names: impl Iterator<Item = String>) {
    for name in names {
        let (_, handle) = create_in(volume.fs(), parent, &name);
        volume.fs().release(handle).expect("closed");
    }
}

/// Names with their positions.
fn list(volume: &Volume, parent: Ino) -> BTreeMap<Vec<u8>, u64> {
    let entries = volume.fs().read_directory(&Caller::root(), parent, 0, usize::MAX).expect("listed");
    entries.into_iter().map(|entry| (entry.name, entry.cookie)).collect()
}

fn remove(volume: &Volume, name: &str) -> polymux_fs::Result<()> {
    volume.fs().remove_directory(&Caller::root(), Ino::ROOT, name.as_bytes())
}

#[test]
fn no_position_is_used_twice_across_a_crash() {
    for made in [1_u64, 2, 3, 40, 5000] {
        let mut volume = volume();
        let place = make_directory(volume.fs(), "d");
        make_files(&volume, place, (0..made).map(|number| format!("f{number}")));
        let before = list(&volume, place);
        let highest = before.values().max().copied().expect("there are names");
        // The last positions are those of names that are gone again.
        let last = before.iter().find(|(_, cookie)| **cookie == highest).expect("there is a last name");
        unlink(&volume, place, std::str::from_utf8(last.0).expect("names are text"));
        volume.flush_log();
        volume.crash();
        make_files(&volume, place, std::iter::once("new".to_owned()));
        let after = list(&volume, place);
        assert!(after[b"new".as_slice()] > highest, "{made} files: position {highest} is used twice");
        assert_eq!(after.len() as u64, made, "the other names are there");
    }
}

#[test]
fn a_crash_does_not_change_whether_a_directory_is_empty() {
    for (made, unlinked) in [(1, 1), (2, 2), (3, 3), (3, 2), (10, 10), (10, 9)] {
        let mut volume = volume();
        let place = make_directory(volume.fs(), "d");
        make_files(&volume, place, (0..made).map(|number| format!("f{number}")));
        for number in 0..unlinked {
            unlink(&volume, place, &format!("f{number}"));
        }
        volume.flush_log();
        volume.crash();
        if made > unlinked {
            assert_eq!(errno(remove(&volume, "d")), Errno::ENOTEMPTY, "{made} made, {unlinked} unlinked");
            unlink(&volume, place, &format!("f{}", made - 1));
        }
        remove(&volume, "d").expect("an empty directory goes");
    }
}

#[test]
fn a_directory_that_nobody_counted_stays_right_over_clean_remounts() {
    let mut volume = volume();
    let place = make_directory(volume.fs(), "d");
    make_files(&volume, place, (0..5).map(|number| format!("f{number}")));
    volume.flush_log();
    volume.crash();
    make_files(&volume, place, std::iter::once("g".to_owned()));
    volume.remount();
    assert_eq!(errno(remove(&volume, "d")), Errno::ENOTEMPTY);
    for number in 0..5 {
        unlink(&volume, place, &format!("f{number}"));
    }
    volume.remount();
    assert_eq!(errno(remove(&volume, "d")), Errno::ENOTEMPTY);
    unlink(&volume, place, "g");
    volume.remount();
    remove(&volume, "d").expect("an empty directory goes");
}

#[test]
fn links_of_a_directory_survive_a_crash_among_changes_of_files() {
    let mut volume = volume();
    let place = make_directory(volume.fs(), "d");
    let root = Caller::root();
    make_files(&volume, place, (0..4).map(|number| format!("f{number}")));
    for name in ["a", "b", "c"] {
        volume.fs().make_directory(&root, place, name.as_bytes(), 0o755).expect("made");
        make_files(&volume, place, std::iter::once(format!("beside {name}")));
    }
    volume.fs().remove_directory(&root, place, b"a").expect("removed");
    volume.fs().rename(&root, place, b"b", Ino::ROOT, b"b", RenameMode::Replace).expect("moved");
    unlink(&volume, place, "f0");
    let links = |volume: &Volume, ino| volume.fs().attributes(&root, ino).expect("known").links;
    let before = (links(&volume, place), links(&volume, Ino::ROOT));
    assert_eq!(before, (3, 4));
    volume.flush_log();
    volume.crash();
    assert_eq!((links(&volume, place), links(&volume, Ino::ROOT)), before);
}

#[test]
fn times_of_a_directory_never_go_back_over_a_crash_and_are_exact_after_a_sync() {
    let mut volume = volume();
    let place = make_directory(volume.fs(), "d");
    make_files(&volume, place, (0..3).map(|number| format!("f{number}")));
    volume.fs().sync_directory(&Caller::root(), place).expect("synced");
    let times = |volume: &Volume| {
        let attributes = volume.fs().attributes(&Caller::root(), place).expect("known");
        (attributes.modified, attributes.changed)
    };
    let synced = times(&volume);
    volume.crash();
    assert_eq!(times(&volume), synced, "what was synced is exact");
    make_files(&volume, place, (0..3).map(|number| format!("g{number}")));
    let last = times(&volume);
    volume.flush_log();
    volume.crash();
    let found = times(&volume);
    assert!(found.0 >= last.0 && found.1 >= last.1, "{found:?} is before {last:?}");
    volume.remount();
    assert_eq!(times(&volume), found, "a clean stop changes no times");
}

#[test]
fn every_prefix_of_the_log_leaves_a_directory_that_is_right() {
    for kept in 0..24 {
        let mut volume = volume();
        let place = make_directory(volume.fs(), "d");
        volume.fs().sync_volume().expect("synced");
        make_files(&volume, place, (0..6).map(|number| format!("f{number}")));
        let highest = list(&volume, place).into_values().max().expect("there are names");
        for number in 0..6 {
            unlink(&volume, place, &format!("f{number}"));
        }
        volume.crash_keeping_transactions(kept);
        let left = list(&volume, place);
        assert_eq!(remove(&volume, "d").is_ok(), left.is_empty(), "{kept} transactions kept, left: {left:?}");
        if left.len() == 6 {
            make_files(&volume, place, std::iter::once("new".to_owned()));
            assert!(list(&volume, place)[b"new".as_slice()] > highest, "{kept} transactions kept");
        }
    }
}
