//! What is asked of the kernel when a connection begins.

use polymux_transport::Wishes;
use polymux_transport::wire::Capabilities;
use polymux_types::limits::ATOMIC_WRITE_SIZE_MAX;

/// What is asked for where the kernel offers it. Left out on purpose: `WRITEBACK_CACHE` (it would forbid passthrough
/// and hide the order of writes), `ATOMIC_O_TRUNC`, locks (the kernel keeps them), `HANDLE_KILLPRIV` (its second form is
/// better, see `set_id`), `AUTO_INVAL_DATA` (contents never change behind the kernel).
const CAPABILITIES: [Capabilities; 14] = [
    Capabilities::ASYNC_READ,
    Capabilities::BIG_WRITES,
    Capabilities::EXPORT_SUPPORT,
    Capabilities::DO_READDIRPLUS,
    Capabilities::READDIRPLUS_AUTO,
    Capabilities::PARALLEL_DIROPS,
    Capabilities::ASYNC_DIO,
    Capabilities::MAX_PAGES,
    Capabilities::CACHE_SYMLINKS,
    Capabilities::EXPLICIT_INVAL_DATA,
    Capabilities::POSIX_ACL,
    Capabilities::HANDLE_KILLPRIV_V2,
    Capabilities::SETXATTR_EXT,
    Capabilities::PASSTHROUGH,
];

/// Requests that the kernel may send ahead (read-ahead, write-back) before it waits for answers.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// The wishes of a volume to a kernel that offers this.
pub(crate) fn wishes(offered: Capabilities) -> Wishes {
    let mut capabilities = CAPABILITIES.into_iter().fold(Capabilities::NONE, |all, one| all | one);
    // Only with ACLs: then the mask is applied here, because a default ACL replaces it.
    if offered.contains(Capabilities::POSIX_ACL) {
        capabilities = capabilities | Capabilities::DONT_MASK;
    }
    Wishes {
        capabilities,
        write_max: u32::try_from(ATOMIC_WRITE_SIZE_MAX).expect("one MiB"),
        background_max: BACKGROUND_REQUESTS_MAX,
        congestion_threshold: BACKGROUND_REQUESTS_MAX / 4 * 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umask_is_taken_from_the_kernel_only_together_with_acls() {
        assert!(!wishes(Capabilities::DONT_MASK).capabilities.contains(Capabilities::DONT_MASK));
        assert!(wishes(Capabilities::POSIX_ACL).capabilities.contains(Capabilities::DONT_MASK));
    }

    #[test]
    fn writes_are_never_collected_in_the_kernel() {
        assert_eq!(wishes(Capabilities(u64::MAX)).capabilities & Capabilities::WRITEBACK_CACHE, Capabilities::NONE);
    }
}
