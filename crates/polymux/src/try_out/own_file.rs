//! The file that a trial makes itself: larger than the fast tier, whatever the source has.
//!
//! Invariant: each block's bytes follow from its number, so that data that was read can be compared without a second copy.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use polymux_types::limits::BLOCK_SIZE;

/// Blocks per read or write.
const BLOCKS_PER_CHUNK: u64 = 256;

/// Bytes that are computed at once.
const WORD_SIZE: u64 = 8;

/// The file and how much of it was written.
pub struct OwnFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes, whole blocks.
    pub size: u64,
}

impl OwnFile {
    /// A file that is not there yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, size: 0 }
    }

    /// Appends bytes, whole blocks, and syncs them.
    pub fn extend(&mut self, bytes: u64, interrupted: &AtomicBool) -> Result<()> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&self.path)?;
        let end = self.size + bytes;
        while self.size < end {
            check_interrupted(interrupted)?;
            let chunk = chunk_at(self.size, end);
            file.write_all_at(&chunk, self.size)?;
            self.size += chunk.len() as u64;
        }
        Ok(file.sync_all()?)
    }

    /// Compares every byte; returns how many.
    pub fn verify(&self, interrupted: &AtomicBool) -> Result<u64> {
        let file = File::open(&self.path)?;
        let found = file.metadata()?.len();
        if found != self.size {
            bail!("{} has {found} bytes, not {}", self.path.display(), self.size);
        }
        let mut offset = 0;
        while offset < self.size {
            check_interrupted(interrupted)?;
            let expected = chunk_at(offset, self.size);
            let mut read = vec![0; expected.len()];
            file.read_exact_at(&mut read, offset)?;
            if let Some(index) = (0..read.len()).find(|index| read[*index] != expected[*index]) {
                bail!("byte {} of {} is wrong", offset + index as u64, self.path.display());
            }
            offset += expected.len() as u64;
        }
        Ok(offset)
    }
}

/// An error once the user wants to stop.
pub fn check_interrupted(interrupted: &AtomicBool) -> Result<()> {
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// The bytes from an offset on, a chunk of them at the most; both offsets are whole blocks.
fn chunk_at(offset: u64, end: u64) -> Vec<u8> {
    let end = end.min(offset + BLOCKS_PER_CHUNK * BLOCK_SIZE);
    let mut chunk = Vec::with_capacity(usize::try_from(end - offset).unwrap_or(0));
    for word in offset / WORD_SIZE..end / WORD_SIZE {
        chunk.extend_from_slice(&mix(word));
    }
    chunk
}

/// Bytes that no other word of the file has (the finalizer of splitmix64).
fn mix(word: u64) -> [u8; 8] {
    let mut value = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (value ^ (value >> 31)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_found_and_each_kind_of_difference_too() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = OwnFile::new(directory.path().join("file"));
        let interrupted = AtomicBool::new(false);
        file.extend(2 << 20, &interrupted).unwrap();
        file.extend(BLOCK_SIZE, &interrupted).unwrap();
        assert_eq!(file.verify(&interrupted).unwrap(), (2 << 20) + BLOCK_SIZE);
        let opened = OpenOptions::new().write(true).open(&file.path).unwrap();
        opened.write_all_at(b"other", 1 << 20).unwrap();
        assert!(file.verify(&interrupted).unwrap_err().to_string().contains("byte 1048576"));
        opened.set_len(5).unwrap();
        assert!(file.verify(&interrupted).unwrap_err().to_string().contains("has 5 bytes"));
    }
}
