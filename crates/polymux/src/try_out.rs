//! `polymux try`: a volume of two temporary tiers at work on real files, every byte of which is checked.
//!
//! Invariants:
//! * Nothing of the user's is touched: tiers, configuration, socket and mount point lie in one new directory.
//! * Nothing is claimed that was not checked in this run; the first check that fails ends the trial with an error.

mod selection;
mod stage;
mod transfer;

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use polymux_types::ByteSize;
use polymux_types::limits::BLOCK_SIZE;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::{ExtentDetail, OutputFormat, TryArguments, output_format};
use crate::output;
use crate::protocol::WhereReport;
use crate::where_is;
use selection::{EntryKind, Selection};
use stage::Stage;
use transfer::Transfer;

/// Most bytes that are copied.
const COPY_SIZE_MAX: u64 = 512 * 1024 * 1024;

/// Most bytes that the fast tier may hold.
const FAST_CAPACITY_MAX: u64 = 64 * 1024 * 1024;

/// Files below this size are not asked for when one on both tiers is looked for.
const SPLIT_SIZE_MIN: u64 = 64 * 1024;

/// One step as it went.
#[derive(Debug, Serialize)]
struct Step {
    what: String,
    seconds: f64,
    proves: &'static str,
}

/// The trial so far.
struct Narrator {
    format: OutputFormat,
    steps: Vec<Step>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct TrialReport<'a> {
    source: &'a Path,
    directory: &'a Path,
    files: usize,
    bytes: u64,
    fast_capacity: u64,
    steps: &'a [Step],
    file_on_both_tiers: &'a WhereReport,
    kept: bool,
}

impl Narrator {
    fn say(&self, text: &str) -> Result<()> {
        if self.format == OutputFormat::Text { output::line(text) } else { Ok(()) }
    }

    /// Runs one step and tells how long it took.
    fn step<T>(&mut self, proves: &'static str, run: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        let start = Instant::now();
        let (value, what) = run()?;
        let seconds = start.elapsed().as_secs_f64();
        self.say(&format!("{:2}. {what} ({seconds:.2} s)\n      {proves}", self.steps.len() + 1))?;
        self.steps.push(Step { what, seconds, proves });
        Ok(value)
    }
}

/// Runs the trial.
pub fn run(arguments: &TryArguments) -> Result<()> {
    let source = arguments.source.canonicalize().with_context(|| arguments.source.display().to_string())?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let mut narrator = Narrator { format: output_format(arguments.json), steps: Vec::new() };
    let mut stage = Stage::set()?;
    let bytes_max = COPY_SIZE_MAX.min(free_bytes(stage.directory())? / 4);
    let mut selection = Selection::of(&source, stage.directory(), bytes_max)?;
    let fast_capacity = (selection.bytes / 2).min(FAST_CAPACITY_MAX) / BLOCK_SIZE * BLOCK_SIZE;
    if fast_capacity < SPLIT_SIZE_MIN {
        bail!("{} has only {}: too little to fill a tier", source.display(), ByteSize(selection.bytes));
    }
    selection.order_for(fast_capacity);
    introduce(&narrator, &source, &stage, &selection)?;
    let split = act(&mut narrator, &mut stage, &source, &selection, fast_capacity, &interrupted)?;
    let directory = stage.directory().to_owned();
    if arguments.keep {
        let commands = stage.keep();
        narrator.say(&format!("The volume stays mounted. To play with it:\n  {}", commands.join("\n  ")))?;
    } else {
        finish(&mut narrator, stage)?;
    }
    let total: f64 = narrator.steps.iter().map(|step| step.seconds).sum();
    narrator.say(&format!("All checks passed in {total:.1} s."))?;
    if arguments.json {
        let report = TrialReport {
            source: &source,
            directory: &directory,
            files: selection.files,
            bytes: selection.bytes,
            fast_capacity,
            steps: &narrator.steps,
            file_on_both_tiers: &split,
            kept: arguments.keep,
        };
        output::json(&report)?;
    }
    Ok(())
}

fn introduce(narrator: &Narrator, source: &Path, stage: &Stage, selection: &Selection) -> Result<()> {
    narrator.say(&format!("Polymux on trial in {}", stage.directory().display()))?;
    if stage.is_volatile() {
        narrator.say(
            "Only a place in memory was found for the tiers: this shows how it works, not that data is durable.",
        )?;
    }
    let limited = if selection.limited { ", as much of it as a trial takes" } else { "" };
    narrator.say(&format!(
        "Source: {}{limited}: {} files, {} ({} entries left out: special, or not readable)",
        source.display(),
        selection.files,
        ByteSize(selection.bytes),
        selection.skipped
    ))
}

