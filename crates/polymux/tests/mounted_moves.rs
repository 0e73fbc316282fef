//! Blocks that move between tiers of a mounted volume, through the real command: files, trees, ranges, pauses, drains under
//! load and over a killed daemon, and refusals.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mounted::environment::skip_where_writes_are_collected;
use mounted::native::text;
use mounted::{Finished, Plan, Random, TestVolume, is_heavy};
use serde_json::Value;

const MIB: usize = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(120);

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {}", finished.text()))
}

/// One line states the error, and names these things.
#[track_caller]
fn assert_refused(finished: &Finished, words: &[&str]) {
    assert_eq!(finished.status.code(), Some(1), "it is not refused: {}", finished.text());
    assert_eq!(finished.stderr.lines().count(), 1, "one line says what is wrong: {}", finished.text());
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is missing in: {}", finished.stderr);
    }
}

/// Writes a file durably, with bytes that no other seed gives.
fn write(path: &Path, seed: u64, length: usize) -> Vec<u8> {
    let bytes = Random::new(seed).bytes(length);
    fs::write(path, &bytes).expect("the volume takes a file");
    File::open(path).and_then(|file| file.sync_all()).expect("it becomes durable");
    bytes
}

fn bytes_on(volume: &TestVolume, file: &Path, tier: &str) -> u64 {
    volume.bytes_per_tier(file).get(tier).copied().unwrap_or(0)
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_file_goes_to_another_tier_and_a_range_of_it_back() {
    // It moves while it is open.
    let Some(mut volume) = TestVolume::start_with_options(&Plan::anywhere(), "passthrough = \"off\"") else { return };
    let path = volume.path().join("film");
    let bytes = write(&path, 1, 8 * MIB);
    let open = File::open(&path).unwrap();
    let before = open.metadata().unwrap();
    assert_eq!(bytes_on(&volume, &path, "slow"), 0);

    volume.polymux(["migrate", text(&path), "--to", "slow", "--wait"]).assert_success();
    assert_eq!(bytes_on(&volume, &path, "fast"), 0);
    assert!(bytes_on(&volume, &path, "slow") >= 8 * MIB as u64);
    let after = open.metadata().unwrap();
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()), "nobody sees that it moved");
    drop(open);

    let finished = volume.polymux(["migrate", text(&path), "--to", "fast", "--range", "2MiB-4MiB", "--wait", "--json"]);
    finished.assert_success();
    let told = json(&finished);
    assert_eq!((&told["files"], &told["outcome"]["done"]), (&1.into(), &1.into()), "{told}");
    // The description of an object may take a block of its own beside the bytes.
    let moved = bytes_on(&volume, &path, "fast");
    assert!((2 * MIB as u64..=2 * MIB as u64 + 4096).contains(&moved), "{moved}");

    let map = json(&volume.polymux(["where", text(&path), "--map", "--json"]));
    let cell = map["map"]["cell_bytes"].as_u64().expect("a cell has a size");
    let cells = map["map"]["cells"].as_str().expect("there are cells");
    let expected: String = (0..8 * MIB as u64 / cell)
        .map(|index| if (2..4).contains(&(index * cell / MIB as u64)) { 'F' } else { 'S' })
        .collect();
    assert_eq!(cells, expected);
    let drawn = volume.polymux(["where", text(&path), "--map"]);
    assert!(drawn.stdout.contains("F fast") && drawn.stdout.contains("S slow") && drawn.stdout.is_ascii());
    assert!(drawn.stdout.lines().all(|line| line.len() <= 100), "{}", drawn.stdout);

    volume.unmount();
    volume.mount();
    assert!(fs::read(&path).unwrap() == bytes, "the bytes are what was written");
}

