//! The capabilities of a tier's device, as stored with the volume.

use polymux_tier::measure::{Direction, Measurement};
use polymux_types::Timestamp;

/// State known of the device of a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierProfile {
    /// The result of a measurement; `None` where there was none.
    pub measured: Option<MeasuredProfile>,
    /// The throughput of the device in use by the volume since, at most once for each direction.
    pub live: Vec<LiveBandwidth>,
}

/// A measurement, and when it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredProfile {
    /// When it ended.
    pub at: Timestamp,
    /// The result.
    pub measurement: Measurement,
}

/// The throughput of a device while it was busy with large requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBandwidth {
    /// Which way.
    pub direction: Direction,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Busy time in seconds that went into it.
    pub busy_seconds: u32,
    /// When that was last.
    pub at: Timestamp,
}

impl TierProfile {
    /// Sequential throughput of the device in bytes per second: the observed value, and before there is one, the
    /// measured one. `None` while nothing is known.
    #[must_use]
    pub fn bytes_per_second(&self, direction: Direction) -> Option<u64> {
        let live = self.live(direction).map(|live| live.bytes_per_second);
        live.or_else(|| self.measured.as_ref()?.measurement.sequential_bytes_per_second(direction))
    }

    /// The observed throughput.
    #[must_use]
    pub fn live(&self, direction: Direction) -> Option<&LiveBandwidth> {
        self.live.iter().find(|live| live.direction == direction)
    }
}
