//! A store whose file system is filled by another program. Needs root, to mount a small tmpfs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use polymux_meta::{
    Batch, LogStore, LogStoreOptions, MetadataStore, OpenMode, Room, StepProgress, StoreError, Workers,
};

const MEBIBYTE: u64 = 1024 * 1024;

/// A small file system of its own, unmounted at the end.
struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    fn mount() -> Option<Self> {
        Self::mount_with("size=48m")
    }

    fn mount_with(options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "polymux-test"]).arg(directory.path()).status();
        match status {
            Ok(status) if status.success() => Some(Self(directory)),
            _ => {
                eprintln!("skipped: a tmpfs cannot be mounted here (root is needed)");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("somebody else's file")
    }

    /// Writes until there is no free space.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        let mut length = 1024 * 1024;
        while length >= 4096 {
            if file.write_all(&vec![1; length]).is_err() {
                length /= 2;
            }
        }
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

fn options(mode: OpenMode, workers: Workers) -> LogStoreOptions {
    LogStoreOptions {
        memory_bytes: 3 * MEBIBYTE,
        log_bytes: 4 * MEBIBYTE,
        window_bytes: MEBIBYTE / 4,
        ballast_bytes: 8 * MEBIBYTE,
        table_bytes_max: MEBIBYTE,
        workers,
        ..LogStoreOptions::new(mode)
    }
}

fn put(store: &LogStore, number: u64) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    batch.put(number.to_be_bytes(), vec![7; 500]);
    store.commit(batch).map(drop)
}

fn delete(store: &LogStore, number: u64) -> Result<(), StoreError> {
    let mut batch = Batch::new();
    batch.delete(number.to_be_bytes());
    store.commit(batch).map(drop)
}

/// One round of all work by hand, or enough time for the threads of the store to check the free space at least once.
fn work(store: &LogStore, workers: Workers) {
    match workers {
        Workers::Manual => while store.step().unwrap() == StepProgress::Worked {},
        Workers::Threads => std::thread::sleep(std::time::Duration::from_millis(1500)),
    }
}

/// Works until `is_there`, for at most a minute: the threads of a store take longer on a busy machine.
fn work_until(store: &LogStore, workers: Workers, is_there: impl Fn(&LogStore) -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    work(store, workers);
    while !is_there(store) {
        assert!(std::time::Instant::now() < until, "{:?}: {:?}", store.room(), store.report());
        work(store, workers);
    }
}

fn has_plenty(store: &LogStore) -> bool {
    store.room() == Room::Plenty
}

fn filled_from_outside(workers: Workers) {
    let Some(place) = SmallFileSystem::mount() else { return };
    let path = place.path().join("meta");
    let store = LogStore::open(&path, &options(OpenMode::CreateNew, workers)).unwrap();
    let count = 20_000_u64;
    for number in 0..count {
        put(&store, number).unwrap();
    }
    work_until(&store, workers, has_plenty);
    place.fill();
    // It is noticed without any thread writing tables.
    work_until(&store, workers, |store| store.room() == Room::Ballast);
    // As much again as memtables and log hold many times over, all of it removals: ballast pays for their tables.
    for number in 0..count {
        delete(&store, number).unwrap();
        if number % 1000 == 0 {
            store.sync(store.committed()).unwrap();
        }
        // Old and new names alternate, so that some removals are of keys that tables hold, and some of keys that they do not.
        if number % 4 == 0 {
            delete(&store, count + number).unwrap();
        }
    }
    store.sync(store.committed()).unwrap();
    assert_eq!(store.range(&[0], &[0xff], usize::MAX).unwrap(), []);
    assert_eq!(store.room(), Room::Ballast);
    std::fs::remove_file(place.filler()).unwrap();
    work_until(&store, workers, has_plenty);
    let (held, wanted) = store.report().ballast_bytes;
    assert_eq!(held, wanted, "the ballast is whole again");
    put(&store, 1).unwrap();
    store.close().unwrap();
    let store = LogStore::open(&path, &options(OpenMode::Existing, workers)).unwrap();
    assert_eq!(store.range(&[0], &[0xff], usize::MAX).unwrap().len(), 1);
}

