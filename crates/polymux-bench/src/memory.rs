//! Resident memory of this process, as the kernel counts it, and the free memory of a machine that may be a guest.

use std::fs;
use std::io::Write;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};

/// Resident bytes now and at most since the last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Now (`VmRSS`).
    pub now: u64,
    /// The peak (`VmHWM`).
    pub peak: u64,
}

/// Reads both figures.
///
/// # Errors
/// Where the kernel does not give them.
pub fn resident() -> Result<Resident> {
    let text = fs::read_to_string("/proc/self/status")?;
    Ok(Resident { now: field(&text, "VmRSS:")?, peak: field(&text, "VmHWM:")? })
}

/// Resets the peak to the current resident size.
///
/// # Errors
/// Where the kernel refuses.
pub fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("the peak of resident memory cannot be reset")
}

/// Writes to free memory once and frees it again: up to `bytes`, and at most half of the free memory. Returns the bytes
/// written. As devices in memory are, they are charged to the control group of this process.
///
/// A hypervisor backs a page of its guest at the first write to it, which costs more than a copy. Without this, the first use of
/// each page of a device in memory is charged to the side that makes it. A hypervisor that takes freed pages back makes it useless.
///
/// # Errors
/// Where the kernel gives no memory.
pub fn touch(bytes: u64) -> Result<u64> {
    const PIECE: usize = 1 << 20;
    let free = field(&fs::read_to_string("/proc/meminfo")?, "MemFree:")?;
    let pieces = bytes.min(free / 2) / PIECE as u64;
    let mut file = fs::File::from(memfd_create("touched", MemfdFlags::CLOEXEC)?);
    let piece = vec![1_u8; PIECE];
    for _ in 0..pieces {
        file.write_all(&piece).context("free memory")?;
    }
    Ok(pieces * PIECE as u64)
}

/// Bytes that a line of such a table of the kernel tells in KiB.
///
/// # Errors
/// Where it has no such line.
pub fn field(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    Ok(number.with_context(|| format!("the kernel does not tell {name}"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_memory_is_touched_than_was_asked_for() {
        assert_eq!(touch(0).unwrap(), 0);
        assert!(touch(5 << 20).unwrap() <= 5 << 20);
        assert_eq!(touch((1 << 20) - 1).unwrap(), 0);
    }

    #[test]
    fn the_peak_follows_an_allocation_and_can_be_reset() {
        let before = resident().unwrap();
        let block = vec![1_u8; 64 * 1024 * 1024];
        let during = resident().unwrap();
        assert!(during.peak >= before.now + 60 * 1024 * 1024, "{before:?} {during:?}");
        drop(block);
        reset_peak().unwrap();
        assert!(resident().unwrap().peak < during.peak);
    }
}
