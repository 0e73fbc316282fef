//! A volume whose tiers have changed unexpectedly is refused with one clear line, and nothing on the tiers changes.

mod mounted;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mounted::command::{run, succeed};
use mounted::native::text;
use mounted::tree::{difference, snapshot};
use mounted::volume::Ground;
use mounted::{Plan, Random, TestVolume};

/// Files of 512 KiB: more than the fast tier takes.
const FILES: u64 = 10;

fn start() -> Option<TestVolume> {
    let plan = Plan { ground: Ground::Directories, fast_capacity: Some("2 MiB") };
    let volume = TestVolume::start(&plan)?;
    for number in 0..FILES {
        fs::write(file(&volume, number), contents(number)).unwrap();
    }
    Some(volume)
}

fn file(volume: &TestVolume, number: u64) -> PathBuf {
    volume.path().join(format!("file {number}"))
}

fn contents(number: u64) -> Vec<u8> {
    Random::new(number).bytes(512 << 10)
}

/// Copies a directory with everything that belongs to it.
fn copy(from: &Path, to: &Path) {
    succeed("cp", ["-a", text(from), text(to)]);
}

/// Mounts, which must fail with one line that contains all of `words`; nothing that belongs to the tiers may change.
fn assert_refused(volume: &mut TestVolume, words: &[&str]) {
    let keep: Vec<_> = ["fast", "slow"].iter().map(|tier| volume.tier(tier).to_path_buf()).collect();
    // The store may tidy its own files when it is opened; labels and objects stay as they are.
    let look = || -> Vec<_> {
        let parts = |tier: &PathBuf| {
            let private = tier.join(".polymux");
            let objects =
                if private.join("objects").exists() { snapshot(&private.join("objects")) } else { Default::default() };
            (objects, fs::read(private.join("label")).ok())
        };
        keep.iter().map(parts).collect()
    };
    let before = look();
    let said = volume.try_mount(&[]).expect_err("a mount that must be refused succeeds");
    let errors: Vec<&str> =
        said.lines().filter(|line| line.starts_with("polymux: ") && !line.contains("warning:")).collect();
    assert_eq!(errors.len(), 1, "one line says what is wrong:\n{said}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} is missing in: {}", errors[0]);
    }
    for ((objects, label), (objects_after, label_after)) in before.iter().zip(look()) {
        assert_eq!(difference(objects, &objects_after), None, "objects changed");
        assert_eq!(*label, label_after, "a label changed");
    }
}

fn assert_whole(volume: &mut TestVolume) {
    volume.mount();
    for number in 0..FILES {
        assert!(fs::read(file(volume, number)).unwrap() == contents(number), "file {number} changed");
    }
    volume.unmount();
}

#[test]
fn a_tier_that_is_an_older_copy_is_refused() {
    let Some(mut volume) = start() else { return };
    volume.unmount();
    let (tier, older, newest) =
        (volume.tier("slow").to_path_buf(), volume.outside().join("older"), volume.outside().join("newest"));
    copy(&tier, &older);
    assert_whole(&mut volume);
    fs::rename(&tier, &newest).unwrap();
    copy(&older, &tier);
    assert_refused(&mut volume, &["slow", "stale"]);
    fs::remove_dir_all(&tier).unwrap();
    fs::rename(&newest, &tier).unwrap();
    assert_whole(&mut volume);
}

#[test]
fn metadata_that_is_older_than_a_tier_is_refused() {
    let Some(mut volume) = start() else { return };
    volume.unmount();
    let (tier, older, newest) =
        (volume.tier("fast").to_path_buf(), volume.outside().join("older"), volume.outside().join("newest"));
    copy(&tier, &older);
    assert_whole(&mut volume);
    fs::rename(&tier, &newest).unwrap();
    copy(&older, &tier);
    assert_refused(&mut volume, &["metadata", "older"]);
    fs::remove_dir_all(&tier).unwrap();
    fs::rename(&newest, &tier).unwrap();
    assert_whole(&mut volume);
}

#[test]
fn swapped_tiers_are_refused() {
    let Some(mut volume) = start() else { return };
    volume.unmount();
    let (fast, slow) = (text(volume.tier("fast")).to_owned(), text(volume.tier("slow")).to_owned());
    let swap = |volume: &TestVolume| {
        volume.edit_config(&fast, "PLACEHOLDER");
        volume.edit_config(&slow, &fast);
        volume.edit_config("PLACEHOLDER", &slow);
    };
    swap(&volume);
    assert_refused(&mut volume, &["fast", "slow"]);
    swap(&volume);
    assert_whole(&mut volume);
}

#[test]
fn a_tier_that_is_not_there_is_refused_and_its_mount_point_stays_empty() {
    let Some(mut volume) = start() else { return };
    volume.unmount();
    let (tier, away) = (volume.tier("slow").to_path_buf(), volume.outside().join("away"));
    fs::rename(&tier, &away).unwrap();
    assert_refused(&mut volume, &["slow"]);
    fs::create_dir(&tier).unwrap();
    assert_refused(&mut volume, &["slow"]);
    assert_eq!(fs::read_dir(&tier).unwrap().count(), 0, "an unmounted mount point is not written to");
    fs::remove_dir(&tier).unwrap();
    fs::rename(&away, &tier).unwrap();
    assert_whole(&mut volume);
}

