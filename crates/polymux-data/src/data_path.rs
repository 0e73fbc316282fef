//! The data path: where the bytes of files are read, written, placed and made durable (`io`).
//!
//! Invariants: it stands on the volume, the back-references and placement, and calls no mover and no operation of the public face.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{OnceLock, Weak};

use polymux_records::lease::LeasePort;
use polymux_records::passthrough::{PagesPort, PassthroughPort};
use polymux_volume::heat::{ReadUses, StreamTable};
use polymux_volume::inode::{ActiveStreams, HandleTable, Holders, LoggedMessages, NewFileSizes, RewrittenFiles};
use polymux_volume::sched::LookBudget;
use polymux_volume::space::{SyncPool, WriteBehind};
use polymux_volume::stamps::Stamps;
use polymux_volume::volume::Volume;

use crate::placement::Placement;

/// Memory that tells streams from single accesses.
const STREAM_MEMORY_BYTES: usize = 256 * 1024;

/// Reads, writes, sizes, syncs and layouts of the files of a volume.
pub struct DataPath {
    /// The volume whose files these are.
    pub volume: Arc<Volume>,
    /// Tracks objects whose back-references are out of date.
    pub stamps: Arc<Stamps>,
    /// Decides where new blocks go.
    pub placement: Arc<Placement>,
    /// Open file descriptions.
    pub handles: HandleTable,
    /// Files whose backing object is in use without an open file description of this mount.
    pub holders: Holders,
    /// Operations that the kernel of this mount does by itself.
    pub kernel: KernelShare,
    /// Tells sequential accesses from random ones.
    pub streams: StreamTable,
    /// Streams that are read ahead at present.
    pub(crate) active_streams: ActiveStreams,
    /// How files on several tiers are read at present.
    pub read_uses: ReadUses,
    /// Looks at the pages of files that begin and end to be passed through.
    pub cache_looks: LookBudget,
    /// Threads that sync objects on several tiers side by side.
    pub sync_pool: SyncPool,
    /// Write-behind of spread files.
    pub write_behind: WriteBehind,
    /// Files that were emptied, rewritten and closed, and are not durable yet.
    pub rewritten: RewrittenFiles,
    /// Number of volume syncs requested, to tell which data was promised to be durable by then.
    pub volume_syncs: AtomicU64,
    /// Work that proceeds file by file in the background.
    pub upkeep: Upkeep,
}

impl DataPath {
    /// A data path with nothing open.
    pub fn new(volume: Arc<Volume>, stamps: Arc<Stamps>, placement: Arc<Placement>) -> Self {
        Self {
            write_behind: WriteBehind::new(Arc::clone(&volume.clock)),
            volume,
            stamps,
            placement,
            handles: HandleTable::default(),
            holders: Holders::default(),
            kernel: KernelShare::default(),
            streams: StreamTable::new(STREAM_MEMORY_BYTES),
            active_streams: ActiveStreams::default(),
            read_uses: ReadUses::default(),
            cache_looks: LookBudget::default(),
            sync_pool: SyncPool::default(),
            rewritten: RewrittenFiles::default(),
            volume_syncs: AtomicU64::new(0),
            upkeep: Upkeep::default(),
        }
    }
}

/// Operations that the kernel of a mount does without asking: passing files through, or collecting writes, and never both.
#[derive(Default)]
pub struct KernelShare {
    /// Registers objects that the kernel uses itself; unset where it cannot use any.
    pub passthrough_port: OnceLock<Arc<dyn PassthroughPort>>,
    /// Issues tickets for leases; unset where there are none.
    pub lease_port: OnceLock<Weak<dyn LeasePort>>,
    /// Reaches its pages; unset where there is no kernel, or one that may send written pages after it has forgotten them.
    pub pages_port: OnceLock<Arc<dyn PagesPort>>,
    /// Objects were given to programs to be written. A program may keep them for ever.
    pub gave_objects_out: AtomicBool,
    /// That may have been so in an earlier mount.
    pub may_have_given_objects_out: AtomicBool,
    /// It collects writes: it keeps size and times of files that it has, and may know of bytes that never came here yet.
    pub collects_writes: AtomicBool,
    /// When a tier last had no object to give to it: that many are given already, or its file system has no leases. In milliseconds since
    /// mounting.
    pub lending_refused_ms: AtomicU64,
    /// Sizes of earlier new files, by which the next ones are given to it from their creation on.
    pub new_file_sizes: NewFileSizes,
}

/// When work that proceeds file by file is done next, in milliseconds since mounting, and how far it is.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// The sizes of spread files are put on record.
    pub(crate) settle_due_ms: AtomicU64,
    /// The space taken by files is refreshed.
    pub(crate) allocations_due_ms: AtomicU64,
    /// Idle inline files move to objects.
    pub(crate) inline_due_ms: AtomicU64,
    /// The inline file after which that goes on.
    pub(crate) inline_cursor: AtomicU64,
    /// Wall clock time of the last look at the tiers, in seconds since 1970; 0 before the first one.
    pub looked_at_seconds: AtomicI64,
    /// At that look a tier did not answer.
    pub has_silent_tier: AtomicBool,
    /// Messages in the metadata store, which move to objects, too.
    pub(crate) messages: LoggedMessages,
}
