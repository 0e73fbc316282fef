//! Crash states over all devices of a volume (docs/design/0011-crash-states.md).

mod common;

#[path = "crash_states/campaign.rs"]
mod campaign;
#[path = "crash_states/explore.rs"]
mod explore;
#[path = "crash_states/history.rs"]
mod history;
#[path = "crash_states/names.rs"]
mod names;
#[path = "crash_states/oracle.rs"]
mod oracle;
#[path = "crash_states/scene.rs"]
mod scene;
#[path = "crash_states/store_device.rs"]
mod store_device;
#[path = "crash_states/suites.rs"]
mod suites;
#[path = "crash_states/workload.rs"]
mod workload;

use std::hash::{DefaultHasher, Hash, Hasher};

use campaign::Share;
use explore::{Effort, Tally};
use polymux_fs::{FoundBy, PlantedFault};
use polymux_sim::crash_states::{Choice, EntryDurability, Ignored, STORE_DIRECTORY, World};
use polymux_sim::recording_file_system::{Change, Durability, Operation, RecordingFileSystem};
use store_device::Backing;
use suites::Suite;

/// How much a short run looks at.
const EFFORT: Effort<'static> = Effort {
    random_states: 3,
    again_one_of: 64,
    states_again: 1,
    entries: EntryDurability::WithObject,
    backing: Backing::Model,
    ignored: None,
};

/// How much a long run looks at.
const EFFORT_LONG: Effort<'static> = Effort { random_states: 8, again_one_of: 16, states_again: 2, ..EFFORT };

/// No crashed recoveries: the faults show without.
const EFFORT_FOR_FAULTS: Effort<'static> = Effort { again_one_of: 0, ..EFFORT };

/// Workloads that the long form looks at, at least; and distinct states.
const WORKLOADS_MIN: usize = 2000;
const STATES_MIN: usize = 100_000;

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

fn effort() -> Effort<'static> {
    if long_count().is_some() { EFFORT_LONG } else { EFFORT }
}

/// The scope of a run.
fn shares() -> Vec<Share> {
    let share = |suite: Suite, stride: usize, count: usize| Share { suite, stride, count: count.min(suite.count()) };
    if let Some(long) = long_count() {
        vec![
            share(Suite::Chosen, 1, usize::MAX),
            share(Suite::Short(1), 1, usize::MAX),
            share(Suite::Short(2), 1, usize::MAX),
            share(Suite::Failing, 1, usize::MAX),
            share(Suite::Short(3), 29, long),
            share(Suite::Random, 1, long / 2),
        ]
    } else {
        vec![
            share(Suite::Chosen, 1, usize::MAX),
            share(Suite::Short(1), 1, usize::MAX),
            share(Suite::Failing, 1, usize::MAX),
            share(Suite::Short(2), 27, 120),
            share(Suite::Random, 1, 30),
        ]
    }
}

