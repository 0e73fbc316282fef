//! Objects that became shorter below the file system: their lost data is an error and named, and a hole stays a hole.

mod common;

use common::{
    Volume, bytes_on, close, create, errno, find, pattern, read_at, read_only, read_whole, read_write, tier_names,
    write_all,
};
use polymux_fs::{Caller, JobState, SeekTarget, SetAttributes, SyncKind, WriteOrigin};
use polymux_tier::{ObjectRef, Tier};
use polymux_types::limits::BUCKETS;
use polymux_types::{Bucket, Errno, Ino};

const MIB: u64 = 1 << 20;
const NODE: u64 = 2 << 20;

/// A file that was written, synced and closed.
fn file(volume: &Volume, name: &str, content: &[u8]) -> Ino {
    let (ino, handle) = create(volume.fs(), name);
    write_all(volume.fs(), handle, 0, content).expect("there is room");
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("synced");
    close(volume.fs(), handle).expect("closed");
    ino
}

/// The only object on a tier.
fn object_on(volume: &Volume, tier: usize) -> ObjectRef {
    let all = (0..BUCKETS)
        .map(Bucket)
        .flat_map(|bucket| volume.list(tier, bucket).into_iter().map(move |object| ObjectRef::new(object, bucket)));
    let found: Vec<ObjectRef> = all.collect();
    assert_eq!(found.len(), 1, "one object lies on the tier");
    found[0]
}

/// Cuts the only object on a tier, behind the back of the volume.
fn cut_object(volume: &Volume, tier: usize, size: u64) {
    let object = object_on(volume, tier);
    volume.memory(tier).truncate(object, size).expect("cut");
    volume.memory(tier).sync(object).expect("synced");
}

fn move_to(volume: &Volume, ino: Ino, tier: usize, range: Option<std::ops::Range<u64>>) -> JobState {
    let job = volume.fs().migrate(ino, tier_names(2)[tier], range).expect("accepted");
    volume.drain();
    while volume.fs().move_step() == polymux_fs::Progress::Worked {}
    let known = volume.fs().job(job);
    known.map_or(JobState::Done, |job| job.state)
}

fn truncate(volume: &Volume, ino: Ino, size: u64) {
    let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
    volume.fs().set_attributes(&Caller::root(), ino, &change).expect("the size is set");
}

fn damaged(volume: &Volume) -> Vec<Ino> {
    volume.fs().damaged_files(10).expect("told").listed.into_iter().map(|(ino, _)| ino).collect()
}

/// Nothing is lost: the whole file reads as `content`, and a check finds nothing.
#[track_caller]
fn assert_whole(volume: &mut Volume, name: &str, content: &[u8]) {
    let ino = find(volume.fs(), name).ino;
    assert!(read_whole(volume.fs(), ino).expect("read") == content, "{name}");
    assert_eq!(damaged(volume), []);
    volume.unmount().expect("the volume unmounts");
    assert_eq!(volume.findings(), Vec::<String>::new());
    volume.mount().expect("the volume mounts again");
    assert!(read_whole(volume.fs(), ino).expect("read") == content, "{name} after another mount");
    assert_eq!(damaged(volume), []);
}

#[test]
fn what_an_object_lost_at_its_end_is_an_error_that_is_remembered_and_named() {
    let mut volume = Volume::new(&[8 * MIB]);
    let content = pattern(1, 1_000_000);
    let ino = file(&volume, "file", &content);
    volume.unmount().expect("the volume unmounts");
    cut_object(&volume, 0, 300_100);
    assert!(volume.findings().iter().any(|found| found.contains("object-short: Some(\"/file\")")));
    volume.mount().expect("the volume mounts again");
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    assert_eq!(errno(read_at(volume.fs(), handle, 300_000, 4096)), Errno::EIO);
    assert_eq!(errno(read_at(volume.fs(), handle, 999_999, 1)), Errno::EIO);
    assert_eq!(read_at(volume.fs(), handle, 0, 300_100).expect("read"), content[..300_100]);
    assert_eq!(damaged(&volume), [ino]);
    volume.fs().release(handle).expect("closed");
    for _ in 0..2 {
        volume.crash();
        let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
        assert_eq!(errno(read_at(volume.fs(), handle, 300_100, 1)), Errno::EIO);
        assert_eq!(read_at(volume.fs(), handle, 0, 300_100).expect("read"), content[..300_100]);
        volume.fs().release(handle).expect("closed");
        assert_eq!(find(volume.fs(), "file").size, 1_000_000);
    }
    volume.unmount().expect("the volume unmounts");
    let findings = volume.findings();
    assert!(matches!(&findings[..], [one] if one.starts_with("data-damaged")), "{findings:?}");
}

