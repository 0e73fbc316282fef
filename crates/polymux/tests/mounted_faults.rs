//! Tiers that hang, fail, go away and come back below a mounted volume, with real file systems that are frozen, shut down,
//! unmounted and mounted: the effects that the user sees (DESIGN section 12, docs/design/0014).

mod mounted;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mounted::environment::have_loop_devices;
use mounted::native::text;
use mounted::{FileSystemKind, NativeMount, Random, TestVolume, have_program, is_heavy, run, skip, succeed};

/// Writers of files on the tier that hangs: far more than the mount has threads.
const HUNG_WRITERS: usize = 40;

const CONFIG: &str = "\n[[rule]]\npath = \"slow/**\"\ntiers = [\"slow\"]\n\n[[rule]]\npath = \"fast/**\"\ntiers = [\"fast\"]\n\n\
                      [options]\nmovers = 0\nhang_after = 2\ninline_size_max = \"0 B\"\n";

/// A volume of two tiers on file systems of their own, with a directory whose files go to each.
struct Tested {
    volume: TestVolume,
    slow: NativeMount,
    _fast: NativeMount,
    _base: tempfile::TempDir,
}

fn start(kind: FileSystemKind) -> Option<Tested> {
    if !have_loop_devices() || !have_program("mkfs.xfs") || !have_program("fsfreeze") {
        skip("freezing a file system needs root, loop devices, mkfs.xfs and fsfreeze");
        return None;
    }
    let base = tempfile::Builder::new().prefix("polymux-faults-").tempdir().expect("a directory can be made");
    let fast = NativeMount::new(base.path(), "fast", FileSystemKind::Ext4, 512);
    let slow = NativeMount::new(base.path(), "slow", kind, 512);
    let tiers = [("fast", &fast), ("slow", &slow)].map(|(name, ground)| {
        let path = ground.path().join("tier");
        fs::create_dir(&path).expect("a directory can be made");
        (name.to_owned(), path)
    });
    let mut volume = TestVolume::on_tiers(tiers.to_vec());
    volume.format(None);
    let config = fs::read_to_string(volume.config_path()).expect("the configuration can be read");
    fs::write(volume.config_path(), format!("{config}{CONFIG}")).expect("it can be written");
    volume.mount();
    for directory in ["fast", "slow"] {
        fs::create_dir(volume.path().join(directory)).expect("a directory can be made");
    }
    Some(Tested { volume, slow, _fast: fast, _base: base })
}

impl Tested {
    fn path(&self, name: &str) -> PathBuf {
        self.volume.path().join(name)
    }

    fn synced_file(&self, name: &str, content: &[u8]) -> File {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(self.path(name));
        let file = file.expect("a file can be made");
        file.write_all_at(content, 0).expect("written");
        file.sync_all().expect("synced");
        file
    }

    fn status(&self) -> serde_json::Value {
        let finished = self.volume.polymux(["status", "--json", &self.volume.name]);
        assert!(finished.is_success(), "{}", finished.text());
        serde_json::from_str(&finished.stdout).expect("status --json prints JSON")
    }

    /// State and reason of the slow tier.
    fn slow_state(&self) -> (String, String) {
        let status = self.status();
        let tier = &status["tiers"][1];
        let text = |key: &str| tier[key].as_str().unwrap_or_default().to_owned();
        (text("state"), text("reason"))
    }

