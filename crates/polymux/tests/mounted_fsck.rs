//! `polymux fsck` as a person meets it: exit codes, paths, JSON, volumes that are mounted or were killed.

mod mounted;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mounted::{Finished, Plan, TestVolume, one_at_a_time};
use serde_json::Value;

fn code(finished: &Finished) -> Option<i32> {
    finished.status.code()
}

/// Every object of a tier, by its length.
fn objects(tier: &Path) -> BTreeMap<u64, PathBuf> {
    let buckets = fs::read_dir(tier.join(".polymux/objects")).expect("a tier has buckets");
    let objects = buckets.flat_map(|bucket| fs::read_dir(bucket.expect("a bucket").path()).expect("it can be read"));
    objects
        .map(|object| {
            let object = object.expect("an object");
            (object.metadata().expect("it is there").len(), object.path())
        })
        .collect()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.text()))
}

fn populate(root: &Path) {
    fs::create_dir_all(root.join("photos/2024")).expect("directories are made");
    fs::write(root.join("photos/2024/one.raw"), vec![7; 70_001]).expect("a file is made");
    fs::write(root.join("photos/2024/two.raw"), vec![8; 80_001]).expect("a file is made");
    fs::write(root.join("note"), b"short").expect("a file is made");
}

#[test]
fn a_clean_volume_has_exit_code_0_and_wrong_usage_16() {
    let _one = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    populate(volume.path());
    volume.unmount();
    let name = volume.name.clone();
    for options in [&["-n"][..], &["-y"], &["--json"]] {
        let finished = volume.polymux([&["fsck", name.as_str()], options].concat());
        assert_eq!(code(&finished), Some(0), "{}", finished.text());
    }
    assert_eq!(code(&volume.polymux(["fsck"])), Some(16));
    assert_eq!(code(&volume.polymux(["fsck", &name, "-n", "-y"])), Some(16));
    assert_eq!(code(&volume.polymux(["fsck", "no-such-volume"])), Some(8));
    let told = json(&volume.polymux(["fsck", &name, "--json"]));
    assert_eq!(told["exit_code"], 0);
    assert_eq!(told["unclean"], false);
    assert_eq!(told["inodes"], 6);
    assert_eq!(told["passes"][0]["id"], 10);
    volume.mount();
    assert_eq!(fs::read(volume.path().join("note")).expect("it can be read"), b"short");
}

#[test]
fn a_file_whose_object_is_gone_is_named_by_its_path() {
    let _one = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    populate(volume.path());
    volume.unmount();
    fs::remove_file(&objects(volume.tier("fast"))[&70_001]).expect("an object is removed");
    let name = volume.name.clone();
    for mode in ["-n", "-y", "-y"] {
        let finished = volume.polymux(["fsck", &name, mode]);
        assert_eq!(code(&finished), Some(4), "{}", finished.text());
        assert!(finished.stdout.contains("/photos/2024/one.raw"), "{}", finished.text());
        assert!(!finished.stdout.contains("two.raw"), "{}", finished.text());
    }
    volume.mount();
    assert!(fs::read(volume.path().join("photos/2024/one.raw")).is_err());
    assert_eq!(fs::read(volume.path().join("photos/2024/two.raw")).expect("it can be read"), vec![8; 80_001]);
}

#[test]
fn an_object_of_nobody_comes_back_through_lost_and_found() {
    let _one = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    populate(volume.path());
    volume.unmount();
    let stray = volume.tier("slow").join(".polymux/objects/00a/0000000000009999");
    fs::write(&stray, vec![9; 9999]).expect("an object is made");
    let name = volume.name.clone();
    let finished = volume.polymux(["fsck", &name, "-n"]);
    assert_eq!(code(&finished), Some(4), "{}", finished.text());
    let finished = volume.polymux(["fsck", &name, "-y", "--json"]);
    assert_eq!(code(&finished), Some(1), "{}", finished.text());
    let told = json(&finished);
    assert_eq!(told["counts"]["object-unnamed"], 1);
    assert_eq!(told["findings"][0]["outcome"], "corrected");
    let finished = volume.polymux(["fsck", &name, "-n"]);
    assert_eq!(code(&finished), Some(0), "{}", finished.text());
    volume.mount();
    let rescued = volume.path().join("lost+found/slow-0000000000009999");
    assert_eq!(fs::read(rescued).expect("it can be read"), vec![9; 9999]);
}

#[test]
fn a_mounted_volume_is_checked_online_only() {
    let _one = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    populate(volume.path());
    let name = volume.name.clone();
    let finished = volume.polymux(["fsck", &name, "-y"]);
    assert_eq!(code(&finished), Some(8), "{}", finished.text());
    assert!(finished.stderr.contains("--online"), "{}", finished.text());
    let root = volume.path().to_owned();
    let busy = std::thread::spawn(move || {
        for number in 0..3000 {
            let path = root.join(format!("busy-{number}"));
            fs::write(&path, vec![1; number * 7]).expect("a file is made");
            if number % 3 == 0 {
                fs::rename(&path, root.join(format!("photos/moved-{number}"))).expect("it is renamed");
            } else if number % 3 == 1 {
                fs::remove_file(&path).expect("it is removed");
            }
        }
    });
    while !busy.is_finished() {
        let finished = volume.polymux(["fsck", "--online", &name, "--json"]);
        assert_eq!(code(&finished), Some(0), "{}", finished.text());
        assert_eq!(json(&finished)["mode"], "online");
    }
    busy.join().expect("nothing fails beside a check");
    fs::remove_file(&objects(volume.tier("fast"))[&70_001]).expect("an object is removed");
    let finished = volume.polymux(["fsck", "--online", &name]);
    assert_eq!(code(&finished), Some(4), "{}", finished.text());
    assert!(finished.stdout.contains("/photos/2024/one.raw"), "{}", finished.text());
    volume.unmount();
}

#[test]
fn a_volume_whose_daemon_was_killed_is_recovered_and_has_no_errors() {
    let _one = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    populate(volume.path());
    volume.kill_daemon();
    let name = volume.name.clone();
    let finished = volume.polymux(["fsck", &name, "-n", "--json"]);
    assert_eq!(code(&finished), Some(0), "{}", finished.text());
    assert_eq!(json(&finished)["unclean"], true);
    let finished = volume.polymux(["fsck", &name, "-y"]);
    assert_eq!(code(&finished), Some(0), "{}", finished.text());
    assert!(finished.stdout.contains("recovered"), "{}", finished.text());
    let finished = volume.polymux(["fsck", &name, "-n", "--json"]);
    assert_eq!(json(&finished)["unclean"], false);
    volume.mount();
    volume.unmount();
}