#[test]
fn a_map_shows_holes_as_dots() {
    if skip_where_writes_are_collected("the holes of a file that is open for changes are not told") {
        return;
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.write_all_at(&vec![1; MIB], 0).unwrap();
    file.write_all_at(&vec![2; MIB], 3 * MIB as u64).unwrap();
    file.sync_all().unwrap();
    let map = json(&volume.polymux(["where", text(&path), "--map", "--json"]));
    let cells = map["map"]["cells"].as_str().expect("there are cells");
    let quarter = cells.len() / 4;
    assert!(cells[..quarter].chars().all(|cell| cell == 'F'), "{cells}");
    assert!(cells[quarter..3 * quarter].chars().all(|cell| cell == '.'), "{cells}");
    assert!(cells[3 * quarter..].chars().all(|cell| cell == 'F'), "{cells}");
}

#[test]
fn a_tree_moves_with_each_hard_link_once() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let tree = volume.path().join("tree");
    fs::create_dir_all(tree.join("deep/deeper")).unwrap();
    let mut contents = Vec::new();
    let directories = [tree.clone(), tree.join("deep"), tree.join("deep/deeper")];
    for (index, directory) in (0..300_u64).zip(directories.iter().cycle()) {
        let path = directory.join(format!("file-{index}"));
        contents.push((path.clone(), write(&path, index + 10, 20_000)));
    }
    fs::hard_link(&contents[0].0, tree.join("deep/again")).unwrap();
    std::os::unix::fs::symlink("/", tree.join("everything")).unwrap();
    let outside = volume.path().join("outside");
    write(&outside, 9, MIB);

    let finished = volume.polymux(["migrate", text(&tree), "--to", "slow", "--wait", "--json"]);
    finished.assert_success();
    let told = json(&finished);
    assert_eq!((&told["files"], &told["outcome"]["done"]), (&300.into(), &300.into()), "{}", told["outcome"]);
    assert_eq!(told["jobs"].as_array().map(Vec::len), Some(300));
    for (path, bytes) in contents.iter().step_by(37) {
        assert_eq!(bytes_on(&volume, path, "fast"), 0, "{}", path.display());
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    assert_eq!(bytes_on(&volume, &outside, "slow"), 0, "what was not named stays");
    let said = volume.polymux(["migrate", text(&tree), "--to", "slow", "--wait"]);
    said.assert_success();
    assert!(said.stdout.starts_with("300 of 300 files moved to tier `slow`"), "{}", said.stdout);
}

#[test]
fn a_pause_holds_moves_until_it_is_taken_back() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    write(&path, 1, 4 * MIB);
    volume.polymux(["pause", &volume.name]).assert_success();
    let said = volume.polymux(["migrate", text(&path), "--to", "slow"]);
    said.assert_success();
    assert!(said.stdout.contains("moving is paused: `polymux resume tested`"), "{}", said.stdout);
    thread::sleep(Duration::from_millis(700));
    assert_eq!(bytes_on(&volume, &path, "slow"), 0);
    let status = json(&volume.polymux(["status", &volume.name, "--json"]));
    assert_eq!((&status["moves"]["is_paused"], &status["moves"]["queued"]), (&true.into(), &1.into()));
    assert!(volume.polymux(["status", &volume.name]).stdout.contains("moving is paused"));
    let top = json(&volume.polymux(["top", &volume.name, "--json"]));
    assert_eq!((&top["is_paused"], &top["queued_count"]), (&true.into(), &1.into()));
    let waited = volume.polymux(["migrate", text(&path), "--to", "slow", "--wait"]);
    assert!(!waited.is_success() && waited.text().contains("`polymux resume tested`"), "{}", waited.text());

    let resumed = json(&volume.polymux(["resume", &volume.name, "--json"]));
    assert_eq!(resumed["is_paused"], false);
    wait_until("the file moves", || bytes_on(&volume, &path, "fast") == 0);
    assert!(bytes_on(&volume, &path, "slow") >= 4 * MIB as u64);
}

#[test]
fn top_reports_once_where_there_is_no_terminal() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    write(&path, 1, 4 * MIB);
    volume.polymux(["migrate", text(&path), "--to", "slow", "--wait"]).assert_success();
    for arguments in [&["top", "tested", "--once"][..], &["top", "tested"]] {
        let finished = volume.polymux(arguments.iter().copied());
        finished.assert_success();
        for word in
            ["tested on ", "2 movers", "fast", "slow", "0 running, 0 queued, 0 parked", "conflicts 0", "4 MiB moved"]
        {
            assert!(finished.stdout.contains(word), "{word:?} is missing in:\n{}", finished.stdout);
        }
    }
    let top = json(&volume.polymux(["top", text(volume.path()), "--json"]));
    assert_eq!(top["volume"], "tested");
    assert_eq!(top["tiers"].as_array().map(Vec::len), Some(2));
    assert!(top["counters"]["moves_committed"].as_u64().expect("it is counted") > 0, "{top}");
}

/// Writes blocks at random places of a file and reads each back until `must_stop` is set, or the volume goes away.
struct Load {
    must_stop: Arc<AtomicBool>,
    thread: JoinHandle<(Vec<u8>, bool)>,
}

impl Load {
    const LENGTH: usize = 4 * MIB;
    const BLOCK: usize = 4096;

