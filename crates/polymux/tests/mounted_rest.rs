//! An idle volume lets the processor sleep.

mod mounted;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use mounted::{Plan, TestVolume};

/// Longest time after which a volume that is not used rests.
const REST_WITHIN: Duration = Duration::from_secs(90);
/// Time for which wake-ups are counted.
const OBSERVED: Duration = Duration::from_secs(6);
const WAKE_UPS_PER_SECOND_MAX: f64 = 2.0;

const PROCESSOR_PERCENT_MAX: f64 = 0.05;

/// Processor time of a wake-up with nothing to do, from which on that of a volume cannot be found out. It is 20 to 60 us; a virtual machine with a busy host is
/// charged for the time that this does not give to it after a sleep: 1 to 4 ms were seen.
const IDLE_WAKE_UP_NS_MAX: u64 = 80_000;

/// Work of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Activity {
    /// How often it slept and was woken.
    wake_ups: u64,
    processor_ns: u64,
}

/// Processor time that a thread had so far, by its directory in `/proc`; `None` where it has ended.
fn processor_ns_of(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

/// The work of each thread of some processes since it began, by name and number.
fn activity(processes: &[i32]) -> BTreeMap<String, Activity> {
    let threads_of = |process: &i32| fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let of_thread = |path: std::path::PathBuf| {
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let processor_ns = processor_ns_of(&path)?;
        let number = path.file_name()?.to_string_lossy().into_owned();
        let wake_ups = count.trim().parse().ok()?;
        Some((format!("{} {number}", name.trim()), Activity { wake_ups, processor_ns }))
    };
    processes.iter().flat_map(threads_of).filter_map(|entry| of_thread(entry.ok()?.path())).collect()
}

/// The work of each thread of some processes within a time.
fn activity_within(processes: &[i32], time: Duration) -> BTreeMap<String, Activity> {
    let before = activity(processes);
    thread::sleep(time);
    let mut during = activity(processes);
    for (name, activity) in &mut during {
        let Activity { wake_ups, processor_ns } = before.get(name).copied().unwrap_or_default();
        activity.wake_ups -= wake_ups;
        activity.processor_ns -= processor_ns;
    }
    during.retain(|_, activity| activity.wake_ups > 0);
    during
}

/// Processor time of a wake-up with nothing to do, measured over a time.
fn idle_wake_up_ns(time: Duration) -> u64 {
    const WAKE_UPS: u32 = 20;
    let own_ns = || processor_ns_of(Path::new("/proc/thread-self")).expect("this thread runs");
    let before = own_ns();
    (0..WAKE_UPS).for_each(|_| thread::sleep(time / WAKE_UPS));
    (own_ns() - before) / u64::from(WAKE_UPS)
}

fn wake_ups_per_second(activity: &BTreeMap<String, Activity>, time: Duration) -> f64 {
    activity.values().map(|activity| activity.wake_ups).sum::<u64>() as f64 / time.as_secs_f64()
}

/// The daemon of a volume, and the supervisor that started it, where there is one.
fn processes_of(volume: &TestVolume) -> Vec<i32> {
    let daemon = volume.daemon_id().unwrap();
    let parent = fs::read_to_string(format!("/proc/{}/status", daemon.as_raw_pid())).unwrap();
    let parent = parent.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap();
    let program = |process: i32| fs::read_link(format!("/proc/{process}/exe")).ok();
    let has_supervisor = program(parent) == program(daemon.as_raw_pid());
    if has_supervisor { vec![daemon.as_raw_pid(), parent] } else { vec![daemon.as_raw_pid()] }
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
        let woken = activity_within(&[daemon], OBSERVED);
        let per_second = wake_ups_per_second(&woken, OBSERVED);
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

/// For `POLYMUX_REST_SECONDS` in each mode of I/O; without it, where the kernel collects writes, as long as a volume sleeps at the most between two
/// looks for work.
#[test]
fn a_volume_that_is_not_used_takes_hardly_any_processor_time() {
    let asked = std::env::var("POLYMUX_REST_SECONDS").ok();
    let modes = if asked.is_some() { &["io=write-back", "io=passthrough"][..] } else { &["io=write-back"] };
    let seconds = asked.map_or(20, |seconds| seconds.parse().expect("a number of seconds"));
    let observed = Duration::from_secs(seconds);
    for io in modes {
        let Some(mut volume) = resting(io) else { return };
        let processes = processes_of(&volume);
        let idle_wake_up = thread::spawn(move || idle_wake_up_ns(observed));
        let activity = activity_within(&processes, observed);
        let idle_wake_up_ns = idle_wake_up.join().unwrap();
        let per_second = wake_ups_per_second(&activity, observed);
        let processor_ns = activity.values().map(|activity| activity.processor_ns).sum::<u64>();
        let percent = processor_ns as f64 / observed.as_nanos() as f64 * 100.0;
        let count = processes.len();
        eprintln!(
            "{io}, processes {count}, {observed:?}: {per_second:.2} wake-ups a second, {percent:.4} % of a processor"
        );
        assert!(per_second <= WAKE_UPS_PER_SECOND_MAX, "{activity:?}");
        if idle_wake_up_ns > IDLE_WAKE_UP_NS_MAX {
            eprintln!("skipped: processor time: a wake-up with nothing to do takes {idle_wake_up_ns} ns of it here");
        } else {
            assert!(percent <= PROCESSOR_PERCENT_MAX, "{activity:?}");
        }
        volume.unmount();
    }
}
