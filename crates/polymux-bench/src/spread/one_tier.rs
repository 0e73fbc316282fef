//! Files that one tier holds and carries: the overhead of a policy that may spread files.
//!
//! Method:
//! * No file reaches the size from which on it may be spread, and the devices have no limits.
//! * Writes end durably. Reads are cold, after everything was unmounted, and their data is compared with the written data.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};

use super::SpreadArguments;
use super::pairs::{self, Figures, milliseconds};
use super::stand::{self, Requests, Stand};
use super::volume::Volume;
use crate::machine::drop_caches;
use crate::noise::Noise;
use crate::report::Report;
use crate::suite::durable;

const FILES: usize = 12;
const FILE_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = (FILE_BYTES / BLOCK_BYTES) as u64;
/// Times that all files are written in a turn, and read cold: one alone says little.
const REPETITIONS: usize = 4;
/// Times that blocks are read at random after each of these cold starts: natively, too, one time takes between 340 and 680 ms, by chance.
const TURNS_OF_RANDOM_READS: usize = 8;
/// Blocks that are written or read at random,
const RANDOM_BLOCKS: usize = 12_000;
/// and after how many of them the file is synced.
const WRITES_PER_SYNC: usize = 16;

const FIGURES: [&str; 4] = [
    "write 12 files of 16 MiB, durable, 4 times",
    "12,000 random 4 KiB writes, fsync after each 16",
    "read all files, cold, 4 times",
    "12,000 random 4 KiB reads, cold, 32 times",
];

/// Capacity of each device.
const DEVICE_BYTES: u64 = 1 << 30;

/// Measures.
///
/// # Errors
/// Whatever the devices, the program or the file systems report.
pub fn run(arguments: &SpreadArguments, report: &mut Report) -> Result<()> {
    let stand = Stand::make(arguments, stand::profiles(arguments, Requests::Unlimited), DEVICE_BYTES)?;
    let content = Noise::new(0x51ed_270b_9c4f_a3d7).bytes(FILE_BYTES);
    let figures = Figures { title: "files that one tier holds", names: &FIGURES };
    pairs::measure(&stand, &figures, report, |volume| once(&stand, volume, &content))
}

fn once(stand: &Stand, volume: &mut Volume, content: &[u8]) -> Result<Vec<f64>> {
    volume.start_cold(&stand.devices)?;
    let directory = volume.mount_point().to_owned();
    let devices: Vec<PathBuf> = stand.devices.all().into_iter().map(|device| device.mount_point).collect();
    let paths: Vec<PathBuf> = (0..FILES).map(|number| directory.join(format!("file-{number:02}"))).collect();
    let mut written = 0.0;
    for _ in 0..REPETITIONS {
        paths.iter().filter(|path| path.exists()).try_for_each(fs::remove_file)?;
        let begun = Instant::now();
        for path in &paths {
            File::create_new(path)?.write_all_at(content, 0)?;
        }
        durable::end(&directory, &devices)?;
        written += milliseconds(begun);
        durable::forget_end(&directory)?;
    }
    let begun = Instant::now();
    overwrite(&paths, content)?;
    let overwritten = milliseconds(begun);
    let mut read = 0.0;
    for _ in 0..REPETITIONS {
        volume.start_cold(&stand.devices)?;
        let begun = Instant::now();
        for path in &paths {
            ensure!(fs::read(path)? == content, "{} is not what was written", path.display());
        }
        read += milliseconds(begun);
    }
    let mut read_in_disorder = 0.0;
    for _ in 0..REPETITIONS {
        volume.start_cold(&stand.devices)?;
        for _ in 0..TURNS_OF_RANDOM_READS {
            drop_caches()?;
            let begun = Instant::now();
            read_at_random(&paths, content)?;
            read_in_disorder += milliseconds(begun);
        }
    }
    for path in &paths {
        fs::remove_file(path)?;
    }
    volume.stop()?;
    Ok(vec![written, overwritten, read, read_in_disorder])
}

/// Places of blocks, the same in each turn: the file and the offset in it.
fn random_places() -> impl Iterator<Item = (usize, usize)> {
    let mut noise = Noise::new(0x2c1b_3c6d_297a_2d39);
    std::iter::repeat_with(move || {
        let file = usize::try_from(noise.below(FILES as u64)).expect("an index fits");
        let block = usize::try_from(noise.below(BLOCKS)).expect("an index fits");
        (file, block * BLOCK_BYTES)
    })
    .take(RANDOM_BLOCKS)
}

/// Writes blocks as they are already, so that every reading compares the same bytes.
fn overwrite(paths: &[PathBuf], content: &[u8]) -> Result<()> {
    let open: Vec<File> = open(paths, File::options().write(true))?;
    for (number, (file, offset)) in random_places().enumerate() {
        open[file].write_all_at(&content[offset..offset + BLOCK_BYTES], offset as u64)?;
        if (number + 1) % WRITES_PER_SYNC == 0 {
            open[file].sync_data()?;
        }
    }
    open.iter().try_for_each(File::sync_data)?;
    Ok(())
}

fn read_at_random(paths: &[PathBuf], content: &[u8]) -> Result<()> {
    let open: Vec<File> = open(paths, File::options().read(true))?;
    let mut block = [0; BLOCK_BYTES];
    for (file, offset) in random_places() {
        open[file].read_exact_at(&mut block, offset as u64)?;
        ensure!(block == content[offset..offset + BLOCK_BYTES], "other bytes at {offset}");
    }
    Ok(())
}

fn open(paths: &[impl AsRef<Path>], options: &fs::OpenOptions) -> Result<Vec<File>> {
    Ok(paths.iter().map(|path| options.open(path)).collect::<std::io::Result<_>>()?)
}
