//! The reports of `status` and `where`. Plain values: front ends print or serialise them.

mod advice;
mod explain;
mod moves;
mod profile;

pub use advice::{Advice, AdviceStep};
pub use explain::{
    Benefit, Explanation, GrowthExplanation, HeldBack, PAYS_BACK_SOON_SECONDS, PinReport, PlanReport, PlannedFile,
    PlannedMoves, PolicyReport, RangeExplanation, RuleCounts, SteeredBy,
};
pub use profile::{LiveBandwidth, MeasuredProfile, TierProfile};

pub use moves::{
    Destination, DrainReport, JobId, JobReport, JobState, MoveReason, MoveRefusal, MoveWindow, MoverLimits,
    MoverPoliteness, MoversState, MovesReport, WaitsFor,
};

use polymux_tier::{Capabilities, CounterSnapshot, Guarantee, Space};
use polymux_types::{Epoch, Ino, ObjectId, TierId, VolumeId};

use crate::passthrough::Obstacle;

/// State of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierState {
    /// In service.
    Online,
    /// It returned errors; new data goes elsewhere. The text is the last error.
    Failing(String),
    /// Calls to it do not return; operations that need it fail. The text says which, and for how long.
    NotAnswering(String),
    /// Not there. The text says why.
    Missing(String),
}

/// One tier in a [`VolumeStatus`].
#[derive(Clone, Debug)]
pub struct TierStatus {
    /// Number.
    pub id: TierId,
    /// Name in the configuration.
    pub name: String,
    /// State.
    pub state: TierState,
    /// Why not everything can be done on it although it is in service, in words.
    pub shortage: Option<String>,
    /// Space; `None` while the tier cannot report it.
    pub space: Option<Space>,
    /// Bytes kept free of new data.
    pub reserve: u64,
    /// Files leave the tier, and nothing new comes to it.
    pub draining: bool,
    /// Used bytes above which files leave the tier; 0 while the tier cannot say how large it is.
    pub high_mark_bytes: u64,
    /// Used bytes at which that ends; 0 while the tier cannot say how large it is.
    pub low_mark_bytes: u64,
    /// Capabilities of the underlying file system; `None` where the tier is missing.
    pub capabilities: Option<Capabilities>,
    /// Names of other tiers on the same file system: their space is counted once.
    pub shares_file_system_with: Vec<String>,
    /// Operations so far.
    pub counters: CounterSnapshot,
    /// Times that it was taken out of placement because it failed.
    pub taken_out: u64,
    /// Known capabilities of its device.
    pub profile: TierProfile,
    /// Its current activity.
    pub load: TierLoadReport,
    /// Small reads that its device served in each minute of the last hour, oldest first; the last one is under way. Those of a file that the
    /// kernel reads itself are not counted before that ends.
    pub device_reads_by_minute: Vec<u64>,
}

/// Current activity of a tier. Rates are bytes per second over about the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierLoadReport {
    /// Read for programs.
    pub foreground_read: u64,
    /// Written for programs.
    pub foreground_written: u64,
    /// Read by movers.
    pub mover_read: u64,
    /// Written by movers.
    pub mover_written: u64,
    /// Requests of programs under way.
    pub queue_depth: u32,
    /// Half of the operations of the last seconds took at most this many microseconds,
    pub latency_us_p50: u32,
    /// and 99 % this many.
    pub latency_us_p99: u32,
    /// Bytes per second that movers may use at most now; `None`: as many as there are.
    pub mover_rate_max: Option<u64>,
    /// Bytes that may still be promoted to it today; `None`: no budget.
    pub write_budget_left: Option<u64>,
    /// Read rate of the device.
    pub read: LaneReport,
    /// Rate at which the device takes write-behind data.
    pub write: LaneReport,
    /// Small reads of the device, by which ranges are moved.
    pub small_reads: SmallReadsReport,
    /// How long requests of movers yielded.
    pub moves_waited: DeferralReport,
    /// How long write-behind yielded.
    pub behind_waited: DeferralReport,
}

/// How long background requests yielded to reads and syncs, since mounting (M13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeferralReport {
    /// Requests that went.
    pub requests: u64,
    /// Of these: had waited for as long as any may, and went although something urgent was under way.
    pub at_bound: u64,
    /// The longest wait in microseconds.
    pub longest_us: u64,
    /// Requests by how long they waited, in the classes of [`deferral_wait_ends_ms`].
    pub by_wait: [u64; DEFERRAL_WAIT_CLASSES],
}

