//! An open file that is read past the mount where that is possible.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use polymux_types::LeaseRefusal;
use polymux_types::sync::{Mutex, RwLock};

use crate::lease::{Lease, NoLease};
use crate::report::{Counts, Report, Way};

/// Reads through the kernel before a lease is asked for, the first time and after each end of one.
const READS_BEFORE: u64 = 16;
/// Time after a refusal before the next request; after each further one twice as much.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// A lease that ended sooner was short: it cost more than it gave.
const SHORT_LEASE: Duration = Duration::from_millis(100);
/// Reads that fail by a lease before it is given back.
const FAILURES_MAX: u32 = 8;
/// Longest pause where the reason of the refusal may be gone soon, and the one after a short lease,
const PAUSE_SHORT_MAX: Duration = Duration::from_secs(1);
/// and where it may last.
const PAUSE_LONG_MAX: Duration = Duration::from_secs(10);

/// How long a refusal keeps a program from asking again, at most.
fn pause_max(refusal: Option<LeaseRefusal>) -> Duration {
    match refusal {
        Some(LeaseRefusal::Busy | LeaseRefusal::Unfreed | LeaseRefusal::OpenForChanges) => PAUSE_SHORT_MAX,
        _ => PAUSE_LONG_MAX,
    }
}

/// When a lease is asked for.
#[derive(Debug)]
enum Next {
    /// After so many further reads through the kernel.
    After(u64),
    /// Not before a moment, at which so many reads are looked at at once: looking at the clock costs more than counting. The next refusal is followed by twice the pause.
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
const LANES: usize = 8;

thread_local! {
    /// The lane of this thread, in each file.
    static LANE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % LANES
    };
}

/// A reference to a lease with a count of its own.
#[derive(Debug)]
struct LaneLease(Arc<Lease>);

/// The part of a file that the reads of one thread, or of a few, change.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane {
    lease: RwLock<Option<Arc<LaneLease>>>,
    /// Reads that went past the mount.
    direct: AtomicU64,
    /// Where the last one ended.
    last_end: AtomicU64,
}

/// An open file. It can be shared among threads, as an open file description can.
#[derive(Debug)]
pub struct File {
    kernel: fs::File,
    lanes: [Lane; LANES],
    next: Mutex<Next>,
    counts: Counts,
    leases: AtomicU64,
    /// Reads that failed by the present lease.
    failures: AtomicU32,
    refused: Mutex<Option<LeaseRefusal>>,
}

impl File {
    /// Opens a file to be read.
    ///
    /// # Errors
    /// As [`std::fs::File::open`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::from(fs::File::open(path)?))
    }

    /// The open file as the kernel has it: everything else is done with it.
    #[must_use]
    pub fn as_file(&self) -> &fs::File {
        &self.kernel
    }

    /// Reads at an offset; the position of the open file stays. Returns the number of bytes, which is less than asked for at the end of the file, and for
    /// reads of 2 GiB and more. Bytes of the buffer behind that number are undefined.
    ///
    /// # Errors
    /// As `pread(2)`.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let lane = &self.lanes[LANE.with(|lane| *lane)];
        let lease = lane.lease.read().clone();
        let way = match lease.as_deref() {
            Some(LaneLease(lease)) => match lease.read(buffer, offset, &lane.last_end) {
                Ok(()) => {
                    lane.direct.fetch_add(1, Ordering::Relaxed);
                    return Ok(buffer.len());
                }
                Err(way) => {
                    let fails_again = || self.failures.fetch_add(1, Ordering::Relaxed) >= FAILURES_MAX;
                    if !lease.is_current() || way == Way::Failed && fails_again() {
                        self.end(lease);
                    }
                    way
                }
            },
            None => self.consider_asking(),
        };
        self.counts.note(way);
        self.kernel.read_at(buffer, offset)
    }

    /// How the reads were served so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let refused = *self.refused.lock();
        let direct = self.lanes.iter().map(|lane| lane.direct.load(Ordering::Relaxed)).sum();
        self.counts.report(direct, self.leases.load(Ordering::Relaxed), refused)
    }

    /// Gives back a lease that ended: its descriptors keep objects in use.
    fn end(&self, ended: &Arc<Lease>) {
        let mut was_current = false;
        for lane in &self.lanes {
            let mut lease = lane.lease.write();
            if lease.as_ref().is_some_and(|current| Arc::ptr_eq(&current.0, ended)) {
                *lease = None;
                was_current = true;
            }
        }
        if !was_current {
            return;
        }
        let has_failed = self.failures.swap(0, Ordering::Relaxed) > FAILURES_MAX;
        if has_failed || ended.since().elapsed() < SHORT_LEASE {
            // Leases of a file that is opened for changes all the time would cost more than they give.
            *self.next.lock() = Next::not_before(PAUSE_SHORT_MAX);
        }
    }

    /// Asks for a lease, if it is time for that; this read goes through the kernel in any case.
    fn consider_asking(&self) -> Way {
        // Another thread asks, or counts.
        let Some(mut next) = self.next.try_lock() else { return Way::NoLeaseYet };
        let pause = match &mut *next {
            Next::Never => return Way::NoVolume,
            Next::After(0) => PAUSE_MIN,
            Next::After(reads) => {
                *reads -= 1;
                return Way::NoLeaseYet;
            }
            Next::NotBefore(moment, pause, reads) => {
                *reads += 1;
                if !reads.is_multiple_of(READS_BEFORE) || Instant::now() < *moment {
                    return Way::Refused;
                }
                *pause * 2
            }
        };
        match Lease::ask(&self.kernel) {
            Ok(lease) => {
                self.leases.fetch_add(1, Ordering::Relaxed);
                let lease = Arc::new(lease);
                for lane in &self.lanes {
                    let held = Arc::new(LaneLease(Arc::clone(&lease)));
                    *lane.lease.write() = Some(held);
                }
                *next = Next::After(READS_BEFORE);
                Way::NoLeaseYet
            }
            Err(NoLease::NoVolume) => {
                *next = Next::Never;
                Way::NoVolume
            }
            Err(NoLease::Refused(refusal)) => {
                *self.refused.lock() = Some(refusal);
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

impl From<fs::File> for File {
    /// Takes an open file over. One that may be written is read through the kernel.
    fn from(kernel: fs::File) -> Self {
        Self {
            kernel,
            lanes: Default::default(),
            next: Mutex::new(Next::After(READS_BEFORE)),
            counts: Counts::default(),
            leases: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            refused: Mutex::default(),
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}
