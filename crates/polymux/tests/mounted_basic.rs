//! Files through the mount: the semantics of open flags, reads, writes, mappings and allocation.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use mounted::command::{copy_program, shell};
use mounted::volume::Ground;
use mounted::{Plan, Random, TestVolume, have_program, skip};
use rustix::fs::{FallocateFlags, fallocate};

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().expect("the error comes from the kernel")
}

#[test]
fn appends_of_two_descriptors_never_overwrite_each_other() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("log");
    let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (mut one, mut two) = (open(), open());
    for round in 0..200 {
        writeln!(one, "one {round}").unwrap();
        writeln!(two, "two {round}").unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    let expected: String = (0..200).map(|round| format!("one {round}\ntwo {round}\n")).collect();
    assert_eq!(text, expected);
}

#[test]
fn open_flags_mean_what_open_2_says() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, "contents").unwrap();
    let exclusive = OpenOptions::new().write(true).create_new(true).open(&path).unwrap_err();
    assert_eq!(exclusive.kind(), ErrorKind::AlreadyExists);
    drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);

    let synchronous = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
    synchronous.write_all_at(b"durable", 3).unwrap();
    let data_only = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(&path).unwrap();
    data_only.write_all_at(b"!", 10).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"\0\0\0durable!");

    let mut no_follow = OpenOptions::new();
    no_follow.read(true).custom_flags(libc::O_NOFOLLOW);
    std::os::unix::fs::symlink("file", volume.path().join("link")).unwrap();
    assert_eq!(errno(&no_follow.open(volume.path().join("link")).unwrap_err()), libc::ELOOP);
    let directory = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&path).unwrap_err();
    assert_eq!(errno(&directory), libc::ENOTDIR);
}

#[test]
fn a_volume_mounts_right_after_it_was_unmounted_or_its_daemon_was_killed() {
    let ground = Ground::Directories;
    let Some(mut volume) = TestVolume::create(&Plan { ground, fast_capacity: None }) else { return };
    let mount_point = volume.path().to_str().unwrap().to_owned();
    for round in 0..30 {
        // As a user does: the daemon is no child of the process that waits for it.
        volume.polymux(["mount", "tested", &mount_point, "-o", "supervisor=off"]).assert_success();
        fs::write(volume.path().join(format!("file{round}")), vec![1; 100_000]).unwrap();
        if round % 5 == 4 {
            let status = volume.polymux(["status", "tested", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&status.stdout).expect("status is JSON");
            let daemon = status["pid"].as_i64().or(status[0]["pid"].as_i64()).expect("it has a process");
            let daemon = rustix::process::Pid::from_raw(i32::try_from(daemon).unwrap()).unwrap();
            rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        } else {
            volume.polymux(["umount", &mount_point]).assert_success();
        }
    }
    volume.mount();
    volume.unmount();
}

/// A child that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        self.0.wait().expect("it is our child");
    }
}

#[test]
fn a_running_program_cannot_be_changed() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("program");
    copy_program("/bin/sleep", &path);
    let bytes = fs::read(&path).unwrap();
    let mut running = Running(Command::new(&path).arg("600").spawn().unwrap());
    let for_writing = OpenOptions::new().write(true).open(&path).unwrap_err();
    assert_eq!(errno(&for_writing), libc::ETXTBSY);
    let for_both = OpenOptions::new().read(true).write(true).open(&path).unwrap_err();
    assert_eq!(errno(&for_both), libc::ETXTBSY);
    let cut = Command::new("perl").arg("-e").arg("truncate($ARGV[0], 1) or exit $!+0").arg(&path).status().unwrap();
    assert_eq!(cut.code(), Some(libc::ETXTBSY));
    assert!(running.0.try_wait().unwrap().is_none(), "it goes on");
    assert!(fs::read(&path).unwrap() == bytes);
    drop(running);
    fs::write(&path, "new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn direct_and_buffered_descriptors_see_each_others_bytes() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    let buffered = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut random = Random::new(7);
    for round in 0..64_u64 {
        let block = AlignedBlock::filled(&random.bytes(4096));
        let (writer, reader) = if round % 2 == 0 { (&buffered, &direct) } else { (&direct, &buffered) };
        writer.write_all_at(block.bytes(), round * 4096).unwrap();
        let mut back = AlignedBlock::filled(&[0; 4096]);
        reader.read_exact_at(back.bytes_mut(), round * 4096).unwrap();
        assert_eq!(back.bytes(), block.bytes(), "round {round}");
    }
}

