//! Stores whose log ends in a byte-addressable region, with the test double in memory.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use polymux_meta::{
    Batch, LogPlacement, LogStore, LogStoreOptions, MetadataStore, OpenMode, RegionKind, StepProgress, StoreError,
    Workers, conformance,
};

const KIBIBYTE: u64 = 1024;

/// A store's directory on whatever temporary files are on, and a directory in memory for its region.
struct Place {
    store: tempfile::TempDir,
    memory: tempfile::TempDir,
}

impl Place {
    /// `None` where there is no file system in memory; then the test says so.
    fn new() -> Option<Self> {
        use polymux_tier::mapped::{Addressing, probe};
        let memory = tempfile::tempdir_in("/dev/shm").ok();
        let memory = memory.filter(|memory| probe(memory.path()).ok() == Some(Addressing::Memory));
        let Some(memory) = memory else {
            println!("skipped: /dev/shm is no file system in memory");
            return None;
        };
        Some(Self { store: tempfile::tempdir().expect("a temporary directory can be made"), memory })
    }

    fn path(&self) -> PathBuf {
        self.store.path().join("meta")
    }

    fn region(&self) -> PathBuf {
        self.memory.path().join("region")
    }

    fn options(&self, mode: OpenMode, workers: Workers) -> LogStoreOptions {
        options(&self.region(), mode, workers)
    }

    fn create(&self) -> LogStore {
        let options = self.options(OpenMode::CreateNew, Workers::Threads);
        LogStore::open(&self.path(), &options).expect("the store is made")
    }

    fn open(&self) -> Result<LogStore, StoreError> {
        LogStore::open(&self.path(), &self.options(OpenMode::Existing, Workers::Threads))
    }

    fn refusal(&self, options: &LogStoreOptions) -> String {
        LogStore::open(&self.path(), options).err().expect("the store is refused").to_string()
    }
}

fn placement(region: &Path, length_bytes: u64) -> LogPlacement {
    let path = region.to_owned();
    LogPlacement::Region { path, length_bytes, kind: RegionKind::TestDouble, write_back_delay_ns: 0 }
}

fn options(region: &Path, mode: OpenMode, workers: Workers) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 2 << 20,
        log_bytes: 4 << 20,
        ballast_bytes: 1 << 20,
        table_bytes_max: 256 * KIBIBYTE,
        seeds: [1, 0x5eed],
        workers,
        log_placement: placement(region, 512 * KIBIBYTE),
        ..LogStoreOptions::new(mode)
    }
}

fn put(store: &LogStore, key: &[u8], value: &[u8]) -> polymux_meta::Sequence {
    let mut batch = Batch::new();
    batch.put(key, value);
    store.commit(batch).expect("a commit succeeds")
}

#[test]
fn the_store_keeps_every_promise_in_a_region() {
    for workers in [Workers::Threads, Workers::Manual] {
        let Some(first) = Place::new() else { return };
        let places = Mutex::new(vec![first]);
        conformance::run(|| {
            let place = Place::new().expect("there was memory a moment ago");
            // A value of over a megabyte is among the promises, and half of the region has to hold it.
            let options = LogStoreOptions {
                log_bytes: 16 << 20,
                log_placement: placement(&place.region(), 4 << 20),
                ..place.options(OpenMode::CreateNew, workers)
            };
            let store = LogStore::open(&place.path(), &options).expect("the store is made");
            places.lock().expect("no check failed").push(place);
            Box::new(store)
        });
    }
}

#[test]
fn a_small_region_under_load_spills_and_nothing_is_lost_at_any_reopening() {
    let Some(place) = Place::new() else { return };
    drop(place.create());
    let key = |worker: u64, number: u64| [worker.to_be_bytes(), number.to_be_bytes()].concat();
    let mut flushes_in_all = 0;
    for round in 0..3_u64 {
        let store = place.open().unwrap();
        std::thread::scope(|scope| {
            for worker in 0..4_u64 {
                let (store, key) = (&store, &key);
                scope.spawn(move || {
                    for number in round * 1000..(round + 1) * 1000 {
                        let sequence = put(store, &key(worker, number), &[worker.to_le_bytes()[0]; 400]);
                        store.sync(sequence).unwrap();
                        assert!(store.durable() >= sequence);
                    }
                });
            }
        });
        let report = store.report();
        assert!(report.medium.contains("TEST DOUBLE"), "{}", report.medium);
        assert_eq!(report.log.entries, 4000);
        assert!(report.log.flushes < report.log.syncs / 20, "syncs flush nothing: {:?}", report.log);
        flushes_in_all += report.log.flushes;
        if round == 1 {
            store.close().unwrap();
        }
    }
    assert!(flushes_in_all >= 6, "halves were given up");
    let store = place.open().unwrap();
    for worker in 0..4 {
        let found = store.range(&key(worker, 0), &key(worker + 1, 0), usize::MAX).unwrap();
        assert_eq!(found.len(), 3000, "worker {worker}");
    }
}

