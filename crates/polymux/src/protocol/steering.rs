//! Messages about policies, rules, pins, and why blocks move.

use serde::{Deserialize, Serialize};

use super::{JobReport, RefusedFile};

/// The change that `policy set` requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// Name of the policy.
    pub policy: String,
    /// Pattern of the files that it is for; `None` for all that no rule gives another one.
    pub path: Option<String>,
    /// With a pattern: tiers for these files, best first; `None` leaves them as they are.
    pub tiers: Option<Vec<String>>,
}

/// Everything `policy list` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoliciesReport {
    /// Name of the volume.
    pub volume: String,
    /// The volume's policy.
    pub current: String,
    /// All policies.
    pub policies: Vec<PolicyReport>,
    /// Rules in the order in which they are asked.
    pub rules: Vec<RuleReport>,
    /// Files that were looked at to count those of the rules; `None` where none were.
    pub files_seen: Option<u64>,
    /// Whether there are more files than were looked at: counts are lower bounds then.
    pub is_cut: bool,
    /// Rules that match nothing, for instance.
    pub warnings: Vec<String>,
}

/// Everything `policy advise` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceReport {
    /// Name of the volume.
    pub volume: String,
    /// The fastest tier that is in service.
    pub tier: String,
    /// Space for files on it in bytes, up to its high mark.
    pub room_bytes: u64,
    /// Small reads that devices served in about the last ten minutes.
    pub reads: u64,
    /// Share of the device reads of the last ten minutes that this tier served, in percent; `None` where there were none.
    pub served_percent: Option<u64>,
    /// Ranges of two MiB that were read often enough to be distinguished.
    pub ranges: u64,
    /// Bytes of these ranges.
    pub range_bytes: u64,
    /// Half of the space, all of it, twice and four times as much.
    pub steps: Vec<AdviceStepReport>,
}

/// The reads that a fastest tier of some size would serve, if its content were chosen with hindsight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceStepReport {
    /// Space for files in bytes.
    pub room_bytes: u64,
    /// Share of the reads in percent; `None` where there were none.
    pub served_percent: Option<u64>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// Its name.
    pub name: String,
    /// Description of the policy, a sentence.
    pub description: String,
    /// Whether it is the volume's.
    pub is_current: bool,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Its place, from 1.
    pub number: usize,
    /// Its name; may be empty.
    pub name: String,
    /// Its conditions in words.
    pub conditions: String,
    /// The policy that it names.
    pub policy: Option<String>,
    /// The tiers that it names, best first.
    pub tiers: Vec<String>,
    /// Line of the configuration on which it begins.
    pub line: usize,
    /// Files that it is the first to match; `None` where they were not counted.
    pub files: Option<u64>,
}

/// Pins of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinsReport {
    /// Pins by path.
    pub pins: Vec<PinReport>,
}

/// A pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinReport {
    /// Inode number.
    pub ino: u64,
    /// Path from the root of the volume, without a leading slash; empty for the root.
    pub path: Option<String>,
    /// Tier that it names.
    pub tier: String,
    /// Whether everything below is meant.
    pub is_directory: bool,
    /// Whether the volume has that tier.
    pub has_tier: bool,
}

/// Result of a request to pin or unpin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedReport {
    /// Inodes that were pinned, or whose pin was taken away.
    pub done: Vec<u64>,
    /// Files without a pin of their own.
    pub without_pin: Vec<u64>,
    /// Files that were refused.
    pub refused: Vec<RefusedFile>,
}

/// Why a file is steered as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum SteeredBy {
    /// No rule and no pin concerns it.
    Volume,
    /// The first rule that matches.
    Rule {
        /// Its place, from 1.
        number: usize,
        /// Its name; may be empty.
        name: String,
        /// Configuration file.
        config: String,
        /// Line on which it begins there.
        line: Option<usize>,
    },
    /// A pin.
    Pin {
        /// Path of the pinned file or directory, from the root of the volume.
        path: Option<String>,
        /// Whether it is the file itself.
        is_own: bool,
    },
}

