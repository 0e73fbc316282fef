//! A mount on which the kernel collects writes (`io = "write-back"`, docs/design/0036): results reported to a program hold, times are those of
//! its calls, and a full volume is reported in time.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use mounted::command::{run, shell};
use mounted::environment::have_loop_devices;
use mounted::native::{available, text};
use mounted::users::as_user;
use mounted::volume::Ground;
use mounted::{Plan, Random, TestVolume, drop_caches, is_root, skip, skip_where_io_is_named};

const MIB: u64 = 1 << 20;
/// Not root.
const ORDINARY_USER: u32 = 65_534;
/// Space that a write finds when it is admitted, at most.
const MARGIN: u64 = 8 * MIB;

fn start_on(plan: &Plan) -> Option<TestVolume> {
    if skip_where_io_is_named() {
        return None;
    }
    let mut volume = TestVolume::create(plan)?;
    mount(&mut volume);
    Some(volume)
}

fn start() -> Option<TestVolume> {
    start_on(&Plan::anywhere())
}

fn mount(volume: &mut TestVolume) {
    volume.mount_with(&["-o", "io=write-back"]);
}

fn mount_again(volume: &mut TestVolume) {
    volume.unmount();
    mount(volume);
}

fn times(path: &Path) -> [(i64, i64); 2] {
    let found = path.metadata().expect("it is there");
    [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())]
}

#[test]
fn small_writes_are_sent_together_and_are_there_after_the_next_mount() {
    let Some(mut volume) = start() else { return };
    let written = |volume: &TestVolume| volume.messages().get("write").copied().unwrap_or_default();
    let before = written(&volume);
    let mut log = File::options().append(true).create(true).open(volume.path().join("log")).unwrap();
    let mut expected = Vec::new();
    for number in 0..10_000 {
        let line = format!("{number:099}\n");
        log.write_all(line.as_bytes()).unwrap();
        expected.extend(line.into_bytes());
    }
    drop(log);
    let sent = written(&volume) - before;
    assert!(sent < 500, "{sent} messages for 10,000 writes of 100 bytes");
    assert!(fs::read(volume.path().join("log")).unwrap() == expected);
    mount_again(&mut volume);
    assert!(fs::read(volume.path().join("log")).unwrap() == expected);
}

#[test]
fn a_close_is_no_message_and_what_replaced_the_content_of_a_file_is_synced_soon_after_it() {
    let Some(volume) = start() else { return };
    let syncs = |volume: &TestVolume| volume.status()["counters"]["file_syncs"].as_u64().expect("a number");
    let closes = |volume: &TestVolume| volume.messages().get("flush").copied().unwrap_or_default();
    let path = volume.path().join("file");
    fs::write(&path, [1; 100_000]).expect("written");
    let first = closes(&volume);
    assert!(first <= 1, "{first} of them");
    let before = syncs(&volume);
    for number in 0..20 {
        fs::write(volume.path().join(format!("new-{number}")), [3; 100_000]).expect("written");
    }
    assert_eq!(syncs(&volume), before, "a new file is synced when a program asks");
    for round in 0..5 {
        let before = syncs(&volume);
        match round % 2 {
            0 => fs::write(&path, [2; 100_000]).expect("written"),
            _ => {
                let file = File::options().write(true).open(&path).expect("opened");
                file.set_len(0).expect("emptied");
                file.write_all_at(&[4; 100_000], 0).expect("written");
            }
        }
        let limit = Instant::now() + Duration::from_secs(20);
        while syncs(&volume) == before {
            assert!(Instant::now() < limit, "round {round}: it is not synced");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert_eq!(closes(&volume), first);
}

#[test]
fn times_are_those_of_the_write_and_not_of_when_it_was_sent() {
    let Some(mut volume) = start() else { return };
    let path = volume.path().join("file");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[1; 5000], 0).unwrap();
    let written = times(&path);
    std::thread::sleep(Duration::from_millis(50));
    file.sync_data().unwrap();
    assert_eq!(times(&path), written, "a sync changes nothing");
    drop(file);
    drop_caches();
    assert_eq!(times(&path), written, "what the daemon knows is what the kernel said");
    mount_again(&mut volume);
    assert_eq!(times(&path), written);
    shell(volume.path(), "touch -m -d '2001-02-03 04:05:06.123456789 UTC' file");
    drop_caches();
    assert_eq!(times(&path)[0], (981_173_106, 123_456_789));
    let changed = times(&path)[1];
    mount_again(&mut volume);
    assert_eq!(times(&path), [(981_173_106, 123_456_789), changed]);
}

#[test]
fn an_emptied_file_stays_empty_although_it_was_never_closed() {
    let Some(volume) = start() else { return };
    let path = volume.path().join("file");
    fs::write(&path, [7; 100_000]).unwrap();
    let _open = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    drop_caches();
    assert_eq!(fs::read(&path).unwrap(), b"");
}

#[test]
fn a_part_of_a_page_is_written_through_a_description_that_may_not_read() {
    let Some(volume) = start() else { return };
    let path = volume.path().join("file");
    fs::write(&path, [7; 10_000]).unwrap();
    for mode in [false, true] {
        drop_caches();
        let file = OpenOptions::new().write(!mode).append(mode).open(&path).unwrap();
        file.write_at(b"new", 5_000).unwrap();
        file.sync_all().unwrap();
    }
    let content = fs::read(&path).unwrap();
    assert!(content[..5_000] == [7; 5_000] && &content[5_000..5_003] == b"new" && content[5_003..10_000] == [7; 4_997]);
    assert_eq!(&content[10_000..], b"new", "an append goes to the end");
}

#[test]
fn a_file_that_is_open_for_changes_is_copied_with_what_was_not_sent_yet() {
    let Some(volume) = start() else { return };
    let path = volume.path().join("file");
    let file = File::create(&path).unwrap();
    file.set_len(MIB).unwrap();
    file.write_all_at(b"in the middle", MIB / 2).unwrap();
    file.write_all_at(b"beyond", 2 * MIB).unwrap();
    shell(
        volume.path(),
        "cp --sparse=auto file copy && cmp file copy && tar -cSf - file | tar -xOf - > again && cmp file again",
    );
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap_err(), rustix::io::Errno::INVAL);
    drop(file);
    let file = File::open(&path).unwrap();
    // The kernel tells of a close some time after it.
    let find = || rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).ok();
    let first = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        find()
    });
    let first = first.expect("holes are found in a file that nobody changes");
    assert!(first > 0 && first <= MIB / 2, "{first}");
}

