//! Policy `adaptive`: one tier for as long as it carries the load, several for the growth of large files when it does not.
//!
//! Setup: time is virtual. A device takes write-back requests one after the other at its own rate, and a caller that waits for it moves
//! the clock on. One writer writes at a rate, or as fast as it is let.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Hook, HookedTier, Volume, bytes_on, create, pattern, read_at, write_all};
use polymux_fs::{NamedRule, PolicyKind, Progress, RuleMatch};
use polymux_tier::{ObjectRef, Rotation};
use polymux_types::sync::Mutex;
use polymux_types::{Clock, Ino, ManualClock, TierId};

const MIB: u64 = 1 << 20;
const MB: u64 = 1_000_000;

/// The queue of a device: when each range will be written.
#[derive(Default)]
struct Taken {
    free_at: Duration,
    ends: Vec<(ObjectRef, u64, Duration)>,
}

/// A device that takes so many bytes per second.
struct Device {
    bytes_per_second: u64,
    clock: Mutex<Option<Arc<ManualClock>>>,
    taken: Mutex<Taken>,
}

impl Device {
    fn new(bytes_per_second: u64) -> Arc<Self> {
        Arc::new(Self { bytes_per_second, clock: Mutex::new(None), taken: Mutex::default() })
    }

    /// When the oldest request completes.
    fn oldest_end(&self) -> Option<Duration> {
        self.taken.lock().ends.first().map(|(.., end)| *end)
    }

    fn clock(&self) -> Arc<ManualClock> {
        self.clock.lock().clone().expect("the volume is made")
    }
}

impl Hook for Device {
    fn before_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        let now = self.clock().elapsed();
        let mut taken = self.taken.lock();
        let takes = Duration::from_micros(length * 1_000_000 / self.bytes_per_second);
        taken.free_at = taken.free_at.max(now) + takes;
        let end = taken.free_at;
        taken.ends.push((object, offset, end));
    }

    fn before_wait_for_write_back(&self, object: ObjectRef, offset: u64, _length: u64) {
        let clock = self.clock();
        let mut taken = self.taken.lock();
        if let Some(at) = taken.ends.iter().position(|(of, start, _)| (*of, *start) == (object, offset)) {
            let (.., end) = taken.ends.remove(at);
            clock.advance(end.saturating_sub(clock.elapsed()));
        }
    }
}

/// A volume and the devices of its tiers.
struct Stand {
    volume: Volume,
    devices: [Arc<Device>; 2],
}

/// A volume of a tier of 120 MB/s and one of 56 MB/s.
fn stand(policy: PolicyKind, rotation_of_slow: Rotation) -> Stand {
    let devices = [Device::new(120 * MB), Device::new(56 * MB)];
    let volume = Volume::wrapping(&[2048 * MIB; 2], |index, tier| {
        let rotation = if index == 0 { Rotation::NonRotational } else { rotation_of_slow };
        let hooked = HookedTier::new(tier, Arc::clone(&devices[index]) as _);
        Arc::new(hooked.with_capabilities(|can| can.rotation = rotation))
    });
    devices.iter().for_each(|device| *device.clock.lock() = Some(Arc::clone(&volume.clock)));
    volume.fs().set_steering(policy, &[]).expect("taken");
    Stand { volume, devices }
}

/// Runs the due write-behind of each tier: ranges that its device has finished are noted, and more are begun.
fn catch_up(stand: &Stand) {
    for (tier, device) in (0..).zip(&stand.devices) {
        let is_due = || device.oldest_end().is_none_or(|end| end <= stand.volume.clock.elapsed());
        while is_due() && stand.volume.fs().write_behind_step(TierId(tier)) == Progress::Worked {}
    }
}

/// Faster than both devices together.
const FASTER_THAN_ALL: u64 = 300 * MB;

/// Writes a file at so many bytes per second, or more slowly where it is held up. Returns the seconds that it took.
fn stream(stand: &Stand, name: &str, length: u64, bytes_per_second: u64) -> (Ino, f64) {
    let volume = &stand.volume;
    let (ino, handle) = create(volume.fs(), name);
    let data = pattern(7, 1 << 20);
    let began = volume.clock.elapsed();
    let mut due = began;
    for offset in (0..length).step_by(data.len()) {
        write_all(volume.fs(), handle, offset, &data).expect("written");
        due += Duration::from_micros(MIB * 1_000_000 / bytes_per_second);
        catch_up(stand);
        while volume.clock.elapsed() < due {
            let left = due.saturating_sub(volume.clock.elapsed());
            volume.clock.advance(left.min(Duration::from_millis(2)));
            catch_up(stand);
        }
    }
    let last = read_at(volume.fs(), handle, length - MIB, 1 << 20).expect("read");
    assert!(last == data, "the end of `{name}` reads as it was written");
    (ino, volume.clock.elapsed().saturating_sub(began).as_secs_f64())
}

fn bytes_on_slow(volume: &Volume, ino: Ino) -> u64 {
    bytes_on(volume.fs(), ino, "slow")
}