#[test]
fn a_store_opens_again_while_other_threads_start_programs() {
    let Some(place) = Place::new() else { return };
    place.create().close().unwrap();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            (0..200).try_for_each(|_| {
                let options = place.options(OpenMode::Existing, Workers::Manual);
                LogStore::open(&place.path(), &options).map(drop)
            })
        });
        while !opener.is_finished() {
            Command::new("true").status().unwrap();
        }
        opener.join().unwrap().expect("no earlier open holds the store still");
    });
}

#[test]
fn without_threads_of_its_own_a_store_spills_by_hand() {
    let Some(place) = Place::new() else { return };
    let manual = |mode| place.options(mode, Workers::Manual);
    let store = LogStore::open(&place.path(), &manual(OpenMode::CreateNew)).unwrap();
    for number in 0_u32..4000 {
        put(&store, &number.to_be_bytes(), &[7; 500]);
        if number % 300 == 0 {
            while store.step().unwrap() == StepProgress::Worked {}
        }
    }
    drop(store);
    let store = LogStore::open(&place.path(), &manual(OpenMode::Existing)).unwrap();
    assert_eq!(store.range(&[0], &[0xff; 4], usize::MAX).unwrap().len(), 4000);
}

#[test]
fn a_batch_larger_than_half_of_the_region_is_refused_and_the_store_goes_on() {
    let Some(place) = Place::new() else { return };
    let store = place.create();
    let mut batch = Batch::new();
    batch.put(b"large", vec![0_u8; 300_000]);
    assert!(matches!(store.commit(batch), Err(StoreError::TooLarge { .. })));
    for number in 0_u32..10 {
        put(&store, &number.to_be_bytes(), &vec![1; 250_000]);
    }
    assert_eq!(store.range(&[0], &[0xff; 4], usize::MAX).unwrap().len(), 10);
}

#[test]
fn a_missing_region_is_named_and_the_store_opens_once_it_is_back_wherever_it_is() {
    let Some(place) = Place::new() else { return };
    let store = place.create();
    let sequence = put(&store, b"key", b"value");
    store.sync(sequence).unwrap();
    drop(store);
    let elsewhere = place.memory.path().join("elsewhere");
    std::fs::rename(place.region(), &elsewhere).unwrap();
    let existing = place.options(OpenMode::Existing, Workers::Threads);
    let text = place.refusal(&existing);
    assert!(text.contains(place.region().to_str().unwrap()) && text.contains("missing"), "{text}");
    let moved = LogStoreOptions { log_placement: placement(&elsewhere, 512 * KIBIBYTE), ..existing };
    let store = LogStore::open(&place.path(), &moved).unwrap();
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(b"value".as_slice()));
}

#[test]
fn a_store_opens_only_with_the_placement_that_it_was_made_with() {
    let Some(place) = Place::new() else { return };
    place.create().close().unwrap();
    let existing = place.options(OpenMode::Existing, Workers::Manual);
    assert_eq!(LogPlacement::recorded(&place.path()).unwrap(), existing.log_placement);
    let block = LogStoreOptions { log_placement: LogPlacement::Block, ..existing.clone() };
    let text = place.refusal(&block);
    assert!(text.contains(place.region().to_str().unwrap()), "the region is named: {text}");
    let longer = LogStoreOptions { log_placement: placement(&place.region(), 1 << 20), ..existing.clone() };
    assert!(place.refusal(&longer).contains("524288 bytes"), "{}", place.refusal(&longer));
    let path = place.region();
    let dax =
        LogPlacement::Region { path, length_bytes: 512 * KIBIBYTE, kind: RegionKind::Dax, write_back_delay_ns: 0 };
    let dax = LogStoreOptions { log_placement: dax, ..existing.clone() };
    assert!(place.refusal(&dax).contains("TestDouble"), "{}", place.refusal(&dax));
    place.open().unwrap().close().unwrap();

    let Some(other) = Place::new() else { return };
    let new =
        LogStoreOptions { log_placement: LogPlacement::Block, ..other.options(OpenMode::CreateNew, Workers::Manual) };
    LogStore::open(&other.path(), &new).unwrap().close().unwrap();
    assert_eq!(LogPlacement::recorded(&other.path()).unwrap(), LogPlacement::Block);
    assert!(LogPlacement::recorded(other.store.path()).is_err(), "there is no store");
    assert!(other.refusal(&existing).contains("without a region"), "{}", other.refusal(&existing));
}

