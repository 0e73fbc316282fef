//! Crash states over all devices of a volume (docs/design/0011-crash-states.md).

mod common;

#[path = "crash_states/campaign.rs"]
mod campaign;
#[path = "crash_states/explore.rs"]
mod explore;
#[path = "crash_states/history.rs"]
mod history;
#[path = "crash_states/oracle.rs"]
mod oracle;
#[path = "crash_states/scene.rs"]
mod scene;
#[path = "crash_states/suites.rs"]
mod suites;
#[path = "crash_states/workload.rs"]
mod workload;

use campaign::Share;
use explore::{Effort, Tally};
use polymux_fs::PlantedFault;
use polymux_sim::crash_states::EntryDurability;
use suites::Suite;

/// How much a short run looks at.
const EFFORT: Effort =
    Effort { random_states: 3, again_one_of: 32, states_again: 1, entries: EntryDurability::WithObject };

/// How much a long run looks at.
const EFFORT_LONG: Effort = Effort { random_states: 8, again_one_of: 16, states_again: 2, ..EFFORT };

/// No crashed recoveries: the faults show without.
const EFFORT_FOR_FAULTS: Effort = Effort { again_one_of: 0, ..EFFORT };

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

fn seed() -> u64 {
    from_environment("POLYMUX_CRASH_SEED").unwrap_or(1)
}

/// Workloads of three symbols in the long form.
fn long_count() -> Option<usize> {
    from_environment("POLYMUX_CRASH_LONG")
}

fn effort() -> Effort {
    if long_count().is_some() { EFFORT_LONG } else { EFFORT }
}

/// What a run looks at.
fn shares() -> Vec<Share> {
    let share = |suite: Suite, stride: usize, count: usize| Share { suite, stride, count: count.min(suite.count()) };
    if let Some(long) = long_count() {
        vec![
            share(Suite::Chosen, 1, usize::MAX),
            share(Suite::Short(1), 1, usize::MAX),
            share(Suite::Short(2), 1, usize::MAX),
            share(Suite::Short(3), 13, long),
            share(Suite::Random, 1, long / 2),
        ]
    } else {
        vec![
            share(Suite::Chosen, 1, usize::MAX),
            share(Suite::Short(1), 1, usize::MAX),
            share(Suite::Short(2), 7, 270),
            share(Suite::Random, 1, 60),
        ]
    }
}

#[test]
fn no_crash_state_of_any_workload_loses_what_was_promised() {
    if let Some(name) = from_environment::<String>("POLYMUX_CRASH_STATE") {
        let (suite, index, place) = campaign::parse(&name).expect("a name as a violation prints it");
        let found = campaign::look_at(suite, index, seed(), effort(), Some(&place), &mut Tally::default());
        found.unwrap_or_else(|text| panic!("{text}"));
        return;
    }
    let report = campaign::expect_none("crash states", &shares(), seed(), effort());
    assert!(report.states.len() > 10 * report.workloads, "a workload leads to many states");
}

/// Workloads that a planted fault is looked for in; it must be found within them.
fn shares_for_faults() -> Vec<Share> {
    let share = |suite: Suite, count| Share { suite, stride: 1, count };
    vec![
        share(Suite::Chosen, Suite::Chosen.count()),
        share(Suite::Short(1), Suite::Short(1).count()),
        share(Suite::Random, 60),
    ]
}

/// The harness sees: each sync and each order that is left out on purpose shows as a violation.
#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    for fault in PlantedFault::ALL {
        let plant = || PlantedFault::plant(Some(fault));
        let report = campaign::run(&shares_for_faults(), seed(), EFFORT_FOR_FAULTS, plant, 1);
        report.print(&format!("{fault:?}"));
        match report.violations.first() {
            Some(text) => println!("  {}", text.lines().take(2).collect::<Vec<_>>().join(": ")),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "planted and not found: {missed:?}");
}

/// A tier whose sync of an object forgets the directory entry is found, too.
#[test]
fn a_tier_that_forgets_to_sync_the_directory_is_found() {
    let effort = Effort { entries: EntryDurability::WithTierOnly, ..EFFORT_FOR_FAULTS };
    let report = campaign::run(&shares_for_faults(), seed(), effort, || {}, 1);
    report.print("missing directory sync of a tier");
    assert!(!report.violations.is_empty(), "an object without an entry is noticed");
}

/// One seed, one run: the same changes in the same order.
#[test]
fn the_same_workload_twice_leaves_the_same_journal() {
    for index in 0..40 {
        let workload = Suite::Random.workload(index, seed());
        let journal = || {
            let run = move |workload: &workload::Workload| workload::run(workload).journal;
            std::thread::scope(|scope| scope.spawn(|| run(&workload)).join().expect("the workload runs"))
        };
        let lines = |events: &[polymux_sim::recording::Event]| events.iter().map(|event| event.describe()).collect();
        let (first, second): (Vec<String>, Vec<String>) = (lines(&journal()), lines(&journal()));
        assert_eq!(first, second, "random/{index}");
    }
}
