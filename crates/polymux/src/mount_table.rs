//! What is mounted where, as the kernel tells in `/proc/self/mountinfo`.
//!
//! Invariant: entries stand in the order of mounting, so that of several on one directory the last one is seen.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Type that the kernel shows for a mounted volume.
pub const FILE_SYSTEM_TYPE: &str = "fuse.polymux";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Directory it is mounted on.
    pub mount_point: PathBuf,
    /// Type of its file system.
    pub file_system: String,
    /// What is mounted: a device, or the name of a volume.
    pub source: String,
}

impl Mount {
    /// Whether it is a Polymux volume.
    pub fn is_polymux(&self) -> bool {
        self.file_system == FILE_SYSTEM_TYPE
    }
}

/// All mounts that this process sees.
#[derive(Clone, Debug)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table.
    pub fn read() -> Result<Self> {
        let text = fs::read("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Self {
        Self { mounts: text.split(|byte| *byte == b'\n').filter_map(parse_line).collect() }
    }

    /// What is mounted on exactly this directory.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mount_point == path)
    }

    /// The mount that an absolute path without links lies in.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }

    /// All mounted volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(|mount| mount.is_polymux())
    }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    // The number of optional fields varies; a lone dash ends them (proc(5)).
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    Some(Mount {
        mount_point: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        file_system: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: OsString::from_vec(unescape(fields.get(dash + 2)?)).to_string_lossy().into_owned(),
    })
}

/// Undoes the octal form in which the kernel writes blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                plain.push(byte);
                rest = &tail[3..];
            }
            _ => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

/// Whether one path is the other or lies below it.
pub fn is_within(path: &Path, directory: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(directory.as_os_str().as_bytes()) && path.starts_with(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                         40 22 0:40 / /media rw,nosuid - fuse.polymux media rw,user_id=0\n\
                         41 22 8:2 / /with\\040blank rw shared:2 master:1 - xfs /dev/sdb rw\n\
                         42 40 0:41 / /media rw - fuse.polymux other rw\n";

    #[test]
    fn the_last_mount_on_a_directory_is_the_one_that_is_seen() {
        let table = MountTable::parse(TABLE.as_bytes());
        assert_eq!(table.at(Path::new("/media")).unwrap().source, "other");
        assert_eq!(table.containing(Path::new("/media/a/b")).unwrap().source, "other");
        assert_eq!(table.containing(Path::new("/mediax")).unwrap().file_system, "ext4");
        assert_eq!(table.at(Path::new("/with blank")).unwrap().file_system, "xfs");
        assert_eq!(table.volumes().count(), 2);
    }

    #[test]
    fn the_table_of_this_machine_can_be_read() {
        assert!(MountTable::read().unwrap().containing(Path::new("/proc/self")).is_some());
    }

    #[test]
    fn a_path_is_within_a_directory_only_by_whole_components() {
        assert!(is_within(Path::new("/a/b"), Path::new("/a")));
        assert!(is_within(Path::new("/a"), Path::new("/a")));
        assert!(!is_within(Path::new("/ab"), Path::new("/a")));
    }
}
