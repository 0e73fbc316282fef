//! A directory tree as a program sees it: names, types, modes, owners, sizes, links, contents, attributes.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Everything about one file that two file systems must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names; left out for directories, whose count differs between file systems.
    pub links: u64,
    /// Size; left out for directories.
    pub size: u64,
    pub device: u64,
    pub content: Content,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Checksum of the bytes.
    File(u64),
    Link(PathBuf),
    Other,
}

/// The tree below `root`, by path relative to it.
pub fn snapshot(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut entries = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory of the test can be listed") {
            let path = entry.expect("a directory of the test can be listed").path();
            let metadata = path.symlink_metadata().expect("a listed file has attributes");
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            let relative = path.strip_prefix(root).expect("it lies below").to_path_buf();
            entries.insert(relative, describe(&path, &metadata));
        }
    }
    entries
}

fn describe(path: &Path, metadata: &std::fs::Metadata) -> Entry {
    let is_directory = metadata.is_dir();
    let content = if metadata.is_file() {
        Content::File(checksum(&std::fs::read(path).expect("a file of the test can be read")))
    } else if metadata.is_symlink() {
        Content::Link(std::fs::read_link(path).expect("a link can be read"))
    } else {
        Content::Other
    };
    Entry {
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        links: if is_directory { 0 } else { metadata.nlink() },
        size: if is_directory { 0 } else { metadata.size() },
        device: metadata.rdev(),
        content,
        xattrs: xattrs(path),
    }
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0_u8; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).expect("attributes can be listed");
    let mut found = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = std::str::from_utf8(name).expect("names of attributes are plain");
        let mut value = vec![0_u8; 65_536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("a listed attribute can be read");
        value.truncate(length);
        found.insert(name.to_owned(), value);
    }
    found
}

/// FNV-1a over 64 bits: enough to tell two contents of a test apart.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The first difference between two trees, in words.
pub fn difference(expected: &BTreeMap<PathBuf, Entry>, found: &BTreeMap<PathBuf, Entry>) -> Option<String> {
    for (path, entry) in expected {
        match found.get(path) {
            None => return Some(format!("{} is missing", path.display())),
            Some(other) if other != entry => {
                return Some(format!("{}: expected {entry:?}, found {other:?}", path.display()));
            }
            Some(_) => {}
        }
    }
    found.keys().find(|path| !expected.contains_key(*path)).map(|path| format!("{} is too much", path.display()))
}
