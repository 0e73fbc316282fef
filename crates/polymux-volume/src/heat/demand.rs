//! Device reads of programs at present, by range node: a window that is being filled, and rates of those that ended.
//!
//! Invariants:
//! * Random reads count if a device served them: reads served from memory are no demand. A sync of a few bytes counts as one of them
//!   (docs/design/0034), and so does a small write at random that a page cache sends (docs/design/0033). A node is reported when it was read in
//!   three windows, or a file that grows, or was synced in three, was synced there: a burst is no habit. Of streams the bytes that programs took are noted; they keep a range
//!   where it is, and move none.
//! * Beside its rate a node has the number of reads that were served since it moved, which halves in seven minutes: its cost so far;
//!   the reads wherever it lay, without syncs and writes: those that a faster tier of another size would have served; and those of about a minute.
//!   It outlives the rate, so that reads with long pauses add up, too, while there is space for other nodes.
//! * A note costs the lock of a shard. Rates have a lock of their own, taken once in a window, by descriptions that begin or end to be
//!   passed through, and by reports. No lock is held while another one is taken.
//! * Bounded: of more nodes than fit those that came later are not seen.
//! * A file that the kernel reads itself keeps its rates until that ends: nothing is heard of it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use polymux_policy::Demand;
use polymux_types::Ino;
use polymux_types::sync::{AtomicU64, Mutex, Ordering};

use super::Pattern;
use super::synced_files::SyncedFiles;
use super::window::Window;

/// Nodes that a shard remembers.
const NODES_MAX: usize = 4096;

/// Nodes that have a rate.
const RATES_MAX: usize = 1 << 18;

/// Windows for which a node is passed over that could not move.
const WINDOWS_PASSED_OVER: u8 = 10;

/// Windows with reads, not necessarily in a row, after which reads are taken to go on: a burst of a second moves nothing.
pub(super) const WINDOWS_SURE: u8 = 3;

/// Share in percent of a rate that stands for the windows before the present one.
const KEPT_PERCENT: u64 = 70;

/// Random reads in a thousand seconds, and bytes per second of streams, below which there is no rate any more.
const READS_COUNTED_MIN: u64 = 50;
const STREAM_COUNTED_MIN: u64 = 4096;

/// Thousandths of served reads from which on a node without a rate is remembered,
const SERVED_COUNTED_MIN: u64 = 4000;
/// while there are fewer nodes than this.
const NODES_WITHOUT_RATE_MAX: usize = RATES_MAX / 4 * 3;

/// Minutes in which of the reads that were served so far all but a share of 1/e are forgotten: a node that is read steadily has the reads of so
/// many minutes.
pub const MINUTES_REMEMBERED: u64 = 10;
const SERVED_KEPT: Duration = Duration::from_secs(60 * MINUTES_REMEMBERED);

/// Time in which all but a share of 1/e of the recent reads are forgotten.
const LATELY: Duration = Duration::from_secs(60);

/// Time without a read after which none counts as recent.
const QUIET: Duration = Duration::from_secs(30);

/// The reads of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceReads {
    random: u64,
    /// Bytes of reads that went on where another one ended.
    stream_bytes: u64,
    /// Small syncs of it that programs waited for.
    syncs: u64,
    /// Those of a file that grows, which goes on with its next range.
    syncs_of_growth: u64,
    /// Small writes at random that a page cache sent.
    writes: u64,
}

impl DeviceReads {
    /// Windows that one with these requests counts for. A log leaves each node within a second, and goes on in the next: in a file that grows or is
    /// synced steadily no node needs more windows, and in another one syncs alone count for none.
    fn windows(self, steadily_synced: &BTreeSet<Ino>, ino: Ino) -> u8 {
        match (self.random | self.writes, self.syncs) {
            (_, 1..) if self.syncs_of_growth > 0 || steadily_synced.contains(&ino) => WINDOWS_SURE,
            (0, _) => 0,
            _ => 1,
        }
    }

    /// Small requests of each kind.
    const fn requests(self) -> u64 {
        self.random.saturating_add(self.syncs).saturating_add(self.writes)
    }