/// The steps from creation to the second comparison. Returns where a file is that lies on both tiers.
fn act(
    narrator: &mut Narrator,
    stage: &mut Stage,
    source: &Path,
    selection: &Selection,
    fast_capacity: u64,
    interrupted: &AtomicBool,
) -> Result<WhereReport> {
    narrator.step("two directories have become the tiers of one volume", || {
        let command = stage.create(fast_capacity)?;
        Ok(((), format!("Created: {command}")))
    })?;
    narrator.step("the volume is an ordinary file system to every program", || {
        stage.mount()?;
        Ok(((), format!("Mounted on {}", stage.mount_point().display())))
    })?;
    let target = stage.mount_point();
    let mut transfer = Transfer { source, target: &target, selection, appended: None, interrupted };
    narrator.step(
        "the copy is larger than the fast tier, and no write failed: blocks spilled to the slow one",
        || {
            let start = Instant::now();
            transfer.copy()?;
            let what = format!(
                "Copied {} files, {} over a fast tier of {} at {}",
                selection.files,
                ByteSize(selection.bytes),
                ByteSize(fast_capacity),
                rate(selection.bytes, start.elapsed())
            );
            Ok(((), what))
        },
    )?;
    let (file, split) = narrator.step("one file, two tiers: placement is by block, not by file", || {
        let (file, split) = find_or_make_split(stage, &mut transfer)?;
        Ok(((file.clone(), split), format!("Found a file on both tiers: {}", file.display())))
    })?;
    narrator.say(&where_is::render(&target.join(&file), &split, ExtentDetail::Shown))?;
    verify(narrator, &transfer, "what is read is what was written (some of it from the page cache)")?;
    narrator.step("everything was written back, and the daemon ended well", || {
        stage.unmount()?;
        Ok(((), "Unmounted".to_owned()))
    })?;
    narrator.step("the volume lives on its tiers, not in the daemon", || {
        stage.mount()?;
        Ok(((), "Mounted again".to_owned()))
    })?;
    verify(
        narrator,
        &transfer,
        "every byte, name, link, mode and time survived the end of one daemon and the start of another",
    )?;
    Ok(split)
}

fn verify(narrator: &mut Narrator, transfer: &Transfer<'_>, proves: &'static str) -> Result<()> {
    narrator.step(proves, || {
        let start = Instant::now();
        let bytes = transfer.verify()?;
        Ok(((), format!("Compared {} with the source at {}", ByteSize(bytes), rate(bytes, start.elapsed()))))
    })
}

fn finish(narrator: &mut Narrator, mut stage: Stage) -> Result<()> {
    narrator.step("nothing is left behind", || {
        stage.unmount()?;
        stage.clear()?;
        Ok(((), "Unmounted and cleaned up".to_owned()))
    })
}

/// A file of the copy whose blocks lie on both tiers. Where there is none, a file on the fast tier gets more bytes of
/// the source appended: the fast tier is full, so that they go to the slow one.
fn find_or_make_split(stage: &Stage, transfer: &mut Transfer<'_>) -> Result<(PathBuf, WhereReport)> {
    let mut on_fast: Option<PathBuf> = None;
    let mut largest: Option<(u64, PathBuf)> = None;
    for entry in &transfer.selection.entries {
        let EntryKind::File(size) = entry.kind else { continue };
        if largest.as_ref().is_none_or(|(bytes, _)| size > *bytes) {
            largest = Some((size, entry.path.clone()));
        }
        if size < SPLIT_SIZE_MIN {
            continue;
        }
        let report = where_is::locate(stage.registry(), &transfer.target.join(&entry.path))?;
        if is_split(&report) {
            return Ok((entry.path.clone(), report));
        }
        if report.home.as_deref() == Some("fast") {
            on_fast.get_or_insert_with(|| entry.path.clone());
        }
    }
    let (Some(head), Some((_, tail))) = (on_fast, largest) else {
        bail!("no file of the copy lies on both tiers, and none on the fast one");
    };
    let mut target = OpenOptions::new().append(true).open(transfer.target.join(&head))?;
    io::copy(&mut std::fs::File::open(transfer.source.join(&tail))?, &mut target)?;
    drop(target);
    let report = where_is::locate(stage.registry(), &transfer.target.join(&head))?;
    transfer.appended = Some((head.clone(), tail));
    if !is_split(&report) {
        bail!("{} was extended beyond the full fast tier, and still lies on one tier", head.display());
    }
    Ok((head, report))
}

/// Whether extents of a file lie on two tiers.
fn is_split(report: &WhereReport) -> bool {
    let mut tiers = report.extents.iter().filter_map(|extent| extent.tier.as_ref());
    tiers.next().is_some_and(|first| tiers.any(|other| other != first))
}

fn free_bytes(path: &Path) -> Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

fn rate(bytes: u64, time: Duration) -> String {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    format!("{}/s", ByteSize(bytes.saturating_mul(1000) / milliseconds))
}