/// 4,096 bytes that begin at a multiple of 4,096, as direct I/O wants them.
#[repr(align(4096))]
struct AlignedBlock([u8; 4096]);

impl AlignedBlock {
    fn filled(bytes: &[u8]) -> Box<Self> {
        let mut block = Box::new(Self([0; 4096]));
        block.0.copy_from_slice(bytes);
        block
    }
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[test]
fn writes_at_any_offset_read_back_on_a_file_split_over_both_tiers() {
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("8 MiB")) else { return };
    let path = volume.path().join("big");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let mut random = Random::new(11);
    let mut model = vec![0_u8; 24 << 20];
    for chunk in 0..24_usize {
        let bytes = random.bytes(1 << 20);
        model[chunk << 20..(chunk + 1) << 20].copy_from_slice(&bytes);
        file.write_all_at(&bytes, (chunk as u64) << 20).unwrap();
    }
    for _ in 0..500 {
        let length = 1 + usize::try_from(random.below(70_000)).unwrap();
        let offset = usize::try_from(random.below((24 << 20) - 70_000)).unwrap();
        let bytes = random.bytes(length);
        model[offset..offset + length].copy_from_slice(&bytes);
        file.write_all_at(&bytes, offset as u64).unwrap();
    }
    file.sync_all().unwrap();
    volume.assert_is_split(&path);
    assert!(fs::read(&path).unwrap() == model, "the file differs from what was written");
    let allocated = file.metadata().unwrap().blocks() * 512;
    // XFS allocates ahead of a file that grows, by as much as the file has already.
    assert!((24 << 20..64 << 20).contains(&allocated), "st_blocks counts both tiers: {allocated}");
}

#[test]
fn a_shared_mapping_and_a_descriptor_are_one_file() {
    if !have_program("python3") {
        return skip("python3 is not installed");
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("4 MiB")) else { return };
    let script = r#"
import mmap, os
fd = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 16 << 20)
m = mmap.mmap(fd, 16 << 20)
for page in range(0, 4096, 3):
    m[page * 4096:page * 4096 + 8] = page.to_bytes(8, "little")
m.flush()
for page in range(0, 4096, 3):
    assert os.pread(fd, 8, page * 4096) == page.to_bytes(8, "little"), page
os.pwrite(fd, b"by pwrite", 5 << 20)
assert m[5 << 20:(5 << 20) + 9] == b"by pwrite"
pid = os.fork()
if pid == 0:
    m[0:5] = b"child"
    os._exit(0)
os.waitpid(pid, 0)
assert m[0:5] == b"child"
m.close(); os.close(fd)
assert os.stat("mapped").st_size == 16 << 20
"#;
    fs::write(volume.outside().join("script.py"), script).unwrap();
    shell(volume.path(), &format!("python3 {}", volume.outside().join("script.py").display()));
    let mut head = [0; 5];
    File::open(volume.path().join("mapped")).unwrap().read_exact(&mut head).unwrap();
    assert_eq!(&head, b"child");
}

#[test]
fn truncation_cuts_and_extends_with_zeros() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, vec![7_u8; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(9_000).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 9_000);
    assert!(bytes[..5_000].iter().all(|byte| *byte == 7) && bytes[5_000..].iter().all(|byte| *byte == 0));
    let sparse = volume.path().join("sparse");
    let far = OpenOptions::new().write(true).create(true).truncate(true).open(&sparse).unwrap();
    far.write_all_at(b"end", 1 << 40).unwrap();
    let metadata = sparse.metadata().unwrap();
    assert_eq!(metadata.len(), (1 << 40) + 3);
    assert!(metadata.blocks() < 2_000, "a hole takes room: {} blocks", metadata.blocks());
}