    fn start(path: PathBuf, seed: u64) -> Self {
        let must_stop = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&must_stop);
        let thread = thread::spawn(move || {
            let mut random = Random::new(seed);
            let mut model = vec![0; Self::LENGTH];
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let Ok(file) = opened else { return (model, false) };
            if file.write_all_at(&model, 0).is_err() {
                return (model, false);
            }
            while !stop.load(Ordering::Acquire) {
                let at = usize::try_from(random.below((Self::LENGTH / Self::BLOCK) as u64)).unwrap() * Self::BLOCK;
                let block = random.bytes(Self::BLOCK);
                if file.write_all_at(&block, at as u64).is_err() {
                    return (model, false);
                }
                model[at..at + Self::BLOCK].copy_from_slice(&block);
                let look = usize::try_from(random.below((Self::LENGTH / Self::BLOCK) as u64)).unwrap() * Self::BLOCK;
                let mut back = vec![0; Self::BLOCK];
                if file.read_exact_at(&mut back, look as u64).is_err() {
                    return (model, false);
                }
                assert!(back == model[look..look + Self::BLOCK], "the block at {look} is not what was written");
            }
            (model, true)
        });
        Self { must_stop, thread }
    }

    /// The expected content of the file, and whether no operation failed.
    fn stop(self) -> (Vec<u8>, bool) {
        self.must_stop.store(true, Ordering::Release);
        self.thread.join().expect("every block was what was written")
    }
}

#[test]
fn a_drain_under_load_ends_although_the_daemon_is_killed_at_any_moment() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let directory = volume.path().join("data");
    fs::create_dir(&directory).unwrap();
    let mut files: Vec<(PathBuf, Vec<u8>)> = (0..24_u64)
        .map(|index| {
            let path = directory.join(format!("file-{index}"));
            let bytes = write(&path, index + 1, 4 * MIB);
            (path, bytes)
        })
        .collect();
    volume.polymux(["migrate", text(&directory), "--to", "slow", "--wait"]).assert_success();
    let loaded = volume.path().join("loaded");
    write(&loaded, 99, Load::LENGTH);
    volume.polymux(["migrate", text(&loaded), "--to", "slow", "--wait"]).assert_success();

    let said = volume.polymux(["tier", "drain", "tested", "slow"]);
    said.assert_success();
    assert!(said.stdout.contains("is being emptied") || said.stdout.contains("safe to remove"), "{}", said.stdout);
    let mut random = Random::new(7);
    for round in 0..if is_heavy() { 40 } else { 5 } {
        let load = Load::start(loaded.clone(), 1000 + round);
        thread::sleep(Duration::from_millis(random.below(400)));
        volume.kill_daemon();
        load.stop();
        volume.mount();
        let status = json(&volume.polymux(["status", "tested", "--json"]));
        assert_eq!(status["moves"]["drains"][0]["tier"], "slow", "it goes on by itself: {}", status["moves"]);
        for (path, bytes) in &files {
            assert!(fs::read(path).unwrap() == *bytes, "round {round}: {}", path.display());
        }
        // So that there is something to be interrupted in the next round, too.
        let (path, bytes) = &mut files[usize::try_from(round).unwrap() % 24];
        *bytes = write(path, 5000 + round, 4 * MIB);
    }

    let load = Load::start(loaded.clone(), 2);
    let said = volume.polymux(["tier", "drain", "tested", "slow", "--wait"]);
    said.assert_success();
    assert!(said.stdout.contains("tier `slow` is empty: safe to remove"), "{}", said.stdout);
    let (model, is_whole) = load.stop();
    assert!(is_whole, "no operation failed while the tier was emptied");
    let told = json(&volume.polymux(["tier", "drain", "tested", "slow", "--json"]));
    assert_eq!(told["is_empty"], true, "{told}");
    for (path, _) in &files {
        assert_eq!(bytes_on(&volume, path, "slow"), 0, "{}", path.display());
    }

    volume.polymux(["tier", "drain", "tested", "slow", "--cancel"]).assert_success();
    volume.unmount();
    volume.mount();
    let status = json(&volume.polymux(["status", "tested", "--json"]));
    assert_eq!(status["moves"]["drains"].as_array().map(Vec::len), Some(0), "the drain was taken back");
    for (path, bytes) in &files {
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    assert!(fs::read(&loaded).unwrap() == model, "the loaded file is what was written");
}

