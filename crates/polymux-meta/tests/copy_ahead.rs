//! A second copy that comes back to a store which lost transactions of the copy, or which continued without it.
//!
//! A store with a copy stops; its files and those of the copy are changed or moved away; the store is
//! opened by hand, and a round of shipping is a step.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use polymux_meta::{
    Batch, CopyOptions, CopyReport, CopyState, CopySync, InUse, LogPlacement, LogStore, LogStoreOptions, LogView,
    MetadataStore, OpenMode, StepProgress, Workers, restore_from_copy,
};

/// Bytes of the headers of a log.
const HEADERS: u64 = 8192;

/// Bytes of a ring.
const RING: u64 = 1024 * 1024;

fn options(mode: OpenMode, root: &Path) -> LogStoreOptions {
    let mut options = LogStoreOptions::new(mode);
    options.memory_bytes = 1024 * 1024;
    options.log_bytes = RING;
    options.window_bytes = 64 * 1024;
    options.ballast_bytes = 0;
    options.seeds = [11, 22];
    options.workers = Workers::Manual;
    options.copy = Some(CopyOptions::new(root.join("copy")));
    options
}

fn open(root: &Path) -> LogStore {
    LogStore::open(&root.join("store"), &options(OpenMode::Existing, root)).unwrap()
}

/// Opens the store as one without a second copy.
fn open_alone(root: &Path) -> LogStore {
    let options = LogStoreOptions { copy: None, ..options(OpenMode::Existing, root) };
    LogStore::open(&root.join("store"), &options).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

fn commit(store: &LogStore, number: u64) {
    let mut batch = Batch::new();
    batch.put(key(number), vec![u8::try_from(number % 251).unwrap(); 500]);
    let sequence = store.commit(batch).unwrap();
    store.sync(sequence).unwrap();
}

/// Lets the store ship, and do whatever else is to be done. Never ends by itself where a copy cannot be reached.
fn work(store: &LogStore) {
    for _ in 0..50 {
        if store.step().unwrap() == StepProgress::Idle {
            return;
        }
    }
}

fn report(store: &LogStore) -> CopyReport {
    store.report().copy.unwrap()
}

fn is_shipped(store: &LogStore) {
    for _ in 0..20 {
        work(store);
    }
    assert_eq!(store.sync_copy(store.durable()).unwrap(), CopySync::Safe);
    assert_eq!(report(store).state, CopyState::Current, "{:?}", report(store));
}

/// A store with the durable transactions `0 .. 20`, as a crash leaves it with all of them in the log, and its copy, which holds
/// them, too.
fn stopped() -> tempfile::TempDir {
    stopped_after(|_| {})
}

fn stopped_after(prepare: impl FnOnce(&LogStore)) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let live = tempfile::tempdir().unwrap();
    let store = LogStore::open(&live.path().join("store"), &options(OpenMode::CreateNew, live.path())).unwrap();
    (0..20).for_each(|number| commit(&store, number));
    prepare(&store);
    is_shipped(&store);
    copy_tree(live.path(), root.path());
    root
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let source = entry.unwrap().path();
        let target = to.join(source.file_name().unwrap());
        if source.is_dir() {
            fs::create_dir(&target).unwrap();
            copy_tree(&source, &target);
        } else {
            fs::copy(&source, &target).unwrap();
        }
    }
}

/// Zeros the log from transaction `kept` on, like a device that lost acknowledged writes.
fn lose_tail(root: &Path, kept: usize) {
    let mut entries = Vec::new();
    let view = LogView::open(&root.join("store"), &LogPlacement::Block, InUse::Refuse).unwrap();
    let visited = view.visit(|entry| {
        entries.push(entry.position);
        Ok(())
    });
    visited.unwrap();
    drop(view);
    let path = root.join("store/log");
    let mut bytes = fs::read(&path).unwrap();
    let from = usize::try_from(HEADERS + entries[kept]).unwrap();
    bytes[from..].fill(0);
    fs::write(path, bytes).unwrap();
}

/// Moves the copy away, as a tier that is not there, and back.
fn take_away(root: &Path) {
    fs::rename(root.join("copy"), root.join("away")).unwrap();
}

fn bring_back(root: &Path) {
    let _made_meanwhile = fs::remove_dir_all(root.join("copy"));
    fs::rename(root.join("away"), root.join("copy")).unwrap();
}

/// Every file below a directory.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path)
            } else {
                drop(found.insert(path.clone(), fs::read(path).unwrap()))
            }
        }
    }
    found
}

/// The copy is refused and as it was, and the store made of it has the transactions `0 .. 20`.
fn is_refused_and_whole(root: &Path, store: LogStore, before: &BTreeMap<PathBuf, Vec<u8>>) {
    let report = report(&store);
    assert_eq!(report.state, CopyState::Refused, "{report:?}");
    assert_eq!((report.lag_bytes, report.rebuilds), (None, 0), "{report:?}");
    assert!(report.reason.contains("--from-copy") && report.reason.contains("remove"), "{}", report.reason);
    // It goes on without a copy.
    commit(&store, 999);
    assert_eq!(store.sync_copy(store.durable()).unwrap(), CopySync::Safe);
    drop(store);
    assert!(files(&root.join("copy")) == *before, "the copy is as it was");
    let restored = root.join("restored");
    let options = LogStoreOptions { copy: None, ..options(OpenMode::Existing, root) };
    restore_from_copy(&root.join("copy"), &restored, &options).unwrap();
    let store = LogStore::open(&restored, &options).unwrap();
    for number in 0..20 {
        assert!(store.get(&key(number)).unwrap().is_some(), "transaction {number}");
    }
}

