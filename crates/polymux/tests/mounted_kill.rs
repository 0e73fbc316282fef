//! `kill -9` of the daemon under load: whatever was synced is there and whole after the next mount, without a manual step.

mod mounted;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mounted::tree::checksum;
use mounted::{Plan, Random, TestVolume, is_heavy, one_at_a_time};

/// Data known to the writers to be durable: kept in the memory of the test, outside the mount.
#[derive(Default)]
struct Journal {
    /// Blocks of 4 KiB by file name and block number: checksum of the data synced last, and of the data written since.
    blocks: BTreeMap<(String, u64), Expected>,
    /// Names that were made and synced.
    names: Vec<String>,
}

#[derive(Clone, Default)]
struct Expected {
    synced: Option<u64>,
    written_since: Vec<u64>,
}

const BLOCK: usize = 4096;
const BLOCKS_PER_FILE: u64 = 600;

/// Writes blocks of one file and syncs now and then, until an error says that the daemon is gone.
fn write_until_killed(root: &Path, name: &str, seed: u64, journal: &Mutex<Journal>, stop: &AtomicBool) {
    let mut random = Random::new(seed);
    let Ok(file) = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(root.join(name)) else {
        return;
    };
    while !stop.load(Ordering::Relaxed) {
        let mut touched = Vec::new();
        for _ in 0..1 + random.below(8) {
            let block = random.below(BLOCKS_PER_FILE);
            let bytes = random.bytes(BLOCK);
            let key = (name.to_owned(), block);
            // Noted first: a write that fails half way may have happened.
            journal.lock().unwrap().blocks.entry(key.clone()).or_default().written_since.push(checksum(&bytes));
            if file.write_all_at(&bytes, block * BLOCK as u64).is_err() {
                return;
            }
            touched.push((key, checksum(&bytes)));
        }
        if file.sync_data().is_err() {
            return;
        }
        let mut journal = journal.lock().unwrap();
        for (key, sum) in touched {
            journal.blocks.insert(key, Expected { synced: Some(sum), written_since: Vec::new() });
        }
    }
}

/// Makes small files whole (write, sync, rename, sync of the directory) until the daemon is gone.
fn save_until_killed(root: &Path, round: u32, journal: &Mutex<Journal>, stop: &AtomicBool) {
    for number in 0.. {
        let name = format!("saved-{round}-{number}");
        let save = || -> std::io::Result<()> {
            let temporary = root.join("saving");
            fs::write(&temporary, name.as_bytes())?;
            File::open(&temporary)?.sync_all()?;
            fs::rename(&temporary, root.join(&name))?;
            File::open(root)?.sync_all()
        };
        if stop.load(Ordering::Relaxed) || save().is_err() {
            return;
        }
        journal.lock().unwrap().names.push(name);
    }
}

fn verify(root: &Path, journal: &Journal) {
    let zero = checksum(&[0; BLOCK]);
    for ((name, block), expected) in &journal.blocks {
        let file = File::open(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut bytes = [0_u8; BLOCK];
        let mut read = 0;
        while read < BLOCK {
            let count = file.read_at(&mut bytes[read..], block * BLOCK as u64 + read as u64).expect("it can be read");
            if count == 0 {
                break;
            }
            read += count;
        }
        let found = checksum(&bytes);
        let is_synced = read == BLOCK && expected.synced == Some(found);
        let is_written = read == BLOCK && expected.written_since.contains(&found);
        let is_unwritten = expected.synced.is_none() && (read == 0 || found == zero);
        let is_torn = !expected.written_since.is_empty() && expected.synced.is_none();
        assert!(
            is_synced || is_written || is_unwritten || is_torn,
            "{name}, block {block}: {read} bytes that are neither what was synced nor what was written later"
        );
    }
    for name in &journal.names {
        let text = fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name} is lost: {error}"));
        assert_eq!(&text, name, "a saved file is whole");
    }
}

#[test]
fn what_was_synced_survives_the_death_of_the_daemon() {
    let _turn = one_at_a_time();
    let Some(mut volume) = TestVolume::start(&Plan::anywhere().with_fast_capacity("6 MiB")) else { return };
    let journal = Arc::new(Mutex::new(Journal::default()));
    let rounds = if is_heavy() { 40 } else { 6 };
    let mut random = Random::new(2);
    for round in 0..rounds {
        let stop = Arc::new(AtomicBool::new(false));
        let root = volume.path().to_path_buf();
        std::thread::scope(|scope| {
            for writer in 0..3_u64 {
                let (root, journal, stop) = (&root, &journal, &stop);
                let seed = u64::from(round) * 10 + writer;
                scope.spawn(move || write_until_killed(root, &format!("data-{writer}"), seed, journal, stop));
            }
            scope.spawn(|| save_until_killed(&root, round, &journal, &stop));
            std::thread::sleep(Duration::from_millis(400 + random.below(1_200)));
            volume.kill_daemon();
            stop.store(true, Ordering::Relaxed);
        });
        volume.mount();
        let mut journal = journal.lock().unwrap();
        println!("round {round}: {} blocks and {} names to verify", journal.blocks.len(), journal.names.len());
        verify(volume.path(), &journal);
        settle(volume.path(), &mut journal);
    }
    volume.unmount();
    volume.mount();
    verify(volume.path(), &journal.lock().unwrap());
}

/// After a crash, the content found is synced and becomes the new truth: a block must not fall back later.
fn settle(root: &Path, journal: &mut Journal) {
    let keys: Vec<_> = journal.blocks.keys().cloned().collect();
    for (name, block) in keys {
        let file = OpenOptions::new().read(true).write(true).open(root.join(&name)).expect("it is there");
        let mut bytes = [0_u8; BLOCK];
        if file.read_exact_at(&mut bytes, block * BLOCK as u64).is_ok() {
            let settled = Expected { synced: Some(checksum(&bytes)), written_since: Vec::new() };
            journal.blocks.insert((name, block), settled);
        } else {
            journal.blocks.remove(&(name, block));
        }
    }
    for writer in 0..3 {
        if let Ok(file) = File::open(root.join(format!("data-{writer}"))) {
            file.sync_all().expect("it can be synced");
        }
    }
}
