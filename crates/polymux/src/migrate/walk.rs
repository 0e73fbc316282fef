//! The regular files below a directory.
//!
//! Invariants: symbolic links are not followed, and directories of other file systems are not entered. Files are
//! not looked at one by one: the directory tells type and number of each.

use std::collections::HashSet;
use std::fs::{self, ReadDir};
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// A regular file.
#[derive(Clone, Debug)]
pub struct Found {
    pub ino: u64,
    pub path: PathBuf,
}

/// Something that could not be looked at.
#[derive(Clone, Debug)]
pub struct NotSeen {
    pub path: String,
    pub why: String,
}

/// Files that were found already: one with several names is found once.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    inodes: HashSet<u64>,
}

impl Seen {
    /// Whether this is the first time.
    pub fn is_new(&mut self, ino: u64) -> bool {
        self.inodes.insert(ino)
    }
}

/// Goes through a tree, or gives one file.
pub struct Walk {
    device: u64,
    file: Option<Found>,
    pending: Vec<PathBuf>,
    open: Option<ReadDir>,
    directory: PathBuf,
}

impl Walk {
    /// The file at a path, or the files below it.
    pub fn below(path: &Path) -> Result<Self> {
        let metadata = path.symlink_metadata()?;
        let (file, pending) = if metadata.is_dir() {
            (None, vec![path.to_owned()])
        } else {
            (Some(Found { ino: metadata.ino(), path: path.to_owned() }), Vec::new())
        };
        Ok(Self { device: metadata.dev(), file, pending, open: None, directory: PathBuf::new() })
    }

    /// Opens the next directory of this file system; `None` at the end.
    fn open_next(&mut self) -> Option<io::Result<()>> {
        loop {
            let directory = self.pending.pop()?;
            self.directory.clone_from(&directory);
            match directory.symlink_metadata() {
                Ok(metadata) if !metadata.is_dir() || metadata.dev() != self.device => {}
                Ok(_) => {
                    return Some(fs::read_dir(&directory).map(|open| self.open = Some(open)));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn not_seen(&self, error: &io::Error) -> NotSeen {
        NotSeen { path: self.directory.display().to_string(), why: format!("cannot look into it: {error}") }
    }
}

impl Iterator for Walk {
    type Item = std::result::Result<Found, NotSeen>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(file) = self.file.take() {
            return Some(Ok(file));
        }
        loop {
            let Some(open) = &mut self.open else {
                match self.open_next()? {
                    Ok(()) => continue,
                    // It was removed meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Some(Err(self.not_seen(&error))),
                }
            };
            let entry = match open.next() {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    self.open = None;
                    return Some(Err(self.not_seen(&error)));
                }
                None => {
                    self.open = None;
                    continue;
                }
            };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.pending.push(entry.path()),
                Ok(kind) if kind.is_file() => return Some(Ok(Found { ino: entry.ino(), path: entry.path() })),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_regular_file_is_found_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        for name in ["top", "a/one", "a/b/two"] {
            fs::write(root.join(name), name).unwrap();
        }
        fs::hard_link(root.join("top"), root.join("a/again")).unwrap();
        std::os::unix::fs::symlink(root, root.join("a/loop")).unwrap();
        std::os::unix::fs::symlink(root.join("top"), root.join("link")).unwrap();
        let found: Vec<Found> = Walk::below(root).unwrap().map(|found| found.unwrap()).collect();
        let mut names: Vec<_> =
            found.iter().map(|found| found.path.strip_prefix(root).unwrap().display().to_string()).collect();
        names.sort();
        assert_eq!(names, ["a/again", "a/b/two", "a/one", "top"]);
        let mut seen = Seen::default();
        assert_eq!(found.iter().filter(|found| seen.is_new(found.ino)).count(), 3, "one has two names");
    }

    #[test]
    fn a_file_is_found_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "x").unwrap();
        let found: Vec<_> = Walk::below(&path).unwrap().map(|found| found.unwrap().path).collect();
        assert_eq!(found, [path]);
    }
}