#[test]
fn a_copy_that_is_ahead_and_comes_back_to_an_open_store_is_refused_and_stays_as_it_is() {
    let root = stopped();
    let before = files(&root.path().join("copy"));
    lose_tail(root.path(), 12);
    take_away(root.path());
    // The tier of the copy is not there: its path cannot be made.
    fs::write(root.path().join("copy"), b"").unwrap();
    let store = open(root.path());
    work(&store);
    assert_eq!(report(&store).state, CopyState::Unreachable);
    fs::remove_file(root.path().join("copy")).unwrap();
    bring_back(root.path());
    (0..5).for_each(|_| work(&store));
    is_refused_and_whole(root.path(), store, &before);
}

#[test]
fn a_store_that_grew_beyond_what_its_copy_holds_does_not_make_it_anew_where_it_had_lost_it() {
    for mounts in [1, 3, 100] {
        let root = stopped();
        let before = files(&root.path().join("copy"));
        lose_tail(root.path(), 12);
        take_away(root.path());
        for mount in 0..mounts {
            let store = open_alone(root.path());
            (0..20).for_each(|number| commit(&store, 100 + mount * 20 + number));
        }
        bring_back(root.path());
        let store = open(root.path());
        (0..5).for_each(|_| work(&store));
        is_refused_and_whole(root.path(), store, &before);
    }
}

#[test]
fn a_copy_that_was_only_away_is_made_anew_however_far_the_store_went() {
    // Beyond the ring, so that the log alone cannot tell any more, and beyond the openings that are noted, within the ring.
    for (mounts, commits) in [(1, 3000), (5, 3000), (60, 3)] {
        let root = stopped();
        take_away(root.path());
        for _ in 0..mounts {
            let store = open_alone(root.path());
            for number in 0..commits {
                commit(&store, 100 + number);
                if number.is_multiple_of(64) {
                    work(&store);
                }
            }
        }
        bring_back(root.path());
        let store = open(root.path());
        is_shipped(&store);
        assert_eq!(report(&store).rebuilds, 1, "{mounts} mounts");
        drop(store);
        let restoring = options(OpenMode::Existing, root.path());
        restore_from_copy(&root.path().join("copy"), &root.path().join("restored"), &restoring).unwrap();
    }
}

#[test]
fn a_copy_that_was_refused_is_made_anew_once_it_is_removed() {
    let root = stopped();
    lose_tail(root.path(), 12);
    take_away(root.path());
    let store = open_alone(root.path());
    (0..20).for_each(|number| commit(&store, 100 + number));
    drop(store);
    bring_back(root.path());
    let store = open(root.path());
    work(&store);
    assert_eq!(report(&store).state, CopyState::Refused);
    fs::remove_dir_all(root.path().join("copy")).unwrap();
    is_shipped(&store);
}

#[test]
fn a_copy_whose_standing_cannot_be_told_stays_as_it_is() {
    let root = stopped();
    take_away(root.path());
    // More openings than are noted, and more log than the ring holds.
    for _ in 0..40 {
        let store = open_alone(root.path());
        for number in 0..100 {
            commit(&store, 100 + number);
            work(&store);
        }
    }
    bring_back(root.path());
    let before = files(&root.path().join("copy"));
    let store = open(root.path());
    work(&store);
    is_refused_and_whole(root.path(), store, &before);
}

#[test]
fn a_store_with_a_damaged_table_does_not_make_a_copy_anew_that_has_it_whole() {
    // The tier comes back before the mount, and during it.
    for comes_back_early in [true, false] {
        let root = stopped_after(|store| store.checkpoint().unwrap());
        let before = files(&root.path().join("copy"));
        take_away(root.path());
        let store = open_alone(root.path());
        commit(&store, 100);
        drop(store);
        let tables = files(&root.path().join("store/part0/tables"));
        let (table, mut bytes) = tables.into_iter().next().unwrap();
        bytes[40] ^= 16;
        fs::write(table, bytes).unwrap();
        if comes_back_early {
            bring_back(root.path());
        } else {
            fs::write(root.path().join("copy"), b"").unwrap();
        }
        let store = open(root.path());
        if !comes_back_early {
            fs::remove_file(root.path().join("copy")).unwrap();
            bring_back(root.path());
        }
        (0..3).for_each(|_| work(&store));
        is_refused_and_whole(root.path(), store, &before);
    }
}

#[test]
fn a_copy_that_cannot_be_read_stays_as_it_is() {
    let root = stopped();
    let slot = root.path().join("copy/copy");
    // A slot of a later program: its meaning is not known here.
    let mut bytes = fs::read(&slot).unwrap();
    bytes[8] = 9;
    bytes[4096 + 8] = 9;
    fs::write(&slot, bytes).unwrap();
    let before = files(&root.path().join("copy"));
    let store = open(root.path());
    (0..5).for_each(|_| work(&store));
    assert_eq!(report(&store).state, CopyState::Unreachable, "{:?}", report(&store));
    drop(store);
    assert!(files(&root.path().join("copy")) == before);
}
