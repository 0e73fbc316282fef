//! A tier that is lost for good is forgotten: its data is reported and reads as an error, everything else stays, and a crash
//! at any step leaves a volume that mounts.

mod common;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use common::{
    StoreHook, Volume, bytes_on, close, create, errno, find, make_directory, pattern, read_at, read_only, read_whole,
    read_write, tier_names, write_all,
};
use polymux_fs::{Caller, LostFile, SetAttributes, SyncKind, VolumeError, WriteOrigin, XattrMode, check_records};
use polymux_meta::{Batch, MetadataStore, StoreError};
use polymux_types::{Errno, Ino, TierId};

const MIB: u64 = 1 << 20;
const NODE: usize = 2 << 20;
const NODE_BYTES: u64 = 2 << 20;

/// The contents of a volume, by name.
#[derive(Clone, Default)]
struct Truth {
    content: BTreeMap<String, Vec<u8>>,
    /// Which bytes lie on which tier; nothing for bytes that lie on none.
    places: BTreeMap<String, Vec<(Range<u64>, usize)>>,
}

fn durable_file(volume: &Volume, name: &str, content: &[u8]) -> Ino {
    let (ino, handle) = create(volume.fs(), name);
    write_all(volume.fs(), handle, 0, content).expect("there is room");
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
    close(volume.fs(), handle).expect("closed");
    ino
}

fn move_to(volume: &Volume, ino: Ino, tier: usize, range: Option<Range<u64>>) {
    let bytes = range.clone();
    let tier = tier_names(3)[tier];
    volume.fs().migrate(ino, tier, range).expect("accepted");
    volume.drain();
    while volume.fs().move_step() == polymux_fs::Progress::Worked {}
    volume.drain();
    let length = bytes.map_or(1, |range| range.end - range.start);
    assert!(bytes_on(volume.fs(), ino, tier) >= length, "the bytes lie on tier {tier}");
}

/// Tiers of the three parts of files on several, with the seed of each.
const MIXES: [(u8, [usize; 3]); 4] = [(20, [0, 1, 2]), (21, [2, 0, 1]), (22, [1, 2, 0]), (23, [2, 1, 1])];

/// Small files, files on one tier and on several, with home and tail on each of them, and empty ones.
fn populate(volume: &Volume) -> Truth {
    populate_with(volume, &MIXES)
}

fn populate_with(volume: &Volume, mixes: &[(u8, [usize; 3])]) -> Truth {
    let mut truth = Truth::default();
    let mut note = |name: &str, content: Vec<u8>, places: Vec<(Range<u64>, usize)>| {
        truth.content.insert(name.to_owned(), content);
        truth.places.insert(name.to_owned(), places);
    };
    durable_file(volume, "inline", &pattern(1, 900));
    note("inline", pattern(1, 900), Vec::new());
    durable_file(volume, "empty", &[]);
    note("empty", Vec::new(), Vec::new());
    for tier in 0..3 {
        let name = format!("whole {tier}");
        let content = pattern(10 + u8::try_from(tier).expect("three tiers"), 300_001);
        let ino = durable_file(volume, &name, &content);
        move_to(volume, ino, tier, None);
        note(&name, content, vec![(0..300_001, tier)]);
    }
    for &(seed, [first, second, third]) in mixes {
        let name = format!("mixed {first}{second}{third}");
        let length = 2 * NODE + 500_003;
        let content = pattern(seed, length);
        let ino = durable_file(volume, &name, &content);
        let ranges = [0..NODE_BYTES, NODE_BYTES..2 * NODE_BYTES, 2 * NODE_BYTES..length as u64];
        let places: Vec<_> = ranges.into_iter().zip([first, second, third]).collect();
        for (range, tier) in &places {
            move_to(volume, ino, *tier, Some(range.clone()));
        }
        note(&name, content, places);
    }
    let directory = make_directory(volume.fs(), "directory");
    let set = |ino| volume.fs().set_xattr(&Caller::root(), ino, b"user.note", b"kept", XattrMode::CreateOrReplace);
    set(directory).expect("set");
    truth
}

