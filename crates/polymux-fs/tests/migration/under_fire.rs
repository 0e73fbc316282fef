//! Writers, readers and the mover at once, on real threads.
//!
//! Invariants:
//! * Every 4 KiB block that a writer fills carries (file, block, sequence) and a checksum over the whole block. A block of
//!   the stamped area belongs to one writer, who knows the last sequence that it wrote there.
//! * A reader accepts a block of zeros only before its first sequence, and never an older sequence than it has seen.
//! * Each round of the mover must come to its end while all other threads work.
//!
//! `POLYMUX_HEAVY` makes it run for minutes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polymux_fs::{Caller, HandleId, Progress, SetAttributes, SyncKind, WriteOrigin};
use polymux_tier::{ObjectRef, Tier};
use polymux_types::Ino;

use crate::MIB;
use crate::common::{Hook, HookedTier, Verdict, Volume, create, pattern, read_at, write_all};

const BLOCK: usize = 4096;

/// Blocks of the stamped area of each file: a little more than two nodes, so that parts and files end anywhere.
const BLOCKS: u64 = 1100;

const FILES: u64 = 2;
const TIERS: [&str; 3] = ["fast", "middle", "slow"];

/// The content of a block: who, where, when, and a checksum of all of it.
fn stamped(file: u64, block: u64, sequence: u64) -> Vec<u8> {
    let mut content = vec![0; BLOCK];
    for (place, word) in content.chunks_exact_mut(8).enumerate() {
        let value = match place {
            0 => file,
            1 => block,
            2 => sequence,
            _ => sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (file << 48) ^ (block << 16) ^ place as u64,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    content
}

fn word(content: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(content[place * 8..][..8].try_into().expect("eight bytes"))
}

/// The sequence of a block, or a description of its defect.
fn sequence_of(file: u64, block: u64, content: &[u8]) -> Result<u64, String> {
    if content.len() != BLOCK {
        return Err(format!("file {file}, block {block}: {} bytes", content.len()));
    }
    let (of_file, of_block, sequence) = (word(content, 0), word(content, 1), word(content, 2));
    if content.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    if (of_file, of_block) != (file, block) {
        return Err(format!("file {file}, block {block}: foreign block {of_block} of file {of_file}"));
    }
    if content != stamped(file, block, sequence) {
        return Err(format!("file {file}, block {block}: torn, sequence {sequence}"));
    }
    Ok(sequence)
}

struct File {
    index: u64,
    ino: Ino,
    handle: HandleId,
    /// For each block the last sequence that was written and acknowledged.
    written: Vec<AtomicU64>,
}

struct Fire {
    volume: Volume,
    files: Vec<File>,
    ends: AtomicBool,
    failure: polymux_types::sync::Mutex<Option<String>>,
}

/// A cheap source of numbers that differ; the schedule of the threads is the greater chance.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

impl Fire {
    fn new(hook: Arc<dyn Hook>) -> Self {
        let volume = Volume::wrapping(&[64 * MIB, 64 * MIB, 64 * MIB], |_, tier| -> Arc<dyn Tier> {
            Arc::new(HookedTier::new(tier, Arc::clone(&hook)))
        });
        let file = |index| {
            let (ino, handle) = create(volume.fs(), &format!("f{index}"));
            File { index, ino, handle, written: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect() }
        };
        let files = (0..FILES).map(file).collect();
        Self { volume, files, ends: AtomicBool::new(false), failure: polymux_types::sync::Mutex::new(None) }
    }

    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Acquire) && self.failure.lock().is_none()
    }

    fn fail(&self, what: String) {
        self.failure.lock().get_or_insert(what);
    }

    fn put(&self, file: &File, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let place = offset + done as u64;
            match self.volume.fs().write(&Caller::root(), file.handle, place, &data[done..], WriteOrigin::Call) {
                Ok(count) => done += count,
                Err(error) => return self.fail(format!("a write failed: {error}")),
            }
        }
    }

    /// Fills runs of blocks that belong to it: those with its remainder among the writers, eight at a time.
    fn write(&self, writer: u64, writers: u64) {
        let mut random = writer;
        let mut sequence = 0;
        while self.goes_on() {
            let file = &self.files[usize::try_from(next(&mut random) % FILES).expect("small")];
            let group = next(&mut random) % (BLOCKS / 8 / writers) * writers + writer;
            let first = group * 8;
            let count = 1 + next(&mut random) % 8;
            sequence += 1;
            let data: Vec<u8> = (first..first + count).flat_map(|block| stamped(file.index, block, sequence)).collect();
            self.put(file, first * BLOCK as u64, &data);
            for block in first..first + count {
                file.written[usize::try_from(block).expect("small")].store(sequence, Ordering::Release);
            }
            if sequence % 64 == 0
                && let Err(error) = self.volume.fs().sync(&Caller::root(), file.handle, SyncKind::All)
            {
                self.fail(format!("a sync failed: {error}"));
            }
        }
    }

    /// Looks at one block: not older than the data acknowledged before it looked.
    fn check(&self, file: &File, block: u64) {
        let place = usize::try_from(block).expect("small");
        let at_least = file.written[place].load(Ordering::Acquire);
        match read_at(self.volume.fs(), file.handle, block * BLOCK as u64, BLOCK) {
            Ok(content) if content.is_empty() && at_least == 0 => {}
            Ok(content) => match sequence_of(file.index, block, &content) {
                Ok(sequence) if sequence >= at_least => {}
                Ok(sequence) => {
                    self.fail(format!("file {}, block {block}: sequence {sequence} after {at_least}", file.index));
                }
                Err(what) => self.fail(what),
            },
            Err(error) => self.fail(format!("a read failed: {error}")),
        }
    }

    fn read(&self, reader: u64) {
        let mut random = 1000 + reader;
        while self.goes_on() {
            let file = &self.files[usize::try_from(next(&mut random) % FILES).expect("small")];
            self.check(file, next(&mut random) % BLOCKS);
        }
    }

    /// Behind the stamped area the file grows, by appends and by truncation, and is cut again.
    fn change_size(&self) {
        let mut random = 77;
        let start = BLOCKS * BLOCK as u64;
        while self.goes_on() {
            let file = &self.files[usize::try_from(next(&mut random) % FILES).expect("small")];
            let length = next(&mut random) % (3 * MIB);
            if next(&mut random).is_multiple_of(2) {
                self.put(file, start + length, &[0xee; 5000]);
                let tail = read_at(self.volume.fs(), file.handle, start + length, 5000);
                if !tail.is_ok_and(|tail| tail == [0xee; 5000]) {
                    self.fail(format!("file {}: what was appended at {length} is lost", file.index));
                }
            }
            let cut = SetAttributes { size: Some(start + length / 2), ..SetAttributes::default() };
            if let Err(error) = self.volume.fs().set_attributes(&Caller::root(), file.ino, &cut) {
                self.fail(format!("a cut failed: {error}"));
            }
            let grow = SetAttributes { size: Some(start + length), ..SetAttributes::default() };
            if let Err(error) = self.volume.fs().set_attributes(&Caller::root(), file.ino, &grow) {
                self.fail(format!("growing failed: {error}"));
            }
            let ghost = read_at(self.volume.fs(), file.handle, start + length / 2, 64 * 1024);
            if ghost.is_ok_and(|content| content.iter().any(|byte| *byte != 0)) {
                self.fail(format!("file {}: ghost bytes behind {}", file.index, length / 2));
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn carry_moves_out(&self) {
        while self.goes_on() {
            if self.volume.fs().move_step() == Progress::Idle {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// All files to one tier after the other. Each round must end.
    fn bounce(&self, length: Duration) -> u64 {
        let began = Instant::now();
        let mut rounds = 0;
        while self.goes_on() && began.elapsed() < length {
            let tier = TIERS[usize::try_from(rounds).expect("few") % TIERS.len()];
            let jobs: Vec<_> = self
                .files
                .iter()
                .map(|file| self.volume.fs().migrate(file.ino, tier, None).expect("accepted"))
                .collect();
            let deadline = Instant::now() + Duration::from_secs(60);
            while jobs.iter().any(|job| self.volume.fs().job(*job).is_some_and(|job| !job.state.is_final())) {
                if Instant::now() > deadline {
                    self.fail(format!("round {rounds} does not end: {:?}", self.volume.fs().moves()));
                    return rounds;
                }
                if !self.goes_on() {
                    return rounds;
                }
                self.volume.fs().step();
                std::thread::sleep(Duration::from_millis(1));
            }
            rounds += 1;
        }
        self.ends.store(true, Ordering::Release);
        rounds
    }

    /// Everything at once. Returns the rounds of the mover, or the error.
    fn burn(&self, length: Duration) -> Result<u64, String> {
        let rounds = std::thread::scope(|scope| {
            (0..3).for_each(|writer| drop(scope.spawn(move || self.write(writer, 3))));
            (0..2).for_each(|reader| drop(scope.spawn(move || self.read(reader))));
            (0..2).for_each(|_| drop(scope.spawn(|| self.carry_moves_out())));
            scope.spawn(|| self.change_size());
            let rounds = self.bounce(length);
            self.ends.store(true, Ordering::Release);
            rounds
        });
        for file in &self.files {
            (0..BLOCKS).for_each(|block| self.check(file, block));
        }
        self.failure.lock().take().map_or(Ok(rounds), Err)
    }
}

/// Holds large writes (they are the mover's) and syncs up, so that writers come in between.
struct Slow;

impl Hook for Slow {
    fn before_write(&self, _object: ObjectRef, _offset: u64, length: usize) -> Verdict {
        if length > 64 * 1024 {
            std::thread::sleep(Duration::from_millis(2));
        }
        Verdict::Pass
    }

    fn before_sync(&self) -> Verdict {
        std::thread::sleep(Duration::from_millis(1));
        Verdict::Pass
    }
}

#[test]
fn nothing_is_lost_stale_torn_or_foreign_while_blocks_move() {
    let heavy = std::env::var_os("POLYMUX_HEAVY").is_some();
    let fire = Fire::new(Arc::new(Slow));
    let rounds = fire.burn(Duration::from_secs(if heavy { 180 } else { 8 })).unwrap_or_else(|what| panic!("{what}"));
    assert!(rounds >= 3, "{rounds} rounds");
    let counters = ["move_conflicts", "move_retries", "move_lock_fallbacks", "moves_stopped", "moves_committed"];
    let counts = counters.map(|name| (name, fire.volume.counter(name)));
    println!("{rounds} rounds, {counts:?}");
    for (name, count) in counts {
        assert!(count > 0, "{name} was never counted: {counts:?}");
    }
}

/// The planted bug: one of the mover's writes claims success and is dropped.
struct DropsOneCopy {
    copies: AtomicU64,
}

impl Hook for DropsOneCopy {
    fn before_write(&self, _object: ObjectRef, _offset: u64, length: usize) -> Verdict {
        let is_copy = length > 64 * 1024;
        if is_copy && self.copies.fetch_add(1, Ordering::Relaxed) % 8 == 7 { Verdict::Pretend } else { Verdict::Pass }
    }
}

#[test]
fn a_copy_that_is_dropped_is_noticed() {
    let fire = Fire::new(Arc::new(DropsOneCopy { copies: AtomicU64::new(0) }));
    let outcome = fire.burn(Duration::from_secs(20));
    assert!(outcome.is_err(), "the planted bug was not noticed");
}

/// A sync chooses the objects that it syncs, and one of them may be gone by then, with another one of the file on the same tier.
#[test]
fn a_sync_beside_moves_to_and_fro_takes_no_object_that_was_moved_off_for_lost_bytes() {
    const LENGTH: usize = 64 << 10;
    let volume = Volume::new(&[64 * MIB, 64 * MIB]);
    let (fs, (ino, handle)) = (volume.fs(), create(volume.fs(), "file"));
    write_all(fs, handle, 0, &pattern(1, LENGTH)).expect("written");
    let end = Instant::now() + Duration::from_secs(2);
    let goes_on = move || Instant::now() < end;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while goes_on() {
                for tier in ["slow", "fast"] {
                    // Refused while the one before waits.
                    drop(fs.migrate(ino, tier, None));
                    for _ in 0..20 {
                        fs.move_step();
                        fs.step();
                    }
                }
            }
        });
        for _ in 0..4 {
            scope.spawn(move || {
                for turn in (0_u64..).take_while(|_| goes_on()) {
                    write_all(fs, handle, turn * 4096 % LENGTH as u64, &pattern(2, 4096)).expect("written");
                    fs.sync(&Caller::root(), handle, SyncKind::Data).expect("nothing was lost");
                }
            });
        }
    });
}