#[test]
fn lost_ends_are_healed_by_writing_by_cutting_and_by_accepting() {
    let whole = pattern(2, 1_000_000);
    for way in 0..3 {
        let mut volume = Volume::new(&[8 * MIB]);
        let ino = file(&volume, "file", &whole);
        volume.unmount().expect("the volume unmounts");
        cut_object(&volume, 0, 300_100);
        volume.mount().expect("the volume mounts again");
        assert_eq!(errno(read_whole(volume.fs(), ino)), Errno::EIO);
        let mut content = whole.clone();
        match way {
            0 => {
                let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
                // Whole blocks at a time, but for the first one, of which some bytes were left.
                write_all(volume.fs(), handle, 300_100, &whole[300_100..303_104]).expect("written");
                write_all(volume.fs(), handle, 303_104, &whole[303_104..]).expect("written");
                close(volume.fs(), handle).expect("closed");
            }
            1 => {
                truncate(&volume, ino, 300_100);
                content.truncate(300_100);
            }
            _ => {
                assert_eq!(volume.fs().accept_lost_bytes(ino).expect("accepted"), [(300_100, 1_003_520)]);
                content[300_100..].fill(0);
            }
        }
        assert_whole(&mut volume, "file", &content);
    }
}

#[test]
fn only_what_the_short_object_owned_is_lost_of_a_split_file() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let content = pattern(3, 5 << 20);
    let ino = file(&volume, "file", &content);
    assert_eq!(move_to(&volume, ino, 1, Some(NODE..2 * NODE)), JobState::Done);
    assert_eq!(bytes_on(volume.fs(), ino, "slow"), NODE);
    volume.unmount().expect("the volume unmounts");
    cut_object(&volume, 1, NODE + MIB);
    volume.mount().expect("the volume mounts again");
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    let read = |offset: u64, length: usize| read_at(volume.fs(), handle, offset, length);
    let at = |offset: u64| usize::try_from(offset).expect("small");
    assert_eq!(read(0, at(NODE + MIB)).expect("read"), content[..at(NODE + MIB)]);
    assert_eq!(errno(read(NODE + MIB, 1)), Errno::EIO);
    assert_eq!(errno(read(2 * NODE - 1, 1)), Errno::EIO);
    assert_eq!(read(2 * NODE, at(MIB)).expect("read"), content[at(2 * NODE)..]);
    volume.fs().release(handle).expect("closed");
    assert_eq!(damaged(&volume), [ino]);
}

#[test]
fn a_mover_does_not_make_zeros_of_what_an_object_lost() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let content = pattern(4, 1_000_000);
    let ino = file(&volume, "file", &content);
    volume.unmount().expect("the volume unmounts");
    cut_object(&volume, 0, 409_600);
    volume.mount().expect("the volume mounts again");
    let _ = move_to(&volume, ino, 1, None);
    assert_eq!(damaged(&volume), [ino], "the mover found it");
    // The remaining data moves all the same, and lost data stays lost.
    assert_eq!(move_to(&volume, ino, 1, None), JobState::Done);
    assert_eq!((bytes_on(volume.fs(), ino, "fast"), damaged(&volume)), (0, vec![ino]));
    volume.remount();
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    assert_eq!(read_at(volume.fs(), handle, 0, 409_600).expect("read"), content[..409_600]);
    assert_eq!(errno(read_at(volume.fs(), handle, 409_600, 1)), Errno::EIO);
    assert_eq!(errno(read_at(volume.fs(), handle, 999_999, 1)), Errno::EIO);
}

