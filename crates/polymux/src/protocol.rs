//! Messages between the command line and the daemon: one line of JSON each way (DESIGN section 13).
//!
//! Invariant: an answer is the `--json` output, so that keys here are a public interface: they are added to, never
//! renamed. Reports that the command line derives from several answers are defined beside the verb: `migrate::Summary`,
//! `top::sample::TopReport`, `file_map::FileMap`.

mod clients;
mod moves;
mod profiles;
mod steering;

use std::collections::BTreeMap;

use polymux_fs::CheckProgress;
use serde::{Deserialize, Serialize};

use crate::fsck::FsckReport;
use polymux_config::config_format::TierEntry;

pub use clients::{ClientReport, LeasesReport};
pub use moves::{
    ByteRange, DrainReport, JobPhase, JobReport, JobsReport, MigrateReport, MovesReport, MovesSummary, RefusedFile,
    SubmittedJob,
};
pub use profiles::{MeasureProgressReport, MeasuredTierReport, ProfileReport};
pub use steering::{
    AdviceReport, AdviceStepReport, ExplainReport, ExplainedGrowth, ExplainedRange, PinReport, PinnedReport,
    PinsReport, PlanReport, PlannedFile, PlannedMoves, PoliciesReport, PolicyChange, PolicyReport, RuleReport,
    SteeredBy,
};

/// Longest request in bytes.
pub const REQUEST_LENGTH_MAX: u64 = 64 * 1024;

/// Most files or jobs that a request names, so that it stays far below [`REQUEST_LENGTH_MAX`].
pub const FILES_PER_REQUEST_MAX: usize = 256;

/// A request to the daemon of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Everything about the volume.
    Status,
    /// Where a file's bytes are.
    Where {
        /// Inode number.
        ino: u64,
    },
    /// The files that depend on a tier.
    WhereTier {
        /// Name of the tier.
        tier: String,
        /// Most files to list.
        listed_max: usize,
    },
    /// Move files, or a range of each, to a tier. Not more than [`FILES_PER_REQUEST_MAX`] at once.
    Migrate {
        /// Inode numbers.
        files: Vec<u64>,
        /// Name of the tier.
        tier: String,
        /// Which bytes; all without it.
        range: Option<ByteRange>,
    },
    /// How far jobs are. Not more than [`FILES_PER_REQUEST_MAX`] at once.
    Jobs {
        /// Their numbers.
        jobs: Vec<u64>,
    },
    /// Everything about moves.
    Moves,
    /// Begin to empty a tier.
    TierDrain {
        /// Name of the tier.
        tier: String,
    },
    /// Use a tier again that is being emptied.
    TierDrainCancel {
        /// Name of the tier.
        tier: String,
    },
    /// Let movers rest.
    Pause,
    /// Let movers work again.
    Resume,
    /// Programs that read files past the mount.
    Clients,
    /// Policies and rules.
    Policies,
    /// The effect of the size of the fastest tier.
    PolicyAdvise,
    /// Change the policy, in the configuration too.
    PolicySet {
        /// The change to make.
        change: PolicyChange,
    },
    /// Pin files and directories to a tier, or without one take their pins away. Not more than
    /// [`FILES_PER_REQUEST_MAX`] at once.
    Pin {
        /// Inode numbers.
        files: Vec<u64>,
        /// Name of the tier.
        tier: Option<String>,
    },
    /// All pins.
    Pins,
    /// Why a file is where it is.
    Explain {
        /// Inode number.
        ino: u64,
    },
    /// The planned migrations.
    Plan {
        /// As if this were the volume's policy.
        policy: Option<String>,
    },
    /// Check everything, and change nothing.
    Fsck,
    /// Take a tier into the volume.
    TierAdd {
        /// The tier as the configuration is to list it.
        tier: TierEntry,
        /// Where it comes in the speed order.
        place: TierPlace,
        /// Tiers in memory are let in.
        volatile_for_tests: bool,
    },
    /// Measure the device of a tier, and keep the result.
    TierMeasure {
        /// Its name.
        tier: String,
        /// How long it may take, in milliseconds.
        millis: u64,
    },
    /// Drop the cached pages of a file below the mount, as far as the tiers' file systems do that.
    ForgetPages {
        /// Inode number.
        ino: u64,
    },
    /// Tell which files lose bytes with a tier that is lost.
    TierLosses {
        /// Its name.
        tier: String,
    },
    /// Take a tier that is lost out of the volume for good.
    TierForget {
        /// Its name.
        tier: String,
    },
    /// Make the damaged ranges of a file zeros.
    AcceptLoss {
        /// Inode number.
        ino: u64,
    },
    /// Take a tier that holds nothing out of the volume.
    TierRemove {
        /// Its name.
        tier: String,
    },
}