/// The promise of DESIGN section 6 for editors that do not sync, of which some keep the new file open.
#[test]
fn what_replaces_a_file_is_there_although_it_was_open_and_the_daemon_dies() {
    let Some(mut volume) = start() else { return };
    let (path, new) = (volume.path().join("file"), volume.path().join("new"));
    let content = Random::new(5).bytes(300_000);
    fs::write(&path, b"old").unwrap();
    let open = File::create(&new).unwrap();
    open.write_all_at(&content, 0).unwrap();
    fs::rename(&new, &path).unwrap();
    volume.kill_daemon();
    drop(open);
    mount(&mut volume);
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn a_write_takes_set_id_bits_at_once() {
    if !is_root() {
        return skip("another user writes");
    }
    let Some(volume) = start() else { return };
    let path = volume.path().join("program");
    fs::write(&path, [1; 5000]).unwrap();
    fs::set_permissions(volume.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    let file = as_user(ORDINARY_USER, || {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        file
    });
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o777);
    drop_caches();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o777);
    drop(file);
}

#[test]
fn an_append_only_file_is_not_collected_for() {
    if !is_root() {
        return skip("only root may make a file append-only");
    }
    let Some(mut volume) = start() else { return };
    let path = volume.path().join("log");
    fs::write(&path, b"one").unwrap();
    shell(volume.path(), "chattr +a log");
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    log.write_all(b"two").unwrap();
    // The kernel lets any process clear the flag of an open file description; the file stays append-only.
    rustix::fs::fcntl_setfl(&log, rustix::fs::OFlags::empty()).unwrap();
    assert_eq!(log.write_at(b"X", 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
    volume.kill_daemon();
    drop(log);
    mount(&mut volume);
    assert_eq!(fs::read(&path).unwrap(), b"onetwo");
    shell(volume.path(), "chattr -a log");
}

#[test]
fn a_file_that_is_collected_for_takes_no_flag_that_its_pages_would_not_obey() {
    if !is_root() {
        return skip("only root may make a file append-only");
    }
    let Some(volume) = start() else { return };
    let path = volume.path().join("log");
    let log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    (&log).write_all(b"one").unwrap();
    for flag in ["+a", "+i"] {
        let refused = run(std::process::Command::new("chattr").arg(flag).arg(&path));
        assert!(!refused.is_success() && refused.text().contains("busy"), "{}", refused.text());
    }
    drop(log);
    shell(volume.path(), "chattr +a log");
    // The owner of an append-only file may say that it changed now, and nothing else.
    shell(volume.path(), "touch log");
    let forged = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        last_modification: rustix::fs::Timespec { tv_sec: 981_173_106, tv_nsec: 0 },
    };
    let set = rustix::fs::utimensat(rustix::fs::CWD, &path, &forged, rustix::fs::AtFlags::empty());
    assert_eq!(set.unwrap_err(), rustix::io::Errno::PERM);
    shell(volume.path(), "chattr -a log");
}

/// Writes pieces from a position on, one after the other, until one is refused; returns the end of what was accepted, and the error.
fn fill(file: &File, mut written: u64, piece: &[u8]) -> (u64, io::Error) {
    loop {
        match file.write_at(piece, written) {
            Ok(count) => written += count as u64,
            Err(error) => return (written, error),
        }
    }
}

/// The kernel collects some tens of MiB before it sends any of them: without care they would be refused when no call can return the error.
#[test]
fn what_a_full_volume_accepted_is_there_and_the_write_that_finds_no_room_says_so() {
    fill_a_volume(0);
}

#[test]
fn what_was_accepted_into_the_hole_of_a_long_file_is_there_when_the_volume_is_full() {
    fill_a_volume(2 << 30);
}

/// Refusals in a row while space is being freed.
const REFUSALS_MAX: u32 = 10;

/// Fills a volume with a file that has this size from the beginning.
fn fill_a_volume(size: u64) {
    if !have_loop_devices() {
        return skip("devices of known size need root and loop devices");
    }
    let plan = Plan { ground: Ground::LoopDevices { fast: 320, slow: 320 }, fast_capacity: None };
    let Some(mut volume) = start_on(&plan) else { return };
    let path = volume.path().join("file");
    let piece = Random::new(9).bytes((1 << 20) - 100);
    let file = OpenOptions::new().create_new(true).write(true).custom_flags(libc::O_CLOEXEC).open(&path).unwrap();
    file.set_len(size).unwrap();
    let (mut written, mut refusals) = (0, 0);
    loop {
        let (end, error) = fill(&file, written, &piece);
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        (written, refusals) = (end, refusals + 1);
        // At once: whatever runs in the background may free some space later.
        let left = available(volume.path());
        if left < MARGIN + 2 * MIB {
            break;
        }
        // A write waits only two seconds for what a slow file system preallocated and is giving back, and for a second after a refusal none
        // waits.
        eprintln!("after {refusals} refusals, {left} bytes are left");
        assert!(refusals < REFUSALS_MAX, "{left} bytes are left, and are refused");
        std::thread::sleep(Duration::from_millis(1500));
    }
    for sync in 0..2 {
        file.sync_all().unwrap_or_else(|error| panic!("sync {sync} after {written} bytes: {error}"));
    }
    assert_eq!(path.metadata().unwrap().len(), written.max(size));
    // Seeks and reads are answered, however full the volume is.
    let looking = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(rustix::fs::seek(&looking, rustix::fs::SeekFrom::End(0)).unwrap(), written.max(size));
    assert_eq!(looking.read_at(&mut [0; 10], written.max(size)).unwrap(), 0);
    drop((file, looking));
    mount_again(&mut volume);
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len() as u64, written.max(size));
    let content = &content[..usize::try_from(written).unwrap()];
    assert!(content.chunks(piece.len()).all(|chunk| *chunk == piece[..chunk.len()]));
    // Space is available again as soon as a file is removed.
    fs::remove_file(&path).unwrap();
    let mut again = File::create(volume.path().join("again")).unwrap();
    wait_for_room(&mut again, &piece);
}

/// Space of a removed file becomes free within seconds: a hundred pieces have room then.
fn wait_for_room(file: &mut File, piece: &[u8]) {
    let (mut pieces, mut refusals) = (0, 0);
    while pieces < 100 {
        match file.write_at(piece, pieces * piece.len() as u64) {
            Ok(count) if count == piece.len() => pieces += 1,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
                refusals += 1;
                assert!(refusals < 100, "there is no room ten seconds after a file was removed");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    file.sync_all().expect("it has room");
}

#[test]
fn status_and_where_say_that_writes_are_collected() {
    let Some(volume) = start() else { return };
    let path = volume.path().join("file");
    fs::write(&path, [1; 100_000]).unwrap();
    let status = volume.polymux(["status", volume.name.as_str()]).stdout;
    assert!(status.contains("the kernel collects writes"), "{status}");
    let shown = volume.polymux(["where", text(&path)]).stdout;
    assert!(shown.contains("the kernel collects writes"), "{shown}");
}
