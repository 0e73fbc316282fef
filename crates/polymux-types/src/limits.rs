//! Limits of the system, each with its reason.

/// Unit of the block lookup table, in bytes. The page size of the kernels we run on.
pub const BLOCK_SIZE: u64 = 4096;

/// Bytes covered by one range node: the unit of locking, version and heat (P2, PolyStore section 4).
pub const RANGE_NODE_SIZE: u64 = 2 * 1024 * 1024;

/// Largest size of a file in bytes. Below 2^63 by one range node, so that rounding up never overflows an `i64`.
pub const FILE_SIZE_MAX: u64 = (i64::MAX as u64) - RANGE_NODE_SIZE;

/// Longest file name in bytes (`NAME_MAX`).
pub const NAME_LENGTH_MAX: usize = 255;

/// Longest target of a symbolic link in bytes (`PATH_MAX` less the terminating zero).
pub const SYMLINK_LENGTH_MAX: usize = 4095;

/// Longest value of an extended attribute in bytes (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_LENGTH_MAX: usize = 65_536;

/// Longest name of an extended attribute in bytes (`XATTR_NAME_MAX`).
pub const XATTR_NAME_LENGTH_MAX: usize = 255;

/// Most bytes that `listxattr` can return (`XATTR_LIST_MAX`).
pub const XATTR_LIST_LENGTH_MAX: usize = 65_536;

/// Most hard links to one file: the limit of XFS, and below the maximum of a signed 32-bit count.
pub const LINKS_MAX: u32 = 2_147_483_647;

/// Most tiers of a volume: the size authorities of an inode are a 64-bit set.
pub const TIERS_MAX: u16 = 64;

/// Directories for objects on each tier (DESIGN section 4).
pub const BUCKETS: u16 = 4096;

/// Largest write that is atomic among writes (DESIGN section 7), in bytes.
pub const ATOMIC_WRITE_SIZE_MAX: usize = 1024 * 1024;

const _: () = assert!(RANGE_NODE_SIZE.is_multiple_of(BLOCK_SIZE));
const _: () = assert!(ATOMIC_WRITE_SIZE_MAX as u64 <= RANGE_NODE_SIZE);
const _: () = assert!(TIERS_MAX as u32 <= u64::BITS);
