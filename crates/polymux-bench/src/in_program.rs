//! `polymux-bench in-program`: a volume inside this program against the file system below it, call by call, on one thread.
//!
//! Method: the volume lies in a directory of the device that the native side uses too. Both sides take turns, and which one begins changes each time; a
//! figure is the median of the turns, and `to native` the median of the ratios of turns. Files that are read are in memory on both sides.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use polymux_embed::{File as VolumeFile, FileOptions, LastLink, Volume, VolumeOptions};

use crate::machine;
use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::statistics::Spread;

const NAME: &str = "in-program";
const BLOCK: usize = 4096;
const LARGE: usize = 4 << 20;

/// How long a file may take to be split.
const SPLIT_DEADLINE: Duration = Duration::from_secs(120);

/// Choices of `polymux-bench in-program`.
#[derive(Args, Clone, Debug)]
pub struct InProgramArguments {
    /// Directory on the device to measure, and how to print.
    #[command(flatten)]
    pub place: crate::meta::Place,
    /// The `polymux` that makes the volume; by default the one that was built beside this program.
    #[arg(long, value_name = "FILE")]
    pub polymux: Option<PathBuf>,
    /// Bytes of the file that is read and overwritten, in MiB.
    #[arg(long, default_value_t = 1024)]
    pub file_mib: u64,
    /// Turns of each side.
    #[arg(long, default_value_t = 9)]
    pub turns: usize,
    /// Only calls whose name contains this.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub only: String,
}

/// A call that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    ReadByte,
    ReadBlock,
    WriteBlock,
    WriteLarge,
    AppendSmall,
    AppendSynced,
    CreateUnlink,
    Stat,
}

impl Figure {
    const ALL: [Self; 8] = [
        Self::ReadByte,
        Self::ReadBlock,
        Self::WriteBlock,
        Self::WriteLarge,
        Self::AppendSmall,
        Self::AppendSynced,
        Self::CreateUnlink,
        Self::Stat,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::ReadByte => "random read of 1 B, warm",
            Self::ReadBlock => "random read of 4 KiB, warm",
            Self::WriteBlock => "random write of 4 KiB",
            Self::WriteLarge => "write of 4 MiB",
            Self::AppendSmall => "append of 100 B",
            Self::AppendSynced => "append of 4 KiB + fdatasync",
            Self::CreateUnlink => "create + close + unlink",
            Self::Stat => "stat of a path of three names",
        }
    }

    /// Calls of one turn.
    const fn calls(self) -> u32 {
        match self {
            Self::ReadByte | Self::ReadBlock | Self::WriteBlock | Self::AppendSmall | Self::Stat => 50_000,
            Self::CreateUnlink => 5_000,
            Self::AppendSynced => 200,
            Self::WriteLarge => 64,
        }
    }

    /// Whether it is of the large file, which may be split.
    const fn is_of_large_file(self) -> bool {
        matches!(self, Self::ReadByte | Self::ReadBlock | Self::WriteBlock | Self::WriteLarge)
    }
}

/// The calls of one side.
trait Calls {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize>;
    fn append(&self, data: &[u8]) -> Result<usize>;
    fn sync(&self) -> Result<()>;
    fn create_unlink(&self) -> Result<()>;
    fn stat(&self) -> Result<u64>;
}

struct Native {
    directory: PathBuf,
    large: File,
    log: File,
}

impl Native {
    fn make(directory: PathBuf) -> Result<Self> {
        fs::create_dir_all(directory.join("a/b"))?;
        fs::write(directory.join("a/b/c"), "c")?;
        let large = OpenOptions::new().read(true).write(true).create_new(true).open(directory.join("large"))?;
        let log = OpenOptions::new().append(true).create_new(true).open(directory.join("log"))?;
        Ok(Self { directory, large, log })
    }
}

impl Calls for Native {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.large.read_at(buffer, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        Ok(self.large.write_at(data, offset)?)
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        Ok(std::io::Write::write(&mut &self.log, data)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.log.sync_data()?)
    }

    fn create_unlink(&self) -> Result<()> {
        let path = self.directory.join("new");
        drop(File::create_new(&path)?);
        Ok(fs::remove_file(path)?)
    }

    fn stat(&self) -> Result<u64> {
        Ok(rustix::fs::stat(self.directory.join("a/b/c"))?.st_ino)
    }
}

struct InProgram {
    volume: Volume,
    large: VolumeFile,
    log: VolumeFile,
}

impl InProgram {
    fn make(volume: Volume) -> Result<Self> {
        volume.make_directory("/a", 0o755)?;
        volume.make_directory("/a/b", 0o755)?;
        volume.open_file("/a/b/c", &FileOptions::new().write().create(0o644))?.write(b"c")?;
        let large = volume.open_file("/large", &FileOptions::new().read().write().create_new(0o644))?;
        let log = volume.open_file("/log", &FileOptions::new().write().create_new(0o644).append())?;
        Ok(Self { volume, large, log })
    }