    fn wait_for_state(&self, wanted: &str, patience: Duration) {
        let began = Instant::now();
        while self.slow_state().0 != wanted {
            assert!(began.elapsed() < patience, "not {wanted} within {patience:?}: {:?}", self.slow_state());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Longest time for which a file system is frozen: a test that hangs fails instead, and leaves nothing that cannot be killed.
const FROZEN_MAX: Duration = Duration::from_secs(90);

/// A file system that takes no writes until this is dropped, or the time is over.
struct Frozen {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
}

impl Frozen {
    fn new(mount: &NativeMount) -> Self {
        succeed("fsfreeze", ["-f", text(mount.path())]);
        let (path, is_over) = (mount.path().to_owned(), Arc::new(AtomicBool::new(false)));
        let (frozen, over) = (path.clone(), Arc::clone(&is_over));
        thread::spawn(move || {
            let began = Instant::now();
            while !over.load(Ordering::Relaxed) && began.elapsed() < FROZEN_MAX {
                thread::sleep(Duration::from_millis(100));
            }
            if !over.load(Ordering::Relaxed) {
                eprintln!("{} was frozen for {FROZEN_MAX:?} and is not any more", frozen.display());
                run(Command::new("fsfreeze").arg("-u").arg(&frozen));
            }
        });
        Self { path, is_over }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        run(Command::new("fsfreeze").arg("-u").arg(&self.path));
    }
}

/// Operations per second of two threads on the fast tier: a write of a block each, a read, and now and then an fsync.
fn throughput(tested: &Tested, length: Duration) -> f64 {
    let done = AtomicU64::new(0);
    let began = Instant::now();
    thread::scope(|scope| {
        for number in 0..2_u64 {
            let (done, tested) = (&done, &tested);
            scope.spawn(move || {
                let file = tested.synced_file(&format!("fast/load{number}"), &[0; 1 << 20]);
                let mut buffer = [0_u8; 4096];
                for round in 0_u64.. {
                    if began.elapsed() >= length {
                        return;
                    }
                    let offset = round % 256 * 4096;
                    buffer.fill(u8::try_from(round % 251).expect("small"));
                    file.write_all_at(&buffer, offset).expect("written");
                    if round % 64 == 0 {
                        file.sync_data().expect("synced");
                        let name = tested.path(&format!("fast/new{number}-{}", round % 512));
                        fs::write(&name, b"x").expect("a file can be made");
                        fs::remove_file(&name).expect("it can be removed");
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let done = u32::try_from(done.load(Ordering::Relaxed)).expect("not that many");
    f64::from(done) / began.elapsed().as_secs_f64()
}

fn hung_writer(tested: &Tested, number: usize, stop: &AtomicBool, failed: &AtomicU64) {
    let path = tested.path(&format!("slow/hung{number}"));
    while !stop.load(Ordering::Relaxed) {
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let written = file.and_then(|file| file.write_all_at(&[1; 4096], 0).and_then(|()| file.sync_all()));
        if written.is_err() {
            failed.fetch_add(1, Ordering::Relaxed);
        }
        // Not so often that its processor time decides the measurement.
        thread::sleep(Duration::from_millis(250));
    }
}

#[test]
fn operations_on_other_tiers_keep_their_throughput_while_a_tier_hangs() {
    let _turn = mounted::one_at_a_time();
    let Some(tested) = start(FileSystemKind::Ext4) else { return };
    for number in 0..HUNG_WRITERS {
        tested.synced_file(&format!("slow/hung{number}"), &[0; 4096]);
    }
    let length = Duration::from_secs(if is_heavy() { 10 } else { 4 });
    throughput(&tested, length / 2);
    let before = throughput(&tested, length);
    let (stop, failed) = (AtomicBool::new(false), AtomicU64::new(0));
    let frozen = Frozen::new(&tested.slow);
    let during = thread::scope(|scope| {
        for number in 0..HUNG_WRITERS {
            let (tested, stop, failed) = (&tested, &stop, &failed);
            scope.spawn(move || hung_writer(tested, number, stop, failed));
        }
        thread::sleep(Duration::from_millis(200));
        let during = throughput(&tested, length);
        tested.wait_for_state("not answering", Duration::from_secs(120));
        stop.store(true, Ordering::Relaxed);
        during
    });
    assert!(failed.load(Ordering::Relaxed) > 0, "whoever needs the tier is told in the end");
    drop(frozen);
    tested.wait_for_state("online", Duration::from_secs(120));
    let after = throughput(&tested, length);
    let ratio = during / f64::midpoint(before, after);
    println!("fast tier: {before:.0}/s before, {during:.0}/s while the other hangs, {after:.0}/s after: {ratio:.2}");
    // Operations that waited for the other tier would be a hundredth. Other programs on the machine may take more than half.
    let least = if is_heavy() { 0.9 } else { 0.1 };
    assert!(ratio >= least, "{before:.0}/s, {during:.0}/s, {after:.0}/s: {ratio:.2} is less than {least}");
}

#[test]
fn a_tier_that_hangs_is_named_and_reports_answer_at_once() {
    let _turn = mounted::one_at_a_time();
    let Some(mut tested) = start(FileSystemKind::Xfs) else { return };
    let content = Random::new(7).bytes(1 << 20);
    let file = tested.synced_file("slow/f", &content);
    let frozen = Frozen::new(&tested.slow);
    thread::scope(|scope| {
        // Where the kernel collects writes, only the sync meets the tier.
        let stuck = scope.spawn(|| file.write_all_at(b"changed", 0).and_then(|()| file.sync_data()));
        let began = Instant::now();
        for arguments in [
            vec!["status", "tested"],
            vec!["tier", "list", "tested"],
            vec!["where", "--tier", "slow", "tested"],
            vec!["top", "--once", "tested"],
        ] {
            let finished = tested.volume.polymux(arguments.iter().copied());
            assert!(finished.is_success(), "{arguments:?}: {}", finished.text());
        }
        assert!(began.elapsed() < Duration::from_secs(60), "they took {:?}", began.elapsed());
        tested.wait_for_state("not answering", Duration::from_secs(120));
        assert!(tested.slow_state().1.contains("does not answer writes"), "{:?}", tested.slow_state());
        let list = tested.volume.polymux(["tier", "list", "tested"]).stdout;
        assert!(list.contains("not answering") && list.contains("does not answer writes"), "{list}");
        let explained = tested.volume.polymux(["explain", text(&tested.path("slow/f"))]).stdout;
        assert!(explained.contains("`slow` takes no new data"), "{explained}");
        let depends = tested.volume.polymux(["where", "--json", "--tier", "slow", "tested"]).stdout;
        let depends: serde_json::Value = serde_json::from_str(&depends).expect("JSON");
        assert_eq!((&depends["files"], &depends["listed"][0]["path"]), (&1.into(), &"slow/f".into()));
        assert_eq!(stuck.join().expect("no panic").expect_err("it is told").raw_os_error(), Some(5));
        // New data goes elsewhere, and data on the tier can still be read.
        fs::write(tested.path("new"), &content[..5000]).expect("written");
        assert!(tested.volume.bytes_per_tier(&tested.path("new")).contains_key("fast"));
        let mut there = vec![0; 4096];
        file.read_exact_at(&mut there, 500_000).expect("reads go on");
        assert_eq!(there, content[500_000..504_096]);
    });
    drop(frozen);
    tested.wait_for_state("online", Duration::from_secs(120));
    file.write_all_at(&content, 0).expect("it works again by itself");
    file.sync_all().expect("synced");
    drop(file);
    tested.volume.unmount();
    tested.volume.mount();
    assert!(fs::read(tested.path("slow/f")).expect("read") == content);
    tested.volume.unmount();
}

#[test]
fn a_tier_that_hangs_at_the_mount_counts_as_missing_and_is_taken_up_when_it_answers() {
    let _turn = mounted::one_at_a_time();
    let Some(mut tested) = start(FileSystemKind::Ext4) else { return };
    let content = Random::new(8).bytes(300_000);
    tested.synced_file("slow/there", &content);
    tested.synced_file("fast/there", &content);
    tested.volume.edit_config("hang_after = 2", "hang_after = 1");
    tested.volume.unmount();
    let frozen = Frozen::new(&tested.slow);
    let began = Instant::now();
    let refused = tested.volume.polymux(["mount", "tested", text(tested.volume.path())]);
    assert!(!refused.is_success() && refused.stderr.contains("`slow`"), "{}", refused.text());
    assert!(refused.stderr.contains("does not answer"), "{}", refused.text());
    assert!(began.elapsed() < Duration::from_secs(120), "it took {:?}", began.elapsed());
    tested.volume.mount_with(&["--degraded"]);
    assert!(fs::read(tested.path("fast/there")).expect("read") == content);
    assert_eq!(fs::read(tested.path("slow/there")).expect_err("not there").raw_os_error(), Some(5));
    assert!(tested.slow_state().1.contains("does not answer"), "{:?}", tested.slow_state());
    drop(frozen);
    tested.wait_for_state("online", Duration::from_secs(120));
    assert!(fs::read(tested.path("slow/there")).expect("read") == content);
    tested.volume.unmount();
}

#[test]
fn an_unmount_while_a_tier_hangs_ends_names_it_and_loses_nothing_synced() {
    let _turn = mounted::one_at_a_time();
    let Some(mut tested) = start(FileSystemKind::Ext4) else { return };
    let content = Random::new(9).bytes(300_000);
    let slow = tested.synced_file("slow/synced", &content);
    tested.synced_file("fast/synced", &content);
    slow.write_all_at(&[7; 4096], 300_000).expect("appended, not synced");
    drop(slow);
    fs::write(tested.path("fast/written"), &content).expect("written, not synced");
    let frozen = Frozen::new(&tested.slow);
    let began = Instant::now();
    let finished = tested.volume.unmount_uncleanly();
    let took = began.elapsed();
    println!("umount took {took:?}: {}", finished.text());
    assert!(took < Duration::from_secs(180), "it took {took:?}");
    assert!(!finished.is_success() && finished.stderr.contains("`slow`"), "{}", finished.text());
    drop(frozen);
    tested.volume.wait_for_unclean_end();
    tested.volume.mount();
    for name in ["slow/synced", "fast/synced", "fast/written"] {
        let found = fs::read(tested.path(name)).expect("read");
        assert!(found[..content.len()] == content, "{name}");
    }
    tested.volume.unmount();
    let checked = tested.volume.polymux(["fsck", "-n", "tested"]);
    assert!(checked.is_success(), "{}", checked.text());
}

#[test]
fn a_tier_that_turned_read_only_is_taken_out_with_its_reason_and_still_read() {
    let _turn = mounted::one_at_a_time();
    let Some(tested) = start(FileSystemKind::Ext4) else { return };
    let content = Random::new(11).bytes(100_000);
    let file = tested.synced_file("slow/f", &content);
    drop(file);
    // As ext4 does by itself after an error of its device.
    succeed("mount", ["-o", "remount,abort", text(tested.slow.path())]);
    let file = File::options().write(true).open(tested.path("slow/f")).expect("opened");
    let failed = file.write_all_at(b"x", 0).and_then(|()| file.sync_all());
    assert!(failed.is_err(), "nothing can be written there");
    tested.wait_for_state("failing", Duration::from_secs(10));
    assert!(tested.slow_state().1.contains("new data goes to other tiers"), "{:?}", tested.slow_state());
    assert!(fs::read(tested.path("slow/f")).expect("read")[1..] == content[1..]);
    fs::write(tested.path("new"), &content).expect("new data goes elsewhere");
    assert!(tested.volume.bytes_per_tier(&tested.path("new")).contains_key("fast"));
}

#[test]
fn a_tier_whose_device_died_gives_errors_and_its_names_stay() {
    let _turn = mounted::one_at_a_time();
    let Some(tested) = start(FileSystemKind::Xfs) else { return };
    if !have_program("xfs_io") {
        return skip("xfs_io is not installed");
    }
    let content = Random::new(13).bytes(100_000);
    drop(tested.synced_file("slow/f", &content));
    drop(tested.synced_file("fast/g", &content));
    succeed("xfs_io", ["-x", "-c", "shutdown", text(tested.slow.path())]);
    let file = File::options().read(true).write(true).open(tested.path("slow/f"));
    let failed = file.and_then(|file| file.write_all_at(b"x", 200_000).and_then(|()| file.sync_all()));
    assert_eq!(failed.expect_err("it is dead").raw_os_error(), Some(5));
    let names: Vec<_> =
        fs::read_dir(tested.path("slow")).expect("listed").map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["f"]);
    assert!(fs::read(tested.path("fast/g")).expect("read") == content);
    fs::write(tested.path("new"), &content).expect("new data goes elsewhere");
    tested.wait_for_state("failing", Duration::from_secs(10));
}

#[test]
fn a_tier_that_is_mounted_later_is_taken_up_by_the_mounted_volume() {
    let _turn = mounted::one_at_a_time();
    let Some(mut tested) = start(FileSystemKind::Ext4) else { return };
    let content = Random::new(15).bytes(300_000);
    drop(tested.synced_file("slow/f", &content));
    drop(tested.synced_file("fast/g", &content));
    tested.volume.unmount();
    tested.slow.unmount();
    let refused = tested.volume.try_mount(&[]).expect_err("a tier is missing");
    assert!(refused.contains("tier `slow` is missing"), "{refused}");
    tested.volume.mount_with(&["--degraded"]);
    let names: Vec<_> =
        fs::read_dir(tested.path("slow")).expect("listed").map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["f"]);
    assert_eq!(fs::read(tested.path("slow/f")).expect_err("it is not there").raw_os_error(), Some(5));
    assert!(fs::read(tested.path("fast/g")).expect("read") == content);
    let depends = tested.volume.polymux(["where", "--tier", "slow", "tested"]);
    assert!(depends.stdout.contains("missing") && depends.stdout.contains("/slow/f"), "{}", depends.text());
    tested.slow.mount();
    tested.wait_for_state("online", Duration::from_secs(30));
    assert!(fs::read(tested.path("slow/f")).expect("read") == content);
    let file = tested.synced_file("slow/f", &content[100_000..]);
    drop(file);
    tested.volume.unmount();
    tested.volume.mount();
    assert!(fs::read(tested.path("slow/f")).expect("read")[..200_000] == content[100_000..]);
    tested.volume.unmount();
    let checked = tested.volume.polymux(["fsck", "-n", "tested"]);
    assert!(checked.is_success(), "{}", checked.text());
}

#[test]
fn a_mount_waits_for_a_tier_that_is_late() {
    let _turn = mounted::one_at_a_time();
    let Some(mut tested) = start(FileSystemKind::Ext4) else { return };
    drop(tested.synced_file("slow/f", &[1; 50_000]));
    tested.volume.unmount();
    tested.volume.edit_config("hang_after = 2\n", "hang_after = 2\ntier_wait = 30\n");
    tested.slow.unmount();
    let began = Instant::now();
    let (slow, volume) = (&tested.slow, &mut tested.volume);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            slow.mount();
        });
        volume.mount();
    });
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert!(fs::read(tested.path("slow/f")).expect("read") == [1; 50_000]);
    tested.volume.unmount();
}

#[test]
fn a_tier_restored_from_an_older_copy_is_not_taken_up() {
    let _turn = mounted::one_at_a_time();
    let Some(mut tested) = start(FileSystemKind::Ext4) else { return };
    drop(tested.synced_file("slow/f", &[1; 50_000]));
    tested.volume.unmount();
    let tier = tested.slow.path().join("tier");
    let copy = tested.slow.path().join("copy");
    succeed("cp", ["-a", text(&tier), text(&copy)]);
    tested.volume.mount();
    drop(tested.synced_file("slow/f", &[2; 50_000]));
    tested.volume.unmount();
    let aside = tested.slow.path().join("aside");
    swap(&tier, &aside, &copy);
    let refused = tested.volume.try_mount(&[]).expect_err("it is an older copy");
    assert!(refused.contains("stale"), "{refused}");
    // Also not when it appears below a mounted volume.
    fs::rename(&tier, &copy).expect("renamed");
    tested.volume.mount_with(&["--degraded"]);
    fs::rename(&copy, &tier).expect("renamed");
    thread::sleep(Duration::from_secs(6));
    assert_eq!(tested.slow_state().0, "missing");
    assert!(tested.slow_state().1.contains("stale"), "{:?}", tested.slow_state());
    assert_eq!(fs::read(tested.path("slow/f")).expect_err("never old data").raw_os_error(), Some(5));
    swap(&tier, &copy, &aside);
    tested.wait_for_state("online", Duration::from_secs(30));
    assert!(fs::read(tested.path("slow/f")).expect("read") == [2; 50_000]);
    tested.volume.unmount();
}

/// Puts a directory aside and another one in its place.
fn swap(place: &Path, aside: &Path, other: &Path) {
    fs::rename(place, aside).expect("renamed");
    fs::rename(other, place).expect("renamed");
}
