//! How large a mover's requests are, so that each keeps a tier busy for at most 10 ms (DESIGN section 8), and beside foreground I/O for about as long
//! as a foreground request may be delayed.
//!
//! Invariant: the speed is learnt from requests of full size. Those that were made smaller beside foreground I/O show the fixed cost of a request, and
//! would make the next one smaller still.

use std::time::Duration;

/// Bounds of a request.
pub(crate) const REQUEST_BYTES_MIN: u64 = 64 << 10;
pub(crate) const REQUEST_BYTES_MAX: u64 = 2 << 20;

/// Smallest request beside foreground I/O: below it the fixed cost of a request outweighs the bytes, and small writes begin to cost a flash device
/// more than it is asked to write.
pub(crate) const REQUEST_BYTES_MIN_BESIDE_FOREGROUND: u64 = 32 << 10;

/// Longest service of one request.
pub(crate) const SERVICE_MAX: Duration = Duration::from_millis(10);

/// Sizes are multiples of this.
const GRAIN: u64 = 16 << 10;

/// Service time that the speed is taken over: some hundred milliseconds, because throttled devices stutter.
const MEMORY_US: u64 = 400_000;

/// Follows the speed of a tier's service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSize {
    bytes: u64,
    served_bytes: u64,
    served_us: u64,
}

impl RequestSize {
    pub fn new() -> Self {
        Self { bytes: 4 * REQUEST_BYTES_MIN, served_bytes: 0, served_us: 0 }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a request that the tier serves within `service_us_max` at its recent speed; at least [`REQUEST_BYTES_MIN_BESIDE_FOREGROUND`], and no
    /// more than [`RequestSize::bytes`]. A tier that needs longer than [`SERVICE_MAX`] for [`REQUEST_BYTES_MIN`] is bound by the number of requests:
    /// smaller ones would take as long, and be more.
    pub fn bytes_within(&self, service_us_max: u64) -> u64 {
        let Some(rate) = self.rate().filter(|_| self.bytes > REQUEST_BYTES_MIN) else { return self.bytes };
        let fitting = rate.saturating_mul(service_us_max) / 1_000_000;
        (fitting / GRAIN * GRAIN).clamp(REQUEST_BYTES_MIN_BESIDE_FOREGROUND, self.bytes)
    }

    /// Bytes that the tier serves in a second; `None` before the first request.
    pub fn rate(&self) -> Option<u64> {
        (self.served_bytes.saturating_mul(1_000_000)).checked_div(self.served_us)
    }

    /// A request was served.
    pub fn note(&mut self, bytes: u64, elapsed: Duration) {
        // The time of a hanging tier says nothing about the next request.
        let elapsed_us = super::microseconds(elapsed).clamp(1, MEMORY_US);
        self.served_bytes += bytes;
        self.served_us += elapsed_us;
        if self.served_us > MEMORY_US {
            self.served_bytes /= 2;
            self.served_us /= 2;
        }
        let service_us = u64::try_from(SERVICE_MAX.as_micros()).expect("ten milliseconds fit");
        let fitting = self.served_bytes.saturating_mul(service_us) / self.served_us.max(1);
        // If each request has a fixed cost, a larger one is faster, so the size climbs in steps to the largest that fits.
        let next = (fitting / GRAIN * GRAIN).min(self.bytes * 2);
        self.bytes = next.clamp(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX);
    }
}
