//! The metadata tier is lost: the second copy of the store brings everything back, and without it `polymux rebuild` brings
//! back every byte that was on a tier, under a right path, and reports exactly the data that is not recovered.
//!
//! The ordinary form has 2,000 files; with `POLYMUX_HEAVY=1` there are 100,000.

mod mounted;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mounted::tree::{self, Content, Entry};
use mounted::volume::Ground;
use mounted::{Plan, Random, TestVolume, is_heavy, one_at_a_time};

/// Longest file that lives in the metadata store alone.
const INLINE_MAX: usize = 4096;
const FILES_PER_DIRECTORY: usize = 50;

fn file_count() -> usize {
    if is_heavy() { 100_000 } else { 2000 }
}

/// Content of a file: bytes that differ from file to file and from place to place.
fn content_of(number: usize, length: usize) -> Vec<u8> {
    let mut random = Random::new(number as u64 + 1);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Two of five files are small enough for the metadata store.
fn length_of(number: usize) -> usize {
    match number % 5 {
        0 | 1 => 1 + number % INLINE_MAX,
        _ => INLINE_MAX + 1 + number * 37 % 6000,
    }
}

fn directory_of(number: usize) -> PathBuf {
    let group = number / FILES_PER_DIRECTORY;
    Path::new(&format!("top{}", group % 10)).join(format!("group{group}"))
}

fn volume() -> Option<TestVolume> {
    let mut plan = Plan::anywhere();
    if matches!(plan.ground, Ground::LoopDevices { .. }) && is_heavy() {
        plan.ground = Ground::LoopDevices { fast: 1024, slow: 3072 };
    }
    let plan = plan.with_fast_capacity(if is_heavy() { "256 MiB" } else { "64 MiB" });
    let mut volume = TestVolume::create(&plan)?;
    let mut config = fs::read_to_string(volume.config_path()).unwrap();
    config.push_str("\n[options]\nmetadata_copy = \"slow\"\nmetadata_copy_interval = 1\nstamp_delay = 1\n");
    fs::write(volume.config_path(), config).unwrap();
    volume.mount();
    Some(volume)
}

/// Files of every kind, under their first names.
fn populate(volume: &TestVolume) {
    let root = volume.path();
    for number in 0..5 {
        fs::write(root.join(format!("split{number}")), content_of(1_000_000 + number, 6 << 20)).unwrap();
    }
    for number in 0..5 {
        let file = root.join(format!("split{number}"));
        let path = file.to_str().unwrap();
        let moved = volume.polymux(["migrate", path, "--to", "slow", "--range", "2MiB-4MiB", "--wait"]);
        assert!(moved.is_success(), "{}", moved.text());
        volume.assert_is_split(&file);
    }
    for number in 0..file_count() {
        let directory = root.join(directory_of(number));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(&directory).unwrap();
        }
        let file = directory.join(format!("file{number}"));
        fs::write(&file, content_of(number, length_of(number))).unwrap();
        if number % 20 == 7 {
            fs::hard_link(&file, directory.join(format!("again{number}"))).unwrap();
        }
        if number % 30 == 3 {
            rustix::fs::setxattr(&file, "user.colour", b"blue", rustix::fs::XattrFlags::empty()).unwrap();
        }
        if number % 40 == 4 {
            fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        }
    }
    std::os::unix::fs::symlink("split0", root.join("link")).unwrap();
    fs::create_dir(root.join("nothing in it")).unwrap();
}

/// Names change after everything was described once.
fn rename_some(root: &Path) {
    fs::rename(root.join("top3"), root.join("renamed top")).unwrap();
    fs::rename(root.join("top4/group4"), root.join("top5/moved group")).unwrap();
    fs::rename(root.join("split4"), root.join("top6/split moved")).unwrap();
    fs::rename(root.join("top7/group7/file352"), root.join("top7/group7/file352 renamed")).unwrap();
    let (one, other) = (root.join("top8/group8"), root.join("top9/group9"));
    rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, rustix::fs::RenameFlags::EXCHANGE)
        .unwrap();
}

fn status(volume: &TestVolume) -> serde_json::Value {
    let finished = volume.polymux(["status", &volume.name, "--json"]);
    assert!(finished.is_success(), "{}", finished.text());
    serde_json::from_str(&finished.stdout).expect("status is JSON")
}

