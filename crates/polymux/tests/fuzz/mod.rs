//! A fuzzer for on-disk formats: mutations of a corpus, and rules that hold for every result.
//!
//! Invariants:
//! * For every input, a reader returns, and allocates no more than a constant times the length of the input. An accepted input
//!   is written and read again as the same thing.
//! * A round is decided by its seed, so a failure can be repeated; the input that failed is kept in a file.
//! * Inputs that are accepted join the corpus for the rest of the run, so that valid ones get further and further away from
//!   the samples.

mod mutation;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polymux_types::on_disk_format::{Acceptance, OnDiskFormat};

pub use mutation::Random;
use mutation::mutate;

/// Bytes that reading and writing may allocate in all for each byte of the input, and beside that.
const ALLOCATED_PER_BYTE: u64 = 256;
const ALLOCATED_BESIDE: u64 = 64 * 1024;

/// Inputs that are kept to be mutated.
const CORPUS_MAX: usize = 512;

/// Treatment of an input after it was mutated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nothing: most inputs end at a checksum.
    RawBytes,
    /// Checksums are made to fit, so that the fields behind them are read.
    ChecksumsRepaired,
}

/// How long a run takes.
#[derive(Clone, Copy, Debug)]
pub enum Effort {
    /// So many inputs.
    Inputs(u64),
    /// As many as there is time for.
    Time(Duration),
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Inputs tried.
    pub inputs: u64,
    /// Inputs that were accepted.
    pub accepted: u64,
    /// The first input that broke a rule, and how.
    pub failure: Option<(Vec<u8>, String)>,
}

/// Tries inputs made of the samples of a format and of the files in a folder of the corpus.
pub fn run(format: &OnDiskFormat, target: Target, effort: Effort, seed: u64, corpus: &Path) -> Outcome {
    let mut random = Random(seed);
    let mut inputs = (format.samples)();
    inputs.extend(read_corpus(&corpus.join(format.name)));
    let mut outcome = Outcome::default();
    // Unmutated first: an input that failed once must never fail again.
    let originals = inputs.clone();
    for input in originals {
        if try_input(format, target, input, &mut outcome).is_none() {
            return outcome;
        }
    }
    let begun = Instant::now();
    let unfinished = |tried: u64| match effort {
        Effort::Inputs(count) => tried < count,
        Effort::Time(time) => begun.elapsed() < time,
    };
    while unfinished(outcome.inputs) {
        let mut input = inputs[random.below(inputs.len())].clone();
        let other = inputs[random.below(inputs.len())].clone();
        mutate(&mut input, &other, &mut random);
        match try_input(format, target, input, &mut outcome) {
            None => return outcome,
            Some((Acceptance::Refused, _)) => {}
            Some((Acceptance::Accepted, input)) if inputs.len() < CORPUS_MAX => inputs.push(input),
            Some((Acceptance::Accepted, input)) => {
                let replaced = random.below(inputs.len());
                inputs[replaced] = input;
            }
        }
    }
    outcome
}

/// Tries one input. Returns its outcome and the input as it was tried; `None` where it broke a rule.
fn try_input(
    format: &OnDiskFormat,
    target: Target,
    mut input: Vec<u8>,
    outcome: &mut Outcome,
) -> Option<(Acceptance, Vec<u8>)> {
    if target == Target::ChecksumsRepaired {
        (format.repair)(&mut input);
    }
    outcome.inputs += 1;
    let mut checked = Ok(Ok(Acceptance::Refused));
    let allocated = allocation_counter::measure(|| {
        checked = catch_unwind(AssertUnwindSafe(|| format.check(&input)));
    });
    let limit = ALLOCATED_BESIDE + ALLOCATED_PER_BYTE * input.len() as u64;
    let failure = match checked {
        Err(_) => "the reader panicked".to_owned(),
        Ok(Err(reason)) => reason.to_owned(),
        Ok(Ok(_)) if allocated.bytes_total > limit => {
            format!("it allocated {} bytes for an input of {}", allocated.bytes_total, input.len())
        }
        Ok(Ok(acceptance)) => {
            outcome.accepted += u64::from(acceptance == Acceptance::Accepted);
            return Some((acceptance, input));
        }
    };
    outcome.failure = Some((input, failure));
    None
}

/// The files of a folder of the corpus, in the order of their names.
fn read_corpus(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus can be read")).collect()
}
