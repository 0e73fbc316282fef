//! Which of the mounts of this machine are volumes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use polymux_fuse::{Mount, MountTable};

/// Type that the kernel shows for a mounted volume.
const FILE_SYSTEM_TYPE: &str = "fuse.polymux";

/// Type by which it is mounted.
const MOUNTED_TYPE: &str = "polymux";

/// Whether a mount is a Polymux volume.
pub fn is_polymux(mount: &Mount) -> bool {
    mount.file_system == FILE_SYSTEM_TYPE
}

/// Whether a line of `/etc/fstab` is about a Polymux volume.
pub fn is_intended_polymux(mount: &Mount) -> bool {
    [MOUNTED_TYPE, FILE_SYSTEM_TYPE].contains(&mount.file_system.as_str())
}

/// All mounted volumes.
pub fn volumes(table: &MountTable) -> impl Iterator<Item = &Mount> {
    table.mounts().filter(|mount| is_polymux(mount))
}

/// Whether one path is the other or lies below it.
pub fn is_within(path: &Path, directory: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(directory.as_os_str().as_bytes()) && path.starts_with(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_within_a_directory_only_by_whole_components() {
        assert!(is_within(Path::new("/a/b"), Path::new("/a")));
        assert!(is_within(Path::new("/a"), Path::new("/a")));
        assert!(!is_within(Path::new("/ab"), Path::new("/a")));
    }
}
