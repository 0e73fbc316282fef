//! Messages between the kernel and the daemon: files without a name, birth times, the earliest possible times, ACLs and
//! set-group-id bits, and how many messages each operation costs.

mod mounted;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use mounted::command::shell;
use mounted::{Plan, TestVolume, have_program, is_root, skip, skip_where_io_is_named};
use rustix::fs::{AtFlags, CWD, StatxFlags, StatxTimestamp, Timespec, Timestamps};

/// The requests of each kind that `work` costs; giving back inodes is the kernel's own affair.
fn cost(volume: &TestVolume, work: impl FnOnce()) -> BTreeMap<String, u64> {
    let before = volume.messages();
    work();
    let mut after = volume.messages();
    for (name, count) in before {
        *after.get_mut(&name).expect("counts never vanish") -= count;
    }
    after.retain(|name, count| *count > 0 && !name.contains("forget"));
    after
}

fn counts(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn without_extended_attributes_nobody_asks_for_them_and_whoever_does_is_told() {
    let options = "extended_attributes = \"off\"";
    let Some(volume) = TestVolume::start_with_options(&Plan::anywhere(), options) else { return };
    let path = volume.path().join("file");
    fs::write(&path, [7; 2048]).unwrap();
    let cost = cost(&volume, || {
        fs::write(volume.path().join("other"), [7; 2048]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    });
    assert!(!cost.contains_key("getxattr"), "{cost:?}");
    let refused = rustix::fs::setxattr(&path, "user.colour", b"blue", rustix::fs::XattrFlags::empty());
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::getxattr(&path, "user.colour", &mut [0_u8; 8]), Err(rustix::io::Errno::OPNOTSUPP));
    // The mask is the kernel's then.
    shell(volume.path(), "umask 027; : > masked; mkdir masked-directory");
    let mode = |name: &str| fs::metadata(volume.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("masked"), mode("masked-directory")), (0o640, 0o750));
}

#[test]
fn each_operation_costs_the_messages_that_it_must_and_no_more() {
    if skip_where_io_is_named() {
        return;
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    // The cost of a first look at the mount is paid.
    fs::metadata(volume.path()).unwrap();
    // Nothing is open while the daemon is asked: the program that asks would close its copy of the descriptor, which
    // sends FLUSH to the daemon. Closes of descriptors that are only for reading send none.
    let wrote = cost(&volume, || {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.write_all(&[7; 2048]).unwrap();
    });
    // Before the first write to an inode, the kernel asks whether the file has capabilities, which a write takes away.
    let first = [("lookup", 1), ("create", 1), ("getxattr", 1), ("write", 1), ("flush", 1), ("release", 1)];
    assert_eq!(wrote, counts(&first));
    let opened = cost(&volume, || drop(File::open(&path).unwrap()));
    // The write made the kernel's attributes old.
    assert_eq!(opened, counts(&[("getattr", 1), ("open", 1), ("release", 1)]));
    let read = cost(&volume, || {
        let mut bytes = [0; 2048];
        File::open(&path).unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 2048]);
    });
    // Only a part of the page was written, so the rest of it is read, once.
    assert_eq!(read, counts(&[("open", 1), ("read", 1), ("release", 1)]));
    let read_again = cost(&volume, || {
        File::open(&path).unwrap().read_exact(&mut [0; 2048]).unwrap();
    });
    assert_eq!(read_again, counts(&[("open", 1), ("release", 1)]));
    fs::metadata(&path).unwrap();
    let looked = cost(&volume, || {
        for _ in 0..10 {
            fs::metadata(&path).unwrap();
        }
    });
    assert_eq!(looked, counts(&[]));
    let removed = cost(&volume, || fs::remove_file(&path).unwrap());
    assert_eq!(removed, counts(&[("unlink", 1)]));
    let missing = cost(&volume, || assert!(fs::metadata(&path).is_err()));
    assert!(missing.get("lookup").is_none_or(|count| *count <= 1), "{missing:?}");
    assert_eq!(cost(&volume, || assert!(fs::metadata(&path).is_err())), counts(&[]));
}

#[test]
fn a_file_without_a_name_gets_one_by_a_link_or_is_gone_when_it_is_closed() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let open = |volume: &TestVolume| {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o640).open(volume.path())
    };
    let mut file = match open(&volume) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return skip("the kernel has no FUSE_TMPFILE"),
        outcome => outcome.unwrap(),
    };
    file.write_all(b"not seen by anybody").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 0);
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let named = volume.path().join("named");
    rustix::fs::linkat(CWD, own, CWD, &named, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    let number = file.metadata().unwrap().ino();
    drop(file);
    assert_eq!(fs::read(&named).unwrap(), b"not seen by anybody");
    let metadata = fs::metadata(&named).unwrap();
    assert_eq!((metadata.ino(), metadata.permissions().mode() & 0o777), (number, 0o640));
    // One that never gets a name does not outlive its descriptor, nor the mount.
    let mut lost = open(&volume).unwrap();
    lost.write_all(&vec![1; 1 << 20]).unwrap();
    drop(lost);
    volume.unmount();
    volume.mount();
    assert_eq!(fs::read(&named).unwrap(), b"not seen by anybody");
    assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 1);
}

fn birth(path: &Path) -> Option<StatxTimestamp> {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BTIME).unwrap();
    StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME).then_some(found.stx_btime)
}

#[test]
fn the_birth_time_is_shown_and_never_changes() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, "old").unwrap();
    let Some(born) = birth(&path) else { return skip("the kernel has no FUSE_STATX") };
    let modified = fs::metadata(&path).unwrap();
    assert!((modified.mtime() - born.tv_sec).abs() <= 1);
    File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    fs::write(&path, "new").unwrap();
    fs::rename(&path, volume.path().join("other")).unwrap();
    volume.unmount();
    volume.mount();
    let later = birth(&volume.path().join("other")).unwrap();
    assert_eq!((later.tv_sec, later.tv_nsec), (born.tv_sec, born.tv_nsec));
}

#[test]
fn the_earliest_and_the_latest_time_are_kept() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, "contents").unwrap();
    // At both ends the kernel itself drops the nanoseconds.
    let times = [(i64::MIN, 0), (i64::MIN + 1, 999_999_999), (-1, 1), (i64::MAX, 0), (i64::MAX - 1, 999_999_999)];
    for (tv_sec, tv_nsec) in times {
        let time = Timespec { tv_sec, tv_nsec };
        let both = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &both, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (tv_sec, tv_nsec));
        volume.unmount();
        volume.mount();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (tv_sec, tv_nsec), "after a remount");
    }
}

#[test]
fn an_acl_takes_the_set_group_id_bit_from_those_who_are_not_in_the_group() {
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    if !is_root() || !have_program("setfacl") || !have_program("setpriv") {
        return skip("needs root, setfacl and setpriv");
    }
    let path = volume.path().join("file");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let reset = || {
        fs::write(&path, "contents").unwrap();
        std::os::unix::fs::chown(&path, Some(4001), Some(4002)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o2770)).unwrap();
    };
    let set_by = |who: &str| {
        reset();
        shell(volume.path(), &format!("setpriv {who} setfacl -m u:4003:r {}", path.display()));
        mode() & 0o2000
    };
    assert_eq!(set_by("--reuid=4001 --regid=4001 --clear-groups"), 0, "not in the group");
    assert_eq!(set_by("--reuid=4001 --regid=4001 --groups=4002"), 0o2000, "a supplementary group");
    assert_eq!(set_by("--reuid=4001 --regid=4002 --clear-groups"), 0o2000, "the own group");
    assert_eq!(set_by("--reuid=0"), 0o2000, "root");
}
