//! Programs that work on a volume while its daemons die. None of them may see an error.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};

use crate::mounted::Random;

/// The loop of each program, until it is to end.
type Program = fn(&Path, &AtomicBool);

const PROGRAMS: [Program; 6] = [changes_names, appends, overwrites, saves, creates_and_reads, changes_attributes];

/// Runs all programs, each in a directory of its own, for as long as `disturb` takes.
pub fn run_beside(root: &Path, disturb: impl FnOnce()) {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for (number, program) in PROGRAMS.into_iter().enumerate() {
            let directory = root.join(format!("program-{number}"));
            let has_ended = &has_ended;
            scope.spawn(move || {
                fs::create_dir(&directory).unwrap();
                program(&directory, has_ended);
            });
        }
        let _ends = EndsPrograms(&has_ended);
        disturb();
    });
}

/// Ends programs also where the test fails, which would wait for them otherwise.
struct EndsPrograms<'a>(&'a AtomicBool);

impl Drop for EndsPrograms<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn goes_on(has_ended: &AtomicBool) -> bool {
    !has_ended.load(Ordering::Acquire)
}

/// Makes, links, renames, exchanges and removes names. Each call must take effect once, however often it is carried out.
fn changes_names(root: &Path, has_ended: &AtomicBool) {
    let path = |name: &str| root.join(name);
    let ino = |name: &str| fs::symlink_metadata(path(name)).unwrap().ino();
    while goes_on(has_ended) {
        let new = |name: &str| OpenOptions::new().write(true).create_new(true).open(path(name)).unwrap();
        drop((new("a"), new("b")));
        fs::create_dir(path("d")).unwrap();
        symlink("a", path("s")).unwrap();
        fs::hard_link(path("a"), path("l")).unwrap();
        let (a, b) = (ino("a"), ino("b"));
        renameat_with(CWD, path("a"), CWD, path("b"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!((ino("a"), ino("b")), (b, a), "two names were exchanged once");
        renameat_with(CWD, path("a"), CWD, path("d/a"), RenameFlags::NOREPLACE).unwrap();
        renameat_with(CWD, path("d"), CWD, path("b"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!((ino("d"), ino("b/a")), (a, b), "a file and a directory were exchanged once");
        fs::rename(path("d"), path("b/a")).unwrap();
        assert_eq!(ino("b/a"), a);
        assert_eq!(fs::metadata(path("l")).unwrap().nlink(), 2);
        for name in ["b/a", "l", "s"] {
            fs::remove_file(path(name)).unwrap();
        }
        fs::remove_dir(path("b")).unwrap();
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
    }
}

/// Appends lines, of which each is there once in the end.
fn appends(root: &Path, has_ended: &AtomicBool) {
    let path = root.join("log");
    let mut file = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
    let mut lines = 0_u64;
    while goes_on(has_ended) {
        file.write_all(format!("line {lines} {}\n", "x".repeat(usize::try_from(lines % 200).unwrap())).as_bytes())
            .unwrap();
        lines += 1;
        if lines.is_multiple_of(500) {
            file.sync_data().unwrap();
        }
    }
    drop(file);
    let read = BufReader::new(File::open(&path).unwrap()).lines().map(Result::unwrap);
    let mut count = 0;
    for (number, line) in read.enumerate() {
        assert!(line.starts_with(&format!("line {number} ")), "line {number} is {line:?}");
        count += 1;
    }
    assert_eq!(count, lines);
}

/// Overwrites parts of a file at random, and reads the written bytes.
fn overwrites(root: &Path, has_ended: &AtomicBool) {
    const LENGTH: usize = 4 << 20;
    let mut random = Random::new(7);
    let path = root.join("file");
    let mut expected = vec![0; LENGTH];
    fs::write(&path, &expected).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut round = 0_u32;
    while goes_on(has_ended) {
        let length = 1 + usize::try_from(random.below(20_000)).unwrap();
        let offset = usize::try_from(random.below((LENGTH - length) as u64)).unwrap();
        let bytes = random.bytes(length);
        file.write_all_at(&bytes, offset as u64).unwrap();
        expected[offset..offset + length].copy_from_slice(&bytes);
        round += 1;
        match round % 100 {
            0 => file.sync_all().unwrap(),
            50 => {
                let mut read = vec![0; LENGTH];
                file.read_exact_at(&mut read, 0).unwrap();
                assert!(read == expected, "round {round}");
            }
            75 => file = OpenOptions::new().read(true).write(true).open(&path).unwrap(),
            _ => {}
        }
    }
    drop(file);
    assert!(fs::read(path).unwrap() == expected);
}

/// Saves a document as editors do, while it has the new one open.
fn saves(root: &Path, has_ended: &AtomicBool) {
    let (path, new) = (root.join("document"), root.join("document.new"));
    let mut version = 0_u32;
    while goes_on(has_ended) {
        version += 1;
        let text = format!("version {version} ").repeat(1 + usize::try_from(version % 3000).unwrap());
        let mut file = OpenOptions::new().write(true).create_new(true).open(&new).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        fs::rename(&new, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        drop(file);
    }
}

/// Makes small files, reads and removes them; some without a name.
fn creates_and_reads(root: &Path, has_ended: &AtomicBool) {
    let mut random = Random::new(11);
    while goes_on(has_ended) {
        let files: Vec<_> =
            (0..20).map(|number| (root.join(format!("{number}")), random.bytes(3000 * (number % 4)))).collect();
        for (path, bytes) in &files {
            let mut file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
            file.write_all(bytes).unwrap();
        }
        let mut open: Vec<_> = files.iter().map(|(path, _)| File::open(path).unwrap()).collect();
        files.iter().for_each(|(path, _)| fs::remove_file(path).unwrap());
        for ((path, bytes), file) in files.iter().zip(&mut open) {
            let mut read = Vec::new();
            file.read_to_end(&mut read).unwrap();
            assert!(read == *bytes, "{}", path.display());
        }
        let unnamed =
            rustix::fs::open(root, rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR, rustix::fs::Mode::RWXU);
        let mut unnamed = File::from(unnamed.unwrap());
        unnamed.write_all(b"nobody finds it").unwrap();
        let mut read = [0; 15];
        unnamed.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"nobody finds it");
    }
}

/// Makes and removes extended attributes, and changes modes and lengths.
fn changes_attributes(root: &Path, has_ended: &AtomicBool) {
    let path = root.join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut length = 0;
    while goes_on(has_ended) {
        rustix::fs::setxattr(&path, "user.one", b"1", XattrFlags::CREATE).unwrap();
        let again = rustix::fs::setxattr(&path, "user.one", b"2", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST), "it exists");
        rustix::fs::setxattr(&path, "user.one", b"3", XattrFlags::REPLACE).unwrap();
        rustix::fs::removexattr(&path, "user.one").unwrap();
        assert_eq!(rustix::fs::removexattr(&path, "user.one"), Err(rustix::io::Errno::NODATA), "it is gone");
        length = (length + 77_777) % 1_000_000;
        file.set_len(length).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length);
    }
}

/// Two writers fill a volume, and `disturb` goes on meanwhile. A write may find no space; accepted data is there, and can be synced.
pub fn fill_beside(root: &Path, round: u32, disturb: impl FnOnce()) {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..2 {
            let directory = root.join(format!("writer-{round}-{writer}"));
            let has_ended = &has_ended;
            scope.spawn(move || {
                fs::create_dir(&directory).unwrap();
                fills(&directory, has_ended);
                fs::remove_dir_all(&directory).unwrap();
            });
        }
        let _ends = EndsPrograms(&has_ended);
        disturb();
    });
}

