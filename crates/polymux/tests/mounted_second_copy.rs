//! The second copy of the metadata store: it is there by default, a lost store starts from it, and nothing that it maps
//! was freed.

mod mounted;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mounted::{Plan, Random, TestVolume, one_at_a_time};

fn status(volume: &TestVolume) -> serde_json::Value {
    let finished = volume.polymux(["status", &volume.name, "--json"]);
    assert!(finished.is_success(), "{}", finished.text());
    serde_json::from_str(&finished.stdout).expect("status is JSON")
}

/// The second copy as `status --json` shows it.
fn copy_status(volume: &TestVolume) -> serde_json::Value {
    status(volume)["metadata_copy"].clone()
}

/// The names of files that the copy knows to be whole, of those that were synced until now.
fn settled(volume: &TestVolume, synced: &Mutex<BTreeSet<String>>) -> BTreeSet<String> {
    let names = synced.lock().unwrap().clone();
    let durable = status(volume)["transactions_durable"].as_u64().unwrap();
    let begun = Instant::now();
    while copy_status(volume)["transaction"].as_u64().is_none_or(|arrived| arrived < durable) {
        assert!(begun.elapsed() < Duration::from_secs(120), "the copy does not come along: {}", copy_status(volume));
        std::thread::sleep(Duration::from_millis(20));
    }
    names
}

fn wait_for_copy(volume: &TestVolume) {
    let begun = Instant::now();
    loop {
        let copy = copy_status(volume);
        if copy["state"] == "current" && copy["lag_bytes"] == 0 {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "the copy does not come along: {copy}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A volume whose store has a second copy on the slow tier, wherever that tier is.
fn with_copy(interval: &str) -> Option<TestVolume> {
    let volume = TestVolume::create(&Plan::anywhere())?;
    let mut config = fs::read_to_string(volume.config_path()).unwrap();
    config.push_str(&format!("\n[options]\nmetadata_copy = \"slow\"\nmetadata_copy_interval = {interval}\n"));
    fs::write(volume.config_path(), config).unwrap();
    Some(volume)
}

fn lose_store(volume: &TestVolume) {
    fs::remove_dir_all(volume.tier("fast").join(".polymux/meta")).unwrap();
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Content of the file of this name: never a zero.
fn content_of(name: &str, length: usize) -> Vec<u8> {
    let mut bytes = name.as_bytes().repeat(length / name.len() + 1);
    bytes.truncate(length);
    bytes
}

#[test]
fn a_lost_store_starts_from_its_copy_only_when_asked_and_says_how_far_it_lagged() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    wait_for_copy(&volume);
    let status = volume.polymux(["status", volume.name.as_str()]).text();
    assert!(status.contains("second copy: on tier slow, current"), "{status}");
    for number in 0..50 {
        let (name, length) = (format!("file{number}"), 100 + number * 300);
        write_synced(&volume.path().join(&name), &content_of(&name, length)).unwrap();
    }
    wait_for_copy(&volume);
    volume.kill_daemon();
    lose_store(&volume);
    let refused = volume.try_mount(&[]).expect_err("a volume without its store is not mounted silently");
    assert!(refused.contains("--from-copy") && refused.contains("`slow`"), "{refused}");
    volume.mount_with(&["--from-copy"]);
    for number in 0..50 {
        let (name, length) = (format!("file{number}"), 100 + number * 300);
        assert_eq!(fs::read(volume.path().join(&name)).unwrap(), content_of(&name, length), "{name}");
    }
    let status = volume.polymux(["status", volume.name.as_str()]).text();
    assert!(status.contains("the metadata store is gone; started from its second copy on tier `slow`"), "{status}");
    assert!(status.contains(" s ago (transaction ") && status.contains("are lost"), "{status}");
    write_synced(&volume.path().join("later"), b"later").unwrap();
    volume.unmount();
    // Whole again, so that the copy is not wanted.
    let refused = volume.try_mount(&["--from-copy"]).expect_err("a whole store is not given up");
    assert!(refused.contains("is whole"), "{refused}");
    lose_store(&volume);
    volume.mount_with(&["--from-copy"]);
    assert_eq!(fs::read(volume.path().join("later")).unwrap(), b"later");
    let status = volume.polymux(["status", volume.name.as_str()]).text();
    assert!(status.contains("nothing is lost"), "{status}");
    volume.unmount();
}

#[test]
fn a_damaged_store_is_moved_aside_and_never_deleted() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    write_synced(&volume.path().join("file"), &content_of("file", 10_000)).unwrap();
    volume.unmount();
    let log = volume.tier("fast").join(".polymux/meta/log");
    let length = fs::metadata(&log).unwrap().len();
    fs::write(&log, vec![0xa5; usize::try_from(length).unwrap()]).unwrap();
    assert!(volume.try_mount(&[]).expect_err("a damaged store is refused").contains("--from-copy"));
    volume.mount_with(&["--from-copy"]);
    assert_eq!(fs::read(volume.path().join("file")).unwrap(), content_of("file", 10_000));
    let aside = fs::read_dir(volume.tier("fast").join(".polymux")).unwrap();
    let names: Vec<String> = aside.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("meta.damaged-")), "{names:?}");
    volume.unmount();
}