#[test]
fn without_a_tier_a_degraded_volume_shows_all_names_and_what_lies_elsewhere() {
    let Some(mut volume) = start() else { return };
    fs::create_dir(volume.path().join("directory")).unwrap();
    let on_slow = |volume: &TestVolume, number| {
        volume.bytes_per_tier(&file(volume, number)).get("slow").is_some_and(|bytes| *bytes > 0)
    };
    let needs_slow: Vec<bool> = (0..FILES).map(|number| on_slow(&volume, number)).collect();
    assert!(needs_slow.contains(&true) && needs_slow.contains(&false), "files lie on both tiers: {needs_slow:?}");
    volume.unmount();
    let (tier, away) = (volume.tier("slow").to_path_buf(), volume.outside().join("away"));
    fs::rename(&tier, &away).unwrap();
    volume.mount_with(&["--degraded"]);
    let names = fs::read_dir(volume.path()).unwrap().count() as u64;
    assert_eq!(names, FILES + 1, "all names are visible");
    for number in 0..FILES {
        let path = file(&volume, number);
        assert_eq!(path.metadata().unwrap().len(), 512 << 10);
        let read = fs::read(&path);
        if needs_slow[usize::try_from(number).unwrap()] {
            assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO), "file {number}");
        } else {
            assert!(read.unwrap() == contents(number), "file {number}");
        }
    }
    volume.unmount();
    fs::rename(&away, &tier).unwrap();
    assert_whole(&mut volume);
}

#[test]
fn a_directory_of_a_volume_or_on_one_is_no_tier() {
    let Some(volume) = start() else { return };
    let among_own = volume.tier("slow").join(".polymux/objects");
    let on_volume = volume.path().join("directory");
    fs::create_dir(&on_volume).unwrap();
    let free = volume.outside().join("free");
    fs::create_dir(&free).unwrap();
    for (directory, words) in [
        (&among_own, "among the files of volume `tested` (tier `slow`)"),
        (&on_volume, "is on volume `tested`"),
        (&volume.path().to_path_buf(), "is on volume `tested`"),
    ] {
        let before = snapshot(directory);
        let tiers = [format!("--tier=a={}", text(&free)), format!("--tier=b={}", text(directory))];
        let created = volume.polymux(["create", "other", &tiers[0], &tiers[1]]);
        let added = volume.polymux(["tier", "add", "tested", &format!("third={}", text(directory))]);
        // For a tier of the same volume the message is that it would lie within the volume's own directories.
        for (refused, words) in [(created, words), (added, "lies within")] {
            assert!(!refused.is_success() && refused.stderr.contains(words), "{}", refused.text());
            let errors = refused.stderr.lines().filter(|line| !line.contains("warning:"));
            assert_eq!(errors.count(), 1, "{}", refused.text());
        }
        assert_eq!(difference(&before, &snapshot(directory)), None, "nothing changed there");
    }
    assert_eq!(fs::read_dir(&free).unwrap().count(), 0);
}

#[test]
fn a_directory_where_a_volume_is_to_be_mounted_or_whose_label_cannot_be_read_is_no_tier() {
    let plan = Plan { ground: Ground::Directories, fast_capacity: None };
    let Some(volume) = TestVolume::create(&plan) else { return };
    let fstab = volume.outside().join("fstab");
    fs::write(&fstab, format!("# volumes\ntested {} polymux nofail 0 0\n", text(volume.path()))).unwrap();
    let below = volume.path().join("below");
    fs::create_dir(&below).unwrap();
    let unreadable = volume.outside().join("lost/.polymux/objects");
    fs::create_dir_all(&unreadable).unwrap();
    let create = |directory: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polymux"));
        volume.give_registry(&mut command);
        command.env("LIBMOUNT_FSTAB", &fstab);
        run(command.args(["create", "other", &format!("--tier=only={}", text(directory))]))
    };
    for (directory, words) in [
        (volume.path(), "is where volume `tested` is to be mounted"),
        (&below, "is where volume `tested` is to be mounted"),
        (&unreadable, "its label cannot be read"),
    ] {
        let refused = create(directory);
        assert!(!refused.is_success() && refused.stderr.contains(words), "{}", refused.text());
        assert!(!directory.join(".polymux").exists(), "nothing changed there");
    }
    let free = volume.outside().join("free");
    fs::create_dir(&free).unwrap();
    assert!(create(&free).is_success(), "another directory is taken");
}

#[test]
fn a_tier_in_a_directory_that_others_may_write_is_warned_of() {
    let plan = Plan { ground: Ground::Directories, fast_capacity: None };
    let Some(mut volume) = TestVolume::create(&plan) else { return };
    volume.mount();
    let directory = |name: String, mode: u32| {
        let directory = volume.outside().join(name);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, PermissionsExt::from_mode(mode)).unwrap();
        directory
    };
    for (name, mode, is_warned_of) in
        [("everybody", 0o777, true), ("group", 0o775, true), ("owner", 0o755, false), ("sticky", 0o1777, false)]
    {
        let first = directory(format!("{name}-first"), mode);
        let created = volume.polymux(["create", name, &format!("--tier=only={}", text(&first))]);
        let new = directory(format!("{name}-new"), mode);
        let added = volume.polymux(["tier", "add", &volume.name, &format!("{name}={}", text(&new))]);
        for said in [created, added] {
            said.assert_success();
            let warning = "other users may exchange what the volume keeps";
            assert_eq!(said.stderr.contains(warning), is_warned_of, "{name}: {}", said.text());
        }
    }
    volume.unmount();
}
