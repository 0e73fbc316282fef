//! Passthrough files: their cost, how they are reported, and that they outlive the daemon safely.

mod mounted;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mounted::command::run;
use mounted::environment::skip_where_writes_are_collected;
use mounted::native::text;
use mounted::passed_through::overwrite_in_place;
use mounted::volume::Ground;
use mounted::{
    Plan, Random, TestVolume, have_program, is_root, skip, skip_where_io_is_named, skip_where_policy_is_named, succeed,
};

const MIB: usize = 1 << 20;

fn told(volume: &TestVolume, arguments: &[&str]) -> serde_json::Value {
    let finished = volume.polymux(arguments.iter().copied());
    assert!(finished.is_success(), "{}", finished.text());
    let told: serde_json::Value = serde_json::from_str(&finished.stdout).expect("it prints JSON");
    if told.is_array() { told[0].clone() } else { told }
}

fn passthrough(volume: &TestVolume) -> String {
    told(volume, &["status", "--json", &volume.name])["passthrough"].as_str().expect("words").to_owned()
}

fn messages(volume: &TestVolume) -> BTreeMap<String, u64> {
    serde_json::from_value(told(volume, &["status", "--json", &volume.name])["messages"].clone()).expect("numbers")
}

/// A volume whose files the kernel uses itself, or `None` after saying why that cannot be here.
fn start(options: &str) -> Option<TestVolume> {
    if skip_where_io_is_named() {
        return None;
    }
    let volume = TestVolume::start_with_options(&Plan::anywhere().with_reserve(), options)?;
    let found = passthrough(&volume);
    if found.contains("does not offer") || found.contains("CAP_SYS_ADMIN") {
        skip(&format!("passthrough is {found}"));
        return None;
    }
    Some(volume)
}

fn closed_file(volume: &TestVolume, name: &str, content: &[u8]) -> std::path::PathBuf {
    let path = volume.path().join(name);
    let mut file = File::create(&path).expect("made");
    file.write_all(content).and_then(|()| file.sync_all()).expect("written");
    drop(file);
    wait_until_closed(volume, &path);
    // A file that was only overwritten when it was open last is passed through for changes.
    overwrite_in_place(&path);
    wait_until_closed(volume, &path);
    path
}

/// Waits until the volume has heard that a file was closed. A process that another test starts at this moment has every descriptor of this one until
/// it executes its program, and a file is not passed through beside a description that goes through the daemon.
fn wait_until_closed(volume: &TestVolume, path: &Path) {
    wait_until("the file is closed", || volume.io_of(path).contains("when it is opened"));
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}: not within two minutes");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn reads_and_writes_of_a_whole_file_cost_no_message_and_where_says_why() {
    let Some(volume) = start("") else { return };
    assert_eq!(passthrough(&volume), "on, no file is passed through now");
    let mut expected = Random::new(1).bytes(MIB);
    let path = closed_file(&volume, "file", &expected);
    assert_eq!(volume.io_of(&path), "passed through to its object when it is opened");
    let file = open(&path);
    let before = messages(&volume);
    let mut random = Random::new(2);
    for _ in 0..200 {
        let offset = usize::try_from(random.below((MIB - 5000) as u64)).expect("small");
        let bytes = random.bytes(5000);
        file.write_all_at(&bytes, offset as u64).expect("written");
        expected[offset..offset + 5000].copy_from_slice(&bytes);
        let mut found = vec![0; 5000];
        file.read_exact_at(&mut found, offset as u64).expect("read");
        assert!(found == bytes);
    }
    let after = messages(&volume);
    for name in ["read", "write"] {
        assert_eq!(after.get(name), before.get(name), "the daemon is not asked to {name}");
    }
    assert_eq!(volume.io_of(&path), "passed through to its object, also for changes");
    assert_eq!(passthrough(&volume), "on, 1 open file is passed through now");
    assert_eq!(file.metadata().expect("there").len(), MIB as u64);
    file.write_all_at(b"longer", MIB as u64).expect("written");
    assert_eq!(fs::metadata(&path).expect("there").len(), MIB as u64 + 6, "seen at once by whoever asks by name");
    expected.extend_from_slice(b"longer");
    file.sync_all().expect("synced");
    drop(file);
    assert!(fs::read(&path).expect("read") == expected);
    let new = File::create(volume.path().join("new")).expect("made");
    let said = volume.io_of(&volume.path().join("new"));
    assert!(said.starts_with("through the daemon: it may grow beyond its tier"), "{said}");
    drop(new);
}

