//! Profiles of the devices of tiers, on the way between daemon and command line, and in `--json`.

use polymux_fs::TierProfile;
use polymux_tier::measure::{Direction, MeasureProgress, Measurement, Pattern, Point, Way};
use polymux_types::Timestamp;
use serde::{Deserialize, Serialize};

/// How far a measurement is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureProgressReport {
    /// The tier.
    pub tier: String,
    /// Loads that are through.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// The present one, in words.
    pub load: String,
}

/// A tier that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredTierReport {
    /// Its name.
    pub tier: String,
    /// The measured profile.
    pub profile: ProfileReport,
}

/// Known performance of the device of a tier. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileReport {
    /// When it was measured, in UTC; `None` where it never was, and then there are only `live` bandwidths.
    pub measured_at: Option<String>,
    /// How requests reached the device: `direct`, `synced` or `memory`.
    pub way: Option<String>,
    /// Bytes of the file that it was measured on.
    pub file_bytes: u64,
    /// How long it took.
    pub elapsed_ms: u32,
    /// Caveats about the numbers.
    pub caveats: Vec<String>,
    /// Bytes per second, one request after the other, with as much under way as was tried.
    pub sequential_read: Option<u64>,
    /// Bytes per second of sequential writes.
    pub sequential_write: Option<u64>,
    /// Requests of 4 KiB per second, anywhere, with as many under way as were tried.
    pub random_reads: Option<u64>,
    /// Writes of 4 KiB per second, anywhere.
    pub random_writes: Option<u64>,
    /// Microseconds that half of all reads of 4 KiB took at most, one at a time,
    pub read_latency_median_us: Option<u32>,
    /// and 99 % of them.
    pub read_latency_p99_us: Option<u32>,
    /// Reads of 4 KiB under way at once that get nine tenths of that.
    pub saturating_reads: Option<u16>,
    /// Every load that was tried.
    pub points: Vec<PointReport>,
    /// Bytes per second that the device was seen to take of large writes since, and when that was last.
    pub live_write: Option<LiveReport>,
}

/// The observed throughput of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveReport {
    /// Bytes per second while it was busy.
    pub bytes_per_second: u64,
    /// Busy time that went into it.
    pub busy_seconds: u32,
    /// When that was last, in UTC.
    pub at: String,
}

/// One load of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointReport {
    /// `read` or `write`.
    pub direction: String,
    /// `sequential` or `random`.
    pub pattern: String,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Requests under way at once.
    pub in_flight: u16,
    /// How many there were.
    pub requests: u32,
    /// Bytes per second.
    pub bytes_per_second: u64,
    /// Requests per second.
    pub requests_per_second: u64,
    /// Microseconds that half of them took at most,
    pub median_us: u32,
    /// and 99 % of them.
    pub p99_us: u32,
}

fn direction(of: Direction) -> &'static str {
    match of {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

fn pattern(of: Pattern) -> &'static str {
    match of {
        Pattern::Sequential => "sequential",
        Pattern::Random => "random",
    }
}

fn utc(at: Timestamp) -> String {
    jiff::Timestamp::from_second(at.seconds).map_or_else(|_| "unknown".to_owned(), |at| at.to_string())
}

impl MeasureProgressReport {
    /// How far the measurement of a tier is.
    pub fn of(tier: &str, progress: &MeasureProgress) -> Self {
        let load = format!(
            "{} {}s of {} KiB, {} at once",
            pattern(progress.pattern),
            direction(progress.direction),
            progress.request_bytes >> 10,
            progress.in_flight
        );
        Self { tier: tier.to_owned(), done: progress.done, total: progress.total, load }
    }
}

impl From<&Point> for PointReport {
    fn from(point: &Point) -> Self {
        Self {
            direction: direction(point.direction).to_owned(),
            pattern: pattern(point.pattern).to_owned(),
            request_bytes: point.request_bytes,
            in_flight: point.in_flight,
            requests: point.requests,
            bytes_per_second: point.bytes_per_second,
            requests_per_second: point.requests_per_second(),
            median_us: point.median_us,
            p99_us: point.p99_us,
        }
    }
}

