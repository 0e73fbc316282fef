//! The collective inode (M9): one in-memory inode that answers for all tiers, its table, and open descriptions.
//!
//! Invariants:
//! * In memory the collective inode is the truth for all attributes.
//! * The contents of an inode record change only inside `Volume::transact`, which holds the record lock of every inode of the
//!   transaction, so that records reach the log in the order of the changes. Exceptions that may run ahead of the record: times,
//!   the numbers of allocated blocks (docs/design/0029), and, for a directory whose record is open, the state of its names
//!   (docs/design/0009).
//! * At most one tier at a time, the size authority, may extend a file (docs/design/0001): `extenders` is empty or one bit.
//!   While it is empty, a spread file may still grow (docs/design/0018): the record then covers no byte beyond its floor.
//! * An inode leaves memory only when it is unreferenced and its times and its size are in the record.

mod active_streams;
mod allocation;
mod attributes;
mod compact;
mod direct;
mod direct_users;
mod durability;
mod expected_use;
mod file;
mod file_usage;
mod growth_history;
mod handle;
mod holders;
mod inline;
mod io_mode;
mod late_stamps;
mod lengths;
mod logged_messages;
mod memory_reads;
mod moving;
mod names_edition;
mod new_file_sizes;
mod number_hash;
mod outside_changes;
mod pin_counts;
mod protection;
mod read_streams;
mod record;
mod rewritten;
mod size_state;
mod small_syncs;
mod spreading;
mod streams;
mod switches;
mod table;
mod write_streams;

pub use active_streams::ActiveStreams;
pub use allocation::{Answer, Quality};
pub use attributes::Common;
pub use direct::{DirectState, PagesSeen, PassedThrough};
pub use direct_users::{DirectUsers, UsersNow};
pub use durability::Durability;
pub use file::{FileState, Layout, reference_of};
pub use file_usage::FileUsage;
pub use handle::{Handle, HandleTable};
pub use holders::Holders;
pub(crate) use inline::InlineChange;
pub use io_mode::{Grant, OpenPurpose, Standing};
pub(crate) use late_stamps::LateFile;
pub(crate) use late_stamps::LateStamps;
pub(crate) use late_stamps::StampWalks;
pub(crate) use late_stamps::WalkBelow;
pub use logged_messages::LoggedMessages;
pub use memory_reads::MemoryReadState;
pub use moving::MoveTicket;
pub use names_edition::{Editions, NamesEdition};
pub use new_file_sizes::{Creation, NewFileSizes};
pub use outside_changes::OutsideChanges;
pub use protection::{
    check_allocation, check_change, check_not_immutable, check_not_protected, check_open, check_removable,
    is_append_only,
};
pub use read_streams::Asked;
pub use record::SizeTrust;
pub use rewritten::RewrittenFiles;
pub use size_state::{SizeKnown, SizeState};
pub use spreading::{AwaitedSwitch, Spreading};
pub(crate) use table::InodeTable;
pub(crate) use table::Lifecycle;
pub use write_streams::WriteStreams;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polymux_meta::Sequence;
use polymux_records::attributes::FileKind;
use polymux_types::sync::{Mutex, RwLock};
use polymux_types::{Ino, Timestamp};

/// State of a directory, under its lock.
#[derive(Debug)]
pub struct DirectoryState {
    /// Position of the next name.
    pub next_cookie: u64,
    /// While the record is open: cookies below this one are not handed out again after a crash.
    pub cookies_end: u64,
    /// Names in it; `None` where they were not counted since a crash.
    pub entries: Option<u64>,
    /// Which names these are.
    pub edition: NamesEdition,
}

/// State that depends on the type of the file.
#[derive(Debug)]
pub enum Body {
    /// A regular file.
    Regular(Box<FileState>),
    /// A directory.
    Directory(RwLock<DirectoryState>),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A pipe, a socket or a device.
    Special {
        /// Number of the device; 0 for others.
        device: u64,
    },
}

/// One file, directory or other inode in memory.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// When it was made.
    pub born: Timestamp,
    /// Generation of its number.
    pub generation: u32,
    /// What depends on its type.
    pub body: Body,
    /// Taken for the length of every transaction that writes the record.
    pub record_lock: Mutex<()>,
    /// Attributes that all types have.
    pub common: RwLock<Common>,
    /// It certainly has no extended attribute. Changes under the record lock.
    pub lacks_xattrs: AtomicBool,
    /// It certainly has no capabilities (`security.capability`). Changes under the record lock.
    pub lacks_capabilities: AtomicBool,
    /// Of a directory: its last record says that it is not exact (docs/design/0009). Then its times are dirty, too.
    /// Changes under the record lock.
    pub is_record_open: AtomicBool,
    /// Times in `common` are newer than those in the record.
    pub times_dirty: AtomicBool,
    /// The last transaction that concerns this inode.
    last_sequence: AtomicU64,
    /// Who uses it, and whether it is gone.
    pub lifecycle: Mutex<Lifecycle>,
    /// Of a directory: the one it lies in, which changes under the rename lock only and is read without any. Of any other
    /// inode: the directory it was made in, while that is remembered (0: not), so that its objects lie close to others.
    pub parent: AtomicU64,
}

impl Inode {
    /// The last transaction that concerns this inode: fsync flushes the log through it.
    #[inline]
    pub fn last_sequence(&self) -> Sequence {
        Sequence(self.last_sequence.load(Ordering::Acquire))
    }

    /// A transaction concerns this inode.
    #[inline]
    pub fn note_sequence(&self, sequence: Sequence) {
        self.last_sequence.fetch_max(sequence.0, Ordering::AcqRel);
    }

    /// The state of a regular file; `None` for any other type.
    #[inline]
    pub fn file(&self) -> Option<&FileState> {
        match &self.body {
            Body::Regular(file) => Some(file),
            _ => None,
        }
    }

    /// The state of a directory; `None` for any other type.
    #[inline]
    pub fn directory(&self) -> Option<&RwLock<DirectoryState>> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// The directory that a directory lies in.
    #[inline]
    pub fn parent(&self) -> Ino {
        assert!(self.is_directory(), "only a directory has one parent");
        Ino(self.parent.load(Ordering::Acquire))
    }

    /// Whether it is a directory.
    #[inline]
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}
