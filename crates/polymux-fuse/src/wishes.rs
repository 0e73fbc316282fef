//! The capabilities and limits that are requested from the kernel when a connection begins.

use polymux_transport::wire::Capabilities;
use polymux_transport::{Wishes, uring};
use polymux_types::limits::ATOMIC_WRITE_SIZE_MAX;

use crate::options::{ExtendedAttributes, IoStyle};

/// Requested where the kernel offers them, beside one of `WRITEBACK_CACHE` and `PASSTHROUGH`, which exclude each other. Left out on
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

/// Whether the connection can outlive its daemon, as far as it depends on anything but the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    Possible,
    Impossible,
}

/// The wishes of a volume to a kernel that offers this.
pub(crate) fn wishes(
    offered: Capabilities,
    rings: Rings,
    io: IoStyle,
    keeping: Keeping,
    extended_attributes: ExtendedAttributes,
) -> Wishes {
    let mut capabilities = CAPABILITIES.into_iter().fold(Capabilities::NONE, |all, one| all | one);
    // A set-id bit goes with the write of a program, which is then sent at once: a kernel that does not do so would collect it.
    let can_collect = offered.contains(Capabilities::WRITEBACK_CACHE | Capabilities::HANDLE_KILLPRIV_V2);
    let collects = match io {
        IoStyle::WriteBack => can_collect,
        // Only for a connection that outlives its daemon.
        IoStyle::Auto => can_collect && keeping == Keeping::Possible && offered.contains(Capabilities::HAS_RESEND),
        IoStyle::Passthrough => false,
    };
    capabilities = match collects {
        true => capabilities | Capabilities::WRITEBACK_CACHE | Capabilities::HAS_RESEND,
        false => capabilities | Capabilities::PASSTHROUGH,
    };
    // Requests that came through a ring are not sent again.
    let are_sent_again = collects && keeping == Keeping::Possible;
    // An ACL is an extended attribute. Only with ACLs the mask is applied here, because a default ACL replaces it.
    if extended_attributes == ExtendedAttributes::Kept && offered.contains(Capabilities::POSIX_ACL) {
        capabilities = capabilities | Capabilities::POSIX_ACL | Capabilities::DONT_MASK;
    }
    let mut write_max = u32::try_from(ATOMIC_WRITE_SIZE_MAX).expect("one MiB");
    if rings == Rings::Wished && !are_sent_again && offered.contains(Capabilities::OVER_IO_URING) {
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
        wishes(offered, rings, IoStyle::Auto, Keeping::Impossible, ExtendedAttributes::Kept).capabilities
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
        let without =
            wishes(all, Rings::NotWished, IoStyle::Auto, Keeping::Impossible, ExtendedAttributes::Refused).capabilities;
        assert_eq!(without & (Capabilities::POSIX_ACL | Capabilities::DONT_MASK), Capabilities::NONE);
    }

    #[test]
    fn writes_are_collected_or_files_passed_through_but_never_both() {
        let both = Capabilities::WRITEBACK_CACHE | Capabilities::PASSTHROUGH;
        use Keeping::{Impossible, Possible};
        let of = |offered, io, keeping| {
            wishes(offered, Rings::Wished, io, keeping, ExtendedAttributes::Kept).capabilities & both
        };
        for (io, keeping, expected) in [
            (IoStyle::Auto, Impossible, Capabilities::PASSTHROUGH),
            (IoStyle::Auto, Possible, Capabilities::WRITEBACK_CACHE),
            (IoStyle::Passthrough, Possible, Capabilities::PASSTHROUGH),
            (IoStyle::WriteBack, Impossible, Capabilities::WRITEBACK_CACHE),
        ] {
            assert_eq!(of(Capabilities(u64::MAX), io, keeping), expected, "{io:?} {keeping:?}");
        }
        let before_6_9 = Capabilities(u64::MAX).without(Capabilities::HAS_RESEND);
        assert_eq!(of(before_6_9, IoStyle::Auto, Possible), Capabilities::PASSTHROUGH);
    }

    #[test]
    fn writes_are_not_collected_where_the_kernel_would_collect_those_that_take_set_id_bits() {
        let offered = Capabilities::WRITEBACK_CACHE | Capabilities::PASSTHROUGH;
        let (io, keeping) = (IoStyle::WriteBack, Keeping::Possible);
        let wished = wishes(offered, Rings::NotWished, io, keeping, ExtendedAttributes::Kept).capabilities;
        assert_eq!(wished & offered, Capabilities::PASSTHROUGH);
    }

    #[test]
    fn rings_are_asked_for_only_where_they_are_wished() {
        let all = Capabilities(u64::MAX);
        assert!(of(all, Rings::Wished).contains(Capabilities::OVER_IO_URING));
        assert!(!of(all, Rings::NotWished).contains(Capabilities::OVER_IO_URING));
        let (io, keeping) = (IoStyle::WriteBack, Keeping::Possible);
        let wished = wishes(all, Rings::Wished, io, keeping, ExtendedAttributes::Kept).capabilities;
        assert!(!wished.contains(Capabilities::OVER_IO_URING), "what comes through a ring is not sent again");
    }
}
