//! Files whose every block says which block it is, and who wrote it last.
//!
//! Invariant: all 4,096 bytes of a block follow from its number and its generation, so that a block that was lost, mixed up,
//! half written or written twice is found by its reader. The initial content of a file is generation 0.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::noise::Noise;
use crate::parallel;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes of a request while a file is made.
const REQUEST_BYTES: usize = 1 << 20;

/// The words of a block: an arithmetic series from a start and with a step of its own.
fn series(block: u64, generation: u64) -> (u64, u64) {
    let mut noise = Noise::new(block.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ generation.rotate_left(40));
    (noise.next_number(), noise.next_number() | 1)
}

/// Fills a buffer of whole blocks, of which the first has this number.
pub fn fill(buffer: &mut [u8], block: u64, generation: u64) {
    for (number, bytes) in (block..).zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
        let (mut word, step) = series(number, generation);
        for place in bytes.chunks_exact_mut(8) {
            place.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(step);
        }
    }
}

/// Whether a buffer has the content written by [`fill`].
#[must_use]
pub fn is_filled(buffer: &[u8], block: u64, generation: u64) -> bool {
    (block..).zip(buffer.chunks_exact(BLOCK_BYTES)).all(|(number, bytes)| {
        let (start, step) = series(number, generation);
        let mut word = start;
        bytes.chunks_exact(8).all(|place| {
            let is_right = *place == word.to_le_bytes();
            word = word.wrapping_add(step);
            is_right
        })
    })
}

/// Checks that a buffer has the content written by [`fill`].
///
/// # Errors
/// Where it has not, with the block.
pub fn verify(buffer: &[u8], block: u64, generation: u64) -> Result<()> {
    ensure!(is_filled(buffer, block, generation), "block {block} is not what was written ({generation})");
    Ok(())
}

/// Makes a file of so many blocks, one after the other, durably.
///
/// # Errors
/// Whatever the file system reports.
pub fn write_file(path: &Path, blocks: u64) -> Result<()> {
    write_file_by(path, blocks, 1)
}

/// As [`write_file`], by several threads, each of which writes a part of the file.
///
/// # Errors
/// As [`write_file`].
pub fn write_file_by(path: &Path, blocks: u64, threads: u16) -> Result<()> {
    let open = OpenOptions::new().write(true).create(true).truncate(true).open(path);
    let file = open.with_context(|| path.display().to_string())?;
    let part = blocks.div_ceil(u64::from(threads));
    let parts: Vec<_> =
        (0..u64::from(threads)).map(|thread| thread * part..((thread + 1) * part).min(blocks)).collect();
    parallel::run(parts, |_, part| write_blocks(&file, part)).with_context(|| path.display().to_string())?;
    file.sync_all().with_context(|| path.display().to_string())
}

fn write_blocks(file: &File, blocks: Range<u64>) -> Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES];
    let per_request = (REQUEST_BYTES / BLOCK_BYTES) as u64;
    let mut block = blocks.start;
    while block < blocks.end {
        let now = per_request.min(blocks.end - block);
        let bytes = &mut buffer[..usize::try_from(now)? * BLOCK_BYTES];
        fill(bytes, block, 0);
        file.write_all_at(bytes, block * BLOCK_BYTES as u64)?;
        block += now;
    }
    Ok(())
}

/// Reads blocks whose generations are given, from the first on, and verifies them.
///
/// # Errors
/// Whatever the file system reports; a block that is another one.
pub fn verify_blocks(file: &File, first: u64, generations: &[u64]) -> Result<()> {
    let mut buffer = vec![0; BLOCK_BYTES];
    for (block, generation) in (first..).zip(generations) {
        file.read_exact_at(&mut buffer, block * BLOCK_BYTES as u64)?;
        verify(&buffer, block, *generation)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_told_from_every_other_and_from_itself_before() {
        let mut buffer = vec![0; 2 * BLOCK_BYTES];
        fill(&mut buffer, 7, 3);
        assert!(verify(&buffer, 7, 3).is_ok());
        assert!(!is_filled(&buffer, 8, 3) && !is_filled(&buffer, 7, 4));
        assert!(is_filled(&buffer[BLOCK_BYTES..], 8, 3));
        buffer[BLOCK_BYTES + 4095] ^= 1;
        assert!(!is_filled(&buffer, 7, 3) && is_filled(&buffer[..BLOCK_BYTES], 7, 3));
        assert!(!is_filled(&[0; BLOCK_BYTES], 0, 0), "zeros are no block");
    }

    #[test]
    fn a_file_that_was_made_is_verified_to_its_last_block() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        write_file(&path, 300).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 300 * BLOCK_BYTES as u64);
        verify_blocks(&file, 0, &[0; 300]).unwrap();
        file.write_all_at(b"x", 299 * BLOCK_BYTES as u64).unwrap();
        assert!(verify_blocks(&file, 290, &[0; 10]).unwrap_err().to_string().contains("block 299"));
    }
}
