//! The known state of a volume before its loss, and its comparison with the rebuilt one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_fs::{
    Caller, FileKind, RECORD_KINDS, RebuildReport, RenameMode, SetAttributes, SetTime, XattrMode, check_records,
};
use polymux_records::store::{AfterRebuild, after_rebuild};
use polymux_types::{Ino, Timestamp};

use crate::common::{Volume, close, create_in, pattern, read_whole, walk, write_all};

pub const MEBIBYTE: u64 = 1 << 20;

pub fn root() -> Caller {
    Caller::root()
}

/// A closed file with this content.
pub fn write_file(volume: &Volume, parent: Ino, name: &str, content: &[u8]) -> Ino {
    let (ino, handle) = create_in(volume.fs(), parent, name);
    write_all(volume.fs(), handle, 0, content).expect("it is written");
    close(volume.fs(), handle).expect("it is closed");
    ino
}

pub fn directory(volume: &Volume, parent: Ino, name: &str, permissions: u32) -> Ino {
    volume.fs().make_directory(&root(), parent, name.as_bytes(), permissions).expect("a directory is made").ino
}

/// Longer than any delay, with all background work done.
pub fn settle(volume: &Volume) {
    volume.clock.advance(Duration::from_secs(60));
    volume.drain();
}

/// Everything that a rebuild can bring back of a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub content: Vec<u8>,
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: Timestamp,
    pub ino: Ino,
}

/// All regular files by path.
pub fn files(volume: &Volume) -> BTreeMap<String, Known> {
    let fs = volume.fs();
    let mut found = BTreeMap::new();
    for (path, ino) in walk(fs).expect("the volume can be walked") {
        let attributes = fs.attributes(&root(), ino).expect("a listed file has attributes");
        if attributes.kind == FileKind::Regular {
            let known = Known {
                content: read_whole(fs, ino).unwrap_or_else(|error| panic!("{}: {error}", path.escape_ascii())),
                mode: attributes.permissions,
                owner: (attributes.uid, attributes.gid),
                modified: attributes.modified,
                ino,
            };
            found.insert(String::from_utf8(path).expect("paths of the tests are text"), known);
        }
    }
    found
}

/// Findings as kind and path.
pub fn told(report: &RebuildReport) -> BTreeSet<(&'static str, String)> {
    let one = |finding: &polymux_fs::RebuildFinding| {
        let path = finding.path.as_ref().map(|path| format!("/{}", String::from_utf8_lossy(path)));
        (finding.kind.name, path.unwrap_or_default())
    };
    let told: BTreeSet<_> = report.findings.iter().map(one).collect();
    assert_eq!(told.len(), report.findings.len(), "nothing is told twice: {:?}", report.findings);
    told
}

/// Loses the store, rebuilds, checks, and mounts.
pub fn rebuild(volume: &mut Volume) -> RebuildReport {
    volume.stop_uncleanly();
    rebuild_unmounted(volume)
}

/// As [`rebuild`], for a volume that is not mounted.
pub fn rebuild_unmounted(volume: &mut Volume) -> RebuildReport {
    let foreseen = volume.try_rebuild().expect("it can be told what would come back");
    let report = volume.rebuild().expect("the volume is rebuilt");
    assert_eq!(report.counts, foreseen.counts, "what was foreseen came");
    assert_eq!(volume.findings(), Vec::<String>::new(), "a rebuilt volume has nothing for a check to find");
    assert_only_kinds_that_a_rebuild_makes(volume);
    volume.mount().expect("a rebuilt volume mounts");
    report
}

/// Letters of the kinds of records in the store.
fn letters(volume: &Volume) -> BTreeSet<char> {
    check_records(&*volume.store()).expect("a simulated store answers").records.into_keys().collect()
}

fn letters_made() -> BTreeSet<char> {
    let letters = RECORD_KINDS.iter().map(|(letter, _)| *letter);
    letters.filter(|letter| after_rebuild(*letter) == Some(AfterRebuild::Made)).collect()
}

fn assert_only_kinds_that_a_rebuild_makes(volume: &Volume) {
    let others: Vec<char> = letters(volume).difference(&letters_made()).copied().collect();
    assert_eq!(others, [], "the rows of these kinds say that a rebuild makes none of them");
}

#[test]
fn each_kind_of_record_that_a_rebuild_makes_by_its_row_is_there_after_one() {
    let mut volume = Volume::new(&[MEBIBYTE, 64 * MEBIBYTE]);
    let split = write_file(&volume, Ino::ROOT, "split", &pattern(77, 3 << 20));
    assert!(volume.fs().locate(split).expect("it can be located").extents.len() > 1, "it is on both tiers");
    let inline = write_file(&volume, Ino::ROOT, "inline", b"a few bytes in the store");
    volume.fs().set_xattr(&root(), inline, b"user.a", b"b", XattrMode::Create).expect("an attribute is set");
    settle(&volume);
    volume.fs().sync_volume().expect("the volume syncs");
    assert!(letters(&volume).is_superset(&BTreeSet::from(['b', 'x'])), "only the store has these");
    volume.stop_uncleanly();
    volume.rebuild().expect("the volume is rebuilt");
    assert_eq!(letters(&volume), letters_made());
}

