//! The capabilities of the tiers' devices, as stored with the volume.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use common::Volume;
use polymux_fs::{TierProfile, VolumeError, check_records};
use polymux_meta::{Batch, MetadataStore};
use polymux_tier::measure::{Direction, Way};

const MIB: u64 = 1 << 20;

/// The space needed by the smallest file to measure with.
const ROOM: u64 = 256 * MIB;

fn measure(volume: &Volume, name: &str) -> Result<TierProfile, VolumeError> {
    volume.fs().measure_tier(name, Duration::from_secs(1), &mut |_| ControlFlow::Continue(()))
}

fn profile_of(volume: &Volume, name: &str) -> TierProfile {
    let status = volume.fs().status().expect("status answers");
    status.tiers.into_iter().find(|tier| tier.name == name).expect("the volume has that tier").profile
}

fn key(tier: u16) -> Vec<u8> {
    [&b"\0\0\0\0P"[..], &tier.to_be_bytes()].concat()
}

fn has_record(volume: &Volume, tier: u16) -> bool {
    volume.store().get(&key(tier)).expect("the store can be read").is_some()
}

#[test]
fn what_was_measured_is_durable_at_once_and_survives_stops_and_crashes() {
    let mut volume = Volume::new(&[ROOM, ROOM]);
    assert_eq!(profile_of(&volume, "slow"), TierProfile::default());
    let found = measure(&volume, "slow").expect("a tier in memory is measured");
    let measured = found.measured.as_ref().expect("it was measured");
    assert_eq!(measured.measurement.way, Way::Memory);
    assert!(measured.measurement.points.len() > 10 && found.bytes_per_second(Direction::Read).is_some());
    assert!(measured.measurement.file_bytes <= ROOM / 8, "no more than an eighth of the room");
    volume.crash();
    assert_eq!(profile_of(&volume, "slow"), found, "it was flushed");
    volume.remount();
    assert_eq!(profile_of(&volume, "slow"), found);
    assert_eq!(profile_of(&volume, "fast"), TierProfile::default());
    assert_eq!(check_records(volume.store().as_ref()).expect("the records can be read").violations, []);
}

#[test]
fn what_a_new_mount_begins_with_is_what_was_measured() {
    let mut volume = Volume::new(&[ROOM]);
    let found = measure(&volume, "fast").expect("it is measured");
    volume.remount();
    let load = volume.fs().status().expect("status answers").tiers[0].load;
    let known = |direction| found.bytes_per_second(direction).expect("it was measured");
    // Through a float, which keeps 53 bits.
    let is_near = |told: u64, known: u64| told.abs_diff(known) <= known >> 40;
    assert!(is_near(load.write.bytes_per_second, known(Direction::Write)), "{load:?} of {found:?}");
    assert!(is_near(load.read.bytes_per_second, known(Direction::Read)), "{load:?} of {found:?}");
}

#[test]
fn a_profile_that_cannot_be_read_or_is_of_no_tier_means_nothing() {
    let mut volume = Volume::new(&[ROOM]);
    measure(&volume, "fast").expect("it is measured");
    let whole = volume.store().get(&key(0)).expect("the store can be read").expect("there is a record");
    volume.unmount().expect("it stops");
    let mut batch = Batch::new();
    batch.put(key(9), &whole);
    batch.put(key(0), b"garbage");
    volume.store().commit(batch).expect("the store takes anything");
    volume.mount().expect("a hint keeps nobody from mounting");
    assert_eq!(profile_of(&volume, "fast"), TierProfile::default());
    measure(&volume, "fast").expect("it is measured again");
    assert_ne!(profile_of(&volume, "fast"), TierProfile::default());
}

#[test]
fn the_profile_of_a_tier_goes_with_the_tier() {
    let mut volume = Volume::new(&[ROOM]);
    let slow = volume.make_tier("slow", ROOM, |tier| tier);
    volume.add_tier(slow, 1).expect("it joins");
    measure(&volume, "slow").expect("it is measured");
    assert!(has_record(&volume, 1));
    volume.remove_tier(slow).expect("it holds nothing");
    assert!(!has_record(&volume, 1));
}

#[test]
fn nothing_is_kept_of_a_measurement_that_is_refused_or_ended() {
    let volume = Volume::new(&[ROOM, 32 * MIB]);
    let refused = measure(&volume, "slow").expect_err("an eighth of it is too little").to_string();
    assert!(refused.contains("too little room"), "{refused}");
    let refused = measure(&volume, "none").expect_err("there is no such tier").to_string();
    assert!(refused.contains("no tier `none`"), "{refused}");
    let fs = volume.fs();
    let mut during = Vec::new();
    let ended = fs.measure_tier("fast", Duration::from_secs(1), &mut |progress| {
        during.push(measure(&volume, "fast").expect_err("one at a time").to_string());
        if progress.done >= 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(&ended, Err(VolumeError::FileSystem(error)) if error.errno() == polymux_types::Errno::EINTR));
    assert!(during.iter().all(|refused| refused.contains("being measured already")), "{during:?}");
    assert!(!has_record(&volume, 0) && !has_record(&volume, 1));
}
