//! Programs that read past the mount and are killed or stopped at any instruction, while movers move the file that they read; and one that writes
//! garbage wherever it can (docs/design/0046).
//!
//! Invariants: the readers are processes of their own, started from this test binary, and know by a seed which bytes the file has. `POLYMUX_HEAVY=1` kills and
//! stops 2000 of them.

#[path = "leases/asking.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod asking;
mod mounted;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use asking::{Over, granted, migrate, move_ranges, seeded, wait_until};
use mounted::{Plan, Random, TestVolume, is_heavy};
use polymux_client::{File as Leased, Way};
use polymux_lease::{Access, SharedMemory};
use rustix::process::{Pid, Signal, kill_process};

const MIB: usize = 1 << 20;
const LENGTH: usize = 8 * MIB;
const BLOCK: usize = 4096;
const SEED: u64 = 11;
/// Where a reader finds its file.
const FILE: &str = "POLYMUX_TEST_LEASED_FILE";

fn content() -> Vec<u8> {
    Random::new(SEED).bytes(LENGTH)
}

fn start() -> Option<(TestVolume, PathBuf)> {
    let options = "leases = \"on\"\nmovers = 1\npromotion = \"polite\"\nflush_interval = 1";
    let volume = TestVolume::start_with_options(&Plan::anywhere(), options)?;
    let path = volume.path().join("table");
    let file = File::create(&path).expect("made");
    file.write_all_at(&content(), 0).and_then(|()| file.sync_all()).expect("written");
    drop(file);
    // A file on one tier may be read by the kernel itself, and has no lease then.
    migrate(&volume, &path, "slow", "4MiB-6MiB");
    Some((volume, path))
}

fn leases(volume: &TestVolume) -> u64 {
    let leases = &volume.status()["leases"];
    leases["live"].as_u64().expect("a number") + leases["recalled"].as_u64().expect("a number")
}

/// Runs only as a child of the tests below: reads until it is killed.
#[test]
fn reader_that_is_killed() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let (content, file) = (content(), Leased::open(path).expect("opened"));
    let mut random = Random::new(u64::from(std::process::id()));
    let mut block = [0; BLOCK];
    loop {
        let offset = usize::try_from(random.below((LENGTH - BLOCK) as u64)).expect("below the length");
        let count = file.read_at(&mut block, offset as u64).expect("read");
        if count != BLOCK || block != content[offset..offset + BLOCK] {
            eprintln!("wrong bytes at {offset}: {}", file.report());
            std::process::exit(77);
        }
    }
}

/// A process that reads; killed when it is dropped.
struct Reader(Child);

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn reader(path: &Path) -> Reader {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "reader_that_is_killed", "--nocapture"]).env(FILE, path);
    Reader(command.stdout(Stdio::null()).spawn().expect("started"))
}

/// Kills a reader, or stops it for a while first; it must not have ended by itself.
fn end(mut reader: Reader, random: &mut Random) {
    let id = Pid::from_child(&reader.0);
    if random.below(2) == 0 {
        kill_process(id, Signal::STOP).expect("stopped");
        std::thread::sleep(Duration::from_millis(random.below(60)));
        if random.below(2) == 0 {
            kill_process(id, Signal::CONT).expect("continued");
            std::thread::sleep(Duration::from_millis(random.below(20)));
        }
    }
    let ended = reader.0.try_wait().expect("asked");
    assert!(ended.is_none(), "a reader ended by itself: {ended:?}");
}

#[test]
fn readers_die_and_stop_at_any_instruction_and_neither_bytes_nor_moves_suffer() {
    let Some((volume, path)) = start() else { return };
    let (mut random, is_over) = (seeded(), AtomicBool::new(false));
    let mut most = 0;
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| move_ranges(&volume, &path, &is_over, |_| Duration::from_millis(500)));
        let mut readers: Vec<Reader> = Vec::new();
        for _ in 0..if is_heavy() { 2000 } else { 40 } {
            readers.push(reader(&path));
            std::thread::sleep(Duration::from_millis(random.below(80)));
            if readers.len() > 5 {
                most = most.max(leases(&volume));
                let place = usize::try_from(random.below(readers.len() as u64)).expect("below a length");
                end(readers.swap_remove(place), &mut random);
            }
        }
        readers.into_iter().for_each(|reader| end(reader, &mut random));
    });
    assert!(most > 0, "no reader ever had a lease");
    let began = Instant::now();
    wait_until("no lease is left", || leases(&volume) == 0);
    eprintln!("the last lease was given back after {:?}", began.elapsed());
    assert!(std::fs::read(&path).expect("read") == content());
}

#[test]
fn a_stopped_reader_holds_up_neither_writers_nor_moves_nor_the_unmount() {
    let Some((mut volume, path)) = start() else { return };
    let reader = reader(&path);
    wait_until("it has a lease", || volume.status()["leases"]["live"] == 1);
    kill_process(Pid::from_child(&reader.0), Signal::STOP).expect("stopped");
    let began = Instant::now();
    migrate(&volume, &path, "slow", "2MiB-4MiB");
    let writer = File::options().write(true).open(&path).expect("opened");
    writer.write_all_at(&[1; BLOCK], 0).and_then(|()| writer.sync_all()).expect("written");
    drop(writer);
    std::fs::remove_file(&path).expect("removed");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(leases(&volume) <= 1, "{}", volume.status()["leases"]);
    drop(reader);
    volume.unmount();
}

#[test]
fn garbage_in_the_memory_of_a_program_is_its_own_affair() {
    let Some((volume, path)) = start() else { return };
    let open = File::open(&path).expect("opened");
    let (_connection, granted, _map) = granted(&open);
    for sealed in [&granted.life, &granted.map] {
        assert!(SharedMemory::map(sealed, Access::ReadWrite, 4).is_err(), "it is not the program's to write");
    }
    let counts = SharedMemory::map(&granted.counts, Access::ReadWrite, 8).expect("mapped");
    let (mut random, began) = (Random::new(3), Instant::now());
    let (content, file) = (content(), Leased::open(&path).expect("opened"));
    let mut block = [0; BLOCK];
    while began.elapsed() < Duration::from_secs(if is_heavy() { 3600 } else { 4 }) {
        for offset in (0..counts.length()).step_by(8) {
            counts.long_word(offset).store(random.next() | random.next(), Ordering::Relaxed);
        }
        let offset = usize::try_from(random.below((LENGTH - BLOCK) as u64)).expect("below the length");
        assert_eq!(file.read_at(&mut block, offset as u64).expect("read"), BLOCK);
        assert!(block == content[offset..offset + BLOCK]);
    }
    assert!(file.report().reads(Way::Directly) > 0, "others are served: {}", file.report());
    migrate(&volume, &path, "slow", "2MiB-4MiB");
    assert!(std::fs::read(&path).expect("read") == content);
}
