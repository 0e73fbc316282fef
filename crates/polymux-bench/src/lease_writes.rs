//! `polymux-bench lease-writes`: random writes of 4 KiB into a file on two tiers past the mount, beside readers, against a plain mount and against the file system below.
//!
//! Method:
//! * A volume of two tiers lies in two directories of the device that the native file is on, too. Its files alternate between both. The plain mount and the client have a file each, because
//!   calls through the mount end the leases of a file.
//! * The sides take turns, and which one begins changes each time; a figure is the median of the turns, and a ratio the median of the ratios of turns. All files, and the objects of those of the volume, were read into memory in order.
//! * Each block that is written begins with its number, and at the end every block of every file has its own.
//! * A figure of the client is one of the client only if it went past the mount: the run ends with an error where more than one call in twenty went another way.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use polymux_client::{File as ClientFile, Way};
use rustix::fs::Advice;

use crate::leases::sides::{CLIENT, MOUNT, NATIVE};
use crate::leases::volume::MountedVolume;
use crate::leases::{DIRECT_PERCENT_MIN, Io};
use crate::machine;
use crate::noise::Noise;
use crate::parallel;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::statistics::{Spread, count};

const BLOCK: usize = 4096;
/// Calls between two looks at the clock.
const CALLS: usize = 16;

/// Choices of `polymux-bench lease-writes`.
#[derive(Args, Clone, Debug)]
pub struct LeaseWriteArguments {
    /// Directory on the device to measure, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// The `polymux` that makes and mounts the volume; by default the one that was built beside this program.
    #[arg(long, value_name = "FILE")]
    pub polymux: Option<PathBuf>,
    /// Bytes of each file, in MiB.
    #[arg(long, default_value_t = 512)]
    pub file_mib: u64,
    /// Turns of each side.
    #[arg(long, default_value_t = 5)]
    pub turns: usize,
    /// Length of a turn, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    pub turn_ms: u64,
    /// Only figures whose name contains this.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub only: String,
}

/// Threads that use one file at once.
#[derive(Clone, Copy, Debug)]
struct Figure {
    name: &'static str,
    writers: usize,
    readers: usize,
    opened: Opened,
    /// Writes before each `fdatasync`; none where there is none.
    synced_after: Option<usize>,
}

/// Who has an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opened {
    /// All threads have the same one.
    Once,
    /// Each thread has one of its own, as processes have.
    ByEach,
}

const fn figure(name: &'static str, writers: usize, readers: usize) -> Figure {
    Figure { name, writers, readers, opened: Opened::Once, synced_after: None }
}

const FIGURES: [Figure; 7] = [
    figure("1 writer", 1, 0),
    figure("4 writers", 4, 0),
    figure("4 writers, 1 reader", 4, 1),
    figure("4 writers, 4 readers", 4, 4),
    figure("4 writers, 8 readers", 4, 8),
    Figure { opened: Opened::ByEach, ..figure("4 writers, 4 readers, each with the file open", 4, 4) },
    Figure { synced_after: Some(1), ..figure("1 writer, fdatasync after each write", 1, 0) },
];

/// An open file of one side.
trait Side: Sync + Send {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize>;
    fn sync(&self) -> Result<()>;
    /// Calls past the mount, and all of them, so far.
    fn direct(&self) -> (u64, u64);
}

impl Side for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(FileExt::read_at(self, buffer, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        Ok(FileExt::write_at(self, data, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.sync_data()?)
    }

    fn direct(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl Side for ClientFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(Self::read_at(self, buffer, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        Ok(Self::write_at(self, data, offset)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.as_file().sync_data()?)
    }

    fn direct(&self) -> (u64, u64) {
        let report = self.report();
        let all = Way::all().map(|way| report.reads(way) + report.writes(way)).sum();
        (report.reads(Way::Directly) + report.writes(Way::Directly), all)
    }
}

/// The sides, and the file of each.
struct Sides {
    paths: [PathBuf; 3],
}

impl Sides {
    fn open(&self, side: usize) -> Result<Box<dyn Side>> {
        let path = &self.paths[side];
        if side == CLIENT {
            return Ok(Box::new(ClientFile::open_to_change(path)?));
        }
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(path)?))
    }
}

/// Calls for each second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    writes: f64,
    reads: f64,
}

