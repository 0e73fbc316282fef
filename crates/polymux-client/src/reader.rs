//! The leases of one open file.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polymux_lease::Changes;
use polymux_types::sync::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use polymux_types::{LeaseRefusal, LeaseWish};

use crate::host::Host;
use crate::lease::{Lease, NoLease};
use crate::report::{Counts, DirectCalls, Report, Way};

/// Time after a refusal before the next request; after each further one twice as much.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// A lease that ended sooner was short: it cost more than it gave.
const SHORT_LEASE: Duration = Duration::from_millis(100);
/// Calls that fail by a lease before it is given back.
const FAILURES_MAX: u32 = 8;
/// Calls beyond the bytes that a lease covers, of a file that has grown, before it is exchanged, and its least age then.
const OUTGROWN_MAX: u32 = 256;
const OUTGROWN_AGE: Duration = Duration::from_secs(1);
/// Longest pause where the reason of the refusal may be gone soon, and the one after a short lease,
const PAUSE_SHORT_MAX: Duration = Duration::from_secs(1);
/// where the pause is one of the daemon,
const PAUSE_IN_USE_MAX: Duration = Duration::from_millis(100);
/// and where it may last.
const PAUSE_LONG_MAX: Duration = Duration::from_secs(10);
/// After the end of a lease for a file that changes, or a refusal that is soon over, pages are kept away for so long: longer than any pause before the next request then.
const AFTER_CHANGES: Duration = Duration::from_secs(3);
/// During a pause so many reads look at the clock once: looking at it costs more than counting.
const READS_OF_A_LOOK: u64 = 16;

/// How long a refusal keeps a program from asking again, at most.
fn pause_max(refusal: Option<LeaseRefusal>) -> Duration {
    match refusal {
        Some(LeaseRefusal::Busy | LeaseRefusal::Unfreed | LeaseRefusal::OpenForChanges) => PAUSE_SHORT_MAX,
        // Until this program asks it ends the leases of those who got them earlier.
        Some(LeaseRefusal::UsedThroughMount) => PAUSE_IN_USE_MAX,
        _ => PAUSE_LONG_MAX,
    }
}

/// When a lease is asked for.
#[derive(Debug)]
enum Next {
    /// After so many further calls of [`Reader::consider_asking`].
    After(u64),
    /// Not before a moment; calls during the pause. The next refusal is followed by twice the pause.
    NotBefore(Instant, Duration, u64),
    /// Never.
    Never,
}

impl Next {
    fn not_before(pause: Duration) -> Self {
        Self::NotBefore(Instant::now() + pause, pause, 0)
    }
}

/// Lanes of a file: threads in different ones do not wait for one another's cache lines.
pub const LANES: usize = 8;

/// A reference to a lease with a count of its own.
struct LaneLease<H: Host>(Arc<Lease<H>>);

/// The part of a reader that the reads of one thread, or of a few, change.
#[repr(align(128))]
struct Lane<H: Host> {
    lease: RwLock<Option<Arc<LaneLease<H>>>>,
    /// Reads that went past the mount.
    direct: AtomicU64,
    /// Where the last one ended.
    last_end: AtomicU64,
    /// Writes that went past the mount.
    direct_writes: AtomicU64,
    is_given_up: AtomicBool,
}

impl<H: Host> Default for Lane<H> {
    fn default() -> Self {
        Self {
            lease: RwLock::new(None),
            direct: AtomicU64::new(0),
            last_end: AtomicU64::new(0),
            direct_writes: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
        }
    }
}

/// The lease of a lane.
enum Present<H: Host> {
    Lease(Arc<LaneLease<H>>),
    None,
    /// It is being exchanged.
    Unknown,
}

/// Attempts of an unaware program to exchange the lease of a lane, before it gives the lane up, and the time between them.
const ATTEMPTS: u32 = 200;
const ATTEMPT_PAUSE: Duration = Duration::from_micros(20);

impl<H: Host> Lane<H> {
    #[inline]
    fn lease(&self) -> Present<H> {
        let lease = if H::IS_UNAWARE { self.lease.try_read() } else { Some(self.lease.read()) };
        match lease.as_deref() {
            Some(Some(lease)) => Present::Lease(Arc::clone(lease)),
            Some(None) => Present::None,
            None => Present::Unknown,
        }
    }

