//! The Polymux file system, embeddable, with no FUSE in it. The public face is [`FileSystem`].
//!
//! # Direction of calls
//!
//! `file_system` → `ops`, `recover` → `mounted` → the mover, `namespace` → `io` → `placement`, `stamps` → `volume` → `space`, `heat`, `sched` →
//! `inode` → `blockmap`, `store`.
//! Between crates the compiler keeps it so, between the modules of a crate a test (docs/design/0040).
//!
//! # Lock order
//!
//! A lock is taken only while holding locks above it in this tree; two of a kind as noted.
//!
//! ```text
//! Stamps::walks
//! Namespace::rename_lock
//!   DirectState::passed                       the outermost lock of a file
//!   Inode::body, state of a directory        an ancestor before its descendant, siblings by inode number
//!     FileState::barrier                      shared by writers, alone for truncate and fallocate
//!       FileState::append
//!         RangeNode::pending                  ascending nodes; waits only for holders of the same node, and outside of
//!                                             all nodes for one that the mover closed
//!           FileState::adding_object
//!           a round of DisownedQueue
//!             Epochs::raising                 beside the files; below `Epochs::tier_event`, which is below nothing of a file
//!             Inode::record_lock              ascending inode numbers
//!               Inode::lifecycle
//!                 FileState::layout
//!                   InlineData::bytes
//!                   Inode::common
//!                     Durability::unsynced, DisownedQueue::pending, shards of tables: leaves
//! ```
//!
//! Beside the tree: a mover's queue is taken above `Inode::lifecycle` and everything below it, and below nothing of a file;
//! `FileState::moving` is a leaf, and a thread that waits for the end of a move holds no lock of the file. `Planner::state`, `TierReads::state`, the
//! shards of heat and the state of a tier's schedule are leaves; `HeatTable::keeping` is held while the store is read.
//!
//! No lock of this tree is held while a caller's code runs. `SizeState::finding` is taken before everything below
//! `barrier` and is held while a tier is asked for the size.

#![forbid(unsafe_code)]

mod check;
mod file_system;
#[cfg(all(test, shuttle))]
mod migration_schedules;
mod mounted;
mod ops;
mod rebuild;
mod recover;

pub use check::{
    CheckMode, CheckProgress, FINDING_KINDS, Finding, FindingKind, OnProgress, Outcome, PassReport, Severity,
    VolumeCheck,
};
pub use file_system::{BackgroundThreads, FileSystem, MOVERS_DEFAULT, NamedRule, SteeringError, check_rules};
pub use polymux_data::io::LeasedFile;
pub use polymux_policy::{PassthroughUse, PolicyKind, RuleError, RuleField, RuleMatch, RuleProblem, UnknownPolicy};
pub use polymux_records::attributes::{
    AllocateKind, AttributeFlags, Attributes, DirectoryEntry, DirectoryNames, FileKind, HandleId, NodeKind,
    OpenOptions, RenameMode, SetAttributes, SetIdBits, SetTime, SyncKind, VolumeSpace, WriteOrigin, XattrMode,
};
pub use polymux_records::blockmap::{OutsideUser, PageChange};
pub use polymux_records::caller::{Caller, Permissions, Wait};
pub use polymux_records::error::{Error, ErrorKind, Result};
pub use polymux_records::lease::LeasePort;
pub use polymux_records::parts::{
    Access, AccessTimes, BootId, KernelConnection, MissingTiers, MountOptions, NewVolume, PageCache, Parts, Progress,
    Promotion, ReaderLayout, SaturationSource, TierMember, TierName, TierPresence, TierSource, VolumeError,
};
pub use polymux_records::passthrough::{
    BackingId, ClosingHeard, IoDecision, IoMode, Obstacle, PagesKept, PagesPort, PassthroughPort,
};
#[cfg(feature = "planted-faults")]
pub use polymux_records::planted_faults::{FoundBy, PlantedFault};
pub use polymux_records::report::{
    Advice, AdviceStep, Benefit, DEFERRAL_WAIT_CLASSES, DamagedFiles, DeferralReport, Destination, DrainReport,
    Explanation, ExtentReport, FileIo, FileLocation, ForgottenTier, GrowthExplanation, HeldBack, JobId, JobReport,
    JobState, LaneReport, LiveBandwidth, LostFile, MeasuredProfile, MoveReason, MoveRefusal, MoveWindow, MoverLimits,
    MoverPoliteness, MoversState, MovesReport, PAYS_BACK_SOON_SECONDS, PassthroughState, PinReport, PlanReport,
    PlannedFile, PlannedMoves, PolicyReport, RangeExplanation, RuleCounts, SmallReadsReport, SteeredBy, TierFile,
    TierFiles, TierLoadReport, TierProfile, TierShare, TierState, TierStatus, VolumeStatus, WaitsFor,
    deferral_wait_ends_ms,
};
pub use polymux_records::store::{
    CheckReport, Description, Field, FieldValue, INVARIANTS, RECORD_KINDS, Violation, check_records, describe_all_anew,
    describe_key, describe_record, for_each_record, on_disk_formats, store_boundaries,
};
pub use polymux_tier::SeekTarget;
pub use rebuild::{
    OnRebuildProgress, REBUILD_FINDING_KINDS, RebuildFinding, RebuildFindingKind, RebuildProgress, RebuildReport,
    RebuildSource,
};
