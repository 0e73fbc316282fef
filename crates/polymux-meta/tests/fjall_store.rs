//! What holds of [`FjallStore`] beyond the suite: opening, closing, and what is there after a crash.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use polymux_meta::{Batch, FjallStore, FjallStoreOptions, MetadataStore, OpenMode, StoreError, conformance};

const CREATE: FjallStoreOptions = FjallStoreOptions::new(OpenMode::CreateNew);
const EXISTING: FjallStoreOptions = FjallStoreOptions::new(OpenMode::Existing);

fn open(path: &Path, options: FjallStoreOptions) -> FjallStore {
    FjallStore::open(path, options).expect("the store opens")
}

fn put(store: &FjallStore, key: &[u8], value: &[u8]) -> polymux_meta::Sequence {
    let mut batch = Batch::new();
    batch.put(key, value);
    store.commit(batch).expect("a commit succeeds")
}

#[test]
fn fjall_keeps_every_promise_of_the_store() {
    let directories = Mutex::new(Vec::new());
    conformance::run(|| {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let store = open(&directory.path().join("meta"), CREATE);
        directories.lock().expect("no check failed").push(directory);
        Box::new(store)
    });
}

#[test]
fn what_was_synced_is_there_after_a_reopen_and_the_store_opens_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let store = open(&path, CREATE);
    let sequence = put(&store, b"round", &[0]);
    store.sync(sequence).unwrap();
    store.close();
    for round in 1_u8..20 {
        let store = open(&path, EXISTING);
        assert_eq!(store.get(b"round").unwrap(), Some(vec![round - 1]));
        let sequence = put(&store, b"round", &[round]);
        store.sync(sequence).unwrap();
    }
}

#[test]
fn more_than_the_memory_tables_hold_survives_a_reopen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let value = vec![0x5a_u8; 8192];
    {
        let store = open(&path, CREATE);
        let mut last = store.committed();
        for number in 0_u32..5_000 {
            last = put(&store, &number.to_be_bytes(), &value);
        }
        store.sync(last).unwrap();
    }
    let store = open(&path, EXISTING);
    let entries = store.range(&0_u32.to_be_bytes(), &u32::MAX.to_be_bytes(), usize::MAX).unwrap();
    assert_eq!(entries.len(), 5_000);
    assert!(entries.iter().all(|(_, found)| *found == value));
}

#[test]
fn a_store_is_neither_made_twice_nor_out_of_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let missing = FjallStore::open(&path, EXISTING).err().expect("a missing store is refused");
    assert!(matches!(&missing, StoreError::Open(text) if text.contains(path.to_str().unwrap())), "{missing}");
    assert!(!path.exists(), "refusing changes nothing");
    open(&path, CREATE).close();
    let twice = FjallStore::open(&path, CREATE).err().expect("a second creation is refused");
    assert!(matches!(&twice, StoreError::Open(text) if text.contains("already")), "{twice}");
    let first = open(&path, EXISTING);
    let second = FjallStore::open(&path, EXISTING).err().expect("a store in use is refused");
    assert!(matches!(&second, StoreError::Open(text) if text.contains("in use")), "{second}");
    drop(first);
}

const CRASH_DIRECTORY: &str = "POLYMUX_META_CRASH_DIRECTORY";

/// Runs only as the child of the test below: commits and syncs for ever, saying what is durable.
#[test]
fn child_that_commits_until_it_is_killed() {
    let Some(path) = std::env::var_os(CRASH_DIRECTORY) else { return };
    let store = open(Path::new(&path), EXISTING);
    for number in 0_u64.. {
        let mut batch = Batch::new();
        batch.put([b"a".as_slice(), &number.to_be_bytes()].concat(), number.to_be_bytes());
        batch.put([b"b".as_slice(), &number.to_be_bytes()].concat(), number.to_be_bytes());
        let sequence = store.commit(batch).unwrap();
        if number % 3 == 0 {
            store.sync(sequence).unwrap();
            println!("\ndurable {number}");
        }
    }
}

#[test]
fn everything_synced_before_a_kill_is_there_and_batches_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    open(&path, CREATE).close();
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
            if durable >= 60 {
                break;
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(durable >= 60, "the child got far enough to be killed");
    let store = open(&path, EXISTING);
    let keys = |prefix: u8| -> Vec<Vec<u8>> {
        let entries = store.range(&[prefix], &[prefix + 1], usize::MAX).unwrap();
        entries.into_iter().map(|(key, _)| key[1..].to_vec()).collect()
    };
    let (first, second) = (keys(b'a'), keys(b'b'));
    assert_eq!(first, second, "each batch is there whole or not at all");
    let expected: Vec<Vec<u8>> = (0..first.len() as u64).map(|number| number.to_be_bytes().to_vec()).collect();
    assert_eq!(first, expected, "what is there is a prefix of what was committed");
    assert!(first.len() as u64 > durable, "everything that was synced is there");
}