fn why_of_growth(volume: &Volume, ino: Ino) -> String {
    volume.fs().explain(ino).expect("explained").growth_why.expect("the policy goes by the load")
}

#[test]
fn a_large_stream_is_spread_when_its_tier_is_saturated() {
    let stand = stand(PolicyKind::Adaptive, Rotation::NonRotational);
    let length = 768 * MIB;
    let (ino, seconds) = stream(&stand, "f", length, FASTER_THAN_ALL);
    let slow = bytes_on_slow(&stand.volume, ino);
    assert!((length / 6..length / 2).contains(&slow), "{} MiB of 768 are on the second tier", slow / MIB);
    let rate = length as f64 / seconds / 1e6;
    assert!(rate > 150.0, "{rate} MB/s of 176, with a beginning on one tier");
    assert!(why_of_growth(&stand.volume, ino).contains("several tiers"), "{}", why_of_growth(&stand.volume, ino));
}

#[test]
fn a_stream_that_one_tier_carries_stays_there() {
    let stand = stand(PolicyKind::Adaptive, Rotation::NonRotational);
    let (ino, _) = stream(&stand, "f", 512 * MIB, 80 * MB);
    assert_eq!(bytes_on_slow(&stand.volume, ino), 0);
    assert_eq!(stand.volume.counter("spread_switches"), 0);
    assert!(why_of_growth(&stand.volume, ino).contains("keeps up"), "{}", why_of_growth(&stand.volume, ino));
}

#[test]
fn small_files_stay_on_one_tier_each_and_wait_for_no_device() {
    let stand = stand(PolicyKind::Adaptive, Rotation::NonRotational);
    for index in 0..20 {
        let (ino, _) = stream(&stand, &format!("f{index}"), 20 * MIB, FASTER_THAN_ALL);
        assert_eq!(bytes_on_slow(&stand.volume, ino), 0, "file {index}");
        assert!(why_of_growth(&stand.volume, ino).contains("smaller than"));
    }
    assert_eq!((stand.volume.counter("spread_switches"), stand.volume.counter("spread_waits")), (0, 0));
}

#[test]
fn a_stream_stays_off_tiers_that_rotate_and_those_of_which_nothing_is_known() {
    for rotation in [Rotation::Rotational, Rotation::Unknown] {
        let stand = stand(PolicyKind::Adaptive, rotation);
        let (ino, _) = stream(&stand, "f", 320 * MIB, FASTER_THAN_ALL);
        assert_eq!(bytes_on_slow(&stand.volume, ino), 0, "{rotation:?}");
        assert_eq!(stand.volume.counter("spread_waits"), 0, "nothing is gained by waiting");
        assert!(why_of_growth(&stand.volume, ino).contains("no other one"), "{}", why_of_growth(&stand.volume, ino));
    }
}

#[test]
fn a_rule_spreads_what_the_policy_of_the_volume_would_not() {
    let stand = stand(PolicyKind::Adaptive, Rotation::Rotational);
    let rule = NamedRule {
        matches: RuleMatch { path: Some("scratch*".to_owned()), ..RuleMatch::default() },
        policy: Some(PolicyKind::Spread),
        ..NamedRule::default()
    };
    stand.volume.fs().set_steering(PolicyKind::Adaptive, &[rule]).expect("taken");
    let (ino, _) = stream(&stand, "scratch", 96 * MIB, FASTER_THAN_ALL);
    assert!(bytes_on_slow(&stand.volume, ino) > 8 * MIB);
}

#[test]
fn a_stream_under_hot_cold_stays_on_one_tier() {
    let stand = stand(PolicyKind::HotCold, Rotation::NonRotational);
    let (ino, _) = stream(&stand, "f", 320 * MIB, FASTER_THAN_ALL);
    assert_eq!((bytes_on_slow(&stand.volume, ino), stand.volume.counter("spread_waits")), (0, 0));
    assert_eq!(stand.volume.fs().explain(ino).expect("explained").growth_why, None);
}

/// The size of a file at the start of spreading is recorded by then.
#[test]
fn a_power_failure_after_a_file_began_to_spread_takes_no_more_than_what_came_since() {
    let mut stand = stand(PolicyKind::Adaptive, Rotation::NonRotational);
    let length = 512 * MIB;
    let (ino, _) = stream(&stand, "f", length, FASTER_THAN_ALL);
    assert!(bytes_on_slow(&stand.volume, ino) > 0);
    stand.volume.flush_log();
    stand.volume.crash();
    let size = stand.volume.fs().attributes(&polymux_fs::Caller::root(), ino).expect("known").size;
    assert!((64 * MIB..=length).contains(&size), "{} MiB are left", size / MIB);
    let handle = stand.volume.fs().open(&polymux_fs::Caller::root(), ino, common::read_only()).expect("opened");
    let data = pattern(7, 1 << 20);
    for offset in (0..size / MIB * MIB).step_by(data.len()) {
        assert!(
            read_at(stand.volume.fs(), handle, offset, 1 << 20).expect("read") == data,
            "a hole at {offset} of {size}"
        );
    }
}
