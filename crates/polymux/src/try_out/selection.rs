//! Which files of the source `try` copies, and in which order.
//!
//! Invariants of a [`Selection`]: a directory stands before what lies in it; only directories, links and regular files
//! that can be read are chosen; their sizes together stay below the limit.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Most files that are copied, so that a trial ends within a minute or two.
const FILES_MAX: usize = 10_000;

/// What an entry is.
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
    /// What it is.
    pub kind: EntryKind,
}

/// What is copied.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Directories and links, then files, in the order of copying.
    pub entries: Vec<Entry>,
    /// Number of regular files.
    pub files: usize,
    /// Bytes of the regular files.
    pub bytes: u64,
    /// Entries that were left out because they are special or cannot be read.
    pub skipped: usize,
    /// Whether the limits left something out.
    pub limited: bool,
}

impl Selection {
    /// Chooses from a directory, at most `bytes_max` bytes; `without` is not looked into.
    pub fn of(source: &Path, without: &Path, bytes_max: u64) -> Result<Self> {
        let mut selection = Self::default();
        let mut waiting = vec![PathBuf::new()];
        while let Some(directory) = waiting.pop() {
            let below = selection.add_directory(source, &directory, without, bytes_max)?;
            waiting.extend(below.into_iter().rev());
        }
        if selection.files == 0 {
            bail!("{} has no file that can be copied", source.display());
        }
        Ok(selection)
    }

    fn add_directory(&mut self, source: &Path, path: &Path, without: &Path, bytes_max: u64) -> Result<Vec<PathBuf>> {
        let full = source.join(path);
        let listed = fs::read_dir(&full).and_then(Iterator::collect::<std::io::Result<Vec<fs::DirEntry>>>);
        let mut children = match listed {
            Ok(children) => children,
            Err(error) if path.as_os_str().is_empty() => {
                return Err(error).with_context(|| format!("cannot read {}", full.display()));
            }
            Err(_) => {
                self.skipped += 1;
                return Ok(Vec::new());
            }
        };
        children.sort_by_key(fs::DirEntry::file_name);
        if !path.as_os_str().is_empty() {
            self.entries.push(Entry { path: path.to_owned(), kind: EntryKind::Directory });
        }
        let mut below = Vec::new();
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
                let kind = EntryKind::Symlink(fs::read_link(&full)?);
                self.entries.push(Entry { path: relative, kind });
            } else if metadata.is_file() {
                self.add_file(&full, relative, metadata.size(), bytes_max);
            } else {
                self.skipped += 1;
            }
        }
        Ok(below)
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

    /// Puts the files in an order in which a large one is being written when the fast tier runs full: small ones up to
    /// half of its capacity, then the largest, then the rest.
    pub fn order_for(&mut self, fast_capacity: u64) {
        let (mut files, mut ordered): (Vec<Entry>, Vec<Entry>) =
            self.entries.drain(..).partition(|entry| matches!(entry.kind, EntryKind::File(_)));
        files.sort_by_key(|entry| std::cmp::Reverse(size_of(entry)));
        let mut large: Vec<Entry> = Vec::new();
        let mut large_bytes = 0;
        let mut rest = Vec::new();
        for file in files {
            if large_bytes <= fast_capacity {
                large_bytes += size_of(&file);
                large.push(file);
            } else {
                rest.push(file);
            }
        }
        rest.sort_by(|a, b| a.path.cmp(&b.path));
        let mut before_bytes = 0;
        let split = rest.iter().position(|file| {
            before_bytes += size_of(file);
            before_bytes > fast_capacity / 2
        });
        let after = rest.split_off(split.unwrap_or(rest.len()));
        ordered.extend(rest);
        ordered.extend(large);
        ordered.extend(after);
        self.entries = ordered;
    }
}

fn size_of(entry: &Entry) -> u64 {
    match entry.kind {
        EntryKind::File(size) => size,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_stand_before_their_contents_and_large_files_where_the_tier_runs_full() {
        let source = tempfile::tempdir().unwrap();
        fs::create_dir_all(source.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("nowhere", source.path().join("a/link")).unwrap();
        for number in 0..20 {
            fs::write(source.path().join(format!("a/b/small{number:02}")), vec![1; 100]).unwrap();
        }
        fs::write(source.path().join("a/large"), vec![2; 5000]).unwrap();
        let mut selection = Selection::of(source.path(), Path::new("/nowhere"), 1 << 20).unwrap();
        assert_eq!((selection.files, selection.bytes, selection.limited), (21, 7000, false));
        selection.order_for(1000);
        let position =
            |path: &str| selection.entries.iter().position(|entry| entry.path == Path::new(path)).expect("it is there");
        assert!(position("a") < position("a/b") && position("a/b") < position("a/b/small00"));
        assert!(position("a/link") < position("a/b/small00"));
        assert!(position("a/large") > position("a/b/small04") && position("a/large") < position("a/b/small05"));
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