impl ProfileReport {
    /// `None` where nothing is known.
    pub fn of(profile: &TierProfile) -> Option<Self> {
        let live_write = profile.live(Direction::Write).map(|live| LiveReport {
            bytes_per_second: live.bytes_per_second,
            busy_seconds: live.busy_seconds,
            at: utc(live.at),
        });
        match &profile.measured {
            Some(measured) => Some(Self {
                measured_at: Some(utc(measured.at)),
                live_write,
                ..Self::of_measurement(&measured.measurement)
            }),
            None => live_write.map(|live| Self { live_write: Some(live), ..Self::default() }),
        }
    }

    fn of_measurement(found: &Measurement) -> Self {
        let latency = found.latency(Direction::Read);
        Self {
            measured_at: None,
            way: Some(
                match found.way {
                    Way::Direct => "direct",
                    Way::Synced => "synced",
                    Way::Memory => "memory",
                }
                .to_owned(),
            ),
            file_bytes: found.file_bytes,
            elapsed_ms: found.elapsed_ms,
            caveats: found.caveats.words().into_iter().map(str::to_owned).collect(),
            sequential_read: found.sequential_bytes_per_second(Direction::Read),
            sequential_write: found.sequential_bytes_per_second(Direction::Write),
            random_reads: found.random_requests_per_second(Direction::Read),
            random_writes: found.random_requests_per_second(Direction::Write),
            read_latency_median_us: latency.map(|point| point.median_us),
            read_latency_p99_us: latency.map(|point| point.p99_us),
            saturating_reads: found.saturating_in_flight(Direction::Read),
            points: found.points.iter().map(PointReport::from).collect(),
            live_write: None,
        }
    }

    /// Bytes per second of large writes, as they are known best.
    pub fn write_bytes_per_second(&self) -> Option<u64> {
        self.live_write.as_ref().map(|live| live.bytes_per_second).or(self.sequential_write)
    }

    /// The day of the newest number.
    pub fn day(&self) -> Option<&str> {
        let live = self.live_write.as_ref().map(|live| live.at.as_str());
        self.measured_at.as_deref().or(live).and_then(|at| at.split('T').next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polymux_fs::{LiveBandwidth, MeasuredProfile};
    use polymux_tier::measure::Caveats;

    #[test]
    fn a_profile_is_told_with_its_date_and_without_one_nothing_is() {
        assert_eq!(ProfileReport::of(&TierProfile::default()), None);
        let point = Point {
            direction: Direction::Read,
            pattern: Pattern::Random,
            request_bytes: 4096,
            in_flight: 1,
            requests: 50,
            bytes_per_second: 4096 * 1000,
            median_us: 900,
            p99_us: 2000,
        };
        let measurement = Measurement {
            way: Way::Direct,
            file_bytes: 1 << 26,
            elapsed_ms: 6000,
            caveats: Caveats { is_small: true, ..Caveats::default() },
            points: vec![point, Point { in_flight: 8, bytes_per_second: 4096 * 5000, ..point }],
        };
        let at = Timestamp::new(1_700_000_000, 5);
        let mut profile = TierProfile { measured: Some(MeasuredProfile { at, measurement }), live: Vec::new() };
        let report = ProfileReport::of(&profile).unwrap();
        assert_eq!(report.day(), Some("2023-11-14"));
        assert_eq!((report.random_reads, report.saturating_reads), (Some(5000), Some(8)));
        assert_eq!((report.read_latency_median_us, report.sequential_read), (Some(900), None));
        assert_eq!(report.caveats.len(), 1);
        let live = LiveBandwidth { direction: Direction::Write, bytes_per_second: 7, busy_seconds: 11, at };
        profile = TierProfile { measured: None, live: vec![live] };
        let report = ProfileReport::of(&profile).unwrap();
        assert_eq!((report.write_bytes_per_second(), report.day()), (Some(7), Some("2023-11-14")));
    }
}
