//! Output of `polymux bench`.

use polymux_types::ByteSize;
use serde::Serialize;

use super::expectation::Expectation;
use super::load::{Load, Run};
use crate::output::Table;
use crate::protocol::MeasuredTierReport;
use crate::tier_measure;

/// Processors that are busy for this percentage of the time are the bottleneck.
const BUSY_PERCENT: u64 = 90;

/// Share in percent of the expectation at which it counts as reached: two measurements differ by as much.
const REACHED_PERCENT: u64 = 90;

/// Everything that was found. Its keys are a public interface: they are added to, never renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BenchReport {
    /// Name of the volume.
    pub volume: String,
    /// Directory in which the file was.
    pub path: String,
    /// Policy that decided where it was.
    pub policy: String,
    /// How large it was.
    pub file_bytes: u64,
    /// The tiers by themselves.
    pub tiers: Vec<MeasuredTierReport>,
    /// Through the mount.
    pub loads: Vec<LoadReport>,
}

/// Result of one load, in bytes or requests per second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoadReport {
    /// `sequential_write`, `sequential_read` or `random_read`.
    pub load: String,
    /// `bytes_per_second` or `requests_per_second`.
    pub unit: String,
    /// Sum over all tiers.
    pub sum_of_tiers: Option<u64>,
    /// The expected result of the tiers that the file is on, as its policy uses them.
    pub expected: Option<u64>,
    /// Those tiers.
    pub tiers: Vec<String>,
    /// The median of all repetitions.
    pub reached: u64,
    /// The lowest of all repetitions.
    pub reached_lowest: u64,
    /// The highest of all repetitions.
    pub reached_highest: u64,
    /// How many there were.
    pub repetitions: usize,
    /// The median as a share of the expected value.
    pub percent_of_expected: Option<u64>,
    /// The median as a share of the sum of all tiers.
    pub percent_of_sum: Option<u64>,
    /// Percentage of the bytes read that came from devices, the least of all repetitions: the rest was in memory.
    pub from_devices_percent: Option<u64>,
    /// Share of the time in percent in which the processors of the machine were busy, the median.
    pub processors_busy_percent: Option<u64>,
    /// `processor`, `devices`, `policy`, `memory` or `other`.
    pub limited_by: String,
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn percent(part: u64, whole: Option<u64>) -> Option<u64> {
    whole.filter(|whole| *whole > 0).and_then(|whole| u64::try_from(u128::from(part) * 100 / u128::from(whole)).ok())
}

impl LoadReport {
    /// Puts the repetitions of a load together; there is at least one.
    pub fn of(load: Load, runs: &[(Run, Expectation)]) -> Self {
        let values = || runs.iter().map(|(run, _)| run.per_second);
        let reached = median(values().collect()).unwrap_or(0);
        let expected = median(runs.iter().filter_map(|(_, expected)| expected.by_layout).collect());
        let sum_of_tiers = runs.last().and_then(|(_, expected)| expected.sum);
        let mut report = Self {
            load: load.key().to_owned(),
            unit: if load.counts_requests() { "requests_per_second" } else { "bytes_per_second" }.to_owned(),
            sum_of_tiers,
            expected,
            tiers: runs.last().map(|(_, expected)| expected.tiers.clone()).unwrap_or_default(),
            reached,
            reached_lowest: values().min().unwrap_or(0),
            reached_highest: values().max().unwrap_or(0),
            repetitions: runs.len(),
            percent_of_expected: percent(reached, expected),
            percent_of_sum: percent(reached, sum_of_tiers),
            from_devices_percent: runs.iter().filter_map(|(run, _)| run.from_devices_percent).min(),
            processors_busy_percent: median(runs.iter().filter_map(|(run, _)| run.processors_busy_percent).collect()),
            limited_by: String::new(),
        };
        report.limited_by = report.limit().to_owned();
        report
    }

