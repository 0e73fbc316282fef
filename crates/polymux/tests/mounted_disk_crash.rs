//! Power failures under a mounted volume: the native file systems of the tiers lose writes that a disk may lose, replay their
//! journals, and then every promise of the volume must hold.

mod disk_crash;
mod mounted;
mod promises;

use std::time::Instant;

use disk_crash::campaign::{Stop, Summary, Variant, judge_images, record};
use disk_crash::image::Flushes;
use disk_crash::stand::{Barriers, Pair};
use mounted::native::{FileSystemKind, NativeMount, flushes_of};
use mounted::volume::Ground;
use mounted::{Plan, one_at_a_time, skip};
use polymux_tier::{ObjectRef, PosixTier, PosixTierOptions, Tier, Wait};
use polymux_types::{Bucket, ObjectId};
use promises::workload::Syncing;

/// Images of one recorded workload.
const IMAGES_EACH: u64 = 25;

fn can_run() -> bool {
    let plan = Plan { ground: Ground::LoopDevices { fast: 0, slow: 0 }, fast_capacity: None };
    plan.obstacle().inspect(|why| skip(why)).is_none()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, and is {text:?}")))
}

fn pair(index: u64) -> Pair {
    if index.is_multiple_of(2) { Pair::Ext4BeforeXfs } else { Pair::XfsBeforeExt4 }
}

#[test]
fn no_power_failure_breaks_a_promise_of_a_volume_on_ext4_and_xfs() {
    if !can_run() {
        return;
    }
    let long = number("POLYMUX_DISK_CRASH_IMAGES");
    let _turn = long.is_none().then(one_at_a_time);
    let seed = number("POLYMUX_DISK_CRASH_SEED").unwrap_or(1);
    let images = long.unwrap_or(10);
    let only = number("POLYMUX_DISK_CRASH_IMAGE");
    let each = if long.is_some() { IMAGES_EACH } else { 5 };
    let (start, mut summary) = (Instant::now(), Summary::default());
    for index in 0..images.div_ceil(each) {
        let numbers = index * each..((index + 1) * each).min(images);
        let numbers = match only {
            Some(only) if !numbers.contains(&only) => continue,
            Some(only) => only..only + 1,
            None => numbers,
        };
        let recorded = record(Variant::honest(pair(index)), seed + index);
        summary.moves += recorded.moves;
        judge_images(&recorded, seed, numbers, Stop::Never, &mut summary);
        summary.print("so far", start);
    }
    summary.print("power failures", start);
    assert!(summary.violations.is_empty(), "{}", summary.violations.join("\n\n"));
    assert!(only.is_some() || summary.images_with_losses > summary.images / 10, "too few images lose anything");
    assert!(summary.moves > 0, "nothing moves between the tiers");
    assert!(only.is_some() || summary.checked.promises > 50 * summary.images, "too few promises were in force");
}

/// A control must be found out within so many images.
fn is_found_out(title: &str, variant: Variant) {
    let _turn = one_at_a_time();
    let (start, mut summary) = (Instant::now(), Summary::default());
    let recorded = record(variant, 77);
    summary.moves = recorded.moves;
    judge_images(&recorded, 77, 0..20, Stop::AtFirstViolation, &mut summary);
    summary.print(title, start);
    let found = summary.violations.first().unwrap_or_else(|| panic!("{title}: nothing was found"));
    println!("{found}");
}

#[test]
fn a_program_that_only_claims_to_sync_is_found_out() {
    if can_run() {
        let variant = Variant { syncing: Syncing::Claimed, ..Variant::control(Pair::Ext4BeforeXfs) };
        is_found_out("without fsync", variant);
    }
}

#[test]
fn a_file_system_without_barriers_is_found_out() {
    if can_run() {
        let variant = Variant { barriers: Barriers::Off, ..Variant::control(Pair::Ext4BeforeXfs) };
        is_found_out("without barriers", variant);
    }
}

#[test]
fn disks_that_ignore_flushes_are_found_out() {
    if can_run() {
        let variant = Variant { flushes: Flushes::Ignored, ..Variant::control(Pair::XfsBeforeExt4) };
        is_found_out("with flushes ignored", variant);
    }
}

/// What is overwritten in place needs no entry in the log of XFS, whose `syncfs` lets the device flush only for one.
#[test]
fn a_sync_of_a_whole_tier_lets_the_device_flush_even_where_the_file_system_has_nothing_to_log() {
    if !can_run() {
        return;
    }
    let _turn = one_at_a_time();
    let directory = tempfile::tempdir().unwrap();
    for (name, kind) in [("ext4", FileSystemKind::Ext4), ("xfs", FileSystemKind::Xfs)] {
        let native = NativeMount::new(directory.path(), name, kind, 320);
        let tier = PosixTier::prepare(native.path(), PosixTierOptions::new(name)).unwrap();
        let [overwritten, other] = [1, 2].map(|id| ObjectRef::new(ObjectId(id), Bucket(1)));
        let write = |object, bytes: &[u8]| assert_eq!(tier.write(object, 0, bytes, Wait::Allowed), Ok(bytes.len()));
        for object in [overwritten, other] {
            tier.create(object).unwrap();
            write(object, &[1; 65_536]);
            tier.sync(object).unwrap();
        }
        for round in 2..5 {
            write(overwritten, &[round; 4096]);
            // Takes the new times of the first object into the log as well.
            write(other, &[round; 4096]);
            tier.sync(other).unwrap();
            let before = flushes_of(native.path());
            tier.sync_all().unwrap();
            assert!(flushes_of(native.path()) > before, "{name}, round {round}: nothing was flushed");
        }
    }
}
