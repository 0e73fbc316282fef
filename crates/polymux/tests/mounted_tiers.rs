//! Tiers that join and leave a mounted volume, through the real command: listings, refusals, and the state that a killed
//! daemon leaves.

mod mounted;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use mounted::native::text;
use mounted::volume::Ground;
use mounted::{Finished, Plan, Random, TestVolume};

fn start() -> Option<TestVolume> {
    TestVolume::start(&Plan { ground: Ground::Directories, fast_capacity: Some("2 MiB") })
}

/// A directory for a tier, outside the volume.
fn directory(volume: &TestVolume, name: &str) -> PathBuf {
    let path = volume.outside().join(name);
    fs::create_dir(&path).expect("a directory can be made");
    path
}

fn add(volume: &TestVolume, name: &str, path: &std::path::Path, further: &[&str]) -> Finished {
    let tier = format!("{name}={}", path.display());
    volume.polymux(["tier", "add", volume.name.as_str(), tier.as_str()].into_iter().chain(further.iter().copied()))
}

fn remove(volume: &TestVolume, name: &str) -> Finished {
    volume.polymux(["tier", "remove", volume.name.as_str(), name])
}

fn listed(volume: &TestVolume) -> serde_json::Value {
    let finished = volume.polymux(["tier", "list", "--json", volume.name.as_str()]);
    assert!(finished.is_success(), "{}", finished.text());
    serde_json::from_str(&finished.stdout).expect("tier list --json prints JSON")
}

fn names(volume: &TestVolume) -> Vec<String> {
    let tiers = listed(volume);
    let name = |tier: &serde_json::Value| tier["name"].as_str().expect("a tier has a name").to_owned();
    tiers.as_array().expect("tiers are listed").iter().map(name).collect()
}

fn configured(volume: &TestVolume) -> Vec<String> {
    let config = fs::read_to_string(volume.config_path()).expect("the configuration can be read");
    let tiers = config.split("[[tier]]").skip(1);
    let name = |tier: &str| tier.split('"').nth(1).expect("a tier begins with its name").to_owned();
    tiers.map(name).collect()
}

/// One line states the error.
#[track_caller]
fn assert_refused(finished: &Finished, words: &[&str]) {
    assert!(!finished.is_success(), "it is not refused: {}", finished.text());
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "one line says what is wrong: {}", finished.text());
    for word in words {
        assert!(lines[0].contains(word), "{word:?} is missing in: {}", lines[0]);
    }
}

#[test]
fn a_tier_joins_while_a_file_is_written_and_stays_over_a_mount() {
    // A full tier is emptied down to its low mark, on a slow machine before the test checks the data on it.
    let plan = Plan { ground: Ground::Directories, fast_capacity: Some("2 MiB") };
    let Some(mut volume) = TestVolume::start_without_movers(&plan) else { return };
    let content = Random::new(1).bytes(8 << 20);
    let file = fs::File::create(volume.path().join("file")).unwrap();
    file.write_all_at(&content[..1 << 20], 0).unwrap();
    let config = fs::read_to_string(volume.config_path()).unwrap();
    fs::write(volume.config_path(), format!("# By hand.\n{config}\n# Choices.\nnoatime = true\n")).unwrap();
    let middle = directory(&volume, "middle");
    add(&volume, "middle", &middle, &["--before", "slow", "--capacity", "3 MiB", "--reserve", "5 %"]).assert_success();
    for (number, part) in content.chunks(64 << 10).enumerate() {
        file.write_all_at(part, (number * (64 << 10)) as u64).unwrap();
    }
    file.sync_all().unwrap();
    let bytes = volume.bytes_per_tier(&volume.path().join("file"));
    assert!(bytes["middle"] > 0 && bytes["slow"] > 0, "{bytes:?}");
    drop(file);
    assert_eq!(names(&volume), ["fast", "middle", "slow"]);
    assert_eq!(listed(&volume)[1]["capacity"], 3 << 20);
    let config = fs::read_to_string(volume.config_path()).unwrap();
    assert!(config.starts_with("# By hand.\n") && config.contains("# Choices.\nnoatime"), "{config}");
    volume.unmount();
    volume.mount();
    assert_eq!(names(&volume), ["fast", "middle", "slow"]);
    assert!(fs::read(volume.path().join("file")).unwrap() == content);

    assert_refused(&remove(&volume, "middle"), &["`middle`", "1 file", "drain"]);
    let held = fs::File::open(volume.path().join("file")).unwrap();
    fs::remove_file(volume.path().join("file")).unwrap();
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        drop(held);
    });
    // It waits for transient conditions.
    remove(&volume, "middle").assert_success();
    closing.join().unwrap();
    assert_eq!(names(&volume), ["fast", "slow"]);
    assert_eq!(configured(&volume), ["fast", "slow"]);
    assert_eq!(fs::read_dir(&middle).unwrap().count(), 0, "the directory is as it was");
    add(&volume, "again", &middle, &["--position", "1"]).assert_success();
    assert_eq!(names(&volume), ["again", "fast", "slow"]);
    assert_eq!(listed(&volume)[0]["id"], 3, "no number is used again");
    volume.unmount();
    volume.mount();
    assert_eq!(names(&volume), ["again", "fast", "slow"]);
    volume.unmount();
}