/// Where a tier comes in the speed order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierPlace {
    /// After all others: the slowest.
    Last,
    /// At this place, 1 for the fastest.
    Position(usize),
    /// Before the tier of this name.
    Before(String),
}

/// An answer of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<StatusReport>),
    /// To [`Request::Where`].
    Where(WhereReport),
    /// To [`Request::WhereTier`].
    WhereTier(TierFilesReport),
    /// To [`Request::Migrate`].
    Migrate(MigrateReport),
    /// To [`Request::Jobs`].
    Jobs(JobsReport),
    /// To every other request about moves: how things are after it.
    Moves(Box<MovesReport>),
    /// To [`Request::Clients`].
    Clients(Vec<ClientReport>),
    /// To [`Request::Policies`] and [`Request::PolicySet`].
    Policies(PoliciesReport),
    /// To [`Request::PolicyAdvise`].
    Advice(AdviceReport),
    /// To [`Request::Pin`].
    Pinned(PinnedReport),
    /// To [`Request::Pins`].
    Pins(PinsReport),
    /// To [`Request::Explain`].
    Explain(Box<ExplainReport>),
    /// To [`Request::Plan`].
    Plan(Box<PlanReport>),
    /// To [`Request::Fsck`], any number of times before the answer itself.
    CheckProgress(CheckProgressReport),
    /// To [`Request::Fsck`].
    Fsck(Box<FsckReport>),
    /// To [`Request::TierLosses`], any number of times before the answer itself; with no file in it, a sign of life of
    /// [`Request::TierForget`].
    TierLossPart(Vec<LostFileReport>),
    /// To [`Request::AcceptLoss`]: byte ranges that are zeros now, start and end.
    LossAccepted(Vec<(u64, u64)>),
    /// To [`Request::TierAdd`], [`Request::TierForget`] and [`Request::TierRemove`]: it is done.
    TierChanged(TierChange),
    /// To [`Request::TierMeasure`], any number of times before the answer itself.
    MeasureProgress(MeasureProgressReport),
    /// To [`Request::TierMeasure`].
    TierMeasured(Box<MeasuredTierReport>),
    /// It was done, and there is nothing to tell.
    Done,
    /// The request could not be carried out.
    Error(String),
}

/// How far a check is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckProgressReport {
    /// Persistent number of the pass.
    pub pass: u32,
    /// Name of the activity.
    pub name: String,
    /// Records and objects that it has read.
    pub done: u64,
}

impl From<&CheckProgress> for CheckProgressReport {
    fn from(progress: &CheckProgress) -> Self {
        Self { pass: progress.pass, name: progress.name.to_owned(), done: progress.done }
    }
}

/// A file that loses bytes with a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostFileReport {
    /// Inode number.
    pub ino: u64,
    /// One of its paths within the volume, with terminal control characters escaped; `None` where it has no name any more.
    pub path: Option<String>,
    /// Its size in bytes.
    pub size: u64,
    /// Only the tier knew where the file ends: it may have been longer.
    pub end_unknown: bool,
    /// Nothing of it is left.
    pub whole: bool,
    /// Lost byte ranges: start and end.
    pub ranges: Vec<(u64, u64)>,
    /// Why nothing exact can be said of it.
    #[serde(default)]
    pub problem: Option<String>,
}

