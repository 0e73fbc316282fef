//! `polymux try`: a volume of three temporary tiers at work, on the user's files and on one of its own.
//!
//! Invariants:
//! * Nothing of the user's is touched: tiers, configuration, socket and mount point lie in one new directory.
//! * Nothing is claimed that was not checked in this run; the first check that fails ends the trial with an error.
//! * The demonstration needs nothing of the source: spilling, moving and draining are shown with a file that the trial makes.
//! * No step relies on how fast another one is: states are waited for, with patience that a machine under load needs.

mod acts;
mod own_file;
mod selection;
mod stage;
mod transfer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use polymux_types::{ByteSize, FileSystemSpace};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::{OutputFormat, TryArguments, output_format};
use crate::output;
use crate::protocol::WhereReport;
use acts::Play;
use selection::Selection;
use stage::Stage;

/// Most bytes that are copied.
const COPY_SIZE_MAX: u64 = 256 * 1024 * 1024;

/// Free bytes without which no trial begins: for its own file, on two tiers while it moves, and the metadata.
const FREE_BYTES_MIN: u64 = 256 * 1024 * 1024;

/// One step as it went.
#[derive(Debug, Serialize)]
struct Step {
    what: String,
    seconds: f64,
}

/// The trial so far.
struct Narrator {
    format: OutputFormat,
    steps: Vec<Step>,
}

/// The `--json` output.
#[derive(Serialize)]
struct TrialReport<'a> {
    source: &'a Path,
    directory: &'a Path,
    files: usize,
    bytes: u64,
    left_out: usize,
    fast_capacity: u64,
    steps: &'a [Step],
    /// Where the trial's own file was when it lay on two tiers.
    own_file: &'a WhereReport,
    kept: bool,
}

impl Narrator {
    fn say(&self, text: &str) -> Result<()> {
        if self.format == OutputFormat::Text { output::line(text) } else { Ok(()) }
    }

    /// Runs one step and reports its result and duration.
    fn step<T>(&mut self, run: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        let start = Instant::now();
        let (value, what) = run()?;
        let seconds = start.elapsed().as_secs_f64();
        self.say(&format!("{:2}. {what} ({seconds:.1} s)", self.steps.len() + 1))?;
        self.steps.push(Step { what, seconds });
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
    let free = free_bytes(stage.directory())?;
    if free < FREE_BYTES_MIN {
        bail!(
            "{} has {} free, and a trial takes {}: set TMPDIR to a place with more",
            stage.directory().display(),
            ByteSize(free),
            ByteSize(FREE_BYTES_MIN)
        );
    }
    let selection = Selection::of(&source, stage.directory(), COPY_SIZE_MAX.min((free - FREE_BYTES_MIN) / 4))?;
    let play = Play { source: &source, selection: &selection, interrupted: &interrupted };
    let outcome = play.run(&mut narrator, &mut stage)?;
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
            files: outcome.compared.files,
            bytes: outcome.compared.bytes,
            left_out: outcome.compared.left_out,
            fast_capacity: acts::FAST_CAPACITY,
            steps: &narrator.steps,
            own_file: &outcome.own_file,
            kept: arguments.keep,
        };
        output::json(&report)?;
    }
    Ok(())
}

fn finish(narrator: &mut Narrator, mut stage: Stage) -> Result<()> {
    narrator.step(|| {
        acts::unmount(&mut stage)?;
        let errors = stage.last_error();
        stage.clear()?;
        match errors {
            Some(words) => bail!("everything was as it should be, but the daemon logged an error: {words}"),
            None => Ok(((), "Unmounted; nothing is left behind".to_owned())),
        }
    })
}

fn free_bytes(path: &Path) -> Result<u64> {
    Ok(FileSystemSpace::from(&rustix::fs::statvfs(path)?).available)
}
