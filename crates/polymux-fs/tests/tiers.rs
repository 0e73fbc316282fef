//! Tiers that join, drain and leave while the volume is in use, and crashes meanwhile.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use common::{
    Hook, HookedTier, StoreHook, Verdict, Volume, close, create, errno, find, pattern, read_whole, write_all,
};
use polymux_fs::{Caller, SyncKind, TierMember, TierPresence, TierStatus, VolumeError, WriteOrigin, check_records};
use polymux_meta::{Batch, MetadataStore, StoreError};
use polymux_tier::{Label, Tier};
use polymux_types::{Errno, Ino, TierId, VolumeId};

const MIB: u64 = 1 << 20;

fn status_of(volume: &Volume, name: &str) -> TierStatus {
    let status = volume.fs().status().expect("status answers");
    status.tiers.into_iter().find(|tier| tier.name == name).expect("the volume has that tier")
}

fn names(volume: &Volume) -> Vec<String> {
    volume.fs().status().expect("status answers").tiers.into_iter().map(|tier| tier.name).collect()
}

fn text<T: std::fmt::Debug>(result: Result<T, VolumeError>) -> String {
    result.expect_err("it is refused").to_string()
}

/// Makes a durable file.
fn durable_file(volume: &Volume, name: &str, length: usize) -> Vec<u8> {
    let (_, handle) = create(volume.fs(), name);
    let content = pattern(name.as_bytes()[0], length);
    write_all(volume.fs(), handle, 0, &content).expect("there is room");
    volume.fs().sync(&Caller::root(), handle, SyncKind::Data).expect("it is synced");
    close(volume.fs(), handle).expect("it is closed");
    content
}

fn content_of(volume: &Volume, name: &str) -> Vec<u8> {
    read_whole(volume.fs(), find(volume.fs(), name).ino).expect("the file can be read")
}

fn unlink(volume: &Volume, name: &str) {
    volume.fs().unlink(&Caller::root(), Ino::ROOT, name.as_bytes()).expect("the name goes");
}

fn assert_records_agree(volume: &Volume) {
    let report = check_records(volume.store().as_ref()).expect("the records can be read");
    assert_eq!(report.violations, [], "records contradict each other");
}

#[test]
fn an_open_file_that_found_no_room_goes_on_where_a_tier_joined() {
    let mut volume = Volume::new(&[MIB]);
    let (ino, handle) = create(volume.fs(), "file");
    let content = pattern(1, 3 << 20);
    assert_eq!(errno(write_all(volume.fs(), handle, 0, &content)), Errno::ENOSPC);
    let slow = volume.make_tier("slow", 16 * MIB, |tier| tier);
    assert_eq!(volume.add_tier(slow, 1), Ok(TierId(1)));
    write_all(volume.fs(), handle, 0, &content).expect("there is room now");
    close(volume.fs(), handle).expect("it is closed");
    assert_eq!(read_whole(volume.fs(), ino).expect("it can be read"), content);
    assert!(volume.used(slow) > 0 && volume.used(0) > 0);
    volume.remount();
    assert_eq!(names(&volume), ["fast", "slow"]);
    assert_eq!(content_of(&volume, "file"), content);
    assert_records_agree(&volume);
}

#[test]
fn files_are_written_and_read_while_tiers_join_and_leave() {
    let mut volume = Volume::new(&[64 * MIB]);
    let spare: Vec<usize> = (0..4).map(|n| volume.make_tier(&format!("spare{n}"), 64 * MIB, |tier| tier)).collect();
    let stop = AtomicBool::new(false);
    let volume = &volume;
    std::thread::scope(|scope| {
        let work = |worker: u8| {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) || round < 4 {
                let name = format!("file of {worker}");
                let (ino, handle) = create(volume.fs(), &name);
                let content = pattern(worker + round, 200_000);
                write_all(volume.fs(), handle, 0, &content).expect("there is room");
                close(volume.fs(), handle).expect("it is closed");
                assert_eq!(read_whole(volume.fs(), ino).expect("it can be read"), content);
                unlink(volume, &name);
                round = round.wrapping_add(1) % 100;
            }
        };
        let workers: Vec<_> = (0..3).map(|worker| scope.spawn(move || work(worker))).collect();
        for _ in 0..10 {
            for index in &spare {
                volume.add_tier(*index, 0).expect("a tier joins");
            }
            for index in &spare {
                // Files come to a tier until it drains, and are gone a moment later.
                let removed = (0..10_000).any(|_| volume.remove_tier(*index).is_ok());
                assert!(removed, "a tier that nobody writes to any more can leave");
                assert!(volume.is_unlabelled(*index));
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().expect("no worker failed"));
    });
    assert_eq!(names(volume), ["fast"]);
    assert_records_agree(volume);
}

