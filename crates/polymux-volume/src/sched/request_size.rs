//! How large a mover's requests are, so that each keeps a tier busy for at most 10 ms (DESIGN section 8), and beside foreground I/O on fast devices for
//! about as long as a foreground request may be delayed (docs/design/0033).
//!
//! Invariants:
//! * The speed is not learnt from requests that were reduced beside foreground I/O: they show the fixed cost of a request, and would make the next one
//!   smaller still. One request of full size in [`FULL_SIZE_INTERVAL`] keeps the speed known.
//! * No request is reduced where one of its tiers has foreground I/O and seeks: it takes hardly less time there.

use std::time::Duration;

use polymux_tier::Rotation;

use super::tier::TierSchedule;

/// Bounds of a request.
pub(crate) const REQUEST_BYTES_MIN: u64 = 64 << 10;
pub(crate) const REQUEST_BYTES_MAX: u64 = 2 << 20;

/// Time after which a request has its full size again, to learn the speed from: it takes a thousandth of that time.
pub(crate) const FULL_SIZE_INTERVAL: Duration = Duration::from_secs(10);

/// Mean time of a small read from which on a device counts as one that seeks.
const SEEKS_FROM_NS: u64 = 1_000_000;

/// Smallest request beside foreground I/O: below it the fixed cost of a request outweighs the bytes, and small writes begin to cost a flash device
/// more than it is asked to write.
pub(crate) const REQUEST_BYTES_MIN_BESIDE_FOREGROUND: u64 = 32 << 10;

/// Longest service of one request.
pub(crate) const SERVICE_MAX: Duration = Duration::from_millis(10);

/// Sizes are multiples of this.
const GRAIN: u64 = 16 << 10;

/// Service time that the speed is taken over: some hundred milliseconds, because throttled devices stutter.
const MEMORY_US: u64 = 400_000;

/// Whether the size of a request tells something of the speed of its tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// It has the size that they serve within [`SERVICE_MAX`], or that of a mover which takes its share; less where there is less to copy.
    Full,
    /// It is smaller, because programs use one of the tiers.
    Reduced,
}

/// Whether a device needs about as long for a small request as for a large one: a disk that seeks, or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeks {
    /// A small request takes less time.
    No,
    /// The time of a request depends little on its size.
    Yes,
}

impl Seeks {
    /// Of a device with this mean time of a small read, `None` while too few were seen. A disk may serve such reads from its own memory, so one that
    /// rotates always seeks.
    #[must_use]
    pub fn of(rotation: Rotation, small_read_ns: Option<u64>) -> Self {
        let is_slow = small_read_ns.is_some_and(|device_ns| device_ns >= SEEKS_FROM_NS);
        if rotation == Rotation::Rotational || is_slow { Self::Yes } else { Self::No }
    }
}

/// A tier that a move reads from or writes to.
#[derive(Clone, Copy)]
pub struct MoveEnd<'a> {
    /// Its schedule.
    pub schedule: &'a TierSchedule,
    /// Whether its device seeks.
    pub seeks: Seeks,
}

/// The sizes that a tier has for the next request of a mover that yields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSizes {
    /// As many bytes as it serves within [`SERVICE_MAX`].
    pub full: u64,
    /// As many as it serves within the time that the governor lets the mean latency rise, because a foreground request would wait for the end. `None`
    /// where there is no foreground I/O or its latency is not known yet, and where that leaves no time between its requests, so that each request of
    /// a mover waits long first and small ones would move next to nothing.
    pub reduced: Option<u64>,
    /// The last request of full size is so long ago that the next one should have it, to learn the speed from.
    pub is_full_size_due: bool,
    pub foreground_is_active: bool,
}

/// Bytes of the next request of a mover that yields. Called once for each request.
pub fn request_between(from: MoveEnd<'_>, to: MoveEnd<'_>, now: Duration) -> (u64, Sizing) {
    let ends = [from, to].map(|end| (end, end.schedule.request_sizes(now)));
    let full = ends[0].1.full.min(ends[1].1.full);
    let must_be_full = |(end, sizes): &(MoveEnd<'_>, RequestSizes)| {
        sizes.is_full_size_due || end.seeks == Seeks::Yes && sizes.foreground_is_active
    };
    let reduced = ends.iter().filter_map(|(_, sizes)| sizes.reduced).min();
    match reduced.filter(|bytes| *bytes < full) {
        Some(bytes) if !ends.iter().any(must_be_full) => (bytes, Sizing::Reduced),
        _ => {
            ends.iter().for_each(|(end, _)| end.schedule.note_full_size(now));
            (full, Sizing::Full)
        }
    }
}

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

    /// The requests so far were served long ago: those that come count twice as much.
    pub fn age(&mut self) {
        self.served_bytes /= 2;
        self.served_us /= 2;
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
