//! Space of a mounted file system, computed from what `statvfs(3)` answers.
//!
//! Invariants:
//! * More free blocks than all blocks is a negative number that the kernel has stored in an unsigned field, and means that no block is left.
//!   XFS on Linux 6.18 answered so for moments while it was full. A known class of faults (node_exporter, pull request 3763).
//! * Nothing here overflows, whatever a file system answers.

use rustix::fs::StatVfs;

/// Blocks that ext4 keeps for its own metadata beside those for root (`ext4_calculate_resv_clusters`): no more bytes than this.
const INTERNAL_MAX: u64 = 16 * 1024 * 1024;
/// And no more than this part of the file system.
const INTERNAL_DIVISOR: u64 = 50;

/// Space of a file system in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Size of the file system.
    pub total: u64,
    /// Space without data, some of which may be reserved for root; at most `total`.
    pub free: u64,
    /// Space that an ordinary user could fill; at most `total`.
    pub available: u64,
}

impl From<&StatVfs> for FileSystemSpace {
    fn from(stat: &StatVfs) -> Self {
        let bytes = |count: u64| count.saturating_mul(stat.f_frsize);
        Self {
            total: bytes(stat.f_blocks),
            free: bytes(blocks_left(stat.f_bfree, stat.f_blocks)),
            available: bytes(blocks_left(stat.f_bavail, stat.f_blocks)),
        }
    }
}

impl FileSystemSpace {
    /// Bytes that only a process with `CAP_SYS_RESOURCE` can still fill, where this is ext4: blocks set aside for root
    /// (`mkfs.ext4 -m`, five percent by default).
    #[must_use]
    pub fn ext4_root_reserve(&self) -> u64 {
        let internal = INTERNAL_MAX.min(self.total / INTERNAL_DIVISOR);
        self.free.saturating_sub(self.available).saturating_sub(internal)
    }
}

/// Blocks left of `total`, where a file system says that `left` are.
const fn blocks_left(left: u64, total: u64) -> u64 {
    if left > total { 0 } else { left }
}

/// Inodes that can still be made, of which a file system says that it has `total` and that `left` are free; `u64::MAX` where it does not
/// count them. Some say so with a total of 0 (btrfs), others with more free ones than all (CephFS: -1).
#[must_use]
pub const fn inodes_left(left: u64, total: u64) -> u64 {
    if total == 0 || left > total { u64::MAX } else { left }
}

#[cfg(test)]
mod tests {
    use rustix::fs::StatVfsMountFlags;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn space_in_mib(total: u64, free: u64, available: u64) -> FileSystemSpace {
        FileSystemSpace { total: total * MIB, free: free * MIB, available: available * MIB }
    }

    #[test]
    fn what_ext4_keeps_for_itself_is_not_roots() {
        assert_eq!(space_in_mib(2048, 1000, 884).ext4_root_reserve(), 100 * MIB);
        assert_eq!(space_in_mib(500, 300, 290).ext4_root_reserve(), 0, "nothing was set aside");
        assert_eq!(space_in_mib(2048, 50, 0).ext4_root_reserve(), 34 * MIB, "everybody else is out of room");
    }

    fn space_of_blocks(total: u64, free: u64, available: u64) -> FileSystemSpace {
        FileSystemSpace::from(&StatVfs {
            f_bsize: 65_536,
            f_frsize: 4096,
            f_blocks: total,
            f_bfree: free,
            f_bavail: available,
            f_files: 0,
            f_ffree: 0,
            f_favail: 0,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: 255,
        })
    }

    #[test]
    fn fewer_blocks_than_none_are_none() {
        let below_zero = 3_u64.wrapping_neg();
        assert_eq!(
            space_of_blocks(81_920, 5, below_zero),
            FileSystemSpace { total: 320 * MIB, free: 20_480, available: 0 }
        );
        let fuller = space_of_blocks(81_920, below_zero, below_zero);
        assert_eq!((fuller.free, fuller.available), (0, 0));
    }

    #[test]
    fn more_inodes_than_all_of_them_are_not_counted_ones() {
        assert_eq!(
            [(7, 10), (0, 10), (0, 0), (5, 0)].map(|(left, total)| inodes_left(left, total)),
            [7, 0, u64::MAX, u64::MAX]
        );
        assert_eq!(inodes_left(u64::MAX, 1000), u64::MAX);
    }

    #[test]
    fn counts_of_a_strange_file_system_do_not_overflow() {
        assert_eq!(
            space_of_blocks(u64::MAX, u64::MAX, u64::MAX),
            FileSystemSpace { total: u64::MAX, free: u64::MAX, available: u64::MAX }
        );
    }
}