const PIECE: usize = 64 << 10;
const PIECES_MAX: usize = 256;

/// Bytes of a piece of a file.
fn piece(number: usize) -> Vec<u8> {
    (0..PIECE).map(|index| (number * 31 + index / 512).to_le_bytes()[0]).collect()
}

/// Writes files until the volume is full, removes some of them, and begins anew.
fn fills(root: &Path, has_ended: &AtomicBool) {
    let mut files: Vec<(File, usize)> = Vec::new();
    let mut number = 0_u32;
    while goes_on(has_ended) {
        let path = root.join(format!("{number}"));
        number += 1;
        let Some(file) = room_or_none(OpenOptions::new().read(true).write(true).create_new(true).open(path)) else {
            make_room(&mut files);
            continue;
        };
        let mut written = 0;
        while written < PIECES_MAX && goes_on(has_ended) {
            match room_or_none(file.write_at(&piece(written), (written * PIECE) as u64)) {
                Some(count) if count == PIECE => written += 1,
                // The rest of the piece found no space.
                Some(_) | None => break,
            }
        }
        let is_full = written < PIECES_MAX;
        files.push((file, written));
        if is_full && goes_on(has_ended) {
            make_room(&mut files);
        }
    }
    files.iter().for_each(check_file);
}

/// `None` where no space was left. Anything else is a failure of the test.
fn room_or_none<T>(outcome: std::io::Result<T>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::StorageFull => None,
        Err(error) => panic!("a program saw an error: {error}"),
    }
}

/// Checks the older half of the files and empties them.
fn make_room(files: &mut Vec<(File, usize)>) {
    let keep = files.len() / 2;
    let older: Vec<_> = files.drain(..files.len() - keep).collect();
    for file in &older {
        check_file(file);
        file.0.set_len(0).unwrap();
    }
}

fn check_file((file, pieces): &(File, usize)) {
    file.sync_all().unwrap();
    file.sync_all().unwrap();
    let mut read = vec![0; PIECE];
    for number in 0..*pieces {
        file.read_exact_at(&mut read, (number * PIECE) as u64).unwrap();
        assert!(read == piece(number), "piece {number} of {pieces} that were accepted");
    }
}

/// A program that has a file mapped.
pub struct Mapping {
    program: Child,
}

const MAPS: &str = "
import mmap, sys
file = open(sys.argv[1], 'r+b')
memory = mmap.mmap(file.fileno(), 0)
file.close()
for line in sys.stdin:
    if line.startswith('fill'):
        memory[:] = bytes([int(line.split()[1])]) * len(memory)
    else:
        memory.flush()
    print('done', flush=True)
";

impl Mapping {
    pub fn of(path: &Path) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", MAPS]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self { program: python.spawn().expect("python3 starts") }
    }

    /// Stores a byte everywhere.
    pub fn fill(&mut self, byte: u8) {
        self.ask(&format!("fill {byte}"));
    }

    /// Waits until everything is durable.
    pub fn sync(&mut self) {
        self.ask("sync");
    }

    fn ask(&mut self, what: &str) {
        writeln!(self.program.stdin.as_mut().unwrap(), "{what}").unwrap();
        let mut answer = [0; 5];
        self.program.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"done\n");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