/// Looks at the state of a name, where it belongs to a campaign with this store.
fn look_at(name: &str, effort: Effort) {
    let Some((suite, index, place)) = campaign::parse(effort.backing, name) else { return };
    let found = campaign::look_at(suite, index, seed(), effort, Some(&place), &mut Tally::default());
    found.unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn no_crash_state_of_any_workload_loses_what_was_promised() {
    if let Some(name) = from_environment::<String>("POLYMUX_CRASH_STATE") {
        return look_at(&name, effort());
    }
    let report = campaign::expect_none("crash states", &shares(), seed(), effort());
    assert!(report.states.len() > 9 * report.workloads, "a workload leads to many states: {}", report.states.len());
    if long_count().is_some() {
        assert!(report.workloads >= WORKLOADS_MIN, "the long form looks at {WORKLOADS_MIN} workloads at least");
        assert!(report.states.len() >= STATES_MIN, "the long form looks at {STATES_MIN} distinct states at least");
        println!("crash states: at least {WORKLOADS_MIN} workloads and {STATES_MIN} distinct states, as promised");
    }
}

/// Distinct states of streams that the long form looks at, at least.
const STREAM_STATES_MIN: usize = 20_000;

/// Unsynced streams, beside syncs of other files: a prefix of each is left, whatever its tiers kept.
#[test]
fn an_unsynced_stream_over_many_ranges_is_a_prefix_in_every_crash_state() {
    if let Some(name) = from_environment::<String>("POLYMUX_CRASH_STATE") {
        return look_at(&name, effort());
    }
    look_at_streams(Suite::Stream);
}

/// Policy `adaptive`, which new volumes without rotating disks have: a file is on one tier until writers saturate that.
#[test]
fn an_unsynced_stream_that_spreads_late_is_a_prefix_in_every_crash_state() {
    if std::env::var_os("POLYMUX_CRASH_STATE").is_none() {
        look_at_streams(Suite::AdaptiveStream);
    }
}

/// Space is reserved on both tiers before it is written, and the file grows on behind it.
#[test]
fn a_file_with_room_reserved_on_several_tiers_is_as_it_was_synced_in_every_crash_state() {
    if std::env::var_os("POLYMUX_CRASH_STATE").is_none() {
        look_at_streams(Suite::Reserved);
    }
}

/// The end of a log moves to the faster tier between two syncs.
#[test]
fn a_log_that_goes_on_on_a_faster_tier_is_as_it_was_synced_in_every_crash_state() {
    look_at_first_of(Suite::Logs);
}

/// The logs of the test above do go on elsewhere: without the sync before it the fault shows.
#[test]
fn a_log_that_goes_on_elsewhere_before_its_size_is_settled_is_found() {
    expect_found_in(Suite::Logs, 6, PlantedFault::SpreadAppendNotSettled);
}

/// Small files begin in the metadata store, and move to objects.
#[test]
fn a_message_is_as_it_was_synced_in_every_crash_state() {
    look_at_first_of(Suite::Messages);
}

/// The messages of the test above do move to objects: without the sync before it the fault shows.
#[test]
fn a_message_whose_object_is_not_synced_before_its_record_goes_is_found() {
    expect_found_in(Suite::Messages, 12, PlantedFault::ObjectNotSyncedBeforeRecord);
}

/// Looks at the first workloads of a suite, unless one state was asked for.
fn look_at_first_of(suite: Suite) {
    if std::env::var_os("POLYMUX_CRASH_STATE").is_none() {
        let count = from_environment("POLYMUX_CRASH_STREAMS").unwrap_or(6);
        campaign::expect_none(&suite.name(), &[Share { suite, stride: 1, count }], seed(), EFFORT);
    }
}

/// Plants a fault, which the first workloads of a suite must show.
fn expect_found_in(suite: Suite, count: usize, fault: PlantedFault) {
    let share = Share { suite, stride: 1, count };
    let report = campaign::run(&[share], seed(), EFFORT_FOR_FAULTS, || PlantedFault::plant(Some(fault)), 1);
    report.print(&format!("{fault:?} in {}", suite.name()));
    let first = report.violations.first().expect("planted and not found");
    println!("  {}", first.lines().take(2).collect::<Vec<_>>().join(": "));
}

fn look_at_streams(suite: Suite) {
    let streams: Option<usize> = from_environment("POLYMUX_CRASH_STREAMS");
    let short = if suite == Suite::Stream { 4 } else { 1 };
    let share = Share { suite, stride: 1, count: streams.unwrap_or(short) };
    let report = campaign::expect_none(&suite.name(), &[share], seed(), Effort { again_one_of: 256, ..EFFORT });
    if streams.is_some() {
        assert!(report.states.len() >= STREAM_STATES_MIN, "{} distinct states", report.states.len());
    }
}

/// The streams of the test above show the fault as it was: 2 MiB of zeros, then data, where the first tier kept the end of the file.
#[test]
fn an_extender_that_goes_on_behind_the_first_range_is_found_in_streams() {
    for (suite, count) in [(Suite::Stream, 4), (Suite::AdaptiveStream, 1)] {
        expect_found_in(suite, count, PlantedFault::SpreadExtenderGoesOn);
    }
}

/// Workloads over the real store: few in the short form.
fn stored_count() -> usize {
    from_environment("POLYMUX_CRASH_STORED").unwrap_or(if long_count().is_some() { 300 } else { 12 })
}

/// A campaign over the real store, whose log and tables are devices as the tiers are.
fn look_at_real_store(backing: Backing, count: usize) {
    let effort = Effort { backing, random_states: 2, again_one_of: 64, ..EFFORT };
    if let Some(name) = from_environment::<String>("POLYMUX_CRASH_STATE") {
        return look_at(&name, effort);
    }
    let share = Share { suite: Suite::Stored, stride: 1, count };
    campaign::expect_none(backing.name(), &[share], seed(), effort);
}

#[test]
fn no_crash_state_with_the_real_store_loses_what_was_promised() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    look_at_real_store(Backing::Files(&mounted), stored_count());
}

