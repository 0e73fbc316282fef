//! Durable entries of the log that are damaged, against a log that a power failure cut.
//!
//! A store is at work on a directory, quiet at the moment at which its files are taken; the copies are
//! changed and opened like the files left by a crash.

use std::fs;
use std::path::{Path, PathBuf};

use polymux_meta::{
    Batch, CopyOptions, InUse, LogEnd, LogPlacement, LogStore, LogStoreOptions, LogView, MetadataStore, OpenMode,
    StoreError, StoreView, Workers, describe_copy, restore_from_copy,
};

/// Bytes of the headers of a log.
const HEADERS: u64 = 8192;

fn options(mode: OpenMode, directory: &Path) -> LogStoreOptions {
    let mut options = LogStoreOptions::new(mode);
    options.log_bytes = 1024 * 1024;
    options.window_bytes = 64 * 1024;
    options.ballast_bytes = 0;
    options.seeds = [11, 22];
    options.workers = Workers::Manual;
    options.copy = Some(CopyOptions::new(directory.join("copy")));
    options
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// Commits one transaction, and makes it durable.
fn commit(store: &LogStore, number: u64) {
    let mut batch = Batch::new();
    batch.put(key(number), vec![u8::try_from(number % 251).unwrap(); 100]);
    let sequence = store.commit(batch).unwrap();
    store.sync(sequence).unwrap();
}

/// The image of a quiet store after a power failure: everything, and its second copy.
fn crash_image(directory: &Path) -> tempfile::TempDir {
    let image = tempfile::tempdir().unwrap();
    copy_tree(directory, image.path());
    image
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

/// A volume whose log holds the durable transactions `0 .. count`; its copy has those before `shipped`.
fn stopped_by_a_crash(count: u64, shipped: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store =
        LogStore::open(&directory.path().join("store"), &options(OpenMode::CreateNew, directory.path())).unwrap();
    for number in 0..count {
        if number == shipped {
            while store.step().unwrap() == polymux_meta::StepProgress::Worked {}
            let through = store.durable();
            assert_eq!(store.sync_copy(through).unwrap(), polymux_meta::CopySync::Safe);
        }
        commit(&store, number);
    }
    if shipped == count {
        while store.step().unwrap() == polymux_meta::StepProgress::Worked {}
        assert_eq!(store.sync_copy(store.durable()).unwrap(), polymux_meta::CopySync::Safe);
    }
    crash_image(directory.path())
}

fn open(image: &Path) -> Result<LogStore, StoreError> {
    LogStore::open(&image.join("store"), &options(OpenMode::Existing, image))
}

/// Position and length of each entry of the log.
fn entries(image: &Path) -> Vec<(u64, u64)> {
    let view = LogView::open(&image.join("store"), &LogPlacement::Block, InUse::Refuse).unwrap();
    let mut found = Vec::new();
    let visited = view.visit(|entry| {
        found.push((entry.position, entry.length));
        Ok(())
    });
    visited.unwrap();
    found
}

/// Changes bytes of the log at a position, which lies in the first round of the ring.
fn change(image: &Path, position: u64, length: usize, change: impl FnOnce(&mut [u8])) {
    change_file(&image.join("store/log"), HEADERS + position, length, change);
}

fn change_file(path: &PathBuf, offset: u64, length: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(path).unwrap();
    let offset = usize::try_from(offset).unwrap();
    change(&mut bytes[offset..offset + length]);
    fs::write(path, bytes).unwrap();
}

/// Opening is refused, with nothing changed, and the store made from its copy has the transactions `0 .. shipped`.
fn is_refused_and_comes_from_the_copy(image: &Path, shipped: u64, saying: &str) {
    let before = (fs::read(image.join("store/log")).unwrap(), fs::read(image.join("copy/copy")).unwrap());
    match open(image) {
        Err(StoreError::Corrupted(reason)) => assert!(reason.contains(saying), "{reason}"),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was opened"),
    }
    let after = (fs::read(image.join("store/log")).unwrap(), fs::read(image.join("copy/copy")).unwrap());
    assert!(before == after, "neither the store nor its copy is changed");
    fs::rename(image.join("store"), image.join("aside")).unwrap();
    restore_from_copy(&image.join("copy"), &image.join("store"), &options(OpenMode::Existing, image)).unwrap();
    let store = open(image).unwrap();
    for number in 0..shipped {
        assert!(store.get(&key(number)).unwrap().is_some(), "transaction {number}");
    }
}

#[test]
fn a_damaged_entry_with_later_durable_ones_is_told_from_a_torn_tail() {
    let image = stopped_by_a_crash(20, 20);
    let (position, length) = entries(image.path())[7];
    // More than one bit, so that only later entries can reveal it.
    change(image.path(), position + 64, 32, |bytes| bytes.fill(0xa5));
    let checked = LogStore::check(&image.path().join("store"), &options(OpenMode::Existing, image.path()));
    assert!(matches!(checked, Err(StoreError::Corrupted(_))), "{checked:?} of {length} bytes");
    assert!(StoreView::open(&image.path().join("store"), &LogPlacement::Block, &[]).is_err(), "for fsck -n");
    let view = LogView::open(&image.path().join("store"), &LogPlacement::Block, InUse::Refuse).unwrap();
    let (end, reason) = view.visit(|_| Ok(())).unwrap();
    assert!(end == position && matches!(reason, LogEnd::Damaged(_)), "{end}, {reason:?}");
    drop(view);
    is_refused_and_comes_from_the_copy(image.path(), 20, "the log is damaged at");
}

#[test]
fn a_copy_that_knows_more_than_the_store_stops_the_opening_and_stays_as_it_is() {
    let image = stopped_by_a_crash(20, 20);
    let (position, _) = entries(image.path())[12];
    let (last, length) = *entries(image.path()).last().unwrap();
    // As if the device had lost all writes from there on: the log itself proves nothing.
    change(image.path(), position, usize::try_from(last + length - position).unwrap(), |bytes| bytes.fill(0));
    is_refused_and_comes_from_the_copy(image.path(), 20, "its second copy");
}

#[test]
fn one_wrong_bit_in_the_last_durable_entry_is_no_torn_tail() {
    for offset in [0, 5, 9, 17, 22, 28, 60, 120] {
        let image = stopped_by_a_crash(20, 10);
        let (position, _) = *entries(image.path()).last().unwrap();
        change(image.path(), position + offset, 1, |bytes| bytes[0] ^= 1);
        is_refused_and_comes_from_the_copy(image.path(), 10, "one bit of the entry");
    }
}

#[test]
fn a_lost_header_is_noticed_by_the_entries_that_were_written_after_it() {
    let image = stopped_by_a_crash(3, 3);
    {
        let store = open(image.path()).unwrap();
        for number in 3..10 {
            commit(&store, number);
        }
        assert_eq!(store.sync_copy(store.durable()).unwrap(), polymux_meta::CopySync::Safe);
    }
    let log = image.path().join("store/log");
    let bytes = fs::read(&log).unwrap();
    let turn = |slot: usize| u64::from_le_bytes(bytes[slot * 4096 + 40..slot * 4096 + 48].try_into().unwrap());
    let newest = if turn(0) > turn(1) { 0 } else { 4096 };
    change_file(&log, newest + 52, 1, |bytes| bytes[0] ^= 4);
    is_refused_and_comes_from_the_copy(image.path(), 10, "header of the log");
}

#[test]
fn what_an_unfinished_flush_left_out_of_order_is_a_torn_tail() {
    let directory = tempfile::tempdir().unwrap();
    let store =
        LogStore::open(&directory.path().join("store"), &options(OpenMode::CreateNew, directory.path())).unwrap();
    for number in 0..5 {
        commit(&store, number);
    }
    let mut last = store.durable();
    for number in 5..12 {
        let mut batch = Batch::new();
        batch.put(key(number), vec![9; 100]);
        last = store.commit(batch).unwrap();
    }
    store.sync(last).unwrap();
    let image = crash_image(directory.path());
    // Of the seven transactions of one flush the second did not reach the device.
    let (position, length) = entries(image.path())[6];
    change(image.path(), position, usize::try_from(length).unwrap(), |bytes| bytes.fill(0));
    let store = open(image.path()).unwrap();
    for number in 0..12 {
        assert_eq!(store.get(&key(number)).unwrap().is_some(), number < 6, "transaction {number}");
    }
    assert!(describe_copy(&image.path().join("copy")).is_ok());
}
