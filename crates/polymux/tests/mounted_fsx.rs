//! fsx on a file that is split over both tiers, because the fast one is too small for it, and on one that is passed through.

mod mounted;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mounted::environment::collects_writes;
use mounted::native::text;
use mounted::passed_through::OneTier;
use mounted::tool::fsx;
use mounted::{Plan, TestVolume, is_heavy, one_at_a_time, run_within};

/// A file of up to 4 MiB with every operation that fsx knows.
const CONFIG: &str = "
flen = 4194304
[opsize]
max = 131072
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 1
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 3
sendfile = 2
posix_fadvise = 1
copy_file_range = 3
";

const SEEDS: [u64; 4] = [1, 2, 3, 4];

/// Looks whether a file lies on two tiers, ten times a second.
fn watch_for_split(volume: &TestVolume, file: &Path, stop: &AtomicBool) -> bool {
    let mut was_split = false;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
        if file.exists() {
            was_split |= volume.is_split(file);
        }
    }
    was_split
}

/// Has the first half of a file moved to the slow tier and back without end.
fn move_back_and_forth(volume: &TestVolume, file: &Path, stop: &AtomicBool) -> bool {
    let mut was_split = false;
    for tier in ["slow", "fast"].into_iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let moved = volume.polymux(["migrate", text(file), "--to", tier, "--range", "0-2MiB", "--wait", "--json"]);
        // A cut that comes meanwhile stops a move, which is then not done.
        assert!(!moved.stdout.is_empty(), "{}", moved.text());
        was_split |= volume.is_split(file);
    }
    was_split
}

/// Half of the file is moved to the slow tier and back while fsx works on it. The moves are explicit, because migrations by
/// policy depend on how fast the machine is.
#[test]
fn fsx_finds_no_difference_while_movers_take_the_file_along() {
    let _turn = one_at_a_time();
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("16 MiB")) else { return };
    assert!(exercise(&volume, if is_heavy() { 100_000 } else { 15_000 }, 1, move_back_and_forth));
    let committed = volume.status()["counters"]["moves_committed"].as_u64().expect("it is counted");
    assert!(committed >= 3, "the file was to be moved all the time, and {committed} moves came to their end");
}

/// 50,000 operations over four seeds; 200,000 with each where `POLYMUX_HEAVY=1`.
#[test]
fn fsx_finds_no_difference_on_a_split_file() {
    let _turn = one_at_a_time();
    let operations = if is_heavy() { 200_000 } else { 12_500 };
    for seed in SEEDS {
        // A new one for each: space of a removed file may not be free yet, and the next one would begin on the slow tier and stay there.
        let plan = Plan::anywhere().with_fast_capacity("2 MiB");
        let Some(volume) = TestVolume::start_without_movers(&plan) else { return };
        let was_split = exercise(&volume, operations, seed, watch_for_split);
        // The kernel writes collected data back at times of its own choice.
        assert!(was_split || collects_writes(), "seed {seed}: the file was never on both tiers");
    }
}

/// fsx works on a file that the kernel reads, writes and maps without the daemon as soon as fsx opens it for the second time.
#[test]
fn fsx_finds_no_difference_on_a_file_that_is_passed_through() {
    let _turn = one_at_a_time();
    let Some(OneTier { volume, .. }) = &OneTier::start(4096) else { return };
    let seeds = if is_heavy() { &SEEDS[..] } else { &SEEDS[..2] };
    for &seed in seeds {
        let file = volume.path().join(format!("fsx-{seed}"));
        fs::write(&file, vec![1; 64 << 10]).unwrap();
        // fsx makes its file anew, which alone would send it through the daemon, and opens it again before it closes it.
        let kept_open = File::open(&file).unwrap();
        run_fsx(volume, if is_heavy() { 100_000 } else { 15_000 }, seed);
        drop(kept_open);
    }
    let opens = volume.status()["counters"]["opens_passed_through"].as_u64().expect("it is counted");
    assert!(opens > 100, "fsx opens its files again and again, and the kernel used them itself {opens} times");
}

/// Runs beside fsx until the flag is set; returns whether the file lay on two tiers at some moment.
type Companion = fn(&TestVolume, &Path, &AtomicBool) -> bool;

/// Runs fsx on a file; returns whether that lay on two tiers at some moment.
fn exercise(volume: &TestVolume, operations: u64, seed: u64, companion: Companion) -> bool {
    let file = volume.path().join(format!("fsx-{seed}"));
    // Every open while this one is open goes through the daemon as well; passed through, it would not be split any more.
    let kept_open = File::create_new(&file).unwrap();
    let stop = AtomicBool::new(false);
    let was_split = std::thread::scope(|scope| {
        let beside = scope.spawn(|| companion(volume, &file, &stop));
        run_fsx(volume, operations, seed);
        stop.store(true, Ordering::Relaxed);
        beside.join().expect("what goes on beside it ends")
    });
    drop(kept_open);
    fs::remove_file(&file).unwrap();
    was_split
}

fn run_fsx(volume: &TestVolume, operations: u64, seed: u64) {
    let config = volume.outside().join("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new(fsx());
    command.args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"]).arg(&config);
    command.arg("-P").arg(volume.outside()).arg(volume.path().join(format!("fsx-{seed}")));
    let finished = run_within(&mut command, Duration::from_secs(900));
    assert!(finished.is_success(), "seed {seed}: {}", finished.text());
}
