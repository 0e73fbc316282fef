//! A copy under crashes of both sides at any step: it can be started from whenever it says so, and then it is exactly the
//! store as it was at the position that it names.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::directory::{CopyDirectory, LOG_FILE, SLOT_FILE};
use super::slot_format::FILE_LENGTH;
use super::*;
use crate::batch::Batch;
use crate::error::StoreError;
use crate::log::HEADER_LENGTH;
use crate::log::LogEnd;
use crate::log::crash_medium::CrashMedium;
use crate::log_store::{
    InUse, LogPlacement, LogStore, LogStoreOptions, LogView, OpenMode, StoreView, Workers, sequence_at,
};
use crate::store::MetadataStore;

const LOG_BYTES: u64 = 1024 * 1024;

/// An error made on purpose, to see that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// The log is not flushed before the slot.
    NoFlush,
    /// Versions are taken over before the log reaches as far as they do.
    TablesFirst,
}

/// Injected faults of a copy.
pub(crate) struct Faults {
    steps_left: AtomicU64,
    plant: Mutex<Option<Plant>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { steps_left: AtomicU64::new(u64::MAX), plant: Mutex::new(None) }
    }
}

impl Faults {
    pub(crate) fn step(&self) -> Result<(), StoreError> {
        let left = self.steps_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| StoreError::Io("the machine stops here".to_owned()))
    }

    pub(crate) fn plant(&self) -> Option<Plant> {
        *self.plant.lock().unwrap()
    }

    fn stop_after(&self, steps: u64) {
        self.steps_left.store(steps, Ordering::SeqCst);
    }
}

impl CopyDirectory {
    pub(crate) fn arrived_or_planted(&self, arrived: u64) -> u64 {
        if self.faults.plant() == Some(Plant::TablesFirst) { u64::MAX } else { arrived }
    }
}

fn options(mode: OpenMode, workers: Workers) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 192 * 1024,
        log_bytes: LOG_BYTES,
        window_bytes: 64 * 1024,
        ballast_bytes: 0,
        table_bytes_max: 64 * 1024,
        boundaries: vec![b"h".to_vec(), b"r".to_vec()],
        seeds: [1, 0x5eed],
        workers,
        ..LogStoreOptions::new(mode)
    }
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

/// A key and its new value; `None` where it is removed.
type Change = (Vec<u8>, Option<Vec<u8>>);

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// All transactions so far.
#[derive(Default)]
struct History(Vec<(Sequence, Vec<Change>)>);

impl History {
    /// The content as of a transaction.
    fn at(&self, sequence: Sequence) -> Content {
        let mut content = Content::new();
        for (_, changes) in self.0.iter().take_while(|(committed, _)| *committed <= sequence) {
            for (key, value) in changes {
                match value {
                    Some(value) => drop(content.insert(key.clone(), value.clone())),
                    None => drop(content.remove(key)),
                }
            }
        }
        content
    }
}

