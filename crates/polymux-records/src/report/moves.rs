//! Reports on moves.

use polymux_types::{Ino, TierId};

/// Number of a job, unique within one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

polymux_types::enum_with_all! {
    /// Why blocks move, in order of urgency.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum MoveReason {
        /// A user asked for it.
        User,
        /// Their tier is being emptied.
        Drain,
        /// A pin or a rule says so.
        Pin,
        /// Their copy elsewhere is damaged.
        Repair,
        /// They are used much.
        Promote,
        /// Their tier has more to read than it can serve.
        Handover,
        /// Their tier is too full.
        Demote,
        /// Another tier has bandwidth to spare.
        Rebalance,
    }
}

impl MoveReason {
    /// One word for reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Drain => "drain",
            Self::Pin => "pin",
            Self::Repair => "repair",
            Self::Promote => "promote",
            Self::Handover => "handover",
            Self::Demote => "demote",
            Self::Rebalance => "rebalance",
        }
    }
}

/// Where a job takes blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To this tier.
    To(TierId),
    /// Off this tier, to whichever other one placement names.
    AwayFrom(TierId),
}

/// The resource that a parked job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Free space on this tier, or on any tier if no number is given.
    Room(Option<TierId>),
    /// This file to be closed: it is passed through to the kernel.
    Close(Ino),
    /// This tier to be there again.
    Tier(TierId),
    /// Something that cannot be read or made durable: the reason; it is tried again when the tier changes its state or the
    /// volume is mounted again.
    Repair(TierId, String),
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It waits for its turn.
    Queued,
    /// Blocks are being copied.
    Running,
    /// It waits for an event.
    Parked(WaitsFor),
    /// It came to its end.
    Done,
    /// It was taken back.
    Cancelled,
    /// It cannot be carried out; why.
    Failed(String),
}

impl JobState {
    /// Whether nothing will happen any more.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Failed(_))
    }
}

/// Whether movers work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoversState {
    /// They work.
    Working,
    /// They begin nothing new.
    Paused,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// Its number.
    pub id: JobId,
    /// The file.
    pub ino: Ino,
    /// Why.
    pub reason: MoveReason,
    /// Where to.
    pub destination: Destination,
    /// How far it is.
    pub state: JobState,
    /// Bytes in the ranges that it concerns, as far as known; holes and bytes already at the destination included.
    pub bytes_total: u64,
    /// Bytes of these ranges that are done with.
    pub bytes_done: u64,
    /// Bytes copied for it so far.
    pub bytes_copied: u64,
    /// Times that its copy was given up because the file was in use.
    pub interruptions: u32,
    /// Milliseconds since it was submitted.
    pub age_ms: u64,
}

/// All pending and completed migrations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovesReport {
    /// Whether movers rest until they are resumed.
    pub is_paused: bool,
    /// Minutes until the next time window opens, while none is open; requested moves and drains continue meanwhile.
    pub window_opens_in_minutes: Option<u32>,
    /// Jobs at work.
    pub running: Vec<JobReport>,
    /// Jobs that wait for their turn: how many, and some of them.
    pub queued_count: u64,
    /// The first of these.
    pub queued: Vec<JobReport>,
    /// Jobs that wait for an event: how many, and some of them.
    pub parked_count: u64,
    /// The first of these.
    pub parked: Vec<JobReport>,
    /// The last jobs that came to an end, latest first.
    pub finished: Vec<JobReport>,
}

/// How far the emptying of a tier is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// The tier.
    pub tier: TierId,
    /// Its name.
    pub name: String,
    /// Files that had something there when this mount began to empty it; `None` while they are being counted.
    pub files_total: Option<u64>,
    /// Files that were moved off since.
    pub files_done: u64,
    /// Bytes that were there at the beginning, about.
    pub bytes_total: Option<u64>,
    /// Bytes that were moved off since.
    pub bytes_done: u64,
    /// Parked jobs, and the resource that the first waits for.
    pub parked: u64,
    /// The resource that the first of them waits for.
    pub waits_for: Option<WaitsFor>,
    /// Nothing is left there: the tier may be removed.
    pub is_empty: bool,
}

/// Why a file is not moved. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveRefusal {
    /// There is no such tier.
    #[error("the volume has no tier `{0}`")]
    NoSuchTier(String),
    /// The tier is not there.
    #[error("tier `{0}` is missing")]
    Missing(String),
    /// It is being emptied, so nothing goes there.
    #[error("tier `{0}` is being emptied; nothing is moved to it")]
    Draining(String),
    /// Only whole files fit there.
    #[error("tier `{0}` cannot hold parts of files (it has no holes): move the whole file")]
    WholeFilesOnly(String),
    /// The range lies behind the end of the file.
    #[error("the range begins at byte {start} and the file has {size} bytes")]
    BeyondEnd {
        /// First byte that was asked for.
        start: u64,
        /// Size of the file.
        size: u64,
    },
    /// The range ends behind the end of the file.
    #[error("the range ends at byte {end} and the file has {size} bytes: leave the end out for all of it")]
    EndsBeyondEnd {
        /// End of the range that was asked for.
        end: u64,
        /// Size of the file.
        size: u64,
    },
    /// Only the data of regular files is on tiers.
    #[error("only regular files are moved; this is a {0}")]
    NotRegular(String),
    /// Something failed.
    #[error(transparent)]
    FileSystem(#[from] crate::error::Error),
}

/// A part of each of some days in which movers may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveWindow {
    /// Days on which it opens: bit 0 is Monday.
    pub days: u8,
    /// Minute of the day at which it opens, `0..1440`.
    pub from_minute: u16,
    /// Minute of the day at which it shuts; at or before the opening: on the next day.
    pub to_minute: u16,
}

/// Limit of migration on one tier; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoverLimits {
    /// Bytes per second, read or written; at least 1.
    pub bytes_per_second: Option<u64>,
    /// Requests per second; at least 1.
    pub operations_per_second: Option<u64>,
    /// Limit in bytes per day of promotions to the tier because of heat: protects flash.
    pub promoted_bytes_per_day: Option<u64>,
}

/// How movers behave beside programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoverPoliteness {
    /// They slow down until programs are nearly as fast as without them.
    #[default]
    Polite,
    /// They let programs go first and are as fast as the rest of the device allows.
    FullSpeed,
}
