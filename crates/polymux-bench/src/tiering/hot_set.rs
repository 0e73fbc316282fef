//! Random reads of 4 KiB, nineteen in twenty of them in one sixth of the files; after some time in another sixth.
//!
//! Method:
//! * The files are opened anew, and the page cache is dropped, every eight seconds: hot data is read from a device again and again.
//! * Both hot sixths were written after the SSD was full, so that they lie on the disk at first, natively on neither side.
//! * A rate is reads over the wall clock of one round.
//! * `by-hand` has the hot files on the SSD from the first read on, and of the others as many as there is space for below the high mark. Where a
//!   twentieth of the reads goes to files that the SSD has no space for, the disk bounds the rate of all of them, wherever the hot ones are.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use polymux_client::Way;

use super::chart::{self, Line};
use super::sides::{Side, SideKind};
use super::subject::Subject;
use super::{Reader, TieringArguments, in_words};
use crate::machine::drop_caches;
use crate::noise::Noise;
use crate::report::{Cell, Report, Section};
use crate::statistics::count;

/// Files, and bytes of each.
pub(super) const FILES: usize = 96;
pub(super) const FILE_BYTES: usize = 32 << 20;
const READ_BYTES: usize = 4096;
/// Length of a round.
pub(super) const ROUND_SECONDS: usize = 8;
pub(super) const ROUND: Duration = Duration::from_secs(ROUND_SECONDS as u64);
/// The hot files of each phase: the last sixth, and one in the middle.
pub(super) const HOT: [std::ops::Range<usize>; 2] = [80..96, 56..72];
/// Reads in a hundred that go there.
pub(super) const HOT_PERCENT: u64 = 95;

/// Targets: seconds after the set became hot, and the part of the rate that the SSD alone gives.
const TARGETS: [(usize, f64); 2] = [(20, 0.4), (60, 0.7)];

/// Results of one side: reads per second of each round, phase after phase.
struct Course {
    side: SideKind,
    rates: Vec<f64>,
    /// Megabytes written to the SSD in each phase, and in the second half of its rounds; nothing where there is only one device.
    written: Vec<[Option<f64>; 2]>,
    places: String,
}

/// Measures.
///
/// # Errors
/// Whatever the devices, the programs or the file systems report.
pub fn run(arguments: &TieringArguments, report: &mut Report) -> Result<()> {
    let mut courses = Vec::new();
    for side in &arguments.sides {
        courses.push(measure(*side, arguments)?);
    }
    report.add(tabulate(arguments, &courses));
    report.add(judge(arguments, &courses));
    if let Some(directory) = &arguments.svg {
        let lines: Vec<Line<'_>> =
            courses.iter().map(|course| Line { name: course.side.name(), rates: &course.rates }).collect();
        let path = directory.join("hot-set.svg");
        chart::draw(&path, &title(arguments), &lines, (ROUND_SECONDS, arguments.rounds.into()))?;
    }
    Ok(())
}

fn measure(kind: SideKind, arguments: &TieringArguments) -> Result<Course> {
    let mut subject = Subject::make(kind, arguments)?;
    let mut course = Course { side: kind, rates: Vec::new(), written: Vec::new(), places: String::new() };
    for (phase, hot) in HOT.into_iter().enumerate().take(arguments.phases.into()) {
        if kind == SideKind::ByHand {
            subject.place_by_hand(&hot)?;
        }
        let before = subject.traffic()?;
        let mut before_second_half = before.clone();
        for round in 0..arguments.rounds {
            if round == arguments.rounds / 2 {
                before_second_half = subject.traffic()?;
            }
            let seed = u64::from(round) << 8 | phase as u64;
            let rate = subject.read(&hot, arguments.readers, seed)?;
            eprintln!("{}: phase {phase}, round {round}: {rate:.0} reads/s", kind.name());
            course.rates.push(rate);
        }
        course.written.push([subject.written_to_ssd_mb(&before)?, subject.written_to_ssd_mb(&before_second_half)?]);
        course.places = subject.places(hot.clone());
        if !course.places.trim().is_empty() {
            eprintln!("hot files, MiB on the SSD/disk: {}", course.places);
        }
    }
    subject.end()?;
    Ok(course)
}

/// Writes so many files, one after the other, durably.
pub(super) fn write_files(side: &Side, count: usize) -> Result<Vec<PathBuf>> {
    write_files_in(&side.path().join("data"), count)
}

/// As [`write_files`], in a directory that is made for them.
pub(super) fn write_files_in(directory: &Path, count: usize) -> Result<Vec<PathBuf>> {
    fs::create_dir(directory)?;
    write_paths((0..count).map(|number| directory.join(format!("file-{number:02}"))).collect())
}

/// Writes new files at these paths, one after the other, durably.
pub(super) fn write_paths(paths: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let block = Noise::new(0x2545_f491_4f6c_dd1d).bytes(FILE_BYTES);
    for path in &paths {
        let file = File::create_new(path)?;
        file.write_all_at(&block, 0)?;
        file.sync_all()?;
    }
    Ok(paths)
}

