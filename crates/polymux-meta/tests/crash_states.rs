//! The whole directory of a store, log and tables, after power failures at any moment.
//!
//! A store works in a recording file system, and every state is opened that a power failure may have
//! left (see the rules in `polymux_sim::recording_file_system`). It has to open, to hold at least the transactions that were durable when
//! the crash happened, a prefix of the batches and each of them whole, and to go on working.
//!
//! `POLYMUX_CRASH_SEEDS=N` (by `make test-crash-states`) looks at N times as many runs.

#[path = "crash_states/check.rs"]
mod check;
#[path = "crash_states/workload.rs"]
mod workload;

use polymux_meta::{LogStore, OpenMode, Workers};
use polymux_sim::recording_file_system::{Change, Durability, Image, Operation, Record, RecordingFileSystem};

use check::{Choice, Looked, look};
use workload::{History, LONG, Random, SHORT, Shape, make, open, run_new, store_path, work};

/// Every position of a record.
const ALL: std::ops::Range<usize> = 0..usize::MAX;

/// Runs of each kind: more in the long form.
fn seeds(short: u64) -> std::ops::Range<u64> {
    let times = std::env::var("POLYMUX_CRASH_SEEDS").ok();
    let times: u64 = times.map_or(1, |times| times.parse().expect("POLYMUX_CRASH_SEEDS is a number"));
    1..short * times + 1
}

fn short_run(mounted: &RecordingFileSystem, random: &mut Random) -> (Record, History) {
    let directory = mounted.load(&Image::default());
    let history = run_new(&directory, random, SHORT);
    (directory.record(), history)
}

#[test]
fn after_a_crash_at_any_operation_of_a_short_run_everything_durable_is_there() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let mut looked = Looked::default();
    for seed in seeds(1) {
        let mut random = Random::new(seed);
        let (record, history) = short_run(&mounted, &mut random);
        let choice = Choice { positions: ALL, one_of: 1, random_states: 1, go_on_one_of: 8, again_one_of: 400 };
        if let Err(violation) = look(&mounted, &record, &history, &choice, &mut random, &mut looked) {
            panic!("seed {seed}: {violation}");
        }
    }
    println!("{looked:?}");
}

#[test]
fn after_a_crash_of_a_run_in_which_the_log_goes_round_everything_durable_is_there() {
    look_at_long_runs(LONG);
}

#[test]
fn after_a_crash_of_a_store_with_threads_of_its_own_everything_durable_is_there() {
    look_at_long_runs(Shape { workers: Workers::Threads, ..LONG });
}

fn look_at_long_runs(shape: Shape) {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let mut looked = Looked::default();
    for seed in seeds(1) {
        let mut random = Random::new(seed + 1000);
        let directory = mounted.load(&Image::default());
        let history = run_new(&directory, &mut random, shape);
        let record = directory.record();
        drop(directory);
        assert!(history.bytes() > 1024 * 1024, "the log goes round");
        let removed =
            |operation: &&Operation| is_below(operation, "tables") && matches!(operation.change, Change::Remove { .. });
        assert!(record.operations.iter().filter(removed).count() > 10, "tables are merged");
        let choice = Choice { positions: ALL, one_of: 40, random_states: 2, go_on_one_of: 4, again_one_of: 300 };
        if let Err(violation) = look(&mounted, &record, &history, &choice, &mut random, &mut looked) {
            panic!("seed {seed}: {violation}");
        }
    }
    println!("{looked:?}");
}

/// A process is killed before one of its syncs; another one continues with its files, which are not durable; then the
/// power fails.
#[test]
fn what_a_killed_process_left_unsynced_and_the_next_one_saw_survives_a_crash() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let mut looked = Looked::default();
    let mut random = Random::new(2000);
    for seed in seeds(1) {
        let (plan, _) = short_run(&mounted, &mut Random::new(seed + 2000));
        let syncs = plan.operations.iter().enumerate().filter(|(_, operation)| is_sync(operation));
        for kill in syncs.map(|(position, _)| position).filter(|_| random.below(5) == 0).collect::<Vec<_>>() {
            if let Err(violation) = kill_and_crash(&mounted, seed, kill, &mut random, &mut looked) {
                panic!("seed {seed}, killed at {kill}: {violation}");
            }
        }
    }
    println!("{looked:?}");
}