#[test]
fn allocation_punching_and_zeroing_do_what_fallocate_2_says() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    assert!(file.metadata().unwrap().blocks() >= 2048, "room was not reserved");
    fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);

    file.write_all_at(&vec![9_u8; 1 << 20], 0).unwrap();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 100_000, 1_000).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, (1 << 20) - 10, 100).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 1 << 20);
    let is_zero = |index: usize| {
        (4096..12_288).contains(&index) || (100_000..101_000).contains(&index) || index >= (1 << 20) - 10
    };
    for (index, byte) in bytes.iter().enumerate() {
        assert_eq!(*byte, if is_zero(index) { 0 } else { 9 }, "byte {index}");
    }
    fallocate(&file, FallocateFlags::ZERO_RANGE, 1 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
    let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).unwrap_err();
    assert_eq!(collapse.raw_os_error(), libc::EOPNOTSUPP);
}

#[test]
fn holes_and_data_are_found_across_tiers() {
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("8 MiB")) else { return };
    let path = volume.path().join("file");
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    for mebibyte in [0_u64, 2, 3, 9, 12, 13] {
        file.write_all_at(&vec![5_u8; 1 << 20], mebibyte << 20).unwrap();
    }
    file.set_len(20 << 20).unwrap();
    if mounted::environment::collects_writes() {
        // While a file is open for changes, the kernel may hold data of it that the daemon does not know.
        let refused = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap_err();
        assert_eq!(refused, rustix::io::Errno::INVAL);
        file = File::open(&path).unwrap();
        // The kernel says that a description is closed, and does not wait for an answer.
        let began = Instant::now();
        let is_open = || rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)) == Err(rustix::io::Errno::INVAL);
        while is_open() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let mut data = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).unwrap();
        data.push((start >> 20, end >> 20));
        at = end;
    }
    assert_eq!(data, [(0, 1), (2, 4), (9, 10), (12, 14)]);
    let beyond = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(20 << 20)).unwrap_err();
    assert_eq!(beyond, rustix::io::Errno::NXIO);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(14 << 20)).unwrap(), 14 << 20);
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 20 << 20);
}

#[test]
fn ranges_are_copied_within_the_volume() {
    let Some(volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("6 MiB")) else { return };
    let mut random = Random::new(3);
    let bytes = random.bytes(10 << 20);
    fs::write(volume.path().join("source"), &bytes).unwrap();
    let source = File::open(volume.path().join("source")).unwrap();
    let target = File::create(volume.path().join("target")).unwrap();
    let (mut from, mut to) = (1_000_u64, 0_u64);
    while from < bytes.len() as u64 {
        let left = bytes.len() - usize::try_from(from).unwrap();
        let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), left).unwrap();
        assert!(copied > 0, "a copy stops at {from}");
    }
    assert!(fs::read(volume.path().join("target")).unwrap() == bytes[1_000..]);
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b" and after").unwrap();
    file.set_len(12).unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before and a");
    assert!(!path.exists());
}

#[test]
fn a_saved_file_is_never_empty_and_open_descriptors_keep_the_old_one() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("document");
    fs::write(&path, "old").unwrap();
    let old = File::open(&path).unwrap();
    fs::write(volume.path().join("document.new"), "new text").unwrap();
    fs::rename(volume.path().join("document.new"), &path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new text");
    assert_eq!(old.metadata().unwrap().nlink(), 0);
    let mut text = String::new();
    (&old).read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
}

#[test]
fn vectored_writes_are_one_write() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let mut file = File::create(volume.path().join("file")).unwrap();
    let parts: Vec<Vec<u8>> = (0..16_u8).map(|part| vec![part; 1_000]).collect();
    let slices: Vec<_> = parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
    assert_eq!(file.write_vectored(&slices).unwrap(), 16_000);
    assert_eq!(fs::read(volume.path().join("file")).unwrap(), parts.concat());
}

#[test]
fn contents_and_numbers_survive_a_remount() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("8 MiB")) else { return };
    let root = volume.path().to_path_buf();
    let mut random = Random::new(5);
    let mut files = Vec::new();
    for number in 0..40_usize {
        let path = root.join(format!("file {number}"));
        let bytes = random.bytes(number * 23_456);
        fs::write(&path, &bytes).unwrap();
        files.push((path, bytes));
    }
    let number = |path: &Path| fs::metadata(path).unwrap().ino();
    let before: Vec<u64> = files.iter().map(|(path, _)| number(path)).collect();
    volume.unmount();
    volume.mount();
    for ((path, bytes), ino) in files.iter().zip(before) {
        assert!(fs::read(path).unwrap() == *bytes, "{} changed", path.display());
        assert_eq!(number(path), ino, "{}", path.display());
    }
}
