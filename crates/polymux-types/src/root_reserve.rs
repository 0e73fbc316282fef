//! Blocks that ext4 sets aside for root (`mkfs.ext4 -m`, five percent by default).

/// Blocks that ext4 keeps for its own metadata beside those for root (`ext4_calculate_resv_clusters`): no more bytes than this.
const INTERNAL_MAX: u64 = 16 * 1024 * 1024;
/// And no more than this part of the file system.
const INTERNAL_DIVISOR: u64 = 50;

/// Bytes that only a process with `CAP_SYS_RESOURCE` can still fill on an ext4 file system, of which `statvfs` says that it has
/// `total` bytes, `free` of them free and `available` of these for all processes.
#[must_use]
pub fn ext4_root_reserve(total: u64, free: u64, available: u64) -> u64 {
    let internal = INTERNAL_MAX.min(total / INTERNAL_DIVISOR);
    free.saturating_sub(available).saturating_sub(internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ext4_keeps_for_itself_is_not_roots() {
        let mib = 1 << 20;
        assert_eq!(ext4_root_reserve(2048 * mib, 1000 * mib, 884 * mib), 100 * mib);
        assert_eq!(ext4_root_reserve(500 * mib, 300 * mib, 290 * mib), 0, "nothing was set aside");
        assert_eq!(ext4_root_reserve(2048 * mib, 50 * mib, 0), 34 * mib, "everybody else is out of room");
    }
}
