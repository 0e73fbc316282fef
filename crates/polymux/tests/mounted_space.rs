//! Space: every tier is filled before a write fails, `df` is correct before, and deletion frees everything.

mod mounted;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use mounted::environment::{collects_writes, have_loop_devices};
use mounted::native::available;
use mounted::volume::Ground;
use mounted::{Plan, TestVolume, one_at_a_time, skip};

/// Space that stays free where the kernel collects writes.
const COLLECTED_MAX: u64 = 8 << 20;

/// Writes files of 8 MiB until the volume is full; returns how many bytes were written.
fn fill(directory: &Path) -> u64 {
    let chunk = vec![0xa5_u8; 256 * 1024];
    let mut written = 0;
    for number in 0.. {
        let mut file = match File::create(directory.join(format!("filler {number}"))) {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => return written,
            Err(error) => panic!("after {written} bytes: {error}"),
        };
        for _ in 0..32 {
            match file.write(&chunk) {
                Ok(count) => written += count as u64,
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    file.sync_all().expect("what was accepted can be synced");
                    return written;
                }
                Err(error) => panic!("after {written} bytes: {error}"),
            }
        }
    }
    unreachable!("numbers do not end before the room does")
}

#[test]
fn writing_fails_only_when_every_tier_is_full_and_deleting_frees_every_tier() {
    let _turn = one_at_a_time();
    if !have_loop_devices() {
        return skip("devices of known size need root and loop devices");
    }
    let plan = Plan { ground: Ground::LoopDevices { fast: 160, slow: 320 }, fast_capacity: None };
    let Some(volume) = TestVolume::start(&plan) else { return };
    let before = available(volume.path());
    let tiers = ["fast", "slow"].map(|name| volume.tier(name).to_path_buf());
    let tiers_before = tiers.clone().map(|tier| available(&tier));

    let written = fill(volume.path());
    println!("df said {before} bytes were available; {written} could be written");
    // Data collected by the kernel must find space: the last MiB are for that.
    let kept = if collects_writes() { COLLECTED_MAX } else { 0 };
    assert!(written.abs_diff(before) <= before / 50 + kept, "df said {before}, but {written} bytes could be written");
    for (tier, available_before) in tiers.iter().zip(tiers_before) {
        let left = available(tier);
        assert!(left * 10 <= available_before + 10 * kept, "{} has {left} of {available_before} left", tier.display());
    }
    for entry in fs::read_dir(volume.path()).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xa5), "a full volume keeps what it accepted");
    }

    for entry in fs::read_dir(volume.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).expect("a full volume can be emptied");
    }
    let start = Instant::now();
    let is_back = || tiers.iter().zip(tiers_before).all(|(tier, before)| available(tier) * 100 >= before * 97);
    while !is_back() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "room does not come back: {:?}",
            tiers.each_ref().map(|tier| available(tier))
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let after = available(volume.path());
    assert!(after.abs_diff(before) * 50 <= before, "df said {before} before and {after} after");
}
