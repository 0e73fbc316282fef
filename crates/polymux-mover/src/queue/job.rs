//! A job of the mover: one file, where it goes and why, and how far it is.
//!
//! Invariants:
//! * A mover has a clone of its job. The original in the queue shares the pace and the arrived bytes with it, so that both change for both at once;
//!   the queue takes the progress over at the end of a part (`MoveQueue::note_progress`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use polymux_records::report::{Destination, JobId, JobReport, JobState, MoveReason};
use polymux_types::sync::{AtomicBool, AtomicU64, Ordering};
use polymux_types::{Block, Ino, TierId};
use polymux_volume::sched::MoverPace;

/// Which blocks of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All, as many as there are when it begins.
    Whole,
    /// These, in order.
    Ranges(VecDeque<Range<Block>>),
}

/// A requested migration.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) ino: Ino,
    pub(crate) scope: Scope,
    pub(crate) destination: Destination,
    /// The tier that the bytes are taken off, where the order is about that.
    pub(crate) leaves: Option<TierId>,
    pub(crate) reason: MoveReason,
    pub(crate) pace: MoverPace,
    pub(crate) bytes: u64,
}

/// The pace of a job, which may become another while a mover has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaceOfJob(Arc<AtomicBool>);

impl PaceOfJob {
    pub(crate) fn new(pace: MoverPace) -> Self {
        Self(Arc::new(AtomicBool::new(pace == MoverPace::TakesShare)))
    }

    /// The pace now.
    pub(crate) fn get(&self) -> MoverPace {
        if self.0.load(Ordering::Relaxed) { MoverPace::TakesShare } else { MoverPace::Polite }
    }

    pub(crate) fn hurry(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Bytes of the part that a mover has in hand which lie on the target already, where they count as used.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrivedBytes(Arc<Arrived>);

#[derive(Debug, Default)]
struct Arrived {
    /// Blocks that are written meanwhile are copied once more.
    copied: AtomicU64,
    of_part: AtomicU64,
}

impl ArrivedBytes {
    /// A part of so many bytes begins; it counts them here.
    pub(crate) fn begin(&self, bytes: u64) -> Self {
        self.0.copied.store(0, Ordering::Relaxed);
        self.0.of_part.store(bytes, Ordering::Relaxed);
        self.clone()
    }

    /// More were copied.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.copied.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The part ended: its bytes count as done, or are to be copied anew.
    pub(crate) fn end(&self) {
        let _of_no_part = self.begin(0);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.copied.load(Ordering::Relaxed).min(self.0.of_part.load(Ordering::Relaxed))
    }
}

/// Bytes of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobProgress {
    pub(crate) bytes_total: u64,
    pub(crate) bytes_done: u64,
    /// Copied bytes, those of given-up copies included.
    pub(crate) bytes_copied: u64,
    pub(crate) arrived: ArrivedBytes,
}

/// Delays of a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setbacks {
    /// Times in a row that its copy was given up.
    pub(crate) stops: u32,
    /// Times in all.
    pub(crate) interruptions: u32,
    /// Restarts for appended data.
    pub(crate) reruns: u32,
}

/// One file on its way.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) ino: Ino,
    pub(crate) scope: Scope,
    pub(crate) destination: Destination,
    pub(crate) leaves: Option<TierId>,
    pub(crate) reason: MoveReason,
    pub(crate) pace: PaceOfJob,
    /// The pace that it has unless others wait behind it.
    pub(crate) own_pace: MoverPace,
    pub(crate) submitted: Duration,
    pub(crate) progress: JobProgress,
    pub(crate) setbacks: Setbacks,
    /// The job covers the whole file, however long it becomes.
    pub(crate) is_whole: bool,
    /// It was taken back while a mover had it.
    pub(crate) is_cancelled: bool,
}

impl Job {
    pub(crate) fn new(id: JobId, order: Order, now: Duration) -> Self {
        let Order { ino, scope, destination, leaves, reason, pace, bytes } = order;
        Self {
            id,
            ino,
            scope,
            destination,
            leaves,
            reason,
            pace: PaceOfJob::new(pace),
            own_pace: pace,
            submitted: now,
            progress: JobProgress { bytes_total: bytes, ..JobProgress::default() },
            setbacks: Setbacks::default(),
            is_whole: false,
            is_cancelled: false,
        }
    }

    /// Bytes that it still has to move.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.progress.bytes_total.saturating_sub(self.progress.bytes_done)
    }

    /// The tier that alone is moved from; `None`: whatever is not at the destination moves.
    pub(crate) fn source_only(&self) -> Option<TierId> {
        match self.destination {
            Destination::AwayFrom(tier) => Some(tier),
            Destination::To(_) => self.leaves,
        }
    }

    pub(crate) fn report(&self, state: JobState, now: Duration) -> JobReport {
        JobReport {
            id: self.id,
            ino: self.ino,
            reason: self.reason,
            destination: self.destination,
            state,
            bytes_total: self.progress.bytes_total,
            bytes_done: self.progress.bytes_done,
            bytes_copied: self.progress.bytes_copied,
            interruptions: self.setbacks.interruptions,
            age_ms: u64::try_from(now.saturating_sub(self.submitted).as_millis()).unwrap_or(u64::MAX),
        }
    }
}
