//! Bytes on their way between memory and device before any caller waits for them.
//!
//! Invariants: these are hints. None of them makes anything durable, reports an error, or takes an error away from
//! the sync that is to report it.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Advice, OFlags};

use super::PosixTier;
use super::descriptors::OpenObject;
use super::objects::path_of;
use crate::object::ObjectRef;

fn sync_file_range(descriptor: &OwnedFd, offset: u64, length: u64, flags: libc::c_uint) {
    let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else { return };
    // SAFETY: the call takes numbers only, and the descriptor is open for as long as the reference lives.
    let result = unsafe { libc::sync_file_range(descriptor.as_raw_fd(), offset, length, flags) };
    if result != 0 {
        log::trace!("sync_file_range: {}", std::io::Error::last_os_error());
    }
}

/// Who brings bytes into memory before they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadAhead {
    ByKernel,
    ByCaller,
}

impl OpenObject {
    /// Sets the read-ahead of the descriptor, if it differs from the setting before. All who read through the descriptor share this.
    pub(super) fn set_read_ahead(&self, by: ReadAhead) {
        let exactly = by == ReadAhead::ByCaller;
        if self.reads_exactly.load(Ordering::Relaxed) == exactly {
            return;
        }
        // The recorded advice is the one that the kernel received last.
        let _turn = self.advice_turn.lock();
        if self.reads_exactly.swap(exactly, Ordering::Relaxed) != exactly {
            let advice = if exactly { Advice::Random } else { Advice::Normal };
            let _ = rustix::fs::fadvise(&self.descriptor, 0, None, advice);
        }
    }
}

impl PosixTier {
    /// Starts writing the dirty pages of a range out. Asking for that looks at no error.
    pub(super) fn begin_writing_back(&self, object: ObjectRef, offset: u64, length: u64) {
        if let Some(open) = self.descriptors.get(object) {
            sync_file_range(&open.descriptor, offset, length, libc::SYNC_FILE_RANGE_WRITE);
        }
    }

    /// Waits for pages of a range that are being written out.
    pub(super) fn wait_for_writing_back(&self, object: ObjectRef, offset: u64, length: u64) {
        // Waiting takes the error of a failed write away from the description that waits, and the kernel tells each
        // description once. So this is one of its own, and the shared one tells its next sync.
        if let Ok(own) = self.open_path(&path_of(object), self.flags().difference(OFlags::RDWR)) {
            sync_file_range(&own, offset, length, libc::SYNC_FILE_RANGE_WAIT_BEFORE);
        }
    }

    /// Takes a range out of memory. The kernel takes whole folios only, so that it is to be as long as those can be (2 MiB).
    pub(super) fn give_up_pages(&self, object: ObjectRef, offset: u64, length: u64) {
        if let (Some(open), Some(length)) = (self.descriptors.get(object), NonZeroU64::new(length)) {
            // Pages that were not dropped are in memory twice, which is harmless.
            let _ = rustix::fs::fadvise(&open.descriptor, offset, Some(length), Advice::DontNeed);
        }
    }

    /// Starts reading a range.
    pub(super) fn begin_reading(&self, object: ObjectRef, offset: u64, length: u64) {
        let Ok(open) = self.object(object) else { return };
        let end = offset.saturating_add(length);
        let mut next = offset;
        while let Some(left) = NonZeroU64::new(end - next) {
            let piece = left.min(self.read_ahead_piece);
            // A later read of the range reports the error.
            let _ = rustix::fs::fadvise(&open.descriptor, next, Some(piece), Advice::WillNeed);
            next += piece.get();
        }
    }
}