#[test]
fn what_cannot_join_is_refused_and_changes_nothing() {
    let mut volume = Volume::new(&[MIB, MIB]);
    let spare = volume.make_tier("spare", MIB, |tier| tier);
    let twin = volume.make_tier("slow", MIB, |tier| tier);
    let foreign = volume.make_tier("foreign", MIB, |tier| tier);
    let label = volume.tier(0).read_label().expect("a tier of a volume has a label");
    let other_volume = Label { volume: VolumeId::from_random([8; 16]), ..label };
    volume.tier(foreign).write_label(&other_volume).expect("a label is written");
    let before = volume.store().committed();
    assert!(text(volume.add_tier(twin, 0)).contains("has a tier `slow` already"));
    let refused = |member: TierMember| text(volume.fs().add_tier(member, 0, || panic!("it is not listed")));
    assert!(refused(TierMember::new("gone", TierPresence::Missing("not there".to_owned()))).contains("not there"));
    let member = TierMember::new("foreign", TierPresence::Present(volume.tier(foreign)));
    assert!(refused(member).contains("belongs to volume"));
    assert_eq!(volume.tier(foreign).read_label(), Ok(other_volume), "the label of the other volume stays");
    let own = TierMember::new("again", TierPresence::Present(volume.tier(1)));
    assert!(refused(own).contains("the directory of tier `slow`"));
    assert_eq!(volume.store().committed(), before, "nothing was recorded");

    // The configuration cannot be written: everything is taken back.
    let member = TierMember::new("spare", TierPresence::Present(volume.tier(spare)));
    let failed = volume.fs().add_tier(member, 0, || Err("the disk is full".to_owned()));
    assert_eq!(text(failed), "the disk is full");
    assert!(volume.is_unlabelled(spare));
    assert_eq!(names(&volume), ["fast", "slow"]);
    volume.remount();
    assert_eq!(volume.add_tier(spare, 2), Ok(TierId(3)), "not even its number is used again");
}

#[test]
fn the_number_of_a_tier_is_never_used_again() {
    let mut volume = Volume::new(&[MIB, MIB]);
    let spare = volume.make_tier("spare", MIB, |tier| tier);
    volume.remove_tier(1).expect("an empty tier leaves");
    for expected in 2..5 {
        assert_eq!(volume.add_tier(spare, 0), Ok(TierId(expected)));
        volume.remount();
        assert_eq!(status_of(&volume, "spare").id, TierId(expected));
        volume.remove_tier(spare).expect("an empty tier leaves");
        volume.remount();
        assert_eq!(names(&volume), ["fast"]);
    }
}

#[test]
fn a_draining_tier_gets_nothing_new_and_stays_so_over_mounts_and_crashes() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    durable_file(&volume, "a", 100_000);
    assert_eq!(volume.fs().start_drain("fast"), Ok(TierId(0)));
    let used = volume.used(0);
    durable_file(&volume, "b", 100_000);
    assert_eq!(volume.used(0), used, "something new came to a draining tier");
    volume.crash();
    assert!(status_of(&volume, "fast").draining && !status_of(&volume, "slow").draining);
    volume.remount();
    assert!(status_of(&volume, "fast").draining);
    durable_file(&volume, "c", 100_000);
    assert_eq!(volume.used(0), used);
    assert!(text(volume.fs().start_drain("fast")).contains("already"));
    assert_eq!(volume.fs().cancel_drain("fast"), Ok(TierId(0)));
    volume.crash();
    assert!(!status_of(&volume, "fast").draining);
    durable_file(&volume, "d", 100_000);
    assert!(volume.used(0) > used);
    assert!(text(volume.fs().cancel_drain("fast")).contains("not being drained"));
}

#[test]
fn tiers_without_which_the_volume_cannot_be_stay() {
    let mut volume = Volume::new(&[MIB, MIB, MIB]);
    volume.metadata_tier = Some("middle".to_owned());
    volume.remount();
    for refused in [text(volume.fs().start_drain("middle")), text(volume.remove_tier(1))] {
        assert!(refused.contains("holds the metadata store"), "{refused}");
    }
    for refused in [text(volume.fs().start_drain("none")), text(volume.fs().cancel_drain("none"))] {
        assert_eq!(refused, "the volume has no tier `none`");
    }
    let mut volume = Volume::new(&[MIB, MIB]);
    volume.fs().start_drain("slow").expect("another one is left");
    for refused in [text(volume.fs().start_drain("fast")), text(volume.remove_tier(0))] {
        assert!(refused.contains("the last one"), "{refused}");
    }
    volume.remount();
    assert_eq!(names(&volume), ["fast", "slow"]);
    assert!(!status_of(&volume, "fast").draining);
}