fn content_of(store: &LogStore) -> Content {
    store.range(b"", b"zzz", usize::MAX).unwrap().into_iter().collect()
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target)
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// A store, its copy, and the state known of them.
struct World {
    root: tempfile::TempDir,
    life: u32,
    store: LogStore,
    ring: Arc<CrashMedium>,
    slots: Arc<CrashMedium>,
    faults: Arc<Faults>,
    history: History,
    /// The last sequence that the copy was reported to hold while a store could be started from it.
    promised: Sequence,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        drop(LogStore::open(&root.path().join("store0"), &options(OpenMode::CreateNew, Workers::Manual)).unwrap());
        let ring = vec![0; usize::try_from(LOG_BYTES + HEADER_LENGTH).unwrap()];
        let slots = vec![0; usize::try_from(FILE_LENGTH).unwrap()];
        fs::create_dir(root.path().join("copy0")).unwrap();
        Self::open(root, 0, ring, slots, History::default())
    }

    fn open(root: tempfile::TempDir, life: u32, ring: Vec<u8>, slots: Vec<u8>, history: History) -> Self {
        let path = root.path().join(format!("store{life}"));
        let mut store = LogStore::open(&path, &options(OpenMode::Existing, Workers::Manual)).unwrap();
        let (ring, slots) = (Arc::new(CrashMedium::of(ring)), Arc::new(CrashMedium::of(slots)));
        let copy = root.path().join(format!("copy{life}"));
        let directory = CopyDirectory::open_with(&copy, 3, ring.clone(), slots.clone()).unwrap();
        let faults = directory.faults.clone();
        let copying = CopyOptions { wait_max: Duration::from_millis(200), ..CopyOptions::new(copy) };
        store.attach_copy(copying, directory);
        let mut history = history;
        history.0.retain(|(committed, _)| *committed <= store.committed());
        assert_eq!(content_of(&store), history.at(store.committed()), "the store itself survives");
        Self { root, life, store, ring, slots, faults, history, promised: Sequence(0) }
    }

    fn commit(&mut self, random: &mut Random) {
        let mut batch = Batch::new();
        let mut changes = Vec::new();
        for _ in 0..=random.below(4) {
            let key = format!("{}{}", ["a", "k", "t"][usize::try_from(random.below(3)).unwrap()], random.below(60));
            if random.below(4) == 0 {
                batch.delete(&key);
                changes.push((key.into_bytes(), None));
            } else {
                let mut value = random.0.to_le_bytes().to_vec();
                value.resize(8 + usize::try_from(random.below(4000)).unwrap(), 7);
                batch.put(&key, &value);
                changes.push((key.into_bytes(), Some(value)));
            }
        }
        let sequence = self.store.commit(batch).unwrap();
        self.history.0.push((sequence, changes));
    }

    fn state(&self) -> CopyState {
        self.store.report().copy.unwrap().state
    }

    fn act(&mut self, random: &mut Random) {
        match random.below(40) {
            0..30 => self.commit(random),
            30..33 => self.store.sync(self.store.committed()).unwrap(),
            33..37 => drop(self.store.step().unwrap()),
            37 => {
                let through = self.store.committed();
                self.store.sync(through).unwrap();
                let outcome = self.store.sync_copy(through).unwrap();
                assert!(outcome == CopySync::Safe || self.state() != CopyState::Current, "it comes along");
            }
            38 => self.store.checkpoint().unwrap(),
            // A tier that is slow for a while: enough to lose the connection to the log.
            _ if random.below(4) == 0 => (0..400).for_each(|_| self.commit(random)),
            _ => {}
        }
        self.note_promise();
    }

    fn note_promise(&mut self) {
        if self.state() == CopyState::Current {
            self.promised = self.promised.max(self.store.copied());
        }
    }

    /// Both machines stop. Checks the state of the copy, and goes on with the remains of the two.
    fn crash(self, random: &mut Random, context: &str) -> Self {
        let life = self.life + 1;
        let (store, copy) =
            (self.root.path().join(format!("store{life}")), self.root.path().join(format!("copy{life}")));
        let share = random.below(101);
        let ring = self.ring.crash(|| random.below(100) < share);
        let slots = self.slots.crash(|| random.below(100) < share);
        copy_tree(&self.root.path().join(format!("store{}", self.life)), &store);
        copy_tree(&self.root.path().join(format!("copy{}", self.life)), &copy);
        let may_be_incomplete = matches!(self.state(), CopyState::Rebuilding | CopyState::Failing);
        // The work of the store at its end is not part of the crash.
        self.faults.stop_after(0);
        let Self { root, store: old, history, promised, .. } = self;
        drop(old);
        check_copy(&copy, &ring, &slots, &history, promised, may_be_incomplete, context);
        Self::open(root, life, ring, slots, history)
    }
}

fn check_copy(
    copy: &Path,
    ring: &[u8],
    slots: &[u8],
    history: &History,
    promised: Sequence,
    may_be_incomplete: bool,
    context: &str,
) {
    fs::write(copy.join(LOG_FILE), ring).unwrap();
    fs::write(copy.join(SLOT_FILE), slots).unwrap();
    let described = describe_copy(copy).unwrap();
    let Some(described) = described.filter(|described| described.worth != CopyWorth::Incomplete) else {
        assert!(may_be_incomplete, "{context}: a current copy is complete");
        return;
    };
    assert!(described.arrived >= promised, "{context}: {described:?} of {promised:?}");
    let restored = copy.with_extension("restored");
    restore_from_copy(copy, &restored, &options(OpenMode::Existing, Workers::Manual))
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    for _ in 0..2 {
        let store = LogStore::open(&restored, &options(OpenMode::Existing, Workers::Manual));
        let store = store.unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(store.committed(), described.arrived, "{context}");
        assert!(content_of(&store) == history.at(described.arrived), "{context}: the copy is a moment of the store");
    }
    fs::remove_dir_all(restored).unwrap();
}

