//! Expected throughput of all tiers together, and of a file with its present layout.
//!
//! Invariant: tiers on one file system are one device, and count once.

use super::load::{FileLayout, Load};
use crate::protocol::{MeasuredTierReport, TierReport};

/// The policy that has all tiers of a file at work at once.
const SPREADING_POLICY: &str = "spread";

/// Measured speed of each tier.
pub struct TierSpeeds {
    tiers: Vec<Speeds>,
}

struct Speeds {
    name: String,
    write: u64,
    read: u64,
    random_reads: u64,
    /// A faster tier is on the same file system, so that this one adds nothing.
    is_shared: bool,
}

impl Speeds {
    fn of(&self, load: Load) -> u64 {
        match load {
            Load::Write => self.write,
            Load::Read => self.read,
            Load::RandomRead => self.random_reads,
        }
    }
}

/// The expected result of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// Sum over all tiers; `None` where one was not measured.
    pub sum: Option<u64>,
    /// Sum over the tiers that hold the file, as its policy uses them.
    pub by_layout: Option<u64>,
    /// Those tiers.
    pub tiers: Vec<String>,
}

impl TierSpeeds {
    /// The speeds that were just measured.
    pub fn of(measured: &[MeasuredTierReport], reports: &[TierReport]) -> Self {
        let mut tiers: Vec<Speeds> = Vec::new();
        for found in measured {
            let report = reports.iter().find(|report| report.name == found.tier);
            let sharing = report.map(|report| report.shares_file_system_with.as_slice()).unwrap_or_default();
            tiers.push(Speeds {
                name: found.tier.clone(),
                write: found.profile.sequential_write.unwrap_or(0),
                read: found.profile.sequential_read.unwrap_or(0),
                random_reads: found.profile.random_reads.unwrap_or(0),
                is_shared: tiers.iter().any(|tier| sharing.contains(&tier.name)),
            });
        }
        Self { tiers }
    }

    /// Sum over all tiers.
    pub fn sum(&self, load: Load) -> Option<u64> {
        let own = || self.tiers.iter().filter(|tier| !tier.is_shared).map(|tier| tier.of(load));
        own().all(|speed| speed > 0).then(|| own().sum()).filter(|sum| *sum > 0)
    }

    /// The expected result of a load on a file.
    pub fn expectation(&self, load: Load, layout: &FileLayout) -> Expectation {
        let parts: Vec<(&Speeds, u64)> = layout
            .bytes
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .filter_map(|(name, bytes)| Some((self.tiers.iter().find(|tier| tier.name == *name)?, *bytes)))
            .collect();
        let all: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        let times = || parts.iter().map(|(tier, bytes)| *bytes as f64 / tier.of(load) as f64);
        let at_once = layout.policy == SPREADING_POLICY || load == Load::RandomRead;
        // Requests that go anywhere come to each tier as often as it has bytes, and many are under way; those that follow one
        // another come to one tier after the other, unless the policy has all of them at work.
        let time = if at_once { times().fold(0.0, f64::max) } else { times().sum() };
        let is_known = all > 0 && parts.iter().all(|(tier, _)| tier.of(load) > 0) && time > 0.0;
        Expectation {
            sum: self.sum(load),
            by_layout: is_known.then(|| rounded(all as f64 / time)),
            tiers: parts.iter().map(|(tier, _)| tier.name.clone()).collect(),
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes per second are far below 2^53")]
fn rounded(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn speeds() -> TierSpeeds {
        let tier = |name: &str, write, read, random_reads| Speeds {
            name: name.to_owned(),
            write,
            read,
            random_reads,
            is_shared: false,
        };
        TierSpeeds { tiers: vec![tier("fast", 120 * MB, 240 * MB, 20_000), tier("slow", 60 * MB, 60 * MB, 4000)] }
    }

    fn layout(policy: &str, fast: u64, slow: u64) -> FileLayout {
        FileLayout {
            policy: policy.to_owned(),
            bytes: vec![("fast".to_owned(), fast * MB), ("slow".to_owned(), slow * MB)],
        }
    }

    #[test]
    fn a_spread_file_has_all_its_tiers_at_work_and_another_one_after_the_other() {
        let spread = speeds().expectation(Load::Write, &layout("spread", 200, 100));
        assert_eq!((spread.sum, spread.by_layout), (Some(180 * MB), Some(180 * MB)));
        // Unevenly spread the slower one is waited for.
        assert_eq!(speeds().expectation(Load::Write, &layout("spread", 60, 60)).by_layout, Some(120 * MB));
        assert_eq!(speeds().expectation(Load::Write, &layout("hot-cold", 60, 60)).by_layout, Some(80 * MB));
        let whole = speeds().expectation(Load::Read, &layout("hot-cold", 60, 0));
        assert_eq!(
            (whole.sum, whole.by_layout, whole.tiers),
            (Some(300 * MB), Some(240 * MB), vec!["fast".to_owned()])
        );
    }

    #[test]
    fn random_reads_come_to_each_tier_as_often_as_it_has_bytes() {
        let found = speeds().expectation(Load::RandomRead, &layout("hot-cold", 50, 50));
        assert_eq!((found.sum, found.by_layout), (Some(24_000), Some(8000)));
    }

    #[test]
    fn tiers_on_one_file_system_count_once_and_what_was_not_measured_is_not_guessed() {
        let mut shared = speeds();
        shared.tiers[1].is_shared = true;
        assert_eq!(shared.sum(Load::Write), Some(120 * MB));
        let mut unknown = speeds();
        unknown.tiers[1].write = 0;
        assert_eq!(unknown.sum(Load::Write), None);
        assert_eq!(unknown.expectation(Load::Write, &layout("spread", 50, 50)).by_layout, None);
        assert_eq!(unknown.expectation(Load::Write, &layout("spread", 0, 0)).by_layout, None);
    }
}