/// Waits until the back-references of the objects on the tiers are up to date.
fn wait_until_described(volume: &TestVolume) {
    let begun = Instant::now();
    let mut quiet = 0;
    while quiet < 3 {
        std::thread::sleep(Duration::from_millis(500));
        quiet = if status(volume)["stamps_late"] == 0 { quiet + 1 } else { 0 };
        assert!(begun.elapsed() < Duration::from_secs(600), "{}", status(volume));
    }
}

fn lose_store(volume: &TestVolume) {
    fs::remove_dir_all(volume.tier("fast").join(".polymux/meta")).unwrap();
}

fn is_on_a_tier(entry: &Entry) -> bool {
    matches!(entry.content, Content::File(_)) && entry.size > INLINE_MAX as u64
}

/// Paths of the findings of each kind.
fn findings(report: &serde_json::Value) -> BTreeMap<String, BTreeSet<PathBuf>> {
    let mut found: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for finding in report["findings"].as_array().expect("a report has findings") {
        let kind = finding["kind"].as_str().expect("a finding has a kind").to_owned();
        let path = finding["path"].as_str().unwrap_or_default();
        let is_new = found.entry(kind).or_default().insert(PathBuf::from(path));
        assert!(is_new, "told twice: {finding}");
    }
    found
}

/// Compares the recovered files with the original ones: exactly the data on a tier, each file under one of its names.
fn assert_rebuilt(
    truth: &BTreeMap<PathBuf, Entry>,
    names: &BTreeMap<u64, BTreeSet<PathBuf>>,
    found: &BTreeMap<PathBuf, Entry>,
    report: &serde_json::Value,
) {
    let is_file = |entry: &Entry| matches!(entry.content, Content::File(_));
    let mut expected_missing: BTreeSet<PathBuf> = BTreeSet::new();
    let mut expected_without_xattrs: BTreeSet<PathBuf> = BTreeSet::new();
    let mut back = 0;
    for own in names.values() {
        let first = own.first().expect("a file has a name");
        let known = &truth[first];
        if !is_on_a_tier(known) {
            assert!(own.iter().all(|name| !found.contains_key(name)), "{} was on no tier", first.display());
            continue;
        }
        let present: Vec<&PathBuf> = own.iter().filter(|name| found.contains_key(*name)).collect();
        assert_eq!(present.len(), 1, "one right path of {own:?}");
        let (path, entry) = (present[0], &found[present[0]]);
        let same = |entry: &Entry| (entry.mode, entry.uid, entry.gid, entry.size, entry.content.clone());
        assert_eq!(same(entry), same(known), "{}", path.display());
        if own.len() > 1 {
            expected_missing.insert(path.clone());
        }
        if !known.xattrs.is_empty() {
            expected_without_xattrs.insert(path.clone());
        }
        back += 1;
    }
    assert_eq!(found.values().filter(|entry| is_file(entry)).count(), back, "and nothing else");
    let mut expected = BTreeMap::new();
    expected.insert("names-missing".to_owned(), expected_missing);
    expected.insert("xattrs-lost".to_owned(), expected_without_xattrs);
    assert_eq!(findings(report), expected);
    assert_eq!(report["files"], back);
}

/// The names of each file.
fn names_of(root: &Path, truth: &BTreeMap<PathBuf, Entry>) -> BTreeMap<u64, BTreeSet<PathBuf>> {
    let mut names: BTreeMap<u64, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, entry) in truth {
        if matches!(entry.content, Content::File(_)) {
            let ino = root.join(path).metadata().expect("it was listed").ino();
            names.entry(ino).or_default().insert(path.clone());
        }
    }
    names
}

/// Runs a command that takes long with many files.
fn long(volume: &TestVolume, arguments: &[&str]) -> mounted::Finished {
    volume.polymux_within(arguments.iter().copied(), Duration::from_secs(900))
}

fn json_of(finished: &mounted::Finished) -> serde_json::Value {
    assert!(finished.is_success(), "{}", finished.text());
    serde_json::from_str(&finished.stdout).expect("the report is JSON")
}

