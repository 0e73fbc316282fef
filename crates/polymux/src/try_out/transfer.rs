//! Copying the selection onto the volume, and comparing it with its source byte by byte.
//!
//! Invariants:
//! * The comparison reads both sides anew and fails at the first difference, with the path.
//! * A source that cannot be read, or that changes meanwhile, is left out and counted; it is no failure of the volume.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::SeekFrom;

use super::own_file::check_interrupted;
use super::selection::{Entry, EntryKind, Selection};

/// Bytes per read or write.
const CHUNK_SIZE: usize = 1024 * 1024;

/// Files from this size on are synced when they are copied; smaller ones are complete once the log is.
const SYNCED_SIZE_MIN: u64 = 1024 * 1024;

/// Copies and compares one selection.
pub struct Transfer<'a> {
    /// Where the files come from.
    pub source: &'a Path,
    /// Where they are copied to.
    pub target: &'a Path,
    /// Which files.
    pub selection: &'a Selection,
    /// Set when the user wants to stop.
    pub interrupted: &'a AtomicBool,
    /// The copied entries.
    copied: Vec<Copied<'a>>,
}

/// An entry that was copied.
struct Copied<'a> {
    entry: &'a Entry,
    /// The original as it was before it was copied.
    original: fs::Metadata,
}

/// Result of copying or comparing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Regular files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Entries whose source could not be read, or changed.
    pub left_out: usize,
}

/// Whether a source could be read.
enum Source<T> {
    Read(T),
    Unreadable,
}

/// Unwraps a result of reading the source, or ends the function: the entry is left out.
macro_rules! read_or_leave_out {
    ($read:expr) => {
        match $read {
            Ok(value) => value,
            Err(_) => return Ok(Source::Unreadable),
        }
    };
}

impl<'a> Transfer<'a> {
    /// Nothing is copied yet.
    pub fn new(source: &'a Path, target: &'a Path, selection: &'a Selection, interrupted: &'a AtomicBool) -> Self {
        Self { source, target, selection, interrupted, copied: Vec::new() }
    }

    /// Copies everything: data with its holes, links, permissions and modification times, and as root the owners.
    pub fn copy(&mut self) -> Result<Tally> {
        let progress = self.progress("copying");
        let mut tally = Tally::default();
        for entry in &self.selection.entries {
            check_interrupted(self.interrupted)?;
            let outcome = self.copy_entry(entry, &progress);
            match outcome.with_context(|| format!("copying {}", entry.path.display()))? {
                Source::Read(original) => {
                    if original.is_file() {
                        tally.files += 1;
                        tally.bytes += original.size();
                    }
                    self.copied.push(Copied { entry, original });
                }
                Source::Unreadable => tally.left_out += 1,
            }
        }
        // Last, and the deepest first, because an entry that is made in a directory changes its time.
        for Copied { entry, original } in self.copied.iter().rev() {
            if entry.kind == EntryKind::Directory {
                let target = self.target.join(&entry.path);
                finish_directory(&target, original).with_context(|| format!("copying {}", entry.path.display()))?;
            }
        }
        progress.finish_and_clear();
        Ok(tally)
    }

    fn copy_entry(&self, entry: &Entry, progress: &ProgressBar) -> Result<Source<fs::Metadata>> {
        let (source, target) = (self.source.join(&entry.path), self.target.join(&entry.path));
        match &entry.kind {
            EntryKind::Directory => {
                // Made in any case: its entries may be readable.
                fs::create_dir(&target)?;
                Ok(Source::Read(read_or_leave_out!(source.symlink_metadata())))
            }
            EntryKind::Symlink(link) => {
                let original = read_or_leave_out!(source.symlink_metadata());
                std::os::unix::fs::symlink(link, &target)?;
                copy_owner(&target, &original)?;
                Ok(Source::Read(original))
            }
            EntryKind::File(_) => {
                let copied = copy_file(&source, &target, progress)?;
                if matches!(copied, Source::Unreadable) && target.symlink_metadata().is_ok() {
                    fs::remove_file(&target)?;
                }
                Ok(copied)
            }
        }
    }

