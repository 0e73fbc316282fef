//! A volume of four tiers loses one of them for good, whichever it is: after `polymux tier forget` it mounts without options,
//! and everything that did not lie on the lost tier is there.
//!
//! `make test-forget ROUNDS=30` runs it with 20,000 files and a random tier each time.

mod mounted;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mounted::{Finished, Plan, Random, TestVolume, one_at_a_time};
use serde_json::Value;

const TIERS: [&str; 4] = ["t0", "t1", "t2", "t3"];

/// Large enough that the policy `spread` gives parts of it to several tiers.
const SPREAD_FILE_BYTES: usize = 24 << 20;

const LONG: Duration = Duration::from_secs(600);

fn wanted(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// A file as it was before the loss.
struct Truth {
    seed: u64,
    length: usize,
    /// Byte ranges and the tiers where they are; none for a small file in the metadata store.
    places: Vec<(u64, u64, String)>,
}

impl Truth {
    fn content(&self) -> Vec<u8> {
        Random::new(self.seed).bytes(self.length)
    }

    fn lost_with(&self, tier: &str) -> Vec<(u64, u64)> {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end, _) in self.places.iter().filter(|(_, _, on)| on == tier) {
            match merged.last_mut() {
                Some((_, last)) if *last == *start => *last = *end,
                _ => merged.push((*start, *end)),
            }
        }
        merged
    }
}

/// Four directories, each with a rule that keeps files below a directory of its name on it.
fn create(base: &Path) -> Option<TestVolume> {
    if let Some(why) = Plan::anywhere().obstacle() {
        eprintln!("skipped: {why}");
        return None;
    }
    let tiers: Vec<(String, PathBuf)> = TIERS.iter().map(|name| ((*name).to_owned(), base.join(name))).collect();
    tiers.iter().for_each(|(_, path)| fs::create_dir(path).expect("a directory is made"));
    let volume = TestVolume::on_tiers(tiers);
    volume.format(None);
    let mut config = fs::read_to_string(volume.config_path()).expect("read");
    for name in TIERS {
        config.push_str(&format!("\n[[rule]]\npath = \"{name}/**\"\ntiers = [\"{name}\"]\n"));
    }
    config.push_str("\n[[rule]]\npath = \"spread/**\"\npolicy = \"spread\"\n");
    config.push_str("\n[options]\nmetadata_copy = \"t1\"\nmetadata_copy_interval = 0\nmovers = 0\n");
    fs::write(volume.config_path(), config).expect("written");
    Some(volume)
}

fn json(finished: &Finished) -> Value {
    assert!(finished.is_success(), "{}", finished.text());
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.text()))
}

fn populate(volume: &TestVolume, files: u64, random: &mut Random) -> BTreeMap<String, Truth> {
    let mut truths = BTreeMap::new();
    for directory in TIERS.iter().chain(&["small", "spread"]) {
        fs::create_dir(volume.path().join(directory)).expect("a directory is made");
    }
    std::os::unix::fs::symlink("small/0", volume.path().join("link")).expect("a link is made");
    for number in 0..files {
        let (directory, length) = match number % 5 {
            4 => ("small", random.below(900) + 1),
            tier => (TIERS[usize::try_from(tier).expect("small")], 66_000 + random.below(20_000)),
        };
        let name = format!("{directory}/{number}");
        let truth = Truth { seed: number + 1, length: usize::try_from(length).expect("small"), places: Vec::new() };
        fs::write(volume.path().join(&name), truth.content()).expect("written");
        let places = if directory == "small" { Vec::new() } else { vec![(0, length, directory.to_owned())] };
        truths.insert(name, Truth { places, ..truth });
    }
    for number in 0..3_u64 {
        let name = format!("spread/{number}");
        let mut truth = Truth { seed: 1_000_000 + number, length: SPREAD_FILE_BYTES, places: Vec::new() };
        let path = volume.path().join(&name);
        fs::write(&path, truth.content()).expect("written");
        File::open(&path).expect("opened").sync_all().expect("synced");
        let map = json(&volume.polymux(["where", "--json", "--extents", path.to_str().expect("plain")]));
        for extent in map["extents"].as_array().expect("extents") {
            let offset = extent["offset"].as_u64().expect("a number");
            let end = offset + extent["length"].as_u64().expect("a number");
            truth.places.push((offset, end, extent["tier"].as_str().expect("somewhere").to_owned()));
        }
        truths.insert(name, truth);
    }
    truths
}

/// The entries of the list, by path.
fn listed(path: &Path) -> BTreeMap<String, (String, Vec<(u64, u64)>)> {
    let text = fs::read_to_string(path).expect("the list is there");
    let mut files = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let range = |range: &str| {
            let (start, end) = range.split_once('-').expect("a range");
            (start.parse().expect("a number"), end.parse().expect("a number"))
        };
        let name = fields[3].trim_start_matches('/').to_owned();
        files.insert(name, (fields[0].to_owned(), fields[2].split(',').map(range).collect()));
    }
    files
}

