//! How much the kernel reads at once when it is asked to read ahead.
//!
//! Invariants: `POSIX_FADV_WILLNEED` reads as much as the device reads ahead, or its largest request, and silently drops the rest
//! (`force_page_cache_ra` in mm/readahead.c of the kernel). So a caller that wants more asks in pieces.

use std::fs;
use std::num::NonZeroU64;

use polymux_types::limits::RANGE_NODE_SIZE;
use rustix::fd::OwnedFd;

/// Default read-ahead of devices, and the smallest piece that is requested.
const PIECE_BYTES_MIN: NonZeroU64 = NonZeroU64::new(128 << 10).expect("not zero");

/// One node of a file.
const PIECE_BYTES_MAX: NonZeroU64 = NonZeroU64::new(RANGE_NODE_SIZE).expect("not zero");

/// Bytes that the kernel brings for one request to the file system of this directory.
pub(super) fn piece_bytes(directory: &OwnedFd) -> NonZeroU64 {
    let Ok(stat) = rustix::fs::fstat(directory) else { return PIECE_BYTES_MIN };
    let device = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let of_device = format!("/sys/class/bdi/{device}/read_ahead_kb");
    // A partition reads ahead as its disk does.
    let of_disk = format!("/sys/dev/block/{device}/../queue/read_ahead_kb");
    let kibibytes = [of_device, of_disk].iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
    kibibytes.map_or(PIECE_BYTES_MIN, of_setting)
}

fn of_setting(kibibytes: u64) -> NonZeroU64 {
    let bytes = NonZeroU64::new(kibibytes.saturating_mul(1024)).unwrap_or(PIECE_BYTES_MIN);
    bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_what_the_device_reads_ahead_within_reason() {
        let kibibytes = [0, 128, 1000, 2560, u64::MAX];
        assert_eq!(
            kibibytes.map(|setting| of_setting(setting).get()),
            [128 << 10, 128 << 10, 1000 << 10, 2 << 20, 2 << 20]
        );
        let directory = tempfile::tempdir().unwrap();
        let directory = OwnedFd::from(fs::File::open(directory.path()).unwrap());
        assert!((PIECE_BYTES_MIN..=PIECE_BYTES_MAX).contains(&piece_bytes(&directory)));
    }
}