#[test]
fn removals_and_syncs_go_on_in_a_full_file_system_and_everything_does_afterwards() {
    for workers in [Workers::Manual, Workers::Threads] {
        filled_from_outside(workers);
    }
}

#[test]
fn growth_in_a_file_system_without_any_room_ends_in_no_space_and_loses_nothing() {
    let Some(place) = SmallFileSystem::mount() else { return };
    let path = place.path().join("meta");
    let store = LogStore::open(&path, &options(OpenMode::CreateNew, Workers::Manual)).unwrap();
    place.fill();
    // The store is not asked for its free space: this tests a caller that continues regardless.
    let mut written = 0;
    let error = loop {
        match put(&store, written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1_000_000, "there is no room for this");
        // Whatever the ballast gives back is taken at once.
        if written % 1000 == 0 {
            let mut file = std::fs::OpenOptions::new().append(true).open(place.filler()).unwrap();
            while file.write_all(&[1; 4096]).is_ok() {}
        }
    };
    assert_eq!(error, StoreError::NoSpace);
    store.sync(store.committed()).unwrap();
    let all: Vec<u64> = (0..written).collect();
    let keys = |store: &LogStore| -> Vec<u64> {
        let entries = store.range(&[0], &[0xff], usize::MAX).unwrap();
        entries.iter().map(|(key, _)| u64::from_be_bytes(key[..].try_into().unwrap())).collect()
    };
    assert_eq!(keys(&store), all);
    drop(store);
    let store = LogStore::open(&path, &options(OpenMode::Existing, Workers::Manual)).unwrap();
    assert_eq!(keys(&store), all, "everything acknowledged is there after opening in a full file system");
    assert_eq!(store.room(), Room::Ballast);
    std::fs::remove_file(place.filler()).unwrap();
    work_until(&store, Workers::Manual, has_plenty);
    put(&store, written).unwrap();
}

/// Takes every inode that there is. Returns the files that hold them.
fn take_all_inodes(place: &SmallFileSystem, name: &str) -> Vec<PathBuf> {
    let mut taken = Vec::new();
    loop {
        let path = place.path().join(format!("{name} {}", taken.len()));
        match std::fs::File::create_new(&path) {
            Ok(_) => taken.push(path),
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return taken,
            Err(error) => panic!("no inode can be taken: {error}"),
        }
    }
}

#[test]
fn metadata_grows_and_shrinks_in_a_file_system_without_inodes() {
    for workers in [Workers::Manual, Workers::Threads] {
        let Some(place) = SmallFileSystem::mount_with("size=96m,nr_inodes=400") else { return };
        let path = place.path().join("meta");
        let store = LogStore::open(&path, &options(OpenMode::CreateNew, workers)).unwrap();
        let taken = take_all_inodes(&place, "somebody else's");
        // Several times the capacity of the log: tables are written.
        let count = 20_000;
        for number in 0..count {
            put(&store, number).unwrap();
        }
        // There are bytes, and inodes are kept.
        work_until(&store, workers, has_plenty);
        // Whatever is given back another program takes, again and again: growth may end by it, before removal does.
        let mut more = Vec::new();
        let mut round = 0;
        while store.room() == Room::Plenty {
            more.extend(take_all_inodes(&place, &format!("round {round}")));
            for number in 0..4_000 {
                put(&store, count + number).unwrap();
            }
            work(&store, workers);
            round += 1;
            assert!(round < 1_000, "growth is never refused: {:?}", store.report());
            if round == 20 {
                break;
            }
        }
        for number in 0..count + 4_000 {
            delete(&store, number).unwrap();
        }
        store.sync(store.committed()).unwrap();
        store.close().unwrap();
        let store = LogStore::open(&path, &options(OpenMode::Existing, workers)).unwrap();
        assert_eq!(store.range(&[0], &[0xff], usize::MAX).unwrap(), []);
        for path in taken.iter().chain(&more) {
            std::fs::remove_file(path).unwrap();
        }
        // The inodes are held again.
        work_until(&store, workers, |store| {
            let (held, wanted) = store.report().spare_inodes;
            held == wanted && has_plenty(store)
        });
    }
}