#[test]
fn a_tier_leaves_only_when_nothing_is_left_on_it() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    durable_file(&volume, "a", 100_000);
    durable_file(&volume, "b", 100_000);
    let (ino, handle) = create(volume.fs(), "c");
    write_all(volume.fs(), handle, 0, &pattern(3, 100_000)).expect("there is room");
    assert!(text(volume.remove_tier(0)).contains("still holds data of 3 files"), "also what is not durable counts");
    assert!(!status_of(&volume, "fast").draining, "a refusal leaves the tier as it was");
    unlink(&volume, "a");
    unlink(&volume, "b");
    unlink(&volume, "c");
    let refused = volume.remove_tier(0);
    assert!(matches!(refused, Err(VolumeError::TierBusy(_))), "that it is open ends by itself: {refused:?}");
    assert!(text(refused).contains("still holds data of 1 file removed"), "an open file without a name counts");
    assert_eq!(volume.fs().attributes(&Caller::root(), ino).expect("it is open").size, 100_000);
    close(volume.fs(), handle).expect("it is closed");
    volume.remove_tier(0).expect("nothing is left");
    assert!(volume.is_unlabelled(0));
    let content = durable_file(&volume, "d", 100_000);
    volume.crash();
    assert_eq!(names(&volume), ["slow"]);
    assert_eq!(content_of(&volume, "d"), content);
    assert_records_agree(&volume);
}

#[test]
fn a_tier_whose_configuration_cannot_be_written_stays() {
    let mut volume = Volume::new(&[MIB, MIB]);
    volume.fs().start_drain("fast").expect("it drains");
    let failed = volume.fs().remove_tier("fast", || Err("the disk is full".to_owned()));
    assert_eq!(text(failed), "the disk is full");
    assert!(status_of(&volume, "fast").draining);
    volume.crash();
    assert!(status_of(&volume, "fast").draining);
}

#[test]
fn a_tier_that_is_missing_and_holds_nothing_can_leave() {
    let mut volume = Volume::new(&[MIB, MIB]);
    volume.unmount().expect("it unmounts");
    volume.set_missing(0, true);
    volume.options.missing = polymux_fs::MissingTiers::Degraded;
    volume.mount().expect("it mounts degraded");
    volume.remove_tier(0).expect("nothing is on it");
    volume.remount();
    assert_eq!(names(&volume), ["slow"]);
}

#[test]
fn the_configuration_and_the_tier_table_must_agree() {
    let mut volume = Volume::new(&[MIB, MIB]);
    let spare = volume.make_tier("spare", MIB, |tier| tier);
    volume.unmount().expect("it unmounts");
    volume.edit_configuration(|listed| listed.push(spare));
    let refused = text(volume.mount());
    assert!(refused.contains("`spare`") && refused.contains("polymux tier add"), "{refused}");
    volume.edit_configuration(|listed| listed.truncate(1));
    let refused = text(volume.mount());
    assert!(refused.contains("has a tier `slow` that the configuration does not list"), "{refused}");
    volume.edit_configuration(|listed| listed.push(1));
    volume.mount().expect("they agree");
}

#[test]
fn marks_are_told_in_bytes() {
    let volume = Volume::new(&[100 * MIB]);
    let tier = status_of(&volume, "fast");
    assert_eq!((tier.high_mark_bytes, tier.low_mark_bytes), (90 * MIB, 80 * MIB));
}

/// Unwinds, when it is armed, before one of the operations that change a label, the store or the configuration.
#[derive(Default)]
struct CrashPoint {
    /// Operations that still pass; negative: not armed.
    left: AtomicI64,
}

struct Crash;

impl CrashPoint {
    fn arm(&self, operations: i64) {
        self.left.store(operations, Ordering::SeqCst);
    }

