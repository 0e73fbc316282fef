//! `polymux-bench large`: a volume of very many files.
//!
//! Method:
//! * Everything is measured through the embedded file system by one thread, with the background thread beside it.
//! * Resident memory is that of the whole process; the resident memory before the volume was mounted is printed, so that
//!   it can be subtracted. The budget is that of the metadata store.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use polymux_fs::{Caller, FileSystem};
use polymux_types::Ino;

use crate::embedded::EmbeddedDirectory;
use crate::machine;
use crate::memory;
use crate::parallel::processor_time;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::side::{Durability, PrivateDirectory};
use crate::statistics::{Spread, count};
use crate::store;
use crate::volume::{MountedVolume, Volume};

const MILLION: usize = 1_000_000;
const MIB: f64 = 1024.0 * 1024.0;

/// Files of the small volume that the mount time is compared with.
const FILES_FEW: usize = 10_000;

/// Entries asked for by one call of readdir.
const ENTRIES_AT_ONCE: usize = 1_024;

/// Choices of `polymux-bench large`.
#[derive(Args, Clone, Debug)]
pub struct LargeArguments {
    /// Where to measure, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// Files to make.
    #[arg(long, default_value_t = 10 * MILLION)]
    pub files: usize,
    /// Files in one directory.
    #[arg(long, default_value_t = 10_000)]
    pub per_directory: usize,
    /// Files between two lines of the table.
    #[arg(long, default_value_t = MILLION)]
    pub step: usize,
    /// Entries of the directory that is listed.
    #[arg(long, default_value_t = MILLION)]
    pub entries: usize,
    /// Memory of the metadata store, in MiB.
    #[arg(long, default_value_t = store::MEMORY_BYTES / (1024 * 1024))]
    pub budget_mib: u64,
    /// Mounts of each volume that are timed.
    #[arg(long, default_value_t = 5)]
    pub mounts: usize,
    /// Tiers of the volume, all on the device.
    #[arg(long, default_value_t = 2)]
    pub tiers: usize,
}

/// Measures.
///
/// # Errors
/// Whatever the file system reports.
pub fn run(arguments: &LargeArguments) -> Result<()> {
    ensure!(arguments.per_directory > 0 && arguments.step > 0 && arguments.mounts > 0, "nothing to measure");
    let scratch = Scratch::new(&arguments.place.directory)?;
    let mut report = Report::new("large", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let memory_bytes = arguments.budget_mib * 1024 * 1024;
    let few = Volume::make(&scratch.directory("few")?, arguments.tiers, memory_bytes)?;
    fill(&few, FILES_FEW.min(arguments.files), arguments.per_directory)?;
    let resident_before = memory::resident()?.now;
    let many = Volume::make(&scratch.directory("many")?, arguments.tiers, memory_bytes)?;
    let mounted = many.mount()?;
    report.add(creation(&mounted, arguments, resident_before)?);
    report.add(listing(&mounted, arguments)?);
    let start = Instant::now();
    mounted.unmount()?;
    let unmount_s = start.elapsed().as_secs_f64();
    report.add(mounting(&few, &many, arguments, unmount_s)?);
    report.finish()
}

fn fill(volume: &Volume, files: usize, per_directory: usize) -> Result<()> {
    let mounted = volume.mount()?;
    let mut creator = Creator::new(&mounted, "d", per_directory);
    creator.create(files)?;
    mounted.unmount()
}

/// Makes files one after the other, in a new directory as soon as one is full.
struct Creator<'a> {
    volume: &'a MountedVolume,
    label: &'static str,
    per_directory: usize,
    made: usize,
    directory: Option<EmbeddedDirectory>,
}

impl<'a> Creator<'a> {
    fn new(volume: &'a MountedVolume, label: &'static str, per_directory: usize) -> Self {
        Self { volume, label, per_directory, made: 0, directory: None }
    }