    /// Compares everything that was copied.
    pub fn verify(&self) -> Result<Tally> {
        let progress = self.progress("comparing");
        let mut tally = Tally::default();
        for copied in &self.copied {
            check_interrupted(self.interrupted)?;
            let path = &copied.entry.path;
            let outcome = self.verify_entry(copied, &progress);
            // Looked at behind the comparison: whatever it found stands only where the original is as it was.
            if !self.is_as_it_was(copied) {
                tally.left_out += 1;
                continue;
            }
            match outcome.with_context(|| format!("comparing {}", path.display()))? {
                Source::Read(bytes) => {
                    tally.files += usize::from(copied.original.is_file());
                    tally.bytes += bytes;
                }
                Source::Unreadable => tally.left_out += 1,
            }
        }
        progress.finish_and_clear();
        Ok(tally)
    }

    fn is_as_it_was(&self, copied: &Copied<'_>) -> bool {
        let version = |metadata: &fs::Metadata| {
            (metadata.ctime(), metadata.ctime_nsec(), metadata.mtime(), metadata.mtime_nsec(), metadata.size())
        };
        let now = self.source.join(&copied.entry.path).symlink_metadata();
        now.is_ok_and(|now| version(&now) == version(&copied.original))
    }

    fn verify_entry(&self, copied: &Copied<'_>, progress: &ProgressBar) -> Result<Source<u64>> {
        let Copied { entry, original } = copied;
        let target = self.target.join(&entry.path);
        let copy = target.symlink_metadata()?;
        if original.file_type() != copy.file_type() {
            bail!("the copy is of another type");
        }
        if rustix::process::geteuid().is_root() && (original.uid(), original.gid()) != (copy.uid(), copy.gid()) {
            bail!("the copy has another owner");
        }
        if let EntryKind::Symlink(link) = &entry.kind {
            if fs::read_link(&target)? != *link {
                bail!("the link leads elsewhere");
            }
            return Ok(Source::Read(0));
        }
        let (expected, found) = (permissions_of(original), copy.mode() & 0o7777);
        if expected != found {
            bail!("permissions are {found:o}, not {expected:o}");
        }
        if original.modified()? != copy.modified()? {
            bail!("the modification time differs");
        }
        if entry.kind == EntryKind::Directory {
            return Ok(Source::Read(0));
        }
        let expected = read_or_leave_out!(File::open(self.source.join(&entry.path)));
        compare(expected.take(original.size()), File::open(&target)?, progress)
    }

    fn progress(&self, what: &'static str) -> ProgressBar {
        let style = "  {msg} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        // The style is a constant that is well-formed; a bar of the default style is good enough otherwise.
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(self.selection.bytes).with_style(style).with_message(what)
    }
}

/// Permissions of a copy. A user owns the copies of files of other owners, and needs access to them.
fn permissions_of(original: &fs::Metadata) -> u32 {
    let own = if original.is_dir() { 0o700 } else { 0o400 };
    let added = if rustix::process::geteuid().is_root() { 0 } else { own };
    original.mode() & 0o7777 | added
}

fn finish_directory(target: &Path, original: &fs::Metadata) -> Result<()> {
    let opened = File::open(target)?;
    copy_owner(target, original)?;
    opened.set_permissions(fs::Permissions::from_mode(permissions_of(original)))?;
    opened.set_times(FileTimes::new().set_modified(original.modified()?))?;
    Ok(opened.sync_all()?)
}

fn copy_file(source: &Path, target: &Path, progress: &ProgressBar) -> Result<Source<fs::Metadata>> {
    let from = read_or_leave_out!(File::open(source));
    let original = read_or_leave_out!(from.metadata());
    let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target)?;
    let mut buffer = vec![0; CHUNK_SIZE.min(usize::try_from(original.size()).unwrap_or(CHUNK_SIZE))];
    let mut position = 0;
    while let Some((start, end)) = next_data(&from, position, original.size()) {
        let mut offset = start;
        while offset < end {
            let wanted = usize::try_from(end - offset).unwrap_or(CHUNK_SIZE).min(buffer.len());
            let length = read_or_leave_out!(from.read_at(&mut buffer[..wanted], offset));
            if length == 0 {
                return Ok(Source::Unreadable);
            }
            to.write_all_at(&buffer[..length], offset)?;
            offset += length as u64;
        }
        progress.inc(end - position);
        position = end;
    }
    to.set_len(original.size())?;
    copy_owner(target, &original)?;
    to.set_permissions(fs::Permissions::from_mode(permissions_of(&original)))?;
    to.set_times(FileTimes::new().set_modified(original.modified()?))?;
    if original.size() >= SYNCED_SIZE_MIN {
        to.sync_all()?;
    }
    Ok(Source::Read(original))
}

