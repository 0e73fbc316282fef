//! Two claims to one thing: bytes of one range on two tiers, one path for two files or directories.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use polymux_tier::{ObjectRef, Tier, Wait};
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Ino, ObjectId};

use crate::common::{Volume, pattern};
use crate::objects::{empty, give, plant, stamp, stamp_below};
use crate::truth::{MEBIBYTE, files, rebuild_unmounted, told};

type Held = BTreeMap<(usize, Bucket, ObjectId), Vec<u8>>;

/// Every byte of every object.
fn held(volume: &Volume, tiers: usize) -> Held {
    let mut held = BTreeMap::new();
    for tier in 0..tiers {
        for bucket in (0..BUCKETS).map(Bucket) {
            for id in volume.list(tier, bucket) {
                let object = ObjectRef::new(id, bucket);
                let size = volume.memory(tier).stat(object).expect("a listed object is there").size;
                let mut bytes = vec![0; usize::try_from(size).expect("objects of the tests are small")];
                volume.memory(tier).read(object, 0, &mut bytes, Wait::Allowed).expect("it can be read");
                held.insert((tier, bucket, id), bytes);
            }
        }
    }
    held
}

fn expect(findings: &[(&'static str, &str)]) -> BTreeSet<(&'static str, String)> {
    findings.iter().map(|(kind, path)| (*kind, (*path).to_owned())).collect()
}

/// Two objects of one file on two tiers: content and offset of each; the second is written later.
fn two_objects(first: (u64, &[u8]), second: (u64, &[u8])) -> Volume {
    let volume = empty(&[16 * MEBIBYTE, 16 * MEBIBYTE]);
    for (tier, (offset, content)) in [(0, first), (1, second)] {
        volume.clock.advance(Duration::from_secs(10));
        let object = plant(&volume, tier, tier as u64, b"");
        volume.memory(tier).write(object, offset, content, Wait::Allowed).expect("it is written");
        volume.memory(tier).sync_all().expect("the tier syncs");
        give(&volume, tier, object, &stamp(100, "file", 5));
    }
    volume
}

#[test]
fn bytes_that_two_tiers_hold_alike_are_one_file_without_a_finding() {
    let content = pattern(3, 40_960);
    let mut volume = two_objects((0, &content), (8192, &content[8192..20_480]));
    let before = held(&volume, 2);
    let report = rebuild_unmounted(&mut volume);
    assert_eq!(report.findings, []);
    assert_eq!(files(&volume)["/file"].content, content);
    assert_eq!(held(&volume, 2), before, "no object changed");
}

#[test]
fn of_bytes_that_two_tiers_hold_differently_the_later_are_the_files_and_the_others_in_lost_and_found() {
    let (old, new) = (pattern(3, 40_960), pattern(4, 40_960));
    let mut volume = two_objects((0, &old), (0, &new));
    let before = held(&volume, 2);
    let report = rebuild_unmounted(&mut volume);
    let name = "/lost+found/100-fast-40960";
    assert_eq!(told(&report), expect(&[("two-versions", name)]));
    assert_eq!((report.findings[0].tier.as_deref(), report.findings[0].size), (Some("fast"), Some(40_960)));
    let found = files(&volume);
    assert_eq!(found["/file"].content, new);
    assert_eq!(found[name].content, old);
    assert_eq!(held(&volume, 2), before, "no object changed");
}

#[test]
fn older_bytes_of_an_object_that_the_file_needs_are_copied_to_lost_and_found() {
    // Blocks 0 to 9 are only in the older object, 2 to 4 in both, and differently.
    let old = pattern(3, 40_960);
    let new = pattern(4, 12_288);
    let mut volume = two_objects((0, &old), (8192, &new));
    let before = held(&volume, 2);
    let report = rebuild_unmounted(&mut volume);
    let name = "/lost+found/100-fast-20480";
    assert_eq!(told(&report), expect(&[("two-versions", name)]));
    assert!(report.findings[0].detail.contains("blocks 2-4 "), "{}", report.findings[0].detail);
    let found = files(&volume);
    let expected = [&old[..8192], &new, &old[20_480..]].concat();
    assert!(found["/file"].content == expected, "the file has the later bytes, and all others");
    assert_eq!(found[name].content[8192..], old[8192..20_480]);
    assert!(found[name].content[..8192].iter().all(|byte| *byte == 0), "and nothing that is in the file");
    let after = held(&volume, 2);
    assert!(before.iter().all(|(object, bytes)| after.get(object) == Some(bytes)), "no object changed");
    assert_eq!(after.len(), before.len() + 1);
}

#[test]
fn pieces_of_a_file_on_two_tiers_are_put_together_and_it_grows_where_it_ended() {
    let (first, second) = (pattern(3, 40_960), pattern(4, 8192));
    let mut volume = two_objects((0, &first), (40_960, &second));
    let report = rebuild_unmounted(&mut volume);
    assert_eq!(report.findings, []);
    let found = files(&volume);
    assert_eq!(found["/file"].content, [first, second].concat());
    let location = volume.fs().locate(found["/file"].ino).expect("it can be located");
    let tiers: Vec<_> = location.extents.iter().filter_map(|extent| extent.tier.as_deref()).collect();
    assert_eq!(tiers, ["fast", "slow"]);
    volume.remount();
    assert_eq!(files(&volume), found);
}

#[test]
fn of_two_files_with_one_path_the_later_described_keeps_it() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    for (ino, order) in [(100, 5), (101, 9), (102, 7)] {
        let object = plant(&volume, 0, ino, &pattern(u8::try_from(ino).expect("it is small"), 5000));
        give(&volume, 0, object, &stamp(ino, "file", order));
    }
    let report = rebuild_unmounted(&mut volume);
    let names = ["/file", "/lost+found/100-fast-5000", "/lost+found/102-fast-5000"];
    let found = files(&volume);
    assert_eq!(found.keys().collect::<Vec<_>>(), names);
    assert_eq!(found[names[0]].ino, Ino(101));
    assert_eq!(found[names[1]].content, pattern(100, 5000));
    assert_eq!(told(&report), expect(&[("path-taken", names[1]), ("path-taken", names[2])]));
    assert_eq!(report.files_lost_and_found, 2);
}

#[test]
fn two_directories_with_one_path_become_one() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    let stamps = [
        stamp_below(100, ("directory", 200), "a", 5),
        stamp_below(101, ("directory", 201), "b", 9),
        stamp_below(102, ("directory", 201), "a", 9),
    ];
    for (number, stamp) in (0..).zip(&stamps) {
        let object = plant(&volume, 0, number, &pattern(1, 5000));
        give(&volume, 0, object, stamp);
    }
    let report = rebuild_unmounted(&mut volume);
    let found = files(&volume);
    let names = ["/directory/a", "/directory/b", "/lost+found/100-fast-5000"];
    assert_eq!(found.keys().collect::<Vec<_>>(), names);
    assert_eq!(found[names[0]].ino, Ino(102));
    assert_eq!(told(&report), expect(&[("directories-merged", "/directory"), ("path-taken", names[2])]));
}

