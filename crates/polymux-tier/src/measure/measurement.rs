//! The results of a measurement, and conclusions from them.

use std::collections::BTreeMap;

use super::ground::Way;

const PICOSECONDS: u64 = 1_000_000_000_000;

/// Bytes of the small requests whose number per second is reported.
const SMALL_REQUEST_BYTES: u32 = 4096;

/// The smallest number of requests at once that reaches this share, in percent, of the best throughput is enough.
const ENOUGH_PERCENT: u128 = 90;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// How requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Each goes on where the one before it ended.
    Sequential,
    /// Anywhere in the file, nowhere twice before the file is through.
    Random,
}

/// The result of one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Which way bytes went.
    pub direction: Direction,
    /// How requests followed one another.
    pub pattern: Pattern,
    /// Bytes of each.
    pub request_bytes: u32,
    /// How many were under way at once.
    pub in_flight: u16,
    /// How many there were.
    pub requests: u32,
    /// Bytes of all of them over the time until the last was through, for writes until the device had flushed them.
    pub bytes_per_second: u64,
    /// Half of them took no longer than this many microseconds,
    pub median_us: u32,
    /// and 99 % no longer than this.
    pub p99_us: u32,
}

impl Point {
    /// Requests per second.
    #[must_use]
    pub fn requests_per_second(&self) -> u64 {
        self.bytes_per_second / u64::from(self.request_bytes.max(1))
    }
}

/// Effects that may make the numbers better than the device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caveats {
    /// Memory of this machine may have answered reads: the file system keeps pages that it was asked to drop.
    pub may_be_memory: bool,
    /// The file takes less space than was written: the file system compresses, or finds blocks that are alike, although no two
    /// were.
    pub takes_less_room: bool,
    /// The file was small, because little space or time was left: memory of the device may hold all of it.
    pub is_small: bool,
}

impl Caveats {
    /// In words, for people.
    #[must_use]
    pub fn words(&self) -> Vec<&'static str> {
        let all = [
            (self.may_be_memory, "reads may have come from memory"),
            (self.takes_less_room, "the file system stores less than it is given"),
            (self.is_small, "the file was so small that the device's own memory may hold it"),
        ];
        all.into_iter().filter_map(|(holds, words)| holds.then_some(words)).collect()
    }
}

/// Performance of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// How requests reached the device.
    pub way: Way,
    /// Bytes of the file that all of it was measured on.
    pub file_bytes: u64,
    /// How long it took in milliseconds.
    pub elapsed_ms: u32,
    /// Caveats of the numbers.
    pub caveats: Caveats,
    /// The loads, in the order in which they were tried; fewer than planned where time ran out.
    pub points: Vec<Point>,
}

