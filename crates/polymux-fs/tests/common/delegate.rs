//! A wrapper tier that passes everything on, except for the decisions of its hook before a write, a read, a look or a sync.
//!
//! Invariants: a hook that lets everything pass makes the wrapper invisible.

use std::sync::Arc;

use polymux_tier::measure::Ground;
use polymux_tier::{Capabilities, Label, ObjectRef, ObjectStat, Tier, TierError, Wait};

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is carried out.
    Pass,
    /// It fails with this error before any side effect.
    Fail(TierError),
    /// It reports success and does nothing: the planted bug of the tests that test the tests.
    Pretend,
}

/// Decides over the operations of a [`HookedTier`].
pub trait Hook: Send + Sync {
    /// Before a write of some bytes at an offset.
    fn before_write(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        Verdict::Pass
    }

    /// Before a read.
    fn before_read(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        Verdict::Pass
    }

    /// Before a range begins its way to the device.
    fn before_write_back(&self, _object: ObjectRef, _offset: u64, _length: u64) {}

    /// Before a caller waits until a range is on the device.
    fn before_wait_for_write_back(&self, _object: ObjectRef, _offset: u64, _length: u64) {}

    /// Before a range begins its way into memory.
    fn before_read_ahead(&self, _object: ObjectRef, _offset: u64, _length: u64) {}

    /// Bytes of a range that the page cache is said to hold; `None`: as many as the tier says.
    fn cached_bytes(&self, _length: u64) -> Option<u64> {
        None
    }

    /// Before an object is looked at.
    fn before_stat(&self, _object: ObjectRef) -> Verdict {
        Verdict::Pass
    }

    /// Before the label is written or removed.
    fn before_label(&self) -> Verdict {
        Verdict::Pass
    }

    /// Before an object is removed.
    fn before_remove(&self, _object: ObjectRef) {}

    /// Before a sync of one object or of everything.
    fn before_sync(&self) -> Verdict {
        Verdict::Pass
    }

    /// Ground that is measured in place of the tier; `None`: the tier.
    fn measuring_ground(&self) -> Option<Box<dyn Ground>> {
        None
    }
}

/// A tier with a hook in front of it.
pub struct HookedTier {
    inner: Arc<dyn Tier>,
    hook: Arc<dyn Hook>,
    capabilities: Capabilities,
}

impl HookedTier {
    /// Puts a hook in front of a tier.
    pub fn new(inner: Arc<dyn Tier>, hook: Arc<dyn Hook>) -> Self {
        let capabilities = inner.capabilities().clone();
        Self { inner, hook, capabilities }
    }

    /// Replaces the tier's description of its file system.
    #[allow(dead_code, reason = "not all tests need it")]
    pub fn with_capabilities(mut self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.capabilities);
        self
    }
}

impl Tier for HookedTier {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn remove(&self, object: ObjectRef) -> Result<(), TierError> {
        self.hook.before_remove(object);
        self.inner.remove(object)
    }

    fn stat(&self, object: ObjectRef) -> Result<ObjectStat, TierError> {
        match self.hook.before_stat(object) {
            Verdict::Fail(error) => Err(error),
            Verdict::Pass | Verdict::Pretend => self.inner.stat(object),
        }
    }

    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError> {
        match self.hook.before_read(object, offset, buffer.len()) {
            Verdict::Pass => self.inner.read(object, offset, buffer, wait),
            Verdict::Fail(error) => Err(error),
            Verdict::Pretend => Ok(buffer.len()),
        }
    }

    fn read_ahead(&self, object: ObjectRef, offset: u64, length: u64) {
        self.hook.before_read_ahead(object, offset, length);
        self.inner.read_ahead(object, offset, length);
    }

    fn cached_bytes(&self, object: ObjectRef, offset: u64, length: u64) -> Option<u64> {
        self.hook.cached_bytes(length).or_else(|| self.inner.cached_bytes(object, offset, length))
    }

    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], wait: Wait) -> Result<usize, TierError> {
        match self.hook.before_write(object, offset, data.len()) {
            Verdict::Pass => self.inner.write(object, offset, data, wait),
            Verdict::Fail(error) => Err(error),
            Verdict::Pretend => Ok(data.len()),
        }
    }

    fn begin_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        self.hook.before_write_back(object, offset, length);
        self.inner.begin_write_back(object, offset, length);
    }

    fn wait_for_write_back(&self, object: ObjectRef, offset: u64, length: u64) {
        self.hook.before_wait_for_write_back(object, offset, length);
        self.inner.wait_for_write_back(object, offset, length);
    }

    fn sync(&self, object: ObjectRef) -> Result<(), TierError> {
        match self.hook.before_sync() {
            Verdict::Pass => self.inner.sync(object),
            Verdict::Fail(error) => Err(error),
            Verdict::Pretend => Ok(()),
        }
    }

    fn sync_all(&self) -> Result<(), TierError> {
        match self.hook.before_sync() {
            Verdict::Pass => self.inner.sync_all(),
            Verdict::Fail(error) => Err(error),
            Verdict::Pretend => Ok(()),
        }
    }

    fn write_label(&self, label: &Label) -> Result<(), TierError> {
        match self.hook.before_label() {
            Verdict::Pass => self.inner.write_label(label),
            Verdict::Fail(error) => Err(error),
            Verdict::Pretend => Ok(()),
        }
    }

    fn remove_label(&self) -> Result<(), TierError> {
        match self.hook.before_label() {
            Verdict::Pass => self.inner.remove_label(),
            Verdict::Fail(error) => Err(error),
            Verdict::Pretend => Ok(()),
        }
    }

    fn measuring_ground(&self) -> Result<Box<dyn Ground>, TierError> {
        self.hook.measuring_ground().map_or_else(|| self.inner.measuring_ground(), Ok)
    }

    polymux_tier::forward_to_tier!(inner:
        space, create, reads_as_read, drop_behind, lend, may_be_open_elsewhere, empty_for_removal, share_for_copy, open_for_program, copy_within_file_system, truncate,
        allocate, punch, seek, allocated, give_back_room_ahead, stamp, read_stamp, is_unsynced, list, read_label, probe, counters);
}
