//! Owners, modes, ACLs, extended attributes and locks through the mount, as the kernel enforces them.

mod mounted;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use mounted::command::shell;
use mounted::{FileSystemKind, Finished, NativeMount, Plan, TestVolume, have_program, is_root, run, skip};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};

/// The unprivileged user that tests act as, without any groups of its own.
const OTHER: u32 = 65_534;

fn as_user(uid: u32, script: &str, directory: &Path) -> Finished {
    run(Command::new("sh").arg("-c").arg(script).current_dir(directory).uid(uid).gid(uid))
}

fn start_as_root() -> Option<TestVolume> {
    if !is_root() {
        skip("acting as another user needs root");
        return None;
    }
    let volume = TestVolume::start(&Plan::anywhere())?;
    fs::set_permissions(volume.path(), PermissionsExt::from_mode(0o777)).unwrap();
    Some(volume)
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn modes_are_enforced_for_other_users() {
    let Some(volume) = start_as_root() else { return };
    let path = volume.path().join("private");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!as_user(OTHER, "cat private", volume.path()).is_success());
    fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    assert_eq!(as_user(OTHER, "cat private", volume.path()).stdout, "secret");
    assert!(!as_user(OTHER, "echo >> private", volume.path()).is_success());
    assert!(!as_user(OTHER, "chmod 777 private", volume.path()).is_success());
    assert!(as_user(OTHER, "umask 027; echo mine > mine; mkdir dir", volume.path()).is_success());
    let mine = volume.path().join("mine").metadata().unwrap();
    assert_eq!((mine.uid(), mine.gid(), mine.mode() & 0o7777), (OTHER, OTHER, 0o640));
    assert_eq!(mode(&volume.path().join("dir")), 0o750);
}

#[test]
fn in_a_sticky_directory_only_owners_remove() {
    let Some(volume) = start_as_root() else { return };
    let directory = volume.path().join("tmp");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o1777)).unwrap();
    fs::write(directory.join("roots"), "").unwrap();
    assert!(!as_user(OTHER, "rm -f roots", &directory).is_success());
    assert!(!as_user(OTHER, "mv roots elsewhere", &directory).is_success());
    assert!(as_user(OTHER, "touch own && rm own", &directory).is_success());
}

#[test]
fn set_id_bits_are_cleared_by_writers_and_new_owners() {
    let Some(volume) = start_as_root() else { return };
    let path = volume.path().join("program");
    let arm = || {
        fs::write(&path, "text").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        assert_eq!(mode(&path), 0o6777);
    };
    arm();
    assert!(as_user(OTHER, "echo more >> program", volume.path()).is_success());
    assert_eq!(mode(&path), 0o777, "a write by another user");
    arm();
    assert!(as_user(OTHER, "truncate -s 1 program", volume.path()).is_success());
    assert_eq!(mode(&path), 0o777, "a truncation by another user");
    arm();
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(mode(&path), 0o777, "a new owner");
}

#[test]
fn groups_are_inherited_in_set_group_id_directories() {
    let Some(volume) = start_as_root() else { return };
    let directory = volume.path().join("shared");
    fs::create_dir(&directory).unwrap();
    chown(&directory, None, Some(1234)).unwrap();
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o2777)).unwrap();
    assert!(as_user(OTHER, "touch file; mkdir dir; mkfifo fifo; ln -s x link", &directory).is_success());
    for name in ["file", "dir", "fifo", "link"] {
        assert_eq!(directory.join(name).symlink_metadata().unwrap().gid(), 1234, "{name}");
    }
    assert_eq!(mode(&directory.join("dir")) & 0o2000, 0o2000, "directories hand it on");
    assert_eq!(mode(&directory.join("file")) & 0o2000, 0);
}

#[test]
fn acls_are_kept_enforced_and_inherited() {
    if !have_program("setfacl") {
        return skip("setfacl is not installed");
    }
    let Some(mut volume) = start_as_root() else { return };
    let root = volume.path().to_path_buf();
    shell(&root, "echo secret > file; chmod 600 file; setfacl -m u:65534:r file");
    assert_eq!(as_user(OTHER, "cat file", &root).stdout, "secret\n");
    assert!(!as_user(OTHER, "echo >> file", &root).is_success());
    assert_eq!(mode(&root.join("file")), 0o640, "the mask shows as the bits of the group");
    shell(&root, "chmod 600 file");
    assert!(!as_user(OTHER, "cat file", &root).is_success(), "chmod narrows the mask");
    shell(&root, "chmod 640 file; mkdir dir; setfacl -d -m u:65534:rwx,g::rx,o::- dir; umask 077; echo x > dir/new");
    shell(&root, "umask 077; mkdir dir/sub; echo y > dir/sub/new");
    let listed = shell(&root, "getfacl -cn dir/new dir/sub dir/sub/new");
    assert!(listed.contains("user:65534:rwx") && listed.contains("default:user:65534:rwx"), "{listed}");
    assert_eq!(mode(&root.join("dir/new")), 0o660, "a default ACL replaces the mask of the process");
    volume.unmount();
    volume.mount();
    assert_eq!(shell(&root, "getfacl -cn dir/new dir/sub dir/sub/new"), listed);
    assert_eq!(as_user(OTHER, "cat file", &root).stdout, "secret\n");
    shell(&root, "setfacl -b file; chmod 600 file");
    assert!(!as_user(OTHER, "cat file", &root).is_success());
    assert_eq!(shell(&root, "getfacl -cns file"), "", "nothing is left of the ACL");
}