    /// Moves the second half of the large file to the second tier.
    fn split(&self, bytes: u64) -> Result<()> {
        let (file_system, ino) = (self.volume.file_system()?, self.large.ino());
        self.volume.sync()?;
        file_system.migrate(ino, "second", Some(bytes / 2..bytes))?;
        let begun = Instant::now();
        loop {
            let shares = file_system.locate(ino)?.shares;
            let on_second = shares.iter().find(|share| share.name == "second").map_or(0, |share| share.bytes_mapped);
            if on_second == bytes / 2 {
                return Ok(());
            }
            ensure!(begun.elapsed() < SPLIT_DEADLINE, "the file is not split after {SPLIT_DEADLINE:?}: {shares:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Calls for InProgram {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        Ok(self.large.read_at(buffer, offset)?)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        Ok(self.large.write_at(data, offset)?)
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        Ok(self.log.write(data)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.log.sync_data()?)
    }

    fn create_unlink(&self) -> Result<()> {
        self.volume.open_file("/new", &FileOptions::new().write().create_new(0o644))?.close()?;
        Ok(self.volume.unlink("/new")?)
    }

    fn stat(&self) -> Result<u64> {
        Ok(self.volume.attributes("/a/b/c", LastLink::Follow)?.ino.get())
    }
}

/// Offsets in a pseudo-random order, the same on both sides.
struct Offsets {
    state: u64,
    bound: u64,
}

impl Offsets {
    fn next(&mut self, unit: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 20) % (self.bound / unit) * unit
    }
}

/// Microseconds of a call, over one turn.
fn turn(side: &dyn Calls, figure: Figure, bytes: u64, seed: u64) -> Result<f64> {
    let mut offsets = Offsets { state: seed, bound: bytes };
    let mut buffer = vec![7; LARGE];
    let begun = Instant::now();
    for _ in 0..figure.calls() {
        match figure {
            Figure::ReadByte => ensure!(side.read_at(&mut buffer[..1], offsets.next(1))? == 1),
            Figure::ReadBlock => {
                ensure!(side.read_at(&mut buffer[..BLOCK], offsets.next(BLOCK as u64))? == BLOCK);
            }
            Figure::WriteBlock => ensure!(side.write_at(&buffer[..BLOCK], offsets.next(BLOCK as u64))? == BLOCK),
            Figure::WriteLarge => ensure!(side.write_at(&buffer, offsets.next(LARGE as u64))? == LARGE),
            Figure::AppendSmall => ensure!(side.append(&buffer[..100])? == 100),
            Figure::AppendSynced => {
                ensure!(side.append(&buffer[..BLOCK])? == BLOCK);
                side.sync()?;
            }
            Figure::CreateUnlink => side.create_unlink()?,
            Figure::Stat => ensure!(side.stat()? > 0),
        }
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(figure.calls()))
}

/// Fills the large file and reads it, so that it is in memory.
fn fill(side: &dyn Calls, bytes: u64) -> Result<()> {
    let mut buffer = vec![3; LARGE];
    for offset in (0..bytes).step_by(LARGE) {
        ensure!(side.write_at(&buffer, offset)? == LARGE, "the device is too small");
    }
    for offset in (0..bytes).step_by(LARGE) {
        side.read_at(&mut buffer, offset)?;
    }
    Ok(())
}

fn table(title: &str, figures: &[Figure], sides: [&dyn Calls; 2], arguments: &InProgramArguments) -> Result<Section> {
    let columns = ["call", "native us", "in the program us", "to native", "range of the ratio"];
    let mut section = Section::new(title, &columns);
    let bytes = arguments.file_mib << 20;
    for figure in figures.iter().filter(|figure| figure.name().contains(&arguments.only)) {
        let mut times = [Vec::new(), Vec::new()];
        for number in 0..arguments.turns {
            for side in [number % 2, 1 - number % 2] {
                times[side].push(turn(sides[side], *figure, bytes, number as u64)?);
            }
        }
        let ratios: Vec<f64> = times[0].iter().zip(&times[1]).map(|(native, ours)| ours / native).collect();
        let ratio = Spread::of(&ratios);
        section.row(vec![
            figure.name().into(),
            Cell::Number(Spread::of(&times[0]).median, 2),
            Cell::Number(Spread::of(&times[1]).median, 2),
            Cell::Number(ratio.median, 2),
            ratio.range(2).into(),
        ]);
    }
    Ok(section)
}

/// Makes a volume of two tiers in one directory of the device.
fn make_volume(program: &Path, scratch: &Scratch) -> Result<Volume> {
    let [config, run, first, second] = ["config", "run", "first", "second"].map(|name| scratch.directory(name));
    let (config, run) = (config?, run?);
    let mut create = Command::new(program);
    create.env("POLYMUX_CONFIG_DIR", &config).env("POLYMUX_RUNTIME_DIR", &run).args(["create", NAME]);
    for (name, directory) in [("first", first?), ("second", second?)] {
        create.arg("--tier").arg(format!("{name}={}", directory.display()));
    }
    let output = create.output().with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        bail!("polymux create: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(VolumeOptions::new().directories(config, run).open(NAME)?)
}

/// Measures both sides.
///
/// # Errors
/// Whatever either side reports.
pub fn run(arguments: &InProgramArguments) -> Result<()> {
    ensure!(arguments.file_mib >= 64 && arguments.turns > 0, "a file of 64 MiB and one turn are the least");
    let scratch = Scratch::new(&arguments.place.directory)?;
    let beside = std::env::current_exe()?.with_file_name("polymux");
    let program = arguments.polymux.as_deref().unwrap_or(&beside);
    let mut report = Report::new("in-program", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let native = Native::make(scratch.directory("native")?)?;
    let ours = InProgram::make(make_volume(program, &scratch)?)?;
    let bytes = arguments.file_mib << 20;
    fill(&native, bytes)?;
    fill(&ours, bytes)?;
    report.add(table("A file on one tier", &Figure::ALL, [&native, &ours], arguments)?);
    ours.split(bytes)?;
    fill(&ours, bytes)?;
    let of_large: Vec<Figure> = Figure::ALL.into_iter().filter(|figure| figure.is_of_large_file()).collect();
    report.add(table("A file split over two tiers of one device", &of_large, [&native, &ours], arguments)?);
    let InProgram { volume, large, log } = ours;
    large.close()?;
    log.close()?;
    volume.close()?;
    report.finish()
}
