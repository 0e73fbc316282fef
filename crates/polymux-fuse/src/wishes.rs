//! What is asked of the kernel when a connection begins.

use polymux_transport::wire::Capabilities;
use polymux_transport::{Wishes, uring};
use polymux_types::limits::ATOMIC_WRITE_SIZE_MAX;

use crate::options::{ExtendedAttributes, IoStyle};

/// What is asked for where the kernel offers it, beside one of `WRITEBACK_CACHE` and `PASSTHROUGH`, which exclude each other. Left out on
/// purpose: locks (the kernel keeps them), `HANDLE_KILLPRIV` (its second form is better, see `set_id`), `AUTO_INVAL_DATA` (contents
/// never change behind the kernel).
const CAPABILITIES: [Capabilities; 14] = [
    Capabilities::ASYNC_READ,
    Capabilities::ATOMIC_O_TRUNC,
    Capabilities::BIG_WRITES,
    Capabilities::EXPORT_SUPPORT,
    Capabilities::DO_READDIRPLUS,
    Capabilities::READDIRPLUS_AUTO,
    Capabilities::PARALLEL_DIROPS,
    Capabilities::ASYNC_DIO,
    Capabilities::MAX_PAGES,
    Capabilities::CACHE_SYMLINKS,
    Capabilities::EXPLICIT_INVAL_DATA,
    Capabilities::HANDLE_KILLPRIV_V2,
    Capabilities::SETXATTR_EXT,
    Capabilities::DIRECT_IO_ALLOW_MMAP,
];

/// Requests that the kernel may send ahead (read-ahead, write-back) before it waits for answers.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// Whether requests may come through `io_uring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rings {
    Wished,
    NotWished,
}

/// The wishes of a volume to a kernel that offers this.
pub(crate) fn wishes(
    offered: Capabilities,
    (rings, io): (Rings, IoStyle),
    extended_attributes: ExtendedAttributes,
) -> Wishes {
    let mut capabilities = CAPABILITIES.into_iter().fold(Capabilities::NONE, |all, one| all | one);
    capabilities = match io {
        // A set-id bit goes with the write of a program, which is then sent at once: a kernel that does not do so would collect it.
        IoStyle::WriteBack if offered.contains(Capabilities::WRITEBACK_CACHE | Capabilities::HANDLE_KILLPRIV_V2) => {
            capabilities | Capabilities::WRITEBACK_CACHE
        }
        _ => capabilities | Capabilities::PASSTHROUGH,
    };
    // An ACL is an extended attribute. Only with ACLs the mask is applied here, because a default ACL replaces it.
    if extended_attributes == ExtendedAttributes::Kept && offered.contains(Capabilities::POSIX_ACL) {
        capabilities = capabilities | Capabilities::POSIX_ACL | Capabilities::DONT_MASK;
    }
    let mut write_max = u32::try_from(ATOMIC_WRITE_SIZE_MAX).expect("one MiB");
    if rings == Rings::Wished && offered.contains(Capabilities::OVER_IO_URING) {
        capabilities = capabilities | Capabilities::OVER_IO_URING;
        write_max = uring::write_max(write_max);
    }
    Wishes {
        capabilities,
        write_max,
        background_max: BACKGROUND_REQUESTS_MAX,
        congestion_threshold: BACKGROUND_REQUESTS_MAX / 4 * 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(offered: Capabilities, rings: Rings) -> Capabilities {
        wishes(offered, (rings, IoStyle::Auto), ExtendedAttributes::Kept).capabilities
    }

    #[test]
    fn the_umask_is_taken_from_the_kernel_only_together_with_acls() {
        assert!(!of(Capabilities::DONT_MASK, Rings::NotWished).contains(Capabilities::DONT_MASK));
        assert!(of(Capabilities::POSIX_ACL, Rings::NotWished).contains(Capabilities::DONT_MASK));
    }

    #[test]
    fn without_extended_attributes_there_are_no_acls() {
        let all = Capabilities(u64::MAX);
        assert!(of(all, Rings::NotWished).contains(Capabilities::POSIX_ACL));
        let without = wishes(all, (Rings::NotWished, IoStyle::Auto), ExtendedAttributes::Refused).capabilities;
        assert_eq!(without & (Capabilities::POSIX_ACL | Capabilities::DONT_MASK), Capabilities::NONE);
    }

    #[test]
    fn writes_are_collected_or_files_passed_through_but_never_both() {
        let both = Capabilities::WRITEBACK_CACHE | Capabilities::PASSTHROUGH;
        for (io, expected) in [
            (IoStyle::Auto, Capabilities::PASSTHROUGH),
            (IoStyle::Passthrough, Capabilities::PASSTHROUGH),
            (IoStyle::WriteBack, Capabilities::WRITEBACK_CACHE),
        ] {
            let wished = wishes(Capabilities(u64::MAX), (Rings::Wished, io), ExtendedAttributes::Kept).capabilities;
            assert_eq!(wished & both, expected, "{io:?}");
        }
    }

    #[test]
    fn writes_are_not_collected_where_the_kernel_would_collect_those_that_take_set_id_bits() {
        let offered = Capabilities::WRITEBACK_CACHE | Capabilities::PASSTHROUGH;
        let wished = wishes(offered, (Rings::NotWished, IoStyle::WriteBack), ExtendedAttributes::Kept).capabilities;
        assert_eq!(wished & offered, Capabilities::PASSTHROUGH);
    }

    #[test]
    fn rings_are_asked_for_only_where_they_are_wished() {
        let all = Capabilities(u64::MAX);
        assert!(of(all, Rings::Wished).contains(Capabilities::OVER_IO_URING));
        assert!(!of(all, Rings::NotWished).contains(Capabilities::OVER_IO_URING));
    }
}
