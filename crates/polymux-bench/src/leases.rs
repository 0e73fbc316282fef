//! `polymux-bench leases`: reads of a mounted volume past the mount, against a plain mount and against the file system below it.
//!
//! Method:
//! * A volume of two tiers lies in two directories of the device that the native file is on, too. One file of it is wholly on one tier, another one alternates
//!   between both. All files have the same bytes, and those that each side reads are compared with them once.
//! * The sides take turns, and which one begins changes each time; a figure is the median of the turns, and a ratio the median of the ratios of turns.
//! * Warm files are in memory on every side. Cold ones were just evicted: the native file, the mounted one and all objects of the tiers.
//! * A figure of the client is one of the client only if it read past the mount: the run ends with an error where more than one read in twenty went another way.
//! * Nothing moves while it is measured: moves are paused, and where the bytes are is looked at before and after.

mod cost;
pub(crate) mod sides;
pub(crate) mod volume;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use polymux_types::LeaseRefusal;

use crate::machine;
use crate::noise::shuffled;
use crate::parallel;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::statistics::{Spread, count};
use sides::{Side, Sides};
use volume::MountedVolume;

const BLOCK: usize = 4096;
const PIECE: usize = 1 << 20;
/// Of a hundred calls of the client, so many have to go past the mount.
pub(crate) const DIRECT_PERCENT_MIN: u64 = 95;

/// Choices of `polymux-bench leases`.
#[derive(Args, Clone, Debug)]
pub struct LeaseArguments {
    /// Directory on the device to measure, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// The `polymux` that makes and mounts the volume; by default the one that was built beside this program.
    #[arg(long, value_name = "FILE")]
    pub polymux: Option<PathBuf>,
    /// How the mount shares reads and writes with the kernel.
    #[arg(long, value_enum, default_value_t = Io::Passthrough)]
    pub io: Io,
    /// Bytes of each file, in MiB.
    #[arg(long, default_value_t = 1024)]
    pub file_mib: u64,
    /// Turns of each side.
    #[arg(long, default_value_t = 5)]
    pub turns: usize,
    /// Reads of one turn from memory, all threads together.
    #[arg(long, default_value_t = 100_000)]
    pub calls: u64,
    /// Reads of one turn from the device, all threads together.
    #[arg(long, default_value_t = 4_000)]
    pub cold_calls: u64,
    /// Times that a lease is asked for, and recalled.
    #[arg(long, default_value_t = 100)]
    pub leases: usize,
    /// Only figures whose name contains this.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub only: String,
}

/// The option `io` of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// The kernel reads and writes objects itself where it can.
    Passthrough,
    /// The kernel collects writes.
    WriteBack,
}

/// Reads that are measured.
#[derive(Clone, Copy, Debug)]
struct Figure {
    name: &'static str,
    length: usize,
    threads: usize,
    order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// At random, from memory.
    Warm,
    /// At random, each offset once, from the device.
    Cold,
    /// From the beginning to the end, from the device.
    Sequential,
}

impl Figure {
    const ALL: [Self; 6] = [
        Self { name: "random 1 B, warm", length: 1, threads: 1, order: Order::Warm },
        Self { name: "random 4 KiB, warm", length: BLOCK, threads: 1, order: Order::Warm },
        Self { name: "random 4 KiB, warm, 4 threads", length: BLOCK, threads: 4, order: Order::Warm },
        Self { name: "random 4 KiB, cold", length: BLOCK, threads: 1, order: Order::Cold },
        Self { name: "random 4 KiB, cold, 4 threads", length: BLOCK, threads: 4, order: Order::Cold },
        Self { name: "in order, 1 MiB, cold", length: PIECE, threads: 1, order: Order::Sequential },
    ];

    /// Offsets of one turn, the same on every side.
    fn offsets(&self, arguments: &LeaseArguments, seed: u64) -> Vec<u64> {
        let length = self.length as u64;
        let unit = if self.length == 1 { BLOCK as u64 + 1 } else { length };
        let units = (arguments.file_mib << 20) / unit;
        let calls = match self.order {
            Order::Sequential => return (0..units).map(|number| number * unit).collect(),
            Order::Warm => arguments.calls,
            Order::Cold => arguments.cold_calls.min(units),
        };
        let calls = usize::try_from(calls).unwrap_or(usize::MAX);
        shuffled(units, seed).into_iter().cycle().take(calls).map(|number| number * unit).collect()
    }
}

/// Microseconds of a read, over one turn: wall time by all reads.
fn turn(side: &dyn Side, figure: &Figure, offsets: &[u64]) -> Result<f64> {
    let shares: Vec<&[u64]> = offsets.chunks(offsets.len().div_ceil(figure.threads)).collect();
    let read_all = |offsets: &[u64], buffer: &mut [u8]| {
        for offset in offsets {
            ensure!(side.read_at(buffer, *offset)? == buffer.len(), "the file ends before {offset}");
        }
        Ok(())
    };
    let time = if figure.threads == 1 {
        let mut buffer = vec![7; figure.length];
        let begun = Instant::now();
        read_all(offsets, &mut buffer)?;
        begun.elapsed()
    } else {
        parallel::run(shares, |_, share| read_all(share, &mut vec![7; figure.length]))?.0
    };
    Ok(time.as_secs_f64() * 1e6 / count(offsets.len()))
}

/// One file of the volume, and how it lies there.
struct Subject<'a> {
    title: &'a str,
    path: PathBuf,
    layout: Layout,
}

/// On which tiers a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// On one.
    Whole,
    /// Half of it on each.
    Split,
}

/// Reads of the client in one figure.
#[derive(Default)]
struct ClientReads {
    all: u64,
    direct: u64,
}