    /// Exchanges the lease if `is_due`, and returns the old one. Readers have the lock for a few instructions. In an unaware program one may be left there for ever, by a
    /// signal handler that jumps away, or until this thread goes on, where all are being stopped: the lane is given up then, and keeps its lease, which has ended.
    fn exchange(
        &self,
        new: Option<Arc<LaneLease<H>>>,
        is_due: impl Fn(Option<&LaneLease<H>>) -> bool,
    ) -> Option<Arc<LaneLease<H>>> {
        let mut lease = if H::IS_UNAWARE { self.try_write()? } else { self.lease.write() };
        if is_due(lease.as_deref()) { std::mem::replace(&mut *lease, new) } else { None }
    }

    fn try_write(&self) -> Option<RwLockWriteGuard<'_, Option<Arc<LaneLease<H>>>>> {
        if self.is_given_up.load(Ordering::Relaxed) {
            return None;
        }
        for _ in 0..ATTEMPTS {
            if let Some(lease) = self.lease.try_write() {
                return Some(lease);
            }
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        self.is_given_up.store(true, Ordering::Relaxed);
        None
    }
}

/// The right to ask for a lease, which one thread has at a time.
#[derive(Debug)]
struct Turn<'a> {
    next: MutexGuard<'a, Next>,
    /// After a refusal.
    pause: Duration,
}

/// Reads and overwrites one open file past the mount where that is possible. It can be shared among threads, as an open file description can.
pub struct Reader<H: Host> {
    lanes: [Lane<H>; LANES],
    next: Mutex<Next>,
    /// Calls of [`Reader::consider_asking`] before the first request, and after each end of a lease.
    calls_before: u64,
    counts: Counts,
    leases: AtomicU64,
    /// Calls that failed by the present lease.
    failures: AtomicU32,
    /// Calls beyond the bytes that leases covered, since the last one that was given back for that.
    outgrown: AtomicU32,
    refused: Mutex<Option<LeaseRefusal>>,
    /// When there last was a lease for a file that changes.
    changed: Mutex<Option<Instant>>,
    /// Counts the files that it was for.
    generation: AtomicU64,
}

