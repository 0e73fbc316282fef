//! The ends of a part of a move before its switch. Each decides what becomes of its job: again, parked until an event, or over.

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
    pub(crate) fn of(error: Error, target: TierId) -> Self {
        let is_of_store = matches!(error.kind(), ErrorKind::Store(_));
        if error.is_out_of_room() && !is_of_store { Self::NoRoom(target) } else { error.into() }
    }

    /// Whether the metadata store failed, so that it is unknown which transactions are in its log.
    pub(crate) fn is_of_failed_store(&self) -> bool {
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