/// Makes a store whose tables hold more of the spare inodes than may be missing, where no other inode is free, out of 70,000
/// keys in this order. Its log is so small that it is written to many tables; without threads nothing is merged meanwhile.
fn short_of_inodes(place: &SmallFileSystem, key_of: impl Fn(u64) -> u64) -> LogStore {
    let options = LogStoreOptions {
        log_bytes: MEBIBYTE,
        window_bytes: MEBIBYTE / 16,
        ..options(OpenMode::CreateNew, Workers::Manual)
    };
    let store = LogStore::open(&place.path().join("meta"), &options).unwrap();
    take_all_inodes(place, "somebody else's");
    for number in 0..70_000 {
        put(&store, key_of(number)).unwrap();
    }
    assert_eq!(store.room(), Room::Ballast, "{:?}", store.report());
    store
}

#[test]
fn tables_that_took_the_spare_inodes_are_merged_and_give_them_back() {
    let Some(place) = SmallFileSystem::mount_with("size=160m,nr_inodes=400") else { return };
    let store = short_of_inodes(&place, |number| number);
    work_until(&store, Workers::Manual, has_plenty);
    assert_ne!(store.report().table_counters.compactions, 0);
}

#[test]
fn a_merge_takes_the_inodes_that_it_frees_before_it_ends() {
    let Some(place) = SmallFileSystem::mount_with("size=160m,nr_inodes=400") else { return };
    let store = short_of_inodes(&place, |number| number);
    while store.report().table_counters.compactions == 0 {
        store.step().unwrap();
    }
    // What is free now another program could take before the next look, and a process that ends does not look again.
    let check = || {
        let (held, wanted) = store.report().spare_inodes;
        let free = rustix::fs::statvfs(place.path()).unwrap().f_ffree;
        assert!(held == wanted || free == 0, "{held} of {wanted} are held, {free} are free");
    };
    check();
    work_until(&store, Workers::Manual, has_plenty);
    // Also where there turns out to be nothing to merge.
    take_all_inodes(&place, "once more");
    for _ in 0..3 {
        store.step().unwrap();
        check();
    }
}

#[test]
fn a_merge_that_finds_too_few_inodes_gives_back_those_that_it_took() {
    let Some(place) = SmallFileSystem::mount_with("size=160m,nr_inodes=400") else { return };
    // All tables overlap, so they are merged into nearly as many whole ones, for which there are not enough inodes.
    let store = short_of_inodes(&place, |number| number * 7_919 % 70_001);
    let held_or_free = || {
        let free = rustix::fs::statvfs(place.path()).unwrap().f_ffree;
        u64::from(store.report().spare_inodes.0) + free
    };
    let before = held_or_free();
    for _ in 0..5 {
        work(&store, Workers::Manual);
    }
    assert_eq!(store.report().table_counters.compactions, 0, "this merge was possible: {:?}", store.report());
    // The memtable has become one more table.
    assert!(held_or_free() + 1 >= before, "{before} before, {} now", held_or_free());
}

#[test]
fn removals_go_on_when_somebody_takes_what_the_ballast_gives_up() {
    for workers in [Workers::Manual, Workers::Threads] {
        let Some(place) = SmallFileSystem::mount() else { return };
        let store = LogStore::open(&place.path().join("meta"), &options(OpenMode::CreateNew, workers)).unwrap();
        let count = 20_000_u64;
        for number in 0..count {
            put(&store, number).unwrap();
        }
        work(&store, workers);
        place.fill();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let gone = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Two pieces of the eight, each in the moment in which it is given up.
                let mut file = std::fs::OpenOptions::new().append(true).open(place.filler()).unwrap();
                let mut left = 4 * MEBIBYTE;
                while left > 0 && !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    left -= file.write(&[1; 65_536]).map_or(0, |written| written as u64).min(left);
                }
            });
            let gone = (0..count).try_for_each(|number| delete(&store, number));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            gone
        });
        assert_eq!(gone, Ok(()), "{:?}", store.report());
    }
}