fn losses(volume: &Volume, tier: usize) -> BTreeMap<String, LostFile> {
    let mut found = BTreeMap::new();
    let mut visit = |lost: LostFile| {
        let path = String::from_utf8(lost.path.clone().expect("it has a name")).expect("a plain name");
        found.insert(path, lost);
        ControlFlow::Continue(())
    };
    volume.fs().files_lost_with(tier_names(3)[tier], &mut visit).expect("told");
    found
}

fn ranges_on(truth: &Truth, name: &str, tier: usize) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (range, _) in truth.places[name].iter().filter(|(_, on)| *on == tier) {
        match merged.last_mut() {
            Some((_, end)) if *end == range.start => *end = range.end,
            _ => merged.push((range.start, range.end)),
        }
    }
    merged
}

fn as_bytes(range: &Range<u64>) -> Range<usize> {
    usize::try_from(range.start).expect("small")..usize::try_from(range.end).expect("small")
}

/// Everything that did not lie on the lost tier is as it was, and the rest is an error.
#[track_caller]
fn assert_left(volume: &Volume, truth: &Truth, tier: usize) {
    for (name, content) in &truth.content {
        let ino = find(volume.fs(), name).ino;
        let size = volume.fs().attributes(&Caller::root(), ino).expect("told").size;
        assert_eq!(size, content.len() as u64, "{name} keeps its size");
        let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
        for (range, on) in &truth.places[name] {
            let bytes = as_bytes(range);
            let read = read_at(volume.fs(), handle, range.start, bytes.len());
            if *on == tier {
                assert_eq!(errno(read), Errno::EIO, "{name} at {}", range.start);
                assert_eq!(errno(read_at(volume.fs(), handle, range.end - 1, 1)), Errno::EIO, "{name}");
            } else {
                assert!(read.expect("read") == content[bytes], "{name} at {}", range.start);
            }
        }
        volume.fs().release(handle).expect("closed");
        if ranges_on(truth, name, tier).is_empty() {
            assert!(read_whole(volume.fs(), ino).expect("read") == *content, "{name}");
        }
    }
    let directory = find(volume.fs(), "directory").ino;
    assert_eq!(volume.fs().xattr(&Caller::root(), directory, b"user.note").expect("told"), b"kept");
}

fn names(volume: &Volume) -> Vec<String> {
    volume.fs().status().expect("status answers").tiers.into_iter().map(|tier| tier.name).collect()
}

fn assert_records_agree(volume: &Volume) {
    let report = check_records(volume.store().as_ref()).expect("the records can be read");
    assert_eq!(report.violations, [], "records contradict each other");
}

/// A check finds nothing but the lost ranges, which are a note.
#[track_caller]
fn assert_sound(volume: &mut Volume) {
    volume.unmount().expect("the volume unmounts");
    let found: Vec<String> = volume.findings().into_iter().filter(|of| !of.starts_with("data-damaged")).collect();
    assert_eq!(found, Vec::<String>::new());
    volume.mount().expect("the volume mounts without options");
}

fn new_volume() -> Volume {
    Volume::new(&[64 * MIB, 64 * MIB, 64 * MIB])
}

