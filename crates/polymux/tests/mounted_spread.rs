//! Files that are spread over tiers, through a plain mount: written by ordinary programs, killed in the middle, and moved.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mounted::environment::{collects_writes, skip_where_writes_are_collected};
use mounted::native::text;
use mounted::{Plan, Random, TestVolume};

const MIB: u64 = 1 << 20;

/// A file that ends a little behind a range.
const MIDDLING: u64 = 5 * MIB + 4096;

fn start(policy: &str) -> Option<TestVolume> {
    let mut volume = TestVolume::create(&Plan::anywhere())?;
    volume.set_policy(policy);
    volume.mount();
    Some(volume)
}

/// Bytes that differ from block to block and from file to file.
fn content(seed: u64, length: u64) -> Vec<u8> {
    Random::new(seed).bytes(usize::try_from(length).expect("small"))
}

/// How long files are written anew until one reached both tiers. A tier that other programs keep busy for the moment gets no share
/// of a file of the sizes used here, and the other tests of this file are such programs.
const TIME_TO_SPREAD: Duration = Duration::from_secs(60);

/// Calls `attempt`, which writes and says whether a file reached both tiers, until it did.
fn until_spread(volume: &TestVolume, file: &Path, mut attempt: impl FnMut() -> bool) {
    let until = Instant::now() + TIME_TO_SPREAD;
    while !attempt() {
        let explained = volume.polymux(["explain", text(file)]);
        assert!(Instant::now() < until, "no file is on both tiers after {TIME_TO_SPREAD:?}: {}", explained.text());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn one_writer_reaches_both_tiers_and_reads_what_it_wrote_after_mounting_again() {
    let Some(mut volume) = start("spread") else { return };
    let path = volume.path().join("large");
    let content = content(1, 96 * MIB);
    until_spread(&volume, &path, || {
        let _ = fs::remove_file(&path);
        fs::write(&path, &content).expect("written");
        File::open(&path).expect("it is there").sync_all().expect("synced");
        volume.is_split(&path)
    });
    let small = volume.path().join("small");
    fs::write(&small, &content[..256 << 10]).expect("written");
    let used = volume.bytes_per_tier(&small).values().filter(|bytes| **bytes > 0).count();
    assert_eq!(used, 1, "a small file stays on one tier");
    let explained = volume.polymux(["explain", text(&path)]);
    assert!(explained.text().contains("Its next 2 MiB would go to"), "{}", explained.text());
    volume.unmount();
    volume.mount();
    assert!(fs::read(&path).expect("read") == content);
}

/// Asserts that the tiers allocated little more space for a file than it has bytes: XFS allocates ahead, and keeps it where gaps follow.
fn assert_takes_no_room_in_vain(volume: &TestVolume, file: &Path, length: u64) {
    if skip_where_writes_are_collected("they come out of order, and XFS takes room for what it expects in between") {
        return;
    }
    let most = length + length / 50 + MIB / 2;
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let bytes = volume.bytes_per_tier(file);
        let allocated: u64 = bytes.values().sum();
        if allocated <= most {
            return;
        }
        // The space left behind by a move is freed when its record is durable.
        assert!(Instant::now() < until, "{allocated} bytes for {length}: {bytes:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Writes `content` to a new file in calls of `request` bytes, and syncs it.
fn write_in_requests(path: &Path, request: usize, content: &[u8]) {
    // Nothing of an earlier file with this name counts as its space.
    let _ = fs::remove_file(path);
    let mut written = File::create(path).expect("made");
    content.chunks(request).for_each(|chunk| written.write_all(chunk).expect("written"));
    written.sync_all().expect("synced");
}

#[test]
fn a_spread_file_takes_hardly_more_room_than_it_has_bytes() {
    let Some(mut volume) = TestVolume::create(&Plan::anywhere()) else { return };
    volume.set_policy("spread");
    // With both kinds of file systems as the home of files.
    let first_tier = "[[tier]]\nname = \"fast\"";
    let rule = "[[rule]]\npath = \"slow-first/**\"\ntiers = [\"slow\", \"fast\"]\n";
    volume.edit_config(first_tier, &format!("{rule}\n{first_tier}"));
    volume.mount();
    for directory in ["slow-first", "fast-first"].map(|name| volume.path().join(name)) {
        fs::create_dir(&directory).expect("made");
        let written_by = |request: usize| directory.join(format!("by-{request}"));
        let by_pages = written_by(4096);
        until_spread(&volume, &by_pages, || {
            // Requests of several sizes. Blocks that XFS preallocates for a file that it has all of are its own to give back, some minutes
            // later or when space runs out.
            let mut split = 0;
            for request in [4096, 100_000, 1 << 20] {
                let path = written_by(request);
                write_in_requests(&path, request, &content(20, 48 * MIB));
                if volume.is_split(&path) {
                    split += 1;
                    assert_takes_no_room_in_vain(&volume, &path, 48 * MIB);
                }
            }
            split > 0
        });
        (0..20).for_each(|file| fs::write(directory.join(file.to_string()), content(file, MIDDLING)).expect("written"));
    }
    volume.unmount();
    volume.mount();
    for (directory, file) in
        ["slow-first", "fast-first"].into_iter().flat_map(|name| (0..20).map(move |file| (name, file)))
    {
        let path = volume.path().join(directory).join(file.to_string());
        assert_takes_no_room_in_vain(&volume, &path, MIDDLING);
        assert!(fs::read(&path).expect("read") == content(file, MIDDLING));
    }
}

#[test]
fn ranges_that_are_moved_one_by_one_take_hardly_more_room_than_they_have_bytes() {
    let Some(volume) = start("static") else { return };
    let path = volume.path().join("file");
    let content = content(22, 64 * MIB);
    fs::write(&path, &content).expect("written");
    for range in (0..32).step_by(4) {
        let range = format!("{}MiB-{}MiB", 2 * range, 2 * range + 4);
        let moved = volume.polymux(["migrate", "--wait", "--to", "slow", "--range", &range, text(&path)]);
        assert!(moved.is_success(), "{}", moved.text());
    }
    volume.assert_is_split(&path);
    assert_takes_no_room_in_vain(&volume, &path, 64 * MIB);
    assert!(fs::read(&path).expect("read") == content);
}

#[test]
fn what_was_synced_survives_a_killed_daemon_and_what_was_not_is_a_prefix() {
    let Some(mut volume) = start("spread") else { return };
    let content = content(2, 80 * MIB);
    for (round, synced) in (0_u32..).zip([2 * MIB + 777, 33 * MIB, 64 * MIB]) {
        let path = volume.path().join(format!("file-{round}"));
        let mut file = File::create(&path).expect("made");
        let synced = usize::try_from(synced).expect("small");
        file.write_all(&content[..synced]).expect("written");
        file.sync_all().expect("synced");
        file.write_all(&content[synced..]).expect("written");
        volume.kill_daemon();
        drop(file);
        volume.mount();
        let left = fs::read(&path).expect("read");
        assert!(left.len() >= synced, "{} bytes are left of {synced} that were synced", left.len());
        // Data that the kernel had collected is lost with the daemon, in no order.
        assert!(content.starts_with(&left) || collects_writes(), "what is left is no prefix");
        assert!(left[..synced] == content[..synced], "what was synced is there");
    }
    volume.unmount();
    let checked = volume.polymux(["fsck", "-n", &volume.name]);
    assert!(checked.is_success(), "{}", checked.text());
}

#[test]
fn parts_of_a_file_written_by_threads_at_once_are_what_they_wrote_while_it_is_moved() {
    let Some(volume) = start("spread") else { return };
    mounted::shared_file::write_while_it_is_moved(&volume);
}

#[test]
fn a_policy_that_is_only_for_comparison_has_one_that_spreads_in_its_place_and_the_volume_says_so() {
    let Some(mut volume) = start("poly-climb") else { return };
    let says = "spread is used instead of the policy poly-climb";
    assert_eq!(volume.log().matches(says).count(), 1, "{}", volume.log());
    let path = volume.path().join("large");
    let content = content(6, 96 * MIB);
    until_spread(&volume, &path, || {
        let _ = fs::remove_file(&path);
        fs::write(&path, &content).expect("written");
        volume.is_split(&path)
    });
    let listed = volume.polymux(["policy", "list", &volume.name]);
    assert!(listed.stderr.contains(says) && !listed.stdout.contains("poly-climb"), "{}", listed.text());
    let planned = volume.polymux(["plan", &volume.name, "--policy", "promote-always"]);
    let says = "hot-cold is used instead of the policy promote-always";
    assert!(planned.is_success() && planned.stderr.contains(says), "{}", planned.text());
    let set = volume.polymux(["policy", "set", &volume.name, "promote-always"]);
    assert!(set.is_success() && set.stderr.contains(says), "{}", set.text());
    let config = fs::read_to_string(volume.config_path()).expect("the configuration can be read");
    assert!(config.contains("policy = \"hot-cold\""), "{config}");
    volume.unmount();
    volume.mount();
    assert!(fs::read(&path).expect("read") == content);
}

/// `cp`, `dd` with gaps, truncation and appends, as on any file.
#[test]
fn ordinary_programs_see_an_ordinary_file() {
    let Some(mut volume) = start("spread") else { return };
    let path = volume.path().join("file");
    let mut expected = content(3, 40 * MIB);
    fs::write(&path, &expected).expect("written");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    file.set_len(21 * MIB + 5).expect("cut");
    expected.truncate(usize::try_from(21 * MIB + 5).expect("small"));
    file.write_all_at(b"far away", 50 * MIB).expect("written");
    expected.resize(usize::try_from(50 * MIB).expect("small"), 0);
    expected.extend_from_slice(b"far away");
    let mut appending = OpenOptions::new().append(true).open(&path).expect("opened");
    let more = content(4, 9 * MIB);
    appending.write_all(&more).expect("appended");
    expected.extend_from_slice(&more);
    assert!(fs::read(&path).expect("read") == expected);
    drop((file, appending));
    let copy = volume.path().join("copy");
    fs::copy(&path, &copy).expect("copied");
    fs::rename(&copy, &path).expect("replaced");
    volume.unmount();
    volume.mount();
    assert!(fs::read(&path).expect("read") == expected);
}

#[test]
fn room_of_all_tiers_can_be_used_and_then_there_is_no_space() {
    let Some(mut volume) = TestVolume::create(&Plan::anywhere().with_fast_capacity("64 MiB")) else { return };
    volume.set_policy("spread");
    volume.edit_config("name = \"slow\"", "name = \"slow\"\ncapacity = \"96 MiB\"");
    volume.mount();
    let path = volume.path().join("file");
    let mut file = File::create(&path).expect("made");
    let chunk = content(5, MIB);
    let begun = Instant::now();
    let mut written = 0_u64;
    let error = loop {
        match file.write(&chunk) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "it never ends: {written} bytes");
    };
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{error}");
    // Each tier keeps a reserve.
    assert!(written >= 100 * MIB, "{written} bytes of 160 MiB");
    file.sync_all().expect("synced");
    let left = fs::read(&path).expect("read");
    assert_eq!(left.len() as u64, written);
    assert!(left.chunks(chunk.len()).all(|part| chunk.starts_with(part)));
}