    /// Small requests in a thousand seconds.
    fn requests_per_kilosecond(self, length: Duration) -> u64 {
        self.requests().saturating_mul(1_000_000) / milliseconds(length).max(1)
    }

    fn stream_bytes_per_second(self, length: Duration) -> u64 {
        self.stream_bytes.saturating_mul(1000) / milliseconds(length).max(1)
    }
}

/// Known demand of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rate {
    random_reads_per_kilosecond: u64,
    stream_bytes_per_second: u64,
    /// Small reads that were served since the node moved, in thousandths, because they fade.
    served_thousandths: u64,
    /// Small reads that were served wherever the node lay, syncs and writes left out, in thousandths: they fade alike.
    seen_thousandths: u64,
    /// Those syncs and writes, in thousandths.
    written_thousandths: u64,
    /// Those that fade within a minute.
    lately_thousandths: u64,
    /// Time since the last read or small sync, in milliseconds, up to [`QUIET`].
    quiet_ms: u64,
    /// The kernel reads the file itself now.
    is_held: bool,
    /// Windows for which it is not among the busiest.
    passed_over: u8,
    /// Windows with random reads since it was last without a rate, up to [`WINDOWS_SURE`].
    windows: u8,
    /// Windows with random reads since the node was forgotten or first seen, up to [`WINDOWS_SURE`].
    windows_served: u8,
}

impl Rate {
    fn demand(&self) -> Demand {
        Demand {
            random_reads_per_kilosecond: self.random_reads_per_kilosecond,
            stream_bytes_per_second: self.stream_bytes_per_second,
            served_reads: self.served_thousandths / 1000,
            written_percent: self.written_percent(),
            lately_reads: if self.quiet_ms >= milliseconds(QUIET) { 0 } else { self.lately_thousandths / 1000 },
        }
    }

    /// As [`Self::demand`], without a rate that may be one of a burst.
    fn lasting_demand(&self) -> Demand {
        let random_reads_per_kilosecond =
            if self.windows >= WINDOWS_SURE { self.random_reads_per_kilosecond } else { 0 };
        Demand { random_reads_per_kilosecond, ..self.demand() }
    }

    fn written_percent(&self) -> u8 {
        let all = self.written_thousandths.saturating_add(self.seen_thousandths);
        u8::try_from(self.written_thousandths.saturating_mul(100) / all.max(1)).unwrap_or(100)
    }

    fn has_rate(&self) -> bool {
        self.random_reads_per_kilosecond >= READS_COUNTED_MIN || self.stream_bytes_per_second >= STREAM_COUNTED_MIN
    }

    /// Ends a window of this length with these reads, which counts for so many windows.
    fn follow(&mut self, reads: DeviceReads, windows: u8, length: Duration) {
        self.random_reads_per_kilosecond =
            follow(self.random_reads_per_kilosecond, reads.requests_per_kilosecond(length));
        self.stream_bytes_per_second = follow(self.stream_bytes_per_second, reads.stream_bytes_per_second(length));
        self.serve(reads.requests().saturating_mul(1000), reads.random.saturating_mul(1000), length);
        self.passed_over = self.passed_over.saturating_sub(1);
        self.count_windows(windows);
    }

    fn count_windows(&mut self, windows: u8) {
        if !self.has_rate() {
            (self.random_reads_per_kilosecond, self.stream_bytes_per_second, self.windows) = (0, 0, 0);
        }
        self.windows = self.windows.saturating_add(windows).min(WINDOWS_SURE);
        self.windows_served = self.windows_served.saturating_add(windows).min(WINDOWS_SURE);
    }

