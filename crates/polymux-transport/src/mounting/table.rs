//! Mounted file systems, as the kernel lists them in `/proc/self/mountinfo`, and configured ones, as `/etc/fstab` lists them.
//!
//! Invariant: entries stand in the order of mounting, so that of several on one directory the last one is seen.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Where the kernel tells it.
const TABLE: &str = "/proc/self/mountinfo";

/// Table of the file systems that are to be mounted, and the variable that names another file, as for mount(8).
const INTENDED: &str = "/etc/fstab";
const INTENDED_VARIABLE: &str = "LIBMOUNT_FSTAB";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Directory it is mounted on.
    pub mount_point: PathBuf,
    /// Type of its file system.
    pub file_system: String,
    /// Source of the mount: a device, or the name of a volume.
    pub source: String,
}

/// All mounts that this process sees.
#[derive(Clone, Debug)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read() -> io::Result<Self> {
        let text =
            fs::read(TABLE).map_err(|error| io::Error::new(error.kind(), format!("cannot read {TABLE}: {error}")))?;
        Ok(Self::parse(&text))
    }

    /// Reads the file systems that are to be mounted, whether they are or not; an empty table if the file cannot be read.
    #[must_use]
    pub fn intended() -> Self {
        let path = std::env::var_os(INTENDED_VARIABLE).unwrap_or_else(|| INTENDED.into());
        Self::parse_intended(&fs::read(path).unwrap_or_default())
    }

    fn parse_intended(text: &[u8]) -> Self {
        Self { mounts: text.split(|byte| *byte == b'\n').filter_map(parse_intention).collect() }
    }

    fn parse(text: &[u8]) -> Self {
        Self { mounts: text.split(|byte| *byte == b'\n').filter_map(parse_line).collect() }
    }

    /// The mount on exactly this directory.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mount_point == path)
    }

    /// The mount that an absolute path without links lies in.
    #[must_use]
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }

    /// All mounts.
    pub fn mounts(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
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

/// A line of fstab(5).
fn parse_intention(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let source = fields.next().filter(|field| !field.starts_with(b"#"))?;
    let (mount_point, file_system) = (fields.next()?, fields.next()?);
    Some(Mount {
        mount_point: PathBuf::from(OsString::from_vec(unescape(mount_point))),
        file_system: String::from_utf8_lossy(file_system).into_owned(),
        source: OsString::from_vec(unescape(source)).to_string_lossy().into_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                         40 22 0:40 / /media rw,nosuid - fuse.polymux media rw,user_id=0\n\
                         41 22 8:2 / /with\\040blank rw shared:2 master:1 - xfs /dev/sdb rw\n\
                         42 40 0:41 / /media rw - fuse.polymux other rw\n";

    #[test]
    fn the_last_mount_on_a_directory_is_the_one_that_is_seen() {
        let table = MountTable::parse(SAMPLE.as_bytes());
        assert_eq!(table.at(Path::new("/media")).unwrap().source, "other");
        assert_eq!(table.containing(Path::new("/media/a/b")).unwrap().source, "other");
        assert_eq!(table.containing(Path::new("/mediax")).unwrap().file_system, "ext4");
        assert_eq!(table.at(Path::new("/with blank")).unwrap().file_system, "xfs");
        assert_eq!(table.mounts().filter(|mount| mount.file_system == "fuse.polymux").count(), 2);
    }

    #[test]
    fn mount_points_are_found_with_what_separates_words_in_them() {
        let table = b"36 35 98:0 / /media/two\\040words rw - ext4 /dev/sda rw\n\
            37 36 0:41 / /media/back\\134040slash rw,nosuid - fuse.polymux media rw\n";
        let table = MountTable::parse(table);
        let found: Vec<_> = table.mounts().map(|mount| mount.mount_point.to_str().unwrap()).collect();
        assert_eq!(found, ["/media/two words", "/media/back\\040slash"]);
    }

    #[test]
    fn what_is_to_be_mounted_is_read_from_fstab() {
        let text =
            b"# a comment\n\n media\t/media\\040of\\040all\tpolymux  nofail,noatime 0 0\n/dev/sda1 / ext4\nbroken\n";
        let table = MountTable::parse_intended(text);
        let found: Vec<_> = table.mounts().map(|mount| (mount.source.as_str(), mount.file_system.as_str())).collect();
        assert_eq!(found, [("media", "polymux"), ("/dev/sda1", "ext4")]);
        assert_eq!(table.containing(Path::new("/media of all/below")).unwrap().source, "media");
    }

    #[test]
    fn the_table_of_this_machine_can_be_read() {
        let table = MountTable::read().unwrap();
        assert!(table.containing(Path::new("/proc/self")).is_some());
        assert!(table.at(Path::new("/")).is_some());
        assert!(table.at(Path::new("/proc/self/nothing")).is_none());
    }
}
