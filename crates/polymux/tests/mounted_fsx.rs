//! fsx on a file that is split over both tiers, because the fast one is too small for it.

mod mounted;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mounted::tool::tool;
use mounted::{Plan, TestVolume, is_heavy, one_at_a_time, run_within};

const VERSION: &str = "0.3.2";

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

/// Asks now and then where the file is, until told to stop; whether it was ever on two tiers.
fn watch_for_split(volume: &TestVolume, file: &Path, stop: &AtomicBool) -> bool {
    let mut was_split = false;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(500));
        if file.exists() {
            was_split |= volume.bytes_per_tier(file).values().filter(|bytes| **bytes > 0).count() >= 2;
        }
    }
    was_split
}

/// The same while the fast tier, too small for the file, is kept below its mark by movers, which stop for every cut.
#[test]
fn fsx_finds_no_difference_while_movers_take_the_file_along() {
    let _turn = one_at_a_time();
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("2 MiB")) else { return };
    exercise(&volume, if is_heavy() { 100_000 } else { 15_000 }, &[1]);
}

/// 200,000 operations over four seeds; 200,000 with each where `POLYMUX_HEAVY=1`.
#[test]
fn fsx_finds_no_difference_on_a_split_file() {
    let _turn = one_at_a_time();
    let operations = if is_heavy() { 200_000 } else { 50_000 };
    let Some(volume) = TestVolume::start_without_movers(&Plan::anywhere().with_fast_capacity("2 MiB")) else { return };
    exercise(&volume, operations, &SEEDS);
}

/// Runs fsx with each of the seeds on a file that is split at some moment.
fn exercise(volume: &TestVolume, operations: u64, seeds: &[u64]) {
    let program = tool("fsx", VERSION);
    let config = volume.outside().join("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
    for seed in seeds {
        let file = volume.path().join(format!("fsx-{seed}"));
        let stop = AtomicBool::new(false);
        let (finished, was_split) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch_for_split(volume, &file, &stop));
            let mut command = Command::new(&program);
            command.args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"]).arg(&config);
            command.arg("-P").arg(volume.outside()).arg(&file);
            let finished = run_within(&mut command, Duration::from_secs(900));
            stop.store(true, Ordering::Relaxed);
            (finished, watcher.join().expect("the watcher ends"))
        });
        assert!(finished.is_success(), "seed {seed}: {}", finished.text());
        assert!(was_split, "seed {seed}: the file was never on both tiers");
        fs::remove_file(&file).unwrap();
    }
}
