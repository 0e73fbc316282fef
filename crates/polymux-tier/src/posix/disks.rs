//! Information of sysfs on the device below a file system: whether it seeks, and which disks it is on.
//!
//! Invariants: only files of sysfs are opened, so a disk that sleeps stays asleep. A loop device counts as a disk of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::capabilities::Rotation;

/// Directory of sysfs with a link for each block device, named by its number.
const DEVICES: &str = "/sys/dev/block";

/// Levels of mapped devices that are followed (LVM on encryption on RAID is three).
const LEVELS_MAX: usize = 8;

fn directory_of(devices: &Path, device: u64) -> PathBuf {
    devices.join(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// Whether the device with a number seeks. A partition has the setting of its disk; a number that is no disk's (btrfs, a server, memory) has
/// none.
pub(super) fn rotation_of(device: u64) -> Rotation {
    let directory = directory_of(Path::new(DEVICES), device);
    let places = [directory.join("queue/rotational"), directory.join("../queue/rotational")];
    match places.iter().find_map(|path| fs::read_to_string(path).ok()).as_deref().map(str::trim) {
        Some("0") => Rotation::NonRotational,
        Some(_) => Rotation::Rotational,
        None => Rotation::Unknown,
    }
}

/// Names of the disks that a device is on: the disk of a partition, those below a mapped device or an array (`slaves`). A number that is
/// no block device's names itself, so that it shares a disk with nothing else.
#[must_use]
pub fn disks_of(device: u64) -> BTreeSet<String> {
    disks_in(Path::new(DEVICES), device)
}

fn disks_in(devices: &Path, device: u64) -> BTreeSet<String> {
    let mut disks = BTreeSet::new();
    match directory_of(devices, device).canonicalize() {
        Ok(directory) => add_disks(&directory, LEVELS_MAX, &mut disks),
        Err(_) => drop(disks.insert(format!("device {device}"))),
    }
    disks
}

fn add_disks(directory: &Path, levels: usize, disks: &mut BTreeSet<String>) {
    let whole = match (directory.join("partition").exists(), directory.parent()) {
        (true, Some(disk)) => disk,
        _ => directory,
    };
    let slaves = fs::read_dir(whole.join("slaves")).into_iter().flatten().flatten();
    let below: Vec<PathBuf> = slaves.filter_map(|entry| entry.path().canonicalize().ok()).collect();
    if below.is_empty() || levels == 0 {
        disks.insert(whole.file_name().unwrap_or_default().to_string_lossy().into_owned());
        return;
    }
    below.iter().for_each(|device| add_disks(device, levels - 1, disks));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn partitions_and_mapped_devices_are_on_the_disks_below_them() {
        let root = tempfile::tempdir().unwrap();
        let (devices, block) = (root.path().join("dev"), root.path().join("block"));
        for directory in ["nvme0n1/nvme0n1p1", "nvme0n1/nvme0n1p2", "sda", "dm-0/slaves", "dm-1/slaves"] {
            fs::create_dir_all(block.join(directory)).unwrap();
        }
        for partition in ["nvme0n1p1", "nvme0n1p2"] {
            fs::write(block.join("nvme0n1").join(partition).join("partition"), "1").unwrap();
        }
        fs::create_dir(&devices).unwrap();
        let targets = ["nvme0n1/nvme0n1p1", "nvme0n1/nvme0n1p2", "sda", "dm-0", "dm-1"];
        for (minor, target) in targets.iter().enumerate() {
            symlink(block.join(target), devices.join(format!("9:{minor}"))).unwrap();
        }
        // Encryption on a partition; a volume over that and a whole disk.
        symlink(block.join("nvme0n1/nvme0n1p2"), block.join("dm-0/slaves/nvme0n1p2")).unwrap();
        symlink(block.join("dm-0"), block.join("dm-1/slaves/dm-0")).unwrap();
        symlink(block.join("sda"), block.join("dm-1/slaves/sda")).unwrap();
        let disks = |minor| disks_in(&devices, rustix::fs::makedev(9, minor)).into_iter().collect::<Vec<_>>();
        assert_eq!(disks(0), ["nvme0n1"]);
        assert_eq!(disks(1), ["nvme0n1"]);
        assert_eq!(disks(2), ["sda"]);
        assert_eq!(disks(3), ["nvme0n1"]);
        assert_eq!(disks(4), ["nvme0n1", "sda"]);
        assert_ne!(disks(7), disks(8), "what is no block device shares no disk");
    }
}
