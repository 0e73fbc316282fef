//! Threads that read and write one file at the same time: through the mount there are no more anomalies than on the
//! native file system under the same test.
//!
//! Every block carries a stamp (writer, sequence) in each of its 8-byte words, so that a reader can tell a block that
//! is half one write and half another, and one that goes back in time.

mod mounted;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mounted::native::NativeMount;
use mounted::{FileSystemKind, Plan, Random, TestVolume, environment, one_at_a_time};

const WRITERS: u64 = 16;
const READERS: u64 = 16;

/// How the file is divided. The first quarter of its blocks is written by every writer, the others by one each.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    block_size: usize,
    blocks: u64,
}

impl Geometry {
    fn owner_of(self, block: u64) -> Option<u64> {
        (block >= self.blocks / 4).then_some(block % WRITERS)
    }

    fn offset_of(self, block: u64) -> u64 {
        block * self.block_size as u64
    }
}

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    /// Blocks with words of more than one write.
    torn: AtomicU64,
    /// Blocks of one writer in which a reader saw an older write after a newer one.
    backwards: AtomicU64,
    /// Blocks of one writer that do not hold its last write at the end.
    lost: AtomicU64,
    /// Blocks with words that no writer wrote.
    foreign: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn stamp(writer: u64, sequence: u64) -> u64 {
    ((writer + 1) << 48) | sequence
}

fn index(block: u64) -> usize {
    usize::try_from(block).expect("blocks are few")
}

fn write_blocks(
    file: &File,
    geometry: Geometry,
    writer: u64,
    stop: &AtomicBool,
    last: &[AtomicU64],
    counters: &Counters,
) {
    let mut random = Random::new(writer);
    let mut sequence = 0;
    let mut buffer = vec![0_u8; geometry.block_size];
    while !stop.load(Ordering::Relaxed) {
        let block = random.below(geometry.blocks);
        let owner = geometry.owner_of(block);
        if owner.is_some_and(|owner| owner != writer) {
            continue;
        }
        sequence += 1;
        for word in buffer.chunks_exact_mut(8) {
            word.copy_from_slice(&stamp(writer, sequence).to_le_bytes());
        }
        file.write_all_at(&buffer, geometry.offset_of(block)).expect("a write succeeds");
        count(&counters.writes);
        if owner.is_some() {
            last[index(block)].store(stamp(writer, sequence), Ordering::Release);
        }
    }
}

fn words(buffer: &[u8]) -> impl Iterator<Item = u64> + '_ {
    buffer.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

fn read_blocks(file: &File, geometry: Geometry, reader: u64, stop: &AtomicBool, counters: &Counters) {
    let mut random = Random::new(1_000 + reader);
    let mut newest = vec![0_u64; index(geometry.blocks)];
    let mut buffer = vec![0_u8; geometry.block_size];
    while !stop.load(Ordering::Relaxed) {
        let block = random.below(geometry.blocks);
        file.read_exact_at(&mut buffer, geometry.offset_of(block)).expect("a read succeeds");
        count(&counters.reads);
        let first = words(&buffer).next().expect("a block has words");
        if words(&buffer).any(|word| word != first) {
            count(&counters.torn);
        }
        let is_known = |word: u64| word == 0 || (1..=WRITERS).contains(&(word >> 48));
        if words(&buffer).any(|word| !is_known(word)) {
            count(&counters.foreign);
        }
        if geometry.owner_of(block).is_some() {
            let seen = &mut newest[index(block)];
            if words(&buffer).min().expect("a block has words") < *seen {
                count(&counters.backwards);
            }
            *seen = (*seen).max(words(&buffer).max().expect("a block has words"));
        }
    }
}

