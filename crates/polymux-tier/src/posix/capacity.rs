//! The capacity limit: the space of objects, counted as their file system counts it.
//!
//! Each object carries its last counted space; a change adds the difference, so that the sum stays that of the
//! objects however their allocation jumps (delayed allocation, preallocation beyond the end).

use std::sync::atomic::Ordering;

use polymux_types::Bucket;
use polymux_types::limits::{BLOCK_SIZE, BUCKETS};

use super::descriptors::OpenObject;
use super::{BytesUsed, PosixTier, io_error};
use crate::error::TierError;
use crate::label::CleanStamp;
use crate::object::{ObjectRef, SeekTarget};
use crate::tier::Tier;

/// `st_blocks` counts units of this many bytes, whatever the file system.
pub(super) const STAT_UNIT: u64 = 512;
/// In the place of the space of an open object: it was removed, and no space is counted for it any more.
pub(super) const REMOVED: u64 = u64::MAX;

pub(super) fn allocated_of(stat: &rustix::fs::Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_UNIT)
}

impl PosixTier {
    /// Bytes that objects of the volume take. Known only with a capacity limit.
    #[must_use]
    pub fn bytes_used(&self) -> Option<u64> {
        self.options.capacity.map(|_| self.bytes_used.load(Ordering::Relaxed))
    }

    pub(super) fn find_bytes_used(&self) -> Result<(), TierError> {
        if self.options.capacity.is_none() {
            return Ok(());
        }
        let from_label = match (self.options.bytes_used, self.read_label()?.clean) {
            (BytesUsed::FromLabel, CleanStamp::Clean { bytes_used }) => Some(bytes_used),
            _ => None,
        };
        let used = match from_label {
            Some(used) => used,
            None => self.scan_bytes_used()?,
        };
        self.bytes_used.store(used, Ordering::Relaxed);
        Ok(())
    }

    /// Looks at every object.
    ///
    /// # Errors
    /// Where a bucket cannot be read.
    pub fn scan_bytes_used(&self) -> Result<u64, TierError> {
        let mut sum = 0;
        for bucket in (0..BUCKETS).map(Bucket) {
            for id in self.list(bucket)? {
                sum += self.stat(ObjectRef::new(id, bucket)).map_or(0, |stat| stat.allocated);
            }
        }
        Ok(sum)
    }

    /// Counts the effect of a change on the space of an open object.
    pub(super) fn account(&self, open: &OpenObject) {
        if self.options.capacity.is_none() {
            return;
        }
        if let Ok(stat) = rustix::fs::fstat(&open.descriptor) {
            self.account_to(open, allocated_of(&stat));
        }
    }

    fn account_to(&self, open: &OpenObject, now: u64) {
        // An operation may end after the object was removed; its space is counted back already.
        let update = |before: u64| (before != REMOVED).then_some(now);
        if let Ok(before) = open.allocated.fetch_update(Ordering::AcqRel, Ordering::Acquire, update) {
            self.add_used(before, now);
        }
    }

    pub(super) fn add_used(&self, before: u64, now: u64) {
        let update = |used: u64| Some(used.saturating_sub(before.saturating_sub(now)) + now.saturating_sub(before));
        // The closure never refuses, so the update always happens.
        let _ = self.bytes_used.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
    }

    /// How many of `length` bytes may be written at `offset` within the capacity limit.
    pub(super) fn allowed(&self, open: &OpenObject, offset: u64, length: usize) -> Result<usize, TierError> {
        let Some(capacity) = self.options.capacity else { return Ok(length) };
        let room = capacity.0.saturating_sub(self.bytes_used.load(Ordering::Acquire));
        let end = offset + length as u64;
        if room >= (length as u64).saturating_add(2 * BLOCK_SIZE) || !has_hole(open, offset, end)? {
            return Ok(length);
        }
        // The rest of an allocated block needs no space; whole blocks follow as far as they fit.
        let boundary = offset.next_multiple_of(BLOCK_SIZE);
        let in_place = if boundary > offset && has_hole(open, offset, boundary)? { 0 } else { boundary - offset };
        let fits = if in_place == boundary - offset { in_place + room / BLOCK_SIZE * BLOCK_SIZE } else { 0 };
        match usize::try_from(fits).unwrap_or(length).min(length) {
            0 => Err(TierError::NoSpace),
            fits => Ok(fits),
        }
    }
}

/// Whether a write to the range would need space.
fn has_hole(open: &OpenObject, offset: u64, end: u64) -> Result<bool, TierError> {
    let stat = rustix::fs::fstat(&open.descriptor).map_err(io_error("looking at an object"))?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if end > size.next_multiple_of(BLOCK_SIZE) {
        return Ok(true);
    }
    match super::objects::seek_in(&open.descriptor, offset.min(size.saturating_sub(1)), SeekTarget::Hole) {
        Ok(Some(hole)) => Ok(hole < end.min(size)),
        Ok(None) => Ok(false),
        Err(_) => Ok(true),
    }
}
