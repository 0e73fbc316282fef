//! The cost of one operation on a name in `polymux-fs` itself: nanoseconds, and requests to the metadata store.
//!
//! The tier is simulated, and the store is a plain table in memory whose own time is measured and shown apart, so that
//! the rest is the cost of the file system. Run it with
//! `cargo run --release -p polymux-fs --example namespace_cost [operations] [threads ...]`.
//!
//! CPU time comes from `/proc/thread-self/schedstat`, which other load on the machine disturbs less than the wall clock.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polymux_fs::{
    Caller, FileSystem, MountOptions, NewVolume, OpenOptions, Parts, RenameMode, TierMember, TierPresence,
};
use polymux_meta::{Batch, Entry, MetadataStore, Sequence, StoreError};
use polymux_sim::MemoryTier;
use polymux_types::{Ino, SystemClock, VolumeId};

const SHARDS: usize = 64;

/// A call that takes longer was interrupted by something else, and says nothing of its own cost.
const CALL_NS_MAX: u64 = 30_000;

type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// The requests to a store.
#[derive(Clone, Copy, Default)]
struct Demand {
    gets: u64,
    ranges: u64,
    commits: u64,
    changes: u64,
    bytes: u64,
    /// Of those calls that were timed, and their number.
    timed_ns: u64,
    timed_calls: u64,
}

/// A store without log or durability: tables by the number in the key, so that the records in one directory, or of
/// one inode, are in one table.
struct TableStore {
    shards: [Mutex<Table>; SHARDS],
    sequence: AtomicU64,
    durable: AtomicU64,
    demand: [AtomicU64; 7],
    is_timed: bool,
}

impl TableStore {
    fn new(is_timed: bool) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            sequence: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            demand: Default::default(),
            is_timed,
        }
    }

    fn shard(&self, key: &[u8]) -> &Mutex<Table> {
        let number = key.get(5..13).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
        let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.shards[usize::try_from(place).expect("six bits fit")]
    }

    fn count(&self, place: usize, number: u64) {
        // With several threads the counters would dominate the measurement.
        if self.is_timed {
            self.demand[place].fetch_add(number, Ordering::Relaxed);
        }
    }

    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.is_timed {
            return work();
        }
        let start = Instant::now();
        let result = work();
        let taken_ns = u64::try_from(start.elapsed().as_nanos()).expect("a call is shorter than 584 years");
        if taken_ns < CALL_NS_MAX {
            self.count(5, taken_ns);
            self.count(6, 1);
        }
        result
    }

    fn demand(&self) -> Demand {
        let [gets, ranges, commits, changes, bytes, timed_ns, timed_calls] =
            std::array::from_fn(|place| self.demand[place].load(Ordering::Relaxed));
        Demand { gets, ranges, commits, changes, bytes, timed_ns, timed_calls }
    }
}

impl MetadataStore for TableStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.count(0, 1);
        self.timed(|| Ok(self.shard(key).lock().get(key).cloned()))
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.count(1, 1);
        self.timed(|| {
            let is_of_one = from.len() >= 13 && to.len() == 13;
            let shards: Vec<_> = if is_of_one { vec![self.shard(from)] } else { self.shards.iter().collect() };
            let mut found: Vec<Entry> = Vec::new();
            for shard in shards {
                let table = shard.lock();
                let entries = table.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))).take(limit);
                found.extend(entries.map(|(key, value)| (key.clone(), value.clone())));
            }
            found.sort_unstable();
            found.truncate(limit);
            Ok(found)
        })
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.count(2, 1);
        self.count(3, batch.len() as u64);
        self.count(4, batch.payload_bytes() as u64);
        self.timed(|| {
            for change in &batch {
                let mut table = self.shard(change.key).lock();
                match change.value {
                    Some(value) => table.insert(change.key.to_vec(), value.to_vec()),
                    None => table.remove(change.key),
                };
            }
            Ok(Sequence(self.sequence.fetch_add(1, Ordering::Relaxed) + 1))
        })
    }

    fn sync(&self, through: Sequence) -> Result<(), StoreError> {
        self.durable.fetch_max(through.0, Ordering::Relaxed);
        Ok(())
    }

    fn durable(&self) -> Sequence {
        Sequence(self.durable.load(Ordering::Relaxed))
    }

    fn committed(&self) -> Sequence {
        Sequence(self.sequence.load(Ordering::Relaxed))
    }

    fn bytes_used(&self) -> u64 {
        0
    }
}

fn mount(store: &Arc<TableStore>) -> FileSystem {
    let clock = Arc::new(SystemClock::new());
    let tier = Arc::new(MemoryTier::with_clock("fast", 1 << 40, clock.clone()));
    let parts = || Parts {
        name: "cost".to_owned(),
        tiers: vec![TierMember::new("fast", TierPresence::Present(tier.clone()))],
        store: store.clone(),
        metadata_tier: Some("fast".to_owned()),
        clock: clock.clone(),
        seed: 1,
    };
    let volume = NewVolume { id: VolumeId::from_random([7; 16]), root_uid: 0, root_gid: 0, root_permissions: 0o755 };
    FileSystem::format(&parts(), &volume).expect("a new volume is made");
    FileSystem::mount(parts(), MountOptions::default()).expect("a new volume mounts")
}

