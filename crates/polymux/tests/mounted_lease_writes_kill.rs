//! Programs that overwrite a file past the mount and are killed or stopped at any instruction, while movers move it; one that keeps the daemon waiting; and daemons that die under them
//! (docs/design/0048).
//!
//! Invariants: a writer is a process of its own, started from this test binary, with a part of the file of its own. Every other one knows nothing of leases, and runs under the preloaded library (docs/design/0049). Before it writes a block it notes its next
//! value in a file beside the volume, and after the write has returned that it has. `POLYMUX_HEAVY=1` kills and stops 2000 writers, and 200 daemons.

#[path = "leases/asking.rs"]
mod asking;
#[path = "preload/libraries.rs"]
mod libraries;
mod mounted;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use asking::{Over, granted, has_leases_for_changing_files, migrate, move_ranges, seeded, wait_until};
use libraries::{install_libraries, lower_limit};
use mounted::{Plan, Random, TestVolume, is_heavy};
use polymux_client::{File as Leased, Way};
use polymux_lease::UseCounts;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

const BLOCK: usize = 4096;
const PARTS: u64 = 4;
/// Blocks of a part: 2 MiB.
const BLOCKS: u64 = 512;
/// Where a writer finds its file, and the notes,
const FILE: &str = "POLYMUX_TEST_LEASED_FILE";
const NOTES: &str = "POLYMUX_TEST_NOTES";
/// and which part is its own. Those of parts with odd numbers run under the preloaded library.
const PART: &str = "POLYMUX_TEST_PART";

/// Numbers of descriptors of leases are above the limit of open files, which is no lower, or from 2048 on.
const OF_LEASES_MIN: u32 = 512;

/// The open file of a writer.
enum Opened {
    ByLibrary(Box<Leased>),
    Unaware(File),
}

impl Opened {
    fn open(path: &Path, part: u64) -> io::Result<Self> {
        if kind_of(part) == 0 {
            return Leased::open_to_change(path).map(|file| Self::ByLibrary(Box::new(file)));
        }
        OpenOptions::new().read(true).write(true).open(path).map(Self::Unaware)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::ByLibrary(file) => file.write_at(data, offset),
            Self::Unaware(file) => file.write_at(data, offset),
        }
    }

    /// Writes past the mount; of a writer that knows nothing of leases, descriptors of leases that it has.
    fn direct_writes(&self) -> u64 {
        match self {
            Self::ByLibrary(file) => file.report().writes(Way::Directly),
            Self::Unaware(_) => {
                let numbers = std::fs::read_dir("/proc/self/fd").expect("it can be listed");
                let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
                numbers.filter(|number| *number >= OF_LEASES_MIN).count() as u64
            }
        }
    }
}

/// 0 for writers that know of leases, and 1 for the others.
fn kind_of(part: u64) -> usize {
    usize::try_from(part % 2).expect("it is small")
}

/// A block as it is written for the `value`th time.
fn block_of(number: u64, value: u64) -> Vec<u8> {
    let mut bytes = Random::new(number << 32 | value).bytes(BLOCK);
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// The value that was written to each block last, and the one that was about to be.
struct Notes(File);

impl Notes {
    fn open(path: &Path) -> Self {
        Self(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("opened"))
    }

    fn of(&self, number: u64) -> (u64, u64) {
        let mut bytes = [0; 16];
        self.0.read_exact_at(&mut bytes, number * 16).expect("read");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (word(0), word(8))
    }

    fn note_begun(&self, number: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), number * 16).expect("noted");
    }

    /// Writes of the last writer of a part that went past the mount, about.
    fn direct(&self, part: u64) -> u64 {
        self.of(PARTS * BLOCKS + part).0
    }

    fn note_direct(&self, part: u64, writes: u64) {
        self.note_begun(PARTS * BLOCKS + part, writes);
    }

    fn note_written(&self, number: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), number * 16 + 8).expect("noted");
    }
}

/// The file of a test, the notes on it, and how often writes went past the mount at least.
struct Subject {
    path: PathBuf,
    notes: Notes,
    notes_path: PathBuf,
    preloaded: PathBuf,
}

impl Subject {
    fn make(volume: &TestVolume) -> Self {
        let (path, notes_path) = (volume.path().join("database"), volume.outside().join("notes"));
        let (file, notes) = (File::create(&path).expect("made"), Notes::open(&notes_path));
        for number in 0..PARTS * BLOCKS {
            file.write_all_at(&block_of(number, 1), number * BLOCK as u64).expect("written");
            notes.note_begun(number, 1);
            notes.note_written(number, 1);
        }
        file.sync_all().expect("synced");
        (0..PARTS).for_each(|part| {
            notes.note_direct(part, 0);
            notes.note_written(PARTS * BLOCKS + part, 0);
        });
        drop(file);
        migrate(volume, &path, "slow", "4MiB-6MiB");
        Self { path, notes, notes_path, preloaded: install_libraries(&volume.outside().join("libraries")) }
    }