#[test]
fn no_crash_state_that_takes_the_store_with_it_loses_what_its_second_copy_has() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    // Each state is recovered twice, with the store and without, and making a store of the copy takes long.
    let count = if long_count().is_some() { stored_count().div_ceil(15) } else { stored_count().div_ceil(5) };
    look_at_real_store(Backing::FilesWithCopy(&mounted), count);
}

/// Faults that must show with the real store as they do with the model.
const FAULTS_WITH_REAL_STORE: [PlantedFault; 6] = [
    PlantedFault::PunchBeforeCommit,
    PlantedFault::FsyncWithoutData,
    PlantedFault::SettledBeforeSync,
    PlantedFault::SpreadAppendNotSettled,
    PlantedFault::ReplacedBeforeSync,
    PlantedFault::CopyNotSynced,
];

fn is_sync(operation: &Operation) -> bool {
    matches!(operation.change, Change::Sync { .. })
}

/// Syncs that a store could forget.
const FORGOTTEN_BY_STORE: [(&str, Ignored); 2] = [
    ("durable writes of the log", |operation| {
        matches!(operation.change, Change::Write { durability: Durability::Durable, .. })
    }),
    ("syncs of the directories of tables", |operation| {
        is_sync(operation) && operation.path.parent().is_some_and(|parent| parent.ends_with(STORE_DIRECTORY))
    }),
];

/// The harness sees with the real store, too. The short form plants one fault.
#[test]
fn planted_faults_are_found_with_the_real_store() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let shares = [Share { suite: Suite::Stored, stride: 1, count: 90 }];
    let effort = Effort { backing: Backing::Files(&mounted), random_states: 2, ..EFFORT_FOR_FAULTS };
    let mut missed = Vec::new();
    let mut plant = |what: String, fault: Option<PlantedFault>, effort: Effort| {
        let report = campaign::run(&shares, seed(), effort, || PlantedFault::plant(fault), 1);
        report.print(&what);
        match report.violations.first() {
            Some(text) => println!("  {}", text.lines().take(2).collect::<Vec<_>>().join(": ")),
            None => missed.push(what),
        }
    };
    let is_long = long_count().is_some();
    for fault in FAULTS_WITH_REAL_STORE.into_iter().take(if is_long { usize::MAX } else { 1 }) {
        plant(format!("{fault:?} with the real store"), Some(fault), effort);
    }
    if is_long {
        let entries = EntryDurability::WithTierOnly;
        plant("missing directory sync of a tier with the real store".to_owned(), None, Effort { entries, ..effort });
        for (what, ignored) in FORGOTTEN_BY_STORE {
            plant(format!("the store without {what}"), None, Effort { ignored: Some(ignored), ..effort });
        }
    }
    assert!(missed.is_empty(), "planted and not found: {missed:?}");
}

/// The second copy is looked at, too: bytes that are freed before it knows of that are missed.
#[test]
fn a_planted_fault_that_only_the_second_copy_shows_is_found() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let effort = Effort { backing: Backing::FilesWithCopy(&mounted), random_states: 2, ..EFFORT_FOR_FAULTS };
    // The first one moves a file and frees the source, which is where the fault shows.
    let share = Share { suite: Suite::Stored, stride: 1, count: 1 };
    let plant = || PlantedFault::plant(Some(PlantedFault::FreedBeforeCopy));
    let report = campaign::run(&[share], seed(), effort, plant, 1);
    report.print("FreedBeforeCopy with the second copy");
    assert!(!report.violations.is_empty(), "planted and not found");
}