#[test]
fn a_rule_keeps_files_with_the_daemon_so_that_they_can_move_while_they_are_open() {
    if skip_where_policy_is_named() {
        return;
    }
    let options = "passthrough = \"auto\"\n[[rule]]\npath = \"*.db\"\npassthrough = \"off\"\n\
                   [[rule]]\npath = \"*.log\"\npassthrough = \"read\"";
    let Some(volume) = start(options) else { return };
    let content = Random::new(3).bytes(MIB);
    let [free, ruled, read] = ["a.bin", "a.db", "a.log"].map(|name| closed_file(&volume, name, &content));
    let held = [&free, &ruled, &read].map(|path| open(path));
    assert_eq!(volume.io_of(&free), "passed through to its object, also for changes");
    assert!(volume.io_of(&ruled).starts_with("through the daemon: passthrough is off for it"));
    assert_eq!(volume.io_of(&read), "through the daemon: passthrough is for reading only");
    let finished = volume.polymux(["migrate", text(&ruled), "--to", "slow", "--wait"]);
    assert!(finished.is_success(), "it moves while it is open: {}", finished.text());
    let asked = volume.polymux(["migrate", text(&free), "--to", "slow"]);
    assert!(asked.is_success(), "{}", asked.text());
    wait_until("the other one waits to be closed, and that is said", || {
        volume.polymux(["status", &volume.name]).stdout.contains("passed through")
            && told(&volume, &["status", "--json", &volume.name])["moves"]["parked"] == 1
    });
    drop(held);
    wait_until("it moves when it is closed", || {
        volume.bytes_per_tier(&free).get("fast").is_none_or(|bytes| *bytes < 100_000)
    });
    let reader = File::open(&read).expect("opened");
    assert_eq!(volume.io_of(&read), "passed through to its object, for reading");
    drop(reader);
    assert!(fs::read(&free).expect("read") == content && fs::read(&ruled).expect("read") == content);
}

#[test]
fn a_file_that_is_written_anew_may_outgrow_its_tier() {
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("100 MiB")) else { return };
    let path = closed_file(&volume, "file", &Random::new(5).bytes(MIB));
    let content = Random::new(6).bytes(150 * MIB);
    fs::write(&path, &content).expect("there is room elsewhere");
    volume.assert_is_split(&path);
    assert!(fs::read(&path).expect("read") == content);
}

#[test]
fn a_file_that_is_open_over_the_death_of_the_daemon_stays_where_it_is_and_is_seen() {
    let Some(mut volume) = start("") else { return };
    let mut expected = Random::new(4).bytes(MIB);
    let path = closed_file(&volume, "held", &expected);
    let other = closed_file(&volume, "other", &expected);
    let file = open(&path);
    file.write_all_at(b"before", 0).expect("written");
    volume.kill_daemon();
    file.write_all_at(b"after!", 100).expect("the kernel goes on without the daemon");
    volume.mount();
    file.write_all_at(b"beside", 200).expect("written");
    expected[..6].copy_from_slice(b"before");
    expected[100..106].copy_from_slice(b"after!");
    expected[200..206].copy_from_slice(b"beside");
    assert!(fs::read(&path).expect("read") == expected, "by the new mount");
    assert!(volume.io_of(&path).starts_with("held by a program"), "{}", volume.io_of(&path));
    for moved in [&path, &other] {
        let asked = volume.polymux(["migrate", text(moved), "--to", "slow"]);
        assert!(asked.is_success(), "{}", asked.text());
    }
    wait_until("what nobody holds moves", || {
        volume.bytes_per_tier(&other).get("fast").is_none_or(|bytes| *bytes < 100_000)
    });
    file.write_all_at(b"where?", 300).expect("written");
    expected[300..306].copy_from_slice(b"where?");
    assert!(fs::read(&path).expect("read") == expected, "it did not move");
    drop(file);
    wait_until("it moves when it is closed", || {
        volume.bytes_per_tier(&path).get("fast").is_none_or(|bytes| *bytes < 100_000)
    });
    assert!(fs::read(&path).expect("read") == expected);
}

