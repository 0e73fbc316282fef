//! Random operations on the file system and on a reference, compared step by step.
//!
//! Invariants: the same seed gives the same run. `POLYMUX_MODEL_CASES` sets the number of sequences,
//! `POLYMUX_MODEL_SEED` another seed. A failure prints the shortest sequence that shows it; it becomes a named test.

mod common;
#[path = "model/comparison.rs"]
mod comparison;
#[path = "model/harness.rs"]
mod harness;
#[path = "model/harness_data.rs"]
mod harness_data;
#[path = "model/harness_moves.rs"]
mod harness_moves;
#[path = "model/operation.rs"]
mod operation;
#[path = "model/reference.rs"]
mod reference;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Hook, HookedTier, Verdict, Volume};
use polymux_tier::{ObjectRef, Tier};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use operation::operation;

/// The fast tiers are so small that most files spill; the last one never fills.
const CAPACITIES: [u64; 3] = [64 << 10, 256 << 10, 256 << 20];

fn from_environment(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
        Err(_) => default,
    }
}

fn runner(cases: u64, shrink: bool) -> TestRunner {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&from_environment("POLYMUX_MODEL_SEED", 1).to_le_bytes());
    let config = Config {
        cases: u32::try_from(cases).expect("the number of cases fits"),
        failure_persistence: None,
        max_shrink_iters: if shrink { 2000 } else { 0 },
        ..Config::default()
    };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

#[test]
fn random_operations_agree_with_the_reference() {
    let cases = from_environment("POLYMUX_MODEL_CASES", 256);
    let outcome = runner(cases, true).run(&vec(operation(), 1..80), |operations| {
        harness::run(Volume::new(&CAPACITIES), &operations).map_err(TestCaseError::fail)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// One tier only: nothing is ever split, so that a failure here is one of the namespace or of a single object.
#[test]
fn random_operations_agree_with_the_reference_on_one_tier() {
    let cases = from_environment("POLYMUX_MODEL_CASES", 256).div_ceil(4);
    let outcome = runner(cases, true).run(&vec(operation(), 1..80), |operations| {
        harness::run(Volume::new(&[256 << 20]), &operations).map_err(TestCaseError::fail)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Every file has an object from its first byte on: errors with objects of a few bytes, which inline data hides, show here.
#[test]
fn random_operations_agree_with_the_reference_without_inline_data() {
    let cases = from_environment("POLYMUX_MODEL_CASES", 256).div_ceil(4);
    let outcome = runner(cases, true).run(&vec(operation(), 1..80), |operations| {
        let mut volume = Volume::new(&CAPACITIES);
        volume.options.inline_size_max = 0;
        volume.remount();
        harness::run(volume, &operations).map_err(TestCaseError::fail)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Files grow over all tiers at once, in ranges so short that most do.
#[test]
fn random_operations_agree_with_the_reference_on_spread_files() {
    let cases = from_environment("POLYMUX_MODEL_CASES", 256).div_ceil(4);
    let outcome = runner(cases, true).run(&vec(operation(), 1..80), |operations| {
        let mut volume = Volume::new(&[256 << 20, 256 << 20]);
        volume.options.inline_size_max = 0;
        volume.options.spread_range_bytes = 4096;
        volume.policy = Some(polymux_fs::PolicyKind::Spread);
        volume.remount();
        harness::run(volume, &operations).map_err(TestCaseError::fail)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// The planted bug: each 50th write says it was carried out and was not.
struct LosesWrites {
    writes: Arc<AtomicU64>,
}

impl Hook for LosesWrites {
    fn before_write(&self, _object: ObjectRef, _offset: u64, _length: usize) -> Verdict {
        if self.writes.fetch_add(1, Ordering::Relaxed) % 50 == 49 { Verdict::Pretend } else { Verdict::Pass }
    }
}

#[test]
fn a_tier_that_loses_one_write_in_fifty_is_caught() {
    let writes = Arc::new(AtomicU64::new(0));
    let outcome = runner(200, false).run(&vec(operation(), 40..80), |operations| {
        let volume = Volume::wrapping(&CAPACITIES, |_, tier| -> Arc<dyn Tier> {
            Arc::new(HookedTier::new(tier, Arc::new(LosesWrites { writes: Arc::clone(&writes) })))
        });
        harness::run(volume, &operations).map_err(TestCaseError::fail)
    });
    assert!(matches!(outcome, Err(TestError::Fail(..))), "the planted bug was not found: {outcome:?}");
    assert!(writes.load(Ordering::Relaxed) >= 50, "the planted bug never had a chance");
}