#[test]
fn a_forgotten_tier_takes_along_what_lay_on_it_and_nothing_else() {
    for tier in 0..3 {
        let mut volume = new_volume();
        let truth = populate(&volume);
        volume.lose_tier(tier);
        let told = losses(&volume, tier);
        let expected: Vec<&String> =
            truth.content.keys().filter(|name| !ranges_on(&truth, name, tier).is_empty()).collect();
        assert_eq!(told.keys().collect::<Vec<_>>(), expected, "the list is exact");
        for (name, lost) in &told {
            assert_eq!(lost.ranges, ranges_on(&truth, name, tier), "{name}");
            assert_eq!(lost.is_whole, name.starts_with("whole"), "{name}");
            assert!(lost.is_end_known, "{name}");
        }
        let forgotten = volume.forget_tier(tier).expect("forgotten");
        assert_eq!((forgotten.files, forgotten.whole), (told.len() as u64, 1));
        assert_left(&volume, &truth, tier);
        assert_eq!(names(&volume), volume.listed());
        assert_sound(&mut volume);
        assert_left(&volume, &truth, tier);
        volume.crash();
        assert_left(&volume, &truth, tier);
        assert_records_agree(&volume);
    }
}

#[test]
fn lost_bytes_are_an_error_until_they_are_accepted_overwritten_cut_off_or_deleted() {
    let mut volume = new_volume();
    let truth = populate(&volume);
    volume.lose_tier(2);
    volume.forget_tier(2).expect("forgotten");
    let root = Caller::root();
    // Accepted.
    let mixed = find(volume.fs(), "mixed 012").ino;
    let accepted = volume.fs().accept_lost_bytes(mixed).expect("accepted");
    let end = (2 * NODE_BYTES + 500_003).next_multiple_of(4096);
    assert_eq!(accepted, [(2 * NODE_BYTES, end)], "whole blocks");
    let mut content = truth.content["mixed 012"].clone();
    content[2 * NODE..].fill(0);
    assert!(read_whole(volume.fs(), mixed).expect("read") == content, "zeros and the rest");
    assert_eq!(volume.fs().accept_lost_bytes(mixed), Ok(Vec::new()));
    // Overwritten.
    let whole = find(volume.fs(), "whole 2").ino;
    let handle = volume.fs().open(&root, whole, read_write()).expect("opened");
    write_all(volume.fs(), handle, 0, &pattern(99, 8192)).expect("written");
    assert_eq!(read_at(volume.fs(), handle, 0, 8192).expect("read"), pattern(99, 8192));
    assert_eq!(errno(read_at(volume.fs(), handle, 8192, 1)), Errno::EIO);
    write_all(volume.fs(), handle, 0, &pattern(98, 300_001)).expect("written");
    assert_eq!(read_whole(volume.fs(), whole).expect("read"), pattern(98, 300_001));
    volume.fs().sync(&root, handle, SyncKind::Data).expect("nothing is lost any more");
    close(volume.fs(), handle).expect("closed");
    // Cut off, and grown again.
    let cut = find(volume.fs(), "mixed 120").ino;
    let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    volume.fs().set_attributes(&root, cut, &size(NODE_BYTES)).expect("cut");
    volume.fs().set_attributes(&root, cut, &size(NODE_BYTES + 10)).expect("grown");
    let mut content = truth.content["mixed 120"][..NODE].to_vec();
    content.resize(NODE + 10, 0);
    assert!(read_whole(volume.fs(), cut).expect("read") == content);
    // Appended to.
    let grown = find(volume.fs(), "mixed 201").ino;
    let handle = volume.fs().open(&root, grown, read_write()).expect("opened");
    let length = truth.content["mixed 201"].len();
    volume.fs().write(&root, handle, length as u64, b"more", WriteOrigin::Call).expect("appended");
    assert_eq!(read_at(volume.fs(), handle, length as u64, 9).expect("read"), b"more");
    assert_eq!(errno(read_at(volume.fs(), handle, 0, 1)), Errno::EIO);
    close(volume.fs(), handle).expect("closed");
    // Deleted.
    volume.fs().unlink(&root, Ino::ROOT, b"mixed 211").expect("deleted");
    volume.drain();
    assert_sound(&mut volume);
    assert!(read_whole(volume.fs(), find(volume.fs(), "whole 2").ino).expect("read") == pattern(98, 300_001));
    assert_eq!(errno(read_whole(volume.fs(), find(volume.fs(), "mixed 201").ino)), Errno::EIO);
}

