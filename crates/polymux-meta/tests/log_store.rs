//! Properties of [`LogStore`] beyond the suite: opening, closing, and the content after a crash.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use polymux_meta::{
    Batch, LogStore, LogStoreOptions, MetadataStore, OpenMode, StepProgress, StoreError, Workers, conformance,
};

/// Everything small, so that a short test sees memtables change, tables merge and the log go round.
fn options(mode: OpenMode, workers: Workers) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 256 * 1024,
        log_bytes: 1024 * 1024,
        window_bytes: 64 * 1024,
        ballast_bytes: 1024 * 1024,
        table_bytes_max: 64 * 1024,
        boundaries: vec![b"h".to_vec(), vec![b'k', 7], b"r".to_vec()],
        seeds: [1, 0x5eed],
        workers,
        ..LogStoreOptions::new(mode)
    }
}

fn create(path: &Path) -> LogStore {
    LogStore::open(path, &options(OpenMode::CreateNew, Workers::Threads)).expect("the store is made")
}

fn open(path: &Path) -> LogStore {
    LogStore::open(path, &options(OpenMode::Existing, Workers::Threads)).expect("the store opens")
}

fn put(store: &LogStore, key: &[u8], value: &[u8]) -> polymux_meta::Sequence {
    let mut batch = Batch::new();
    batch.put(key, value);
    store.commit(batch).expect("a commit succeeds")
}

#[test]
fn the_store_keeps_every_promise_with_threads_of_its_own_and_without() {
    for workers in [Workers::Threads, Workers::Manual] {
        let directories = Mutex::new(Vec::new());
        conformance::run(|| {
            let directory = tempfile::tempdir().expect("a temporary directory can be made");
            // A value of over a megabyte is among the promises.
            let options =
                LogStoreOptions { window_bytes: 4 << 20, log_bytes: 16 << 20, ..options(OpenMode::CreateNew, workers) };
            let store = LogStore::open(&directory.path().join("meta"), &options).expect("the store is made");
            directories.lock().expect("no check failed").push(directory);
            Box::new(store)
        });
    }
}

#[test]
fn what_was_synced_is_there_after_a_reopen_with_and_without_closing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let store = create(&path);
    let sequence = put(&store, b"round", &[0]);
    store.sync(sequence).unwrap();
    store.close().unwrap();
    for round in 1_u8..20 {
        let store = open(&path);
        assert_eq!(store.get(b"round").unwrap(), Some(vec![round - 1]));
        let sequence = put(&store, b"round", &[round]);
        store.sync(sequence).unwrap();
        if round % 2 == 0 {
            store.close().unwrap();
        }
    }
}

#[test]
fn a_closed_store_opens_without_replaying_anything() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let store = create(&path);
    put(&store, b"key", b"value");
    store.close().unwrap();
    let store = open(&path);
    assert_eq!(store.report().replayed_entries, 0);
    assert_eq!(store.get(b"key").unwrap().as_deref(), Some(b"value".as_slice()));
    put(&store, b"key", b"other");
    drop(store);
    assert_eq!(open(&path).report().replayed_entries, 1);
}

#[test]
fn more_than_log_and_memory_hold_survives_a_reopen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let value = vec![0x5a_u8; 4096];
    {
        let store = create(&path);
        let mut last = store.committed();
        for number in 0_u32..3_000 {
            last = put(&store, &number.to_be_bytes(), &value);
        }
        store.sync(last).unwrap();
        assert!(store.report().table_counters.flushes > 10, "{:?}", store.report());
    }
    let store = open(&path);
    let entries = store.range(&0_u32.to_be_bytes(), &u32::MAX.to_be_bytes(), usize::MAX).unwrap();
    assert_eq!(entries.len(), 3_000);
    assert!(entries.iter().all(|(_, found)| *found == value));
}

#[test]
fn a_store_is_neither_made_twice_nor_out_of_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let existing = options(OpenMode::Existing, Workers::Manual);
    let new = options(OpenMode::CreateNew, Workers::Manual);
    let missing = LogStore::open(&path, &existing).err().expect("a missing store is refused");
    assert!(matches!(&missing, StoreError::Open(text) if text.contains(path.to_str().unwrap())), "{missing}");
    assert!(!path.exists(), "refusing changes nothing");
    create(&path).close().unwrap();
    let twice = LogStore::open(&path, &new).err().expect("a second creation is refused");
    assert!(matches!(&twice, StoreError::Open(text) if text.contains("already")), "{twice}");
    let first = open(&path);
    let second = LogStore::open(&path, &existing).err().expect("a store in use is refused");
    assert!(matches!(&second, StoreError::Open(text) if text.contains("in use")), "{second}");
    drop(first);
}

#[test]
fn a_batch_larger_than_the_window_is_refused_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = create(&directory.path().join("meta"));
    let mut batch = Batch::new();
    batch.put(b"large", vec![0_u8; 100_000]);
    assert!(matches!(store.commit(batch), Err(StoreError::TooLarge { .. })));
    put(&store, b"small", b"x");
    assert_eq!(store.get(b"small").unwrap().as_deref(), Some(b"x".as_slice()));
}

/// A generator of its own, so that a failure can be repeated (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn random_key(random: &mut Random) -> Vec<u8> {
    let mut key = vec![[b'a', b'k', b'z'][usize::try_from(random.below(3)).unwrap()]];
    key.push(random.below(12).to_le_bytes()[0]);
    key.extend([0; 10]);
    key.extend(random.below(40).to_be_bytes());
    key
}

