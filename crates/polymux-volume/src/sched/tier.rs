//! The schedule of one tier: movers ask it before each request, and it is notified of every foreground operation.

use std::time::Duration;

use polymux_types::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

use super::bandwidth::Lane;
use super::bucket::Bucket;
use super::deferral::{Deferrable, Deferral, Ready, Urgency};
use super::governor::{Governor, LATENCY_SLACK_US};
use super::meter::{Direction, Finished, INTERVAL, Interval, Meter, Rates, TierLoad, Timing, whole};
use super::microseconds;
use super::request_size::{FULL_SIZE_INTERVAL, RequestSize, RequestSizes, SERVICE_MAX, Sizing};

/// Requests of movers under way on a tier while no foreground I/O is.
const IN_FLIGHT_MAX: u32 = 4;

/// When to ask again where only another request's end is waited for.
const ASK_AGAIN: Duration = Duration::from_micros(500);

/// Latencies half of which are forgotten.
const LATENCY_AGE: Duration = Duration::from_secs(4);

/// Limits of movers on a tier, from the configuration; `None`: no limit. At least 1 each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoverLimits {
    /// Most bytes a second that movers read or write; `None`: no limit.
    pub bytes_per_second: Option<u64>,
    /// Most requests a second of movers; `None`: no limit.
    pub operations_per_second: Option<u64>,
}

/// How movers behave beside foreground I/O. In either case a tier has one of their requests at a time then, which goes
/// when nothing urgent is under way, or after the bound of [`Deferral`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Politeness {
    /// The rate falls until the foreground is nearly as fast as without a mover.
    #[default]
    Default,
    /// The rate falls if the foreground waits longer than two of the mover's requests take: as little as leaves
    /// the device its capacity for the foreground.
    FullSpeed,
}

impl Politeness {
    /// The allowed rise of the foreground's mean latency, in microseconds.
    fn slack_us(self) -> f64 {
        match self {
            Self::Default => LATENCY_SLACK_US,
            Self::FullSpeed => 2.0 * SERVICE_MAX.as_secs_f64() * 1e6,
        }
    }
}

/// How a single move behaves beside foreground I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoverPace {
    /// As [`Politeness`] says.
    #[default]
    Polite,
    /// It goes beside the foreground: the time it takes from programs now is saved again within seconds. Beside syncs it takes half of the time
    /// of the device, in small requests one at a time, because a sync waits for the requests before it.
    TakesShare,
}

/// Requests of movers that take their share which are under way on a tier beside the foreground.
const IN_FLIGHT_SHARED_MAX: u32 = 2;

/// How long after a sync programs count as waiting for the tier.
const SYNCED_LATELY: Duration = Duration::from_secs(1);

/// Scheduling state of one tier. Shared by all users of the tier.
#[derive(Debug)]
pub struct TierSchedule {
    meter: Meter,
    mover_is_active: AtomicBool,
    /// When the present interval may end, in microseconds since mounting.
    interval_end_us: AtomicU64,
    /// Until when a mover that takes its share makes a pause, in microseconds since mounting.
    share_pauses_until_us: AtomicU64,
    /// A mover that takes its share was admitted in the present interval.
    is_shared: AtomicBool,
    /// One was admitted since [`TierSchedule::take_was_shared`] asked last.
    was_shared: AtomicBool,
    deferral: Deferral,
    control: Mutex<Control>,
}

#[derive(Debug)]
struct Control {
    limits: MoverLimits,
    politeness: Politeness,
    bytes: Bucket,
    operations: Bucket,
    /// Beside the foreground.
    governed: Bucket,
    governor: Governor,
    size: RequestSize,
    /// When a request was last given its full size.
    full_size_at: Duration,
    rates: Rates,
    interval_began: Duration,
    latencies_aged: Duration,
}

impl Control {
    /// Whether the last request of full size is so long ago that the next one should have it, to learn the speed from.
    fn is_full_size_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.full_size_at) >= FULL_SIZE_INTERVAL
    }
}