#[test]
fn a_file_whose_end_only_the_lost_tier_knew_reads_as_an_error_at_its_end() {
    let mut volume = new_volume();
    let ino = durable_file(&volume, "grown", &pattern(1, 100_000));
    move_to(&volume, ino, 2, None);
    volume.remount();
    let handle = volume.fs().open(&Caller::root(), find(volume.fs(), "grown").ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, 100_000, &pattern(2, 50_000)).expect("appended");
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
    volume.stop_uncleanly();
    volume.set_missing(2, true);
    volume.options.missing = polymux_fs::MissingTiers::Degraded;
    volume.mount().expect("mounted");
    let told = losses(&volume, 2);
    assert!(!told["grown"].is_end_known);
    volume.forget_tier(2).expect("forgotten");
    volume.options.missing = polymux_fs::MissingTiers::Refuse;
    assert_sound(&mut volume);
    let ino = find(volume.fs(), "grown").ino;
    let size = volume.fs().attributes(&Caller::root(), ino).expect("told").size;
    assert_eq!(size, told["grown"].size);
    assert!(size > 100_000, "the end shows as lost");
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    assert_eq!(errno(read_at(volume.fs(), handle, size - 1, 1)), Errno::EIO);
    volume.fs().release(handle).expect("closed");
}

#[test]
fn a_tier_that_works_is_not_forgotten_and_one_that_comes_back_later_is_refused() {
    let mut volume = new_volume();
    let truth = populate(&volume);
    let refused = volume.forget_tier(1).expect_err("refused").to_string();
    assert!(refused.contains("works") && refused.contains("polymux tier drain"), "{refused}");
    assert_left(&volume, &truth, 3);
    volume.lose_tier(1);
    let failed = volume.fs().forget_tier("middle", || Err("the disk is full".to_owned()));
    assert_eq!(failed.expect_err("refused").to_string(), "the disk is full");
    volume.unmount().expect("unmounted");
    volume.set_missing(1, false);
    volume.mount().expect("nothing had begun");
    assert_left(&volume, &truth, 3);
    volume.lose_tier(1);
    volume.forget_tier(1).expect("forgotten");
    volume.unmount().expect("unmounted");
    volume.set_missing(1, false);
    volume.edit_configuration(|listed| listed.insert(1, 1));
    let refused = volume.mount().expect_err("it is no tier of the volume").to_string();
    assert!(refused.contains("`middle` that the volume does not have"), "{refused}");
    volume.edit_configuration(|listed| listed.retain(|index| *index != 1));
    volume.mount().expect("mounted");
    assert!(volume.add_tier(1, 1).is_err(), "its objects belong to no record");
    assert_left(&volume, &truth, 1);
    let spare = volume.make_tier("spare", MIB, |tier| tier);
    assert_eq!(volume.add_tier(spare, 0), Ok(TierId(3)), "its number is never used again");
}

#[test]
fn two_tiers_are_forgotten_one_after_the_other() {
    let mut volume = new_volume();
    let truth = populate(&volume);
    volume.lose_tier(1);
    volume.forget_tier(1).expect("forgotten");
    volume.lose_tier(2);
    volume.forget_tier(2).expect("forgotten");
    assert_sound(&mut volume);
    for name in ["inline", "empty", "whole 0"] {
        assert!(read_whole(volume.fs(), find(volume.fs(), name).ino).expect("read") == truth.content[name], "{name}");
    }
    for (name, places) in &truth.places {
        let handle = volume.fs().open(&Caller::root(), find(volume.fs(), name).ino, read_only()).expect("opened");
        for (range, on) in places {
            let bytes = as_bytes(range);
            let read = read_at(volume.fs(), handle, range.start, bytes.len());
            match on {
                0 => assert!(read.expect("read") == truth.content[name][bytes], "{name}"),
                _ => assert_eq!(errno(read), Errno::EIO, "{name}"),
            }
        }
        volume.fs().release(handle).expect("closed");
    }
}