fn survive(seed: u64, plant: Option<Plant>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut world = World::new();
    for life in 0..4 {
        *world.faults.plant.lock().unwrap() = plant;
        let actions = 20 + random.below(150);
        let (stop_at, steps) = (random.below(actions), random.below(80));
        let (heal_at, heals) = (stop_at + random.below(60), random.below(2) == 0);
        for action in 0..actions {
            if action == stop_at {
                world.faults.stop_after(steps);
            }
            if heals && action == heal_at {
                world.faults.stop_after(u64::MAX);
            }
            world.act(&mut random);
        }
        world = world.crash(&mut random, &format!("seed {seed}, life {life}"));
    }
    // In the end a copy that nothing disturbs has everything.
    while world.state() != CopyState::Current || world.store.copied() < world.store.durable() {
        world.store.step().unwrap();
    }
    assert_eq!(world.store.report().copy.unwrap().lag_bytes, Some(0));
}

#[test]
fn whatever_crashes_and_when_a_copy_that_says_it_is_complete_is_the_store_at_the_position_it_names() {
    for seed in 1..12 {
        survive(seed, None);
    }
}

#[test]
#[should_panic(expected = "seed")]
fn the_crash_test_notices_a_log_that_is_not_flushed_before_its_slot() {
    for seed in 1..60 {
        survive(seed, Some(Plant::NoFlush));
    }
}

#[test]
#[should_panic(expected = "seed")]
fn the_crash_test_notices_tables_that_know_more_than_the_log() {
    for seed in 1..60 {
        survive(seed, Some(Plant::TablesFirst));
    }
}

fn paths(root: &tempfile::TempDir) -> (PathBuf, PathBuf) {
    (root.path().join("store"), root.path().join("copy"))
}

fn with_copy(mode: OpenMode, copy: &Path, interval: Duration) -> LogStoreOptions {
    let copying = CopyOptions { interval, wait_max: Duration::from_secs(5), ..CopyOptions::new(copy.to_owned()) };
    LogStoreOptions { copy: Some(copying), ..options(mode, Workers::Threads) }
}