    /// So many thousandths of small requests were served within `length`, in which earlier ones fade; so many of them were reads.
    fn serve(&mut self, requests: u64, reads: u64, length: Duration) {
        self.served_thousandths = faded(self.served_thousandths, length, SERVED_KEPT).saturating_add(requests);
        self.seen_thousandths = faded(self.seen_thousandths, length, SERVED_KEPT).saturating_add(reads);
        let written = requests.saturating_sub(reads);
        self.written_thousandths = faded(self.written_thousandths, length, SERVED_KEPT).saturating_add(written);
        // Of a longer time a minute's share counts.
        let lately = u128::from(requests) * u128::from(milliseconds(length.min(LATELY)))
            / u128::from(milliseconds(length).max(1));
        let lately = u64::try_from(lately).expect("a part of it");
        self.lately_thousandths = faded(self.lately_thousandths, length, LATELY).saturating_add(lately);
        let quiet_ms = self.quiet_ms.saturating_add(milliseconds(length)).min(milliseconds(QUIET));
        self.quiet_ms = if requests == 0 { quiet_ms } else { 0 };
    }
}

/// Remainder of a number after `passed`, if all but a share of 1/e is forgotten within `time`.
fn faded(number: u64, passed: Duration, time: Duration) -> u64 {
    let gone = u128::from(number) * u128::from(milliseconds(passed.min(time))) / u128::from(milliseconds(time));
    number - u64::try_from(gone).expect("a part of it")
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The file of a small sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOf {
    /// One that grows.
    GrowingFile,
    /// One whose bytes are overwritten.
    OverwrittenFile,
}

/// The demand of all files of a volume.
#[derive(Debug, Default)]
pub struct DeviceDemand {
    window: Window<(Ino, u64), DeviceReads, NODES_MAX>,
    rates: Mutex<BTreeMap<(Ino, u64), Rate>>,
    synced_files: Mutex<SyncedFiles>,
    /// Small reads that were served of all nodes, forgotten ones included, in thousandths, which fade as those of a node. Changes with
    /// `rates` held.
    seen_thousandths: AtomicU64,
}

/// A new rate from the one before and the one seen in a window.
pub fn follow(before: u64, seen: u64) -> u64 {
    (before.saturating_mul(KEPT_PERCENT).saturating_add(seen.saturating_mul(100 - KEPT_PERCENT))) / 100
}

/// Standard deviations that chance explains: of a thousand ranges that are read alike, looked at each second, it shows some four deviations above
/// their mean in every minute.
const CHANCE_DEVIATIONS: u64 = 5;

/// Standard deviations between an estimate that is no choice among many and its lower bound.
const SURE_DEVIATIONS: u64 = 2;

/// Standard deviation of a smoothed rate: of `n` reads in each second it has a variance of `n * w / (2 - w)`, where `w` is the share of the last
/// window. In reads in a thousand seconds.
fn deviation(random_reads_per_kilosecond: u64) -> u64 {
    let share = 100 - KEPT_PERCENT;
    (random_reads_per_kilosecond.saturating_mul(1000).saturating_mul(share) / (200 - share)).isqrt()
}

/// A lower bound of the demand of one of many ranges, as far as chance allows. A rate beyond chance above that of about the last minute is a new one.
/// Another one may be that of a range which only looks busier at this moment than those that are read alike.
pub fn at_least(demand: &Demand) -> Demand {
    let (now, of_minute) = (demand.random_reads_per_kilosecond, demand.lately_per_kilosecond());
    let is_new = now > of_minute.saturating_add(CHANCE_DEVIATIONS * deviation(of_minute));
    bound_by(demand, if is_new { SURE_DEVIATIONS } else { CHANCE_DEVIATIONS })
}

/// A lower bound of the demand of a range that is compared with no other one.
pub fn at_least_alone(demand: &Demand) -> Demand {
    bound_by(demand, SURE_DEVIATIONS)
}

fn bound_by(demand: &Demand, deviations: u64) -> Demand {
    let now = demand.random_reads_per_kilosecond;
    Demand {
        random_reads_per_kilosecond: now.saturating_sub(deviations * deviation(now)),
        served_reads: demand.served_reads.saturating_sub(SURE_DEVIATIONS * demand.served_reads.isqrt()),
        ..*demand
    }
}

impl DeviceDemand {
    /// Notes a read of a node that a device served.
    pub fn note(&self, ino: Ino, node: u64, pattern: Pattern, bytes: u64) {
        self.note_in_window(ino, node, |noted| match pattern {
            Pattern::Random => noted.random = noted.random.saturating_add(1),
            Pattern::Sequential => noted.stream_bytes = noted.stream_bytes.saturating_add(bytes),
        });
    }

    /// Notes reads of a node that devices served, as a program reports them afterwards.
    pub fn note_reads(&self, ino: Ino, node: u64, random: u64, stream_bytes: u64) {
        self.note_in_window(ino, node, |noted| {
            noted.random = noted.random.saturating_add(random);
            noted.stream_bytes = noted.stream_bytes.saturating_add(stream_bytes);
        });
    }

    /// Notes a sync of a few bytes of a node, which costs the device a request.
    pub fn note_small_sync(&self, ino: Ino, node: u64, of: SyncOf) {
        self.note_in_window(ino, node, |noted| {
            noted.syncs = noted.syncs.saturating_add(1);
            noted.syncs_of_growth = noted.syncs_of_growth.saturating_add(u64::from(of == SyncOf::GrowingFile));
        });
    }

    /// Notes a small write of a node that a page cache sends: it has merged repeated ones already, so this one becomes a request to the device.
    pub fn note_small_write(&self, ino: Ino, node: u64) {
        self.note_in_window(ino, node, |noted| {
            noted.writes = noted.writes.saturating_add(1);
        });
    }

    fn note_in_window(&self, ino: Ino, node: u64, change: impl FnOnce(&mut DeviceReads)) {
        let hash = super::shard::hash(ino.0, u32::try_from(node).unwrap_or(u32::MAX));
        self.window.note(hash, (ino, node), change);
    }

    /// Ends the window, which was so long. Returns whether there is any demand.
    pub fn end_window(&self, length: Duration) -> bool {
        let mut window = self.window.take();
        let synced = window.iter().filter(|(_, reads)| reads.syncs > 0).map(|((ino, _), _)| *ino);
        let steadily_synced = self.synced_files.lock().end_window(synced.collect());
        let mut rates = self.rates.lock();
        let reads: u64 = window.values().map(|reads| reads.random).sum();
        let seen = faded(self.seen_thousandths.load(Ordering::Relaxed), length, SERVED_KEPT);
        self.seen_thousandths.store(seen.saturating_add(reads.saturating_mul(1000)), Ordering::Relaxed);
        let is_roomy = rates.len() < NODES_WITHOUT_RATE_MAX;
        let mut is_any_read = false;
        rates.retain(|key, rate| {
            let reads = window.remove(key);
            if rate.is_held && reads.is_none() {
                is_any_read = true;
                return true;
            }
            let reads = reads.unwrap_or_default();
            rate.follow(reads, reads.windows(&steadily_synced, key.0), length);
            is_any_read |= rate.has_rate();
            rate.has_rate() || is_roomy && rate.served_thousandths.max(rate.seen_thousandths) >= SERVED_COUNTED_MIN
        });
        for (key, reads) in window.into_iter().take(RATES_MAX.saturating_sub(rates.len())) {
            let mut rate = Rate::default();
            rate.follow(reads, reads.windows(&steadily_synced, key.0), length);
            is_any_read |= rate.has_rate();
            rates.insert(key, rate);
        }
        is_any_read
    }

    /// The kernel reads a file itself from now on.
    pub fn hold(&self, ino: Ino) {
        let mut rates = self.rates.lock();
        rates.range_mut((ino, 0)..=(ino, u64::MAX)).for_each(|(_, rate)| rate.is_held = true);
    }

    /// Ends a hold that lasted `lasted`. `reads_per_kilosecond`: the reads that devices served of its nodes meanwhile, if known.
    pub fn end_hold(&self, ino: Ino, reads_per_kilosecond: Option<&[u64]>, lasted: Duration) {
        let mut rates = self.rates.lock();
        rates.range_mut((ino, 0)..=(ino, u64::MAX)).for_each(|(_, rate)| rate.is_held = false);
        for (node, reads) in (0..).zip(reads_per_kilosecond.unwrap_or_default()) {
            let has_rate = *reads >= READS_COUNTED_MIN;
            // In thousandths: most nodes are read less than once while a file is open for a moment.
            let served = reads.saturating_mul(milliseconds(lasted)) / 1000;
            self.seen_thousandths.fetch_add(served, Ordering::Relaxed);
            if !has_rate && !rates.contains_key(&(ino, node)) {
                continue;
            }
            let rate = rates.entry((ino, node)).or_default();
            (rate.random_reads_per_kilosecond, rate.stream_bytes_per_second) = (*reads, 0);
            rate.serve(served, served, lasted);
            let windows = u8::try_from(lasted.as_secs()).unwrap_or(u8::MAX).clamp(1, WINDOWS_SURE);
            rate.count_windows(if has_rate { windows } else { 0 });
        }
    }

    /// A node cannot move up, so that others are to be looked at for some time.
    pub fn pass_over(&self, ino: Ino, node: u64) {
        if let Some(rate) = self.rates.lock().get_mut(&(ino, node)) {
            rate.passed_over = WINDOWS_PASSED_OVER;
        }
    }

    /// Nodes moved: their cost on the tier that they left is past.
    pub fn note_moved(&self, ino: Ino, nodes: Range<u64>) {
        let mut rates = self.rates.lock();
        let moved = rates.range_mut((ino, nodes.start)..(ino, nodes.end.max(nodes.start)));
        moved.for_each(|(_, rate)| rate.served_thousandths = 0);
    }

    /// Small reads that devices served in about the last ten minutes, of whatever node.
    pub fn reads_of_all(&self) -> u64 {
        self.seen_thousandths.load(Ordering::Relaxed) / 1000
    }

    /// Nodes with the small reads that devices served of them in about the last ten minutes, wherever they lay. Nodes of which there were
    /// hardly any are forgotten within seconds.
    pub fn reads_by_node(&self) -> Vec<((Ino, u64), u64)> {
        let rates = self.rates.lock();
        let reads = rates.iter().map(|(key, rate)| (*key, rate.seen_thousandths / 1000));
        reads.filter(|(_, reads)| *reads > 0).collect()
    }

    /// The demand of a node.
    pub fn of_node(&self, ino: Ino, node: u64) -> Demand {
        self.rates.lock().get(&(ino, node)).map(Rate::demand).unwrap_or_default()
    }

    /// Random reads of all nodes of a file together in a thousand seconds.
    pub fn reads_of_file(&self, ino: Ino) -> u64 {
        let rates = self.rates.lock();
        let of_file = rates.range((ino, 0)..=(ino, u64::MAX));
        of_file.map(|(_, rate)| rate.random_reads_per_kilosecond).fold(0, u64::saturating_add)
    }

    /// The nodes that are read most at present and may move up, the first ones first, `limit` at the most. A rate that may be one of a burst
    /// is left out of their demand.
    pub fn busiest(&self, limit: usize) -> Vec<((Ino, u64), Demand)> {
        self.busiest_of(|rate| rate.passed_over == 0, limit)
    }

    /// As [`Self::busiest`], those that cannot move up included.
    pub fn busiest_anywhere(&self, limit: usize) -> Vec<((Ino, u64), Demand)> {
        self.busiest_of(|_| true, limit)
    }

    fn busiest_of(&self, counts: impl Fn(&Rate) -> bool, limit: usize) -> Vec<((Ino, u64), Demand)> {
        let mut nodes: Vec<_> = {
            let rates = self.rates.lock();
            let is_read = |rate: &Rate| rate.random_reads_per_kilosecond >= READS_COUNTED_MIN;
            let is_sure = |rate: &Rate| !rate.is_held && rate.windows_served >= WINDOWS_SURE && counts(rate);
            let may_move = rates.iter().filter(|(_, rate)| is_read(rate) && is_sure(rate));
            may_move.map(|(key, rate)| (*key, rate.lasting_demand())).collect()
        };
        nodes.sort_unstable_by_key(|(key, demand)| {
            (std::cmp::Reverse((demand.random_reads_per_kilosecond, demand.stream_bytes_per_second)), *key)
        });
        nodes.truncate(limit);
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::SHARDS;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const INO: Ino = Ino(7);

    fn read(demand: &DeviceDemand, node: u64, count: u64) {
        (0..count).for_each(|_| demand.note(INO, node, Pattern::Random, 4096));
    }

    fn sync(demand: &DeviceDemand, ino: Ino, node: u64, count: u64) {
        (0..count).for_each(|_| demand.note_small_sync(ino, node, SyncOf::OverwrittenFile));
    }

    fn rest(demand: &DeviceDemand, seconds: u32) {
        for _ in 0..seconds {
            demand.end_window(SECOND);
        }
    }

    fn rate(demand: &DeviceDemand, node: u64) -> u64 {
        demand.of_node(INO, node).random_reads_per_kilosecond
    }

    #[test]
    fn rates_follow_what_is_read_and_are_forgotten_when_it_ends() {
        let demand = DeviceDemand::default();
        read(&demand, 3, 12);
        demand.note(INO, 4, Pattern::Sequential, 1 << 20);
        assert!(demand.end_window(SECOND));
        assert_eq!((rate(&demand, 3), rate(&demand, 4)), (3600, 0));
        assert_eq!(demand.of_node(INO, 4).stream_bytes_per_second, (1 << 20) * 3 / 10);
        for _ in 0..20 {
            read(&demand, 3, 12);
            demand.end_window(SECOND);
        }
        assert_eq!(demand.busiest(1), [((INO, 3), demand.of_node(INO, 3))]);
        assert!((11_900..=12_000).contains(&rate(&demand, 3)), "{}", rate(&demand, 3));
        rest(&demand, 5);
        assert!(rate(&demand, 3) < 2100);
        assert!((0..30).map(|_| demand.end_window(SECOND)).any(|is_any| !is_any), "it ends");
        assert_eq!((rate(&demand, 3), demand.reads_of_file(INO)), (0, 0));
    }

    #[test]
    fn what_the_kernel_reads_itself_keeps_its_rate_until_it_is_known() {
        let demand = DeviceDemand::default();
        (0..20).for_each(|_| {
            read(&demand, 0, 10);
            demand.end_window(SECOND);
        });
        let before = rate(&demand, 0);
        demand.hold(INO);
        rest(&demand, 20);
        assert_eq!(rate(&demand, 0), before);
        demand.end_hold(INO, Some(&[0, 5_000]), 20 * SECOND);
        assert_eq!((rate(&demand, 0), rate(&demand, 1), demand.reads_of_file(INO)), (0, 5_000, 5_000));
        assert_eq!(demand.busiest(9).len(), 1);
        demand.hold(INO);
        assert_eq!(demand.busiest(9), [], "it cannot move");
        demand.end_hold(INO, None, SECOND);
        rest(&demand, 30);
        assert_eq!(rate(&demand, 1), 0);
    }

    #[test]
    fn what_cannot_move_makes_room_among_the_busiest_for_some_time() {
        let demand = DeviceDemand::default();
        for _ in 0..WINDOWS_SURE {
            read(&demand, 0, 100);
            read(&demand, 1, 10);
            demand.end_window(SECOND);
        }
        let first = |demand: &DeviceDemand| demand.busiest(1).first().map(|((_, node), _)| *node);
        assert_eq!(first(&demand), Some(0));
        demand.pass_over(INO, 0);
        assert_eq!(first(&demand), Some(1));
        for _ in 0..WINDOWS_PASSED_OVER {
            read(&demand, 0, 100);
            demand.end_window(SECOND);
        }
        assert_eq!(first(&demand), Some(0));
    }

    #[test]
    fn a_burst_of_a_second_moves_nothing_and_reads_in_three_windows_do() {
        let demand = DeviceDemand::default();
        read(&demand, 0, 1000);
        demand.end_window(SECOND);
        rest(&demand, 2);
        assert_eq!(demand.busiest(9), []);
        read(&demand, 0, 1000);
        demand.end_window(SECOND);
        assert_eq!(demand.busiest(9), [], "twice is no habit");
        read(&demand, 0, 1000);
        demand.end_window(SECOND);
        assert_eq!(demand.busiest(9).len(), 1);
        rest(&demand, 60);
        read(&demand, 0, 1000);
        demand.end_window(SECOND);
        let lasting = |(_, demand): &((Ino, u64), Demand)| demand.random_reads_per_kilosecond;
        assert_eq!(demand.busiest(9).iter().map(lasting).collect::<Vec<_>>(), [0], "a rate that ended begins anew");
    }

    #[test]
    fn a_few_reads_by_chance_are_no_demand() {
        let surely = |reads| {
            let demand = Demand { random_reads_per_kilosecond: reads, ..Demand::default() };
            at_least(&demand).random_reads_per_kilosecond
        };
        assert_eq!((surely(0), surely(500), surely(5_000), surely(12_000)), (0, 0, 3_122, 9_090));
    }

    #[test]
    fn of_ranges_that_are_read_alike_chance_makes_none_look_busier_and_a_change_counts_at_once() {
        let demand = |now, lately_reads| Demand { random_reads_per_kilosecond: now, lately_reads, ..Demand::default() };
        let surely = |now, lately_reads| at_least(&demand(now, lately_reads)).random_reads_per_kilosecond;
        // Three in each second for a minute.
        assert_eq!((surely(3_000, 180), surely(4_400, 180)), (0, 0));
        assert!(surely(6_000, 180) < 1_000);
        // Eleven for three seconds, and for a minute.
        assert_eq!((surely(7_200, 33), surely(11_000, 660)), (4_946, 4_035));
    }

    #[test]
    fn reads_that_were_served_add_up_until_the_node_moves_and_are_forgotten_in_minutes() {
        let demand = DeviceDemand::default();
        let served = |demand: &DeviceDemand| demand.of_node(INO, 3).served_reads;
        for _ in 0..60 {
            read(&demand, 3, 2);
            demand.end_window(SECOND);
        }
        assert!((112..=120).contains(&served(&demand)), "{}", served(&demand));
        demand.note_moved(INO, 4..9);
        assert!(served(&demand) > 0, "another one moved");
        demand.note_moved(INO, 0..4);
        assert_eq!(served(&demand), 0);
        let [(node, seen)] = demand.reads_by_node()[..] else { panic!("one node was read") };
        assert_eq!(node, (INO, 3));
        assert!((112..=120).contains(&seen), "it was read all the same: {seen}");
        for _ in 0..6000 {
            read(&demand, 3, 1);
            demand.end_window(SECOND);
        }
        assert!((590..=600).contains(&served(&demand)), "a read a second never comes to more: {}", served(&demand));
    }

    #[test]
    fn files_that_the_kernel_reads_for_a_moment_add_up_to_whole_reads() {
        let demand = DeviceDemand::default();
        for _ in 0..100 {
            demand.hold(INO);
            demand.end_hold(INO, Some(&[1_000]), Duration::from_millis(100));
        }
        let of_node = demand.of_node(INO, 0);
        assert_eq!(
            (of_node.served_reads, of_node.lately_reads, demand.reads_of_all()),
            (9, 9, 10),
            "ten, less what faded"
        );
    }

    #[test]
    fn what_only_syncs_cost_is_remembered_too() {
        let demand = DeviceDemand::default();
        sync(&demand, INO, 3, 10);
        demand.end_window(SECOND);
        rest(&demand, 60);
        assert_eq!((demand.of_node(INO, 3).served_reads, demand.reads_by_node().len()), (9, 0));
    }

    #[test]
    fn a_log_that_goes_on_counts_in_its_third_second_and_one_whose_segments_are_full_at_once_does_not() {
        let demand = DeviceDemand::default();
        // Segments of two nodes, through one of which a log goes in each second.
        for second in 0..40 {
            sync(&demand, Ino(100 + second / 2 % 10), second % 2, 100);
            demand.end_window(SECOND);
            assert_eq!(demand.busiest(9), [], "second {second}");
        }
        for node in 0..5 {
            sync(&demand, INO, node, 100);
            demand.end_window(SECOND);
            let nodes: Vec<u64> = demand.busiest(9).iter().map(|((_, node), _)| *node).collect();
            assert_eq!(nodes.contains(&node), node >= 2, "node {node}");
        }
        rest(&demand, 10);
        sync(&demand, INO, 9, 100);
        demand.end_window(SECOND);
        assert!(demand.busiest(9).iter().all(|((_, node), _)| *node != 9), "it begins anew after a pause");
    }

    #[test]
    fn reads_of_the_last_minute_are_none_after_half_a_minute_without_any_and_syncs_are_no_reads() {
        let demand = DeviceDemand::default();
        let lately = |demand: &DeviceDemand| demand.of_node(INO, 3).lately_reads;
        for _ in 0..600 {
            read(&demand, 3, 2);
            demand.end_window(SECOND);
        }
        assert!((115..=120).contains(&lately(&demand)), "{}", lately(&demand));
        rest(&demand, 29);
        assert!(lately(&demand) > 50, "it may go on");
        rest(&demand, 1);
        assert_eq!(lately(&demand), 0);
        read(&demand, 3, 1);
        demand.end_window(SECOND);
        assert!(lately(&demand) > 50, "it did");
        let seen = demand.reads_by_node();
        assert_eq!(demand.reads_of_all(), seen[0].1, "one node was read");
        sync(&demand, INO, 3, 100);
        demand.end_window(SECOND);
        assert!(demand.reads_by_node() <= seen, "a sync is no read");
    }

    #[test]
    fn reads_with_pauses_between_them_add_up_and_are_no_rate() {
        let demand = DeviceDemand::default();
        for _ in 0..60 {
            read(&demand, 3, 6);
            rest(&demand, 20);
        }
        let served = demand.of_node(INO, 3).served_reads;
        assert!((145..165).contains(&served), "0.3 a second, remembered for 600 seconds, for 1,200: {served}");
        assert_eq!(demand.busiest(9), [], "it is not read at present");
        read(&demand, 3, 6);
        demand.end_window(SECOND);
        let [(_, lasting)] = demand.busiest(9)[..] else { panic!("it is read now") };
        assert_eq!(lasting.random_reads_per_kilosecond, 0, "the rate is one of a burst");
        assert!(lasting.served_reads >= served);
    }

    #[test]
    fn what_was_served_outlasts_being_read_by_the_kernel() {
        let demand = DeviceDemand::default();
        for _ in 0..10 {
            read(&demand, 3, 10);
            demand.end_window(SECOND);
        }
        demand.hold(INO);
        demand.end_hold(INO, Some(&[0, 0, 0, 500]), 60 * SECOND);
        let served = demand.of_node(INO, 3).served_reads;
        assert!((115..=120).contains(&served), "ninety of before and thirty of then: {served}");
        demand.hold(INO);
        demand.end_hold(INO, Some(&[0, 0, 0, 0]), SECOND);
        assert!(demand.of_node(INO, 3).served_reads >= served - 1, "a change in between takes nothing away");
    }

    #[test]
    fn memory_is_bounded() {
        let demand = DeviceDemand::default();
        for _ in 0..WINDOWS_SURE {
            (0..1_000_000).for_each(|node| demand.note(INO, node, Pattern::Random, 1));
            demand.end_window(SECOND);
        }
        let count = demand.busiest(usize::MAX).len();
        assert!(count <= SHARDS * NODES_MAX && count > SHARDS * NODES_MAX / 2, "{count}");
    }

    #[test]
    fn small_writes_of_a_page_cache_are_demand_as_reads_are_but_no_reads() {
        let demand = DeviceDemand::default();
        let window = || {
            (0..100).for_each(|_| demand.note_small_write(INO, 3));
            demand.end_window(SECOND);
        };
        window();
        assert_eq!(demand.busiest(10), [], "a burst is no habit");
        (0..2).for_each(|_| window());
        let busiest = demand.busiest(10);
        assert_eq!(busiest.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [(INO, 3)]);
        assert_eq!(busiest[0].1.served_reads, 299, "they fade a little");
        assert_eq!(
            (demand.reads_of_all(), demand.reads_by_node()),
            (0, Vec::new()),
            "a faster tier would serve none of them"
        );
    }
}