/// The block with a number, as it is written.
fn fill(block: &mut [u8], number: u64, round: u64) {
    block[..8].copy_from_slice(&number.to_le_bytes());
    block[8..16].copy_from_slice(&round.to_le_bytes());
}

fn write_until(side: &dyn Side, figure: &Figure, blocks: u64, seed: u64, is_over: &AtomicBool) -> Result<usize> {
    let (mut random, mut block, mut written) = (Noise::new(seed), vec![7; BLOCK], 0_usize);
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..if figure.synced_after.is_some() { 1 } else { CALLS } {
            let number = random.below(blocks);
            fill(&mut block, number, seed);
            ensure!(side.write_at(&block, number * BLOCK as u64)? == BLOCK, "a write is short");
            written += 1;
        }
        if figure.synced_after.is_some_and(|writes| written.is_multiple_of(writes)) {
            side.sync()?;
        }
    }
    Ok(written)
}

fn read_until(side: &dyn Side, blocks: u64, seed: u64, is_over: &AtomicBool) -> Result<usize> {
    let (mut random, mut block, mut read) = (Noise::new(seed), vec![0; BLOCK], 0);
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..CALLS {
            let number = random.below(blocks);
            ensure!(side.read_at(&mut block, number * BLOCK as u64)? == BLOCK, "a read is short");
            ensure!(block[..8] == number.to_le_bytes(), "block {number} has the bytes of another one");
            read += 1;
        }
    }
    Ok(read)
}

/// One turn of a side.
fn turn(
    figure: &Figure,
    files: &[Box<dyn Side>],
    blocks: u64,
    arguments: &LeaseWriteArguments,
    seed: u64,
) -> Result<Rates> {
    let is_over = AtomicBool::new(false);
    let length = Duration::from_millis(arguments.turn_ms);
    let threads: Vec<usize> = (0..=figure.writers + figure.readers).collect();
    let (_, done) = parallel::run(threads, |_, thread| {
        if thread == figure.writers + figure.readers {
            let begun = Instant::now();
            std::thread::sleep(length);
            is_over.store(true, Ordering::Relaxed);
            return Ok((0, begun.elapsed()));
        }
        let side = files[thread % files.len()].as_ref();
        let seed = seed * 100 + thread as u64;
        let calls = if thread < figure.writers {
            write_until(side, figure, blocks, seed, &is_over)
        } else {
            read_until(side, blocks, seed, &is_over)
        };
        // The others do not go on for ever where one failed.
        let calls = calls.inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
        Ok((calls, Duration::ZERO))
    })?;
    let seconds = done.last().map_or(0.0, |(_, time)| time.as_secs_f64());
    let rate = |from: usize, to: usize| count(done[from..to].iter().map(|(calls, _)| calls).sum::<usize>()) / seconds;
    Ok(Rates { writes: rate(0, figure.writers), reads: rate(figure.writers, figure.writers + figure.readers) })
}

fn measure(figure: &Figure, sides: &Sides, blocks: u64, arguments: &LeaseWriteArguments) -> Result<Vec<Cell>> {
    let mut rates: [Vec<Rates>; 3] = Default::default();
    let opens = if figure.opened == Opened::Once { 1 } else { figure.writers + figure.readers };
    let files = (0..3).map(|side| (0..opens).map(|_| sides.open(side)).collect()).collect::<Result<Vec<Vec<_>>>>()?;
    let direct = || files[CLIENT].iter().map(|file| file.direct()).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    // Leases are given, and all pages are where they belong, before anything is measured.
    for file in &files {
        turn(figure, file, blocks, &LeaseWriteArguments { turn_ms: 2500, ..arguments.clone() }, 99)?;
    }
    let before = direct();
    for number in 0..arguments.turns {
        for place in 0..3 {
            let place = (place + number) % 3;
            rates[place].push(turn(figure, &files[place], blocks, arguments, number as u64 + 1)?);
        }
    }
    let after = direct();
    let (past_mount, all) = (after.0 - before.0, after.1 - before.1);
    ensure!(
        past_mount * 100 >= all * DIRECT_PERCENT_MIN,
        "{}: only {past_mount} of {all} calls went past the mount",
        figure.name
    );
    let median =
        |side: usize, of: fn(&Rates) -> f64| Spread::of(&rates[side].iter().map(of).collect::<Vec<_>>()).median;
    let ratio = |ours: usize, others: usize, of: fn(&Rates) -> f64| {
        Spread::of(
            &rates[ours].iter().zip(&rates[others]).map(|(ours, other)| of(ours) / of(other)).collect::<Vec<_>>(),
        )
    };
    let mut row: Vec<Cell> = vec![figure.name.into()];
    row.extend([NATIVE, MOUNT, CLIENT].map(|side| Cell::Number(median(side, |rates| rates.writes), 0)));
    row.push(Cell::Number(ratio(MOUNT, NATIVE, |rates| rates.writes).median, 2));
    let writes = ratio(CLIENT, NATIVE, |rates| rates.writes);
    row.extend([Cell::Number(writes.median, 2), writes.range(2).into()]);
    if figure.readers == 0 {
        row.extend([Cell::Empty, Cell::Empty, Cell::Empty]);
    } else {
        row.push(Cell::Number(median(NATIVE, |rates| rates.reads), 0));
        row.push(Cell::Number(ratio(MOUNT, NATIVE, |rates| rates.reads).median, 2));
        row.push(Cell::Number(ratio(CLIENT, NATIVE, |rates| rates.reads).median, 2));
    }
    Ok(row)
}