/// Classes of waiting times of a [`DeferralReport`].
pub const DEFERRAL_WAIT_CLASSES: usize = 13;

/// The longest wait of each class in milliseconds: 0, 1, 2, 4 ... 1,024; `None`: any.
#[must_use]
pub fn deferral_wait_ends_ms() -> [Option<u64>; DEFERRAL_WAIT_CLASSES] {
    std::array::from_fn(|class| match class {
        0 => Some(0),
        class if class < DEFERRAL_WAIT_CLASSES - 1 => Some(1 << (class - 1)),
        _ => None,
    })
}

/// One direction of the device of a tier, as measured while it was busy (P12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneReport {
    /// Bytes per second that it can deliver; 0 while nothing is known.
    pub bytes_per_second: u64,
    /// Bytes that it still has to deliver. Bytes given to a tier count before they are written.
    pub outstanding_bytes: u64,
    /// Requests under way.
    pub in_flight: u32,
    /// Mean time in microseconds from the beginning of a request to its end.
    pub service_us: u64,
    /// It had something to do nearly all of the time.
    pub is_saturated: bool,
    /// Bytes that it delivered since mounting.
    pub delivered_bytes: u64,
}

/// Small reads of a tier's device that pass the daemon, as they were seen: the reasons of moves that pay back and of handovers (docs/design/0033).
/// `None` where too few were seen. With `promotion = "polite"` nothing is noted, and all of it is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallReadsReport {
    /// Reads per second, in the last seconds.
    pub per_second: u64,
    /// Mean time of one in microseconds, with the wait for others, in the last seconds.
    pub latency_us: Option<u64>,
    /// Time of one in microseconds that waited for no other: the least mean that was seen, slowly forgotten.
    pub alone_us: Option<u64>,
    /// Device time of one in microseconds, however many are under way: the mean of the last thousands.
    pub device_us: Option<u64>,
    /// Most per second that were seen while it never rested and reads waited for one another; less after windows in which it served less.
    pub most_per_second: Option<u64>,
    /// Hundredths of requests under way at a time, while any was, in the last seconds.
    pub depth_hundredths: u64,
    /// Percentage of the last seconds in which any was under way.
    pub busy_percent: u64,
    /// Single reads since mounting that memory refused, so that their time is that of the device. Where they take less than others, they are
    /// `alone_us`.
    pub sampled: u64,
    /// It is the limit of its readers, and another tier would answer some of them sooner.
    pub is_limit: bool,
}

/// Everything `status` shows.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// Identity.
    pub id: VolumeId,
    /// Name.
    pub name: String,
    /// Epoch of this mount.
    pub epoch: Epoch,
    /// Whether the mount may change the volume.
    pub read_only: bool,
    /// The weakest promise among the tiers: the volume promises no more (P21).
    pub guarantee: Guarantee,
    /// Tiers in speed order.
    pub tiers: Vec<TierStatus>,
    /// Whether the kernel uses objects directly.
    pub passthrough: PassthroughState,
    /// Files in use in memory.
    pub inodes_cached: usize,
    /// Open descriptions.
    pub files_open: usize,
    /// Objects and ranges that no file owns any more and that are not freed yet.
    pub disowned_pending: u64,
    /// Files and renamed directories whose description on the tiers does not follow yet.
    pub stamps_late: u64,
    /// Transactions committed and made durable since the mount.
    pub transactions_committed: u64,
    /// Last durable transaction.
    pub transactions_durable: u64,
    /// Bytes that the metadata store takes.
    pub metadata_bytes: u64,
    /// Actions of recovery at this mount; empty after a clean stop.
    pub recovery: Vec<String>,
    /// Counters of the file system, name and value.
    pub counters: Vec<(&'static str, u64)>,
}

/// Bytes of a file on one tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierShare {
    /// The tier.
    pub tier: TierId,
    /// Its name.
    pub name: String,
    /// The object there.
    pub object: ObjectId,
    /// Bytes of the file's range that are mapped here, holes included.
    pub bytes_mapped: u64,
    /// Bytes allocated there; `None` where the tier is missing.
    pub bytes_allocated: Option<u64>,
}