fn stress(path: &Path, geometry: Geometry, duration: Duration) -> Counters {
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let size = geometry.offset_of(geometry.blocks);
    let first = open();
    if first.metadata().unwrap().len() == size {
        // Nothing of an earlier round.
        first.write_all_at(&vec![0; usize::try_from(size).unwrap()], 0).unwrap();
    }
    first.set_len(size).unwrap();
    drop(first);
    let (counters, stop) = (Counters::default(), AtomicBool::new(false));
    let last: Vec<AtomicU64> = (0..geometry.blocks).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (file, stop, last, counters) = (open(), &stop, &last, &counters);
            scope.spawn(move || write_blocks(&file, geometry, writer, stop, last, counters));
        }
        for reader in 0..READERS {
            let (file, stop, counters) = (open(), &stop, &counters);
            scope.spawn(move || read_blocks(&file, geometry, reader, stop, counters));
        }
        std::thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
    });
    let file = open();
    let mut buffer = vec![0_u8; geometry.block_size];
    for block in geometry.blocks / 4..geometry.blocks {
        file.read_exact_at(&mut buffer, geometry.offset_of(block)).unwrap();
        let expected = last[index(block)].load(Ordering::Acquire);
        if words(&buffer).any(|word| word != expected) {
            count(&counters.lost);
        }
    }
    counters
}

/// How often a pair of runs is repeated until its shares tell something: a writer that loses its processor halfway is seen
/// by each reader of its block meanwhile, so that anomalies come in bursts, and in a run of seconds often not at all.
const ROUNDS_MAX: usize = 6;

/// Reads, and how many of them showed an anomaly of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    reads: u64,
    anomalies: u64,
}

impl Seen {
    fn add(&mut self, counters: &Counters, anomaly: &AtomicU64) {
        self.reads += counters.reads.load(Ordering::Relaxed);
        self.anomalies += anomaly.load(Ordering::Relaxed);
    }

    /// Natively a reader sees halves of two writes too, at a share that varies from run to run.
    fn is_no_worse_than(self, native: Self) -> bool {
        let share = |seen: Self| seen.anomalies as f64 / seen.reads.max(1) as f64;
        share(self) <= share(native) * 2.0 + 0.0001
    }
}

#[test]
fn readers_and_writers_of_one_file_see_no_more_anomalies_than_natively() {
    let _turn = one_at_a_time();
    for geometry in [Geometry { block_size: 4096, blocks: 512 }, Geometry { block_size: 65_536, blocks: 64 }] {
        compare(geometry);
    }
}

fn compare(geometry: Geometry) {
    // The file takes 2 MiB and more: with 1 MiB on the fast tier its blocks lie on both.
    let Some(volume) = TestVolume::start_without_movers(&Plan::anywhere().with_fast_capacity("1 MiB")) else { return };
    let native = environment::have_loop_devices()
        .then(|| NativeMount::new(volume.outside(), "native", FileSystemKind::Ext4, 128));
    let native_root = native.as_ref().map_or(volume.outside(), NativeMount::path);
    let duration = Duration::from_secs(if environment::is_heavy() { 60 } else { 6 });
    let (path, native_path) = (volume.path().join("file"), native_root.join("native-file"));
    let [mut torn, mut native_torn, mut backwards, mut native_backwards] = [Seen::default(); 4];
    for round in 1..=ROUNDS_MAX {
        let tested = stress(&path, geometry, duration);
        volume.assert_is_split(&path);
        let native = stress(&native_path, geometry, duration);
        println!("{geometry:?}, round {round}: {tested:?} through the mount, {native:?} natively");
        assert_eq!(tested.lost.load(Ordering::Relaxed), 0, "no write is lost");
        assert_eq!(tested.foreign.load(Ordering::Relaxed), 0, "no byte comes from elsewhere");
        torn.add(&tested, &tested.torn);
        native_torn.add(&native, &native.torn);
        backwards.add(&tested, &tested.backwards);
        native_backwards.add(&native, &native.backwards);
        // Where the kernel collects writes, reads are served from its page cache beside them, page by page, as on ext4; how often that shows
        // depends on the size of its folios.
        let is_torn_alike = torn.is_no_worse_than(native_torn) || environment::collects_writes();
        if is_torn_alike && backwards.is_no_worse_than(native_backwards) {
            return;
        }
    }
    panic!("torn: {torn:?}, natively {native_torn:?}; back in time: {backwards:?}, natively {native_backwards:?}");
}