impl ClientReads {
    /// Fails where the client did not read past the mount. A file that the kernel reads itself gets no lease.
    fn check(&self, figure: &Figure, sides: &Sides) -> Result<Cell> {
        if sides.refused() == Some(LeaseRefusal::PassedThrough) && self.direct == 0 {
            return Ok("passed through".into());
        }
        let report = sides.client_report();
        let is_direct = self.direct * 100 >= self.all * DIRECT_PERCENT_MIN;
        ensure!(is_direct, "{}: only {} of {} reads were direct; {report}", figure.name, self.direct, self.all);
        Ok(format!("{} of {}", self.direct, self.all).into())
    }
}

/// Times of the sides, turn by turn.
fn times(
    figure: &Figure,
    sides: &Sides,
    volume: &MountedVolume,
    arguments: &LeaseArguments,
) -> Result<([Vec<f64>; 3], ClientReads)> {
    let (mut times, mut reads) = ([Vec::new(), Vec::new(), Vec::new()], ClientReads::default());
    let all = sides.all();
    for (number, seed) in (0..arguments.turns).zip(1_u64..) {
        let offsets = figure.offsets(arguments, seed);
        for place in 0..all.len() {
            let place = (place + number) % all.len();
            if figure.order == Order::Warm {
                sides::warm(all[place], arguments.file_mib << 20)?;
            } else {
                sides.evict(volume)?;
            }
            let before = sides.direct_reads();
            times[place].push(turn(all[place], figure, &offsets)?);
            if place == sides::CLIENT {
                reads.all += u64::try_from(offsets.len())?;
                reads.direct += sides.direct_reads() - before;
            }
        }
    }
    Ok((times, reads))
}

fn table(subject: &Subject, sides: &Sides, volume: &MountedVolume, arguments: &LeaseArguments) -> Result<Section> {
    let columns = [
        "read",
        "native us",
        "mount us",
        "client us",
        "mount to native",
        "client to native",
        "range",
        "client to mount",
        "direct",
    ];
    let mut section = Section::new(subject.title, &columns);
    for figure in Figure::ALL.iter().filter(|figure| figure.name.contains(&arguments.only)) {
        let (times, reads) = times(figure, sides, volume, arguments)?;
        let direct = reads.check(figure, sides)?;
        let ratio = |ours: usize, others: usize| {
            let ratios: Vec<f64> = times[ours].iter().zip(&times[others]).map(|(ours, other)| ours / other).collect();
            Spread::of(&ratios)
        };
        let mut row: Vec<Cell> = vec![figure.name.into()];
        row.extend(times.iter().map(|times| Cell::Number(Spread::of(times).median, 2)));
        let to_native = ratio(sides::CLIENT, sides::NATIVE);
        row.push(Cell::Number(ratio(sides::MOUNT, sides::NATIVE).median, 2));
        row.push(Cell::Number(to_native.median, 2));
        row.push(to_native.range(2).into());
        row.push(Cell::Number(ratio(sides::CLIENT, sides::MOUNT).median, 2));
        row.push(direct);
        section.row(row);
    }
    section.note(format!("The client's {}; {} leases.", sides.client_report(), sides.client_report().leases));
    Ok(section)
}

/// Measures one file.
fn measure(
    subject: &Subject,
    native: &Path,
    volume: &MountedVolume,
    arguments: &LeaseArguments,
    report: &mut Report,
) -> Result<()> {
    let bytes = arguments.file_mib << 20;
    let sides = Sides::open(native, &subject.path)?;
    // How bytes came into memory decides how fast they are read from there: those of all sides come by reads in order, those of objects by those of the client.
    sides.evict(volume)?;
    for place in [sides::NATIVE, sides::CLIENT, sides::MOUNT] {
        sides::compare(sides.all()[place], bytes).with_context(|| subject.title.to_owned())?;
    }
    report.add(table(subject, &sides, volume, arguments)?);
    let is_passed_through = sides.refused() == Some(LeaseRefusal::PassedThrough);
    drop(sides);
    if !is_passed_through && arguments.only.is_empty() {
        report.add(cost::measure(&subject.path, arguments.leases)?);
    }
    volume.check_shares(&subject.path, bytes, subject.layout)
}

/// Measures all sides.
///
/// # Errors
/// Whatever any side reports, and where the client did not read past the mount.
pub fn run(arguments: &LeaseArguments) -> Result<()> {
    if arguments.file_mib < 64 || arguments.turns == 0 || arguments.leases == 0 || arguments.cold_calls == 0 {
        bail!("a file of 64 MiB, one turn, one read and one lease are the least");
    }
    let scratch = Scratch::new(&arguments.place.directory)?;
    let beside = std::env::current_exe()?.with_file_name("polymux");
    let program = arguments.polymux.clone().unwrap_or(beside);
    let mut report = Report::new("leases", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let bytes = arguments.file_mib << 20;
    let native = scratch.directory("native")?.join("file");
    sides::write(&native, bytes)?;
    let volume = MountedVolume::mount(&program, &scratch, arguments.io)?;
    for (place, layout) in [("one tier", Layout::Whole), ("two tiers of one device", Layout::Split)] {
        let title = format!("A file on {place}, {}", volume.options());
        let subject = Subject { title: &title, path: volume.mount_point().join("file"), layout };
        sides::write(&subject.path, bytes)?;
        if layout == Layout::Split {
            volume.split(&subject.path, bytes)?;
        }
        volume.check_shares(&subject.path, bytes, layout)?;
        measure(&subject, &native, &volume, arguments, &mut report)?;
        std::fs::remove_file(&subject.path)?;
    }
    volume.unmount()?;
    report.finish()
}