    fn limit(&self) -> &'static str {
        let reaches = |percent: Option<u64>| percent.is_some_and(|percent| percent >= REACHED_PERCENT);
        if self.from_devices_percent.is_some_and(|percent| percent < REACHED_PERCENT) {
            "memory"
        } else if reaches(self.percent_of_sum) {
            "devices"
        } else if reaches(self.percent_of_expected) {
            "policy"
        } else if self.processors_busy_percent.is_some_and(|percent| percent >= BUSY_PERCENT) {
            "processor"
        } else {
            "other"
        }
    }

    fn limit_in_words(&self, policy: &str) -> String {
        match self.limited_by.as_str() {
            "memory" => format!(
                "only {} % of it came from devices: the rest was in memory",
                self.from_devices_percent.unwrap_or_default()
            ),
            "devices" => "the devices".to_owned(),
            "policy" => format!("the devices that policy {policy} uses for it: {}", self.tiers.join(", ")),
            "processor" => "the processors".to_owned(),
            _ => "neither devices nor processors: the way between them, or other work".to_owned(),
        }
    }

    fn value(&self, value: Option<u64>) -> String {
        match (self.unit.as_str(), value) {
            ("bytes_per_second", value) => tier_measure::rate(value),
            (_, Some(value)) => format!("{value} reads/s"),
            (_, None) => "-".to_owned(),
        }
    }
}

impl BenchReport {
    /// For people.
    pub fn render(&self) -> String {
        let mut lines = vec![format!(
            "volume {}: a file of {} in {}, policy {}",
            self.volume,
            ByteSize(self.file_bytes),
            self.path,
            self.policy
        )];
        lines.push("the tiers by themselves:".to_owned());
        let mut tiers = Table::new(&["tier", "write", "read", "4 KiB reads", "think of it"]);
        for found in &self.tiers {
            let profile = &found.profile;
            tiers.row(vec![
                found.tier.clone(),
                tier_measure::rate(profile.sequential_write),
                tier_measure::rate(profile.sequential_read),
                profile.random_reads.map_or_else(|| "-".to_owned(), |reads| format!("{reads}/s")),
                profile.caveats.join("; "),
            ]);
        }
        lines.push(tiers.render("  "));
        lines.push("through the mount:".to_owned());
        let share = |percent: Option<u64>| percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"));
        let mut loads = Table::new(&["load", "sum", "expected", "reached", "from", "to", "of it", "devices", "busy"]);
        for load in &self.loads {
            let words = Load::ALL.iter().find(|known| known.key() == load.load).map_or("", |known| known.words());
            loads.row(vec![
                words.to_owned(),
                load.value(load.sum_of_tiers),
                load.value(load.expected),
                load.value(Some(load.reached)),
                load.value(Some(load.reached_lowest)),
                load.value(Some(load.reached_highest)),
                share(load.percent_of_expected),
                share(load.from_devices_percent),
                share(load.processors_busy_percent),
            ]);
        }
        lines.push(loads.render("  "));
        lines.push("what limited:".to_owned());
        let limit =
            |load: &LoadReport| format!("  {}: {}", load.load.replace('_', " "), load.limit_in_words(&self.policy));
        lines.extend(self.loads.iter().map(limit));
        lines.push(
            "(sum: all tiers; expected: those that the file is on; reached: median of the repetitions, from the lowest to the \
             highest; devices: read from them, not from memory; busy: the processors)"
                .to_owned(),
        );
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(reached: [u64; 3], expected: u64, sum: u64, from: Option<u64>, busy: u64) -> LoadReport {
        let run = |per_second| Run { per_second, from_devices_percent: from, processors_busy_percent: Some(busy) };
        let expectation = Expectation { sum: Some(sum), by_layout: Some(expected), tiers: vec!["fast".to_owned()] };
        LoadReport::of(Load::Read, &reached.map(|reached| (run(reached), expectation.clone())))
    }

    #[test]
    fn median_and_extremes_are_told_and_what_limited_is_named() {
        let found = report([95, 120, 90], 100, 100, Some(100), 30);
        assert_eq!((found.reached, found.reached_lowest, found.reached_highest), (95, 90, 120));
        assert_eq!((found.percent_of_expected, found.limited_by.as_str()), (Some(95), "devices"));
        assert_eq!(report([95; 3], 100, 180, None, 99).limited_by, "policy");
        assert_eq!(report([50; 3], 100, 180, None, 99).limited_by, "processor");
        assert_eq!(report([50; 3], 100, 180, Some(100), 40).limited_by, "other");
        let cached = report([500; 3], 100, 180, Some(10), 40);
        assert_eq!(cached.limited_by, "memory");
        assert!(cached.limit_in_words("hot-cold").contains("only 10 %"));
    }
}
