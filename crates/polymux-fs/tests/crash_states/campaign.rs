//! Many workloads on two threads, and one state by its name.
//!
//! Invariants: a violation is reported with a name, `store/suite/index@point.choice`, with `+point.choice` where the recovery was crashed too, and
//! with `!` where the second copy took over; the variable `POLYMUX_CRASH_STATE` set to that name looks at that state alone.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use polymux_sim::crash_states::StateHash;

use super::explore::{Effort, Place, TRACE, Tally, Violation, explore};
use super::store_device::Backing;
use super::suites::Suite;
use super::workload::Recorded;

/// Threads that look at workloads.
const THREADS: usize = 2;

/// Workloads of a thread after which it says how far it is.
const PROGRESS_EVERY: usize = 500;

/// Violations after which a campaign ends.
const VIOLATIONS_MAX: usize = 6;

/// Workloads of one suite.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub suite: Suite,
    /// Every so many-th workload.
    pub stride: usize,
    pub count: usize,
}

/// The result of a campaign.
#[derive(Default)]
pub struct Report {
    pub workloads: usize,
    pub states: HashSet<StateHash>,
    pub judged: u64,
    pub crashed_again: u64,
    pub copies: u64,
    pub seconds: f64,
    pub violations: Vec<String>,
}

impl Report {
    pub fn print(&self, name: &str) {
        println!(
            "{name}: {} workloads, {} distinct states, {} judgements, {} states of crashed recoveries, {} of the second copy, {} violations, {:.1} s",
            self.workloads,
            self.states.len(),
            self.judged,
            self.crashed_again,
            self.copies,
            self.violations.len(),
            self.seconds
        );
    }
}

/// Name of a state.
fn name_of(backing: Backing, suite: Suite, index: usize, place: &Place) -> String {
    let again = place.again.map_or(String::new(), |(point, choice)| format!("+{point}.{choice}"));
    let copy = if place.is_copy { "!" } else { "" };
    format!("{}/{}/{index}@{}.{}{again}{copy}", backing.name(), suite.name(), place.point, place.choice)
}

fn pair(text: &str) -> Option<(usize, usize)> {
    let (point, choice) = text.split_once('.')?;
    Some((point.parse().ok()?, choice.parse().ok()?))
}

/// The state of a name, in a campaign with this store; `None` where the name is not of such a campaign.
pub fn parse(backing: Backing, name: &str) -> Option<(Suite, usize, Place)> {
    let (workload, place) = name.split_once('@')?;
    let (suite, index) = workload.strip_prefix(backing.name())?.strip_prefix('/')?.split_once('/')?;
    let (place, is_copy) = place.strip_suffix('!').map_or((place, false), |place| (place, true));
    let (first, again) = place.split_once('+').map_or((place, None), |(first, again)| (first, Some(again)));
    let (point, choice) = pair(first)?;
    let again = match again {
        Some(again) => Some(pair(again)?),
        None => None,
    };
    Some((Suite::of_name(suite)?, index.parse().ok()?, Place { point, choice, is_copy, again }))
}

/// A violation with everything that is needed to understand it.
fn describe(
    backing: Backing,
    suite: Suite,
    index: usize,
    seed: u64,
    violation: &Violation,
    recorded: &Recorded,
) -> String {
    let point = violation.place.point;
    let line = |(at, event): (usize, &polymux_sim::recording::Event)| {
        let here = if at == point { "  <== the crash is before this" } else { "" };
        format!("  {at}: {}{here}\n", event.describe())
    };
    let events: String = recorded.journal.iter().enumerate().skip(recorded.first_point).map(line).collect();
    format!(
        "POLYMUX_CRASH_STATE={} POLYMUX_CRASH_SEED={seed}\n{}\nshape {:?}\n{}journal:\n{events}",
        name_of(backing, suite, index, &violation.place),
        violation.text,
        suite.workload(index, seed).shape.name,
        recorded.history.describe(point),
    )
}

/// Looks at one workload.
pub fn look_at(
    suite: Suite,
    index: usize,
    seed: u64,
    effort: Effort<'_>,
    only: Option<&Place>,
    tally: &mut Tally,
) -> Result<(), String> {
    let workload = suite.workload(index, seed);
    let seed_of_workload = seed.wrapping_add(index as u64);
    explore(&workload, effort, seed_of_workload, only, tally)
        .map_err(|found| describe(effort.backing, suite, index, seed, &found.0, &found.1))
}

/// Looks at many workloads. `prepare` runs first on each thread.
pub fn run(shares: &[Share], seed: u64, effort: Effort<'_>, prepare: impl Fn() + Sync, stop_at: usize) -> Report {
    let begun = Instant::now();
    // To find a workload that does not come to an end.
    let is_traced = std::env::var_os(TRACE).is_some();
    let jobs: Vec<(Suite, usize)> = shares
        .iter()
        .flat_map(|share| (0..share.count).map(move |number| (share.suite, number * share.stride)))
        .filter(|(suite, index)| *index < suite.count())
        .collect();
    let next = AtomicUsize::new(0);
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                prepare();
                let mut tally = Tally::default();
                let mut workloads = 0;
                while let Some((suite, index)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    workloads += 1;
                    if workloads % PROGRESS_EVERY == 0 {
                        eprintln!("{}/{index}, {:.0} s", suite.name(), begun.elapsed().as_secs_f64());
                    }
                    if is_traced {
                        eprintln!("{}/{index}: {:?}", suite.name(), suite.workload(*index, seed).operations);
                    }
                    let looked = AssertUnwindSafe(|| look_at(*suite, *index, seed, effort, None, &mut tally));
                    let outcome = std::panic::catch_unwind(looked).unwrap_or_else(|_| {
                        Err(format!("{}/{index}: the workload or a recovery panics", suite.name()))
                    });
                    if let Err(text) = outcome {
                        let mut report = report.lock().expect("no thread panics while it reports");
                        report.violations.push(text);
                        if report.violations.len() >= stop_at {
                            next.store(jobs.len(), Ordering::Relaxed);
                        }
                    }
                }
                let mut report = report.lock().expect("no thread panics while it reports");
                report.workloads += workloads;
                report.judged += tally.judged;
                report.crashed_again += tally.crashed_again;
                report.copies += tally.copies;
                report.states.extend(tally.states);
            });
        }
    });
    let mut report = report.into_inner().expect("no thread panics while it reports");
    report.seconds = begun.elapsed().as_secs_f64();
    report
}

/// Runs a campaign in which there must be no violation.
pub fn expect_none(name: &str, shares: &[Share], seed: u64, effort: Effort<'_>) -> Report {
    let report = run(shares, seed, effort, || {}, VIOLATIONS_MAX);
    report.print(name);
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n--------\n"));
    report
}
