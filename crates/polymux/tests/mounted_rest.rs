//! An idle volume lets the processor sleep.

mod mounted;

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use mounted::{Plan, TestVolume};

/// Longest time after which a volume that is not used rests.
const REST_WITHIN: Duration = Duration::from_secs(90);
/// Time for which wake-ups are counted.
const OBSERVED: Duration = Duration::from_secs(6);
const WAKE_UPS_PER_SECOND_MAX: f64 = 2.0;

/// How often each thread of a process slept and was woken, by name and number.
fn wake_ups(process: i32) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_thread = |path: std::path::PathBuf| {
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let number = path.file_name()?.to_string_lossy().into_owned();
        Some((format!("{} {number}", name.trim()), count.trim().parse().ok()?))
    };
    threads.filter_map(|entry| of_thread(entry.ok()?.path())).collect()
}

/// Wake-ups of the threads of a process within a time, of those that woke.
fn wake_ups_within(process: i32, time: Duration) -> BTreeMap<String, u64> {
    let before = wake_ups(process);
    thread::sleep(time);
    let woken = |(name, count): (String, u64)| {
        let times = count - before.get(&name).copied().unwrap_or(0);
        (times > 0).then_some((name, times))
    };
    wake_ups(process).into_iter().filter_map(woken).collect()
}

/// A volume that was used and rests now. `None`, after saying why, where there can be none.
fn resting(io: &str) -> Option<TestVolume> {
    let mut volume = TestVolume::create(&Plan::anywhere())?;
    volume.mount_with(&["-o", io]);
    for number in 0..50 {
        fs::write(volume.path().join(format!("{number}")), vec![7; 100_000]).unwrap();
    }
    let daemon = volume.daemon_id().unwrap().as_raw_pid();
    let began = Instant::now();
    loop {
        let woken = wake_ups_within(daemon, OBSERVED);
        let per_second = woken.values().sum::<u64>() as f64 / OBSERVED.as_secs_f64();
        eprintln!("{io} after {:?}: {per_second:.2} wake-ups a second", began.elapsed());
        if per_second <= WAKE_UPS_PER_SECOND_MAX {
            return Some(volume);
        }
        assert!(began.elapsed() < REST_WITHIN, "{woken:?}");
    }
}

#[test]
fn a_volume_that_is_not_used_lets_the_processor_sleep_and_is_there_at_once() {
    let Some(mut volume) = resting("io=write-back") else { return };
    let root = volume.path().to_owned();
    let asked = Instant::now();
    fs::write(root.join("new"), b"text").unwrap();
    assert_eq!(fs::read(root.join("7")).unwrap(), vec![7; 100_000]);
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    // Work that waits for a background thread completes in time as well.
    let moved = volume.polymux(["migrate", root.join("7").to_str().unwrap(), "--to", "slow", "--wait"]);
    assert!(moved.is_success(), "{}", moved.text());
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    volume.unmount();
}

#[test]
fn a_volume_that_rests_is_unmounted_at_once_without_a_word_to_its_daemon() {
    if !mounted::is_root() {
        return mounted::skip("the kernel is asked to unmount");
    }
    let Some(mut volume) = resting("io=passthrough") else { return };
    let asked = Instant::now();
    let flags = rustix::mount::UnmountFlags::empty();
    rustix::mount::unmount(volume.path(), flags).expect("root may unmount");
    volume.wait_for_end();
    assert!(asked.elapsed() < Duration::from_secs(12), "{:?}", asked.elapsed());
}