impl TierSchedule {
    pub fn new(limits: MoverLimits) -> Self {
        let control = Control {
            limits,
            politeness: Politeness::Default,
            bytes: Bucket::default(),
            operations: Bucket::default(),
            governed: Bucket::default(),
            governor: Governor::new(),
            size: RequestSize::new(),
            full_size_at: Duration::ZERO,
            rates: Rates::default(),
            interval_began: Duration::ZERO,
            latencies_aged: Duration::ZERO,
        };
        Self {
            meter: Meter::default(),
            mover_is_active: AtomicBool::new(false),
            interval_end_us: AtomicU64::new(0),
            share_pauses_until_us: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
            was_shared: AtomicBool::new(false),
            deferral: Deferral::default(),
            control: Mutex::new(control),
        }
    }

    /// The order of requests here.
    pub(crate) fn deferral(&self) -> &Deferral {
        &self.deferral
    }

    pub fn set_limits(&self, limits: MoverLimits) {
        self.control.lock().limits = limits;
    }

    pub fn set_politeness(&self, politeness: Politeness) {
        let mut control = self.control.lock();
        control.politeness = politeness;
        control.governor.forget_ceiling();
    }

    /// Takes over limits and politeness of the schedule of the same tier as it was before.
    pub fn follow(&self, before: &Self) {
        let (limits, politeness) = {
            let control = before.control.lock();
            (control.limits, control.politeness)
        };
        self.set_limits(limits);
        self.set_politeness(politeness);
        self.deferral.set_bound(before.deferral.bound());
    }

    /// A foreground operation goes to the tier. Each is ended by [`TierSchedule::foreground_ended`], also one that
    /// fails.
    pub(crate) fn foreground_began(&self) -> Timing {
        self.meter.foreground_began(self.mover_is_active())
    }

    /// It came back, with as many bytes. `finished` where it was timed.
    pub(crate) fn foreground_ended(&self, direction: Direction, bytes: u64, finished: Option<Finished>) {
        self.meter.foreground_ended(direction, bytes, finished.map(|finished| finished.latency));
        if let Some(Finished { now, .. }) = finished
            && microseconds(now) >= self.interval_end_us.load(Ordering::Relaxed)
            && let Some(mut control) = self.control.try_lock()
        {
            self.evaluate(&mut control, now);
        }
    }

    /// Whether a mover used the tier lately: then every foreground operation is timed.
    pub fn mover_is_active(&self) -> bool {
        self.mover_is_active.load(Ordering::Relaxed)
    }

    /// Mean delay of a foreground request, in microseconds, that movers which yield may always cause. Where requests wait for one another they may
    /// cause more, in proportion to that wait.
    pub fn polite_delay_us_max(&self) -> u64 {
        whole(self.control.lock().politeness.slack_us())
    }

    /// Whether a mover that takes its share used the tier since the last call. Movers that yield to readers make these wait little.
    pub fn take_was_shared(&self) -> bool {
        self.was_shared.swap(false, Ordering::Relaxed)
    }

    /// Whether foreground I/O used the tier in the last second. Then a mover has no more on its way to it than it asked
    /// for.
    pub fn foreground_is_active(&self, now: Duration) -> bool {
        self.control.lock().governor.foreground_is_active(now)
    }

