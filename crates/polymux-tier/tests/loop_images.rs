//! The POSIX tier passes the suite on fresh ext4 and XFS file systems. Needs root, loop devices and the mkfs programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use polymux_tier::{PosixTier, PosixTierOptions, Tier, conformance};

/// Sparse, so it takes only what is written.
const IMAGE_SIZE: u64 = 3 << 30;

/// A file system in an image, mounted for as long as this lives.
struct Mounted {
    mount_point: PathBuf,
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
    Ok(Mounted { mount_point, _directory: directory })
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