#[test]
fn where_store_and_copy_are_damaged_each_refusal_names_the_rebuild_and_it_works() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    write_synced(&volume.path().join("file"), &content_of("file", 50_000)).unwrap();
    wait_for_copy(&volume);
    volume.unmount();
    for (tier, directory) in [("fast", "meta"), ("slow", "meta-copy")] {
        let log = volume.tier(tier).join(".polymux").join(directory).join("log");
        let length = fs::metadata(&log).unwrap().len();
        fs::write(&log, vec![0xa5; usize::try_from(length).unwrap()]).unwrap();
    }
    for options in [&[][..], &["--from-copy"], &["--from-copy"], &[]] {
        let refused = volume.try_mount(options).expect_err("neither can be used");
        assert!(refused.contains("polymux rebuild"), "{options:?}: {refused}");
        assert!(volume.tier("fast").join(".polymux/meta/log").exists(), "nothing is moved for a copy that is damaged");
    }
    let rebuilt = volume.polymux(["rebuild", &volume.name, "--yes"]);
    assert!(rebuilt.is_success(), "{}", rebuilt.text());
    volume.mount();
    assert_eq!(fs::read(volume.path().join("file")).unwrap(), content_of("file", 50_000));
    volume.unmount();
}

/// Every file of the store and of its copy.
fn metadata_files(volume: &TestVolume) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories =
        vec![volume.tier("fast").join(".polymux/meta"), volume.tier("slow").join(".polymux/meta-copy")];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.insert(path, bytes);
            }
        }
    }
    found
}

#[test]
fn a_read_only_mount_changes_nothing_of_store_and_copy_and_the_copy_goes_on_afterwards() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    write_synced(&volume.path().join("file"), &content_of("file", 20_000)).unwrap();
    write_synced(&volume.path().join("small"), b"small").unwrap();
    wait_for_copy(&volume);
    volume.unmount();
    let before = metadata_files(&volume);
    for _ in 0..2 {
        volume.mount_with(&["-o", "ro"]);
        assert_eq!(fs::read(volume.path().join("file")).unwrap(), content_of("file", 20_000));
        assert_eq!(fs::read(volume.path().join("small")).unwrap(), b"small");
        assert!(fs::write(volume.path().join("new"), b"").is_err());
        let status = volume.polymux(["status", volume.name.as_str()]).text();
        assert!(status.contains("second copy: none: the volume is mounted read-only"), "{status}");
        volume.unmount();
        let changed: Vec<_> =
            metadata_files(&volume).into_iter().filter(|(path, is)| before.get(path) != Some(is)).collect();
        assert!(changed.is_empty(), "{:?}", changed.iter().map(|(path, _)| path).collect::<Vec<_>>());
    }
    volume.mount();
    wait_for_copy(&volume);
    assert_eq!(copy_status(&volume)["rebuilds"], 0, "{}", copy_status(&volume));
    volume.unmount();
}

