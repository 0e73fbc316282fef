//! The benefit of a move: device time that it saves in each second, against the device time that it costs (PolyStore, BW_Move: P12, P15).
//!
//! Two reasons justify a move: it pays back soon, if the demand goes on; or the range has cost the slower device as much already as the move
//! would. The second is the rule of renting until the rent paid equals the price (ski rental): as far as it remembers the rent, no more than
//! twice the device time of the best choice is spent, whatever comes.
//!
//! Invariants: a small request costs its device the time of a small read or write, bytes of a stream the time of their transfer. Rates are those
//! of requests that a device really served: reads served from memory are no demand. Saturating integers throughout, so that a policy from outside can
//! reckon the same.

/// Time that a device takes to serve requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpeed {
    /// Device time of one small random read in nanoseconds, without the wait for others.
    pub read_ns: u64,
    /// That of one small write. Memory takes writes until the device is at its limit, so it is not that of a read: a device may answer reads at
    /// once while it has time to spare, and still take no more than so many requests a second.
    pub write_ns: u64,
    /// Bytes per second of a stream; at least 1.
    pub bytes_per_second: u64,
}

impl DeviceSpeed {
    /// Mean device time of a small request of this demand in nanoseconds.
    #[must_use]
    pub fn request_ns(&self, demand: &Demand) -> u64 {
        let written = u128::from(demand.written_percent.min(100));
        let all = u128::from(self.read_ns) * (100 - written) + u128::from(self.write_ns) * written;
        u64::try_from(all / 100).expect("no more than the larger one")
    }
}

/// Device requests that programs cause on a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Random reads in a thousand seconds, with the small writes that count as such.
    pub random_reads_per_kilosecond: u64,
    /// Bytes per second of streams.
    pub stream_bytes_per_second: u64,
    /// Small reads that a device served since the range moved; older ones weigh less.
    pub served_reads: u64,
    /// Small reads that a device served of the range in about the last minute, wherever it lay: chance changes their number less than that
    /// of a second. 0 after half a minute without any.
    pub lately_reads: u64,
    /// Of a hundred of all these, those that are no reads: small syncs, and writes at random that a page cache sends.
    pub written_percent: u8,
}

impl Demand {
    /// The recent small reads as a rate: in a thousand seconds.
    #[must_use]
    pub fn lately_per_kilosecond(&self) -> u64 {
        self.lately_reads.saturating_mul(1000) / 60
    }

    /// The lesser of both, each by itself.
    #[must_use]
    pub fn min_of(&self, other: &Self) -> Self {
        Self {
            random_reads_per_kilosecond: self.random_reads_per_kilosecond.min(other.random_reads_per_kilosecond),
            stream_bytes_per_second: self.stream_bytes_per_second.min(other.stream_bytes_per_second),
            served_reads: self.served_reads.min(other.served_reads),
            lately_reads: self.lately_reads.min(other.lately_reads),
            written_percent: self.written_percent.min(other.written_percent),
        }
    }
}

const NANOSECONDS: u64 = 1_000_000_000;

fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let nanoseconds = u128::from(bytes) * u128::from(NANOSECONDS) / u128::from(bytes_per_second.max(1));
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

/// Whether a device that takes `faster_ns` for a request answers half as fast again as one that takes `slower_ns`, at least. Of two that do not
/// differ as much no data leaves one for the other.
#[must_use]
pub const fn is_half_as_fast_again(faster_ns: u64, slower_ns: u64) -> bool {
    slower_ns.saturating_mul(2) >= faster_ns.saturating_mul(3)
}

/// Device time in nanoseconds that a second of this demand costs less on the faster device; 0 where it costs no less.
#[must_use]
pub fn saved_ns_per_second(demand: &Demand, slower: &DeviceSpeed, faster: &DeviceSpeed) -> u64 {
    let per_request = slower.request_ns(demand).saturating_sub(faster.request_ns(demand));
    let of_requests = demand.random_reads_per_kilosecond.saturating_mul(per_request) / 1000;
    let streamed = |speed: &DeviceSpeed| transfer_ns(demand.stream_bytes_per_second, speed.bytes_per_second);
    of_requests.saturating_add(streamed(slower).saturating_sub(streamed(faster)))
}