/// A file that has bytes on a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierFile {
    /// Its number.
    pub ino: Ino,
    /// One of its paths, without a leading slash; `None` where it has no name any more.
    pub path: Option<Vec<u8>>,
    /// All of its bytes are there.
    pub is_only: bool,
}

/// Files that depend on a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierFiles {
    /// Its name.
    pub tier: String,
    /// How it does.
    pub state: TierState,
    /// Files that have bytes there, inline ones not counted.
    pub files: u64,
    /// How many of them have bytes nowhere else.
    pub only: u64,
    /// Some of them, in the order of their numbers.
    pub listed: Vec<TierFile>,
}

/// A run of bytes on one tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentReport {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Name of the tier where it is, or "in the metadata store"; `None` for a file that has no data anywhere yet.
    pub tier: Option<String>,
}

/// Files with damaged ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamagedFiles {
    /// How many were found.
    pub count: u64,
    /// The first of them, by inode number: path from the root of the volume, where there is one.
    pub listed: Vec<(Ino, Option<Vec<u8>>)>,
    /// All files of the volume were looked at. Each look goes on where the last one ended.
    pub is_complete: bool,
    /// The first inodes whose records cannot be read: the extent of their loss is not known.
    pub unreadable: Vec<Ino>,
}

/// A file that loses bytes with a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// The file.
    pub ino: Ino,
    /// One of its paths from the root of the volume, without a leading slash; `None` where it has no name any more.
    pub path: Option<Vec<u8>>,
    /// Its size in bytes once the tier is forgotten.
    pub size: u64,
    /// Only the tier knew where the file ends: it may have been longer.
    pub is_end_known: bool,
    /// Lost byte ranges, ascending: start and end.
    pub ranges: Vec<(u64, u64)>,
    /// No object of the file is left on another tier.
    pub is_whole: bool,
    /// Why nothing exact can be said of it. Its size and its ranges are then not known.
    pub problem: Option<String>,
}

/// The result of forgetting a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgottenTier {
    /// Files that let go of an object on the tier.
    pub files: u64,
    /// Of these, files of which no object was left.
    pub whole: u64,
    /// Inodes whose records cannot be read: they may name an object on the tier, and still do.
    pub unreadable: u64,
}

/// Everything `where` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLocation {
    /// The file.
    pub ino: Ino,
    /// One of its paths from the root of the volume, without a leading slash; `None` where it has no name any more.
    pub path: Option<Vec<u8>>,
    /// Size in bytes.
    pub size: u64,
    /// Owner of every block that no extent maps elsewhere; `None` before the first write and for an inline file.
    pub home: Option<String>,
    /// Bytes in the metadata store: all of a small file, or none.
    pub bytes_inline: u64,
    /// Bytes per tier, in speed order.
    pub shares: Vec<TierShare>,
    /// The file's range in order.
    pub extents: Vec<ExtentReport>,
    /// Records that the block lookup table takes in the store: none for a file on one tier.
    pub extent_records: u64,
    /// Byte ranges lost by a failed sync and not written since, as offset and length.
    pub damaged: Vec<(u64, u64)>,
    /// Descriptors that are open.
    pub open_handles: usize,
    /// How they do their I/O.
    pub io: FileIo,
}

/// Whether files can be passed through at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassthroughState {
    /// They can; so many open descriptions are.
    Possible(usize),
    /// The kernel does not offer it, or was not asked.
    NotOffered,
    /// The kernel collects writes on this mount, which excludes it.
    CollectsWrites,
    /// The kernel refused it to this process.
    Refused,
    /// The volume is read-only: it cannot be recorded that a kernel uses objects.
    ReadOnly,
    /// The options say so.
    Off,
}

/// How the open descriptions of a file do their I/O, as far as a kernel is concerned (DESIGN section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileIo {
    /// None is open in a kernel; whether an open for reading would go to the object directly, and if not, why.
    Closed(std::result::Result<(), Obstacle>),
    /// The kernel goes to the object.
    PassedThrough,
    /// The kernel goes to the object, and may change it.
    ChangedDirectly,
    /// A program maps it whose descriptor is closed, or has it open since before the daemon died.
    Held,
    /// Through the daemon, and why it was decided so.
    ThroughDaemon(Obstacle),
}