impl<H: Host> fmt::Debug for Reader<H> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reader").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl<H: Host> Reader<H> {
    /// A reader that has no lease and asks for one when it was called `calls_before` times to consider it.
    #[must_use]
    pub fn new(calls_before: u64) -> Self {
        Self {
            lanes: Default::default(),
            next: Mutex::new(Next::After(calls_before)),
            calls_before,
            counts: Counts::default(),
            leases: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            outgrown: AtomicU32::new(0),
            refused: Mutex::default(),
            changed: Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// Fills a buffer past the mount, or says why the kernel must be asked: [`Way::NoLeaseYet`] where there is no lease. Threads in different lanes, below
    /// [`LANES`], do not slow one another down.
    ///
    /// # Errors
    /// The way to take instead. The bytes of the buffer are undefined.
    pub fn read_past_mount(
        &self,
        file: BorrowedFd<'_>,
        lane: usize,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(), Way> {
        let lane = &self.lanes[lane % LANES];
        let end = offset.saturating_add(buffer.len() as u64);
        self.by_lease(lane, end, &lane.direct, |lease| lease.read(file, buffer, offset, &lane.last_end))
    }

    /// Overwrites bytes past the mount, all of them, or says why they are to be written through the kernel, whatever of them is in the file by then. As
    /// [`Self::read_past_mount`].
    ///
    /// # Errors
    /// The way to take instead.
    pub fn write_past_mount(&self, file: BorrowedFd<'_>, lane: usize, data: &[u8], offset: u64) -> Result<(), Way> {
        let lane = &self.lanes[lane % LANES];
        let end = offset.saturating_add(data.len() as u64);
        self.by_lease(lane, end, &lane.direct_writes, |lease| lease.write(file, data, offset))
    }

    /// Does something by the lease of a lane that concerns bytes up to `end`.
    #[inline]
    fn by_lease(
        &self,
        lane: &Lane<H>,
        end: u64,
        direct: &AtomicU64,
        body: impl FnOnce(&Lease<H>) -> Result<(), Way>,
    ) -> Result<(), Way> {
        let lease = match lane.lease() {
            Present::Lease(lease) => lease,
            Present::None => return Err(Way::NoLeaseYet),
            Present::Unknown => return Err(Way::Recalled),
        };
        let outcome = body(&lease.0);
        match outcome {
            Ok(()) => drop(direct.fetch_add(1, Ordering::Relaxed)),
            Err(way) => {
                let fails_again = || self.failures.fetch_add(1, Ordering::Relaxed) >= FAILURES_MAX;
                let has_ended = way == Way::OtherFile
                    || !lease.0.is_current()
                    || way == Way::Failed && fails_again()
                    || way == Way::Beyond && self.is_outgrown(&lease.0, end);
                if has_ended && !lane.is_given_up.load(Ordering::Relaxed) {
                    let _quiet = H::quiet();
                    self.end(&lease.0);
                }
            }
        }
        if Arc::strong_count(&lease) == 1 {
            // It ended meanwhile, and goes with this.
            let _quiet = H::quiet();
            drop(lease);
        }
        outcome
    }

    /// Whether so many calls went beyond a lease that another one is worth its price, because the file has grown.
    fn is_outgrown(&self, lease: &Lease<H>, end: u64) -> bool {
        if !lease.is_outgrown_by(end) || self.outgrown.fetch_add(1, Ordering::Relaxed) < OUTGROWN_MAX {
            return false;
        }
        let is_old = lease.since().elapsed() >= OUTGROWN_AGE;
        if is_old {
            self.outgrown.store(0, Ordering::Relaxed);
        }
        is_old
    }

    /// Counts reads that the kernel served, and why.
    pub fn note_reads(&self, way: Way, reads: u64) {
        self.counts.note_reads(way, reads);
    }

    /// Counts writes that the kernel served, and why.
    pub fn note_writes(&self, way: Way, writes: u64) {
        self.counts.note_writes(way, writes);
    }

    /// How the reads were served so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let refused = self.refused.try_lock().and_then(|refused| *refused);
        let sum =
            |count: fn(&Lane<H>) -> &AtomicU64| self.lanes.iter().map(|lane| count(lane).load(Ordering::Relaxed)).sum();
        let direct = DirectCalls { reads: sum(|lane| &lane.direct), writes: sum(|lane| &lane.direct_writes) };
        self.counts.report(direct, self.leases.load(Ordering::Relaxed), refused)
    }

    /// Gives the lease back, if there is one.
    pub fn give_back(&self) {
        for lane in &self.lanes {
            if let Present::Lease(lease) = lane.lease() {
                lease.0.end();
            }
            drop(lane.exchange(None, |_| true));
        }
    }

    /// Begins anew, for another file; returns how the reads of this one were served. A thread that reads just now does no harm.
    pub fn restart(&self) -> Report {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.give_back();
        let report = self.report();
        self.counts.clear();
        for lane in &self.lanes {
            lane.direct.store(0, Ordering::Relaxed);
            lane.direct_writes.store(0, Ordering::Relaxed);
        }
        self.leases.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        if let Some(mut refused) = self.refused.try_lock() {
            *refused = None;
        }
        if let Some(mut changed) = self.changed.try_lock() {
            *changed = None;
        }
        if let Some(mut next) = self.next.try_lock() {
            *next = Next::After(self.calls_before);
        }
        report
    }

    /// Gives back a lease that ended: its descriptors keep objects in use.
    fn end(&self, ended: &Arc<Lease<H>>) {
        ended.end();
        let mut was_current = false;
        for lane in &self.lanes {
            let is_it = |lease: Option<&LaneLease<H>>| lease.is_some_and(|lease| Arc::ptr_eq(&lease.0, ended));
            was_current |= lane.exchange(None, is_it).is_some();
        }
        if !was_current {
            return;
        }
        let has_failed = self.failures.swap(0, Ordering::Relaxed) > FAILURES_MAX;
        let is_short = ended.since().elapsed() < SHORT_LEASE;
        let pause = match ended.changes() {
            // Of a file that changes the daemon knows whether another one pays. Programs that get one after the other end those of each other once.
            Changes::Possible if !has_failed => {
                self.note_changing();
                Some(PAUSE_MIN)
            }
            // Leases of a file that is opened for changes all the time would cost more than they give.
            _ if has_failed || is_short => Some(PAUSE_SHORT_MAX),
            _ => None,
        };
        // A thread that asks just now has the lock for long.
        let next = if H::IS_UNAWARE { self.next.try_lock() } else { Some(self.next.lock()) };
        if let (Some(mut next), Some(pause)) = (next, pause) {
            *next = Next::not_before(pause);
        }
    }

    fn note_changing(&self) {
        if let Some(mut changed) = self.changed.try_lock() {
            *changed = Some(Instant::now());
        }
    }

    /// Whether calls of this program that go through the kernel are to leave no pages there: it has a lease for a file that changes, or had one just now, and may get it again.
    #[must_use]
    pub fn keeps_pages_away(&self) -> bool {
        let has_one = self.lanes.iter().any(|lane| match lane.lease() {
            Present::Lease(lease) => lease.0.changes() == Changes::Possible && lease.0.is_current(),
            Present::None | Present::Unknown => false,
        });
        has_one || self.changed.try_lock().is_some_and(|changed| changed.is_some_and(|at| at.elapsed() < AFTER_CHANGES))
    }

    /// Asks for a lease, if it is time for that, which takes a quarter of a second at the most: [`Way::Directly`] where there is one now. Called for calls that go through the kernel for want of one. `wish` is asked if so, and has the last refusal.
    /// Who wishes a lease on any file makes other calls past the page cache while [`Self::keeps_pages_away`].
    pub fn consider_asking(&self, file: BorrowedFd<'_>, wish: impl FnOnce(Option<LeaseRefusal>) -> LeaseWish) -> Way {
        match self.turn() {
            Ok(turn) => {
                let refused = self.refused.try_lock().and_then(|refused| *refused);
                self.ask(file, wish(refused), turn)
            }
            Err(way) => way,
        }
    }

    /// Whether it is time to ask for a lease, and nothing else asks.
    ///
    /// # Errors
    /// Why not.
    fn turn(&self) -> Result<Turn<'_>, Way> {
        // Another thread asks, or counts.
        let Some(mut next) = self.next.try_lock() else { return Err(Way::NoLeaseYet) };
        let pause = match &mut *next {
            Next::Never => return Err(Way::NoVolume),
            Next::After(0) => PAUSE_MIN,
            Next::After(reads) => {
                *reads -= 1;
                return Err(Way::NoLeaseYet);
            }
            Next::NotBefore(moment, pause, reads) => {
                *reads += 1;
                let is_look = H::IS_UNAWARE || reads.is_multiple_of(READS_OF_A_LOOK);
                if !is_look || Instant::now() < *moment {
                    return Err(Way::Refused);
                }
                *pause * 2
            }
        };
        Ok(Turn { next, pause })
    }

    /// Asks for a lease.
    fn ask(&self, file: BorrowedFd<'_>, wish: LeaseWish, turn: Turn<'_>) -> Way {
        let Turn { mut next, pause } = turn;
        let generation = self.generation.load(Ordering::Acquire);
        let asked = Lease::ask(file, wish);
        let _quiet = H::quiet();
        match asked {
            Ok(lease) => {
                self.leases.fetch_add(1, Ordering::Relaxed);
                if lease.changes() == Changes::Possible {
                    self.note_changing();
                }
                let lease = Arc::new(lease);
                for lane in &self.lanes {
                    drop(lane.exchange(Some(Arc::new(LaneLease(Arc::clone(&lease)))), |_| true));
                }
                *next = Next::After(self.calls_before);
                if self.generation.load(Ordering::Acquire) != generation {
                    // The file was closed meanwhile, and this may be for another one by now.
                    self.give_back();
                    return Way::OtherFile;
                }
                Way::Directly
            }
            Err(NoLease::NoVolume) => {
                *next = Next::Never;
                Way::NoVolume
            }
            Err(NoLease::Refused(refusal)) => {
                *self.refused.lock() = Some(refusal);
                let is_soon_over =
                    matches!(refusal, LeaseRefusal::Busy | LeaseRefusal::Unfreed | LeaseRefusal::Contended);
                if wish == LeaseWish::AnyFile && is_soon_over {
                    // Until then this program does not end the leases that others get.
                    self.note_changing();
                }
                let pause = if refusal == LeaseRefusal::Contended { PAUSE_MIN } else { pause };
                *next = Next::not_before(pause.min(pause_max(Some(refusal))));
                Way::Refused
            }
            Err(NoLease::Unreachable(_)) => {
                *next = Next::not_before(pause.min(pause_max(None)));
                Way::Refused
            }
        }
    }
}
