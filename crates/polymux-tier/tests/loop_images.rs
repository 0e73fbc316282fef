//! The POSIX tier passes the suite on fresh ext4 and XFS file systems, and a new object that was synced survives there
//! on the device after a power failure. Needs root, loop devices and the mkfs programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use polymux_tier::{ObjectRef, PosixTier, PosixTierOptions, Tier, Wait, conformance};
use polymux_types::{Bucket, ObjectId};

/// Sparse, so only written blocks take space.
const IMAGE_SIZE: u64 = 3 << 30;

/// A file system in an image, mounted for as long as this lives.
struct Mounted {
    mount_point: PathBuf,
    image: PathBuf,
    _directory: tempfile::TempDir,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(&self.mount_point)) {
            eprintln!("{}: stays mounted: {error}", self.mount_point.display());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn mount(make: &mut Command) -> Result<Mounted, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (image, mount_point) = (directory.path().join("image"), directory.path().join("mounted"));
    let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
    file.set_len(IMAGE_SIZE).map_err(|error| error.to_string())?;
    std::fs::create_dir(&mount_point).map_err(|error| error.to_string())?;
    run(make.arg(&image))?;
    run(Command::new("mount").arg("-o").arg("loop").arg(&image).arg(&mount_point))?;
    Ok(Mounted { mount_point, image, _directory: directory })
}

/// Mounts the current content of the device, as after a power failure: the copy of a file system in use.
fn mount_as_after_a_crash(of: &Mounted) -> Result<Mounted, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (image, mount_point) = (directory.path().join("image"), directory.path().join("mounted"));
    run(Command::new("cp").arg("--sparse=always").arg(&of.image).arg(&image))?;
    std::fs::create_dir(&mount_point).map_err(|error| error.to_string())?;
    // XFS would refuse a second file system of the same identity; ext4 does not know the option.
    let xfs = run(Command::new("mount").arg("-o").arg("loop,nouuid").arg(&image).arg(&mount_point));
    if xfs.is_err() {
        run(Command::new("mount").arg("-o").arg("loop").arg(&image).arg(&mount_point))?;
    }
    Ok(Mounted { mount_point, image, _directory: directory })
}

fn new_objects_survive_on(name: &str, make: &mut Command) {
    let mounted = match mount(make) {
        Ok(mounted) => mounted,
        Err(reason) => {
            assert!(std::env::var_os("CI").is_none(), "{name} cannot be tested: {reason}");
            eprintln!("skipped: {name}: {reason}");
            return;
        }
    };
    let tier = PosixTier::prepare(&mounted.mount_point, PosixTierOptions::new(name)).expect("a tier is made");
    let content = vec![7; 70_000];
    let object = |id| ObjectRef::new(ObjectId(id), Bucket(u16::try_from(id % 3).expect("small")));
    for id in 1..=6 {
        tier.create(object(id)).expect("made");
        tier.write(object(id), 0, &content, Wait::Allowed).expect("written");
    }
    // One that never had a byte, too.
    tier.create(object(7)).expect("made");
    for id in [1, 2, 4, 7] {
        tier.sync(object(id)).expect("synced");
        assert!(!tier.is_unsynced(object(id)));
    }
    tier.create(object(8)).expect("made after all syncs");
    let crashed = mount_as_after_a_crash(&mounted).expect("the copy mounts");
    let objects = crashed.mount_point.join(".polymux/objects");
    let left = |id: u64| std::fs::read(objects.join(format!("{:03x}/{id:016x}", id % 3)));
    for id in [1, 2, 4] {
        assert!(left(id).expect("its name is durable") == content, "object {id} on {name}");
    }
    assert_eq!(left(7).expect("its name is durable"), Vec::<u8>::new());
    assert!(left(8).is_err(), "the copy is of the device, not of the page cache");
}

#[test]
fn a_new_object_on_ext4_is_durable_with_its_name_by_its_first_sync() {
    new_objects_survive_on("ext4", Command::new("mkfs.ext4").args(["-q", "-F", "-N", "20000"]));
}

#[test]
fn a_new_object_on_xfs_is_durable_with_its_name_by_its_first_sync() {
    new_objects_survive_on("xfs", Command::new("mkfs.xfs").args(["-q", "-f"]));
}

fn conforms_on(name: &str, make: &mut Command) {
    let mounted = match mount(make) {
        Ok(mounted) => mounted,
        Err(reason) => {
            assert!(std::env::var_os("CI").is_none(), "{name} cannot be tested: {reason}");
            eprintln!("skipped: {name}: {reason}");
            return;
        }
    };
    let path: &Path = &mounted.mount_point;
    let count = AtomicUsize::new(0);
    conformance::run(|| {
        let path = path.join(count.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&path).expect("a directory for a tier is made");
        let tier = PosixTier::prepare(&path, PosixTierOptions::new(name)).expect("a tier is made");
        assert_eq!(tier.capabilities().file_system, name, "the file system is not recognized");
        Box::new(tier) as Box<dyn Tier>
    });
}

#[test]
fn a_posix_tier_on_ext4_keeps_every_promise() {
    conforms_on("ext4", Command::new("mkfs.ext4").args(["-q", "-F", "-N", "300000"]));
}

#[test]
fn a_posix_tier_on_xfs_keeps_every_promise() {
    conforms_on("xfs", Command::new("mkfs.xfs").args(["-q", "-f"]));
}