fn kill_and_crash(
    mounted: &RecordingFileSystem,
    seed: u64,
    kill: usize,
    random: &mut Random,
    looked: &mut Looked,
) -> Result<(), String> {
    let directory = mounted.load(&Image::default());
    // The same run again, up to here.
    let (store, mut history) = make(&directory, SHORT.workers);
    if kill < history.begins() {
        return Ok(());
    }
    directory.stop_at(kill);
    let _ = work(&directory, store, &mut history, &mut Random::new(seed + 2000), SHORT);
    directory.go_on();
    let store = open(&store_path(&directory)).map_err(|error| format!("it does not open after the kill: {error}"))?;
    let batches = history.batches_in(&store)?;
    let durable = history.durable_at(usize::MAX).expect("the store was made");
    if batches < durable {
        return Err(format!("{durable} batches were durable, {batches} are there after the kill"));
    }
    let mut history = history.after_kill(batches);
    history.note_durable(directory.position());
    let few = Shape { commits: 3, ..SHORT };
    work(&directory, store, &mut history, random, few).expect("the file system works again");
    let choice = Choice { positions: kill..kill + 60, one_of: 5, random_states: 1, go_on_one_of: 8, again_one_of: 0 };
    look(mounted, &directory.record(), &history, &choice, random, looked)
}

/// A creation is cut short by a kill at any operation; where the next process finds a store, it is a store for good.
#[test]
fn a_store_whose_creator_was_killed_is_none_or_keeps_what_is_synced_to_it() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let mut looked = Looked::default();
    let mut opened = 0;
    for kill in 0.. {
        let mut random = Random::new(kill as u64 + 3000);
        let directory = mounted.load(&Image::default());
        directory.stop_at(kill);
        let options = workload::options(OpenMode::CreateNew, Workers::Manual);
        let made = LogStore::open(&store_path(&directory), &options).map(drop);
        directory.go_on();
        // An empty directory is one that a store can be made in.
        let store = open(&store_path(&directory)).inspect(|_| opened += 1);
        let Ok(store) = store.or_else(|_| LogStore::open(&store_path(&directory), &options)) else { continue };
        let mut history = History::default();
        history.note_durable(directory.position());
        work(&directory, store, &mut history, &mut random, SHORT).expect("the file system works again");
        let record = directory.record();
        drop(directory);
        let choice = Choice {
            positions: history.begins()..usize::MAX,
            one_of: 60,
            random_states: 1,
            go_on_one_of: 8,
            again_one_of: 0,
        };
        if let Err(violation) = look(&mounted, &record, &history, &choice, &mut random, &mut looked) {
            panic!("killed at {kill}: {violation}");
        }
        if made.is_ok() {
            break;
        }
    }
    assert!(opened > 1, "some kills come after the store is there and before its creation returns");
    println!("{looked:?}");
}

fn is_sync(operation: &Operation) -> bool {
    matches!(operation.change, Change::Sync { .. })
}

fn is_below(operation: &Operation, directory: &str) -> bool {
    operation.path.parent().and_then(|parent| parent.file_name()).is_some_and(|name| name == directory)
}

fn is_sync_below(operation: &Operation, directory: &str) -> bool {
    is_below(operation, directory) && is_sync(operation)
}

fn is_sync_of(operation: &Operation, name: &str) -> bool {
    operation.path.file_name().is_some_and(|own| own == name) && is_sync(operation)
}

/// A bug that a store could have: this sync is missing.
type Planted = (&'static str, fn(&Operation) -> bool);

const PLANTED: [Planted; 6] = [
    ("durable writes of the log", |operation| {
        matches!(operation.change, Change::Write { durability: Durability::Durable, .. })
    }),
    ("syncs of table files", |operation| is_sync_below(operation, "tables")),
    ("syncs of the directory of tables", |operation| is_sync_of(operation, "tables")),
    ("syncs of the directory of a tree", |operation| is_sync_of(operation, "part0")),
    ("syncs of the files of a tree", |operation| is_sync_below(operation, "part0") && !is_sync_of(operation, "tables")),
    ("syncs of the directory of the store", |operation| is_sync_of(operation, "meta")),
];

#[test]
fn a_missing_sync_is_noticed() {
    let Some(mounted) = RecordingFileSystem::mount_or_skip() else { return };
    let mut random = Random::new(7);
    let (record, history) = short_run(&mounted, &mut random);
    let choice = Choice {
        positions: history.begins()..usize::MAX,
        one_of: 2,
        random_states: 1,
        go_on_one_of: 8,
        again_one_of: 0,
    };
    for (text, ignored) in PLANTED {
        assert!(record.operations.iter().any(ignored), "there are {text}");
        let planted = record.without_syncs(ignored);
        let outcome = look(&mounted, &planted, &history, &choice, &mut random, &mut Looked::default());
        let violation = outcome.expect_err(text);
        println!("without {text}: {}", violation.lines().take(3).collect::<Vec<_>>().join("; "));
    }
}
