//! Programs that hold the lock of an object for ever, by a write past the mount from memory that never answers, and what that does to
//! everybody else (docs/design/0050).

#[path = "leases/asking.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod asking;
mod mounted;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use asking::{granted, has_leases_for_changing_files, migrate, wait_until};
use mounted::native::text;
use mounted::{Plan, Random, TestVolume};
use polymux_lease::message::Granted;
use polymux_transport::{FlatDirectory, FlatFiles, Reply, Served, Wishes};

const LENGTH: usize = 1 << 20;
const BLOCK: usize = 4096;

/// A file system with one file that is never read to the end: a program that has it in memory waits there.
struct SilentMemory {
    mountpoint: tempfile::TempDir,
    unanswered: Unanswered,
    served: Option<Served>,
}

/// Reads that wait for an answer.
type Unanswered = Arc<Mutex<Vec<Reply>>>;

fn answer(unanswered: &Unanswered) {
    for reply in unanswered.lock().expect("no thread panicked").drain(..) {
        reply.error(polymux_types::Errno::EIO);
    }
}

/// Longest time for which reads are not answered: a test that hangs fails instead.
const SILENT_MAX: Duration = Duration::from_secs(120);

struct NeverRead(Unanswered);

impl FlatFiles for NeverRead {
    fn names(&self) -> &[&'static str] {
        &["memory"]
    }

    fn length(&self, _: usize) -> u64 {
        LENGTH as u64
    }

    fn read(&self, _: usize, _: u64, _: usize, reply: Reply) {
        self.0.lock().expect("no thread panicked").push(reply);
    }

    fn write(&self, _: usize, _: u64, _: &[u8], reply: Reply) {
        reply.error(polymux_types::Errno::EROFS);
    }

    fn zero(&self, _: usize, _: u64, _: u64, reply: Reply) {
        reply.error(polymux_types::Errno::EROFS);
    }

    fn sync(&self, _: usize, reply: Reply) {
        reply.ok();
    }
}

impl SilentMemory {
    fn mount() -> Self {
        let mountpoint = tempfile::tempdir().expect("a directory can be made");
        let unanswered = Unanswered::default();
        let server = FlatDirectory(NeverRead(Arc::clone(&unanswered)));
        let late = Arc::clone(&unanswered);
        std::thread::spawn(move || {
            std::thread::sleep(SILENT_MAX);
            answer(&late);
        });
        let served = Served::mount(server, mountpoint.path(), "polymux-silent", Wishes::default(), 2);
        Self { mountpoint, unanswered, served: Some(served.expect("mounted")) }
    }

    fn path(&self) -> PathBuf {
        self.mountpoint.path().join("memory")
    }

    /// Pages that are waited for.
    fn waiting(&self) -> usize {
        self.unanswered.lock().expect("no thread panicked").len()
    }
}

impl Drop for SilentMemory {
    fn drop(&mut self) {
        answer(&self.unanswered);
        let unmounted = self.served.take().map(Served::unmount);
        assert!(matches!(unmounted, Some(Ok(())) | None), "{unmounted:?}");
    }
}

