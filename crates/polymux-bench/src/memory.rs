//! Resident memory of this process, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

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