#[test]
fn what_is_open_since_before_the_daemon_died_gets_no_set_id_bits() {
    let Some(mut volume) = start("") else { return };
    let path = closed_file(&volume, "held", &Random::new(5).bytes(MIB));
    let file = open(&path);
    volume.kill_daemon();
    file.write_all_at(b"after!", 0).expect("the kernel goes on without the daemon");
    volume.mount();
    let set = |mode| fs::set_permissions(&path, PermissionsExt::from_mode(mode)).map_err(|error| error.raw_os_error());
    assert_eq!(set(0o4755), Err(Some(libc::EBUSY)), "nobody would hear of a write that has to take the bits away");
    assert_eq!(set(0o755), Ok(()));
    drop(file);
    wait_until("it may have them when it is closed", || set(0o4755).is_ok());
}

/// Gives `/dev/fuse` the mode that distributions give it, for as long as this lives.
struct DeviceForAll(fs::Permissions);

impl DeviceForAll {
    const PATH: &str = "/dev/fuse";

    fn new() -> Self {
        let before = fs::metadata(Self::PATH).expect("there").permissions();
        fs::set_permissions(Self::PATH, PermissionsExt::from_mode(0o666)).expect("root may do that");
        Self(before)
    }
}

impl Drop for DeviceForAll {
    fn drop(&mut self) {
        fs::set_permissions(Self::PATH, self.0.clone()).expect("root may do that");
    }
}

#[test]
fn without_cap_sys_admin_everything_works_and_status_says_what_does_not() {
    if skip_where_writes_are_collected("then nobody is asked for passthrough") {
        return;
    }
    if !is_root() {
        return skip("a daemon of another user is started by root only");
    }
    let Some(mut volume) = TestVolume::create(&Plan { ground: Ground::Directories, ..Plan::anywhere() }) else {
        return;
    };
    let _turn = mounted::one_at_a_time();
    let _device = DeviceForAll::new();
    volume.mount();
    succeed("chown", ["65534:65534", text(volume.path())]);
    volume.unmount();
    volume.give_to(65_534);
    volume.mount();
    // The first open asks the kernel, which refuses.
    let script = "head -c 200000 /dev/urandom > f && sync f && cat f f > g && head -c 200000 g | cmp - f && \
                  exec 3<>f && printf x >&3 && head -c 1 f";
    let finished = volume.as_owner(script);
    assert!(finished.stdout.ends_with('x'), "{}", finished.text());
    assert_eq!(passthrough(&volume), "off: the kernel gives it to daemons with CAP_SYS_ADMIN only (mount as root)");
    volume.unmount();
}

/// The only object of a tier that is larger than a MiB.
fn large_object(volume: &TestVolume, tier: &str) -> Option<PathBuf> {
    let objects = volume.tier(tier).join(".polymux/objects");
    let buckets = fs::read_dir(objects).expect("a tier has objects").map(|bucket| bucket.expect("read").path());
    let files =
        buckets.flat_map(|bucket| fs::read_dir(bucket).expect("a bucket").map(|file| file.expect("read").path()));
    files.into_iter().find(|file| fs::metadata(file).is_ok_and(|found| found.len() > MIB as u64))
}

/// Bytes of a file in the page cache.
fn cached_bytes(path: &Path) -> u64 {
    let told = run(Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES", text(path)]));
    told.stdout.trim().parse().unwrap_or_else(|_| panic!("fincore says a number: {}", told.text()))
}

#[test]
fn what_the_mount_keeps_in_memory_its_tier_does_not() {
    if skip_where_io_is_named() || !have_program("fincore") {
        return skip("needs fincore, and the choice of the way");
    }
    let plan = Plan::anywhere();
    let Some(volume) = TestVolume::start_with_options(&plan, "movers = 0\npassthrough = \"off\"") else { return };
    let tiers = told(&volume, &["status", "--json", &volume.name])["tiers"].clone();
    if tiers[0]["capabilities"]["uncached_read"] != "true" {
        return skip("no file system keeps what was read out of memory before Linux 6.14");
    }
    let content = Random::new(3).bytes(16 * MIB);
    let path = closed_file(&volume, "file", &content);
    let object = large_object(&volume, "fast").expect("it is there");
    // As after a while: neither has it.
    for path in [&path, &object] {
        rustix::fs::fadvise(File::open(path).expect("opened"), 0, None, rustix::fs::Advice::DontNeed).expect("advised");
    }
    assert!(cached_bytes(&object) < MIB as u64);
    assert!(fs::read(&path).expect("read") == content);
    assert!(cached_bytes(&path) >= 15 * MIB as u64, "the mount keeps them");
    let kept = cached_bytes(&object);
    assert!(kept < 2 * MIB as u64, "{kept} bytes are in memory twice");
    assert!(fs::read(&path).expect("read") == content);
}
