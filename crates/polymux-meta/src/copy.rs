//! The second copy of the store on another tier (DESIGN section 5; docs/design/0007-second-copy.md).
//!
//! Invariants:
//! * The copy is the store as it was at one position of the log: everything before the position that its slot names, and
//!   nothing behind it. That position is durable in the store, so the copy never knows more than the store: where one does,
//!   the store has lost durable transactions, and is not opened.
//! * At every moment it either says that it is incomplete, or it can be opened: its tables know nothing beyond the slot's
//!   position, and its log holds everything from its own checkpoint up to there.
//! * A copy that is ahead of its store, or for which that cannot be determined, is never changed ([`Mode::Refused`]).
//! * No caller waits for a copy that no store can be started from. Before an action that a start from an older copy
//!   must not undo (freeing bytes that the copy maps, using numbers, raising the epoch), a caller calls [`SecondCopy::sync`]. Where
//!   the copy does not catch up, the caller makes it unusable by raising the epoch of the tiers' labels, says so with
//!   [`SecondCopy::abandon`], and goes on.
//! * [`Mode::Current`] means that the copy may be usable, so that others have to wait for it. It is entered before the last
//!   bytes are shipped that make it usable, and left only once the copy says durably that it is incomplete, or once
//!   the epoch makes it useless.
//! * Lock order: `desk` before `maintenance` before the locks of the log; `status` last, never held during I/O.
//!
//! ```text
//!  log of the store ──► blocks up to `durable` ──► ring of the copy ──flush──► slot: arrived
//!  tables ──snapshot──► new tables ──► log as far as they reach ──► version, pointer ──► checkpoint ──► old tables go
//! ```

mod attach;
mod bounds;
mod directory;
mod knowledge;
mod rebuild;
mod restore;
mod ship;
mod slot_format;
#[cfg(test)]
mod tests;
mod thread;
mod way_out;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use polymux_types::Sequence;

pub(crate) use self::attach::refuse_copy_ahead;
pub(crate) use self::bounds::{FoundCopy, find_copy};
pub(crate) use self::directory::CopyDirectory;
use crate::store::CopySync;
use polymux_types::sync::{AtomicBool, AtomicU64, Condvar, Mutex, Ordering};

pub use self::restore::{CopyDescription, CopyWorth, StoreEnd, describe_copy, restore_from_copy, verify_copy};
pub(crate) use self::slot_format::{Slot, on_disk_format};
pub(crate) use self::thread::{CopyThread, Round};
pub use self::way_out::{CopyPlace, StoreState, WayOut, newest_copy};

/// Where and how a second copy is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// Its directory.
    pub path: PathBuf,
    /// Time between two rounds of shipping; zero: a sync returns only when the copy has it too.
    pub interval: Duration,
    /// Longest time that a caller waits for it.
    pub wait_max: Duration,
}

impl CopyOptions {
    /// A copy in this directory that is shipped to every second and waited for up to ten seconds.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, interval: Duration::from_secs(1), wait_max: Duration::from_secs(10) }
    }
}

/// How the second copy does, for `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// It holds everything but the lag.
    Current,
    /// It holds an older state, and the missing part cannot be shipped at the moment.
    Failing,
    /// It is being made anew; nothing can be started from it.
    Rebuilding,
    /// It cannot be reached; its content is too old to start from.
    Unreachable,
    /// It holds transactions that the store lacks, or may: it stays unchanged, and the store continues without it.
    Refused,
}

/// State that the second copy reports of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// Its directory.
    pub path: PathBuf,
    /// How it does.
    pub state: CopyState,
    /// Why it is not current, or was not before; empty where there is nothing to say.
    pub reason: String,
    /// Bytes of the log that are durable in the store and not in the copy; `None` where nothing can be started from it.
    pub lag_bytes: Option<u64>,
    /// Age of the oldest of them in milliseconds, at most.
    pub lag_ms: Option<u64>,
    /// Last transaction that the copy holds.
    pub arrived: Sequence,
    /// Bytes of its tables.
    pub table_bytes: u64,
    /// Bytes of log and tables shipped since the store was opened.
    pub shipped_bytes: u64,
    /// Times that it was made anew since then.
    pub rebuilds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// It may be usable.
    Current,
    /// It says that it is incomplete.
    Rebuilding,
    /// It may say that it is complete, but the labels of the tiers are newer.
    Unreachable,
    /// It holds transactions that the store lost, or may, and is not changed. The labels of the tiers are newer.
    Refused,
}

struct Status {
    mode: Mode,
    /// Position up to which the copy holds everything, where it is current.
    arrived: u64,
    /// Position that it may reach with the shipment in flight.
    shipping_to: u64,
    /// Greatest position that a caller has waited for.
    wanted: u64,
    /// Why the last round failed, while it is current.
    failing: bool,
    reason: String,
    /// When it held everything that was durable.
    confirmed: Instant,
    /// A round is wanted before its time.
    kicked: bool,
    /// Since when the store is ending.
    stopping: Option<Instant>,
    finished: bool,
    table_bytes: u64,
}