    /// Whether a mover may send a request of `bytes`. Zero: it goes now, counts as under way, and is ended by
    /// [`TierSchedule::mover_ended`]. Otherwise: after how long to ask again. `reads` is the tier's lane for readers, and `ready`
    /// belongs to this request.
    pub fn admit(&self, bytes: u64, pace: MoverPace, reads: &Lane, ready: &mut Ready, now: Duration) -> Duration {
        let mut control = self.control.lock();
        if self.mover_is_active() {
            self.evaluate(&mut control, now);
        } else {
            // The measurements so far were made without a mover.
            self.end_interval(&mut control, now);
            self.mover_is_active.store(true, Ordering::Relaxed);
        }
        let mut wait = self.wait(&mut control, bytes, pace, now);
        if wait.is_zero() && pace == MoverPace::Polite {
            wait = self.deferral.ask(Deferrable::Move, ready, self.urgency_of_moves(reads, now), now);
        } else if !wait.is_zero() {
            // It waits for its rate or another mover, and not its turn.
            *ready = Ready::default();
        }
        if wait.is_zero() {
            let Control { limits, bytes: by_bytes, operations, governed, governor, .. } = &mut *control;
            if let Some(rate) = limits.bytes_per_second {
                by_bytes.take(bytes, rate.max(1), now);
            }
            if let Some(rate) = limits.operations_per_second {
                operations.take(1, rate.max(1), now);
            }
            if let Some(rate) = governor.rate(now).filter(|_| pace == MoverPace::Polite) {
                governed.take(bytes, whole(rate).max(1), now);
            }
            self.meter.mover_in_flight.fetch_add(1, Ordering::Relaxed);
            if pace == MoverPace::TakesShare {
                self.is_shared.store(true, Ordering::Relaxed);
                self.was_shared.store(true, Ordering::Relaxed);
            }
        }
        wait
    }

    fn wait(&self, control: &mut Control, bytes: u64, pace: MoverPace, now: Duration) -> Duration {
        let mut wait = Duration::ZERO;
        // A limit that was taken away delays no request.
        if control.limits.bytes_per_second.is_some() {
            wait = wait.max(control.bytes.wait(now));
        }
        if control.limits.operations_per_second.is_some() {
            wait = wait.max(control.operations.wait(now));
        }
        let beside_foreground = control.governor.foreground_is_active(now);
        if let Some(rate) = control.governor.rate(now).filter(|_| pace == MoverPace::Polite) {
            control.governed.shorten(now, Duration::from_secs_f64(bytes as f64 / rate));
            wait = wait.max(control.governed.wait(now));
        }
        let in_flight = self.meter.mover_in_flight.load(Ordering::Relaxed);
        let beside_syncs = self.is_waited_for(now);
        if pace == MoverPace::TakesShare && beside_syncs {
            let until = Duration::from_micros(self.share_pauses_until_us.load(Ordering::Relaxed));
            wait = wait.max(until.saturating_sub(now));
        }
        let in_flight_max = match pace {
            MoverPace::TakesShare if beside_syncs => 1,
            _ if !beside_foreground => IN_FLIGHT_MAX,
            MoverPace::Polite => 1,
            MoverPace::TakesShare => IN_FLIGHT_SHARED_MAX,
        };
        if in_flight >= in_flight_max {
            wait = wait.max(ASK_AGAIN);
        }
        wait
    }

    /// Whether programs wait for syncs of the tier, now or lately.
    pub fn is_waited_for(&self, now: Duration) -> bool {
        self.deferral.is_syncing() || self.deferral.synced_since(now.saturating_sub(SYNCED_LATELY))
    }

    /// Whether programs have writes or syncs under way on the tier.
    pub(crate) fn is_changed(&self, reads: &Lane) -> bool {
        self.meter.foreground_in_flight.load(Ordering::Relaxed) > reads.in_flight()
    }

    /// A mover yields to writes under way, too: they are in memory, but may wait there for memory that the device has to free.
    fn urgency_of_moves(&self, reads: &Lane, now: Duration) -> Urgency {
        if self.is_changed(reads) { Urgency::Urgent } else { self.deferral.urgency(reads, now) }
    }

    /// An admitted request came back, with as many bytes, after `elapsed` of service. Also one that failed.
    pub fn mover_ended(&self, direction: Direction, bytes: u64, sizing: Sizing, elapsed: Duration, now: Duration) {
        let mut control = self.control.lock();
        let before = self.meter.mover_in_flight.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a request that ends was admitted");
        self.share_pauses_until_us.store(microseconds(now.saturating_add(elapsed)), Ordering::Relaxed);
        if bytes > 0 {
            self.meter.mover_ended(direction, bytes);
            // Beside the foreground few requests have their full size, and a small file or the rest of one would be the only measure.
            let is_large = bytes >= control.size.bytes() / 2;
            let tells = is_large || control.size.rate().is_none() || !control.governor.foreground_is_active(now);
            if sizing == Sizing::Full && tells {
                control.size.note(bytes, elapsed);
            }
        }
        self.evaluate(&mut control, now);
    }

