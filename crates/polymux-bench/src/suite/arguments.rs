//! Choices of `polymux-bench suite` and `polymux-bench document`.

use std::path::PathBuf;

use clap::Args;

use super::sides::{Mode, Transport};
use super::workload::Scale;
use crate::throttled::Format;

/// Choices of `polymux-bench suite`.
#[derive(Args, Clone, Debug)]
pub struct SuiteArguments {
    /// Less of everything: a look instead of figures, in less than two minutes.
    #[arg(long)]
    pub quick: bool,
    /// Say which workloads there are, and measure nothing.
    #[arg(long)]
    pub list: bool,
    /// Only these workloads.
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Repetitions of everything; by default 5, quick 3.
    #[arg(long, value_name = "COUNT")]
    pub repetitions: Option<std::num::NonZeroUsize>,
    /// Ways of the bytes through Polymux to measure; by default the one that Polymux chooses, and cached.
    #[arg(long, value_name = "MODE,...", value_delimiter = ',')]
    pub mode: Vec<Mode>,
    /// Ways of the requests to measure; by default the one that Polymux chooses, and both where they are compared.
    #[arg(long, value_name = "TRANSPORT,...", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// Only workloads whose files are on one tier, or split over two.
    #[arg(long, value_name = "PLACEMENT")]
    pub placement: Option<Placement>,
    /// Only devices with this file system.
    #[arg(long, value_name = "FORMAT")]
    pub file_system: Option<Format>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw a chart for each workload.
    #[arg(long, value_name = "DIRECTORY")]
    pub svg: Option<PathBuf>,
    /// The program to measure; by default the one that was built beside this one.
    #[arg(long, value_name = "FILE")]
    pub polymux: Option<PathBuf>,
    /// Another build, measured beside it on the same devices in place of mergerfs: each figure of the one is compared with that of the other,
    /// repetition by repetition (twenty show a few per cent).
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// Tree whose first 2,000 files are unpacked; by default the sources of the crates that Polymux is built of.
    #[arg(long, value_name = "DIRECTORY")]
    pub tree: Option<PathBuf>,
}

/// Where the files of a workload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Placement {
    /// Each on one tier.
    One,
    /// Over two tiers.
    Split,
}

impl SuiteArguments {
    /// How much is done.
    #[must_use]
    pub const fn scale(&self) -> Scale {
        if self.quick { Scale::Quick } else { Scale::Full }
    }

    /// How often.
    #[must_use]
    pub fn repetitions(&self) -> usize {
        self.repetitions.map_or_else(|| self.scale().choose(3, 5), std::num::NonZeroUsize::get)
    }
}

/// Choices of `polymux-bench document`.
#[derive(Args, Clone, Debug)]
pub struct DocumentArguments {
    /// Results of a run.
    #[arg(long, value_name = "FILE")]
    pub json: PathBuf,
    /// The document whose marked section is replaced.
    #[arg(long, value_name = "FILE")]
    pub document: PathBuf,
    /// Draw the charts there, and refer to them from the document.
    #[arg(long, value_name = "DIRECTORY")]
    pub svg: Option<PathBuf>,
}