#[test]
fn extended_attributes_are_kept_up_to_64_kib() {
    let Some(mut volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, "").unwrap();
    let big = vec![b'v'; 65_536];
    setxattr(&path, "user.small", b"1", XattrFlags::CREATE).unwrap();
    setxattr(&path, "user.big", &big, XattrFlags::empty()).unwrap();
    setxattr(&path, "user.empty", b"", XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&path, "user.small", b"2", XattrFlags::CREATE).unwrap_err(), rustix::io::Errno::EXIST);
    assert_eq!(setxattr(&path, "user.none", b"2", XattrFlags::REPLACE).unwrap_err(), rustix::io::Errno::NODATA);
    setxattr(&path, "user.small", b"replaced", XattrFlags::REPLACE).unwrap();
    volume.unmount();
    volume.mount();
    let mut value = vec![0; 70_000];
    assert_eq!(getxattr(&path, "user.big", &mut value[..]).unwrap(), 65_536);
    assert_eq!(getxattr(&path, "user.small", &mut value[..3]).unwrap_err(), rustix::io::Errno::RANGE);
    assert_eq!(rustix::fs::getxattr_query(&path, "user.small").unwrap(), 8);
    assert_eq!(getxattr(&path, "user.empty", &mut value[..]).unwrap(), 0);
    let mut names = vec![0; 1_000];
    let length = listxattr(&path, &mut names[..]).unwrap();
    let mut listed: Vec<&[u8]> =
        names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")).collect();
    listed.sort_unstable();
    assert_eq!(listed, [&b"user.big"[..], b"user.empty", b"user.small"]);
    removexattr(&path, "user.big").unwrap();
    assert_eq!(removexattr(&path, "user.big").unwrap_err(), rustix::io::Errno::NODATA);
    assert_eq!(getxattr(&path, "user.big", &mut value[..]).unwrap_err(), rustix::io::Errno::NODATA);
}

#[test]
fn trusted_attributes_are_listed_for_root_only() {
    let Some(volume) = start_as_root() else { return };
    let path = volume.path().join("file");
    fs::write(&path, "").unwrap();
    setxattr(&path, "user.seen", b"1", XattrFlags::CREATE).unwrap();
    setxattr(&path, "trusted.hidden", b"1", XattrFlags::CREATE).unwrap();
    let listed = || {
        let mut names = vec![0; 1_000];
        let length = listxattr(&path, &mut names[..]).unwrap();
        String::from_utf8(names[..length].to_vec()).unwrap()
    };
    let of_root = listed();
    assert!(of_root.contains("trusted.hidden") && of_root.contains("user.seen"), "{of_root:?}");
    let of_other = std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let user = rustix::process::Uid::from_raw(OTHER);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            listed()
        });
        acting.join().unwrap()
    });
    assert_eq!(of_other, "user.seen\0");
}

#[test]
fn trusted_attributes_are_listed_where_the_capability_is_there_as_on_ext4() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let Some(volume) = start_as_root() else { return };
    let native = NativeMount::new(volume.outside(), "native", FileSystemKind::Ext4, 64);
    let listed = |directory: &Path| {
        let path = directory.join("file");
        fs::write(&path, "").unwrap();
        setxattr(&path, "trusted.hidden", b"1", XattrFlags::CREATE).unwrap();
        let list = || {
            let mut names = vec![0; 1_000];
            let length = listxattr(&path, &mut names[..]).unwrap();
            String::from_utf8(names[..length].to_vec()).unwrap()
        };
        let list = &list;
        std::thread::scope(|scope| {
            let without = scope.spawn(move || {
                let mut sets = capabilities(None).unwrap();
                sets.effective.remove(CapabilitySet::SYS_ADMIN);
                set_capabilities(None, sets).unwrap();
                list()
            });
            let with = scope.spawn(move || {
                let (user, mut sets) = (rustix::process::Uid::from_raw(OTHER), capabilities(None).unwrap());
                rustix::thread::set_keep_capabilities(true).unwrap();
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                sets.effective = CapabilitySet::SYS_ADMIN;
                set_capabilities(None, sets).unwrap();
                list()
            });
            [without, with].map(|acting| acting.join().unwrap())
        })
    };
    fs::set_permissions(native.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let [here, there] = [volume.path(), native.path()].map(listed);
    assert_eq!(there, ["", "trusted.hidden\0"].map(str::to_owned), "root without it, and another user with it");
    assert_eq!(here, there);
}

#[test]
fn locks_hold_between_processes() {
    if !have_program("python3") {
        return skip("python3 is not installed");
    }
    let Some(volume) = TestVolume::start(&Plan::anywhere()) else { return };
    let path = volume.path().join("file");
    fs::write(&path, "0123456789").unwrap();
    let script = |function: &str| {
        format!(
            "import fcntl\nf = open('file', 'r+')\ntry:\n  {function}\n  print('got')\nexcept OSError:\n  print('refused')"
        )
    };
    let attempt =
        |function: &str| run(Command::new("python3").arg("-c").arg(script(function)).current_dir(volume.path()));
    let whole = "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)";
    let file = File::open(&path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).unwrap();
    assert_eq!(attempt(whole).stdout, "refused\n");
    assert_eq!(attempt("fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)").stdout, "got\n");
    drop(file);
    assert_eq!(attempt(whole).stdout, "got\n");

    let ranges = r#"
import fcntl, os
f = open('file', 'r+')
fcntl.lockf(f, fcntl.LOCK_EX, 5, 0)
pid = os.fork()
if pid == 0:
    g = open('file', 'r+')
    fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5)
    try:
        fcntl.lockf(g, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 4)
        os._exit(1)
    except OSError:
        os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"#;
    fs::write(volume.outside().join("ranges.py"), ranges).unwrap();
    shell(volume.path(), &format!("python3 {}", volume.outside().join("ranges.py").display()));
}
