//! Random bytes of the kernel.

use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result};

/// Bytes from the kernel's random source.
///
/// # Errors
/// It cannot be read.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("cannot read /dev/urandom")?;
    Ok(bytes)
}
