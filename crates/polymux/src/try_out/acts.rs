//! The steps of a trial, in order.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use polymux_types::ByteSize;

use super::Narrator;
use super::own_file::{OwnFile, check_interrupted};
use super::selection::Selection;
use super::stage::{Death, Stage, VOLUME_NAME};
use super::transfer::{Tally, Transfer};
use crate::file_map::{self, FileMap};
use crate::output;
use crate::protocol::{DrainReport, ExplainReport, WhereReport};

/// Bytes that the fast tier may hold.
pub const FAST_CAPACITY: u64 = 32 << 20;

/// Size of the trial's own file before it is extended: more than the fast tier holds.
const OWN_FILE_SIZE: u64 = 48 << 20;

/// By how much it is extended at the end.
const EXTENSION_SIZE: u64 = 4 << 20;

/// The part of it that goes to the fast tier, as a user would type it.
const MOVED_RANGE: &str = "16MiB-24MiB";

/// Name of that file.
const OWN_FILE_NAME: &str = "made by polymux try";

/// Characters of a picture.
const PICTURE_COLUMNS: u64 = 48;

/// How long a state may take to come about.
const PATIENCE: Duration = Duration::from_secs(180);

/// Time between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// One trial.
pub struct Play<'a> {
    /// Directory whose files are copied.
    pub source: &'a Path,
    /// Which of them.
    pub selection: &'a Selection,
    /// Set when the user wants to stop.
    pub interrupted: &'a AtomicBool,
}

/// Results of a trial.
pub struct Outcome {
    /// Result of the comparison with the source at the end.
    pub compared: Tally,
    /// Where the trial's own file was while it lay on two tiers.
    pub own_file: WhereReport,
}

