//! A place in memory to be measured.

use polymux_tier::TierError;
use polymux_tier::measure::{Ground, Way};
use polymux_types::sync::RwLock;

/// Private bytes in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryGround {
    bytes: RwLock<Vec<u8>>,
}

fn place(offset: u64, length: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).expect("a simulated tier fits in memory");
    start..start + length
}

impl Ground for MemoryGround {
    fn way(&self) -> Way {
        Way::Memory
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), TierError> {
        let (mut bytes, place) = (self.bytes.write(), place(offset, data.len()));
        if bytes.len() < place.end {
            bytes.resize(place.end, 0);
        }
        bytes[place].copy_from_slice(data);
        Ok(())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        let bytes = self.bytes.read();
        let found = bytes.get(place(offset, buffer.len()));
        let found = found.ok_or(TierError::Unsupported("reading what was never written"))?;
        buffer.copy_from_slice(found);
        Ok(())
    }

    fn flush(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn forget(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(self.bytes.read().len() as u64)
    }
}