#[test]
fn the_region_of_another_store_and_one_on_a_disk_are_refused() {
    let (Some(first), Some(second)) = (Place::new(), Place::new()) else { return };
    let foreign = second.options(OpenMode::CreateNew, Workers::Manual);
    LogStore::open(&second.path(), &LogStoreOptions { seeds: [2, 0xbad], ..foreign }).unwrap().close().unwrap();
    first.create().close().unwrap();
    std::fs::rename(second.region(), first.region()).unwrap();
    let text = first.refusal(&first.options(OpenMode::Existing, Workers::Manual));
    assert!(text.contains("another store"), "{text}");

    let disk = tempfile::tempdir_in("/var/tmp").unwrap();
    if polymux_tier::mapped::probe(disk.path()).ok() != Some(polymux_tier::mapped::Addressing::Blocks) {
        println!("skipped: /var/tmp is not on a disk");
        return;
    }
    for kind in [RegionKind::Dax, RegionKind::TestDouble] {
        let path = disk.path().join("region");
        let log_placement =
            LogPlacement::Region { path: path.clone(), length_bytes: 512 * KIBIBYTE, kind, write_back_delay_ns: 0 };
        let store = disk.path().join(format!("meta-{kind:?}"));
        let new = options(&path, OpenMode::CreateNew, Workers::Manual);
        let error = LogStore::open(&store, &LogStoreOptions { log_placement, ..new }).err().expect("a disk is refused");
        assert!(error.to_string().contains("not byte-addressable"), "{error}");
        assert!(!path.exists(), "nothing is left behind");
    }
}

const CRASH_DIRECTORY: &str = "POLYMUX_META_REGION_CRASH_DIRECTORY";
const CRASH_REGION: &str = "POLYMUX_META_REGION_CRASH_REGION";

/// Runs only as the child of the test below: commits and syncs for ever, printing the last durable number after each sync.
#[test]
fn child_that_commits_until_it_is_killed() {
    let (Some(path), Some(region)) = (std::env::var_os(CRASH_DIRECTORY), std::env::var_os(CRASH_REGION)) else {
        return;
    };
    let options = options(Path::new(&region), OpenMode::Existing, Workers::Threads);
    let store = LogStore::open(Path::new(&path), &options).unwrap();
    for number in 0_u64.. {
        let mut batch = Batch::new();
        batch.put([b"a".as_slice(), &number.to_be_bytes()].concat(), [7; 300]);
        batch.put([b"z".as_slice(), &number.to_be_bytes()].concat(), [7; 300]);
        let sequence = store.commit(batch).unwrap();
        if number % 3 == 0 {
            store.sync(sequence).unwrap();
            println!("\ndurable {number}");
        }
    }
}

#[test]
fn everything_synced_before_a_kill_is_there_and_batches_are_whole() {
    for kill_after in [60, 1100, 6000] {
        let Some(place) = Place::new() else { return };
        place.create().close().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_commits_until_it_is_killed", "--nocapture", "--test-threads=1"])
            .env(CRASH_DIRECTORY, place.path())
            .env(CRASH_REGION, place.region())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut durable = 0_u64;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            if let Some(number) = line.unwrap().strip_prefix("durable ") {
                durable = number.parse().unwrap();
                if durable >= kill_after {
                    break;
                }
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(durable >= kill_after, "the child got far enough to be killed");
        let store = place.open().unwrap();
        let keys = |prefix: u8| -> Vec<Vec<u8>> {
            let entries = store.range(&[prefix], &[prefix + 1], usize::MAX).unwrap();
            entries.into_iter().map(|(key, _)| key[1..].to_vec()).collect()
        };
        let (first, second) = (keys(b'a'), keys(b'z'));
        assert_eq!(first, second, "each batch is there whole or not at all");
        let expected: Vec<Vec<u8>> = (0..first.len() as u64).map(|number| number.to_be_bytes().to_vec()).collect();
        assert_eq!(first, expected, "what is there is a prefix of what was committed");
        assert!(first.len() as u64 > durable, "everything that was synced is there");
    }
}