#[test]
fn what_cannot_be_done_is_refused_with_one_line_and_changes_nothing() {
    let Some(mut volume) = start() else { return };
    fs::write(volume.path().join("file"), Random::new(2).bytes(4 << 20)).unwrap();
    let Some(other) = TestVolume::create(&Plan { ground: Ground::Directories, fast_capacity: None }) else { return };
    let free = directory(&volume, "free");
    let plain = volume.outside().join("plain");
    fs::write(&plain, "").unwrap();
    let config = fs::read_to_string(volume.config_path()).unwrap();
    let inside = volume.tier("slow").join("inside");
    fs::create_dir(&inside).unwrap();

    assert_refused(&add(&volume, "slow", &free, &[]), &["has a tier `slow` already"]);
    assert_refused(&add(&volume, "a.b", &free, &[]), &["not plain"]);
    assert_refused(&add(&volume, "new", &volume.outside().join("nowhere"), &[]), &["nowhere", "No such file"]);
    assert_refused(&add(&volume, "new", &plain, &[]), &["not a directory"]);
    assert_refused(&add(&volume, "new", volume.tier("slow"), &[]), &["same path"]);
    assert_refused(&add(&volume, "new", &inside, &[]), &["lies within tier `slow`"]);
    assert_refused(&add(&volume, "new", other.tier("fast"), &[]), &["belongs to volume `tested`", "as tier `fast`"]);
    assert_refused(&add(&volume, "new", &free, &["--before", "none"]), &["no tier `none`"]);
    assert_refused(&add(&volume, "new", &free, &["--position", "9"]), &["no place 9"]);
    assert_refused(&add(&volume, "new", volume.outside(), &[]), &["lies within"]);
    assert_refused(&remove(&volume, "none"), &["no tier `none`"]);
    assert_refused(&remove(&volume, "fast"), &["holds the metadata store"]);
    assert_refused(&remove(&volume, "slow"), &["`slow`", "1 file"]);

    // The configuration cannot be written where it was edited to say something else meanwhile.
    volume.edit_config("name = \"slow\"", "name = \"slov\"");
    assert_refused(&add(&volume, "new", &free, &[]), &["lists other tiers"]);
    volume.edit_config("name = \"slov\"", "name = \"slow\"");

    assert_eq!(fs::read_dir(&free).unwrap().count(), 0, "nothing was made");
    assert_eq!(fs::read_to_string(volume.config_path()).unwrap(), config);
    assert_eq!(names(&volume), ["fast", "slow"]);
    volume.unmount();
    for refused in [add(&volume, "new", &free, &[]), remove(&volume, "slow")] {
        assert_refused(&refused, &["`tested` is not mounted"]);
    }
    assert_refused(&volume.polymux(["tier", "list", "tested"]), &["`tested` is not mounted"]);
    assert_eq!(fs::read_to_string(volume.config_path()).unwrap(), config);
    volume.mount();
    volume.unmount();
}

