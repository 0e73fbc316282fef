//! A tier on a device that serves one request after the other, each in the time that its bytes take.
//!
//! Requests are served in the order in which they come, reads and writes alike, and a request returns
//! when it was served; so a latency follows from the requests before it and its own bytes. The kernel's throttle does not
//! show that: it lets requests pass at once until the share of a slice of 100 ms is used up.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use polymux_tier::{ObjectRef, Tier, TierError, Wait};

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

    polymux_tier::forward_to_tier!(inner:
        capabilities, space, create, remove, stat, reads_as_read, begin_write_back, wait_for_write_back, read_ahead, cached_bytes, drop_behind,
        lend, may_be_open_elsewhere, empty_for_removal, share_for_copy, open_for_program, copy_within_file_system, truncate, allocate, punch, seek, allocated, give_back_room_ahead,
        stamp, read_stamp, sync, sync_all, is_unsynced, list, read_label, write_label, remove_label, probe, measuring_ground, counters);
}