#[test]
fn what_was_to_be_freed_on_a_lost_tier_is_dropped_with_it() {
    let mut volume = new_volume();
    populate(&volume);
    volume.lose_tier(2);
    for name in ["whole 2", "mixed 012"] {
        volume.fs().unlink(&Caller::root(), Ino::ROOT, name.as_bytes()).expect("deleted");
    }
    volume.drain();
    assert!(volume.fs().status().expect("told").disowned_pending > 0);
    volume.forget_tier(2).expect("forgotten");
    volume.drain();
    assert_eq!(volume.fs().status().expect("told").disowned_pending, 0);
    assert_sound(&mut volume);
}

/// Unwinds, when it is armed, before one of the operations of the store or the configuration.
struct CrashPoint {
    left: AtomicI64,
}

struct Crash;

impl CrashPoint {
    fn operation(&self) {
        let left = self.left.load(Ordering::SeqCst);
        if left >= 0 {
            self.left.store(left.max(1) - 1, Ordering::SeqCst);
            if left == 0 {
                resume_unwind(Box::new(Crash));
            }
        }
    }
}

impl StoreHook for CrashPoint {
    fn before_commit(&self, _batch: &Batch) -> Result<(), StoreError> {
        self.operation();
        Ok(())
    }

    fn before_sync(&self) {
        self.operation();
    }
}

fn forget_with_crash(volume: &Volume, point: &CrashPoint, operations: i64) -> bool {
    point.left.store(operations, Ordering::SeqCst);
    let run = || -> Result<(), VolumeError> {
        volume.fs().forget_tier("slow", || {
            point.operation();
            volume.edit_configuration(|listed| listed.retain(|index| *index != 2));
            point.operation();
            Ok(())
        })?;
        Ok(())
    };
    let outcome = catch_unwind(AssertUnwindSafe(run));
    point.left.store(-1, Ordering::SeqCst);
    match outcome {
        Ok(finished) => {
            finished.expect("nothing failed");
            false
        }
        Err(unwound) if unwound.is::<Crash>() => true,
        Err(unwound) => resume_unwind(unwound),
    }
}

#[test]
fn after_a_crash_at_any_step_a_forget_goes_on_or_has_not_begun() {
    for transactions_kept in [0, usize::MAX] {
        for operations in 0.. {
            let point = Arc::new(CrashPoint { left: AtomicI64::new(-1) });
            let mut volume = new_volume();
            let truth = populate_with(&volume, &MIXES[1..2]);
            volume.hook_store(Arc::clone(&point) as _);
            volume.lose_tier(2);
            let crashed = forget_with_crash(&volume, &point, operations);
            let is_listed = volume.listed().contains(&"slow".to_owned());
            // Not begun: the tier is needed again, and everything is there.
            volume.set_missing(2, !is_listed);
            volume.crash_keeping_transactions(transactions_kept);
            assert_eq!(names(&volume), volume.listed(), "after {operations} operations");
            assert_left(&volume, &truth, if is_listed { 3 } else { 2 });
            assert_records_agree(&volume);
            assert_sound(&mut volume);
            assert_left(&volume, &truth, if is_listed { 3 } else { 2 });
            if !crashed {
                assert!(operations > 8, "only {operations} operations were crashed");
                break;
            }
        }
    }
}

