//! Both ways in which requests come answer alike: the classic one, and `io_uring` where the kernel has it.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use mounted::command::shell;
use mounted::environment::collects_writes;
use mounted::{Plan, Random, TestVolume, rings};
use rustix::fs::{FallocateFlags, fallocate};

fn transport(volume: &TestVolume) -> String {
    volume.status()["transport"].as_str().expect("a name").to_owned()
}

fn names_and_attributes(root: &Path) {
    let directory = root.join("directory");
    fs::create_dir(&directory).unwrap();
    for number in 0..700 {
        fs::write(directory.join(format!("a file with the number {number}")), number.to_string()).unwrap();
    }
    let mut listed: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), 700);
    for name in &listed {
        let length = fs::metadata(directory.join(name)).unwrap().len();
        assert_eq!(length, name.to_string_lossy().rsplit(' ').next().unwrap().len() as u64);
    }
    let longest = directory.join("n".repeat(255));
    symlink("t".repeat(4000), &longest).unwrap();
    assert_eq!(fs::read_link(&longest).unwrap().as_os_str().len(), 4000);
    fs::rename(&longest, root.join("link")).unwrap();
    fs::hard_link(directory.join(&listed[0]), root.join("hard")).unwrap();
    assert_eq!(fs::metadata(root.join("hard")).unwrap().nlink(), 2);
    fs::set_permissions(root.join("hard"), PermissionsExt::from_mode(0o4711)).unwrap();
    assert_eq!(fs::metadata(root.join("hard")).unwrap().permissions().mode() & 0o7777, 0o4711);
    assert_eq!(fs::metadata(root.join("missing")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(fs::read_dir(root).unwrap().count(), 2);
}

fn attributes_of_users(root: &Path) {
    let path = root.join("hard");
    let value = vec![7; 60_000];
    for length in [0, 1, 4000, 60_000] {
        rustix::fs::setxattr(&path, "user.value", &value[..length], rustix::fs::XattrFlags::empty()).unwrap();
        let mut back = vec![0; 65_536];
        let found = rustix::fs::getxattr(&path, "user.value", &mut back[..]).unwrap();
        assert_eq!(back[..found], value[..length]);
    }
    rustix::fs::removexattr(&path, "user.value").unwrap();
}

fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).expect("below a length")
}

fn data(root: &Path, random: &mut Random) {
    let path = root.join("data");
    let mut expected = random.bytes(3 * 1024 * 1024 + 17);
    fs::write(&path, &expected).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    for _ in 0..200 {
        let offset = below(random, expected.len() - 70_000);
        let length = below(random, 70_000);
        let bytes = random.bytes(length);
        file.write_all_at(&bytes, offset as u64).unwrap();
        expected[offset..offset + length].copy_from_slice(&bytes);
    }
    file.sync_all().unwrap();
    let mut back = Vec::new();
    (&file).seek(SeekFrom::Start(0)).unwrap();
    (&file).read_to_end(&mut back).unwrap();
    assert!(back == expected, "what was written is read");
    let mut page = vec![0; 8192];
    let start = page.as_ptr().align_offset(4096);
    direct.read_exact_at(&mut page[start..start + 4096], 1 << 20).unwrap();
    assert_eq!(page[start..start + 4096], expected[1 << 20..(1 << 20) + 4096]);
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    expected.truncate(2 << 20);
    expected[..1 << 20].fill(0);
    assert!(fs::read(&path).unwrap() == expected, "after punching and truncating");
    let reader = File::open(&path).unwrap();
    if !collects_writes() {
        assert_eq!(rustix::fs::seek(&reader, rustix::fs::SeekFrom::Data(0)).unwrap(), 1 << 20);
    }
    rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
}

fn many_at_once(root: &Path) {
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let path = root.join(format!("of thread {thread}"));
                for round in 0..30 {
                    let length = 1 + below(&mut random, 300_000);
                    let bytes = random.bytes(length);
                    let mut file = File::create(&path).unwrap();
                    file.write_all(&bytes).unwrap();
                    if round % 5 == 0 {
                        file.sync_data().unwrap();
                    }
                    drop(file);
                    assert!(fs::read(&path).unwrap() == bytes);
                }
                fs::remove_file(&path).unwrap();
            });
        }
    });
}