/// Workloads that a planted fault is looked for in; it must be found within them.
fn shares_for_faults() -> Vec<Share> {
    let share = |suite: Suite, count| Share { suite, stride: 1, count };
    vec![
        share(Suite::Chosen, Suite::Chosen.count()),
        share(Suite::Failing, Suite::Failing.count()),
        share(Suite::Short(1), Suite::Short(1).count()),
        share(Suite::Random, 60),
        share(Suite::Stream, 12),
    ]
}

/// The harness sees: each sync and each order that is left out on purpose shows as a violation.
#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    let is_found_here = |fault: &PlantedFault| fault.found_by() == FoundBy::CrashStates;
    for fault in PlantedFault::ALL.into_iter().filter(is_found_here) {
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

/// Files that are renamed when they are whole have random names before.
fn without_random_names(line: &str) -> String {
    const RANDOM_PREFIX: &str = ".tmp";
    match line.split_once(RANDOM_PREFIX) {
        Some((before, after)) => format!("{before}{RANDOM_PREFIX}{}", after.get(RANDOM_LENGTH..).unwrap_or_default()),
        None => line.to_owned(),
    }
}

/// Letters of a random name.
const RANDOM_LENGTH: usize = 6;

/// The device operations of a workload, in words. The volume is made before: a store opens its tables on several threads.
fn trace(workload: &workload::Workload, backing: Backing) -> Vec<String> {
    let recorded = workload::run(workload, backing);
    recorded.journal[recorded.first_point..].iter().map(|event| without_random_names(&event.describe())).collect()
}

/// Hash of everything that a workload did to the devices, and of states after each change.
fn trace_hash(workload: &workload::Workload) -> u64 {
    let recorded = workload::run(workload, Backing::Model);
    let mut hasher = DefaultHasher::new();
    let mut world = World::new(scene::TIERS.len(), Vec::new());
    for (point, event) in recorded.journal.iter().enumerate() {
        event.describe().hash(&mut hasher);
        world.apply(event);
        for choice in Choice::of_world(&world, 1, point as u64).iter().take(4) {
            world.crash(choice).hash().hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// One seed reproduces a run: every byte of every state after it. Another seed makes another run.
#[test]
fn the_same_seed_twice_gives_the_same_trace_hash() {
    // A thread of its own each: nothing that a thread keeps leads from one run to the other.
    let hash = |index: usize, seed: u64| {
        let run = move || trace_hash(&Suite::Random.workload(index, seed));
        std::thread::scope(|scope| scope.spawn(run).join().expect("the workload runs"))
    };
    // A tier is synced by a thread of its own while the log is flushed. Where that thread gets no processor for long, the order
    // of the two is another one: that does not happen again and again.
    let is_the_same = |index| (0..4).any(|_| hash(index, seed()) == hash(index, seed()));
    for index in 0..20 {
        assert!(is_the_same(index), "random/{index}");
        assert_ne!(hash(index, seed()), hash(index, seed() + 1), "random/{index} of another seed is another one");
    }
}

/// With the real store too; its tables hold times, so the operations are compared and not the bytes.
#[test]
fn the_same_seed_twice_gives_the_same_trace_with_the_real_store() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    for index in (0..60).step_by(5) {
        let workload = Suite::Stored.workload(index, seed());
        let (first, second) =
            (trace(&workload, Backing::FilesWithCopy(&mounted)), trace(&workload, Backing::FilesWithCopy(&mounted)));
        let place = first.iter().zip(&second).position(|(first, second)| first != second);
        assert_eq!(place.map(|place| (&first[place], &second[place])), None, "stored/{index}, entry {place:?}");
        assert_eq!(first.len(), second.len(), "stored/{index}");
    }
}
