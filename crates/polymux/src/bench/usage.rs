//! Kernel counters of processes and processors.

use std::fs;

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the daemon and this process had brought from devices; `None` where one of them may not be looked at.
    pub device_read: Option<u64>,
    /// Time of all processors, in ticks,
    all_ticks: u64,
    /// and the part of it in which they were busy.
    busy_ticks: u64,
}

impl Usage {
    /// As it is now.
    pub fn now(daemon: u32) -> Self {
        let read = |process: &str| bytes_from_device(&fs::read_to_string(format!("/proc/{process}/io")).ok()?);
        let device_read = read(&daemon.to_string()).zip(read("self")).map(|(daemon, own)| daemon.saturating_add(own));
        let (all_ticks, busy_ticks) =
            fs::read_to_string("/proc/stat").ok().and_then(|text| processor_ticks(&text)).unwrap_or_default();
        Self { device_read, all_ticks, busy_ticks }
    }

    /// Share of the time in percent in which processors were busy since.
    pub fn processors_busy_percent(&self, before: &Self) -> Option<u64> {
        let all = self.all_ticks.saturating_sub(before.all_ticks);
        (self.busy_ticks.saturating_sub(before.busy_ticks) * 100).checked_div(all)
    }

    /// Bytes brought from devices since.
    pub fn device_read_since(&self, before: &Self) -> Option<u64> {
        Some(self.device_read?.saturating_sub(before.device_read?))
    }
}

/// `read_bytes` of `/proc/PID/io`.
fn bytes_from_device(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).and_then(|number| number.trim().parse().ok())
}

/// All ticks and busy ticks of the first line of `/proc/stat`: user, nice, system, idle, waiting for devices, interrupts, ...
fn processor_ticks(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // Those after the eighth are counted among the first two as well.
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|number| number.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all, all.saturating_sub(idle)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counts_is_read() {
        let io = "rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 4096\nwrite_bytes: 5\ncancelled_write_bytes: 0\n";
        assert_eq!(bytes_from_device(io), Some(4096));
        assert_eq!(processor_ticks("cpu  10 1 20 60 5 1 2 1 77 77\ncpu0 1 2\n"), Some((100, 35)));
        assert_eq!(processor_ticks("intr 5\n"), None);
        let at = |all_ticks, busy_ticks| Usage { device_read: Some(all_ticks), all_ticks, busy_ticks };
        assert_eq!(at(300, 150).processors_busy_percent(&at(100, 50)), Some(50));
        assert_eq!(at(300, 150).processors_busy_percent(&at(300, 150)), None);
        assert_eq!(at(300, 150).device_read_since(&at(100, 50)), Some(200));
    }
}