/// Device time in nanoseconds that the reads which were served so far would have cost less on the faster device.
#[must_use]
pub fn lost_ns(demand: &Demand, slower: &DeviceSpeed, faster: &DeviceSpeed) -> u64 {
    demand.served_reads.saturating_mul(slower.request_ns(demand).saturating_sub(faster.request_ns(demand)))
}

/// Time in nanoseconds that moving bytes takes at the speed of moves to the faster device, and, where as much has to leave it first, of
/// moves away from it.
#[must_use]
pub fn move_ns(bytes: u64, there_bytes_per_second: u64, back_bytes_per_second: Option<u64>) -> u64 {
    let back = back_bytes_per_second.map_or(0, |speed| transfer_ns(bytes, speed));
    transfer_ns(bytes, there_bytes_per_second).saturating_add(back)
}

/// Seconds after which a move has saved its own cost; `None` where it never does.
#[must_use]
pub fn pay_back_seconds(cost_ns: u64, saved_ns_per_second: u64) -> Option<u64> {
    (saved_ns_per_second > 0).then(|| cost_ns.div_ceil(saved_ns_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DeviceSpeed = DeviceSpeed { read_ns: 333_333, write_ns: 333_333, bytes_per_second: 120_000_000 };
    const SSD: DeviceSpeed = DeviceSpeed { read_ns: 50_000, write_ns: 50_000, bytes_per_second: 660_000_000 };
    const NODE: u64 = 2 << 20;

    #[test]
    fn random_reads_pay_a_move_back_within_seconds_and_few_of_them_within_minutes() {
        let cost = move_ns(NODE, 110_000_000, Some(110_000_000));
        assert_eq!(cost / 1_000_000, 38);
        let after = |reads_per_second: u64| {
            let demand = Demand { random_reads_per_kilosecond: reads_per_second * 1000, ..Demand::default() };
            pay_back_seconds(cost, saved_ns_per_second(&demand, &DISK, &SSD))
        };
        assert_eq!((after(12), after(1), after(0)), (Some(12), Some(135), None));
    }

    #[test]
    fn what_a_range_has_cost_by_now_is_its_reads_by_what_each_would_have_cost_less() {
        let demand = Demand { served_reads: 135, ..Demand::default() };
        let cost = move_ns(NODE, 110_000_000, Some(110_000_000));
        assert!(lost_ns(&demand, &DISK, &SSD) >= cost);
        assert!(lost_ns(&Demand { served_reads: 134, ..demand }, &DISK, &SSD) < cost);
        assert_eq!(lost_ns(&demand, &SSD, &DISK), 0);
    }

    #[test]
    fn a_stream_saves_what_its_transfer_takes_less() {
        let demand = Demand { stream_bytes_per_second: NODE, ..Demand::default() };
        let saved = saved_ns_per_second(&demand, &DISK, &SSD);
        assert_eq!(saved / 1_000_000, 14);
        assert_eq!(pay_back_seconds(move_ns(NODE, 110_000_000, None), saved), Some(2));
        assert_eq!(saved_ns_per_second(&demand, &SSD, &DISK), 0, "the other way nothing is saved");
    }

    #[test]
    fn writes_are_worth_what_the_device_takes_for_writes_and_not_for_reads() {
        // An idle disk with a limit of requests answers reads as soon as the SSD does.
        let (disk, ssd) = (DeviceSpeed { read_ns: 55_000, ..DISK }, DeviceSpeed { read_ns: 55_000, ..SSD });
        let saved = |written_percent| {
            let demand = Demand { random_reads_per_kilosecond: 100_000, written_percent, ..Demand::default() };
            saved_ns_per_second(&demand, &disk, &ssd)
        };
        assert_eq!((saved(0), saved(100)), (0, 28_333_300));
        assert!((14_000_000..14_200_000).contains(&saved(50)), "{}", saved(50));
    }

    #[test]
    fn nothing_overflows() {
        let none = DeviceSpeed { read_ns: u64::MAX, write_ns: u64::MAX, bytes_per_second: 0 };
        let demand = Demand {
            random_reads_per_kilosecond: u64::MAX,
            stream_bytes_per_second: u64::MAX,
            served_reads: u64::MAX,
            ..Demand::default()
        };
        assert_eq!(lost_ns(&demand, &none, &SSD), u64::MAX);
        assert!(saved_ns_per_second(&demand, &none, &SSD) > u64::MAX / 1001);
        assert_eq!(move_ns(u64::MAX, 0, Some(0)), u64::MAX);
    }
}
