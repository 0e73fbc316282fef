//! The logical clock: seconds that the volume was mounted, over all its mounts.
//!
//! Invariants:
//! * It never goes back while mounted. A crash loses the unsaved seconds, at most [`SAVE_INTERVAL_SECONDS`].
//! * Reading it is one load: background steps move it, so that no access has to read a clock.

use std::time::Duration;

use polymux_records::error::Result;
use polymux_records::store::{ClockRecord, Metadata};
use polymux_types::TierId;
use polymux_types::sync::{AtomicU64, Ordering};

/// Logical seconds between two saves.
pub(crate) const SAVE_INTERVAL_SECONDS: u64 = 60;

/// The logical clock of a mounted volume.
#[derive(Debug)]
pub struct LogicalClock {
    /// Where it stood at the beginning of this mount.
    base_seconds: u64,
    /// The injected clock at that moment.
    started: Duration,
    seconds: AtomicU64,
    saved_seconds: AtomicU64,
}

impl LogicalClock {
    /// Goes on where it stood when it was saved last. `elapsed` is that of the injected clock. Also gives back the
    /// bytes promoted to each tier on the present logical day.
    pub fn resume(metadata: &Metadata, elapsed: Duration) -> Result<(Self, Vec<(TierId, u64)>)> {
        let record = metadata.logical_clock().unwrap_or_else(|error| {
            log::warn!("the logical clock begins anew: {error}");
            None
        });
        let record = record.unwrap_or_default();
        Ok((Self::new(record.seconds, elapsed), record.promoted))
    }

    /// Begins at `base_seconds` when the clock of the mount is at `elapsed`.
    pub fn new(base_seconds: u64, elapsed: Duration) -> Self {
        Self {
            base_seconds,
            started: elapsed,
            seconds: AtomicU64::new(base_seconds),
            saved_seconds: AtomicU64::new(base_seconds),
        }
    }

    /// Moves it to a moment of the injected clock. Called by each background step.
    pub fn advance(&self, elapsed: Duration) {
        let seconds = self.base_seconds.saturating_add(elapsed.saturating_sub(self.started).as_secs());
        self.seconds.fetch_max(seconds, Ordering::Relaxed);
    }

    /// Logical seconds.
    pub fn now(&self) -> u64 {
        self.seconds.load(Ordering::Relaxed)
    }

    /// Whether it is time for [`LogicalClock::save`].
    pub fn is_save_due(&self) -> bool {
        self.now() >= self.saved_seconds.load(Ordering::Relaxed).saturating_add(SAVE_INTERVAL_SECONDS)
    }

    /// Commits it, with the bytes promoted to each tier today (ascending by tier). It does not wait until that is durable.
    pub fn save(&self, metadata: &Metadata, promoted: &[(TierId, u64)]) -> Result<()> {
        let seconds = self.now();
        metadata.put_logical_clock(&ClockRecord { seconds, promoted: promoted.to_vec() })?;
        self.saved_seconds.fetch_max(seconds, Ordering::Relaxed);
        Ok(())
    }
}
