//! The record of a kernel that uses objects itself (key `K`), version 1 (docs/design/0017).

use super::frame::{Reader, Writer};
use crate::error::Error;
use crate::parts::BootId;

const VERSION: u8 = 1;

/// Value of the `K` record: a mount under this boot of a kernel let it use objects directly, and did not see all of them
/// released. Missing where none did.
pub fn encode(boot: BootId) -> Vec<u8> {
    let mut writer = Writer::new(VERSION);
    for byte in boot.0 {
        writer.u8(byte);
    }
    writer.finish()
}

/// Reads the boot of the kernel that may still use objects.
pub fn decode(record: &[u8]) -> Result<BootId, Error> {
    let mut reader = Reader::new("the kernel that uses objects", record, VERSION)?;
    let mut boot = [0; 16];
    for byte in &mut boot {
        *byte = reader.u8()?;
    }
    reader.finish()?;
    Ok(BootId(boot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_reads_back_as_it_was_written() {
        let boot = BootId(std::array::from_fn(|index| u8::try_from(index).unwrap()));
        assert_eq!(decode(&encode(boot)).unwrap(), boot);
        assert!(decode(&[]).is_err());
    }
}