    fn create(&mut self, files: usize) -> Result<()> {
        for _ in 0..files {
            if self.made.is_multiple_of(self.per_directory) {
                let name = format!("{}{:06}", self.label, self.made / self.per_directory);
                let file_system = self.volume.file_system().clone();
                self.directory = Some(EmbeddedDirectory::make(file_system, Ino::ROOT, &name, 1)?);
            }
            let directory = self.directory.as_ref().expect("the first file makes a directory");
            directory.create(&format!("file{:010}", self.made), Durability::Later)?;
            self.made += 1;
        }
        Ok(())
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

fn creation(mounted: &MountedVolume, arguments: &LargeArguments, resident_before: u64) -> Result<Section> {
    let columns = [
        "files",
        "per second",
        "to the first",
        "processor us",
        "to the first, processor",
        "resident MiB",
        "peak MiB",
        "metadata MiB",
        "cached inodes",
    ];
    let title = format!("Creating {} files, {} in a directory", arguments.files, arguments.per_directory);
    let mut section = Section::new(title, &columns);
    let mut creator = Creator::new(mounted, "d", arguments.per_directory);
    let mut first = None;
    let mut peak = 0;
    while creator.made < arguments.files {
        let files = arguments.step.min(arguments.files - creator.made);
        memory::reset_peak()?;
        let (start, processor) = (Instant::now(), processor_time());
        creator.create(files)?;
        let rate = count(files) / start.elapsed().as_secs_f64();
        let processor_us = (processor_time() - processor).as_secs_f64() * 1e6 / count(files);
        let (first, processor_us_first) = *first.get_or_insert((rate, processor_us));
        let resident = memory::resident()?;
        peak = peak.max(resident.peak);
        let status = mounted.file_system().status()?;
        section.row(vec![
            creator.made.into(),
            Cell::Number(rate, 0),
            Cell::Number(rate / first, 2),
            Cell::Number(processor_us, 2),
            Cell::Number(processor_us / processor_us_first, 2),
            Cell::Number(mib(resident.now), 0),
            Cell::Number(mib(resident.peak), 0),
            Cell::Number(mib(status.metadata_bytes), 0),
            status.inodes_cached.into(),
        ]);
    }
    section.note(format!(
        "Peak of resident memory {:.0} MiB, {:.0} MiB of it before the volume was mounted; budget of the metadata store \
         {} MiB: {:.0} MiB over budget and start.",
        mib(peak),
        mib(resident_before),
        arguments.budget_mib,
        mib(peak) - mib(resident_before) - arguments.budget_mib as f64
    ));
    Ok(section)
}

fn listing(mounted: &MountedVolume, arguments: &LargeArguments) -> Result<Section> {
    let mut creator = Creator::new(mounted, "listed", arguments.entries.max(1));
    creator.create(arguments.entries)?;
    let directory = creator.directory.as_ref().map_or(Ino::ROOT, EmbeddedDirectory::ino);
    let columns = ["entries", "first entries ms", "all ms", "entries per second", "growth of resident MiB"];
    let mut section = Section::new(format!("Listing a directory, {ENTRIES_AT_ONCE} entries a call"), &columns);
    for _ in 0..2 {
        memory::reset_peak()?;
        let before = memory::resident()?.now;
        let listed = list(mounted.file_system(), directory)?;
        let growth = memory::resident()?.peak.saturating_sub(before);
        ensure!(listed.entries == arguments.entries, "{} entries were listed", listed.entries);
        section.row(vec![
            listed.entries.into(),
            Cell::Number(listed.first_s * 1e3, 2),
            Cell::Number(listed.all_s * 1e3, 1),
            Cell::Number(count(listed.entries) / listed.all_s, 0),
            Cell::Number(mib(growth), 1),
        ]);
    }
    Ok(section)
}

struct Listed {
    entries: usize,
    first_s: f64,
    all_s: f64,
}

fn list(file_system: &FileSystem, directory: Ino) -> Result<Listed> {
    let caller = Caller::root();
    let start = Instant::now();
    file_system.check_listing(&caller, directory)?;
    let (mut entries, mut after, mut first_s) = (0, 0, None);
    loop {
        let some = file_system.read_directory(&caller, directory, after, ENTRIES_AT_ONCE)?;
        let first_s = *first_s.get_or_insert_with(|| start.elapsed().as_secs_f64());
        let Some(last) = some.last() else {
            return Ok(Listed { entries, first_s, all_s: start.elapsed().as_secs_f64() });
        };
        after = last.cookie;
        entries += some.len();
    }
}

fn mounting(few: &Volume, many: &Volume, arguments: &LargeArguments, unmount_s: f64) -> Result<Section> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..arguments.mounts {
        for (volume, times) in [few, many].into_iter().zip(&mut times) {
            // The tiers are synced when they are opened; data written by others is not part of the mount.
            rustix::fs::sync();
            let start = Instant::now();
            let mounted = volume.mount()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            mounted.unmount()?;
        }
    }
    let columns = ["files", "mount ms", "spread", "to the small volume"];
    let mut section = Section::new("Mounting after a clean unmount", &columns);
    let small = Spread::of(&times[0]).median;
    for (files, times) in [FILES_FEW.min(arguments.files), arguments.files + arguments.entries].into_iter().zip(&times)
    {
        let spread = Spread::of(times);
        section.row(vec![
            files.into(),
            Cell::Number(spread.median, 1),
            spread.range(1).into(),
            Cell::Number(spread.median / small, 2),
        ]);
    }
    section.note(format!("The first clean unmount of the large volume took {unmount_s:.2} s."));
    Ok(section)
}
