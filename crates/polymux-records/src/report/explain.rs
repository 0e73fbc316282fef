//! The reports of `explain` and `plan`.

use polymux_types::Ino;

use super::{JobReport, MoveReason};

/// Why a file is steered as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SteeredBy {
    /// No rule and no pin concerns it: the policy of the volume.
    Volume,
    /// The first rule that matches.
    Rule {
        /// Its place among the rules, from 0.
        index: usize,
        /// Its name; may be empty.
        name: String,
    },
    /// A pin.
    Pin {
        /// The pinned file or directory.
        ino: Ino,
        /// Its path, where it has one.
        path: Option<Vec<u8>>,
    },
}

/// Neighbouring 2 MiB nodes of a file that are on the same tier and for which the same holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeExplanation {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Tier where it is.
    pub tier: String,
    /// Accesses, decayed, of the hottest node, in 1/256.
    pub heat: u32,
    /// Reads of that node, same unit.
    pub reads: u32,
    /// Writes of that node, same unit.
    pub writes: u32,
    /// Seconds since that node was used, while the volume was mounted.
    pub idle_seconds: u32,
    /// Percent of its accesses that were parts of streams.
    pub sequential_percent: u8,
    /// Percent of the file's writes that are waited for.
    pub sync_percent: u8,
    /// Random reads of that node that a device serves, small writes at random and small syncs, in a thousand seconds.
    pub device_reads_per_kilosecond: u64,
    /// Tier to which a promotion would pay off, and its benefit.
    pub benefit: Option<(String, Benefit)>,
    /// Seconds since it was moved.
    pub moved_seconds_ago: Option<u32>,
    /// Where the policy wants it to be; `None`: where it is.
    pub wanted_on: Option<String>,
    /// The policy's reason, a sentence.
    pub why: String,
    /// Where it would go if its tier were too full, and why; `None`: it would stay.
    pub would_leave_to: Option<(String, String)>,
}

/// A tier that may get the next range of a file which is spread, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowthExplanation {
    /// The tier.
    pub tier: String,
    /// Bytes that were written and are on their way to its device.
    pub outstanding_bytes: u64,
    /// Bytes per second that the device takes, as far as is known; 0: nothing is.
    pub bytes_per_second: u64,
    /// Threads that are mapped to it, where the policy maps them.
    pub threads: Option<u32>,
}

/// Everything `explain` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The file.
    pub ino: Ino,
    /// One of its paths, without a leading slash.
    pub path: Option<Vec<u8>>,
    /// Size in bytes.
    pub size: u64,
    /// Bytes in the metadata store.
    pub bytes_inline: u64,
    /// Name of the policy that decides about it.
    pub policy: String,
    /// Why that one.
    pub steered_by: SteeredBy,
    /// Tiers that it may be on, best first; all where empty.
    pub allowed_tiers: Vec<String>,
    /// The rules for its ranges, in order.
    pub ranges: Vec<RangeExplanation>,
    /// Where its next range would go, best first; empty where the policy spreads nothing.
    pub growth: Vec<GrowthExplanation>,
    /// Why its growth stays on one tier or goes to several, where the policy decides that by the load: a sentence.
    pub growth_why: Option<String>,
    /// Where it lies on several tiers and its readers wait for one of them: the planned remedy, a sentence.
    pub readers: Option<String>,
    /// Jobs that concern it and have not ended.
    pub jobs: Vec<JobReport>,
    /// Why nothing moves at the moment, whatever is wanted: a sentence.
    pub why_not_now: Option<String>,
    /// Tiers that take no new data at the moment because they are missing, fail or do not answer, with the reason.
    pub tiers_out: Vec<(String, String)>,
}

/// Moves of one kind in a [`PlanReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMoves {
    /// Why.
    pub reason: MoveReason,
    /// From this tier.
    pub from: String,
    /// To this one.
    pub to: String,
    /// Files concerned.
    pub files: u64,
    /// Bytes to move.
    pub bytes: u64,
    /// Seconds at the bandwidth that both tiers have shown; `None` where none was seen yet.
    pub seconds: Option<u64>,
}

/// A move that pays back within so many seconds is begun beside programs.
pub const PAYS_BACK_SOON_SECONDS: u64 = 30;

/// Why a move is worth the device time that it costs (docs/design/0033). By default it is not known to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Benefit {
    /// Seconds after which it has saved as much, if use goes on as it is; `None`: never.
    pub pays_back_seconds: Option<u64>,
    /// The slower device has spent as much already, since the range came there, on reads that the faster one would have saved.
    pub is_overdue: bool,
}

impl Benefit {
    /// Whether it pays back so soon that it is begun beside programs.
    pub fn is_soon(self) -> bool {
        self.pays_back_seconds.is_some_and(|seconds| seconds <= PAYS_BACK_SOON_SECONDS)
    }

    /// The most valuable moves come first: those that pay back soon, then those that are overdue, then the rest.
    pub fn rank(self) -> (u8, u64) {
        let group = match (self.is_soon(), self.is_overdue) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (group, self.pays_back_seconds.unwrap_or(u64::MAX))
    }

    /// The one of two that is worth more.
    pub fn or_better(self, other: Self) -> Self {
        if other.rank() < self.rank() { other } else { self }
    }
}

/// A file in a [`PlanReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Its path, where it has one.
    pub path: Option<Vec<u8>>,
    /// The file.
    pub ino: Ino,
    /// Why.
    pub reason: MoveReason,
    /// To this tier.
    pub to: String,
    /// Bytes of it.
    pub bytes: u64,
    /// Of the part that is worth most; nothing where that is not the reason.
    pub benefit: Benefit,
}

/// Files on tiers that rules or pins do not allow, while no allowed tier has space for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// How many files.
    pub files: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// The report of `plan`: the migrations that would follow if nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanReport {
    /// The policy that was asked for the files that no rule gives another one.
    pub policy: String,
    /// The migrations, by reason and tiers.
    pub moves: Vec<PlannedMoves>,
    /// The largest of it.
    pub files: Vec<PlannedFile>,
    /// Demands of rules and pins that cannot be met.
    pub held_back: HeldBack,
    /// Jobs that wait or run already.
    pub jobs_open: u64,
}

/// A policy, for `policy list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyReport {
    /// Its name.
    pub name: String,
    /// Its effect, a sentence.
    pub description: String,
    /// Whether it is the volume's.
    pub is_current: bool,
}

/// A pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinReport {
    /// The pinned file or directory.
    pub ino: Ino,
    /// Its path, where it has one.
    pub path: Option<Vec<u8>>,
    /// Name of the tier, which need not be there any more.
    pub tier: String,
    /// Whether everything below is meant.
    pub is_directory: bool,
}

/// How many files rules are about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// For each rule, the files that it is the first to match.
    pub files: Vec<u64>,
    /// Files that were looked at.
    pub files_seen: u64,
    /// Whether there are more files than were to be looked at.
    pub is_cut: bool,
}