/// Time of one small read that no cache answers, in microseconds.
fn small_read_us(root: &Path) -> f64 {
    let path = root.join("small reads");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut page = vec![0; 8192];
    let start = page.as_ptr().align_offset(4096);
    let begun = Instant::now();
    for round in 0..2000 {
        direct.read_exact_at(&mut page[start..start + 4096], round % 256 * 4096).unwrap();
    }
    begun.elapsed().as_secs_f64() * 1e6 / 2000.0
}

fn exercise(volume: &mut TestVolume) {
    let root = volume.path().to_path_buf();
    names_and_attributes(&root);
    attributes_of_users(&root);
    data(&root, &mut Random::new(5));
    many_at_once(&root);
    println!("{}: {:.1} us for a direct read of 4 KiB", transport(volume), small_read_us(&root));
    let sums = shell(&root, "find . -type f | sort | xargs -d '\\n' md5sum");
    volume.unmount();
    volume.mount();
    assert_eq!(shell(&root, "find . -type f | sort | xargs -d '\\n' md5sum"), sums);
}

#[test]
fn the_classic_transport_carries_every_kind_of_operation() {
    let Some(mut volume) = TestVolume::start_with_options(&Plan::anywhere(), "transport = \"classic\"") else { return };
    assert_eq!(transport(&volume), "classic /dev/fuse");
    exercise(&mut volume);
}

#[test]
fn io_uring_carries_every_kind_of_operation() {
    // Not a failure where the kernel is older.
    if let Err(why) = rings::Offered::try_new() {
        return eprintln!("skipped: {why}");
    }
    let options = "transport = \"io-uring\"";
    let Some(mut volume) = TestVolume::create_with_options(&Plan::anywhere(), options) else { return };
    volume.wants_rings = true;
    volume.mount();
    assert_eq!(transport(&volume), "io_uring");
    exercise(&mut volume);
}

#[test]
fn without_the_kernels_consent_a_volume_is_mounted_as_ever_and_says_why() {
    let Some(withheld) = rings::withheld() else {
        return eprintln!("skipped: FUSE over io_uring is switched on here");
    };
    let options = "transport = \"io-uring\"";
    let Some(mut volume) = TestVolume::create_with_options(&Plan::anywhere(), options) else { return };
    volume.wants_rings = false;
    volume.mount();
    drop(withheld);
    fs::write(volume.path().join("file"), "contents").unwrap();
    let transport = transport(&volume);
    assert!(transport.starts_with("classic /dev/fuse (") && transport.contains("uring"), "{transport}");
}

#[test]
fn idle_processors_stay_awake_during_a_burst_of_requests_and_sleep_after_it() {
    let Some(volume) = TestVolume::start_with_options(&Plan::anywhere(), "processor_latency = \"low\"") else { return };
    let report = || volume.status()["idle_processors"].clone();
    let (began, mut number) = (Instant::now(), 0);
    while report()["bursts"].as_u64().expect("a number") == 0 {
        if let Some(reason) = report()["sleep_reason"].as_str() {
            return eprintln!("skipped: {reason}");
        }
        assert!(began.elapsed().as_secs() < 20, "no burst was noticed: {}", report());
        for _ in 0..2000 {
            number += 1;
            fs::write(volume.path().join(format!("{number}")), "x").unwrap();
        }
    }
    let awake_seconds = || report()["awake_seconds"].as_f64().expect("a number");
    let (began, mut before) = (Instant::now(), 0.0);
    while awake_seconds() > before {
        assert!(began.elapsed().as_secs() < 20, "the burst does not end: {}", report());
        before = awake_seconds();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn idle_processors_sleep_as_the_system_decides_where_the_configuration_says_so() {
    let Some(volume) = TestVolume::start_with_options(&Plan::anywhere(), "processor_latency = \"system\"") else {
        return;
    };
    (0..2000).for_each(|number| fs::write(volume.path().join(format!("{number}")), "x").unwrap());
    let report = volume.status()["idle_processors"].clone();
    assert!(report["sleep_reason"].as_str().expect("a reason").contains("processor_latency"), "{report}");
    assert_eq!(report["bursts"], 0);
}