#[test]
fn a_lost_metadata_tier_comes_back_from_the_second_copy_and_without_it_from_the_objects() {
    let _alone = one_at_a_time();
    let Some(mut volume) = volume() else { return };
    let begun = Instant::now();
    populate(&volume);
    wait_until_described(&volume);
    rename_some(volume.path());
    rustix::fs::syncfs(fs::File::open(volume.path()).unwrap()).unwrap();
    wait_until_described(&volume);
    let truth = tree::snapshot(volume.path());
    let names = names_of(volume.path(), &truth);
    eprintln!("{} files made, described and read after {:?}", names.len(), begun.elapsed());
    // Older than five seconds.
    std::thread::sleep(Duration::from_secs(5));
    fs::write(volume.path().join("too late"), b"x").unwrap();
    volume.kill_daemon();
    lose_store(&volume);
    let refused = volume.polymux(["rebuild", &volume.name, "--yes"]);
    assert!(!refused.is_success() && refused.text().contains("--from-copy"), "{}", refused.text());
    volume.mount_with(&["--from-copy"]);
    let mut found = tree::snapshot(volume.path());
    found.remove(Path::new("too late"));
    assert_eq!(tree::difference(&truth, &found), None, "everything is back from the second copy");
    drop(found);
    wait_until_described(&volume);
    let _ = fs::remove_file(volume.path().join("too late"));
    volume.kill_daemon();

    lose_store(&volume);
    fs::remove_dir_all(volume.tier("slow").join(".polymux/meta-copy")).unwrap();
    let refused = volume.try_mount(&["--from-copy"]).expect_err("there is no copy");
    assert!(refused.contains("no second copy"), "{refused}");
    let refused = volume.polymux(["rebuild", &volume.name]);
    assert!(!refused.is_success() && refused.text().contains("--yes"), "{}", refused.text());
    let foreseen = json_of(&long(&volume, &["rebuild", &volume.name, "-n", "--json"]));
    assert!(!volume.tier("fast").join(".polymux/meta").exists(), "-n makes nothing");
    let begun = Instant::now();
    let report = json_of(&long(&volume, &["rebuild", &volume.name, "--yes", "--json"]));
    eprintln!("{} objects: rebuilt in {:?}", report["objects"], begun.elapsed());
    assert_eq!(findings(&foreseen), findings(&report), "what was foreseen came");
    let checked = long(&volume, &["fsck", &volume.name, "-n"]);
    assert!(checked.is_success(), "{}", checked.text());
    volume.mount();
    let found = tree::snapshot(volume.path());
    assert_rebuilt(&truth, &names, &found, &report);
    volume.unmount();
    let refused = volume.polymux(["rebuild", &volume.name, "--yes"]);
    assert!(!refused.is_success() && refused.text().contains("fsck"), "a store that opens is kept: {}", refused.text());
    volume.mount();
    assert_eq!(tree::difference(&found, &tree::snapshot(volume.path())), None, "and it stays so");
    volume.unmount();
}

#[test]
fn a_mounted_volume_and_one_with_a_missing_tier_are_not_rebuilt() {
    let _alone = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let refused = volume.polymux(["rebuild", &volume.name, "--yes"]);
    assert!(!refused.is_success() && refused.text().contains("is mounted"), "{}", refused.text());
    fs::write(volume.path().join("file"), content_of(1, 50_000)).unwrap();
    volume.unmount();
    lose_store(&volume);
    let own = volume.tier("slow").join(".polymux");
    let rename = |from: &str, to: &str| fs::rename(own.join(from), own.join(to)).unwrap();
    rename("label", "away");
    rename("label.copy", "away.copy");
    let refused = volume.polymux(["rebuild", &volume.name, "--yes", "--ignore-copy"]);
    assert!(!refused.is_success() && refused.text().contains("`slow` is missing"), "{}", refused.text());
    assert!(refused.text().contains(volume.config_path().to_str().unwrap()), "{}", refused.text());
    rename("away", "label");
    rename("away.copy", "label.copy");
    let report = json_of(&volume.polymux(["rebuild", &volume.name, "--yes", "--ignore-copy", "--json"]));
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(0), "{report}");
    volume.mount();
    assert_eq!(fs::read(volume.path().join("file")).unwrap(), content_of(1, 50_000));
    volume.unmount();
}
