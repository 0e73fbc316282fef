//! Measuring commands; see `docs/BENCHMARKS.md`.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::{Parser, Subcommand};
use polymux_bench::{
    append, death, flush, in_program, large, lease_writes, leases, meta, moves, preload, region, spread, store, suite,
    tiering,
};

/// The allocator of the daemon too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Polymux against the file system below it, on the same device, in one run.
#[derive(Parser)]
#[command(name = "polymux-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Workloads on the native file system, on mergerfs and on Polymux, on devices of known speed; as root.
    Suite(suite::arguments::SuiteArguments),
    /// Puts the results of a run of the suite into a document.
    Document(suite::arguments::DocumentArguments),
    /// Metadata operations, with and without fsync, and false sharing.
    Meta(meta::MetaArguments),
    /// Ways to write a log.
    Flush(flush::FlushArguments),
    /// Appending with fdatasync, natively and through a mounted volume.
    Append(append::AppendArguments),
    /// A volume inside this program, call by call, against the file system below it.
    InProgram(in_program::InProgramArguments),
    /// Reads of a mounted volume past the mount, against a plain mount and the file system below it.
    Leases(leases::LeaseArguments),
    /// Random writes past the mount, beside readers, against a plain mount and the file system below it.
    LeaseWrites(lease_writes::LeaseWriteArguments),
    /// Unmodified programs under the library of `polymux run`, without it, and on the file system below.
    Preload(preload::PreloadArguments),
    /// The cost of letting operations outlive the daemon: small files with and without memory for that.
    DeathCost(death::DeathArguments),
    /// The metadata store alone.
    Store(store::StoreArguments),
    /// A volume of very many files.
    Large(large::LargeArguments),
    /// The log in byte-addressable memory: sweeps of its latency and its size.
    Region(region::RegionArguments),
    /// Files on all devices at once, through a plain mount, against the sum of the devices; as root.
    Spread(spread::SpreadArguments),
    /// Data that is hot in a part, on an SSD and a disk, against native file systems and mergerfs; as root.
    Tiering(tiering::TieringArguments),
    /// How fast files change their tier, in every direction between three throttled devices.
    Move(moves::rates::MoveArguments),
    /// The cost of a move to an application that uses half of a throttled device.
    MoveInterference(moves::interference::InterferenceArguments),
    /// The latency that a move adds to an application on a device that serves one request after the other.
    MoveLatency(moves::latency::LatencyArguments),
    /// How soon the hot part of one large file is on the fast tier.
    MoveHotSet(moves::hot_set::HotSetArguments),
    /// The behavior when the fast tier is filled at full speed.
    MoveWatermarks(moves::watermarks::WatermarkArguments),
}

fn main() -> Result<()> {
    // As the daemon does, so that memory is measured as it is there. A kernel that has no huge pages has none to forbid.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // The simulation takes them as any other; programs are chosen by the policy.
    polymux_lab::register();
    match Arguments::parse().command {
        Command::Suite(arguments) => suite::run(&arguments),
        Command::Document(arguments) => suite::document::run(&arguments),
        Command::Meta(arguments) => meta::run(&arguments),
        Command::Flush(arguments) => flush::run(&arguments),
        Command::Append(arguments) => append::run(&arguments),
        Command::InProgram(arguments) => in_program::run(&arguments),
        Command::Leases(arguments) => leases::run(&arguments),
        Command::LeaseWrites(arguments) => lease_writes::run(&arguments),
        Command::Preload(arguments) => preload::run(&arguments),
        Command::DeathCost(arguments) => death::run(&arguments),
        Command::Store(arguments) => store::run(&arguments),
        Command::Large(arguments) => large::run(&arguments),
        Command::Region(arguments) => region::run(&arguments),
        Command::Spread(arguments) => spread::run(&arguments),
        Command::Tiering(arguments) => tiering::run(&arguments),
        Command::Move(arguments) => moves::rates::run(&arguments),
        Command::MoveInterference(arguments) => moves::interference::run(&arguments),
        Command::MoveLatency(arguments) => moves::latency::run(&arguments),
        Command::MoveHotSet(arguments) => moves::hot_set::run(&arguments),
        Command::MoveWatermarks(arguments) => moves::watermarks::run(&arguments),
    }
}
