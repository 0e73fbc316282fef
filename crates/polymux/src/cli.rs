//! The command line (DESIGN section 13).

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, Subcommand};

use crate::migrate::RangeArgument;
use polymux_config::config_format::{Reserve, Size};

/// Whether a report is for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// For people.
    Text,
    /// JSON, for programs.
    Json,
}

/// The view that `where` shows in addition to sums per tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentDetail {
    /// Nothing.
    Hidden,
    /// Each run of bytes.
    Shown,
    /// A picture of the file.
    Map,
}

/// One file system over many: tiers of different speed as one POSIX tree.
#[derive(Debug, Parser)]
#[command(name = "polymux", version, about, max_term_width = 100)]
pub struct CommandLine {
    /// The command to run.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make a new volume of tiers: directories on mounted file systems
    Create(CreateArguments),
    /// Mount a volume
    Mount(MountArguments),
    /// Unmount a volume and wait until everything is written back
    Umount {
        /// Mount point or name of the volume
        volume: String,
        /// Take it out of the tree even while files are open
        #[arg(long)]
        lazy: bool,
    },
    /// Show volumes: tiers, space, promises, modes
    Status {
        /// Name or mount point; without it all volumes
        volume: Option<String>,
        /// List the programs that read its files past the mount (`leases = "on"`)
        #[arg(long, requires = "volume")]
        clients: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask whether a tier answers: run by the other verbs, because the process that asks may hang
    #[command(hide = true)]
    AskTier {
        /// Directory of the tier
        tier: PathBuf,
        /// Whether it takes changes
        #[arg(long)]
        changes: bool,
    },
    /// Show which tiers hold a file, or which files depend on a tier
    Where {
        /// The file; with --tier, the name or mount point of the volume
        file: PathBuf,
        /// Show the files that depend on this tier
        #[arg(long, value_name = "TIER", conflicts_with_all = ["extents", "map"])]
        tier: Option<String>,
        /// With --tier: most files to list
        #[arg(long, value_name = "COUNT", default_value_t = 1000, requires = "tier")]
        limit: usize,
        /// List every run of bytes
        #[arg(long)]
        extents: bool,
        /// Draw the file over its tiers
        #[arg(long)]
        map: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add, remove and list the tiers of a mounted volume
    Tier {
        /// The command to run
        #[command(subcommand)]
        action: TierAction,
    },
    /// Move files, directories or a range of a file to a tier, while they are in use
    Migrate(MigrateArguments),
    /// Watch tiers and moves of a volume
    Top {
        /// Name or mount point; needed only where several volumes are mounted
        volume: Option<String>,
        /// Print JSON, once
        #[arg(long)]
        json: bool,
        /// Print one report
        #[arg(long)]
        once: bool,
    },
    /// Show and change the policies and rules that decide where data is
    Policy {
        /// The command to run
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Keep files, or everything below directories, on one tier, whatever rules and policies say
    Pin(PinArguments),
    /// Take pins away
    Unpin {
        /// Files and directories
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Explain why a file is where it is, and how it is treated next
    Explain {
        /// The file
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which files would be moved now
    Plan {
        /// Name or mount point of the volume
        volume: String,
        /// As if this were the volume's policy
        #[arg(long)]
        policy: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let nothing move between the tiers of a volume until it is resumed
    Pause {
        /// Name or mount point of the volume
        volume: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let blocks move again after a pause
    Resume {
        /// Name or mount point of the volume
        volume: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Look at the parts of a volume without mounting it
    Inspect {
        /// The object to inspect
        #[command(subcommand)]
        subject: InspectSubject,
    },
    /// Check a volume that is not mounted, and repair it; exit codes as fsck(8): 1 corrected, 4 left, 8 failed
    Fsck(FsckArguments),
    /// Make a new metadata store from the data on the tiers, where it and every copy of it are lost
    Rebuild(RebuildArguments),
    /// Measure a mounted volume: the speed of its tiers, the speed expected of them together, and the speed of the mount
    Bench(BenchArguments),
    /// Run a program that reads and overwrites files of volumes past the mount where that is possible (`leases = "on"`)
    Run(RunArguments),
    /// Show a volume of two temporary tiers at work on real files, and check every byte
    Try(TryArguments),
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArguments {
    /// Say at the end of each process on its standard error, for each file, how its reads were served
    #[arg(long)]
    pub report: bool,
    /// Append that to a file
    #[arg(long, value_name = "FILE")]
    pub report_file: Option<PathBuf>,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// Actions of `tier`.
#[derive(Debug, Subcommand)]
pub enum TierAction {
    /// Take a directory into a mounted volume as a tier, and into its configuration
    Add(TierAddArguments),
    /// Take a tier that holds nothing out of a mounted volume, and out of its configuration
    Remove {
        /// Name or mount point of the volume
        volume: String,
        /// Name of the tier
        tier: String,
    },
    /// Take a lost tier out of a mounted volume for good: data that was only there is listed first, and is lost
    Forget(TierForgetArguments),
    /// Move everything off a tier while the volume is in use, so that the tier can be removed
    Drain(TierDrainArguments),
    /// Measure the devices of tiers, mounted or not, and keep the results with the volume
    Measure(TierMeasureArguments),
    /// Show the tiers of a mounted volume, fastest first
    List {
        /// Name or mount point of the volume
        volume: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Actions of `policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyAction {
    /// Show policies, and rules with the number of files that they are about
    List {
        /// Name or mount point of the volume
        volume: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which share of device reads the fastest tier serves, and would serve if it were smaller or larger
    Advise {
        /// Name or mount point of the volume
        volume: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the policy of a volume, or of the files that a pattern matches, now and in the configuration
    Set(PolicySetArguments),
}

/// Arguments of `policy set`.
#[derive(Debug, clap::Args)]
pub struct PolicySetArguments {
    /// Name or mount point of the volume
    pub volume: String,
    /// Name of the policy
    pub policy: String,
    /// Only for files whose path matches
    #[arg(long, value_name = "GLOB")]
    pub path: Option<String>,
    /// Tiers that these files may be on, best first
    #[arg(long, value_name = "TIER,...", value_delimiter = ',', requires = "path")]
    pub tiers: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `pin`.
#[derive(Debug, clap::Args)]
pub struct PinArguments {
    /// Files and directories
    #[arg(required_unless_present = "list", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// The tier
    #[arg(long, required_unless_present = "list")]
    pub tier: Option<String>,
    /// Show the pins of a volume
    #[arg(long, value_name = "VOLUME", conflicts_with_all = ["paths", "tier"])]
    pub list: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tier forget`.
#[derive(Debug, clap::Args)]
pub struct TierForgetArguments {
    /// Name or mount point of the volume, mounted with --degraded
    pub volume: String,
    /// Name of the tier
    pub tier: String,
    /// Where the list of lost files goes; default: a new file in the working directory
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// Only write the list
    #[arg(short = 'n', long, conflicts_with = "yes")]
    pub no: bool,
    /// Do it without asking
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// Arguments of `tier add`.
#[derive(Debug, clap::Args)]
pub struct TierAddArguments {
    /// Name or mount point of the volume
    pub volume: String,
    /// The tier and its directory
    #[arg(value_name = "NAME=DIRECTORY")]
    pub tier: Named<PathBuf>,
    /// Place in the speed order, 1 for the fastest; default: the slowest
    #[arg(long, value_name = "NUMBER", conflicts_with = "before")]
    pub position: Option<std::num::NonZeroUsize>,
    /// Tier before which it comes in the speed order
    #[arg(long, value_name = "TIER")]
    pub before: Option<String>,
    /// Most bytes that the volume uses on it
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<SizeArgument>,
    /// Space on it that is left free of new data: a size or a share
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<ReserveArgument>,
    /// Measure its device, for a few seconds
    #[arg(long)]
    pub measure: bool,
    /// Allow a tier in memory
    #[arg(long, hide = true)]
    pub volatile_for_tests: bool,
}

/// Arguments of `tier measure`.
#[derive(Debug, clap::Args)]
pub struct TierMeasureArguments {
    /// Name, mount point or configuration of the volume
    pub volume: String,
    /// Names of tiers; default: all
    #[arg(value_name = "TIER")]
    pub tiers: Vec<String>,
    /// How long each tier may take; default: 8
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tier drain`.
#[derive(Debug, clap::Args)]
pub struct TierDrainArguments {
    /// Name or mount point of the volume
    pub volume: String,
    /// Name of the tier
    pub tier: String,
    /// Wait until the tier is empty
    #[arg(long)]
    pub wait: bool,
    /// Take it back: the tier is used again as any other
    #[arg(long, conflicts_with = "wait")]
    pub cancel: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `migrate`.
#[derive(Debug, clap::Args)]
pub struct MigrateArguments {
    /// Files, or directories for every file below
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Tier to move to
    #[arg(long, value_name = "TIER")]
    pub to: String,
    /// Only these bytes of the file, such as 1GiB-2GiB, or 1GiB- up to its end; widened to whole pieces of 2 MiB
    #[arg(long, value_name = "A-B")]
    pub range: Option<RangeArgument>,
    /// Wait until it is done
    #[arg(long)]
    pub wait: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Subjects of `inspect`.
#[derive(Debug, Subcommand)]
pub enum InspectSubject {
    /// The label of a tier
    Label {
        /// Directory of the tier
        tier: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// The metadata store of a volume that is not mounted
    Store {
        /// Which part of it
        #[command(subcommand)]
        part: StorePart,
    },
}

/// Parts of `inspect store`.
#[derive(Debug, Subcommand)]
pub enum StorePart {
    /// Header and entries of the log, and why it ends where it does
    Log {
        /// Which store
        #[command(flatten)]
        target: StoreTarget,
    },
    /// Every record, field by field
    Records {
        /// Which store
        #[command(flatten)]
        target: StoreTarget,
        /// Only records of these kinds: `i` inodes, `d` names, `e` extents, ...
        #[arg(long = "kind", value_name = "LETTER")]
        kinds: Vec<char>,
        /// Only records of this inode
        #[arg(long, value_name = "NUMBER")]
        inode: Option<u64>,
    },
    /// Partitions, levels and sizes of the tables
    Tables {
        /// Which store
        #[command(flatten)]
        target: StoreTarget,
    },
    /// Whether all records agree with one another; fails where they do not
    Check {
        /// Which store
        #[command(flatten)]
        target: StoreTarget,
    },
}

/// The store that `inspect store` looks at.
#[derive(Debug, clap::Args)]
pub struct StoreTarget {
    /// Name of the volume, path of its configuration, directory of its metadata tier or of the store
    #[arg(value_name = "VOLUME|PATH")]
    pub store: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `create`.
#[derive(Debug, clap::Args)]
pub struct CreateArguments {
    /// Name of the volume: letters, digits, `-`, `_`
    pub name: String,
    /// A tier and its directory; fastest first
    #[arg(long = "tier", value_name = "NAME=DIRECTORY", required = true)]
    pub tiers: Vec<Named<PathBuf>>,
    /// Most bytes that the volume uses on a tier
    #[arg(long = "capacity", value_name = "NAME=SIZE")]
    pub capacities: Vec<Named<SizeArgument>>,
    /// Space on a tier that is left free of new data: a size or a share
    #[arg(long = "reserve", value_name = "NAME=SIZE")]
    pub reserves: Vec<Named<ReserveArgument>>,
    /// Tier that holds the metadata; default: the first durable one
    #[arg(long, value_name = "NAME")]
    pub metadata: Option<String>,
    /// New file in byte-addressable memory (DAX) for the end of the metadata log
    #[arg(long, value_name = "FILE")]
    pub metadata_region: Option<PathBuf>,
    /// Measure the devices of the tiers, for a few seconds each
    #[arg(long)]
    pub measure: bool,
    /// Where to write the configuration; default: the place where `mount NAME` looks
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Allow tiers in memory
    #[arg(long, hide = true)]
    pub volatile_for_tests: bool,
}

/// Arguments of `mount`.
#[derive(Debug, clap::Args)]
pub struct MountArguments {
    /// Name of the volume, or path of its configuration
    pub volume: String,
    /// Directory to mount on
    pub mount_point: PathBuf,
    /// Mount options, as mount(8) takes them
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Serve in this process instead of going to the background
    #[arg(long)]
    pub foreground: bool,
    /// Mount although a tier is missing: data on it gives EIO
    #[arg(long)]
    pub degraded: bool,
    /// Change nothing
    #[arg(long)]
    pub read_only: bool,
    /// The metadata store is lost or damaged: start from its second copy. Changes that the copy did not have yet are lost
    #[arg(long, conflicts_with = "read_only")]
    pub from_copy: bool,
    /// Tell the parent process through standard output when the volume is mounted, or why not
    #[arg(long, hide = true, requires = "foreground")]
    pub report_readiness: bool,
    /// Standard input is the socket of the supervisor that keeps the mount
    #[arg(long, hide = true, requires = "report_readiness")]
    pub supervised: bool,
}

/// Arguments of `fsck`.
#[derive(Debug, clap::Args)]
pub struct FsckArguments {
    /// Name of the volume, or path of its configuration
    #[arg(required_unless_present = "accept")]
    pub volume: Option<String>,
    /// Make the lost bytes of files on a mounted volume zeros, so that they can be read again
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["volume", "no", "yes", "online"])]
    pub accept: Vec<PathBuf>,
    /// Change nothing: report the errors
    #[arg(short = 'n', long, conflicts_with_all = ["yes", "online"])]
    pub no: bool,
    /// Repair everything that can be repaired, without asking
    #[arg(short = 'y', long, visible_short_aliases = ['a', 'p'], conflicts_with = "online")]
    pub yes: bool,
    /// Look at a volume while it is mounted, and change nothing
    #[arg(long)]
    pub online: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `rebuild`.
#[derive(Debug, clap::Args)]
pub struct RebuildArguments {
    /// Name of the volume, or path of its configuration
    pub volume: String,
    /// Change nothing: only report which files would be recovered, and which not
    #[arg(short = 'n', long, conflicts_with = "yes")]
    pub no: bool,
    /// Do it without asking
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Rebuild although there is a second copy of the metadata store
    #[arg(long)]
    pub ignore_copy: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArguments {
    /// Name or mount point of the volume, or a directory on it, for the policy there
    #[arg(value_name = "VOLUME|PATH")]
    pub target: String,
    /// Maximum size of the file for it; an eighth of the free space at most
    #[arg(long, value_name = "SIZE")]
    pub size: Option<SizeArgument>,
    /// How long each tier is measured; default: 4
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `try`.
#[derive(Debug, clap::Args)]
pub struct TryArguments {
    /// Directory whose files are copied
    #[arg(default_value = "/usr/share")]
    pub source: PathBuf,
    /// Leave the volume mounted
    #[arg(long)]
    pub keep: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A value for a tier: `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// Name of the tier.
    pub name: String,
    /// The value.
    pub value: T,
}

/// A size on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeArgument(pub Size);

/// A reserve on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveArgument(pub Reserve);

impl FromStr for SizeArgument {
    type Err = polymux_types::units::UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Size::try_from(text.to_owned()).map(Self)
    }
}

impl FromStr for ReserveArgument {
    type Err = polymux_types::units::UnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Reserve::try_from(text.to_owned()).map(Self)
    }
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Named<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`; write NAME=VALUE"))?;
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { name: name.to_owned(), value })
    }
}

/// The format that a `--json` flag asks for.
pub fn output_format(json: bool) -> OutputFormat {
    if json { OutputFormat::Json } else { OutputFormat::Text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn create_takes_tiers_in_order_with_limits() {
        let line =
            "polymux create media --tier fast=/mnt/nvme --tier slow=/mnt/h=dd --capacity fast=10GiB --reserve slow=5%";
        let parsed = CommandLine::try_parse_from(line.split(' ')).unwrap();
        let Verb::Create(arguments) = parsed.verb else { panic!("create is create") };
        assert_eq!(arguments.tiers[0].name, "fast");
        assert_eq!(arguments.tiers[1].value, PathBuf::from("/mnt/h=dd"), "only the first `=` separates");
        assert_eq!(arguments.capacities[0].value.0.0.0, 10 << 30);
        assert!(matches!(arguments.reserves[0].value.0, Reserve::Share(_)));
    }

    #[test]
    fn wrong_arguments_are_usage_errors() {
        for line in [
            "polymux create media",
            "polymux create media --tier fast",
            "polymux create media --tier fast=/x --capacity fast=10XB",
            "polymux mount media",
            "polymux mount media /media --report-readiness",
            "polymux frobnicate",
            "polymux tier",
            "polymux tier add media fast",
            "polymux tier add media fast=/x --position 0",
            "polymux tier add media fast=/x --position 1 --before slow",
            "polymux tier remove media",
            "polymux tier measure",
            "polymux bench",
            "polymux bench media --size much",
            "polymux tier measure media --seconds soon",
            "polymux tier drain media fast --cancel --wait",
            "polymux migrate file",
            "polymux pin file",
            "polymux pin --tier fast",
            "polymux pin file --list media",
            "polymux unpin",
            "polymux policy set media",
            "polymux policy set media lru --tiers fast",
            "polymux migrate --to fast",
            "polymux migrate file --to fast --range 2GiB-1GiB",
        ] {
            let error = CommandLine::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
