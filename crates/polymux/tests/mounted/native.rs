//! Native file systems in sparse image files, as tiers and to compare with. Only for root.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use polymux_transport::MountTable;
use polymux_types::FileSystemSpace;

use super::command::{run, succeed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    Ext4,
    /// With the blocks set aside for root that `mkfs.ext4` gives it.
    Ext4WithReserve,
    /// With inodes for the directories of a tier and little more.
    Ext4FewInodes,
    /// At least 300 MiB, or `mkfs.xfs` refuses.
    Xfs,
}

/// A file system that is mounted from an image and unmounted when dropped. The loop device frees itself then.
pub struct NativeMount {
    path: PathBuf,
    image: PathBuf,
}

impl NativeMount {
    /// Makes and mounts a file system at `directory/name`.
    pub fn new(directory: &Path, name: &str, kind: FileSystemKind, mebibytes: u64) -> Self {
        let image = directory.join(format!("{name}.image"));
        let path = directory.join(name);
        let file = File::create(&image).expect("an image can be made");
        file.set_len(mebibytes << 20).expect("a sparse file can be made");
        match kind {
            // No blocks set aside for root, so that all the space that `df` shows can be written.
            FileSystemKind::Ext4 => succeed("mkfs.ext4", ["-q", "-F", "-m", "0", text(&image)]),
            FileSystemKind::Ext4WithReserve => succeed("mkfs.ext4", ["-q", "-F", text(&image)]),
            FileSystemKind::Ext4FewInodes => succeed("mkfs.ext4", ["-q", "-F", "-m", "0", "-N", "4800", text(&image)]),
            FileSystemKind::Xfs => succeed("mkfs.xfs", ["-q", "-f", text(&image)]),
        };
        std::fs::create_dir(&path).expect("a mount point can be made");
        let mount = Self { path, image };
        mount.mount();
        mount
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn mount(&self) {
        succeed("mount", ["-o", "loop", text(&self.image), text(&self.path)]);
    }

    /// Makes an ext4 read-only as one of its errors does. It stays so until it is mounted anew.
    pub fn turn_read_only(&self) {
        succeed("mount", ["-o", "remount,abort", text(&self.path)]);
    }

    pub fn unmount(&self) {
        succeed("umount", [text(&self.path)]);
    }
}

impl Drop for NativeMount {
    fn drop(&mut self) {
        for _ in 0..50 {
            if !is_mounted(&self.path) || run(Command::new("umount").arg(&self.path)).is_success() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        run(Command::new("umount").arg("-l").arg(&self.path));
    }
}

/// Flushes that the block device below a directory has carried out (Documentation/block/stat.rst).
pub fn flushes_of(directory: &Path) -> u64 {
    let device = std::fs::metadata(directory).expect("there").dev();
    let path = format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(path).expect("it lies on a block device");
    stat.split_whitespace().nth(15).expect("flushes are the sixteenth number").parse().expect("a number")
}

/// Bytes that a file system can still take.
pub fn available(path: &Path) -> u64 {
    FileSystemSpace::from(&rustix::fs::statvfs(path).unwrap()).available
}

/// Whether something is mounted exactly there.
pub fn is_mounted(path: &Path) -> bool {
    kind_of_mount(path).is_some()
}

/// The type of the file system mounted exactly there.
pub fn kind_of_mount(path: &Path) -> Option<String> {
    let mounts = MountTable::read().expect("the mounts of this process can be read");
    mounts.at(path).map(|mount| mount.file_system.clone())
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are plain")
}