#[test]
fn a_tier_that_the_configuration_names_elsewhere_stays_and_one_that_pins_name_leaves_with_a_warning() {
    let Some(mut volume) = start() else { return };
    let middle = directory(&volume, "middle");
    add(&volume, "middle", &middle, &["--before", "slow"]).assert_success();
    let films = volume.path().join("films");
    fs::create_dir(&films).unwrap();
    volume.polymux(["pin", text(&films), "--tier", "middle"]).assert_success();
    let free = fs::read_to_string(volume.config_path()).unwrap();

    let ruled = format!("{free}\n[[rule]]\nname = \"films\"\npath = \"films/**\"\ntiers = [\"middle\"]\n");
    let copied = format!("{free}\n[options]\nmetadata_copy = \"middle\"\n");
    for (config, words) in [
        (&ruled, ["tiers names tier `middle`", "rule `films`", "take it out"]),
        (&copied, ["metadata_copy names tier `middle`", "another tier", "`none`"]),
    ] {
        fs::write(volume.config_path(), config).unwrap();
        let line = config.lines().position(|line| line.starts_with("tiers") || line.starts_with("metadata_copy"));
        let place = format!(":{}: ", line.unwrap() + 1);
        assert_refused(&remove(&volume, "middle"), &[&words[..], &[place.as_str()]].concat());
        assert_eq!(&fs::read_to_string(volume.config_path()).unwrap(), config, "nothing was changed");
        assert_eq!(names(&volume), ["fast", "middle", "slow"]);
    }

    fs::write(volume.config_path(), &free).unwrap();
    let removed = remove(&volume, "middle");
    removed.assert_success();
    assert!(removed.stderr.contains("1 pin still names tier `middle`"), "{}", removed.text());
    volume.unmount();
    volume.mount();
    assert_eq!(names(&volume), ["fast", "slow"]);
    volume.polymux(["tier", "drain", volume.name.as_str(), "slow", "--wait"]).assert_success();
    assert_refused(&volume.polymux(["pin", text(&films), "--tier", "slow"]), &["`slow` is being emptied"]);
    volume.unmount();
}

#[test]
fn a_daemon_killed_while_a_tier_joins_or_leaves_leaves_a_volume_that_mounts() {
    let Some(mut volume) = start() else { return };
    let content = Random::new(3).bytes(1 << 20);
    let kept = volume.path().join("kept");
    fs::write(&kept, &content).unwrap();
    fs::File::open(&kept).unwrap().sync_all().unwrap();
    let mut interrupted = 0;
    for round in 0..6_u64 {
        let name = format!("tier{round}");
        let path = directory(&volume, &name);
        let leaves = round % 3 == 2;
        if leaves {
            add(&volume, &name, &path, &[]).assert_success();
        }
        let mut ask = volume.begin(&match leaves {
            true => vec!["tier".to_owned(), "remove".to_owned(), volume.name.clone(), name.clone()],
            false => {
                let tier = format!("{name}={}", path.display());
                vec!["tier".to_owned(), "add".to_owned(), volume.name.clone(), tier]
            }
        });
        std::thread::sleep(Duration::from_millis(20 + 40 * round));
        volume.kill_daemon();
        interrupted += usize::from(!ask.wait().expect("the command ends").success());
        volume.mount();
        assert_eq!(names(&volume), configured(&volume), "in round {round}");
        assert!(fs::read(&kept).unwrap() == content, "in round {round}");
    }
    assert!(interrupted > 0, "no event was interrupted");
    volume.unmount();
    volume.mount();
    assert_eq!(names(&volume), configured(&volume));
    volume.unmount();
}

#[test]
fn watermarks_of_the_configuration_are_told_and_wrong_ones_refused() {
    let Some(mut volume) = start() else { return };
    volume.unmount();
    volume.edit_config("capacity = \"2 MiB\"\n", "capacity = \"2 MiB\"\nhigh_mark = \"50 %\"\nlow_mark = \"25 %\"\n");
    volume.mount();
    let fast = &listed(&volume)[0];
    let total = fast["total"].as_u64().unwrap();
    assert_eq!(fast["high_mark"].as_u64().unwrap(), total / 2);
    assert_eq!(fast["low_mark"].as_u64().unwrap(), total / 4);
    let told = volume.polymux(["tier", "list", text(volume.path())]);
    assert!(told.is_success() && told.stdout.contains("starts at"), "{}", told.text());
    volume.unmount();
    volume.edit_config("low_mark = \"25 %\"", "low_mark = \"50 %\"");
    let said = volume.try_mount(&[]).expect_err("a wrong mark is refused");
    assert!(said.contains("tested.toml:") && said.contains("low_mark 50 % is not below"), "{said}");
}