/// State of the thread that ships.
struct Desk {
    directory: Option<CopyDirectory>,
    /// Tables that are there are those of this store.
    trusted: bool,
    /// Why no copy that could be started from is given up in this opening: the store is damaged.
    damage: Option<String>,
}

/// The second copy of a store that is open for writing.
pub(crate) struct SecondCopy {
    options: CopyOptions,
    desk: Mutex<Desk>,
    status: Mutex<Status>,
    /// The status has changed.
    changed: Condvar,
    /// There is something to do.
    wake: Condvar,
    /// Its thread sleeps for long, unless the log becomes durable further on.
    sleeps_long: AtomicBool,
    shipped_bytes: AtomicU64,
    rebuilds: AtomicU64,
}

impl SecondCopy {
    pub(crate) fn is_synchronous(&self) -> bool {
        self.options.interval.is_zero()
    }

    fn mode(&self) -> Mode {
        self.status.lock().mode
    }

    /// Waits until the copy holds everything before `through`, or says that it does not come along. Without a thread of
    /// the copy, `ship` brings it up to date.
    pub(crate) fn sync(&self, through: u64, ship: Option<&dyn Fn()>) -> CopySync {
        let begun = Instant::now();
        let mut status = self.status.lock();
        loop {
            if status.mode != Mode::Current || status.arrived >= through {
                return CopySync::Safe;
            }
            let waited = begun.elapsed();
            if status.failing || waited >= self.options.wait_max {
                if !status.failing {
                    status.failing = true;
                    status.reason = format!("it has not answered for {} ms", waited.as_millis());
                    self.changed.notify_all();
                }
                return CopySync::Late;
            }
            status.wanted = status.wanted.max(through);
            status.kicked = true;
            self.wake.notify_all();
            match ship {
                Some(ship) => {
                    drop(status);
                    ship();
                    status = self.status.lock();
                }
                None => {
                    self.changed.wait_for(&mut status, self.options.wait_max - waited);
                }
            }
        }
    }

    /// Last position that is safe, for callers that check before they wait; `None` where no caller has to wait.
    pub(crate) fn arrived(&self) -> Option<u64> {
        let status = self.status.lock();
        (status.mode == Mode::Current).then_some(status.arrived)
    }

    /// Gives the copy up: the labels of the tiers are newer than anything that it holds without the entry that ends at
    /// `raised`. Not where it holds that entry already, or may come to: then it has to be waited for again.
    pub(crate) fn abandon(&self, raised: u64) -> CopySync {
        let mut status = self.status.lock();
        if status.mode == Mode::Current {
            if status.arrived >= raised || status.shipping_to >= raised {
                return CopySync::Late;
            }
            status.mode = Mode::Unreachable;
            status.failing = false;
            log::warn!("the second copy in {} is given up: {}", self.options.path.display(), status.reason);
            self.changed.notify_all();
        }
        CopySync::Safe
    }

    /// The log has become durable further on.
    pub(crate) fn note_durable(&self) {
        // Either this sees the flag, or the round behind the flag sees the new durable position.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.sleeps_long.load(Ordering::Relaxed) && self.sleeps_long.swap(false, Ordering::AcqRel) {
            self.kick();
        }
    }

    /// Asks for a round soon.
    pub(crate) fn kick(&self) {
        self.status.lock().kicked = true;
        self.wake.notify_all();
    }

    /// How it does; `durable` is the end of the durable log.
    pub(crate) fn report(&self, durable: u64) -> CopyReport {
        let status = self.status.lock();
        let state = match status.mode {
            Mode::Current if status.failing => CopyState::Failing,
            Mode::Current => CopyState::Current,
            Mode::Refused => CopyState::Refused,
            Mode::Unreachable if !status.reason.is_empty() => CopyState::Unreachable,
            Mode::Rebuilding | Mode::Unreachable => CopyState::Rebuilding,
        };
        let lag_bytes = (status.mode == Mode::Current).then(|| durable.saturating_sub(status.arrived));
        let age = u64::try_from(status.confirmed.elapsed().as_millis()).unwrap_or(u64::MAX);
        CopyReport {
            path: self.options.path.clone(),
            state,
            reason: status.reason.clone(),
            lag_bytes,
            lag_ms: lag_bytes.map(|bytes| if bytes == 0 { 0 } else { age }),
            arrived: crate::log_store::sequence_of(status.arrived),
            table_bytes: status.table_bytes,
            shipped_bytes: self.shipped_bytes.load(Ordering::Relaxed),
            rebuilds: self.rebuilds.load(Ordering::Relaxed),
        }
    }
}