#[test]
fn a_store_that_lost_what_its_copy_has_is_refused_read_only_and_writable_and_what_the_refusal_names_works() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    wait_for_copy(&volume);
    for number in 0..20 {
        let name = format!("file{number}");
        write_synced(&volume.path().join(&name), &content_of(&name, 6000)).unwrap();
    }
    wait_for_copy(&volume);
    volume.kill_daemon();
    let log = volume.tier("fast").join(".polymux/meta/log");
    let mut bytes = fs::read(&log).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used.saturating_sub(4000).next_multiple_of(64)..].fill(0);
    fs::write(&log, bytes).unwrap();
    volume.forget_memory();
    let before = metadata_files(&volume);
    for options in [&["-o", "ro"][..], &[], &["-o", "ro"]] {
        let refused = volume.try_mount(options).expect_err("the store lost files");
        assert!(refused.contains("--from-copy"), "{options:?}: {refused}");
        assert!(metadata_files(&volume) == before, "{options:?}: nothing is changed");
    }
    volume.mount_with(&["--from-copy"]);
    for number in 0..20 {
        let name = format!("file{number}");
        assert_eq!(fs::read(volume.path().join(&name)).unwrap(), content_of(&name, 6000), "{name}");
    }
    volume.unmount();
}

#[test]
fn a_copy_that_is_ahead_of_a_store_that_went_on_is_told_of_and_a_vain_start_from_it_leaves_both() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    wait_for_copy(&volume);
    write_synced(&volume.path().join("old"), &content_of("old", 6000)).unwrap();
    wait_for_copy(&volume);
    volume.kill_daemon();
    let log = volume.tier("fast").join(".polymux/meta/log");
    let mut bytes = fs::read(&log).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used.saturating_sub(500).next_multiple_of(64)..].fill(0);
    fs::write(&log, bytes).unwrap();
    // The copy is away, and with it the evidence of the loss.
    let (copy, away) = (volume.tier("slow").join(".polymux/meta-copy"), volume.tier("slow").join("away"));
    fs::rename(&copy, &away).unwrap();
    volume.edit_config("metadata_copy = \"slow\"", "metadata_copy = \"none\"");
    volume.forget_memory();
    volume.mount();
    for number in 0..50 {
        write_synced(&volume.path().join(format!("later{number}")), b"later").unwrap();
    }
    volume.unmount();
    fs::rename(&away, &copy).unwrap();
    volume.edit_config("metadata_copy = \"none\"", "metadata_copy = \"slow\"");
    volume.mount();
    let status = volume.polymux(["status", volume.name.as_str()]).text();
    assert!(status.contains("second copy: on tier slow, refused: it is ahead of the store by"), "{status}");
    assert!(status.contains("remove ") && status.contains("--from-copy"), "{status}");
    volume.unmount();
    let before = metadata_files(&volume);
    let refused = volume.try_mount(&["--from-copy"]).expect_err("files were changed without the copy");
    assert!(refused.contains("the metadata is older than tier"), "{refused}");
    assert!(metadata_files(&volume) == before, "store and copy are as they were");
    // The other way out.
    fs::remove_dir_all(&copy).unwrap();
    volume.mount();
    wait_for_copy(&volume);
    assert_eq!(fs::read(volume.path().join("later7")).unwrap(), b"later");
    volume.unmount();
}

#[test]
fn without_a_copy_the_status_says_so_and_nothing_can_be_started_from_one() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.edit_config("metadata_copy = \"slow\"", "metadata_copy = \"none\"");
    volume.mount();
    let status = volume.polymux(["status", volume.name.as_str()]).text();
    assert!(status.contains("second copy: none: switched off"), "{status}");
    volume.unmount();
    lose_store(&volume);
    let refused = volume.try_mount(&["--from-copy"]).expect_err("there is no copy");
    assert!(refused.contains("no second copy"), "{refused}");
}

#[test]
fn a_copy_that_missed_a_mount_is_refused_because_the_tiers_are_newer() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    write_synced(&volume.path().join("old"), &content_of("old", 20_000)).unwrap();
    volume.unmount();
    volume.edit_config("metadata_copy = \"slow\"", "metadata_copy = \"none\"");
    volume.mount();
    fs::remove_file(volume.path().join("old")).unwrap();
    volume.unmount();
    lose_store(&volume);
    for _ in 0..2 {
        let refused = volume.try_mount(&["--from-copy"]).expect_err("the copy maps bytes that were freed");
        assert!(refused.contains("the metadata is older than tier"), "{refused}");
        assert!(!volume.tier("fast").join(".polymux/meta").exists(), "nothing stays behind");
    }
}