    fn writer(&self, part: u64) -> Writer {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "writer_that_is_killed", "--nocapture"]);
        command.env(FILE, &self.path).env(NOTES, &self.notes_path).env(PART, part.to_string());
        if kind_of(part) == 1 {
            command.env("LD_PRELOAD", &self.preloaded);
        }
        Writer { child: command.stdout(Stdio::null()).spawn().expect("started"), part }
    }

    /// Asserts that the blocks of a part that has no writer are those that were written last, or were about to be. Past the page cache, so that no lease ends.
    fn check(&self, part: u64) {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(direct).open(&self.path).expect("opened");
        for number in part * BLOCKS..(part + 1) * BLOCKS {
            let (begun, written) = self.notes.of(number);
            let mut bytes = vec![0; BLOCK];
            file.read_exact_at(&mut bytes, number * BLOCK as u64).expect("read");
            let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            assert!(
                value == written || value == begun,
                "block {number} has {value}, {written} was written and {begun} begun"
            );
            // A write of a block is whole, unless its program was killed in it.
            assert!(value != written || begun != written || bytes == block_of(number, value), "block {number}");
        }
    }
}

/// Runs only as a child of the tests below: writes until it is killed, or the file system fails.
#[test]
fn writer_that_is_killed() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let notes = Notes::open(Path::new(&std::env::var_os(NOTES).expect("set together")));
    let part: u64 = std::env::var(PART).expect("set together").parse().expect("a number");
    let Ok(file) = Opened::open(Path::new(&path), part) else { return };
    let mut random = Random::new(u64::from(std::process::id()));
    for round in 0_u64.. {
        if round.is_multiple_of(16) {
            notes.note_direct(part, file.direct_writes());
        }
        let number = part * BLOCKS + random.below(BLOCKS);
        let value = notes.of(number).0 + 1;
        notes.note_begun(number, value);
        match file.write_at(&block_of(number, value), number * BLOCK as u64) {
            Ok(BLOCK) => notes.note_written(number, value),
            Ok(count) => panic!("{count} bytes were written"),
            // The daemon died.
            Err(_) => return,
        }
    }
}

/// A process that writes; killed when it is dropped.
struct Writer {
    child: Child,
    part: u64,
}

impl Writer {
    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start() -> Option<(TestVolume, Subject)> {
    if !has_leases_for_changing_files() {
        return None;
    }
    lower_limit();
    let options = "leases = \"on\"\nio = \"passthrough\"\nmovers = 1\npromotion = \"polite\"\nflush_interval = 1";
    let volume = TestVolume::start_with_options(&Plan::anywhere(), options)?;
    let subject = Subject::make(&volume);
    Some((volume, subject))
}

fn live_leases(volume: &TestVolume) -> u64 {
    volume.status()["leases"]["live"].as_u64().expect("a number")
}

fn leases(volume: &TestVolume) -> u64 {
    live_leases(volume) + volume.status()["leases"]["recalled"].as_u64().expect("a number")
}

/// Short pauses between moves, and those in which all that a move gave up is freed, so that there are leases again.
fn pause_after_move(round: usize) -> Duration {
    Duration::from_millis([50, 2000, 300][round % 3])
}

/// Stops a writer for a while, or not, and lets it go on, or not.
fn stop_for_a_while(writer: &Writer, random: &mut Random) {
    if random.below(2) == 0 {
        return;
    }
    kill_process(writer.id(), Signal::STOP).expect("stopped");
    std::thread::sleep(Duration::from_millis(random.below(200)));
    if random.below(2) == 0 {
        kill_process(writer.id(), Signal::CONT).expect("continued");
        std::thread::sleep(Duration::from_millis(random.below(30)));
    }
}

#[test]
fn writers_die_and_stop_at_any_instruction_and_no_write_that_returned_is_lost() {
    let Some((volume, subject)) = start() else { return };
    let (mut random, is_over) = (seeded(), AtomicBool::new(false));
    let mut direct = [0; 2];
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| move_ranges(&volume, &subject.path, &is_over, pause_after_move));
        let mut writers: Vec<Writer> = (0..PARTS).map(|part| subject.writer(part)).collect();
        let (began, rounds) = (Instant::now(), if is_heavy() { 2000 } else { 40 });
        let mut round = 0;
        // A machine that is busy with other tests gives leases later.
        while round < rounds || direct.contains(&0) && began.elapsed() < Duration::from_secs(60) {
            round += 1;
            std::thread::sleep(Duration::from_millis(random.below(150)));
            let mut writer = writers.swap_remove(usize::try_from(random.below(PARTS)).expect("below a length"));
            stop_for_a_while(&writer, &mut random);
            let ended = writer.child.try_wait().expect("asked");
            assert!(ended.is_none(), "a writer ended by itself: {ended:?}");
            let part = writer.part;
            drop(writer);
            direct[kind_of(part)] += subject.notes.direct(part);
            subject.notes.note_direct(part, 0);
            subject.check(part);
            writers.push(subject.writer(part));
        }
    });
    eprintln!("{direct:?}: writes past the mount, and unaware writers that had a lease");
    assert!(!direct.contains(&0), "writers of one kind never had a lease: {direct:?}");
    let began = Instant::now();
    wait_until("no lease is left", || leases(&volume) == 0);
    eprintln!("the last lease was given back after {:?}", began.elapsed());
    (0..PARTS).for_each(|part| subject.check(part));
}