#[test]
fn lost_bytes_count_as_data_so_that_whoever_copies_a_sparse_file_meets_the_error() {
    let mut volume = Volume::new(&[8 * MIB]);
    let ino = file(&volume, "file", &pattern(5, 1_000_000));
    volume.unmount().expect("the volume unmounts");
    cut_object(&volume, 0, 409_600);
    volume.mount().expect("the volume mounts again");
    let handle = volume.fs().open(&Caller::root(), ino, read_only()).expect("opened");
    let seek = |offset, target| volume.fs().seek(&Caller::root(), handle, offset, target);
    assert_eq!(seek(0, SeekTarget::Hole).expect("found"), 1_000_000);
    assert_eq!(seek(500_000, SeekTarget::Data).expect("found"), 500_000);
    assert_eq!(seek(500_000, SeekTarget::Hole).expect("found"), 1_000_000);
    assert_eq!(damaged(&volume), [ino]);
}

#[test]
fn an_object_that_shrinks_below_a_mounted_volume_is_told_of_and_after_a_while_named() {
    let volume = Volume::new(&[8 * MIB]);
    let content = pattern(6, 1_000_000);
    let ino = file(&volume, "file", &content);
    volume.drain();
    cut_object(&volume, 0, 409_600);
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    assert_eq!(errno(read_at(volume.fs(), handle, 409_600, 1)), Errno::EIO);
    assert_eq!(read_at(volume.fs(), handle, 0, 409_600).expect("read"), content[..409_600]);
    assert_eq!(errno(volume.fs().sync(&Caller::root(), handle, SyncKind::Data)), Errno::EIO);
    assert_eq!(damaged(&volume), [ino]);
}

#[test]
fn an_object_that_is_asked_for_its_room_is_found_to_be_short_without_a_read() {
    let volume = Volume::new(&[8 * MIB]);
    let ino = file(&volume, "file", &pattern(7, 1_000_000));
    volume.drain();
    cut_object(&volume, 0, 409_600);
    let handle = volume.fs().open(&Caller::root(), ino, read_write()).expect("opened");
    volume.fs().write(&Caller::root(), handle, 0, b"new", WriteOrigin::Call).expect("written");
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("nobody looked yet");
    close(volume.fs(), handle).expect("closed");
    volume.clock.advance(std::time::Duration::from_secs(10));
    volume.drain();
    assert_eq!(damaged(&volume), [ino]);
}

#[test]
fn holes_at_the_end_of_files_and_objects_stay_holes() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    // A hole at the end, and one between the ranges of two tiers.
    let (ino, handle) = create(volume.fs(), "file");
    write_all(volume.fs(), handle, 0, &pattern(8, 100_000)).expect("written");
    truncate(&volume, ino, 5 << 20);
    let mut content = pattern(8, 100_000);
    content.resize(5 << 20, 0);
    close(volume.fs(), handle).expect("closed");
    assert_whole(&mut volume, "file", &content);
    for (tier, range) in [(1, NODE..2 * NODE), (1, 2 * NODE..5 * MIB), (0, NODE..2 * NODE), (1, 0..NODE)] {
        assert_eq!(move_to(&volume, ino, tier, Some(range)), JobState::Done);
        assert_whole(&mut volume, "file", &content);
    }
    assert_eq!(move_to(&volume, ino, 1, None), JobState::Done);
    assert_whole(&mut volume, "file", &content);
}

#[test]
fn a_file_that_programs_cut_and_grow_again_has_lost_nothing() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let mut content = pattern(9, 5 << 20);
    let ino = file(&volume, "file", &content);
    volume.drain();
    for (step, size) in [3_000_000_usize, 4_500_000, 10_000, 5_000_000, 0, 200_000].into_iter().enumerate() {
        truncate(&volume, ino, size as u64);
        content.resize(size, 0);
        assert!(read_whole(volume.fs(), ino).expect("read") == content, "{size}");
        volume.fs().sync_volume().expect("synced");
        match step % 3 {
            0 => volume.drain(),
            1 if size > 0 => assert_eq!(move_to(&volume, ino, step / 3, Some(0..NODE)), JobState::Done),
            1 => {}
            _ => volume.crash(),
        }
        assert_whole(&mut volume, "file", &content);
    }
}
