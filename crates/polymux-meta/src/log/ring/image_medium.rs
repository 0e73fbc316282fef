//! The image of a log in memory, for tests that only read it.

use std::io;

use crate::log::medium::LogMedium;

/// Header and ring, byte by byte.
pub(super) struct ImageMedium(pub(super) Vec<u8>);

impl LogMedium for ImageMedium {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        bytes.copy_from_slice(&self.0[start..start + bytes.len()]);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_durable(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn description(&self) -> String {
        "an image".to_owned()
    }
}