#[test]
fn a_file_in_the_place_of_a_directory_is_in_lost_and_found() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    for (number, stamp) in [(1, stamp(100, "name", 9)), (2, stamp_below(101, ("name", 200), "below", 5))] {
        let object = plant(&volume, 0, number, &pattern(1, 5000));
        give(&volume, 0, object, &stamp);
    }
    let report = rebuild_unmounted(&mut volume);
    assert_eq!(files(&volume).keys().collect::<Vec<_>>(), ["/lost+found/100-fast-5000", "/name/below"]);
    assert_eq!(told(&report), expect(&[("path-taken", "/lost+found/100-fast-5000")]));
}

#[test]
fn a_file_written_after_it_was_described_has_at_least_all_its_bytes_and_a_doubtful_end_is_told() {
    let mut volume = empty(&[16 * MEBIBYTE]);
    for (ino, size) in [(100, 3000), (101, 90_000)] {
        let object = plant(&volume, 0, ino, &pattern(1, 5000));
        let mut stamp = stamp(ino, &format!("file{ino}"), 5);
        let refresh = stamp.refresh.as_mut().expect("it is of the newest version");
        // Before the object was written.
        (refresh.at.seconds, refresh.size) = (5, size);
        give(&volume, 0, object, &stamp);
    }
    let report = rebuild_unmounted(&mut volume);
    let found = files(&volume);
    assert_eq!(found["/file100"].content, pattern(1, 5000));
    assert_eq!(found["/file101"].content.len(), 90_000);
    assert_eq!(told(&report), expect(&[("size-uncertain", "/file101")]));
}

#[test]
fn a_file_that_may_have_been_growing_on_two_tiers_when_the_machine_stopped_is_told() {
    const RANGE: u64 = 2 * MEBIBYTE;
    let range = pattern(1, usize::try_from(RANGE).expect("small"));
    // The other tier has only a part of the second range, nothing of it, or all of it.
    for (second, is_told) in [(&range[..70_000], true), (&range[..0], true), (&range[..], false)] {
        let mut volume = two_objects((0, &range), (RANGE, second));
        let [first, other] = [0, 1].map(|number| ObjectRef::new(ObjectId(9_000_000 + number), Bucket(7)));
        for (tier, object) in [(0, first), (1, other)] {
            let mut stamp = stamp(100, "file", 5);
            // Before it was written.
            stamp.refresh.as_mut().expect("it is of the newest version").at.seconds = 5;
            give(&volume, tier, object, &stamp);
        }
        volume.memory(0).write(first, 2 * RANGE, &range[..9000], Wait::Allowed).expect("it is written");
        volume.memory(0).sync_all().expect("the tier syncs");
        let report = rebuild_unmounted(&mut volume);
        let expected = if is_told { expect(&[("growth-uncertain", "/file")]) } else { BTreeSet::new() };
        assert_eq!(told(&report), expected, "{} bytes", second.len());
        assert_eq!(files(&volume)["/file"].content.len() as u64, 2 * RANGE + 9000);
    }
}