fn assert_left(volume: &TestVolume, truths: &BTreeMap<String, Truth>, lost: &str) {
    assert_eq!(fs::read_link(volume.path().join("link")).expect("read"), Path::new("small/0"));
    for (name, truth) in truths {
        let path = volume.path().join(name);
        let content = truth.content();
        let gone = truth.lost_with(lost);
        assert_eq!(fs::metadata(&path).expect("its name is there").len(), content.len() as u64, "{name}");
        if gone.is_empty() {
            assert!(fs::read(&path).expect("read") == content, "{name}");
            continue;
        }
        let file = File::open(&path).expect("opened");
        for (start, end, on) in &truth.places {
            let mut bytes = vec![0; usize::try_from(end - start).expect("small")];
            let read = file.read_exact_at(&mut bytes, *start);
            if on == lost {
                assert_eq!(read.expect_err("lost").raw_os_error(), Some(5), "{name} at {start}");
            } else {
                read.unwrap_or_else(|error| panic!("{name} at {start}: {error}"));
                let from = usize::try_from(*start).expect("small");
                assert!(bytes == content[from..from + bytes.len()], "{name} at {start}");
            }
        }
    }
}

fn lose_and_forget(volume: &mut TestVolume, truths: &BTreeMap<String, Truth>, lost: &str) {
    volume.unmount();
    let directory = volume.tier(lost).to_path_buf();
    fs::rename(&directory, directory.with_extension("dead")).expect("it goes");
    volume.try_mount(&[]).expect_err("a tier is missing");
    let options: &[&str] = if lost == TIERS[0] { &["--degraded", "--from-copy"] } else { &["--degraded"] };
    volume.mount_with(options);
    let list = volume.outside().join(format!("lost-{lost}"));
    let unasked = volume.polymux(["tier", "forget", &volume.name, lost, "--list", list.to_str().expect("plain")]);
    assert!(!unasked.is_success() && unasked.text().contains("--yes"), "{}", unasked.text());
    let found = listed(&list);
    for (name, truth) in truths {
        let gone = truth.lost_with(lost);
        let is_whole = truth.places.iter().all(|(_, _, on)| on == lost);
        let expected = (!gone.is_empty()).then(|| (if is_whole { "whole" } else { "part" }.to_owned(), gone));
        assert_eq!(found.get(name), expected.as_ref(), "{name}");
    }
    assert!(found.keys().all(|name| truths.contains_key(name)), "nothing else is listed");
    fs::remove_file(&list).expect("it goes");
    let arguments = ["tier", "forget", volume.name.as_str(), lost, "--yes", "--list", list.to_str().expect("plain")];
    let done = volume.polymux_within(arguments, LONG);
    assert!(done.is_success() && done.text().contains("is forgotten"), "{}", done.text());
    assert_eq!(listed(&list), found, "the list is written again");
}

/// The output of `status` when it has checked all files that may have lost bytes: each time some of them.
fn complete_status(volume: &TestVolume) -> String {
    for _ in 0..100 {
        let status = volume.polymux(["status", volume.name.as_str()]).text();
        if !status.contains(" files so far") {
            return status;
        }
    }
    panic!("a hundred looks at the damaged files are not enough");
}

fn check_after(volume: &mut TestVolume, truths: &BTreeMap<String, Truth>, lost: &str) {
    assert_left(volume, truths, lost);
    volume.unmount();
    let name = volume.name.clone();
    let checked = json(&volume.polymux_within(["fsck", "-n", "--json", name.as_str()], LONG));
    let counts = checked["counts"].as_object().expect("counts");
    assert!(counts.keys().all(|kind| kind == "data-damaged"), "nothing but what is lost: {checked}");
    volume.mount();
    assert_left(volume, truths, lost);
    let gone: Vec<&String> =
        truths.iter().filter(|(_, truth)| !truth.lost_with(lost).is_empty()).map(|of| of.0).collect();
    if let [first, second, ..] = gone.as_slice() {
        let path = volume.path().join(first);
        let shown = volume.polymux(["where", path.to_str().expect("plain")]).text();
        assert!(shown.contains("damaged") && shown.contains("fsck --accept"), "{shown}");
        let status = complete_status(volume);
        assert!(status.contains(&format!("lost bytes: in {} files;", gone.len())), "{status}");
        let accepted = volume.polymux(["fsck", "--accept", path.to_str().expect("plain")]);
        assert!(accepted.is_success() && accepted.text().contains("are zeros now"), "{}", accepted.text());
        let mut content = truths[*first].content();
        for (start, end) in truths[*first].lost_with(lost) {
            content[usize::try_from(start).expect("small")..usize::try_from(end).expect("small")].fill(0);
        }
        assert!(fs::read(&path).expect("read") == content, "{first} has zeros where bytes were lost");
        fs::remove_file(volume.path().join(second)).expect("deleted");
    }
}

#[test]
fn a_volume_that_lost_any_one_of_four_tiers_goes_on_without_it() {
    let _alone = one_at_a_time();
    let (files, rounds) = (wanted("POLYMUX_FORGET_FILES", 200), wanted("POLYMUX_FORGET_ROUNDS", 2));
    let seed = wanted("POLYMUX_FORGET_SEED", 1);
    for round in 0..rounds {
        let mut random = Random::new(seed * 1000 + round);
        let base = tempfile::Builder::new().prefix("polymux-forget-").tempdir().expect("a directory can be made");
        let Some(mut volume) = create(base.path()) else { return };
        // The tier with the metadata, the one with its second copy, then any.
        let lost = match round {
            0 => TIERS[0],
            1 => TIERS[1],
            _ => TIERS[usize::try_from(random.below(4)).expect("small")],
        };
        volume.mount();
        let begun = Instant::now();
        let truths = populate(&volume, files, &mut random);
        lose_and_forget(&mut volume, &truths, lost);
        check_after(&mut volume, &truths, lost);
        volume.unmount();
        eprintln!("round {round}: {} files, {lost} forgotten, {:?}", truths.len(), begun.elapsed());
    }
}
