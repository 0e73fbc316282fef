//! Interface for files that the kernel uses itself (DESIGN section 10, docs/design/0017): requests to the front end that talks to the
//! kernel, and the decisions that it gets.

use std::os::fd::BorrowedFd;

use polymux_types::Ino;

/// How one description does its I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoMode {
    /// Through the daemon, with the kernel's page cache.
    Cached,
    /// Through the daemon, without it.
    Direct,
    /// The kernel goes to the object.
    Passthrough,
    /// Calls come to the daemon, mappings are of the object.
    PassthroughDirect,
}

impl IoMode {
    /// Whether the inode is passed through while such a description is open.
    #[must_use]
    pub fn is_passed_through(self) -> bool {
        matches!(self, Self::Passthrough | Self::PassthroughDirect)
    }
}

/// Number by which the kernel knows an object that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingId(pub u32);

/// Registers and unregisters objects that the kernel uses itself.
pub trait PassthroughPort: Send + Sync {
    /// Makes an open object known; `None` where the kernel refuses.
    fn register(&self, object: BorrowedFd<'_>) -> Option<BackingId>;

    /// No description uses it any more.
    fn forget(&self, backing: BackingId);

    /// Whether the kernel refused once and for all: this process may not, it said.
    fn refuses(&self) -> bool {
        false
    }
}

/// Reaches the pages that the kernel has of files.
pub trait PagesPort: Send + Sync {
    /// Has the kernel write back the changed pages of a file, and forget all of its pages and attributes. Returns when it has; `false` where it could not be asked. Never called by a thread
    /// that serves the kernel, nor with a lock that such a thread takes: the kernel sends writes meanwhile.
    #[must_use]
    fn write_back_and_forget(&self, ino: Ino) -> bool;
}

/// Whether the kernel may go on using pages that it has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagesKept {
    /// It may.
    Yes,
    /// The file may have changed without the knowledge of the kernel.
    No,
}

/// Whether the daemon is to hear of each close of a description, beside its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosingHeard {
    /// It is: a file that was emptied and written anew becomes durable then, and a late error is reported.
    Yes,
    /// It is not: an open for reading only has no error to receive.
    No,
}

/// How an open file description does its I/O, as the answer to the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoDecision {
    /// The mode.
    pub mode: IoMode,
    /// The object, where it is passed through.
    pub backing: Option<BackingId>,
    /// For a cached description: whether earlier pages are kept.
    pub pages: PagesKept,
    /// Whether the daemon has to hear of its closes.
    pub closing: ClosingHeard,
}

/// Why a file is not passed through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Configured so.
    Off,
    /// The kernel cannot, or does not let this process; `status` says why.
    Kernel,
    /// The kernel collects writes on this mount, which excludes passthrough.
    CollectsWrites,
    /// Configured for reading only.
    ReadingOnly,
    /// It has no object yet.
    NoObject,
    /// It is new, and others of its kind or by its creator were small when they were closed.
    LikelySmall,
    /// More than one tier holds it.
    Split,
    /// A failed sync lost some of its bytes, and they were not written since.
    Damaged,
    /// Bytes that it gave up on its object wait to be freed.
    Unfreed,
    /// Its place, or its length, is not in the log yet.
    Unlogged,
    /// Its writes are to be durable when they return.
    Synchronous,
    /// It was opened to append: the kernel would go on appending to the object when the flag is cleared.
    Appends,
    /// A mapping could change appended bytes.
    AppendOnly,
    /// A direct write would not take its set-id bits away.
    SetId,
    /// It was emptied to be written anew, and may grow beyond its tier.
    Emptied,
    /// It is being moved or changed right now.
    Busy,
    /// A program has its objects open, by a lease that it has or had.
    Leased,
    /// Its tier is missing, fails, is being emptied, is not a local file system, or has no further object to pass through.
    Tier,
    /// It is not on the fastest tier that it may be on: its reads must reach the daemon, and it may move while it is open.
    MayMove,
    /// It may have to leave its tier: that has more to read than it serves, or may have while most of its reads do not reach the daemon; or it has
    /// to free space for data that is read more, and the file is read too little to stay there for certain.
    MayLeave,
    /// Its tier has too little free space or a capacity of its own, or overwrites need space.
    Room,
    /// It is new, it grew while it was last open for changes, or nothing is known of that: then it has to be able to go on on another tier.
    Grows,
    /// Its tier holds the metadata, and its file system reserves no space for them that a direct write could not take.
    MetadataRoom,
}

impl Obstacle {
    /// In words, after "through the daemon: ".
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Off => "passthrough is off for it",
            Self::Kernel => "the kernel does not offer passthrough, see `polymux status`",
            Self::CollectsWrites => "the kernel collects writes (`io = \"write-back\"`)",
            Self::ReadingOnly => "passthrough is for reading only",
            Self::NoObject => "it has no object yet",
            Self::LikelySmall => "it is new, and new files of its kind, or of the program that made it, were small",
            Self::Split => "more than one tier holds it",
            Self::Damaged => "some of its bytes are lost",
            Self::Unfreed => "bytes that it gave up on its tier wait to be freed",
            Self::Unlogged => {
                "its place or its length is not in the log yet, which the next sync or periodic flush ends"
            }
            Self::Emptied => "it was emptied to be written anew, wherever there is room",
            Self::Synchronous => "its writes are synchronous",
            Self::Appends => "it is open for appending",
            Self::AppendOnly => "it is append-only",
            Self::SetId => "it has a set-id bit, which a write takes away",
            Self::Busy => "it is being moved or changed",
            Self::Leased => "a program has its objects open (`polymux status --clients`)",
            Self::Tier => "its tier is missing, failing, being emptied, remote, or lends nothing more",
            Self::MayMove => "it is not on the fastest tier that it may be on, and may move there",
            Self::MayLeave => "its tier is short of space or has much to read, and it may have to leave",
            Self::Grows => {
                "it may grow beyond its tier: it is new, or was not only overwritten while it was last open for changes"
            }
            Self::MetadataRoom => {
                "its tier holds the metadata, and its file system keeps no blocks for root (mkfs.ext4 -m) that a direct write \
                 could not take"
            }
            Self::Room => "its tier has too little room for changes, or a capacity to keep to",
        }
    }
}
