//! Copying the selection onto the volume, and comparing it with its source byte by byte.
//!
//! Invariant: the comparison reads both sides anew and fails at the first difference, with the path.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::SeekFrom;

use super::selection::{Entry, EntryKind, Selection};

/// Bytes per read or write.
const CHUNK_SIZE: usize = 1024 * 1024;

/// Copies and compares one selection.
pub struct Transfer<'a> {
    /// Where the files come from.
    pub source: &'a Path,
    /// Where they are copied to.
    pub target: &'a Path,
    /// Which files.
    pub selection: &'a Selection,
    /// A file of the copy that got the bytes of another source file appended, both below the source.
    pub appended: Option<(PathBuf, PathBuf)>,
    /// Set when the user wants to stop.
    pub interrupted: &'a AtomicBool,
}

impl Transfer<'_> {
    /// Copies everything: data with its holes, links, permissions and modification times, and as root the owners.
    pub fn copy(&self) -> Result<()> {
        let progress = self.progress("copying");
        for entry in &self.selection.entries {
            self.check_interrupted()?;
            self.copy_entry(entry, &progress).with_context(|| format!("copying {}", entry.path.display()))?;
        }
        // Last, and the deepest first, because what is made in a directory changes its time.
        for entry in self.selection.entries.iter().rev().filter(|entry| entry.kind == EntryKind::Directory) {
            let metadata = self.source.join(&entry.path).symlink_metadata()?;
            let target = self.target.join(&entry.path);
            copy_owner(&target, &metadata)?;
            fs::set_permissions(&target, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
            File::open(&target)?.set_times(FileTimes::new().set_modified(metadata.modified()?))?;
        }
        progress.finish_and_clear();
        Ok(())
    }

    fn copy_entry(&self, entry: &Entry, progress: &ProgressBar) -> Result<()> {
        let (source, target) = (self.source.join(&entry.path), self.target.join(&entry.path));
        match &entry.kind {
            EntryKind::Directory => fs::create_dir(&target)?,
            EntryKind::Symlink(link) => {
                std::os::unix::fs::symlink(link, &target)?;
                copy_owner(&target, &source.symlink_metadata()?)?;
            }
            EntryKind::File(_) => {
                copy_file(&source, &target, progress)?;
            }
        }
        Ok(())
    }

    /// Compares everything; returns how many bytes were compared.
    pub fn verify(&self) -> Result<u64> {
        let progress = self.progress("comparing");
        let mut bytes = 0;
        for entry in &self.selection.entries {
            self.check_interrupted()?;
            bytes +=
                self.verify_entry(entry, &progress).with_context(|| format!("comparing {}", entry.path.display()))?;
        }
        progress.finish_and_clear();
        Ok(bytes)
    }

    fn verify_entry(&self, entry: &Entry, progress: &ProgressBar) -> Result<u64> {
        let (source, target) = (self.source.join(&entry.path), self.target.join(&entry.path));
        let (original, copy) = (source.symlink_metadata()?, target.symlink_metadata()?);
        if original.file_type() != copy.file_type() {
            bail!("the copy is of another type");
        }
        if rustix::process::geteuid().is_root() && (original.uid(), original.gid()) != (copy.uid(), copy.gid()) {
            bail!("the copy has another owner");
        }
        match &entry.kind {
            EntryKind::Symlink(link) if fs::read_link(&target)? != *link => bail!("the link leads elsewhere"),
            EntryKind::Symlink(_) => return Ok(0),
            _ if original.mode() != copy.mode() => {
                bail!("permissions are {:o}, not {:o}", copy.mode() & 0o7777, original.mode() & 0o7777)
            }
            _ => {}
        }
        let appended = self.appended.as_ref().filter(|(path, _)| *path == entry.path);
        if appended.is_none() && original.modified()? != copy.modified()? {
            bail!("the modification time differs");
        }
        if entry.kind == EntryKind::Directory {
            return Ok(0);
        }
        let mut expected: Box<dyn Read> = Box::new(File::open(&source)?);
        if let Some((_, tail)) = appended {
            expected = Box::new(expected.chain(File::open(self.source.join(tail))?));
        }
        compare(expected, File::open(&target)?, progress)
    }

    fn check_interrupted(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    fn progress(&self, what: &'static str) -> ProgressBar {
        let style = "  {msg} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        // The style is a constant that is well-formed; a bar of the default style is good enough otherwise.
        let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(self.selection.bytes).with_style(style).with_message(what)
    }
}

fn copy_file(source: &Path, target: &Path, progress: &ProgressBar) -> Result<()> {
    let from = File::open(source)?;
    let metadata = from.metadata()?;
    let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target)?;
    let mut position = 0;
    while let Some((start, end)) = next_data(&from, position, metadata.size())? {
        copy_range(&from, &to, start, end)?;
        progress.inc(end - position);
        position = end;
    }
    to.set_len(metadata.size())?;
    copy_owner(target, &metadata)?;
    to.set_permissions(fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    to.set_times(FileTimes::new().set_modified(metadata.modified()?))?;
    Ok(())
}

/// The next run of bytes that is not a hole; all of the rest where the file system cannot tell.
fn next_data(file: &File, position: u64, size: u64) -> Result<Option<(u64, u64)>> {
    if position >= size {
        return Ok(None);
    }
    match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Ok(start) => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
            Ok(Some((start, end.clamp(start, size))).filter(|(start, end)| start < end))
        }
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(_) => Ok(Some((position, size))),
    }
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_SIZE];
    let mut offset = start;
    while offset < end {
        let wanted = usize::try_from(end - offset).unwrap_or(CHUNK_SIZE).min(CHUNK_SIZE);
        let length = from.read_at(&mut buffer[..wanted], offset)?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the source became shorter"));
        }
        to.write_all_at(&buffer[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}

/// Gives the copy the owner of the original, which only root may.
fn copy_owner(target: &Path, original: &fs::Metadata) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(target, Some(original.uid()), Some(original.gid()))?;
    }
    Ok(())
}

fn compare(mut expected: impl Read, mut found: impl Read, progress: &ProgressBar) -> Result<u64> {
    let (mut left, mut right) = (vec![0; CHUNK_SIZE], vec![0; CHUNK_SIZE]);
    let mut offset = 0;
    loop {
        let (length, other) = (fill(&mut expected, &mut left)?, fill(&mut found, &mut right)?);
        if length != other {
            bail!("the copy has {} bytes, the source has {}", offset + other as u64, offset + length as u64);
        }
        if let Some(index) = (0..length).find(|index| left[*index] != right[*index]) {
            bail!("byte {} is {:#04x}, not {:#04x}", offset + index as u64, right[index], left[index]);
        }
        if length == 0 {
            return Ok(offset);
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
        let transfer = Transfer {
            source: &source,
            target: &target,
            selection: &selection,
            appended: None,
            interrupted: &interrupted,
        };
        transfer.copy().unwrap();
        assert_eq!(transfer.verify().unwrap(), (10 << 20) + 8);
        assert!(fs::metadata(target.join("sparse")).unwrap().blocks() < 1000, "holes stay holes");
        let modified = fs::metadata(source.join("sub/file")).unwrap().modified().unwrap();
        fs::write(target.join("sub/file"), b"contentz").unwrap();
        File::open(target.join("sub/file")).unwrap().set_times(FileTimes::new().set_modified(modified)).unwrap();
        let error = format!("{:#}", transfer.verify().unwrap_err());
        assert!(error.contains("sub/file") && error.contains("byte 7"), "{error}");
        interrupted.store(true, Ordering::Relaxed);
        assert!(transfer.verify().unwrap_err().to_string().contains("interrupted"));
    }
}
