//! A storage device whose requests take time on a shared clock.
//!
//! Invariants:
//! * One request is served after the other, reads and writes each in a line of their own. Requests and bytes are limited separately: a request is
//!   served when both limits allow it, as the block I/O controller of the kernel does it.
//! * What a limit would have allowed in the last moments, up to [`DeviceSpeed::burst`], may be used at once: requests after a pause do not wait.
//! * A read returns when it is served. A write only joins its line, as one into a page cache does; a sync returns when all writes that joined
//!   before it are served.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::virtual_time::VirtualTime;

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpeed {
    /// Requests that read in a second.
    pub reads_per_second: u64,
    /// Requests that write in a second.
    pub writes_per_second: u64,
    /// Bytes that are read in a second.
    pub read_bytes_per_second: u64,
    /// Bytes that are written in a second.
    pub written_bytes_per_second: u64,
    /// Time whose unused requests and bytes may be used later; the controller of the kernel works in slices of 100 ms. Zero: a device.
    pub burst: Duration,
    /// Time of a read beside that, which requests do not wait for from one another.
    pub latency: Duration,
}

/// Requests that a device served since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests that read.
    pub reads: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
}

/// The requests in one direction: until when the limits are used up, and the end of the last request.
#[derive(Debug, Default)]
struct Line {
    requests_until_ns: u64,
    bytes_until_ns: u64,
    end_ns: u64,
}

impl Line {
    /// Takes a request in. Returns when it ends.
    fn join(&mut self, bytes: u64, limits: (u64, u64), burst_ns: u64, now_ns: u64) -> u64 {
        let (requests_per_second, bytes_per_second) = limits;
        let since_ns = now_ns.saturating_sub(burst_ns);
        let bytes_take_ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
        let bytes_take_ns = u64::try_from(bytes_take_ns).unwrap_or(u64::MAX);
        self.requests_until_ns = self.requests_until_ns.max(since_ns) + 1_000_000_000 / requests_per_second.max(1);
        self.bytes_until_ns = self.bytes_until_ns.max(since_ns).saturating_add(bytes_take_ns);
        self.end_ns = self.end_ns.max(self.requests_until_ns).max(self.bytes_until_ns);
        self.end_ns
    }
}

#[derive(Debug, Default)]
struct State {
    speed: Option<DeviceSpeed>,
    reads: Line,
    writes: Line,
    served: Served,
}

/// A device; see the module.
#[derive(Debug)]
pub struct SimulatedDevice {
    time: Arc<VirtualTime>,
    state: Mutex<State>,
}

impl DeviceSpeed {
    fn burst_ns(&self) -> u64 {
        u64::try_from(self.burst.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl SimulatedDevice {
    /// A device whose requests take no time until it gets a speed.
    #[must_use]
    pub fn new(time: Arc<VirtualTime>) -> Self {
        Self { time, state: Mutex::default() }
    }

    /// Limits requests that begin from now on; `None`: not at all.
    pub fn set_speed(&self, speed: Option<DeviceSpeed>) {
        self.state.lock().speed = speed;
    }

    /// Requests served since the device was made, those on their way included.
    #[must_use]
    pub fn served(&self) -> Served {
        self.state.lock().served
    }

    /// Serves a request that reads.
    pub fn read(&self, bytes: u64) {
        let end_ns = {
            let mut state = self.state.lock();
            state.served.reads += 1;
            state.served.bytes_read += bytes;
            let Some(speed) = state.speed else { return };
            let limits = (speed.reads_per_second, speed.read_bytes_per_second);
            let now_ns = self.time.now_ns();
            let latency_ns = u64::try_from(speed.latency.as_nanos()).unwrap_or(u64::MAX);
            state.reads.join(bytes, limits, speed.burst_ns(), now_ns).max(now_ns).saturating_add(latency_ns)
        };
        self.time.sleep_until_ns(end_ns);
    }

    /// Takes a request that writes into the line.
    pub fn write(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.served.bytes_written += bytes;
        if let Some(speed) = state.speed {
            let limits = (speed.writes_per_second, speed.written_bytes_per_second);
            state.writes.join(bytes, limits, speed.burst_ns(), self.time.now_ns());
        }
    }

    /// Returns when all writes that were taken so far are served.
    pub fn sync(&self) {
        let end_ns = self.state.lock().writes.end_ns;
        self.time.sleep_until_ns(end_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_types::Clock;

    const SPEED: DeviceSpeed = DeviceSpeed {
        reads_per_second: 1000,
        writes_per_second: 1000,
        read_bytes_per_second: 100_000_000,
        written_bytes_per_second: 50_000_000,
        burst: Duration::ZERO,
        latency: Duration::ZERO,
    };

    #[test]
    fn unused_requests_of_a_moment_are_used_at_once_and_bytes_are_limited_beside_them() {
        let time = VirtualTime::new();
        let device = SimulatedDevice::new(Arc::clone(&time));
        let actor = time.actor();
        actor.begin();
        device.set_speed(Some(DeviceSpeed { burst: Duration::from_millis(100), ..SPEED }));
        time.sleep(Duration::from_secs(1));
        (0..100).for_each(|_| device.read(4096));
        assert_eq!(time.elapsed(), Duration::from_secs(1));
        device.read(4096);
        assert_eq!(time.elapsed(), Duration::from_millis(1001));
        // While ten megabytes pass, a hundred requests come together.
        time.sleep(Duration::from_secs(1));
        device.read(20_000_000);
        assert_eq!(time.elapsed(), Duration::from_millis(2101));
        (0..100).for_each(|_| device.read(1));
        assert!(time.elapsed() < Duration::from_millis(2102));
    }

    #[test]
    fn requests_wait_for_those_before_them_and_writes_only_where_they_are_synced() {
        let time = VirtualTime::new();
        let device = SimulatedDevice::new(Arc::clone(&time));
        let actor = time.actor();
        actor.begin();
        device.read(1_000_000);
        assert_eq!(time.elapsed(), Duration::ZERO, "without a speed nothing takes time");
        device.set_speed(Some(SPEED));
        device.read(4096);
        assert_eq!(time.elapsed(), Duration::from_millis(1), "by requests");
        device.read(1_000_000);
        assert_eq!(time.elapsed(), Duration::from_millis(11), "by bytes");
        device.write(1_000_000);
        device.write(4096);
        assert_eq!(time.elapsed(), Duration::from_millis(11));
        device.read(4096);
        assert_eq!(time.elapsed(), Duration::from_millis(12), "reads do not wait for writes");
        device.sync();
        assert_eq!(time.elapsed(), Duration::from_nanos(31_081_920));
        device.sync();
        assert_eq!(time.elapsed(), Duration::from_nanos(31_081_920));
        assert_eq!(device.served(), Served { reads: 4, bytes_read: 2_008_192, bytes_written: 1_004_096 });
    }
}
