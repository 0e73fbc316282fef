//! Profiles of the devices of tiers: measured through the real command on mounted volumes and others, kept over mounts, and
//! `polymux bench` on top of it.

mod mounted;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mounted::native::text;
use mounted::volume::Ground;
use mounted::{
    Finished, Plan, TestVolume, drop_caches, is_root, skip, skip_where_io_is_named, skip_where_policy_is_named,
};
use serde_json::Value;

fn start(fast_capacity: Option<&'static str>) -> Option<TestVolume> {
    TestVolume::start(&Plan { ground: Ground::Directories, fast_capacity })
}

#[track_caller]
fn assert_refused(finished: &Finished, words: &[&str]) {
    assert!(!finished.is_success(), "it is not refused: {}", finished.text());
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is missing in: {}", finished.text());
    }
}

#[track_caller]
fn json(finished: &Finished) -> Value {
    finished.assert_success();
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.text()))
}

fn listed(volume: &TestVolume) -> Value {
    json(&volume.polymux(["tier", "list", "--json", volume.name.as_str()]))
}

/// Names in Polymux's own directory of a tier.
fn own_names(tier: &Path) -> Vec<String> {
    let entries = fs::read_dir(tier.join(".polymux")).expect("the tier's own directory can be read");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The records of profiles, of a volume that is not mounted.
fn records(volume: &TestVolume) -> String {
    let metadata = volume.config_path();
    let told = volume.polymux(["inspect", "store", "records", text(&metadata), "--kind", "P"]);
    told.assert_success();
    told.stdout
}

#[test]
fn a_tier_is_measured_while_it_is_in_use_and_what_was_found_stays_with_the_volume() {
    let Some(mut volume) = start(None) else { return };
    fs::write(volume.path().join("kept"), vec![5; 1 << 20]).unwrap();
    let before = own_names(volume.tier("fast"));
    assert_eq!(listed(&volume)[0]["profile"], Value::Null);
    let found = json(&volume.polymux(["tier", "measure", "tested", "fast", "--seconds", "1", "--json"]));
    let profile = &found[0]["profile"];
    assert_eq!((found[0]["tier"].as_str(), found.as_array().unwrap().len()), (Some("fast"), 1));
    for key in ["sequential_read", "sequential_write", "random_reads", "random_writes", "saturating_reads"] {
        assert!(profile[key].as_u64().unwrap() > 0, "{key}: {profile}");
    }
    assert!(profile["points"].as_array().unwrap().len() >= 8, "{profile}");
    assert_eq!(own_names(volume.tier("fast")), before, "nothing stays on the tier");
    assert_eq!(&listed(&volume)[0]["profile"], profile);
    assert_eq!(listed(&volume)[1]["profile"], Value::Null, "the other one was not measured");
    // Lanes begin with the measured values.
    volume.unmount();
    volume.mount();
    let fast = &listed(&volume)[0];
    assert_eq!(&fast["profile"], profile);
    assert_eq!(fast["write"]["bytes_per_second"], profile["sequential_write"]);
    let day = profile["measured_at"].as_str().unwrap().split('T').next().unwrap();
    let table = volume.polymux(["tier", "list", "tested"]);
    assert!(table.stdout.contains(day) && table.stdout.contains("/s"), "{}", table.text());
    volume.unmount();
    assert!(records(&volume).contains("points"), "{}", records(&volume));
    volume.polymux(["fsck", "-n", "tested"]).assert_success();
}

#[test]
fn all_tiers_of_a_volume_that_is_not_mounted_are_measured_and_the_volume_is_left_as_it_was() {
    let Some(mut volume) = start(None) else { return };
    fs::write(volume.path().join("kept"), vec![5; 1 << 20]).unwrap();
    volume.unmount();
    let said = volume.polymux(["tier", "measure", "tested", "--seconds", "1"]);
    said.assert_success();
    for tier in ["tier fast: measured", "tier slow: measured", "sequential read"] {
        assert!(said.stdout.contains(tier), "{}", said.text());
    }
    assert_eq!(records(&volume).matches("profile of a tier").count(), 2, "{}", records(&volume));
    volume.polymux(["fsck", "-n", "tested"]).assert_success();
    assert_refused(&volume.polymux(["tier", "measure", "tested", "none"]), &["no tier `none`"]);
    assert_refused(&volume.polymux(["tier", "measure", "tested", "--seconds", "0"]), &["1 to 600 seconds"]);
    volume.mount();
    assert!(listed(&volume).as_array().unwrap().iter().all(|tier| tier["profile"]["sequential_read"].is_u64()));
    assert_eq!(fs::read(volume.path().join("kept")).unwrap(), vec![5; 1 << 20]);
    assert_refused(&volume.polymux(["tier", "measure", "tested", "none"]), &["no tier `none`"]);
    volume.unmount();
}

#[test]
fn a_tier_is_measured_when_it_joins_and_forgotten_when_it_leaves() {
    let Some(mut volume) = start(None) else { return };
    let path = volume.outside().join("middle");
    fs::create_dir(&path).unwrap();
    let tier = format!("middle={}", path.display());
    let added = volume.polymux(["tier", "add", "tested", &tier, "--measure", "--before", "slow"]);
    added.assert_success();
    assert!(added.stdout.contains("joined") && added.stdout.contains("tier middle: measured"), "{}", added.text());
    assert!(listed(&volume)[1]["profile"]["measured_at"].is_string());
    volume.polymux(["tier", "remove", "tested", "middle"]).assert_success();
    volume.unmount();
    assert_eq!(records(&volume).trim(), "", "it is forgotten");
}

#[test]
fn a_volume_can_be_made_and_measured_at_once() {
    let Some(volume) = TestVolume::create(&Plan { ground: Ground::Directories, fast_capacity: None }) else { return };
    let path = volume.outside().join("alone");
    fs::create_dir(&path).unwrap();
    let tier = format!("only={}", path.display());
    let made = volume.polymux(["create", "another", "--tier", &tier, "--measure"]);
    made.assert_success();
    assert!(made.stdout.contains("made of 1 tiers") && made.stdout.contains("tier only: measured"), "{}", made.text());
}

#[test]
fn a_nearly_full_tier_is_refused_and_nothing_is_written_to_it() {
    let Some(mut volume) = start(Some("2 MiB")) else { return };
    let refused = volume.polymux(["tier", "measure", "tested", "fast"]);
    assert_refused(&refused, &["`fast`", "too little room"]);
    assert_eq!(listed(&volume)[0]["profile"], Value::Null);
    volume.unmount();
}

#[test]
fn a_measurement_that_nobody_waits_for_or_whose_daemon_is_killed_leaves_nothing() {
    let Some(mut volume) = start(None) else { return };
    let before = own_names(volume.tier("fast"));
    let arguments = ["tier", "measure", "tested", "fast", "--seconds", "60"].map(str::to_owned);
    let mut asking = volume.begin(&arguments);
    std::thread::sleep(Duration::from_secs(2));
    let during = volume.polymux(["tier", "measure", "tested", "fast"]);
    assert_refused(&during, &["being measured already"]);
    asking.kill().unwrap();
    asking.wait().unwrap();
    // The daemon sees it when it tells the next time how far it is.
    let began = Instant::now();
    while !volume.polymux(["tier", "measure", "tested", "fast", "--seconds", "1"]).is_success() {
        assert!(began.elapsed() < Duration::from_secs(120), "the daemon goes on for nobody");
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut asking = volume.begin(&arguments);
    std::thread::sleep(Duration::from_secs(3));
    volume.kill_daemon();
    assert!(!asking.wait().unwrap().success());
    assert_eq!(own_names(volume.tier("fast")), before, "a file without a name goes with the daemon");
    // As a file system that makes no files without names leaves it.
    fs::write(volume.tier("fast").join(".polymux/measure"), vec![1; 1 << 20]).unwrap();
    volume.mount();
    assert_eq!(own_names(volume.tier("fast")), before);
    volume.unmount();
    // A check without repair does not count it as an error, and leaves it; a repair removes it.
    let left = volume.tier("slow").join(".polymux/measure");
    fs::write(&left, vec![1; 1 << 20]).unwrap();
    volume.polymux(["fsck", "-n", "tested"]).assert_success();
    assert!(left.exists());
    let repaired = volume.polymux(["fsck", "-y", "--json", "tested"]);
    let report = json(&repaired);
    assert_eq!((&report["corrected"], &report["left"]), (&0.into(), &0.into()), "{report}");
    assert!(!left.exists());
}

fn bench(volume: &TestVolume, target: &str) -> Value {
    json(&volume.polymux(["bench", target, "--size", "16MiB", "--seconds", "1", "--json"]))
}

#[test]
fn a_volume_tells_what_to_expect_of_its_tiers_and_what_is_reached_through_the_mount() {
    if skip_where_policy_is_named() {
        return;
    }
    let Some(mut volume) = start(None) else { return };
    let directory = volume.path().join("below");
    fs::create_dir(&directory).unwrap();
    // The file of a killed run is removed with the next one.
    fs::write(directory.join(".polymux-bench"), "left").unwrap();
    let found = bench(&volume, text(&directory));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "its file is gone");
    assert_eq!(found["policy"], "hot-cold");
    assert_eq!(found["file_bytes"], 16 << 20);
    assert_eq!(found["tiers"].as_array().unwrap().len(), 2);
    let loads = found["loads"].as_array().unwrap();
    let names: Vec<&str> = loads.iter().map(|load| load["load"].as_str().unwrap()).collect();
    assert_eq!(names, ["sequential_write", "sequential_read", "random_read"]);
    for load in loads {
        let number = |key: &str| load[key].as_u64().unwrap_or_else(|| panic!("no {key} in {load}"));
        assert!(number("reached_lowest") > 0 && number("reached_lowest") <= number("reached"), "{load}");
        assert!(number("reached") <= number("reached_highest") && number("repetitions") == 3, "{load}");
        assert_eq!(load["tiers"], serde_json::json!(["fast"]), "the policy puts it on one tier");
        // Both tiers are on one file system, and count once.
        let fastest = |key: &str| found["tiers"][0]["profile"][key].as_u64().unwrap();
        let key = ["sequential_write", "sequential_read", "random_reads"]
            [names.iter().position(|name| load["load"] == *name).unwrap()];
        assert_eq!(number("sum_of_tiers"), fastest(key));
        assert!(["processor", "devices", "policy", "memory", "other"].contains(&load["limited_by"].as_str().unwrap()));
    }
    assert!(listed(&volume)[1]["profile"]["measured_at"].is_string(), "what was measured of the tiers is kept");
    let told = volume.polymux(["bench", "tested", "--size", "16MiB", "--seconds", "1"]);
    told.assert_success();
    for words in ["sequential write with fsync", "through the mount", "what limited", "fast", "MiB/s"] {
        assert!(told.stdout.contains(words), "{words:?} is missing: {}", told.text());
    }
    volume.unmount();
    assert_refused(&volume.polymux(["bench", "tested"]), &["not mounted"]);
}

#[test]
fn a_volume_is_not_measured_where_that_makes_no_sense() {
    let Some(mut volume) = start(None) else { return };
    fs::write(volume.path().join("file"), "x").unwrap();
    assert_refused(&volume.polymux(["bench", "tested", "--size", "1MiB"]), &["too little room"]);
    assert_refused(&volume.polymux(["bench", text(&volume.path().join("file"))]), &["not a directory"]);
    let held = fs::File::create(volume.path().join(".polymux-bench")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let refused = volume.polymux(["bench", "tested", "--size", "16MiB", "--seconds", "1"]);
    assert_refused(&refused, &["in use"]);
    assert!(volume.path().join(".polymux-bench").exists(), "it is somebody else's");
    drop(held);
    volume.unmount();
    volume.mount_with(&["--read-only"]);
    assert_refused(&volume.polymux(["bench", "tested"]), &["read-only"]);
    assert_refused(&volume.polymux(["tier", "measure", "tested", "fast"]), &["ead-only"]);
    volume.unmount();
}

#[test]
fn single_reads_that_memory_refuses_tell_what_a_read_takes_the_device() {
    if skip_where_io_is_named() || skip_where_policy_is_named() {
        return;
    }
    if !is_root() {
        return skip("only root can drop the page cache");
    }
    let plan = Plan { ground: Ground::Directories, fast_capacity: None };
    let Some(volume) = TestVolume::start_with_options(&plan, "passthrough = \"off\"") else { return };
    let tier = &listed(&volume)[0];
    if tier["capabilities"]["nowait_read"] != "true" || tier["guarantee"] == "volatile" {
        return skip("temporary files are in memory, or their file system cannot refuse to wait");
    }
    let path = volume.path().join("file");
    const PLACES: u64 = 200;
    const APART: u64 = 256 << 10;
    let file = File::create(&path).unwrap();
    file.write_all_at(&vec![7; usize::try_from(PLACES * APART).unwrap()], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        drop_caches();
        let file = File::open(&path).unwrap();
        // From the end to the beginning: nothing is read ahead.
        for place in (0..PLACES).rev() {
            file.read_exact_at(&mut [0; 4096], place * APART).unwrap();
        }
        let found = &listed(&volume)[0]["small_reads"];
        let (sampled, alone_us) = (found["sampled"].as_u64(), found["alone_us"].as_u64());
        if sampled >= Some(8) && alone_us.is_some() {
            return;
        }
        assert!(Instant::now() < deadline, "no read of a device is a sample: {found}");
    }
}