#[test]
fn what_cannot_be_moved_is_refused_with_one_line_and_changes_nothing() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("6 MiB")) else { return };
    // So that nothing moves because the fast tier is full.
    volume.polymux(["pause", "tested"]).assert_success();
    let path = volume.path().join("file");
    write(&path, 1, 2 * MIB);
    let large = volume.path().join("large");
    write(&large, 2, 16 * MIB);
    let empty = volume.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let link = volume.path().join("link");
    std::os::unix::fs::symlink("file", &link).unwrap();
    let outside = volume.outside().join("outside");
    fs::write(&outside, "x").unwrap();
    let before = (volume.bytes_per_tier(&path), volume.bytes_per_tier(&large));

    let migrate = |arguments: &[&str]| volume.polymux([&["migrate"], arguments].concat());
    let file = text(&path);
    assert_refused(&migrate(&[file, "--to", "nowhere"]), &["`nowhere`", "`fast`, `slow`"]);
    assert_refused(&migrate(&[text(&outside), "--to", "slow"]), &["outside", "does not lie on a Polymux volume"]);
    assert_refused(&migrate(&[text(&empty), "--to", "slow"]), &["empty", "no regular file"]);
    assert_refused(&migrate(&[text(&link), "--to", "slow"]), &["link", "symbolic link"]);
    assert_refused(&migrate(&[file, text(&outside), "--to", "slow"]), &["outside"]);
    let beyond = migrate(&[file, "--to", "slow", "--range", "1GiB-2GiB"]);
    assert_refused(&beyond, &["file: the range begins at byte 1073741824", "2097152 bytes"]);
    let beyond = migrate(&[file, "--to", "slow", "--range", "1MiB-3MiB"]);
    assert_refused(&beyond, &["file: the range ends at byte 3145728", "2097152 bytes"]);
    assert_refused(&migrate(&[text(&empty), "--to", "slow", "--range", "0-1MiB"]), &["--range is for one file"]);
    assert_refused(&migrate(&[text(&volume.path().join("gone")), "--to", "slow"]), &["gone"]);

    let drain = |arguments: &[&str]| volume.polymux([&["tier", "drain", "tested"], arguments].concat());
    assert_refused(&drain(&["fast"]), &["`fast`", "metadata"]);
    assert_refused(&drain(&["nowhere"]), &["`nowhere`", "`fast`, `slow`"]);
    assert_refused(&drain(&["slow", "--cancel"]), &["`slow`"]);
    assert_refused(&drain(&["slow"]), &["missing"]);
    assert_eq!(
        json(&volume.polymux(["status", "tested", "--json"]))["moves"]["drains"].as_array().map(Vec::len),
        Some(0)
    );
    assert_eq!((volume.bytes_per_tier(&path), volume.bytes_per_tier(&large)), before, "nothing was changed");
    volume.polymux(["resume", "tested"]).assert_success();

    volume.unmount();
    assert_refused(
        &volume.polymux(["migrate", text(volume.path()), "--to", "slow"]),
        &["does not lie on a Polymux volume"],
    );
    for arguments in
        [&["pause", "tested"][..], &["resume", "tested"], &["top", "tested"], &["tier", "drain", "tested", "slow"]]
    {
        assert_refused(&volume.polymux(arguments.iter().copied()), &["volume `tested` is not mounted"]);
    }
}

#[test]
fn a_move_without_room_says_so_and_fails() {
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("6 MiB")) else { return };
    let path = volume.path().join("large");
    write(&path, 1, 16 * MIB);
    let finished = volume.polymux(["migrate", text(&path), "--to", "fast", "--wait"]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.text());
    assert!(
        finished.stderr.contains("large") && finished.stderr.contains("tier `fast` has no room"),
        "{}",
        finished.text()
    );
    let status = volume.polymux(["status", "tested"]);
    assert!(
        status.stdout.contains("1 parked") && status.stdout.contains("tier `fast` has no room"),
        "{}",
        status.stdout
    );
}

#[test]
fn a_volume_without_movers_says_that_nothing_moves() {
    let Some(mut volume) = TestVolume::create(&Plan::anywhere()) else { return };
    let config = fs::read_to_string(volume.config_path()).unwrap();
    fs::write(volume.config_path(), format!("{config}\n[options]\nmovers = 0\n")).unwrap();
    volume.mount();
    let path = volume.path().join("file");
    write(&path, 1, MIB);
    assert_refused(&volume.polymux(["migrate", text(&path), "--to", "slow", "--wait"]), &["movers = 0"]);
    assert!(volume.polymux(["status", "tested"]).stdout.contains("movers = 0"));
}
