//! The mover: one mechanism for every reason to move blocks (DESIGN section 8, docs/design/0010).
//!
//! Invariants:
//! * A job is one file or ranges of it, a destination and a reason. A file is in one batch at a time.
//! * A job that cannot go on is parked with the reason and woken by an event; nothing here waits in a loop.
//! * A mover holds no lock of a file while it copies, and never more than the part that it switches.
//!
//! `queue` knows jobs, `driver` takes batches of them, `part`, `copy` and `commit` carry one part out, `compact` clears up
//! after it, `drain`, `planner` and `balance` make jobs.

#![forbid(unsafe_code)]

mod advise;
mod balance;
mod batch;
mod bundle;
mod cache_look;
mod commit;
mod compact;
mod copy;
mod drain;
mod driver;
mod explain;
mod facts;
mod load_balance;
mod mover;
mod pace;
mod part;
mod plan;
mod planner;
mod promotion;
mod queue;
mod relief;
mod requests;
mod victims;

pub use mover::Mover;

use polymux_records::error::{Error, ErrorKind};
use polymux_types::TierId;

/// Why a part did not come to its end.
#[derive(Clone, Debug)]
pub(crate) enum Interrupt {
    /// Another thread wants the file for itself, or the mover must end.
    Stopped,
    /// The target has no space.
    NoRoom(TierId),
    /// A tier is not there.
    Offline(TierId),
    /// The copy may not be durable.
    SyncFailed(TierId),
    /// The kernel uses the object of the file itself.
    PassedThrough,
    /// Anything else.
    Failed(Error),
}

impl Interrupt {
    /// The meaning of an error that the target returned.
    fn of(error: Error, target: TierId) -> Self {
        let is_of_store = matches!(error.kind(), ErrorKind::Store(_));
        if error.is_out_of_room() && !is_of_store { Self::NoRoom(target) } else { error.into() }
    }

    /// Whether the metadata store failed, so that it is unknown which transactions are in its log.
    fn is_of_failed_store(&self) -> bool {
        match self {
            Self::Failed(error) => match error.kind() {
                ErrorKind::Store(error) => *error != polymux_meta::StoreError::NoSpace,
                _ => false,
            },
            Self::Stopped | Self::NoRoom(_) | Self::Offline(_) | Self::SyncFailed(_) | Self::PassedThrough => false,
        }
    }
}

impl From<Error> for Interrupt {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::TierMissing(tier) => Self::Offline(*tier),
            _ => Self::Failed(error),
        }
    }
}

impl From<ErrorKind> for Interrupt {
    fn from(kind: ErrorKind) -> Self {
        Error::from(kind).into()
    }
}