impl Measurement {
    fn of(&self, direction: Direction, pattern: Pattern) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |point| point.direction == direction && point.pattern == pattern)
    }

    /// Small random requests, by how many are under way.
    fn small(&self, direction: Direction) -> impl Iterator<Item = &Point> {
        self.of(direction, Pattern::Random).filter(|point| point.request_bytes == SMALL_REQUEST_BYTES)
    }

    /// Bytes per second, one after the other, with as much under way as was tried.
    #[must_use]
    pub fn sequential_bytes_per_second(&self, direction: Direction) -> Option<u64> {
        let fullest =
            self.of(direction, Pattern::Sequential).max_by_key(|point| (point.in_flight, point.request_bytes));
        fullest.map(|point| point.bytes_per_second)
    }

    /// Requests of 4 KiB per second, anywhere, with as many under way as were tried.
    #[must_use]
    pub fn random_requests_per_second(&self, direction: Direction) -> Option<u64> {
        self.small(direction).max_by_key(|point| point.in_flight).map(Point::requests_per_second)
    }

    /// Picoseconds that the device needs to read so many bytes in order.
    #[must_use]
    pub fn sequential_read_picoseconds(&self, bytes: u64) -> Option<u128> {
        let bytes_per_second = self.sequential_bytes_per_second(Direction::Read).filter(|bytes| *bytes > 0)?;
        Some(u128::from(bytes) * u128::from(PICOSECONDS) / u128::from(bytes_per_second))
    }

    /// Picoseconds that the device needs for each random read of so many bytes while it has as many under way as it likes. Between and
    /// beyond the sizes that were measured, a request is a fixed time and one for each byte.
    #[must_use]
    pub fn random_read_picoseconds(&self, request_bytes: u64) -> Option<u64> {
        // Of each size the load with most under way.
        let mut of_sizes: BTreeMap<u32, (u16, u64)> = BTreeMap::new();
        let random = self.of(Direction::Read, Pattern::Random);
        for point in random.filter(|point| point.bytes_per_second > 0 && point.request_bytes > 0) {
            let time = u64::from(point.request_bytes).saturating_mul(PICOSECONDS) / point.bytes_per_second;
            let fullest = of_sizes.entry(point.request_bytes).or_insert((point.in_flight, time));
            if point.in_flight >= fullest.0 {
                *fullest = (point.in_flight, time);
            }
        }
        let (small, (_, small_time)) = of_sizes.first_key_value()?;
        let (large, (_, large_time)) = of_sizes.last_key_value()?;
        let beyond = u128::from(request_bytes.saturating_sub(u64::from(*small)));
        let per_bytes = match large.saturating_sub(*small) {
            // One size alone does not show the fixed part.
            0 => u128::from(*small_time) * beyond / u128::from((*small).max(1)),
            between => u128::from(large_time.saturating_sub(*small_time)) * beyond / u128::from(between),
        };
        Some(small_time.saturating_add(u64::try_from(per_bytes).unwrap_or(u64::MAX)))
    }

    /// How long a request of 4 KiB takes that is alone.
    #[must_use]
    pub fn latency(&self, direction: Direction) -> Option<&Point> {
        self.small(direction).find(|point| point.in_flight == 1)
    }

    /// How many requests of 4 KiB at once get the most out of the device, but for a tenth.
    #[must_use]
    pub fn saturating_in_flight(&self, direction: Direction) -> Option<u16> {
        let best = u128::from(self.random_requests_per_second(direction)?);
        self.small(direction)
            .filter(|point| u128::from(point.requests_per_second()) * 100 >= best * ENOUGH_PERCENT)
            .map(|point| point.in_flight)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(request_bytes: u32, in_flight: u16, bytes_per_second: u64) -> Point {
        Point {
            direction: Direction::Read,
            pattern: Pattern::Random,
            request_bytes,
            in_flight,
            requests: 100,
            bytes_per_second,
            median_us: 100,
            p99_us: 200,
        }
    }

    fn measured(points: Vec<Point>) -> Measurement {
        Measurement { way: Way::Direct, file_bytes: 1 << 30, elapsed_ms: 1000, caveats: Caveats::default(), points }
    }

    #[test]
    fn a_random_read_takes_a_fixed_time_and_one_for_each_byte() {
        // 20,000 and 10,000 requests per second; one at a time is slower, and does not count.
        let found = measured(vec![
            random(4096, 1, 4096 * 1000),
            random(4096, 32, 4096 * 20_000),
            random(65536, 8, 65536 * 10_000),
        ]);
        let microseconds = |bytes| found.random_read_picoseconds(bytes).unwrap() / 1_000_000;
        assert_eq!((microseconds(512), microseconds(4096), microseconds(65536)), (50, 50, 100));
        assert_eq!(microseconds(4096 + (65536 - 4096) / 2), 75);
        assert_eq!(microseconds(65536 + 61440), 150);
    }

    #[test]
    fn the_load_with_most_under_way_counts_and_not_one_that_spent_what_was_saved_up() {
        let order = |in_flight, bytes_per_second| Point {
            pattern: Pattern::Sequential,
            ..random(1 << 20, in_flight, bytes_per_second)
        };
        let found = measured(vec![
            order(1, 800_000_000),
            order(4, 660_000_000),
            random(4096, 1, 4096 * 27_000),
            random(4096, 32, 4096 * 20_000),
            random(4096, 16, 4096 * 24_000),
        ]);
        assert_eq!(found.sequential_bytes_per_second(Direction::Read), Some(660_000_000));
        assert_eq!(found.random_requests_per_second(Direction::Read), Some(20_000));
        assert_eq!(found.random_read_picoseconds(4096), Some(50_000_000));
        assert_eq!(found.saturating_in_flight(Direction::Read), Some(1));
    }

    #[test]
    fn of_one_size_all_time_is_taken_for_that_of_the_bytes_and_of_none_nothing_is_known() {
        let found = measured(vec![random(4096, 32, 4096 * 20_000)]);
        assert_eq!(found.random_read_picoseconds(8192), Some(100_000_000));
        assert_eq!(measured(Vec::new()).random_read_picoseconds(4096), None);
        // Larger requests that were faster are noise.
        let noise = measured(vec![random(4096, 32, 4096 * 1000), random(65536, 8, 65536 * 2000)]);
        assert_eq!(noise.random_read_picoseconds(65536), Some(1_000_000_000));
    }
}
