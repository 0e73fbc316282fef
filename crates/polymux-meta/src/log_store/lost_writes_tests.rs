//! A device that lost writes which it had acknowledged, under the same boot: the window in surviving memory proves it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{LogStore, LogStoreOptions, OpenMode, StepProgress, WindowPlace, Workers};
use crate::batch::Batch;
use crate::copy::{CopyOptions, restore_from_copy};
use crate::error::StoreError;
use crate::log::HEADER_LENGTH;
use crate::log::test_machine::Machine;
use crate::store::{CopySync, MetadataStore};

fn options(mode: OpenMode, root: &Path, machine: &Arc<Machine>) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 1024 * 1024,
        log_bytes: 1024 * 1024,
        window_bytes: 64 * 1024,
        ballast_bytes: 0,
        seeds: [11, 22],
        workers: Workers::Manual,
        copy: Some(CopyOptions::new(root.join("copy"))),
        surviving: Some(Arc::clone(machine) as _),
        ..LogStoreOptions::new(mode)
    }
}

fn open(root: &Path, machine: &Arc<Machine>) -> Result<LogStore, StoreError> {
    LogStore::open(&root.join("store"), &options(OpenMode::Existing, root, machine))
}

fn key(number: u64) -> String {
    format!("key {number:05}")
}

fn commit(store: &LogStore, number: u64) {
    let mut batch = Batch::new();
    batch.put(key(number), vec![7; 3000]);
    store.commit(batch).unwrap();
}

fn sync(store: &LogStore) {
    store.sync(store.committed()).unwrap();
}

fn ship(store: &LogStore) {
    while store.step().unwrap() == StepProgress::Worked {}
    assert_eq!(store.sync_copy(store.durable()).unwrap(), CopySync::Safe);
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let source = entry.unwrap().path();
        let target = to.join(source.file_name().unwrap());
        if source.is_dir() {
            copy_tree(&source, &target);
        } else {
            fs::copy(&source, &target).unwrap();
        }
    }
}

/// The files of a store whose process died, and the memory that outlived it. The transactions `0 .. shipped` are in the copy,
/// `.. 30` are durable, `.. 40` in memory alone.
fn killed(shipped: u64) -> (tempfile::TempDir, Arc<Machine>) {
    let (live, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let machine = Arc::new(Machine::default());
    let store = LogStore::open(&live.path().join("store"), &options(OpenMode::CreateNew, live.path(), &machine));
    let store = store.unwrap();
    for number in 0..40 {
        if number == shipped || number == 30 {
            sync(&store);
        }
        if number == shipped {
            ship(&store);
        }
        commit(&store, number);
    }
    copy_tree(live.path(), root.path());
    // It does not end: that would tidy up.
    std::mem::forget(store);
    (root, machine)
}

/// Zeros the log from a position on, as a device does that lost its cache.
fn lose_from(root: &Path, position: u64) {
    let path = root.join("store/log");
    let mut bytes = fs::read(&path).unwrap();
    bytes[usize::try_from(HEADER_LENGTH + position).unwrap()..].fill(0);
    fs::write(path, bytes).unwrap();
}

fn holds(store: &LogStore, count: u64) {
    for number in 0..50 {
        assert_eq!(store.get(key(number).as_bytes()).unwrap().is_some(), number < count, "transaction {number}");
    }
}

#[test]
fn a_device_that_lost_what_it_acknowledged_is_refused_by_name_and_the_way_out_works() {
    // The copy has nothing of the lost part: it was made when the store was.
    let (root, machine) = killed(0);
    lose_from(root.path(), 30_000);
    let before = fs::read(root.path().join("store/log")).unwrap();
    for _ in 0..2 {
        match open(root.path(), &machine) {
            Err(StoreError::Corrupted(reason)) => {
                assert!(reason.contains("lost") && reason.contains("remove memory of a test"), "{reason}");
            }
            Err(error) => panic!("another error: {error}"),
            Ok(_) => panic!("it was opened"),
        }
        assert!(fs::read(root.path().join("store/log")).unwrap() == before, "nothing is changed");
    }
    machine.pieces.lock().clear();
    let store = open(root.path(), &machine).unwrap();
    assert!(matches!(store.report().window.place, WindowPlace::Surviving(_)));
    holds(&store, 9);
}

#[test]
fn where_the_copy_knows_more_than_the_device_kept_the_refusal_names_it_and_the_store_made_of_it_opens() {
    let (root, machine) = killed(20);
    lose_from(root.path(), 30_000);
    match open(root.path(), &machine) {
        Err(StoreError::Corrupted(reason)) => assert!(reason.contains("--from-copy"), "{reason}"),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was opened"),
    }
    fs::rename(root.path().join("store"), root.path().join("aside")).unwrap();
    let restoring = options(OpenMode::Existing, root.path(), &machine);
    restore_from_copy(&root.path().join("copy"), &root.path().join("store"), &restoring).unwrap();
    // It ends before the end of the ring of the lost store, and that is no loss of this one.
    let store = open(root.path(), &machine).unwrap();
    holds(&store, 20);
}

#[test]
fn a_store_made_from_a_copy_that_has_all_that_was_durable_takes_up_what_outlived_the_process() {
    let (root, machine) = killed(30);
    fs::remove_dir_all(root.path().join("store")).unwrap();
    let restoring = options(OpenMode::Existing, root.path(), &machine);
    restore_from_copy(&root.path().join("copy"), &root.path().join("store"), &restoring).unwrap();
    let store = open(root.path(), &machine).unwrap();
    holds(&store, 40);
    assert_eq!(store.report().window.survived_entries, 10);
}