/// A tier that joined or left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierChange {
    /// The action taken, in a sentence.
    pub done: String,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Everything `status` tells of a mounted volume. Sizes are in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// Name of the volume.
    pub name: String,
    /// Its identity.
    pub volume: String,
    /// Directory it is mounted on.
    pub mount_point: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Epoch of this mount.
    pub epoch: u64,
    /// Whether it may not be changed.
    pub read_only: bool,
    /// Guarantee of a sync on the weakest tier.
    pub guarantee: String,
    /// Meaning of `guarantee`, in a sentence.
    pub guarantee_meaning: String,
    /// How requests of the kernel arrive.
    pub transport: String,
    /// Idle processors while requests come one upon the other.
    #[serde(default)]
    pub idle_processors: IdleProcessorsReport,
    /// Whether the kernel uses objects directly, in words.
    #[serde(default)]
    pub passthrough: String,
    /// Programs that read files past the mount; absent where they may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<LeasesReport>,
    /// Why the mount ends when its daemon dies; absent where another daemon takes it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_with_daemon: Option<String>,
    /// Threads that serve them.
    pub threads: usize,
    /// How many requests of each kind came since the mount, by the names of the protocol.
    #[serde(default)]
    pub messages: BTreeMap<String, u64>,
    /// Tier that holds the metadata store.
    pub metadata_tier: String,
    /// Bytes that the metadata store takes.
    pub metadata_bytes: u64,
    /// How the metadata store does.
    pub metadata_store: MetadataStoreReport,
    /// The second copy of the metadata store.
    pub metadata_copy: MetadataCopyReport,
    /// Tiers in speed order.
    pub tiers: Vec<TierReport>,
    /// Space as `df` shows it.
    pub space: Option<SpaceReport>,
    /// Files in use in memory.
    pub inodes_cached: usize,
    /// Open descriptions.
    pub files_open: usize,
    /// Objects and ranges that wait to be freed.
    pub disowned_pending: u64,
    /// Files and renamed directories whose description on the tiers does not follow yet.
    #[serde(default)]
    pub stamps_late: u64,
    /// Last committed transaction of this mount.
    pub transactions_committed: u64,
    /// Last durable transaction of this mount.
    pub transactions_durable: u64,
    /// Files with lost bytes.
    #[serde(default)]
    pub damaged: DamagedFilesReport,
    /// Recovery actions of this mount; empty after a clean stop.
    pub recovery: Vec<String>,
    /// Warnings of the mount.
    pub warnings: Vec<String>,
    /// Counters of the file system.
    pub counters: BTreeMap<String, u64>,
    /// Blocks that move between tiers.
    #[serde(default)]
    pub moves: MovesSummary,
}

/// Files with lost bytes in a [`StatusReport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFilesReport {
    /// How many were found.
    pub files: u64,
    /// Paths of the first ones within the volume, with terminal control characters escaped.
    pub listed: Vec<String>,
    /// All files of the volume were looked at; each status looks at more.
    pub complete: bool,
    /// The first inodes whose records cannot be read.
    #[serde(default)]
    pub unreadable: Vec<u64>,
}

/// The metadata store in a [`StatusReport`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MetadataStoreReport {
    /// How its log is written: `block device, direct`, for instance.
    pub log_medium: String,
    /// Where unflushed transactions outlive the daemon; `None` where they do not.
    #[serde(default)]
    pub log_window: Option<String>,
    /// Why unflushed transactions do not outlive the daemon, where there is a reason.
    #[serde(default)]
    pub log_window_reason: Option<String>,
    /// Log entries that this mount recovered from the memory of a daemon that died.
    #[serde(default)]
    pub survived_entries: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of it that the tables do not have yet; a mount after a crash would read them.
    pub log_used_bytes: u64,
    /// Memory of the entries that the tables do not have yet, in bytes.
    pub memtable_bytes: u64,
    /// Number of tables.
    pub tables: usize,
    /// Bytes of all tables.
    pub table_bytes: u64,
    /// Bytes kept for days when the tier is full.
    pub ballast_held_bytes: u64,
    /// Bytes that should be kept.
    pub ballast_wanted_bytes: u64,
    /// Log entries that this mount found after the last stop.
    pub replayed_entries: u64,
    /// Operations that had to wait for tables.
    pub stalled_operations: u64,
    /// Syncs that found something to do.
    pub log_syncs: u64,
    /// Flushes of the log's medium.
    pub log_flushes: u64,
    /// Bytes of keys and values appended to the log.
    pub log_payload_bytes: u64,
    /// Bytes appended, headers and padding included.
    pub log_appended_bytes: u64,
    /// Bytes written to the log's medium.
    pub log_device_bytes: u64,
}