/// Makes, syncs and deletes files until the daemon is gone. `synced` has the names of files whose bytes are durable.
fn churn(root: &Path, worker: u64, synced: &Mutex<BTreeSet<String>>, stop: &AtomicBool) {
    let mut random = Random::new(worker);
    let mut mine: Vec<String> = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let name = format!("churn-{worker}-{number}");
        let length = 5000 + usize::try_from(random.below(60_000)).unwrap();
        if write_synced(&root.join(&name), &content_of(&name, length)).is_err() {
            return;
        }
        synced.lock().unwrap().insert(name.clone());
        mine.push(name);
        if mine.len() > 150 {
            let victim = mine.swap_remove(usize::try_from(random.below(150)).unwrap());
            if fs::remove_file(root.join(victim)).is_err() {
                return;
            }
        }
    }
}

#[test]
fn no_file_of_a_copy_maps_bytes_that_were_freed() {
    let _alone = one_at_a_time();
    let Some(mut volume) = with_copy("2") else { return };
    for round in 0..3 {
        volume.mount_with(if round == 0 { &[] } else { &["--from-copy"] });
        wait_for_copy(&volume);
        let (synced, stop) = (Mutex::new(BTreeSet::new()), AtomicBool::new(false));
        let root = volume.path().to_path_buf();
        let settled = std::thread::scope(|scope| {
            for worker in 0..2 {
                let (root, synced, stop) = (&root, &synced, &stop);
                scope.spawn(move || churn(root, round * 10 + worker, synced, stop));
            }
            std::thread::sleep(Duration::from_millis(2000 + 300 * round));
            let settled = settled(&volume, &synced);
            std::thread::sleep(Duration::from_millis(700));
            volume.kill_daemon();
            stop.store(true, Ordering::Relaxed);
            settled
        });
        lose_store(&volume);
        volume.mount_with(&["--from-copy"]);
        let synced = synced.into_inner().unwrap();
        let mut seen = 0;
        for entry in fs::read_dir(volume.path()).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if synced.contains(&name) {
                let bytes = fs::read(entry.path()).unwrap();
                // The copy may know a name and not yet the bytes.
                let whole = bytes.len() >= 5000 || !settled.contains(&name);
                assert!(whole && bytes == content_of(&name, bytes.len()), "{name} has lost bytes");
                seen += usize::from(settled.contains(&name));
            }
        }
        assert!(seen > 0, "round {round}: none of {} files is there", settled.len());
        volume.kill_daemon();
        lose_store(&volume);
    }
}

/// Makes a file system answer with errors from now on. Returns whether that could be done.
fn shut_down(mount: &Path) -> bool {
    let mut command = std::process::Command::new("xfs_io");
    command.args(["-x", "-c", "shutdown"]).arg(mount);
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_dead_copy_stops_nobody_and_the_status_says_what_happened() {
    let _alone = one_at_a_time();
    if !mounted::have_program("xfs_io") {
        return mounted::skip("xfs_io is not installed");
    }
    let Some(mut volume) = with_copy("1") else { return };
    volume.mount();
    wait_for_copy(&volume);
    write_synced(&volume.path().join("freed"), &content_of("freed", 400_000)).unwrap();
    wait_for_copy(&volume);
    if !shut_down(volume.tier("slow").parent().unwrap()) {
        return mounted::skip("the slow tier is not on an XFS of its own, which could be shut down");
    }
    let begun = Instant::now();
    fs::remove_file(volume.path().join("freed")).unwrap();
    for number in 0..20 {
        let name = format!("later{number}");
        write_synced(&volume.path().join(&name), &content_of(&name, 9000)).unwrap();
        assert_eq!(fs::read(volume.path().join(&name)).unwrap(), content_of(&name, 9000));
    }
    loop {
        let report = status(&volume);
        let given_up =
            report["recovery"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains("given up"));
        if given_up && report["disowned_pending"] == 0 {
            assert_eq!(report["metadata_copy"]["state"], "unreachable");
            assert!(report["metadata_copy"]["reason"].is_string(), "{report}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{report}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = volume.polymux(["status", volume.name.as_str()]).text();
    assert!(text.contains("second copy: on tier slow, unreachable: "), "{text}");
    volume.kill_daemon();
}