    /// Bytes of a mover's request of full size.
    pub fn request_bytes(&self) -> u64 {
        self.control.lock().size.bytes()
    }

    /// The sizes that the tier has for the next request of a mover that yields.
    pub(crate) fn request_sizes(&self, now: Duration) -> RequestSizes {
        let control = self.control.lock();
        let foreground_is_active = control.governor.foreground_is_active(now);
        let finds_time = foreground_is_active && self.deferral.moves_find_time(now);
        let reduced = control.governor.quiet_us().filter(|_| finds_time).map(|baseline_us| {
            let rise_us = Governor::rise_us_max(baseline_us, control.politeness.slack_us());
            control.size.bytes_within(whole(rise_us))
        });
        RequestSizes {
            full: control.size.bytes(),
            reduced,
            is_full_size_due: control.is_full_size_due(now),
            foreground_is_active,
        }
    }

    /// The next request has its full size.
    pub(crate) fn note_full_size(&self, now: Duration) {
        let mut control = self.control.lock();
        if control.is_full_size_due(now) {
            control.size.age();
        }
        control.full_size_at = now;
    }

    fn evaluate(&self, control: &mut Control, now: Duration) {
        if now.saturating_sub(control.interval_began) >= INTERVAL {
            self.end_interval(control, now);
        }
    }

    fn end_interval(&self, control: &mut Control, now: Duration) {
        let length = now.saturating_sub(control.interval_began);
        let interval = self.meter.take();
        let moved = interval.bytes[2] + interval.bytes[3];
        let is_moving = moved > 0 || self.meter.mover_in_flight.load(Ordering::Relaxed) > 0;
        let was_active = self.mover_is_active();
        let mover_rate = (was_active && is_moving).then(|| moved as f64 / length.as_secs_f64().max(1e-3));
        let service_rate = control.size.rate().map_or(0.0, |rate| rate as f64);
        // A short interval says little of rates, and its latencies count as any.
        control.rates.note(&interval, length);
        let slack_us = control.politeness.slack_us();
        // Latency beside a mover that takes its share says nothing of the rate at which a polite one would be too much.
        let is_shared = self.is_shared.swap(false, Ordering::Relaxed);
        let latency_us = interval.latency_us.filter(|_| !is_shared);
        control.governor.note(&Interval { latency_us, ..interval }, mover_rate, service_rate, slack_us, now);
        self.mover_is_active.store(is_moving, Ordering::Relaxed);
        control.interval_began = now;
        self.interval_end_us.store(microseconds(now.saturating_add(INTERVAL)), Ordering::Relaxed);
        if now.saturating_sub(control.latencies_aged) >= LATENCY_AGE {
            control.latencies_aged = now;
            self.meter.age_latencies();
        }
    }

    /// The present activity of the tier.
    pub fn load(&self, now: Duration) -> TierLoad {
        let mut control = self.control.lock();
        self.evaluate(&mut control, now);
        let rates = &control.rates;
        let governed = control.governor.rate(now).map(whole);
        let limit = control.limits.bytes_per_second;
        let foreground = self.meter.foreground_in_flight.load(Ordering::Relaxed);
        let mover_queue_depth = self.meter.mover_in_flight.load(Ordering::Relaxed);
        TierLoad {
            foreground_read: whole(rates.now[0]),
            foreground_written: whole(rates.now[1]),
            mover_read: whole(rates.now[2]),
            mover_written: whole(rates.now[3]),
            read_best: whole(rates.best[0]),
            written_best: whole(rates.best[1]),
            queue_depth: foreground + mover_queue_depth,
            mover_queue_depth,
            latency_us_p50: self.meter.latency_us(50),
            latency_us_p99: self.meter.latency_us(99),
            load_percent: rates.load_percent(),
            mover_rate: [governed, limit].into_iter().flatten().min(),
        }
    }

    #[cfg(test)]
    pub(crate) fn quiet_us(&self) -> Option<f64> {
        self.control.lock().governor.quiet_us()
    }
}