#[test]
fn every_file_that_had_an_object_is_back_and_the_report_is_the_exact_difference() {
    let mut volume = Volume::new(&[MEBIBYTE, 64 * MEBIBYTE]);
    let top = directory(&volume, Ino::ROOT, "top", 0o750);
    let inner = directory(&volume, top, "inner", 0o711);
    let empty = directory(&volume, Ino::ROOT, "nothing in it", 0o755);
    for number in 0..20_u8 {
        write_file(&volume, inner, &format!("file{number}"), &pattern(number, 5000 + 1000 * usize::from(number)));
    }
    let split = write_file(&volume, Ino::ROOT, "split", &pattern(77, 3 << 20));
    assert!(volume.fs().locate(split).expect("it can be located").extents.len() > 1, "it is on both tiers");
    let linked = write_file(&volume, top, "linked", &pattern(5, 9000));
    volume.fs().link(&root(), linked, inner, b"linked-too").expect("a link is made");
    let guarded = write_file(&volume, top, "guarded", &pattern(6, 9000));
    volume.fs().set_xattr(&root(), guarded, b"user.a", b"b", XattrMode::Create).expect("an attribute is set");
    let owned = write_file(&volume, Ino::ROOT, "owned", &pattern(7, 9000));
    let change = SetAttributes {
        permissions: Some(0o604),
        uid: Some(11),
        gid: Some(12),
        modified: Some(SetTime::To(Timestamp::new(1000, 7))),
        ..SetAttributes::default()
    };
    volume.fs().set_attributes(&root(), owned, &change).expect("attributes are set");
    write_file(&volume, top, "inline", b"a few bytes in the store");
    write_file(&volume, top, "empty", b"");
    volume.fs().make_symlink(&root(), top, b"link", b"file").expect("a link is made");
    volume.fs().rename(&root(), Ino::ROOT, b"top", empty, b"moved", RenameMode::Replace).expect("it is renamed");
    settle(&volume);
    volume.fs().sync_volume().expect("the volume syncs");
    let mut truth = files(&volume);
    let report = rebuild(&mut volume);
    let names: Vec<String> = truth.keys().cloned().collect();
    let lost = ["/nothing in it/moved/inline", "/nothing in it/moved/empty"];
    lost.iter().for_each(|name| assert!(truth.remove(*name).is_some(), "{names:?}"));
    let found = files(&volume);
    // One of the two names is back.
    let links = ["/nothing in it/moved/linked", "/nothing in it/moved/inner/linked-too"];
    let back: Vec<&str> = links.into_iter().filter(|name| found.contains_key(*name)).collect();
    assert_eq!(back.len(), 1);
    truth.retain(|name, _| !links.contains(&name.as_str()) || name == back[0]);
    assert_eq!(found, truth);
    let expected = [("names-missing", back[0].to_owned()), ("xattrs-lost", "/nothing in it/moved/guarded".to_owned())];
    assert_eq!(told(&report), BTreeSet::from(expected));
    assert_eq!((report.files, report.files_lost_and_found), (truth.len() as u64, 0));
    assert_eq!(report.directories, 4);
    let attributes = |ino| volume.fs().attributes(&root(), ino).expect("a directory is back under its number");
    assert_eq!((attributes(top).permissions, attributes(inner).permissions), (0o750, 0o711));
}

#[test]
fn a_file_made_in_a_rebuilt_volume_gets_a_number_that_nobody_had() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    let small = write_file(&volume, Ino::ROOT, "small", b"inline");
    let large = write_file(&volume, Ino::ROOT, "large", &pattern(1, 9000));
    settle(&volume);
    volume.fs().sync_volume().expect("the volume syncs");
    rebuild(&mut volume);
    let made = write_file(&volume, Ino::ROOT, "made", &pattern(2, 9000));
    assert!(made > small && made > large, "{made} {small} {large}");
    volume.remount();
    assert_eq!(volume.findings(), Vec::<String>::new());
}

#[test]
fn a_volume_is_rebuilt_again_from_what_a_rebuilt_one_described() {
    let mut volume = Volume::new(&[16 * MEBIBYTE]);
    let inner = directory(&volume, Ino::ROOT, "inner", 0o755);
    write_file(&volume, inner, "file", &pattern(1, 9000));
    settle(&volume);
    volume.fs().sync_volume().expect("the volume syncs");
    rebuild(&mut volume);
    volume.fs().rename(&root(), Ino::ROOT, b"inner", Ino::ROOT, b"outer", RenameMode::Replace).expect("it is renamed");
    settle(&volume);
    let truth = files(&volume);
    assert!(truth.contains_key("/outer/file"));
    let report = rebuild(&mut volume);
    assert_eq!(files(&volume), truth, "stamps of the second life count more than those of the first");
    assert_eq!(report.findings, []);
}

#[test]
fn holes_stay_holes_and_the_size_of_a_file_that_ends_with_one_is_back() {
    let mut volume = Volume::new(&[16 * MEBIBYTE, 16 * MEBIBYTE]);
    let (ino, handle) = create_in(volume.fs(), Ino::ROOT, "sparse");
    write_all(volume.fs(), handle, 8 << 20, &pattern(1, 4096)).expect("it is written");
    close(volume.fs(), handle).expect("it is closed");
    let change = SetAttributes { size: Some((32 << 20) + 5), ..SetAttributes::default() };
    volume.fs().set_attributes(&root(), ino, &change).expect("it is made longer");
    settle(&volume);
    volume.fs().sync_volume().expect("the volume syncs");
    let truth = files(&volume);
    let report = rebuild(&mut volume);
    assert_eq!(files(&volume), truth);
    assert_eq!(report.findings, []);
    assert!(volume.used(0) < MEBIBYTE, "holes take no room");
}