/// Writes a file, durably: each block with its number.
fn write_file(path: &Path, blocks: u64) -> Result<()> {
    let file = File::create_new(path)?;
    let mut piece = Noise::new(3).bytes(256 * BLOCK);
    for first in (0..blocks).step_by(256) {
        for (number, block) in (first..).zip(piece.chunks_mut(BLOCK)) {
            fill(block, number, 0);
        }
        file.write_all_at(&piece, first * BLOCK as u64)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Fails where a block has the bytes of another one.
fn check_file(path: &Path, blocks: u64) -> Result<()> {
    let file = File::open(path)?;
    let mut block = vec![0; BLOCK];
    for number in 0..blocks {
        file.read_exact_at(&mut block, number * BLOCK as u64)?;
        ensure!(block[..8] == number.to_le_bytes(), "{}: block {number} has the bytes of another one", path.display());
    }
    Ok(())
}

/// Measures all sides.
///
/// # Errors
/// Whatever any side reports, and where the client did not go past the mount.
pub fn run(arguments: &LeaseWriteArguments) -> Result<()> {
    if arguments.file_mib < 64 || arguments.turns == 0 || arguments.turn_ms == 0 {
        bail!("a file of 64 MiB and one turn are the least");
    }
    let scratch = Scratch::new(&arguments.place.directory)?;
    let beside = std::env::current_exe()?.with_file_name("polymux");
    let program = arguments.polymux.clone().unwrap_or(beside);
    let mut report = Report::new("lease-writes", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let (bytes, blocks) = (arguments.file_mib << 20, (arguments.file_mib << 20) / BLOCK as u64);
    let volume = MountedVolume::mount(&program, &scratch, Io::Passthrough)?;
    let sides = Sides {
        paths: [
            scratch.directory("native")?.join("file"),
            volume.mount_point().join("through-mount"),
            volume.mount_point().join("past-mount"),
        ],
    };
    for path in &sides.paths {
        write_file(path, blocks)?;
    }
    for path in &sides.paths[MOUNT..] {
        volume.split(path, bytes)?;
    }
    // How bytes came into memory decides how fast they are overwritten there.
    for object in volume.objects()?.iter().chain(&sides.paths) {
        rustix::fs::fadvise(&File::open(object)?, 0, None, Advice::DontNeed)?;
    }
    // Last the objects: bytes that the daemon reads for the kernel leave its memory again.
    for file in sides.paths.iter().chain(&volume.objects()?) {
        std::io::copy(&mut File::open(file)?, &mut std::io::sink())?;
    }
    let columns = [
        "threads",
        "native writes/s",
        "mount",
        "client",
        "mount to native",
        "client to native",
        "range",
        "native reads/s",
        "mount to native",
        "client to native",
    ];
    let mut section = Section::new(format!("A file on two tiers of one device, {}", volume.options()), &columns);
    for figure in FIGURES.iter().filter(|figure| figure.name.contains(&arguments.only)) {
        section.row(measure(figure, &sides, blocks, arguments)?);
    }
    report.add(section);
    for path in &sides.paths {
        check_file(path, blocks)?;
    }
    volume.unmount()?;
    report.finish()
}