/// Retries `attempt` until it succeeds, the time limit passes, or the user interrupts it.
pub fn until<T>(interrupted: &AtomicBool, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > PATIENCE => return Err(error),
            Err(_) => check_interrupted(interrupted)?,
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Unmounts; another program may look at the volume just now, an indexer for instance, and is waited for.
pub fn unmount(stage: &mut Stage) -> Result<()> {
    until(&AtomicBool::new(false), || match stage.unmount() {
        Err(error) if stage.is_mounted() => Err(error),
        ended => Ok(ended),
    })?
}

impl Play<'_> {
    /// All of it up to the comparison at the end; the volume is mounted then.
    pub fn run(&self, narrator: &mut Narrator, stage: &mut Stage) -> Result<Outcome> {
        self.introduce(narrator, stage)?;
        let target = stage.mount_point();
        let mut own_file = OwnFile::new(target.join(OWN_FILE_NAME));
        self.open(narrator, stage, &mut own_file)?;
        let report = self.move_it(narrator, stage, &own_file)?;
        let mut transfer = Transfer::new(self.source, &target, self.selection, self.interrupted);
        self.copy(narrator, &mut transfer)?;
        self.drain(narrator, stage, &own_file)?;
        self.kill(narrator, stage, &mut own_file)?;
        let compared = narrator.step(|| {
            let own = own_file.verify(self.interrupted)?;
            let tally = transfer.verify()?;
            let changed = if tally.left_out > 0 {
                format!("; {} that changed meanwhile were left out", tally.left_out)
            } else {
                String::new()
            };
            let what = format!(
                "Compared every byte of {}, {}: all as it was written{changed}",
                output::files(tally.files as u64 + 1),
                ByteSize(tally.bytes + own)
            );
            Ok((tally, what))
        })?;
        Ok(Outcome { compared, own_file: report })
    }

    fn introduce(&self, narrator: &Narrator, stage: &Stage) -> Result<()> {
        let place = if stage.is_volatile() { " (in memory only: nothing here is durable)" } else { "" };
        narrator.say(&format!("Polymux on trial in {}{place}", stage.directory().display()))
    }

    fn open(&self, narrator: &mut Narrator, stage: &mut Stage, own_file: &mut OwnFile) -> Result<()> {
        narrator.step(|| {
            stage.create(FAST_CAPACITY)?;
            stage.mount()?;
            let what = format!(
                "Three directories are one file system: tiers fast ({}), slow and archive",
                ByteSize(FAST_CAPACITY)
            );
            Ok(((), what))
        })?;
        narrator.step(|| {
            own_file.extend(OWN_FILE_SIZE, self.interrupted)?;
            let what = format!("Wrote one file of {}, more than fast holds: no write failed", ByteSize(own_file.size));
            Ok(((), what))
        })?;
        draw(narrator, &locate(stage, own_file)?)
    }

    /// Moves the file to the slower tier, and a part of it back, while the volume is in use.
    fn move_it(&self, narrator: &mut Narrator, stage: &Stage, own_file: &OwnFile) -> Result<WhereReport> {
        let report = narrator.step(|| {
            let path = own_file.path.as_os_str();
            let report = until(self.interrupted, || {
                stage.command(["migrate".as_ref(), path, "--to".as_ref(), "slow".as_ref(), "--wait".as_ref()])?;
                let to_fast = ["--to", "fast", "--range", MOVED_RANGE, "--wait"].map(AsRef::as_ref);
                stage.command(["migrate".as_ref(), path].into_iter().chain(to_fast))?;
                let report = locate(stage, own_file)?;
                if bytes_on(&report, "fast") == 0 || bytes_on(&report, "slow") == 0 {
                    bail!("{} does not lie on two tiers after the move", own_file.path.display());
                }
                Ok(report)
            })?;
            let what = format!("`polymux migrate`: all of it to slow, {MOVED_RANGE} back to fast");
            Ok((report, what))
        })?;
        draw(narrator, &report)?;
        let explained = stage.command(["explain".as_ref(), own_file.path.as_os_str(), "--json".as_ref()])?;
        let explained: ExplainReport = serde_json::from_str(&explained).context("`polymux explain` said")?;
        let on_fast = explained.ranges.iter().find(|range| range.tier == "fast");
        let range = on_fast.or(explained.ranges.first()).ok_or_else(|| anyhow!("`polymux explain` knows no range"))?;
        let place = format!("{} at {} is on {}", ByteSize(range.length), ByteSize(range.offset), range.tier);
        let wish = range.wanted_on.as_ref().map_or("stays".to_owned(), |tier| format!("is to go to {tier}"));
        narrator.say(&format!("      explain: {place} and {wish}: {}", range.why))?;
        Ok(report)
    }

    fn copy(&self, narrator: &mut Narrator, transfer: &mut Transfer<'_>) -> Result<()> {
        narrator.step(|| {
            let tally = transfer.copy()?;
            let source = self.source.display();
            let left_out = match tally.left_out + self.selection.skipped {
                0 => String::new(),
                count => format!("; {count} that cannot be read or are special were left out"),
            };
            let what = if tally.files == 0 {
                format!("{source} has no file to copy: the trial goes on with its own{left_out}")
            } else {
                let limited = if self.selection.limited { ", as much as a trial takes" } else { "" };
                let files = output::files(tally.files as u64);
                format!("Copied {files}, {} from {source}{limited}{left_out}", ByteSize(tally.bytes))
            };
            Ok(((), what))
        })
    }

    fn drain(&self, narrator: &mut Narrator, stage: &Stage, own_file: &OwnFile) -> Result<()> {
        narrator.step(|| {
            until(self.interrupted, || {
                let drained = stage.command(["tier", "drain", VOLUME_NAME, "slow", "--wait", "--json"])?;
                let drained: DrainReport = serde_json::from_str(&drained).context("`polymux tier drain` said")?;
                if drained.is_empty { Ok(()) } else { bail!("tier slow is not empty") }
            })?;
            until(self.interrupted, || stage.command(["tier", "remove", VOLUME_NAME, "slow"]))?;
            Ok(((), "`polymux tier drain` emptied slow, `polymux tier remove` took it out".to_owned()))
        })?;
        let report = locate(stage, own_file)?;
        if bytes_on(&report, "slow") > 0 {
            bail!("{} is still on a tier that was removed", own_file.path.display());
        }
        draw(narrator, &report)
    }

    /// Kills the daemon and goes on.
    fn kill(&self, narrator: &mut Narrator, stage: &mut Stage, own_file: &mut OwnFile) -> Result<()> {
        narrator.step(|| {
            // Data that has to survive is synced: pages of the kernel, and with one file the log of everything before.
            rustix::fs::syncfs(File::open(stage.mount_point())?)?;
            let open = File::open(&own_file.path)?;
            open.sync_all()?;
            let told = match stage.kill()? {
                Death::OfDaemon => {
                    let mut byte = [0];
                    open.read_exact_at(&mut byte, 0).context("an open file, after the death of the daemon")?;
                    "Killed the daemon with SIGKILL: another one took its place, and an open file goes on"
                }
                Death::OfMount => {
                    drop(open);
                    stage.mount()?;
                    "Killed the daemon with SIGKILL and mounted again"
                }
            };
            Ok(((), told.to_owned()))
        })?;
        narrator.step(|| {
            own_file.extend(EXTENSION_SIZE, self.interrupted)?;
            Ok(((), format!("Wrote another {} to the file: the volume goes on", ByteSize(EXTENSION_SIZE))))
        })
    }
}

fn locate(stage: &Stage, own_file: &OwnFile) -> Result<WhereReport> {
    let said = stage.command(["where".as_ref(), own_file.path.as_os_str(), "--json".as_ref()])?;
    serde_json::from_str(&said).context("`polymux where` said")
}

fn bytes_on(report: &WhereReport, tier: &str) -> u64 {
    report.tiers.iter().filter(|share| share.tier == tier).map(|share| share.bytes_mapped).sum()
}

fn draw(narrator: &Narrator, report: &WhereReport) -> Result<()> {
    narrator.say(&format!("      where --map: {}", FileMap::row(report, PICTURE_COLUMNS, file_map::colours())))
}
