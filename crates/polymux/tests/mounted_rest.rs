//! A volume that nobody uses lets the processor sleep.

mod mounted;

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use mounted::{Plan, TestVolume};

/// A volume rests by then, and what there was to do is done.
const REST_WITHIN: Duration = Duration::from_secs(90);
/// Time for which wake-ups are counted.
const OBSERVED: Duration = Duration::from_secs(8);
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

/// Those within a time, without threads that did not wake.
fn wake_ups_within(process: i32, time: Duration) -> BTreeMap<String, u64> {
    let before = wake_ups(process);
    thread::sleep(time);
    let woken = |(name, count): (String, u64)| {
        let times = count - before.get(&name).copied().unwrap_or(0);
        (times > 0).then_some((name, times))
    };
    wake_ups(process).into_iter().filter_map(woken).collect()
}

#[test]
fn a_volume_that_is_not_used_lets_the_processor_sleep_and_is_there_at_once() {
    rests_and_is_there_at_once("io=passthrough");
}

#[test]
fn one_whose_writes_the_kernel_collects_does_so_too() {
    rests_and_is_there_at_once("io=write-back");
}

fn rests_and_is_there_at_once(io: &str) {
    let Some(mut volume) = TestVolume::create(&Plan::anywhere()) else { return };
    volume.mount_with(&["-o", io]);
    let root = volume.path().to_owned();
    for number in 0..50 {
        fs::write(root.join(format!("{number}")), vec![7; 100_000]).unwrap();
    }
    let daemon = volume.daemon_id().unwrap().as_raw_pid();
    let began = Instant::now();
    let woken = loop {
        let woken = wake_ups_within(daemon, OBSERVED);
        let per_second = woken.values().sum::<u64>() as f64 / OBSERVED.as_secs_f64();
        eprintln!("{io} after {:?}: {per_second:.2} wake-ups a second", began.elapsed());
        if per_second <= WAKE_UPS_PER_SECOND_MAX || began.elapsed() > REST_WITHIN {
            assert!(per_second <= WAKE_UPS_PER_SECOND_MAX, "{woken:?}");
            break woken;
        }
    };
    eprintln!("{woken:?}");
    // What comes next is served at once, and what waits for a moment comes in time.
    let asked = Instant::now();
    fs::write(root.join("new"), b"text").unwrap();
    assert_eq!(fs::read(root.join("7")).unwrap(), vec![7; 100_000]);
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    let moved = volume.polymux(["migrate", root.join("7").to_str().unwrap(), "--to", "slow", "--wait"]);
    assert!(moved.is_success(), "{}", moved.text());
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    volume.unmount();
}
