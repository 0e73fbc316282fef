//! Messages about blocks that move between tiers.
//!
//! Invariant: jobs have numbers of one mount of the volume; after the next mount they mean nothing.

use serde::{Deserialize, Serialize};

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// Byte after the last one; `None` for the end of the file.
    pub end: Option<u64>,
}

/// Result of a request to move files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateReport {
    /// Jobs that were taken in.
    pub jobs: Vec<SubmittedJob>,
    /// Files that are not moved.
    pub refused: Vec<RefusedFile>,
    /// Whether movers rest until they are resumed.
    pub is_paused: bool,
    /// Threads that move blocks; with none, jobs wait for ever.
    pub movers: u16,
}

/// One job that was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedJob {
    /// Its number.
    pub job: u64,
    /// Inode number of the file.
    pub ino: u64,
    /// Bytes in the range that it concerns, including holes and bytes that are on the tier already.
    pub bytes_total: u64,
}

/// One file that is not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedFile {
    /// Inode number of the file.
    pub ino: u64,
    /// Why, in one line.
    pub why: String,
}

/// How far some jobs are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsReport {
    /// Those that are known still, in the order in which they were asked for.
    pub jobs: Vec<JobReport>,
    /// Whether movers rest until they are resumed.
    pub is_paused: bool,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// It waits for its turn.
    Queued,
    /// Blocks are being copied.
    Running,
    /// It waits for an event; `why` says for which.
    Parked,
    /// It came to its end.
    Done,
    /// It was taken back.
    Cancelled,
    /// It cannot be carried out; `why` says why.
    Failed,
}

/// One file on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// Number of the job.
    pub job: u64,
    /// Inode number of the file.
    pub ino: u64,
    /// A path from the root of the volume; `None` where it was not looked for or the file has no name any more.
    pub path: Option<String>,
    /// `user`, `drain`, `pin`, `repair`, `promote`, `handover`, `demote` or `rebalance`.
    pub reason: String,
    /// Tier that it goes to; `None` where it only leaves one.
    pub to: Option<String>,
    /// Tier that it leaves, whichever other one it goes to.
    pub away_from: Option<String>,
    /// How far it is.
    pub state: JobPhase,
    /// The condition it waits for, or why it failed.
    pub why: Option<String>,
    /// Bytes in the ranges that it concerns, including holes and bytes that are on the tier already.
    pub bytes_total: u64,
    /// Bytes of these that are done with.
    pub bytes_done: u64,
    /// Bytes copied for it so far.
    pub bytes_copied: u64,
    /// Times that its copy was given up because the file was in use.
    pub interruptions: u32,
    /// Milliseconds since it was submitted.
    pub age_ms: u64,
}

/// How far the emptying of a tier is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Name of the tier.
    pub tier: String,
    /// Files that had something there when this mount began to empty it; `None` while they are being counted.
    pub files_total: Option<u64>,
    /// Files that were moved off since.
    pub files_done: u64,
    /// Bytes that were there then, about; `None` while they are being counted.
    pub bytes_total: Option<u64>,
    /// Bytes that were moved off since.
    pub bytes_done: u64,
    /// Jobs that cannot go on.
    pub parked: u64,
    /// The condition that the first of them waits for.
    pub why: Option<String>,
    /// Nothing is left there: the tier may be removed.
    pub is_empty: bool,
}

/// Everything that is being moved, is to be moved, and was moved last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovesReport {
    /// Whether movers rest until they are resumed.
    pub is_paused: bool,
    /// Threads that move blocks.
    pub movers: u16,
    /// Minutes until movers may work on their own again, 4294967295 for never; `None` while they may. Requests of users and drains go on.
    #[serde(default)]
    pub window_opens_in_minutes: Option<u32>,
    /// Jobs at work.
    pub running: Vec<JobReport>,
    /// Jobs that wait for their turn.
    pub queued_count: u64,
    /// The first of them.
    pub queued: Vec<JobReport>,
    /// Jobs that wait for an event.
    pub parked_count: u64,
    /// The first of them.
    pub parked: Vec<JobReport>,
    /// The last jobs that came to an end, latest first.
    pub finished: Vec<JobReport>,
    /// Tiers that are being emptied.
    pub drains: Vec<DrainReport>,
}

/// The summary of moves in `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovesSummary {
    /// Whether movers rest until they are resumed.
    pub is_paused: bool,
    /// Threads that move blocks.
    pub movers: u16,
    /// Minutes until movers may work on their own again; `None` while they may. Requests of users and drains go on.
    #[serde(default)]
    pub window_opens_in_minutes: Option<u32>,
    /// Number of jobs at work.
    pub running: u64,
    /// Number of jobs that wait for their turn.
    pub queued: u64,
    /// Number of jobs that wait for an event.
    pub parked: u64,
    /// The condition that the first of these waits for.
    pub parked_why: Option<String>,
    /// Tiers that are being emptied.
    pub drains: Vec<DrainReport>,
}