/// The record says *forgotten* and the configuration lists the tier, which is still not there.
#[test]
fn after_a_crash_before_the_configuration_a_missing_tier_is_forgotten_as_if_nothing_had_begun() {
    let mut crashes_before_configuration = 0;
    for operations in 0.. {
        let point = Arc::new(CrashPoint { left: AtomicI64::new(-1) });
        let mut volume = new_volume();
        let truth = populate_with(&volume, &MIXES[1..2]);
        volume.hook_store(Arc::clone(&point) as _);
        volume.lose_tier(2);
        let crashed = forget_with_crash(&volume, &point, operations);
        if !crashed || !volume.listed().contains(&"slow".to_owned()) {
            break;
        }
        crashes_before_configuration += 1;
        volume.options.missing = polymux_fs::MissingTiers::Degraded;
        volume.crash_keeping_transactions(usize::MAX);
        volume.options.missing = polymux_fs::MissingTiers::Refuse;
        volume.fs().cancel_drain("slow").expect_err("a missing tier is not being drained");
        volume.forget_tier(2).expect("forgotten");
        assert_left(&volume, &truth, 2);
        volume.crash();
        assert_eq!(names(&volume), volume.listed(), "after {operations} operations");
        assert_left(&volume, &truth, 2);
        assert_sound(&mut volume);
    }
    assert!(crashes_before_configuration > 2, "only {crashes_before_configuration} crashes before the configuration");
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_hides_no_other_damage() {
    let mut volume = new_volume();
    let truth = populate(&volume);
    let ino = durable_file(&volume, "unreadable", &pattern(9, 200_000));
    let name_of = |path: &Option<Vec<u8>>| path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned());
    volume.lose_tier(2);
    volume.forget_tier(2).expect("forgotten");
    volume.unmount().expect("it stops");
    let mut batch = Batch::new();
    batch.put([&b"\0\0\0\0i"[..], &ino.0.to_be_bytes()].concat(), b"garbage");
    volume.store().commit(batch).expect("the store takes anything");
    volume.mount().expect("nobody looks at all records of a volume that ended cleanly");
    let found = volume.fs().damaged_files(100).expect("one bad record is no reason to tell nothing");
    assert_eq!(found.unreadable, [ino]);
    assert!(found.is_complete);
    let mut told: Vec<_> = found.listed.iter().filter_map(|(_, path)| name_of(path)).collect();
    told.sort();
    let mut expected: Vec<_> = truth.content.keys().filter(|name| !ranges_on(&truth, name, 2).is_empty()).collect();
    expected.sort();
    assert!(told.iter().eq(expected.iter().copied()), "{told:?}");
    assert_eq!(found.count, told.len() as u64);
}

/// A file on all three tiers that was made longer on the last one, without a stop in order, and the two slower tiers lost.
fn two_tiers_lost_in_a_crash() -> (Volume, Vec<u8>) {
    let mut volume = new_volume();
    let mut content = pattern(31, 2 * NODE + 500_000);
    let ino = durable_file(&volume, "grown", &content);
    for (tier, range) in [(1, NODE_BYTES..2 * NODE_BYTES), (2, 2 * NODE_BYTES..content.len() as u64)] {
        move_to(&volume, ino, tier, Some(range));
    }
    durable_file(&volume, "other", &pattern(32, 300_000));
    let other = find(volume.fs(), "other").ino;
    move_to(&volume, other, 1, None);
    volume.remount();
    let handle = volume.fs().open(&Caller::root(), find(volume.fs(), "grown").ino, read_write()).expect("opened");
    write_all(volume.fs(), handle, content.len() as u64, &pattern(33, 50_000)).expect("appended");
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
    content.extend_from_slice(&pattern(33, 50_000));
    volume.stop_uncleanly();
    for tier in 1..3 {
        volume.set_missing(tier, true);
    }
    volume.options.missing = polymux_fs::MissingTiers::Degraded;
    volume.mount().expect("mounted");
    (volume, content)
}

#[track_caller]
fn assert_parts(volume: &Volume, content: &[u8], good: &[(usize, usize)], lost: &[usize]) {
    let handle = volume.fs().open(&Caller::root(), find(volume.fs(), "grown").ino, read_only()).expect("opened");
    for (start, end) in good {
        let read = read_at(volume.fs(), handle, *start as u64, end - start).expect("read");
        assert!(read == content[*start..*end], "{start}..{end}");
    }
    for at in lost {
        assert_eq!(errno(read_at(volume.fs(), handle, *at as u64, 1)), Errno::EIO, "{at}");
    }
    volume.fs().release(handle).expect("closed");
}