/// The next run of bytes that is not a hole; all of the rest where the file system cannot tell.
fn next_data(file: &File, position: u64, size: u64) -> Option<(u64, u64)> {
    if position >= size {
        return None;
    }
    match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Ok(start) => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
            Some((start, end.clamp(start, size))).filter(|(start, end)| start < end)
        }
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => Some((position, size)),
    }
}

/// Gives the copy the owner of the original, which only root may.
fn copy_owner(target: &Path, original: &fs::Metadata) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(target, Some(original.uid()), Some(original.gid()))?;
    }
    Ok(())
}

fn compare(mut expected: impl Read, mut found: impl Read, progress: &ProgressBar) -> Result<Source<u64>> {
    let (mut left, mut right) = (vec![0; CHUNK_SIZE], vec![0; CHUNK_SIZE]);
    let mut offset = 0;
    loop {
        let length = read_or_leave_out!(fill(&mut expected, &mut left));
        let other = fill(&mut found, &mut right)?;
        if length != other {
            bail!("the copy has {} bytes, the source has {}", offset + other as u64, offset + length as u64);
        }
        if let Some(index) = (0..length).find(|index| left[*index] != right[*index]) {
            bail!("byte {} is {:#04x}, not {:#04x}", offset + index as u64, right[index], left[index]);
        }
        if length == 0 {
            return Ok(Source::Read(offset));
        }
        offset += length as u64;
        progress.inc(length as u64);
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..])? {
            0 => break,
            length => filled += length,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_copy_is_whole_and_each_kind_of_difference_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("source"), directory.path().join("target"));
        fs::create_dir_all(source.join("sub")).unwrap();
        fs::create_dir(&target).unwrap();
        fs::write(source.join("sub/file"), b"contents").unwrap();
        let sparse = File::create(source.join("sparse")).unwrap();
        sparse.set_len(10 << 20).unwrap();
        sparse.write_all_at(b"middle", 5 << 20).unwrap();
        std::os::unix::fs::symlink("sub/file", source.join("link")).unwrap();
        let selection = Selection::of(&source, Path::new("/nowhere"), 1 << 30).unwrap();
        let interrupted = AtomicBool::new(false);
        let mut transfer = Transfer::new(&source, &target, &selection, &interrupted);
        transfer.copy().unwrap();
        let whole = Tally { files: 2, bytes: (10 << 20) + 8, left_out: 0 };
        assert_eq!(transfer.verify().unwrap(), whole);
        assert!(fs::metadata(target.join("sparse")).unwrap().blocks() < 1000, "holes stay holes");
        let modified = fs::metadata(source.join("sub/file")).unwrap().modified().unwrap();
        fs::write(target.join("sub/file"), b"contentz").unwrap();
        File::open(target.join("sub/file")).unwrap().set_times(FileTimes::new().set_modified(modified)).unwrap();
        let error = format!("{:#}", transfer.verify().unwrap_err());
        assert!(error.contains("sub/file") && error.contains("byte 7"), "{error}");
        interrupted.store(true, Ordering::Relaxed);
        assert!(transfer.verify().unwrap_err().to_string().contains("interrupted"));
    }

    #[test]
    fn what_changes_or_disappears_while_it_is_copied_is_left_out_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("source"), directory.path().join("target"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&target).unwrap();
        for name in ["gone", "grows", "stays"] {
            fs::write(source.join(name), b"contents").unwrap();
        }
        let selection = Selection::of(&source, Path::new("/nowhere"), 1 << 30).unwrap();
        fs::remove_file(source.join("gone")).unwrap();
        let interrupted = AtomicBool::new(false);
        let mut transfer = Transfer::new(&source, &target, &selection, &interrupted);
        assert_eq!(transfer.copy().unwrap(), Tally { files: 2, bytes: 16, left_out: 1 });
        fs::write(source.join("grows"), b"contents and more").unwrap();
        assert_eq!(transfer.verify().unwrap(), Tally { files: 1, bytes: 8, left_out: 1 });
    }
}