fn put(store: &LogStore, key: &str, value: &str) -> Sequence {
    let mut batch = Batch::new();
    batch.put(key, value);
    store.commit(batch).unwrap()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_store_that_is_lost_starts_from_its_copy_and_the_copy_goes_on_without_being_made_anew() {
    let root = tempfile::tempdir().unwrap();
    let (path, copy) = paths(&root);
    let store = LogStore::open(&path, &with_copy(OpenMode::CreateNew, &copy, Duration::from_secs(1))).unwrap();
    put(&store, "a", "1");
    put(&store, "q", "2");
    store.close().unwrap();
    assert_eq!(describe_copy(&copy).unwrap().unwrap().worth, CopyWorth::Closed);
    fs::remove_dir_all(&path).unwrap();
    let described = restore_from_copy(&copy, &path, &options(OpenMode::Existing, Workers::Threads)).unwrap();
    assert_eq!(described.worth, CopyWorth::Closed);
    let store = LogStore::open(&path, &with_copy(OpenMode::Existing, &copy, Duration::from_secs(1))).unwrap();
    assert_eq!(store.get(b"a").unwrap().as_deref(), Some(b"1".as_slice()));
    assert_eq!(store.get(b"q").unwrap().as_deref(), Some(b"2".as_slice()));
    let report = store.report().copy.unwrap();
    assert_eq!((report.state, report.rebuilds), (CopyState::Current, 0), "{report:?}");
}

/// Commits and syncs so many transactions, each after the one before was durable, until the copy holds them.
fn put_synced(store: &LogStore, keys: std::ops::Range<u32>) {
    for number in keys {
        let sequence = put(store, &format!("key{number:03}"), "value");
        store.sync(sequence).unwrap();
    }
    wait_until("the copy comes along", || store.copied() >= store.committed());
}

#[test]
fn a_view_of_a_copy_ends_where_its_slot_says_whatever_an_earlier_shipment_left_behind_that() {
    let root = tempfile::tempdir().unwrap();
    let (path, copy) = paths(&root);
    let synchronous = |mode| with_copy(mode, &copy, Duration::ZERO);
    let boundaries = options(OpenMode::Existing, Workers::Threads).boundaries;
    let store = LogStore::open(&path, &synchronous(OpenMode::CreateNew)).unwrap();
    wait_until("the copy is made", || store.report().copy.unwrap().state == CopyState::Current);
    put_synced(&store, 0..10);
    let slots = fs::read(copy.join(SLOT_FILE)).unwrap();
    put_synced(&store, 10..40);
    drop(store);
    // As if the process had been killed between shipping the log and saying so.
    fs::write(copy.join(SLOT_FILE), slots).unwrap();
    fs::remove_dir_all(&path).unwrap();
    let view = StoreView::open(&copy, &LogPlacement::Block, &boundaries).unwrap();
    assert!(view.get(b"key009").unwrap().is_some() && view.get(b"key010").unwrap().is_none());
    drop(view);

    // Another history goes over a part of that one.
    restore_from_copy(&copy, &path, &options(OpenMode::Existing, Workers::Threads)).unwrap();
    let store = LogStore::open(&path, &synchronous(OpenMode::Existing)).unwrap();
    assert_eq!(store.report().copy.unwrap().rebuilds, 0);
    put_synced(&store, 100..105);
    match LogView::open(&copy, &LogPlacement::Block, InUse::Refuse) {
        Err(StoreError::Open(reason)) => assert!(reason.contains("is in use"), "{reason}"),
        _ => panic!("the copy is in use"),
    }
    let beside = LogView::open(&copy, &LogPlacement::Block, InUse::Read).unwrap();
    assert!(beside.is_in_use() && beside.visit(|_| Ok(())).is_ok());
    drop(store);
    // A reader keeps no store from going on with its copy.
    let reader = StoreView::open(&copy, &LogPlacement::Block, &boundaries).unwrap();
    let store = LogStore::open(&path, &synchronous(OpenMode::Existing)).unwrap();
    assert_eq!(store.report().copy.unwrap().rebuilds, 0);
    put_synced(&store, 105..106);
    drop((store, reader));
    let view = StoreView::open(&copy, &LogPlacement::Block, &boundaries).unwrap();
    assert!(view.get(b"key104").unwrap().is_some() && view.get(b"key010").unwrap().is_none());
    let (end, reason) = view.log().visit(|_| Ok(())).unwrap();
    assert_eq!((sequence_at(end), reason), (view.committed(), LogEnd::OfCopy));
    drop(view);
    File::options().write(true).open(copy.join(SLOT_FILE)).unwrap().set_len(0).unwrap();
    match StoreView::open(&copy, &LogPlacement::Block, &boundaries) {
        Err(StoreError::Open(reason)) => assert!(reason.contains("is not complete"), "{reason}"),
        _ => panic!("the copy was only begun"),
    }
}

#[test]
fn a_synchronous_copy_holds_a_transaction_when_its_sync_returns() {
    let root = tempfile::tempdir().unwrap();
    let (path, copy) = paths(&root);
    let store = LogStore::open(&path, &with_copy(OpenMode::CreateNew, &copy, Duration::ZERO)).unwrap();
    wait_until("the copy is made", || store.report().copy.unwrap().state == CopyState::Current);
    for number in 0..50 {
        let sequence = put(&store, &format!("key{number}"), "value");
        store.sync(sequence).unwrap();
        assert!(store.copied() >= sequence);
    }
}

#[test]
fn a_copy_of_another_store_or_of_another_time_is_made_anew_and_one_in_use_is_not_touched() {
    let root = tempfile::tempdir().unwrap();
    let (path, copy) = paths(&root);
    let second = Duration::from_millis(10);
    let store = LogStore::open(&path, &with_copy(OpenMode::CreateNew, &copy, second)).unwrap();
    put(&store, "a", "1");
    let other_options = LogStoreOptions { seeds: [8, 9], ..with_copy(OpenMode::CreateNew, &copy, second) };
    let other = LogStore::open(&root.path().join("other"), &other_options).unwrap();
    assert_eq!(other.report().copy.unwrap().state, CopyState::Unreachable, "it is in use");
    other.close().unwrap();
    store.close().unwrap();
    // Without the copy the store goes on, so the copy is of another time then.
    let alone = LogStore::open(&path, &options(OpenMode::Existing, Workers::Threads)).unwrap();
    put(&alone, "a", "2");
    alone.close().unwrap();
    for directory in ["store", "other"] {
        let options = with_copy(OpenMode::Existing, &copy, second);
        let store = LogStore::open(&root.path().join(directory), &options).unwrap();
        assert_eq!(store.report().copy.unwrap().rebuilds, 1);
        wait_until("the copy is made anew", || store.report().copy.unwrap().state == CopyState::Current);
        let expected = content_of(&store);
        store.close().unwrap();
        let restored = root.path().join("restored");
        restore_from_copy(&copy, &restored, &options).unwrap();
        let restored_store = LogStore::open(&restored, &super::tests::options(OpenMode::Existing, Workers::Manual));
        assert_eq!(content_of(&restored_store.unwrap()), expected);
        fs::remove_dir_all(restored).unwrap();
    }
}

#[test]
fn a_copy_that_fails_stops_nobody_once_it_is_given_up_and_catches_up_when_it_is_back() {
    let mut world = World::new();
    let mut random = Random(99);
    while world.state() != CopyState::Current {
        world.store.step().unwrap();
    }
    world.faults.stop_after(0);
    world.commit(&mut random);
    let freed = world.store.committed();
    world.store.sync(freed).unwrap();
    assert_eq!(world.store.sync_copy(freed).unwrap(), CopySync::Late, "something older could be started from it");
    assert_eq!(world.state(), CopyState::Failing);
    // The epoch is raised: the copy does not have that transaction.
    world.commit(&mut random);
    let raised = world.store.committed();
    world.store.sync(raised).unwrap();
    assert_eq!(world.store.abandon_copy(raised), CopySync::Safe);
    assert_eq!(world.store.sync_copy(freed).unwrap(), CopySync::Safe);
    assert!(world.store.copied() >= freed);
    assert_eq!(world.state(), CopyState::Unreachable);
}

#[test]
fn a_copy_that_already_has_the_new_epoch_is_not_given_up() {
    let mut world = World::new();
    let mut random = Random(7);
    world.commit(&mut random);
    let raised = world.store.committed();
    while world.state() != CopyState::Current || world.store.copied() < raised {
        world.store.sync(raised).unwrap();
        world.store.step().unwrap();
    }
    assert_eq!(world.store.abandon_copy(raised), CopySync::Late);
    assert_eq!(world.state(), CopyState::Current);
}

#[test]
fn a_damaged_copy_is_refused_and_a_healthy_store_is_found_to_be_one() {
    let root = tempfile::tempdir().unwrap();
    let (path, copy) = paths(&root);
    let store = LogStore::open(&path, &with_copy(OpenMode::CreateNew, &copy, Duration::from_millis(10))).unwrap();
    let sequence = put(&store, "a", "1");
    store.sync(sequence).unwrap();
    wait_until("it arrives", || store.report().copy.unwrap().state == CopyState::Current && store.copied() >= sequence);
    assert!(matches!(LogStore::check(&path, &options(OpenMode::Existing, Workers::Manual)), Err(StoreError::Open(_))));
    let crashed = root.path().join("crashed");
    copy_tree(&copy, &crashed);
    let mut log = fs::read(crashed.join(LOG_FILE)).unwrap();
    let entry = usize::try_from(HEADER_LENGTH).unwrap() + 64 + 26;
    log[entry] ^= 1;
    fs::write(crashed.join(LOG_FILE), log).unwrap();
    let restoring = options(OpenMode::Existing, Workers::Manual);
    let error = restore_from_copy(&crashed, &root.path().join("restored"), &restoring).unwrap_err();
    assert!(matches!(error, StoreError::Corrupted(_)), "{error}");
    assert!(!root.path().join("restored").exists());
    drop(store);
    LogStore::check(&path, &options(OpenMode::Existing, Workers::Manual)).unwrap();
    fs::remove_file(path.join("part1").join("current")).unwrap();
    let error = LogStore::check(&path, &options(OpenMode::Existing, Workers::Manual)).unwrap_err();
    assert!(matches!(error, StoreError::Corrupted(_)), "{error}");
}
