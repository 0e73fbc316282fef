//! The results of a run, as serialized to JSON.
//!
//! Invariants: the schema has a version, which rises when a field is removed or changes its meaning. Everything that
//! is printed, drawn or written into the document is made from an [`Outcome`], so that they cannot disagree.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::figure::Unit;
use super::sides::Route;
use crate::statistics::Summary;

/// Name of the schema.
pub const SCHEMA: &str = "polymux-bench-suite";

/// Its version.
pub const SCHEMA_VERSION: u32 = 1;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The run.
    pub run: Run,
    /// The machine it ran on.
    pub machine: Machine,
    /// The devices, with their measured speed.
    pub devices: Vec<DeviceFacts>,
    /// The measurements.
    pub measurements: Vec<Measurement>,
    /// Skipped measurements, with the reasons.
    pub skipped: Vec<Skipped>,
    /// The targets, and whether they are met.
    pub verdicts: Vec<Verdict>,
}

/// How it was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seconds since 1970 at its end.
    pub ended_unix_s: u64,
    /// Seconds that it took.
    pub length_s: f64,
    /// `quick` or `full`.
    pub scale: String,
    /// Repetitions of everything.
    pub repetitions: usize,
    /// Files and bytes of the tree that was unpacked.
    pub tree: Option<Tree>,
}

/// The tree that was unpacked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Files in it.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The machine and the programs on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Processors that may be used.
    pub processors: usize,
    /// Memory in mebibytes.
    pub memory_mib: u64,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Load average of the last minute, before and after.
    pub load: [f64; 2],
    /// Version of the control groups that set the limits.
    pub controller: u8,
    /// How this program was built.
    pub build: String,
    /// Programs and their versions.
    pub versions: BTreeMap<String, String>,
}

/// A device that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Its kind.
    pub name: String,
    /// Limit of reading in bytes per second.
    pub read_bytes_per_s_max: Option<u64>,
    /// Limit of writing in bytes per second.
    pub written_bytes_per_s_max: Option<u64>,
    /// Limit of reads per second.
    pub reads_per_s_max: Option<u64>,
    /// Limit of writes per second.
    pub writes_per_s_max: Option<u64>,
    /// Measured rate of direct writes, as a share of the limit, each time the device was made.
    pub found_share_of_limit: Vec<f64>,
}

/// One figure of one workload on one ground.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name of the workload.
    pub workload: String,
    /// Description of the workload.
    pub about: String,
    /// The data that is durable when the clock stops, in words.
    pub ends_with: String,
    /// Name of the figure.
    pub figure: String,
    /// Its unit.
    pub unit: Unit,
    /// File system of the devices.
    pub file_system: String,
    /// Kind of the device, or of both.
    pub device: String,
    /// Values of each side.
    pub sides: Vec<SideValues>,
}

/// Values of one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideValues {
    /// Name of the side.
    pub side: String,
    /// The path through Polymux, where it is Polymux.
    pub route: Option<Route>,
    /// One value for each repetition.
    pub values: Vec<f64>,
    /// Of the values.
    pub summary: Summary,
    /// Of the ratios to native, repetition by repetition.
    pub to_native: Option<Summary>,
}

/// Something that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The skipped measurement.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// Whether a target is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// It is.
    Met,
    /// It is not.
    NotMet,
    /// It was not measured.
    NotMeasured,
}

impl Judgement {
    /// In words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "**not met**",
            Self::NotMeasured => "not measured",
        }
    }
}

/// One target on one ground.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim.
    pub claim: String,
    /// File system and device; empty where nothing was measured.
    pub ground: String,
    /// The side that was looked at.
    pub side: String,
    /// The required value, in words.
    pub bound: String,
    /// The measured value.
    pub found: Option<Summary>,
    /// The verdict.
    pub judgement: Judgement,
    /// Why nothing was measured.
    pub reason: Option<String>,
}

impl Measurement {
    /// The values of a side by its name.
    #[must_use]
    pub fn side(&self, name: &str) -> Option<&SideValues> {
        self.sides.iter().find(|side| side.side == name)
    }
}

impl SideValues {
    /// Values of a side, with their ratios to those of the native one.
    #[must_use]
    pub fn new(side: String, route: Option<Route>, values: Vec<f64>, native: Option<&[f64]>) -> Self {
        let to_native = native.and_then(|native| ratios(&values, native)).map(|ratios| Summary::of(&ratios));
        Self { side, route, summary: Summary::of(&values), to_native, values }
    }
}

/// Ratios of two sides, repetition by repetition; `None` where they have not as many.
#[must_use]
pub fn ratios(of: &[f64], to: &[f64]) -> Option<Vec<f64>> {
    (of.len() == to.len() && !of.is_empty()).then(|| of.iter().zip(to).map(|(of, to)| of / to).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_same_repetition() {
        let side = SideValues::new("polymux".to_owned(), None, vec![2.0, 30.0, 4.0], Some(&[1.0, 10.0, 4.0]));
        assert_eq!(side.to_native.unwrap().median, 2.0);
        assert_eq!(side.summary.median, 4.0);
        assert_eq!(ratios(&[1.0], &[1.0, 2.0]), None);
    }
}