/// The second copy of the metadata store in a [`StatusReport`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MetadataCopyReport {
    /// Tier that holds it; `None` where there is none.
    pub tier: Option<String>,
    /// `current`, `failing`, `rebuilding`, `unreachable`, `refused` or `none`.
    pub state: String,
    /// Why, where there is something to say.
    pub reason: Option<String>,
    /// Bytes of the log that it does not have yet; `None` where nothing can be started from it.
    pub lag_bytes: Option<u64>,
    /// Age of the oldest of them in milliseconds, at most.
    pub lag_ms: Option<u64>,
    /// Last transaction that it has.
    pub transaction: Option<u64>,
    /// Bytes of its tables.
    pub table_bytes: u64,
    /// Bytes shipped since the volume was mounted.
    pub shipped_bytes: u64,
    /// Times that it was made anew since then.
    pub rebuilds: u64,
}

/// Idle processors while requests come one upon the other: kept awake, so that a program and the daemon wake each other sooner, or not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct IdleProcessorsReport {
    /// Bursts of requests during which they were kept awake.
    pub bursts: u64,
    /// Seconds that those took.
    pub awake_seconds: f64,
    /// Why they sleep as the system decides; absent where they are kept awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep_reason: Option<String>,
}

/// Space of the whole volume in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpaceReport {
    /// All of it.
    pub total: u64,
    /// Free space, reserves included.
    pub free: u64,
    /// Bytes that can still be written.
    pub available: u64,
}

/// One tier in a [`StatusReport`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TierReport {
    /// Number.
    pub id: u16,
    /// Name.
    pub name: String,
    /// Directory.
    pub path: String,
    /// `online`, `failing` or `missing`.
    pub state: String,
    /// Why it is not online.
    pub reason: Option<String>,
    /// Type of the file system below.
    pub file_system: Option<String>,
    /// Guarantee of a sync there.
    pub guarantee: Option<String>,
    /// Limit of the configuration.
    pub capacity: Option<u64>,
    /// Capacity of the tier.
    pub total: Option<u64>,
    /// Space in use.
    pub used: Option<u64>,
    /// Free space.
    pub free: Option<u64>,
    /// Space that is left free of new data.
    pub reserve: u64,
    /// Files leave the tier, and nothing new comes to it.
    #[serde(default)]
    pub draining: bool,
    /// Bytes in use above which files leave the tier.
    #[serde(default)]
    pub high_mark: u64,
    /// Bytes in use at which that ends.
    #[serde(default)]
    pub low_mark: u64,
    /// Tiers whose file system is the same: their space is counted once.
    pub shares_file_system_with: Vec<String>,
    /// Capabilities of the file system below, name and value.
    pub capabilities: BTreeMap<String, String>,
    /// Counters of operations.
    pub counters: BTreeMap<String, u64>,
    /// Read throughput of the device.
    #[serde(default)]
    pub read: LaneReport,
    /// Throughput of write-behind data to the device.
    #[serde(default)]
    pub write: LaneReport,
    /// Measured speed of the device; `None` where nothing is known.
    #[serde(default)]
    pub profile: Option<ProfileReport>,
    /// Small reads of the device, by which ranges are moved.
    #[serde(default)]
    pub small_reads: SmallReadsReport,
    /// How long requests of movers yielded to reads and syncs.
    #[serde(default)]
    pub moves_waited: DeferralReport,
    /// How long write-behind yielded to reads and syncs.
    #[serde(default)]
    pub behind_waited: DeferralReport,
    /// Small reads that the device served in each minute of the last hour, oldest first; the last one is under way.
    #[serde(default)]
    pub device_reads_by_minute: Vec<u64>,
}

