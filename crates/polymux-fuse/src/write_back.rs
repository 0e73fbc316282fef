//! A kernel that collects writes (docs/design/0036).
//!
//! Invariants on a connection that has it:
//! * Size, modification and change time of a regular file that the kernel knows are the kernel's: it ignores those of answers, and sends
//!   its times with a `SETATTR` before an `FSYNC`, when a file is closed, and after changes of its names and attributes.
//! * Bytes come some time after a program wrote them, in pages, through any description that may write, without a caller. A count that is
//!   short is taken for the whole.
//! * Before a file is closed or synced, or has its mode, owner or times set to given ones, its bytes have come.

use polymux_transport::Agreement;
use polymux_transport::wire::{AttrChange, Capabilities};
use polymux_types::Timestamp;

/// Whether the kernel collects writes on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBack {
    On,
    Off,
}

impl WriteBack {
    /// The mode agreed on with the kernel.
    pub(crate) fn of(agreement: &Agreement) -> Self {
        if agreement.capabilities.contains(Capabilities::WRITEBACK_CACHE) { Self::On } else { Self::Off }
    }
}

/// The times that the kernel kept of a file by itself, where this is how it tells them (`fuse_flush_times` in fs/fuse/dir.c): both of
/// them, through a description, and nothing else. Programs set times of a file by its name, or its access time with them.
pub(crate) fn times_of_kernel(change: &AttrChange) -> Option<(Timestamp, Timestamp)> {
    let (Some(Some(modified)), Some(changed)) = (change.modified, change.changed) else { return None };
    let rest = AttrChange { modified: None, changed: None, handle: None, ..*change };
    (change.handle.is_some() && rest == AttrChange::default()).then_some((modified, changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_both_times_through_a_description_are_those_that_the_kernel_kept() {
        let (modified, changed) = (Timestamp::new(5, 6), Timestamp::new(7, 8));
        let told = AttrChange {
            modified: Some(Some(modified)),
            changed: Some(changed),
            handle: Some(3),
            ..AttrChange::default()
        };
        assert_eq!(times_of_kernel(&told), Some((modified, changed)));
        for other in [
            AttrChange { handle: None, ..told },
            AttrChange { changed: None, ..told },
            AttrChange { modified: Some(None), ..told },
            AttrChange { accessed: Some(None), ..told },
            AttrChange { size: Some(0), ..told },
            AttrChange { mode: Some(0o600), ..told },
        ] {
            assert_eq!(times_of_kernel(&other), None, "{other:?}");
        }
    }
}