/// Random batches, reads, steps and reopenings beside an ordered map.
fn compare_with_a_map(seed: u64, commits: u64, planted: impl Fn(&mut BTreeMap<Vec<u8>, Vec<u8>>)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let mut random = Random(seed);
    let mut store = LogStore::open(&path, &options(OpenMode::CreateNew, Workers::Manual)).unwrap();
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for round in 0..commits {
        let mut batch = Batch::new();
        for _ in 0..1 + random.below(6) {
            let key = random_key(&mut random);
            if random.below(3) == 0 {
                batch.delete(&key);
                expected.remove(&key);
            } else {
                let value = vec![round.to_le_bytes()[0]; usize::try_from(random.below(600)).unwrap()];
                batch.put(&key, &value);
                expected.insert(key, value);
            }
        }
        store.commit(batch).unwrap();
        match random.below(200) {
            0..20 => while store.step().unwrap() == StepProgress::Worked {},
            20..30 => drop(store.step().unwrap()),
            30 => {
                drop(store);
                store = LogStore::open(&path, &options(OpenMode::Existing, Workers::Manual)).unwrap();
            }
            31 => {
                store.close().unwrap();
                store = LogStore::open(&path, &options(OpenMode::Existing, Workers::Manual)).unwrap();
            }
            32..40 => {
                let (mut from, mut to) = (random_key(&mut random), random_key(&mut random));
                if from > to {
                    std::mem::swap(&mut from, &mut to);
                }
                let limit = usize::try_from(random.below(100)).unwrap();
                let found = store.range(&from, &to, limit).unwrap();
                let wanted: Vec<_> =
                    expected.range(from..to).take(limit).map(|(key, value)| (key.clone(), value.clone())).collect();
                assert_eq!(found, wanted, "seed {seed}, round {round}");
            }
            40..80 => {
                let key = random_key(&mut random);
                assert_eq!(store.get(&key).unwrap().as_ref(), expected.get(&key), "seed {seed}, round {round}");
            }
            _ => {}
        }
    }
    planted(&mut expected);
    let found = store.range(&[0], &[0xff], usize::MAX).unwrap();
    let wanted: Vec<_> = expected.into_iter().collect();
    assert!(found == wanted, "seed {seed}: {} entries, {} wanted", found.len(), wanted.len());
}

#[test]
fn the_store_says_what_an_ordered_map_says() {
    for seed in 1..7 {
        compare_with_a_map(seed, 4000, |_| {});
    }
}

#[test]
#[should_panic(expected = "wanted")]
fn the_comparison_notices_a_missing_entry() {
    compare_with_a_map(1, 500, |expected| {
        expected.pop_first();
    });
}

#[test]
fn threads_that_write_read_and_scan_beside_changing_memtables_see_their_own_changes() {
    let directory = tempfile::tempdir().unwrap();
    let store = create(&directory.path().join("meta"));
    std::thread::scope(|scope| {
        for worker in 0..4_u8 {
            let store = &store;
            scope.spawn(move || {
                let key = |number: u64| {
                    [&[b'k', worker, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &number.to_be_bytes()].concat()
                };
                for number in 0..3000_u64 {
                    put(store, &key(number), &[worker; 200]);
                    assert!(store.get(&key(number)).unwrap().is_some());
                    if number % 2 == 1 {
                        let mut batch = Batch::new();
                        batch.delete(key(number - 1));
                        store.commit(batch).unwrap();
                        assert_eq!(store.get(&key(number - 1)).unwrap(), None);
                    }
                    if number % 500 == 499 {
                        let found = store.range(&key(0), &key(number + 1), usize::MAX).unwrap();
                        let expected = usize::try_from(number.div_ceil(2)).unwrap();
                        assert_eq!(found.len(), expected, "worker {worker} after {number}");
                    }
                }
            });
        }
    });
    let report = store.report();
    assert!(report.table_counters.flushes > 5, "{report:?}");
    let stall_free = store.range(&[0], &[0xff], usize::MAX).unwrap();
    assert_eq!(stall_free.len(), 4 * 1500);
}

#[test]
fn names_that_come_and_go_leave_nothing_in_the_tables() {
    let directory = tempfile::tempdir().unwrap();
    let store = create(&directory.path().join("meta"));
    for number in 0..20_000_u64 {
        let key = [b"spool".as_slice(), &number.to_be_bytes()].concat();
        put(&store, &key, b"message");
        let mut batch = Batch::new();
        batch.delete(&key);
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
    let store = open(&directory.path().join("meta"));
    // Those few whose creation and removal fell into two memtables.
    assert!(store.report().table_bytes < 8192, "{:?}", store.report());
}

const CRASH_DIRECTORY: &str = "POLYMUX_META_CRASH_DIRECTORY";

/// Runs only as the child of the test below: commits and syncs for ever, printing the last durable number after each sync.
#[test]
fn child_that_commits_until_it_is_killed() {
    let Some(path) = std::env::var_os(CRASH_DIRECTORY) else { return };
    let store = open(Path::new(&path));
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
    for kill_after in [60, 700, 2500] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("meta");
        create(&path).close().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_commits_until_it_is_killed", "--nocapture", "--test-threads=1"])
            .env(CRASH_DIRECTORY, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut durable = 0_u64;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(number) = line.strip_prefix("durable ") {
                durable = number.parse().unwrap();
                if durable >= kill_after {
                    break;
                }
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(durable >= kill_after, "the child got far enough to be killed");
        let store = open(&path);
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