#[test]
fn two_tiers_that_were_lost_in_one_crash_are_forgotten_one_after_the_other() {
    let (mut volume, content) = two_tiers_lost_in_a_crash();
    let told = losses(&volume, 1);
    assert_eq!(told.keys().collect::<Vec<_>>(), ["grown", "other"]);
    assert_eq!(
        (told["grown"].ranges.as_slice(), told["grown"].is_end_known),
        (&[(NODE_BYTES, 2 * NODE_BYTES)][..], false)
    );
    assert_eq!(volume.forget_tier(1).expect("forgotten").files, 2);
    let told = losses(&volume, 2);
    assert_eq!(told.keys().collect::<Vec<_>>(), ["grown"]);
    volume.forget_tier(2).expect("forgotten");
    volume.options.missing = polymux_fs::MissingTiers::Refuse;
    assert_sound(&mut volume);
    let size = find(volume.fs(), "grown").size;
    assert!(size > 2 * NODE_BYTES + 500_000, "the end shows as lost");
    assert_parts(
        &volume,
        &content,
        &[(0, NODE)],
        &[NODE, 2 * NODE - 1, 2 * NODE, usize::try_from(size).expect("small") - 1],
    );
}

#[test]
fn what_a_tier_has_that_comes_back_after_another_one_was_forgotten_is_there_to_the_last_byte() {
    let (mut volume, content) = two_tiers_lost_in_a_crash();
    volume.forget_tier(1).expect("forgotten");
    volume.unmount().expect("unmounted");
    volume.set_missing(2, false);
    volume.options.missing = polymux_fs::MissingTiers::Refuse;
    volume.mount().expect("mounted");
    for _ in 0..2 {
        assert_eq!(find(volume.fs(), "grown").size, content.len() as u64);
        assert_parts(&volume, &content, &[(0, NODE), (2 * NODE, content.len())], &[NODE, 2 * NODE - 1]);
        assert_sound(&mut volume);
    }
}

#[test]
fn a_record_that_cannot_be_read_keeps_no_tier_from_being_forgotten_and_is_in_the_list() {
    for key in [
        |ino: Ino| [&b"\0\0\0\0i"[..], &ino.0.to_be_bytes()].concat(),
        |ino: Ino| [&b"\0\0\0\0e"[..], &ino.0.to_be_bytes(), &512_u64.to_be_bytes()].concat(),
    ] {
        let mut volume = new_volume();
        let mut truth = populate(&volume);
        let ino = find(volume.fs(), "mixed 012").ino;
        volume.lose_tier(2);
        volume.unmount().expect("it stops");
        let mut batch = Batch::new();
        batch.put(key(ino), b"garbage");
        volume.store().commit(batch).expect("the store takes anything");
        volume.options.missing = polymux_fs::MissingTiers::Degraded;
        volume.mount().expect("nobody looks at all records of a volume that ended cleanly");
        volume.options.missing = polymux_fs::MissingTiers::Refuse;
        let told = losses(&volume, 2);
        assert!(told["mixed 012"].problem.is_some() && told["mixed 012"].ranges.is_empty(), "{:?}", told["mixed 012"]);
        let expected: Vec<&String> =
            truth.content.keys().filter(|name| !ranges_on(&truth, name, 2).is_empty()).collect();
        assert_eq!(told.keys().collect::<Vec<_>>(), expected, "the list has all the others too");
        let forgotten = volume.forget_tier(2).expect("forgotten");
        assert_eq!((forgotten.files, forgotten.unreadable), (told.len() as u64 - 1, 1));
        truth.content.remove("mixed 012");
        assert_left(&volume, &truth, 2);
        volume.remount();
        assert_left(&volume, &truth, 2);
    }
}
