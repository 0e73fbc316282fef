//! A tier on a device that serves one request after the other, each in the time that its bytes take.
//!
//! Requests are served in the order in which they come, reads and writes alike, and a request returns
//! when it was served; so a latency follows from the requests before it and its own bytes. The kernel's throttle does not
//! show that: it lets requests pass at once until the share of a slice of 100 ms is used up.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use polymux_tier::{
    AllocateMode, Capabilities, CounterSnapshot, Label, ObjectRef, ObjectStamp, ObjectStat, SeekTarget, Space, Tier,
    TierError, Wait,
};
use polymux_types::{Bucket, ObjectId};

/// Service times of a device.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Its name in tables.
    pub name: &'static str,
    /// Bytes in each second, of reads and of writes.
    pub bytes_per_second: u64,
    /// Least time of a request: the seek of a disk.
    pub request_min: Duration,
}

impl Service {
    /// How long a request of so many bytes is served.
    #[must_use]
    pub fn time_of(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64).max(self.request_min)
    }
}

/// A tier whose reads and writes take the time of a device.
pub struct SingleServerTier {
    inner: Arc<dyn Tier>,
    service: Service,
    free_at: Mutex<Instant>,
}

impl SingleServerTier {
    /// Puts a device under a tier that takes no time of its own.
    #[must_use]
    pub fn new(inner: Arc<dyn Tier>, service: Service) -> Self {
        Self { inner, service, free_at: Mutex::new(Instant::now()) }
    }

    /// Waits until the requests before this one and this one itself were served.
    fn serve(&self, bytes: usize) {
        let own = self.service.time_of(bytes);
        let end = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = (*free_at).max(Instant::now()) + own;
            *free_at
        };
        thread::sleep(end.saturating_duration_since(Instant::now()));
    }
}

impl Tier for SingleServerTier {
    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError> {
        if wait == Wait::Never {
            return Err(TierError::WouldBlock);
        }
        self.serve(buffer.len());
        self.inner.read(object, offset, buffer, wait)
    }

    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], wait: Wait) -> Result<usize, TierError> {
        if wait == Wait::Never {
            return Err(TierError::WouldBlock);
        }
        self.serve(data.len());
        self.inner.write(object, offset, data, wait)
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn space(&self) -> Result<Space, TierError> {
        self.inner.space()
    }

    fn create(&self, object: ObjectRef) -> Result<(), TierError> {
        self.inner.create(object)
    }

    fn remove(&self, object: ObjectRef) -> Result<(), TierError> {
        self.inner.remove(object)
    }

    fn stat(&self, object: ObjectRef) -> Result<ObjectStat, TierError> {
        self.inner.stat(object)
    }

    fn truncate(&self, object: ObjectRef, size: u64) -> Result<(), TierError> {
        self.inner.truncate(object, size)
    }

    fn allocate(&self, object: ObjectRef, offset: u64, length: u64, mode: AllocateMode) -> Result<(), TierError> {
        self.inner.allocate(object, offset, length, mode)
    }

    fn punch(&self, object: ObjectRef, offset: u64, length: u64) -> Result<(), TierError> {
        self.inner.punch(object, offset, length)
    }

    fn seek(&self, object: ObjectRef, offset: u64, target: SeekTarget) -> Result<Option<u64>, TierError> {
        self.inner.seek(object, offset, target)
    }

    fn stamp(&self, object: ObjectRef, stamp: &ObjectStamp) -> Result<(), TierError> {
        self.inner.stamp(object, stamp)
    }

    fn read_stamp(&self, object: ObjectRef) -> Result<Option<ObjectStamp>, TierError> {
        self.inner.read_stamp(object)
    }

    fn sync(&self, object: ObjectRef) -> Result<(), TierError> {
        self.inner.sync(object)
    }

    fn sync_all(&self) -> Result<(), TierError> {
        self.inner.sync_all()
    }

    fn is_unsynced(&self, object: ObjectRef) -> bool {
        self.inner.is_unsynced(object)
    }

    fn list(&self, bucket: Bucket) -> Result<Vec<ObjectId>, TierError> {
        self.inner.list(bucket)
    }

    fn read_label(&self) -> Result<Label, TierError> {
        self.inner.read_label()
    }

    fn write_label(&self, label: &Label) -> Result<(), TierError> {
        self.inner.write_label(label)
    }

    fn remove_label(&self) -> Result<(), TierError> {
        self.inner.remove_label()
    }

    fn counters(&self) -> CounterSnapshot {
        self.inner.counters()
    }
}
