//! Which files of the source `try` copies, and in which order.
//!
//! Invariants of a [`Selection`]: a directory stands before its entries; only directories, links and regular files
//! that can be read are chosen; their sizes together stay below the limit.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Most files that are copied, so that a trial ends within half a minute.
const FILES_MAX: usize = 3_000;

/// Most entries that are looked at.
const ENTRIES_MAX: usize = 20_000;

/// Type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A symbolic link with its target.
    Symlink(PathBuf),
    /// A regular file with its size.
    File(u64),
}

/// One entry of the source, by its path below the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path below the source.
    pub path: PathBuf,
    /// Its type.
    pub kind: EntryKind,
}

/// The entries to copy.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// In the order of copying.
    pub entries: Vec<Entry>,
    /// Number of regular files.
    pub files: usize,
    /// Bytes of the regular files.
    pub bytes: u64,
    /// Entries that were left out because they are special or cannot be read.
    pub skipped: usize,
    /// Whether the limits left something out.
    pub limited: bool,
    /// Entries that were looked at.
    looked_at: usize,
}

impl Selection {
    /// Chooses from a directory, at most `bytes_max` bytes; `without` is not looked into. A directory that has nothing to copy,
    /// or that cannot be read, gives an empty selection.
    ///
    /// # Errors
    /// Where there is no such directory.
    pub fn of(source: &Path, without: &Path, bytes_max: u64) -> Result<Self> {
        if !source.metadata().with_context(|| source.display().to_string())?.is_dir() {
            bail!("{} is not a directory", source.display());
        }
        let mut selection = Self::default();
        let mut waiting = vec![PathBuf::new()];
        while let Some(directory) = waiting.pop() {
            if selection.files >= FILES_MAX || selection.looked_at >= ENTRIES_MAX {
                selection.limited = true;
                break;
            }
            let below = selection.add_directory(source, &directory, without, bytes_max);
            waiting.extend(below.into_iter().rev());
        }
        Ok(selection)
    }

    fn add_directory(&mut self, source: &Path, path: &Path, without: &Path, bytes_max: u64) -> Vec<PathBuf> {
        let full = source.join(path);
        let listed = fs::read_dir(&full).and_then(Iterator::collect::<std::io::Result<Vec<fs::DirEntry>>>);
        let Ok(mut children) = listed else {
            self.skipped += 1;
            return Vec::new();
        };
        children.sort_by_key(fs::DirEntry::file_name);
        if !path.as_os_str().is_empty() {
            self.entries.push(Entry { path: path.to_owned(), kind: EntryKind::Directory });
        }
        let mut below = Vec::new();
        self.looked_at += children.len();
        for child in children {
            let full = child.path();
            let relative = path.join(child.file_name());
            let Ok(metadata) = child.metadata() else {
                self.skipped += 1;
                continue;
            };
            if metadata.is_dir() && full != without {
                below.push(relative);
            } else if metadata.is_symlink() {
                match fs::read_link(&full) {
                    Ok(link) => self.entries.push(Entry { path: relative, kind: EntryKind::Symlink(link) }),
                    Err(_) => self.skipped += 1,
                }
            } else if metadata.is_file() {
                self.add_file(&full, relative, metadata.size(), bytes_max);
            } else {
                self.skipped += 1;
            }
        }
        below
    }

    fn add_file(&mut self, full: &Path, path: PathBuf, size: u64, bytes_max: u64) {
        if self.files >= FILES_MAX || self.bytes + size > bytes_max {
            self.limited = true;
        } else if fs::File::open(full).is_err() {
            self.skipped += 1;
        } else {
            self.files += 1;
            self.bytes += size;
            self.entries.push(Entry { path, kind: EntryKind::File(size) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_stand_before_their_contents() {
        let source = tempfile::tempdir().unwrap();
        fs::create_dir_all(source.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("nowhere", source.path().join("a/link")).unwrap();
        for number in 0..20 {
            fs::write(source.path().join(format!("a/b/small{number:02}")), vec![1; 100]).unwrap();
        }
        fs::write(source.path().join("a/large"), vec![2; 5000]).unwrap();
        let selection = Selection::of(source.path(), Path::new("/nowhere"), 1 << 20).unwrap();
        assert_eq!((selection.files, selection.bytes, selection.limited), (21, 7000, false));
        let position =
            |path: &str| selection.entries.iter().position(|entry| entry.path == Path::new(path)).expect("it is there");
        assert!(position("a") < position("a/b") && position("a/b") < position("a/b/small00"));
        assert!(position("a") < position("a/link"));
    }

    #[test]
    fn a_source_without_files_is_no_failure_and_one_that_is_not_there_is() {
        let source = tempfile::tempdir().unwrap();
        let selection = Selection::of(source.path(), Path::new("/nowhere"), 1 << 20).unwrap();
        assert_eq!((selection.files, selection.entries.len()), (0, 0));
        assert!(Selection::of(&source.path().join("none"), Path::new("/nowhere"), 1 << 20).is_err());
        fs::write(source.path().join("file"), b"").unwrap();
        assert!(Selection::of(&source.path().join("file"), Path::new("/nowhere"), 1 << 20).is_err());
    }

    #[test]
    fn the_limit_of_bytes_is_kept_and_said() {
        let source = tempfile::tempdir().unwrap();
        for number in 0..10 {
            fs::write(source.path().join(format!("{number}")), vec![1; 1000]).unwrap();
        }
        let selection = Selection::of(source.path(), Path::new("/nowhere"), 3500).unwrap();
        assert_eq!((selection.files, selection.bytes, selection.limited), (3, 3000, true));
    }
}