/// A kind of operation: its effect on the name of a number in a directory.
type Operation = fn(&FileSystem, &Caller, Ino, u64);

const OPERATIONS: [(&str, Operation); 7] = [
    ("create", |fs, caller, parent, number| {
        let options = OpenOptions { read: true, write: true, exclusive: true, ..OpenOptions::default() };
        let (_, handle) = fs.create(caller, parent, &name(b'f', number), 0o644, options).expect("a file is made");
        fs.release(handle).expect("a file is closed");
    }),
    ("lookup", |fs, caller, parent, number| {
        fs.lookup(caller, parent, &name(b'f', number)).expect("the name is there");
    }),
    ("link", |fs, caller, parent, number| {
        let ino = fs.lookup(caller, parent, &name(b'f', number)).expect("the name is there").ino;
        fs.link(caller, ino, parent, &name(b'l', number)).expect("a link is made");
        fs.unlink(caller, parent, &name(b'l', number)).expect("a link is removed");
    }),
    ("rename", |fs, caller, parent, number| {
        let (from, to) = (name(b'f', number), name(b'g', number));
        fs.rename(caller, parent, &from, parent, &to, RenameMode::Replace).expect("a file is renamed");
    }),
    ("unlink", |fs, caller, parent, number| {
        fs.unlink(caller, parent, &name(b'g', number)).expect("a file is removed");
    }),
    ("mkdir", |fs, caller, parent, number| {
        fs.make_directory(caller, parent, &name(b'd', number), 0o755).expect("a directory is made");
    }),
    ("rmdir", |fs, caller, parent, number| {
        fs.remove_directory(caller, parent, &name(b'd', number)).expect("a directory is removed");
    }),
];

/// Eight bytes: a letter and a number in seven digits.
fn name(letter: u8, mut number: u64) -> [u8; 8] {
    let mut name = [letter; 8];
    for digit in name[1..].iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).expect("a digit fits");
        number /= 10;
    }
    name
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts scheduling");
    let first = text.split(' ').next().and_then(|field| field.parse().ok());
    Duration::from_nanos(first.expect("the first field is a number of nanoseconds"))
}

/// Runs `count` operations on each of `threads`, each in its own directory; wall-clock time and CPU time of all.
fn run(fs: &FileSystem, operation: Operation, threads: u64, count: u64) -> (Duration, Duration) {
    let barrier = Barrier::new(usize::try_from(threads + 1).expect("few threads"));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let caller = Caller::root();
                    let parent = fs.lookup(&caller, Ino::ROOT, &name(b't', thread)).expect("made before").ino;
                    barrier.wait();
                    let start = cpu_time();
                    for number in 0..count {
                        operation(fs, &caller, parent, number);
                    }
                    cpu_time() - start
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let used = workers.into_iter().map(|worker| worker.join().expect("no worker failed")).sum();
        (start.elapsed(), used)
    })
}

fn make_directories(fs: &FileSystem, threads: u64) {
    for thread in 0..threads {
        fs.make_directory(&Caller::root(), Ino::ROOT, &name(b't', thread), 0o755).expect("a directory is made");
    }
}

fn show_single(count: u64) {
    println!("one thread, {count} operations each; per operation:");
    println!(
        "{:8} {:>8} {:>8} {:>6} {:>6} {:>7} {:>7} {:>6}",
        "", "fs ns", "store ns", "gets", "ranges", "commits", "changes", "bytes"
    );
    let store = Arc::new(TableStore::new(true));
    let fs = mount(&store);
    make_directories(&fs, 1);
    for (label, operation) in OPERATIONS {
        let before = store.demand();
        let (_, cpu) = run(&fs, operation, 1, count);
        let after = store.demand();
        let per = |of: fn(&Demand) -> u64| (of(&after) - of(&before)) as f64 / count as f64;
        let calls = per(|demand| demand.gets + demand.ranges + demand.commits);
        let store_ns = per(|demand| demand.timed_ns) * calls / per(|demand| demand.timed_calls);
        let cpu_ns = cpu.as_nanos() as f64 / count as f64;
        println!(
            "{label:8} {:8.0} {store_ns:8.0} {:6.1} {:6.1} {:7.1} {:7.1} {:6.0}",
            cpu_ns - store_ns,
            per(|demand| demand.gets),
            per(|demand| demand.ranges),
            per(|demand| demand.commits),
            per(|demand| demand.changes),
            per(|demand| demand.bytes),
        );
    }
}

fn show_many(threads: u64, count: u64) {
    let store = Arc::new(TableStore::new(false));
    let fs = mount(&store);
    make_directories(&fs, threads);
    println!("{threads} threads, {count} operations each; file system and store together:");
    for (label, operation) in OPERATIONS {
        let (wall, cpu) = run(&fs, operation, threads, count);
        let total = (threads * count) as f64;
        println!(
            "{label:8} {:8.0} ns CPU {:8.0} thousand a second in all",
            cpu.as_nanos() as f64 / total,
            total / wall.as_secs_f64() / 1000.0
        );
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("arguments are numbers"));
    let count = numbers.next().unwrap_or(50_000);
    let threads: Vec<u64> = numbers.collect();
    show_single(count);
    for threads in if threads.is_empty() { vec![1, 8] } else { threads } {
        show_many(threads, count / threads);
    }
}
