//! Errors of a tier. They become an errno and a log level in `polymux-fs`, in one place.

use polymux_types::{Errno, ObjectId};

/// Why an operation on a tier failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// The file system, or the tier's capacity limit, has no space left.
    #[error("no space left on the tier")]
    NoSpace,
    /// A quota of the file system below is exhausted.
    #[error("over quota on the tier")]
    Quota,
    /// There is no such object.
    #[error("object {0:016x} is not on the tier")]
    NotFound(ObjectId),
    /// An object of that id is there already: corruption, never adopted.
    #[error("object {0:016x} is on the tier already")]
    AlreadyExists(ObjectId),
    /// The operation would have to wait for the device, or for a lock of the file system below, and the caller said it must not.
    #[error("the operation would wait")]
    WouldBlock,
    /// The operation may have to wait, and the caller said it must not: the object is not open, or the file system below cannot say.
    #[error("the operation may wait")]
    MayBlock,
    /// The file system below cannot do this.
    #[error("the tier's file system cannot {0}")]
    Unsupported(&'static str),
    /// The file system is read-only, or became so after an error.
    #[error("the tier is read-only")]
    ReadOnly,
    /// Beyond the largest file of the file system below.
    #[error("beyond the largest file of the tier's file system")]
    FileTooLarge,
    /// The label is missing, damaged or of an unknown version.
    #[error("{0}")]
    Label(String),
    /// Another process holds the tier.
    #[error("{0}")]
    InUse(String),
    /// Earlier calls of this kind have not returned for so long that no further one is made.
    #[error("the tier does not answer")]
    NotAnswering,
    /// Any other error of the file system below.
    #[error("{operation} failed: {errno}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// Error of the system call.
        errno: Errno,
    },
}

impl TierError {
    /// Sorts the errno of a system call on an object into the kinds that callers act upon.
    #[must_use]
    pub fn from_errno(operation: &'static str, object: ObjectId, errno: Errno) -> Self {
        match errno {
            Errno::ENOSPC => Self::NoSpace,
            Errno::EDQUOT => Self::Quota,
            Errno::ENOENT => Self::NotFound(object),
            Errno::EEXIST => Self::AlreadyExists(object),
            Errno::EAGAIN => Self::WouldBlock,
            Errno::EOPNOTSUPP | Errno::ENOSYS => Self::Unsupported(operation),
            Errno::EROFS => Self::ReadOnly,
            Errno::EFBIG => Self::FileTooLarge,
            errno => Self::Io { operation, errno },
        }
    }

    /// Whether space ran out, which another tier may have.
    #[must_use]
    pub fn is_out_of_room(&self) -> bool {
        matches!(self, Self::NoSpace | Self::Quota)
    }
}
