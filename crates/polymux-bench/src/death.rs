//! `polymux-bench death-cost`: the cost of letting operations outlive the daemon: creating, writing and closing small files with and
//! without memory for that, through a plain mount.
//!
//! Method:
//! * There are two volumes, mounted at the same time, one with and one without. For each pair they are mounted anew: one mount differs from
//!   the next by 3 %, whatever it keeps where, so that pairs of one mount are no independent samples. Order and roles change in turn: the
//!   daemon that was mounted first is 5 % behind by itself, as two equal sides showed.
//! * Within a pair the two sides take turns of a few files, and which begins changes each time: other load on the machine
//!   affects both. Of a pair only the quotient counts, and quotients are judged by rank.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use polymux_transport::MountTable;

use crate::report::{Cell, Report, Section};
use crate::scratch::Scratch;
use crate::statistics::{Interval, count, mean};
use crate::{machine, meta};

const NAME: &str = "death";
const MOUNT_DEADLINE: Duration = Duration::from_secs(30);
/// Files of one side before it is the other's turn.
const TURN: usize = 100;
/// Names a directory that is not there, so that nothing outlives the daemon.
const NOWHERE: &str = "/nonexistent";

/// Choices of `polymux-bench death-cost`.
#[derive(Args, Clone, Debug)]
pub struct DeathArguments {
    /// Directory in which a volume is made, and how to print.
    #[command(flatten)]
    pub place: meta::Place,
    /// The program to measure.
    #[arg(long, default_value = "target/release/polymux")]
    pub polymux: PathBuf,
    /// Pairs.
    #[arg(long, default_value_t = 20)]
    pub pairs: usize,
    /// Files of each side of a pair.
    #[arg(long, default_value_t = 10_000)]
    pub files: usize,
    /// Bytes of a file.
    #[arg(long, default_value_t = 1000)]
    pub bytes: usize,
    /// Writes of a file, each of a part of it.
    #[arg(long, default_value_t = 1)]
    pub writes: usize,
    /// Gives both sides memory that outlives the daemon: shows how far from 1 the run is by itself.
    #[arg(long)]
    pub equal_sides: bool,
}

/// Wall-clock and processor time of one side of a pair.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    seconds: f64,
    /// Of the daemon.
    processor_us: f64,
}

/// One of the figures of a side, for a number of files.
type Figure = fn(&Turn, f64) -> f64;

/// Where outliving memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    With,
    Without,
}

/// Measures both sides.
///
/// # Errors
/// Whatever fails.
pub fn run(arguments: &DeathArguments) -> Result<()> {
    ensure!(arguments.pairs >= 6 && arguments.writes > 0, "an interval needs six pairs, and a file one write");
    let scratch = Scratch::new(&arguments.place.directory)?;
    let mut stands =
        [Stand::make(scratch.path(), "first", arguments)?, Stand::make(scratch.path(), "second", arguments)?];
    let mut report = Report::new("death-cost", arguments.place.form());
    report.add(machine::describe(scratch.path())?);
    let mut pairs = Vec::new();
    for pair in 0..arguments.pairs {
        let volumes = Mounted::both(&stands, if pair % 2 == 0 { Side::With } else { Side::Without })?;
        pairs.push(measure(&volumes, arguments.files, pair)?);
        for volume in volumes {
            volume.stop()?;
        }
        if pair % 2 == 1 {
            stands.reverse();
        }
    }
    report.add(table(arguments, &pairs));
    report.finish()
}

/// One pair: with memory, and without.
fn measure(volumes: &[Mounted<'_>; 2], files: usize, pair: usize) -> Result<[Turn; 2]> {
    let mut pair_of = [Turn::default(); 2];
    let in_turn = [pair % 2, 1 - pair % 2].map(|side| &volumes[side]);
    for volume in in_turn {
        volume.begin(pair)?;
    }
    for (turn, first) in (0..files).step_by(TURN).enumerate() {
        for side in [turn % 2, 1 - turn % 2] {
            let took = volumes[side].turn(pair, first..(first + TURN).min(files))?;
            pair_of[side].seconds += took.seconds;
            pair_of[side].processor_us += took.processor_us;
        }
    }
    for volume in in_turn {
        volume.end(pair)?;
    }
    Ok(pair_of)
}

fn table(arguments: &DeathArguments, pairs: &[[Turn; 2]]) -> Section {
    let title = format!(
        "Create, write {} bytes in {} and close, one thread, {} pairs of {} files",
        arguments.bytes,
        if arguments.writes == 1 { "one write".to_owned() } else { format!("{} writes", arguments.writes) },
        pairs.len(),
        arguments.files
    );
    let other = if arguments.equal_sides { "with, too" } else { "without" };
    let columns = ["figure", "with memory", other, "first to second", "95 % from", "to"];
    let mut section = Section::new(&title, &columns);
    let figures: [(&str, Figure); 2] =
        [("files/s", |turn, files| files / turn.seconds), ("daemon us/file", |turn, files| turn.processor_us / files)];
    let files = count(arguments.files);
    for (name, of) in figures {
        let [with, without] = [0, 1].map(|side| pairs.iter().map(|pair| of(&pair[side], files)).collect::<Vec<f64>>());
        let ratio = Interval::of_ratios_by_rank(&with, &without);
        section.row(vec![
            name.into(),
            Cell::Number(mean(&with), 2),
            Cell::Number(mean(&without), 2),
            Cell::Number(ratio.middle, 4),
            Cell::Number(ratio.low, 4),
            Cell::Number(ratio.high, 4),
        ]);
    }
    section
}

/// A volume.
struct Stand<'a> {
    arguments: &'a DeathArguments,
    home: PathBuf,
    content: Vec<u8>,
}