/// One round; reads per second.
pub(super) fn read(
    files: &[PathBuf],
    hot: &std::ops::Range<usize>,
    (reader, readers): (Reader, u16),
    seed: u64,
) -> Result<f64> {
    drop_caches()?;
    // One user has no leases for each reader.
    let leased = if reader == Reader::Lease { Some(OpenFiles::open(files, reader)?) } else { None };
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let begun = Instant::now();
        let (leased, is_over, reads) = (leased.as_ref(), &is_over, &reads);
        let readers: Vec<_> = (0..readers)
            .map(|reader| {
                let seed = seed << 16 | u64::from(reader);
                scope.spawn(move || match leased {
                    Some(open) => read_until(open, hot, seed, (is_over, reads)),
                    None => read_until(&OpenFiles::open(files, Reader::Mount)?, hot, seed, (is_over, reads)),
                })
            })
            .collect();
        thread::sleep(ROUND.saturating_sub(begun.elapsed()));
        let (all, elapsed) = (reads.load(Ordering::Relaxed), begun.elapsed());
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().map_err(|_| anyhow!("a reader panicked"))??;
        }
        Ok(all as f64 / elapsed.as_secs_f64())
    })
}

/// Open files of one reader, or of all.
enum OpenFiles {
    Mount(Vec<File>),
    Lease(Vec<polymux_client::File>),
}

impl OpenFiles {
    fn open(files: &[PathBuf], reader: Reader) -> Result<Self> {
        Ok(match reader {
            Reader::Mount => Self::Mount(files.iter().map(File::open).collect::<std::io::Result<_>>()?),
            Reader::Lease => Self::Lease(files.iter().map(polymux_client::File::open).collect::<std::io::Result<_>>()?),
        })
    }

    fn len(&self) -> usize {
        match self {
            Self::Mount(files) => files.len(),
            Self::Lease(files) => files.len(),
        }
    }

    fn read(&self, file: usize, buffer: &mut [u8], offset: u64) -> Result<()> {
        let count = match self {
            Self::Mount(files) => files[file].read_at(buffer, offset)?,
            Self::Lease(files) => files[file].read_at(buffer, offset)?,
        };
        ensure!(count == buffer.len(), "a file ends before {offset}");
        Ok(())
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        let Self::Lease(files) = self else { return };
        let reads = |way| files.iter().map(|file| file.report().reads(way)).sum::<u64>();
        let leases: u64 = files.iter().map(|file| file.report().leases).sum();
        eprintln!("{} reads by {leases} leases, {} recalled", reads(Way::Directly), reads(Way::Recalled));
    }
}

fn read_until(
    open: &OpenFiles,
    hot: &std::ops::Range<usize>,
    seed: u64,
    (is_over, reads): (&AtomicBool, &AtomicU64),
) -> Result<()> {
    let mut noise = Noise::new(0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xd134_2543_de82_ef95));
    let mut buffer = [0; READ_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        let is_hot = noise.below(100) < HOT_PERCENT;
        let file = match is_hot {
            true => hot.start + index_below(&mut noise, hot.len()),
            false => index_below(&mut noise, open.len()),
        };
        let block = noise.below((FILE_BYTES / READ_BYTES) as u64);
        open.read(file, &mut buffer, block * READ_BYTES as u64)?;
        reads.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// A random index below an end.
pub(super) fn index_below(noise: &mut Noise, end: usize) -> usize {
    usize::try_from(noise.below(end as u64)).expect("an index fits")
}

fn title(arguments: &TieringArguments) -> String {
    format!("hot set of 512 MiB in 3 GiB, {} readers: SSD of 1.2 GB, disk of 5 GB", arguments.readers)
}

fn tabulate(arguments: &TieringArguments, courses: &[Course]) -> Section {
    let columns = ["side", "phase", "SSD written MB", "of it in second half", "reads/s in each round of 8 s"];
    let mut section = Section::new(title(arguments), &columns);
    for course in courses {
        for (phase, rates) in course.rates.chunks(usize::from(arguments.rounds)).enumerate() {
            section.row(vec![
                course.side.name().into(),
                (phase + 1).into(),
                Cell::optional(course.written[phase][0], 0),
                Cell::optional(course.written[phase][1], 0),
                in_words(rates).into(),
            ]);
        }
    }
    section
}

/// The shares of the best rates that are reached by the required time.
fn judge(arguments: &TieringArguments, courses: &[Course]) -> Section {
    let columns = ["side", "phase", "after s", "of all on an SSD", "target", "met", "of placed by hand"];
    let mut section = Section::new("shares", &columns);
    let mean_of = |side| {
        let course = courses.iter().find(|course| course.side == side)?;
        Some(course.rates.iter().sum::<f64>() / count(course.rates.len()))
    };
    let (best, by_hand) = (mean_of(SideKind::Ssd), mean_of(SideKind::ByHand));
    if best.is_none() && by_hand.is_none() {
        return section;
    }
    for course in courses.iter().filter(|course| course.side != SideKind::Ssd) {
        for (phase, rates) in course.rates.chunks(usize::from(arguments.rounds)).enumerate() {
            for (seconds, target) in TARGETS {
                // The round in which that second lies.
                let Some(rate) = rates.get(seconds / ROUND_SECONDS) else { continue };
                let share = best.map(|best| rate / best);
                let is_met = share.map_or("", |share| if share >= target { "yes" } else { "no" });
                section.row(vec![
                    course.side.name().into(),
                    (phase + 1).into(),
                    seconds.into(),
                    Cell::optional(share, 3),
                    Cell::Number(target, 1),
                    is_met.into(),
                    Cell::optional(by_hand.map(|by_hand| rate / by_hand), 3),
                ]);
            }
        }
    }
    section
}
