//! Errors of the file system. This is the one place where they become an errno and a log level.

use polymux_meta::StoreError;
use polymux_tier::TierError;
use polymux_types::{Errno, Ino, ObjectId, TierId};

/// The cause, in the words of the layer that detected it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// A plain answer of the file system interface: the name exists, the directory is not empty, and so on.
    #[error("{0}")]
    Posix(Errno),
    /// The operation would wait, and the caller said it must not.
    #[error("the operation would wait")]
    WouldBlock,
    /// A tier failed.
    #[error("tier {tier}: {source}")]
    Tier {
        /// Which tier.
        tier: TierId,
        /// Its message.
        source: TierError,
    },
    /// The bytes are on a tier that is not there.
    #[error("tier {0} is missing")]
    TierMissing(TierId),
    /// No tier has free space.
    #[error("no tier has room")]
    NoSpace,
    /// The range was lost by a failed sync, with a forgotten tier or with the end of an object, and not written since (DESIGN
    /// section 6).
    #[error("inode {0}: data was lost by a failed sync or with a tier")]
    Damaged(Ino),
    /// An object is shorter than its known minimum size: the data behind its end is lost (docs/design/0032).
    #[error("tier {tier}: object {object:016x} lost its end")]
    ObjectShort {
        /// Which tier.
        tier: TierId,
        /// Which object.
        object: ObjectId,
    },
    /// The metadata store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record does not mean anything.
    #[error("metadata of {subject} is damaged: {detail}")]
    Corrupted {
        /// Which record, in words.
        subject: String,
        /// The damage found in it.
        detail: String,
    },
}

/// An error of a `FileSystem` operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct Error {
    kind: Box<ErrorKind>,
}

/// Result of a `FileSystem` operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The cause.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The error number that a program receives.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self.kind.as_ref() {
            ErrorKind::Posix(errno) => *errno,
            ErrorKind::WouldBlock => Errno::EAGAIN,
            ErrorKind::NoSpace | ErrorKind::Store(StoreError::NoSpace) => Errno::ENOSPC,
            ErrorKind::Store(StoreError::ReadOnly(_)) => Errno::EROFS,
            ErrorKind::Tier { source, .. } => errno_of_tier(source),
            ErrorKind::TierMissing(_)
            | ErrorKind::Damaged(_)
            | ErrorKind::ObjectShort { .. }
            | ErrorKind::Store(_)
            | ErrorKind::Corrupted { .. } => Errno::EIO,
        }
    }

    /// Severity of the log message: errors caused by programs are not logged.
    #[must_use]
    pub fn log_level(&self) -> Option<log::Level> {
        match self.kind.as_ref() {
            ErrorKind::Posix(_) | ErrorKind::WouldBlock => None,
            ErrorKind::NoSpace | ErrorKind::TierMissing(_) => Some(log::Level::Debug),
            // The tier, or the store, says it once for all of them.
            ErrorKind::Tier { source: TierError::NotAnswering, .. } | ErrorKind::Store(StoreError::ReadOnly(_)) => {
                Some(log::Level::Debug)
            }
            ErrorKind::Tier { source, .. } if source.is_out_of_room() => Some(log::Level::Debug),
            ErrorKind::Tier { source: TierError::Unsupported(_) | TierError::FileTooLarge, .. } => None,
            ErrorKind::Tier { .. }
            | ErrorKind::Damaged(_)
            | ErrorKind::ObjectShort { .. }
            | ErrorKind::Store(StoreError::NoSpace) => Some(log::Level::Warn),
            ErrorKind::Store(_) | ErrorKind::Corrupted { .. } => Some(log::Level::Error),
        }
    }

    /// Wraps an error of a tier.
    #[must_use]
    pub fn tier(tier: TierId, source: TierError) -> Self {
        match source {
            TierError::WouldBlock | TierError::MayBlock => ErrorKind::WouldBlock.into(),
            source => ErrorKind::Tier { tier, source }.into(),
        }
    }

    /// A record that does not mean anything.
    #[must_use]
    pub fn corrupted(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        ErrorKind::Corrupted { subject: subject.into(), detail: detail.into() }.into()
    }

    /// Whether a tier as a whole prevents the operation: it is missing, fails, or does not answer.
    #[must_use]
    pub fn is_about_tier(&self) -> bool {
        match self.kind.as_ref() {
            ErrorKind::TierMissing(_) => true,
            ErrorKind::Tier { source, .. } => {
                matches!(source, TierError::NotAnswering | TierError::Io { .. } | TierError::ReadOnly)
            }
            _ => false,
        }
    }

    /// Whether the space ran out.
    #[must_use]
    pub fn is_out_of_room(&self) -> bool {
        matches!(self.errno(), Errno::ENOSPC | Errno::EDQUOT)
    }
}

fn errno_of_tier(error: &TierError) -> Errno {
    match error {
        TierError::NoSpace => Errno::ENOSPC,
        TierError::Quota => Errno::EDQUOT,
        TierError::WouldBlock | TierError::MayBlock => Errno::EAGAIN,
        TierError::Unsupported(_) => Errno::EOPNOTSUPP,
        TierError::ReadOnly => Errno::EROFS,
        TierError::FileTooLarge => Errno::EFBIG,
        TierError::Io { errno, .. } => *errno,
        TierError::NotFound(_)
        | TierError::AlreadyExists(_)
        | TierError::Label(_)
        | TierError::InUse(_)
        | TierError::NotAnswering => Errno::EIO,
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind: Box::new(kind) }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        ErrorKind::Posix(errno).into()
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        ErrorKind::Store(error).into()
    }
}
