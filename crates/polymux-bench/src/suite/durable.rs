//! How a workload that changed something ends: durably, on every side in the same way.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The steps of [`end`], in words, for reports.
pub const IN_WORDS: &str = "syncfs of the mount, fsync of a last new file, syncfs of the devices below";

/// Makes everything durable that was done below a directory.
///
/// The kernel does not hand syncfs of a mount on to its FUSE server, so that syncfs alone would let mergerfs and Polymux end
/// with bytes in memory. Hence: syncfs of the mount, which writes dirty pages back; fsync of a file that is made last, which
/// reaches the server and takes the log of names with it (Polymux has one, and it is durable up to there); and syncfs of the
/// devices, where the bytes are. The native side does the same calls.
///
/// # Errors
/// Whatever the file systems report.
pub fn end(directory: &Path, devices: &[PathBuf]) -> Result<()> {
    rustix::fs::syncfs(File::open(directory)?)?;
    let last = directory.join(".last");
    File::create(&last).and_then(|file| file.sync_all()).with_context(|| last.display().to_string())?;
    for device in devices {
        rustix::fs::syncfs(File::open(device)?)?;
    }
    Ok(())
}

/// Removes the file that [`end`] made.
///
/// # Errors
/// Whatever the file system reports.
pub fn forget_end(directory: &Path) -> Result<()> {
    Ok(fs::remove_file(directory.join(".last"))?)
}