/// Writes a block to each of the files from memory that never answers.
const HOLDER: &str = "import mmap, os, sys, threading
memory = open(sys.argv[1], 'rb')
pages = mmap.mmap(memory.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
pages.madvise(mmap.MADV_RANDOM)
def hold(number, path):
    start = number << 16
    os.pwrite(os.open(path, os.O_WRONLY), memoryview(pages)[start:start + 4096], 0)
threading.stack_size(65536)
threads = [threading.Thread(target=hold, args=[number, path]) for number, path in enumerate(sys.argv[2:])]
[thread.start() for thread in threads]
print('ready', flush=True)
";

/// A process that holds the locks of objects; killed when it is dropped.
struct Holder {
    child: Child,
    unanswered: Unanswered,
}

impl Holder {
    /// Of objects that this process has descriptors of.
    fn of(objects: &[OwnedFd], memory: &SilentMemory) -> Self {
        let path = |object: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), object.as_raw_fd());
        let mut command = Command::new("python3");
        command.args(["-c", HOLDER, text(&memory.path())]).args(objects.iter().map(path)).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it has one")).read_line(&mut line).expect("it answers");
        assert_eq!(line, "ready\n");
        wait_until("it holds all locks", || memory.waiting() >= objects.len());
        Self { child, unanswered: Arc::clone(&memory.unanswered) }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A program that waits for the answer to a request cannot be killed before it comes.
        while matches!(self.child.try_wait(), Ok(None)) {
            answer(&self.unanswered);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn start() -> Option<TestVolume> {
    if !has_leases_for_changing_files() {
        return None;
    }
    let options = "leases = \"on\"\nio = \"passthrough\"\nmovers = 1\npromotion = \"polite\"\nhang_after = 3\n";
    TestVolume::start_with_options(&Plan::anywhere(), options)
}

fn file_with_bytes(volume: &TestVolume, name: &str) -> PathBuf {
    let path = volume.path().join(name);
    let mut file = File::create(&path).expect("made");
    file.write_all(&Random::new(1).bytes(LENGTH)).and_then(|()| file.sync_all()).expect("written");
    path
}

/// The objects of a file, as a program that asked for a lease has them.
fn objects(path: &Path) -> Granted {
    let file = File::options().read(true).write(true).open(path).expect("opened");
    granted(&file).1
}

/// What other users do meanwhile: each takes a moment at most.
fn others_go_on(volume: &TestVolume, other: &File, duration: Duration) {
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < duration {
        let asked = Instant::now();
        other.write_all_at(&[7; BLOCK], 0).and_then(|()| other.sync_all()).expect("another file is written");
        let new = volume.path().join(format!("new-{round}"));
        fs::write(&new, [round; BLOCK]).and_then(|()| fs::remove_file(&new)).expect("a file is made and removed");
        assert!(asked.elapsed() < Duration::from_secs(10), "took {:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(500));
        round += 1;
    }
}

#[test]
fn a_held_object_keeps_nobody_from_other_files_of_its_tier() {
    let Some(volume) = start() else { return };
    let memory = SilentMemory::mount();
    let [path, removed] = ["held", "removed"].map(|name| file_with_bytes(&volume, name));
    let other = File::options().read(true).write(true).open(file_with_bytes(&volume, "other")).expect("opened");
    let large = volume.path().join("large");
    fs::write(&large, Random::new(2).bytes(64 * LENGTH)).expect("written");
    File::open(&large).and_then(|file| file.sync_all()).expect("synced");
    let held: Vec<_> = [&path, &removed].into_iter().flat_map(|path| objects(path).objects).collect();
    let holder = Holder::of(&held, &memory);
    let free_bytes = || {
        let tier = rustix::fs::statvfs(volume.tier("fast")).expect("looked at");
        tier.f_bfree * tier.f_frsize
    };
    let before = free_bytes();
    for path in [&removed, &large] {
        fs::remove_file(path).expect("removed");
    }
    // Waits for the lock.
    let mut truncating = Command::new("truncate").args(["-s", "8192", text(&path)]).spawn().expect("started");
    // Nothing else is asked of the tier, for longer than it may keep silent.
    std::thread::sleep(Duration::from_secs(7));
    others_go_on(&volume, &other, Duration::from_secs(3));
    assert!(truncating.try_wait().expect("it is there").is_none(), "it waits");
    assert!(free_bytes() > before + 32 * LENGTH as u64, "the space of a file that is not held is freed");
    drop((holder, memory));
    assert!(truncating.wait().expect("it ends").success());
}

#[test]
fn held_objects_stop_neither_moves_of_other_files_nor_the_unmount() {
    let Some(mut volume) = start() else { return };
    let memory = SilentMemory::mount();
    let held = [("a", "fast"), ("b", "slow"), ("c", "fast")].map(|(name, tier)| {
        let path = file_with_bytes(&volume, name);
        migrate(&volume, &path, tier, "0-1MiB");
        path
    });
    let other = file_with_bytes(&volume, "other");
    let objects: Vec<_> = held.iter().flat_map(|path| objects(path).objects).collect();
    let holder = Holder::of(&objects, &memory);
    let begin = |(path, tier): (&PathBuf, &str)| {
        volume.begin(&["migrate", text(path), "--to", tier, "--wait"].map(str::to_owned))
    };
    let mut moving: Vec<_> = held.iter().zip(["slow", "fast", "slow"]).map(begin).collect();
    std::thread::sleep(Duration::from_secs(1));
    for tier in ["slow", "fast", "slow"] {
        let began = Instant::now();
        migrate(&volume, &other, tier, "0-1MiB");
        assert!(began.elapsed() < Duration::from_secs(25), "took {:?}", began.elapsed());
    }
    for process in &mut moving {
        process.kill().and_then(|()| process.wait()).expect("ended");
    }
    let mut unmounting = volume.begin(&["umount".to_owned(), text(volume.path()).to_owned()]);
    let began = Instant::now();
    while !volume.log().contains("`tested` is unmounted") {
        assert!(began.elapsed() < Duration::from_secs(40), "not unmounted: {}", volume.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    // The process cannot end before its threads do, and keeps the volume until then.
    drop((holder, memory));
    unmounting.wait().expect("it ends");
    volume.wait_for_unclean_end();
    volume.mount();
    for path in held.iter().chain([&other]) {
        assert_eq!(fs::read(path).expect("read"), Random::new(1).bytes(LENGTH), "{}", path.display());
    }
}