#[test]
fn a_writer_that_is_stopped_holds_up_neither_moves_nor_others_and_loses_nothing_when_it_goes_on() {
    let Some((mut volume, subject)) = start() else { return };
    let mut random = seeded();
    for _ in 0..if is_heavy() { 100 } else { 5 } {
        let writer = subject.writer(0);
        wait_until("it has a lease", || live_leases(&volume) == 1);
        std::thread::sleep(Duration::from_millis(random.below(30)));
        kill_process(writer.id(), Signal::STOP).expect("stopped");
        let began = Instant::now();
        migrate(&volume, &subject.path, "slow", "0-2MiB");
        let other = File::options().write(true).open(&subject.path).expect("opened");
        let number = BLOCKS;
        let value = subject.notes.of(number).0 + 1;
        subject.notes.note_begun(number, value);
        other.write_all_at(&block_of(number, value), number * BLOCK as u64).expect("written");
        subject.notes.note_written(number, value);
        other.sync_all().expect("synced");
        drop(other);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        kill_process(writer.id(), Signal::CONT).expect("continued");
        std::thread::sleep(Duration::from_millis(50));
        migrate(&volume, &subject.path, "fast", "0-2MiB");
        drop(writer);
        (0..2).for_each(|part| subject.check(part));
        // A pause after the use through the mount is no subject of this.
        volume.unmount();
        volume.mount();
    }
}

#[test]
fn a_program_that_keeps_the_daemon_waiting_does_so_once_and_then_gets_no_such_lease() {
    let Some((volume, subject)) = start() else { return };
    let open = OpenOptions::new().read(true).write(true).open(&subject.path).expect("opened");
    let (_connection, leased, map) = granted(&open);
    let counts = UseCounts::map(&leased.counts).expect("mapped");
    counts.begin_write();
    let began = Instant::now();
    let mut block = vec![0; BLOCK];
    open.read_exact_at(&mut block, 0).expect("read");
    assert!(block == block_of(0, 1));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(!map.admits_write());
    assert_eq!(map.written(), polymux_lease::Written::ToObjectAlone);
    let file = Leased::open_to_change(&subject.path).expect("opened");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        assert_eq!(file.write_at(&block, 0).expect("written"), BLOCK);
    }
    assert_eq!(file.report().writes(Way::Directly), 0, "{}", file.report());
    assert!(file.report().to_string().contains("waited for too long"), "{}", file.report());
    migrate(&volume, &subject.path, "slow", "0-2MiB");
}

#[test]
fn a_daemon_that_dies_under_writers_takes_none_of_their_writes_along() {
    let Some((mut volume, subject)) = start() else { return };
    let mut random = seeded();
    let mut direct = [0; 2];
    let (began, rounds) = (Instant::now(), if is_heavy() { 200 } else { 5 });
    let mut round = 0;
    while round < rounds || direct.contains(&0) && began.elapsed() < Duration::from_secs(60) {
        round += 1;
        let writers: Vec<Writer> = (0..PARTS).map(|part| subject.writer(part)).collect();
        std::thread::sleep(Duration::from_millis(300 + random.below(300)));
        volume.kill_daemon();
        drop(writers);
        (0..PARTS).for_each(|part| direct[kind_of(part)] += subject.notes.direct(part));
        volume.mount();
        (0..PARTS).for_each(|part| subject.check(part));
    }
    assert!(!direct.contains(&0), "writers of one kind never had a lease: {direct:?}");
    volume.unmount();
    volume.polymux(["fsck", &volume.name.clone()]).assert_success();
}
