//! Direct I/O that is not aligned to the sectors of a tier, and offsets at the maximum file size.

mod mounted;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mounted::command::shell;
use mounted::environment::{have_loop_devices, skip_where_writes_are_collected};
use mounted::volume::Ground;
use mounted::{Plan, TestVolume, have_program, is_root, one_at_a_time, run, skip, skip_where_io_is_named, succeed};

/// A file system on a loop device with sectors of 4 KiB; both go when this is dropped.
struct LargeSectors {
    device: String,
    path: PathBuf,
}

impl LargeSectors {
    fn new(directory: &Path, name: &str, make: &[&str]) -> Self {
        let (image, path) = (directory.join(format!("{name}.image")), directory.join(name));
        File::create(&image).and_then(|image| image.set_len(512 << 20)).expect("an image");
        fs::create_dir(&path).expect("a mount point");
        let text = |path: &Path| path.to_str().expect("plain text").to_owned();
        let device = succeed("losetup", ["--sector-size", "4096", "--find", "--show", &text(&image)]).trim().to_owned();
        let large = Self { device, path };
        succeed(make[0], make[1..].iter().copied().chain([large.device.as_str()]));
        succeed("mount", [&large.device, &text(&large.path)]);
        large
    }
}

impl Drop for LargeSectors {
    fn drop(&mut self) {
        let _ = run(std::process::Command::new("umount").arg(&self.path));
        let _ = run(std::process::Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// Prints the results of some direct reads and writes, and fails where the content of the file does not match them.
const DIRECT: &str = "
import errno, mmap, os
with open('file', 'wb') as file:
    file.write(b'o' * 65536); file.flush(); os.fsync(file.fileno())
fd = os.open('file', os.O_WRONLY); os.pwrite(fd, b'o', 0); os.close(fd)
fd = os.open('file', os.O_RDWR | os.O_DIRECT)
content = bytearray(b'o' * 65536)
memory = mmap.mmap(-1, 1 << 16)
for round, (length, offset, place) in enumerate([(4096, 0, 0), (512, 512, 0), (512, 4096, 0), (4096, 512, 0), (100, 7, 0),
        (4096, 8192, 512), (4096, 12288, 1), (512, 65536, 0), (4096, 65536, 0), (8192, 20480, 0)]):
    value = bytes([97 + round])
    memory[place:place + length] = value * length
    buffer = memoryview(memory)[place:place + length]
    try:
        written = os.pwrite(fd, buffer, offset)
        content.extend(b'\\0' * (offset + written - len(content)))
        content[offset:offset + written] = value * written
    except OSError as error:
        written = errno.errorcode[error.errno]
    try:
        read = os.preadv(fd, [buffer], offset)
        assert bytes(buffer[:read]) == bytes(content[offset:offset + read]), (round, 'read wrong bytes')
    except OSError as error:
        read = errno.errorcode[error.errno]
    print(round, written, read)
os.close(fd)
assert open('file', 'rb').read() == bytes(content), 'the file is not what was written'
";

#[test]
fn direct_io_that_does_not_fit_the_sectors_of_a_tier_works_or_is_refused_as_by_the_tier() {
    if !is_root() || !have_program("losetup") || !have_program("mkfs.xfs") || skip_where_io_is_named() {
        return skip("it takes root, losetup and mkfs.xfs, with every mode of open files");
    }
    if let Some(why) = Plan::anywhere().obstacle() {
        return skip(why);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let fast = LargeSectors::new(directory.path(), "fast", &["mkfs.ext4", "-q", "-F"]);
    let slow = LargeSectors::new(directory.path(), "slow", &["mkfs.xfs", "-q", "-f"]);
    let [expected_fast, expected_slow] =
        [&fast, &slow].map(|native| shell(&native.path, &format!("python3 -c \"{DIRECT}\"")));
    assert_eq!(expected_fast, expected_slow);
    assert!(expected_fast.contains("EINVAL"), "the devices refuse what does not fit: {expected_fast}");
    let tiers = [("fast", &fast), ("slow", &slow)].map(|(name, native)| {
        let path = native.path.join("tier");
        fs::create_dir(&path).expect("made");
        (name.to_owned(), path)
    });
    let mut volume = TestVolume::on_tiers(tiers.to_vec());
    volume.format(None);
    for option in ["passthrough=auto", "passthrough=read", "passthrough=off", "passthrough=off,page_cache=off"] {
        volume.mount_with(&["-o", option]);
        let found = shell(volume.path(), &format!("python3 -c \"{DIRECT}\""));
        if found != expected_fast {
            // Through the daemon everything works, whatever its alignment.
            assert!(!found.contains('E'), "{option}: {found}");
        }
        volume.unmount();
    }
}

/// The maximum file size, beyond which everything is EFBIG; ext4 has its own at 16 TiB, XFS at the end of `off_t`.
#[test]
fn offsets_beyond_the_largest_file_are_efbig() {
    if skip_where_writes_are_collected("that they are too large is told with the next fsync or close") {
        return;
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let file =
        File::options().create(true).truncate(true).read(true).write(true).open(volume.path().join("file")).unwrap();
    let largest = polymux_types::limits::FILE_SIZE_MAX;
    file.set_len(largest).expect("the largest");
    assert_eq!(rustix::io::pwrite(&file, b"x", largest - 1).expect("its last byte"), 1);
    let mut byte = [0];
    assert_eq!((rustix::io::pread(&file, &mut byte, largest - 1).unwrap(), byte), (1, *b"x"));
    let too_large = Some(rustix::io::Errno::FBIG);
    assert_eq!(rustix::io::pwrite(&file, b"x", largest).err(), too_large);
    assert_eq!(rustix::fs::ftruncate(&file, largest + 1).err(), too_large);
    for end in [largest + 1, (1 << 63) - 1] {
        let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end - 1, 1);
        assert_eq!(allocated.err(), too_large, "{end:#x}");
    }
    assert_eq!(file.metadata().unwrap().len(), largest);
}

/// The kernel makes `EIO` of a direct write that is answered with fewer bytes than it has.
#[test]
fn a_direct_write_whose_end_finds_no_room_fails_for_lack_of_room() {
    const REQUEST: usize = 512 << 10;
    if !have_loop_devices() {
        return skip("devices of known size need root and loop devices");
    }
    let _turn = one_at_a_time();
    let plan = Plan { ground: Ground::LoopDevices { fast: 64, slow: 320 }, fast_capacity: None };
    let Some(volume) = TestVolume::start(&plan) else { return };
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag of open(2)");
    let mut options = File::options();
    options.write(true).create(true).custom_flags(flags);
    let mut memory = vec![7; REQUEST + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let request = &mut memory[start..start + REQUEST];
    // Ends of requests lie at other places than the end of the free space, in one round or another.
    for round in 0..4_u64 {
        let path = volume.path().join(format!("file-{round}"));
        let file = options.open(&path).expect("made");
        let mut end = round * 100 * 4096;
        let error = loop {
            match file.write_at(request, end) {
                Ok(count) => end += count as u64,
                Err(error) => break error,
            }
            assert!(end < 1 << 30, "the volume is smaller");
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "round {round}, at {end}");
        assert_eq!(file.metadata().expect("there").len(), end, "what failed did not make it longer");
        drop(file);
        fs::remove_file(&path).expect("removed");
        wait_for_room(&volume);
    }
}

fn wait_for_room(volume: &TestVolume) {
    let available = || rustix::fs::statvfs(volume.path()).map_or(0, |space| space.f_bavail * space.f_frsize);
    for _ in 0..600 {
        if available() > 250 << 20 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("room does not come back: {}", available());
}