/// A part of a file for which the same holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedRange {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Tier where it is.
    pub tier: String,
    /// Accesses of its hottest 2 MiB, decayed.
    pub heat: f64,
    /// Reads of these.
    pub reads: f64,
    /// Writes of these.
    pub writes: f64,
    /// Seconds since they were used, while the volume was mounted; `None` where no use is remembered.
    pub idle_seconds: Option<u32>,
    /// Percent of the accesses that were parts of streams.
    pub sequential_percent: u8,
    /// Percent of the file's writes that are waited for.
    pub sync_percent: u8,
    /// Random reads of these in a second that a device serves at present, small writes at random and small syncs.
    pub device_reads_per_second: f64,
    /// Tier to which moving them up would pay back in device time.
    pub pays_back_on: Option<String>,
    /// After how many seconds.
    pub pays_back_seconds: Option<u64>,
    /// Their reads have cost the device as much already as moving them there would.
    pub is_overdue: bool,
    /// Seconds since it was moved.
    pub moved_seconds_ago: Option<u32>,
    /// Where the policy wants it to be; `None`: where it is.
    pub wanted_on: Option<String>,
    /// The policy's reason, a sentence.
    pub why: String,
    /// Where it would go if its tier were too full; `None`: it would stay.
    pub would_leave_to: Option<String>,
    /// Why, a sentence.
    pub would_leave_why: Option<String>,
}

/// Everything `explain` tells of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainReport {
    /// Inode number.
    pub ino: u64,
    /// A path from the root of the volume.
    pub path: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// Bytes in the metadata store.
    pub bytes_inline: u64,
    /// The policy that decides about it.
    pub policy: String,
    /// Description of that policy, a sentence.
    pub policy_description: String,
    /// Why that one.
    pub steered_by: SteeredBy,
    /// Tiers that it may be on, best first; all where empty.
    pub allowed_tiers: Vec<String>,
    /// Parts of the file, in order.
    pub ranges: Vec<ExplainedRange>,
    /// Where its next range would go, best first; empty where the policy spreads nothing.
    #[serde(default)]
    pub growth: Vec<ExplainedGrowth>,
    /// Why its growth stays on one tier or goes to several, where the policy decides that by the load.
    #[serde(default)]
    pub growth_why: Option<String>,
    /// Where the file lies on several tiers and its readers wait for one of them: the planned action, a sentence.
    #[serde(default)]
    pub readers: Option<String>,
    /// Jobs that concern it and have not ended.
    pub jobs: Vec<JobReport>,
    /// Why no automatic migration runs at the moment.
    pub why_not_now: Option<String>,
    /// Tiers that take no new data at the moment, with the reason.
    pub tiers_out: Vec<(String, String)>,
}

/// A tier that may get the next range of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedGrowth {
    /// The tier.
    pub tier: String,
    /// Bytes that were written and are on their way to its device.
    pub outstanding_bytes: u64,
    /// Bytes per second that the device takes, as far as is known; 0: nothing is.
    pub bytes_per_second: u64,
    /// Threads that are mapped to it, where the policy maps them.
    pub threads: Option<u32>,
}

/// Everything `plan` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReport {
    /// Name of the volume.
    pub volume: String,
    /// The policy that was asked.
    pub policy: String,
    /// Whether that is the volume's.
    pub is_current: bool,
    /// Files concerned; one that moves for two reasons counts twice.
    pub files_total: u64,
    /// Bytes to move.
    pub bytes_total: u64,
    /// Seconds, one kind of move after the other; `None` where the bandwidth of a tier is not known yet.
    pub seconds_total: Option<u64>,
    /// By reason and tiers.
    pub moves: Vec<PlannedMoves>,
    /// The largest files.
    pub files: Vec<PlannedFile>,
    /// Jobs that wait or run already.
    pub jobs_open: u64,
    /// Why no automatic migration runs at the moment.
    pub why_not_now: Option<String>,
    /// Rules that match nothing, for instance.
    pub warnings: Vec<String>,
}

/// Moves of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMoves {
    /// `pin`, `promote`, `demote`.
    pub reason: String,
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

/// A file that would be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// Its path from the root of the volume.
    pub path: Option<String>,
    /// Inode number.
    pub ino: u64,
    /// Why.
    pub reason: String,
    /// To this tier.
    pub to: String,
    /// Bytes of it.
    pub bytes: u64,
    /// Seconds after which the part that is worth most has saved the device time that it costs; `None` where that is not the reason.
    pub pays_back_seconds: Option<u64>,
    /// Reads of a part of it have cost the device as much already as moving it does.
    pub is_overdue: bool,
}