/// How long background requests yielded, since the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferralReport {
    /// Requests that went.
    pub requests: u64,
    /// Of these: had waited for as long as any may (`deferral_ms_max`), and went beside something urgent.
    pub at_bound: u64,
    /// The longest wait in microseconds.
    pub longest_us: u64,
    /// Requests by how long they waited; classes without any are left out.
    pub waits: Vec<WaitClass>,
}

/// Requests that waited longer than the class before this one says, and no longer than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitClass {
    /// In milliseconds: 0, 1, 2, 4 ... 1,024; `None`: any.
    pub up_to_ms: Option<u64>,
    /// How many.
    pub requests: u64,
}

/// One direction of the device of a tier, as measured while it was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneReport {
    /// Bytes per second that it can deliver; 0 while nothing is known.
    pub bytes_per_second: u64,
    /// Bytes that it still has to deliver.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Everything `where --tier` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierFilesReport {
    /// Name of the tier.
    pub tier: String,
    /// `online`, `failing`, `not answering` or `missing`.
    pub state: String,
    /// Why it is not online.
    pub reason: Option<String>,
    /// Files that have bytes there.
    pub files: u64,
    /// How many of them have bytes nowhere else.
    pub only: u64,
    /// Some of them.
    pub listed: Vec<TierFileReport>,
}

/// A file that depends on a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierFileReport {
    /// Inode number.
    pub ino: u64,
    /// A path from the root of the volume; `None` where the file has no name any more.
    pub path: Option<String>,
    /// All of its bytes are there.
    pub only: bool,
}

/// Everything `where` tells of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhereReport {
    /// Inode number.
    pub ino: u64,
    /// A path from the root of the volume; `None` where the file has no name any more.
    pub path: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// Tier of every block that no extent maps elsewhere.
    pub home: Option<String>,
    /// Bytes in the metadata store: all of a small file, or none.
    #[serde(default)]
    pub bytes_inline: u64,
    /// Bytes per tier, in speed order.
    pub tiers: Vec<ShareReport>,
    /// The file's range in order.
    pub extents: Vec<ExtentReport>,
    /// Records of the block lookup table in the store.
    pub extent_records: u64,
    /// Ranges lost by a failed sync.
    pub damaged: Vec<(u64, u64)>,
    /// Descriptors that are open.
    pub open_handles: usize,
    /// How they do their I/O, in words.
    #[serde(default)]
    pub io: String,
}

/// Bytes of a file on one tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareReport {
    /// The tier.
    pub tier: String,
    /// Object there, in the form of its file name.
    pub object: String,
    /// Bytes of the file's range that are mapped there, holes included.
    pub bytes_mapped: u64,
    /// Bytes allocated there; `None` where the tier is missing.
    pub bytes_allocated: Option<u64>,
}

/// A run of bytes on one tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentReport {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The tier; `None` for bytes that are nowhere yet.
    pub tier: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_one_line_and_unknown_ones_are_refused() {
        let add = Request::TierAdd {
            tier: polymux_config::config::TierConfig::new("new", "/x".into()).to_entry(),
            place: TierPlace::Before("slow".to_owned()),
            volatile_for_tests: false,
        };
        let remove = Request::TierRemove { tier: "new".to_owned() };
        for request in [Request::Status, Request::Where { ino: 7 }, add, remove] {
            let line = serde_json::to_string(&request).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
        }
        for line in ["{}", "{\"verb\":\"format\"}", "{\"verb\":\"where\",\"ino\":1,\"x\":2}", "status"] {
            assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
        }
    }
}