    fn disarm(&self) {
        self.left.store(-1, Ordering::SeqCst);
    }

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

impl Hook for CrashPoint {
    fn before_label(&self) -> Verdict {
        self.operation();
        Verdict::Pass
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

fn crashing_volume() -> (Volume, usize, Arc<CrashPoint>) {
    let point = Arc::new(CrashPoint::default());
    point.disarm();
    let wrap = |tier| Arc::new(HookedTier::new(tier, Arc::clone(&point) as _)) as Arc<dyn Tier>;
    let mut volume = Volume::wrapping(&[16 * MIB, 16 * MIB], |_, tier| wrap(tier));
    let spare = volume.make_tier("spare", 16 * MIB, wrap);
    volume.hook_store(Arc::clone(&point) as _);
    (volume, spare, point)
}

/// Runs an operation that crashes before its `operations`th step. Returns whether it got that far.
fn crashes<T>(point: &CrashPoint, operations: i64, run: impl FnOnce(&CrashPoint) -> Result<T, VolumeError>) -> bool {
    point.arm(operations);
    let outcome = catch_unwind(AssertUnwindSafe(|| run(point)));
    point.disarm();
    match outcome {
        Ok(finished) => {
            assert!(finished.is_ok(), "nothing failed");
            false
        }
        Err(unwound) if unwound.is::<Crash>() => true,
        Err(unwound) => resume_unwind(unwound),
    }
}

/// Runs the steps of a test with a crash at each operation in turn, and its checks after recovery.
fn at_each_step(
    prepare: impl Fn(&mut Volume, usize),
    run: impl Fn(&Volume, usize, &CrashPoint) -> Result<(), VolumeError>,
    check: impl Fn(&Volume, usize),
) {
    // Committed data that is not synced may be lost or not.
    for transactions_kept in [0, usize::MAX] {
        for operations in 0.. {
            let (mut volume, spare, point) = crashing_volume();
            let content = durable_file(&volume, "kept", 300_000);
            prepare(&mut volume, spare);
            let crashed = crashes(&point, operations, |point| run(&volume, spare, point));
            volume.crash_keeping_transactions(transactions_kept);
            assert_eq!(names(&volume), volume.listed(), "after {operations} operations");
            assert_eq!(content_of(&volume, "kept"), content, "after {operations} operations");
            assert_records_agree(&volume);
            check(&volume, spare);
            volume.remount();
            assert_eq!(names(&volume), volume.listed(), "after {operations} operations");
            assert_records_agree(&volume);
            if !crashed {
                assert!(operations > 8, "only {operations} operations were crashed");
                break;
            }
        }
    }
}

#[test]
fn a_crash_while_a_tier_joins_leaves_a_volume_that_mounts() {
    at_each_step(
        |_, _| {},
        |volume, spare, point| {
            let member = TierMember::new("spare", TierPresence::Present(volume.tier(spare)));
            let listed = volume.fs().add_tier(member, 0, || {
                point.operation();
                volume.edit_configuration(|listed| listed.insert(0, spare));
                point.operation();
                Ok(())
            });
            listed.map(|_| ())
        },
        |volume, spare| {
            if !volume.listed().contains(&"spare".to_owned()) {
                volume.add_tier(spare, 0).expect("it can be tried again");
            }
            let used = volume.used(spare);
            durable_file(volume, "new", 100_000);
            assert!(volume.used(spare) > used, "the tier is in service");
            unlink(volume, "new");
        },
    );
}

#[test]
fn a_crash_while_a_tier_leaves_leaves_a_volume_that_mounts() {
    at_each_step(
        |volume, spare| {
            volume.add_tier(spare, 0).expect("it joins");
        },
        |volume, spare, point| {
            volume.fs().remove_tier("spare", || {
                point.operation();
                volume.edit_configuration(|listed| listed.retain(|index| *index != spare));
                point.operation();
                Ok(())
            })
        },
        |volume, spare| {
            if volume.listed().contains(&"spare".to_owned()) {
                volume.remove_tier(spare).expect("it can be tried again");
            }
            // Whatever is left there by a crash, the directory can be used again.
            volume.add_tier(spare, 0).expect("it joins again");
        },
    );
}

#[test]
fn a_crash_while_draining_begins_or_ends_leaves_one_or_the_other() {
    for operations in 0..4 {
        let (mut volume, _, point) = crashing_volume();
        let crashed = crashes(&point, operations, |_| volume.fs().start_drain("slow"));
        volume.crash();
        assert!(crashed || status_of(&volume, "slow").draining, "what was answered is durable");
        let _ = volume.fs().start_drain("slow");
        let crashed = crashes(&point, operations, |_| volume.fs().cancel_drain("slow"));
        volume.crash();
        assert!(crashed || !status_of(&volume, "slow").draining, "what was answered is durable");
    }
}

#[test]
fn a_write_after_the_tier_left_goes_elsewhere() {
    let mut volume = Volume::new(&[16 * MIB, 16 * MIB]);
    let (_, handle) = create(volume.fs(), "file");
    volume.remove_tier(0).expect("nothing is on it");
    let content = pattern(7, 50_000);
    let count = volume.fs().write(&Caller::root(), handle, 0, &content, WriteOrigin::Call).expect("there is room");
    assert_eq!(count, content.len());
    close(volume.fs(), handle).expect("it is closed");
    volume.remount();
    assert_eq!(content_of(&volume, "file"), content);
}
