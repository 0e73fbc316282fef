//! Writers of other processes beside a mover, under the model checker: thousands of schedules. Run by `make test-schedules`.
//!
//! Checked in every schedule: when a write has returned, the file has its bytes, and has them until the next write. Objects are cells; one that a file gave up has something else in it.
//! Planted mistakes, a mover that does not wait for announced writes, and a program that does not look whether it was waited for, must be found.

use std::sync::Arc;

use polymux_types::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, RwLock, thread};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use super::{LeasedFor, OutsideUser, OutsideUsers, PageChange};

const SCHEDULES: usize = 3000;
const FREED: u64 = u64::MAX;
const WRITES: u64 = 3;
const MOVES: usize = 2;

#[derive(Debug, Default)]
struct Program {
    is_recalled: AtomicBool,
    is_expired: AtomicBool,
    writing: AtomicU32,
}

impl OutsideUser for Program {
    fn recall(&self) {
        self.is_recalled.store(true, Ordering::SeqCst);
    }

    fn may_be_writing(&self) -> bool {
        self.writing.load(Ordering::SeqCst) > 0
    }

    fn expire(&self) {
        self.is_expired.store(true, Ordering::SeqCst);
    }
}

/// A file of one block: which of two objects has it, and the objects. Who holds `owner` for reading holds the barrier shared, who holds it for writing has it alone.
#[derive(Default)]
struct File {
    users: OutsideUsers,
    owner: RwLock<usize>,
    objects: [AtomicU64; 2],
    past_mount: AtomicU32,
    expired: AtomicU32,
    is_one_at_a_time: Mutex<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// The mover recalls, and does not wait.
    NotWaitedFor,
    /// The program does not look again.
    ExpiryUnseen,
}

fn move_block(file: &File, planted: Planted) {
    let mut owner = file.owner.write();
    if planted == Planted::NotWaitedFor {
        file.users.recall_those_of(1);
    } else {
        file.users.end_changes(PageChange::Written);
    }
    let (from, to) = (*owner, 1 - *owner);
    file.objects[to].store(file.objects[from].load(Ordering::SeqCst), Ordering::SeqCst);
    *owner = to;
    drop(owner);
    file.objects[from].store(FREED, Ordering::SeqCst);
}

fn through_kernel(file: &File, value: u64) {
    let owner = file.owner.read();
    file.objects[*owner].store(value, Ordering::SeqCst);
}

fn read(file: &File) -> u64 {
    let owner = file.owner.read();
    file.objects[*owner].load(Ordering::SeqCst)
}

/// As `polymux_client` writes. Returns whether the bytes have to be written through the kernel.
fn write_past_mount(file: &File, program: &Program, copied: usize, value: u64, planted: Planted) -> bool {
    program.writing.store(1, Ordering::SeqCst);
    let is_admitted = !program.is_recalled.load(Ordering::SeqCst);
    if is_admitted {
        file.objects[copied].store(value, Ordering::SeqCst);
        file.past_mount.fetch_add(1, Ordering::SeqCst);
    }
    let is_late = program.is_expired.load(Ordering::SeqCst);
    file.expired.fetch_add(u32::from(is_admitted && is_late), Ordering::SeqCst);
    program.writing.store(0, Ordering::SeqCst);
    !is_admitted || is_late && planted != Planted::ExpiryUnseen
}

fn lease(file: &File) -> (Arc<Program>, usize) {
    let program = Arc::new(Program::default());
    let owner = file.owner.read();
    file.users.add(1, program.clone(), LeasedFor::ChangingFile, 4096);
    (program, *owner)
}

fn write_by_leases(file: &File, planted: Planted) {
    let (mut program, mut copied) = lease(file);
    for value in 1..=WRITES {
        if write_past_mount(file, &program, copied, value, planted) {
            through_kernel(file, value);
            (program, copied) = lease(file);
        }
        assert_eq!(read(file), value, "a write is lost");
    }
}

fn scene(planted: Planted) -> Arc<File> {
    let file = Arc::new(File::default());
    let writer = {
        let file = Arc::clone(&file);
        thread::spawn(move || write_by_leases(&file, planted))
    };
    for _ in 0..MOVES {
        let _turn = file.is_one_at_a_time.lock();
        move_block(&file, planted);
    }
    writer.join().expect("no checked thread panicked");
    assert_eq!(read(&file), WRITES, "a write is lost");
    file
}

fn check(planted: Planted) {
    let seen = Arc::new([(); 2].map(|()| std::sync::atomic::AtomicU32::new(0)));
    let body = {
        let seen = Arc::clone(&seen);
        move || {
            let file = scene(planted);
            for (count, more) in seen.iter().zip([&file.past_mount, &file.expired]) {
                count.fetch_add(more.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }
    };
    Runner::new(PctScheduler::new(3, SCHEDULES), Config::new()).run(body.clone());
    Runner::new(RandomScheduler::new(SCHEDULES), Config::new()).run(body);
    let counts = seen.each_ref().map(|count| count.load(Ordering::SeqCst));
    assert!(counts.iter().all(|count| *count > 0), "writes past the mount, and late ones: {counts:?}");
}

#[test]
fn no_schedule_loses_a_write_of_a_program_beside_a_mover() {
    check(Planted::Nothing);
}

#[test]
#[should_panic(expected = "a write is lost")]
fn a_recall_that_does_not_wait_for_writes_is_found() {
    check(Planted::NotWaitedFor);
}

#[test]
#[should_panic(expected = "a write is lost")]
fn a_program_that_does_not_see_that_it_was_late_is_found() {
    check(Planted::ExpiryUnseen);
}