impl<'a> Stand<'a> {
    fn make(above: &Path, name: &str, arguments: &'a DeathArguments) -> Result<Self> {
        let home = above.join(name);
        for directory in ["", "config", "run", "mount", "tier", "second"] {
            fs::create_dir(home.join(directory))?;
        }
        let stand = Self { arguments, home, content: vec![7; arguments.bytes] };
        let mut create = stand.command(Side::With);
        create.args(["create", NAME]);
        for tier in ["tier", "second"] {
            create.arg("--tier").arg(format!("{tier}={}", stand.home.join(tier).display()));
        }
        succeed(create)?;
        Ok(stand)
    }

    fn command(&self, side: Side) -> Command {
        let mut command = Command::new(&self.arguments.polymux);
        command.env("POLYMUX_CONFIG_DIR", self.home.join("config")).env("POLYMUX_RUNTIME_DIR", self.home.join("run"));
        if side == Side::With || self.arguments.equal_sides {
            command.env_remove("POLYMUX_MEMORY_DIR");
        } else {
            command.env("POLYMUX_MEMORY_DIR", NOWHERE);
        }
        command
    }

    fn mount_point(&self) -> PathBuf {
        self.home.join("mount")
    }
}

/// A volume that is mounted; unmounted when it is dropped.
struct Mounted<'a> {
    stand: &'a Stand<'a>,
    side: Side,
    daemon: Option<Child>,
}

impl<'a> Mounted<'a> {
    fn new(stand: &'a Stand<'a>, side: Side) -> Result<Self> {
        let mut mount = stand.command(side);
        // Both sides do their I/O in the same way: without memory that outlives the daemon no writes are collected by default.
        mount.args(["mount", "--foreground", "-o", "io=passthrough", NAME]).arg(stand.mount_point());
        mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(stand.home.join("log"))?);
        let daemon = mount.spawn().with_context(|| format!("{}", stand.arguments.polymux.display()))?;
        let mut mounted = Self { stand, side, daemon: Some(daemon) };
        mounted.wait()?;
        Ok(mounted)
    }

    /// With memory and without, mounted in this order.
    fn both(stands: &'a [Stand<'a>; 2], first: Side) -> Result<[Self; 2]> {
        if first == Side::With {
            return Ok([Self::new(&stands[0], Side::With)?, Self::new(&stands[1], Side::Without)?]);
        }
        let without = Self::new(&stands[1], Side::Without)?;
        Ok([Self::new(&stands[0], Side::With)?, without])
    }

    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mount_point = self.stand.mount_point();
        let is_mounted = || MountTable::read().is_ok_and(|table| table.at(&mount_point).is_some());
        while !is_mounted() || rustix::fs::statvfs(&mount_point).is_err() {
            let said = || fs::read_to_string(self.stand.home.join("log")).unwrap_or_default();
            let has_ended = self.daemon.as_mut().is_none_or(|daemon| !matches!(daemon.try_wait(), Ok(None)));
            ensure!(!has_ended && begun.elapsed() < MOUNT_DEADLINE, "no mount: {}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn directory(&self, pair: usize) -> PathBuf {
        self.stand.mount_point().join(format!("files-{pair}"))
    }

    /// Makes the directory and one turn of files, so that work done at the first use is not measured.
    fn begin(&self, pair: usize) -> Result<()> {
        fs::create_dir(self.directory(pair))?;
        self.turn(pair, self.stand.arguments.files..self.stand.arguments.files + TURN).map(drop)
    }

    fn end(&self, pair: usize) -> Result<()> {
        Ok(fs::remove_dir_all(self.directory(pair))?)
    }

    fn turn(&self, pair: usize, files: Range<usize>) -> Result<Turn> {
        let directory = self.directory(pair);
        let process = self.daemon.as_ref().context("it is mounted")?.id();
        let (content, writes) = (&self.stand.content, self.stand.arguments.writes);
        let (begun, used) = (Instant::now(), processor_us(process)?);
        for number in files {
            let mut file = File::create(directory.join(number.to_string()))?;
            for part in content.chunks(content.len().div_ceil(writes).max(1)) {
                file.write_all(part)?;
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Turn { seconds, processor_us: processor_us(process)? - used })
    }

    fn stop(mut self) -> Result<()> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let mut unmount = self.stand.command(self.side);
        unmount.arg("umount").arg(self.stand.mount_point());
        let stopped = succeed(unmount);
        if stopped.is_err() {
            let _gone = daemon.kill();
        }
        daemon.wait()?;
        stopped
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
    }
}

fn succeed(mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Time that all threads of a process have had on a processor.
fn processor_us(process: u32) -> Result<f64> {
    let mut sum = 0.0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("schedstat says nothing")?;
        sum += first.parse::<f64>()?;
    }
    Ok(sum / 1000.0)
}
